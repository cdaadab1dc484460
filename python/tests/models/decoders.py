"""Language models: nanoGPT, Meta's Llama code, tied weights, padding masks, losses, adapters, experts."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from . import case, ids

V, B, T = 4096, 8, 512


# ------------------------------------------------------------------------------------------------------- nanoGPT


class CausalSelfAttention(nn.Module):
    def __init__(self, d, heads, dropout=0.1):
        super().__init__()
        self.c_attn = nn.Linear(d, 3 * d)
        self.c_proj = nn.Linear(d, d)
        self.attn_dropout, self.resid_dropout = nn.Dropout(dropout), nn.Dropout(dropout)
        self.n_head, self.n_embd, self.dropout = heads, d, dropout

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=None, dropout_p=self.dropout if self.training else 0, is_causal=True
        )
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class GptMlp(nn.Module):
    def __init__(self, d, dropout=0.1):
        super().__init__()
        self.c_fc, self.gelu, self.c_proj = nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = self.c_fc(x)
        x = self.gelu(x)
        x = self.c_proj(x)
        x = self.dropout(x)
        return x


class GptBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(d), CausalSelfAttention(d, heads)
        self.ln_2, self.mlp = nn.LayerNorm(d), GptMlp(d)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class NanoGpt(nn.Module):
    def __init__(self, d=256, layers=4, heads=4):
        super().__init__()
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(V, d),
                wpe=nn.Embedding(T, d),
                drop=nn.Dropout(0.1),
                h=nn.ModuleList([GptBlock(d, heads) for _ in range(layers)]),
                ln_f=nn.LayerNorm(d),
            )
        )
        self.lm_head = nn.Linear(d, V, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        tok_emb = self.transformer.wte(idx)
        pos_emb = self.transformer.wpe(pos)
        x = self.transformer.drop(tok_emb + pos_emb)
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        logits = self.lm_head(x)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss


@case("nanogpt", ["GptBlock"])
class _:
    make = NanoGpt
    batch = staticmethod(lambda device: (ids(V, B, T, device=device), ids(V, B, T, device=device)))

    @staticmethod
    def forward(model, x, y):
        logits, loss = model(x, y)
        return loss, logits  # the training loop has a name for both


# -------------------------------------------------------------------------------------------------- Meta's Llama


class MetaRMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float()).type_as(x)
        return output * self.weight


def reshape_for_broadcast(freqs_cis, x):
    shape = [d if i == 1 or i == x.ndim - 1 else 1 for i, d in enumerate(x.shape)]
    return freqs_cis.view(*shape)


def apply_rotary_emb(xq, xk, freqs_cis):
    xq_ = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = torch.view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    freqs_cis = reshape_for_broadcast(freqs_cis, xq_)
    xq_out = torch.view_as_real(xq_ * freqs_cis).flatten(3)
    xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(3)
    return xq_out.type_as(xq), xk_out.type_as(xk)


def repeat_kv(x, n_rep):
    bs, slen, n_kv_heads, head_dim = x.shape
    if n_rep == 1:
        return x
    return (
        x[:, :, :, None, :]
        .expand(bs, slen, n_kv_heads, n_rep, head_dim)
        .reshape(bs, slen, n_kv_heads * n_rep, head_dim)
    )


class MetaAttention(nn.Module):
    def __init__(self, d, heads, kv):
        super().__init__()
        self.n_heads, self.n_kv, self.head_dim = heads, kv, d // heads
        self.wq = nn.Linear(d, d, bias=False)
        self.wk = nn.Linear(d, kv * self.head_dim, bias=False)
        self.wv = nn.Linear(d, kv * self.head_dim, bias=False)
        self.wo = nn.Linear(d, d, bias=False)

    def forward(self, x, freqs_cis):
        bs, slen, _ = x.shape
        xq, xk, xv = self.wq(x), self.wk(x), self.wv(x)
        xq = xq.view(bs, slen, self.n_heads, self.head_dim)
        xk = xk.view(bs, slen, self.n_kv, self.head_dim)
        xv = xv.view(bs, slen, self.n_kv, self.head_dim)
        xq, xk = apply_rotary_emb(xq, xk, freqs_cis=freqs_cis)
        keys = repeat_kv(xk, self.n_heads // self.n_kv)
        values = repeat_kv(xv, self.n_heads // self.n_kv)
        xq, xk, xv = xq.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        output = F.scaled_dot_product_attention(xq, xk, xv, is_causal=True)
        output = output.transpose(1, 2).contiguous().view(bs, slen, -1)
        return self.wo(output)


class MetaFeedForward(nn.Module):
    def __init__(self, d, hidden):
        super().__init__()
        self.w1 = nn.Linear(d, hidden, bias=False)
        self.w2 = nn.Linear(hidden, d, bias=False)
        self.w3 = nn.Linear(d, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self, d, heads, kv):
        super().__init__()
        self.attention, self.feed_forward = MetaAttention(d, heads, kv), MetaFeedForward(d, 688)
        self.attention_norm, self.ffn_norm = MetaRMSNorm(d), MetaRMSNorm(d)

    def forward(self, x, freqs_cis):
        h = x + self.attention(self.attention_norm(x), freqs_cis)
        out = h + self.feed_forward(self.ffn_norm(h))
        return out


class MetaLlama(nn.Module):
    def __init__(self, d=256, layers=4, heads=4, kv=2, recompute=None):
        super().__init__()
        self.tok_embeddings = nn.Embedding(V, d)
        self.layers = nn.ModuleList(TransformerBlock(d, heads, kv) for _ in range(layers))
        self.norm, self.output = MetaRMSNorm(d), nn.Linear(d, V, bias=False)
        freqs = torch.zeros(T, d // heads // 2, dtype=torch.complex64)
        self.register_buffer("freqs_cis", freqs, persistent=False)
        self.recompute = recompute

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        freqs_cis = self.freqs_cis[: tokens.shape[1]]
        for layer in self.layers:
            if self.recompute is None:
                h = layer(h, freqs_cis)
            else:
                h = checkpoint(layer, h, freqs_cis, use_reentrant=self.recompute == "reentrant")
        h = self.norm(h)
        return self.output(h).float()


class _MetaStep:
    batch = staticmethod(lambda device: (ids(V, B, T, device=device), ids(V, B, T, device=device)))

    @staticmethod
    def forward(model, tokens, labels):
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1))
        return loss


@case("meta_llama", ["TransformerBlock"])
class _(_MetaStep):
    make = MetaLlama


@case("meta_llama_checkpoint", ["TransformerBlock"])
class _(_MetaStep):
    make = staticmethod(lambda: MetaLlama(recompute="nonreentrant"))


@case("meta_llama_reentrant", ["TransformerBlock"])
class _(_MetaStep):
    make = staticmethod(lambda: MetaLlama(recompute="reentrant"))


@case("meta_llama_held_logits", ["TransformerBlock"])
class _(_MetaStep):
    """The script gives its logits a name that lives through backward."""

    make = MetaLlama

    @staticmethod
    def forward(model, tokens, labels):
        logits = model(tokens)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1)), logits


# ------------------------------------------------------------------------------------------------- padding masks


class MaskedBlock(nn.Module):
    """Pre-norm block with a padding mask and ALiBi-like bias: efficient attention with an added mask."""

    def __init__(self, d, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(inplace=True), nn.Linear(4 * d, d))
        self.heads = heads

    def forward(self, x, mask):
        b, t, d = x.shape
        h = self.norm1(x)
        q, k, v = (m(h).view(b, t, self.heads, -1).transpose(1, 2) for m in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class MaskedEncoder(nn.Module):
    def __init__(self, d=256, layers=4, heads=4):
        super().__init__()
        self.embed = nn.Embedding(V, d, padding_idx=0)
        self.position = nn.Parameter(torch.zeros(1, T, d))
        self.blocks = nn.ModuleList(MaskedBlock(d, heads) for _ in range(layers))
        self.head = nn.Linear(d, 2)

    def forward(self, tokens, attention_mask):
        x = self.embed(tokens) + self.position
        mask = attention_mask[:, None, None, :].bool()
        for block in self.blocks:
            x = block(x, mask)
        weights = attention_mask.unsqueeze(-1).to(x.dtype)
        pooled = (x * weights).sum(1) / weights.sum(1).clamp(min=1)
        return self.head(pooled)


@case("masked_encoder", ["MaskedBlock"])
class _:
    make = MaskedEncoder
    batch = staticmethod(
        lambda device: (ids(V, B, T, device=device), ids(2, B, T, device=device), ids(2, B, device=device))
    )

    @staticmethod
    def forward(model, tokens, mask, labels):
        return F.cross_entropy(model(tokens, mask), labels)


# --------------------------------------------------------------------------------------------------------- LoRA


class LoraLinear(nn.Module):
    def __init__(self, base, rank=8, alpha=16.0):
        super().__init__()
        self.base = base
        for parameter in base.parameters():
            parameter.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)
        self.dropout, self.scale = nn.Dropout(0.05), alpha / rank

    def forward(self, x):
        return self.base(x) + self.b(self.a(self.dropout(x))) * self.scale


def lora_llama():
    model = MetaLlama()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for layer in model.layers:
        layer.attention.wq = LoraLinear(layer.attention.wq)
        layer.attention.wv = LoraLinear(layer.attention.wv)
    return model


@case("lora_llama", ["TransformerBlock"], orig_params=True)
class _(_MetaStep):
    make = staticmethod(lora_llama)


# ------------------------------------------------------------------------------------------------------ experts


class DenseMoe(nn.Module):
    """Every expert sees every token; the router weighs them (einsum over stacked weights)."""

    def __init__(self, d, experts, hidden):
        super().__init__()
        self.gate = nn.Linear(d, experts, bias=False)
        self.w1 = nn.Parameter(torch.empty(experts, d, hidden))
        self.w2 = nn.Parameter(torch.empty(experts, hidden, d))

    def forward(self, x):
        scores = F.softmax(self.gate(x), dim=-1, dtype=torch.float32).to(x.dtype)
        h = torch.einsum("btd,edh->beth", x, self.w1)
        h = torch.einsum("beth,ehd->betd", F.silu(h), self.w2)
        return torch.einsum("betd,bte->btd", h, scores)


class MoeBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(d), nn.RMSNorm(d)
        self.attn, self.moe = CausalSelfAttention(d, heads, 0.0), DenseMoe(d, 4, 2 * d)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.moe(self.norm2(x))


class MoeModel(nn.Module):
    def __init__(self, d=256, layers=3):
        super().__init__()
        self.embed = nn.Embedding(V, d)
        self.blocks = nn.ModuleList(MoeBlock(d, 4) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, V, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@case("dense_moe", ["MoeBlock"])
class _:
    make = MoeModel
    batch = staticmethod(lambda device: (ids(V, B, T, device=device),))

    @staticmethod
    def forward(model, tokens):
        logits = model(tokens)[:, :-1]
        loss = F.cross_entropy(logits.reshape(-1, V).float(), tokens[:, 1:].reshape(-1), label_smoothing=0.1)
        return loss


# ------------------------------------------------------------------------------------------- softmax by hand, z-loss


class ManualAttention(nn.Module):
    """The attention of the time before scaled_dot_product_attention, with a registered causal mask."""

    def __init__(self, d, heads):
        super().__init__()
        self.qkv, self.proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)
        self.heads, self.dropout = heads, nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(T, T)).view(1, 1, T, T))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        att = self.dropout(F.softmax(att, dim=-1))
        y = att @ v
        return self.proj(y.transpose(1, 2).contiguous().view(b, t, c))


class ManualBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = ManualAttention(d, heads)
        self.fc, self.out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        h = self.fc(self.norm2(x))
        h = 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * torch.pow(h, 3.0))))
        return x + self.out(h)


class ManualGpt(nn.Module):
    def __init__(self, d=256, layers=3, heads=4):
        super().__init__()
        self.embed, self.position = nn.Embedding(V, d), nn.Embedding(T, d)
        self.blocks = nn.Sequential(*[ManualBlock(d, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, V, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


@case("manual_gpt_zloss", ["ManualBlock"])
class _:
    make = ManualGpt
    batch = staticmethod(lambda device: (ids(V, B, T, device=device), ids(V, B, T, device=device)))

    @staticmethod
    def forward(model, tokens, labels):
        logits = model(tokens).float().view(-1, V)
        z = torch.logsumexp(logits, dim=-1)
        return F.cross_entropy(logits, labels.view(-1)) + 1e-4 * (z**2).mean()
