"""Recipes of training: self-supervision with queues, centres and targets, reinforcement and preferences, distillation, adapters and quantisers written by hand."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from . import case, ids
from .moderns import RMSNorm, Stacked, SwiGLU, rotary
from .tinkerers import BOTH, on_tokens, tokens


class Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, d, heads=4, causal=False, drop=0.0):
        super().__init__()
        self.norm1, self.norm2, self.heads, self.causal, self.p = nn.LayerNorm(d), nn.LayerNorm(d), heads, causal, drop
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Dropout(drop), nn.Linear(4 * d, d))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    """Positions are resized to the picture (bicubic), a class token in front."""

    def __init__(self, d=96, depth=3, patch=8, grid=8):
        super().__init__()
        self.patch_embed, self.cls_token, self.pos_embed = nn.Conv2d(3, d, patch, patch), nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(torch.zeros(1, 1 + grid * grid, d))
        self.blocks, self.norm, self.grid = nn.ModuleList(Layer(d) for _ in range(depth)), nn.LayerNorm(d), grid

    def interpolated(self, side, like):
        if side == self.grid:
            return self.pos_embed
        first, rest = self.pos_embed[:, :1], self.pos_embed[:, 1:]
        rest = rest.reshape(1, self.grid, self.grid, -1).permute(0, 3, 1, 2).float()
        rest = F.interpolate(rest, size=(side, side), mode="bicubic", align_corners=False)
        return torch.cat([first, rest.permute(0, 2, 3, 1).flatten(1, 2).to(like.dtype)], dim=1)

    def forward(self, x):
        x = self.patch_embed(x)
        side = x.shape[-1]
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = x + self.interpolated(side, x)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class DINOHead(nn.Module):
    def __init__(self, d, out=512):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(d, 256), nn.GELU(), nn.Linear(256, 64))
        self.last_layer = weight_norm(nn.Linear(64, out, bias=False))
        self.last_layer.parametrizations.weight.original0.requires_grad = False

    def forward(self, x):
        return self.last_layer(F.normalize(self.mlp(x), dim=-1, p=2))


class Dino(nn.Module):
    """Two large and four small crops in one step, a frozen teacher, a centre that is moved by assignment."""

    def __init__(self, d=96):
        super().__init__()
        self.student, self.student_head = Vit(d), DINOHead(d)
        self.teacher, self.teacher_head = copy.deepcopy(self.student), DINOHead(d)
        for p in [*self.teacher.parameters(), *self.teacher_head.parameters()]:
            p.requires_grad = False
        self.register_buffer("center", torch.zeros(1, 512))

    def forward(self, large, small):
        with torch.no_grad():
            target = self.teacher_head(self.teacher(large)[:, 0])
            probs = F.softmax((target - self.center) / 0.04, dim=-1).detach().chunk(2)
            self.update_center(target)
        out = torch.cat([self.student(large)[:, 0], self.student(small)[:, 0]])
        out = (self.student_head(out) / 0.1).chunk(6)
        total, count = 0, 0
        for iq, q in enumerate(probs):
            for v in range(len(out)):
                if v == iq:
                    continue
                total += torch.sum(-q * F.log_softmax(out[v], dim=-1), dim=-1).mean()
                count += 1
        return total / count

    @torch.no_grad()
    def update_center(self, teacher_output):
        batch_center = torch.sum(teacher_output, dim=0, keepdim=True) / len(teacher_output)
        self.center = self.center * 0.9 + batch_center * (1 - 0.9)


@case("dino", ["Layer"], precisions=BOTH, orig_params=True)
class _:
    make = Dino
    batch = staticmethod(lambda device: (torch.randn(16, 3, 64, 64, device=device), torch.randn(32, 3, 32, 32, device=device)))
    forward = staticmethod(lambda model, a, b: model(a, b))


class Moco(nn.Module):
    """A queue of keys in a buffer, with its pointer; the encoder of keys follows outside of the step."""

    def __init__(self, d=64, k=1024):
        super().__init__()
        self.k, self.encoder_q = k, nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(inplace=True), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, d))
        self.encoder_k = copy.deepcopy(self.encoder_q).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(d, k), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        place = (torch.arange(keys.shape[0], device=keys.device) + self.queue_ptr) % self.k
        self.queue = self.queue.index_copy(1, place, keys.T.to(self.queue.dtype))
        self.queue_ptr.add_(keys.shape[0]).remainder_(self.k)

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            shuffle = torch.randperm(im_k.shape[0], device=im_k.device)
            keys = F.normalize(self.encoder_k(im_k[shuffle]), dim=1)
            keys = keys[torch.argsort(shuffle)]
        l_pos = torch.einsum("nc,nc->n", [q, keys]).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach().to(q.dtype)])
        logits = torch.cat([l_pos, l_neg], dim=1) / 0.07
        labels = torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device)
        self._dequeue_and_enqueue(keys)
        return F.cross_entropy(logits.float(), labels)


@case("moco", ["Sequential"], precisions=BOTH, orig_params=True)
class _:
    make = Moco
    batch = staticmethod(lambda device: (torch.randn(64, 3, 32, 32, device=device), torch.randn(64, 3, 32, 32, device=device)))
    forward = staticmethod(lambda model, a, b: model(a, b))


class JepaPredictor(nn.Module):
    def __init__(self, d, p=48):
        super().__init__()
        self.embed, self.mask_token, self.pos, self.blocks, self.norm, self.proj = nn.Linear(d, p), nn.Parameter(torch.zeros(1, 1, p)), nn.Parameter(torch.zeros(1, 64, p)), nn.ModuleList(Layer(p) for _ in range(2)), nn.LayerNorm(p), nn.Linear(p, d)

    def forward(self, x, context, targets):
        b = x.shape[0]
        x = self.embed(x) + apply_masks(self.pos.repeat(b, 1, 1), [context])
        n = x.shape[1]
        pos = apply_masks(self.pos.repeat(b, 1, 1), targets)
        tokens_ = self.mask_token.repeat(pos.size(0), pos.size(1), 1) + pos
        x = torch.cat([x.repeat(len(targets), 1, 1), tokens_], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.proj(self.norm(x)[:, n:])


def apply_masks(x, masks):
    return torch.cat([torch.gather(x, dim=1, index=m.unsqueeze(-1).repeat(1, 1, x.size(-1))) for m in masks], dim=0)


class Jepa(nn.Module):
    """I-JEPA: blocks of patches predicted from a context, targets of a frozen copy."""

    def __init__(self, d=96):
        super().__init__()
        self.patch_embed, self.pos = nn.Conv2d(3, d, 8, 8), nn.Parameter(torch.zeros(1, 64, d), requires_grad=False)
        self.blocks, self.target_blocks = nn.ModuleList(Layer(d) for _ in range(3)), nn.ModuleList(Layer(d) for _ in range(3)).requires_grad_(False)
        self.norm, self.predictor = nn.LayerNorm(d), JepaPredictor(d)

    def forward(self, x, context, targets):
        x = self.patch_embed(x).flatten(2).transpose(1, 2) + self.pos
        with torch.no_grad():
            h = x
            for block in self.target_blocks:
                h = block(h)
            h = apply_masks(F.layer_norm(h, (h.size(-1),)), targets)
        z = apply_masks(x, [context])
        for block in self.blocks:
            z = block(z)
        z = self.predictor(self.norm(z), context, targets)
        return F.smooth_l1_loss(z.float(), h.float())


@case("jepa", ["Layer"], precisions=BOTH, orig_params=True, recompute=True)
class _:
    make = Jepa
    batch = staticmethod(lambda device: (torch.randn(16, 3, 64, 64, device=device), ids(64, 16, 30, device=device), [ids(64, 16, 8, device=device) for _ in range(4)]))
    forward = staticmethod(lambda model, *given: model(*given))


class SwAV(nn.Module):
    """Sinkhorn's assignments to prototypes, VICReg's and Barlow's losses on the same projections, running statistics by assignment."""

    def __init__(self, d=128, k=96):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 64, 4, 4), nn.BatchNorm2d(64), nn.ReLU(True), nn.Conv2d(64, d, 2, 2), nn.BatchNorm2d(d), nn.ReLU(True), nn.AdaptiveAvgPool2d(1), nn.Flatten(1))
        self.projection_head = nn.Sequential(nn.Linear(d, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, d))
        self.prototypes, self.bn = nn.Linear(d, k, bias=False), nn.BatchNorm1d(d, affine=False)
        self.register_buffer("running_share", torch.ones(k) / k)

    @torch.no_grad()
    def sinkhorn(self, out):
        Q = torch.exp(out.float() / 0.05).t()
        B, K = Q.shape[1], Q.shape[0]
        Q /= torch.sum(Q)
        for _ in range(3):
            Q /= torch.sum(Q, dim=1, keepdim=True)
            Q /= K
            Q /= torch.sum(Q, dim=0, keepdim=True)
            Q /= B
        Q *= B
        self.running_share = 0.99 * self.running_share + 0.01 * Q.mean(1).to(self.running_share.dtype)
        return Q.t()

    def forward(self, a, b):
        z1, z2 = self.projection_head(self.body(torch.cat([a, b]))).chunk(2)
        p1, p2 = self.prototypes(F.normalize(z1, dim=1)), self.prototypes(F.normalize(z2, dim=1))
        q1, q2 = self.sinkhorn(p1.detach()), self.sinkhorn(p2.detach())
        swap = -0.5 * torch.mean(torch.sum(q1 * F.log_softmax(p2.float() / 0.1, dim=1) + q2 * F.log_softmax(p1.float() / 0.1, dim=1), dim=1))
        n, d = z1.shape
        c = self.bn(z1.float()).T @ self.bn(z2.float())
        c.div_(n)
        on_diag = torch.diagonal(c).add_(-1).pow_(2).sum()
        off = c.flatten()[:-1].view(d - 1, d + 1)[:, 1:].flatten().pow(2).sum()
        std = torch.sqrt(z1.float().var(dim=0) + 0.0001)
        y = z1.float() - z1.float().mean(dim=0)
        cov = (y.T @ y) / (n - 1)
        vic = torch.mean(F.relu(1 - std)) + cov.fill_diagonal_(0).pow_(2).sum().div(d)
        return swap + 0.005 * (on_diag + 0.005 * off) + vic


