"""Gradients in the midst of forward (torch.autograd.grad): forces, equations, penalties, attacks, inner loops."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import grad

from . import case
from .tinkerers import BOTH


class Interaction(nn.Module):
    """Messages along edges by continuous filters, summed where they arrive."""

    def __init__(self, d, rbf):
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(rbf, d), nn.SiLU(), nn.Linear(d, d))
        self.inner, self.outer = nn.Linear(d, d, bias=False), nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d))

    def forward(self, h, basis, cut, src, dst):
        w = self.filter(basis) * cut[:, None]
        messages = self.inner(h)[src] * w
        gathered = torch.zeros_like(h).index_add(0, dst, messages.to(h.dtype))
        return h + self.outer(gathered)


class SchNet(nn.Module):
    """Energy by atoms; forces are its gradient with a graph of their own."""

    def __init__(self, d=128, rbf=48, depth=3):
        super().__init__()
        self.embed, self.rbf = nn.Embedding(100, d), rbf
        self.interactions = nn.ModuleList(Interaction(d, rbf) for _ in range(depth))
        self.head = nn.Sequential(nn.Linear(d, d // 2), nn.SiLU(), nn.Linear(d // 2, 1))
        self.register_buffer("centers", torch.linspace(0, 5, rbf))

    def energy(self, z, pos, src, dst, of):
        dist = (pos[src] - pos[dst]).norm(dim=-1)
        basis = torch.exp(-10.0 * (dist[:, None] - self.centers.to(pos.dtype)) ** 2)
        cut = 0.5 * (torch.cos(dist * torch.pi / 5.0) + 1.0)
        h = self.embed(z)
        for block in self.interactions:
            h = block(h, basis, cut, src, dst)
        e = self.head(h).squeeze(-1)
        return torch.zeros(16, device=e.device, dtype=e.dtype).index_add_(0, of, e)

    def forward(self, z, pos, src, dst, of):
        pos = pos.requires_grad_(True)
        energy = self.energy(z, pos, src, dst, of)
        (forces,) = grad(energy, pos, grad_outputs=torch.ones_like(energy), create_graph=True, retain_graph=True)
        return energy, -forces


def _molecules(device):
    pick = lambda n, top: torch.randint(0, top, (n,), device=device)  # noqa: E731
    return (pick(320, 100), torch.randn(320, 3, device=device), pick(4000, 320), pick(4000, 320), pick(320, 16), torch.randn(16, device=device), torch.randn(320, 3, device=device))


def _force_loss(model, z, pos, src, dst, of, energy, forces):
    e, f = model(z, pos, src, dst, of)
    return F.mse_loss(e.float(), energy) + 100.0 * F.mse_loss(f.float(), forces)


@case("forces", [], precisions=BOTH, orig_params=True, inner=True)
class _:
    make = SchNet
    batch = staticmethod(_molecules)
    forward = staticmethod(_force_loss)


@case("forces_blocks", ["Interaction"], precisions=BOTH, orig_params=True, inner=True, versions=(1,))
class _:
    make = SchNet
    batch = staticmethod(_molecules)
    forward = staticmethod(_force_loss)


class Pinn(nn.Module):
    """Burgers' equation: u_t + u u_x = nu u_xx at points within, values at the border."""

    def __init__(self, d=128, depth=4):
        super().__init__()
        layers = [nn.Linear(2, d), nn.Tanh()]
        for _ in range(depth):
            layers += [nn.Linear(d, d), nn.Tanh()]
        self.net = nn.Sequential(*layers, nn.Linear(d, 1))

    def u(self, x, t):
        return self.net(torch.cat([x, t], dim=1))

    def residual(self, x, t):
        x.requires_grad_(True)
        t.requires_grad_(True)
        u = self.u(x, t)
        u_t = grad(u, t, grad_outputs=torch.ones_like(u), retain_graph=True, create_graph=True)[0]
        u_x = grad(u, x, grad_outputs=torch.ones_like(u), retain_graph=True, create_graph=True)[0]
        u_xx = grad(u_x, x, grad_outputs=torch.ones_like(u_x), retain_graph=True, create_graph=True)[0]
        return u_t + u * u_x - (0.01 / torch.pi) * u_xx

    def forward(self, x, t, xb, tb, ub):
        f = self.residual(x, t)
        return (self.u(xb, tb) - ub).pow(2).mean() + f.pow(2).mean()


