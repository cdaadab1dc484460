"""Networks that are trained by gradients of gradients or against moving targets: energies, fields, critics, offline reinforcement, preferences, BYOL."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from . import case, ids
from .moderns import Stacked
from .tinkerers import BOTH, Mlp


class StyleConv(nn.Module):
    """StyleGAN2's: filters modulated and demodulated by sample, one grouped convolution, noise added."""

    def __init__(self, i, o, style, up=False):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(o, i, 3, 3)), nn.Parameter(torch.zeros(o))
        self.affine, self.strength, self.up = nn.Linear(style, i), nn.Parameter(torch.zeros(1)), up

    def forward(self, x, w):
        b, c, h, v = x.shape
        if self.up:
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            h, v = 2 * h, 2 * v
        style = self.affine(w) + 1
        weight = self.weight[None] * style[:, None, :, None, None]
        weight = weight * torch.rsqrt(weight.square().sum(dim=[2, 3, 4], keepdim=True) + 1e-8)
        x = F.conv2d(x.reshape(1, b * c, h, v), weight.reshape(-1, c, 3, 3), padding=1, groups=b).reshape(b, -1, h, v)
        x = x + torch.randn(b, 1, h, v, device=x.device, dtype=x.dtype) * self.strength
        return F.leaky_relu(x + self.bias[None, :, None, None], 0.2) * 2**0.5


class Style2(nn.Module):
    """Non-saturating losses with R1 on real pictures; a minibatch's deviation as one more channel."""

    def __init__(self, d=48, z=64):
        super().__init__()
        self.mapping = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(z, z), nn.LeakyReLU(0.2))))
        self.const = nn.Parameter(torch.randn(1, d, 8, 8))
        self.convs = nn.ModuleList([StyleConv(d, d, z), StyleConv(d, d, z, up=True), StyleConv(d, d, z, up=True)])
        self.to_rgb = nn.Conv2d(d, 3, 1)
        self.judge = nn.Sequential(nn.Conv2d(3, d, 3, 1, 1), nn.LeakyReLU(0.2), nn.Conv2d(d, d, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(d, 2 * d, 3, 2, 1), nn.LeakyReLU(0.2))
        self.last = nn.Sequential(nn.Conv2d(2 * d + 1, 2 * d, 3, 1, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(2 * d * 64, 1))

    def score(self, x):
        h = self.judge(x)
        spread = h.reshape(4, -1, *h.shape[1:]).var(0, unbiased=False).add(1e-8).sqrt().mean([1, 2, 3])
        spread = spread.repeat(4)[:, None, None, None].expand(-1, 1, *h.shape[2:])
        return self.last(torch.cat([h, spread], 1))

    def forward(self, real, z):
        w = self.mapping(F.normalize(z, dim=1))
        x = self.const.expand(len(z), -1, -1, -1)
        for conv in self.convs:
            x = conv(x, w)
        fake = torch.tanh(self.to_rgb(x))
        real = real.requires_grad_()
        scores = self.score(real)
        (slope,) = torch.autograd.grad(scores.sum(), real, create_graph=True)
        r1 = slope.pow(2).flatten(1).sum(1).mean()
        judged = F.softplus(-scores).mean() + F.softplus(self.score(fake.detach())).mean() + 5.0 * r1
        return judged + F.softplus(-self.score(fake)).mean()


@case("style2", [], precisions=BOTH, orig_params=True, inner=True)
class _:
    make = Style2
    batch = staticmethod(lambda device: (torch.randn(16, 3, 32, 32, device=device), torch.randn(16, 64, device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))


class NeusField(nn.Module):
    """A signed distance with weight norm and softplus(100 x), and the colour that its normals give; the eikonal term."""

    def __init__(self, d=128, depth=4):
        super().__init__()
        dims = [39, *[d] * depth, 1 + d]
        self.sdf = nn.ModuleList(weight_norm(nn.Linear(i - (39 if n == 2 else 0) + (39 if n == 2 else 0), o)) for n, (i, o) in enumerate(zip(dims, dims[1:])))
        self.skip = nn.Linear(d + 39, d)
        self.color = nn.Sequential(nn.Linear(3 + 3 + 3 + d, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 3), nn.Sigmoid())
        self.variance = nn.Parameter(torch.tensor([0.3]))

    def distance(self, x):
        bands = [x] + [f(x * 2.0**k) for k in range(6) for f in (torch.sin, torch.cos)]
        enc = torch.cat(bands, -1)
        h = enc
        for n, layer in enumerate(self.sdf):
            if n == 2:
                h = self.skip(torch.cat([h, enc], -1)) / 2**0.5
            h = layer(h)
            if n < len(self.sdf) - 1:
                h = F.softplus(h, beta=100)
        return h[..., :1], h[..., 1:]

    def forward(self, points, dirs, target):
        points = points.requires_grad_(True)
        sdf, feature = self.distance(points)
        normal = torch.autograd.grad(sdf, points, torch.ones_like(sdf), create_graph=True, retain_graph=True, only_inputs=True)[0]
        rgb = self.color(torch.cat([points, dirs, normal, feature], -1))
        inv_s = torch.exp(self.variance * 10.0).clip(1e-6, 1e6)
        prev, following = torch.sigmoid((sdf + 0.01) * inv_s), torch.sigmoid((sdf - 0.01) * inv_s)
        alpha = ((prev - following + 1e-5) / (prev + 1e-5)).clip(0.0, 1.0).reshape(len(target), -1)
        weights = alpha * torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1.0 - alpha + 1e-7], -1), -1)[:, :-1]
        color = (weights[..., None] * rgb.reshape(*alpha.shape, 3)).sum(1)
        return F.l1_loss(color, target) + 0.1 * ((normal.norm(2, dim=-1) - 1.0) ** 2).mean()


