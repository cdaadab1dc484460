"""Once more what lately is trained: attention of differences over n-grams, depths that tokens choose, deltas by chunks, U-Nets of ConvNeXt blocks, DiT, masked patches, two CTC heads, edges, boxes of a pyramid, a head by pieces, adapters with a prompt."""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from . import case, ids
from .tinkerers import BOTH, on_tokens, tokens


def ctc_of_two(model, x, y):
    outs, n = model(x), torch.full((y.shape[0],), y.shape[1])
    t = torch.full((y.shape[0],), outs[0].shape[1])
    losses = [F.ctc_loss(out.float().log_softmax(-1).transpose(0, 1), y, t, n, zero_infinity=True) for out in outs]
    return 0.3 * losses[0] + 0.7 * losses[1]


def of_graphs(model, z, edges, features, graph):
    out = model(z, edges, features, graph, 16)
    return F.huber_loss(out["energy"].float(), torch.zeros_like(out["energy"].float())) + F.binary_cross_entropy_with_logits(out["kind"].float(), torch.zeros_like(out["kind"].float()))


def boxes(device):
    n = 32 * 32 + 16 * 16 + 8 * 8
    return (torch.randn(2, 3, 128, 128, device=device), torch.zeros(2, 20, n, device=device), torch.rand(2, 4, n, device=device), torch.ones(2, n, device=device))


class GramsDiffAttention(nn.Module):
    def __init__(self, d, h, depth):
        super().__init__()
        self.h, self.hd = h, d // h // 2
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.l0 = 0.8 - 0.6 * math.exp(-0.3 * depth)
        self.lq1, self.lk1, self.lq2, self.lk2 = (nn.Parameter(torch.randn(self.hd) * 0.1) for _ in range(4))
        self.norm = nn.RMSNorm(2 * self.hd)
        self.mix = nn.Parameter(torch.zeros(2))

    def forward(self, x, v0):
        b, n, d = x.shape
        q = self.q(x).view(b, n, 2 * self.h, self.hd).transpose(1, 2)
        k = self.k(x).view(b, n, 2 * self.h, self.hd).transpose(1, 2)
        v = self.v(x)
        if v0 is not None:
            v = v * self.mix[0].sigmoid() + v0 * self.mix[1].sigmoid()
        vh = v.view(b, n, self.h, 2 * self.hd).transpose(1, 2)
        lam = torch.exp((self.lq1 * self.lk1).sum()) - torch.exp((self.lq2 * self.lk2).sum()) + self.l0
        sc = q @ k.transpose(-1, -2) / math.sqrt(self.hd)
        m = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        p = sc.masked_fill(m, float("-inf")).softmax(-1).view(b, self.h, 2, n, n)
        p = p[:, :, 0] - lam * p[:, :, 1]
        y = self.norm(p @ vh) * (1 - self.l0)
        return self.o(y.transpose(1, 2).reshape(b, n, d)), v


class GramsBlock(nn.Module):
    def __init__(self, d, depth):
        super().__init__()
        self.n1, self.n2, self.a = nn.RMSNorm(d), nn.RMSNorm(d), GramsDiffAttention(d, 4, depth)
        self.w1, self.w2, self.w3 = nn.Linear(d, 3 * d), nn.Linear(3 * d, d), nn.Linear(d, 3 * d)

    def forward(self, x, v0):
        y, v = self.a(self.n1(x), v0)
        x = x + y
        h = self.n2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h)), v


