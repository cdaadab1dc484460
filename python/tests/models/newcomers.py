"""A third lot of strangers' styles: streams beside streams, routed depths, spectra, solvers, preferences, sparse codes, low bits."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from . import case, ids
from .outsiders import token_loss

BOTH = ["bfloat16", "float32"]


class Attention(nn.Module):
    def __init__(self, d, heads=4, causal=True):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).reshape(b, t, d))


class Mlp(nn.Sequential):
    def __init__(self, d, width=4):
        super().__init__(nn.Linear(d, width * d), nn.GELU(), nn.Linear(width * d, d))


# ------------------------------------------------------------------------------------------------------------ decoders


class HyperBlock(nn.Module):
    """Hyper-connections: four residual streams, mixed by weights that the streams themselves decide."""

    def __init__(self, d, streams=4):
        super().__init__()
        self.norm, self.work = nn.LayerNorm(d), Mlp(d)
        self.attend = Attention(d)
        self.static_in = nn.Parameter(torch.ones(streams) / streams)
        self.static_mix = nn.Parameter(torch.eye(streams))
        self.static_out = nn.Parameter(torch.ones(streams))
        self.dynamic = nn.Linear(d, streams * streams + 2 * streams, bias=False)
        self.streams = streams

    def around(self, h, work):
        n = self.streams
        moved = torch.tanh(self.dynamic(F.rms_norm(h, h.shape[-1:]).mean(2)))
        take, mix, give = moved.split([n, n * n, n], dim=-1)
        x = torch.einsum("btn,btnd->btd", self.static_in + take, h)
        y = work(self.norm(x))
        mixed = torch.einsum("btnm,btmd->btnd", self.static_mix + mix.unflatten(-1, (n, n)), h)
        return mixed + (self.static_out + give).unsqueeze(-1) * y.unsqueeze(2)

    def forward(self, h):
        return self.around(self.around(h, self.attend), self.work)


class Hyper(nn.Module):
    def __init__(self, v=2000, d=192, layers=3):
        super().__init__()
        self.embed, self.place = nn.Embedding(v, d), nn.Parameter(torch.zeros(128, d))
        self.layers = nn.ModuleList(HyperBlock(d) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, x):
        h = self.embed(x) + self.place[: x.shape[1]]
        h = h.unsqueeze(2).repeat(1, 1, 4, 1)
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h.sum(2)))


@case("hyper_connections", ["HyperBlock"], precisions=BOTH, recompute=True)
class _:
    make = Hyper
    batch = staticmethod(lambda device: (ids(2000, 4, 96, device=device), ids(2000, 4, 96, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


class RoutedBlock(nn.Module):
    """Mixture of depths: the tokens with the highest scores pass the block, the others go by."""

    def __init__(self, d, share=0.25):
        super().__init__()
        self.share, self.router = share, nn.Linear(d, 1)
        self.a, self.b, self.attend, self.mlp = nn.LayerNorm(d), nn.LayerNorm(d), Attention(d), Mlp(d)

    def forward(self, x):
        scores = self.router(x).squeeze(-1)
        k = int(self.share * x.shape[1])
        top = torch.topk(scores, k, dim=1, sorted=False).indices
        top = torch.sort(top, dim=1).values
        where = top.unsqueeze(-1).expand(-1, -1, x.shape[-1])
        h = torch.gather(x, 1, where)
        y = self.attend(self.a(h))
        y = y + self.mlp(self.b(h + y))
        y = y * torch.sigmoid(torch.gather(scores, 1, top)).unsqueeze(-1)
        return x.scatter_add(1, where, y.to(x.dtype)), F.binary_cross_entropy_with_logits(scores, torch.zeros_like(scores).scatter(1, top, 1.0))


class Depths(nn.Module):
    def __init__(self, v=2000, d=192, layers=4):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.layers = nn.ModuleList(RoutedBlock(d) for _ in range(layers))
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        h, extra = self.embed(x), 0.0
        for layer in self.layers:
            h, loss = layer(h)
            extra = extra + loss
        return F.linear(self.norm(h), self.embed.weight), extra / len(self.layers)


@case("routed_depths", ["RoutedBlock"], precisions=BOTH, recompute=True)
class _:
    make = Depths
    batch = staticmethod(lambda device: (ids(2000, 4, 128, device=device), ids(2000, 4, 128, device=device)))

    @staticmethod
    def forward(model, x, y):
        logits, extra = model(x)
        return token_loss(logits, y) + 0.01 * extra


class BitLinear(nn.Linear):
    """Ternary weights and 8-bit rows behind a norm, straight through in backward."""

    def __init__(self, i, o):
        super().__init__(i, o, bias=False)
        self.norm = nn.RMSNorm(i)

    def forward(self, x):
        x = self.norm(x)
        scale = 127.0 / x.abs().max(dim=-1, keepdim=True).values.clamp_(min=1e-5)
        rows = x + ((x * scale).round().clamp_(-128, 127) / scale - x).detach()
        unit = 1.0 / self.weight.abs().mean().clamp_(min=1e-5)
        weight = self.weight + ((self.weight * unit).round().clamp_(-1, 1) / unit - self.weight).detach()
        return F.linear(rows, weight)


class BitBlock(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (BitLinear(d, d) for _ in range(4))
        self.up, self.gate, self.down = BitLinear(d, 3 * d), BitLinear(d, 3 * d), BitLinear(3 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.relu(self.gate(x)).square() * self.up(x))


class Bits(nn.Module):
    def __init__(self, v=2000, d=192, layers=3):
        super().__init__()
        self.embed, self.layers = nn.Embedding(v, d), nn.ModuleList(BitBlock(d) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


@case("ternary_weights", ["BitBlock"], precisions=BOTH, recompute=True)
class _:
    make = Bits
    batch = staticmethod(lambda device: (ids(2000, 4, 96, device=device), ids(2000, 4, 96, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


class NormalizedBlock(nn.Module):
    """nGPT: everything on the sphere, learned steps toward what a layer says."""

    def __init__(self, d, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 8 * d, bias=False), nn.Linear(4 * d, d, bias=False)
        self.attend_step, self.mlp_step = nn.Parameter(torch.full((d,), 0.05)), nn.Parameter(torch.full((d,), 0.05))
        self.qk_scale, self.uv_scale = nn.Parameter(torch.ones(heads, 1, d // heads)), nn.Parameter(torch.ones(8 * d))

    def forward(self, h):
        b, t, d = h.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(h).chunk(3, dim=-1))
        q, k = F.normalize(q, dim=-1) * self.qk_scale, F.normalize(k, dim=-1) * self.qk_scale
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=math.sqrt(d // self.heads))
        y = F.normalize(self.out(y.transpose(1, 2).reshape(b, t, d)), dim=-1)
        h = F.normalize(torch.lerp(h, y, self.attend_step.abs()), dim=-1)
        u, w = (self.uv_scale * math.sqrt(d) * self.up(h)).chunk(2, dim=-1)
        y = F.normalize(self.down(u * F.silu(w)), dim=-1)
        return F.normalize(torch.lerp(h, y, self.mlp_step.abs()), dim=-1)


class Normalized(nn.Module):
    def __init__(self, v=2000, d=192, layers=3):
        super().__init__()
        self.embed, self.layers = nn.Embedding(v, d), nn.ModuleList(NormalizedBlock(d) for _ in range(layers))
        self.head, self.scale = nn.Linear(d, v, bias=False), nn.Parameter(torch.ones(v))

    def forward(self, x):
        h = F.normalize(self.embed(x), dim=-1)
        for layer in self.layers:
            h = layer(h)
        return self.head(h) * self.scale


@case("on_the_sphere", ["NormalizedBlock"], precisions=BOTH)
class _:
    make = Normalized
    batch = staticmethod(lambda device: (ids(2000, 4, 96, device=device), ids(2000, 4, 96, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


class PatchBlock(nn.Module):
    def __init__(self, d, causal=True):
        super().__init__()
        self.a, self.b, self.attend, self.mlp = nn.LayerNorm(d), nn.LayerNorm(d), Attention(d, causal=causal), Mlp(d)

    def forward(self, x):
        x = x + self.attend(self.a(x))
        return x + self.mlp(self.b(x))


class BytePatches(nn.Module):
    """Bytes pooled into patches by their numbers, a trunk over patches, spread back to bytes; n-gram hashes beside."""

    def __init__(self, d=128, wide=256):
        super().__init__()
        self.bytes, self.grams = nn.Embedding(256, d), nn.ModuleList(nn.Embedding(5000, d) for _ in range(3))
        self.encode, self.trunk = PatchBlock(d), nn.ModuleList(PatchBlock(wide) for _ in range(3))
        self.widen, self.narrow, self.decode, self.head = nn.Linear(d, wide), nn.Linear(wide, d), PatchBlock(d), nn.Linear(d, 256)

    def forward(self, x, patch):
        h = self.bytes(x)
        for n, table in enumerate(self.grams, start=3):
            padded = F.pad(x, (n - 1, 0))
            value = torch.zeros_like(x)
            for i in range(n):
                value = value * 1_000_003 + padded[:, i : i + x.shape[1]]
            h = h + table(value % 5000)
        h = self.encode(h)
        b, t, d = h.shape
        count = 32
        pooled = h.new_zeros(b, count, d).scatter_reduce(1, patch.unsqueeze(-1).expand(-1, -1, d), h, reduce="amax", include_self=False)
        y = self.widen(pooled)
        for block in self.trunk:
            y = block(y)
        back = torch.gather(self.narrow(y), 1, patch.unsqueeze(-1).expand(-1, -1, d))
        return self.head(self.decode(h + back))


@case("byte_patches", ["PatchBlock"], precisions=BOTH)
class _:
    make = BytePatches
    batch = staticmethod(lambda device: (ids(256, 4, 128, device=device), (torch.arange(128, device=device) // 4).expand(4, -1).contiguous(), ids(256, 4, 128, device=device)))

    @staticmethod
    def forward(model, x, patch, y):
        return token_loss(model(x, patch), y)


class DiffusionLm(nn.Module):
    """LLaDA: a share of the tokens, drawn anew for each row, is masked; the loss weighs rows by that share."""

    def __init__(self, v=2000, d=192, layers=3):
        super().__init__()
        self.embed, self.layers = nn.Embedding(v + 1, d), nn.ModuleList(PatchBlock(d, causal=False) for _ in range(layers))
        self.norm, self.head, self.mask = nn.LayerNorm(d), nn.Linear(d, v, bias=False), v

    def forward(self, x):
        b, t = x.shape
        share = (1 - 1e-3) * torch.rand(b, device=x.device) + 1e-3
        masked = torch.rand(b, t, device=x.device) < share[:, None]
        h = self.embed(torch.where(masked, self.mask, x))
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h)), masked, share


@case("masked_diffusion", ["PatchBlock"], precisions=BOTH, recompute=True)
class _:
    make = DiffusionLm
    batch = staticmethod(lambda device: (ids(2000, 4, 96, device=device),))

    @staticmethod
    def forward(model, x):
        logits, masked, share = model(x)
        each = F.cross_entropy(logits.transpose(1, 2), x, reduction="none")
        return (each * masked / share[:, None]).sum() / x.numel()


# ---------------------------------------------------------------------------------------------------------- preferences


class Policy(nn.Module):
    def __init__(self, v=2000, d=192, layers=2):
        super().__init__()
        self.embed, self.layers = nn.Embedding(v, d), nn.ModuleList(PatchBlock(d) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


class Preferred(nn.Module):
    """GRPO: a policy, its frozen reference, clipped ratios, a divergence, entropies that are only watched."""

    def __init__(self):
        super().__init__()
        self.policy, self.reference = Policy(), Policy()
        self.reference.requires_grad_(False)

    @staticmethod
    def of_tokens(logits, x):
        logits = logits[:, :-1] / 0.9
        return torch.gather(logits, 2, x[:, 1:, None]).squeeze(-1) - torch.logsumexp(logits, dim=-1)

    def forward(self, x, old, advantage, mask):
        logits = self.policy(x)
        now = self.of_tokens(logits, x)
        with torch.no_grad():
            then = self.of_tokens(self.reference(x), x)
            entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
        ratio = torch.exp(now - old)
        gain = torch.min(ratio * advantage[:, None], ratio.clamp(0.8, 1.28) * advantage[:, None])
        apart = torch.exp(then - now) - (then - now) - 1
        return -((gain - 0.04 * apart) * mask).sum() / mask.sum(), entropy


@case("group_preferences", ["PatchBlock"], precisions=BOTH, recompute=True, orig_params=True)
class _:
    make = Preferred
    batch = staticmethod(lambda device: (ids(2000, 8, 64, device=device), torch.randn(8, 63, device=device), torch.randn(8, device=device), torch.ones(8, 63, device=device)))

    @staticmethod
    def forward(model, x, old, advantage, mask):
        loss, entropy = model(x, old, advantage, mask)
        return loss, entropy.detach()


# -------------------------------------------------------------------------------------------------- spectra and solvers


class SpectralBlock(nn.Module):
    """FNO: the lowest frequencies multiplied by complex matrices, a pointwise path beside."""

    def __init__(self, c, modes=8):
        super().__init__()
        self.modes = modes
        self.low, self.high = (nn.Parameter(torch.rand(c, c, modes, modes, 2) / c**2) for _ in range(2))
        self.beside = nn.Conv2d(c, c, 1)

    def forward(self, x):
        m = self.modes
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros_like(spectrum)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], torch.view_as_complex(self.low))
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], torch.view_as_complex(self.high))
        return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.beside(x))


class Fourier(nn.Module):
    def __init__(self, c=32, layers=3):
        super().__init__()
        self.lift, self.layers, self.drop = nn.Linear(3, c), nn.ModuleList(SpectralBlock(c) for _ in range(layers)), nn.Linear(c, 1)

    def forward(self, x):
        b, s, _, _ = x.shape
        axis = torch.linspace(0, 1, s, device=x.device)
        grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1).expand(b, -1, -1, -1)
        h = self.lift(torch.cat((x, grid), dim=-1)).permute(0, 3, 1, 2)
        for layer in self.layers:
            h = layer(h)
        return self.drop(h.permute(0, 2, 3, 1))


@case("fourier_operator", ["SpectralBlock"], precisions=["float32"])
class _:
    make = Fourier
    batch = staticmethod(lambda device: (torch.randn(8, 64, 64, 1, device=device), torch.randn(8, 64, 64, 1, device=device)))

    @staticmethod
    def forward(model, x, y):
        return (torch.norm((model(x) - y).flatten(1), dim=1) / torch.norm(y.flatten(1), dim=1)).mean()


class HyenaBlock(nn.Module):
    """A convolution as long as the sequence, by Fourier, whose filter a small network of places makes."""

    def __init__(self, d, order=16):
        super().__init__()
        self.inner, self.short = nn.Linear(d, 3 * d), nn.Conv1d(3 * d, 3 * d, 3, padding=2, groups=3 * d)
        self.filter = nn.Sequential(nn.Linear(3, order), nn.SiLU(), nn.Linear(order, d))
        self.bias, self.out, self.norm, self.mlp_norm, self.mlp = nn.Parameter(torch.randn(d)), nn.Linear(d, d), nn.LayerNorm(d), nn.LayerNorm(d), Mlp(d)

    def convolve(self, x, k):
        n = 2 * x.shape[-1]
        y = torch.fft.irfft(torch.fft.rfft(x.float(), n=n) * (torch.fft.rfft(k.float(), n=n) / n), n=n, norm="forward")[..., : x.shape[-1]]
        return y.to(x.dtype) + x * self.bias.unsqueeze(-1)

    def forward(self, x):
        t = x.shape[1]
        u = self.short(self.inner(self.norm(x)).transpose(1, 2))[..., :t]
        a, b, v = u.chunk(3, dim=1)
        place = torch.linspace(0, 1, t, device=x.device, dtype=x.dtype).unsqueeze(-1)
        k = self.filter(torch.cat((place, torch.sin(2 * math.pi * place), torch.cos(2 * math.pi * place)), dim=-1)) * torch.exp(-place * 4)
        y = a * self.convolve(v * b, k.transpose(0, 1))
        x = x + self.out(y.transpose(1, 2))
        return x + self.mlp(self.mlp_norm(x))


class Hyena(nn.Module):
    def __init__(self, v=1000, d=128, layers=3):
        super().__init__()
        self.embed, self.layers, self.head = nn.Embedding(v, d), nn.ModuleList(HyenaBlock(d) for _ in range(layers)), nn.Linear(d, v)

    def forward(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


@case("long_convolutions", ["HyenaBlock"], precisions=["float32"])
class _:
    make = Hyena
    batch = staticmethod(lambda device: (ids(1000, 4, 128, device=device), ids(1000, 4, 128, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


class Field(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b, self.time = nn.Linear(d, 2 * d), nn.Linear(2 * d, d), nn.Linear(1, 2 * d)

    def forward(self, t, x):
        return self.b(F.softplus(self.a(x) + self.time(t)))


class Ode(nn.Module):
    """Runge-Kutta steps through one field, each step checkpointed, as those who have no adjoint do."""

    def __init__(self, d=128, steps=6):
        super().__init__()
        self.into, self.field, self.out, self.steps = nn.Linear(32, d), Field(d), nn.Linear(d, 10), steps

    def step(self, x, t):
        h = 1.0 / self.steps
        a = self.field(t, x)
        b = self.field(t + h / 2, x + a * (h / 2))
        c = self.field(t + h / 2, x + b * (h / 2))
        d = self.field(t + h, x + c * h)
        return x + (a + 2 * b + 2 * c + d) * (h / 6)

    def forward(self, x):
        h = self.into(x)
        for i in range(self.steps):
            h = checkpoint(self.step, h, torch.full((1,), i / self.steps, device=x.device), use_reentrant=False)
        return self.out(h)


@case("neural_ode", ["Field"], precisions=["float32"])
class _:
    make = Ode
    batch = staticmethod(lambda device: (torch.randn(2048, 32, device=device), ids(10, 2048, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.cross_entropy(model(x), y)


class Cell(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.n1, self.n2, self.n3 = nn.GroupNorm(8, c), nn.GroupNorm(8, c), nn.GroupNorm(8, c)

    def forward(self, z, x):
        return self.n3(F.relu(z + self.n2(x + self.b(self.n1(F.relu(self.a(z)))))))


class Equilibrium(nn.Module):
    """A fixed point, found without a graph, then one step with it."""

    def __init__(self, c=48):
        super().__init__()
        self.into, self.cell, self.out = nn.Conv2d(3, c, 3, padding=1), Cell(c), nn.Linear(c * 16, 10)

    def forward(self, x):
        x = self.into(x)
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(8):
                z = self.cell(z, x)
        z = self.cell(z.detach(), x)
        return self.out(F.avg_pool2d(z, 8).flatten(1)), (z.detach() - x).norm()


@case("equilibrium", ["Cell"], precisions=["float32"])
class _:
    make = Equilibrium
    batch = staticmethod(lambda device: (torch.randn(32, 3, 32, 32, device=device), ids(10, 32, device=device)))

    @staticmethod
    def forward(model, x, y):
        logits, rest = model(x)
        return F.cross_entropy(logits, y, label_smoothing=0.1), rest


# ------------------------------------------------------------------------------------------------------------ series


class PatchTst(nn.Module):
    """Series by their own mean and scale, cut into patches, every channel a row; a learned scale is taken back at the end."""

    def __init__(self, channels=7, d=128, layers=3, patch=16, stride=8, ahead=96):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.patch, self.stride, self.embed = patch, stride, nn.Linear(patch, d)
        self.place = nn.Parameter(torch.zeros(42, d))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(d, 8, 2 * d, dropout=0.1, batch_first=True, activation="gelu") for _ in range(layers))
        self.head = nn.Linear(d * 42, ahead)

    def forward(self, x):
        mean = x.mean(1, keepdim=True).detach()
        std = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5).detach()
        x = (x - mean) / std * self.scale + self.shift
        x = F.pad(x.transpose(1, 2), (0, self.stride), mode="replicate").unfold(-1, self.patch, self.stride)
        b, c, n, _ = x.shape
        h = self.embed(x).reshape(b * c, n, -1) + self.place
        for layer in self.layers:
            h = layer(h)
        y = self.head(h.reshape(b, c, -1)).transpose(1, 2)
        return (y - self.shift) / (self.scale + 1e-10) * std + mean


@case("series_patches", ["TransformerEncoderLayer"], precisions=["float32"])
class _:
    make = PatchTst
    batch = staticmethod(lambda device: (torch.randn(16, 336, 7, device=device), torch.randn(16, 96, 7, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.mse_loss(model(x), y)


class ProbBlock(nn.Module):
    """Informer: only the queries that a sample of keys calls sharp attend, the others keep the mean."""

    def __init__(self, d, heads=8, factor=5):
        super().__init__()
        self.heads, self.factor = heads, factor
        self.q, self.k, self.v, self.out = (nn.Linear(d, d) for _ in range(4))
        self.a, self.b, self.norm1, self.norm2 = nn.Conv1d(d, 4 * d, 1), nn.Conv1d(4 * d, d, 1), nn.LayerNorm(d), nn.LayerNorm(d)

    def attend(self, x):
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        n = min(self.factor * math.ceil(math.log(t)), t)
        sample = torch.randint(t, (t, n), device=x.device)
        some = k.unsqueeze(2).expand(b, self.heads, t, t, d // self.heads)[:, :, torch.arange(t, device=x.device).unsqueeze(1), sample, :]
        scores = torch.matmul(q.unsqueeze(-2), some.transpose(-2, -1)).squeeze(-2)
        sharp = (scores.max(-1)[0] - scores.sum(-1) / t).topk(n, sorted=False)[1]
        rows, heads = torch.arange(b, device=x.device)[:, None, None], torch.arange(self.heads, device=x.device)[None, :, None]
        scores = torch.matmul(q[rows, heads, sharp, :], k.transpose(-2, -1)) / math.sqrt(d // self.heads)
        context = v.mean(dim=-2).unsqueeze(-2).expand(b, self.heads, t, d // self.heads).clone()
        context[rows, heads, sharp, :] = torch.matmul(torch.softmax(scores, dim=-1), v).type_as(context)
        return self.out(context.transpose(1, 2).reshape(b, t, d))

    def forward(self, x):
        x = self.norm1(x + self.attend(x))
        y = self.b(F.gelu(self.a(x.transpose(-1, 1)))).transpose(-1, 1)
        return self.norm2(x + y)


class Informer(nn.Module):
    def __init__(self, channels=7, d=128, layers=2):
        super().__init__()
        self.value = nn.Conv1d(channels, d, 3, padding=1, padding_mode="circular", bias=False)
        self.layers = nn.ModuleList(ProbBlock(d) for _ in range(layers))
        self.distil = nn.ModuleList(nn.Conv1d(d, d, 3, padding=1, padding_mode="circular") for _ in range(layers))
        self.head = nn.Linear(d, channels)

    def forward(self, x):
        h = self.value(x.transpose(1, 2)).transpose(1, 2)
        for layer, conv in zip(self.layers, self.distil):
            h = F.max_pool1d(F.elu(conv(layer(h).transpose(1, 2))), 3, 2, 1).transpose(1, 2)
        return self.head(h)


@case("sparse_queries", ["ProbBlock"], precisions=["float32"])
class _:
    make = Informer
    batch = staticmethod(lambda device: (torch.randn(8, 96, 7, device=device), torch.randn(8, 24, 7, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.huber_loss(model(x), y)


# ------------------------------------------------------------------------------------------------------------ pictures


class DetrLayer(nn.Module):
    """Queries and places are added to queries and keys of nn.MultiheadAttention, not to its values."""

    def __init__(self, d, heads=8):
        super().__init__()
        self.own, self.cross = nn.MultiheadAttention(d, heads, dropout=0.1), nn.MultiheadAttention(d, heads, dropout=0.1)
        self.a, self.b = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.n1, self.n2, self.n3, self.drop = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d), nn.Dropout(0.1)

    def forward(self, x, memory, query, place, mask):
        q = x + query
        x = self.n1(x + self.drop(self.own(q, q, value=x)[0]))
        x = self.n2(x + self.drop(self.cross(query=x + query, key=memory + place, value=memory, key_padding_mask=mask)[0]))
        return self.n3(x + self.drop(self.b(self.drop(F.relu(self.a(x))))))


class Detr(nn.Module):
    def __init__(self, d=128, queries=50, layers=3):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 7, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(32, d, 3, 4, 1))
        self.queries, self.rows, self.columns = nn.Embedding(queries, d), nn.Parameter(torch.rand(50, d // 2)), nn.Parameter(torch.rand(50, d // 2))
        self.layers = nn.ModuleList(DetrLayer(d) for _ in range(layers))
        self.kinds, self.boxes = nn.Linear(d, 21), nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 4))

    def forward(self, x, mask):
        h = self.stem(x)
        b, c, height, width = h.shape
        place = torch.cat([self.columns[:width].unsqueeze(0).repeat(height, 1, 1), self.rows[:height].unsqueeze(1).repeat(1, width, 1)], dim=-1)
        place = place.flatten(0, 1).unsqueeze(1)
        memory, query = h.flatten(2).permute(2, 0, 1), self.queries.weight.unsqueeze(1).repeat(1, b, 1)
        y, kinds, boxes = torch.zeros_like(query), [], []
        for layer in self.layers:
            y = layer(y, memory, query, place, mask)
            kinds.append(self.kinds(y))
            boxes.append(self.boxes(y).sigmoid())
        return torch.stack(kinds).transpose(1, 2), torch.stack(boxes).transpose(1, 2)


def corners(x):
    a, b, w, h = x.unbind(-1)
    return torch.stack([a - 0.5 * w, b - 0.5 * h, a + 0.5 * w, b + 0.5 * h], dim=-1)


def overlap(a, b):
    size = lambda x: (x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1])  # noqa: E731
    inner = (torch.min(a[:, None, 2:], b[:, 2:]) - torch.max(a[:, None, :2], b[:, :2])).clamp(min=0).prod(-1)
    union = size(a)[:, None] + size(b) - inner
    outer = (torch.max(a[:, None, 2:], b[:, 2:]) - torch.min(a[:, None, :2], b[:, :2])).clamp(min=0).prod(-1)
    return inner / union - (outer - union) / outer


@case("set_of_boxes", ["DetrLayer"], precisions=["float32"])
class _:
    make = Detr
    batch = staticmethod(
        lambda device: (
            torch.randn(4, 3, 160, 160, device=device), torch.zeros(4, 100, dtype=torch.bool, device=device), ids(50, 4, 10, device=device),
            ids(20, 4, 10, device=device), torch.rand(4, 10, 4, device=device),
        )
    )  # fmt: skip

    @staticmethod
    def forward(model, x, mask, places, kinds, boxes):
        said, at = model(x, mask)
        weight = torch.ones(21, device=x.device)
        weight[-1] = 0.1
        loss = 0.0
        row = torch.arange(4, device=x.device).unsqueeze(1).expand(-1, 10)
        for level in range(said.shape[0]):
            wanted = torch.full(said.shape[1:3], 20, dtype=torch.int64, device=x.device)
            wanted[row, places] = kinds
            loss = loss + F.cross_entropy(said[level].transpose(1, 2), wanted, weight)
            found = at[level][row, places].flatten(0, 1)
            loss = loss + 5 * F.l1_loss(found, boxes.flatten(0, 1)) + 2 * (1 - torch.diag(overlap(corners(found), corners(boxes.flatten(0, 1))))).mean()
        return loss


class Csp(nn.Module):
    """C2f of one-stage detectors: parts are split, each bottleneck's result is concatenated."""

    def __init__(self, i, o, n=2):
        super().__init__()
        half = o // 2
        act = lambda a, b, k: nn.Sequential(nn.Conv2d(a, b, k, padding=k // 2, bias=False), nn.BatchNorm2d(b, eps=1e-3, momentum=0.03), nn.SiLU(inplace=True))  # noqa: E731
        self.first, self.last = act(i, 2 * half, 1), act((2 + n) * half, o, 1)
        self.inner = nn.ModuleList(nn.Sequential(act(half, half, 3), act(half, half, 3)) for _ in range(n))

    def forward(self, x):
        parts = list(self.first(x).chunk(2, 1))
        parts.extend(block(parts[-1]) for block in self.inner)
        return self.last(torch.cat(parts, 1))


class Anchors(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, c, 3, 2, 1), Csp(c, c), nn.Conv2d(c, 2 * c, 3, 2, 1)
        self.d, self.e, self.f = Csp(2 * c, 2 * c), nn.Conv2d(2 * c, 4 * c, 3, 2, 1), Csp(4 * c, 4 * c)
        self.up, self.head_fine, self.head = Csp(6 * c, 2 * c), nn.Conv2d(2 * c, 64 + 20, 1), nn.Conv2d(4 * c, 64 + 20, 1)
        self.register_buffer("bins", torch.arange(16, dtype=torch.float32))

    def forward(self, x):
        fine = self.d(self.c(self.b(self.a(x))))
        coarse = self.f(self.e(fine))
        fine = self.up(torch.cat([F.interpolate(coarse, scale_factor=2, mode="nearest"), fine], 1))
        both = torch.cat([self.head_fine(fine).flatten(2), self.head(coarse).flatten(2)], 2)
        ends, kinds = both.split([64, 20], 1)
        sides = ends.view(x.shape[0], 4, 16, -1).softmax(2)
        return torch.einsum("bskn,k->bns", sides, self.bins), ends, kinds.transpose(1, 2)


@case("one_stage_boxes", ["Csp"], precisions=["float32"])
class _:
    make = Anchors
    batch = staticmethod(lambda device: (torch.randn(4, 3, 96, 96, device=device), torch.rand(4, 720, 4, device=device), torch.rand(4, 720, 20, device=device), torch.arange(720, device=device) % 16 == 0))

    @staticmethod
    def forward(model, x, boxes, kinds, near):
        sides, ends, scores = model(x)
        loss = F.binary_cross_entropy_with_logits(scores, kinds, reduction="none")
        loss = (loss * (kinds - scores.sigmoid()).abs().pow(2)).sum() / kinds.sum().clamp(min=1)
        weight = near.float().unsqueeze(0)
        return loss + (F.smooth_l1_loss(sides, boxes * 15, reduction="none").mean(-1) * weight).sum() / weight.sum()


# ----------------------------------------------------------------------------------------------------- codes and others


class SparseCode(nn.Module):
    """A transcoder of activations: the k largest of many features, unit decoders, dead features learn the rest."""

    def __init__(self, d=256, features=8192, k=32):
        super().__init__()
        self.k, self.bias = k, nn.Parameter(torch.zeros(d))
        self.encode, self.decode = nn.Linear(d, features), nn.Linear(features, d, bias=False)
        self.register_buffer("since", torch.zeros(features, dtype=torch.long))

    def forward(self, x):
        all_of = F.relu(self.encode(x - self.bias))
        values, where = torch.topk(all_of, self.k, dim=-1)
        code = torch.zeros_like(all_of).scatter_(-1, where, values)
        y = self.decode(code) + self.bias
        self.since += 1
        self.since[where.flatten()] = 0
        dead = self.since > 2
        again, at = torch.topk(torch.where(dead, all_of, -1.0), 64, dim=-1)
        rest = self.decode(torch.zeros_like(all_of).scatter_(-1, at, again.clamp(min=0)))
        return y, rest


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(SparseCode() for _ in range(2))

    def forward(self, x):
        return [part(y) for part, y in zip(self.parts, x.unbind(1))]


@case("sparse_codes", ["SparseCode"], precisions=["float32"])
class _:
    make = Coder
    batch = staticmethod(lambda device: (torch.randn(512, 2, 256, device=device),))

    @staticmethod
    def forward(model, x):
        loss = 0.0
        for (y, rest), target in zip(model(x), x.unbind(1)):
            error = target - y
            loss = loss + error.pow(2).sum(-1).mean() + (rest - error.detach()).pow(2).sum(-1).mean() / 32
        return loss


class SetBlock(nn.Module):
    """Attention with a learned bias of each edge, edges follow their nodes (graph transformers)."""

    def __init__(self, d, e, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(d, d) for _ in range(4))
        self.mul, self.add, self.edge, self.edge_norm = nn.Linear(e, d), nn.Linear(e, d), nn.Linear(d, e), nn.LayerNorm(e)
        self.norm, self.mlp, self.mlp_norm = nn.LayerNorm(d), Mlp(d, 2), nn.LayerNorm(d)

    def forward(self, x, edges, mask):
        b, n, d = x.shape
        q, k, v = (f(x).view(b, n, self.heads, -1) for f in (self.q, self.k, self.v))
        y = q.unsqueeze(2) * k.unsqueeze(1) / math.sqrt(d // self.heads)
        y = y * (self.mul(edges).view(b, n, n, self.heads, -1) + 1) + self.add(edges).view(b, n, n, self.heads, -1)
        edges = self.edge_norm(edges + self.edge(y.flatten(3)))
        weight = torch.softmax(y.sum(-1).masked_fill(~mask[:, None, :, None], float("-inf")), dim=2)
        x = self.norm(x + self.out(torch.einsum("bijh,bjhd->bihd", weight, v).flatten(2)))
        return self.mlp_norm(x + self.mlp(x)), edges


class Molecules(nn.Module):
    def __init__(self, d=64, e=32, layers=3):
        super().__init__()
        self.atom, self.bond, self.layers = nn.Embedding(30, d), nn.Embedding(5, e), nn.ModuleList(SetBlock(d, e) for _ in range(layers))
        self.head = nn.Linear(d, 1)

    def forward(self, atoms, bonds, mask):
        x, edges = self.atom(atoms), self.bond(bonds)
        for layer in self.layers:
            x, edges = layer(x, edges, mask)
        return (self.head(x).squeeze(-1) * mask).sum(1) / mask.sum(1)


@case("molecules", ["SetBlock"], precisions=["float32"], recompute=True)
class _:
    make = Molecules
    batch = staticmethod(lambda device: (ids(30, 16, 28, device=device), ids(5, 16, 28, 28, device=device), torch.ones(16, 28, dtype=torch.bool, device=device), torch.randn(16, device=device)))

    @staticmethod
    def forward(model, atoms, bonds, mask, y):
        return F.l1_loss(model(atoms, bonds, mask), y)


class Student(nn.Module):
    """Distilled by a wider teacher: soft targets, features through a projection, contrast of positives in the batch."""

    def __init__(self, v=2000):
        super().__init__()
        self.student, self.teacher = Policy(v, 128, 2), Policy(v, 256, 2)
        self.teacher.requires_grad_(False).eval()
        self.project, self.log_scale = nn.Linear(128, 256, bias=False), nn.Parameter(torch.tensor(2.6592))

    def forward(self, x, y, t=2.0):
        with torch.no_grad():
            wide = self.teacher.embed(x)
            for layer in self.teacher.layers:
                wide = layer(wide)
            target = self.teacher.head(self.teacher.norm(wide))
        h = self.student.embed(x)
        for layer in self.student.layers:
            h = layer(h)
        logits = self.student.head(self.student.norm(h))
        soft = F.kl_div(F.log_softmax(logits / t, -1), F.log_softmax(target / t, -1), log_target=True, reduction="batchmean") * t * t / x.shape[1]
        a, b = F.normalize(self.project(h).mean(1), dim=-1), F.normalize(wide.mean(1), dim=-1)
        same = self.log_scale.exp() * a @ b.t()
        return 0.5 * soft + 0.5 * token_loss(logits, y) + F.cross_entropy(same, torch.arange(len(x), device=x.device)) + F.triplet_margin_loss(a, b, b.roll(1, 0))


@case("distilled", ["PatchBlock"], precisions=BOTH, orig_params=True)
class _:
    make = Student
    batch = staticmethod(lambda device: (ids(2000, 8, 64, device=device), ids(2000, 8, 64, device=device)))

    @staticmethod
    def forward(model, x, y):
        return model(x, y)
