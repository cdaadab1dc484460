"""Whole recipes of research code: encoders and decoders that hand each other pyramids, memories, masks and caches."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from . import case, ids
from .tinkerers import BOTH, Mlp, on_tokens, token_loss, tokens


class Attention(nn.Module):
    def __init__(self, d, heads=4, memory=None):
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.out = nn.Linear(d, d), nn.Linear(memory or d, 2 * d), nn.Linear(d, d)

    def forward(self, x, memory=None, bias=None):
        memory = x if memory is None else memory
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(memory).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2))


# -------------------------------------------------------------------------------------------- buckets, halves, gates


class BucketLayer(nn.Module):
    """T5: a bias by buckets that the first layer makes and hands to the others; a gated feed-forward; residuals in float32."""

    def __init__(self, d, first):
        super().__init__()
        self.n1, self.n2, self.attn = nn.RMSNorm(d), nn.RMSNorm(d), Attention(d)
        self.table = nn.Embedding(16, 4) if first else None
        self.wi, self.gate, self.wo, self.drop = nn.Linear(d, 2 * d, bias=False), nn.Linear(d, 2 * d, bias=False), nn.Linear(2 * d, d, bias=False), nn.Dropout(0.1)

    def buckets(self, n, device):
        far = torch.arange(n, device=device)[None] - torch.arange(n, device=device)[:, None]
        out = (far > 0).long() * 8
        far = far.abs()
        large = 4 + (torch.log(far.float().clamp(min=1) / 4) / math.log(32) * 4).long()
        return out + torch.where(far < 4, far, torch.min(large, torch.full_like(large, 7)))

    def forward(self, x, bias=None):
        if self.table is not None:
            bias = self.table(self.buckets(x.shape[1], x.device)).permute(2, 0, 1)[None].contiguous()
        y = self.n1(x)
        x = x + self.drop(self.attn(y, bias=bias.to(y.dtype)))
        y = self.n2(x)
        return x + self.drop(self.wo(F.gelu(self.gate(y), approximate="tanh") * self.wi(y))), bias


class Buckets(nn.Module):
    def __init__(self, d=128, v=1000):
        super().__init__()
        self.embed, self.layers, self.norm = nn.Embedding(v, d), nn.ModuleList(BucketLayer(d, i == 0) for i in range(3)), nn.RMSNorm(d)

    def forward(self, x):
        x, bias = self.embed(x), None
        for layer in self.layers:
            x, bias = layer(x, bias)
        return F.linear(self.norm(x) * x.shape[-1] ** -0.5, self.embed.weight)


@case("buckets", ["BucketLayer"], precisions=BOTH, recompute=True)
class _:
    make = Buckets
    batch = tokens(1000, 8, 96)
    forward = staticmethod(on_tokens)


class Halves(nn.Module):
    """RevNet's couplings: two streams, each an addition of a function of the other."""

    def __init__(self, d):
        super().__init__()
        self.f, self.g = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.ReLU()), nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, pair):
        a, b = pair
        a = a + self.f(b)
        return a, b + checkpoint(self.g, a, use_reentrant=False)


class Streams(nn.Module):
    def __init__(self, d=128, v=1000):
        super().__init__()
        self.embed, self.layers, self.head = nn.Embedding(v, 2 * d), nn.ModuleList(Halves(d) for _ in range(3)), nn.Linear(2 * d, v)

    def forward(self, x):
        pair = self.embed(x).chunk(2, -1)
        for layer in self.layers:
            pair = layer(pair)
        return self.head(torch.cat(pair, -1))


@case("streams", ["Halves"], precisions=BOTH)
class _:
    make = Streams
    batch = tokens(1000, 8, 128)
    forward = staticmethod(on_tokens)


