"""Sequences: scans of one's own, retention, speech, decoders that feed themselves, blocks that are called again."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from . import case, ids


def token_loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


# ------------------------------------------------------------------------------------------------------------- scans


class ChunkedScan(torch.autograd.Function):
    """h[t] = a[t] h[t-1] + b[t] u[t], y = c h: the states are made again in backward, a chunk at a time."""

    @staticmethod
    def states(a, bu, h):
        rows = []
        for t in range(a.shape[1]):
            h = a[:, t] * h + bu[:, t]
            rows.append(h)
        return torch.stack(rows, 1)

    @staticmethod
    def forward(ctx, u, dt, a_log, b, c, chunk):
        ctx.save_for_backward(u, dt, a_log, b, c)
        ctx.chunk = chunk
        a = -a_log.float().exp()
        h = u.new_zeros(u.shape[0], u.shape[2], b.shape[2], dtype=torch.float32)
        out, ctx.starts = torch.empty_like(u), []
        for s in range(0, u.shape[1], chunk):
            e = slice(s, s + chunk)
            ctx.starts.append(h)
            bu = dt[:, e, :, None] * b[:, e, None] * u[:, e, :, None]
            hs = ChunkedScan.states(torch.exp(dt[:, e, :, None] * a), bu.float(), h)
            out[:, e] = torch.einsum("btdn,btn->btd", hs, c[:, e].float()).to(u.dtype)
            h = hs[:, -1]
        return out

    @staticmethod
    def backward(ctx, grad):
        u, dt, a_log, b, c = ctx.saved_tensors
        gu, gdt, gb, gc = (torch.zeros_like(t) for t in (u, dt, b, c))
        ga = torch.zeros_like(a_log, dtype=torch.float32)
        a = -a_log.float().exp()
        for i in reversed(range(len(ctx.starts))):
            e = slice(i * ctx.chunk, (i + 1) * ctx.chunk)
            decay = torch.exp(dt[:, e, :, None] * a)
            hs = ChunkedScan.states(decay, (dt[:, e, :, None] * b[:, e, None] * u[:, e, :, None]).float(), ctx.starts[i])
            gh = grad[:, e, :, None].float() * c[:, e, None].float()
            gc[:, e] = torch.einsum("btdn,btd->btn", hs, grad[:, e].float()).to(c.dtype)
            gu[:, e] = (gh * (dt[:, e, :, None] * b[:, e, None])).sum(-1).to(u.dtype)
            gdt[:, e] = (gh * (b[:, e, None] * u[:, e, :, None])).sum(-1).to(dt.dtype)
            gb[:, e] = (gh * (dt[:, e] * u[:, e])[..., None]).sum(2).to(b.dtype)
            ga += (gh * hs * dt[:, e, :, None]).sum((0, 1)) * a
        return gu, gdt, ga.to(a_log.dtype), gb, gc, None


class MambaBlock(nn.Module):
    def __init__(self, d, state=8):
        super().__init__()
        self.norm = nn.RMSNorm(d)
        self.in_proj = nn.Linear(d, 4 * d, bias=False)
        self.conv = nn.Conv1d(2 * d, 2 * d, 4, padding=3, groups=2 * d)
        self.x_proj = nn.Linear(2 * d, 2 * d + 2 * state)
        self.a_log = nn.Parameter(torch.zeros(2 * d, state))
        self.skip = nn.Parameter(torch.ones(2 * d))
        self.out_proj = nn.Linear(2 * d, d, bias=False)
        self.state = state

    def forward(self, x):
        u, z = self.in_proj(self.norm(x)).chunk(2, -1)
        u = F.silu(self.conv(u.mT)[..., : x.shape[1]].mT).contiguous()
        dt, b, c = self.x_proj(u).split((u.shape[-1], self.state, self.state), -1)
        y = ChunkedScan.apply(u, F.softplus(dt), self.a_log, b, c, 16)
        return x + self.out_proj((y + self.skip * u) * F.silu(z))


class Mamba(nn.Module):
    def __init__(self, v=2000, d=96, layers=3):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.layers = nn.Sequential(*(MambaBlock(d) for _ in range(layers)))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, x):
        return self.head(self.norm(self.layers(self.embed(x))))


class _Tokens:
    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


@case("mamba_function", ["MambaBlock"])
class _(_Tokens):
    make = Mamba
    batch = staticmethod(lambda device: (ids(2000, 8, 64, device=device), ids(2000, 8, 64, device=device)))


class Retention(nn.Module):
    """RetNet: rotated keys, a decay for each head, chunks that hand a state on, a norm for each head."""

    def __init__(self, d, heads=4, chunk=32):
        super().__init__()
        self.heads, self.hd, self.chunk = heads, d // heads, chunk
        self.norm, self.qkvg = nn.LayerNorm(d), nn.Linear(d, 4 * d, bias=False)
        self.group = nn.GroupNorm(heads, d, affine=False)
        self.out = nn.Linear(d, d, bias=False)
        self.ffn_norm, self.fc1, self.fc2 = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.register_buffer("decay", torch.log(1 - 2.0 ** (-5 - torch.arange(heads, dtype=torch.float32))))

    def turn(self, x, sin, cos):
        even = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        return x * cos + even * sin

    def forward(self, x, sin, cos):
        b, t, d = x.shape
        q, k, v, g = self.qkvg(self.norm(x)).view(b, t, 4, self.heads, self.hd).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.turn(q, sin, cos), self.turn(k, sin, cos) * self.hd**-0.5
        place = torch.arange(self.chunk, device=x.device)
        gap = (place[:, None] - place[None]).float()
        mask = torch.exp(self.decay[:, None, None].float() * gap).masked_fill(gap < 0, 0.0).to(x.dtype)
        fade = torch.exp(self.decay[:, None].float() * (place + 1)).to(x.dtype)[..., None]
        whole = torch.exp(self.decay * self.chunk).to(x.dtype)[:, None, None]
        state, rows = x.new_zeros(b, self.heads, self.hd, self.hd), []
        for i in range(0, t, self.chunk):
            s = slice(i, i + self.chunk)
            inner = (q[:, :, s] @ k[:, :, s].transpose(-1, -2) * mask) @ v[:, :, s]
            rows.append(inner + (q[:, :, s] * fade) @ state)
            state = state * whole + (k[:, :, s] * fade.flip(1)).transpose(-1, -2) @ v[:, :, s]
        y = torch.cat(rows, 2).transpose(1, 2).reshape(b * t, d)
        y = self.group(y).view(b, t, d) * F.silu(g.transpose(1, 2).reshape(b, t, d))
        x = x + self.out(y)
        return x + self.fc2(F.gelu(self.fc1(self.ffn_norm(x))))


class RetNet(nn.Module):
    def __init__(self, v=3000, d=192, layers=3):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.layers = nn.ModuleList(Retention(d) for _ in range(layers))
        self.head = nn.Linear(d, v, bias=False)

    def forward(self, x):
        h = self.embed(x) * math.sqrt(192)
        angle = 1.0 / (10000 ** torch.linspace(0, 1, 24, device=x.device))
        angle = angle.unsqueeze(-1).repeat(1, 2).flatten() * torch.arange(x.shape[1], device=x.device)[:, None]
        sin, cos = angle.sin().to(h.dtype), angle.cos().to(h.dtype)
        for layer in self.layers:
            h = layer(h, sin, cos)
        return self.head(h)


@case("retnet", ["Retention"])
class _(_Tokens):
    make = RetNet
    batch = staticmethod(lambda device: (ids(3000, 8, 128, device=device), ids(3000, 8, 128, device=device)))


class LinearAttentionBlock(nn.Module):
    """Causal linear attention by running sums, positive random features that are a buffer."""

    def __init__(self, d, heads=4, features=32):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.register_buffer("random", torch.zeros(heads, d // heads, features))

    def feature(self, x):
        x = torch.einsum("bthd,hdf->bthf", x, self.random.to(x.dtype)) - x.square().sum(-1, keepdim=True) / 2
        return torch.exp(x - x.amax(-1, keepdim=True).detach()) + 1e-4

    def forward(self, x):
        q, k, v = (z.unflatten(-1, (self.heads, -1)) for z in self.qkv(self.norm(x)).tensor_split(3, dim=-1))
        q, k = self.feature(q), self.feature(k)
        held = torch.einsum("bthf,bthd->bthfd", k, v).cumsum(1)
        scale = 1.0 / torch.einsum("bthf,bthf->bth", q, k.cumsum(1))
        return x + self.out(torch.einsum("bthf,bthfd,bth->bthd", q, held, scale).flatten(-2))


class Performer(nn.Module):
    def __init__(self, v=1000, d=64, layers=2):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.layers = nn.Sequential(*(LinearAttentionBlock(d) for _ in range(layers)))
        self.head = nn.Linear(d, v)

    def forward(self, x):
        return self.head(self.layers(self.embed(x)))


@case("performer", ["LinearAttentionBlock"], precisions=["bfloat16", "float32"])
class _(_Tokens):
    make = Performer
    batch = staticmethod(lambda device: (ids(1000, 4, 64, device=device), ids(1000, 4, 64, device=device)))


# ------------------------------------------------------------------------------------------------------------- speech


class RelativeAttention(nn.Module):
    """Transformer-XL's: scores of content and of distance, the latter shifted into place."""

    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.hd = heads, d // heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.pos = nn.Linear(d, d, bias=False)
        self.u, self.w = nn.Parameter(torch.zeros(heads, self.hd)), nn.Parameter(torch.zeros(heads, self.hd))

    def forward(self, x, distance, padding):
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.heads, self.hd) for f in (self.q, self.k, self.v))
        p = self.pos(distance).view(-1, self.heads, self.hd)
        content = torch.matmul((q + self.u).transpose(1, 2), k.permute(0, 2, 3, 1))
        place = torch.matmul((q + self.w).transpose(1, 2), p.permute(1, 2, 0))
        place = F.pad(place, (1, 0)).view(b, self.heads, -1, t)[:, :, 1:].view(b, self.heads, t, -1)[..., :t]
        score = (content + place) / math.sqrt(self.hd)
        score = score.masked_fill(padding[:, None, None], float("-inf")).softmax(-1)
        return self.o((F.dropout(score, 0.1, self.training) @ v.transpose(1, 2)).transpose(1, 2).reshape(b, t, d))


class ConformerBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.ff1, self.ff2 = (
            nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * d, d)) for _ in range(2)
        )
        self.n1, self.n2, self.n3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = RelativeAttention(d, 4)
        self.point1, self.point2 = nn.Conv1d(d, 2 * d, 1), nn.Conv1d(d, d, 1)
        self.depth, self.bn = nn.Conv1d(d, d, 15, padding=7, groups=d), nn.BatchNorm1d(d)

    def forward(self, x, distance, padding):
        x = x + 0.5 * self.ff1(x)
        x = x + self.attn(self.n1(x), distance, padding)
        y = F.glu(self.point1(self.n2(x).transpose(1, 2)), dim=1).masked_fill(padding[:, None], 0)
        x = x + self.point2(F.silu(self.bn(self.depth(y)))).transpose(1, 2)
        x = x + 0.5 * self.ff2(x)
        return self.n3(x)


class Conformer(nn.Module):
    def __init__(self, mel=40, d=96, layers=3, v=64):
        super().__init__()
        self.sub = nn.Sequential(nn.Conv2d(1, d, 3, 2, 1), nn.ReLU(), nn.Conv2d(d, d, 3, 2, 1), nn.ReLU())
        self.inp = nn.Linear(d * (mel // 4), d)
        self.layers = nn.ModuleList(ConformerBlock(d) for _ in range(layers))
        self.head = nn.Linear(d, v)
        table = torch.zeros(2 * 64 - 1, d)
        self.register_buffer("distance", table, persistent=False)

    def forward(self, mel, lengths):
        h = self.sub(mel.unsqueeze(1)).transpose(1, 2).flatten(2)
        h = self.inp(h)
        padding = torch.arange(h.shape[1], device=h.device) >= lengths[:, None]
        for layer in self.layers:
            h = layer(h, self.distance, padding)
        return self.head(h).log_softmax(-1)


@case("conformer", ["ConformerBlock"], precisions=["float32"])
class _:
    make = Conformer
    batch = staticmethod(
        lambda device: (torch.randn(8, 256, 40, device=device), ids(64, 8, device=device), ids(64, 8, 64, device=device))
    )

    @staticmethod
    def forward(model, mel, lengths, labels):
        return F.nll_loss(model(mel, lengths).flatten(0, 1).float(), labels.flatten())


class WhisperAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(d, d), nn.Linear(d, d, bias=False)
        self.value, self.out = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x, xa=None, mask=None):
        q, k, v = self.query(x), self.key(x if xa is None else xa), self.value(x if xa is None else xa)
        q, k, v = (z.view(*z.shape[:2], self.heads, -1).permute(0, 2, 1, 3) for z in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=mask is not None and x.shape[1] > 1)
        return self.out(a.permute(0, 2, 1, 3).flatten(start_dim=2))


class WhisperNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.float()).type(x.dtype) if self.weight.dtype == torch.float32 else super().forward(x)


