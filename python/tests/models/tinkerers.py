"""Mechanisms that people build themselves: cells in loops, two networks against each other, scans, tables, several ways to hold and share parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from . import case, ids

BOTH = ["bfloat16", "float32"]


def token_loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


def tokens(v, b, n):
    return staticmethod(lambda device: (ids(v, b, n, device=device), ids(v, b, n, device=device)))


def on_tokens(model, x, y):
    return token_loss(model(x), y)


class Mlp(nn.Module):
    def __init__(self, d, f=None, act=F.gelu):
        super().__init__()
        self.norm, self.up, self.down, self.act = nn.LayerNorm(d), nn.Linear(d, f or 4 * d), nn.Linear(f or 4 * d, d), act

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


# ------------------------------------------------------------------------------------------------- cells in loops


class CellLayer(nn.Module):
    def __init__(self, d, kind):
        super().__init__()
        self.cell, self.norm, self.drop = kind(d, d), nn.LayerNorm(d), nn.Dropout(0.1)

    def forward(self, x):
        state, out = None, []
        for step in x.unbind(1):
            state = self.cell(step, state)
            out.append(state[0] if isinstance(state, tuple) else state)
        return x + self.drop(self.norm(torch.stack(out, 1)))


class Cells(nn.Module):
    def __init__(self, d=128, v=1000):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.layers = nn.ModuleList(CellLayer(d, kind) for kind in (nn.LSTMCell, nn.GRUCell, nn.RNNCell))
        self.head = nn.Linear(d, v)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@case("cell_layers", ["CellLayer"], precisions=BOTH)
class _:
    make = Cells
    batch = tokens(1000, 64, 24)
    forward = staticmethod(on_tokens)


class HandLstm(nn.Module):
    """LayerNorm-LSTM by hand, zoneout, a state written into a buffer of results."""

    def __init__(self, d):
        super().__init__()
        self.wx, self.wh = nn.Linear(d, 4 * d), nn.Linear(d, 4 * d, bias=False)
        self.nx, self.nh, self.nc = nn.LayerNorm(4 * d), nn.LayerNorm(4 * d), nn.LayerNorm(d)

    def forward(self, x):
        b, n, d = x.shape
        h = x.new_zeros(b, d)
        c = torch.zeros_like(h)
        out = torch.empty_like(x)
        gx = self.nx(self.wx(x))
        for t in range(n):
            i, f, o, g = (gx[:, t] + self.nh(self.wh(h))).chunk(4, 1)
            fresh = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * g.tanh()
            keep = torch.rand_like(fresh) < 0.1
            c = torch.where(keep, c, fresh)
            h = torch.sigmoid(o) * self.nc(c).tanh()
            out[:, t] = h
        return x + out


def hand_lstm(d=128, v=1000):
    return nn.Sequential(nn.Embedding(v, d), HandLstm(d), HandLstm(d), nn.Linear(d, v))


@case("hand_lstm", ["HandLstm"], precisions=BOTH)
class _:
    make = staticmethod(hand_lstm)
    batch = tokens(1000, 64, 20)
    forward = staticmethod(on_tokens)


# ------------------------------------------------------------------------------------- networks against each other


class UpBlock(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.conv, self.norm = nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)), inplace=True)


class DownBlock(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.conv = nn.Conv2d(a, b, 4, 2, 1)
        self.norm = nn.InstanceNorm2d(b, affine=True)

    def forward(self, x):
        return F.leaky_relu(self.norm(self.conv(x)), 0.2, inplace=True)


class Against(nn.Module):
    def __init__(self, z=64, c=64):
        super().__init__()
        self.start = nn.Linear(z, c * 16)
        self.up = nn.Sequential(UpBlock(c, c), UpBlock(c, c // 2), UpBlock(c // 2, c // 4))
        self.to_rgb = nn.Conv2d(c // 4, 3, 3, padding=1)
        self.down = nn.Sequential(nn.Conv2d(3, c // 4, 3, padding=1), DownBlock(c // 4, c // 2), DownBlock(c // 2, c), DownBlock(c, c))
        self.judge = nn.Linear(c, 1)

    def generated(self, z):
        return torch.tanh(self.to_rgb(self.up(self.start(z).view(z.shape[0], -1, 4, 4))))

    def judged(self, x):
        return self.judge(self.down(x).mean((2, 3)))[:, 0]

    def forward(self, z, real):
        fake = self.generated(z)
        d_loss = F.relu(1 - self.judged(real)).mean() + F.relu(1 + self.judged(fake.detach())).mean()
        g_loss = -self.judged(fake).mean()
        return d_loss + g_loss, {"fake": fake.detach(), "g": g_loss.detach()}


@case("against", ["UpBlock", "DownBlock"], precisions=["float32"], orig_params=True)
class _:
    make = Against
    batch = staticmethod(lambda device: (torch.randn(32, 64, device=device), torch.randn(32, 3, 32, 32, device=device)))
    forward = staticmethod(lambda model, z, x: model(z, x)[0])


# ---------------------------------------------------------------------------------------------------- diffusion


class TimeBlock(nn.Module):
    def __init__(self, c, t):
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(8, c), nn.GroupNorm(8, c)
        self.c1, self.c2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.time, self.drop = nn.Linear(t, 2 * c), nn.Dropout2d(0.1)

    def forward(self, x, t):
        scale, shift = self.time(F.silu(t))[:, :, None, None].chunk(2, dim=1)
        h = self.n2(self.c1(F.silu(self.n1(x)))) * (scale + 1) + shift
        return x + self.c2(self.drop(F.silu(h)))


class FreeGuidance(nn.Module):
    """Conditions dropped for whole samples, running statistics of the loss by time, weights by signal and noise."""

    def __init__(self, c=64, t=128):
        super().__init__()
        self.inp, self.out = nn.Conv2d(3, c, 3, padding=1), nn.Conv2d(c, 3, 3, padding=1)
        self.classes, self.null = nn.Embedding(10, t), nn.Parameter(torch.zeros(t))
        self.time = nn.Sequential(nn.Linear(64, t), nn.SiLU(), nn.Linear(t, t))
        self.down, self.mid, self.up = TimeBlock(c, t), TimeBlock(c, t), TimeBlock(c, t)
        self.join = nn.Conv2d(2 * c, c, 1)
        self.register_buffer("seen", torch.zeros(1000))
        self.register_buffer("alphas", torch.linspace(1, 0.01, 1000))

    def embedded(self, t):
        freq = torch.exp(torch.arange(32, device=t.device) * -0.3)
        a = t[:, None].float() * freq
        return torch.cat([a.sin(), a.cos()], -1)

    def forward(self, x, label):
        b = x.shape[0]
        t = torch.randint(0, 1000, (b,), device=x.device)
        noise = torch.randn_like(x)
        alpha = self.alphas[t][:, None, None, None]
        noisy = alpha.sqrt() * x + (1 - alpha).sqrt() * noise
        drop = torch.rand(b, device=x.device) < 0.1
        cond = torch.where(drop[:, None], self.null, self.classes(label))
        emb = self.time(self.embedded(t).to(cond.dtype)) + cond
        h = self.down(self.inp(noisy.to(cond.dtype)), emb)
        m = self.mid(F.avg_pool2d(h, 2), emb)
        h = self.join(torch.cat([h, F.interpolate(m, scale_factor=2, mode="nearest")], 1))
        out = self.out(self.up(h, emb))
        per = F.mse_loss(out.float(), noise.float(), reduction="none").flatten(1).mean(1)
        with torch.no_grad():
            self.seen.mul_(0.99).index_add_(0, t, per.to(self.seen.dtype) * 0.01)
        weight = torch.clamp(alpha.flatten().float() / (1 - alpha.flatten().float()), max=5.0)
        return (per * weight).mean()


@case("free_guidance", ["TimeBlock"], precisions=BOTH)
class _:
    make = FreeGuidance
    batch = staticmethod(lambda device: (torch.randn(16, 3, 32, 32, device=device), ids(10, 16, device=device)))
    forward = staticmethod(lambda model, x, y: model(x, y))


# --------------------------------------------------------------------------------------------------- graph nets


class Message(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v, self.e = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(16, d, bias=False)
        self.norm, self.gru = nn.LayerNorm(d), nn.GRUCell(d, d)

    def forward(self, x, source, target, edges):
        n, d = x.shape
        k = self.k(x).index_select(0, source) + self.e(edges)
        score = (self.q(x)[target] * k).view(-1, 4, d // 4).sum(-1) / 6.0
        top = torch.full((n, 4), float("-inf"), dtype=score.dtype, device=x.device)
        top = top.scatter_reduce(0, target[:, None].expand(-1, 4), score.detach(), "amax")
        weight = (score - top[target]).exp()
        total = torch.zeros(n, 4, dtype=weight.dtype, device=x.device).index_add(0, target, weight)
        weight = weight / (total[target] + 1e-6)
        message = (self.v(x)[source].view(-1, 4, d // 4) * weight[..., None]).flatten(1)
        out = torch.zeros_like(x).index_add_(0, target, message)
        mean = torch.zeros_like(x).scatter_reduce_(0, target[:, None].expand(-1, d), message, "mean", include_self=False)
        return self.gru(self.norm(out + mean), x)


class Graphs(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.atoms, self.layers, self.read = nn.Embedding(50, d), nn.ModuleList(Message(d) for _ in range(3)), nn.Linear(3 * d, 1)

    def forward(self, atoms, source, target, edges, graph):
        x = self.atoms(atoms)
        for layer in self.layers:
            x = layer(x, source, target, edges)
        d = x.shape[1]
        pooled = [torch.zeros(32, d, dtype=x.dtype, device=x.device).scatter_reduce(0, graph[:, None].expand(-1, d), x, how) for how in ("sum", "amax", "mean")]
        return self.read(torch.cat(pooled, -1))[:, 0]


@case("graphs", ["Message"], precisions=["float32"])
class _:
    make = Graphs
    batch = staticmethod(lambda device: (ids(50, 2000, device=device), ids(2000, 8000, device=device), ids(2000, 8000, device=device), torch.randn(8000, 16, device=device),
                                         ids(32, 2000, device=device), torch.randn(32, device=device)))  # fmt: skip
    forward = staticmethod(lambda model, *given: F.huber_loss(model(*given[:-1]), given[-1]))


# -------------------------------------------------------------------------------------------------------- scans


class LogScan(nn.Module):
    """A first-order recurrence in logarithms: cumsum and logcumsumexp."""

    def __init__(self, d):
        super().__init__()
        self.norm, self.inp, self.gate, self.out = nn.LayerNorm(d), nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)

    def forward(self, x):
        y = self.norm(x)
        forget, keep = self.gate(y).float().chunk(2, -1)
        log_a = -F.softplus(-forget)
        log_b = F.logsigmoid(-forget) + torch.where(forget > 0, forget + 0.5, -F.softplus(-forget))
        total = F.pad(log_a.cumsum(1), (0, 0, 1, 0))
        h = (total[:, 1:] + torch.logcumsumexp(log_b - total[:, 1:], 1)).exp()
        return x + self.out((h * torch.sigmoid(keep)).to(x.dtype) * self.inp(y))


class DoublingScan(nn.Module):
    """Hillis and Steele's scan over a power of two, in place on halves."""

    def __init__(self, d):
        super().__init__()
        self.norm, self.inp, self.gate, self.out = nn.LayerNorm(d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        y = self.norm(x)
        a, b = torch.sigmoid(self.gate(y)), self.inp(y)
        step = 1
        while step < x.shape[1]:
            b = torch.cat([b[:, :step], b[:, step:] + a[:, step:] * b[:, :-step]], 1)
            a = torch.cat([a[:, :step], a[:, step:] * a[:, :-step]], 1)
            step *= 2
        return x + self.out(b)


class DecayScan(nn.Module):
    """Selective state space by exponent of differences of cumulated decays, heads and groups by einsum."""

    def __init__(self, d, state=16, heads=4, chunk=32):
        super().__init__()
        self.h, self.s, self.c = heads, state, chunk
        self.inp, self.out = nn.Linear(d, 2 * d + 2 * state + heads, bias=False), nn.Linear(d, d, bias=False)
        self.conv = nn.Conv1d(d + 2 * state, d + 2 * state, 4, groups=d + 2 * state, padding=3)
        self.a_log, self.skip, self.dt_bias = nn.Parameter(torch.zeros(heads)), nn.Parameter(torch.ones(heads)), nn.Parameter(torch.zeros(heads))
        self.norm = nn.RMSNorm(d)

    def forward(self, u):
        b, n, d = u.shape
        z, xbc, dt = torch.split(self.inp(u), [d, d + 2 * self.s, self.h], -1)
        xbc = F.silu(self.conv(xbc.transpose(1, 2))[..., :n].transpose(1, 2))
        x, B, C = torch.split(xbc, [d, self.s, self.s], -1)
        dt = F.softplus(dt.float() + self.dt_bias)
        a = -torch.exp(self.a_log.float()) * dt
        cut = lambda y: y.reshape(b, n // self.c, self.c, *y.shape[2:])
        x, B, C, a, dt = cut(x.view(b, n, self.h, -1)), cut(B), cut(C), cut(a), cut(dt)
        total = a.cumsum(2)
        span = total[:, :, :, None] - total[:, :, None]
        mask = torch.ones(self.c, self.c, dtype=torch.bool, device=u.device).tril()
        L = span.masked_fill(~mask[:, :, None], float("-inf")).exp()
        inside = torch.einsum("bzls,bzms,bzlmh,bzmh,bzmhp->bzlhp", C.float(), B.float(), L, dt, x.float())
        ends = (total[:, :, -1:] - total).exp()
        states = torch.einsum("bzls,bzlh,bzlh,bzlhp->bzhps", B.float(), ends, dt, x.float())
        carried, state = [], torch.zeros_like(states[:, 0])
        for k in range(states.shape[1]):
            carried.append(state)
            state = state * total[:, k, -1].exp()[..., None, None] + states[:, k]
        across = torch.einsum("bzls,bzhps,bzlh->bzlhp", C.float(), torch.stack(carried, 1), total.exp())
        y = (inside + across + x.float() * self.skip[:, None]).reshape(b, n, d).to(u.dtype)
        return u + self.out(self.norm(y * F.silu(z)))


class Scans(nn.Module):
    def __init__(self, d=128, v=1000):
        super().__init__()
        self.embed, self.blocks, self.head = nn.Embedding(v, d), nn.Sequential(LogScan(d), DoublingScan(d), DecayScan(d)), nn.Linear(d, v)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x)))


