"""Tables, series, graphs, fields and documents: recommenders, forecasters, equivariant products, operators on meshes, retrieval, long documents, segments with memory."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from . import case, ids
from .tinkerers import BOTH, Mlp

# ------------------------------------------------------------------------------------------------------ recommenders


class HSTULayer(nn.Module):
    """Generative recommenders: one projection to four, silu instead of softmax, biases of position and time in buckets."""

    def __init__(self, d, heads=4, n=64, buckets=32):
        super().__init__()
        self.heads, self.uvqk, self.o = heads, nn.Parameter(torch.zeros(d, 4 * d)), nn.Linear(d, d)
        self.pos_w, self.ts_w = nn.Parameter(torch.zeros(2 * n - 1)), nn.Parameter(torch.zeros(buckets + 1))
        self.buckets = buckets

    def bias(self, timestamps):
        b, n = timestamps.shape
        t = F.pad(self.pos_w[: 2 * n - 1], [0, n]).repeat(n)
        t = t[..., :-n].reshape(1, n, 3 * n - 2)
        r = (2 * n - 1) // 2
        ext = torch.cat([timestamps, timestamps[:, n - 1 : n]], dim=1)
        bucket = torch.clamp((torch.log(torch.abs(ext[:, 1:].unsqueeze(2) - ext[:, :-1].unsqueeze(1)).clamp(min=1)) / 0.301).long(), min=0, max=self.buckets).detach()
        return t[:, :, r:-r] + torch.index_select(self.ts_w, dim=0, index=bucket.view(-1)).view(b, n, n)

    def forward(self, x, timestamps, invalid):
        b, n, d = x.shape
        y = F.silu(torch.mm(F.layer_norm(x, [d]).view(-1, d), self.uvqk))
        u, v, q, k = torch.split(y, [d, d, d, d], dim=1)
        qk = torch.einsum("bnhd,bmhd->bhnm", q.view(b, n, self.heads, -1), k.view(b, n, self.heads, -1))
        qk = qk + self.bias(timestamps).unsqueeze(1)
        qk = F.silu(qk) / n
        qk = qk * invalid[None, None].to(qk.dtype)
        attn = torch.einsum("bhnm,bmhd->bnhd", qk, v.reshape(b, n, self.heads, -1)).reshape(b * n, d)
        return self.o(F.dropout(u * F.layer_norm(attn, [d]), p=0.2, training=self.training)).view(b, n, d) + x


class Hstu(nn.Module):
    def __init__(self, d=96, items=5000):
        super().__init__()
        self.items, self.position, self.layers = nn.Embedding(items, d, padding_idx=0), nn.Embedding(64, d), nn.ModuleList(HSTULayer(d) for _ in range(3))

    def forward(self, past, timestamps):
        n = past.shape[1]
        x = self.items(past) * 96**0.5 + self.position(torch.arange(n, device=past.device)).unsqueeze(0)
        x = F.dropout(x, 0.2, self.training) * (past != 0).unsqueeze(-1).to(x.dtype)
        invalid = torch.tril(torch.ones((n, n), dtype=torch.bool, device=past.device))
        for layer in self.layers:
            x = layer(x, timestamps, invalid)
        return x / torch.clamp(torch.linalg.norm(x, ord=None, dim=-1, keepdim=True), min=1e-6)


@case("hstu", ["HSTULayer"], precisions=BOTH, recompute=True)
class _:
    make = Hstu
    batch = staticmethod(lambda device: (ids(5000, 8, 64, device=device), torch.randint(0, 100000, (8, 64), device=device), ids(5000, 8, 64, device=device)))

    @staticmethod
    def forward(model, past, when, target):
        out = model(past, when).flatten(0, 1)
        negative = torch.randint(1, 5000, (out.shape[0], 32), device=past.device)
        pos, neg = model.items(target.flatten()), model.items(negative)
        pos, neg = F.normalize(pos, dim=-1), F.normalize(neg, dim=-1)
        pos_logits = (out * pos).sum(-1, keepdim=True) / 0.05
        neg_logits = torch.bmm(neg, out.unsqueeze(2)).squeeze(2) / 0.05
        neg_logits = torch.where(target.flatten().unsqueeze(1) == negative, -5e4, neg_logits)
        weight = (past.flatten() != 0).float()
        loss = -F.log_softmax(torch.cat([pos_logits, neg_logits], dim=1).float(), dim=1)[:, 0]
        return (loss * weight).sum() / weight.sum()


class Dice(nn.Module):
    """An activation that normalises by the batch."""

    def __init__(self, d):
        super().__init__()
        self.bn, self.alpha = nn.BatchNorm1d(d, eps=1e-8), nn.Parameter(torch.zeros(d))

    def forward(self, x):
        p = torch.sigmoid(self.bn(x.flatten(0, -2)).view_as(x))
        return self.alpha * (1 - p) * x + p * x


class ExpertNet(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(nn.Linear(i, 2 * o), nn.BatchNorm1d(2 * o), nn.ReLU(), nn.Dropout(0.2), nn.Linear(2 * o, o), nn.ReLU())


class Interests(nn.Module):
    """DIN over a history, bags of weighted ids, compressed interactions (xDeepFM), MMoE's towers, labels by several tasks."""

    def __init__(self, fields=6, d=16, users=2000):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(users, d) for _ in range(fields))
        self.first = nn.Embedding(fields * users, 1)
        self.bag, self.history = nn.EmbeddingBag(3000, d, mode="sum", include_last_offset=True), nn.Embedding(3000, d)
        self.din = nn.Sequential(nn.Linear(4 * d, 64), Dice(64), nn.Linear(64, 16), Dice(16), nn.Linear(16, 1))
        self.cin = nn.ModuleList([nn.Conv1d(8 * 8, 12, 1), nn.Conv1d(8 * 6, 12, 1)])
        self.experts, self.gates, self.towers = nn.ModuleList(ExpertNet(8 * d, 32) for _ in range(4)), nn.ModuleList(nn.Linear(8 * d, 4) for _ in range(2)), nn.ModuleList(nn.Linear(32 + 18, 1) for _ in range(2))
        self.log_vars = nn.Parameter(torch.zeros(2))

    def forward(self, dense_ids, bag_ids, bag_weights, offsets, history, target):
        e = torch.stack([t(dense_ids[:, i]) for i, t in enumerate(self.tables)], dim=1)
        h, t = self.history(history), self.history(target)[:, None].expand(-1, history.shape[1], -1)
        score = self.din(torch.cat([h, t, h - t, h * t], dim=-1))
        score = torch.where(history.unsqueeze(-1) != 0, score, torch.full_like(score, -2**31 + 1.0)).softmax(1)
        interest = (score.transpose(1, 2) @ h)
        e = torch.cat([e, interest, self.bag(bag_ids, offsets, per_sample_weights=bag_weights.to(e.dtype))[:, None]], dim=1)
        xs, x0, outs = e, e, []
        for i, conv in enumerate(self.cin):
            z = torch.einsum("bhd,bmd->bhmd", xs, x0).flatten(1, 2)
            z = F.relu(conv(z))
            xs, keep = torch.split(z, [6, 6], dim=1) if i == 0 else (z, z)
            outs.append(keep)
        cross = torch.sum(torch.cat(outs, dim=1), 2)
        square = 0.5 * (e.sum(1) ** 2 - (e**2).sum(1)).sum(1, keepdim=True)
        linear = self.first(dense_ids + torch.arange(6, device=dense_ids.device) * 2000).sum(1) + square
        flat = e.flatten(1)
        experts = torch.stack([expert(flat) for expert in self.experts], dim=1)
        out = []
        for gate, tower in zip(self.gates, self.towers):
            mixed = torch.bmm(F.softmax(gate(flat), dim=-1).unsqueeze(1), experts).squeeze(1)
            out.append(torch.sigmoid(tower(torch.cat([mixed, cross], dim=1)) + linear).squeeze(1))
        return out