class ResidualAttentionBlock(nn.Module):
    def __init__(self, d, heads, cross=False):
        super().__init__()
        self.attn, self.attn_ln = WhisperAttention(d, heads), WhisperNorm(d)
        self.cross_attn = WhisperAttention(d, heads) if cross else None
        self.cross_attn_ln = WhisperNorm(d) if cross else None
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.mlp_ln = WhisperNorm(d)

    def forward(self, x, xa=None, mask=None):
        x = x + self.attn(self.attn_ln(x), mask=mask)
        if self.cross_attn is not None:
            x = x + self.cross_attn(self.cross_attn_ln(x), xa)
        return x + self.mlp(self.mlp_ln(x))


class Whisper(nn.Module):
    def __init__(self, v=2000, d=128, heads=4, layers=2, text=64):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(80, d, 3, padding=1), nn.Conv1d(d, d, 3, stride=2, padding=1)
        self.register_buffer("sinusoids", torch.zeros(200, d))
        self.encoder = nn.ModuleList(ResidualAttentionBlock(d, heads) for _ in range(layers))
        self.ln_post = WhisperNorm(d)
        self.token = nn.Embedding(v, d)
        self.place = nn.Parameter(torch.zeros(text, d))
        self.decoder = nn.ModuleList(ResidualAttentionBlock(d, heads, True) for _ in range(layers))
        self.ln = WhisperNorm(d)
        self.register_buffer("mask", torch.zeros(text, text).fill_(-math.inf).triu_(1), persistent=False)

    def forward(self, mel, tokens):
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).permute(0, 2, 1)
        x = (x + self.sinusoids).to(x.dtype)
        for block in self.encoder:
            x = block(x)
        xa = self.ln_post(x)
        h = self.token(tokens) + self.place[: tokens.shape[-1]]
        for block in self.decoder:
            h = block(h.to(xa.dtype), xa, mask=self.mask)
        h = self.ln(h)
        return (h @ torch.transpose(self.token.weight.to(h.dtype), 0, 1)).float()