@case("pinn", [], precisions=BOTH, orig_params=True, inner=True)
class _:
    make = Pinn
    batch = staticmethod(lambda device: (torch.rand(4096, 1, device=device), torch.rand(4096, 1, device=device), torch.rand(512, 1, device=device), torch.rand(512, 1, device=device), torch.rand(512, 1, device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))


class Wgan(nn.Module):
    """A critic with a gradient penalty (WGAN-GP), generator and critic in one step."""

    def __init__(self, d=32):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(64, d * 4 * 16), nn.Unflatten(1, (d * 4, 4, 4)), nn.ReLU(True), nn.ConvTranspose2d(d * 4, d * 2, 4, 2, 1), nn.ReLU(True), nn.ConvTranspose2d(d * 2, d, 4, 2, 1), nn.ReLU(True), nn.ConvTranspose2d(d, 3, 4, 2, 1), nn.Tanh())
        self.critic = nn.Sequential(nn.Conv2d(3, d, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(d, d * 2, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(d * 2, d * 4, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(d * 4 * 16, 1))

    def penalty(self, real, fake):
        alpha = torch.rand(real.size(0), 1, 1, 1, device=real.device, dtype=real.dtype)
        mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
        scores = self.critic(mixed)
        gradients = grad(outputs=scores, inputs=mixed, grad_outputs=torch.ones_like(scores), create_graph=True, retain_graph=True, only_inputs=True)[0]
        return ((gradients.view(gradients.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()

    def forward(self, real, z):
        fake = self.generator(z)
        loss = self.critic(fake.detach()).mean() - self.critic(real).mean() + 10.0 * self.penalty(real, fake.detach())
        return loss - self.critic(fake).mean()


@case("wgan_gp", [], precisions=BOTH, orig_params=True, inner=True)
class _:
    make = Wgan
    batch = staticmethod(lambda device: (torch.randn(32, 3, 32, 32, device=device), torch.randn(32, 64, device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))


class Smart(nn.Module):
    """Virtual adversarial training of a small encoder: one step of noise on the embeddings, found by a gradient without a graph."""

    def __init__(self, d=128, depth=3):
        super().__init__()
        self.embed, self.pos = nn.Embedding(1000, d), nn.Parameter(torch.zeros(64, d))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True) for _ in range(depth))
        self.head = nn.Linear(d, 10)

    def encode(self, x):
        x = x + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))

    def forward(self, ids, labels):
        embedded = self.embed(ids)
        logits = self.encode(embedded)
        noise = (torch.randn_like(embedded) * 1e-3).requires_grad_(True)
        moved = self.encode(embedded.detach() + noise)
        divergence = F.kl_div(F.log_softmax(moved.float(), -1), F.softmax(logits.detach().float(), -1), reduction="batchmean")
        (delta,) = grad(divergence, noise, only_inputs=True, retain_graph=False)
        noise = (noise + 1e-3 * delta / (delta.norm(dim=-1, keepdim=True) + 1e-6)).detach()
        moved = self.encode(embedded + noise)
        smooth = F.kl_div(F.log_softmax(moved.float(), -1), F.softmax(logits.float(), -1), reduction="batchmean")
        return F.cross_entropy(logits.float(), labels) + smooth


@case("smart", [], precisions=BOTH, orig_params=True, inner=True)
class _:
    make = Smart
    batch = staticmethod(lambda device: (torch.randint(0, 1000, (16, 64), device=device), torch.randint(0, 10, (16,), device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))


@case("smart_blocks", ["TransformerEncoderLayer"], precisions=BOTH, orig_params=True, inner=True, versions=(1,))
class _:
    make = Smart
    batch = staticmethod(lambda device: (torch.randint(0, 1000, (16, 64), device=device), torch.randint(0, 10, (16,), device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))


class Maml(nn.Module):
    """Two steps of an inner loop on functional weights, second order."""

    def __init__(self, d=128):
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.randn(d, 16)), nn.Parameter(torch.zeros(d))
        self.w2, self.b2 = nn.Parameter(torch.randn(d, d)), nn.Parameter(torch.zeros(d))
        self.w3, self.b3 = nn.Parameter(torch.randn(1, d)), nn.Parameter(torch.zeros(1))

    @staticmethod
    def net(x, p):
        x = F.relu(F.linear(x, p[0], p[1]))
        x = F.relu(F.linear(x, p[2], p[3]))
        return F.linear(x, p[4], p[5])

    def forward(self, xs, ys, xq, yq):
        total = 0.0
        for task in range(len(xs)):
            fast = [self.w1, self.b1, self.w2, self.b2, self.w3, self.b3]
            for _ in range(2):
                inner = F.mse_loss(self.net(xs[task], fast), ys[task])
                grads = grad(inner, fast, create_graph=True)
                fast = [p - 0.01 * g for p, g in zip(fast, grads)]
            total = total + F.mse_loss(self.net(xq[task], fast), yq[task])
        return total / len(xs)


@case("maml", [], precisions=BOTH, orig_params=True, inner=True)
class _:
    make = Maml
    batch = staticmethod(lambda device: (torch.randn(4, 512, 16, device=device), torch.randn(4, 512, 1, device=device), torch.randn(4, 512, 16, device=device), torch.randn(4, 512, 1, device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))