@case("interests", ["ExpertNet"], precisions=["float32"])
class _:
    make = Interests
    batch = staticmethod(lambda device: (ids(2000, 256, 6, device=device), ids(3000, 1024, device=device), torch.rand(1024, device=device), torch.arange(0, 1025, 4, device=device), ids(3000, 256, 20, device=device), ids(3000, 256, device=device), torch.rand(256, device=device)))

    @staticmethod
    def forward(model, *given):
        ctr, cvr = model(*given[:-1])
        a, b = F.binary_cross_entropy(ctr, given[-1]), F.binary_cross_entropy(ctr * cvr, given[-1])
        return torch.exp(-model.log_vars[0]) * a + torch.exp(-model.log_vars[1]) * b + model.log_vars.sum()


# ----------------------------------------------------------------------------------------------------- tables, series


class TableLayer(nn.Module):
    """TabPFN: attention between the columns of a row, then between the rows of a column; tests look at training rows only."""

    def __init__(self, d, heads=4):
        super().__init__()
        self.between, self.over, self.l1, self.l2 = nn.MultiheadAttention(d, heads, batch_first=True), nn.MultiheadAttention(d, heads, batch_first=True), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.n1, self.n2, self.n3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x, split):
        b, r, c, d = x.shape
        x = x.reshape(b * r, c, d)
        x = self.n1(self.between(x, x, x)[0] + x)
        x = x.reshape(b, r, c, d).transpose(1, 2).reshape(b * c, r, d)
        left = self.over(x[:, :split], x[:, :split], x[:, :split])[0]
        right = self.over(x[:, split:], x[:, :split], x[:, :split])[0]
        x = self.n2(torch.cat([left, right], dim=1) + x)
        x = x.reshape(b, c, r, d).transpose(2, 1)
        return self.n3(self.l2(F.gelu(self.l1(x))) + x)