@case("scans", ["LogScan", "DoublingScan", "DecayScan"], precisions=BOTH)
class _:
    make = Scans
    batch = tokens(1000, 4, 128)
    forward = staticmethod(on_tokens)


class ComplexState(nn.Module):
    """S4D: a kernel of complex exponentials, laid along a Toeplitz matrix."""

    def __init__(self, d, state=16):
        super().__init__()
        self.log_dt, self.c = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d, state, 2))
        self.log_a, self.imag, self.skip = nn.Parameter(torch.zeros(d, state)), nn.Parameter(torch.zeros(d, state)), nn.Parameter(torch.ones(d))
        self.out = nn.Linear(d, 2 * d)

    def forward(self, x):
        n = x.shape[1]
        c = torch.view_as_complex(self.c.float().contiguous())
        a = torch.complex(-self.log_a.float().exp(), self.imag.float())
        dta = a * self.log_dt.float().exp()[:, None]
        powers = torch.exp(dta[..., None] * torch.arange(n, device=x.device))
        kernel = 2 * torch.einsum("hn,hnl->hl", c * (torch.exp(dta) - 1) / a, powers).real
        place = torch.arange(n, device=x.device)
        far = place[:, None] - place[None]
        toeplitz = kernel[:, far.clamp(min=0)] * (far >= 0)
        y = torch.einsum("hlm,bmh->blh", toeplitz, x.float()) + x.float() * self.skip
        return x + F.glu(self.out(F.gelu(y).to(x.dtype)), dim=-1)


