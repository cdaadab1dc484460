"""Layers and operators out of PyTorch's corners, as pictures, sounds, tables and losses use them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from . import case, ids
from .tinkerers import BOTH, Mlp, on_tokens, token_loss, tokens


# ------------------------------------------------------------------------------------------------------- pictures


class Inverted(nn.Module):
    """MobileNet's block: depthwise, squeeze and excite, hard swish, batch norms that count."""

    def __init__(self, a, b, stride, norm=nn.BatchNorm2d):
        super().__init__()
        m = 4 * a
        self.expand, self.n1 = nn.Conv2d(a, m, 1, bias=False), norm(m)
        self.depth, self.n2 = nn.Conv2d(m, m, 3, stride, 1, groups=m, bias=False), norm(m)
        self.squeeze, self.excite = nn.Conv2d(m, m // 4, 1), nn.Conv2d(m // 4, m, 1)
        self.project, self.n3 = nn.Conv2d(m, b, 1, bias=False), norm(b)
        self.skip, self.act, self.drop = stride == 1 and a == b, nn.Hardswish(inplace=True), nn.Dropout2d(0.1)

    def forward(self, x):
        y = self.act(self.n2(self.depth(self.act(self.n1(self.expand(x))))))
        s = F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)), inplace=True)))
        y = self.n3(self.project(y * s))
        return x + self.drop(y) if self.skip else y


@case("mobile", ["Inverted"], precisions=["float32"])
class _:
    make = staticmethod(lambda: nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU6(), Inverted(16, 16, 1), Inverted(16, 24, 2), Inverted(24, 24, 1), nn.AdaptiveMaxPool2d(1),
                                              nn.Flatten(), nn.Linear(24, 100)))  # fmt: skip
    batch = staticmethod(lambda device: (torch.randn(16, 3, 64, 64, device=device), ids(100, 16, device=device)))
    forward = staticmethod(lambda model, x, y: F.multi_margin_loss(model(x), y) + 0.1 * F.cross_entropy(model(x), y))


@case("synchronised", ["Inverted"], precisions=["float32"])
class _:
    """Statistics over all ranks."""

    make = staticmethod(lambda: nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.SyncBatchNorm(16), nn.ReLU(), Inverted(16, 16, 1, nn.SyncBatchNorm), Inverted(16, 24, 2, nn.SyncBatchNorm),
                                              nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 100)))  # fmt: skip
    batch = staticmethod(lambda device: (torch.randn(16, 3, 64, 64, device=device), ids(100, 16, device=device)))
    forward = staticmethod(lambda model, x, y: F.cross_entropy(model(x), y))


class Sampled(nn.Module):
    """Offsets learned, picture read there, flow warped, affine places."""

    def __init__(self, c):
        super().__init__()
        self.offset, self.mask, self.weight = nn.Conv2d(c, 18, 3, padding=1), nn.Conv2d(c, 9, 3, padding=1), nn.Conv1d(c * 9, c, 1)
        self.theta, self.norm = nn.Linear(c, 6), nn.GroupNorm(4, c)

    def forward(self, x):
        b, c, h, w = x.shape
        ys, xs = torch.meshgrid(torch.linspace(-1, 1, h, device=x.device, dtype=x.dtype), torch.linspace(-1, 1, w, device=x.device, dtype=x.dtype), indexing="ij")
        grid = torch.stack([xs, ys], -1).expand(b, h, w, 2)
        offset = self.offset(x).view(b, 9, 2, h, w).permute(0, 1, 3, 4, 2) / h
        mask = self.mask(x).sigmoid()
        taps = [F.grid_sample(x, grid + offset[:, k], align_corners=False, padding_mode="border") * mask[:, k : k + 1] for k in range(9)]
        y = self.weight(torch.cat(taps, 1).flatten(2)).view(b, c, h, w)
        theta = self.theta(x.mean((2, 3))).view(b, 2, 3)
        turned = F.grid_sample(y, F.affine_grid(theta, x.shape, align_corners=True), mode="bilinear", align_corners=True)
        return self.norm(x + y + turned)


@case("sampled", ["Sampled"], precisions=["float32"])
class _:
    make = staticmethod(lambda: nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), Sampled(32), Sampled(32), nn.Conv2d(32, 12, 1), nn.PixelShuffle(2)))
    batch = staticmethod(lambda device: (torch.randn(4, 3, 64, 64, device=device),))
    forward = staticmethod(lambda model, x: (F.smooth_l1_loss(model(x), x, reduction="none") + 0.1 * (x - model(x)).abs().clamp_max(2)).mean())


