"""Ways to train: two towers, several tasks, teachers and frozen parts, preferences, policies, islands of float32."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

from . import case, ids


class Layer(nn.Module):
    def __init__(self, d, heads=4, causal=False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.c_fc, self.c_proj = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        q, k, v = (z.unflatten(-1, (self.heads, -1)).transpose(1, 2) for z in self.qkv(self.n1(x)).split(x.shape[-1], -1))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2))
        y = self.c_fc(self.n2(x))
        return x + self.c_proj(y * torch.sigmoid(1.702 * y))


# -------------------------------------------------------------------------------------------------------- two towers


class Clip(nn.Module):
    def __init__(self, v=2000, d=128, layers=2):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 8, 8, bias=False)
        self.cls, self.place = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(65, d))
        self.visual = nn.ModuleList(Layer(d) for _ in range(layers))
        self.token, self.text_place = nn.Embedding(v, d), nn.Parameter(torch.zeros(32, d))
        self.text = nn.ModuleList(Layer(d, causal=True) for _ in range(layers))
        self.ln_v, self.ln_t = nn.LayerNorm(d), nn.LayerNorm(d)
        self.proj_v, self.proj_t = nn.Parameter(torch.zeros(d, 64)), nn.Parameter(torch.zeros(d, 64))
        self.logit_scale, self.logit_bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def image(self, x):
        x = self.patch(x).reshape(x.shape[0], self.cls.shape[0], -1).permute(0, 2, 1)
        cls = self.cls + torch.zeros(x.shape[0], 1, x.shape[-1], dtype=x.dtype, device=x.device)
        x = torch.cat([cls, x], dim=1) + self.place
        for layer in self.visual:
            x = layer(x)
        return self.ln_v(x[:, 0]) @ self.proj_v

    def words(self, text):
        x = self.token(text) + self.text_place
        for layer in self.text:
            x = layer(x)
        x = self.ln_t(x)
        return x[torch.arange(x.shape[0], device=x.device), text.argmax(dim=-1)] @ self.proj_t

    def forward(self, images, text):
        u, v = self.image(images), self.words(text)
        u, v = u / u.norm(dim=1, keepdim=True), v / v.norm(dim=1, keepdim=True)
        scale = self.logit_scale.exp().clamp(max=100)
        logits = scale * u @ v.t()
        pairs = F.logsigmoid((2 * torch.eye(u.shape[0], device=u.device, dtype=u.dtype) - 1) * (logits.detach() + self.logit_bias))
        return logits, logits.t(), pairs


@case("clip", ["Layer"])
class _:
    make = Clip
    batch = staticmethod(lambda device: (torch.randn(32, 3, 64, 64, device=device), ids(2000, 32, 32, device=device)))

    @staticmethod
    def forward(model, images, text):
        a, b, pairs = model(images, text)
        labels = torch.arange(a.shape[0], device=a.device)
        return (F.cross_entropy(a, labels) + F.cross_entropy(b, labels)) / 2 - pairs.sum() / a.shape[0]


# ---------------------------------------------------------------------------------------------------------- many losses


class ManyTasks(nn.Module):
    """One trunk; tokens, spans, a score, tags and depths; losses weighed by learned uncertainties."""

    def __init__(self, v=1500, d=128, layers=3):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.trunk = nn.ModuleList(Layer(d) for _ in range(layers))
        self.tokens, self.span, self.tags = nn.Linear(d, v), nn.Linear(d, 2), nn.Linear(d, 12)
        self.score = nn.Sequential(nn.Linear(d, d), nn.Tanh(), nn.Dropout(0.1), nn.Linear(d, 1))
        self.left, self.right, self.pair = nn.Linear(d, 64), nn.Linear(d, 64), nn.Parameter(torch.zeros(64, 4))
        self.log_var = nn.Parameter(torch.zeros(5))

    def forward(self, x):
        h = self.embed(x)
        for layer in self.trunk:
            h = layer(h)
        start, end = self.span(h).split(1, dim=-1)
        pairs = torch.einsum("btr,btr,rk->btk", self.left(h[:, :-1]), self.right(h[:, 1:]), self.pair)
        return self.tokens(h), start.squeeze(-1), end.squeeze(-1), self.tags(h), self.score(h.mean(1)).squeeze(-1), pairs, self.log_var


@case("many_tasks", ["Layer"])
class _:
    make = ManyTasks
    batch = staticmethod(
        lambda device: (
            ids(1500, 8, 96, device=device), ids(96, 8, 2, device=device), torch.zeros(8, 96, 12, device=device),
            torch.randn(8, device=device), ids(4, 8, 95, device=device),
        )
    )  # fmt: skip

    @staticmethod
    def forward(model, x, span, tags, score, pair):
        tokens, start, end, tag, value, pairs, weights = model(x)
        losses = torch.stack([
            F.cross_entropy(tokens.float().transpose(1, 2), x),
            (F.cross_entropy(start, span[:, 0]) + F.cross_entropy(end, span[:, 1])).float() / 2,
            F.multilabel_soft_margin_loss(tag.flatten(0, 1).float(), tags.flatten(0, 1)),
            F.mse_loss(value.float(), score),
            F.cross_entropy(pairs.flatten(0, 1).float(), pair.flatten()),
        ])  # fmt: skip
        return (torch.exp(-weights.float()) * losses + weights.float()).sum()


# ------------------------------------------------------------------------------------------------- teachers, frozen parts


class SelfDistilled(nn.Module):
    """A student, its running mean as a teacher without gradients, a centre that forward moves."""

    def __init__(self, d=128, layers=3, out=512):
        super().__init__()
        body = nn.ModuleList([nn.Conv2d(3, d, 8, 8), *(Layer(d) for _ in range(layers)), nn.Linear(d, out, bias=False)])
        self.student, self.teacher = body, copy.deepcopy(body).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(1, out))

    @staticmethod
    def embed(body, x):
        x = body[0](x).flatten(2).mT
        for layer in body[1:-1]:
            x = layer(x)
        return body[-1](F.normalize(x.mean(1), dim=-1))

    def forward(self, views):
        student = self.embed(self.student, views)
        with torch.no_grad():
            teacher = self.embed(self.teacher, views[: views.shape[0] // 2])
            target = F.softmax((teacher - self.centre) / 0.04, dim=-1)
            self.centre.mul_(0.9).add_(teacher.mean(0, keepdim=True), alpha=0.1)
        a, b = student.float().chunk(2)
        loss = sum(torch.sum(-target.detach() * F.log_softmax(z / 0.1, -1), -1).mean() for z in (a, b))
        return loss


@case("self_distilled", ["Layer"], orig_params=True)
class _:
    make = SelfDistilled
    batch = staticmethod(lambda device: (torch.randn(32, 3, 64, 64, device=device),))

    @staticmethod
    def forward(model, views):
        return model(views)


class Multimodal(nn.Module):
    """A frozen picture encoder, a trained projector, a decoder whose embeddings are frozen."""

    def __init__(self, v=2000, d=160, layers=2):
        super().__init__()
        self.patch, self.vision = nn.Conv2d(3, 96, 8, 8), nn.ModuleList(Layer(96) for _ in range(2))
        self.project = nn.Sequential(nn.Linear(96, d), nn.GELU(), nn.Linear(d, d))
        self.embed = nn.Embedding(v, d)
        self.layers = nn.ModuleList(Layer(d, causal=True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, v, bias=False)
        for part in (self.patch, self.vision, self.embed):
            part.requires_grad_(False)

    def forward(self, pixels, tokens):
        with torch.no_grad():
            x = self.patch(pixels).flatten(2).mT
            for layer in self.vision:
                x = layer(x)
        seen = self.project(x)
        h = torch.cat([seen, self.embed(tokens)], 1)
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h[:, seen.shape[1] :]))


@case("multimodal", ["Layer"], orig_params=True)
class _:
    make = Multimodal
    batch = staticmethod(lambda device: (torch.randn(8, 3, 64, 64, device=device), ids(2000, 8, 64, device=device)))

    @staticmethod
    def forward(model, pixels, tokens):
        logits = model(pixels, tokens)
        shift, labels = logits[..., :-1, :].contiguous(), tokens[..., 1:].contiguous()
        return F.cross_entropy(shift.view(-1, shift.shape[-1]).float(), labels.view(-1))


class Lm(nn.Module):
    def __init__(self, v=2000, d=160, layers=3):
        super().__init__()
        self.embed, self.place = nn.Embedding(v, d), nn.Embedding(128, d)
        self.layers = nn.ModuleList(Layer(d, causal=True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, v, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        h = self.embed(x) + self.place(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


@case("preferences", ["Layer"])
class _:
    """DPO: chosen and rejected in one batch, the reference's log-probabilities given."""

    make = Lm
    batch = staticmethod(lambda device: (ids(2000, 8, 96, device=device), torch.ones(8, 95, device=device), torch.randn(8, device=device)))

    @staticmethod
    def forward(model, tokens, mask, reference):
        logits = model(tokens)[:, :-1].float()
        logps = torch.gather(logits.log_softmax(-1), dim=2, index=tokens[:, 1:].unsqueeze(2)).squeeze(2)
        logps = (logps * mask).sum(-1)
        gap = (logps - reference).chunk(2)
        return -F.logsigmoid(0.1 * (gap[0] - gap[1])).mean()