class Highway(nn.Module):
    """RWKV-like: shifts in time, a decay by channel in a loop over chunks, squared ReLU, a state that is handed on as a dictionary."""

    def __init__(self, d):
        super().__init__()
        self.mix = nn.Parameter(torch.zeros(4, d))
        self.r, self.k, self.v, self.w, self.o = (nn.Linear(d, d, bias=False) for _ in range(5))
        self.bonus, self.norm, self.ln1, self.ln2 = nn.Parameter(torch.zeros(d)), nn.GroupNorm(4, d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.key, self.value, self.receive = nn.Linear(d, 3 * d, bias=False), nn.Linear(3 * d, d, bias=False), nn.Linear(d, d, bias=False)
        self.shift = nn.ZeroPad2d((0, 0, 1, -1))

    def forward(self, x, states):
        y = self.ln1(x)
        past = self.shift(y) - y
        r, k, v, w = (layer(torch.addcmul(y, past, m)) for layer, m in zip((self.r, self.k, self.v, self.w), self.mix))
        b, n, d = x.shape
        decay = torch.exp(-torch.exp(w.float()))
        state, out = states.get("last"), []
        if state is None:
            state = torch.zeros(b, d, device=x.device, dtype=torch.float32)
        for t in range(n):
            kv = k[:, t].float() * v[:, t].float()
            out.append((r[:, t].float().sigmoid() * (state + self.bonus * kv)).to(x.dtype))
            state = state * decay[:, t] + kv
        y = self.norm(torch.stack(out, 1).view(b * n, d)).view(b, n, d)
        x = x + self.o(y)
        y = self.ln2(x)
        return x + torch.sigmoid(self.receive(y)) * self.value(torch.relu(self.key(y)) ** 2), {"last": state.detach()}


class Highways(nn.Module):
    def __init__(self, d=64, v=500):
        super().__init__()
        self.embed, self.layers, self.head = nn.Embedding(v, d), nn.ModuleList(Highway(d) for _ in range(2)), nn.Linear(d, v, bias=False)

    def forward(self, x):
        x, states = self.embed(x), {}
        for layer in self.layers:
            x, states = layer(x, states)
        return self.head(x)


@case("highways", ["Highway"], precisions=BOTH)
class _:
    make = Highways
    batch = tokens(500, 8, 24)
    forward = staticmethod(on_tokens)


# ----------------------------------------------------------------------------------------------------- pyramids


class Stage(nn.Module):
    def __init__(self, a, b, norm):
        super().__init__()
        self.down, self.conv = nn.Conv2d(a, b, 3, 2, 1), nn.Sequential(OrderedDict(conv=nn.Conv2d(b, b, 3, padding=1, bias=False), norm=norm(b), act=nn.ELU(inplace=True)))

    def forward(self, x):
        x = self.down(x)
        return x + self.conv(x)


class Pyramid(nn.Module):
    """FPN with lateral sums, boxes' and masks' heads shared by levels, dice and generalised overlaps, hard examples by topk."""

    def __init__(self, c=32):
        super().__init__()
        self.stages = nn.ModuleList([Stage(3, c, nn.BatchNorm2d), Stage(c, 2 * c, lambda n: nn.GroupNorm(4, n)), Stage(2 * c, 4 * c, nn.InstanceNorm2d)])
        self.lateral, self.smooth = nn.ModuleList(nn.Conv2d(k * c, c, 1) for k in (1, 2, 4)), nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for _ in range(3))
        self.cls, self.box, self.mask = nn.Conv2d(c, 5, 3, padding=1), nn.Conv2d(c, 4, 3, padding=1), nn.ConvTranspose2d(c, 1, 2, 2)
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(3))

    def forward(self, x):
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        tops = [lateral(level) for lateral, level in zip(self.lateral, levels)]
        for k in (1, 0):
            tops[k] = tops[k] + F.interpolate(tops[k + 1], size=tops[k].shape[-2:], mode="nearest")
        tops = [smooth(top) for smooth, top in zip(self.smooth, tops)]
        cls = torch.cat([self.cls(t).flatten(2) for t in tops], 2)
        box = torch.cat([F.relu(self.box(t) * s).flatten(2) for t, s in zip(tops, self.scales)], 2)
        return cls, box, self.mask(tops[0])


def overlap(a, b):
    lt, rb = torch.max(a[:, :2], b[:, :2]), torch.min(a[:, 2:], b[:, 2:])
    inter = (rb - lt).clamp(min=0).prod(1)
    area = lambda z: (z[:, 2:] - z[:, :2]).clamp(min=0).prod(1)
    union = area(a) + area(b) - inter
    hull = (torch.max(a[:, 2:], b[:, 2:]) - torch.min(a[:, :2], b[:, :2])).prod(1)
    return inter / union.clamp(min=1e-6) - (hull - union) / hull.clamp(min=1e-6)


