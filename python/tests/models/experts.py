"""Experts as Transformers stores them, all matrices of a projection in one tensor; the gated delta rule in chunks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from . import case, ids


class GroupedExperts(nn.Module):
    """Rows sorted by expert, grouped products with matrices that lie in rows (gpt-oss) or in columns, the rows put back."""

    def __init__(self, d, f, experts, top, turned):
        super().__init__()
        self.router, self.top, self.turned = nn.Linear(d, experts), top, turned
        gate_up, down = ((experts, 2 * f, d), (experts, d, f)) if turned else ((experts, d, 2 * f), (experts, f, d))
        self.gate_up, self.down = nn.Parameter(torch.randn(gate_up) * 0.02), nn.Parameter(torch.randn(down) * 0.02)
        self.gate_up_bias, self.down_bias = nn.Parameter(torch.zeros(experts, 2 * f)), nn.Parameter(torch.zeros(experts, d))

    def product(self, rows, weight, ends):
        weight = weight.transpose(-2, -1) if self.turned else weight
        return torch._grouped_mm(rows.bfloat16(), weight.bfloat16(), ends).to(rows.dtype)  # the kernel takes no other type

    def forward(self, x):
        b, s, d = x.shape
        scores, chosen = self.router(x).view(b * s, -1).topk(self.top, dim=-1)
        scores = scores.softmax(-1).reshape(-1)
        expert, order = torch.sort(chosen.reshape(-1))
        rows = x.view(b * s, d)[order // self.top]
        ends = torch.cumsum(torch.histc(expert.int(), self.router.out_features, 0, self.router.out_features - 1), 0, dtype=torch.int32)
        gate, up = (self.product(rows, self.gate_up, ends) + self.gate_up_bias[expert]).chunk(2, dim=-1)
        inner = (up.clamp(-7.0, 7.0) + 1) * gate.clamp(max=7.0) * torch.sigmoid(gate * 1.702)
        made = (self.product(inner, self.down, ends) + self.down_bias[expert]) * scores[order].unsqueeze(-1)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel(), device=order.device)
        return made[back].view(b * s, self.top, d).sum(1).view(b, s, d)


class ExpertBlock(nn.Module):
    def __init__(self, d, f, experts, top, turned):
        super().__init__()
        self.norm, self.experts = nn.LayerNorm(d), GroupedExperts(d, f, experts, top, turned)

    def forward(self, x):
        return x + self.experts(self.norm(x))


class ExpertModel(nn.Module):
    def __init__(self, d=256, v=2000):
        super().__init__()
        self.embed, self.head = nn.Embedding(v, d), nn.Linear(d, v)
        self.blocks = nn.ModuleList(ExpertBlock(d, 704, 8, 2, turned) for turned in (False, True))

    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


@case("grouped_experts", ["ExpertBlock"], recompute=True)
class _:
    make = ExpertModel
    batch = staticmethod(lambda device: (ids(2000, 4, 256, device=device), ids(2000, 4, 256, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())


class GatedDelta(nn.Module):
    """A chunk's keys are made independent by a triangular system; the state goes from chunk to chunk."""

    def __init__(self, d, heads, chunk):
        super().__init__()
        self.norm, self.heads, self.chunk = nn.RMSNorm(d), heads, chunk
        self.qkv, self.gates, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, 2 * heads), nn.Linear(d, d, bias=False)
        self.strength = nn.Parameter(torch.zeros(d // heads))

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4).float()
        beta, decay = self.gates(x).float().view(b, s, 2, self.heads).permute(2, 0, 3, 1)
        beta, decay = beta.sigmoid(), -F.softplus(decay)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        cut = lambda t: t.reshape(b, self.heads, s // self.chunk, self.chunk, *t.shape[3:])  # noqa: E731
        q, k, v, beta, decay = map(cut, (q, k, v, beta, decay))
        along = decay.cumsum(-1)
        above = torch.ones(self.chunk, self.chunk, dtype=torch.bool, device=x.device).triu(1)
        pairs = (along.unsqueeze(-1) - along.unsqueeze(-2)).masked_fill(above, float("-inf")).exp()
        system = ((k * beta.unsqueeze(-1)) @ k.mT) * pairs
        new = torch.linalg.solve_triangular(system, v * beta.unsqueeze(-1), upper=False, unitriangular=True)
        old = torch.linalg.solve_triangular(system, k * (beta * along.exp()).unsqueeze(-1), upper=False, unitriangular=True)
        state, seen = x.new_zeros(b, self.heads, d // self.heads, d // self.heads, dtype=torch.float32), []
        for i in range(s // self.chunk):
            value = new[:, :, i] - old[:, :, i] @ state
            seen.append((q[:, :, i] * along[:, :, i].exp().unsqueeze(-1)) @ state + ((q[:, :, i] @ k[:, :, i].mT) * pairs[:, :, i]) @ value)
            rest = (along[:, :, i, -1:] - along[:, :, i]).exp().unsqueeze(-1)
            state = state * along[:, :, i, -1].exp()[..., None, None] + (k[:, :, i] * rest).mT @ value
        y = torch.cat(seen, dim=2).transpose(1, 2).reshape(b, s, d).to(x.dtype)
        strength = torch.exp(torch.sum(self.strength, dtype=torch.float32)).to(x.dtype)  # one number of the device
        return x + self.out(y) * strength


class DeltaModel(nn.Module):
    def __init__(self, d=256, v=2000):
        super().__init__()
        self.embed, self.head = nn.Embedding(v, d), nn.Linear(d, v)
        self.blocks = nn.ModuleList(GatedDelta(d, 4, 64) for _ in range(2))

    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


@case("gated_delta", ["GatedDelta"], precisions=["bfloat16", "float32"], recompute=True)
class _:
    make = DeltaModel
    batch = staticmethod(lambda device: (ids(2000, 2, 256, device=device), ids(2000, 2, 256, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())