@case("complex_state", ["ComplexState"], precisions=BOTH)
class _:
    make = staticmethod(lambda: nn.Sequential(nn.Embedding(500, 64), ComplexState(64), ComplexState(64), nn.Linear(64, 500)))
    batch = tokens(500, 8, 96)
    forward = staticmethod(on_tokens)


class FastWeights(nn.Module):
    """Linear attention by cumulated outer products, retention by a table of decays, a delta rule in a loop of chunks."""

    def __init__(self, d, how):
        super().__init__()
        self.how, self.norm, self.qkv, self.out = how, nn.LayerNorm(d), nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.group = nn.GroupNorm(4, d)
        self.register_buffer("decay", torch.linspace(0.9, 0.99, 4), persistent=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, 4, -1).permute(2, 0, 3, 1, 4)
        if self.how == "linear":
            q, k = F.elu(q) + 1, F.elu(k) + 1
            kv = torch.cumsum(torch.einsum("bhnd,bhne->bhnde", k, v), 2)
            norm = torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(2)).clamp_min(1e-6)
            y = torch.einsum("bhnd,bhnde->bhne", q, kv) / norm[..., None]
        else:
            place = torch.arange(n, device=x.device)
            far = place[:, None] - place
            table = (self.decay[:, None, None].float() ** far.clamp(min=0)).masked_fill_(far < 0, 0)
            scores = q @ k.mT * table.to(q.dtype)
            scores = scores / scores.detach().sum(-1, keepdim=True).abs().clamp(min=1)
            y = scores @ v
        y = self.group(y.transpose(1, 2).reshape(b * n, d)).view(b, n, d)
        return x + self.out(y)