class GramsNet(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.emb, self.grams = nn.Embedding(2000, 256), nn.ModuleList(nn.Embedding(4096, 256 // 2) for _ in range(2))
        self.proj = nn.Linear(256, 256, bias=False)
        self.blocks = nn.ModuleList(GramsBlock(256, i) for i in range(depth))
        self.norm, self.head = nn.RMSNorm(256), nn.Linear(256, 2000, bias=False)

    def forward(self, x):
        h, parts, roll = self.emb(x), [], x
        for i, table in enumerate(self.grams):
            roll = (roll * 1315423911 + F.pad(x, (i + 1, 0))[:, : x.shape[1]]) % 4096
            parts.append(table(roll))
        h, v0 = h + self.proj(torch.cat(parts, -1)), None
        for b in self.blocks:
            h, v = b(h, v0)
            v0 = v if v0 is None else v0
        return self.head(self.norm(h))


@case("diff_grams", ["GramsBlock"], precisions=BOTH, recompute=True)
class _:
    make = GramsNet
    batch = tokens(2000, 4, 128)
    forward = staticmethod(on_tokens)


class LatentMla(nn.Module):
    def __init__(self, d, h=6, qr=96, kr=64, rope=16, nope=32):
        super().__init__()
        self.h, self.rope, self.nope = h, rope, nope
        self.qa, self.qn, self.qb = nn.Linear(d, qr, bias=False), nn.RMSNorm(qr), nn.Linear(qr, h * (rope + nope), bias=False)
        self.kva, self.kvn, self.kvb = nn.Linear(d, kr + rope, bias=False), nn.RMSNorm(kr), nn.Linear(kr, h * 2 * nope, bias=False)
        self.o = nn.Linear(h * nope, d, bias=False)
        self.kr = kr
        inv = 1.0 / 10000 ** (torch.arange(0, rope, 2).float() / rope)
        self.register_buffer("freqs", torch.polar(torch.ones(1024, rope // 2), torch.outer(torch.arange(1024).float(), inv)), persistent=False)

    def rot(self, x):
        c = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(c * self.freqs[: x.shape[-2]]).flatten(-2).to(x.dtype)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.qb(self.qn(self.qa(x))).view(b, n, self.h, -1).transpose(1, 2)
        qn, qr = q.split([self.nope, self.rope], -1)
        kv, kr = self.kva(x).split([self.kr, self.rope], -1)
        kr = self.rot(kr[:, None])
        k, v = self.kvb(self.kvn(kv)).view(b, n, self.h, -1).transpose(1, 2).chunk(2, -1)
        q = torch.cat([qn, self.rot(qr)], -1)
        k = torch.cat([k, kr.expand(-1, self.h, -1, -1)], -1)
        y = F.scaled_dot_product_attention(q, k, F.pad(v, (0, self.rope)), is_causal=True)[..., : self.nope]
        return self.o(y.transpose(1, 2).reshape(b, n, -1))


class LatentBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2, self.a = nn.LayerNorm(d), nn.LayerNorm(d), LatentMla(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.a(self.n1(x))
        return x + self.mlp(self.n2(x))


class LatentDepths(nn.Module):
    def __init__(self, d, share):
        super().__init__()
        self.router, self.block, self.share = nn.Linear(d, 1), LatentBlock(d), share

    def forward(self, x):
        w = self.router(x).squeeze(-1)
        k = int(x.shape[1] * self.share)
        top, at = w.topk(k, -1, sorted=False)
        at, order = at.sort(-1)
        top = top.gather(1, order)
        at = at[..., None].expand(-1, -1, x.shape[-1])
        y = self.block(x.gather(1, at))
        return x.scatter_add(1, at, y * top[..., None].sigmoid().to(y.dtype))


class LatentNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(3000, 384)
        self.layers = nn.Sequential(*(LatentBlock(384) if i % 2 == 0 else LatentDepths(384, 0.25) for i in range(6)))
        self.norm = nn.LayerNorm(384)

    def forward(self, x):
        return F.linear(self.norm(self.layers(self.emb(x))), self.emb.weight)


@case("depths_latent", ["LatentBlock", "LatentDepths"], precisions=BOTH, recompute=True)
class _:
    make = LatentNet
    batch = tokens(3000, 4, 128)
    forward = staticmethod(on_tokens)


class ChunksGatedDelta(nn.Module):
    def __init__(self, d, h=4, chunk=32):
        super().__init__()
        self.h, self.c = h, chunk
        self.qkv, self.ab, self.g, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, 2 * h), nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.conv = nn.Conv1d(3 * d, 3 * d, 4, groups=3 * d, padding=3, bias=False)
        self.A = nn.Parameter(torch.randn(h))
        self.norm = nn.RMSNorm(d // h)

    def forward(self, x):
        b, n, d = x.shape
        c, h = self.c, self.h
        qkv = F.silu(self.conv(self.qkv(x).transpose(1, 2))[..., :n]).transpose(1, 2)
        q, k, v = (t.reshape(b, n // c, c, h, d // h).permute(0, 3, 1, 2, 4).float() for t in qkv.chunk(3, -1))
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        a, beta = self.ab(x).float().reshape(b, n // c, c, 2, h).permute(3, 0, 4, 1, 2).unbind(0)
        g = (-self.A.float().exp()[:, None, None] * F.softplus(a)).cumsum(-1)
        beta = beta.sigmoid()[..., None]
        decay = (g[..., :, None] - g[..., None, :]).exp().tril()
        kb = k * beta
        T = -(kb @ k.transpose(-1, -2) * decay).tril(-1)
        T = torch.linalg.solve_triangular(torch.eye(c, device=x.device) - T, torch.eye(c, device=x.device).expand_as(T), upper=False, unitriangular=True)
        u, w = T @ (v * beta), T @ (kb * g.exp()[..., None])
        S, outs = q.new_zeros(b, h, d // h, d // h), []
        for i in range(n // c):
            qi, ki, ui, wi, gi = q[:, :, i], k[:, :, i], u[:, :, i], w[:, :, i], g[:, :, i]
            new = ui - wi @ S
            outs.append(qi * gi.exp()[..., None] @ S + (qi @ ki.transpose(-1, -2) * decay[:, :, i]).tril() @ new)
            last = gi[..., -1:]
            S = S * last.exp()[..., None] + (ki * (last - gi).exp()[..., None]).transpose(-1, -2) @ new
        y = torch.stack(outs, 2).permute(0, 2, 3, 1, 4).reshape(b, n, h, -1).to(x.dtype)
        return self.o(self.norm(y).flatten(-2) * F.silu(self.g(x)))


class ChunksBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2, self.mix = nn.RMSNorm(d), nn.RMSNorm(d), ChunksGatedDelta(d)
        self.up, self.down = nn.Linear(d, 8 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x):
        x = x + self.mix(self.n1(x))
        a, b = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.gelu(a, approximate="tanh") * b)


CHUNKS_SAVED = {torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.convolution.default}


def chunks_policy(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op in CHUNKS_SAVED else CheckpointPolicy.PREFER_RECOMPUTE


class ChunksNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.layers, self.norm, self.out = nn.Embedding(2048, 256), nn.ModuleList(ChunksBlock(256) for _ in range(4)), nn.RMSNorm(256), nn.Linear(256, 2048, bias=False)

    def forward(self, x):
        h = self.emb(x)
        for i, layer in enumerate(self.layers):
            if i % 2:
                h = checkpoint(layer, h, use_reentrant=False, context_fn=functools.partial(create_selective_checkpoint_contexts, chunks_policy))
            else:
                h = checkpoint(layer, h, use_reentrant=False)
        return self.out(self.norm(h))


@case("gated_chunks", ["ChunksBlock"], precisions=BOTH)
class _:
    make = ChunksNet
    batch = tokens(2048, 2, 128)
    forward = staticmethod(on_tokens)


class SkipsNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class SkipsNext(nn.Module):
    def __init__(self, c, t):
        super().__init__()
        self.dw, self.norm = nn.Conv2d(c, c, 7, padding=3, groups=c), SkipsNorm(c)
        self.p1, self.p2, self.gamma = nn.Conv2d(c, 4 * c, 1), nn.Conv2d(4 * c, c, 1), nn.Parameter(1e-6 * torch.ones(c, 1, 1))
        self.t = nn.Linear(t, c)

    def forward(self, x, t):
        h = self.norm(self.dw(x)) + self.t(t)[:, :, None, None]
        h = F.gelu(self.p1(h))
        h = h * torch.rsqrt(h.pow(2).mean((2, 3), keepdim=True) + 1e-6)
        return x + self.gamma * self.p2(h)


class SkipsUNet(nn.Module):
    def __init__(self, c=(32, 64, 128), t=128):
        super().__init__()
        self.t = nn.Sequential(nn.Linear(32, t), nn.SiLU(), nn.Linear(t, t))
        self.stem, self.out = nn.Conv2d(3, c[0], 3, padding=1), nn.Conv2d(c[0], 3, 3, padding=1)
        self.down = nn.ModuleList(nn.ModuleList([SkipsNext(a, t), SkipsNext(a, t)]) for a in c)
        self.pool = nn.ModuleList(nn.Conv2d(a, b, 2, stride=2) for a, b in zip(c, c[1:]))
        self.mid = SkipsNext(c[-1], t)
        self.merge = nn.ModuleList(nn.Conv2d(2 * a, a, 1) for a in c[::-1])
        self.up = nn.ModuleList(nn.ModuleList([SkipsNext(a, t), SkipsNext(a, t)]) for a in c[::-1])
        self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in zip(c[::-1], c[::-1][1:]))

    def forward(self, x, t):
        f = torch.exp(torch.arange(16, device=x.device) * -0.5)
        e = torch.cat([(t[:, None] * f).sin(), (t[:, None] * f).cos()], -1)
        t, x, skips = self.t(e.to(x.dtype)), self.stem(x), []
        for i, (a, b) in enumerate(self.down):
            x = a(x, t); skips.append(x)
            x = b(x, t); skips.append(x)
            if i < len(self.pool):
                x = self.pool[i](x)
        x = self.mid(x, t)
        for i, (a, b) in enumerate(self.up):
            x = a(self.merge[i](torch.cat([x, skips.pop()], 1)), t)
            x = b(x + skips.pop(), t)
            if i < len(self.grow):
                x = self.grow[i](x)
        return self.out(F.silu(x))


@case("next_unet", ["SkipsNext"], precisions=BOTH, recompute=True)
class _:
    make = SkipsUNet
    batch = staticmethod(lambda device: (torch.randn(4, 3, 32, 32, device=device).to(memory_format=torch.channels_last), torch.rand(4, device=device)))
    forward = staticmethod(lambda model, x, t: F.mse_loss(model(x, t * 1000).float(), x, reduction="none").mean((1, 2, 3)).mul(1 / (t + 0.1)).mean())


class AdaDiTBlock(nn.Module):
    def __init__(self, d, h=6):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d, elementwise_affine=False), nn.LayerNorm(d, elementwise_affine=False)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.qn, self.kn = nn.RMSNorm(d // h), nn.RMSNorm(d // h)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(d, 6 * d))

    def forward(self, x, c):
        a, b, g, a2, b2, g2 = self.ada(c)[:, None].chunk(6, -1)
        h = self.n1(x) * (1 + a) + b
        q, k, v = self.qkv(h).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.qn(q), self.kn(k), v).transpose(1, 2).flatten(2)
        x = x + g * self.o(y)
        return x + g2 * self.mlp(torch.addcmul(b2, self.n2(x), 1 + a2))


class AdaDiT(nn.Module):
    def __init__(self, d=384, depth=5, classes=1000):
        super().__init__()
        self.patch, self.pos = nn.Conv2d(4, d, 2, 2), nn.Parameter(torch.randn(1, 64, d), requires_grad=False)
        self.y, self.t = nn.Embedding(classes + 1, d), nn.Sequential(nn.Linear(256, d), nn.SiLU(), nn.Linear(d, d))
        self.blocks = nn.ModuleList(AdaDiTBlock(d) for _ in range(depth))
        self.fin, self.ada = nn.Linear(d, 16), nn.Linear(d, 2 * d)
        self.nf = nn.LayerNorm(d, elementwise_affine=False)

    def forward(self, x, t, y):
        h = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        f = torch.exp(-torch.arange(128, device=x.device, dtype=torch.float32) / 14)
        e = t[:, None].float() * f
        y = torch.where(torch.rand(y.shape, device=y.device) < 0.1, torch.full_like(y, 1000), y)
        c = self.t(torch.cat([e.cos(), e.sin()], -1).to(self.t[0].weight.dtype)) + self.y(y)
        for b in self.blocks:
            h = b(h, c)
        a, g = self.ada(F.silu(c))[:, None].chunk(2, -1)
        h = self.fin(self.nf(h) * (1 + a) + g)
        return h.view(-1, 8, 8, 2, 2, 4).permute(0, 5, 1, 3, 2, 4).reshape(-1, 4, 16, 16)


@case("ada_patches", ["AdaDiTBlock"], precisions=BOTH, recompute=True, orig_params=True)
class _:
    make = AdaDiT
    batch = staticmethod(lambda device: (torch.randn(8, 4, 16, 16, device=device), torch.rand(8, device=device), ids(1000, 8, device=device)))
    forward = staticmethod(lambda model, z, t, y: ((model(z, t, y).float() - z) ** 2).mean())


class MaskedLayer(nn.TransformerEncoderLayer):
    pass


class MaskedMae(nn.Module):
    def __init__(self, d=256, dd=128, p=8, n=64):
        super().__init__()
        self.p, self.n = p, n
        self.patch, self.pos, self.cls = nn.Linear(3 * p * p, d), nn.Parameter(torch.randn(1, n, d)), nn.Parameter(torch.zeros(1, 1, d))
        mk = lambda w, k: nn.ModuleList(MaskedLayer(w, 4, 4 * w, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(k))
        self.enc, self.dec = mk(d, 4), mk(dd, 2)
        self.norm, self.down, self.mask, self.dpos, self.out = nn.LayerNorm(d), nn.Linear(d, dd), nn.Parameter(torch.zeros(1, 1, dd)), nn.Parameter(torch.randn(1, n + 1, dd)), nn.Linear(dd, 3 * p * p)

    def forward(self, img):
        b, p = img.shape[0], self.p
        t = img.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        x = self.patch(t) + self.pos
        order = torch.rand(b, self.n, device=x.device).argsort(1)
        back = order.argsort(1)
        keep = order[:, : self.n // 4]
        x = x.gather(1, keep[..., None].expand(-1, -1, x.shape[-1]))
        x = torch.cat([self.cls.expand(b, -1, -1), x], 1)
        for l in self.enc:
            x = l(x)
        x = self.down(self.norm(x))
        full = torch.cat([x[:, 1:], self.mask.expand(b, self.n - keep.shape[1], -1)], 1)
        full = full.gather(1, back[..., None].expand(-1, -1, full.shape[-1]))
        x = torch.cat([x[:, :1], full], 1) + self.dpos
        for l in self.dec:
            x = l(x)
        y = self.out(x[:, 1:])
        mask = torch.ones(b, self.n, device=x.device)
        mask[:, : keep.shape[1]] = 0
        mask = mask.gather(1, back)
        t = (t - t.mean(-1, keepdim=True)) / (t.var(-1, keepdim=True) + 1e-6).sqrt()
        return (((y.float() - t.float()) ** 2).mean(-1) * mask).sum() / mask.sum()


@case("masked_patches", ["MaskedLayer"], precisions=BOTH, recompute=True)
class _:
    make = MaskedMae
    batch = staticmethod(lambda device: (torch.randn(16, 3, 64, 64, device=device),))
    forward = staticmethod(lambda model, image: model(image))


class CtcConvPart(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n, self.a, self.dw, self.gn, self.b = nn.LayerNorm(d), nn.Conv1d(d, 2 * d, 1), nn.Conv1d(d, d, 15, padding=7, groups=d), nn.GroupNorm(1, d), nn.Conv1d(d, d, 1)

    def forward(self, x):
        h = F.glu(self.a(self.n(x).mT), 1)
        return self.b(F.silu(self.gn(self.dw(h)))).mT


class CtcBlock(nn.Module):
    def __init__(self, d, h=4):
        super().__init__()
        self.h = h
        self.f1, self.f2 = (nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * d, d)) for _ in range(2))
        self.c, self.n, self.qkv, self.o, self.last = CtcConvPart(d), nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d), nn.LayerNorm(d)

    def forward(self, x):
        x = x + 0.5 * self.f1(x)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(self.n(x)).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, dropout_p=0.1).transpose(1, 2).flatten(2))
        x = x + self.c(x)
        return self.last(x + 0.5 * self.f2(x))


class CtcNet(nn.Module):
    def __init__(self, d=192, v=128):
        super().__init__()
        self.feat = nn.Sequential(nn.Conv1d(1, 64, 10, 5), nn.GELU(), nn.Conv1d(64, 128, 8, 4), nn.GELU(), nn.Conv1d(128, d, 4, 2), nn.GELU())
        self.blocks = nn.ModuleList(CtcBlock(d) for _ in range(4))
        self.mid, self.back, self.head = nn.Linear(d, v), nn.Linear(v, d), nn.Linear(d, v)

    def forward(self, x):
        with torch.no_grad():
            x = self.feat(x[:, None])
        x, outs = x.mT, []
        for i, b in enumerate(self.blocks):
            x = b(x)
            if i == 1:
                outs.append(self.mid(x)); x = x + self.back(outs[0].softmax(-1))
        return [*outs, self.head(x)]


@case("mid_ctc", ["CtcBlock"], precisions=BOTH)
class _:
    make = CtcNet
    batch = staticmethod(lambda device: (torch.randn(4, 8000, device=device), ids(127, 4, 20, device=device) + 1))
    forward = staticmethod(ctc_of_two)


class EdgesLayer(nn.Module):
    def __init__(self, d, h=4):
        super().__init__()
        self.h = h
        self.src, self.dst, self.edge, self.att = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(16, d, bias=False), nn.Parameter(torch.randn(h, d // h))
        self.up, self.bn = nn.Sequential(nn.Linear(2 * d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d)), nn.LayerNorm(d)

    def forward(self, x, ei, ea):
        n = x.shape[0]
        i, j = ei
        m = self.src(x)[j] + self.dst(x)[i] + self.edge(ea)
        e = (F.leaky_relu(m, 0.2).unflatten(-1, (self.h, -1)) * self.att).sum(-1)
        top = torch.full((n, self.h), -1e9, device=x.device, dtype=e.dtype).scatter_reduce(0, i[:, None].expand(-1, self.h), e.detach(), "amax")
        w = (e - top[i]).exp()
        z = torch.zeros(n, self.h, device=x.device, dtype=w.dtype).index_add(0, i, w)
        w = w / (z[i] + 1e-9)
        out = torch.zeros_like(x).index_add(0, i, (m.unflatten(-1, (self.h, -1)) * w[..., None]).flatten(1))
        return x + self.bn(self.up(torch.cat([x, out], -1)))


class EdgesNet(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.emb, self.layers, self.gate, self.heads = nn.Embedding(100, d), nn.ModuleList(EdgesLayer(d) for _ in range(4)), nn.Linear(d, 1), nn.ModuleDict({"energy": nn.Linear(d, 1), "kind": nn.Linear(d, 12)})

    def forward(self, z, ei, ea, batch, graphs):
        x = self.emb(z)
        for l in self.layers:
            x = l(x, ei, ea)
        g = torch.zeros(graphs, x.shape[1], device=x.device, dtype=x.dtype).scatter_add(0, batch[:, None].expand_as(x), x * self.gate(x).sigmoid())
        return {k: h(g) for k, h in self.heads.items()}


@case("edges", ["EdgesLayer"], precisions=BOTH)
class _:
    make = EdgesNet
    batch = staticmethod(lambda device: (ids(100, 512, device=device), ids(512, 2, 4096, device=device), torch.randn(4096, 16, device=device), torch.arange(512, device=device) // 32))
    forward = staticmethod(of_graphs)


class BoxesWindow(nn.Module):
    def __init__(self, d, w=4, shift=0, h=4):
        super().__init__()
        self.w, self.shift, self.h = w, shift, h
        self.n1, self.n2, self.qkv, self.o = nn.LayerNorm(d), nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.bias = nn.Parameter(torch.zeros((2 * w - 1) ** 2, h))
        g = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(w), indexing="ij")).flatten(1)
        r = (g[:, :, None] - g[:, None]).permute(1, 2, 0) + w - 1
        self.register_buffer("at", r[..., 0] * (2 * w - 1) + r[..., 1])
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, H, W, d = x.shape
        h, w = self.n1(x), self.w
        if self.shift:
            h = h.roll((-self.shift, -self.shift), (1, 2))
        h = h.view(b, H // w, w, W // w, w, d).transpose(2, 3).reshape(-1, w * w, d)
        q, k, v = self.qkv(h).view(-1, w * w, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.bias[self.at.view(-1)].view(w * w, w * w, -1).permute(2, 0, 1).contiguous()[None]
        h = ((q * (d // self.h) ** -0.5) @ k.mT + bias).softmax(-1) @ v
        h = self.o(h.transpose(1, 2).reshape(-1, w * w, d)).view(b, H // w, W // w, w, w, d).transpose(2, 3).reshape(b, H, W, d)
        if self.shift:
            h = h.roll((self.shift, self.shift), (1, 2))
        x = x + h
        return x + self.mlp(self.n2(x))


class BoxesStage(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.red, self.blocks = nn.Linear(4 * a, b, bias=False), nn.ModuleList([BoxesWindow(b), BoxesWindow(b, shift=2)])

    def forward(self, x):
        x = torch.cat([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], -1)
        x = self.red(x)
        for w in self.blocks:
            x = w(x)
        return x


class BoxesDet(nn.Module):
    def __init__(self, c=(48, 96, 192), f=96, k=20):
        super().__init__()
        self.stem = nn.Conv2d(3, 48, 2, 2)
        self.stages = nn.ModuleList([BoxesStage(48, c[0]), BoxesStage(c[0], c[1]), BoxesStage(c[1], c[2])])
        self.lat, self.sm = nn.ModuleList(nn.Conv2d(a, f, 1) for a in c), nn.ModuleList(nn.Conv2d(f, f, 3, padding=1) for _ in c)
        self.cls, self.box = (nn.Sequential(nn.Conv2d(f, f, 3, padding=1), nn.GroupNorm(8, f), nn.ReLU(), nn.Conv2d(f, o, 3, padding=1)) for o in (k, 4))
        self.sigma = nn.Parameter(torch.zeros(2))

    def forward(self, x, tc, tb, pos):
        x, feats = self.stem(x).permute(0, 2, 3, 1), []
        for st in self.stages:
            x = st(x); feats.append(x.permute(0, 3, 1, 2))
        lat = [l(f) for l, f in zip(self.lat, feats)]
        for i in (1, 0):
            lat[i] = lat[i] + F.interpolate(lat[i + 1], scale_factor=2, mode="nearest")
        p = [m(l) for m, l in zip(self.sm, lat)]
        c = torch.cat([self.cls(q).flatten(2) for q in p], 2).float()
        b = torch.cat([self.box(q).exp().flatten(2) for q in p], 2).float()
        pr = c.sigmoid()
        ce = F.binary_cross_entropy_with_logits(c, tc, reduction="none")
        focal = (ce * (1 - (pr * tc + (1 - pr) * (1 - tc))) ** 2).sum() / pos.sum().clamp(min=1)
        wh = torch.min(b, tb)
        inter = (wh[:, 0] + wh[:, 2]) * (wh[:, 1] + wh[:, 3])
        area = lambda t: (t[:, 0] + t[:, 2]) * (t[:, 1] + t[:, 3])
        union = area(b) + area(tb) - inter
        giou = ((1 - inter / union.clamp(min=1e-6)) * pos).sum() / pos.sum().clamp(min=1)
        return focal * (-self.sigma[0]).exp() + giou * (-self.sigma[1]).exp() + self.sigma.sum()


@case("pyramid_boxes", ["BoxesStage", "BoxesWindow"], precisions=BOTH)
class _:
    make = BoxesDet
    batch = staticmethod(boxes)
    forward = staticmethod(lambda model, *given: model(*given))


class PiecesGate(torch.autograd.Function):
    @staticmethod

    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return F.silu(a) * b
    @staticmethod

    def backward(ctx, g):
        a, b = ctx.saved_tensors
        s = torch.sigmoid(a)
        act = a * s
        return g * b * (s + act * (1 - s)), g * act


class PiecesChunkedCe(torch.autograd.Function):
    @staticmethod

    def forward(ctx, h, w, y, n):
        gh, gw, total = torch.empty_like(h), torch.zeros_like(w, dtype=torch.float32), 0.0
        for hc, yc, oc in zip(h.chunk(n), y.chunk(n), gh.chunk(n)):
            lg = (hc @ w.T).float()
            lse = lg.logsumexp(-1)
            total = total + (lse - lg.gather(1, yc[:, None]).squeeze(1)).sum()
            p = (lg - lse[:, None]).exp_()
            p.scatter_add_(1, yc[:, None], torch.full_like(p[:, :1], -1.0))
            p = (p / y.numel()).to(h.dtype)
            torch.mm(p, w, out=oc)
            gw += (p.T @ hc).float()
        ctx.save_for_backward(gh, gw)
        ctx.dtype = w.dtype
        return total / y.numel()
    @staticmethod

    def backward(ctx, g):
        gh, gw = ctx.saved_tensors
        return gh * g.to(gh.dtype), (gw * g).to(ctx.dtype), None, None


class PiecesBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n, self.a, self.b, self.o, self.tok = nn.LayerNorm(d), nn.Linear(d, 2 * d, bias=False), nn.Linear(d, 2 * d, bias=False), nn.Linear(2 * d, d, bias=False), nn.Conv1d(d, d, 9, groups=8)

    def forward(self, x):
        h = self.n(x)
        h = h + self.tok(F.pad(h.mT, (8, 0))).mT
        return x + self.o(PiecesGate.apply(self.a(h), self.b(h)))


class PiecesNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4000, 256) * 0.02)
        self.blocks, self.norm = nn.Sequential(*(PiecesBlock(256) for _ in range(5))), nn.LayerNorm(256)

    def forward(self, x, y):
        h = self.norm(self.blocks(F.embedding(x, self.w)))
        return PiecesChunkedCe.apply(h.flatten(0, 1), self.w, y.flatten(), 8)


@case("pieced_head", ["PiecesBlock"], precisions=BOTH)
class _:
    make = PiecesNet
    batch = staticmethod(lambda device: (ids(4000, 4, 128, device=device), ids(4000, 4, 128, device=device)))
    forward = staticmethod(lambda model, x, y: model(x, y))


class PromptLora(nn.Module):
    def __init__(self, base, r=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b, self.drop = nn.Parameter(torch.randn(r, base.in_features)), nn.Parameter(torch.zeros(base.out_features, r)), nn.Dropout(0.05)

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(self.drop(x), self.a), self.b) * 2.0


class PromptBlock(nn.Module):
    def __init__(self, d, h=5):
        super().__init__()
        self.h = h
        self.n1, self.n2, self.qkv, self.o = nn.LayerNorm(d), nn.LayerNorm(d), PromptLora(nn.Linear(d, 3 * d)), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), PromptLora(nn.Linear(4 * d, d))
        for m in (self.n1, self.n2, self.o, self.up):
            m.requires_grad_(False)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class PromptNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(4000, 320).requires_grad_(False)
        self.prompt, self.layers, self.norm, self.cls = nn.Parameter(torch.randn(16, 320)), nn.ModuleList(PromptBlock(320) for _ in range(5)), nn.LayerNorm(320).requires_grad_(False), nn.Linear(320, 10)

    def forward(self, x):
        h = torch.cat([self.prompt.expand(x.shape[0], -1, -1), self.emb(x)], 1)
        for l in self.layers:
            h = l(h)
        return self.cls(self.norm(h).mean(1))


@case("prompted_lora", ["PromptBlock"], precisions=BOTH, recompute=True, orig_params=True)
class _:
    make = PromptNet
    batch = staticmethod(lambda device: (ids(4000, 4, 112, device=device), ids(10, 4, device=device)))
    forward = staticmethod(lambda model, x, y: F.cross_entropy(model(x).float(), y))