@case("pyramid", ["Stage"], precisions=BOTH)
class _:
    make = Pyramid
    batch = staticmethod(lambda device: (torch.randn(4, 3, 96, 96, device=device), ids(5, 4, 3024, device=device), torch.rand(4, 4, 3024, device=device), torch.rand(4, 1, 96, 96, device=device)))

    @staticmethod
    def forward(model, x, label, box, mask):
        cls, found, drawn = model(x)
        per = F.cross_entropy(cls.float(), label, reduction="none")
        hard = per.flatten().topk(256)[0].mean()
        boxes = (1 - overlap(found.float(), box)).mean()
        p = drawn.float().sigmoid()
        dice = 1 - (2 * (p * mask).sum((1, 2, 3)) + 1) / (p.square().sum((1, 2, 3)) + mask.square().sum((1, 2, 3)) + 1)
        return hard + boxes + dice.mean() + F.binary_cross_entropy_with_logits(drawn.float(), mask, reduction="none").mean((2, 3)).max()


class Patched(nn.Module):
    """A picture tokenizer: vector quantisation with moving averages, straight through, commitment and perplexity."""

    def __init__(self, c=64, k=128):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(3, c, 4, 4), nn.SiLU(), nn.Conv2d(c, c, 1))
        self.dec = nn.Sequential(nn.ConvTranspose2d(c, c, 2, 2), nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, 12, 3, padding=1), nn.PixelShuffle(2))
        self.register_buffer("codes", torch.zeros(k, c))
        self.register_buffer("count", torch.zeros(k))
        self.register_buffer("mean", torch.zeros(k, c))

    def forward(self, x):
        z = self.enc(x)
        flat = z.permute(0, 2, 3, 1).reshape(-1, z.shape[1]).float()
        codes = self.codes.float()
        far = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ codes.t() + codes.pow(2).sum(1)
        index = far.argmin(1)
        hot = F.one_hot(index, codes.shape[0]).float()
        with torch.no_grad():
            self.count.mul_(0.99).add_(hot.sum(0), alpha=0.01)
            self.mean.mul_(0.99).add_(hot.t() @ flat, alpha=0.01)
            self.codes.copy_(self.mean / self.count.clamp(min=1e-5).unsqueeze(1))
        chosen = F.embedding(index, codes).view(z.shape[0], *z.shape[2:], -1).permute(0, 3, 1, 2).to(z.dtype)
        commit = F.mse_loss(z.float(), chosen.float().detach())
        share = hot.mean(0)
        perplexity = torch.exp(-(share * torch.log(share + 1e-10)).sum())
        return self.dec(z + (chosen - z).detach()), commit, perplexity


@case("patched", ["Sequential"], precisions=BOTH)
class _:
    make = Patched
    batch = staticmethod(lambda device: (torch.randn(8, 3, 64, 64, device=device),))

    @staticmethod
    def forward(model, x):
        out, commit, perplexity = model(x)
        out = out.float()
        edges = (out[..., 1:] - out[..., :-1]).abs().mean() + (out[..., 1:, :] - out[..., :-1, :]).abs().mean()
        return F.l1_loss(out, x) + 0.25 * commit + 0.1 * edges, perplexity


# --------------------------------------------------------------------------------------------- latents, energies, flows


class Gaussian(nn.Module):
    """A hierarchical VAE: moments from above and below, samples, divergences by level, a mixture of logistics."""

    def __init__(self, d):
        super().__init__()
        self.up, self.prior, self.post, self.merge = Mlp(d), nn.Linear(d, 32), nn.Linear(2 * d, 32), nn.Linear(16, d)

    def forward(self, h, below):
        pm, ps = self.prior(h).chunk(2, -1)
        qm, qs = self.post(torch.cat([h, below], -1)).chunk(2, -1)
        z = qm + torch.exp(qs) * torch.randn_like(qm)
        kl = -0.5 + ps - qs + 0.5 * (qs.exp().pow(2) + (qm - pm) ** 2) * torch.exp(-2 * ps)
        return self.up(h + self.merge(z)), kl.sum(-1)


