"""Long documents, bytes, retrieval and memories that learn while they read; capsules, curved spaces, genomes, quantisers that are trained."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap

from . import case, ids
from .learners import Layer
from .moderns import RMSNorm, Stacked
from .tinkerers import BOTH, Mlp, on_tokens, tokens

# ----------------------------------------------------------------------------------------------------- long documents


class LongformerLayer(nn.Module):
    """Overlapping chunks by as_strided, diagonals by padding and views, as Transformers has it."""

    def __init__(self, d, heads=4, window=8):
        super().__init__()
        self.heads, self.w = heads, window
        self.query, self.key, self.value, self.out, self.norm, self.mlp = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.LayerNorm(d), Mlp(d)

    @staticmethod
    def _chunk(x, w):
        x = x.view(x.size(0), torch.div(x.size(1), (w * 2), rounding_mode="trunc"), w * 2, x.size(2))
        size, stride = list(x.size()), list(x.stride())
        size[1], stride[1] = size[1] * 2 - 1, stride[1] // 2
        return x.as_strided(size=size, stride=stride)

    def scores(self, query, key, w):
        b, n, h, d = query.size()
        count = torch.div(n, w, rounding_mode="trunc") - 1
        query, key = (t.transpose(1, 2).reshape(b * h, n, d) for t in (query, key))
        chunked = torch.einsum("bcxd,bcyd->bcxy", (self._chunk(query, w), self._chunk(key, w)))
        chunked = F.pad(chunked, (0, 0, 0, 1))
        diag = chunked.view(*chunked.size()[:-2], chunked.size(-1), chunked.size(-2))
        out = diag.new_zeros((b * h, count + 1, w, w * 2 + 1))
        out[:, :-1, :, w:] = diag[:, :, :w, : w + 1]
        out[:, -1, :, w:] = diag[:, -1, w:, : w + 1]
        out[:, 1:, :, :w] = diag[:, :, -(w + 1) : -1, w + 1 :]
        out[:, 0, 1:w, 1:w] = diag[:, 0, : w - 1, 1 - w :]
        out = out.view(b, h, n, 2 * w + 1).transpose(2, 1)
        mask = out.new_ones(w, w + 1).tril().flip(dims=[0])[None, :, None, :]
        begin = out[:, :w, :, : w + 1]
        out[:, :w, :, : w + 1] = torch.full_like(begin, -float("inf")).where(mask.expand(begin.size()).bool(), begin)
        end = out[:, -w:, :, -(w + 1) :]
        out[:, -w:, :, -(w + 1) :] = torch.full_like(end, -float("inf")).where(mask.flip(dims=(1, 3)).expand(end.size()).bool(), end)
        return out

    def values(self, probs, value, w):
        b, n, h, d = value.size()
        count = torch.div(n, w, rounding_mode="trunc") - 1
        probs = probs.transpose(1, 2).reshape(b * h, torch.div(n, w, rounding_mode="trunc"), w, 2 * w + 1)
        value = F.pad(value.transpose(1, 2).reshape(b * h, n, d), (0, 0, w, w), value=-1)
        size, stride = (b * h, count + 1, 3 * w, d), value.stride()
        value = value.as_strided(size=size, stride=(stride[0], w * stride[1], stride[1], stride[2]))
        t, c, m, k = probs.size()
        probs = F.pad(probs, (0, m + 1)).view(t, c, -1)[:, :, :-m].view(t, c, m, m + k)[:, :, :, :-1]
        return torch.einsum("bcwd,bcdh->bcwh", (probs, value)).view(b, h, n, d).transpose(1, 2)

    def forward(self, x):
        b, n, d = x.shape
        y = self.norm(x)
        q, k, v = (f(y).view(b, n, self.heads, -1) for f in (self.query, self.key, self.value))
        q = q / math.sqrt(d // self.heads)
        probs = F.softmax(self.scores(q, k, self.w), dim=-1, dtype=torch.float32).type_as(q)
        out = self.values(F.dropout(probs, p=0.1, training=self.training), v, self.w)
        return self.mlp(x + self.out(out.reshape(b, n, d)))


@case("longformer", ["LongformerLayer"], precisions=BOTH, recompute=True)
class _:
    make = staticmethod(lambda d=64: Stacked([LongformerLayer(d) for _ in range(2)], d, 500))
    batch = tokens(500, 4, 128)
    forward = staticmethod(on_tokens)


class ReformerLayer(nn.Module):
    """Locality-sensitive hashing: several rounds, sorted by bucket, chunks that look back, logarithms of sums to merge; shared keys."""

    def __init__(self, d, heads=4, buckets=8, rounds=2):
        super().__init__()
        self.heads, self.buckets, self.rounds = heads, buckets, rounds
        self.toqk, self.tov, self.out, self.norm, self.mlp = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False), nn.Linear(d, d), nn.LayerNorm(d), Mlp(d)

    def forward(self, x):
        b, n, d = x.shape
        y = self.norm(x)
        qk, v = (t.view(b, n, self.heads, -1).transpose(1, 2).reshape(b * self.heads, n, -1) for t in (self.toqk(y), self.tov(y)))
        rotations = torch.randn(1, qk.shape[-1], self.rounds, self.buckets // 2, dtype=qk.dtype, device=qk.device).expand(qk.shape[0], -1, -1, -1)
        rotated = torch.einsum("btf,bfhi->bhti", qk.detach(), rotations)
        hashes = torch.argmax(torch.cat([rotated, -rotated], dim=-1), dim=-1)
        offsets = torch.arange(self.rounds, device=x.device).reshape(1, -1, 1) * self.buckets
        hashes = torch.reshape(hashes + offsets, (qk.shape[0], -1))
        ticker = torch.arange(self.rounds * n, device=x.device).unsqueeze(0).expand_as(hashes)
        order = (n * hashes + (ticker % n)).detach()
        _, sticker = order.sort(dim=-1)
        _, undo = sticker.sort(dim=-1)
        st = sticker % n
        pick = lambda t: t.gather(1, st.unsqueeze(-1).expand(-1, -1, t.shape[-1]))
        chunks = self.rounds * self.buckets
        t = st.reshape(qk.shape[0], chunks, -1)
        bqk, bv = (pick(s).reshape(qk.shape[0], chunks, -1, s.shape[-1]) for s in (qk, v))
        bq, bk = bqk, F.normalize(bqk, p=2, dim=-1).type_as(bqk)
        back = lambda s: torch.cat([s, torch.cat([s[:, -1:, ...], s[:, :-1, ...]], dim=1)], dim=2)
        bk, bv, kt = back(bk), back(bv), back(t)
        dots = torch.einsum("bhie,bhje->bhij", bq, bk) * (d // self.heads) ** -0.5
        dots.masked_fill_(t[..., :, None] < kt[..., None, :], -1e4)
        dots.masked_fill_(t[..., :, None] == kt[..., None, :], -5e3)
        lse = torch.logsumexp(dots, dim=-1, keepdim=True)
        dots = torch.exp(dots - lse).type_as(dots)
        bo = torch.einsum("buij,buje->buie", F.dropout(dots, 0.1, self.training), bv)
        so, slogits = torch.reshape(bo, (qk.shape[0], -1, bo.shape[-1])), torch.reshape(lse, (qk.shape[0], -1))
        o = so.gather(1, undo.unsqueeze(-1).expand_as(so)).reshape(qk.shape[0], self.rounds, n, -1)
        logits = slogits.gather(1, undo).reshape(qk.shape[0], self.rounds, n, 1)
        probs = torch.exp(logits - torch.logsumexp(logits, dim=1, keepdim=True))
        out = torch.sum(o * probs, dim=1).view(b, self.heads, n, -1).transpose(1, 2).reshape(b, n, d)
        return self.mlp(x + self.out(out))


@case("reformer", ["ReformerLayer"], precisions=BOTH)
class _:
    make = staticmethod(lambda d=64: Stacked([ReformerLayer(d) for _ in range(2)], d, 500, tied=True))
    batch = tokens(500, 4, 64)
    forward = staticmethod(on_tokens)


class DisentangledLayer(nn.Module):
    """DeBERTa: content to position and back, gathered along distances in logarithmic buckets."""

    def __init__(self, d, heads=4, span=16):
        super().__init__()
        self.heads, self.span = heads, span
        self.q, self.k, self.v, self.o, self.n1, self.n2 = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.inter, self.outer, self.drop = nn.Linear(d, 4 * d), nn.Linear(4 * d, d), nn.Dropout(0.1)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).permute(0, 2, 1, 3).contiguous().view(-1, x.size(1), x.shape[-1] // self.heads)

    def forward(self, x, rel_pos, table):
        b, n, d = x.shape
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        scale = math.sqrt(q.size(-1) * 3)
        scores = torch.bmm(q, k.transpose(-1, -2) / torch.tensor(scale, dtype=q.dtype, device=q.device))
        pos_k, pos_q = (self.split(f(table.unsqueeze(0))).repeat(b, 1, 1) for f in (self.k, self.q))
        c2p = torch.bmm(q, pos_k.transpose(-1, -2))
        c2p_pos = torch.clamp(rel_pos + self.span, 0, self.span * 2 - 1)
        scores = scores + torch.gather(c2p, dim=-1, index=c2p_pos.squeeze(0).expand([q.size(0), n, n])) / scale
        p2c = torch.bmm(k, pos_q.transpose(-1, -2))
        p2c_pos = torch.clamp(-rel_pos + self.span, 0, self.span * 2 - 1)
        scores = scores + torch.gather(p2c, dim=-1, index=p2c_pos.squeeze(0).expand([k.size(0), n, n])).transpose(-1, -2) / scale
        probs = self.drop(scores.view(b, self.heads, n, n).softmax(-1))
        out = torch.bmm(probs.view(-1, n, n), v).view(b, self.heads, n, -1).permute(0, 2, 1, 3).contiguous().view(b, n, d)
        x = self.n1(self.drop(self.o(out)) + x)
        return self.n2(self.drop(self.outer(F.gelu(self.inter(x)))) + x)


class Electra(nn.Module):
    """A small generator proposes words (Gumbel), a discriminator finds them; embeddings are shared by both, gradients stopped by a difference table."""

    def __init__(self, d=96, g=48, v=1000):
        super().__init__()
        self.word, self.delta, self.to_g = nn.Embedding(v, d), nn.Embedding(v, d), nn.Linear(d, g)
        self.rel, self.rel_g, self.ln = nn.Embedding(32, d), nn.Embedding(32, g), nn.LayerNorm(d)
        self.generator, self.discriminator = nn.ModuleList(DisentangledLayer(g) for _ in range(1)), nn.ModuleList(DisentangledLayer(d) for _ in range(2))
        self.g_head, self.g_bias, self.d_head = nn.Sequential(nn.Linear(g, d), nn.GELU(), nn.LayerNorm(d)), nn.Parameter(torch.zeros(v)), nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, 1))

    def rel_pos(self, n, device):
        q = torch.arange(n, dtype=torch.long, device=device)
        rel = q[:, None] - q.view(1, -1).repeat(n, 1)
        sign, mid = torch.sign(rel), 8
        absolute = torch.where((rel < mid) & (rel > -mid), torch.tensor(mid - 1).type_as(rel), torch.abs(rel))
        log = torch.ceil(torch.log(absolute / mid) / math.log((32 - 1) / mid) * (mid - 1)) + mid
        return torch.where(absolute <= mid, rel.type_as(log), log * sign).long().unsqueeze(0)

    def forward(self, x, masked, where):
        rel = self.rel_pos(x.shape[1], x.device)
        emb = self.word(masked)
        h = self.to_g(emb)
        for layer in self.generator:
            h = layer(h, rel, self.rel_g.weight)
        logits = F.linear(self.g_head(h), self.word.weight, self.g_bias)
        mlm = F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), x.masked_fill(~where, -100).view(-1))
        with torch.no_grad():
            gumbel = -torch.log(-torch.log(torch.rand_like(logits, dtype=torch.float32) + 1e-9) + 1e-9)
            fake = torch.where(where, (logits.float() + gumbel).argmax(dim=-1), x)
            labels = (fake != x).to(torch.float32)
        h = self.ln(F.embedding(fake, self.word.weight.detach()) + self.delta(fake))
        for layer in self.discriminator:
            h = layer(h, rel, self.rel.weight)
        return mlm + 50 * F.binary_cross_entropy_with_logits(self.d_head(h).squeeze(-1).float(), labels)


@case("electra", ["DisentangledLayer"], precisions=BOTH)
class _:
    make = Electra
    batch = staticmethod(lambda device: (ids(1000, 8, 48, device=device), ids(1000, 8, 48, device=device), torch.ones(8, 48, dtype=torch.bool, device=device)))
    forward = staticmethod(lambda model, *given: model(*given))


class RecurrentMemory(nn.Module):
    """RMT: segments one after the other, memory tokens in front and behind, gradients through two of them; a mixture of softmaxes at the end."""

    def __init__(self, d=96, v=500, mem=4, mix=3):
        super().__init__()
        self.embed, self.memory, self.layers, self.norm = nn.Embedding(v, d), nn.Parameter(torch.zeros(mem, d)), nn.ModuleList(Layer(d, causal=True, drop=0.1) for _ in range(2)), nn.LayerNorm(d)
        self.prior, self.latent, self.decoder, self.mix, self.mem = nn.Linear(d, mix, bias=False), nn.Sequential(nn.Linear(d, mix * d), nn.Tanh()), nn.Linear(d, v), mix, mem

    def forward(self, x, y, segments=4):
        memory, losses = self.memory.unsqueeze(0).expand(x.shape[0], -1, -1), []
        for i, (seg, label) in enumerate(zip(torch.chunk(x, segments, dim=1), torch.chunk(y, segments, dim=1))):
            if i % 2 == 0 and i:
                memory = memory.detach()
            h = torch.cat([memory, self.embed(seg), memory], dim=1)
            for layer in self.layers:
                h = layer(h)
            h = self.norm(h)
            memory, h = h[:, -self.mem :], h[:, self.mem : -self.mem]
            latent = self.latent(h).view(-1, h.shape[-1])
            prior = F.softmax(self.prior(h).contiguous().view(-1, self.mix), -1)
            prob = F.softmax(self.decoder(latent), -1).view(-1, self.mix, self.decoder.out_features)
            prob = (prob * prior.unsqueeze(2).expand_as(prob)).sum(1)
            losses.append(F.nll_loss(torch.log(prob.add_(1e-8)), label.reshape(-1)))
        return torch.stack(losses).mean()


@case("recurrent_memory", ["Layer"], precisions=BOTH, recompute=True)
class _:
    make = RecurrentMemory
    batch = tokens(500, 8, 96)
    forward = staticmethod(lambda model, x, y: model(x, y))


# ---------------------------------------------------------------------------------------------------- bytes, retrieval


class PatchCross(nn.Module):
    def __init__(self, dq, dkv, heads=4):
        super().__init__()
        self.nq, self.nkv, self.q, self.k, self.v, self.o, self.heads = RMSNorm(dq), RMSNorm(dkv), nn.Linear(dq, dq, bias=False), nn.Linear(dkv, dq, bias=False), nn.Linear(dkv, dq, bias=False), nn.Linear(dq, dq, bias=False), heads

    def forward(self, x, kv, mask):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.q(self.nq(x)), self.k(self.nkv(kv)), self.v(kv)))
        return x + self.o(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


class ByteLatent(nn.Module):
    """BLT: hashes of n-grams, patches that begin where the entropy of a small model is high, pooled by maxima, a latent model over patches, bytes that look at theirs."""

    def __init__(self, d=64, latent=128, patches=16):
        super().__init__()
        self.bytes, self.hashes = nn.Embedding(260, d), nn.ModuleList(nn.Embedding(700, d) for _ in range(3))
        self.entropy_model = nn.Sequential(nn.Embedding(260, 32), nn.Linear(32, 260)).requires_grad_(False)
        self.encoder, self.global_, self.decoder = nn.ModuleList([Layer(d, causal=True)]), nn.ModuleList([Layer(latent, causal=True) for _ in range(2)]), nn.ModuleList([Layer(d, causal=True)])
        self.to_patch, self.cross_in, self.cross_out, self.head, self.patches = nn.Linear(d, latent), PatchCross(latent, d), PatchCross(d, latent), nn.Linear(d, 260, bias=False), patches

    def patch_ids(self, x):
        with torch.no_grad():
            p = F.log_softmax(self.entropy_model(x).float(), dim=-1)
            entropy = -(p.exp() * p).sum(-1)
            top = entropy[:, 1:].topk(self.patches - 1, dim=1).indices + 1
            starts = torch.zeros_like(x).scatter_(1, top, 1)
            return starts.cumsum(1)

    def forward(self, x):
        b, n = x.shape
        h = self.bytes(x)
        for i, table in enumerate(self.hashes):
            grams = F.pad(x, (i + 2, 0)).unfold(1, i + 3, 1)
            prime = torch.tensor([1000000007**k % 2**31 for k in range(i + 3)], dtype=torch.int64, device=x.device)
            h = h + table((grams * prime).sum(-1) % 700)
        h = h / 4
        for layer in self.encoder:
            h = layer(h)
        ids_ = self.patch_ids(x)
        pooled = torch.zeros(b, self.patches, h.shape[-1], dtype=h.dtype, device=h.device).scatter_reduce(1, ids_.unsqueeze(-1).expand(-1, -1, h.shape[-1]), h, reduce="amax", include_self=False)
        owns = F.one_hot(ids_, self.patches).bool()
        z = self.cross_in(self.to_patch(pooled), h, owns.transpose(1, 2).unsqueeze(1))
        for layer in self.global_:
            z = layer(z)
        h = self.cross_out(h, z, owns.unsqueeze(1))
        for layer in self.decoder:
            h = layer(h)
        return self.head(h)


@case("byte_latent", ["Layer", "PatchCross"], precisions=BOTH, orig_params=True)
class _:
    make = ByteLatent
    batch = tokens(256, 8, 64)
    forward = staticmethod(on_tokens)


class Retriever(nn.Module):
    """One encoder, three losses: late interaction (ColBERT), sparse words (SPLADE), nested widths (Matryoshka); hard negatives beside those of the batch."""

    def __init__(self, d=96, v=1000):
        super().__init__()
        self.embed, self.layers, self.norm = nn.Embedding(v, d, padding_idx=0), nn.ModuleList(Layer(d) for _ in range(3)), nn.LayerNorm(d)
        self.late, self.bias, self.logit_scale = nn.Linear(d, 32, bias=False), nn.Parameter(torch.zeros(v)), nn.Parameter(torch.tensor([2.6]))

    def forward(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        h, mask = self.norm(h), (x != 0)
        late = F.normalize(self.late(h), p=2, dim=2) * mask.unsqueeze(-1)
        sparse = torch.max(torch.log(1 + torch.relu(F.linear(h, self.embed.weight, self.bias))) * mask.unsqueeze(-1), dim=1).values
        mean = (h * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1e-9)
        return late, sparse, mean


@case("retriever", ["Layer"], precisions=BOTH, recompute=True)
class _:
    make = Retriever
    batch = staticmethod(lambda device: (ids(1000, 16, 16, device=device), ids(1000, 32, 48, device=device)))

    @staticmethod
    def forward(model, q, docs):
        (ql, qs, qm), (dl, ds, dm) = model(q), model(docs)
        labels = torch.arange(q.shape[0], device=q.device)
        late = torch.einsum("qid,kjd->qkij", ql, dl).max(dim=-1).values.sum(dim=-1)
        loss = F.cross_entropy(late.float() / 0.2, labels) + F.cross_entropy((qs @ ds.T).float(), labels)
        loss = loss + 1e-3 * (torch.sum(torch.mean(torch.abs(ds), dim=0) ** 2) + torch.abs(qs).sum(-1).mean())
        for width, weight in zip((96, 64, 32, 16), (1, 1, 0.5, 0.25)):
            a, b = F.normalize(qm[..., :width], p=2, dim=-1), F.normalize(dm[..., :width], p=2, dim=-1)
            scores = torch.mm(a, b.transpose(0, 1)) * model.logit_scale.exp().clamp(max=100).to(a.dtype)
            loss = loss + weight * F.cross_entropy(scores.float(), labels, label_smoothing=0.1)
        return loss


class Clip(nn.Module):
    """Features of all ranks beside one's own, each rank's part with its gradients."""

    def __init__(self, d=64, v=500):
        super().__init__()
        self.text, self.see = nn.Embedding(v, d), nn.Conv2d(3, d, 8, 8)
        self.words, self.sights = nn.ModuleList(Layer(d, causal=True) for _ in range(2)), nn.ModuleList(Layer(d) for _ in range(2))
        self.logit_scale, self.p1, self.p2 = nn.Parameter(torch.ones([1]) * 2.6), nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)

    def forward(self, images, text):
        x, y = self.see(images).flatten(2).transpose(1, 2), self.text(text)
        for a, b in zip(self.sights, self.words):
            x, y = a(x), b(y)
        return F.normalize(self.p1(x.mean(1)), dim=-1), F.normalize(self.p2(y[torch.arange(y.shape[0], device=y.device), text.argmax(dim=-1)]), dim=-1), self.logit_scale.exp()


def gathered(features):
    world, rank = dist.get_world_size(), dist.get_rank()
    parts = [torch.zeros_like(features) for _ in range(world)]
    dist.all_gather(parts, features)
    parts[rank] = features
    return torch.cat(parts, dim=0)


@case("clip_gathered", ["Layer"], precisions=BOTH, ranks=8)
class _:
    make = Clip
    batch = staticmethod(lambda device: (torch.randn(16, 3, 32, 32, device=device), ids(500, 16, 20, device=device)))

    @staticmethod
    def forward(model, images, text):
        a, b, scale = model(images, text)
        a_all, b_all = gathered(a), gathered(b)
        logits = scale * a @ b_all.T
        labels = torch.arange(a.shape[0], device=a.device, dtype=torch.long) + a.shape[0] * dist.get_rank()
        return (F.cross_entropy(logits.float(), labels) + F.cross_entropy((scale * b @ a_all.T).float(), labels)) / 2


# ------------------------------------------------------------------------------------------------- learning inside


class MemoryMlp(nn.Module):
    def __init__(self, d, hidden):
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.zeros(d, hidden)), nn.Parameter(torch.zeros(hidden, d))

    def forward(self, x):
        return F.gelu(x @ self.w1) @ self.w2


class TitansLayer(nn.Module):
    """A memory that is a network, updated by gradients of its own loss (torch.func), with momentum and forgetting over chunks."""

    def __init__(self, d, chunk=16):
        super().__init__()
        self.norm, self.q, self.kv, self.rates, self.out, self.chunk = RMSNorm(d), nn.Linear(d, d, bias=False), nn.Linear(d, 2 * d, bias=False), nn.Linear(d, 3), nn.Linear(d, d, bias=False), chunk
        self.w1, self.w2, self.mlp = nn.Parameter(torch.zeros(d, 2 * d)), nn.Parameter(torch.zeros(2 * d, d)), Mlp(d)

    def forward(self, x):
        b, n, d = x.shape
        y = self.norm(x)
        q, (k, v) = self.q(y), self.kv(y).chunk(2, -1)
        rates = self.rates(y).unflatten(1, (-1, self.chunk)).mean(2).sigmoid()

        def loss(weights, k, v, rate):
            pred = F.gelu(k @ weights["w1"]) @ weights["w2"]
            return ((pred - v).pow(2).mean(dim=-1) * rate).sum()

        per_sample = vmap(grad(loss), in_dims=(0, 0, 0, 0))
        weights = {"w1": self.w1.expand(b, -1, -1), "w2": self.w2.expand(b, -1, -1)}
        momentum = {name: torch.zeros_like(w) for name, w in weights.items()}
        outs = []
        for i, (qc, kc, vc) in enumerate(zip(*(t.split(self.chunk, dim=1) for t in (q, k, v)))):
            outs.append(F.gelu(torch.bmm(qc, weights["w1"])) @ weights["w2"])
            surprise = per_sample(weights, kc, vc, rates[:, i, 0:1].expand(-1, kc.shape[1]))
            eta, forget = rates[:, i, 1, None, None], rates[:, i, 2, None, None]
            momentum = {name: eta * m - surprise[name] for name, m in momentum.items()}
            weights = {name: (1 - forget) * w + momentum[name] for name, w in weights.items()}
        return self.mlp(x + self.out(torch.cat(outs, dim=1)))


@case("titans", ["TitansLayer"], precisions=BOTH)
class _:
    make = staticmethod(lambda d=64: Stacked([TitansLayer(d) for _ in range(2)], d, 500))
    batch = tokens(500, 8, 64)
    forward = staticmethod(on_tokens)


class LsqLinear(nn.Module):
    """Quantised with learnt steps, activations by an observer whose ranges are buffers that are replaced."""

    def __init__(self, i, o, bits=4):
        super().__init__()
        self.weight, self.bias, self.step = nn.Parameter(torch.zeros(o, i)), nn.Parameter(torch.zeros(o)), nn.Parameter(torch.ones(o, 1))
        self.qn, self.qp = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        self.register_buffer("min_val", torch.tensor(0.0))
        self.register_buffer("max_val", torch.tensor(1.0))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                lo, hi = torch.aminmax(x.detach())
                self.min_val = self.min_val + 0.01 * (lo.to(self.min_val.dtype) - self.min_val)
                self.max_val = self.max_val + 0.01 * (hi.to(self.max_val.dtype) - self.max_val)
        scale = ((self.max_val - self.min_val) / 255).clamp(min=1e-8).to(x.dtype)
        x = torch.fake_quantize_per_tensor_affine(x.float(), scale.float(), torch.zeros(1, dtype=torch.int32, device=x.device), -128, 127).to(x.dtype)
        g = 1.0 / math.sqrt(self.weight.numel() * self.qp)
        step = (self.step - self.step * g).detach() + self.step * g
        w = torch.clamp(self.weight / step, self.qn, self.qp)
        w = (torch.round(w) - w).detach() + w
        return F.linear(x, w * step, self.bias)


class QuantBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), LsqLinear(d, 4 * d), LsqLinear(4 * d, d)

    def forward(self, x):
        return x + self.down(F.relu6(self.up(self.norm(x))))


@case("learnt_steps", ["QuantBlock"], precisions=BOTH, recompute=True)
class _:
    make = staticmethod(lambda d=128: Stacked([QuantBlock(d) for _ in range(3)], d, 500))
    batch = tokens(500, 8, 64)
    forward = staticmethod(on_tokens)


# ---------------------------------------------------------------------------------------------------- other spaces


class Capsules(nn.Module):
    """Routing by agreement; a decoder of what was chosen; margins."""

    def __init__(self, classes=5, caps=64, dim=16):
        super().__init__()
        self.conv, self.primary = nn.Conv2d(1, 64, 9), nn.Conv2d(64, 64, 9, 2)
        self.W, self.classes = nn.Parameter(torch.zeros(1, classes, 6 * 6 * 8, dim, 8)), classes
        self.decoder = nn.Sequential(nn.Linear(classes * dim, 256), nn.ReLU(inplace=True), nn.Linear(256, 784), nn.Sigmoid())

    @staticmethod
    def squash(x, dim=-1):
        norm = (x**2).sum(dim=dim, keepdim=True)
        return norm / (1 + norm) * x / (norm.sqrt() + 1e-8)

    def forward(self, x, y):
        u = self.primary(F.relu(self.conv(x), inplace=True)).view(x.shape[0], 8, -1).permute(0, 2, 1)
        u_hat = torch.matmul(self.W, self.squash(u)[:, None, :, :, None]).squeeze(-1)
        frozen, b = u_hat.detach(), torch.zeros(*u_hat.shape[:3], 1, device=x.device, dtype=u_hat.dtype)
        for r in range(3):
            c = F.softmax(b, dim=1)
            if r == 2:
                v = self.squash((c * u_hat).sum(dim=2))
            else:
                v = self.squash((c * frozen).sum(dim=2))
                b = b + torch.matmul(frozen, v.unsqueeze(-1))
        hot = torch.eye(self.classes, device=x.device).index_select(dim=0, index=y)
        return v.norm(dim=-1), self.decoder((v * hot[..., None].to(v.dtype)).view(x.shape[0], -1))


@case("capsules", ["Sequential"], precisions=["float32"])
class _:
    make = Capsules
    batch = staticmethod(lambda device: (torch.rand(8, 1, 28, 28, device=device), ids(5, 8, device=device)))

    @staticmethod
    def forward(model, x, y):
        length, back = model(x, y)
        hot = F.one_hot(y, 5).float()
        loss = hot * F.relu(0.9 - length) ** 2 + 0.5 * (1 - hot) * F.relu(length - 0.1) ** 2
        return loss.sum(dim=1).mean() + 0.0005 * F.mse_loss(back.view_as(x), x, reduction="sum") / 8


class PoincareLayer(nn.Module):
    """Möbius products and sums, exponential and logarithmic maps, quaternions beside them."""

    def __init__(self, d, c=1.0):
        super().__init__()
        self.weight, self.bias, self.c = nn.Parameter(torch.eye(d)), nn.Parameter(torch.zeros(d)), c
        self.r, self.i, self.j, self.k = (nn.Parameter(torch.zeros(d // 4, d // 4)) for _ in range(4))

    def project(self, x):
        norm = torch.clamp_min(x.norm(dim=-1, keepdim=True, p=2), 1e-15)
        most = (1 - 4e-3) / self.c**0.5
        return torch.where(norm > most, x / norm * most, x)

    def add(self, x, y):
        x2, y2, xy = x.pow(2).sum(-1, keepdim=True), y.pow(2).sum(-1, keepdim=True), (x * y).sum(-1, keepdim=True)
        return ((1 + 2 * xy + y2) * x + (1 - x2) * y) / (1 + 2 * xy + x2 * y2).clamp_min(1e-15)

    def forward(self, x):
        norm = x.norm(dim=-1, keepdim=True).clamp_min(1e-15)
        mx = x @ self.weight.transpose(-1, -2)
        mx_norm = mx.norm(dim=-1, keepdim=True).clamp_min(1e-15)
        res = torch.tanh(mx_norm / norm * torch.atanh(norm.clamp(max=1 - 1e-5))) * mx / mx_norm
        cond = (mx == 0).all(-1, keepdim=True)
        res = torch.where(cond, torch.zeros(1, dtype=res.dtype, device=res.device), res)
        b = self.bias.norm().clamp_min(1e-15)
        x = self.project(self.add(self.project(res), torch.tanh(b) * self.bias / b))
        n = x.norm(dim=-1, keepdim=True).clamp_min(1e-15)
        t = torch.atanh(n.clamp(max=1 - 1e-5)) * x / n
        q = torch.cat([torch.cat(row, 0) for row in ([self.r, -self.i, -self.j, -self.k], [self.i, self.r, -self.k, self.j], [self.j, self.k, self.r, -self.i], [self.k, -self.j, self.i, self.r])], dim=1)
        t = F.relu(t @ q + t)
        n = t.norm(dim=-1, keepdim=True).clamp_min(1e-15)
        return self.project(torch.tanh(n) * t / n)


class Curved(nn.Module):
    def __init__(self, n=800, d=32):
        super().__init__()
        self.embed, self.layers = nn.Embedding(n, d), nn.ModuleList(PoincareLayer(d) for _ in range(3))

    def forward(self, x):
        h = self.embed(x)
        h = h * torch.rsqrt(1 + h.pow(2).sum(-1, keepdim=True))
        for layer in self.layers:
            h = layer(h)
        return h


@case("curved", ["PoincareLayer"], precisions=["float32"])
class _:
    make = Curved
    batch = staticmethod(lambda device: (ids(800, 256, device=device), ids(800, 256, device=device), ids(800, 256, 10, device=device)))

    @staticmethod
    def forward(model, u, v, negatives):
        def distance(a, b):
            sq = (a - b).pow(2).sum(-1)
            return torch.acosh((1 + 2 * sq / ((1 - a.pow(2).sum(-1)) * (1 - b.pow(2).sum(-1)))).clamp(min=1 + 1e-5))

        a, b, n = model(u), model(v), model(negatives)
        d = torch.cat([distance(a, b)[:, None], distance(a[:, None], n)], 1)
        return F.cross_entropy(-d, torch.zeros_like(u)) + F.triplet_margin_with_distance_loss(a, b, n[:, 0], distance_function=distance)


class Pooled(nn.Module):
    """Enformer: pairs of bases pooled by learnt weights."""

    def __init__(self, d):
        super().__init__()
        self.to_logits = nn.Conv2d(d, d, 1, bias=False)
        nn.init.dirac_(self.to_logits.weight)

    def forward(self, x):
        b, c, n = x.shape
        if needs := n % 2 > 0:
            x = F.pad(x, (0, 1), value=0)
            mask = torch.zeros((b, 1, n), dtype=torch.bool, device=x.device)
            mask = F.pad(mask, (0, 1), value=True)
        x = x.unflatten(2, (-1, 2))
        logits = self.to_logits(x)
        if needs:
            logits = logits.masked_fill(mask.unflatten(2, (-1, 2)), -torch.finfo(logits.dtype).max)
        return (x * logits.softmax(dim=-1)).sum(dim=-1)


class ConvTower(nn.Sequential):
    def __init__(self, a, b):
        block = lambda i, o, k: nn.Sequential(nn.BatchNorm1d(i), nn.GELU(approximate="tanh"), nn.Conv1d(i, o, k, padding=k // 2))
        super().__init__(block(a, b, 5), Pooled(b))
        self.residual = block(b, b, 1)

    def forward(self, x):
        x = self[0](x)
        return self[1](x + self.residual(x))


class RelativeLayer(nn.Module):
    """Positions by exponential, central and gamma features, shifted as Transformer-XL does."""

    def __init__(self, d, heads=4, dk=16, feats=24):
        super().__init__()
        self.heads, self.feats, self.norm, self.mlp = heads, feats, nn.LayerNorm(d), nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Dropout(0.4), nn.ReLU(), nn.Linear(2 * d, d), nn.Dropout(0.4))
        self.to_q, self.to_k, self.to_v, self.to_out = nn.Linear(d, heads * dk, bias=False), nn.Linear(d, heads * dk, bias=False), nn.Linear(d, heads * 24, bias=False), nn.Linear(heads * 24, d)
        self.to_rel_k, self.content, self.position, self.scale = nn.Linear(feats, heads * dk, bias=False), nn.Parameter(torch.randn(1, heads, 1, dk)), nn.Parameter(torch.randn(1, heads, 1, dk)), dk**-0.5

    def positions(self, n, device):
        distance = torch.arange(-n + 1, n, device=device).abs()[..., None]
        k = self.feats // 6
        half_life = 2 ** torch.linspace(3, math.log(n) / math.log(2.0), k, device=device)[None]
        exponential = torch.exp(-math.log(2.0) / half_life * distance)
        central = (2 ** torch.arange(1, k + 1, device=device).float() - 1)[None] > distance.float()
        mean = torch.linspace(n / k, n, k, device=device)[None]
        stddev = n / (2 * k)
        concentration, rate = (mean / stddev) ** 2, mean / stddev**2
        log_unnormalised = torch.xlogy(concentration - 1.0, distance.float()) - rate * distance
        gamma = torch.exp(log_unnormalised - (torch.lgamma(concentration) - concentration * torch.log(rate))) + 1e-8
        out = torch.cat([exponential, central.float(), gamma / torch.amax(gamma, dim=-1, keepdim=True)], dim=-1)
        return torch.cat((out, torch.sign(torch.arange(-n + 1, n, device=device))[..., None] * out), dim=-1)

    def forward(self, x):
        b, n, d = x.shape
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        q = q * self.scale
        content = torch.einsum("bhid,bhjd->bhij", q + self.content, k)
        rel_k = self.to_rel_k(F.dropout(self.positions(n, x.device), 0.01, self.training).to(y.dtype)).view(-1, self.heads, q.shape[-1]).transpose(0, 1)
        rel = torch.einsum("bhid,hjd->bhij", q + self.position, rel_k)
        rel = torch.cat((torch.zeros_like(rel[..., :1]), rel), dim=-1)
        _, h, t1, t2 = rel.shape
        rel = rel.reshape(-1, h, t2, t1)[:, :, 1:, :].reshape(-1, h, t1, t2 - 1)[..., : (t2 + 1) // 2]
        attn = F.dropout((content + rel).softmax(dim=-1), 0.05, self.training)
        x = x + self.to_out(torch.einsum("bhij,bhjd->bhid", attn, v).transpose(1, 2).reshape(b, n, -1))
        return x + self.mlp(x)


class Genome(nn.Module):
    def __init__(self, d=96, tracks=20):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(4, d // 2, 15, padding=7), Pooled(d // 2))
        self.tower, self.layers = nn.ModuleList([ConvTower(d // 2, 64), ConvTower(64, d)]), nn.ModuleList(RelativeLayer(d) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(d, tracks), nn.Softplus())

    def forward(self, x):
        x = F.one_hot(x, 5)[..., :4].to(self.stem[0].weight.dtype).transpose(1, 2)
        x = self.stem(x)
        for tower in self.tower:
            x = tower(x)
        x = x.transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 4:-4])


@case("genome", ["ConvTower", "RelativeLayer"], precisions=["float32"], recompute=True)
class _:
    make = Genome
    batch = staticmethod(lambda device: (ids(5, 4, 500, device=device), torch.rand(4, 55, 20, device=device)))

    @staticmethod
    def forward(model, x, y):
        out = model(x)
        x_c, y_c = out - out.mean(dim=1, keepdim=True), y - y.mean(dim=1, keepdim=True)
        corr = F.cosine_similarity(x_c, y_c, dim=1).mean(dim=-1)
        return F.poisson_nll_loss(out, y, log_input=False, full=False, eps=1e-8) - 0.1 * corr.mean()