@case("swav", ["Sequential"], precisions=BOTH)
class _:
    make = SwAV
    batch = staticmethod(lambda device: (torch.randn(64, 3, 32, 32, device=device), torch.randn(64, 3, 32, 32, device=device)))
    forward = staticmethod(lambda model, a, b: model(a, b))


# -------------------------------------------------------------------------------------- reinforcement, preferences


def selective_log_softmax(logits, index):
    """TRL's: rows one by one below float32."""
    if logits.dtype in (torch.float32, torch.float64):
        selected = torch.gather(logits, dim=-1, index=index.unsqueeze(-1)).squeeze(-1)
        return selected - torch.stack([torch.logsumexp(lg, dim=-1) for lg in logits])
    per_token = []
    for row_logits, row_labels in zip(logits, index):
        row = F.log_softmax(row_logits, dim=-1)
        per_token.append(row.gather(dim=-1, index=row_labels.unsqueeze(-1)).squeeze(-1))
    return torch.stack(per_token)


class Agent(nn.Module):
    """A policy, its reference (frozen), and a head of values."""

    def __init__(self, d=128, v=1000):
        super().__init__()
        self.embed, self.layers, self.norm, self.lm_head = nn.Embedding(v, d), nn.ModuleList(Layer(d, causal=True) for _ in range(2)), RMSNorm(d), nn.Linear(d, v, bias=False)
        self.ref_layers = nn.ModuleList(Layer(d, causal=True) for _ in range(2)).requires_grad_(False)
        self.v_head = nn.Sequential(nn.Dropout(0.1), nn.Linear(d, 1))

    def forward(self, x, reference=False):
        h = self.embed(x)
        for layer in self.ref_layers if reference else self.layers:
            h = layer(h)
        h = self.norm(h)
        return self.lm_head(h), self.v_head(h.to(self.v_head[1].weight.dtype)).squeeze(-1)