@case("whisper", ["ResidualAttentionBlock"])
class _:
    make = Whisper
    batch = staticmethod(lambda device: (torch.randn(8, 80, 400, device=device), ids(2000, 8, 65, device=device)))

    @staticmethod
    def forward(model, mel, tokens):
        return F.cross_entropy(model(mel, tokens[:, :-1]).transpose(1, 2), tokens[:, 1:], ignore_index=1)


# ----------------------------------------------------------------------------------------- decoders that feed themselves


class Attentive(nn.Module):
    """Bahdanau's attention over an encoding."""

    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, 1)

    def forward(self, h, memory):
        w = self.v(torch.tanh(self.q(h)[:, None] + self.k(memory))).softmax(1)
        return (w * memory).sum(1)


class Speller(nn.Module):
    def __init__(self, v=300, d=96):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, d), nn.ReLU(), nn.Linear(d, d))
        self.embed = nn.Embedding(v, d)
        self.cell1, self.cell2 = nn.LSTMCell(2 * d, d), nn.GRUCell(d, d)
        self.attend = Attentive(d)
        self.head = nn.Linear(2 * d, v)

    def forward(self, frames, tokens, forced=0.7):
        memory = self.encoder(frames)
        h = c = memory.new_zeros(memory.shape[0], memory.shape[2])
        g, logits, previous = memory.mean(1), [], tokens[:, 0]
        for t in range(tokens.shape[1]):
            context = self.attend(g, memory)
            h, c = self.cell1(torch.cat([self.embed(previous), context], -1), (h, c))
            g = self.cell2(h, g)
            logits.append(self.head(torch.cat([g, context], -1)))
            coin = torch.rand(tokens.shape[0], device=tokens.device) < forced
            previous = torch.where(coin, tokens[:, t], logits[-1].argmax(-1))
        return torch.stack(logits, 1)


@case("scheduled_sampling", ["Attentive"], precisions=["float32", "bfloat16"])
class _:
    make = Speller
    batch = staticmethod(lambda device: (torch.randn(32, 80, 32, device=device), ids(300, 32, 20, device=device)))

    @staticmethod
    def forward(model, frames, tokens):
        return F.cross_entropy(model(frames, tokens).permute(0, 2, 1), tokens, reduction="none").mean(1).mean()