class TabPfn(nn.Module):
    def __init__(self, d=64, bars=50):
        super().__init__()
        self.feature, self.target, self.layers, self.decoder = nn.Linear(1, d), nn.Linear(1, d), nn.ModuleList(TableLayer(d) for _ in range(3)), nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, bars))
        self.register_buffer("borders", torch.linspace(-3, 3, bars + 1))

    def forward(self, x, y, split):
        mean, std = x[:, :split].mean(dim=1, keepdim=True), x[:, :split].std(dim=1, keepdim=True) + 1e-20
        x = torch.clip((x - mean) / std, min=-100, max=100)
        h = self.feature(x.unsqueeze(-1).to(self.feature.weight.dtype))
        known = torch.cat([y[:, :split], y[:, :split].mean(1, keepdim=True).expand(-1, y.shape[1] - split)], 1)
        h = torch.cat([h, self.target(known[..., None, None].to(h.dtype))], 2)
        for layer in self.layers:
            h = layer(h, split)
        return self.decoder(h[:, split:, -1])


@case("tabpfn", ["TableLayer"], precisions=BOTH, recompute=True)
class _:
    make = TabPfn
    batch = staticmethod(lambda device: (torch.randn(4, 48, 7, device=device), torch.randn(4, 48, device=device)))

    @staticmethod
    def forward(model, x, y):
        logits = model(x, y, 32).float()
        borders = model.borders.float()
        target = torch.searchsorted(borders, y[:, 32:].contiguous()) - 1
        target = target.clamp(0, logits.shape[-1] - 1)
        widths = borders[1:] - borders[:-1]
        scaled = F.log_softmax(logits, -1) - torch.log(widths)
        return -scaled.gather(-1, target.unsqueeze(-1)).squeeze(-1).mean()