@case("ppo", ["Layer"], precisions=BOTH, orig_params=True)
class _:
    make = Agent
    batch = staticmethod(lambda device: (ids(1000, 8, 48, device=device), torch.randn(8, 47, device=device), torch.randn(8, 47, device=device), torch.randn(8, 47, device=device), torch.ones(8, 47, dtype=torch.long, device=device)))

    @staticmethod
    def forward(model, x, old_logprobs, old_values, rewards, mask):
        with torch.no_grad():
            ref_logprobs = selective_log_softmax(model(x, reference=True)[0][:, :-1], x[:, 1:])
        logits, vpred = model(x)
        logits, vpred = logits[:, :-1] / 0.7, vpred[:, :-1].float()
        logprobs = selective_log_softmax(logits, x[:, 1:]).float()
        with torch.no_grad():
            kl = logprobs.detach() - ref_logprobs.float()
            rewards = rewards - 0.05 * kl
            lastgaelam, advantages_reversed = 0, []
            for t in reversed(range(rewards.shape[1])):
                nextvalues = old_values[:, t + 1] if t < rewards.shape[1] - 1 else 0.0
                delta = rewards[:, t] + nextvalues - old_values[:, t]
                lastgaelam = delta + 0.95 * lastgaelam
                advantages_reversed.append(lastgaelam)
            advantages = torch.stack(advantages_reversed[::-1], axis=1)
            returns = advantages + old_values
            masked = lambda t: (t * mask).sum() / mask.sum()
            mean = masked(advantages)
            var = masked((advantages - mean) ** 2)
            advantages = (advantages - mean) * torch.rsqrt(var + 1e-8)
        ratio = torch.exp(logprobs - old_logprobs)
        pg = torch.max(-advantages * ratio, -advantages * torch.clamp(ratio, 0.8, 1.2))
        clipped = torch.clamp(vpred, old_values - 0.2, old_values + 0.2)
        vf = 0.5 * masked(torch.max(torch.square(vpred - returns), torch.square(clipped - returns)))
        prob = F.softmax(logits, dim=-1)
        entropy = torch.logsumexp(logits, dim=-1) - torch.sum(prob * logits, dim=-1)
        return masked(pg) + 0.1 * vf - 0.01 * masked(entropy), {"kl": masked(kl), "approxkl": 0.5 * ((logprobs.detach() - old_logprobs) ** 2).mean()}


