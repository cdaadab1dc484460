"""Language models as papers of the last years have them: differential attention, delta rules, shared blocks with adapters by call, memories, dynamic patches, products of keys."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from . import case
from .tinkerers import BOTH, on_tokens, tokens


class RMSNorm(nn.Module):
    """As Llama's: in float32, cast back before the weight."""

    def __init__(self, dim, eps=1e-6, elementwise_affine=True):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim)) if elementwise_affine else None

    def forward(self, x):
        out = (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)).type_as(x)
        return out * self.weight if self.weight is not None else out


class SwiGLU(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w12, self.w3 = nn.Linear(dim, 2 * hidden, bias=False), nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        gate, up = self.w12(x).chunk(2, dim=-1)
        return self.w3(F.silu(gate) * up)


def rotary(x, base=10000.0):
    """[b, n, h, d], halves turned."""
    n, d = x.shape[1], x.shape[-1]
    inv = 1.0 / base ** (torch.arange(0, d, 2, device=x.device).float() / d)
    angle = torch.outer(torch.arange(n, device=x.device).float(), inv)
    cos, sin = angle.cos()[None, :, None].to(x.dtype), angle.sin()[None, :, None].to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Stacked(nn.Module):
    """Embedding, layers, a norm and a head."""

    def __init__(self, layers, d, v, tied=False):
        super().__init__()
        self.tok_embeddings, self.layers, self.norm = nn.Embedding(v, d), nn.ModuleList(layers), RMSNorm(d)
        self.output = nn.Linear(d, v, bias=False)
        if tied:
            self.output.weight = self.tok_embeddings.weight

    def forward(self, x):
        h = self.tok_embeddings(x)
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h))


# ------------------------------------------------------------------------------------------- differential attention


def lambda_init_fn(depth):
    return 0.8 - 0.6 * math.exp(-0.3 * depth)