class Ladder(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.first, self.bottom_up = nn.Linear(64, d), nn.ModuleList(Mlp(d) for _ in range(3))
        self.top, self.levels, self.out = nn.Parameter(torch.zeros(1, d)), nn.ModuleList(Gaussian(d) for _ in range(3)), nn.Linear(d, 64 * 9)

    def forward(self, x):
        x, below = self.first(x), []
        for layer in self.bottom_up:
            x = layer(x)
            below.append(x)
        h, divergences = self.top.expand(x.shape[0], -1), []
        for level, b in zip(self.levels, reversed(below)):
            h, kl = level(h, b)
            divergences.append(kl)
        return self.out(h).view(-1, 64, 3, 3), torch.stack(divergences, 1)


@case("ladder", ["Gaussian"], precisions=BOTH)
class _:
    make = Ladder
    batch = staticmethod(lambda device: (torch.rand(256, 64, device=device),))

    @staticmethod
    def forward(model, x):
        out, kl = model(x)
        logit, mean, scale = out.float().unbind(-1)
        inv = torch.exp(-scale.clamp(min=-7))
        centred = x[..., None] - mean
        upper, lower = torch.sigmoid(inv * (centred + 1 / 255)), torch.sigmoid(inv * (centred - 1 / 255))
        each = torch.where(x[..., None] < 0.001, upper.clamp(min=1e-12).log(), torch.where(x[..., None] > 0.999, (1 - lower).clamp(min=1e-12).log(), (upper - lower).clamp(min=1e-12).log()))
        nll = -torch.logsumexp(each + F.log_softmax(logit, -1), -1).sum(-1)
        return nll.mean() + torch.max(kl.float().mean(0), torch.full((3,), 0.1, device=x.device)).sum()


class Coupling(nn.Module):
    """Glow and a rational spline: masks, permutations as products, logarithms of determinants."""

    def __init__(self, d, flip):
        super().__init__()
        self.net, self.flip = nn.Sequential(nn.Linear(d // 2, 256), nn.SiLU(), nn.Linear(256, d // 2 * 16)), flip
        self.log_scale, self.shift, self.mix = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d, d))

    def forward(self, x, logdet):
        x = (x + self.shift) * self.log_scale.exp()
        logdet = logdet + self.log_scale.sum()
        low, up = torch.tril(self.mix, -1) + torch.eye(x.shape[1], device=x.device, dtype=x.dtype), torch.triu(self.mix, 1)
        x = x @ (low @ (up + torch.diag(self.log_scale.exp())))
        a, b = x.chunk(2, -1)
        if self.flip:
            a, b = b, a
        w, h, s = self.net(a).unflatten(-1, (b.shape[1], 16)).split([5, 5, 6], -1)
        w, h = F.pad(F.softmax(w, -1).cumsum(-1), (1, 0)), F.pad(F.softmax(h, -1).cumsum(-1), (1, 0))
        s = F.softplus(s) + 1e-3
        inside = (b >= 0) & (b <= 1)
        k = (torch.searchsorted(w.detach().contiguous(), b.detach()[..., None].contiguous()) - 1).clamp(0, 4)
        pick = lambda t, o=0: t.gather(-1, k + o)[..., 0]
        x0, y0, dx, dy = pick(w), pick(h), pick(w, 1) - pick(w), pick(h, 1) - pick(h)
        slope, s0, s1 = dy / dx, pick(s), pick(s, 1)
        t = ((b - x0) / dx).clamp(0, 1)
        low = slope + (s0 + s1 - 2 * slope) * t * (1 - t)
        y = y0 + dy * (slope * t**2 + s0 * t * (1 - t)) / low
        grad = slope**2 * (s1 * t**2 + 2 * slope * t * (1 - t) + s0 * (1 - t) ** 2) / low**2
        b = torch.where(inside, y, b)
        logdet = logdet + torch.where(inside, grad.clamp(min=1e-6).log(), torch.zeros_like(b)).sum(-1)
        return torch.cat((b, a) if self.flip else (a, b), -1), logdet


class Couplings(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.steps = nn.ModuleList(Coupling(d, k % 2 == 1) for k in range(3))

    def forward(self, x):
        logdet = torch.zeros(x.shape[0], device=x.device, dtype=x.dtype)
        for step in self.steps:
            x, logdet = step(x, logdet)
        return x, logdet


@case("couplings", ["Coupling"], precisions=["float32"])
class _:
    make = Couplings
    batch = staticmethod(lambda device: (torch.rand(512, 32, device=device),))

    @staticmethod
    def forward(model, x):
        z, logdet = model(x)
        return -((-0.5 * z**2 - 0.5 * math.log(2 * math.pi)).sum(-1) + logdet).mean()


# ------------------------------------------------------------------------------------------- readers and rememberers


class Reader(nn.Module):
    """A memory of the last segment in a buffer, cross-attention to pictures behind a gate, some of its parts frozen."""

    def __init__(self, d, sees):
        super().__init__()
        self.n1, self.attn, self.mlp = nn.LayerNorm(d), Attention(d), Mlp(d)
        self.sees = sees
        if sees:
            self.n2, self.cross, self.alpha = nn.LayerNorm(d), Attention(d, memory=48), nn.Parameter(torch.zeros(1))
        self.register_buffer("past", torch.zeros(8, 16, d), persistent=False)

    def forward(self, x, pictures):
        y = self.n1(x)
        long = torch.cat([self.past.to(y.dtype), y], 1)
        n, m = y.shape[1], long.shape[1]
        mask = torch.ones(n, m, dtype=torch.bool, device=x.device).tril(m - n)
        x = x + self.attn(y, long, torch.zeros(n, m, device=x.device, dtype=y.dtype).masked_fill(~mask, float("-inf")))
        self.past = y[:, -16:].detach()
        if self.sees:
            x = x + self.alpha.tanh() * self.cross(self.n2(x), pictures)
        return self.mlp(x)


class Readers(nn.Module):
    def __init__(self, d=128, v=1000):
        super().__init__()
        self.embed, self.blocks, self.head = nn.Embedding(v, d), nn.ModuleList(Reader(d, k % 2 == 1) for k in range(4)), nn.Linear(d, v)
        self.eyes = nn.Sequential(nn.Conv2d(3, 48, 8, 8), nn.Flatten(2))
        for name, p in self.named_parameters():
            p.requires_grad_("cross" in name or "alpha" in name or "n2" in name or "head" in name)

    def forward(self, x, pictures):
        with torch.no_grad():
            seen = self.eyes(pictures.to(self.eyes[0].weight.dtype)).transpose(1, 2)
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, seen)
        return self.head(x)


@case("readers", ["Reader"], precisions=BOTH, orig_params=True)
class _:
    make = Readers
    batch = staticmethod(lambda device: (ids(1000, 8, 64, device=device), torch.randn(8, 3, 32, 32, device=device), ids(1000, 8, 64, device=device)))
    forward = staticmethod(lambda model, x, p, y: token_loss(model(x, p), y))


class Pointer(nn.Module):
    """A sequence to itself: attention as a distribution over the source, copied words added up, coverage along the way."""

    def __init__(self, d=128, v=800):
        super().__init__()
        self.embed, self.enc, self.cell = nn.Embedding(v, d), nn.GRU(d, d // 2, batch_first=True, bidirectional=True), nn.LSTMCell(2 * d, d)
        self.wq, self.wk, self.wc, self.score = nn.Linear(d, d), nn.Linear(d, d, bias=False), nn.Linear(1, d, bias=False), nn.Linear(d, 1, bias=False)
        self.switch, self.head = nn.Linear(3 * d, 1), nn.Linear(2 * d, v)

    def forward(self, source, target):
        memory, last = self.enc(self.embed(source))
        keys = self.wk(memory)
        h = last.transpose(0, 1).flatten(1)
        c, cover, context = torch.zeros_like(h), torch.zeros_like(keys[..., 0]), torch.zeros_like(h)
        words, miss, per = self.embed(target), 0, []
        for t in range(target.shape[1] - 1):
            h, c = self.cell(torch.cat([words[:, t], context], -1), (h, c))
            a = self.score(torch.tanh(keys + self.wq(h)[:, None] + self.wc(cover[..., None])))[..., 0].softmax(-1)
            miss = miss + torch.minimum(a, cover).sum(1).mean()
            cover = cover + a
            context = torch.bmm(a[:, None], memory)[:, 0]
            p = torch.sigmoid(self.switch(torch.cat([words[:, t], h, context], -1)))
            dist = (p * F.softmax(self.head(torch.cat([h, context], -1)), -1)).scatter_add(1, source, (1 - p) * a)
            per.append(-torch.log(dist.gather(1, target[:, t + 1 : t + 2]) + 1e-9))
        return torch.cat(per, 1).mean() + miss


@case("pointer", ["GRU", "LSTMCell"], precisions=["float32"])
class _:
    make = Pointer
    batch = tokens(800, 16, 16)
    forward = staticmethod(lambda model, x, y: model(x, y))