@case("grpo", ["Layer"], precisions=BOTH, orig_params=True)
class _:
    make = Agent
    batch = staticmethod(lambda device: (ids(1000, 16, 40, device=device), torch.randn(16, device=device), torch.randn(16, 24, device=device), torch.ones(16, 24, device=device)))

    @staticmethod
    def forward(model, x, rewards, old, mask):
        keep = 24

        def logps(reference):
            logits = model(x, reference=reference)[0][:, -keep - 1 : -1]
            return selective_log_softmax(logits / 0.9, x[:, -keep:])

        with torch.no_grad():
            ref = logps(True)
        per = logps(False)
        mean, std = rewards.view(-1, 4).mean(dim=1), rewards.view(-1, 4).std(dim=1)
        advantages = (rewards - mean.repeat_interleave(4, dim=0)) / (std.repeat_interleave(4, dim=0) + 1e-4)
        kl = torch.exp(ref - per) - (ref - per) - 1
        log_ratio = per - old
        weights = ((log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)
        coef_1 = torch.exp(weights.expand_as(per))
        coef_2 = torch.clamp(coef_1, 1 - 0.2, 1 + 0.28)
        loss = -torch.min(coef_1 * advantages.unsqueeze(1), coef_2 * advantages.unsqueeze(1)) + 0.04 * kl
        return ((loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()


class Judge(nn.Module):
    """Bradley and Terry's loss over pairs in one batch, the last token's score, a centring penalty; early exits weigh in."""

    def __init__(self, d=128, v=1000):
        super().__init__()
        self.embed, self.layers, self.score, self.exits = nn.Embedding(v, d, padding_idx=0), nn.ModuleList(Layer(d, causal=True, drop=0.1) for _ in range(4)), nn.Linear(d, 1, bias=False), nn.ModuleList(nn.Sequential(RMSNorm(d), nn.Linear(d, 1)) for _ in range(4))

    def forward(self, x):
        last = (x.ne(0).int() * torch.arange(x.shape[1], device=x.device)).argmax(-1)
        rows = torch.arange(x.shape[0], device=x.device)
        h, scores = self.embed(x), []
        for i, (layer, exit_) in enumerate(zip(self.layers, self.exits)):
            keep = 1.0 - 0.1 * i / 3
            h = h + (layer(h) - h) * torch.empty(x.shape[0], 1, 1, device=x.device, dtype=h.dtype).bernoulli_(keep).div_(keep)
            scores.append(exit_(h[rows, last]))
        return self.score(h)[rows, last], torch.stack(scores)


@case("reward", ["Layer"], precisions=BOTH)
class _:
    make = Judge
    batch = staticmethod(lambda device: (ids(1000, 16, 64, device=device), torch.rand(8, device=device)))

    @staticmethod
    def forward(model, x, margin):
        reward, exits = model(x)
        chosen, rejected = torch.chunk(reward.squeeze(-1).float(), chunks=2)
        loss = -F.logsigmoid(chosen - rejected - margin).mean() + 0.01 * torch.mean((chosen + rejected) ** 2)
        a, b = exits.float().chunk(2, dim=1)
        weight = torch.arange(1, 5, device=x.device).float() / 10
        return loss + torch.einsum("l,lbo->", weight, -F.logsigmoid(a - b)) / 8, {"accuracy": (chosen > rejected).float().mean().detach()}


# ------------------------------------------------------------------------------------------------------ distillation


class Pupil(nn.Module):
    """Generalised knowledge distillation: a frozen teacher of another width inside, divergences of Jensen and Shannon in chunks, hidden states projected."""

    def __init__(self, d=96, t=160, v=1000):
        super().__init__()
        self.student, self.teacher = Stacked([Layer(d, causal=True) for _ in range(2)], d, v), Stacked([Layer(t, causal=True) for _ in range(3)], t, v).requires_grad_(False).eval()
        self.proj = nn.Linear(d, t)

    def hidden(self, net, x):
        h = net.tok_embeddings(x)
        for layer in net.layers:
            h = layer(h)
        return h, net.output(net.norm(h))

    def forward(self, x):
        with torch.no_grad():
            th, tl = self.hidden(self.teacher, x)
        sh, sl = self.hidden(self.student, x)
        total = 0.0
        for s, t in zip(sl.flatten(0, 1).split(96), tl.flatten(0, 1).split(96)):
            s, t = F.log_softmax(s.float() / 2, dim=-1), F.log_softmax(t.float() / 2, dim=-1)
            beta = torch.tensor(0.5, dtype=s.dtype, device=s.device)
            mixture = torch.logsumexp(torch.stack([s + torch.log(1 - beta), t + torch.log(beta)]), dim=0)
            total = total + (beta * F.kl_div(mixture, t, reduction="none", log_target=True) + (1 - beta) * F.kl_div(mixture, s, reduction="none", log_target=True)).sum()
        cosine = F.cosine_embedding_loss(self.proj(sh).flatten(0, 1).float(), th.flatten(0, 1).float(), torch.ones(x.numel(), device=x.device))
        return total / x.numel() + cosine


@case("pupil", ["Layer"], precisions=BOTH, orig_params=True, recompute=True)
class _:
    make = Pupil
    batch = staticmethod(lambda device: (ids(1000, 8, 48, device=device),))
    forward = staticmethod(lambda model, x: model(x))


# --------------------------------------------------------------------------------------------------- adapters by hand


class DoraLinear(nn.Module):
    """Magnitude and direction apart; the norm is not differentiated."""

    def __init__(self, base, rank=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A, self.lora_B = nn.Parameter(torch.zeros(rank, base.in_features)), nn.Parameter(torch.zeros(base.out_features, rank))
        self.m = nn.Parameter(torch.ones(base.out_features))

    def forward(self, x):
        update = self.lora_B @ self.lora_A
        norm = (self.base.weight + 2.0 * update).norm(p=2, dim=1).detach()
        scale = (self.m / norm).view(1, -1)
        out = self.base(F.dropout(x, 0.05, self.training))
        return scale * out + scale * 2.0 * F.linear(F.linear(x, self.lora_A), self.lora_B)


class VeraLinear(nn.Module):
    """Random projections shared by all layers in buffers, two vectors trained."""

    def __init__(self, base, A, B):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.register_buffer("A", A, persistent=False)
        self.register_buffer("B", B, persistent=False)
        self.d, self.b = nn.Parameter(torch.ones(A.shape[0])), nn.Parameter(torch.zeros(base.out_features))

    def forward(self, x):
        return self.base(x) + self.b * F.linear(self.d * F.linear(x, self.A.to(x.dtype)), self.B.to(x.dtype)[: self.b.shape[0]])


class PrefixLayer(nn.Module):
    """Frozen, with keys and values in front, IA3's vectors, DoRA and VeRA on some of its matrices."""

    def __init__(self, d, A, B, heads=4, prefix=8):
        super().__init__()
        self.n1, self.n2, self.heads = RMSNorm(d), RMSNorm(d), heads
        self.q, self.k, self.v, self.o = DoraLinear(nn.Linear(d, d, bias=False)), nn.Linear(d, d, bias=False), VeraLinear(nn.Linear(d, d, bias=False), A, B), nn.Linear(d, d, bias=False)
        self.mlp = SwiGLU(d, 2 * d)
        for part in (self.n1, self.n2, self.k, self.o, self.mlp):
            part.requires_grad_(False)
        self.prefix = nn.Parameter(torch.zeros(2, heads, prefix, d // heads))
        self.l_k, self.l_ff = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))

    def forward(self, x):
        y = self.n1(x)
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in (self.q(y), self.k(y) * self.l_k, self.v(y)))
        q, k, v = rotary(q).transpose(1, 2), rotary(k).transpose(1, 2), v.transpose(1, 2)
        pk, pv = self.prefix[:, None].expand(-1, x.shape[0], -1, -1, -1)
        k, v = torch.cat([pk.to(k.dtype), k], dim=2), torch.cat([pv.to(v.dtype), v], dim=2)
        n, m = q.shape[2], k.shape[2]
        mask = torch.ones(n, m, dtype=torch.bool, device=x.device).tril(m - n)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))
        return x + self.mlp(self.n2(x) * self.l_ff)


class Prefixed(nn.Module):
    def __init__(self, d=128, v=1000, soft=10):
        super().__init__()
        A, B = torch.randn(16, d), torch.randn(d, 16)
        self.embed, self.soft = nn.Embedding(v, d).requires_grad_(False), nn.Parameter(torch.zeros(soft, d))
        self.reparam = nn.Sequential(nn.Linear(d, 2 * d), nn.Tanh(), nn.Linear(2 * d, d))
        self.layers, self.norm = nn.ModuleList(PrefixLayer(d, A, B) for _ in range(3)), RMSNorm(d).requires_grad_(False)

    def forward(self, x):
        soft = self.reparam(self.soft)[None].expand(x.shape[0], -1, -1)
        h = torch.cat([soft, self.embed(x).to(soft.dtype)], dim=1)
        for layer in self.layers:
            h = layer(h)
        return F.linear(self.norm(h[:, soft.shape[1] :]), self.embed.weight)


@case("prefixed", ["PrefixLayer"], precisions=BOTH, orig_params=True, recompute=True)
class _:
    make = Prefixed
    batch = tokens(1000, 8, 54)
    forward = staticmethod(on_tokens)


NF4 = [-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0, 0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]


class MatMul4Bit(torch.autograd.Function):
    @staticmethod
    def dequantized(packed, absmax, table, shape, dtype):
        both = torch.stack([packed >> 4, packed & 0xF], dim=-1).reshape(-1)
        return (table[both.long()].view(-1, 64) * absmax[:, None]).view(shape).to(dtype)

    @staticmethod
    def forward(ctx, x, packed, absmax, table, shape):
        ctx.save_for_backward(packed, absmax, table)
        ctx.shape = shape
        return F.linear(x, MatMul4Bit.dequantized(packed, absmax, table, shape, x.dtype))

    @staticmethod
    def backward(ctx, grad):
        return grad @ MatMul4Bit.dequantized(*ctx.saved_tensors, ctx.shape, grad.dtype), None, None, None, None


class Linear4Bit(nn.Module):
    """A matrix of four bits in buffers, low rank beside it."""

    def __init__(self, i, o, rank=8):
        super().__init__()
        self.shape = (o, i)
        self.register_buffer("packed", torch.zeros(o * i // 2, dtype=torch.uint8))
        self.register_buffer("absmax", torch.ones(o * i // 64))
        self.register_buffer("table", torch.tensor(NF4))
        self.A, self.B = nn.Linear(i, rank, bias=False), nn.Linear(rank, o, bias=False)

    def forward(self, x):
        return MatMul4Bit.apply(x, self.packed, self.absmax, self.table, self.shape) + self.B(self.A(x)) * 2.0


class QloraLayer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2, self.qkv, self.o, self.up, self.down = RMSNorm(d), RMSNorm(d), Linear4Bit(d, 3 * d), Linear4Bit(d, d), Linear4Bit(d, 4 * d), Linear4Bit(4 * d, d)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).unflatten(-1, (3, 4, -1)).unbind(2)
        x = x + self.o(F.scaled_dot_product_attention(rotary(q).transpose(1, 2), rotary(k).transpose(1, 2), v.transpose(1, 2), is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


@case("qlora_by_hand", ["QloraLayer"], precisions=BOTH, recompute=True)
class _:
    make = staticmethod(lambda d=128: Stacked([QloraLayer(d) for _ in range(3)], d, 1000))
    batch = tokens(1000, 8, 64)
    forward = staticmethod(on_tokens)
