"""A fifth lot of strangers' styles, by what they do to tensors: hooks, writes in place, formats of memory, distributions, frozen judges."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.utils.checkpoint import checkpoint

from . import case, ids
from .outsiders import token_loss

BOTH = ["bfloat16", "float32"]


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.weight * g, None


class HookedBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(d, 4 * d), nn.Linear(4 * d, d), nn.LayerNorm(d)

    def forward(self, x):
        y = self.b(F.gelu(self.a(self.norm(x))))
        if y.requires_grad:
            y.register_hook(lambda g: g * 0.5)
        return x + y


class Hooked(nn.Module):
    """Domains told apart against a reversed gradient; features are collected by forward hooks."""

    def __init__(self, d=256, layers=3):
        super().__init__()
        self.into, self.layers = nn.Linear(64, d), nn.ModuleList(HookedBlock(d) for _ in range(layers))
        self.kind, self.domain = nn.Linear(d, 10), nn.Sequential(nn.Linear(d * layers, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 2))

    def forward(self, x):
        h, seen = self.into(x), []
        handles = [layer.b.register_forward_hook(lambda m, i, o: seen.append(o.mean(1)) or o * 1.0) for layer in self.layers]
        for layer in self.layers:
            h = layer(h)
        for handle in handles:
            handle.remove()
        return self.kind(h.mean(1)), self.domain(Reversed.apply(torch.cat(seen, -1), 0.3))


@case("reversed_gradients", ["HookedBlock"], precisions=["float32"])
class _:
    make = Hooked
    batch = staticmethod(lambda device: (torch.randn(8, 64, 64, device=device), ids(10, 8, device=device), ids(2, 8, device=device)))

    @staticmethod
    def forward(model, x, y, domain):
        a, b = model(x)
        return F.cross_entropy(a, y) + F.cross_entropy(b, domain)


class WritingBlock(nn.Module):
    """The residual stream is one tensor that everything writes into."""

    def __init__(self, d):
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d // 2, d // 2), d
        self.p = 0.1

    def forward(self, x):
        x = x.clone()
        y = self.a(x)
        y.clamp_(-3, 3).mul_(0.5)
        x = x + F.leaky_relu(y, 0.1, inplace=True)
        x[..., : self.d // 2] = self.c(x[..., : self.d // 2].clone()).sigmoid_()
        x[:, ::2].add_(1.0)
        z = self.b(F.dropout(x, self.p, self.training))
        z.masked_fill_(z.detach() > 4, 0)
        return torch.relu_(x.add(z, alpha=0.1))


class Writing(nn.Module):
    def __init__(self, d=256, layers=3):
        super().__init__()
        self.into, self.layers, self.out = nn.Linear(32, d), nn.ModuleList(WritingBlock(d) for _ in range(layers)), nn.Linear(d, 10)

    def forward(self, x):
        h = self.into(x)
        total = torch.zeros(h.shape[0], h.shape[-1], device=h.device, dtype=h.dtype)
        for layer in self.layers:
            h = layer(h)
            total += h.amax(1)
        place = torch.zeros_like(total).index_add_(0, torch.arange(h.shape[0], device=h.device).flip(0), total)
        return self.out(place)


@case("written_in_place", ["WritingBlock"], precisions=["float32"], recompute=True)
class _:
    make = Writing
    batch = staticmethod(lambda device: (torch.randn(16, 96, 32, device=device), ids(10, 16, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.multi_margin_loss(model(x), y)


class Standard(nn.Conv2d):
    def forward(self, x):
        w = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        w = w / (w.flatten(1).std(1).view(-1, 1, 1, 1) + 1e-5)
        return F.conv2d(x, w, self.bias, self.stride, self.padding, self.dilation, self.groups)


class LastBlock(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.a, self.b, self.n1, self.n2 = Standard(i, o, 3, stride, 1, bias=False), Standard(o, o, 3, 1, 1, bias=False), nn.GroupNorm(8, o), nn.GroupNorm(8, o)
        self.skip = nn.Sequential(nn.AvgPool2d(stride, ceil_mode=True), nn.Conv2d(i, o, 1)) if stride > 1 or i != o else nn.Identity()
        self.register_buffer("blur", torch.tensor([1.0, 2.0, 1.0]).outer(torch.tensor([1.0, 2.0, 1.0])) / 16)

    def forward(self, x):
        y = F.relu6(self.n1(self.a(x)))
        y = F.conv2d(F.pad(y, (1, 1, 1, 1), mode="reflect"), self.blur.to(y.dtype).expand(y.shape[1], 1, 3, 3), groups=y.shape[1])
        return F.hardswish(self.n2(self.b(y)) + self.skip(x))


class ChannelsLast(nn.Module):
    """Pictures with their channels last, standardised weights, blurs, pools of several scales."""

    def __init__(self, c=32):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 7, 2, 3)
        self.layers = nn.ModuleList([LastBlock(c, c, 1), LastBlock(c, 2 * c, 2), LastBlock(2 * c, 4 * c, 2)])
        self.head = nn.Linear(4 * c * 14, 10)

    def forward(self, x):
        h = F.max_pool2d(F.relu(self.stem(x.contiguous(memory_format=torch.channels_last))), 3, 2, 1)
        for layer in self.layers:
            h = layer(h)
        return self.head(torch.cat([F.adaptive_avg_pool2d(h, n).flatten(1) for n in (1, 2, 3)], 1))


@case("channels_last", ["LastBlock"], precisions=["float32"], recompute=True)
class _:
    make = ChannelsLast
    batch = staticmethod(lambda device: (torch.randn(8, 3, 64, 64, device=device), ids(10, 8, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.cross_entropy(model(x), y)


class Half(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(i, 512), nn.ELU(), nn.LayerNorm(512), nn.Linear(512, 512), nn.ELU(), nn.Linear(512, o))

    def forward(self, x):
        return self.net(x)


class Latents(nn.Module):
    """A ladder of Gaussians and categories that are drawn with their gradients; divergences by torch.distributions."""

    def __init__(self, d=256, z=32, k=16):
        super().__init__()
        self.up, self.code, self.prior, self.down, self.choose, self.k = Half(d, 512), Half(512, 2 * z), Half(k * 8, 2 * z), Half(z + k * 8, d), Half(d, k * 8), k

    def forward(self, x):
        logits = self.choose(x).view(-1, 8, self.k)
        kinds = F.gumbel_softmax(logits, tau=0.7, hard=True).flatten(1)
        mean, scale = self.code(self.up(x)).chunk(2, -1)
        said = Normal(mean, F.softplus(scale) + 1e-3, validate_args=False)
        mean, scale = self.prior(kinds).chunk(2, -1)
        before = Normal(mean, F.softplus(scale) + 1e-3, validate_args=False)
        z = said.rsample()
        p = logits.softmax(-1)
        return self.down(torch.cat([z, kinds], -1)), kl_divergence(said, before).sum(-1).mean(), (p * (p.clamp_min(1e-9).log() + math.log(self.k))).sum((1, 2)).mean()


@case("drawn_latents", ["Half"], precisions=["float32"])
class _:
    make = Latents
    batch = staticmethod(lambda device: (torch.randn(512, 256, device=device),))

    @staticmethod
    def forward(model, x):
        y, a, b = model(x)
        return -Normal(y, 0.5, validate_args=False).log_prob(x).sum(-1).mean() + 0.1 * a + 0.1 * b


class Tower(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.n, self.b = nn.Linear(d, d, bias=False), nn.BatchNorm1d(d), nn.Linear(d, d)

    def forward(self, x):
        return x + self.b(F.relu(self.n(self.a(x))))


class Views(nn.Module):
    """Two views without negatives: variances, covariances, and prototypes assigned by Sinkhorn's turns in no_grad."""

    def __init__(self, d=512, k=300):
        super().__init__()
        self.into, self.layers, self.prototypes = nn.Linear(128, d), nn.ModuleList(Tower(d) for _ in range(3)), nn.Linear(d, k, bias=False)

    def one(self, x):
        h = self.into(x)
        for layer in self.layers:
            h = layer(h)
        return h

    @torch.no_grad()
    def assign(self, scores):
        q = torch.exp(scores / 0.05).t()
        q /= q.sum()
        for _ in range(3):
            q /= q.sum(dim=1, keepdim=True)
            q /= q.shape[0]
            q /= q.sum(dim=0, keepdim=True)
            q /= q.shape[1]
        return (q * q.shape[1]).t()

    def forward(self, x, y):
        a, b = self.one(x), self.one(y)
        n, d = a.shape
        near = F.mse_loss(a, b)
        a, b = a - a.mean(0), b - b.mean(0)
        spread = F.relu(1 - torch.sqrt(a.var(0) + 1e-4)).mean() + F.relu(1 - torch.sqrt(b.var(0) + 1e-4)).mean()
        off = lambda m: m.flatten()[:-1].view(d - 1, d + 1)[:, 1:].flatten().pow(2).sum() / d  # noqa: E731
        apart = off(a.T @ a / (n - 1)) + off(b.T @ b / (n - 1))
        s, t = self.prototypes(F.normalize(a, dim=1)), self.prototypes(F.normalize(b, dim=1))
        swap = -0.5 * ((self.assign(t.detach()) * F.log_softmax(s / 0.1, 1)).sum(1).mean() + (self.assign(s.detach()) * F.log_softmax(t / 0.1, 1)).sum(1).mean())
        return 25 * near + 25 * spread + apart + swap


