"""Models built of operators that are rarer: special functions, cells, windows, distributions, order statistics, scatters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from . import case, ids


class Wide(nn.Module):
    """A residual branch: `inside` of a wide layer, back to the stream."""

    def __init__(self, d, wide, inside):
        super().__init__()
        self.norm, self.up, self.down, self.inside = nn.LayerNorm(d), nn.Linear(d, wide), nn.Linear(wide, d), inside

    def forward(self, x):
        return x + self.down(self.inside(self.up(self.norm(x))))


class Chain(nn.Module):
    def __init__(self, d, wide, insides, v=1000):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.layers = nn.ModuleList(Wide(d, wide, inside) for inside in insides)
        self.head = nn.Linear(d, v)

    def forward(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


class Op(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


def chain_case(name, insides):
    @case(name, ["Wide"], precisions=["float32"], recompute=True, versions=[2])
    class _:
        make = staticmethod(lambda: Chain(128, 512, [f() if isinstance(f, type) else Op(f) for f in insides]))
        batch = staticmethod(lambda device: (ids(1000, 4, 256, device=device), ids(1000, 4, 256, device=device)))

        @staticmethod
        def forward(model, x, y):
            return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


chain_case("shrunk", [
    F.selu, F.celu, F.softshrink, F.hardshrink, F.tanhshrink, F.hardsigmoid, F.softsign, F.relu6, lambda x: F.threshold(x, 0.1, 0.0), lambda x: F.softmin(x, -1)])  # fmt: skip

chain_case("special", [
    lambda x: torch.erf(x) * torch.special.expit(x), lambda x: torch.atan2(x, x.abs() + 1.0), lambda x: torch.lgamma(x.abs() + 1.0),
    lambda x: torch.log1p(x.square()), lambda x: torch.expm1(-x.abs()), lambda x: torch.sinc(x), lambda x: torch.hypot(x, x + 1.0),
    lambda x: torch.logaddexp(x, -x), lambda x: torch.xlogy(x, x.abs() + 1.0), lambda x: x.sign() * x.abs().sqrt(),
    lambda x: torch.lerp(x, x.square(), 0.25), lambda x: torch.addcmul(x, x, x.tanh(), value=0.5), lambda x: torch.addcdiv(x, x, x.square() + 1.0),
    lambda x: torch.nan_to_num(x).clamp(-2.0, 2.0), lambda x: torch.maximum(x, x.flip(-1)), lambda x: torch.where(x > 0, x, x.exp() - 1.0),
])  # fmt: skip


class Pooled(nn.Module):
    def forward(self, x):
        y = x.transpose(1, 2)
        y = F.lp_pool1d(y, 2.0, 3, stride=1)
        y = F.pad(y, (1, 1), mode="replicate") + F.avg_pool1d(F.pad(y, (2, 2), mode="reflect"), 3, 1)
        return y.transpose(1, 2)


class Ranked(nn.Module):
    def forward(self, x):
        top = x.topk(256, dim=-1).values
        ordered = x.sort(dim=-1).values[..., :128]
        middle = x.unflatten(-1, (128, 4)).median(-1).values
        return torch.cat([top, ordered, middle], -1)


class Counted(nn.Module):
    def forward(self, x):
        a = x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)[:, None]
        b = x.logcumsumexp(1)
        c = x.cummax(1).values
        d = (x.sigmoid() + 0.5).cumprod(-1)
        return a + b.tanh() + c + d.tanh()


class Spread(nn.Module):
    def forward(self, x):
        deviation, mean = torch.std_mean(x, dim=-1, keepdim=True)
        variance = x.var(dim=1, keepdim=True)
        return (x - mean) / (deviation + 1e-3) + x.norm(dim=-1, keepdim=True) + variance.sqrt() + x.prod(-1, keepdim=True) * 0 + x.amax(1, keepdim=True) + x.logsumexp(1, keepdim=True)


chain_case("ordered", [Pooled, Ranked, Counted, Spread, lambda x: x.roll(3, 1) + x.rot90(2, (1, 2)), lambda x: x.kthvalue(5, dim=1, keepdim=True).values + x])


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.lstm = nn.GRUCell(512, 64), nn.LSTMCell(64, 64)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], 64)
        c, k = h, h
        out = []
        for t in range(0, x.shape[1], 32):
            h = self.gru(x[:, t], h)
            c, k = self.lstm(h, (c, k))
            out.append(c)
        y = torch.stack(out, 1).repeat_interleave(32, 1)
        return torch.cat([x[..., :448], y], -1)


chain_case("cells", [Cells, lambda x: F.prelu(x, x.new_full((1,), 0.25)), Cells])


class Shuffled(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.first, self.deep, self.last = nn.Conv2d(c, c, 1), nn.Conv2d(c, c, 3, padding=1, groups=c, padding_mode="reflect"), nn.Conv2d(c, c, 1)
        self.norm, self.bend = nn.InstanceNorm2d(c, affine=True), nn.PReLU(c)

    def forward(self, x):
        y = self.bend(self.norm(self.first(x)))
        y = F.channel_shuffle(y, 4) if hasattr(F, "channel_shuffle") else y
        y = self.last(F.local_response_norm(self.deep(y), 3))
        return x + F.interpolate(F.avg_pool2d(y, 2), scale_factor=2, mode="bicubic", align_corners=False)


class Lights(nn.Module):
    def __init__(self, c=64):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 4, 4)
        self.blocks = nn.ModuleList(Shuffled(c) for _ in range(4))
        self.turn, self.out = nn.Linear(c, 6), nn.ConvTranspose2d(c, 3, 4, 4)

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        grid = F.affine_grid(self.turn(h.mean((2, 3))).view(-1, 2, 3), list(h.shape), align_corners=False)
        return self.out(F.grid_sample(h, grid, align_corners=False))


@case("lights", ["Shuffled"], precisions=["float32"], recompute=True, versions=[2])
class _:
    make = Lights
    batch = staticmethod(lambda device: (torch.rand(8, 3, 128, 128, device=device), torch.rand(8, 3, 128, 128, device=device)))

    @staticmethod
    def forward(model, x, y):
        out = model(x)
        return F.smooth_l1_loss(out, y) + 0.1 * (1 - F.cosine_similarity(out.flatten(2), y.flatten(2), dim=-1)).mean()


class Latent(nn.Module):
    def __init__(self, d=256, k=8):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.BatchNorm1d(2 * d), nn.Linear(2 * d, d))
        self.mean, self.scale, self.rate = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, 2 * d)

    def forward(self, x):
        h = x + self.inner(x)
        normal = torch.distributions.Normal(self.mean(h), F.softplus(self.scale(h)) + 1e-3, validate_args=False)
        z = normal.rsample()
        a, b = (F.softplus(self.rate(z)) + 0.1).chunk(2, -1)
        beta = torch.distributions.Beta(a, b, validate_args=False)
        kl = torch.distributions.kl_divergence(normal, torch.distributions.Normal(torch.zeros_like(z), torch.ones_like(z), validate_args=False))
        return z, kl.sum(-1).mean() - beta.log_prob(torch.sigmoid(x).clamp(1e-3, 1 - 1e-3)).mean()


class Mixtures(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.first, self.blocks, self.last = nn.Linear(32, d), nn.ModuleList(Latent(d) for _ in range(3)), nn.Linear(d, 3 * 8 * 32)

    def forward(self, x):
        h, more = self.first(x), 0.0
        for block in self.blocks:
            h, extra = block(h)
            more = more + extra
        weight, mean, scale = self.last(h).view(-1, 32, 8, 3).unbind(-1)
        log = torch.distributions.Cauchy(mean, F.softplus(scale) + 1e-2, validate_args=False).log_prob(x.unsqueeze(-1))
        return -(torch.logsumexp(F.log_softmax(weight, -1) + log, -1)).mean() + 0.01 * more


@case("mixtures", ["Latent"], precisions=["float32"], versions=[2])
class _:
    make = Mixtures
    batch = staticmethod(lambda device: (torch.rand(4096, 32, device=device),))

    @staticmethod
    def forward(model, x):
        return model(x)


class Mesh(nn.Module):
    """Faces to vertices and back by scatters of other sums than plain ones."""

    def __init__(self, d=128):
        super().__init__()
        self.edge, self.node, self.norm = nn.Linear(3 * d, d), nn.Linear(3 * d, d), nn.LayerNorm(d)

    def forward(self, x, e, a, b):
        e = e + F.silu(self.edge(torch.cat([x[a], x.index_select(0, b), e], -1)))
        index = b.unsqueeze(-1).expand_as(e)
        largest = torch.zeros_like(x).scatter_reduce(0, index, e, "amax", include_self=False)
        mean = torch.zeros_like(x).scatter_reduce(0, index, e, "mean", include_self=False)
        return self.norm(x + self.node(torch.cat([x, largest, mean], -1))), e


class Faces(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.nodes, self.edges, self.layers, self.out = nn.Linear(6, d), nn.Linear(3, d), nn.ModuleList(Mesh(d) for _ in range(3)), nn.Linear(d, 1)

    def forward(self, x, e, a, b):
        h, e = self.nodes(x), self.edges(e)
        for layer in self.layers:
            h, e = layer(h, e, a, b)
        return self.out(h).squeeze(-1)


@case("faces", ["Mesh"], precisions=["float32"], recompute=True, versions=[2], strict=False)
class _:
    make = Faces
    batch = staticmethod(lambda device: (torch.rand(2000, 6, device=device), torch.rand(8000, 3, device=device), ids(2000, 8000, device=device), ids(2000, 8000, device=device), torch.rand(2000, device=device)))

    @staticmethod
    def forward(model, x, e, a, b, y):
        mean, spread = model(x, e, a, b), torch.ones_like(y)
        return F.gaussian_nll_loss(mean, y, spread) + F.kl_div(F.log_softmax(mean, 0), F.softmax(y, 0), reduction="sum") + F.poisson_nll_loss(mean, y)
