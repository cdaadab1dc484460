"""A second lot of strangers' styles: soft caps, latent attention, pair stacks, iterative matching, values through time, losses of trades."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from . import case, ids

BOTH = ["bfloat16", "float32"]


def token_loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


# ------------------------------------------------------------------------------------------------------------ decoders


class OnePlusNorm(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(d)), eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class CappedBlock(nn.Module):
    """Grouped queries with their norm, scores capped by tanh, every second layer sees a window, norms before and after."""

    def __init__(self, d, heads, groups, window):
        super().__init__()
        self.heads, self.groups, self.size, self.window = heads, groups, d // heads, window
        self.qkv = nn.Linear(d, (heads + 2 * groups) * self.size, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.q_norm, self.k_norm = OnePlusNorm(self.size), OnePlusNorm(self.size)
        self.before, self.after, self.before_mlp, self.after_mlp = (OnePlusNorm(d) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, 3 * d, bias=False), nn.Linear(3 * d, d, bias=False)

    def attend(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).split([self.heads * self.size, self.groups * self.size, self.groups * self.size], dim=-1)
        q = rotate(self.q_norm(q.view(b, t, self.heads, self.size)).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(k.view(b, t, self.groups, self.size)).transpose(1, 2), cos, sin)
        v = v.view(b, t, self.groups, self.size).transpose(1, 2)
        k, v = (y.repeat_interleave(self.heads // self.groups, dim=1) for y in (k, v))
        scores = torch.matmul(q, k.transpose(2, 3)) * self.size**-0.5
        scores = torch.tanh(scores / 50.0) * 50.0
        place = torch.arange(t, device=x.device)
        hidden = place[None, :] > place[:, None]
        if self.window:
            hidden = hidden | (place[:, None] - place[None, :] >= self.window)
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        y = torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)
        return self.out(y.transpose(1, 2).reshape(b, t, -1))

    def forward(self, x, cos, sin):
        x = x + self.after(self.attend(self.before(x), cos, sin))
        y = self.before_mlp(x)
        return x + self.after_mlp(self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y)))


class Capped(nn.Module):
    def __init__(self, v=2000, d=256, layers=4, heads=8, groups=2):
        super().__init__()
        self.d, self.size = d, d // heads
        self.embed = nn.Embedding(v, d)
        self.layers = nn.ModuleList(CappedBlock(d, heads, groups, 32 if i % 2 == 0 else None) for i in range(layers))
        self.norm = OnePlusNorm(d)
        self.head = nn.Linear(d, v, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        h = self.embed(x)
        h = h * torch.tensor(self.d**0.5, dtype=h.dtype, device=h.device)
        place = torch.arange(x.shape[1], device=x.device).float()
        angle = torch.outer(place, 10000.0 ** (-torch.arange(0, self.size, 2, device=x.device).float() / self.size)).repeat(1, 2)
        cos, sin = angle.cos().to(h.dtype), angle.sin().to(h.dtype)
        for layer in self.layers:
            h = layer(h, cos, sin)
        logits = self.head(self.norm(h))
        return torch.tanh(logits / 30.0) * 30.0


@case("soft_capped", ["CappedBlock"], precisions=BOTH, recompute=True)
class _:
    make = Capped
    batch = staticmethod(lambda device: (ids(2000, 4, 96, device=device), ids(2000, 4, 96, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


class LatentAttention(nn.Module):
    """Keys and values out of a narrow latent, one rotary key that all heads share."""

    def __init__(self, d, heads=4, narrow=64, plain=32, rotary=16):
        super().__init__()
        self.heads, self.plain, self.rotary, self.narrow = heads, plain, rotary, narrow
        self.q = nn.Linear(d, heads * (plain + rotary), bias=False)
        self.down, self.norm = nn.Linear(d, narrow + rotary, bias=False), nn.RMSNorm(narrow)
        self.up, self.out = nn.Linear(narrow, heads * 2 * plain, bias=False), nn.Linear(heads * plain, d, bias=False)

    def forward(self, x, turn):
        b, t, _ = x.shape
        q_plain, q_turned = self.q(x).view(b, t, self.heads, -1).split([self.plain, self.rotary], dim=-1)
        latent, key = self.down(x).split([self.narrow, self.rotary], dim=-1)

        def turned(y):
            z = torch.view_as_complex(y.float().reshape(*y.shape[:-1], -1, 2))
            return torch.view_as_real(z * turn.view(1, t, 1, -1)).flatten(3).type_as(y)

        q = torch.cat([q_plain, turned(q_turned)], dim=-1)
        k, v = self.up(self.norm(latent)).view(b, t, self.heads, -1).chunk(2, dim=-1)
        k = torch.cat([k, turned(key.unsqueeze(2)).expand(-1, -1, self.heads, -1)], dim=-1)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, -1))


class SortedExperts(nn.Module):
    """Sigmoid gates with a bias that only chooses; tokens sorted by expert, padded to a capacity, a shared expert beside them."""

    def __init__(self, d, experts=8, top=2, slots=1.25):
        super().__init__()
        self.experts, self.top, self.slots = experts, top, slots
        self.router = nn.Linear(d, experts, bias=False)
        self.register_buffer("bias", torch.zeros(experts))
        self.register_buffer("load", torch.zeros(experts), persistent=False)
        self.w1, self.w2, self.w3 = (nn.Parameter(torch.zeros(experts, *s)) for s in ((d, 2 * d), (2 * d, d), (d, 2 * d)))
        self.shared = nn.Sequential(nn.Linear(d, 2 * d, bias=False), nn.SiLU(), nn.Linear(2 * d, d, bias=False))

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        n = flat.shape[0]
        scores = torch.sigmoid(self.router(flat).float())
        _, chosen = torch.topk(scores + self.bias, self.top, dim=-1)
        weight = scores.gather(1, chosen)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * 2.5
        with torch.no_grad():
            self.load.add_(torch.zeros_like(self.load).scatter_add_(0, chosen.flatten(), torch.ones_like(chosen.flatten(), dtype=self.load.dtype)))
        order = torch.argsort(chosen.flatten(), stable=True)
        room = int(self.slots * n * self.top / self.experts)
        taken = order[: room * self.experts].view(self.experts, -1)
        token = taken // self.top
        y = flat[token]
        y = torch.bmm(F.silu(torch.bmm(y, self.w1)) * torch.bmm(y, self.w3), self.w2)
        y = (y.float() * weight.flatten()[taken].unsqueeze(-1)).to(x.dtype)
        out = self.shared(flat)
        return out.index_add(0, token.flatten(), y.flatten(0, 1)).view_as(x)


class LatentBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm1, self.norm2, self.attention, self.experts = nn.RMSNorm(d), nn.RMSNorm(d), LatentAttention(d), SortedExperts(d)

    def forward(self, x, turn):
        x = x + self.attention(self.norm1(x), turn)
        return x + self.experts(self.norm2(x))


class LatentLm(nn.Module):
    def __init__(self, v=2000, d=160, layers=3):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.layers = nn.ModuleList(LatentBlock(d) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, x):
        place = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
        angle = torch.outer(place, 1.0 / (10000.0 ** (torch.arange(0, 16, 2, device=x.device, dtype=torch.float32) / 16)))
        turn = torch.polar(torch.ones_like(angle), angle)
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, turn)
        return self.head(self.norm(h))


class Lm:
    batch = staticmethod(lambda device: (ids(2000, 4, 128, device=device), ids(2000, 4, 128, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


@case("latent_experts", ["LatentBlock"], precisions=BOTH, recompute=True)
class _(Lm):
    make = LatentLm


class DeepNormBlock(nn.Module):
    def __init__(self, d, heads, alpha):
        super().__init__()
        self.heads, self.alpha = heads, alpha
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.fc1, self.fc2, self.drop = nn.Linear(d, 4 * d), nn.Linear(4 * d, d), nn.Dropout(0.1)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=True)
        x = self.norm1(x * self.alpha + self.drop(self.out(y.transpose(1, 2).reshape(b, t, d))))
        return self.norm2(x * self.alpha + self.drop(self.fc2(F.gelu(self.fc1(x)))))


class DeepNorm(nn.Module):
    """Every second block is recomputed, by the model's own forward."""

    def __init__(self, v=2000, d=192, layers=4, every=2):
        super().__init__()
        self.embed, self.place = nn.Embedding(v, d), nn.Parameter(torch.zeros(1, 128, d))
        self.blocks = nn.ModuleList(DeepNormBlock(d, 6, (2 * layers) ** 0.25) for _ in range(layers))
        self.head, self.every = nn.Linear(d, v), every

    def forward(self, x):
        h = self.embed(x) + self.place[:, : x.shape[1]]
        for i, block in enumerate(self.blocks):
            h = checkpoint(block, h, use_reentrant=False) if i % self.every == 0 else block(h)
        return self.head(h)


