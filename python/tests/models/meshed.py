"""Models whose own code runs on local tensors, with the plan by which their script cuts them over a tensor dimension."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from . import case, ids

BOTH = ["bfloat16", "float32"]


def token_loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


# ------------------------------------------------------------------------------------------------------- GPT, biases


class BiasedAttention(nn.Module):
    """Scores by hand, a mask out of a buffer, biases everywhere; the number of heads is what the width says."""

    def __init__(self, d, size, longest):
        super().__init__()
        self.size = size
        self.query, self.key, self.value, self.out = (nn.Linear(d, d) for _ in range(4))
        self.register_buffer("mask", torch.ones(longest, longest, dtype=torch.bool).tril(), persistent=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, -1, self.size).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.size)
        scores = scores.masked_fill(~self.mask[:t, :t], float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, -1))


class BiasedBlock(nn.Module):
    def __init__(self, d, size, longest):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attention = BiasedAttention(d, size, longest)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class BiasedGpt(nn.Module):
    def __init__(self, v=3000, d=256, layers=3, size=32, longest=128):
        super().__init__()
        self.tokens, self.places = nn.Embedding(v, d), nn.Embedding(longest, d)
        self.blocks = nn.ModuleList(BiasedBlock(d, size, longest) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, x):
        h = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


BIASED = {
    "blocks.*.attention.query": "colwise", "blocks.*.attention.key": "colwise", "blocks.*.attention.value": "colwise",
    "blocks.*.attention.out": "rowwise", "blocks.*.mlp.0": "colwise", "blocks.*.mlp.2": "rowwise",
}  # fmt: skip


@case(
    "meshed_gpt", ["BiasedBlock"], recompute=True,
    meshes={
        "tp2": {"tensor": 2, "plan": BIASED},
        "tp4-head": {"tensor": 4, "plan": BIASED | {"head": "head"}},
        "tp2-loss": {"tensor": 2, "plan": BIASED | {"tokens": "rowwise", "head": "head"}, "loss": True},
    },
)  # fmt: skip
class _:
    make = BiasedGpt
    batch = staticmethod(lambda device: (ids(3000, 4, 128, device=device), ids(3000, 4, 128, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


# --------------------------------------------------------------------------------- parallel branches, one projection


class ScaleNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-6)


class Joint(nn.Module):
    """Queries, keys and values of a head side by side in one projection, so that it can be cut by heads."""

    def __init__(self, d, size):
        super().__init__()
        self.size = size
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, -1, 3 * self.size).chunk(3, dim=-1)

        def turned(y):
            a, c = y.float().chunk(2, dim=-1)
            return torch.cat((a * cos - c * sin, a * sin + c * cos), dim=-1).type_as(y)

        q, k = turned(q).transpose(1, 2), turned(k).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self, d, f):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(d, f, bias=False), nn.Linear(d, f, bias=False), nn.Linear(f, d, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class ForkedBlock(nn.Module):
    def __init__(self, d, size):
        super().__init__()
        self.norm, self.mixer, self.mlp = ScaleNorm(d), Joint(d, size), Gated(d, 3 * d)

    def forward(self, x, cos, sin):
        y = self.norm(x)
        return x + self.mixer(y, cos, sin) + self.mlp(y)


class Forked(nn.Module):
    def __init__(self, v=2048, d=256, layers=4, size=32):
        super().__init__()
        self.size = size
        self.embed = nn.Embedding(v, d)
        self.layers = nn.ModuleList(ForkedBlock(d, size) for _ in range(layers))
        self.norm, self.head = ScaleNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device).float()
        angle = torch.outer(places, 10000.0 ** (-torch.arange(0, self.size, 2, device=x.device).float() / self.size))
        cos, sin = angle.cos()[None, :, None, :], angle.sin()[None, :, None, :]
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, cos, sin)
        return self.head(self.norm(h))


FORKED = {
    "layers.*.mixer.qkv": "colwise", "layers.*.mixer.out": "rowwise", "layers.*.mlp.gate": "colwise",
    "layers.*.mlp.up": "colwise", "layers.*.mlp.down": "rowwise", "embed": "rowwise", "head": "head",
}  # fmt: skip
ALONG = {"layers.*.norm": "sequence", "norm": "sequence"}


@case(
    "meshed_fork", ["ForkedBlock"], precisions=BOTH, recompute=True,
    meshes={
        "tp2": {"tensor": 2, "plan": FORKED},
        "tp2-sp": {"tensor": 2, "sequence": True, "plan": FORKED | ALONG},
        "tp4-sp-loss": {"tensor": 4, "sequence": True, "loss": True,
                        "plan": FORKED | ALONG | {"layers.*.mixer": "gather", "layers.*.mlp": "gather"}},
    },
)  # fmt: skip
class _:
    make = Forked
    batch = staticmethod(lambda device: (ids(2048, 2, 256, device=device), ids(2048, 2, 256, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


# ------------------------------------------------------------------------------------------------- images, one label


class Patches(nn.Module):
    def __init__(self, d, size):
        super().__init__()
        self.size = size
        self.norm_1, self.norm_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.proj = (nn.Linear(d, d) for _ in range(4))
        self.scale_1, self.scale_2 = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, _ = x.shape
        y = self.norm_1(x)
        q, k, v = (f(y).unflatten(-1, (-1, self.size)).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous().view(b, t, -1)
        x = x + self.scale_1 * self.proj(y)
        return x + self.scale_2 * self.fc2(F.gelu(self.fc1(self.norm_2(x))))


class Pictures(nn.Module):
    def __init__(self, classes=100, d=192, layers=4, size=48, side=64, patch=8):
        super().__init__()
        self.stem = nn.Conv2d(3, d, patch, patch)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(torch.zeros(1, (side // patch) ** 2 + 1, d))
        self.blocks = nn.ModuleList(Patches(d, size) for _ in range(layers))
        self.norm, self.fc = nn.LayerNorm(d), nn.Linear(d, classes)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.fc(self.norm(x[:, 0]))


PICTURES = {f"blocks.*.{n}": "colwise" for n in ("q", "k", "v", "fc1")} | {f"blocks.*.{n}": "rowwise" for n in ("proj", "fc2")}


@case(
    "meshed_vit", ["Patches"], recompute=True,
    meshes={"tp2": {"tensor": 2, "plan": PICTURES}, "tp4-head": {"tensor": 4, "plan": PICTURES | {"fc": "head"}}},
)  # fmt: skip
class _:
    make = Pictures
    batch = staticmethod(lambda device: (torch.rand(8, 3, 64, 64, device=device), ids(100, 8, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.cross_entropy(model(x), y, label_smoothing=0.1)


# ---------------------------------------------------------------------------------------------- encoder and decoder


class Attend(nn.Module):
    def __init__(self, d, size):
        super().__init__()
        self.size = size
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x, memory, causal=False):
        b = x.shape[0]
        q, k, v = (f(y).view(b, y.shape[1], -1, self.size).transpose(1, 2) for f, y in ((self.q, x), (self.k, memory), (self.v, memory)))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(-2))


class Reader(nn.Module):
    def __init__(self, d, size):
        super().__init__()
        self.n1, self.n2 = ScaleNorm(d), ScaleNorm(d)
        self.own, self.mlp = Attend(d, size), Gated(d, 2 * d)

    def forward(self, x):
        y = self.n1(x)
        x = x + self.own(y, y)
        return x + self.mlp(self.n2(x))


class Writer(nn.Module):
    def __init__(self, d, size):
        super().__init__()
        self.n1, self.n2, self.n3 = ScaleNorm(d), ScaleNorm(d), ScaleNorm(d)
        self.own, self.other, self.mlp = Attend(d, size), Attend(d, size), Gated(d, 2 * d)

    def forward(self, x, memory):
        y = self.n1(x)
        x = x + self.own(y, y, True)
        x = x + self.other(self.n2(x), memory)
        return x + self.mlp(self.n3(x))


class Translator(nn.Module):
    def __init__(self, v=2000, d=192, layers=2, size=48):
        super().__init__()
        self.source, self.target = nn.Embedding(v, d), nn.Embedding(v, d)
        self.readers = nn.ModuleList(Reader(d, size) for _ in range(layers))
        self.writers = nn.ModuleList(Writer(d, size) for _ in range(layers))
        self.n_in, self.n_out, self.head = ScaleNorm(d), ScaleNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, x, y):
        memory = self.source(x)
        for block in self.readers:
            memory = block(memory)
        memory = self.n_in(memory)
        h = self.target(y)
        for block in self.writers:
            h = block(h, memory)
        return self.head(self.n_out(h))


TRANSLATOR = {f"*.{n}": "colwise" for n in ("q", "k", "v", "gate", "up")} | {f"*.{n}": "rowwise" for n in ("o", "down")}


@case(
    "meshed_translator", ["Reader", "Writer"], recompute=True,
    meshes={
        "tp2": {"tensor": 2, "plan": TRANSLATOR},
        "tp4-loss": {"tensor": 4, "loss": True, "plan": TRANSLATOR | {"source": "rowwise", "head": "head"}},
    },
)  # fmt: skip
class _:
    make = Translator
    batch = staticmethod(lambda device: tuple(ids(2000, 4, n, device=device) for n in (96, 64, 64)))

    @staticmethod
    def forward(model, x, y, labels):
        return token_loss(model(x, y), labels)


# ------------------------------------------------------------------------------------------------ fused projections


class Fused(nn.Module):
    """One projection for queries, keys and values, one for gate and value: a rank's rows are taken for all of them."""

    def __init__(self, d, size, dropout):
        super().__init__()
        self.size, self.dropout = size, dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.w12, self.w3 = nn.Linear(d, 4 * d), nn.Linear(2 * d, d)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).chunk(3, dim=-1)
        q, k, v = (y.view(b, t, -1, self.size).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.c_proj(y.transpose(1, 2).contiguous().view(b, t, -1)))
        gate, up = self.w12(self.ln_2(x)).chunk(2, dim=-1)
        return x + self.drop(self.w3(F.silu(gate) * up))


