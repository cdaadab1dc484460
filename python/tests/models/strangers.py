"""Styles that nobody here had written before: mixers, quantised codes, chunked recurrences, hash grids, modulated convolutions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from . import case, ids

BOTH = ["bfloat16", "float32"]


def token_loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


# ------------------------------------------------------------------------------------------------------------- pictures


class MixerBlock(nn.Module):
    def __init__(self, tokens, d):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d, eps=1e-6), nn.LayerNorm(d, eps=1e-6)
        self.tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, d=192, layers=4):
        super().__init__()
        self.stem = nn.Conv2d(3, d, 8, 8)
        self.blocks = nn.Sequential(*(MixerBlock(64, d) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 1000)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(dim=1))


@case("mixer", ["MixerBlock"], precisions=BOTH, recompute=True)
class _:
    make = Mixer
    batch = staticmethod(lambda device: (torch.randn(24, 3, 64, 64, device=device), ids(1000, 24, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.cross_entropy(model(x), y, label_smoothing=0.1)


class SqueezeExcite(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(c, c // 4, 1), nn.Conv2d(c // 4, c, 1)

    def forward(self, x):
        s = F.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.expand(F.silu(self.reduce(s))))


class MBConv(nn.Module):
    def __init__(self, i, o, expand, stride, kernel=3, survival=0.9):
        super().__init__()
        e = i * expand
        self.body = nn.Sequential(
            nn.Conv2d(i, e, 1, bias=False), nn.BatchNorm2d(e, momentum=0.01), nn.SiLU(inplace=True),
            nn.Conv2d(e, e, kernel, stride, kernel // 2, groups=e, bias=False), nn.BatchNorm2d(e), nn.SiLU(inplace=True),
            SqueezeExcite(e), nn.Conv2d(e, o, 1, bias=False), nn.BatchNorm2d(o),
        )  # fmt: skip
        self.skip, self.survival = stride == 1 and i == o, survival

    def forward(self, x):
        y = self.body(x)
        if not self.skip:
            return y
        if self.training:
            keep = torch.empty((x.shape[0], 1, 1, 1), dtype=x.dtype, device=x.device).bernoulli_(self.survival)
            y = y.div(self.survival) * keep
        return x + y


class EfficientNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.SiLU(inplace=True))
        self.blocks = nn.ModuleList(
            [MBConv(32, 32, 2, 1), MBConv(32, 48, 4, 2), MBConv(48, 48, 4, 1, 5), MBConv(48, 96, 4, 2, 5), MBConv(96, 96, 4, 1)]
        )
        self.head = nn.Sequential(nn.Conv2d(96, 384, 1, bias=False), nn.BatchNorm2d(384), nn.SiLU(inplace=True), nn.AdaptiveAvgPool2d(1))
        self.classify = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(384, 1000))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.classify(self.head(x))


@case("efficientnet", ["MBConv"], precisions=["float32"], recompute=True)
class _:
    make = EfficientNet
    batch = staticmethod(
        lambda device: (torch.randn(8, 96, 96, 3, device=device).permute(0, 3, 1, 2), ids(1000, 8, device=device))  # channels last
    )

    @staticmethod
    def forward(model, x, y):
        return F.cross_entropy(model(x), y)


class ModulatedConv(nn.Module):
    """StyleGAN 2: every picture has its own weights, done as one grouped convolution; noise; a blur."""

    def __init__(self, i, o, style, kernel=3, up=False):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(1, o, i, kernel, kernel)), nn.Parameter(torch.zeros(o))
        self.affine, self.noise = nn.Linear(style, i), nn.Parameter(torch.zeros(1))
        self.up = up
        self.register_buffer("blur", torch.ones(1, 1, 3, 3) / 9)

    def forward(self, x, w):
        b, c, h, wd = x.shape
        o, _, k, _ = self.weight.shape[1:]
        style = self.affine(w).view(b, 1, c, 1, 1) + 1
        weight = self.weight * (style / math.sqrt(c * k * k))
        weight = weight * torch.rsqrt(weight.pow(2).sum([2, 3, 4]) + 1e-8).view(b, o, 1, 1, 1)
        if self.up:
            weight = weight.transpose(1, 2).reshape(b * c, o, k, k)
            x = F.conv_transpose2d(x.reshape(1, b * c, h, wd), weight, padding=1, output_padding=1, stride=2, groups=b)
            h, wd = x.shape[2:]
            x = x.view(b, o, h, wd)
            x = F.conv2d(x, self.blur.expand(o, 1, 3, 3), padding=1, groups=o)
        else:
            x = F.conv2d(x.reshape(1, b * c, h, wd), weight.view(b * o, c, k, k), padding=k // 2, groups=b).view(b, o, h, wd)
        x = x + self.noise * torch.randn(b, 1, h, wd, device=x.device, dtype=x.dtype)
        return F.leaky_relu(x + self.bias.view(1, -1, 1, 1), 0.2) * math.sqrt(2)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            parametrizations.spectral_norm(nn.Conv2d(3, 32, 4, 2, 1)), nn.LeakyReLU(0.2),
            parametrizations.spectral_norm(nn.Conv2d(32, 64, 4, 2, 1)), nn.LeakyReLU(0.2),
        )  # fmt: skip
        self.last, self.out = nn.Conv2d(65, 64, 3, padding=1), nn.Linear(64, 1)

    def forward(self, x):
        x = self.body(x)
        y = x.view(4, -1, *x.shape[1:])
        y = (y - y.mean(0)).pow(2).mean(0).add(1e-8).sqrt().mean([1, 2, 3], keepdim=True).repeat(4, 1, *x.shape[2:])
        return self.out(F.leaky_relu(self.last(torch.cat([x, y], 1)), 0.2).mean((2, 3)))


class Gan(nn.Module):
    def __init__(self, style=128):
        super().__init__()
        self.map = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(style, style), nn.LeakyReLU(0.2))))
        self.start = nn.Parameter(torch.zeros(1, 96, 8, 8))
        self.layers = nn.ModuleList(
            [ModulatedConv(96, 96, style), ModulatedConv(96, 64, style, up=True), ModulatedConv(64, 64, style), ModulatedConv(64, 32, style, up=True)]
        )
        self.rgb = nn.Conv2d(32, 3, 1)
        self.critic = Critic()

    def forward(self, z, real):
        w = self.map(F.normalize(z, dim=1))
        x = self.start.expand(z.shape[0], -1, -1, -1)
        for layer in self.layers:
            x = layer(x, w)
        fake = torch.tanh(self.rgb(x))
        return self.critic(fake), self.critic(fake.detach()), self.critic(real)


@case("style_gan", ["ModulatedConv"], precisions=["float32"])
class _:
    make = Gan
    batch = staticmethod(lambda device: (torch.randn(16, 128, device=device), torch.randn(16, 3, 32, 32, device=device)))

    @staticmethod
    def forward(model, z, real):
        fooled, fake, true = model(z, real)
        generator = F.softplus(-fooled).mean()
        critic = F.softplus(fake).mean() + F.softplus(-true).mean()
        return generator + critic


class ResidualStack(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.ReLU(), nn.Conv2d(c, c // 2, 3, 1, 1, bias=False), nn.ReLU(True), nn.Conv2d(c // 2, c, 1, bias=False))
            for _ in range(2)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return F.relu(x)


class Quantizer(nn.Module):
    """Codes that follow by running means: buffers written in forward; straight through for the gradient."""

    def __init__(self, n, d):
        super().__init__()
        self.n, self.d = n, d
        self.register_buffer("codes", torch.zeros(n, d))
        self.register_buffer("size", torch.zeros(n))
        self.register_buffer("mean", torch.zeros(n, d))

    def forward(self, z):
        z = z.permute(0, 2, 3, 1).contiguous()
        flat = z.view(-1, self.d)
        distances = torch.sum(flat**2, dim=1, keepdim=True) + torch.sum(self.codes**2, dim=1) - 2 * torch.matmul(flat, self.codes.t())
        nearest = torch.argmin(distances, dim=1).unsqueeze(1)
        chosen = torch.zeros(nearest.shape[0], self.n, device=z.device)
        chosen.scatter_(1, nearest, 1)
        quantized = torch.matmul(chosen, self.codes).view(z.shape)
        if self.training:
            with torch.no_grad():
                self.size.mul_(0.99).add_(chosen.sum(0), alpha=0.01)
                n = self.size.sum()
                size = (self.size + 1e-5) / (n + self.n * 1e-5) * n
                self.mean.mul_(0.99).add_(chosen.t() @ flat, alpha=0.01)
                self.codes.copy_(self.mean / size.unsqueeze(1))
        loss = 0.25 * F.mse_loss(quantized.detach(), z)
        quantized = z + (quantized - z).detach()
        p = chosen.mean(0)
        perplexity = torch.exp(-torch.sum(p * torch.log(p + 1e-10)))
        return loss, quantized.permute(0, 3, 1, 2).contiguous(), perplexity


class VqVae(nn.Module):
    def __init__(self, c=128, d=64, n=512):
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, c // 2, 4, 2, 1), nn.ReLU(), nn.Conv2d(c // 2, c, 4, 2, 1), nn.ReLU(), ResidualStack(c), nn.Conv2d(c, d, 1))
        self.quantize = Quantizer(n, d)
        self.decode = nn.Sequential(
            nn.Conv2d(d, c, 3, 1, 1), ResidualStack(c), nn.ConvTranspose2d(c, c // 2, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(c // 2, 3, 4, 2, 1)
        )

    def forward(self, x):
        loss, q, perplexity = self.quantize(self.encode(x))
        return loss, self.decode(q), perplexity


@case("vq_vae", ["ResidualStack"], precisions=["float32"])
class _:
    make = VqVae
    batch = staticmethod(lambda device: (torch.randn(8, 3, 64, 64, device=device),))

    @staticmethod
    def forward(model, x):
        vq_loss, reconstructed, perplexity = model(x)
        return vq_loss + F.mse_loss(reconstructed, x) / 0.06, reconstructed, perplexity


class Aspp(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.branches = nn.ModuleList([nn.Sequential(nn.Conv2d(i, o, 1, bias=False), nn.GroupNorm(8, o), nn.ReLU())])
        for rate in (2, 4):
            self.branches.append(nn.Sequential(nn.Conv2d(i, o, 3, padding=rate, dilation=rate, bias=False), nn.GroupNorm(8, o), nn.ReLU()))
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(i, o, 1, bias=False), nn.ReLU())
        self.project = nn.Sequential(nn.Conv2d(4 * o, o, 1, bias=False), nn.GroupNorm(8, o), nn.ReLU(), nn.Dropout2d(0.5))

    def forward(self, x):
        rows = [branch(x) for branch in self.branches]
        rows.append(F.interpolate(self.pool(x), size=x.shape[-2:], mode="bilinear", align_corners=False))
        return self.project(torch.cat(rows, dim=1))


class Bottleneck(nn.Module):
    def __init__(self, i, o, stride=1, dilation=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o // 4, 1, bias=False), nn.BatchNorm2d(o // 4)
        self.conv2, self.bn2 = nn.Conv2d(o // 4, o // 4, 3, stride, dilation, dilation, bias=False), nn.BatchNorm2d(o // 4)
        self.conv3, self.bn3 = nn.Conv2d(o // 4, o, 1, bias=False), nn.BatchNorm2d(o)
        self.down = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o)) if stride != 1 or i != o else None
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.down is not None:
            identity = self.down(x)
        out += identity
        return self.relu(out)


class Segmenter(nn.Module):
    """A frozen stem, deep supervision, focal and dice losses."""

    def __init__(self, classes=8):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 48, 7, 2, 3, bias=False), nn.BatchNorm2d(48), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        self.layer1, self.layer2 = Bottleneck(48, 96), Bottleneck(96, 192, 2)
        self.layer3 = Bottleneck(192, 256, 1, 2)
        self.aspp, self.low = Aspp(256, 96), nn.Conv2d(96, 32, 1)
        self.head = nn.Sequential(nn.Conv2d(128, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, classes, 1))
        self.aux = nn.Conv2d(192, classes, 1)
        for p in self.stem.parameters():
            p.requires_grad = False

    def forward(self, x):
        size = x.shape[-2:]
        low = self.layer1(self.stem(x))
        mid = self.layer2(low)
        high = self.aspp(self.layer3(mid))
        high = F.interpolate(high, size=low.shape[-2:], mode="bilinear", align_corners=True)
        out = self.head(torch.cat((high, self.low(low)), 1))
        up = lambda t: F.interpolate(t, size=size, mode="bilinear", align_corners=False)  # noqa: E731
        return {"out": up(out), "aux": up(self.aux(mid))}


@case("segmenter", ["Bottleneck", "Aspp"], precisions=["float32"], orig_params=True, recompute=True)
class _:
    make = Segmenter
    batch = staticmethod(lambda device: (torch.randn(4, 3, 128, 128, device=device), ids(8, 4, 128, 128, device=device)))

    @staticmethod
    def forward(model, x, y):
        out = model(x)
        ce = F.cross_entropy(out["out"], y, reduction="none", ignore_index=255)
        focal = ((1 - torch.exp(-ce)) ** 2 * ce).mean()
        p = F.softmax(out["out"], dim=1)
        true = F.one_hot(y, 8).permute(0, 3, 1, 2).float()
        dice = 1 - (2 * (p * true).sum((2, 3)) + 1) / (p.sum((2, 3)) + true.sum((2, 3)) + 1)
        return focal + dice.mean() + 0.4 * F.cross_entropy(out["aux"], y)


# ------------------------------------------------------------------------------------------------------------ recurrent


class MinGru(nn.Module):
    """A recurrence in parallel, in log space."""

    def __init__(self, d):
        super().__init__()
        self.norm, self.to_hidden_gate, self.out = nn.RMSNorm(d), nn.Linear(d, 4 * d, bias=False), nn.Linear(2 * d, d, bias=False)
        self.ff = nn.Sequential(nn.RMSNorm(d), nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))

    def forward(self, x):
        hidden, gate = self.to_hidden_gate(self.norm(x)).chunk(2, dim=-1)
        log_coeffs, log_z = -F.softplus(gate), -F.softplus(-gate)
        log_values = log_z + torch.where(hidden >= 0, (F.relu(hidden) + 0.5).log(), -F.softplus(-hidden))
        a_star = log_coeffs.cumsum(dim=1)
        h = (a_star + (log_values - a_star).logcumsumexp(dim=1)).exp()
        x = self.out(h) + x
        return self.ff(x) + x


class Tokens(nn.Module):
    def __init__(self, block, v=2000, d=128, layers=3, **more):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.layers = nn.ModuleList(block(d, **more) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Lm:
    batch = staticmethod(lambda device: (ids(2000, 8, 96, device=device), ids(2000, 8, 96, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


@case("min_gru", ["MinGru"], precisions=BOTH, recompute=True)
class _(Lm):
    make = staticmethod(lambda: Tokens(MinGru))


def segsum(x):
    t = x.size(-1)
    x = x.unsqueeze(-1).expand(*x.shape, t).transpose(-1, -2)
    x = x.masked_fill(~torch.tril(torch.ones(t, t, device=x.device, dtype=torch.bool), diagonal=-1), 0)
    out = torch.cumsum(x, dim=-2)
    return out.masked_fill(~torch.tril(torch.ones(t, t, device=x.device, dtype=torch.bool)), -torch.inf)


class Ssd(nn.Module):
    """Mamba 2's dual form: chunks as products, states handed on by segment sums."""

    def __init__(self, d, heads=4, state=32, chunk=32):
        super().__init__()
        self.heads, self.state, self.chunk, self.inner = heads, state, chunk, 2 * d
        self.in_proj = nn.Linear(d, 2 * self.inner + 2 * state + heads, bias=False)
        self.conv = nn.Conv1d(self.inner + 2 * state, self.inner + 2 * state, 4, groups=self.inner + 2 * state, padding=3)
        self.dt_bias, self.a_log, self.skip = (nn.Parameter(torch.zeros(heads)) for _ in range(3))
        self.norm, self.out_proj = nn.RMSNorm(self.inner), nn.Linear(self.inner, d, bias=False)

    def forward(self, u):
        b, t, _ = u.shape
        a = -torch.exp(self.a_log)
        z, xbc, dt = torch.split(self.in_proj(u), [self.inner, self.inner + 2 * self.state, self.heads], dim=-1)
        dt = F.softplus(dt + self.dt_bias)
        xbc = F.silu(self.conv(xbc.transpose(1, 2)).transpose(1, 2)[:, :t])
        x, bb, cc = torch.split(xbc, [self.inner, self.state, self.state], dim=-1)
        x = x.view(b, t, self.heads, -1)
        y = self.ssd(x * dt.unsqueeze(-1), a * dt, bb.unsqueeze(2), cc.unsqueeze(2))
        y = (y + x * self.skip.unsqueeze(-1)).reshape(b, t, self.inner)
        return u + self.out_proj(self.norm(y * F.silu(z)))

    def ssd(self, x, a, b, c):
        n = x.shape[1] // self.chunk
        x, a, b, c = (m.unflatten(1, (n, self.chunk)) for m in (x, a, b, c))
        a = a.permute(0, 3, 1, 2)
        a_cumsum = torch.cumsum(a, dim=-1)
        decay = torch.exp(segsum(a))
        b, c = b.expand(-1, -1, -1, self.heads, -1), c.expand(-1, -1, -1, self.heads, -1)
        diag = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", c, b, decay, x)
        decay_states = torch.exp(a_cumsum[..., -1:] - a_cumsum)
        states = torch.einsum("bclhn,bhcl,bclhp->bchpn", b, decay_states, x)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], dim=1)
        decay_chunk = torch.exp(segsum(F.pad(a_cumsum[..., -1], (1, 0))))
        states = torch.einsum("bhzc,bchpn->bzhpn", decay_chunk, states)[:, :-1]
        off = torch.einsum("bclhn,bchpn,bhcl->bclhp", c, states, torch.exp(a_cumsum))
        return (diag + off).flatten(1, 2)