@case("fast_weights", ["FastWeights"], precisions=BOTH)
class _:
    make = staticmethod(lambda: nn.Sequential(nn.Embedding(500, 64), FastWeights(64, "linear"), FastWeights(64, "retention"), FastWeights(64, "linear"), nn.Linear(64, 500)))
    batch = tokens(500, 4, 128)
    forward = staticmethod(on_tokens)


# ------------------------------------------------------------------------------------------ parametrizations, ties


class Parametrised(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a = parametrizations.weight_norm(nn.Linear(d, 2 * d))
        self.b = nn.Linear(2 * d, d)
        torch.nn.utils.parametrize.register_parametrization(self.b, "weight", Symmetric(), unsafe=True)

    def forward(self, x):
        return x + self.b(F.relu(self.a(x)))


class Symmetric(nn.Module):
    def forward(self, w):
        return w - w.mean(dim=1, keepdim=True)


@case("parametrised", ["Parametrised"], precisions=BOTH, orig_params=True)
class _:
    make = staticmethod(lambda: nn.Sequential(nn.Linear(64, 128), Parametrised(128), Parametrised(128), nn.Linear(128, 10)))
    batch = staticmethod(lambda device: (torch.randn(512, 64, device=device), ids(10, 512, device=device)))
    forward = staticmethod(lambda model, x, y: F.cross_entropy(model(x).float(), y, label_smoothing=0.1))


class OldWeightNorm(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.conv = torch.nn.utils.weight_norm(nn.Conv1d(c, 2 * c, 3, padding=dilation, dilation=dilation))
        self.res = nn.Conv1d(c, c, 1)

    def forward(self, x):
        a, b = self.conv(x).chunk(2, 1)
        z = torch.tanh(a) * torch.sigmoid(b)
        return (x + self.res(z)) * 0.7071, z


class WaveNet(nn.Module):
    def __init__(self, c=64, v=256):
        super().__init__()
        self.embed, self.layers = nn.Embedding(v, c), nn.ModuleList(OldWeightNorm(c, 2**k) for k in range(4))
        self.head = nn.Conv1d(c, v, 1)

    def forward(self, x):
        x, skips = self.embed(x).transpose(1, 2), 0
        for layer in self.layers:
            x, skip = layer(x)
            skips = skips + skip
        return self.head(F.relu(skips)).transpose(1, 2)


@case("wave_net", ["OldWeightNorm"], precisions=["float32"], orig_params=True)
class _:
    make = WaveNet
    batch = tokens(256, 8, 512)
    forward = staticmethod(on_tokens)


class Lens(nn.Module):
    """Ties: one matrix read as a table, transposed, by its first rows, and through F.linear elsewhere; adapters in a ParameterDict."""

    def __init__(self, v=1000, d=128, layers=3):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(v, d))
        self.blocks = nn.ModuleList(Mlp(d) for _ in range(layers))
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(d)) for _ in range(layers))
        self.maps = nn.ParameterDict({name: nn.Parameter(torch.zeros(d, d)) for name in ("in", "out")})
        self.norms = nn.ModuleDict({"pre": nn.RMSNorm(d), "post": nn.RMSNorm(d)})

    def forward(self, x):
        x = F.embedding(x, self.table) @ self.maps["in"]
        early = []
        for block, scale in zip(self.blocks, self.scales):
            x = block(self.norms["pre"](x) * scale)
            early.append(F.linear(x[:, ::4], self.table[:200]).mean())
        x = self.norms["post"](x) @ self.maps["out"].t()
        return x @ self.table.t(), torch.stack(early).sum()