# --------------------------------------------------------------------------------------------- blocks called again


class AlbertLayer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).movedim(-3, 0).transpose(2, 3)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.n1(x + self.proj(y))
        return self.n2(x + self.down(F.gelu(self.up(x), approximate="tanh")))


class Albert(nn.Module):
    """One layer for all depths; a factorised embedding is used for the logits as well."""

    def __init__(self, v=2000, e=64, d=192, depth=4):
        super().__init__()
        self.embed, self.wide, self.narrow = nn.Embedding(v, e), nn.Linear(e, d), nn.Linear(d, e)
        self.layer, self.depth = AlbertLayer(d), depth
        self.bias = nn.Parameter(torch.zeros(v))

    def forward(self, x):
        h = self.wide(self.embed(x))
        for _ in range(self.depth):
            h = self.layer(h)
        return F.linear(self.narrow(h), self.embed.weight, self.bias)


@case("albert", ["AlbertLayer"])
class _(_Tokens):
    make = Albert
    batch = staticmethod(lambda device: (ids(2000, 8, 96, device=device), ids(2000, 8, 96, device=device)))


class BothKinds(nn.Module):
    """Recomputes its halves itself: attention by the reentrant kind, the rest by the other."""

    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.gate, self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(d, 3 * d), nn.Linear(3 * d, d)
        self.drop = nn.Dropout(0.1)

    def attend(self, x):
        q, k, v = (z.unflatten(-1, (4, -1)).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.drop(self.proj(y.transpose(1, 2).flatten(2)))

    def mix(self, x, scale):
        y = self.n2(x)
        return self.drop(self.down(F.silu(self.gate(y)) * self.up(y))) * scale

    def forward(self, x, scale):
        x = x + checkpoint(self.attend, x, use_reentrant=True)
        return x + checkpoint(self.mix, x, scale, use_reentrant=False)


class CheckpointsInside(nn.Module):
    def __init__(self, v=3000, d=192, layers=3):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.blocks = nn.ModuleList(BothKinds(d) for _ in range(layers))
        self.scale = nn.Parameter(torch.ones(d))
        self.head = nn.Linear(d, v, bias=False)

    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h, self.scale)
        return self.head(h)


@case("checkpoints_inside", ["BothKinds"])
class _(_Tokens):
    make = CheckpointsInside
    batch = staticmethod(lambda device: (ids(3000, 8, 128, device=device), ids(3000, 8, 128, device=device)))


class MtpBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.mix, self.out = nn.RMSNorm(d), nn.Linear(d, 4 * d, bias=False), nn.Linear(2 * d, d, bias=False)

    def forward(self, x):
        a, b = self.mix(self.norm(x)).chunk(2, -1)
        return x + self.out(F.relu(a).square() * b)


class MultiToken(nn.Module):
    """Several tokens ahead: embedding and head, two units' children, are called for each depth."""

    def __init__(self, v=2500, d=160, layers=2, depth=2):
        super().__init__()
        self.embed, self.head, self.norm = nn.Embedding(v, d), nn.Linear(d, v, bias=False), nn.RMSNorm(d)
        self.layers = nn.ModuleList(MtpBlock(d) for _ in range(layers))
        self.join = nn.ModuleList(nn.Linear(2 * d, d) for _ in range(depth))
        self.ahead = nn.ModuleList(MtpBlock(d) for _ in range(depth))

    def forward(self, x):
        t = x.shape[1] - len(self.ahead)
        h = self.embed(x[:, :t])
        for layer in self.layers:
            h = layer(h)
        logits = [self.head(self.norm(h))]
        for i, (join, block) in enumerate(zip(self.join, self.ahead), 1):
            h = block(join(torch.cat([self.norm(h), self.norm(self.embed(x[:, i : t + i]))], -1)))
            logits.append(self.head(self.norm(h)))
        return logits


@case("multi_token", ["MtpBlock"])
class _:
    make = MultiToken
    batch = staticmethod(lambda device: (ids(2500, 4, 131, device=device),))

    @staticmethod
    def forward(model, x):
        logits = model(x)
        losses = [token_loss(z, x[:, i : i + z.shape[1]]) for i, z in enumerate(logits)]
        return losses[0] + 0.3 * torch.stack(losses[1:]).mean()