class AutoCorrelation(nn.Module):
    """Autoformer: delays by correlation with what is rolled, the best of them summed; trends by moving averages."""

    def __init__(self, d, heads=4, factor=2):
        super().__init__()
        self.q, self.k, self.v, self.o, self.heads, self.factor = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), heads, factor
        self.conv1, self.conv2, self.pool = nn.Conv1d(d, 2 * d, 1, bias=False), nn.Conv1d(2 * d, d, 1, bias=False), nn.AvgPool1d(9, stride=1)

    def decompose(self, x):
        padded = torch.cat([x[:, :1].repeat(1, 4, 1), x, x[:, -1:].repeat(1, 4, 1)], dim=1)
        trend = self.pool(padded.permute(0, 2, 1)).permute(0, 2, 1)
        return x - trend, trend

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.heads, -1).permute(0, 2, 3, 1).contiguous() for f in (self.q, self.k, self.v))
        corr = torch.einsum("bhcn,bhcnl->bhcl", q.float(), torch.cat([k, k], dim=-1).float().unfold(-1, n, 1)[..., :n, :])
        top = int(self.factor * math.log(n))
        mean = corr.mean(dim=1).mean(dim=1)
        weights, delay = torch.topk(mean, top, dim=-1)
        share = torch.softmax(weights, dim=-1)
        index = torch.arange(n, device=x.device)[None, None, None].repeat(b, self.heads, d // self.heads, 1)
        twice, agg = v.repeat(1, 1, 1, 2), torch.zeros_like(v).float()
        for i in range(top):
            pattern = torch.gather(twice, dim=-1, index=index + delay[:, i].view(-1, 1, 1, 1))
            agg = agg + pattern * share[:, i].view(-1, 1, 1, 1)
        x, t1 = self.decompose(x + self.o(agg.permute(0, 3, 1, 2).reshape(b, n, d).to(x.dtype)))
        y = self.conv2(F.gelu(self.conv1(x.transpose(-1, 1)))).transpose(-1, 1)
        x, t2 = self.decompose(x + y)
        return x, t1 + t2


class BeatsBlock(nn.Module):
    """N-BEATS: what a block explains is taken from what is left; bases of polynomials and waves are buffers."""

    def __init__(self, back, ahead, kind, width=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(back, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        t = torch.arange(back + ahead).float() / (back + ahead)
        basis = torch.stack([t**i for i in range(4)]) if kind == "trend" else torch.cat([torch.stack([f(2 * math.pi * i * t) for i in range(1, 5)]) for f in (torch.cos, torch.sin)])
        self.register_buffer("basis", basis)
        self.theta, self.back = nn.Linear(width, basis.shape[0]), back

    def forward(self, x):
        out = self.theta(self.body(x)) @ self.basis.to(x.dtype)
        return out.split([self.back, out.shape[-1] - self.back], dim=-1)


class Forecaster(nn.Module):
    """Instances normalised and put back (RevIN, its statistics kept on the module), quantiles and scaled errors."""

    def __init__(self, channels=7, d=64, back=72, ahead=24):
        super().__init__()
        self.affine_weight, self.affine_bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.embed, self.layers, self.trend, self.out = nn.Conv1d(channels, d, 3, padding=1, padding_mode="circular", bias=False), nn.ModuleList(AutoCorrelation(d) for _ in range(2)), nn.Linear(d, channels), nn.Linear(back, 3 * ahead)
        self.project = nn.Linear(d, channels)
        self.blocks = nn.ModuleList(BeatsBlock(back, ahead, kind) for kind in ("trend", "season"))

    def forward(self, x):
        self.mean = torch.mean(x, dim=1, keepdim=True).detach()
        self.stdev = torch.sqrt(torch.var(x, dim=1, keepdim=True, unbiased=False) + 1e-5).detach()
        x = ((x - self.mean) / self.stdev).to(self.affine_weight.dtype) * self.affine_weight + self.affine_bias
        h, trends = self.embed(x.transpose(1, 2)).transpose(1, 2), 0
        for layer in self.layers:
            h, t = layer(h)
            trends = trends + t
        y = self.out((self.project(h) + self.trend(trends)).transpose(1, 2)).unflatten(-1, (3, -1))
        left, forecast = x.transpose(1, 2), 0
        for block in self.blocks:
            back, ahead = block(left)
            left, forecast = left - back, forecast + ahead
        y = (y + forecast.unsqueeze(2)).permute(0, 3, 1, 2)
        y = (y - self.affine_bias[:, None]) / (self.affine_weight[:, None] + 1e-10)
        return y * self.stdev[..., None] + self.mean[..., None]


@case("forecaster", ["AutoCorrelation", "BeatsBlock"], precisions=BOTH)
class _:
    make = Forecaster
    batch = staticmethod(lambda device: (torch.randn(32, 72, 7, device=device), torch.randn(32, 24, 7, device=device)))

    @staticmethod
    def forward(model, x, y):
        q = torch.tensor([0.1, 0.5, 0.9], device=x.device)
        e = y[..., None] - model(x)
        smape = 200 * torch.mean(torch.nan_to_num((y - (y - e[..., 1])).abs() / (y.abs() + (y - e[..., 1]).abs()).detach(), 0.0, 0.0, 0.0))
        return torch.maximum(q * e, (q - 1) * e).mean() + 0.01 * smape


# ------------------------------------------------------------------------------------------------- fields and molecules


class TensorProduct(nn.Module):
    """Equivariant messages by hand: spherical harmonics to degree two, radial weights for every path, einsums, gates by norms."""

    PATHS = [(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 0, 1), (1, 1, 0), (1, 1, 2), (1, 2, 1), (2, 0, 2), (2, 1, 1), (2, 2, 0)]

    def __init__(self, c):
        super().__init__()
        self.c, self.radial = c, nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, len(self.PATHS) * c))
        self.mix = nn.ParameterList(nn.Parameter(torch.zeros(c, c)) for _ in range(3))
        self.gate = nn.Linear(c, 2 * c)
        for i, (a, b, o) in enumerate(self.PATHS):
            self.register_buffer(f"cg_{i}", torch.randn(2 * a + 1, 2 * b + 1, 2 * o + 1))

    def forward(self, x, sh, radial, src, dst):
        weights = self.radial(radial).unflatten(-1, (len(self.PATHS), self.c))
        out = [torch.zeros_like(part) for part in x]
        for i, (a, b, o) in enumerate(self.PATHS):
            message = torch.einsum("eci,ej,ijk,ec->eck", x[a][src], sh[b], getattr(self, f"cg_{i}").to(sh[b].dtype), weights[:, i])
            out[o] = out[o].index_add(0, dst, message)
        out = [torch.einsum("nci,cd->ndi", part, w) / 4.0 for part, w in zip(out, self.mix)]
        gates = torch.sigmoid(self.gate(out[0].squeeze(-1))).chunk(2, -1)
        new = [F.silu(out[0])] + [part * g.unsqueeze(-1) for part, g in zip(out[1:], gates)]
        return [a + b for a, b in zip(x, new)]


class Equivariant(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.embed, self.layers, self.readout, self.force = nn.Embedding(20, c), nn.ModuleList(TensorProduct(c) for _ in range(3)), nn.Sequential(nn.Linear(c, 32), nn.SiLU(), nn.Linear(32, 1)), nn.Linear(c, 1, bias=False)

    def forward(self, z, pos, src, dst, graph):
        vec = pos[dst] - pos[src]
        r = vec.norm(dim=-1, keepdim=True).clamp(min=1e-3)
        x, y, w = (vec / r).unbind(-1)
        sh1 = torch.stack([y, w, x], -1) * 3**0.5
        sh2 = torch.stack([15**0.5 * x * y, 15**0.5 * y * w, 5**0.5 / 2 * (3 * w**2 - 1), 15**0.5 * x * w, 15**0.5 / 2 * (x**2 - y**2)], -1)
        n = torch.arange(1, 9, device=pos.device, dtype=pos.dtype)
        cut = 0.5 * (torch.cos(math.pi * r / 5.0) + 1) * (r < 5.0)
        radial = math.sqrt(2 / 5) * torch.sin(n * math.pi * r / 5.0) / r * cut
        h = [self.embed(z).unsqueeze(-1), pos.new_zeros(z.shape[0], self.embed.weight.shape[1], 3), pos.new_zeros(z.shape[0], self.embed.weight.shape[1], 5)]
        sh = [torch.ones_like(r), sh1, sh2]
        for layer in self.layers:
            h = layer(h, sh, radial, src, dst)
        energy = pos.new_zeros(16).index_add_(0, graph, self.readout(h[0].squeeze(-1)).squeeze(-1))
        return energy, self.force(h[1].transpose(1, 2)).squeeze(-1)


@case("equivariant", ["TensorProduct"], precisions=["float32"])
class _:
    make = Equivariant
    batch = staticmethod(lambda device: (ids(20, 320, device=device), torch.randn(320, 3, device=device), ids(320, 2400, device=device), ids(320, 2400, device=device), ids(16, 320, device=device), torch.randn(16, device=device), torch.randn(320, 3, device=device)))

    @staticmethod
    def forward(model, *given):
        energy, force = model(*given[:-2])
        return F.l1_loss(energy, given[-2]) + 10 * torch.norm(force - given[-1], dim=-1).mean()


class Afno(nn.Module):
    """FourCastNet: block-diagonal complex perceptrons among the frequencies that are kept, shrunk softly; the transform is a product with a complex table."""

    def __init__(self, d, blocks=4, h=12):
        super().__init__()
        self.n1, self.n2, self.mlp, self.blocks, self.size = nn.LayerNorm(d), nn.LayerNorm(d), nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Dropout(0.0), nn.Linear(2 * d, d)), blocks, d // blocks
        s = self.size
        angle = -2 * math.pi / (2 * h) * torch.outer(torch.arange(2 * h).float(), torch.arange(h + 1).float())
        self.register_buffer("dft", torch.complex(angle.cos(), angle.sin()) / math.sqrt(2 * h), persistent=False)
        self.w1, self.b1 = nn.Parameter(0.02 * torch.randn(2, blocks, s, s)), nn.Parameter(0.02 * torch.randn(2, blocks, s))
        self.w2, self.b2 = nn.Parameter(0.02 * torch.randn(2, blocks, s, s)), nn.Parameter(0.02 * torch.randn(2, blocks, s))

    def filter(self, x):
        bias, dtype = x, x.dtype
        x = x.float()
        b, h, w, c = x.shape
        x = torch.einsum("bhwc,wk->bhkc", x.to(self.dft.dtype), self.dft).reshape(b, h, w // 2 + 1, self.blocks, self.size)
        o1r, o1i = (torch.zeros([*x.shape], device=x.device) for _ in range(2))
        o2r, o2i = torch.zeros(x.shape, device=x.device), torch.zeros(x.shape, device=x.device)
        kept = w // 4 + 1
        w1, b1, w2, b2 = self.w1.float(), self.b1.float(), self.w2.float(), self.b2.float()
        mul = lambda t, k: torch.einsum("...bi,bio->...bo", t, k)
        part = x[:, :, :kept]
        o1r[:, :, :kept] = F.relu(mul(part.real, w1[0]) - mul(part.imag, w1[1]) + b1[0])
        o1i[:, :, :kept] = F.relu(mul(part.imag, w1[0]) + mul(part.real, w1[1]) + b1[1])
        o2r[:, :, :kept] = mul(o1r[:, :, :kept], w2[0]) - mul(o1i[:, :, :kept], w2[1]) + b2[0]
        o2i[:, :, :kept] = mul(o1i[:, :, :kept], w2[0]) + mul(o1r[:, :, :kept], w2[1]) + b2[1]
        x = F.softshrink(torch.stack([o2r, o2i], dim=-1), lambd=0.01)
        x = torch.view_as_complex(x).reshape(b, h, w // 2 + 1, c)
        x = torch.einsum("bhkc,wk->bhwc", x, self.dft.conj()).real
        return x.type(dtype) + bias

    def forward(self, x):
        x = x + self.filter(self.n1(x))
        return x + self.mlp(self.n2(x))


class Slices(nn.Module):
    """Transolver: points are softly cut into slices, attention among the slices, and back."""

    def __init__(self, d, heads=4, slices=16):
        super().__init__()
        self.heads, hd = heads, d // heads
        self.norm, self.temperature, self.in_x, self.in_fx, self.slice = nn.LayerNorm(d), nn.Parameter(torch.ones([1, heads, 1, 1]) * 0.5), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(hd, slices)
        self.q, self.k, self.v, self.out, self.mlp = nn.Linear(hd, hd, bias=False), nn.Linear(hd, hd, bias=False), nn.Linear(hd, hd, bias=False), nn.Linear(d, d), Mlp(d, 2 * d)

    def forward(self, x):
        b, n, d = x.shape
        y = self.norm(x)
        fx, xm = (f(y).reshape(b, n, self.heads, -1).permute(0, 2, 1, 3).contiguous() for f in (self.in_fx, self.in_x))
        weights = F.softmax(self.slice(xm) / torch.clamp(self.temperature, min=0.1, max=5), dim=-1)
        token = torch.einsum("bhnc,bhng->bhgc", fx, weights) / (weights.sum(2) + 1e-5)[:, :, :, None].repeat(1, 1, 1, fx.shape[-1])
        q, k, v = self.q(token), self.k(token), self.v(token)
        token = torch.matmul(F.softmax(torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5, dim=-1), v)
        out = torch.einsum("bhgc,bhng->bhnc", token, weights).permute(0, 2, 1, 3).flatten(2)
        return self.mlp(x + self.out(out))


class Weather(nn.Module):
    def __init__(self, c=5, d=64):
        super().__init__()
        self.patch, self.pos, self.blocks, self.slices = nn.Conv2d(c, d, 4, 4), nn.Parameter(torch.zeros(1, 12, 24, d)), nn.ModuleList(Afno(d) for _ in range(2)), nn.ModuleList(Slices(d) for _ in range(2))
        self.head = nn.Linear(d, c * 16, bias=False)
        lat = torch.cos(torch.linspace(-math.pi / 2, math.pi / 2, 48))
        self.register_buffer("weight", (lat / lat.mean()).view(1, 1, 48, 1))

    def step(self, x):
        h = self.patch(x).permute(0, 2, 3, 1) + self.pos
        for block in self.blocks:
            h = block(h)
        b, hh, ww, d = h.shape
        h = h.flatten(1, 2)
        for block in self.slices:
            h = block(h)
        h = self.head(h).view(b, hh, ww, 4, 4, -1)
        return x + torch.einsum("bhwpqc->bchpwq", h).reshape(x.shape)

    def forward(self, x, targets):
        loss, out = 0.0, x
        for target in targets.unbind(1):
            out = self.step(out)
            loss = loss + (self.weight * (out.float() - target) ** 2).mean().sqrt()
        return loss


@case("weather", ["Afno", "Slices"], precisions=["float32"], recompute=True)
class _:
    make = Weather
    batch = staticmethod(lambda device: (torch.randn(4, 5, 48, 96, device=device), torch.randn(4, 2, 5, 48, 96, device=device)))
    forward = staticmethod(lambda model, x, y: model(x, y))