class FusedGpt(nn.Module):
    def __init__(self, v=2000, d=256, layers=3, size=64, longest=128):
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(v, d), nn.Embedding(longest, d), nn.Dropout(0.1)
        self.h = nn.ModuleList(Fused(d, size, 0.1) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, x):
        y = self.drop(self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device)))
        for block in self.h:
            y = block(y)
        return self.lm_head(self.ln_f(y))


FUSED = {"h.*.c_attn": "colwise", "h.*.c_proj": "rowwise", "h.*.w12": "colwise", "h.*.w3": "rowwise"}


@case("meshed_fused", ["Fused"], precisions=BOTH, recompute=True,
      meshes={"tp2": {"tensor": 2, "plan": FUSED}, "tp4-head": {"tensor": 4, "plan": FUSED | {"lm_head": "head"}}})  # fmt: skip
class _:
    make = FusedGpt
    batch = staticmethod(lambda device: (ids(2000, 4, 128, device=device), ids(2000, 4, 128, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


# --------------------------------------------------------------------------------------- sums over named dimensions


class Summed(nn.Module):
    """Attention by einsum with norms of heads, keys and values of fewer heads, scores in float32."""

    def __init__(self, d, size, groups):
        super().__init__()
        self.size = size
        self.norm_a, self.norm_b, self.q_norm, self.k_norm = ScaleNorm(d), ScaleNorm(d), ScaleNorm(size), ScaleNorm(size)
        self.wq, self.wo = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.wk, self.wv = nn.Linear(d, groups * size, bias=False), nn.Linear(d, groups * size, bias=False)
        self.fc_in, self.fc_out = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x, hidden):
        b, t, _ = x.shape
        y = self.norm_a(x)
        q, k, v = (f(y).view(b, t, -1, self.size) for f in (self.wq, self.wk, self.wv))
        q, k = self.q_norm(q), self.k_norm(k)
        q = q.view(b, t, k.shape[2], -1, self.size)
        scores = torch.einsum("btgrd,bsgd->bgrts", q, k).float() * self.size**-0.5
        weights = torch.softmax(scores.masked_fill(hidden, -1e9), dim=-1).type_as(v)
        y = torch.einsum("bgrts,bsgd->btgrd", weights, v)
        x = x + self.wo(y.reshape(b, t, -1))
        return x + self.fc_out(F.relu(self.fc_in(self.norm_b(x))).square())


class SummedModel(nn.Module):
    def __init__(self, v=2000, d=256, layers=3, size=32, groups=4):
        super().__init__()
        self.embedding = nn.Embedding(v, d)
        self.layers = nn.ModuleList(Summed(d, size, groups) for _ in range(layers))
        self.last, self.output = ScaleNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, x):
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        h = self.embedding(x)
        for layer in self.layers:
            h = layer(h, hidden)
        return 30.0 * torch.tanh(self.output(self.last(h)) / 30.0)


SUMMED = {f"layers.*.{n}": "colwise" for n in ("wq", "wk", "wv", "fc_in")} | {f"layers.*.{n}": "rowwise" for n in ("wo", "fc_out")}


@case("meshed_einsum", ["Summed"], precisions=BOTH, recompute=True,
      meshes={"tp2": {"tensor": 2, "plan": SUMMED},
              "tp4-head": {"tensor": 4, "plan": SUMMED | {"output": "head"}}})  # fmt: skip
class _:
    make = SummedModel
    batch = staticmethod(lambda device: (ids(2000, 2, 128, device=device), ids(2000, 2, 128, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


# ------------------------------------------------------------------------------------- masked words, norms behind


class Encode(nn.Module):
    def __init__(self, d, size):
        super().__init__()
        self.size = size
        self.query, self.key, self.value, self.dense = (nn.Linear(d, d) for _ in range(4))
        self.middle, self.out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.norm_1, self.norm_2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x, mask):
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, -1, self.size).permute(0, 2, 1, 3) for f in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm_1(x + self.dense(y.permute(0, 2, 1, 3).reshape(b, t, -1)))
        return self.norm_2(x + self.out(F.gelu(self.middle(x))))


class MaskedWords(nn.Module):
    def __init__(self, v=3000, d=192, layers=3, size=48, longest=96):
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(v, d), nn.Embedding(longest, d), nn.Embedding(2, d)
        self.norm = nn.LayerNorm(d)
        self.layer = nn.ModuleList(Encode(d, size) for _ in range(layers))
        self.transform, self.after, self.decoder = nn.Linear(d, d), nn.LayerNorm(d), nn.Linear(d, v)

    def forward(self, x, kinds, seen):
        h = self.norm(self.words(x) + self.kinds(kinds) + self.places(torch.arange(x.shape[1], device=x.device)))
        mask = torch.zeros(seen.shape, dtype=h.dtype, device=h.device).masked_fill(seen == 0, torch.finfo(h.dtype).min)[:, None, None, :]
        mask = mask.expand(-1, 1, x.shape[1], -1)
        for layer in self.layer:
            h = layer(h, mask)
        return self.decoder(self.after(F.gelu(self.transform(h))))


WORDS = {f"layer.*.{n}": "colwise" for n in ("query", "key", "value", "middle")} | {f"layer.*.{n}": "rowwise" for n in ("dense", "out")}


@case("meshed_bert", ["Encode"], recompute=True,
      meshes={"tp2": {"tensor": 2, "plan": WORDS}, "tp4-head": {"tensor": 4, "plan": WORDS | {"decoder": "head", "words": "rowwise"}}})  # fmt: skip
class _:
    make = MaskedWords
    batch = staticmethod(lambda device: (ids(3000, 4, 96, device=device), ids(2, 4, 96, device=device), ids(2, 4, 96, device=device), ids(3000, 4, 96, device=device)))

    @staticmethod
    def forward(model, x, kinds, seen, y):
        return F.cross_entropy(model(x, kinds, seen).view(-1, 3000), y.view(-1), ignore_index=-100)


# ------------------------------------------------------------------------------------ convolutions beside cut layers


class Half(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        return self.down(F.silu(self.up(self.norm(x))))


class Convolved(nn.Module):
    """A Conformer's block: its two feed-forwards are cut, attention and convolution are whole."""

    def __init__(self, d, heads):
        super().__init__()
        self.first, self.second = Half(d), Half(d)
        self.norm_a, self.attend = nn.LayerNorm(d), nn.MultiheadAttention(d, heads, batch_first=True)
        self.norm_c, self.point, self.deep = nn.LayerNorm(d), nn.Conv1d(d, 2 * d, 1), nn.Conv1d(d, d, 15, padding=7, groups=d)
        self.batch, self.back, self.end = nn.GroupNorm(4, d), nn.Conv1d(d, d, 1), nn.LayerNorm(d)

    def forward(self, x):
        x = x + 0.5 * self.first(x)
        y = self.norm_a(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        y = F.glu(self.point(self.norm_c(x).transpose(1, 2)), dim=1)
        x = x + self.back(F.silu(self.batch(self.deep(y)))).transpose(1, 2)
        return self.end(x + 0.5 * self.second(x))


class Speech(nn.Module):
    def __init__(self, v=500, d=144, layers=3, heads=4):
        super().__init__()
        self.stem = nn.Linear(80, d)
        self.blocks = nn.ModuleList(Convolved(d, heads) for _ in range(layers))
        self.out = nn.Linear(d, v)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


SPEECH = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}


@case("meshed_conformer", ["Convolved"], recompute=True,
      meshes={"tp2": {"tensor": 2, "plan": SPEECH}, "tp4-head": {"tensor": 4, "plan": SPEECH | {"out": "head"}}})  # fmt: skip
class _:
    make = Speech
    batch = staticmethod(lambda device: (torch.rand(4, 200, 80, device=device), ids(500, 4, 200, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


# --------------------------------------------------------------------------------------------- tables and interactions


class Tower(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return x


class Ranking(nn.Module):
    def __init__(self, rows=(20000, 8000, 3000), d=64):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, d) for n in rows)
        self.dense, self.top = Tower([13, 512, 256, d]), Tower([d + 6, 512, 512, 256])
        self.score = nn.Linear(256, 1)

    def forward(self, dense, sparse):
        x = self.dense(dense)
        parts = torch.stack([x] + [table(sparse[:, i]) for i, table in enumerate(self.tables)], dim=1)
        pairs = torch.bmm(parts, parts.transpose(1, 2))
        i, j = torch.tril_indices(4, 4, -1, device=x.device)
        return self.score(self.top(torch.cat([x, pairs[:, i, j]], dim=1))).squeeze(-1)


RANKING = {"tables.*": "rowwise", "dense.layers.0": "colwise", "dense.layers.1": "rowwise", "top.layers.0": "colwise", "top.layers.1": "rowwise"}


@case("meshed_dlrm", ["Tower"], precisions=["float32"],
      meshes={"tp2": {"tensor": 2, "plan": RANKING}, "tp4": {"tensor": 4, "plan": RANKING}})  # fmt: skip
class _:
    make = Ranking
    batch = staticmethod(lambda device: (torch.rand(512, 13, device=device), ids(3000, 512, 3, device=device), torch.rand(512, device=device)))

    @staticmethod
    def forward(model, dense, sparse, y):
        return F.binary_cross_entropy_with_logits(model(dense, sparse), y)
