"""Styles beyond the usual ones: scans over time, latents, capacities, flows, graphs, codebooks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from . import case, ids


def token_loss(logits, labels):
    return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), labels.view(-1))


# ------------------------------------------------------------------------------------------------------------- scans


class SelectiveScan(nn.Module):
    """A state space layer whose state is carried by a loop over time."""

    def __init__(self, d, state=8, rank=8):
        super().__init__()
        self.inner, self.state, self.rank = 2 * d, state, rank
        self.norm = nn.LayerNorm(d)
        self.in_proj = nn.Linear(d, 2 * self.inner, bias=False)
        self.conv = nn.Conv1d(self.inner, self.inner, 4, padding=3, groups=self.inner)
        self.x_proj = nn.Linear(self.inner, rank + 2 * state, bias=False)
        self.dt_proj = nn.Linear(rank, self.inner)
        self.A_log = nn.Parameter(torch.zeros(self.inner, state))
        self.D = nn.Parameter(torch.ones(self.inner))
        self.out_proj = nn.Linear(self.inner, d, bias=False)

    def forward(self, x):
        length = x.shape[1]
        u, gate = self.in_proj(self.norm(x)).chunk(2, dim=-1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :length]).transpose(1, 2)
        dt, b, c = self.x_proj(u).split([self.rank, self.state, self.state], dim=-1)
        dt = F.softplus(self.dt_proj(dt))
        a = -torch.exp(self.A_log.float())
        h = torch.zeros(x.shape[0], self.inner, self.state, device=x.device, dtype=torch.float32)
        ys = []
        for t in range(length):
            da = torch.exp(dt[:, t, :, None] * a)
            h = da * h + (dt[:, t, :, None] * b[:, t, None, :]) * u[:, t, :, None]
            ys.append(torch.einsum("bdn,bn->bd", h, c[:, t].float()))
        y = torch.stack(ys, dim=1).to(x.dtype) + u * self.D
        return x + self.out_proj(y * F.silu(gate))


class StateSpaceLm(nn.Module):
    def __init__(self, v=2000, d=128, layers=2):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.layers = nn.ModuleList(SelectiveScan(d) for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, v, bias=False)

    def forward(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


@case("state_space", ["SelectiveScan"])
class _:
    make = StateSpaceLm
    batch = staticmethod(lambda device: (ids(2000, 16, 24, device=device), ids(2000, 16, 24, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


class TimeMix(nn.Module):
    """RWKV's time mixing: a shift, three projections, a numerically safe recurrence."""

    def __init__(self, d):
        super().__init__()
        self.shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.mix = nn.ParameterList(nn.Parameter(torch.ones(1, 1, d)) for _ in range(3))
        self.decay, self.first = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d))
        self.key, self.value = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.receptance, self.output = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ffn_key, self.ffn_value = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def mixed(self, x):
        past = self.shift(x)
        k, v, r = (self.receptance if i == 2 else self.value if i else self.key for i in range(3))
        xs = [x * m + past * (1 - m) for m in self.mix]
        return k(xs[0]), v(xs[1]), torch.sigmoid(r(xs[2]))

    def forward(self, x):
        k, v, r = self.mixed(self.ln1(x))
        num = torch.zeros_like(k[:, 0])
        den, top = num.clone(), num - 1e30
        w, out = -torch.exp(self.decay), torch.empty_like(v)
        rows = []
        for t in range(k.shape[1]):
            kt, vt = k[:, t], v[:, t]
            q = torch.maximum(top, self.first + kt)
            e1, e2 = torch.exp(top - q), torch.exp(self.first + kt - q)
            rows.append((e1 * num + e2 * vt) / (e1 * den + e2))
            q = torch.maximum(top + w, kt)
            e1, e2 = torch.exp(top + w - q), torch.exp(kt - q)
            num, den, top = e1 * num + e2 * vt, e1 * den + e2, q
        del out
        x = x + self.output(r * torch.stack(rows, 1))
        return x + self.ffn_value(torch.square(torch.relu(self.ffn_key(self.ln2(x)))))


class Rwkv(nn.Module):
    def __init__(self, v=2000, d=128, layers=3):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.blocks = nn.Sequential(*(TimeMix(d) for _ in range(layers)))
        self.head = nn.Linear(d, v, bias=False)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x)))