@case("views_without_negatives", ["Tower"], precisions=["float32"])
class _:
    make = Views
    batch = staticmethod(lambda device: (torch.randn(512, 128, device=device), torch.randn(512, 128, device=device)))

    @staticmethod
    def forward(model, x, y):
        return model(x, y)


class BiasedBlock(nn.Module):
    """scaled_dot_product_attention as users call it: grouped heads, a learned bias, values wider than keys, one query."""

    def __init__(self, d, heads=6, groups=2, size=40):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, size
        self.q, self.k, self.v = nn.Linear(d, heads * size), nn.Linear(d, groups * size), nn.Linear(d, groups * size)
        self.out, self.bias = nn.Linear(heads * size, d), nn.Embedding(32, heads)
        self.pool_q, self.pool_kv, self.norm, self.mlp = nn.Parameter(torch.randn(1, 1, d)), nn.Linear(d, 2 * d), nn.LayerNorm(d), nn.Sequential(nn.Linear(2 * d, 2 * d), nn.Mish(), nn.Linear(2 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        y = self.norm(x)
        q = self.q(y).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = (f(y).view(b, t, self.groups, -1).transpose(1, 2) for f in (self.k, self.v))
        place = torch.arange(t, device=x.device)
        bias = self.bias((place[None] - place[:, None]).clamp(-16, 15) + 16).permute(2, 0, 1).unsqueeze(0)
        bias = bias.masked_fill(place[None, None, None, :] > place[None, None, :, None], float("-inf"))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype), dropout_p=0.0, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        k, v = self.pool_kv(x).view(b, t, 2, 4, -1).permute(2, 0, 3, 1, 4)
        pooled = F.scaled_dot_product_attention(self.pool_q.expand(b, -1, -1).view(b, 1, 4, -1).transpose(1, 2), k, v).transpose(1, 2).flatten(2)
        return x + self.mlp(torch.cat([x, pooled.expand_as(x)], -1))


class Biased(nn.Module):
    def __init__(self, v=1000, d=192, layers=3):
        super().__init__()
        self.embed, self.layers, self.head = nn.Embedding(v, d), nn.ModuleList(BiasedBlock(d) for _ in range(layers)), nn.Linear(d, v, bias=False)

    def forward(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


@case("learned_biases", ["BiasedBlock"], precisions=BOTH, recompute=True)
class _:
    make = Biased
    batch = staticmethod(lambda device: (ids(1000, 4, 72, device=device), ids(1000, 4, 72, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(True), nn.Conv2d(o, o, 3, padding=1), nn.ReLU(True)) for i, o in ((3, 32), (32, 64), (64, 96)))
        self.register_buffer("mean", torch.zeros(1, 3, 1, 1))

    def forward(self, x):
        out = []
        x = x - self.mean
        for i, stage in enumerate(self.stages):
            x = stage(F.max_pool2d(x, 2) if i else x)
            out.append(x)
        return out


class StyleBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.pad, self.a, self.b, self.n1, self.n2 = nn.ReflectionPad2d(1), nn.Conv2d(c, c, 3), nn.Conv2d(c, c, 3), nn.InstanceNorm2d(c, affine=True), nn.InstanceNorm2d(c, affine=True)

    def forward(self, x):
        return x + self.n2(self.b(self.pad(F.relu(self.n1(self.a(self.pad(x)))))))


class Styled(nn.Module):
    """A picture is judged by a frozen network in eval mode, through which gradients go: features and their Gram matrices."""

    def __init__(self, c=48):
        super().__init__()
        self.into, self.blocks = nn.Sequential(nn.ReflectionPad2d(4), nn.Conv2d(3, c, 9, 2)), nn.ModuleList(StyleBlock(c) for _ in range(3))
        self.out, self.judge = nn.Sequential(nn.ConvTranspose2d(c, 16, 3, 2, 1, 1), nn.InstanceNorm2d(16), nn.ReLU(), nn.Conv2d(16, 3, 1), nn.Sigmoid()), Judge()
        self.judge.requires_grad_(False).eval()

    def forward(self, x, style):
        h = self.into(x)
        for block in self.blocks:
            h = block(h)
        y = self.out(h)
        with torch.no_grad():
            content, look = self.judge(x)[-1], [self.gram(f) for f in self.judge(style)]
        seen = self.judge(y)
        loss = F.mse_loss(seen[-1], content) + sum(F.mse_loss(self.gram(f), g) for f, g in zip(seen, look)) * 100
        return loss + 1e-4 * ((y[..., 1:] - y[..., :-1]).abs().sum() + (y[..., 1:, :] - y[..., :-1, :]).abs().sum())

    @staticmethod
    def gram(f):
        f = f.flatten(2)
        return f.bmm(f.transpose(1, 2)) / (f.shape[1] * f.shape[2])


@case("frozen_judge", ["StyleBlock"], precisions=["float32"], orig_params=True)
class _:
    make = Styled
    batch = staticmethod(lambda device: (torch.rand(4, 3, 48, 48, device=device), torch.rand(4, 3, 48, 48, device=device)))

    @staticmethod
    def forward(model, x, style):
        return model(x, style)


class NormedCell(nn.Module):
    def __init__(self, i, d):
        super().__init__()
        self.x, self.h, self.nx, self.nh, self.nc = nn.Linear(i, 4 * d, bias=False), nn.Linear(d, 4 * d), nn.LayerNorm(4 * d), nn.LayerNorm(4 * d), nn.LayerNorm(d)

    def forward(self, x, h, c):
        a, b, o, g = (self.nx(self.x(x)) + self.nh(self.h(h))).chunk(4, 1)
        new = c * b.sigmoid() + a.sigmoid() * g.tanh()
        return o.sigmoid() * self.nc(new).tanh(), new


class Turing(nn.Module):
    """A controller with a memory beside it: addressed by likeness, sharpened, erased and written at every step."""

    def __init__(self, d=96, rows=64, width=32):
        super().__init__()
        self.cell, self.head, self.out = NormedCell(16 + width, d), nn.Linear(d, 4 * width + 6), nn.Linear(d + width, 16)
        self.start, self.width = nn.Parameter(torch.randn(rows, width) * 0.1), width
        self.h0 = nn.Parameter(torch.zeros(d))

    def address(self, memory, key, strength, sharp):
        w = F.softmax(F.softplus(strength) * F.cosine_similarity(key.unsqueeze(1), memory, dim=-1, eps=1e-6), dim=1)
        w = (w + 1e-8) ** (1 + F.softplus(sharp))
        return w / w.sum(1, keepdim=True)

    def forward(self, x):
        b, t, _ = x.shape
        memory = self.start.unsqueeze(0).repeat(b, 1, 1)
        h, c, read, outs = self.h0.expand(b, -1), torch.zeros(b, self.h0.shape[0], device=x.device), torch.zeros(b, self.width, device=x.device), []
        for step in range(t):
            h, c = self.cell(torch.cat([x[:, step], read], 1), h, c)
            keys = self.head(h)
            n = self.width
            rk, wk, erase, add, s = keys.split([n, n, n, n, 6], 1)
            w = self.address(memory, wk.tanh(), s[:, 0:1], s[:, 1:2])
            memory = memory * (1 - torch.bmm(w.unsqueeze(-1), erase.sigmoid().unsqueeze(1))) + torch.bmm(w.unsqueeze(-1), add.tanh().unsqueeze(1))
            read = torch.bmm(self.address(memory, rk.tanh(), s[:, 2:3], s[:, 3:4]).unsqueeze(1), memory).squeeze(1)
            outs.append(self.out(torch.cat([h, read], 1)))
        return torch.stack(outs, 1)


@case("memory_beside", ["NormedCell"], precisions=["float32"])
class _:
    make = Turing
    batch = staticmethod(lambda device: (torch.rand(32, 20, 16, device=device), torch.rand(32, 20, 16, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.binary_cross_entropy_with_logits(model(x), y)


class Involution(nn.Module):
    """Filters of each place, made of that place; windows by unfold."""

    def __init__(self, c, k=5, groups=4):
        super().__init__()
        self.k, self.groups = k, groups
        self.reduce, self.span, self.norm, self.mix = nn.Conv2d(c, c // 4, 1), nn.Conv2d(c // 4, k * k * groups, 1), nn.BatchNorm2d(c), nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        weight = self.span(F.relu(self.reduce(x))).view(b, self.groups, self.k**2, h, w).unsqueeze(2)
        windows = F.unfold(x, self.k, padding=self.k // 2).view(b, self.groups, c // self.groups, self.k**2, h, w)
        return x + self.mix(F.silu(self.norm((weight * windows).sum(3).view(b, c, h, w))))


class Involved(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.stem, self.layers = nn.Conv2d(3, c, 4, 2, 1), nn.ModuleList(Involution(c) for _ in range(3))
        self.loc, self.head = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(c * 16, 6)), nn.Linear(2 * c, 10)

    def forward(self, x):
        h = self.stem(x)
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=False)
        grid = F.affine_grid(self.loc(h).view(-1, 2, 3), h.shape, align_corners=False)
        h = F.grid_sample(h, grid, align_corners=False, padding_mode="border")
        return self.head(torch.cat([h.amax((2, 3)), F.lp_pool2d(h, 2.0, 8, 8).mean((2, 3))], 1))


@case("involutions", ["Involution"], precisions=["float32"])
class _:
    make = Involved
    batch = staticmethod(lambda device: (torch.randn(8, 3, 48, 48, device=device), ids(10, 8, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.cross_entropy(model(x), y, label_smoothing=0.05)


class Words(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.attend, self.n1, self.n2, self.a, self.b = nn.MultiheadAttention(d, heads, dropout=0.1, batch_first=True), nn.LayerNorm(d), nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        x = self.n1(x + F.dropout(self.attend(x, x, x, need_weights=False)[0], 0.1, self.training))
        return self.n2(x + F.dropout(self.b(F.gelu(self.a(x))), 0.1, self.training))


class Replaced(nn.Module):
    """A small generator fills masked words, a larger network tells which were replaced; one table for both."""

    def __init__(self, v=2000, d=160, small=64):
        super().__init__()
        self.embed, self.place, self.kinds = nn.Embedding(v, d), nn.Embedding(96, d), nn.Embedding(2, d)
        self.narrow, self.small, self.widen = nn.Linear(d, small), nn.ModuleList(Words(small) for _ in range(2)), nn.Linear(small, d)
        self.large, self.bias, self.head = nn.ModuleList(Words(d) for _ in range(3)), nn.Parameter(torch.zeros(v)), nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, 1))

    def table(self, x, kinds):
        return self.embed(x) + self.place(torch.arange(x.shape[1], device=x.device)) + self.kinds(kinds)

    def forward(self, x, kinds, places):
        row = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
        masked = x.scatter(1, places, 3)
        h = self.narrow(self.table(masked, kinds))
        for layer in self.small:
            h = layer(h)
        logits = F.linear(F.gelu(self.widen(h[row, places])), self.embed.weight, self.bias)
        with torch.no_grad():
            noise = -torch.log(-torch.log(torch.rand_like(logits.float()).clamp(1e-9, 1 - 1e-7)))
            drawn = (logits.float() + noise).argmax(-1)
            other = masked.scatter(1, places, drawn)
            changed = (other != x).float()
        h = self.table(other, kinds)
        for layer in self.large:
            h = layer(h)
        said = self.head(h).squeeze(-1)
        fill = F.cross_entropy(logits.flatten(0, 1).float(), x.gather(1, places).flatten())
        return fill + 50 * F.binary_cross_entropy_with_logits(said.float(), changed)


@case("replaced_words", ["Words"], precisions=BOTH, recompute=True)
class _:
    make = Replaced
    batch = staticmethod(lambda device: (ids(2000, 8, 96, device=device), ids(2, 8, 96, device=device), torch.arange(0, 96, 7, device=device).expand(8, -1).contiguous()))

    @staticmethod
    def forward(model, x, kinds, places):
        return model(x, kinds, places)