class ActorCritic(nn.Module):
    def __init__(self, d=192, actions=18):
        super().__init__()
        self.seen = nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 81, d))
        self.body = nn.ModuleList(Wide(d) for _ in range(3))
        self.actor, self.critic = nn.Linear(d, actions), nn.Linear(d, 1)

    def forward(self, x):
        h = self.seen(x / 255.0)
        for layer in self.body:
            h = layer(h)
        return self.actor(h), self.critic(h).flatten()


class Wide(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))


@case("policy", ["Wide"], precisions=["float32"])
class _:
    """PPO's update, with its distribution, clipped ratios and entropy."""

    make = ActorCritic
    batch = staticmethod(
        lambda device: (
            torch.randn(64, 4, 84, 84, device=device), ids(18, 64, device=device), torch.randn(64, device=device),
            torch.randn(64, device=device), torch.randn(64, device=device),
        )
    )  # fmt: skip

    @staticmethod
    def forward(model, x, action, old, advantage, returns):
        logits, value = model(x)
        chosen = torch.distributions.Categorical(logits=logits, validate_args=False)
        ratio = (chosen.log_prob(action) - old).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy = torch.max(-advantage * ratio, -advantage * torch.clamp(ratio, 0.8, 1.2)).mean()
        return policy + 0.5 * 0.5 * ((value - returns) ** 2).mean() - 0.01 * chosen.entropy().mean()