@case("neus", [], precisions=BOTH, orig_params=True, inner=True)
class _:
    make = NeusField
    batch = staticmethod(lambda device: (torch.randn(4096, 3, device=device), torch.randn(4096, 3, device=device), torch.rand(128, 3, device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))


class Energy(nn.Module):
    """Samples by a few Langevin steps (no graph), then contrastive divergence with a regulariser."""

    def __init__(self, d=64):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, d, 3, 1, 1), nn.SiLU(), nn.Conv2d(d, 2 * d, 4, 2, 1), nn.SiLU(), nn.Conv2d(2 * d, 2 * d, 4, 2, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * d, 1))

    def sampled(self, x, steps=3):
        for _ in range(steps):
            x = x.detach().requires_grad_(True)
            energy = self.net(x).sum()
            (slope,) = torch.autograd.grad(energy, x)
            x = x - 10.0 * slope.clamp(-0.03, 0.03) + 0.005 * torch.randn_like(x)
        return x.detach()

    def forward(self, real, noise):
        fake = self.sampled(noise).clamp(-1, 1)
        pos, neg = self.net(real), self.net(fake)
        return (pos - neg).mean() + 0.1 * (pos**2 + neg**2).mean()


@case("langevin", [], precisions=BOTH, orig_params=True, inner=True)
class _:
    make = Energy
    batch = staticmethod(lambda device: (torch.rand(16, 3, 32, 32, device=device), torch.rand(16, 3, 32, 32, device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))


class Hamilton(nn.Module):
    """Leapfrog through a learnt Hamiltonian: every step asks for its gradient."""

    def __init__(self, d=128, n=32):
        super().__init__()
        self.h = nn.Sequential(nn.Linear(2 * n, d), nn.Softplus(), nn.Linear(d, d), nn.Softplus(), nn.Linear(d, d), nn.Tanh(), nn.Linear(d, 1))

    def slopes(self, q, p):
        energy = self.h(torch.cat([q, p], -1)).sum()
        return torch.autograd.grad(energy, (q, p), create_graph=True)

    def forward(self, q, p, q1, p1):
        q, p = q.requires_grad_(True), p.requires_grad_(True)
        for _ in range(3):
            dq, _ = self.slopes(q, p)
            p = p - 0.05 * dq
            _, dp = self.slopes(q, p)
            q = q + 0.1 * dp
            dq, _ = self.slopes(q, p)
            p = p - 0.05 * dq
        return F.mse_loss(q, q1) + F.mse_loss(p, p1)


@case("hamilton", [], precisions=BOTH, orig_params=True, inner=True)
class _:
    make = Hamilton
    batch = staticmethod(lambda device: tuple(torch.randn(1024, 32, device=device) for _ in range(4)))
    forward = staticmethod(lambda model, *batch: model(*batch))


class SlicedScore(nn.Module):
    """Sliced score matching: projections of the Jacobian by a second gradient."""

    def __init__(self, d=192, n=64, depth=3):
        super().__init__()
        self.inp, self.blocks, self.out = nn.Linear(n, d), nn.ModuleList(Mlp(d) for _ in range(depth)), nn.Linear(d, n)

    def score(self, x):
        h = self.inp(x)
        for block in self.blocks:
            h = block(h)
        return self.out(h)

    def forward(self, x):
        x = x.requires_grad_(True)
        vectors = torch.randn_like(x)
        s = self.score(x)
        projected = torch.sum(s * vectors)
        slope = torch.autograd.grad(projected, x, create_graph=True)[0]
        return (0.5 * torch.sum(s * vectors, dim=-1) ** 2 + torch.sum(vectors * slope, dim=-1)).mean()


@case("sliced_score", [], precisions=BOTH, orig_params=True, inner=True)
class _:
    make = SlicedScore
    batch = staticmethod(lambda device: (torch.randn(2048, 64, device=device),))
    forward = staticmethod(lambda model, x: model(x))


class SnBlock(nn.Module):
    def __init__(self, i, o, down=True):
        super().__init__()
        self.conv1, self.conv2, self.short = spectral_norm(nn.Conv2d(i, o, 3, padding=1)), spectral_norm(nn.Conv2d(o, o, 3, padding=1)), spectral_norm(nn.Conv2d(i, o, 1))
        self.down = down

    def forward(self, x):
        h = self.conv2(F.relu(self.conv1(F.relu(x))))
        s = self.short(x)
        return F.avg_pool2d(h, 2) + F.avg_pool2d(s, 2) if self.down else h + s


class Projection(nn.Module):
    """A critic with spectral norms and a projected label, hinge losses with R1 by differences."""

    def __init__(self, d=64, classes=100):
        super().__init__()
        self.blocks = nn.ModuleList([SnBlock(3, d), SnBlock(d, 2 * d), SnBlock(2 * d, 2 * d, down=False)])
        self.linear, self.embed = spectral_norm(nn.Linear(2 * d, 1)), spectral_norm(nn.Embedding(classes, 2 * d))

    def score(self, x, y):
        for block in self.blocks:
            x = block(x)
        h = F.relu(x).sum([2, 3])
        return self.linear(h).squeeze(1) + (self.embed(y) * h).sum(1)

    def forward(self, real, fake, y):
        real_score, fake_score = self.score(real, y), self.score(fake, y)
        return F.relu(1.0 - real_score).mean() + F.relu(1.0 + fake_score).mean()


@case("projection", ["SnBlock"], precisions=["float32"], orig_params=True)
class _:
    make = Projection
    batch = staticmethod(lambda device: (torch.randn(16, 3, 32, 32, device=device), torch.randn(16, 3, 32, 32, device=device), ids(100, 16, device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))


class Byol(nn.Module):
    """The target follows inside of the forward, in place."""

    def __init__(self, d=64):
        super().__init__()
        self.online = nn.Sequential(nn.Conv2d(3, d, 3, 2, 1), nn.GroupNorm(8, d), nn.ReLU(), nn.Conv2d(d, 2 * d, 3, 2, 1), nn.GroupNorm(8, 2 * d), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * d, 256), nn.ReLU(), nn.Linear(256, 128))
        self.predictor = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad = False

    @torch.no_grad()
    def follow(self, m=0.99):
        for p, t in zip(self.online.parameters(), self.target.parameters()):
            t.mul_(m).add_(p, alpha=1 - m)

    def forward(self, a, b):
        self.follow()
        with torch.no_grad():
            ta, tb = self.target(a), self.target(b)
        pa, pb = self.predictor(self.online(a)), self.predictor(self.online(b))
        return 2 - F.cosine_similarity(pa, tb.detach(), dim=-1).mean() + 2 - F.cosine_similarity(pb, ta.detach(), dim=-1).mean()


@case("byol", [], precisions=BOTH, versions=(2,))
class _:
    make = Byol
    batch = staticmethod(lambda device: (torch.randn(16, 3, 64, 64, device=device), torch.randn(16, 3, 64, 64, device=device)))
    forward = staticmethod(lambda model, a, b: model(a, b))


class QNet(nn.Module):
    def __init__(self, i, d=256):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(i, d), nn.LayerNorm(d), nn.ReLU(), nn.Linear(d, d), nn.LayerNorm(d), nn.ReLU(), nn.Linear(d, 1))

    def forward(self, *x):
        return self.net(torch.cat(x, -1)).squeeze(-1)