class Pools(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv, self.act = nn.Conv2d(4 * c, c, 1), nn.PReLU(c)
        self.lrn, self.pad = nn.LocalResponseNorm(3), nn.ReflectionPad2d(1)
        self.deep = nn.Conv2d(c, c, 3, groups=4, padding=0)

    def forward(self, x):
        y, where = F.max_pool2d(x, 2, return_indices=True)
        parts = [F.max_unpool2d(y, where, 2), F.interpolate(F.lp_pool2d(x, 2, 2), scale_factor=2, mode="bilinear", align_corners=False),
                 F.interpolate(F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), size=x.shape[2:], mode="bicubic"), self.lrn(x)]  # fmt: skip
        y = self.act(self.conv(torch.cat(parts, 1)))
        cols = F.unfold(F.pad(y, (1, 1, 1, 1), mode="replicate"), 3, stride=3)
        y = y + F.interpolate(F.fold(cols, (x.shape[2] + 2, x.shape[3] + 2), 3, stride=3), x.shape[2:])
        return x + self.deep(self.pad(y))


@case("pools", ["Pools"], precisions=["float32"])
class _:
    make = staticmethod(lambda: nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), Pools(16), Pools(16), nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(16, 3, 3, 2, 1), nn.PixelUnshuffle(2)))
    batch = staticmethod(lambda device: (torch.randn(8, 3, 48, 48, device=device),))
    forward = staticmethod(lambda model, x: F.l1_loss(model(x).float(), F.pixel_unshuffle(x, 2).float()) + 1e-4 * (model(x)[:, :, 1:] - model(x)[:, :, :-1]).abs().float().sum())