@case("lens", ["Mlp"], precisions=BOTH)
class _:
    make = Lens
    batch = tokens(1000, 8, 128)

    @staticmethod
    def forward(model, x, y):
        logits, extra = model(x)
        return token_loss(logits, y) + 0.01 * extra.float()


class TiedPair(nn.Module):
    """One projection under two names of one block, a decoder that is its encoder transposed."""

    def __init__(self, d, f):
        super().__init__()
        self.encode, self.decode_bias = nn.Linear(d, f), nn.Parameter(torch.zeros(d))
        self.gate = nn.Linear(f, f)
        self.gate_again = self.gate

    def forward(self, x):
        h = self.gate_again(F.relu(self.gate(F.relu(self.encode(x)))))
        return x + F.linear(h, self.encode.weight.t(), self.decode_bias)


@case("tied_pair", ["TiedPair"], precisions=BOTH)
class _:
    make = staticmethod(lambda: nn.Sequential(nn.Linear(64, 128), *(TiedPair(128, 256) for _ in range(3)), nn.Linear(128, 64)))
    batch = staticmethod(lambda device: (torch.randn(1024, 64, device=device),))
    forward = staticmethod(lambda model, x: F.mse_loss(model(x).float(), x))


# ---------------------------------------------------------------------------------------------------- several results