# --------------------------------------------------------------------------------------------------- kinds of numbers


class Island(nn.Module):
    """Norm, softmax and gate in float32, products in the parameters' own type, Gumbel noise over the gate."""

    def __init__(self, d, experts=4):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.gate = nn.Linear(d, experts)
        self.up, self.down = nn.Parameter(torch.zeros(experts, d, d)), nn.Parameter(torch.zeros(experts, d, d))

    def forward(self, x):
        y = F.layer_norm(x.float(), x.shape[-1:], self.norm.weight.float(), self.norm.bias.float()).to(x.dtype)
        score = torch.baddbmm(
            torch.empty(1, 1, 1, device=x.device, dtype=x.dtype), self.q(y), self.k(y).transpose(1, 2), beta=0, alpha=x.shape[-1] ** -0.5
        )
        x = x + self.o(torch.bmm(torch.softmax(score, -1, dtype=torch.float32).type_as(x), self.v(y)))
        chance = F.gumbel_softmax(F.linear(x.float(), self.gate.weight.float(), self.gate.bias.float()), tau=0.5, hard=True)
        out = torch.einsum("btd,edf->btef", x, self.up)
        out = torch.einsum("btef,efd->bted", F.hardswish(out), self.down)
        return x + (out.float() * chance.unsqueeze(-1)).sum(2).to(x.dtype)


class Islands(nn.Module):
    def __init__(self, v=2000, d=128, layers=3):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.layers = nn.ModuleList(Island(d) for _ in range(layers))
        self.head = nn.Linear(d, v, bias=False)

    def forward(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        logits = self.head(h).float()
        return 30.0 * torch.tanh(logits / 30.0)


@case("float32_islands", ["Island"])
class _:
    make = Islands
    batch = staticmethod(lambda device: (ids(2000, 8, 64, device=device), ids(2000, 8, 64, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") / y.numel()
