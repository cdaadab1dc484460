"""Language models and tables once more: speculative heads, layers that are skipped, hashed experts, gates over chunks, memories that learn in closed form, several streams, sparse attention by blocks, QAT."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver, MovingAveragePerChannelMinMaxObserver

from . import case, ids
from .inventors import KtoBlock
from .moderns import RMSNorm, Stacked, SwiGLU, rotary
from .tinkerers import BOTH, Mlp, on_tokens, token_loss, tokens


class MedusaHead(nn.Module):
    def __init__(self, d, v):
        super().__init__()
        self.linear, self.out = nn.Linear(d, d), nn.Linear(d, v, bias=False)

    def forward(self, h):
        return self.out(h + F.silu(self.linear(h)))


class Medusa(nn.Module):
    """A frozen base; heads that guess further ahead, their losses weighed by distance."""

    def __init__(self, d=128, depth=3, v=1000, heads=4):
        super().__init__()
        self.base = Stacked([KtoBlock(d) for _ in range(depth)], d, v)
        for p in self.base.parameters():
            p.requires_grad = False
        self.medusa_head = nn.ModuleList(MedusaHead(d, v) for _ in range(heads))

    def forward(self, x, labels):
        with torch.no_grad():
            h = self.base.tok_embeddings(x)
            for layer in self.base.layers:
                h = layer(h)
            h = self.base.norm(h)
        logits = torch.stack([head(h) for head in self.medusa_head])
        loss = 0
        for i in range(len(logits)):
            guess, aim = logits[i, :, : -(2 + i)], labels[:, 2 + i :]
            loss = loss + F.cross_entropy(guess.reshape(-1, guess.shape[-1]).float(), aim.reshape(-1)) * 0.8**i
        return loss


@case("medusa", ["KtoBlock", "MedusaHead"], precisions=BOTH, orig_params=True)
class _:
    make = Medusa
    batch = tokens(1000, 8, 96)
    forward = staticmethod(lambda model, x, y: model(x, y))


class LayerSkip(nn.Module):
    """Layers dropped by depth, every exit through one norm and head."""

    def __init__(self, d=128, depth=4, v=1000):
        super().__init__()
        self.tok_embeddings, self.layers, self.norm = nn.Embedding(v, d), nn.ModuleList(KtoBlock(d) for _ in range(depth)), RMSNorm(d)
        self.output = nn.Linear(d, v, bias=False)
        self.output.weight = self.tok_embeddings.weight

    def forward(self, x, y):
        h, loss, total = self.tok_embeddings(x), 0.0, 0.0
        for i, layer in enumerate(self.layers):
            keep = torch.rand(x.shape[0], 1, 1, device=x.device) >= 0.2 * i / len(self.layers)
            h = torch.where(keep, layer(h), h)
            scale = (i + 1) / len(self.layers)
            loss = loss + scale * token_loss(self.output(self.norm(h)), y)
            total += scale
        return loss / total


@case("layerskip", ["KtoBlock"], precisions=BOTH, recompute=True)
class _:
    make = LayerSkip
    batch = tokens(1000, 8, 96)
    forward = staticmethod(lambda model, x, y: model(x, y))


class HashExperts(nn.Module):
    """Who computes a token is what it is: a table of hashes, no router."""

    def __init__(self, d, f, experts, v):
        super().__init__()
        self.register_buffer("table", torch.randint(0, experts, (v,)), persistent=False)
        self.w1, self.w2 = nn.Parameter(torch.randn(experts, d, f)), nn.Parameter(torch.randn(experts, f, d))
        self.experts = experts

    def forward(self, x, ids_):
        b, n, d = x.shape
        where = F.one_hot(self.table[ids_].reshape(-1), self.experts)
        place = (where.cumsum(0) - 1) * where
        slot = place.sum(-1)
        capacity = math.ceil(1.5 * b * n / self.experts)
        fits = slot < capacity
        mask = where.to(x.dtype)[:, :, None] * F.one_hot(slot.clamp(max=capacity - 1), capacity).to(x.dtype)[:, None] * fits[:, None, None]
        inputs = torch.einsum("tec,td->ecd", mask, x.reshape(-1, d))
        hidden = F.gelu(torch.bmm(inputs, self.w1))
        return torch.einsum("tec,ecd->td", mask, torch.bmm(hidden, self.w2)).reshape(b, n, d)


class HashBlock(nn.Module):
    def __init__(self, d, v):
        super().__init__()
        self.attn, self.norm, self.experts = KtoBlock(d), nn.LayerNorm(d), HashExperts(d, 2 * d, 8, v)

    def forward(self, x, ids_):
        x = self.attn(x)
        return x + self.experts(self.norm(x), ids_)


class HashMoe(nn.Module):
    def __init__(self, d=96, depth=2, v=1000):
        super().__init__()
        self.embed, self.layers, self.head = nn.Embedding(v, d, padding_idx=0), nn.ModuleList(HashBlock(d, v) for _ in range(depth)), nn.Linear(d, v)

    def forward(self, x):
        h = self.embed(x) * self.embed.embedding_dim**0.5
        for layer in self.layers:
            h = layer(h, x)
        return self.head(h)


@case("hash_moe", ["HashBlock"], precisions=BOTH, recompute=True)
class _:
    make = HashMoe
    batch = tokens(1000, 4, 96)
    forward = staticmethod(on_tokens)


class GlaBlock(nn.Module):
    """Gated linear attention: chunks in a loop, a state between them, gates through a low rank."""

    def __init__(self, d, heads=4, chunk=32):
        super().__init__()
        self.heads, self.chunk, self.norm = heads, chunk, RMSNorm(d)
        self.q, self.k, self.v, self.g = nn.Linear(d, d // 2, bias=False), nn.Linear(d, d // 2, bias=False), nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.gk = nn.Sequential(nn.Linear(d, 16, bias=False), nn.Linear(16, d // 2))
        self.out_norm, self.o, self.mlp_norm, self.mlp = RMSNorm(d // heads), nn.Linear(d, d, bias=False), RMSNorm(d), SwiGLU(d, 2 * d)

    def attend(self, x):
        b, n, d = x.shape
        split = lambda t: t.reshape(b, n // self.chunk, self.chunk, self.heads, -1).permute(1, 0, 3, 2, 4)  # noqa: E731
        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        gate = split(F.logsigmoid(self.gk(x).float()) / 16).cumsum(-2)
        state = x.new_zeros(b, self.heads, q.shape[-1], v.shape[-1], dtype=torch.float32)
        causal = torch.ones(self.chunk, self.chunk, dtype=torch.bool, device=x.device).tril()
        out = []
        for i in range(q.shape[0]):
            last = gate[i, :, :, -1:]
            q_, k_ = q[i].float() * gate[i].exp(), k[i].float() * (-gate[i]).exp()
            scores = (q_ @ k_.transpose(-1, -2)).masked_fill(~causal, 0.0)
            out.append(scores @ v[i].float() + q_ @ state)
            state = state * last.transpose(-1, -2).exp() + (k[i].float() * (last - gate[i]).exp()).transpose(-1, -2) @ v[i].float()
        y = torch.stack(out).permute(1, 0, 3, 2, 4).reshape(b, n, self.heads, -1).to(x.dtype)
        return self.o((self.out_norm(y).reshape(b, n, d)) * F.silu(self.g(x)))

    def forward(self, x):
        x = x + self.attend(self.norm(x))
        return x + self.mlp(self.mlp_norm(x))


@case("gla", ["GlaBlock"], precisions=BOTH, recompute=True)
class _:
    make = staticmethod(lambda: Stacked([GlaBlock(128) for _ in range(3)], 128, 1000))
    batch = tokens(1000, 4, 128)
    forward = staticmethod(on_tokens)


class TttBlock(nn.Module):
    """A layer whose weights are a hidden state, learnt chunk by chunk with its gradient in closed form."""

    def __init__(self, d, heads=4, chunk=16):
        super().__init__()
        self.heads, self.chunk, hd = heads, chunk, d // heads
        self.norm, self.qkv, self.lr = nn.LayerNorm(d), nn.Linear(d, 3 * d, bias=False), nn.Linear(d, heads)
        self.w1, self.b1 = nn.Parameter(torch.randn(heads, hd, hd)), nn.Parameter(torch.zeros(heads, 1, hd))
        self.ln_w, self.ln_b, self.o, self.post = nn.Parameter(torch.ones(heads, 1, hd)), nn.Parameter(torch.zeros(heads, 1, hd)), nn.Linear(d, d, bias=False), nn.LayerNorm(d)
        self.mlp = Mlp(d)

    def learnt(self, q, k, v, eta):
        w, b, out = self.w1.expand(q.shape[1], -1, -1, -1), self.b1.expand(q.shape[1], -1, -1, -1), []
        for i in range(q.shape[0]):
            z = k[i] @ w + b
            mu, var = z.mean(-1, keepdim=True), z.var(-1, keepdim=True, unbiased=False)
            std = torch.sqrt(var + 1e-6)
            hat = (z - mu) / std
            grad_out = self.ln_w * hat + self.ln_b - (v[i] - k[i])
            grad_hat = grad_out * self.ln_w
            size = z.shape[-1]
            g = (1.0 / size) * (size * grad_hat - grad_hat.sum(-1, keepdim=True) - hat * (grad_hat * hat).sum(-1, keepdim=True)) / std
            step = eta[i] * g
            mask = torch.tril(q[i] @ k[i].transpose(-1, -2))
            out.append(q[i] @ w - mask @ step + b - torch.cumsum(step, dim=-2))
            w = w - k[i].transpose(-1, -2) @ step
            b = b - step.sum(-2, keepdim=True)
        return torch.stack(out)

    def forward(self, x):
        b, n, d = x.shape
        h = self.norm(x)
        split = lambda t: t.reshape(b, n // self.chunk, self.chunk, self.heads, -1).permute(1, 0, 3, 2, 4)  # noqa: E731
        q, k, v = (split(t) for t in self.qkv(h).chunk(3, -1))
        eta = split(torch.sigmoid(self.lr(h)) / self.chunk)
        y = self.learnt(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, eta)
        y = y.permute(1, 0, 3, 2, 4).reshape(b, n, d)
        return self.mlp(x + self.o(self.post(y)))


@case("ttt", ["TttBlock"], precisions=["float32"], recompute=True)
class _:
    make = staticmethod(lambda: Stacked([TttBlock(128) for _ in range(2)], 128, 1000))
    batch = tokens(1000, 4, 64)
    forward = staticmethod(on_tokens)


class HyperConnections(nn.Module):
    """Several residual streams, mixed by weights that hang on them."""

    def __init__(self, d, rate, layer):
        super().__init__()
        self.static_beta, self.rate = nn.Parameter(torch.ones(rate)), rate
        self.static_alpha = nn.Parameter(torch.cat([F.one_hot(torch.tensor([layer % rate]), rate).float().t(), torch.eye(rate)], 1))
        self.alpha_fn, self.alpha_scale = nn.Parameter(torch.zeros(d, rate + 1)), nn.Parameter(torch.ones(1) * 0.01)
        self.beta_fn, self.beta_scale, self.norm = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.ones(1) * 0.01), nn.LayerNorm(d)

    def width(self, h):
        normed = self.norm(h)
        alpha = torch.tanh(normed @ self.alpha_fn) * self.alpha_scale + self.static_alpha
        beta = torch.tanh(normed @ self.beta_fn) * self.beta_scale + self.static_beta
        return alpha.transpose(-1, -2) @ h, beta

    def depth(self, mixed, out, beta):
        return torch.einsum("bld,bln->blnd", out, beta) + mixed[..., 1:, :]


class HyperLayer(nn.Module):
    def __init__(self, d, rate, layer):
        super().__init__()
        self.attn_hc, self.mlp_hc, self.attn, self.mlp = HyperConnections(d, rate, layer), HyperConnections(d, rate, layer), KtoBlock(d), Mlp(d)

    def forward(self, h):
        mixed, beta = self.attn_hc.width(h)
        h = self.attn_hc.depth(mixed, self.attn(mixed[..., 0, :]), beta)
        mixed, beta = self.mlp_hc.width(h)
        return self.mlp_hc.depth(mixed, self.mlp(mixed[..., 0, :]), beta)


class HyperLm(nn.Module):
    def __init__(self, d=96, depth=3, v=1000, rate=4):
        super().__init__()
        self.embed, self.rate, self.layers, self.norm, self.head = nn.Embedding(v, d), rate, nn.ModuleList(HyperLayer(d, rate, i) for i in range(depth)), nn.LayerNorm(d), nn.Linear(d, v)

    def forward(self, x):
        h = self.embed(x).unsqueeze(2).repeat(1, 1, self.rate, 1)
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h.sum(2)))


@case("hyper_streams", ["HyperLayer"], precisions=BOTH, recompute=True)
class _:
    make = HyperLm
    batch = tokens(1000, 4, 96)
    forward = staticmethod(on_tokens)


class NsaBlock(nn.Module):
    """Native sparse attention: keys compressed by block, the best blocks read in full, a window, three gates."""

    def __init__(self, d, heads=4, block=16, chosen=2, window=32):
        super().__init__()
        self.heads, self.block, self.chosen, self.window, hd = heads, block, chosen, window, d // heads
        self.norm, self.qkv, self.gates, self.o = RMSNorm(d), nn.Linear(d, 3 * d, bias=False), nn.Linear(d, 3 * heads), nn.Linear(d, d, bias=False)
        self.ck, self.cv = nn.Linear(block * hd, hd), nn.Linear(block * hd, hd)
        self.mlp_norm, self.mlp = RMSNorm(d), SwiGLU(d, 2 * d)

    def attend(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, -1).unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (rotary(q), rotary(k), v))
        blocks, hd = n // self.block, q.shape[-1]
        kb, vb = k.reshape(b, self.heads, blocks, self.block, hd), v.reshape(b, self.heads, blocks, self.block, hd)
        kc, vc = self.ck(kb.flatten(3)), self.cv(vb.flatten(3))
        at = torch.arange(n, device=x.device)
        past = (torch.arange(blocks, device=x.device)[None] + 1) * self.block <= at[:, None] + self.block
        scores = (q @ kc.transpose(-1, -2)) * hd**-0.5
        probs = scores.masked_fill(~past, -1e4).softmax(-1)
        compressed = probs @ vc
        best = probs.sum(1).topk(self.chosen, dim=-1).indices  # by all heads
        pick = best[:, None, :, :, None, None].expand(-1, self.heads, -1, -1, self.block, hd)
        ks = torch.gather(kb.unsqueeze(2).expand(-1, -1, n, -1, -1, -1), 3, pick).flatten(3, 4)
        vs = torch.gather(vb.unsqueeze(2).expand(-1, -1, n, -1, -1, -1), 3, pick).flatten(3, 4)
        places = (best[..., None] * self.block + torch.arange(self.block, device=x.device)).flatten(2)
        s = torch.einsum("bhnd,bhnkd->bhnk", q, ks) * hd**-0.5
        s = s.masked_fill((places > at[None, :, None])[:, None], -1e4).softmax(-1)
        selected = torch.einsum("bhnk,bhnkd->bhnd", s, vs)
        near = (at[:, None] >= at[None]) & (at[:, None] - at[None] < self.window)
        local = F.scaled_dot_product_attention(q, k, v, attn_mask=near)
        g = torch.sigmoid(self.gates(x)).reshape(b, n, 3, self.heads, 1).permute(2, 0, 3, 1, 4)
        y = g[0] * compressed + g[1] * selected + g[2] * local
        return self.o(y.transpose(1, 2).reshape(b, n, d))

    def forward(self, x):
        x = x + self.attend(self.norm(x))
        return x + self.mlp(self.mlp_norm(x))


@case("nsa", ["NsaBlock"], precisions=BOTH, recompute=True)
class _:
    make = staticmethod(lambda: Stacked([NsaBlock(128) for _ in range(2)], 128, 1000))
    batch = tokens(1000, 2, 128)
    forward = staticmethod(on_tokens)


class Numbers(nn.Module):
    """Periodic embeddings of numbers, each with a layer of its own."""

    def __init__(self, n, d, bands=24):
        super().__init__()
        self.freq = nn.Parameter(torch.randn(n, bands) * 0.1)
        self.weight, self.bias = nn.Parameter(torch.randn(n, 2 * bands, d)), nn.Parameter(torch.zeros(n, d))

    def forward(self, x):
        a = 2 * math.pi * self.freq * x[..., None]
        return F.relu(torch.einsum("bnf,nfd->bnd", torch.cat([a.cos(), a.sin()], -1), self.weight) + self.bias)


class TableBlock(nn.Module):
    def __init__(self, d, first):
        super().__init__()
        self.norm1, self.norm2 = (nn.Identity() if first else nn.LayerNorm(d)), nn.LayerNorm(d)
        self.attn, self.up, self.down, self.drop = nn.MultiheadAttention(d, 8, dropout=0.1, batch_first=True), nn.Linear(d, 4 * d), nn.Linear(2 * d, d), nn.Dropout(0.1)

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.drop(self.attn(h, h, h, need_weights=False)[0])
        a, b = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.drop(self.down(a * F.relu(b)))


class FtTransformer(nn.Module):
    def __init__(self, d=128, numbers=20, sizes=(10, 50, 7, 300), depth=3):
        super().__init__()
        self.numbers, self.cls = Numbers(numbers, d), nn.Parameter(torch.randn(1, 1, d))
        self.categories, self.bias = nn.Embedding(sum(sizes), d), nn.Parameter(torch.zeros(len(sizes), d))
        self.register_buffer("offsets", torch.tensor([0, *sizes[:-1]]).cumsum(0))
        self.blocks, self.head = nn.ModuleList(TableBlock(d, i == 0) for i in range(depth)), nn.Sequential(nn.LayerNorm(d), nn.ReLU(), nn.Linear(d, 1))

    def forward(self, x, c):
        tokens_ = torch.cat([self.cls.expand(len(x), -1, -1), self.numbers(x), self.categories(c + self.offsets) + self.bias], 1)
        for block in self.blocks:
            tokens_ = block(tokens_)
        return self.head(tokens_[:, 0]).squeeze(-1)


@case("ft_transformer", ["TableBlock"], precisions=BOTH, recompute=True)
class _:
    make = FtTransformer
    batch = staticmethod(lambda device: (torch.randn(256, 20, device=device), ids(7, 256, 4, device=device), torch.rand(256, device=device)))
    forward = staticmethod(lambda model, x, c, y: F.binary_cross_entropy_with_logits(model(x, c).float(), y))


class SasBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(d, eps=1e-8), nn.MultiheadAttention(d, 2, dropout=0.2), nn.LayerNorm(d, eps=1e-8)
        self.conv1, self.conv2, self.drop = nn.Conv1d(d, d, 1), nn.Conv1d(d, d, 1), nn.Dropout(0.2)

    def forward(self, x, mask, pad):
        x = x.transpose(0, 1)
        q = self.norm1(x)
        x = (q + self.attn(q, x, x, attn_mask=mask)[0]).transpose(0, 1)
        h = self.norm2(x)
        h = h + self.drop(self.conv2(F.relu(self.drop(self.conv1(h.transpose(-1, -2))))).transpose(-1, -2))
        return h * ~pad.unsqueeze(-1)


class SasRec(nn.Module):
    """Sequences of items with padding, one positive and one negative for each place."""

    def __init__(self, items=5000, d=64, n=100, depth=2):
        super().__init__()
        self.item_emb, self.pos_emb, self.drop = nn.Embedding(items + 1, d, padding_idx=0), nn.Embedding(n + 1, d, padding_idx=0), nn.Dropout(0.2)
        self.blocks, self.last = nn.ModuleList(SasBlock(d) for _ in range(depth)), nn.LayerNorm(d, eps=1e-8)

    def forward(self, seqs, pos, neg):
        x = self.item_emb(seqs)
        x *= self.item_emb.embedding_dim**0.5
        places = torch.arange(1, seqs.shape[1] + 1, device=seqs.device)[None].expand(seqs.shape[0], -1) * (seqs != 0)
        x = self.drop(x + self.pos_emb(places))
        pad = seqs == 0
        x *= ~pad.unsqueeze(-1)
        mask = ~torch.tril(torch.ones(seqs.shape[1], seqs.shape[1], dtype=torch.bool, device=seqs.device))
        for block in self.blocks:
            x = block(x, mask, pad)
        h = self.last(x)
        up, down = (h * self.item_emb(pos)).sum(-1), (h * self.item_emb(neg)).sum(-1)
        return F.binary_cross_entropy_with_logits(up, torch.ones_like(up)) + F.binary_cross_entropy_with_logits(down, torch.zeros_like(down))


@case("sasrec", ["SasBlock"], precisions=BOTH)
class _:
    make = SasRec
    batch = staticmethod(lambda device: tuple(ids(5000, 32, 100, device=device) for _ in range(3)))
    forward = staticmethod(lambda model, *batch: model(*batch))


def _weights():
    return FakeQuantize(MovingAveragePerChannelMinMaxObserver, quant_min=-128, quant_max=127, dtype=torch.qint8, qscheme=torch.per_channel_symmetric)


def _activations():
    return FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255, dtype=torch.quint8, qscheme=torch.per_tensor_affine)


class QatLinear(nn.Linear):
    """PyTorch's own fake quantisation, observers' ranges in buffers."""

    def __init__(self, i, o):
        super().__init__(i, o)
        self.weight_fq, self.act_fq = _weights(), _activations()
        for fq in (self.weight_fq, self.act_fq):
            fq.disable_observer()
        self.weight_fq.scale, self.weight_fq.zero_point = torch.ones(o), torch.zeros(o, dtype=torch.int32)

    def forward(self, x):
        return F.linear(self.act_fq(x), self.weight_fq(self.weight), self.bias)


class QatBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down, self.mix = nn.LayerNorm(d), QatLinear(d, 2 * d), QatLinear(2 * d, d), nn.Linear(64, 64)

    def forward(self, x):
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        return x + self.down(F.hardswish(self.up(self.norm(x))))


@case("qat", ["QatBlock"], precisions=["float32"], strict=False)
class _:
    make = staticmethod(lambda: Stacked([QatBlock(128) for _ in range(3)], 128, 1000))
    batch = tokens(1000, 8, 64)
    forward = staticmethod(on_tokens)