@dataclass
class Output:
    hidden: torch.Tensor
    gate: torch.Tensor | None
    state: dict


class Named(NamedTuple):
    hidden: torch.Tensor
    loss: torch.Tensor


class Router(nn.Module):
    """Returns a dataclass with something that nobody uses."""

    def __init__(self, d, experts=4):
        super().__init__()
        self.gate = nn.Linear(d, experts, bias=False)
        self.up, self.down = nn.Parameter(torch.zeros(experts, d, 2 * d)), nn.Parameter(torch.zeros(experts, 2 * d, d))
        self.unused = nn.Linear(d, d)
        self.register_buffer("load", torch.zeros(experts))

    def forward(self, x, state):
        b, n, d = x.shape
        p = self.gate(x).float().softmax(-1)
        w, idx = p.topk(2, dim=-1)
        with torch.no_grad():
            count = F.one_hot(idx, p.shape[-1]).sum((0, 1, 2)).to(self.load.dtype)
            self.load.lerp_(count, 0.1)
        dispatch = torch.zeros_like(p).scatter(-1, idx, w).to(x.dtype)
        h = torch.einsum("bnd,edf->ebnf", x, self.up)
        y = torch.einsum("ebnf,efd,bne->bnd", F.silu(h), self.down, dispatch)
        return Output(hidden=x + y, gate=None, state=state | {len(state): p.mean((0, 1))})


class Namer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.lin = nn.Linear(d, d)

    def forward(self, x, *, scale=1.0, bias=None):
        y = self.lin(x) * scale
        if bias is not None:
            y = y + bias
        return Named(y, (y.float() ** 2).mean())


