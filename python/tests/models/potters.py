"""Pictures, sounds, graphs and series: a graph transformer, readers of text in pictures, decoders that are fed by chance, norms over responses, weights that are forced to a length, merged tokens, video, durations."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from . import case, ids
from .tinkerers import BOTH, Mlp


class GpsLayer(nn.Module):
    """GPS: gated messages along edges beside attention within each graph, batch norms."""

    def __init__(self, d, graphs, heads=4):
        super().__init__()
        self.a, self.b, self.c, self.u, self.v = (nn.Linear(d, d) for _ in range(5))
        self.attn, self.graphs = nn.MultiheadAttention(d, heads, batch_first=True), graphs
        self.norm_x, self.norm_e, self.norm_local, self.norm_attn, self.norm_out = (nn.BatchNorm1d(d) for _ in range(5))
        self.ff1, self.ff2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def local(self, x, e, src, dst):
        gate = self.a(x)[dst] + self.b(x)[src] + self.c(e)
        sigma = torch.sigmoid(gate)
        messages = sigma * self.v(x)[src]
        index = dst[:, None].expand(-1, x.shape[1])
        up = torch.zeros_like(x).scatter_add_(0, index, messages)
        down = torch.zeros_like(x).scatter_add(0, index, sigma)
        h = self.u(x) + up / (down + 1e-6)
        return x + F.relu(self.norm_x(h)), e + F.relu(self.norm_e(gate))

    def forward(self, x, e, src, dst):
        local, e = self.local(x, e, src, dst)
        local = self.norm_local(x + local)
        dense = x.view(self.graphs, -1, x.shape[1])
        mixed = self.attn(dense, dense, dense, need_weights=False)[0].reshape(x.shape)
        h = local + self.norm_attn(x + mixed)
        return self.norm_out(h + self.ff2(F.relu(self.ff1(h)))), e


class Gps(nn.Module):
    def __init__(self, d=64, graphs=16, depth=3):
        super().__init__()
        self.atoms, self.bonds, self.pe = nn.Embedding(28, d - 16), nn.Embedding(4, d), nn.Sequential(nn.BatchNorm1d(20), nn.Linear(20, 16))
        self.layers, self.graphs = nn.ModuleList(GpsLayer(d, graphs) for _ in range(depth)), graphs
        self.head = nn.Sequential(nn.Linear(d, d // 2), nn.ReLU(), nn.Linear(d // 2, 1))

    def forward(self, z, pe, bond, src, dst, of):
        x, e = torch.cat([self.atoms(z), self.pe(pe)], 1), self.bonds(bond)
        for layer in self.layers:
            x, e = layer(x, e, src, dst)
        pooled = torch.zeros(self.graphs, x.shape[1], device=x.device, dtype=x.dtype).index_add(0, of, x)
        return self.head(pooled).squeeze(-1)


@case("gps", ["GpsLayer"], precisions=["float32"])
class _:
    make = Gps
    batch = staticmethod(lambda device: (ids(28, 512, device=device), torch.randn(512, 20, device=device), ids(4, 2000, device=device), ids(512, 2000, device=device), ids(512, 2000, device=device), ids(16, 512, device=device), torch.randn(16, device=device)))
    forward = staticmethod(lambda model, z, pe, bond, src, dst, of, y: F.l1_loss(model(z, pe, bond, src, dst, of), y))


class Crnn(nn.Module):
    """A line of text in a picture: convolutions, two bidirectional layers, CTC."""

    def __init__(self, classes=80, d=64):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, d, 3, 1, 1), nn.ReLU(True), nn.MaxPool2d(2), nn.Conv2d(d, 2 * d, 3, 1, 1), nn.ReLU(True), nn.MaxPool2d((2, 1)),
            nn.Conv2d(2 * d, 4 * d, 3, 1, 1), nn.BatchNorm2d(4 * d), nn.ReLU(True), nn.MaxPool2d((2, 1)), nn.Conv2d(4 * d, 4 * d, (4, 1)), nn.ReLU(True),
        )  # fmt: skip
        self.rnn, self.out = nn.LSTM(4 * d, 128, num_layers=2, bidirectional=True), nn.Linear(256, classes)

    def forward(self, x, targets):
        h = self.cnn(x).squeeze(2).permute(2, 0, 1)
        logits = self.out(self.rnn(h)[0])
        steps = torch.full((x.shape[0],), logits.shape[0], dtype=torch.long)
        sizes = torch.full((x.shape[0],), targets.shape[1], dtype=torch.long)
        return F.ctc_loss(logits.float().log_softmax(2), targets, steps, sizes, zero_infinity=True)


@case("crnn", [], precisions=["float32"])
class _:
    make = Crnn
    batch = staticmethod(lambda device: (torch.randn(16, 1, 32, 128, device=device), torch.randint(1, 80, (16, 12), device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))


class Fed(nn.Module):
    """Sequence to sequence with additive attention; what is fed next is the truth or the guess, by chance."""

    def __init__(self, v=800, d=96):
        super().__init__()
        self.src, self.tgt, self.encoder = nn.Embedding(v, d), nn.Embedding(v, d), nn.GRU(d, d, batch_first=True, bidirectional=True)
        self.bridge, self.query, self.key, self.energy = nn.Linear(2 * d, d), nn.Linear(d, d), nn.Linear(2 * d, d), nn.Linear(d, 1, bias=False)
        self.cell, self.out = nn.GRUCell(3 * d, d), nn.Linear(4 * d, v)

    def forward(self, src, tgt):
        memory, last = self.encoder(self.src(src))
        h = torch.tanh(self.bridge(torch.cat([last[0], last[1]], -1)))
        keys, fed, logits = self.key(memory), tgt[:, 0], []
        for t in range(1, tgt.shape[1]):
            e = self.tgt(fed)
            weights = F.softmax(self.energy(torch.tanh(self.query(h)[:, None] + keys)).squeeze(-1), -1)
            context = torch.bmm(weights[:, None], memory).squeeze(1)
            h = self.cell(torch.cat([e, context], -1), h)
            step = self.out(torch.cat([h, context, e], -1))
            logits.append(step)
            fed = torch.where(torch.rand(len(tgt), device=tgt.device) < 0.5, tgt[:, t], step.argmax(-1))
        logits = torch.stack(logits, 1)
        return F.cross_entropy(logits.flatten(0, 1).float(), tgt[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1)


@case("scheduled", [], precisions=BOTH)
class _:
    make = Fed
    batch = staticmethod(lambda device: (ids(800, 16, 20, device=device), ids(800, 16, 16, device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))


class ChannelNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))

    def forward(self, x):
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class Grn(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.zeros(1, 1, 1, d)), nn.Parameter(torch.zeros(1, 1, 1, d))

    def forward(self, x):
        gx = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        return self.gamma * (x * (gx / (gx.mean(dim=-1, keepdim=True) + 1e-6))) + self.beta + x


class Next2(nn.Module):
    def __init__(self, d, drop):
        super().__init__()
        self.dwconv, self.norm, self.pw1, self.grn, self.pw2, self.drop = nn.Conv2d(d, d, 7, padding=3, groups=d), nn.LayerNorm(d, eps=1e-6), nn.Linear(d, 4 * d), Grn(4 * d), nn.Linear(4 * d, d), drop

    def forward(self, x):
        h = self.dwconv(x).permute(0, 2, 3, 1)
        h = self.pw2(self.grn(F.gelu(self.pw1(self.norm(h))))).permute(0, 3, 1, 2)
        if self.drop:
            keep = h.new_empty(len(h), 1, 1, 1).bernoulli_(1 - self.drop).div_(1 - self.drop)
            h = h * keep
        return x + h


class Fcmae(nn.Module):
    """ConvNeXt V2 as a masked autoencoder: the mask is multiplied in at every stage."""

    def __init__(self, dims=(40, 80), depths=(2, 2), patch=16):
        super().__init__()
        self.stem, self.down, self.patch = nn.Sequential(nn.Conv2d(3, dims[0], 4, 4), ChannelNorm(dims[0])), nn.Sequential(ChannelNorm(dims[0]), nn.Conv2d(dims[0], dims[1], 4, 4)), patch
        self.stage1, self.stage2 = nn.Sequential(*(Next2(dims[0], 0.0) for _ in range(depths[0]))), nn.Sequential(*(Next2(dims[1], 0.1) for _ in range(depths[1])))
        self.proj, self.token, self.decoder, self.pred = nn.Conv2d(dims[1], 96, 1), nn.Parameter(torch.zeros(1, 96, 1, 1)), Next2(96, 0.0), nn.Conv2d(96, 3 * patch**2, 1)

    def forward(self, x, noise):
        b, side = len(x), x.shape[2] // self.patch
        mask = (noise.argsort(1).argsort(1) >= int(0.4 * side * side)).to(x.dtype).reshape(b, 1, side, side)
        fine = mask.repeat_interleave(4, 2).repeat_interleave(4, 3)
        h = self.stage1(self.stem(x) * (1 - fine))
        h = self.stage2(self.down(h * (1 - fine)) * (1 - mask))
        h = self.proj(h)
        h = h * (1 - mask) + self.token * mask
        pred = self.pred(self.decoder(h)).flatten(2).transpose(1, 2)
        p = self.patch
        target = x.reshape(b, 3, side, p, side, p).permute(0, 2, 4, 3, 5, 1).reshape(b, side * side, -1).float()
        target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-6).sqrt()
        flat = mask.flatten(1)
        return (((pred.float() - target) ** 2).mean(-1) * flat).sum() / flat.sum()


@case("fcmae", ["Next2"], precisions=BOTH, recompute=True)
class _:
    make = Fcmae
    batch = staticmethod(lambda device: (torch.randn(8, 3, 64, 64, device=device), torch.rand(8, 16, device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))


def mp_silu(x):
    return F.silu(x) / 0.596


def mp_sum(a, b, t=0.3):
    return a.lerp(b, t) / math.sqrt((1 - t) ** 2 + t**2)


def normalized(x, eps=1e-4):
    norm = torch.linalg.vector_norm(x, dim=list(range(1, x.ndim)), keepdim=True, dtype=torch.float32)
    norm = torch.add(eps, norm, alpha=math.sqrt(norm.numel() / x.numel()))
    return x / norm.to(x.dtype)


class MpConv(nn.Module):
    """EDM2's: the weight is forced to its length in training, in place, and used at unit length."""

    def __init__(self, i, o, kernel):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i, *kernel))

    def forward(self, x, gain=1.0):
        w = self.weight.to(torch.float32)
        if self.training:
            with torch.no_grad():
                self.weight.copy_(normalized(w))
        w = normalized(w) * (gain / math.sqrt(w[0].numel()))
        w = w.to(x.dtype)
        return x @ w.t() if w.ndim == 2 else F.conv2d(x, w, padding=(w.shape[-1] // 2,))


class EdmBlock(nn.Module):
    def __init__(self, i, o, emb, heads=0, skip=0):
        super().__init__()
        self.conv0, self.conv1, self.emb, self.gain = MpConv(i + skip, o, (3, 3)), MpConv(o, o, (3, 3)), MpConv(emb, o, ()), nn.Parameter(torch.zeros([]).reshape(1))
        self.short = MpConv(i + skip, o, (1, 1)) if i + skip != o else None
        self.heads, self.qkv, self.proj = heads, (MpConv(o, 3 * o, (1, 1)) if heads else None), (MpConv(o, o, (1, 1)) if heads else None)

    def forward(self, x, emb):
        y = self.conv0(mp_silu(x))
        if self.short is not None:
            x = self.short(x)
        c = self.emb(emb, gain=self.gain) + 1
        y = mp_silu(y * c.unsqueeze(2).unsqueeze(3).to(y.dtype))
        x = mp_sum(x, self.conv1(F.dropout(y, 0.1, self.training)))
        if self.heads:
            y = self.qkv(x).reshape(len(x), self.heads, -1, 3, x.shape[2] * x.shape[3])
            q, k, v = normalized_heads(y).unbind(3)
            w = torch.einsum("nhcq,nhck->nhqk", q, k / math.sqrt(q.shape[2])).softmax(3)
            y = torch.einsum("nhqk,nhck->nhcq", w, v)
            x = mp_sum(x, self.proj(y.reshape(x.shape)))
        return x.clip_(-256, 256)


def normalized_heads(y):
    norm = torch.linalg.vector_norm(y, dim=2, keepdim=True, dtype=torch.float32)
    norm = torch.add(1e-4, norm, alpha=math.sqrt(norm.numel() / y.numel()))
    return y / norm.to(y.dtype)


class Edm2(nn.Module):
    def __init__(self, d=48, emb=96):
        super().__init__()
        self.register_buffer("freqs", 2 * math.pi * torch.randn(d)), self.register_buffer("phases", 2 * math.pi * torch.rand(d))
        self.emb_noise, self.first = MpConv(d, emb, ()), MpConv(4, d, (3, 3))
        self.enc, self.mid, self.dec = EdmBlock(d, 2 * d, emb), EdmBlock(2 * d, 2 * d, emb, heads=4), EdmBlock(2 * d, d, emb, skip=2 * d)
        self.last, self.out_gain, self.logvar = MpConv(d, 3, (3, 3)), nn.Parameter(torch.zeros(1)), MpConv(d, 1, ())

    def forward(self, x, rnd, noise):
        sigma = (rnd * 1.0 - 0.4).exp()
        weight = (sigma**2 + 0.25) / (sigma * 0.5) ** 2
        noisy = x + noise * sigma
        c_in, c_skip, c_out = 1 / (0.25 + sigma**2).sqrt(), 0.25 / (sigma**2 + 0.25), sigma * 0.5 / (sigma**2 + 0.25).sqrt()
        wave = (torch.outer(sigma.flatten().log() / 4, self.freqs.to(sigma.dtype)) + self.phases.to(sigma.dtype)).cos() * math.sqrt(2)
        emb = mp_silu(self.emb_noise(wave.to(x.dtype)))
        h = c_in * noisy
        h = self.first(torch.cat([h, torch.ones_like(h[:, :1])], 1))
        low = self.enc(F.avg_pool2d(h, 2), emb)
        mid = self.mid(low, emb)
        up = F.interpolate(self.dec(torch.cat([mid, low], 1), emb), scale_factor=2)
        out = self.last(up, gain=self.out_gain)
        denoised = c_skip * noisy + c_out * out
        logvar = self.logvar(wave.to(x.dtype)).reshape(-1, 1, 1, 1)
        return ((weight / logvar.exp()) * ((denoised - x) ** 2) + logvar).mean()


@case("edm2", [], precisions=BOTH, versions=(2,))
class _:
    make = Edm2
    batch = staticmethod(lambda device: (torch.randn(8, 3, 32, 32, device=device), torch.randn(8, 1, 1, 1, device=device), torch.randn(8, 3, 32, 32, device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))


class ConvStage(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv3d(i, o, 3, stride, 1), nn.InstanceNorm3d(o, affine=True)
        self.conv2, self.norm2 = nn.Conv3d(o, o, 3, 1, 1), nn.InstanceNorm3d(o, affine=True)

    def forward(self, x):
        x = F.leaky_relu(self.norm1(self.conv1(x)), 0.01, inplace=True)
        return F.leaky_relu(self.norm2(self.conv2(x)), 0.01, inplace=True)


class NnUNet(nn.Module):
    """Volumes: instance norms, transposed convolutions, Dice and cross entropy at every depth."""

    def __init__(self, d=16, classes=4):
        super().__init__()
        self.enc = nn.ModuleList([ConvStage(1, d, 1), ConvStage(d, 2 * d, 2), ConvStage(2 * d, 4 * d, 2)])
        self.up = nn.ModuleList([nn.ConvTranspose3d(4 * d, 2 * d, 2, 2), nn.ConvTranspose3d(2 * d, d, 2, 2)])
        self.dec, self.seg = nn.ModuleList([ConvStage(4 * d, 2 * d, 1), ConvStage(2 * d, d, 1)]), nn.ModuleList([nn.Conv3d(2 * d, classes, 1), nn.Conv3d(d, classes, 1)])

    @staticmethod
    def judged(logits, y):
        probs, axes = logits.float().softmax(1), (2, 3, 4)
        onehot = torch.zeros_like(probs).scatter_(1, y[:, None], 1)
        meet = (probs * onehot).sum(axes)
        dice = (2 * meet + 1e-5) / (probs.sum(axes) + onehot.sum(axes) + 1e-5).clip(1e-8)
        return F.cross_entropy(logits.float(), y) - dice[:, 1:].mean()

    def forward(self, x, y):
        skips = []
        for stage in self.enc:
            x = stage(x)
            skips.append(x)
        loss, x = 0.0, skips.pop()
        for i, (up, dec, seg) in enumerate(zip(self.up, self.dec, self.seg)):
            x = dec(torch.cat([up(x), skips.pop()], 1))
            factor = 2 ** (1 - i)
            loss = loss + self.judged(seg(x), y[:, ::factor, ::factor, ::factor]) / factor
        return loss


@case("nnunet", ["ConvStage"], precisions=BOTH, recompute=True)
class _:
    make = NnUNet
    batch = staticmethod(lambda device: (torch.randn(2, 1, 32, 32, 32, device=device), ids(4, 2, 32, 32, 32, device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))


class ToMeBlock(nn.Module):
    """Tokens that are alike are merged between attention and MLP, weighed by what they stand for."""

    def __init__(self, d, heads=4, r=8):
        super().__init__()
        self.norm1, self.qkv, self.proj, self.norm2, self.heads, self.r = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d), nn.LayerNorm(d), heads, r
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def merged(self, x, size, metric):
        with torch.no_grad():
            metric = metric / metric.norm(dim=-1, keepdim=True)
            a, b = metric[:, ::2], metric[:, 1::2]
            scores = a @ b.transpose(-1, -2)
            scores[:, 0, :] = -math.inf
            node_max, node_idx = scores.max(-1)
            edge = node_max.argsort(-1, descending=True)[..., None]
            unm, src = edge[:, self.r :].sort(1)[0], edge[:, : self.r]
            dst = node_idx[..., None].gather(-2, src)

        def merge(t):
            s, d_ = t[:, ::2], t[:, 1::2]
            n, t1, c = s.shape
            kept = s.gather(-2, unm.expand(n, t1 - self.r, c))
            moved = s.gather(-2, src.expand(n, self.r, c))
            return torch.cat([kept, d_.scatter_reduce(-2, dst.expand(n, self.r, c), moved, reduce="sum")], 1)

        x, size = merge(x * size), merge(size)
        return x / size, size

    def forward(self, x, size):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attn = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        attn = (attn + size.log()[:, None, None, :, 0]).softmax(-1)
        x = x + self.proj((attn @ v).transpose(1, 2).reshape(b, n, d))
        x, size = self.merged(x, size, k.mean(1))
        return x + self.mlp(self.norm2(x)), size


class ToMe(nn.Module):
    """With mixup of pictures and soft targets."""

    def __init__(self, d=96, depth=3, classes=100):
        super().__init__()
        self.patch, self.cls, self.pos = nn.Conv2d(3, d, 8, 8), nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(torch.zeros(1, 65, d))
        self.blocks, self.norm, self.head, self.classes = nn.ModuleList(ToMeBlock(d) for _ in range(depth)), nn.LayerNorm(d), nn.Linear(d, classes), classes

    def forward(self, x, y, lam):
        x = x * lam + x.flip(0) * (1 - lam)
        target = F.one_hot(y, self.classes).float()
        target = target * lam.flatten(1) + target.flip(0) * (1 - lam.flatten(1))
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.cls.expand(len(h), -1, -1), h], 1) + self.pos
        size = torch.ones_like(h[..., :1])
        for block in self.blocks:
            h, size = block(h, size)
        return torch.sum(-target * F.log_softmax(self.head(self.norm(h[:, 0])).float(), -1), -1).mean()


@case("tome", ["ToMeBlock"], precisions=BOTH, recompute=True)
class _:
    make = ToMe
    batch = staticmethod(lambda device: (torch.randn(8, 3, 64, 64, device=device), ids(100, 8, device=device), torch.rand(8, 1, 1, 1, device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))


class WanBlock(nn.Module):
    """Video: rotations in time, height and width as complex numbers, one table of shifts, text crossed in."""

    def __init__(self, d, heads=4):
        super().__init__()
        self.heads, self.norm1, self.norm2, self.norm3 = heads, nn.LayerNorm(d, elementwise_affine=False), nn.LayerNorm(d, elementwise_affine=False), nn.LayerNorm(d)
        self.q, self.k, self.v, self.o, self.norm_q, self.norm_k = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d), nn.RMSNorm(d), nn.RMSNorm(d)
        self.cq, self.ckv, self.co = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.ffn, self.modulation = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d)), nn.Parameter(torch.randn(1, 6, d) / d**0.5)

    def rotated(self, x, freqs):
        b, n, d = x.shape
        y = torch.view_as_complex(x.float().reshape(b, n, self.heads, -1, 2)) * freqs[None, :, None]
        return torch.view_as_real(y).flatten(3).to(x.dtype).transpose(1, 2)

    def forward(self, x, e, context, freqs):
        b, n, d = x.shape
        e = (self.modulation + e).chunk(6, 1)
        h = self.norm1(x) * (1 + e[1]) + e[0]
        q, k = self.rotated(self.norm_q(self.q(h)), freqs), self.rotated(self.norm_k(self.k(h)), freqs)
        v = self.v(h).view(b, n, self.heads, -1).transpose(1, 2)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)) * e[2]
        q = self.cq(self.norm3(x)).view(b, n, self.heads, -1).transpose(1, 2)
        k, v = self.ckv(context).view(b, context.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.co(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.ffn(self.norm2(x) * (1 + e[4]) + e[3]) * e[5]


class Wan(nn.Module):
    """Flow matching on latents of video; the text is dropped for some."""

    def __init__(self, d=128, depth=2, text=64):
        super().__init__()
        self.patch, self.text = nn.Conv3d(8, d, (1, 2, 2), (1, 2, 2)), nn.Sequential(nn.Linear(text, d), nn.GELU(approximate="tanh"), nn.Linear(d, d))
        self.time, self.time_proj = nn.Sequential(nn.Linear(64, d), nn.SiLU(), nn.Linear(d, d)), nn.Sequential(nn.SiLU(), nn.Linear(d, 6 * d))
        self.blocks, self.norm, self.head, self.empty = nn.ModuleList(WanBlock(d) for _ in range(depth)), nn.LayerNorm(d, elementwise_affine=False), nn.Linear(d, 8 * 4), nn.Parameter(torch.zeros(1, 1, text))

    @staticmethod
    def freqs(f, h, w, half, device):
        parts = []
        for n, size, shape in ((f, half - 2 * (half // 3), (f, 1, 1)), (h, half // 3, (1, h, 1)), (w, half // 3, (1, 1, w))):
            angles = torch.outer(torch.arange(n, device=device), 1.0 / 10000 ** (torch.arange(size, device=device).float() / size))
            parts.append(angles.view(*shape, size).expand(f, h, w, size))
        return torch.polar(torch.ones(f * h * w, half, device=device), torch.cat(parts, -1).reshape(f * h * w, half))

    def forward(self, x, noise, t, context, drop):
        context = torch.where(drop[:, None, None], self.empty.to(context.dtype), context)
        s = t[:, None, None, None, None]
        noisy, target = (1 - s) * x + s * noise, noise - x
        h = self.patch(noisy.to(self.patch.weight.dtype))
        b, d, f, hh, w = h.shape
        h = h.flatten(2).transpose(1, 2)
        wave = torch.outer(t.float() * 1000, torch.exp(-math.log(10000) * torch.arange(32, device=t.device) / 32))
        e = self.time(torch.cat([wave.cos(), wave.sin()], -1).to(h.dtype))
        e6, text = self.time_proj(e).unflatten(1, (6, d)), self.text(context.to(h.dtype))
        freqs = self.freqs(f, hh, w, d // 4 // 2, h.device)
        for block in self.blocks:
            h = block(h, e6, text, freqs)
        out = self.head(self.norm(h)).reshape(b, f, hh, w, 1, 2, 2, 8).permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(x.shape)
        return F.mse_loss(out.float(), target.float())


@case("wan", ["WanBlock"], precisions=BOTH, recompute=True)
class _:
    make = Wan
    batch = staticmethod(lambda device: (torch.randn(2, 8, 4, 16, 16, device=device), torch.randn(2, 8, 4, 16, 16, device=device), torch.rand(2, device=device), torch.randn(2, 32, 64, device=device), torch.zeros(2, dtype=torch.bool, device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))


class MixBlock(nn.Module):
    def __init__(self, n, c, d):
        super().__init__()
        self.norm1, self.time, self.norm2, self.up, self.down, self.drop = nn.BatchNorm1d(n * c), nn.Linear(n, n), nn.BatchNorm1d(n * c), nn.Linear(c, d), nn.Linear(d, c), nn.Dropout(0.1)

    def forward(self, x):
        h = self.norm1(x.flatten(1)).reshape(x.shape)
        x = x + self.drop(F.relu(self.time(h.transpose(1, 2)))).transpose(1, 2)
        h = self.norm2(x.flatten(1)).reshape(x.shape)
        return x + self.drop(self.down(self.drop(F.relu(self.up(h)))))


class TsMixer(nn.Module):
    """RevIN around mixers over time and channels; quantiles of the future."""

    def __init__(self, n=96, c=21, d=64, ahead=24, depth=3):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(c)), nn.Parameter(torch.zeros(c))
        self.blocks, self.out, self.quantiles = nn.ModuleList(MixBlock(n, c, d) for _ in range(depth)), nn.Linear(n, 3 * ahead), (0.1, 0.5, 0.9)

    def forward(self, x, y):
        mean = x.mean(1, keepdim=True).detach()
        std = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5).detach()
        h = (x - mean) / std * self.weight + self.bias
        for block in self.blocks:
            h = block(h)
        h = self.out(h.transpose(1, 2)).transpose(1, 2)
        h = (h - self.bias) / (self.weight + 1e-10) * std + mean
        loss = 0
        for q, guess in zip(self.quantiles, h.chunk(3, 1)):
            miss = y - guess
            loss = loss + torch.maximum(q * miss, (q - 1) * miss).mean()
        return loss


@case("tsmixer", ["MixBlock"], precisions=["float32"])
class _:
    make = TsMixer
    batch = staticmethod(lambda device: (torch.randn(32, 96, 21, device=device), torch.randn(32, 24, 21, device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))


class Decoder1d(nn.Module):
    def __init__(self, i, d, time):
        super().__init__()
        self.block1, self.block2, self.time = nn.Sequential(nn.Conv1d(i, d, 3, padding=1), nn.GroupNorm(8, d), nn.Mish()), nn.Sequential(nn.Conv1d(d, d, 3, padding=1), nn.GroupNorm(8, d), nn.Mish()), nn.Sequential(nn.Mish(), nn.Linear(time, d))
        self.res, self.attn, self.mlp = nn.Conv1d(i, d, 1), nn.MultiheadAttention(d, 2, batch_first=True), Mlp(d)

    def forward(self, x, mask, t):
        h = self.block1(x * mask) * mask + self.time(t)[:, :, None]
        h = (self.block2(h * mask) * mask + self.res(x * mask)).transpose(1, 2)
        h = h + self.attn(h, h, h, key_padding_mask=mask[:, 0] == 0, need_weights=False)[0]
        return self.mlp(h).transpose(1, 2)


class Matcha(nn.Module):
    """Text to mel: durations by a predictor, an alignment by sums, flow matching with conditions dropped, a prior's loss."""

    def __init__(self, d=96, mels=40, v=100, speakers=20):
        super().__init__()
        self.emb, self.spk, self.enc = nn.Embedding(v, d), nn.Embedding(speakers, 32), nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.1, batch_first=True, norm_first=True)
        self.mu, self.dur = nn.Conv1d(d, mels, 1), nn.Sequential(nn.Conv1d(d, d, 3, padding=1), nn.ReLU(), nn.Conv1d(d, 1, 1))
        self.time, self.est, self.out = nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 128)), nn.ModuleList([Decoder1d(2 * mels + 32, d, 128), Decoder1d(d, d, 128)]), nn.Conv1d(d, mels, 1)

    def forward(self, x, durations, mel, t, noise, speaker, drop):
        h = self.enc(self.emb(x)).transpose(1, 2)
        mu_x, logw = self.mu(h), self.dur(h.detach()).squeeze(1)
        ends = durations.cumsum(1)
        steps = torch.arange(mel.shape[2], device=x.device)
        path = (steps[None, None] < ends[..., None]) & (steps[None, None] >= (ends - durations)[..., None])
        mu = torch.matmul(mu_x, path.to(mu_x.dtype))
        mask = (steps[None, None] < ends[:, -1, None, None]).to(mu.dtype)
        prior = torch.sum(0.5 * ((mel - mu.float()) ** 2 + math.log(2 * math.pi)) * mask) / (torch.sum(mask) * mel.shape[1])
        s = t[:, None, None]
        y, u = (1 - (1 - 1e-4) * s) * noise + s * mel, mel - (1 - 1e-4) * noise
        mu = mu * (~drop)[:, None, None]
        wave = torch.outer(t * 1000, torch.exp(torch.arange(32, device=t.device) * -(math.log(10000) / 31)))
        emb = self.time(torch.cat([wave.sin(), wave.cos()], -1).to(mu.dtype))
        spk = self.spk(speaker)[:, :, None].expand(-1, -1, mel.shape[2])
        h = torch.cat([y.to(mu.dtype), mu, spk], 1)
        for block in self.est:
            h = block(h, mask, emb)
        flow = F.mse_loss(self.out(h * mask).float() * mask, (u * mask).float(), reduction="sum") / (torch.sum(mask) * mel.shape[1])
        return flow + prior + F.mse_loss(logw.float(), torch.log(1e-8 + durations.float()))


@case("matcha", ["TransformerEncoderLayer", "Decoder1d"], precisions=BOTH, recompute=True)
class _:
    make = Matcha
    batch = staticmethod(lambda device: (ids(100, 8, 30, device=device), torch.ones(8, 30, dtype=torch.long, device=device) * 4, torch.randn(8, 40, 120, device=device), torch.rand(8, device=device), torch.randn(8, 40, 120, device=device), ids(20, 8, device=device), torch.zeros(8, dtype=torch.bool, device=device)))
    forward = staticmethod(lambda model, *batch: model(*batch))