@case("mamba2_ssd", ["Ssd"], precisions=BOTH, recompute=True)
class _(Lm):
    make = staticmethod(lambda: Tokens(Ssd, d=96))


class DeltaNet(nn.Module):
    """A delta rule in chunks: the triangular inverse row by row, in place; the state is carried."""

    def __init__(self, d, heads=4, chunk=16):
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.norm, self.qkv, self.beta, self.o = nn.LayerNorm(d), nn.Linear(d, 3 * d, bias=False), nn.Linear(d, heads), nn.Linear(d, d, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        c, h = self.chunk, self.heads
        y = self.norm(x)
        q, k, v = self.qkv(y).view(b, t, 3, h, d // h).permute(2, 0, 3, 1, 4)
        beta = self.beta(y).sigmoid().transpose(1, 2)
        q, k = F.normalize(F.silu(q), dim=-1), F.normalize(F.silu(k), dim=-1)
        v, kb = v * beta.unsqueeze(-1), k * beta.unsqueeze(-1)
        q, k, v, kb = (m.reshape(b, h, t // c, c, d // h) for m in (q, k, v, kb))
        upper = torch.triu(torch.ones(c, c, dtype=torch.bool, device=x.device), diagonal=0)
        attn = -(kb @ k.transpose(-1, -2)).masked_fill(upper, 0)
        for i in range(1, c):
            row = attn[..., i, :i].clone()
            attn[..., i, :i] = row + (row.unsqueeze(-1) * attn[..., :i, :i].clone()).sum(-2)
        attn = attn + torch.eye(c, dtype=attn.dtype, device=x.device)
        v, w = attn @ v, attn @ kb
        state, out = q.new_zeros(b, h, d // h, d // h), torch.zeros_like(v)
        later = torch.triu(torch.ones(c, c, dtype=torch.bool, device=x.device), diagonal=1)
        for i in range(t // c):
            qi, ki = q[:, :, i], k[:, :, i]
            inner = (qi @ ki.transpose(-1, -2)).masked_fill_(later, 0)
            vi = v[:, :, i] - w[:, :, i] @ state
            out[:, :, i] = qi @ state + inner @ vi
            state = state + ki.transpose(-1, -2) @ vi
        return x + self.o(out.reshape(b, h, t, d // h).transpose(1, 2).reshape(b, t, d))


@case("delta_net", ["DeltaNet"], precisions=BOTH, recompute=True)
class _(Lm):
    make = staticmethod(lambda: Tokens(DeltaNet))


class TemporalBlock(nn.Module):
    def __init__(self, i, o, dilation, kernel=3, drop=0.2):
        super().__init__()
        pad = (kernel - 1) * dilation
        self.conv1 = parametrizations.weight_norm(nn.Conv1d(i, o, kernel, padding=pad, dilation=dilation))
        self.conv2 = parametrizations.weight_norm(nn.Conv1d(o, o, kernel, padding=pad, dilation=dilation))
        self.down = nn.Conv1d(i, o, 1) if i != o else None
        self.drop, self.pad, self.relu = nn.Dropout(drop), pad, nn.ReLU()

    def forward(self, x):
        y = self.drop(self.relu(self.conv1(x)[:, :, : -self.pad].contiguous()))
        y = self.drop(self.relu(self.conv2(y)[:, :, : -self.pad].contiguous()))
        return self.relu(y + (x if self.down is None else self.down(x)))


class Tcn(nn.Module):
    def __init__(self, v=2000, d=96, channels=(128, 128, 160)):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        sizes = [d, *channels]
        self.net = nn.Sequential(*(TemporalBlock(i, o, 2**k) for k, (i, o) in enumerate(zip(sizes, sizes[1:]))))
        self.head = nn.Linear(channels[-1], v)

    def forward(self, x):
        return self.head(self.net(self.embed(x).transpose(1, 2)).transpose(1, 2))


@case("tcn", ["TemporalBlock"], precisions=["float32"], recompute=True)
class _(Lm):
    make = Tcn


class Seq2Seq(nn.Module):
    """Packed sequences into an encoder of two directions; a decoder that attends step by step."""

    def __init__(self, v=1500, d=96):
        super().__init__()
        self.embed, self.target = nn.Embedding(v, d, padding_idx=0), nn.Embedding(v, d, padding_idx=0)
        self.encoder = nn.LSTM(d, d, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
        self.cell, self.query, self.out = nn.LSTMCell(3 * d, d), nn.Linear(d, 2 * d), nn.Linear(3 * d, v)

    def forward(self, x, lengths, y):
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        packed, _ = self.encoder(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
        hidden = cell = memory.new_zeros(x.shape[0], self.cell.hidden_size)
        context, rows = memory.mean(1), []
        words = self.target(y)
        for t in range(y.shape[1] - 1):
            hidden, cell = self.cell(torch.cat([words[:, t], context], -1), (hidden, cell))
            score = torch.bmm(memory, self.query(hidden).unsqueeze(2)).squeeze(2).masked_fill(x == 0, -1e4)
            context = torch.bmm(score.softmax(-1).unsqueeze(1), memory).squeeze(1)
            rows.append(self.out(torch.cat([hidden, context], -1)))
        return torch.stack(rows, 1)


@case("packed_seq2seq", ["LSTM"], precisions=["float32"])
class _:
    make = Seq2Seq
    batch = staticmethod(
        lambda device: (ids(1500, 8, 32, device=device), [32, 30, 30, 24, 20, 11, 11, 7], ids(1500, 8, 24, device=device))
    )

    @staticmethod
    def forward(model, x, lengths, y):
        return token_loss(model(x, lengths, y), y[:, 1:])


# ------------------------------------------------------------------------------------------------------------ attention


def relative_bucket(p, buckets=32, longest=128):
    out = (p > 0).to(torch.long) * (buckets // 2)
    p, half = torch.abs(p), buckets // 4
    large = half + (torch.log(p.float() / half) / math.log(longest / half) * (buckets // 2 - half)).to(torch.long)
    return out + torch.where(p < half, p, torch.min(large, torch.full_like(large, buckets // 2 - 1)))


class T5Norm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            x = x.to(self.weight.dtype)
        return self.weight * x


class T5Layer(nn.Module):
    """The bias of the first layer goes through all of them, beside the hidden states."""

    def __init__(self, d, heads=4, first=False):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = T5Norm(d), T5Norm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.wi0, self.wi1, self.wo = nn.Linear(d, 2 * d, bias=False), nn.Linear(d, 2 * d, bias=False), nn.Linear(2 * d, d, bias=False)
        self.drop = nn.Dropout(0.1)
        self.bias = nn.Embedding(32, heads) if first else None

    def forward(self, x, bias=None):
        b, t, d = x.shape
        y = self.norm1(x)
        q, k, v = (f(y).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = torch.matmul(q, k.transpose(3, 2))
        if bias is None:
            place = torch.arange(t, dtype=torch.long, device=x.device)
            bias = self.bias(relative_bucket(place[None] - place[:, None])).permute([2, 0, 1]).unsqueeze(0)
        scores += bias
        weights = F.dropout(F.softmax(scores.float(), dim=-1).type_as(scores), p=0.1, training=self.training)
        x = x + self.drop(self.o(torch.matmul(weights, v).transpose(1, 2).contiguous().view(b, -1, d)))
        y = self.norm2(x)
        y = self.drop(F.gelu(self.wi0(y), approximate="tanh") * self.wi1(y))
        return x + self.drop(self.wo(y)), bias


class T5(nn.Module):
    def __init__(self, v=2000, d=128, layers=3):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.layers = nn.ModuleList(T5Layer(d, first=i == 0) for i in range(layers))
        self.norm, self.head = T5Norm(d), nn.Linear(d, v, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        h, bias = F.dropout(self.embed(x), 0.1, self.training), None
        for layer in self.layers:
            h, bias = layer(h, bias)
        return self.head(self.norm(h) * h.shape[-1] ** -0.5)


@case("t5_bias", ["T5Layer"], precisions=BOTH, recompute=True)
class _(Lm):
    make = T5


class BloomGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0]
        t = torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))
        return grad * (0.5 * x * ((1 - t * t) * (0.79788456 + 0.1070322243 * x * x)) + 0.5 * (1 + t))


class BloomBlock(nn.Module):
    def __init__(self, d, heads=8):
        super().__init__()
        self.heads, self.hd = heads, d // heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.dense, self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x, alibi, mask):
        b, t, d = x.shape
        y = self.ln1(x)
        fused = self.qkv(y).view(b, t, self.heads, 3, self.hd)
        q, k, v = fused[..., 0, :].transpose(1, 2), fused[..., 1, :].transpose(1, 2), fused[..., 2, :].transpose(1, 2)
        q, v = q.reshape(b * self.heads, t, self.hd), v.reshape(b * self.heads, t, self.hd)
        k = k.permute(0, 1, 3, 2).reshape(b * self.heads, self.hd, t)
        scores = alibi.baddbmm(batch1=q, batch2=k, beta=1.0, alpha=self.hd**-0.5).view(b, self.heads, t, t)
        weights = torch.masked_fill(scores.to(torch.float), mask, torch.finfo(scores.dtype).min)
        weights = F.dropout(F.softmax(weights, dim=-1, dtype=torch.float32).to(x.dtype), 0.1, self.training)
        out = torch.bmm(weights.view(b * self.heads, t, t), v).view(b, self.heads, t, self.hd).permute(0, 2, 1, 3).reshape(b, t, d)
        x = x + F.dropout(self.dense(out), p=0.1, training=self.training)
        return x + F.dropout(self.down(BloomGelu.apply(self.up(self.ln2(x)))), p=0.1, training=self.training)


class Bloom(nn.Module):
    def __init__(self, v=2000, d=128, layers=3, heads=8):
        super().__init__()
        self.embed, self.embed_norm = nn.Embedding(v, d), nn.LayerNorm(d)
        self.layers = nn.ModuleList(BloomBlock(d, heads) for _ in range(layers))
        self.norm, self.head, self.heads = nn.LayerNorm(d), nn.Linear(d, v, bias=False), heads

    def forward(self, x, attention_mask):
        b, t = x.shape
        slopes = torch.pow(torch.tensor(2 ** (-8 / self.heads), device=x.device), torch.arange(1, 1 + self.heads, device=x.device))
        place = ((attention_mask.cumsum(dim=-1) - 1) * attention_mask)[:, None, :]
        h = self.embed_norm(self.embed(x))
        alibi = (slopes[..., None] * place).reshape(b * self.heads, 1, t).to(h.dtype)
        causal = torch.triu(torch.ones(t, t, dtype=torch.bool, device=x.device), 1)
        mask = causal[None, None] | ~attention_mask[:, None, None].bool()
        for layer in self.layers:
            h = layer(h, alibi, mask)
        return self.head(self.norm(h))


@case("bloom_alibi", ["BloomBlock"], precisions=BOTH, recompute=True)
class _:
    make = Bloom
    batch = staticmethod(
        lambda device: (ids(2000, 8, 96, device=device), torch.ones(8, 96, dtype=torch.long, device=device), ids(2000, 8, 96, device=device))
    )

    @staticmethod
    def forward(model, x, mask, y):
        logits = model(x, mask)
        shift, labels = logits[..., :-1, :].contiguous(), y[..., 1:].contiguous()
        return F.cross_entropy(shift.view(-1, 2000), labels.view(-1), ignore_index=-100)


class SpeedBlock(nn.Module):
    """A speedrun's GPT: weightless norms, squared ReLU, value embeddings, learned mixes, heads in groups, half rotated."""

    def __init__(self, d, heads=4):
        super().__init__()
        self.heads, self.hd = heads, d // heads
        self.q, self.kv, self.o = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)
        self.mix, self.lambdas = nn.Parameter(torch.tensor([0.5, 0.5])), nn.Parameter(torch.tensor([1.0, 0.0]))

    @staticmethod
    def turn(x, cos, sin):
        r, rest = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        a, b = r.to(torch.float32).chunk(2, -1)
        return torch.cat((torch.cat((a * cos + b * sin, b * cos - a * sin), -1).type_as(x), rest), -1)

    def forward(self, x, x0, ve, cos, sin):
        x = self.lambdas[0] * x + self.lambdas[1] * x0
        b, t, d = x.shape
        y = F.rms_norm(x, (d,))
        q = self.q(y).view(b, t, self.heads, self.hd)
        k, v = self.kv(y).view(b, t, 2, self.heads // 2, self.hd).unbind(2)
        v = self.mix[0] * v + self.mix[1] * ve.view_as(v)
        q, k = F.rms_norm(q, (self.hd,)), F.rms_norm(k, (self.hd,))
        q, k = self.turn(q, cos, sin), self.turn(k, cos, sin)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, scale=0.12, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).contiguous().view_as(x))
        return x + self.down(F.relu(self.up(F.rms_norm(x, (d,)))).square())


class SpeedGpt(nn.Module):
    def __init__(self, v=2000, d=128, layers=4):
        super().__init__()
        self.embed, self.values = nn.Embedding(v, d), nn.ModuleList(nn.Embedding(v, d // 2) for _ in range(2))
        self.blocks = nn.ModuleList(SpeedBlock(d) for _ in range(layers))
        self.skips, self.head = nn.Parameter(torch.ones(layers // 2)), nn.Linear(d, v, bias=False)
        angle = torch.outer(torch.arange(96).float(), (1 / 1024) ** torch.linspace(0, 1, 8))
        self.register_buffer("cos", angle.cos()[:, None], persistent=False)
        self.register_buffer("sin", angle.sin()[:, None], persistent=False)

    def forward(self, idx, target):
        x = x0 = F.rms_norm(self.embed(idx), (self.embed.embedding_dim,))
        ve = [value(idx) for value in self.values]
        stack, n = [], len(self.blocks) // 2
        for i in range(n):
            x = self.blocks[i](x, x0, ve[i], self.cos, self.sin)
            stack.append(x)
        for i in range(n):
            x = x + self.skips[i] * stack.pop()
            x = self.blocks[n + i](x, x0, ve[i], self.cos, self.sin)
        logits = self.head(F.rms_norm(x, (x.size(-1),))).float()
        logits = 15 * logits * torch.rsqrt(logits.square() + 225)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), target.view(-1))


@case("speedrun_gpt", ["SpeedBlock"], precisions=BOTH, recompute=True)
class _:
    make = SpeedGpt
    batch = Lm.batch

    @staticmethod
    def forward(model, x, y):
        return model(x, y)


class FlashTwo(torch.autograd.Function):
    """Attention by tiles in plain PyTorch, with its own backward."""

    @staticmethod
    def forward(ctx, q, k, v, tile):
        o, l = torch.zeros_like(q), torch.zeros(q.shape[:-1], device=q.device)
        m = torch.full(q.shape[:-1], -torch.inf, device=q.device)
        scale = q.shape[-1] ** -0.5
        for kc, vc in zip(k.split(tile, 2), v.split(tile, 2)):
            s = torch.einsum("bhid,bhjd->bhij", q, kc).float() * scale
            new = torch.maximum(m, s.amax(-1))
            p, fade = torch.exp(s - new[..., None]), torch.exp(m - new)
            l = l * fade + p.sum(-1)
            o = o * fade[..., None].to(o.dtype) + torch.einsum("bhij,bhjd->bhid", p.to(v.dtype), vc)
            m = new
        o = o / l[..., None].to(o.dtype)
        ctx.save_for_backward(q, k, v, o, m + l.log())
        ctx.tile = tile
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        scale, delta = q.shape[-1] ** -0.5, (o * do).sum(-1, keepdim=True).float()
        for i in range(0, k.shape[2], ctx.tile):
            j = slice(i, i + ctx.tile)
            p = torch.exp(torch.einsum("bhid,bhjd->bhij", q, k[:, :, j]).float() * scale - lse[..., None])
            dv[:, :, j] = torch.einsum("bhij,bhid->bhjd", p.to(do.dtype), do)
            ds = (p * (torch.einsum("bhid,bhjd->bhij", do, v[:, :, j]).float() - delta) * scale).to(q.dtype)
            dq += torch.einsum("bhij,bhjd->bhid", ds, k[:, :, j])
            dk[:, :, j] = torch.einsum("bhij,bhid->bhjd", ds, q)
        return dq, dk, dv, None


class TiledBlock(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.heads, self.ln1, self.ln2 = heads, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.Mish(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).reshape(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.o(FlashTwo.apply(q, k, v, 32).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


@case("tiled_attention", ["TiledBlock"], precisions=BOTH, recompute=True)
class _(Lm):
    make = staticmethod(lambda: Tokens(TiledBlock))


class Nested(nn.Module):
    """Checkpoints in checkpoints: half a block within a block."""

    def __init__(self, d, heads=4):
        super().__init__()
        self.heads, self.ln1, self.ln2 = heads, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def mlp(self, x):
        return self.down(F.gelu(self.up(self.ln2(x))))

    def attend(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))

    def body(self, x):
        x = x + self.attend(x)
        return x + checkpoint(self.mlp, x, use_reentrant=False)

    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=False)


@case("nested_checkpoints", ["Nested"], precisions=BOTH)
class _(Lm):
    make = staticmethod(lambda: Tokens(Nested))


class XlBlock(nn.Module):
    """Transformer-XL: a memory before the words, the relative shift by padding and viewing."""

    def __init__(self, d, heads=4):
        super().__init__()
        self.heads, self.hd = heads, d // heads
        self.qkv, self.r, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(inplace=True), nn.Dropout(0.1), nn.Linear(4 * d, d), nn.Dropout(0.1))

    @staticmethod
    def shift(x):
        zero = torch.zeros((x.size(0), 1) + x.size()[2:], device=x.device, dtype=x.dtype)
        padded = torch.cat([zero, x], dim=1).view((x.size(1) + 1, x.size(0)) + x.size()[2:])
        return padded[1:].view_as(x)

    def forward(self, w, r, u, v, mem, mask):
        q_len, b = w.shape[:2]
        cat = torch.cat([mem, w], 0)
        q, k, val = torch.chunk(self.qkv(cat), 3, dim=-1)
        q, k_len = q[-q_len:].view(q_len, b, self.heads, self.hd), k.size(0)
        k, val = k.view(k_len, b, self.heads, self.hd), val.view(k_len, b, self.heads, self.hd)
        rk = self.r(r).view(r.size(0), self.heads, self.hd)
        ac = torch.einsum("ibnd,jbnd->ijbn", q + u, k)
        bd = self.shift(torch.einsum("ibnd,jnd->ijbn", q + v, rk))
        score = ac + bd
        score.mul_(self.hd**-0.5)
        score = score.float().masked_fill(mask[:, :, None, None], -float("inf")).type_as(score)
        prob = F.dropout(F.softmax(score, dim=1), 0.1, self.training)
        out = torch.einsum("ijbn,jbnd->ibnd", prob, val)
        w = self.norm1(w + self.o(out.contiguous().view(q_len, b, -1)))
        return self.norm2(w + self.ff(w))


class TransformerXl(nn.Module):
    def __init__(self, v=2000, d=128, layers=3, heads=4):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.layers = nn.ModuleList(XlBlock(d, heads) for _ in range(layers))
        self.u, self.v = nn.Parameter(torch.zeros(heads, d // heads)), nn.Parameter(torch.zeros(heads, d // heads))
        self.head = nn.Linear(d, v)
        self.register_buffer("inv_freq", 1 / (10000 ** (torch.arange(0.0, d, 2.0) / d)))

    def forward(self, x, mems):
        h = self.embed(x)
        q_len, m_len = x.size(0), mems.size(1)
        mask = torch.triu(h.new_ones(q_len, m_len + q_len), diagonal=1 + m_len).bool()
        place = torch.arange(m_len + q_len - 1, -1, -1.0, device=x.device, dtype=h.dtype)
        angle = torch.outer(place, self.inv_freq.to(h.dtype))
        r = torch.cat([angle.sin(), angle.cos()], dim=-1)
        hiddens = [h]
        for i, layer in enumerate(self.layers):
            h = layer(h, r, self.u, self.v, mems[i].to(h.dtype), mask)
            hiddens.append(h)
        with torch.no_grad():
            new = torch.stack([torch.cat([mems[i].to(h.dtype), hiddens[i]], 0)[-m_len:].detach() for i in range(len(self.layers))])
        return self.head(h), new


@case("transformer_xl", ["XlBlock"], precisions=BOTH)
class _:
    make = TransformerXl
    batch = staticmethod(
        lambda device: (ids(2000, 48, 8, device=device), torch.zeros(3, 48, 8, 128, device=device), ids(2000, 48, 8, device=device))
    )

    @staticmethod
    def forward(model, x, mems, y):
        logits, new = model(x, mems)
        return token_loss(logits, y), new


class WindowV2(nn.Module):
    """Swin 2: cosine attention with a clamped scale, a bias by a small network over coordinates, norms behind."""

    def __init__(self, d, heads=4, window=8, shift=0):
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.logit_scale = nn.Parameter(torch.zeros(heads, 1, 1))
        self.cpb = nn.Sequential(nn.Linear(2, 256), nn.ReLU(inplace=True), nn.Linear(256, heads, bias=False))
        self.qkv, self.q_bias, self.v_bias = nn.Linear(d, 3 * d, bias=False), nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d))
        self.proj, self.norm1, self.norm2 = nn.Linear(d, d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        place = torch.arange(1 - window, window, dtype=torch.float32)
        self.register_buffer("table", torch.stack(torch.meshgrid(place, place, indexing="ij"), -1).unsqueeze(0), persistent=False)
        self.register_buffer("index", torch.zeros(window**2, window**2, dtype=torch.long))

    def attend(self, x, mask):
        b, n, c = x.shape
        bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias, requires_grad=False), self.v_bias))
        q, k, v = F.linear(x, self.qkv.weight, bias).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * torch.clamp(self.logit_scale, max=math.log(100.0)).exp()
        table = self.cpb(self.table.to(self.cpb[0].weight.dtype)).view(-1, self.heads)
        bias = table[self.index.view(-1)].view(n, n, -1).permute(2, 0, 1).contiguous()
        attn = attn + 16 * torch.sigmoid(bias).unsqueeze(0)
        if mask is not None:
            attn = (attn.view(b // mask.shape[0], mask.shape[0], self.heads, n, n) + mask.unsqueeze(1).unsqueeze(0)).view(-1, self.heads, n, n)
        x = (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, c)
        return self.proj(x)

    def forward(self, x):
        b, h, w, c = x.shape
        s, m = self.window, None
        y = x
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
            m = y.new_zeros(h // s * (w // s), s * s, s * s)
        y = y.view(b, h // s, s, w // s, s, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, s * s, c)
        y = self.attend(y, m).view(b, h // s, w // s, s, s, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(b, h, w, c)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + self.norm1(y)
        return x + self.norm2(self.mlp(x))


class SwinV2(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.patch, self.norm = nn.Conv2d(3, d, 4, 4), nn.LayerNorm(d)
        self.stage1 = nn.ModuleList([WindowV2(d), WindowV2(d, shift=4)])
        self.reduce, self.reduce_norm = nn.Linear(4 * d, 2 * d, bias=False), nn.LayerNorm(2 * d)
        self.stage2 = nn.ModuleList([WindowV2(2 * d), WindowV2(2 * d)])
        self.head = nn.Linear(2 * d, 1000)

    def forward(self, x):
        x = self.norm(self.patch(x).permute(0, 2, 3, 1))
        for block in self.stage1:
            x = block(x)
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        x = self.reduce_norm(self.reduce(x))
        for block in self.stage2:
            x = block(x)
        return self.head(x.mean((1, 2)))


@case("swin_v2", ["WindowV2"], precisions=BOTH, recompute=True)
class _:
    make = SwinV2
    batch = staticmethod(lambda device: (torch.randn(8, 3, 64, 64, device=device), ids(1000, 8, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.cross_entropy(model(x), y)


# ------------------------------------------------------------------------------------------------------------- experts


class SoftMoe(nn.Module):
    def __init__(self, d, experts=4, slots=16):
        super().__init__()
        self.norm, self.phi, self.scale = nn.LayerNorm(d), nn.Parameter(torch.zeros(d, experts, slots)), nn.Parameter(torch.ones(1))
        self.w1, self.b1 = nn.Parameter(torch.zeros(experts, d, 4 * d)), nn.Parameter(torch.zeros(experts, 1, 4 * d))
        self.w2, self.b2 = nn.Parameter(torch.zeros(experts, 4 * d, d)), nn.Parameter(torch.zeros(experts, 1, d))

    def forward(self, x):
        y = self.norm(x)
        phi = F.normalize(self.phi, dim=0) * self.scale
        logits = torch.einsum("bmd,dnp->bmnp", F.normalize(y, dim=2), phi)
        dispatch = logits.softmax(dim=1)
        combine = logits.flatten(2).softmax(dim=-1).view_as(logits)
        xs = torch.einsum("bmd,bmnp->nbpd", y, dispatch)
        n, b, p, d = xs.shape
        h = F.gelu(torch.bmm(xs.reshape(n, b * p, d), self.w1) + self.b1)
        ys = (torch.bmm(h, self.w2) + self.b2).view(n, b, p, d)
        return x + torch.einsum("nbpd,bmnp->bmd", ys, combine)


@case("soft_moe", ["SoftMoe"], precisions=BOTH, recompute=True)
class _(Lm):
    make = staticmethod(lambda: Tokens(SoftMoe))


class ExpertChoice(nn.Module):
    """Experts choose tokens: top k over the tokens, gathered, scattered back with index_add."""

    def __init__(self, d, experts=8, capacity=2):
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(d), nn.Linear(d, experts, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d)) for _ in range(experts))
        self.capacity = capacity

    def forward(self, x):
        b, t, d = x.shape
        y = self.norm(x).reshape(-1, d)
        score = self.gate(y).softmax(-1, dtype=torch.float32)
        k = y.shape[0] * self.capacity // len(self.experts)
        weight, chosen = torch.topk(score.t(), k, dim=-1)
        out = torch.zeros_like(y)
        for i, expert in enumerate(self.experts):
            part = expert(y[chosen[i]]) * weight[i].unsqueeze(-1).to(y.dtype)
            out.index_add_(0, chosen[i], part)
        return x + out.view(b, t, d)


@case("expert_choice", ["ExpertChoice"], precisions=BOTH, recompute=True)
class _(Lm):
    make = staticmethod(lambda: Tokens(ExpertChoice))


# ----------------------------------------------------------------------------------------------- sound, graphs, columns


class WavLayer(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.attn = nn.MultiheadAttention(d, heads, dropout=0.1)
        self.norm1, self.norm2, self.fc1, self.fc2 = nn.LayerNorm(d), nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        x = self.norm1(x + F.dropout(self.attn(x, x, x, need_weights=False)[0], 0.1, self.training))
        return self.norm2(x + F.dropout(self.fc2(F.dropout(F.gelu(self.fc1(x)), 0.1, self.training)), 0.1, self.training))


class Wav2Vec(nn.Module):
    """Waves through convolutions, masked latents, Gumbel codes, a contrastive loss with negatives."""

    def __init__(self, d=128, c=96, codes=64, negatives=10):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(1, c, 10, 5, bias=False), nn.Conv1d(c, c, 3, 2, bias=False), nn.Conv1d(c, c, 3, 2, bias=False)])
        self.group = nn.GroupNorm(c, c)
        self.norm, self.project, self.mask = nn.LayerNorm(c), nn.Linear(c, d), nn.Parameter(torch.zeros(d))
        self.place = parametrizations.weight_norm(nn.Conv1d(d, d, 16, padding=8, groups=8), dim=2)
        self.layers = nn.ModuleList(WavLayer(d) for _ in range(3))
        self.code_logits, self.book = nn.Linear(c, 2 * codes), nn.Parameter(torch.zeros(1, 2 * codes, d // 2))
        self.quantized, self.final, self.negatives, self.codes = nn.Linear(d, d), nn.Linear(d, d), negatives, codes

    def forward(self, wave, masked):
        x = wave.unsqueeze(1)
        for i, conv in enumerate(self.convs):
            x = conv(x)
            x = F.gelu(self.group(x) if i == 0 else x)
        z = self.norm(x.transpose(1, 2))
        b, t, _ = z.shape
        logits = self.code_logits(z).view(b * t * 2, -1)
        hard = F.gumbel_softmax(logits.float(), tau=2.0, hard=True).type_as(logits).view(b * t, -1)
        average = torch.softmax(logits.view(b * t, 2, -1).float(), dim=-1).mean(dim=0)
        q = (hard.unsqueeze(-1) * self.book).view(b * t, 2, self.codes, -1).sum(-2).view(b, t, -1)
        h = self.project(z)
        h = torch.where(masked.unsqueeze(-1), self.mask.to(h.dtype), h)
        h = h + F.gelu(self.place(h.transpose(1, 2))[:, :, :-1]).transpose(1, 2)
        h = h.transpose(0, 1)
        for layer in self.layers:
            h = layer(h)
        h, q = self.final(h.transpose(0, 1)), self.quantized(q)
        picks = torch.randint(0, t - 1, (b, t * self.negatives), device=h.device)
        picks = picks + (picks >= torch.arange(t, device=h.device).repeat_interleave(self.negatives)).long()
        picks = picks + torch.arange(b, device=h.device).unsqueeze(1) * t
        negatives = q.reshape(-1, q.shape[-1])[picks.view(-1)].view(b, t, self.negatives, -1).permute(2, 0, 1, 3)
        targets = torch.cat([q.unsqueeze(0), negatives], 0)
        score = torch.cosine_similarity(h.float(), targets.float(), dim=-1).type_as(h) / 0.1
        perplexity = torch.exp(-torch.sum(average * torch.log(average + 1e-7), dim=-1)).sum()
        return score.transpose(0, 2).reshape(-1, score.size(0)), (2 * self.codes - perplexity) / (2 * self.codes)


@case("wav2vec", ["WavLayer"], precisions=["float32"], recompute=True)
class _:
    make = Wav2Vec
    batch = staticmethod(lambda device: (torch.randn(4, 4000, device=device), torch.zeros(4, 199, dtype=torch.bool, device=device)))

    @staticmethod
    def forward(model, wave, masked):
        logits, diversity = model(wave, masked)
        target = torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device)
        return F.cross_entropy(logits.float(), target, reduction="sum") + 0.1 * diversity * target.numel()


class Pna(nn.Module):
    """Messages along edges, gathered four ways with scatters; degrees; a gate."""

    def __init__(self, d):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(3 * d, d), nn.ReLU())
        self.update, self.norm, self.gate = nn.Linear(9 * d, d), nn.BatchNorm1d(d), nn.GRUCell(d, d)

    def forward(self, h, edges, e):
        n, d = h.shape
        src, dst = edges
        m = self.message(torch.cat([h[src], h.index_select(0, dst), e], dim=-1))
        index = dst.unsqueeze(-1).expand_as(m)
        degree = torch.zeros(n, device=h.device, dtype=m.dtype).scatter_add_(0, dst, torch.ones_like(dst, dtype=m.dtype)).clamp_(min=1)
        total = torch.zeros(n, d, device=h.device, dtype=m.dtype).scatter_add_(0, index, m)
        mean = total / degree.unsqueeze(-1)
        square = m.new_zeros(n, d).index_add_(0, dst, m * m) / degree[:, None]
        std = torch.sqrt(F.relu(square - mean * mean) + 1e-5)
        top = m.new_zeros(n, d).scatter_reduce(0, index, m, reduce="amax", include_self=False)
        low = m.new_zeros(n, d).scatter_reduce(0, index, m, reduce="amin", include_self=False)
        parts = torch.cat([mean, std, top, low], dim=-1)
        amplify = torch.log(degree + 1).unsqueeze(-1)
        out = self.update(torch.cat([h, parts, parts * amplify], dim=-1))
        return self.gate(F.relu(self.norm(out)), h)


class PnaNet(nn.Module):
    def __init__(self, d=96, layers=3, classes=40):
        super().__init__()
        self.node, self.edge = nn.Linear(32, d), nn.Linear(8, d)
        self.layers = nn.ModuleList(Pna(d) for _ in range(layers))
        self.readout = nn.Sequential(nn.Linear(2 * d, d), nn.ELU(), nn.Linear(d, classes))

    def forward(self, x, edges, attributes, graph):
        h, e = self.node(x), self.edge(attributes)
        for layer in self.layers:
            h = layer(h, edges, e)
        pooled = torch.zeros(16, h.shape[1], device=h.device, dtype=h.dtype)
        count = torch.zeros(16, 1, device=h.device, dtype=h.dtype).index_add_(0, graph, torch.ones_like(h[:, :1]))
        total = pooled.index_add(0, graph, h)
        return self.readout(torch.cat([total, total / count.clamp(min=1)], -1))


@case("pna_graph", ["Pna"], precisions=["float32"], recompute=True)
class _:
    make = PnaNet
    batch = staticmethod(
        lambda device: (
            torch.randn(2000, 32, device=device), torch.randint(0, 2000, (2, 8000), device=device), torch.randn(8000, 8, device=device),
            torch.randint(0, 16, (2000,), device=device), ids(40, 16, device=device),
        )
    )  # fmt: skip

    @staticmethod
    def forward(model, x, edges, attributes, graph, y):
        return F.nll_loss(F.log_softmax(model(x, edges, attributes, graph), dim=-1), y)


class Egnn(nn.Module):
    """Equivariant: coordinates move with the features."""

    def __init__(self, d):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * d + 1, d), nn.SiLU(), nn.Linear(d, d), nn.SiLU())
        self.node = nn.Sequential(nn.Linear(2 * d, d), nn.SiLU(), nn.Linear(d, d))
        self.coord = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 1, bias=False), nn.Tanh())
        self.attend = nn.Sequential(nn.Linear(d, 1), nn.Sigmoid())

    def forward(self, h, x, edges):
        row, col = edges
        gap = x[row] - x[col]
        radial = torch.sum(gap**2, 1).unsqueeze(1)
        gap = gap / (torch.sqrt(radial).detach() + 1)
        m = self.edge(torch.cat([h[row], h[col], radial], dim=1))
        m = m * self.attend(m)
        move = gap * self.coord(m)
        total = move.new_full((x.size(0), 3), 0).scatter_add_(0, row.unsqueeze(-1).expand(-1, 3), move)
        count = move.new_full((x.size(0), 3), 0).scatter_add_(0, row.unsqueeze(-1).expand(-1, 3), torch.ones_like(move))
        x = x + total / count.clamp(min=1)
        agg = m.new_full((h.size(0), m.size(1)), 0).scatter_add_(0, row.unsqueeze(-1).expand(-1, m.size(1)), m)
        return h + self.node(torch.cat([h, agg], dim=1)), x


class EgnnNet(nn.Module):
    def __init__(self, d=96, layers=4):
        super().__init__()
        self.embed, self.layers = nn.Embedding(20, d), nn.ModuleList(Egnn(d) for _ in range(layers))
        self.energy = nn.Sequential(nn.Linear(d, d), nn.Softplus(), nn.Linear(d, 1))

    def forward(self, kinds, x, edges):
        h = self.embed(kinds)
        for layer in self.layers:
            h, x = layer(h, x, edges)
        return self.energy(h).view(16, -1).sum(1), x


@case("egnn", ["Egnn"], precisions=["float32"], recompute=True)
class _:
    make = EgnnNet
    batch = staticmethod(
        lambda device: (
            ids(20, 800, device=device), torch.randn(800, 3, device=device), torch.randint(0, 800, (2, 6000), device=device),
            torch.randn(16, device=device), torch.randn(800, 3, device=device),
        )
    )  # fmt: skip

    @staticmethod
    def forward(model, kinds, x, edges, energy, target):
        e, moved = model(kinds, x, edges)
        return F.smooth_l1_loss(e, energy) + F.huber_loss(moved, target, delta=0.5)


def sparsemax(x):
    ordered, _ = torch.sort(x, dim=-1, descending=True)
    total = ordered.cumsum(-1) - 1
    steps = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
    support = (steps * ordered > total).sum(dim=-1, keepdim=True)
    tau = total.gather(-1, support - 1) / support.to(x.dtype)
    return torch.clamp(x - tau, min=0)


class TabStep(nn.Module):
    def __init__(self, columns, d):
        super().__init__()
        self.fc = nn.ModuleList([nn.Linear(columns, 2 * d), nn.Linear(d, 2 * d)])
        self.bn = nn.ModuleList([nn.BatchNorm1d(2 * d, momentum=0.02), nn.BatchNorm1d(2 * d, momentum=0.02)])
        self.attend, self.attend_bn = nn.Linear(d // 2, columns, bias=False), nn.BatchNorm1d(columns)

    def ghost(self, bn, x):
        return torch.cat([bn(part) for part in x.chunk(4, 0)], dim=0)

    def forward(self, x, prior, a):
        mask = sparsemax(self.ghost(self.attend_bn, self.attend(a)) * prior)
        h = F.glu(self.ghost(self.bn[0], self.fc[0](mask * x)), dim=-1)
        h = (h + F.glu(self.ghost(self.bn[1], self.fc[1](h)), dim=-1)) * math.sqrt(0.5)
        return h, mask


class TabNet(nn.Module):
    def __init__(self, columns=200, d=256, steps=3):
        super().__init__()
        self.columns = nn.ModuleList(nn.Embedding(50, 8) for _ in range(5))
        n = columns + 40
        self.start, self.bn = nn.Linear(n, d // 2), nn.BatchNorm1d(n)
        self.steps, self.head, self.d = nn.ModuleList(TabStep(n, d) for _ in range(steps)), nn.Linear(d // 2, 10), d

    def forward(self, numbers, kinds):
        x = self.bn(torch.cat([numbers, *(e(kinds[:, i]) for i, e in enumerate(self.columns))], dim=1))
        a, prior, out, entropy = self.start(x), torch.ones_like(x), 0, 0
        for step in self.steps:
            h, mask = step(x, prior, a)
            entropy += torch.mean(torch.sum(mask * torch.log(mask + 1e-15), dim=1))
            prior = torch.mul(1.3 - mask, prior)
            d, a = h.split(self.d // 2, dim=1)
            out = out + F.relu(d)
        return self.head(out), entropy


@case("tabnet", ["TabStep"], precisions=["float32"])
class _:
    make = TabNet
    batch = staticmethod(
        lambda device: (torch.randn(1024, 200, device=device), ids(50, 1024, 5, device=device), ids(10, 1024, device=device))
    )

    @staticmethod
    def forward(model, numbers, kinds, y):
        logits, entropy = model(numbers, kinds)
        return F.cross_entropy(logits, y, weight=torch.ones(10, device=y.device)) - 1e-3 * entropy


class HashGrid(nn.Module):
    """Instant-NGP: corners hashed with integer products and xor, interpolated by their weights."""

    def __init__(self, levels=6, size=2**14, features=4):
        super().__init__()
        self.tables = nn.ParameterList(nn.Parameter(torch.zeros(size, features)) for _ in range(levels))
        self.size = size
        corners = torch.tensor([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
        self.register_buffer("corners", corners, persistent=False)

    def forward(self, x):
        rows = []
        for level, table in enumerate(self.tables):
            scaled = x * (16 * 1.5**level)
            low = torch.floor(scaled).detach()
            frac = scaled - low
            c = low.long()[:, None] + self.corners
            h = (c[..., 0] * 1) ^ (c[..., 1] * 2654435761) ^ (c[..., 2] * 805459861)
            values = table[h % self.size]
            w = torch.where(self.corners.bool(), frac[:, None], 1 - frac[:, None]).prod(-1, keepdim=True)
            rows.append((values * w).sum(1))
        return torch.cat(rows, -1)


class Radiance(nn.Module):
    def __init__(self):
        super().__init__()
        self.grid = HashGrid()
        self.density = nn.Sequential(nn.Linear(24, 64, bias=False), nn.ReLU(), nn.Linear(64, 16, bias=False))
        self.colour = nn.Sequential(nn.Linear(31, 64, bias=False), nn.ReLU(), nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 3, bias=False))

    def forward(self, origin, direction, samples=32):
        t = torch.linspace(0.1, 4, samples, device=origin.device).expand(origin.shape[0], samples)
        t = t + torch.rand_like(t) * (4 / samples)
        points = origin[:, None] + direction[:, None] * t[..., None]
        h = self.density(self.grid(points.reshape(-1, 3)))
        sigma = torch.exp(h[:, 0].view_as(t))
        turned = torch.cat([torch.sin(2**i * direction) for i in range(5)], -1)
        d = turned[:, None].expand(-1, samples, -1).reshape(-1, 15)
        rgb = torch.sigmoid(self.colour(torch.cat([h, d], -1))).view(*t.shape, 3)
        delta = torch.cat([t[:, 1:] - t[:, :-1], torch.full_like(t[:, :1], 1e10)], -1)
        alpha = 1 - torch.exp(-sigma * delta)
        weights = alpha * torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        return (weights[..., None] * rgb).sum(1), (weights * t).sum(1)


@case("hash_radiance", ["HashGrid"], precisions=["float32"])
class _:
    make = Radiance
    batch = staticmethod(
        lambda device: (torch.rand(512, 3, device=device), torch.randn(512, 3, device=device), torch.rand(512, 3, device=device))
    )

    @staticmethod
    def forward(model, origin, direction, colour):
        rgb, depth = model(origin, direction)
        return F.mse_loss(rgb, colour) + 1e-3 * depth.var()


class ArcFace(nn.Module):
    """A margin at the true class, written in place; triplets and a centre loss beside it."""

    def __init__(self, d=128, classes=4000):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 64, 3, 2, 1), nn.PReLU(64), nn.Conv2d(64, 96, 3, 2, 1), nn.PReLU(96), nn.MaxPool2d(2), nn.Flatten())
        self.embed, self.bn = nn.Linear(96 * 16, d), nn.BatchNorm1d(d)
        self.weight, self.centres = nn.Parameter(torch.zeros(classes, d)), nn.Embedding(classes, d)

    def forward(self, x, y):
        e = self.bn(self.embed(self.body(x)))
        cosine = F.linear(F.normalize(e), F.normalize(self.weight)).clamp(-1 + 1e-7, 1 - 1e-7)
        sine = torch.sqrt((1.0 - torch.pow(cosine, 2)).clamp(0, 1))
        phi = cosine * math.cos(0.5) - sine * math.sin(0.5)
        phi = torch.where(cosine > math.cos(math.pi - 0.5), phi, cosine - 0.24)
        one_hot = torch.zeros(cosine.size(), device=x.device)
        one_hot.scatter_(1, y.view(-1, 1).long(), 1)
        return (one_hot * phi + (1.0 - one_hot) * cosine) * 64.0, e, self.centres(y)


@case("arcface", ["Sequential"], precisions=["float32"])
class _:
    make = ArcFace
    batch = staticmethod(lambda device: (torch.randn(48, 3, 32, 32, device=device), ids(4000, 48, device=device)))

    @staticmethod
    def forward(model, x, y):
        logits, e, centres = model(x, y)
        a, p, n = e.chunk(3)
        triplet = F.triplet_margin_loss(a, p, n, margin=0.3)
        apart = F.cosine_embedding_loss(a, n, -torch.ones(16, device=x.device), margin=0.1)
        return F.cross_entropy(logits, y) + triplet + apart + 0.01 * F.pairwise_distance(e, centres).mean()