class Dataclasses(nn.Module):
    def __init__(self, d=128, v=1000):
        super().__init__()
        self.embed, self.head = nn.Embedding(v, d), nn.Linear(d, v)
        self.routers, self.namers = nn.ModuleList(Router(d) for _ in range(2)), nn.ModuleList(Namer(d) for _ in range(2))

    def forward(self, x):
        x, state, aux = self.embed(x), {}, 0
        for router, namer in zip(self.routers, self.namers):
            out = router(x, state)
            x, state = out.hidden, out.state
            named = namer(x, scale=0.5, bias=x if torch.is_tensor(aux) else None)
            x, aux = named.hidden, aux + named.loss
        return self.head(x), aux + sum(p.var() for p in state.values())


@case("dataclasses", ["Router", "Namer"], precisions=BOTH)
class _:
    make = Dataclasses
    batch = tokens(1000, 8, 128)

    @staticmethod
    def forward(model, x, y):
        logits, extra = model(x)
        return token_loss(logits, y) + 0.01 * extra


# ----------------------------------------------------------------------------------------------- functions, checkpoints


class CtxAttribute(torch.autograd.Function):
    """Keeps tensors as attributes, gives a number and a mask beside its result."""

    @staticmethod
    def forward(ctx, x, scale, alpha):
        y = torch.tanh(x * scale)
        mask = y > 0
        ctx.kept, ctx.alpha = 1 - y * y, alpha
        ctx.save_for_backward(x, scale)
        ctx.mark_non_differentiable(mask)
        ctx.set_materialize_grads(False)
        return y, mask

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad, _):
        x, scale = ctx.saved_tensors
        inner = grad * ctx.kept
        return inner * scale * ctx.alpha, (inner * x).sum((0, 1)), None


class InPlaceFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.clamp_(min=0)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * (y > 0)


class LinearWithGrad(torch.autograd.Function):
    """A product whose gradient of the weight is made in float32 in slices."""

    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return x @ w.t() + b

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        dx = grad @ w if ctx.needs_input_grad[0] else None
        dw = torch.zeros(w.shape, dtype=torch.float32, device=w.device)
        for g, y in zip(grad.flatten(0, 1).chunk(4), x.flatten(0, 1).chunk(4)):
            dw.addmm_(g.t().float(), y.float())
        return dx, dw.to(w.dtype), grad.sum((0, 1))


class Functional(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.scale, self.norm = nn.Parameter(torch.ones(d)), nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        y, mask = CtxAttribute.apply(self.norm(x), self.scale, 0.5)
        h = InPlaceFunction.apply(LinearWithGrad.apply(y, self.up.weight, self.up.bias))
        return x + self.down(h) * mask


@case("functions", ["Functional"], precisions=BOTH)
class _:
    make = staticmethod(lambda: nn.Sequential(nn.Embedding(500, 128), *(Functional(128) for _ in range(3)), nn.Linear(128, 500)))
    batch = tokens(500, 8, 128)
    forward = staticmethod(on_tokens)


class Rerun(nn.Module):
    """Checkpoints of its own parts: reentrant, without a generator's state, keyword arguments, several results."""

    def __init__(self, d, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.norm, self.qkv, self.proj = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp, self.drop = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)), nn.Dropout(0.1)

    def scores(self, x, scale=1.0):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        p = (q @ k.mT * scale).softmax(-1)
        return self.drop(p) @ v, p.mean()

    def forward(self, x):
        if self.reentrant:
            y, entropy = checkpoint(self.scores, x, 0.1, use_reentrant=True)
            z = lambda t: checkpoint_sequential(self.mlp, 2, t, use_reentrant=True)
        else:
            y, entropy = checkpoint(self.scores, x, scale=0.1, use_reentrant=False, preserve_rng_state=False)
            z = lambda t: checkpoint_sequential(self.mlp, 2, t, use_reentrant=False)
        x = x + self.proj(y.transpose(1, 2).flatten(2)) + entropy
        return x + z(x)


@case("rerun", ["Rerun"], precisions=BOTH)
class _:
    make = staticmethod(lambda: nn.Sequential(nn.Embedding(500, 128), Rerun(128, False), Rerun(128, True), Rerun(128, False), nn.Linear(128, 500)))
    batch = tokens(500, 8, 128)
    forward = staticmethod(on_tokens)