class Iql(nn.Module):
    """Implicit Q-learning: twin critics, a value by expectiles, a policy by advantages, targets that stand still."""

    def __init__(self, s=40, a=8, d=256):
        super().__init__()
        self.q1, self.q2, self.v = QNet(s + a), QNet(s + a), QNet(s)
        self.t1, self.t2 = copy.deepcopy(self.q1).requires_grad_(False), copy.deepcopy(self.q2).requires_grad_(False)
        self.actor = nn.Sequential(nn.Linear(s, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, a), nn.Tanh())
        self.log_std = nn.Parameter(torch.zeros(a))

    def forward(self, s, a, r, s2, done):
        with torch.no_grad():
            target = torch.minimum(self.t1(s, a), self.t2(s, a))
            following = self.v(s2)
        v = self.v(s)
        adv = target - v
        weight = torch.where(adv > 0, 0.7, 0.3)
        v_loss = (weight * adv**2).mean()
        aim = r + (1.0 - done) * 0.99 * following
        q_loss = F.mse_loss(self.q1(s, a), aim) + F.mse_loss(self.q2(s, a), aim)
        scale = torch.exp(3.0 * adv.detach()).clamp(max=100.0)
        dist = torch.distributions.Normal(self.actor(s), self.log_std.clamp(-5, 2).exp(), validate_args=False)
        return v_loss + q_loss - (scale * dist.log_prob(a).sum(-1)).mean()


