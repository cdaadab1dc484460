"""Sound, pictures and motion made by networks: scales predicted one by one, vocoders and their judges, separation, attention that walks along text, policies, splats."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from . import case, ids
from .moderns import RMSNorm, SwiGLU, rotary
from .tinkerers import BOTH, token_loss

# ------------------------------------------------------------------------------------------------------- by scales


class AdaLNSelfAttn(nn.Module):
    """VAR's block: six modulations, cosine attention with a learnt scale, a mask by scales, drop path."""

    def __init__(self, d, heads=4, drop_path=0.1):
        super().__init__()
        self.heads, self.drop_path = heads, drop_path
        self.mat_qkv, self.q_bias, self.v_bias = nn.Linear(d, 3 * d, bias=False), nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d))
        self.register_buffer("zero_k_bias", torch.zeros(d))
        self.scale_mul_1H11 = nn.Parameter(torch.full((1, heads, 1, 1), 4.0).log())
        self.proj, self.fc1, self.fc2, self.ln = nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d), nn.LayerNorm(d, elementwise_affine=False)
        self.ada_lin = nn.Sequential(nn.SiLU(inplace=False), nn.Linear(d, 6 * d))

    def path(self, x):
        if not self.training:
            return x
        keep = 1 - self.drop_path
        return x * x.new_empty(x.shape[0], 1, 1).bernoulli_(keep).div_(keep)

    def attn(self, x, bias):
        b, n, d = x.shape
        qkv = F.linear(x, self.mat_qkv.weight, torch.cat((self.q_bias, self.zero_k_bias.to(self.q_bias.dtype), self.v_bias))).view(b, n, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(dim=0)
        q = F.normalize(q, dim=-1).mul(self.scale_mul_1H11.clamp_max(math.log(100)).exp())
        return self.proj(F.scaled_dot_product_attention(q, F.normalize(k, dim=-1), v, attn_mask=bias, scale=1.0).transpose(1, 2).reshape(b, n, d))

    def forward(self, x, cond, attn_bias):
        gamma1, gamma2, scale1, scale2, shift1, shift2 = self.ada_lin(cond).view(-1, 1, 6, x.shape[-1]).unbind(2)
        x = x + self.path(self.attn(self.ln(x).mul(scale1.add(1)).add_(shift1), attn_bias).mul_(gamma1))
        return x + self.path(self.fc2(F.gelu(self.fc1(self.ln(x).mul(scale2.add(1)).add_(shift2)), approximate="tanh")).mul(gamma2))


class Var(nn.Module):
    def __init__(self, d=128, v=256, c=16, scales=(1, 2, 3, 4, 6)):
        super().__init__()
        self.scales, self.total = scales, sum(s * s for s in scales)
        self.class_emb, self.pos_start, self.word = nn.Embedding(11, d), nn.Parameter(torch.zeros(1, 1, d)), nn.Linear(c, d)
        self.pos_1LC, self.lvl_embed = nn.Parameter(torch.zeros(1, self.total, d)), nn.Embedding(len(scales), d)
        self.codebook = nn.Embedding(v, c).requires_grad_(False)
        self.phi = nn.Conv2d(c, c, 3, padding=1).requires_grad_(False)
        level = torch.cat([torch.full((s * s,), i) for i, s in enumerate(scales)]).view(1, -1)
        self.register_buffer("lvl_1L", level.contiguous())
        self.register_buffer("attn_bias", torch.where(level.view(1, -1, 1) >= level.view(1, 1, -1), 0.0, -torch.inf).view(1, 1, self.total, self.total).contiguous())
        self.blocks = nn.ModuleList(AdaLNSelfAttn(d) for _ in range(3))
        self.head_nm, self.head = nn.Sequential(nn.SiLU(), nn.Linear(d, 2 * d)), nn.Linear(d, v)

    @torch.no_grad()
    def teacher_input(self, tokens_):
        b, side, out, at = tokens_.shape[0], self.scales[-1], [], 0
        f_hat = self.codebook.weight.new_zeros(b, self.codebook.weight.shape[1], side, side)
        for i, s in enumerate(self.scales[:-1]):
            h = self.codebook(tokens_[:, at : at + s * s]).transpose(1, 2).view(b, -1, s, s)
            at += s * s
            h = F.interpolate(h, size=(side, side), mode="bicubic")
            f_hat.add_(h * 0.5 + self.phi(h) * 0.5)
            n = self.scales[i + 1]
            out.append(F.interpolate(f_hat, size=(n, n), mode="area").flatten(2).transpose(1, 2))
        return torch.cat(out, dim=1)

    def forward(self, label, tokens_):
        known = self.teacher_input(tokens_)
        label = torch.where(torch.rand(label.shape[0], device=label.device) < 0.1, 10, label)
        sos = cond = self.class_emb(label)
        sos = sos.unsqueeze(1) + self.pos_start.expand(label.shape[0], 1, -1)
        x = torch.cat((sos, self.word(known.to(sos.dtype))), dim=1)
        x += self.lvl_embed(self.lvl_1L.expand(label.shape[0], -1)) + self.pos_1LC
        for block in self.blocks:
            x = block(x, cond, self.attn_bias.to(x.dtype))
        scale, shift = self.head_nm(cond).view(-1, 1, 2, x.shape[-1]).unbind(2)
        return self.head(F.layer_norm(x, (x.shape[-1],)).mul(scale.add(1)).add_(shift))


@case("var", ["AdaLNSelfAttn"], precisions=BOTH, recompute=True, orig_params=True)
class _:
    make = Var
    batch = staticmethod(lambda device: (ids(10, 16, device=device), ids(256, 16, 66, device=device)))
    forward = staticmethod(lambda model, y, t: token_loss(model(y, t), t))


class SanaBlock(nn.Module):
    """Linear attention with ReLU and padded values, cross attention to text, a gated depthwise feed-forward, one modulation for all plus a table of its own."""

    def __init__(self, d, heads=4):
        super().__init__()
        self.heads, self.table = heads, nn.Parameter(torch.zeros(6, d))
        self.n1, self.n2, self.qkv, self.proj = nn.LayerNorm(d, elementwise_affine=False, eps=1e-6), nn.LayerNorm(d, elementwise_affine=False, eps=1e-6), nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)
        self.cross = nn.MultiheadAttention(d, heads, batch_first=True)
        self.inverted, self.depth, self.point = nn.Conv2d(d, 5 * d, 1), nn.Conv2d(5 * d, 5 * d, 3, padding=1, groups=5 * d), nn.Conv2d(5 * d // 2, d, 1, bias=False)

    def linear_attention(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, d).unbind(2)
        q, k, v = (t.transpose(-1, -2).reshape(b, self.heads, d // self.heads, n) for t in (q, k, v))
        q, k = F.relu(q, inplace=False), F.relu(k).transpose(-1, -2)
        q, k, v = q.float(), k.float(), F.pad(v.float(), (0, 0, 0, 1), mode="constant", value=1.0)
        out = torch.matmul(torch.matmul(v, k), q)
        out = out[:, :, :-1] / (out[:, :, -1:] + 1e-15)
        return self.proj(out.view(b, d, n).permute(0, 2, 1).to(x.dtype))

    def forward(self, x, text, t, side, mask):
        shift, scale, gate, shift2, scale2, gate2 = (self.table[None] + t.reshape(x.shape[0], 6, -1)).chunk(6, dim=1)
        x = x + gate * self.linear_attention(self.n1(x) * (1 + scale) + shift)
        x = x + self.cross(x, text, text, key_padding_mask=mask, need_weights=False)[0]
        y = (self.n2(x) * (1 + scale2) + shift2).transpose(1, 2).unflatten(2, (side, side))
        y, g = torch.chunk(self.depth(F.silu(self.inverted(y))), 2, dim=1)
        return x + gate2 * self.point(y * F.silu(g)).flatten(2).transpose(1, 2)


class Sana(nn.Module):
    """Flow matching with logit-normal times; features aligned with those of a frozen encoder (REPA)."""

    def __init__(self, d=96, c=8):
        super().__init__()
        self.x_embed, self.y_norm, self.y_proj, self.t_mlp = nn.Conv2d(c, d, 1), RMSNorm(32), nn.Sequential(nn.Linear(32, d), nn.GELU(approximate="tanh"), nn.Linear(d, d)), nn.Sequential(nn.Linear(64, d), nn.SiLU(), nn.Linear(d, d))
        self.t_block, self.blocks = nn.Sequential(nn.SiLU(), nn.Linear(d, 6 * d)), nn.ModuleList(SanaBlock(d) for _ in range(3))
        self.final_table, self.out = nn.Parameter(torch.zeros(2, d)), nn.Linear(d, c)
        self.encoder, self.projector = nn.Sequential(nn.Conv2d(c, 64, 3, padding=1), nn.GELU(), nn.Conv2d(64, 64, 3, padding=1)).requires_grad_(False), nn.Sequential(nn.Linear(d, 128), nn.SiLU(), nn.Linear(128, 64))

    def forward(self, x, text, mask):
        b, side = x.shape[0], x.shape[-1]
        t = torch.sigmoid(torch.randn(b, device=x.device))
        noise = torch.randn_like(x)
        s = t.view(-1, 1, 1, 1)
        xt = (1.0 - s) * x + s * noise
        freqs = torch.exp(-math.log(10000) * torch.arange(0, 32, dtype=torch.float32, device=x.device) / 32)
        args = (t * 1000)[:, None] * freqs[None]
        dtype = self.x_embed.weight.dtype
        temb = self.t_mlp(torch.cat([torch.cos(args), torch.sin(args)], dim=-1).to(dtype))
        h = self.x_embed(xt.to(dtype)).flatten(2).transpose(1, 2)
        y, t6 = self.y_proj(self.y_norm(text.to(dtype))), self.t_block(temb)
        zs = None
        for i, block in enumerate(self.blocks):
            h = block(h, y, t6, side, mask)
            if i == 1:
                zs = self.projector(h)
        with torch.no_grad():
            target = self.encoder(x.to(dtype)).flatten(2).transpose(1, 2)
        shift, scale = (self.final_table[None] + temb[:, None]).chunk(2, dim=1)
        out = self.out(F.layer_norm(h, h.shape[-1:], eps=1e-6) * (1 + scale) + shift).transpose(1, 2).view_as(x)
        align = -(F.normalize(target.float(), dim=-1) * F.normalize(zs.float(), dim=-1)).sum(-1).mean()
        return ((out.float() - (noise - x)) ** 2).flatten(1).mean(1).mean() + 0.5 * align


@case("sana", ["SanaBlock"], precisions=BOTH, orig_params=True, recompute=True)
class _:
    make = Sana
    batch = staticmethod(lambda device: (torch.randn(8, 8, 16, 16, device=device), torch.randn(8, 20, 32, device=device), torch.zeros(8, 20, dtype=torch.bool, device=device)))
    forward = staticmethod(lambda model, *given: model(*given))


# ------------------------------------------------------------------------------------------------------------ sound


class Snake1d(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x):
        shape = x.shape
        x = x.reshape(shape[0], shape[1], -1)
        x = x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).pow(2)
        return x.reshape(shape)


class ResidualUnit(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.block = nn.Sequential(Snake1d(c), weight_norm(nn.Conv1d(c, c, 7, dilation=dilation, padding=3 * dilation)), Snake1d(c), weight_norm(nn.Conv1d(c, c, 1)))

    def forward(self, x):
        y = self.block(x)
        return x + y


class UpStage(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.up = weight_norm(nn.ConvTranspose1d(a, b, 2 * stride, stride, padding=stride // 2))
        self.units = nn.Sequential(*[ResidualUnit(b, d) for d in (1, 3)])

    def forward(self, x):
        return self.units(self.up(F.leaky_relu(x, 0.1)))


class PeriodJudge(nn.Module):
    def __init__(self, period):
        super().__init__()
        self.period = period
        self.convs = nn.ModuleList([weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), padding=(2, 0))) for a, b in ((1, 16), (16, 32), (32, 64))])
        self.post = weight_norm(nn.Conv2d(64, 1, (3, 1), padding=(1, 0)))

    def forward(self, x):
        fmap, (b, c, t) = [], x.shape
        if t % self.period != 0:
            n_pad = self.period - t % self.period
            x = F.pad(x, (0, n_pad), "reflect")
            t = t + n_pad
        x = x.view(b, c, t // self.period, self.period)
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            fmap.append(x)
        x = self.post(x)
        fmap.append(x)
        return torch.flatten(x, 1, -1), fmap


class HifiGan(nn.Module):
    """A generator from mels, judges by periods and by spectra, features matched, losses of mels by a convolution with waves: the generator's turn."""

    def __init__(self, mels=32):
        super().__init__()
        self.pre, self.ups, self.post = weight_norm(nn.Conv1d(mels, 64, 7, padding=3)), nn.ModuleList([UpStage(64, 32, 8), UpStage(32, 16, 8)]), weight_norm(nn.Conv1d(16, 1, 7, padding=3))
        self.judges = nn.ModuleList(PeriodJudge(p) for p in (2, 3, 5))
        self.spectral = nn.Sequential(nn.Conv2d(2, 16, (3, 9), padding=(1, 4)), nn.LeakyReLU(0.2), nn.Conv2d(16, 16, (3, 9), (1, 2), padding=(1, 4)), nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 3, padding=1))
        for name, n in (("waves", 256), ("short", 128)):
            angle = 2 * math.pi / n * torch.outer(torch.arange(n // 2 + 1).float(), torch.arange(n).float())
            self.register_buffer(name, (torch.cat([angle.cos(), -angle.sin()]) * torch.hann_window(n)).unsqueeze(1), persistent=False)
        self.register_buffer("basis", torch.rand(mels, 129), persistent=False)

    def mel(self, y):
        y = F.pad(y.unsqueeze(1), (96, 96), mode="reflect")
        real, imag = F.conv1d(y.float(), self.waves.float(), stride=64).chunk(2, dim=1)
        spec = torch.sqrt(real.pow(2) + imag.pow(2) + 1e-9)
        return torch.log(torch.clamp(torch.matmul(self.basis.float(), spec), min=1e-5))

    def spectrum(self, y):
        s = F.conv1d(F.pad(y, (64, 64), mode="reflect").float(), self.short.float(), stride=32)
        return s.view(s.shape[0], 2, -1, s.shape[-1])

    def forward(self, mel, y):
        x = self.pre(mel)
        for up in self.ups:
            x = up(x)
        fake = torch.tanh(self.post(F.leaky_relu(x)))
        total = 45 * F.l1_loss(self.mel(y.squeeze(1)), self.mel(fake.squeeze(1)))
        for judge in self.judges:
            real, rmap = judge(y)
            made, fmap = judge(fake)
            total = total + torch.mean((1 - made) ** 2)
            for r, g in zip(rmap, fmap):
                total = total + 2 * torch.mean(torch.abs(r.detach() - g))
        dtype = self.spectral[0].weight.dtype
        return total + torch.mean((1 - self.spectral(self.spectrum(fake).to(dtype))) ** 2)


@case("hifigan", ["UpStage", "PeriodJudge"], precisions=["float32"])
class _:
    make = HifiGan
    batch = staticmethod(lambda device: (torch.randn(8, 32, 32, device=device), torch.randn(8, 1, 2048, device=device)))
    forward = staticmethod(lambda model, m, y: model(m, y))


class SeparatorBlock(nn.Module):
    def __init__(self, c, hidden, dilation):
        super().__init__()
        self.conv1d = nn.Conv1d(c, hidden, 1)
        self.reg1, self.reg2 = nn.GroupNorm(1, hidden, eps=1e-8), nn.GroupNorm(1, hidden, eps=1e-8)
        self.nonlinearity1, self.nonlinearity2 = nn.PReLU(), nn.PReLU()
        self.dconv1d = nn.Conv1d(hidden, hidden, 3, dilation=dilation, groups=hidden, padding=dilation)
        self.res_out, self.skip_out = nn.Conv1d(hidden, c, 1), nn.Conv1d(hidden, c, 1)

    def forward(self, x):
        y = self.reg1(self.nonlinearity1(self.conv1d(x)))
        y = self.reg2(self.nonlinearity2(self.dconv1d(y)))
        return self.res_out(y), self.skip_out(y)


class TasNet(nn.Module):
    """Conv-TasNet: masks for sources, overlapped and added; the best of all permutations."""

    def __init__(self, enc=128, c=64, sources=3):
        super().__init__()
        self.encoder, self.decoder = nn.Conv1d(1, enc, 16, 8, bias=False), nn.ConvTranspose1d(enc, 1, 16, 8, bias=False)
        self.norm, self.bottleneck = nn.GroupNorm(1, enc, eps=1e-8), nn.Conv1d(enc, c, 1)
        self.blocks, self.mask, self.sources = nn.ModuleList(SeparatorBlock(c, 128, 2**i) for i in range(4)), nn.Sequential(nn.PReLU(), nn.Conv1d(c, sources * enc, 1)), sources

    def forward(self, mix):
        w = self.encoder(mix)
        x, skips = self.bottleneck(self.norm(w)), 0.0
        for block in self.blocks:
            residual, skip = block(x)
            x = x + residual
            skips = skips + skip
        m = torch.sigmoid(self.mask(skips)).view(mix.shape[0], self.sources, -1, w.shape[-1])
        masked = w.unsqueeze(1) * m
        return self.decoder(masked.flatten(0, 1)).view(mix.shape[0], self.sources, -1)


@case("tasnet", ["SeparatorBlock"], precisions=BOTH, recompute=True)
class _:
    make = TasNet
    batch = staticmethod(lambda device: (torch.randn(8, 1, 2048, device=device), torch.randn(8, 3, 2048, device=device)))

    @staticmethod
    def forward(model, mix, target):
        from itertools import permutations

        est = model(mix).float()
        est, target = est - est.mean(-1, keepdim=True), target - target.mean(-1, keepdim=True)
        e, t = est[:, :, None], target[:, None]
        proj = (e * t).sum(-1, keepdim=True) * t / (t.pow(2).sum(-1, keepdim=True) + 1e-8)
        noise = e - proj
        pairs = 10 * torch.log10(proj.pow(2).sum(-1) / (noise.pow(2).sum(-1) + 1e-8) + 1e-8)
        perms = torch.tensor(list(permutations(range(3))), dtype=torch.long, device=mix.device)
        hot = torch.zeros((*perms.size(), 3), device=mix.device).scatter_(2, perms.unsqueeze(2), 1)
        snr = torch.einsum("bij,pij->bp", pairs, hot)
        best, index = torch.max(snr, dim=1)
        return -best.mean() / 3


class LocationLayer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.query, self.memory, self.v = nn.Linear(d, 32, bias=False), nn.Linear(d, 32, bias=False), nn.Linear(32, 1, bias=False)
        self.location_conv, self.location_dense = nn.Conv1d(2, 8, 15, padding=7, bias=False), nn.Linear(8, 32, bias=False)

    def forward(self, query, memory, processed, cat, mask):
        loc = self.location_dense(self.location_conv(cat).transpose(1, 2))
        energies = self.v(torch.tanh(self.query(query.unsqueeze(1)) + loc + processed)).squeeze(-1)
        energies.data.masked_fill_(mask, -1e4)
        weights = F.softmax(energies, dim=1)
        return torch.bmm(weights.unsqueeze(1), memory).squeeze(1), weights


class Tacotron(nn.Module):
    """Tacotron 2: convolutions and an LSTM over letters, a decoder in a loop with attention that knows where it was, a postnet."""

    def __init__(self, d=64, mels=20):
        super().__init__()
        self.embedding = nn.Embedding(60, d)
        self.convolutions = nn.ModuleList(nn.Sequential(nn.Conv1d(d, d, 5, padding=2), nn.BatchNorm1d(d)) for _ in range(2))
        self.lstm = nn.LSTM(d, d // 2, 1, batch_first=True, bidirectional=True)
        self.prenet = nn.ModuleList([nn.Linear(mels, 32, bias=False), nn.Linear(32, 32, bias=False)])
        self.attention_rnn, self.decoder_rnn, self.attention = nn.LSTMCell(32 + d, d), nn.LSTMCell(2 * d, d), LocationLayer(d)
        self.linear_projection, self.gate_layer = nn.Linear(2 * d, mels), nn.Linear(2 * d, 1)
        self.postnet = nn.ModuleList([nn.Sequential(nn.Conv1d(mels, 64, 5, padding=2), nn.BatchNorm1d(64)), nn.Sequential(nn.Conv1d(64, mels, 5, padding=2), nn.BatchNorm1d(mels))])

    def forward(self, text, mel, mask):
        x = self.embedding(text).transpose(1, 2)
        for conv in self.convolutions:
            x = F.dropout(F.relu(conv(x)), 0.5, self.training)
        memory = self.lstm(x.transpose(1, 2))[0]
        frames = torch.cat([mel.new_zeros(1, mel.shape[0], mel.shape[1]), mel.permute(2, 0, 1)], dim=0)
        for linear in self.prenet:
            frames = F.dropout(F.relu(linear(frames)), p=0.5, training=True)
        b, n, d = memory.shape
        ah, ac, dh, dc = (memory.new_zeros(b, d) for _ in range(4))
        weights, cum, context = memory.new_zeros(b, n), memory.new_zeros(b, n), memory.new_zeros(b, d)
        processed, outs, gates, aligns = self.attention.memory(memory), [], [], []
        while len(outs) < mel.shape[2]:
            ah, ac = self.attention_rnn(torch.cat((frames[len(outs)], context), -1), (ah, ac))
            ah = F.dropout(ah, 0.1, self.training)
            context, weights = self.attention(ah, memory, processed, torch.cat((weights.unsqueeze(1), cum.unsqueeze(1)), dim=1), mask)
            cum += weights
            dh, dc = self.decoder_rnn(torch.cat((ah, context), -1), (dh, dc))
            both = torch.cat((dh, context), dim=1)
            outs += [self.linear_projection(both)]
            gates += [self.gate_layer(both).squeeze(1)]
            aligns += [weights]
        out = torch.stack(outs).permute(1, 2, 0).contiguous()
        post = self.postnet[1](torch.tanh(self.postnet[0](out)))
        return out, out + post, torch.stack(gates, 1), torch.stack(aligns, 1)


@case("tacotron", ["Sequential", "LSTM"], precisions=["float32"])
class _:
    make = Tacotron
    batch = staticmethod(lambda device: (ids(60, 8, 30, device=device), torch.randn(8, 20, 24, device=device), torch.zeros(8, 30, dtype=torch.bool, device=device)))

    @staticmethod
    def forward(model, text, mel, mask):
        out, post, gate, align = model(text, mel, mask)
        stop = torch.zeros_like(gate)
        stop[:, -1] = 1
        return F.mse_loss(out, mel) + F.mse_loss(post, mel) + F.binary_cross_entropy_with_logits(gate, stop)


# ----------------------------------------------------------------------------------------------------------- motion


class FilmBlock(nn.Module):
    """Diffusion policy's residual block: convolutions along time, scale and shift from the observation."""

    def __init__(self, a, b, cond):
        super().__init__()
        block = lambda i, o: nn.Sequential(nn.Conv1d(i, o, 5, padding=2), nn.GroupNorm(8, o), nn.Mish())
        self.blocks = nn.ModuleList([block(a, b), block(b, b)])
        self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(cond, 2 * b), nn.Unflatten(-1, (-1, 1)))
        self.residual_conv, self.out = nn.Conv1d(a, b, 1) if a != b else nn.Identity(), b

    def forward(self, x, cond):
        out = self.blocks[0](x)
        embed = self.cond_encoder(cond)
        embed = embed.reshape(embed.shape[0], 2, self.out, 1)
        out = embed[:, 0, ...] * out + embed[:, 1, ...]
        return self.blocks[1](out) + self.residual_conv(x)


class SpatialSoftmax(nn.Module):
    def __init__(self, side):
        super().__init__()
        y, x = torch.meshgrid(torch.linspace(-1, 1, side), torch.linspace(-1, 1, side), indexing="ij")
        self.register_buffer("grid", torch.stack([x.reshape(-1), y.reshape(-1)]))

    def forward(self, f):
        p = F.softmax(f.flatten(2), dim=-1)
        return torch.einsum("bkn,cn->bkc", p, self.grid.to(p.dtype)).flatten(1)


class DiffusionPolicy(nn.Module):
    def __init__(self, act=7, c=128):
        super().__init__()
        gn = lambda n: nn.GroupNorm(n // 16, n)
        self.eye = nn.Sequential(nn.Conv2d(3, 32, 5, 2, 2), gn(32), nn.ReLU(), nn.Conv2d(32, c, 3, 2, 1), gn(c), nn.ReLU(), nn.Conv2d(c, 32, 1), SpatialSoftmax(12))
        self.step = nn.Sequential(nn.Linear(c, 4 * c), nn.Mish(), nn.Linear(4 * c, c))
        cond = c + 2 * 64 + 2 * act
        self.down = nn.ModuleList([nn.ModuleList([FilmBlock(act, c, cond), FilmBlock(c, c, cond), nn.Conv1d(c, c, 3, 2, 1)]), nn.ModuleList([FilmBlock(c, 2 * c, cond), FilmBlock(2 * c, 2 * c, cond), nn.Identity()])])
        self.mid = FilmBlock(2 * c, 2 * c, cond)
        self.up = nn.ModuleList([nn.ModuleList([FilmBlock(4 * c, c, cond), FilmBlock(c, c, cond), nn.ConvTranspose1d(c, c, 4, 2, 1)])])
        self.final = nn.Sequential(nn.Conv1d(c, c, 5, padding=2), nn.GroupNorm(8, c), nn.Mish(), nn.Conv1d(c, act, 1))
        self.register_buffer("alphas_cumprod", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0))
        self.c = c

    def forward(self, images, state, actions):
        b = images.shape[0]
        features = self.eye(images.flatten(0, 1)).unflatten(0, (b, 2))
        t = torch.randint(0, 100, (b,), device=images.device).long()
        noise = torch.randn(actions.shape, device=actions.device)
        a = self.alphas_cumprod[t].view(-1, 1, 1).float()
        x = (a.sqrt() * actions + (1 - a).sqrt() * noise).moveaxis(-1, -2).to(features.dtype)
        emb = t[:, None].float() * torch.exp(torch.arange(self.c // 2, device=t.device) * -(math.log(10000) / (self.c // 2 - 1)))[None]
        cond = torch.cat([self.step(torch.cat((emb.sin(), emb.cos()), dim=-1).to(features.dtype)), features.flatten(1), state.flatten(1).to(features.dtype)], axis=-1)
        h = []
        for one, two, down in self.down:
            x = two(one(x, cond), cond)
            h.append(x)
            x = down(x)
        x = self.mid(x, cond)
        for one, two, up in self.up:
            x = up(two(one(torch.cat((x, h.pop()), dim=1), cond), cond))
        return F.mse_loss(self.final(x).moveaxis(-1, -2).float(), noise)


@case("diffusion_policy", ["FilmBlock"], precisions=BOTH, recompute=True)
class _:
    make = DiffusionPolicy
    batch = staticmethod(lambda device: (torch.randn(16, 2, 3, 48, 48, device=device), torch.randn(16, 2, 7, device=device), torch.randn(16, 16, 7, device=device)))
    forward = staticmethod(lambda model, *given: model(*given))


class TwoMinds(nn.Module):
    """A mixture of transformers: words and actions have weights of their own and one attention; blocks of a mask."""

    def __init__(self, d, a, heads=4):
        super().__init__()
        self.heads, hd = heads, d // heads
        self.norms, self.qkv = nn.ModuleList([RMSNorm(d), RMSNorm(a)]), nn.ModuleList([nn.Linear(d, 3 * heads * hd, bias=False), nn.Linear(a, 3 * heads * hd, bias=False)])
        self.o, self.ffn_norms, self.ffn = nn.ModuleList([nn.Linear(d, d, bias=False), nn.Linear(d, a, bias=False)]), nn.ModuleList([RMSNorm(d), RMSNorm(a)]), nn.ModuleList([SwiGLU(d, 2 * d), SwiGLU(a, 2 * a)])

    def forward(self, streams, mask, cond):
        qs, ks, vs = [], [], []
        for i, x in enumerate(streams):
            q, k, v = self.qkv[i](self.norms[i](x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
            qs.append(q), ks.append(k), vs.append(v)
        q, k, v = rotary(torch.cat(qs, 1)), rotary(torch.cat(ks, 1)), torch.cat(vs, 1)
        weights = torch.einsum("bthd,bshd->bhts", q, k).float() * q.shape[-1] ** -0.5
        weights = torch.where(mask[:, None], weights, -2.3819763e38)
        out = torch.einsum("bhts,bshd->bthd", weights.softmax(-1).to(v.dtype), v).flatten(2)
        outs, at = [], 0
        for i, x in enumerate(streams):
            x = x + self.o[i](out[:, at : at + x.shape[1]])
            at += x.shape[1]
            y = self.ffn_norms[i](x)
            outs.append(x + self.ffn[i](y * (1 + cond) if i else y))
        return outs


class Pi(nn.Module):
    def __init__(self, d=128, a=64, v=500, act=8):
        super().__init__()
        self.see, self.embed, self.layers = nn.Conv2d(3, d, 16, 16), nn.Embedding(v, d), nn.ModuleList(TwoMinds(d, a) for _ in range(3))
        self.state, self.act_in, self.act_out, self.time_in, self.time_out = nn.Linear(act, a), nn.Linear(act, a), nn.Linear(a, act), nn.Linear(a, a), nn.Linear(a, a)

    def forward(self, images, prompt, mask, state, actions):
        b = images.shape[0]
        beta = torch.distributions.Beta(torch.tensor(1.5, device=images.device), torch.tensor(1.0, device=images.device), validate_args=False)
        time = beta.sample((b,)) * 0.999 + 0.001
        noise = torch.randn_like(actions)
        t = time[:, None, None]
        x_t, u_t = t * noise + (1 - t) * actions, noise - actions
        dtype = self.embed.weight.dtype
        prefix = torch.cat([self.see(images.to(dtype)).flatten(2).transpose(1, 2), self.embed(prompt) * math.sqrt(128)], dim=1)
        fraction = torch.linspace(0.0, 1.0, 32, dtype=torch.float64, device=images.device)
        period = 4e-3 * (4.0 / 4e-3) ** fraction
        angle = (2 * math.pi / period)[None] * time[:, None].double()
        cond = self.time_out(F.silu(self.time_in(torch.cat([angle.sin(), angle.cos()], dim=1).to(dtype))))[:, None]
        suffix = torch.cat([self.state(state.to(dtype))[:, None], self.act_in(x_t.to(dtype))], dim=1)
        n, m = prefix.shape[1], suffix.shape[1]
        valid = torch.cat([torch.ones(b, n - prompt.shape[1], dtype=torch.bool, device=mask.device), mask, torch.ones(b, m, dtype=torch.bool, device=mask.device)], 1)
        block = torch.cumsum(torch.tensor([0] * n + [1, 1] + [0] * (m - 2), device=mask.device), 0)
        att = (block[None, None, :] <= block[None, :, None]) & valid[:, None, :] & valid[:, :, None]
        streams = [prefix, suffix]
        for layer in self.layers:
            streams = layer(streams, att, cond)
        return F.mse_loss(u_t.float(), self.act_out(streams[1][:, -actions.shape[1] :]).float(), reduction="none").mean()


@case("pi", ["TwoMinds"], precisions=BOTH, recompute=True)
class _:
    make = Pi
    batch = staticmethod(lambda device: (torch.randn(8, 3, 64, 64, device=device), ids(500, 8, 12, device=device), torch.ones(8, 12, dtype=torch.bool, device=device), torch.randn(8, 8, device=device), torch.randn(8, 10, 8, device=device)))
    forward = staticmethod(lambda model, *given: model(*given))


class Splats(nn.Module):
    """Gaussians in the plane: rotations and scales to covariances, sorted by depth, composed along every ray; a network for what moves."""

    def __init__(self, n=256):
        super().__init__()
        self._xyz, self._rgb, self._scaling, self._rotation, self._opacity = nn.Parameter(torch.rand(n, 3)), nn.Parameter(torch.rand(n, 3)), nn.Parameter(torch.rand(n, 2)), nn.Parameter(torch.rand(n, 1)), nn.Parameter(torch.rand(n, 1))
        self.deform = nn.Sequential(nn.Linear(3 + 1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
        self.register_buffer("max_radii", torch.zeros(n))

    def forward(self, time, side=24):
        out = []
        for t in time.unbind(0):
            move = self.deform(torch.cat([self._xyz, t.expand(self._xyz.shape[0], 1).to(self._xyz.dtype)], -1)).float()
            xyz, rgb = self._xyz.float() + move[:, :3], torch.sigmoid(self._rgb.float() + move[:, 3:])
            order = torch.argsort(xyz[:, 2].detach())
            c, s = torch.cos(self._rotation.float()), torch.sin(self._rotation.float())
            R = torch.stack([torch.cat([c, -s], -1), torch.cat([s, c], -1)], dim=1)
            S = torch.diag_embed(torch.exp(self._scaling.float()))
            cov = R @ S @ S.transpose(1, 2) @ R.transpose(1, 2)
            det = cov[:, 0, 0] * cov[:, 1, 1] - cov[:, 0, 1] * cov[:, 1, 0]
            inv = torch.stack([cov[:, 1, 1], -cov[:, 0, 1], -cov[:, 1, 0], cov[:, 0, 0]], -1).view(-1, 2, 2) / det[:, None, None].clamp(min=1e-6)
            with torch.no_grad():
                self.max_radii = torch.maximum(self.max_radii, 3 * torch.sqrt(torch.maximum(cov[:, 0, 0], cov[:, 1, 1])).to(self.max_radii.dtype))
            grid = torch.stack(torch.meshgrid(torch.linspace(0, 1, side, device=time.device), torch.linspace(0, 1, side, device=time.device), indexing="xy"), -1).view(-1, 1, 2)
            d = grid - xyz[None, order, :2]
            power = -0.5 * torch.einsum("pni,nij,pnj->pn", d, inv[order], d)
            alpha = (torch.exp(power) * torch.sigmoid(self._opacity.float())[order, 0]).clamp(max=0.99)
            T = torch.cat([torch.ones_like(alpha[:, :1]), (1 - alpha).cumprod(dim=1)[:, :-1]], dim=1)
            out.append(((alpha * T)[..., None] * rgb[order]).sum(dim=1).view(side, side, 3))
        return torch.stack(out)


@case("splats", ["Sequential"], precisions=BOTH)
class _:
    make = Splats
    batch = staticmethod(lambda device: (torch.rand(3, device=device), torch.rand(3, 24, 24, 3, device=device)))
    forward = staticmethod(lambda model, t, y: 0.8 * F.l1_loss(model(t), y))