@case("deep_norm", ["DeepNormBlock"], precisions=BOTH)
class _(Lm):
    make = DeepNorm


@case("deep_norm_autocast", ["DeepNormBlock"], precisions=["float32"])
class _(Lm):
    """Parameters stay float32; the script computes under autocast, as loops of the time before mixed-precision policies do."""

    make = DeepNorm

    @staticmethod
    def forward(model, x, y):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(x)
            return F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1))


class Bottleneck(nn.Module):
    def __init__(self, d, narrow):
        super().__init__()
        self.norm, self.down, self.up = nn.LayerNorm(d), nn.Linear(d, narrow), nn.Linear(narrow, d)

    def forward(self, x):
        return x + self.up(F.relu(self.down(self.norm(x))))


class AdaptedBlock(nn.Module):
    """Houlsby's adapters after both halves of a frozen block, a prefix of trained keys and values before the frozen ones."""

    def __init__(self, d, heads=6, prefix=8):
        super().__init__()
        self.heads = heads
        self.attention, self.norm1 = nn.MultiheadAttention(d, heads, batch_first=True), nn.LayerNorm(d)
        self.mlp, self.norm2 = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)), nn.LayerNorm(d)
        for p in self.parameters():
            p.requires_grad_(False)
        self.adapt1, self.adapt2 = Bottleneck(d, 24), Bottleneck(d, 24)
        self.prefix = nn.Parameter(torch.zeros(1, prefix, d))

    def forward(self, x):
        y = self.norm1(x)
        seen = torch.cat([self.prefix.expand(x.shape[0], -1, -1).to(y.dtype), y], dim=1)
        y, _ = self.attention(y, seen, seen, need_weights=False)
        x = x + self.adapt1(y)
        return x + self.adapt2(self.mlp(self.norm2(x)))


class Adapted(nn.Module):
    def __init__(self, v=2000, d=192, layers=3, labels=12):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.embed.weight.requires_grad_(False)
        self.soft = nn.Parameter(torch.zeros(1, 10, d))
        self.blocks = nn.ModuleList(AdaptedBlock(d) for _ in range(layers))
        self.head = nn.Linear(d, labels)

    def forward(self, x):
        h = torch.cat([self.soft.expand(x.shape[0], -1, -1), self.embed(x)], dim=1)
        for block in self.blocks:
            h = block(h)
        return self.head(h[:, 0])