@case("iql", ["QNet"], precisions=["float32"], orig_params=True)
class _:
    make = Iql
    batch = staticmethod(lambda device: (torch.randn(1024, 40, device=device), torch.randn(1024, 8, device=device), torch.randn(1024, device=device), torch.randn(1024, 40, device=device), torch.zeros(1024, device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))


class KtoBlock(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.norm1, self.norm2, self.heads = nn.RMSNorm(d), nn.RMSNorm(d), heads
        self.q, self.kv, self.o = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.mlp = nn.Sequential(nn.Linear(d, 3 * d), nn.SiLU(), nn.Linear(3 * d, d))

    def forward(self, x):
        b, n, d = x.shape
        h = self.norm1(x)
        q = self.q(h).view(b, n, self.heads, -1).transpose(1, 2)
        k, v = self.kv(h).view(b, n, 2, self.heads // 2, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.norm2(x))


class Kto(nn.Module):
    """A policy and its frozen reference under one root; kept and unmatched answers, the divergence from these."""

    def __init__(self, d=128, depth=3, v=1000):
        super().__init__()
        self.policy = Stacked([KtoBlock(d) for _ in range(depth)], d, v)
        self.reference = Stacked([KtoBlock(d) for _ in range(depth)], d, v).requires_grad_(False)

    @staticmethod
    def logps(model, x, mask):
        logits = model(x)[:, :-1].float()
        picked = torch.gather(logits.log_softmax(-1), 2, x[:, 1:].unsqueeze(2)).squeeze(2)
        return (picked * mask[:, 1:]).sum(-1)

    def forward(self, x, unmatched, mask, desirable):
        with torch.no_grad():
            ref, ref_kl = self.logps(self.reference, x, mask), self.logps(self.reference, unmatched, mask)
            kl = (self.logps(self.policy, unmatched, mask) - ref_kl).mean().clamp(min=0)
        ratio = self.logps(self.policy, x, mask) - ref
        losses = torch.where(desirable, 1 - torch.sigmoid(0.1 * (ratio - kl)), 1 - torch.sigmoid(0.1 * (kl - ratio)))
        return losses.mean()


@case("kto", ["KtoBlock"], precisions=BOTH, orig_params=True, recompute=True)
class _:
    make = Kto
    batch = staticmethod(lambda device: (ids(1000, 8, 96, device=device), ids(1000, 8, 96, device=device), torch.ones(8, 96, device=device), torch.ones(8, dtype=torch.bool, device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))