class Shifted(nn.Module):
    """Swin with a mask made each time, a relative table by index, cosine scores and a learned temperature."""

    def __init__(self, d, heads, window, shift):
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.qkv, self.proj, self.norm = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d), nn.LayerNorm(d)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d))
        self.scale, self.table = nn.Parameter(torch.zeros(heads, 1, 1)), nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        self.mlp = Mlp(d)

    def places(self, device):
        w = self.window
        c = torch.stack(torch.meshgrid(torch.arange(w, device=device), torch.arange(w, device=device), indexing="ij")).flatten(1)
        far = (c[:, :, None] - c[:, None]).permute(1, 2, 0) + w - 1
        return (far[..., 0] * (2 * w - 1) + far[..., 1]).flatten()

    def forward(self, x):
        b, h, w, d = x.shape
        n, s = self.window, self.shift
        y = torch.roll(x, (-s, -s), (1, 2)) if s else x
        y = y.view(b, h // n, n, w // n, n, d).transpose(2, 3).reshape(-1, n * n, d)
        qkv = F.linear(y, self.qkv.weight, torch.cat([self.q_bias, torch.zeros_like(self.v_bias, requires_grad=False), self.v_bias]))
        q, k, v = qkv.view(*y.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        a = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * self.scale.clamp(max=math.log(100.0)).exp()
        a = a + 16 * torch.sigmoid(self.table[self.places(x.device)].view(n * n, n * n, -1).permute(2, 0, 1))
        if s:
            area = torch.zeros(1, h, w, 1, device=x.device)
            for k1, rows in enumerate((slice(0, -n), slice(-n, -s), slice(-s, None))):
                for k2, cols in enumerate((slice(0, -n), slice(-n, -s), slice(-s, None))):
                    area[:, rows, cols] = 3 * k1 + k2
            area = area.view(1, h // n, n, w // n, n).transpose(2, 3).reshape(-1, n * n)
            mask = (area[:, None] - area[:, :, None]).ne(0).to(a.dtype) * -100.0
            a = (a.view(b, -1, self.heads, n * n, n * n) + mask[None, :, None]).view(-1, self.heads, n * n, n * n)
        y = (a.softmax(-1).to(v.dtype) @ v).transpose(1, 2).reshape(-1, n * n, d)
        y = self.proj(y).view(b, h // n, w // n, n, n, d).transpose(2, 3).reshape(b, h, w, d)
        y = torch.roll(y, (s, s), (1, 2)) if s else y
        return self.mlp(x + self.norm(y))


class Swins(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.patch, self.blocks, self.head = nn.Conv2d(3, d, 4, 4), nn.Sequential(Shifted(d, 4, 4, 0), Shifted(d, 4, 4, 2), Shifted(d, 4, 4, 2)), nn.Linear(d, 10)

    def forward(self, x):
        return self.head(self.blocks(self.patch(x).permute(0, 2, 3, 1)).mean((1, 2)))


@case("shifted", ["Shifted"], precisions=BOTH)
class _:
    make = Swins
    batch = staticmethod(lambda device: (torch.randn(8, 3, 64, 64, device=device), torch.rand(8, 10, device=device)))
    forward = staticmethod(lambda model, x, y: F.binary_cross_entropy_with_logits(model(x).float(), y, pos_weight=torch.full((10,), 2.0, device=x.device)))


# --------------------------------------------------------------------------------------------------------- sounds


class Speech(nn.Module):
    """A wav2vec's front and a conformer's module: strided convolutions, group norms, GLU, grouped positions, masks of spans."""

    def __init__(self, d):
        super().__init__()
        self.n1, self.point, self.depth, self.n2, self.out = nn.LayerNorm(d), nn.Conv1d(d, 2 * d, 1), nn.Conv1d(d, d, 15, padding=7, groups=d), nn.InstanceNorm1d(d, affine=True), nn.Conv1d(d, d, 1)
        self.attn, self.drop = nn.MultiheadAttention(d, 4, dropout=0.1, batch_first=True), nn.Dropout1d(0.1)

    def forward(self, x, mask):
        y = F.glu(self.point(self.n1(x).transpose(1, 2)), 1)
        y = self.out(F.silu(self.n2(self.depth(y))))
        x = x + self.drop(y).transpose(1, 2)
        y, weights = self.attn(x, x, x, key_padding_mask=mask, need_weights=True, average_attn_weights=False)
        return x + y, weights


class Wave(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.front = nn.ModuleList(nn.Conv1d(a, d, k, s, bias=False) for a, k, s in ((1, 10, 5), (d, 3, 2), (d, 3, 2)))
        self.group, self.place = nn.GroupNorm(d, d), nn.Conv1d(d, d, 16, padding=8, groups=4)
        self.blocks, self.mask, self.head = nn.ModuleList(Speech(d) for _ in range(2)), nn.Parameter(torch.zeros(d)), nn.Linear(d, 32)

    def forward(self, wave, lengths):
        x = wave[:, None]
        for k, conv in enumerate(self.front):
            x = F.gelu(self.group(conv(x)) if k == 0 else conv(x))
        x = x.transpose(1, 2)
        b, n, d = x.shape
        spans = torch.rand(b, n, device=x.device) < 0.1
        spans = F.max_pool1d(spans.float()[:, None], 5, 1, 2)[:, 0] > 0
        x = torch.where(spans[..., None], self.mask.to(x.dtype), x)
        x = x + F.gelu(self.place(x.transpose(1, 2))[..., :-1]).transpose(1, 2)
        pad, entropy = torch.arange(n, device=x.device) >= lengths[:, None], 0
        for block in self.blocks:
            x, weights = block(x, pad)
            entropy = entropy - torch.xlogy(weights, weights.clamp(min=1e-6)).sum(-1).mean()
        return self.head(x), entropy, spans


@case("speech", ["Speech"], precisions=["float32"])
class _:
    make = Wave
    batch = staticmethod(lambda device: (torch.randn(4, 4000, device=device), torch.full((4,), 150, device=device), ids(32, 4, 199, device=device)))

    @staticmethod
    def forward(model, wave, lengths, labels):
        logits, entropy, spans = model(wave, lengths)
        logits = logits[:, : labels.shape[1]]
        per = F.nll_loss(F.log_softmax(logits, -1).transpose(1, 2), labels[:, : logits.shape[1]], reduction="none")
        return (per * spans[:, : logits.shape[1]]).sum() / spans.sum().clamp(min=1) + 0.01 * entropy


# --------------------------------------------------------------------------------------------------------- tables


class Tables(nn.Module):
    """Bags of ids with offsets and weights, factorised crosses, a field-aware product, a bilinear head."""

    def __init__(self, d=32, fields=6):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(2000, d, mode=mode, include_last_offset=last) for mode, last in (("sum", False), ("mean", True), ("max", False)))
        self.tables = nn.ModuleDict({f"f{k}": nn.Embedding(1000, d, padding_idx=0) for k in range(fields)})
        self.cross = nn.ParameterList(nn.Parameter(torch.zeros((fields + 3) * d, 8)) for _ in range(2))
        self.back = nn.ParameterList(nn.Parameter(torch.zeros(8, (fields + 3) * d)) for _ in range(2))
        self.deep, self.pair, self.out = nn.Sequential(nn.Linear((fields + 3) * d, 128), nn.BatchNorm1d(128), nn.Mish(), nn.Dropout(0.2)), nn.Bilinear(d, d, 16), nn.Linear(128 + 16 + 36, 1)

    def forward(self, sparse, bags, offsets):
        parts = [self.bags[0](bags, offsets[:-1]), self.bags[1](bags, offsets), self.bags[2](bags.view(offsets.shape[0] - 1, -1))]
        parts += [self.tables[f"f{k}"](sparse[:, k]) for k in range(sparse.shape[1])]
        all_of = torch.stack(parts, 1)
        x0 = x = all_of.flatten(1)
        for u, v in zip(self.cross, self.back):
            x = x0 * (x @ u @ v) + x
        inter = all_of @ all_of.mT
        i, j = torch.triu_indices(9, 9, 1, device=x.device)
        pairs = inter[:, i, j]
        return self.out(torch.cat([self.deep(x), self.pair(parts[0], parts[1]), pairs], 1))[:, 0]


@case("tables", ["EmbeddingBag"], precisions=["float32"], strict=False)
class _:
    make = Tables
    batch = staticmethod(lambda device: (ids(1000, 2048, 6, device=device), ids(2000, 2048 * 4, device=device), torch.arange(0, 2048 * 4 + 1, 4, device=device), torch.rand(2048, device=device)))

    @staticmethod
    def forward(model, *given):
        x, y = model(*given[:-1]), given[-1]
        p = torch.sigmoid(x)
        focal = (1 - p * y - (1 - p) * (1 - y)) ** 2 * F.binary_cross_entropy(p, y, reduction="none")
        return focal.mean() + F.soft_margin_loss(x, y * 2 - 1) + F.poisson_nll_loss(x, y) + F.gaussian_nll_loss(x, y, p + 0.1)


# ------------------------------------------------------------------------------------------------------ two towers


class Towers(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.left, self.right = nn.Sequential(nn.Linear(64, d), Mlp(d), Mlp(d)), nn.Sequential(nn.Linear(96, d), Mlp(d), Mlp(d))
        self.scale = nn.Parameter(torch.zeros(1))
        self.register_buffer("center", torch.zeros(d))
        self.register_buffer("step", torch.zeros(1, dtype=torch.long))

    def forward(self, a, b):
        u, v = self.left(a), self.right(b)
        with torch.no_grad():
            self.center = self.center * 0.9 + v.mean(0).to(self.center.dtype) * 0.1
            self.step += 1
        return F.normalize(u, dim=-1), F.normalize(v - self.center.to(v.dtype), dim=-1), self.scale.exp()


@case("towers", ["Mlp"], precisions=BOTH)
class _:
    make = Towers
    batch = staticmethod(lambda device: (torch.randn(256, 64, device=device), torch.randn(256, 96, device=device)))

    @staticmethod
    def forward(model, a, b):
        u, v, scale = model(a, b)
        logits = (u @ v.t() * scale).float()
        target = torch.arange(len(a), device=a.device)
        both = (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2
        hard = logits.masked_fill(torch.eye(len(a), dtype=torch.bool, device=a.device), -1e4).argmax(1)
        triplet = F.triplet_margin_loss(u, v, v[hard], swap=True)
        cosine = F.cosine_embedding_loss(u, v.roll(1, 0), -torch.ones(len(a), device=a.device), margin=0.2)
        kl = F.kl_div(F.log_softmax(logits, -1), F.softmax(logits.t().detach(), -1), reduction="batchmean")
        var = F.relu(1 - (u.float().var(0) + 1e-4).sqrt()).mean()
        cov = (u.float().T @ u.float() / len(a)).fill_diagonal_(0).pow(2).sum()
        return both + triplet + cosine + kl + var + 0.01 * cov


class Distances(nn.Module):
    """Distances of all pairs, by products and one by one."""

    def __init__(self, d, how):
        super().__init__()
        self.lin, self.codes, self.how = nn.Linear(d, d), nn.Parameter(torch.zeros(48, d)), how

    def forward(self, x):
        y = self.lin(x)
        if self.how == "pairs":
            far = F.pdist(y[:64]).mean()
        elif self.how == "one":
            far = torch.cdist(y, self.codes, p=1.0).mean(1, keepdim=True)
        elif self.how == "few":
            far = torch.cdist(y, self.codes[:16]).mean(1, keepdim=True)
        else:
            far = torch.cdist(y, self.codes)
            far = F.softmax(-far, 1) @ self.codes
        return x + far


for how in ("pairs", "one", "few", "many"):

    @case(f"distances_{how}", ["Distances"], precisions=["float32"])
    class _:
        make = staticmethod(lambda how=how: nn.Sequential(nn.Linear(32, 128), Distances(128, how), Distances(128, how), nn.Linear(128, 1)))
        batch = staticmethod(lambda device: (torch.randn(512, 32, device=device), torch.randn(512, 1, device=device)))
        forward = staticmethod(lambda model, x, y: F.mse_loss(model(x), y))


# ----------------------------------------------------------------------------------------------- experts by hand


class Gathered(nn.Module):
    """Experts whose matrices are gathered for each token, and experts by sorted slots."""

    def __init__(self, d, how, experts=4):
        super().__init__()
        self.how, self.gate, self.norm = how, nn.Linear(d, experts, bias=False), nn.RMSNorm(d)
        self.w1, self.w2 = nn.Parameter(torch.zeros(experts, d, d)), nn.Parameter(torch.zeros(experts, d, d))
        self.bias = nn.Parameter(torch.zeros(experts, d))

    def forward(self, x):
        b, n, d = x.shape
        y = self.norm(x).view(-1, d)
        p = F.softmax(self.gate(y), dim=-1, dtype=torch.float32)
        w, e = p.max(-1)
        if self.how == "gather":
            h = torch.bmm(y[:, None], self.w1[e]).squeeze(1) + self.bias[e]
            out = torch.einsum("td,tdf->tf", F.gelu(h), self.w2.index_select(0, e))
        elif self.how == "slots":
            room = y.shape[0] // self.gate.out_features
            order = torch.argsort(e, stable=True)
            slots = y[order].view(-1, room, d)
            h = torch.baddbmm(self.bias[:, None], slots, self.w1).relu_()
            out = torch.zeros_like(y).index_copy(0, order, torch.bmm(h, self.w2).view(-1, d))
        elif self.how == "capacity":
            hot = F.one_hot(e, p.shape[-1])
            place = (hot.cumsum(0) - 1) * hot
            keep = (place < 96) * hot
            slot = F.one_hot((place * hot).sum(-1).clamp(max=95), 96).to(y.dtype)
            mask = keep.to(y.dtype)[:, :, None] * slot[:, None]
            h = torch.einsum("tec,td->ecd", mask, y)
            h = torch.einsum("ecd,edf->ecf", F.silu(torch.einsum("ecd,edf->ecf", h, self.w1)), self.w2)
            out = torch.einsum("tec,ecd->td", mask * w.to(y.dtype)[:, None, None], h)
        else:
            parts = [F.linear(F.linear(y, self.w1[k]).relu_(), self.w2[k].t()) * p[:, k : k + 1].to(y.dtype) for k in range(p.shape[1])]
            out = torch.stack(parts).sum(0)
        return x + (out * w[:, None].to(y.dtype)).view(b, n, d)


@case("gathered", ["Gathered"], precisions=BOTH)
class _:
    make = staticmethod(lambda: nn.Sequential(nn.Embedding(500, 64), *(Gathered(64, how) for how in ("gather", "slots", "capacity", "all")), nn.Linear(64, 500)))
    batch = tokens(500, 4, 64)
    forward = staticmethod(on_tokens)


# ------------------------------------------------------------------------------------------------- shared keys, latents


class Latent(nn.Module):
    """Keys and values of an earlier layer; a latent that is expanded; rotary by complex numbers or halves; a window and a sink."""

    def __init__(self, d, heads, makes):
        super().__init__()
        self.heads, self.makes = heads, makes
        self.norm, self.q, self.out = nn.RMSNorm(d), nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        if makes:
            self.down, self.n2, self.up = nn.Linear(d, d // 4 + 16, bias=False), nn.RMSNorm(d // 4), nn.Linear(d // 4, 2 * d, bias=False)
        self.sink, self.mlp = nn.Parameter(torch.zeros(heads)), Mlp(d)

    def forward(self, x, table, shared):
        b, n, d = x.shape
        y = self.norm(x)
        q = self.q(y).view(b, n, self.heads, -1)
        q = torch.view_as_real(torch.view_as_complex(q.float().unflatten(-1, (-1, 2))) * table[:, None, : q.shape[-1] // 2]).flatten(-2).to(x.dtype)
        if self.makes:
            low, rope = self.down(y).split([d // 4, 16], -1)
            k, v = self.up(self.n2(low)).view(b, n, self.heads, 2, -1).unbind(3)
            c, s = table.real[:, :8], table.imag[:, :8]
            r1, r2 = rope.float().chunk(2, -1)
            turned = torch.cat([r1 * c - r2 * s, r1 * s + r2 * c], -1).to(x.dtype)
            k = torch.cat([k[..., 16:], turned[:, :, None].expand(-1, -1, self.heads, -1)], -1)
            shared = (k.transpose(1, 2), v.transpose(1, 2))
        k, v = shared
        scores = q.transpose(1, 2) @ k.transpose(2, 3) / math.sqrt(k.shape[-1])
        place = torch.arange(n, device=x.device)
        far = place[:, None] - place
        scores = scores.masked_fill((far < 0) | (far >= 32), torch.finfo(scores.dtype).min)
        scores = torch.cat([scores, self.sink.to(scores.dtype)[None, :, None, None].expand(b, -1, n, 1)], -1)
        scores = 30 * torch.tanh(scores / 30)
        y = (scores.float().softmax(-1)[..., :-1].to(v.dtype) @ v).transpose(1, 2).flatten(2)
        return self.mlp(x + self.out(y)), shared


class Latents(nn.Module):
    def __init__(self, d=128, v=1000):
        super().__init__()
        self.embed, self.head = nn.Embedding(v, d), nn.Linear(d, v, bias=False)
        self.blocks = nn.ModuleList(Latent(d, 4, makes) for makes in (True, False, True, False))
        self.head.weight = self.embed.weight

    def forward(self, x):
        x, shared = self.embed(x), None
        angle = torch.outer(torch.arange(x.shape[1], device=x.device).float(), torch.exp(-torch.arange(16, device=x.device).float()))
        table = torch.polar(torch.ones_like(angle), angle)
        for block in self.blocks:
            x, shared = block(x, table, shared)
        return self.head(x)


@case("latents", ["Latent"], precisions=BOTH)
class _:
    make = Latents
    batch = tokens(1000, 4, 96)
    forward = staticmethod(on_tokens)


# -------------------------------------------------------------------------------------------------- torch.func


class Ensemble(nn.Module):
    """One layer's function mapped over stacked parameters; a directional derivative; a gradient by torch.func."""

    def __init__(self, d, members=4):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.zeros(members, d, d)), nn.Parameter(torch.zeros(members, d))
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        y = self.norm(x)
        each = torch.func.vmap(lambda w, b: torch.tanh(F.linear(y, w, b)), in_dims=(0, 0))(self.w, self.b)
        return x + each.mean(0) - each.std(0)


@case("ensemble", ["Ensemble"], precisions=["float32"])
class _:
    make = staticmethod(lambda: nn.Sequential(nn.Linear(32, 128), Ensemble(128), Ensemble(128), nn.Linear(128, 1)))
    batch = staticmethod(lambda device: (torch.randn(1024, 32, device=device), torch.randn(1024, 1, device=device)))
    forward = staticmethod(lambda model, x, y: F.mse_loss(model(x), y))


class Called(nn.Module):
    """A module called with other parameters: weights that another network makes."""

    def __init__(self, d):
        super().__init__()
        self.inner, self.maker = nn.Linear(d, d), nn.Linear(16, d)

    def forward(self, x, code):
        params = {"weight": self.inner.weight * (1 + self.maker(code).mean(0))[:, None], "bias": self.inner.bias}
        return x + F.gelu(torch.func.functional_call(self.inner, params, (x,)))


class Hyper(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.first, self.blocks, self.last = nn.Linear(32, d), nn.ModuleList(Called(d) for _ in range(3)), nn.Linear(d, 1)

    def forward(self, x, code):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, code)
        return self.last(x)


@case("hyper", ["Called"], precisions=BOTH, orig_params=True)
class _:
    make = Hyper
    batch = staticmethod(lambda device: (torch.randn(1024, 32, device=device), torch.randn(4, 16, device=device), torch.randn(1024, 1, device=device)))
    forward = staticmethod(lambda model, x, c, y: F.mse_loss(model(x, c).float(), y))


# ----------------------------------------------------------------------------------------------- chains of operators


class Written(nn.Module):
    """Chains in place, results into rooms made before, slices added to, indices filled."""

    def __init__(self, d):
        super().__init__()
        self.a, self.b, self.scale = nn.Linear(d, d), nn.Linear(d, d), nn.Parameter(torch.ones(d))
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("trace", torch.zeros(8, d))

    def forward(self, x):
        y = self.a(x)
        y = y.mul_(0.5).add_(1.0).clamp_(min=-2)
        y[:, ::2] += x[:, ::2]
        y[:, 0] = self.scale
        y = y.masked_fill_(y > 3, 3.0).sub_(self.mean.to(y.dtype)).div_(2)
        room = x.new_empty(x.shape[0], x.shape[1] + 4, x.shape[2])
        room[:, :2], room[:, -2:] = 0, 1
        room[:, 2:-2].copy_(y)
        z = self.b(room.narrow(1, 2, x.shape[1])).tanh_() * 1
        z.index_add_(1, torch.tensor([1, 3, 5], device=x.device), z.detach()[:, :3])
        z = z.transpose(1, 2).contiguous().cumsum_(2).transpose(1, 2).lerp_(x, 0.3).addcmul_(x, x, value=0.1)
        with torch.no_grad():
            self.mean.lerp_(z.mean((0, 1)).to(self.mean.dtype), 0.1)
            self.trace.copy_(self.trace.roll(1, 0))
            self.trace[0] = z[0, 0]
        return x + z.sigmoid_()


@case("written", ["Written"], precisions=BOTH)
class _:
    make = staticmethod(lambda: nn.Sequential(nn.Embedding(500, 128), *(Written(128) for _ in range(3)), nn.Linear(128, 500)))
    batch = tokens(500, 8, 96)
    forward = staticmethod(on_tokens)


UNARY = (torch.erf, torch.sin, torch.atan, torch.asinh, torch.expm1, torch.log1p, torch.sinc, F.softsign, F.tanhshrink, F.logsigmoid, F.selu, F.celu, F.hardshrink, F.softshrink, F.hardtanh, F.rrelu, F.threshold,
         torch.special.i0e, torch.digamma, torch.lgamma, torch.frac, torch.square, torch.rsqrt, torch.nan_to_num, torch.logit, torch.erfinv, torch.special.entr,
         torch.exp2, torch.log2, torch.tan, torch.cosh, torch.acos, torch.atanh, torch.deg2rad, F.mish, F.hardswish, F.relu6, F.gumbel_softmax, torch.trunc, torch.sgn, torch.reciprocal, torch.positive)  # fmt: skip


SPECIAL = (torch.special.ndtri, torch.special.log_ndtr, torch.special.erfcx, torch.special.i1, torch.special.i1e)  # in float32 alone


class Unary(nn.Module):
    def __init__(self, d, of):
        super().__init__()
        self.lin, self.of = nn.Linear(d, d), of

    def forward(self, x):
        y = self.lin(x)
        for f in self.of:
            y = f(y, 0.1, 0.2) if f is F.threshold else f(y, training=True) if f is F.rrelu else f(y)
        return x + y


@case("unaries", ["Unary"], precisions=BOTH)
class _:
    make = staticmethod(lambda: nn.Sequential(nn.Linear(64, 64), *(Unary(64, UNARY[k::6]) for k in range(6))))
    batch = staticmethod(lambda device: (torch.randn(512, 64, device=device),))
    forward = staticmethod(lambda model, x: model(x).float().pow(2).mean())


@case("specials", ["Unary"], precisions=["float32"])
class _:
    make = staticmethod(lambda: nn.Sequential(nn.Linear(64, 64), *(Unary(64, SPECIAL[k : k + 1]) for k in range(5))))
    batch = staticmethod(lambda device: (torch.randn(512, 64, device=device),))
    forward = staticmethod(lambda model, x: model(x).float().pow(2).mean())


class Binary(nn.Module):
    def __init__(self, d, lot):
        super().__init__()
        self.lin, self.lot = nn.Linear(d, 2 * d), lot

    def forward(self, x):
        a, b = self.lin(x).chunk(2, -1)
        if self.lot == 0:
            y = torch.atan2(a, b) + torch.hypot(a, b) + torch.logaddexp(a, b) + torch.fmod(a, 2.0) + torch.remainder(b, 3.0) + torch.copysign(a, b) + torch.maximum(a, b) * torch.fmin(a, b)
        elif self.lot == 1:
            y = torch.addcdiv(a, a, b.abs() + 1, value=0.5) + torch.lerp(a, b, torch.sigmoid(a)) + torch.xlogy(a, b.abs() + 1) + torch.pow(a.abs() + 0.1, b) + torch.true_divide(a, 2) + torch.rsub(a, 1) + torch.ldexp(a, torch.ones_like(b))
        elif self.lot == 2:
            y = a.cummax(-1).values + b.cummin(0).values + a.sort(-1, descending=True).values + b.kthvalue(3, -1, keepdim=True).values + a.median(-1, keepdim=True).values + torch.cumprod(b.sigmoid(), -1) + a.logcumsumexp(1)
        elif self.lot == 3:
            y = torch.take_along_dim(a, b.argsort(-1), -1) + b.flip(-1) + a.rot90(2, (0, 1)) + a.diff(dim=-1, prepend=a[:, :1]) + F.pad(b[:, 1:-1], (1, 1), value=1.0) + torch.trapezoid(a)[:, None]
        elif self.lot == 4:
            y = a - a.logsumexp(-1, keepdim=True) + b / b.norm(1, -1, keepdim=True) + torch.var_mean(a, -1, keepdim=True)[0] + a.prod(-1, keepdim=True) + a.amax(-1, keepdim=True) - b.amin(-1, keepdim=True) + torch.std_mean(b, 0)[0] + b.norm(float("inf"), -1, keepdim=True)
        else:
            w = a.unfold(-1, 4, 2).mean(-1)
            y = F.interpolate(w[:, None], a.shape[-1], mode="linear")[:, 0] + torch.kron(a[:, :8], torch.ones(1, 8, device=a.device, dtype=a.dtype)) + torch.tensordot(a, b, ([0], [0])).mean(0)
            y = y + torch.diagonal(a[:, :, None] * b[:, None], dim1=1, dim2=2) + torch.diag_embed(b[:, :8]).flatten(1) + torch.slice_scatter(a, b[:, :4], 1, 0, 4) + torch.select_scatter(b, a[:, 0], 1, 3) + torch.tile(a[:, :16], (1, 4)) + a.repeat_interleave(2, 1)[:, ::2] + torch.tril(b, 3)
        return x + y.to(x.dtype)


@case("binaries", ["Binary"], precisions=["float32"])
class _:
    make = staticmethod(lambda: nn.Sequential(nn.Linear(64, 64), *(Binary(64, k) for k in range(6))))
    batch = staticmethod(lambda device: (torch.randn(512, 64, device=device),))
    forward = staticmethod(lambda model, x: model(x).float().pow(2).mean())


# ----------------------------------------------------------------------------------- what units hand each other, and how


class Shared(nn.Module):
    """A layer that a loop calls again and again, in autocast: its bias is cast each time where nobody keeps the cast."""

    def __init__(self, d):
        super().__init__()
        self.inp, self.again, self.norm = nn.Linear(d, d), nn.Linear(d, d), nn.LayerNorm(d)

    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            h = torch.tanh(self.inp(x))
            for _ in range(6):
                h = torch.tanh(self.again(h) + h)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return self.norm(x + self.again(h))


@case("shared_casts", ["Shared"], precisions=["float32"])
class _:
    make = staticmethod(lambda: nn.Sequential(nn.Linear(32, 192), Shared(192), Shared(192), nn.Linear(192, 1)))
    batch = staticmethod(lambda device: (torch.randn(64, 32, device=device), torch.randn(64, 1, device=device)))
    forward = staticmethod(lambda model, x, y: F.mse_loss(model(x).float(), y))


class Rooms(nn.Module):
    """Results of units are put into a room made before; what is seen of it later has their histories."""

    def __init__(self, d=128):
        super().__init__()
        self.first, self.parts, self.table, self.last = nn.Linear(32, d), nn.ModuleList(Mlp(d) for _ in range(3)), nn.Embedding(100, d), nn.Linear(4 * d, 10)

    def forward(self, x, ids):
        room = torch.zeros(x.shape[0], 3, self.last.in_features // 4, device=x.device)
        h = self.first(x)
        for k, part in enumerate(self.parts):
            room[:, k] = part(h)
        named = self.table(ids)
        whole = room.transpose(0, 1)
        return self.last(torch.cat([whole[0], whole[1], whole[2], named], -1))


@case("rooms", ["Mlp", "Embedding"], precisions=["float32"])
class _:
    make = Rooms
    batch = staticmethod(lambda device: (torch.randn(512, 32, device=device), ids(100, 512, device=device), ids(10, 512, device=device)))
    forward = staticmethod(lambda model, x, k, y: F.cross_entropy(model(x, k), y))


class GappedNorm(nn.Module):
    """A norm of pictures whose channels come last only as they are seen."""

    def __init__(self, c):
        super().__init__()
        self.depth, self.norm, self.up, self.down = nn.Conv2d(c, c, 7, padding=3, groups=c), nn.LayerNorm(c), nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

    def forward(self, x):
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        return x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)


@case("gapped_norms", ["GappedNorm"], precisions=["float32"])
class _:
    make = staticmethod(lambda: nn.Sequential(nn.Conv2d(3, 48, 4, 4), GappedNorm(48), GappedNorm(48), nn.Conv2d(48, 96, 2, 2), GappedNorm(96), GappedNorm(96), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10)))
    batch = staticmethod(lambda device: (torch.randn(8, 3, 128, 128, device=device), ids(10, 8, device=device)))
    forward = staticmethod(lambda model, x, y: F.cross_entropy(model(x), y))


class Ranked(nn.Module):
    """Scores sorted and the best of them taken: several blocks of a card look through each slice."""

    def __init__(self, d):
        super().__init__()
        self.score, self.mix = nn.Linear(d, d), nn.ParameterList(nn.Parameter(torch.zeros(d // 2, d // 2)) for _ in range(2))

    def forward(self, x):
        y = self.score(x)
        best, where = y.topk(32, dim=-1)
        kept = torch.zeros_like(y).scatter(-1, where, best)
        order = kept.flatten().sort(descending=True)[0]
        shared = torch.where(kept > 0, order.view_as(y), y)
        return x + shared @ torch.block_diag(*self.mix)


@case("ranked", ["Ranked"], precisions=BOTH)
class _:
    make = staticmethod(lambda: nn.Sequential(nn.Linear(64, 1024), Ranked(1024), nn.Linear(1024, 10)))
    batch = staticmethod(lambda device: (torch.randn(1024, 64, device=device), ids(10, 1024, device=device)))
    forward = staticmethod(lambda model, x, y: F.cross_entropy(model(x).float(), y))


class Judged(nn.Module):
    """A policy beside its frozen reference in one flat parameter: what is read in no_grad alone has zeros for its piece of the gradient."""

    def __init__(self, d=128):
        super().__init__()
        self.policy, self.reference = nn.Sequential(nn.Linear(32, d), Mlp(d), nn.Linear(d, 10)), nn.Sequential(nn.Linear(32, d), Mlp(d, 16 * d), nn.Linear(d, 10))
        self.reference.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            then = self.reference(x).log_softmax(-1)
        return F.kl_div(self.policy(x).log_softmax(-1), then, log_target=True, reduction="batchmean")


@case("judged", [], precisions=["float32"], orig_params=True)
class _:
    make = Judged
    batch = staticmethod(lambda device: (torch.randn(64, 32, device=device),))
    forward = staticmethod(lambda model, x: model(x))