@case("adapters", ["AdaptedBlock"], precisions=BOTH, orig_params=True)
class _:
    make = Adapted
    batch = staticmethod(lambda device: (ids(2000, 16, 86, device=device), ids(12, 16, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.cross_entropy(model(x).float(), y)


class SlidingBlock(nn.Module):
    """Longformer's attention: chunks that overlap by as_strided, skewed by padding, one global token."""

    def __init__(self, d, heads=4, w=16):
        super().__init__()
        self.heads, self.w, self.size = heads, w, d // heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def chunks(self, x):
        n, t, s = x.shape
        x = x.view(n, t // (2 * self.w), 2 * self.w, s)
        size, stride = list(x.size()), list(x.stride())
        size[1], stride[1] = size[1] * 2 - 1, stride[1] // 2
        return x.as_strided(size=size, stride=stride)

    def attend(self, x):
        b, t, d = x.shape
        w, n = self.w, b * self.heads
        q, k, v = (f(x).view(b, t, self.heads, self.size).transpose(1, 2).reshape(n, t, self.size) for f in (self.q, self.k, self.v))
        q = q / math.sqrt(self.size)
        scores = torch.einsum("bcxd,bcyd->bcxy", self.chunks(q), self.chunks(k))
        scores = F.pad(scores, (0, 0, 0, 1))
        scores = scores.view(*scores.shape[:-2], scores.shape[-1], scores.shape[-2])
        c = scores.shape[1]
        out = scores.new_zeros((n, c + 1, w, 2 * w + 1))
        out[:, :-1, :, w:] = scores[:, :, :w, : w + 1]
        out[:, -1, :, w:] = scores[:, -1, w:, : w + 1]
        out[:, 1:, :, :w] = scores[:, :, -(w + 1) : -1, w + 1 :]
        out = out.view(n, t, 2 * w + 1)
        edge = out.new_ones(w, w + 1).tril().flip(dims=[0])
        out[:, :w, : w + 1] = torch.where(edge.bool(), torch.full_like(out[:, :w, : w + 1], -1e4), out[:, :w, : w + 1])
        wide = torch.bmm(q, k[:, :1].transpose(1, 2))
        chance = F.dropout(F.softmax(torch.cat((wide, out), dim=-1), dim=-1, dtype=torch.float32).type_as(x), 0.1, self.training)
        y = torch.bmm(chance[..., :1], v[:, :1])
        chance = F.pad(chance[..., 1:].reshape(n, t // w, w, 2 * w + 1), (0, w)).reshape(n, t // w, -1)
        chance = chance[..., : -w].view(n, t // w, w, 3 * w)
        padded = F.pad(v, (0, 0, w, w), value=-1)
        size = (n, t // w, 3 * w, self.size)
        s = padded.stride()
        y = y + torch.einsum("bcwd,bcdh->bcwh", chance, padded.as_strided(size, (s[0], w * s[1], s[1], s[2]))).reshape(n, t, self.size)
        return self.o(y.view(b, self.heads, t, self.size).transpose(1, 2).reshape(b, t, d))

    def forward(self, x):
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.mlp(x))


class Sliding(nn.Module):
    def __init__(self, v=2000, d=128, layers=3):
        super().__init__()
        self.embed = nn.Embedding(v, d, padding_idx=0)
        self.blocks = nn.ModuleList(SlidingBlock(d) for _ in range(layers))
        self.head = nn.Linear(d, v)

    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


@case("sliding_chunks", ["SlidingBlock"], precisions=BOTH, recompute=True)
class _(Lm):
    make = Sliding


# ------------------------------------------------------------------------------------------------------------- pictures


class SkipBlock(nn.Module):
    def __init__(self, d, heads=6, skip=False):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.join = nn.Linear(2 * d, d) if skip else None

    def inner(self, x, skip=None):
        if self.join is not None:
            x = self.join(torch.cat([x, skip], dim=-1))
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))

    def forward(self, x, skip=None):
        return checkpoint(self.inner, x, skip, use_reentrant=False) if self.join is not None else self.inner(x, skip)


class UVit(nn.Module):
    """Time and class are tokens; the second half takes the first's outputs, last first."""

    def __init__(self, d=192, depth=4, classes=11):
        super().__init__()
        self.d = d
        self.patch, self.classes = nn.Conv2d(4, d, 2, 2), nn.Embedding(classes, d)
        self.time = nn.Sequential(nn.Linear(d, 4 * d), nn.SiLU(), nn.Linear(4 * d, d))
        self.place = nn.Parameter(torch.zeros(1, 2 + 64, d))
        self.first = nn.ModuleList(SkipBlock(d) for _ in range(depth // 2))
        self.middle = SkipBlock(d)
        self.second = nn.ModuleList(SkipBlock(d, skip=True) for _ in range(depth // 2))
        self.norm, self.head, self.last = nn.LayerNorm(d), nn.Linear(d, 16), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x, t, y):
        half = self.d // 2
        angle = t[:, None].float() * torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32, device=t.device) / half)[None]
        t = self.time(torch.cat([angle.cos(), angle.sin()], dim=-1).to(x.dtype)).unsqueeze(1)
        h = torch.cat((self.classes(y).unsqueeze(1), t, self.patch(x).flatten(2).transpose(1, 2)), dim=1) + self.place
        skips = []
        for block in self.first:
            h = block(h)
            skips.append(h)
        h = self.middle(h)
        for block in self.second:
            h = block(h, skips.pop())
        h = self.head(self.norm(h))[:, 2:]
        b = h.shape[0]
        h = h.view(b, 8, 8, 2, 2, 4).permute(0, 5, 1, 3, 2, 4).reshape(b, 4, 16, 16)
        return self.last(h)


@case("u_vit", ["SkipBlock"], precisions=BOTH)
class _:
    make = UVit
    batch = staticmethod(
        lambda device: (torch.randn(16, 4, 16, 16, device=device), torch.rand(16, device=device), ids(10, 16, device=device))
    )

    @staticmethod
    def forward(model, x, t, y):
        noise = torch.randn_like(x)
        y = torch.where(torch.rand(y.shape, device=y.device) < 0.1, torch.full_like(y, 10), y)
        a = torch.cos(t * math.pi / 2).view(-1, 1, 1, 1)
        noisy = a * x + (1 - a**2).sqrt() * noise
        weight = (1 / (1 + torch.exp(-t))).view(-1, 1, 1, 1)
        return (weight * (model(noisy, t * 1000, y).float() - noise) ** 2).mean()


class MaskedConv(nn.Conv2d):
    def __init__(self, kind, *words, **more):
        super().__init__(*words, **more)
        self.register_buffer("mask", torch.ones_like(self.weight))
        k = self.kernel_size[0]
        self.mask[:, :, k // 2, k // 2 + (kind == "B") :] = 0
        self.mask[:, :, k // 2 + 1 :] = 0

    def forward(self, x):
        return F.conv2d(x, self.weight * self.mask, self.bias, self.stride, self.padding)


class GatedLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv, self.out, self.norm = MaskedConv("B", c, 2 * c, 3, padding=1), nn.Conv2d(c, c, 1), nn.GroupNorm(8, c)

    def forward(self, x):
        a, b = self.conv(F.elu(self.norm(x))).chunk(2, dim=1)
        return x + F.dropout2d(self.out(torch.tanh(a) * torch.sigmoid(b)), 0.1, self.training)


class PixelCnn(nn.Module):
    """256 levels of three channels, in a cross entropy over five dimensions."""

    def __init__(self, c=48, layers=4):
        super().__init__()
        self.first = MaskedConv("A", 3, c, 7, padding=3)
        self.layers = nn.ModuleList(GatedLayer(c) for _ in range(layers))
        self.last = nn.Sequential(nn.ELU(inplace=True), nn.Conv2d(c, 128, 1), nn.ELU(), nn.Conv2d(128, 3 * 256, 1))

    def forward(self, x):
        b, c, h, w = x.shape
        y = self.first(x.float() / 127.5 - 1)
        for layer in self.layers:
            y = layer(y)
        return self.last(y).view(b, 256, c, h, w)


@case("pixel_cnn", ["GatedLayer"], precisions=["float32"], recompute=True)
class _:
    make = PixelCnn
    batch = staticmethod(lambda device: (ids(256, 8, 3, 24, 24, device=device),))

    @staticmethod
    def forward(model, x):
        return F.cross_entropy(model(x), x) / math.log(2)


class MaeBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d, eps=1e-6), nn.LayerNorm(d, eps=1e-6)
        self.attention = nn.MultiheadAttention(d, heads, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.scale1, self.scale2 = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.scale1 * self.attention(y, y, y)[0]  # the weights too, as the default says
        return x + self.scale2 * self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Mae(nn.Module):
    """Patches shuffled by noise, the kept ones encoded, the rest mask tokens for a small decoder; a loss over what was hidden."""

    def __init__(self, d=192, small=96, keep=16):
        super().__init__()
        self.keep = keep
        self.patch = nn.Conv2d(3, d, 8, 8)
        self.cls, self.mask = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(torch.zeros(1, 1, small))
        self.place = nn.Parameter(torch.zeros(1, 65, d), requires_grad=False)
        self.small_place = nn.Parameter(torch.zeros(1, 65, small), requires_grad=False)
        self.encoder = nn.ModuleList(MaeBlock(d, 6) for _ in range(3))
        self.decoder = nn.ModuleList(MaeBlock(small, 4) for _ in range(2))
        self.norm, self.join, self.small_norm, self.head = nn.LayerNorm(d), nn.Linear(d, small), nn.LayerNorm(small), nn.Linear(small, 192)

    def forward(self, x):
        b = x.shape[0]
        h = self.patch(x).flatten(2).transpose(1, 2) + self.place[:, 1:]
        noise = torch.rand(b, h.shape[1], device=x.device)
        order = torch.argsort(noise, dim=1)
        back = torch.argsort(order, dim=1)
        h = torch.gather(h, 1, order[:, : self.keep].unsqueeze(-1).repeat(1, 1, h.shape[2]))
        hidden = torch.ones([b, 64], device=x.device)
        hidden[:, : self.keep] = 0
        hidden = torch.gather(hidden, 1, back)
        h = torch.cat(((self.cls + self.place[:, :1]).expand(b, -1, -1), h), dim=1)
        for block in self.encoder:
            h = block(h)
        h = self.join(self.norm(h))
        tokens = self.mask.repeat(b, 65 - h.shape[1], 1)
        rest = torch.gather(torch.cat([h[:, 1:], tokens], dim=1), 1, back.unsqueeze(-1).repeat(1, 1, h.shape[2]))
        h = torch.cat([h[:, :1], rest], dim=1) + self.small_place
        for block in self.decoder:
            h = block(h)
        return self.head(self.small_norm(h))[:, 1:], hidden


@case("masked_autoencoder", ["MaeBlock"], precisions=BOTH, orig_params=True, recompute=True)
class _:
    make = Mae
    batch = staticmethod(lambda device: (torch.randn(24, 3, 64, 64, device=device),))

    @staticmethod
    def forward(model, x):
        guess, hidden = model(x)
        patches = x.reshape(x.shape[0], 3, 8, 8, 8, 8)
        target = torch.einsum("nchpwq->nhwpqc", patches).reshape(x.shape[0], 64, -1)
        mean, var = target.mean(-1, keepdim=True), target.var(-1, keepdim=True)
        loss = (guess - (target - mean) / (var + 1e-6) ** 0.5) ** 2
        return (loss.mean(-1) * hidden).sum() / hidden.sum()


class DeformableLayer(nn.Module):
    """Attention over a few sampled points of every level."""

    def __init__(self, d, heads=4, levels=2, points=4):
        super().__init__()
        self.heads, self.levels, self.points = heads, levels, points
        self.offsets, self.weights = nn.Linear(d, heads * levels * points * 2), nn.Linear(d, heads * levels * points)
        self.value, self.out = nn.Linear(d, d), nn.Linear(d, d)
        self.own = nn.MultiheadAttention(d, heads, dropout=0.1)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, query, place, reference, memory, shapes):
        b, n, d = query.shape
        q = (query + place).transpose(0, 1)
        query = self.norm1(query + self.own(q, q, query.transpose(0, 1))[0].transpose(0, 1))
        value = self.value(memory).view(b, -1, self.heads, d // self.heads)
        offset = self.offsets(query + place).view(b, n, self.heads, self.levels, self.points, 2)
        weight = F.softmax(self.weights(query + place).view(b, n, self.heads, -1), -1).view(b, n, self.heads, self.levels, self.points)
        size = torch.tensor([[w, h] for h, w in shapes], dtype=query.dtype, device=query.device)
        where = 2 * (reference[:, :, None, None, None, :] + offset / size[None, None, None, :, None, :]) - 1
        sampled = []
        for level, part in enumerate(value.split([h * w for h, w in shapes], dim=1)):
            h, w = shapes[level]
            part = part.flatten(2).transpose(1, 2).reshape(b * self.heads, d // self.heads, h, w)
            grid = where[:, :, :, level].transpose(1, 2).flatten(0, 1)
            sampled.append(F.grid_sample(part, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
        weight = weight.transpose(1, 2).reshape(b * self.heads, 1, n, self.levels * self.points)
        y = (torch.stack(sampled, dim=-2).flatten(-2) * weight).sum(-1).view(b, d, n).transpose(1, 2).contiguous()
        query = self.norm2(query + self.out(y))
        return self.norm3(query + self.fc2(F.relu(self.fc1(query))))


def corners(box):
    x, y, w, h = box.unbind(-1)
    return torch.stack([x - 0.5 * w, y - 0.5 * h, x + 0.5 * w, y + 0.5 * h], dim=-1)


def giou(a, b):
    a, b = corners(a), corners(b)
    area = lambda box: (box[..., 2] - box[..., 0]) * (box[..., 3] - box[..., 1])  # noqa: E731
    inter = (torch.min(a[..., 2:], b[..., 2:]) - torch.max(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    union = area(a) + area(b) - inter
    whole = (torch.max(a[..., 2:], b[..., 2:]) - torch.min(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    return inter / union - (whole - union) / whole


class Deformable(nn.Module):
    def __init__(self, d=128, queries=60, classes=20, layers=3):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 48, 7, 4, 3), nn.BatchNorm2d(48), nn.ReLU(True), nn.MaxPool2d(3, 2, 1))
        self.down = nn.Conv2d(48, 96, 3, 2, 1)
        self.join = nn.ModuleList([nn.Sequential(nn.Conv2d(c, d, 1), nn.GroupNorm(32, d)) for c in (48, 96)])
        self.query, self.where = nn.Embedding(queries, 2 * d), nn.Linear(d, 2)
        self.layers = nn.ModuleList(DeformableLayer(d) for _ in range(layers))
        self.classify = nn.ModuleList(nn.Linear(d, classes) for _ in range(layers))
        self.boxes = nn.ModuleList(nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 4)) for _ in range(layers))

    def forward(self, x):
        c3 = self.stem(x)
        maps = [join(c) for join, c in zip(self.join, (c3, self.down(c3)))]
        memory = torch.cat([m.flatten(2).transpose(1, 2) for m in maps], 1)
        place, query = self.query.weight.unsqueeze(0).expand(x.shape[0], -1, -1).chunk(2, dim=-1)
        reference = self.where(place).sigmoid()
        out = []
        for layer, classify, boxes in zip(self.layers, self.classify, self.boxes):
            query = layer(query, place, reference, memory, [m.shape[-2:] for m in maps])
            box = boxes(query)
            near = torch.log(reference.clamp(1e-5, 1 - 1e-5) / (1 - reference.clamp(1e-5, 1 - 1e-5)))
            box = torch.cat([box[..., :2] + near, box[..., 2:]], dim=-1).sigmoid()
            out.append((classify(query), box))
            reference = box[..., :2].detach()
        return out


@case("deformable_boxes", ["DeformableLayer"], precisions=["float32"], recompute=True)
class _:
    """Focal loss, distance and overlap of boxes, at every layer; the matching is given."""

    make = Deformable
    batch = staticmethod(
        lambda device: (
            torch.randn(4, 3, 128, 128, device=device), torch.rand(4, 60, 20, device=device).gt(0.9).float(), torch.rand(4, 60, 4, device=device),
        )
    )  # fmt: skip

    @staticmethod
    def forward(model, x, labels, boxes):
        loss = 0
        for logits, box in model(x):
            chance = logits.sigmoid()
            ce = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
            hit = chance * labels + (1 - chance) * (1 - labels)
            focal = (0.25 * labels + 0.75 * (1 - labels)) * ce * (1 - hit) ** 2
            loss = loss + focal.mean(1).sum() + 5 * F.l1_loss(box, boxes) + 2 * (1 - giou(box, boxes)).mean()
        return loss


class ConvGru(nn.Module):
    def __init__(self, hidden, seen):
        super().__init__()
        self.z, self.r, self.q = (nn.Conv2d(hidden + seen, hidden, 3, padding=1) for _ in range(3))

    def forward(self, h, x):
        both = torch.cat([h, x], dim=1)
        z, r = torch.sigmoid(self.z(both)), torch.sigmoid(self.r(both))
        q = torch.tanh(self.q(torch.cat([r * h, x], dim=1)))
        return (1 - z) * h + z * q


class Update(nn.Module):
    def __init__(self, c=48):
        super().__init__()
        self.corr, self.flow = nn.Conv2d(2 * 49, 48, 1), nn.Conv2d(2, 16, 7, padding=3)
        self.gru = ConvGru(c, 64 + c)
        self.head = nn.Sequential(nn.Conv2d(c, 64, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(64, 2, 3, padding=1))
        self.mask = nn.Sequential(nn.Conv2d(c, 64, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(64, 16 * 9, 1))

    def forward(self, h, context, corr, flow):
        h = self.gru(h, torch.cat([F.relu(self.corr(corr)), F.relu(self.flow(flow)), context], dim=1))
        return h, 0.25 * self.mask(h), self.head(h)


class Raft(nn.Module):
    """All-pairs correlation, looked up around the flow; iterations detach it, upsampling is convex over unfolded neighbours."""

    def __init__(self, c=48, iterations=3):
        super().__init__()
        self.iterations = iterations
        body = lambda norm: nn.Sequential(  # noqa: E731
            nn.Conv2d(3, 32, 7, 2, 3), norm(32), nn.ReLU(inplace=True), nn.Conv2d(32, 64, 3, 2, 1), norm(64), nn.ReLU(inplace=True), nn.Conv2d(64, 2 * c, 1)
        )
        self.features, self.context, self.update = body(nn.InstanceNorm2d), body(nn.BatchNorm2d), Update(c)

    def lookup(self, pyramid, coords):
        b, _, h, w = coords.shape
        around = torch.linspace(-3, 3, 7, device=coords.device)
        delta = torch.stack(torch.meshgrid(around, around, indexing="ij"), dim=-1).view(1, 7, 7, 2)
        out = []
        for level, corr in enumerate(pyramid):
            where = coords.permute(0, 2, 3, 1).reshape(b * h * w, 1, 1, 2) / 2**level + delta
            grid = torch.cat([2 * where[..., :1] / (corr.shape[-1] - 1) - 1, 2 * where[..., 1:] / (corr.shape[-2] - 1) - 1], dim=-1)
            out.append(F.grid_sample(corr, grid, align_corners=True).view(b, h, w, -1))
        return torch.cat(out, dim=-1).permute(0, 3, 1, 2).contiguous().float()

    def forward(self, a, b):
        f1, f2 = self.features(torch.cat([a, b], dim=0)).float().split(a.shape[0])
        n, c, h, w = f1.shape
        corr = torch.matmul(f1.view(n, c, -1).transpose(1, 2), f2.view(n, c, -1)).view(n * h * w, 1, h, w) / c**0.5
        pyramid = [corr, F.avg_pool2d(corr, 2, stride=2)]
        hidden, context = self.context(a).chunk(2, dim=1)
        hidden, context = torch.tanh(hidden), torch.relu(context)
        y, x = torch.meshgrid(torch.arange(h, device=a.device), torch.arange(w, device=a.device), indexing="ij")
        start = torch.stack([x, y]).float()[None].repeat(n, 1, 1, 1)
        coords, flows = start.clone(), []
        for _ in range(self.iterations):
            coords = coords.detach()
            hidden, mask, delta = self.update(hidden, context, self.lookup(pyramid, coords), coords - start)
            coords = coords + delta
            mask = torch.softmax(mask.view(n, 1, 9, 4, 4, h, w), dim=2)
            up = F.unfold(4 * (coords - start), [3, 3], padding=1).view(n, 2, 9, 1, 1, h, w)
            flows.append(torch.sum(mask * up, dim=2).permute(0, 1, 4, 2, 5, 3).reshape(n, 2, 4 * h, 4 * w))
        return flows


@case("optical_flow", ["Update"], precisions=["float32"])
class _:
    make = Raft
    batch = staticmethod(
        lambda device: (
            torch.randn(2, 3, 96, 96, device=device), torch.randn(2, 3, 96, 96, device=device), torch.randn(2, 2, 96, 96, device=device),
            torch.rand(2, 96, 96, device=device),
        )
    )  # fmt: skip

    @staticmethod
    def forward(model, a, b, flow, valid):
        valid = (valid >= 0.5) & (flow.pow(2).sum(1).sqrt() < 400)
        loss, flows = 0.0, model(a, b)
        for i, guess in enumerate(flows):
            loss = loss + 0.8 ** (len(flows) - i - 1) * (valid[:, None] * (guess - flow).abs()).mean()
        return loss


class SlotAttention(nn.Module):
    """Slots that compete for places, round by round, with a recurrent cell."""

    def __init__(self, d=64, slots=6, rounds=3):
        super().__init__()
        self.slots, self.rounds, self.scale = slots, rounds, d**-0.5
        self.mu, self.sigma = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(torch.zeros(1, 1, d))
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.cell = nn.GRUCell(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(inplace=True), nn.Linear(2 * d, d))
        self.norm, self.norm_slots, self.norm_mlp = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x):
        b, _, d = x.shape
        x = self.norm(x)
        k, v = self.k(x), self.v(x)
        slots = self.mu.expand(b, self.slots, -1) + self.sigma.exp() * torch.randn(b, self.slots, d, device=x.device)
        for _ in range(self.rounds):
            before = slots
            dots = torch.einsum("bid,bjd->bij", self.q(self.norm_slots(slots)), k) * self.scale
            chance = dots.softmax(dim=1) + 1e-8
            chance = chance / chance.sum(dim=-1, keepdim=True)
            update = torch.einsum("bjd,bij->bid", v, chance)
            slots = self.cell(update.reshape(-1, d), before.reshape(-1, d)).reshape(b, -1, d)
            slots = slots + self.mlp(self.norm_mlp(slots))
        return slots


class SoftPlace(nn.Module):
    def __init__(self, d, size):
        super().__init__()
        self.dense = nn.Linear(4, d)
        line = torch.linspace(0, 1, size)
        grid = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).unsqueeze(0)
        self.register_buffer("grid", torch.cat([grid, 1 - grid], -1))

    def forward(self, x):
        return x + self.dense(self.grid)


class Slots(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.encode = nn.Sequential(*(m for i in range(3) for m in (nn.Conv2d(3 if i == 0 else d, d, 5, padding=2), nn.ReLU())))
        self.place, self.small_place, self.norm = SoftPlace(d, 32), SoftPlace(d, 8), nn.LayerNorm(d)
        self.mlp, self.slots = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d)), SlotAttention(d)
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(d, d, 5, 2, 2, output_padding=1), nn.ReLU(), nn.ConvTranspose2d(d, d, 5, 2, 2, output_padding=1), nn.ReLU(),
            nn.ConvTranspose2d(d, 4, 3, 1, 1),
        )  # fmt: skip

    def forward(self, x):
        b = x.shape[0]
        h = self.place(self.encode(x).permute(0, 2, 3, 1)).flatten(1, 2)
        slots = self.slots(self.mlp(self.norm(h)))
        y = slots.reshape(-1, 1, 1, slots.shape[-1]).repeat(1, 8, 8, 1)
        y = self.decode(self.small_place(y).permute(0, 3, 1, 2)).view(b, -1, 4, 32, 32)
        colours, masks = y.split([3, 1], dim=2)
        return (colours * masks.softmax(dim=1)).sum(dim=1)


@case("slots", ["SlotAttention"], precisions=["float32"], recompute=True)
class _:
    make = Slots
    batch = staticmethod(lambda device: (torch.randn(4, 3, 32, 32, device=device),))

    @staticmethod
    def forward(model, x):
        return F.mse_loss(model(x), x)


class Fire(torch.autograd.Function):
    """A spike, whose slope is a fast sigmoid's."""

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        return grad / (10.0 * v.abs() + 1.0) ** 2


class Spiking(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv, self.norm, self.decay = nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.Parameter(torch.zeros(o, 1, 1))

    def forward(self, x):
        t, b = x.shape[:2]
        current = self.norm(self.conv(x.flatten(0, 1))).view(t, b, -1, *x.shape[-2:])
        v, spikes = torch.zeros_like(current[0]), []
        for step in range(t):
            v = torch.sigmoid(self.decay) * v + current[step]
            s = Fire.apply(v - 1.0)
            v = v - s.detach()
            spikes.append(s)
        return torch.stack(spikes)


class SpikingNet(nn.Module):
    def __init__(self, steps=4):
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleList([Spiking(3, 32), Spiking(32, 32), Spiking(32, 64)])
        self.head = nn.Linear(64 * 16, 10)

    def forward(self, x):
        x = x.unsqueeze(0).repeat(self.steps, 1, 1, 1, 1)
        for layer in self.layers:
            x = layer(x)
            x = F.avg_pool2d(x.flatten(0, 1), 2).view(self.steps, -1, x.shape[2], x.shape[3] // 2, x.shape[4] // 2)
        return self.head(x.flatten(2)).mean(0)


@case("spiking", ["Spiking"], precisions=["float32"])
class _:
    make = SpikingNet
    batch = staticmethod(lambda device: (torch.rand(8, 3, 32, 32, device=device), ids(10, 8, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.cross_entropy(model(x), y)


# ------------------------------------------------------------------------------------------------------ science, series


class PairAttention(nn.Module):
    """Gated attention along one axis, with a bias out of the pairs."""

    def __init__(self, d, pair, heads=4):
        super().__init__()
        self.heads = heads
        self.norm, self.pair_norm = nn.LayerNorm(d), nn.LayerNorm(pair)
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.bias, self.gate, self.out = nn.Linear(pair, heads, bias=False), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x, pair):
        x = self.norm(x)
        b, s, r, d = x.shape
        q, k, v = (f(x).view(b, s, r, self.heads, -1).transpose(2, 3) for f in (self.q, self.k, self.v))
        bias = self.bias(self.pair_norm(pair)).permute(0, 3, 1, 2).unsqueeze(1)
        scores = torch.matmul(q * (d // self.heads) ** -0.5, k.transpose(-1, -2))
        scores += bias
        y = torch.matmul(torch.softmax(scores, -1), v).transpose(2, 3)
        return self.out((y * torch.sigmoid(self.gate(x)).view(b, s, r, self.heads, -1)).flatten(3))


class Triangle(nn.Module):
    def __init__(self, c, outgoing):
        super().__init__()
        self.outgoing = outgoing
        self.norm, self.after = nn.LayerNorm(c), nn.LayerNorm(c)
        self.a, self.b, self.gate_a, self.gate_b, self.gate, self.out = (nn.Linear(c, c) for _ in range(6))

    def forward(self, z):
        z = self.norm(z)
        a, b = torch.sigmoid(self.gate_a(z)) * self.a(z), torch.sigmoid(self.gate_b(z)) * self.b(z)
        y = torch.einsum("bikc,bjkc->bijc" if self.outgoing else "bkic,bkjc->bijc", a, b)
        return torch.sigmoid(self.gate(z)) * self.out(self.after(y))


class Evoformer(nn.Module):
    def __init__(self, d=64, c=32, narrow=16):
        super().__init__()
        self.row, self.columns = PairAttention(d, c), nn.MultiheadAttention(d, 4, batch_first=True)
        self.column_norm, self.outer_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.left, self.right, self.outer = nn.Linear(d, narrow), nn.Linear(d, narrow), nn.Linear(narrow * narrow, c)
        self.out, self.into = Triangle(c, True), Triangle(c, False)
        self.transition = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))
        self.pair_transition = nn.Sequential(nn.LayerNorm(c), nn.Linear(c, 4 * c), nn.ReLU(), nn.Linear(4 * c, c))

    def forward(self, m, z):
        kept = F.dropout(torch.ones(m.shape[0], 1, *m.shape[2:], device=m.device, dtype=m.dtype), 0.15, self.training)  # shared by the rows
        m = m + kept * self.row(m, z)
        b, s, r, d = m.shape
        y = self.column_norm(m).transpose(1, 2).flatten(0, 1)
        m = m + self.columns(y, y, y, need_weights=False)[0].view(b, r, s, d).transpose(1, 2)
        m = m + self.transition(m)
        y = self.outer_norm(m)
        outer = torch.einsum("bsic,bsjd->bijcd", self.left(y), self.right(y)) / s
        z = z + self.outer(outer.flatten(3))
        z = z + self.out(z)
        z = z + self.into(z)
        return m, z + self.pair_transition(z)


class Folding(nn.Module):
    def __init__(self, d=64, c=32, layers=3):
        super().__init__()
        self.embed, self.left, self.right, self.relative = nn.Embedding(23, d), nn.Embedding(23, c), nn.Embedding(23, c), nn.Embedding(65, c)
        self.blocks = nn.ModuleList(Evoformer(d, c) for _ in range(layers))
        self.head, self.distance = nn.Linear(d, 23), nn.Linear(c, 64)

    def forward(self, msa):
        first = msa[:, 0]
        place = torch.arange(msa.shape[2], device=msa.device)
        z = self.left(first)[:, :, None] + self.right(first)[:, None] + self.relative((place[:, None] - place[None, :]).clamp(-32, 32) + 32)
        m = self.embed(msa)
        for block in self.blocks:
            m, z = block(m, z)
        d = self.distance(z)
        return self.head(m), d + d.transpose(1, 2)


@case("evoformer", ["Evoformer"], precisions=BOTH, recompute=True)
class _:
    make = Folding
    batch = staticmethod(lambda device: (ids(23, 1, 16, 48, device=device), ids(23, 1, 16, 48, device=device), ids(64, 1, 48, 48, device=device)))

    @staticmethod
    def forward(model, msa, true, distance):
        logits, d = model(msa)
        hidden = (torch.rand(true.shape, device=true.device) < 0.15).float()
        masked = F.cross_entropy(logits.float().permute(0, 3, 1, 2), true, reduction="none")
        return (masked * hidden).sum() / (hidden.sum() + 1e-8) + 0.3 * F.cross_entropy(d.float().flatten(0, 2), distance.flatten())


class GatedResidual(nn.Module):
    def __init__(self, i, d, o=None, context=None):
        super().__init__()
        o = o or i
        self.fc1, self.fc2, self.glu = nn.Linear(i, d), nn.Linear(d, d), nn.Linear(d, 2 * o)
        self.context = nn.Linear(context, d, bias=False) if context else None
        self.skip, self.norm, self.drop = nn.Linear(i, o) if i != o else nn.Identity(), nn.LayerNorm(o), nn.Dropout(0.1)

    def forward(self, x, c=None):
        y = self.fc1(x)
        if c is not None:
            y = y + self.context(c).unsqueeze(1)
        return self.norm(self.skip(x) + F.glu(self.glu(self.drop(self.fc2(F.elu(y))))))


class Selection(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.flat, self.each = GatedResidual(n * d, d, n, d), nn.ModuleList(GatedResidual(d, d) for _ in range(n))

    def forward(self, x, c):
        weight = self.flat(x.flatten(-2), c).softmax(-1).unsqueeze(-2)
        seen = torch.stack([each(x[..., i, :]) for i, each in enumerate(self.each)], -1)
        return (seen * weight).sum(-1)


class FusionTransformer(nn.Module):
    """Static context, chosen variables, an LSTM over past and future, one shared value for all heads."""

    def __init__(self, n=6, d=64, heads=4):
        super().__init__()
        self.heads = heads
        self.static, self.value = nn.Embedding(50, d), nn.ModuleList(nn.Linear(1, d) for _ in range(n))
        self.past, self.future, self.lstm_past, self.lstm_future = Selection(n, d), Selection(n, d), nn.LSTM(d, d, batch_first=True), nn.LSTM(d, d, batch_first=True)
        self.q, self.k, self.v, self.o = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d // heads), nn.Linear(d // heads, d)
        self.enrich, self.last, self.norm = GatedResidual(d, d, d, d), GatedResidual(d, d), nn.LayerNorm(d)
        self.head = nn.Linear(d, 3)

    def forward(self, past, future, static):
        c = self.static(static)
        embed = lambda x: torch.stack([f(x[..., i : i + 1]) for i, f in enumerate(self.value)], -2)  # noqa: E731
        state = (c.unsqueeze(0).contiguous(), torch.zeros_like(c).unsqueeze(0))
        p, state = self.lstm_past(self.past(embed(past), c), state)
        f, _ = self.lstm_future(self.future(embed(future), c), state)
        x = self.enrich(torch.cat([p, f], 1), c)
        b, t, d = x.shape
        q, k = (g(x).view(b, t, self.heads, -1).permute(2, 0, 1, 3) for g in (self.q, self.k))
        hidden = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        chance = (q @ k.transpose(-1, -2) / math.sqrt(d // self.heads)).masked_fill(hidden, float("-inf")).softmax(-1)
        y = torch.stack([h @ self.v(x) for h in chance.unbind(0)]).mean(0)
        x = self.norm(x + self.o(y))
        return self.head(self.last(x)[:, past.shape[1] :])


@case("fusion_series", ["Selection"], precisions=["float32"])
class _:
    make = FusionTransformer
    batch = staticmethod(
        lambda device: (
            torch.randn(32, 48, 6, device=device), torch.randn(32, 16, 6, device=device), ids(50, 32, device=device), torch.randn(32, 16, device=device),
        )
    )  # fmt: skip

    @staticmethod
    def forward(model, past, future, static, target):
        error = target.unsqueeze(-1) - model(past, future, static)
        q = torch.tensor([0.1, 0.5, 0.9], device=error.device)
        return torch.maximum(q * error, (q - 1) * error).sum(-1).mean()


# -------------------------------------------------------------------------------------------------- words, sound, trades


class Crf(nn.Module):
    def __init__(self, tags):
        super().__init__()
        self.start, self.end, self.transition = nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags, tags))

    def forward(self, scores, tags, mask):
        t = scores.shape[0]
        rows = torch.arange(scores.shape[1], device=scores.device)
        score = self.start[tags[0]] + scores[0, rows, tags[0]]
        alpha = self.start + scores[0]
        for i in range(1, t):
            score = score + (self.transition[tags[i - 1], tags[i]] + scores[i, rows, tags[i]]) * mask[i].float()
            step = torch.logsumexp(alpha.unsqueeze(2) + self.transition + scores[i].unsqueeze(1), dim=1)
            alpha = torch.where(mask[i].unsqueeze(1), step, alpha)
        last = tags.gather(0, mask.long().sum(0, keepdim=True) - 1).squeeze(0)
        return (torch.logsumexp(alpha + self.end, dim=1) - score - self.end[last]).mean()


class CharCnn(nn.Module):
    def __init__(self, d=25):
        super().__init__()
        self.embed, self.conv = nn.Embedding(100, d, padding_idx=0), nn.Conv1d(d, 50, 3, padding=1)

    def forward(self, x):
        b, t, c = x.shape
        y = self.conv(F.dropout(self.embed(x.view(b * t, c)), 0.3, self.training).transpose(1, 2))
        return F.max_pool1d(torch.relu(y), c).squeeze(-1).view(b, t, -1)


class Tagger(nn.Module):
    """Characters by convolution, words, an LSTM both ways, a conditional random field."""

    def __init__(self, v=4000, d=100, hidden=96, tags=17):
        super().__init__()
        self.words, self.characters = nn.Embedding(v, d, padding_idx=0), CharCnn()
        self.lstm, self.out, self.crf = nn.LSTM(d + 50, hidden, 2, bidirectional=True, dropout=0.3), nn.Linear(2 * hidden, tags), Crf(tags)

    def forward(self, x, characters, tags):
        h = torch.cat([self.words(x), self.characters(characters)], dim=-1)
        h, _ = self.lstm(F.dropout(h, 0.3, self.training).transpose(0, 1))
        return self.crf(self.out(h), tags.t(), (x != 0).t())


@case("tagger", ["LSTM", "CharCnn"], precisions=["float32"])
class _:
    make = Tagger
    batch = staticmethod(lambda device: (ids(4000, 16, 24, device=device), ids(100, 16, 24, 12, device=device), ids(17, 16, 24, device=device)))

    @staticmethod
    def forward(model, x, characters, tags):
        return model(x, characters, tags)


class Lookahead(nn.Module):
    def __init__(self, n, context=10):
        super().__init__()
        self.conv, self.context = nn.Conv1d(n, n, context, groups=n, bias=False), context

    def forward(self, x):
        x = F.pad(x.transpose(0, 1).transpose(1, 2), pad=(0, self.context - 1), value=0)
        return F.hardtanh(self.conv(x).transpose(1, 2).transpose(0, 1).contiguous(), 0, 20)


class Speech(nn.Module):
    """Deep Speech: clipped convolutions, normalised recurrent layers, a look ahead; CTC."""

    def __init__(self, hidden=128, labels=29):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 16, (21, 11), (2, 2), (10, 5)), nn.BatchNorm2d(16), nn.Hardtanh(0, 20, inplace=True),
            nn.Conv2d(16, 16, (11, 11), (2, 1), (5, 5)), nn.BatchNorm2d(16), nn.Hardtanh(0, 20, inplace=True),
        )  # fmt: skip
        self.norms = nn.ModuleList(nn.BatchNorm1d(n) for n in (16 * 20, hidden))
        self.layers = nn.ModuleList(nn.GRU(n, hidden, bidirectional=True) for n in (16 * 20, hidden))
        self.ahead, self.head = Lookahead(hidden), nn.Linear(hidden, labels, bias=False)

    def forward(self, x):
        x = self.conv(x)
        x = x.flatten(1, 2).permute(2, 0, 1).contiguous()
        for norm, layer in zip(self.norms, self.layers):
            t, b = x.shape[:2]
            x = norm(x.view(t * b, -1)).view(t, b, -1)
            x, _ = layer(x)
            x = x.view(t, b, 2, -1).sum(2).view(t, b, -1)
        return self.head(self.ahead(x))


@case("ctc_speech", ["GRU", "Lookahead"], precisions=["float32"])
class _:
    make = Speech
    batch = staticmethod(lambda device: (torch.randn(6, 1, 80, 96, device=device), ids(28, 6, 20, device=device)))

    @staticmethod
    def forward(model, x, labels):
        logp = model(x).log_softmax(-1)
        seen, said = torch.full((6,), 48, dtype=torch.long), torch.full((6,), 20, dtype=torch.long)
        return F.ctc_loss(logp, labels + 1, seen, said, zero_infinity=True)


class WorldCell(nn.Module):
    """A recurrent state and a categorical one, drawn with a straight-through gradient."""

    def __init__(self, d=128, groups=16, classes=16, actions=6):
        super().__init__()
        self.groups, self.classes = groups, classes
        self.into, self.cell = nn.Sequential(nn.Linear(groups * classes + actions, d), nn.LayerNorm(d), nn.SiLU()), nn.GRUCell(d, d)
        self.prior = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, groups * classes))
        self.posterior = nn.Sequential(nn.Linear(2 * d, d), nn.SiLU(), nn.Linear(d, groups * classes))

    def draw(self, logits):
        chance = logits.view(-1, self.groups, self.classes).softmax(-1)
        chance = 0.99 * chance + 0.01 / self.classes
        index = torch.multinomial(chance.detach().flatten(0, 1), 1).squeeze(-1)
        hard = F.one_hot(index, self.classes).view_as(chance).to(chance.dtype)
        return chance.log(), (hard + chance - chance.detach()).flatten(1)

    def forward(self, h, s, action, seen):
        h = self.cell(self.into(torch.cat([s, action], -1)), h)
        prior, _ = self.draw(self.prior(h))
        posterior, s = self.draw(self.posterior(torch.cat([h, seen], -1)))
        return h, s, prior, posterior


class World(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.d = d
        self.see = nn.Sequential(nn.Conv2d(3, 16, 4, 2, 1), nn.SiLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.SiLU(), nn.Flatten(), nn.Linear(32 * 64, d))
        self.cell = WorldCell(d)
        self.draw = nn.Sequential(
            nn.Linear(d + 256, 32 * 64), nn.Unflatten(1, (32, 8, 8)), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1)
        )
        self.reward, self.goes_on = nn.Linear(d + 256, 255), nn.Linear(d + 256, 1)

    def forward(self, frames, actions, first):
        t, b = frames.shape[:2]
        seen = self.see(frames.flatten(0, 1)).view(t, b, -1)
        h, s = frames.new_zeros(b, self.d), frames.new_zeros(b, 256)
        features, priors, posteriors = [], [], []
        for i in range(t):
            kept = (1.0 - first[i]).unsqueeze(-1)
            h, s, prior, posterior = self.cell(h * kept, s * kept, actions[i] * kept, seen[i])
            features.append(torch.cat([h, s], -1))
            priors.append(prior)
            posteriors.append(posterior)
        f = torch.stack(features).flatten(0, 1)
        return self.draw(f), self.reward(f), self.goes_on(f), torch.stack(priors), torch.stack(posteriors)


@case("world_model", ["WorldCell"], precisions=["float32"])
class _:
    make = World
    batch = staticmethod(
        lambda device: (
            torch.randn(8, 6, 3, 32, 32, device=device), torch.randn(8, 6, 6, device=device), torch.zeros(8, 6, device=device),
            torch.randn(48, device=device), torch.ones(48, device=device),
        )
    )  # fmt: skip

    @staticmethod
    def forward(model, frames, actions, first, reward, goes_on):
        drawn, rewards, on, prior, posterior = model(frames, actions, first)
        picture = 0.5 * (drawn - frames.flatten(0, 1)).pow(2).flatten(1).sum(1).mean()
        bins = torch.linspace(-20, 20, 255, device=reward.device)
        symlog = torch.sign(reward) * torch.log1p(reward.abs())
        above = torch.bucketize(symlog, bins).clamp(1, 254)
        share = (symlog - bins[above - 1]) / (bins[above] - bins[above - 1])
        target = torch.zeros(reward.shape[0], 255, device=reward.device)
        target.scatter_(1, (above - 1).unsqueeze(1), (1 - share).unsqueeze(1))
        target.scatter_add_(1, above.unsqueeze(1), share.unsqueeze(1))
        twohot = -(target * rewards.log_softmax(-1)).sum(-1).mean()
        ends = F.binary_cross_entropy_with_logits(on.squeeze(-1), goes_on)

        def kl(a, b):
            return torch.clamp((a.exp() * (a - b)).sum((-1, -2)), min=1.0).mean()

        return picture + twohot + ends + 0.5 * kl(posterior.detach(), prior) + 0.1 * kl(posterior, prior.detach())


class CrossLayer(nn.Module):
    """Low-rank crosses of experts, gated."""

    def __init__(self, d, rank=32, experts=4):
        super().__init__()
        self.u, self.v, self.c = (nn.Parameter(torch.zeros(experts, *s)) for s in ((d, rank), (d, rank), (rank, rank)))
        self.gate, self.bias = nn.ModuleList(nn.Linear(d, 1, bias=False) for _ in range(experts)), nn.Parameter(torch.zeros(d, 1))

    def forward(self, x0, x):
        outs, gates = [], []
        for i, gate in enumerate(self.gate):
            gates.append(gate(x.squeeze(2)))
            v = torch.tanh(torch.matmul(self.v[i].t(), x))
            v = torch.tanh(torch.matmul(self.c[i], v))
            outs.append((x0 * (torch.matmul(self.u[i], v) + self.bias)).squeeze(2))
        out = torch.stack(outs, 2)
        return torch.matmul(out, torch.stack(gates, 1).softmax(1)) + x


class Ranker(nn.Module):
    """Bags of words, a behaviour sequence with attention by difference and product, crosses, several tasks' gates."""

    def __init__(self, d=16, fields=10, tasks=2, experts=3):
        super().__init__()
        self.fields = nn.ModuleList(nn.Embedding(1000, d) for _ in range(fields))
        self.items, self.bag = nn.Embedding(3000, d, sparse=False), nn.EmbeddingBag(2000, d, mode="mean")
        self.scorer = nn.Sequential(nn.Linear(4 * d, 36), nn.PReLU(), nn.Linear(36, 1))
        n = d * (fields + 3)
        self.cross = nn.ModuleList(CrossLayer(n) for _ in range(2))
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(n, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2)) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(n, experts) for _ in range(tasks))
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)) for _ in range(tasks))

    def forward(self, fields, history, item, words, offsets):
        h, i = self.items(history), self.items(item)
        wide = i.unsqueeze(1).expand_as(h)
        score = self.scorer(torch.cat([wide, h, wide - h, wide * h], -1)).squeeze(-1)
        score = torch.where(history != 0, score, torch.full_like(score, -(2.0**32) + 1)).softmax(-1)
        pooled = torch.bmm(score.unsqueeze(1), h).squeeze(1)
        x = torch.cat([f(fields[:, n]) for n, f in enumerate(self.fields)] + [i, pooled, self.bag(words, offsets)], -1).unsqueeze(2)
        x0 = x
        for layer in self.cross:
            x = layer(x0, x)
        x = x.squeeze(2)
        seen = torch.stack([e(x) for e in self.experts], 1)
        return [t(torch.einsum("be,bed->bd", g(x).softmax(-1), seen)).squeeze(-1) for g, t in zip(self.gates, self.towers)]


@case("ranker", ["CrossLayer"], precisions=["float32"])
class _:
    """Clicks, and purchases given clicks: the second chance is the product of both."""

    make = Ranker
    batch = staticmethod(
        lambda device: (
            ids(1000, 256, 10, device=device), ids(3000, 256, 30, device=device), ids(3000, 256, device=device), ids(2000, 2048, device=device),
            torch.arange(0, 2048, 8, device=device), torch.ones(256, device=device), torch.zeros(256, device=device),
        )
    )  # fmt: skip

    @staticmethod
    def forward(model, fields, history, item, words, offsets, click, bought):
        a, b = model(fields, history, item, words, offsets)
        return F.binary_cross_entropy(torch.sigmoid(a), click) + F.binary_cross_entropy(torch.sigmoid(a) * torch.sigmoid(b), bought)


class Momentum(nn.Module):
    """MoCo: a key encoder that follows in forward, a queue written in place, keys shuffled."""

    def __init__(self, d=64, size=1024):
        super().__init__()
        make = lambda: nn.ModuleList([nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), Wide(32), Wide(32), nn.Linear(32, d)])  # noqa: E731
        self.query, self.key = make(), make()
        for a, b in zip(self.query.parameters(), self.key.parameters()):
            b.data.copy_(a.data)
            b.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(d, size), dim=0))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    @staticmethod
    def run(layers, x):
        conv, norm, a, b, head = layers
        x = b(a(F.relu(norm(conv(x)))))
        return F.normalize(head(x.mean((2, 3))), dim=1)

    def forward(self, x, y):
        q = self.run(self.query, x)
        with torch.no_grad():
            shuffle = torch.randperm(y.shape[0], device=y.device)
            k = self.run(self.key, y[shuffle])[torch.argsort(shuffle)]
        near = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        far = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        logits = torch.cat([near, far], dim=1) / 0.07
        with torch.no_grad():
            self.queue[:, : k.shape[0]] = k.T
        return logits, torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device)


class Wide(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm, self.a, self.b = nn.GroupNorm(4, c), nn.Conv2d(c, 2 * c, 3, padding=1), nn.Conv2d(2 * c, c, 3, padding=1)

    def forward(self, x):
        return x + self.b(F.mish(self.a(self.norm(x))))


@case("momentum_contrast", ["Wide"], precisions=["float32"], orig_params=True)
class _:
    make = Momentum
    batch = staticmethod(lambda device: (torch.randn(16, 3, 32, 32, device=device), torch.randn(16, 3, 32, 32, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.cross_entropy(*model(x, y))