@case("rwkv", ["TimeMix"])
class _:
    make = Rwkv
    batch = staticmethod(lambda device: (ids(2000, 32, 16, device=device), ids(2000, 32, 16, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


# ----------------------------------------------------------------------------------------------------------- attention


class Latent(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.cross = nn.MultiheadAttention(d, heads, batch_first=True, dropout=0.1)
        self.own = nn.MultiheadAttention(d, heads, batch_first=True)
        self.n1, self.n2, self.n3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(approximate="tanh"), nn.Dropout(0.1), nn.Linear(2 * d, d))

    def forward(self, z, x, padding):
        z = z + self.cross(self.n1(z), x, x, key_padding_mask=padding, need_weights=False)[0]
        y = self.n2(z)
        z = z + self.own(y, y, y)[0]  # with its weights, averaged over heads
        return z + self.mlp(self.n3(z))


class Perceiver(nn.Module):
    def __init__(self, d=192, latents=64, layers=3):
        super().__init__()
        self.latents = nn.Parameter(torch.zeros(1, latents, d))
        self.inp = nn.Linear(48, d)
        self.layers = nn.ModuleList(Latent(d, 6) for _ in range(layers))
        self.out = nn.Linear(d, 100)

    def forward(self, x, padding):
        x, z = self.inp(x), self.latents.expand(x.shape[0], -1, -1)
        for layer in self.layers:
            z = layer(z, x, padding)
        return self.out(z.mean(1))


@case("perceiver", ["Latent"])
class _:
    make = Perceiver
    batch = staticmethod(lambda device: (torch.randn(16, 640, 48, device=device), torch.zeros(16, 640, dtype=torch.bool, device=device),
                                         ids(100, 16, device=device)))  # fmt: skip

    @staticmethod
    def forward(model, x, padding, y):
        return F.cross_entropy(model(x, padding), y, label_smoothing=0.1)


class MaskedDecoderBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.attn = nn.MultiheadAttention(d, 4)  # time first
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x, mask, padding):
        y, _ = self.attn(x, x, x, attn_mask=mask, key_padding_mask=padding, average_attn_weights=False)
        x = self.n1(x + y)
        return self.n2(x + self.down(F.leaky_relu(self.up(x))))


class MaskedDecoder(nn.Module):
    def __init__(self, v=3000, d=128, layers=3, length=96):
        super().__init__()
        self.embed, self.pos = nn.Embedding(v, d, padding_idx=0), nn.Parameter(torch.zeros(length, 1, d))
        self.blocks = nn.ModuleList(MaskedDecoderBlock(d) for _ in range(layers))
        self.head = nn.Linear(d, v)
        self.register_buffer("mask", torch.triu(torch.full((length, length), -math.inf), 1))

    def forward(self, x):
        h = self.embed(x).transpose(0, 1) * math.sqrt(128) + self.pos
        padding = x.eq(0)
        for block in self.blocks:
            h = block(h, self.mask, padding)
        return self.head(h).transpose(0, 1)


@case("masked_decoder", ["MaskedDecoderBlock"], precisions=["float32"])
class _:
    make = MaskedDecoder
    batch = staticmethod(lambda device: (ids(3000, 16, 96, device=device), ids(3000, 16, 96, device=device)))

    @staticmethod
    def forward(model, x, y):
        logits = model(x)
        return F.cross_entropy(logits.reshape(-1, 3000), y.reshape(-1), ignore_index=0)


class EagerBlock(nn.Module):
    """Attention written out, with rotary halves, grouped heads and a softmax in float32."""

    def __init__(self, d, heads=8, groups=2):
        super().__init__()
        self.heads, self.groups, self.hd = heads, groups, d // heads
        self.q, self.k = nn.Linear(d, d, bias=False), nn.Linear(d, groups * self.hd, bias=False)
        self.v, self.o = nn.Linear(d, groups * self.hd, bias=False), nn.Linear(d, d, bias=False)
        self.gate_up, self.down = nn.Linear(d, 6 * d, bias=False), nn.Linear(3 * d, d, bias=False)
        self.w1, self.w2 = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))

    @staticmethod
    def rms(x, weight):
        y = x.to(torch.float32)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return weight * y.to(x.dtype)

    @staticmethod
    def rotate(x):
        a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return torch.cat((-b, a), dim=-1)

    def forward(self, x, cos, sin, mask):
        b, t, d = x.shape
        y = self.rms(x, self.w1)
        q = self.q(y).view(b, t, self.heads, self.hd).transpose(1, 2)
        k = self.k(y).view(b, t, self.groups, self.hd).transpose(1, 2)
        v = self.v(y).view(b, t, self.groups, self.hd).transpose(1, 2)
        q, k = q * cos + self.rotate(q) * sin, k * cos + self.rotate(k) * sin
        n = self.heads // self.groups
        k, v = (z[:, :, None].expand(b, self.groups, n, t, self.hd).reshape(b, self.heads, t, self.hd) for z in (k, v))
        weights = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.hd) + mask
        weights = F.dropout(F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype), 0.1, self.training)
        x = x + self.o(torch.matmul(weights, v).transpose(1, 2).reshape(b, t, d))
        gate, up = self.gate_up(self.rms(x, self.w2)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class EagerLlama(nn.Module):
    def __init__(self, v=4000, d=256, layers=3):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.layers = nn.ModuleList(EagerBlock(d) for _ in range(layers))
        self.head = nn.Linear(d, v, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        h, t = self.embed(x), x.shape[1]
        inverse = 1.0 / (10000.0 ** (torch.arange(0, 32, 2, device=x.device).float() / 32))
        angles = torch.outer(torch.arange(t, device=x.device).float(), inverse)
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos().to(h.dtype), angles.sin().to(h.dtype)
        mask = torch.full((t, t), torch.finfo(h.dtype).min, device=x.device, dtype=h.dtype).triu(1)
        for layer in self.layers:
            h = layer(h, cos, sin, mask)
        return self.head(h)


@case("eager_llama_tied", ["EagerBlock"])
class _:
    make = EagerLlama
    batch = staticmethod(lambda device: (ids(4000, 4, 256, device=device),))

    @staticmethod
    def forward(model, x):
        logits = model(x).float()
        return F.cross_entropy(logits[:, :-1].contiguous().view(-1, 4000), x[:, 1:].contiguous().view(-1))


# ------------------------------------------------------------------------------------------------------------- experts


class CapacityMoe(nn.Module):
    """Top-2 experts with a stated capacity: dispatch and combine by one-hot products."""

    def __init__(self, d, experts=8, factor=1.25):
        super().__init__()
        self.experts, self.factor = experts, factor
        self.norm, self.router = nn.LayerNorm(d), nn.Linear(d, experts, bias=False)
        self.up, self.down = nn.Parameter(torch.zeros(experts, d, 2 * d)), nn.Parameter(torch.zeros(experts, 2 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        tokens = self.norm(x).reshape(b * t, d)
        capacity = int(self.factor * b * t * 2 / self.experts)
        chances = F.softmax(self.router(tokens).float(), dim=-1)
        weights, chosen = chances.topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        hot = F.one_hot(chosen, self.experts)
        place = hot.reshape(-1, self.experts).cumsum(0).reshape(b * t, 2, self.experts) * hot - 1
        kept = (place < capacity) & (place >= 0)
        slot = F.one_hot(place.clamp(min=0, max=capacity - 1), capacity) * kept.unsqueeze(-1)
        combine = (weights[:, :, None, None] * slot).sum(1).to(x.dtype)
        dispatch = (combine > 0).to(x.dtype)
        inside = torch.einsum("nec,nd->ecd", dispatch, tokens)
        out = torch.bmm(F.gelu(torch.bmm(inside, self.up)), self.down)
        balance = (hot.float().mean((0, 1)) * chances.mean(0)).sum() * self.experts
        return x + torch.einsum("nec,ecd->nd", combine, out).view(b, t, d), balance


class MoeLm(nn.Module):
    def __init__(self, v=2000, d=128, layers=2):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.mixers = nn.ModuleList(nn.Linear(d, d) for _ in range(layers))
        self.layers = nn.ModuleList(CapacityMoe(d) for _ in range(layers))
        self.head = nn.Linear(d, v)

    def forward(self, x):
        h, extra = self.embed(x), 0.0
        for mixer, layer in zip(self.mixers, self.layers):
            h = h + torch.tanh(mixer(h)).cumsum(1)
            h, balance = layer(h)
            extra = extra + balance
        return self.head(h), extra


@case("capacity_moe", ["CapacityMoe"])
class _:
    make = MoeLm
    batch = staticmethod(lambda device: (ids(2000, 4, 64, device=device), ids(2000, 4, 64, device=device)))

    @staticmethod
    def forward(model, x, y):
        logits, extra = model(x)
        return token_loss(logits, y) + 0.01 * extra


# -------------------------------------------------------------------------------------------------- hybrids and losses


class ConvBlock(nn.Module):
    """MobileNet's inverted bottleneck with squeeze and excitation."""

    def __init__(self, i, o, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(i, 4 * i, 1, bias=False), nn.BatchNorm2d(4 * i), nn.Hardswish(inplace=True),
            nn.Conv2d(4 * i, 4 * i, 3, stride, 1, groups=4 * i, bias=False), nn.BatchNorm2d(4 * i), nn.Hardswish(inplace=True),
        )  # fmt: skip
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4 * i, i, 1), nn.ReLU(inplace=True), nn.Conv2d(i, 4 * i, 1), nn.Hardsigmoid())
        self.out = nn.Sequential(nn.Conv2d(4 * i, o, 1, bias=False), nn.BatchNorm2d(o))
        self.same = i == o and stride == 1

    def forward(self, x):
        y = self.body(x)
        y = self.out(y * self.squeeze(y))
        return x + y if self.same else y


class BiasedAttention(nn.Module):
    """Attention over an image with a learned bias by relative place, gathered from a table."""

    def __init__(self, d, heads, side):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.proj = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.table = nn.Parameter(torch.zeros((2 * side - 1) ** 2, heads))
        place = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).flatten(1)
        far = (place[:, :, None] - place[:, None, :]).permute(1, 2, 0) + side - 1
        self.register_buffer("index", far[..., 0] * (2 * side - 1) + far[..., 1], persistent=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index.view(-1)].view(n, n, -1).permute(2, 0, 1).contiguous()
        weights = (q * (d // self.heads) ** -0.5 @ k.transpose(-2, -1) + bias.unsqueeze(0)).softmax(-1)
        return x + self.proj((weights @ v).transpose(1, 2).reshape(b, n, d))


class ConvTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.SiLU())
        self.convs = nn.Sequential(ConvBlock(16, 32, 2), ConvBlock(32, 32, 1), ConvBlock(32, 96, 2))
        self.blocks = nn.ModuleList(BiasedAttention(96, 4, 8) for _ in range(3))
        self.head = nn.Linear(96, 1000)

    def forward(self, x):
        h = self.convs(self.stem(x)).flatten(2).transpose(1, 2)
        for block in self.blocks:
            h = block(h)
        return self.head(h.mean(1))


@case("conv_transformer", ["ConvBlock", "BiasedAttention"], precisions=["float32"])
@case("conv_transformer_low", ["ConvBlock", "BiasedAttention"], versions=[1])
class _:
    make = ConvTransformer
    batch = staticmethod(lambda device: (torch.randn(16, 3, 64, 64, device=device), ids(1000, 16, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.cross_entropy(model(x), y)


class Tower(nn.Module):
    def __init__(self, v, d):
        super().__init__()
        self.embed = nn.EmbeddingBag(v, d, mode="mean")
        self.net = nn.Sequential(nn.Linear(d, 4 * d), nn.PReLU(), nn.BatchNorm1d(4 * d), nn.Linear(4 * d, d))

    def forward(self, x):
        return self.net(self.embed(x))


class Contrastive(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.left, self.right = Tower(5000, d), Tower(3000, d)
        self.temperature = nn.Parameter(torch.zeros(1))
        self.back = nn.Linear(d, d)

    def forward(self, a, b):
        u, v = F.normalize(self.left(a), dim=-1), F.normalize(self.right(b), dim=-1)
        return u, v, self.back(u), self.temperature.exp()


@case("contrastive", ["Tower"], precisions=["float32"])
class _:
    make = Contrastive
    batch = staticmethod(lambda device: (ids(5000, 512, 20, device=device), ids(3000, 512, 12, device=device)))

    @staticmethod
    def forward(model, a, b):
        u, v, back, scale = model(a, b)
        logits = u @ v.t() * scale
        target = torch.arange(u.shape[0], device=u.device)
        both = (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2
        triplet = F.triplet_margin_loss(u, v, v.roll(1, 0))
        even = torch.pdist(u[:64], p=2).pow(2).mul(-2).exp().mean().log() if False else u.var(0).mean()
        return both + 0.5 * F.smooth_l1_loss(back, v.detach()) + 0.1 * triplet + even, logits


# ------------------------------------------------------------------------------------------- recomputation and buffers


class PlainBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x, scale=None):
        y = F.mish(self.up(self.norm(x)))
        return x + self.down(y) * (1.0 if scale is None else scale)


class PartlyRecomputed(nn.Module):
    """Every other block recomputed by hand, a Sequential in segments, an encoder whose weights are used twice."""

    def __init__(self, v=3000, d=192):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.blocks = nn.ModuleList(PlainBlock(d) for _ in range(4))
        self.tail = nn.Sequential(*(PlainBlock(d) for _ in range(4)))
        self.scale = nn.Parameter(torch.ones(d))

    def forward(self, x):
        h = self.embed(x)
        for i, block in enumerate(self.blocks):
            h = checkpoint(block, h, self.scale, use_reentrant=False) if i % 2 else block(h)
        h = checkpoint_sequential(self.tail, 2, h, use_reentrant=False)
        return F.linear(h, self.embed.weight)


@case("partly_recomputed", ["PlainBlock"])
class _:
    make = PartlyRecomputed
    batch = staticmethod(lambda device: (ids(3000, 8, 192, device=device), ids(3000, 8, 192, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


class Codebook(nn.Module):
    """Nearest codes, passed straight through; their running means are buffers that forward changes."""

    def __init__(self, codes, d):
        super().__init__()
        self.register_buffer("codes", torch.zeros(codes, d))
        self.register_buffer("count", torch.ones(codes))
        self.register_buffer("total", torch.zeros(codes, d))

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        far = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ self.codes.t() + self.codes.pow(2).sum(1)
        index = far.argmin(1)
        hot = F.one_hot(index, self.codes.shape[0]).type_as(flat)
        with torch.no_grad():
            self.count.mul_(0.99).add_(hot.sum(0), alpha=0.01)
            self.total.mul_(0.99).add_(hot.t() @ flat, alpha=0.01)
            self.codes.copy_(self.total / self.count.unsqueeze(1).clamp(min=1e-5))
        found = F.embedding(index, self.codes).view_as(x)
        return x + (found - x).detach(), F.mse_loss(x, found.detach())


class Residual1d(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.filter, self.gate = (nn.Conv1d(c, c, 3, padding=dilation, dilation=dilation) for _ in range(2))
        self.norm, self.out = nn.GroupNorm(8, c), nn.Conv1d(c, c, 1)

    def forward(self, x):
        return x + self.out(torch.tanh(self.filter(self.norm(x))) * torch.sigmoid(self.gate(x)))


class AudioCodec(nn.Module):
    def __init__(self, c=64):
        super().__init__()
        self.down = nn.Sequential(nn.Conv1d(1, c, 8, 4, 2), nn.ELU(), nn.Conv1d(c, c, 8, 4, 2))
        self.inside = nn.ModuleList(Residual1d(c, 2**i) for i in range(4))
        self.codebook = Codebook(256, c)
        self.up = nn.Sequential(nn.ConvTranspose1d(c, c, 8, 4, 2), nn.ELU(), nn.ConvTranspose1d(c, 1, 8, 4, 2))

    def forward(self, x):
        h = self.down(x)
        for block in self.inside:
            h = block(h)
        q, commit = self.codebook(h.transpose(1, 2))
        return self.up(q.transpose(1, 2)), commit


@case("audio_codec", ["Residual1d"], precisions=["float32"])
class _:
    make = AudioCodec
    batch = staticmethod(lambda device: (torch.randn(8, 1, 4096, device=device),))

    @staticmethod
    def forward(model, x):
        y, commit = model(x)
        return F.l1_loss(y, x) + 0.25 * commit + (torch.fft.rfft(y).abs().mean() if False else 0.0)


# ------------------------------------------------------------------------------------------------------ graphs, flows


class Messages(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(3 * d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))
        self.node = nn.GRUCell(d, d)
        self.norm = nn.LayerNorm(d)

    def forward(self, h, e, source, target):
        m = self.edge(torch.cat([h[source], h.index_select(0, target), e], -1))
        weight = torch.exp(m.mean(-1, keepdim=True).clamp(-5, 5))
        total = torch.zeros(h.shape[0], 1, device=h.device, dtype=m.dtype).index_add(0, target, weight)
        summed = torch.zeros_like(h).index_add_(0, target, m * (weight / total[target]))
        return self.norm(self.node(summed, h)), e + m


class GraphNet(nn.Module):
    def __init__(self, d=96, layers=3):
        super().__init__()
        self.nodes, self.edges = nn.Embedding(120, d), nn.Linear(4, d)
        self.layers = nn.ModuleList(Messages(d) for _ in range(layers))
        self.out = nn.Linear(d, 1)

    def forward(self, kinds, edges, source, target, graph):
        h, e = self.nodes(kinds), self.edges(edges)
        for layer in self.layers:
            h, e = layer(h, e, source, target)
        return torch.zeros(64, 1, device=h.device, dtype=h.dtype).scatter_add(0, graph.unsqueeze(1), self.out(h))


@case("graph_net", ["Messages"], precisions=["float32"])
class _:
    make = GraphNet
    batch = staticmethod(lambda device: (ids(120, 1500, device=device), torch.randn(6000, 4, device=device), ids(1500, 6000, device=device),
                                         ids(1500, 6000, device=device), ids(64, 1500, device=device), torch.randn(64, 1, device=device)))  # fmt: skip

    @staticmethod
    def forward(model, kinds, edges, source, target, graph, y):
        return F.huber_loss(model(kinds, edges, source, target, graph), y)


class Coupling(nn.Module):
    def __init__(self, d, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d // 2, hidden), nn.Softplus(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, d))
        self.scale = nn.Parameter(torch.zeros(d // 2))

    def forward(self, x, log_det):
        a, b = x.chunk(2, dim=-1)
        s, t = self.net(a).chunk(2, dim=-1)
        s = torch.tanh(s) * self.scale.exp()
        b = b * torch.exp(s) + t
        return torch.cat([b, a], dim=-1).flip(-1), log_det + s.sum(-1)


class Flow(nn.Module):
    def __init__(self, d=64, hidden=256, layers=6):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(d, hidden) for _ in range(layers))
        self.base = nn.Parameter(torch.zeros(d))

    def forward(self, x):
        log_det = x.new_zeros(x.shape[0])
        for layer in self.layers:
            x, log_det = layer(x, log_det)
        prior = torch.distributions.Normal(self.base, torch.ones_like(self.base), validate_args=False).log_prob(x).sum(-1)
        return -(prior + log_det).mean()


@case("flow", ["Coupling"], precisions=["float32"])
class _:
    make = Flow
    batch = staticmethod(lambda device: (torch.randn(4096, 64, device=device),))

    @staticmethod
    def forward(model, x):
        return model(x)


class Field(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        return F.relu(self.b(F.relu(self.a(x))) + x)


class Radiance(nn.Module):
    """Rays rendered from a field: encodings of places, sorted samples, running products."""

    def __init__(self, d=128, bands=6):
        super().__init__()
        self.register_buffer("bands", 2.0 ** torch.arange(bands))
        self.inp = nn.Linear(3 + 6 * bands, d)
        self.fields = nn.ModuleList(Field(d) for _ in range(3))
        self.density, self.colour = nn.Linear(d, 1), nn.Linear(d, 3)

    def forward(self, origins, directions):
        t, _ = torch.sort(torch.rand(origins.shape[0], 32, device=origins.device), dim=-1)
        places = origins[:, None] + directions[:, None] * t[..., None]
        angles = (places[..., None] * self.bands).flatten(-2)
        h = self.inp(torch.cat([places, angles.sin(), angles.cos()], -1))
        for field in self.fields:
            h = field(h)
        step = torch.diff(t, append=t[:, -1:] + 0.1)
        alpha = 1 - torch.exp(-F.softplus(self.density(h)).squeeze(-1) * step)
        through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        return ((alpha * through).unsqueeze(-1) * torch.sigmoid(self.colour(h))).sum(1)


@case("radiance", ["Field"], precisions=["float32"])
class _:
    make = Radiance
    batch = staticmethod(lambda device: (torch.randn(1024, 3, device=device), torch.randn(1024, 3, device=device), torch.rand(1024, 3, device=device)))

    @staticmethod
    def forward(model, origins, directions, colours):
        return F.mse_loss(model(origins, directions), colours)