class MultiheadDiffAttn(nn.Module):
    """Microsoft's unilm: two maps subtracted, heads normalised, keys repeated."""

    def __init__(self, embed_dim, depth, num_heads, num_kv_heads):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.n_rep = num_heads, num_kv_heads, num_heads // num_kv_heads
        self.head_dim = embed_dim // num_heads // 2
        self.scaling = self.head_dim**-0.5
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim // self.n_rep, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim // self.n_rep, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.lambda_init = lambda_init_fn(depth)
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            setattr(self, name, nn.Parameter(torch.zeros(self.head_dim, dtype=torch.float32).normal_(mean=0, std=0.1)))
        self.subln = RMSNorm(2 * self.head_dim, eps=1e-5)

    def forward(self, x, attn_mask=None):
        bsz, n, embed_dim = x.size()
        q = rotary(self.q_proj(x).view(bsz, n, 2 * self.num_heads, self.head_dim)).transpose(1, 2)
        k = rotary(self.k_proj(x).view(bsz, n, 2 * self.num_kv_heads, self.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(bsz, n, self.num_kv_heads, 2 * self.head_dim).transpose(1, 2)
        k = k[:, :, None].expand(bsz, 2 * self.num_kv_heads, self.n_rep, n, self.head_dim).reshape(bsz, -1, n, self.head_dim)
        v = v.repeat_interleave(self.n_rep, dim=1)
        q = q * self.scaling
        attn_weights = torch.matmul(q, k.transpose(-1, -2))
        if attn_mask is None:
            attn_mask = torch.triu(torch.zeros([n, n]).float().fill_(float("-inf")).to(attn_weights), 1)
        attn_weights = torch.nan_to_num(attn_weights)
        attn_weights += attn_mask
        attn_weights = F.softmax(attn_weights, dim=-1, dtype=torch.float32).type_as(attn_weights)
        lambda_1 = torch.exp(torch.sum(self.lambda_q1 * self.lambda_k1, dim=-1).float()).type_as(q)
        lambda_2 = torch.exp(torch.sum(self.lambda_q2 * self.lambda_k2, dim=-1).float()).type_as(q)
        lambda_full = lambda_1 - lambda_2 + self.lambda_init
        attn_weights = attn_weights.view(bsz, self.num_heads, 2, n, n)
        attn_weights = attn_weights[:, :, 0] - lambda_full * attn_weights[:, :, 1]
        attn = self.subln(torch.matmul(attn_weights, v)) * (1 - self.lambda_init)
        return self.out_proj(attn.transpose(1, 2).reshape(bsz, n, self.num_heads * 2 * self.head_dim))


class DiffBlock(nn.Module):
    def __init__(self, d, depth):
        super().__init__()
        self.attn, self.mlp, self.n1, self.n2 = MultiheadDiffAttn(d, depth, 4, 2), SwiGLU(d, 2 * d), RMSNorm(d), RMSNorm(d)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


@case("diff_attention", ["DiffBlock"], precisions=BOTH, recompute=True)
class _:
    make = staticmethod(lambda d=128: Stacked([DiffBlock(d, i) for i in range(3)], d, 1000))
    batch = tokens(1000, 8, 64)
    forward = staticmethod(on_tokens)


# --------------------------------------------------------------------------------------------------------- RWKV-7


class Goose(nn.Module):
    """RWKV-7's time mixing: low-rank gates, keys removed and replaced, values of the first layer mixed in, a loop over time."""

    def __init__(self, d, layer, heads=4, rank=16):
        super().__init__()
        self.layer, self.heads, self.size = layer, heads, d // heads
        for name in ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g"):
            self.register_parameter(name, nn.Parameter(torch.zeros(1, 1, d)))
        self.w0, self.w1, self.w2 = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(torch.zeros(d, rank)), nn.Parameter(torch.zeros(rank, d))
        self.a0, self.a1, self.a2 = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(torch.zeros(d, rank)), nn.Parameter(torch.zeros(rank, d))
        if layer:
            self.v0, self.v1, self.v2 = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(torch.zeros(d, rank)), nn.Parameter(torch.zeros(rank, d))
        self.g1, self.g2 = nn.Parameter(torch.zeros(d, rank)), nn.Parameter(torch.zeros(rank, d))
        self.k_k, self.k_a, self.r_k = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(torch.zeros(heads, d // heads))
        self.receptance, self.key, self.value, self.output = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.ln_x = nn.GroupNorm(heads, d, eps=64e-5)

    def recurrence(self, r, w, k, v, a, b):
        B, T, C = r.size()
        r, k, v, a, b = (t.view(B, T, self.heads, self.size).float() for t in (r, k, v, a, b))
        w = torch.exp(-torch.exp(w.view(B, T, self.heads, self.size).float()))
        out = torch.zeros((B, T, self.heads, self.size), device=r.device, dtype=torch.float)
        state = torch.zeros((B, self.heads, self.size, self.size), device=r.device, dtype=torch.float)
        for t in range(T):
            kk, rr, vv = k[:, t].view(B, self.heads, 1, -1), r[:, t].view(B, self.heads, -1, 1), v[:, t].view(B, self.heads, -1, 1)
            aa, bb = a[:, t].view(B, self.heads, -1, 1), b[:, t].view(B, self.heads, 1, -1)
            state = state * w[:, t, :, None, :] + state @ aa @ bb + vv @ kk
            out[:, t] = (state @ rr).view(B, self.heads, self.size)
        return out.view(B, T, C)

    def forward(self, x, v_first):
        B, T, C = x.size()
        xx = F.pad(x, (0, 0, 1, -1)) - x
        xr, xw, xk, xv, xa, xg = (x + xx * m for m in (self.x_r, self.x_w, self.x_k, self.x_v, self.x_a, self.x_g))
        r, k, v = self.receptance(xr), self.key(xk), self.value(xv)
        w = -F.softplus(-(self.w0 + torch.tanh(xw @ self.w1) @ self.w2)) - 0.5
        if self.layer == 0:
            v_first = v
        else:
            v = v + (v_first - v) * torch.sigmoid(self.v0 + (xv @ self.v1) @ self.v2)
        a = torch.sigmoid(self.a0 + (xa @ self.a1) @ self.a2)
        g = torch.sigmoid(xg @ self.g1) @ self.g2
        kk = F.normalize((k * self.k_k).view(B, T, self.heads, -1), dim=-1, p=2.0).view(B, T, C)
        k = k * (1 + (a - 1) * self.k_a)
        x = self.recurrence(r, w, k, v, -kk, kk * a).to(x.dtype)
        x = self.ln_x(x.view(B * T, C)).view(B, T, C)
        x = x + ((r.view(B, T, self.heads, -1) * k.view(B, T, self.heads, -1) * self.r_k).sum(dim=-1, keepdim=True) * v.view(B, T, self.heads, -1)).view(B, T, C)
        return self.output(x * g), v_first


class GooseBlock(nn.Module):
    def __init__(self, d, layer):
        super().__init__()
        self.ln0 = nn.LayerNorm(d) if layer == 0 else nn.Identity()
        self.ln1, self.ln2, self.att = nn.LayerNorm(d), nn.LayerNorm(d), Goose(d, layer)
        self.x_k, self.key, self.value = nn.Parameter(torch.zeros(1, 1, d)), nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x, v_first):
        x = self.ln0(x)
        y, v_first = self.att(self.ln1(x), v_first)
        x = x + y
        y = self.ln2(x)
        k = torch.relu(self.key(y + (F.pad(y, (0, 0, 1, -1)) - y) * self.x_k)) ** 2
        return x + self.value(k), v_first


class Gooses(nn.Module):
    def __init__(self, d=64, v=500):
        super().__init__()
        self.emb, self.blocks, self.ln_out, self.head = nn.Embedding(v, d), nn.ModuleList(GooseBlock(d, i) for i in range(3)), nn.LayerNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, idx):
        x = self.emb(idx)
        v_first = torch.empty_like(x)
        for block in self.blocks:
            x, v_first = block(x, v_first)
        return self.head(self.ln_out(x))


@case("goose", ["GooseBlock"], precisions=BOTH)
class _:
    make = Gooses
    batch = tokens(500, 4, 24)
    forward = staticmethod(on_tokens)


# ------------------------------------------------------------------------- one block for many places, adapted by place


class ConvMix(nn.Module):
    """A short convolution between two gates (LFM2)."""

    def __init__(self, d, kernel=3):
        super().__init__()
        self.norm, self.in_proj, self.out_proj = RMSNorm(d), nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.conv = nn.Conv1d(d, d, kernel, groups=d, padding=kernel - 1, bias=False)

    def forward(self, x):
        b, c, y = self.in_proj(self.norm(x)).transpose(1, 2).chunk(3, dim=1)
        y = self.conv(b * y)[..., : x.shape[1]]
        return x + self.out_proj((c * y).transpose(1, 2).contiguous())


class SharedBlock(nn.Module):
    """Zamba2: attention over the state and the embeddings, the same weights at every place, low-rank adapters for each place."""

    def __init__(self, d, places, rank=8):
        super().__init__()
        self.norm, self.qkv, self.proj = RMSNorm(2 * d), nn.Linear(2 * d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.norm2, self.gate_up, self.down = RMSNorm(d), nn.Linear(d, 4 * d, bias=False), nn.Linear(2 * d, d, bias=False)
        self.lora = nn.ModuleList(nn.Sequential(nn.Linear(d, rank, bias=False), nn.Linear(rank, 4 * d, bias=False)) for _ in range(places))

    def forward(self, hidden, original, place):
        x = self.norm(torch.concatenate([hidden, original], dim=-1))
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        x = self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        x = self.norm2(x)
        gate, up = (self.gate_up(x) + self.lora[place](x)).chunk(2, dim=-1)
        return self.down(F.gelu(gate) * up)


class Zamba(nn.Module):
    def __init__(self, d=128, v=1000):
        super().__init__()
        self.embed, self.mixers, self.shared = nn.Embedding(v, d), nn.ModuleList(ConvMix(d) for _ in range(6)), SharedBlock(d, 3)
        self.links, self.norm = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(3)), RMSNorm(d)

    def forward(self, x):
        x = original = self.embed(x)
        for i, mixer in enumerate(self.mixers):
            if i % 2 == 0:
                x = x + self.links[i // 2](self.shared(x, original, i // 2))
            x = mixer(x)
        return F.linear(self.norm(x), self.embed.weight)


@case("zamba", ["ConvMix", "SharedBlock"], precisions=BOTH, recompute=True)
class _:
    make = Zamba
    batch = tokens(1000, 8, 96)
    forward = staticmethod(on_tokens)


# -------------------------------------------------------------------------------------- linear recurrences and windows


class RgLru(nn.Module):
    """Griffin: block-diagonal gates, a gated diagonal recurrence, a gelu branch."""

    def __init__(self, d, heads=4):
        super().__init__()
        self.norm, self.x_proj, self.y_proj, self.out = RMSNorm(d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.conv_w, self.conv_b = nn.Parameter(torch.zeros(4, d)), nn.Parameter(torch.zeros(d))
        self.gate_w, self.gate_b = nn.Parameter(torch.zeros(2, heads, d // heads, d // heads)), nn.Parameter(torch.zeros(2, heads, d // heads))
        self.a_param, self.heads = nn.Parameter(torch.zeros(d)), heads

    def forward(self, x):
        y = self.norm(x)
        branch = F.gelu(self.y_proj(y), approximate="tanh")
        y = self.x_proj(y)
        y = sum(F.pad(y, (0, 0, k, 0))[:, : y.shape[1]] * self.conv_w[k] for k in range(4)) + self.conv_b
        blocks = y.unflatten(-1, (self.heads, -1))
        gates = torch.sigmoid(torch.einsum("bthi,ghij->gbthj", blocks, self.gate_w) + self.gate_b[:, None, None]).flatten(3)
        log_a = -8.0 * gates[0].float() * F.softplus(self.a_param.float())
        a = torch.exp(log_a)
        multiplier = torch.sqrt((1 - torch.exp(2 * log_a)).clamp_min(1e-6))
        multiplier = torch.cat([torch.ones_like(multiplier[:, :1]), multiplier[:, 1:]], 1)
        u = y.float() * gates[1].float() * multiplier
        h, out = torch.zeros_like(u[:, 0]), []
        for a_t, u_t in zip(a.unbind(1), u.unbind(1)):
            h = a_t * h + u_t
            out.append(h)
        return x + self.out(torch.stack(out, dim=1).type_as(x) * branch)


class LocalAttention(nn.Module):
    """Keys of the window before, by unfold over padded keys."""

    def __init__(self, d, heads=4, window=16):
        super().__init__()
        self.norm, self.q, self.kv, self.o, self.mlp_norm, self.mlp = RMSNorm(d), nn.Linear(d, d), nn.Linear(d, 2 * (d // heads)), nn.Linear(d, d), RMSNorm(d), SwiGLU(d, 2 * d)
        self.heads, self.window = heads, window

    def forward(self, x):
        b, n, d = x.shape
        y, w = self.norm(x), self.window
        q = rotary(self.q(y).view(b, n, self.heads, -1)).transpose(1, 2)
        k, v = self.kv(y).chunk(2, -1)
        k = rotary(k[:, :, None])[:, :, 0]
        k, v = (F.pad(t, (0, 0, w - 1, 0)).unfold(1, w, 1) for t in (k, v))  # [b, n, d, w]
        score = torch.einsum("bhnd,bndw->bhnw", q, k) * q.shape[-1] ** -0.5
        valid = torch.arange(n, device=x.device)[:, None] + torch.arange(w, device=x.device) >= w - 1
        score = score.masked_fill(~valid, torch.finfo(score.dtype).min)
        out = torch.einsum("bhnw,bndw->bhnd", score.softmax(-1, dtype=torch.float32).to(v.dtype), v)
        x = x + self.o(out.transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.mlp_norm(x))


@case("griffin", ["RgLru", "LocalAttention"], precisions=BOTH)
class _:
    make = staticmethod(lambda d=128: Stacked([RgLru(d), RgLru(d), LocalAttention(d)] * 1, d, 1000, tied=True))
    batch = tokens(1000, 8, 40)
    forward = staticmethod(on_tokens)


# ----------------------------------------------------------------------------------- many residuals, keys of others


class AltUp(nn.Module):
    """Gemma 3n: predicts several residual streams from one, corrects them by what the layer did."""

    def __init__(self, d, k=3):
        super().__init__()
        self.predict, self.correct, self.router, self.norm, self.k = nn.Linear(k, k * k, bias=False), nn.Linear(k, k, bias=False), nn.Linear(d, k, bias=False), RMSNorm(d), k
        self.scale = nn.Parameter(torch.zeros(d))
        self.register_buffer("router_scale", torch.tensor(d**-1.0), persistent=False)

    def modalities(self, x):
        return torch.tanh(self.router(self.norm(x) * self.router_scale).float()).type_as(x)

    def predicted(self, streams):
        coef = self.predict(self.modalities(streams[0])).reshape(*streams.shape[1:-1], self.k, self.k).permute(0, 1, 3, 2)
        out = torch.matmul(streams.permute(1, 2, 3, 0), coef).permute(3, 0, 1, 2)
        out += streams
        return out.contiguous().type_as(streams)

    def corrected(self, predictions, activated):
        innovation = (activated - predictions[0]).repeat(self.k, 1, 1, 1)
        coef = (self.correct(self.modalities(activated)) + 1.0).permute(2, 0, 1).unsqueeze(-1)
        return torch.mul(innovation, coef).add_(predictions).contiguous().type_as(activated)


class Gemma3nLayer(nn.Module):
    def __init__(self, d, per_layer, shares):
        super().__init__()
        self.altup, self.shares = AltUp(d), shares
        self.input_norm, self.q, self.o = RMSNorm(d), nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        if not shares:
            self.k, self.v, self.v_norm = nn.Linear(d, d // 2, bias=False), nn.Linear(d, d // 2, bias=False), RMSNorm(d // 4, elementwise_affine=False)
        self.laurel_left, self.laurel_right, self.laurel_norm = nn.Linear(d, 16, bias=False), nn.Linear(16, d, bias=False), RMSNorm(d)
        self.mlp_norm, self.gate, self.up, self.down = RMSNorm(d), nn.Linear(d, 4 * d, bias=False), nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)
        self.per_gate, self.per_proj, self.per_norm = nn.Linear(d, per_layer, bias=False), nn.Linear(per_layer, d, bias=False), RMSNorm(d)

    def gaussian_topk(self, x):
        """What is above the share of a normal distribution."""
        target = torch.tensor(0.95, dtype=torch.float32, device=x.device)
        std_multiplier = torch.distributions.normal.Normal(0, 1).icdf(target).type(x.dtype)
        mean, std = torch.mean(x, dim=-1, keepdim=True), torch.std(x, dim=-1, keepdim=True, unbiased=False)
        return F.relu(x - (mean + std * std_multiplier))

    def forward(self, streams, per_layer, shared_kv):
        predictions = self.altup.predicted(streams)
        active = predictions[0]
        y = self.input_norm(active)
        laurel = y + self.laurel_norm(self.laurel_right(self.laurel_left(y)))
        q = rotary(self.q(y).unflatten(-1, (4, -1))).transpose(1, 2)
        if self.shares:
            k, v = shared_kv
        else:
            k = rotary(self.k(y).unflatten(-1, (2, -1))).transpose(1, 2)
            v = self.v_norm(self.v(y).unflatten(-1, (2, -1))).transpose(1, 2)
            shared_kv = k, v
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        gated = active + self.o(out.transpose(1, 2).reshape(*y.shape))
        gated = (gated + laurel) / math.sqrt(2)
        y = self.mlp_norm(gated)
        out = gated + self.down(F.gelu(self.gaussian_topk(self.gate(y)), approximate="tanh") * self.up(y))
        corrected = self.altup.corrected(predictions, out)
        first = corrected[0].clone()
        first = self.per_norm(self.per_proj(F.gelu(self.per_gate(first * self.altup.scale), approximate="tanh") * per_layer))
        corrected[1:] += first
        return corrected, shared_kv


class Gemma3n(nn.Module):
    def __init__(self, d=128, v=1000, layers=4, p=32):
        super().__init__()
        self.embed, self.per_layer_embed, self.per_project = nn.Embedding(v, d), nn.Embedding(v, layers * p), nn.Linear(d, layers * p, bias=False)
        self.layers = nn.ModuleList(Gemma3nLayer(d, p, i >= 2) for i in range(layers))
        self.ups, self.downs = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(2)), nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(2))
        self.norm, self.count = RMSNorm(d), layers

    def forward(self, ids_):
        x = self.embed(ids_)
        per_layer = (self.per_project(x) + self.per_layer_embed(ids_)).unflatten(-1, (self.count, -1)) * 0.7071
        target = torch.mean(x**2, dim=-1, keepdim=True) ** 0.5
        streams = [x]
        for up in self.ups:
            y = up(x)
            streams.append(y * target / torch.sqrt(torch.maximum(torch.mean(y**2, dim=-1, keepdim=True), torch.tensor(1e-5, device=y.device))))
        streams, kv = torch.stack(streams, dim=0), None
        for i, layer in enumerate(self.layers):
            streams, kv = layer(streams, per_layer[:, :, i], kv)
        x = torch.stack([streams[0], *(down(streams[k + 1]) for k, down in enumerate(self.downs))]).mean(dim=0)
        logits = F.linear(self.norm(x), self.embed.weight)
        return torch.tanh(logits / 30.0) * 30.0


@case("gemma3n", ["Gemma3nLayer"], precisions=BOTH, recompute=True)
class _:
    make = Gemma3n
    batch = tokens(1000, 8, 64)
    forward = staticmethod(on_tokens)


# ------------------------------------------------------------------------------------------------- recurrent depth


class CoreBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm_1, self.norm_2, self.norm_3, self.norm_4 = (RMSNorm(d) for _ in range(4))
        self.Wqkv, self.proj, self.mlp = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False), SwiGLU(d, 2 * d)
        self.qk_bias = nn.Parameter(torch.zeros(2, 1, 4, d // 4))

    def forward(self, x):
        y = self.norm_1(x)
        q, k, v = self.Wqkv(y).unflatten(-1, (3, 4, -1)).unbind(2)
        q, k = rotary((q + self.qk_bias[0]).to(q.dtype)), rotary((k + self.qk_bias[1]).to(q.dtype))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True).transpose(1, 2).contiguous()
        x = self.norm_2(self.proj(y.flatten(2)) + x)
        return self.norm_4(self.mlp(self.norm_3(x)) + x)


class Huginn(nn.Module):
    """Recurrent depth: a core that is iterated, most of the turns without gradients, from a random state."""

    def __init__(self, d=128, v=1000):
        super().__init__()
        self.wte = nn.Embedding(v, d)
        self.prelude, self.core, self.coda = (nn.ModuleList(CoreBlock(d) for _ in range(k)) for k in (1, 2, 1))
        self.adapter, self.ln_f = nn.Linear(2 * d, d, bias=False), RMSNorm(d)

    def turn(self, x, embedded):
        x = self.adapter(torch.cat([x, embedded], dim=-1))
        for block in self.core:
            x = block(x)
        return x

    def forward(self, idx, without=3, with_=2):
        embedded = self.wte(idx) * math.sqrt(128)
        for block in self.prelude:
            embedded = block(embedded)
        x = torch.nn.init.trunc_normal_(torch.empty_like(embedded), std=0.4, a=-1.2, b=1.2)
        with torch.no_grad():
            for _ in range(without):
                x = self.turn(x, embedded)
        for _ in range(with_):
            x = self.turn(x, embedded)
        for block in self.coda:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


@case("huginn", ["CoreBlock"], precisions=BOTH)
class _:
    make = Huginn
    batch = tokens(1000, 8, 64)
    forward = staticmethod(on_tokens)


# ------------------------------------------------------------------------------------------------ keys by products


class Peer(nn.Module):
    """A million experts of one neuron each: product keys, two tables, einsums over what was retrieved."""

    def __init__(self, d, keys=16, heads=4, topk=4, dim_key=32):
        super().__init__()
        self.norm, self.heads, self.topk, self.num_keys = nn.LayerNorm(d), heads, topk, keys
        self.weight_down_embed, self.weight_up_embed = nn.Embedding(keys**2, d), nn.Embedding(keys**2, d)
        self.to_queries = nn.Linear(d, dim_key * heads * 2, bias=False)
        self.keys = nn.Parameter(torch.zeros(heads, keys, 2, dim_key))
        self.query_norm = nn.BatchNorm1d(dim_key, affine=True)

    def forward(self, x):
        residual = x
        x = self.norm(x)
        b, n, _ = x.shape
        queries = self.to_queries(x).view(b, n, 2, self.heads, -1).permute(2, 0, 1, 3, 4)
        queries = self.query_norm(queries.reshape(-1, queries.shape[-1])).view_as(queries)
        sim = torch.einsum("pbnhd,hkpd->pbnhk", queries, self.keys)
        (scores_x, scores_y), (indices_x, indices_y) = sim.topk(self.topk, dim=-1)
        all_scores = (scores_x[..., :, None] + scores_y[..., None, :]).flatten(-2)
        all_indices = (indices_x[..., :, None] * self.num_keys + indices_y[..., None, :]).flatten(-2)
        scores, pk = all_scores.topk(self.topk, dim=-1)
        indices = all_indices.gather(-1, pk)
        down, up = self.weight_down_embed(indices), self.weight_up_embed(indices)
        y = F.gelu(torch.einsum("bnd,bnhkd->bnhk", x, down)) * F.softmax(scores, dim=-1)
        return residual + torch.einsum("bnhk,bnhkd->bnd", y, up)


@case("peer", ["Peer"], precisions=BOTH)
class _:
    make = staticmethod(lambda d=64: Stacked([Peer(d) for _ in range(3)], d, 500))
    batch = tokens(500, 8, 32)
    forward = staticmethod(on_tokens)


class BalancedMoe(nn.Module):
    """DeepSeek-V3: sigmoid scores, groups limited, a bias moved by counts (a buffer that is replaced), every expert by a mask."""

    def __init__(self, d, experts=8, top=2, hidden=64):
        super().__init__()
        self.norm, self.gate, self.top, self.n = RMSNorm(d), nn.Parameter(torch.zeros(experts, d)), top, experts
        self.w1, self.w2, self.w3 = nn.Parameter(torch.zeros(experts, d, hidden)), nn.Parameter(torch.zeros(experts, hidden, d)), nn.Parameter(torch.zeros(experts, d, hidden))
        self.shared = SwiGLU(d, hidden)
        self.register_buffer("e_score_correction_bias", torch.zeros(experts))
        self.register_buffer("load", torch.zeros(experts))

    def forward(self, x):
        y = self.norm(x)
        flat = y.view(-1, y.shape[-1])
        scores = F.linear(flat.float(), self.gate.float()).sigmoid()
        choice = scores + self.e_score_correction_bias.unsqueeze(0)
        groups = choice.view(-1, 4, self.n // 4).topk(2, dim=-1)[0].sum(dim=-1)
        allowed = torch.zeros_like(groups).scatter_(1, torch.topk(groups, k=2, dim=-1, sorted=False)[1], 1)
        allowed = allowed.unsqueeze(-1).expand(-1, 4, self.n // 4).reshape(-1, self.n)
        index = torch.topk(choice.masked_fill(~allowed.bool(), 0.0), k=self.top, dim=-1, sorted=False)[1]
        weight = scores.gather(1, index)
        weight = weight / (weight.sum(dim=-1, keepdim=True) + 1e-20) * 2.5
        with torch.no_grad():
            counts = F.one_hot(index, self.n).sum((0, 1)).float()
            self.load = 0.9 * self.load + 0.1 * counts
            self.e_score_correction_bias = self.e_score_correction_bias + 1e-3 * torch.sign(counts.mean() - counts)
        dense = torch.zeros(flat.shape[0], self.n, device=x.device, dtype=weight.dtype).scatter(1, index, weight).to(x.dtype)
        h = F.silu(torch.einsum("td,edf->etf", flat, self.w1)) * torch.einsum("td,edf->etf", flat, self.w3)
        out = torch.einsum("etf,efd,te->td", h, self.w2, dense)
        return x + out.view_as(x) + self.shared(y)


@case("balanced_moe", ["BalancedMoe"], precisions=BOTH)
class _:
    make = staticmethod(lambda d=128: Stacked([BalancedMoe(d) for _ in range(3)], d, 1000))
    batch = tokens(1000, 8, 48)
    forward = staticmethod(on_tokens)
