"""A fourth lot of strangers' styles: recurrences over pictures and sound, chosen blocks, generated and decomposed weights, automata, modules of torch.nn."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from . import case, ids
from .outsiders import token_loss

BOTH = ["bfloat16", "float32"]


# ------------------------------------------------------------------------------------------------------- pictures, video


class DropPathBlock(nn.Module):
    """DINOv2: registers beside the patches, scales of layers, whole rows dropped, SwiGLU in one projection."""

    def __init__(self, d, heads=6, rate=0.2):
        super().__init__()
        self.heads, self.rate = heads, rate
        self.n1, self.n2 = nn.LayerNorm(d, eps=1e-6), nn.LayerNorm(d, eps=1e-6)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.w12, self.w3 = nn.Linear(d, 2 * 512), nn.Linear(512, d)
        self.s1, self.s2 = nn.Parameter(1e-5 * torch.ones(d)), nn.Parameter(1e-5 * torch.ones(d))

    def dropped(self, x):
        keep = 1 - self.rate
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        mask.div_(keep)
        return x * mask

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).reshape(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.dropped(self.proj(y) * self.s1)
        a, c = self.w12(self.n2(x)).chunk(2, dim=-1)
        return x + self.dropped(self.w3(F.silu(a) * c) * self.s2)


class Registered(nn.Module):
    def __init__(self, d=192, layers=4):
        super().__init__()
        self.patch = nn.Conv2d(3, d, 8, 8)
        self.cls, self.registers, self.mask = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(torch.zeros(1, 4, d)), nn.Parameter(torch.zeros(1, d))
        self.place = nn.Parameter(torch.zeros(1, 1 + 8 * 8, d))
        self.layers, self.norm, self.head = nn.ModuleList(DropPathBlock(d) for _ in range(layers)), nn.LayerNorm(d), nn.Linear(d, 512, bias=False)

    def forward(self, x, mask):
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.where(mask.unsqueeze(-1), self.mask.to(h.dtype).unsqueeze(0), h)
        side = h.shape[1]
        place = F.interpolate(self.place[:, 1:].reshape(1, 8, 8, -1).permute(0, 3, 1, 2), size=(int(side**0.5),) * 2, mode="bicubic", antialias=False)
        h = torch.cat((self.cls.expand(x.shape[0], -1, -1) + self.place[:, :1], h + place.permute(0, 2, 3, 1).flatten(1, 2)), dim=1)
        h = torch.cat((h[:, :1], self.registers.expand(x.shape[0], -1, -1), h[:, 1:]), dim=1)
        for layer in self.layers:
            h = layer(h)
        h = self.norm(h)
        return self.head(h[:, 0]), self.head(h[:, 5:])


@case("dropped_paths", ["DropPathBlock"], precisions=BOTH, recompute=True)
class _:
    make = Registered
    batch = staticmethod(lambda device: (torch.randn(8, 3, 96, 96, device=device), torch.arange(144, device=device).expand(8, -1) % 3 == 0, torch.randn(8, 512, device=device)))

    @staticmethod
    def forward(model, x, mask, target):
        cls, patches = model(x, mask)
        soft = F.softmax(target.float() / 0.07, dim=-1)
        loss = torch.sum(-soft * F.log_softmax(cls.float() / 0.1, dim=-1), dim=-1).mean()
        with torch.autocast(cls.device.type, enabled=False):
            near = F.normalize(cls.float(), dim=-1)
            with torch.no_grad():
                dots = near @ near.t()
                dots.view(-1)[:: near.shape[0] + 1].fill_(-1)
                nearest = dots.argmax(dim=1)
            spread = -torch.log(F.pairwise_distance(near, near[nearest], eps=1e-8) + 1e-8).mean()
        return loss + 0.1 * spread + 0.01 * (patches.float().square().mean(-1) * mask).sum() / mask.sum()


class ConvCell(nn.Module):
    def __init__(self, i, c):
        super().__init__()
        self.gates, self.c = nn.Conv2d(i + c, 4 * c, 3, padding=1), c

    def forward(self, x, state):
        h, cell = state
        a, b, o, g = torch.split(self.gates(torch.cat([x, h], dim=1)), self.c, dim=1)
        cell = torch.sigmoid(b) * cell + torch.sigmoid(a) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell


class Frames(nn.Module):
    """Frames in, frames out, each from the last, with a share of true ones."""

    def __init__(self, c=32):
        super().__init__()
        self.cells, self.out = nn.ModuleList([ConvCell(1, c), ConvCell(c, c)]), nn.Conv2d(c, 1, 1)
        self.c = c

    def forward(self, x, ahead=4):
        b, t, _, h, w = x.shape
        states = [(x.new_zeros(b, self.c, h, w), x.new_zeros(b, self.c, h, w)) for _ in self.cells]
        frames, last = [], None
        for step in range(t + ahead - 1):
            y = x[:, step] if step < t else last
            for i, cell in enumerate(self.cells):
                states[i] = cell(y, states[i])
                y = states[i][0]
            last = torch.sigmoid(self.out(y))
            frames.append(last)
        return torch.stack(frames, dim=1)


@case("next_frames", ["ConvCell"], precisions=["float32"])
class _:
    make = Frames
    batch = staticmethod(lambda device: (torch.rand(4, 5, 1, 32, 32, device=device), torch.rand(4, 8, 1, 32, 32, device=device)))

    @staticmethod
    def forward(model, x, y):
        said = model(x)
        return F.binary_cross_entropy(said, y) + F.l1_loss(said[:, 1:] - said[:, :-1], y[:, 1:] - y[:, :-1])


class SpaceTimeBlock(nn.Module):
    """A video transformer: rows of a frame, then the frames of a place, text across, all scaled and shifted by the noise level."""

    def __init__(self, d, heads=4):
        super().__init__()
        self.heads = heads
        self.space, self.space_out, self.time, self.time_out = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.q, self.kv, self.cross_out = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.table = nn.Parameter(torch.randn(6, d) / d**0.5)
        self.n1, self.n2 = nn.LayerNorm(d, elementwise_affine=False, eps=1e-6), nn.LayerNorm(d, elementwise_affine=False, eps=1e-6)

    def attend(self, q, k, v):
        q, k, v = (z.unflatten(-1, (self.heads, -1)).transpose(1, 2) for z in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def forward(self, x, text, noise, frames):
        b, n, d = x.shape
        a, c, e, f, g, h = (self.table[None] + noise.reshape(b, 6, -1)).chunk(6, dim=1)
        y = self.n1(x) * (1 + c) + a
        y = y.view(b * frames, n // frames, d)
        x = x + e * self.space_out(self.attend(*self.space(y).chunk(3, -1))).view(b, n, d)
        y = x.view(b, frames, n // frames, d).transpose(1, 2).reshape(-1, frames, d)
        y = self.time_out(self.attend(*self.time(y).chunk(3, -1)))
        x = x + e * y.view(b, n // frames, frames, d).transpose(1, 2).reshape(b, n, d)
        x = x + self.cross_out(self.attend(self.q(x), *self.kv(text).chunk(2, -1)))
        return x + h * self.down(F.gelu(self.up(self.n2(x) * (1 + g) + f), approximate="tanh"))


class Video(nn.Module):
    def __init__(self, d=128, layers=3):
        super().__init__()
        self.patch, self.out = nn.Conv3d(4, d, (1, 2, 2), (1, 2, 2)), nn.Linear(d, 16)
        self.time, self.noise, self.text = nn.Sequential(nn.Linear(64, d), nn.SiLU(), nn.Linear(d, d)), nn.Linear(d, 6 * d), nn.Linear(96, d)
        self.layers = nn.ModuleList(SpaceTimeBlock(d) for _ in range(layers))

    def forward(self, x, t, text):
        b, _, frames, h, w = x.shape
        y = self.patch(x).flatten(2).transpose(1, 2)
        freq = torch.exp(-math.log(10000) * torch.arange(32, device=x.device, dtype=torch.float32) / 32)
        angle = t[:, None].float() * freq[None]
        noise = self.noise(F.silu(self.time(torch.cat([angle.cos(), angle.sin()], -1).to(y.dtype))))
        text = self.text(text)
        for layer in self.layers:
            y = layer(y, text, noise, frames)
        y = self.out(y).view(b, frames, h // 2, w // 2, 2, 2, 4)
        return y.permute(0, 6, 1, 2, 4, 3, 5).reshape(b, 4, frames, h, w)


@case("space_and_time", ["SpaceTimeBlock"], precisions=BOTH, recompute=True)
class _:
    """Rectified flow: a straight line between noise and data, its slope is the target."""

    make = Video
    batch = staticmethod(lambda device: (torch.randn(2, 4, 8, 16, 16, device=device), torch.rand(2, device=device), torch.randn(2, 20, 96, device=device)))

    @staticmethod
    def forward(model, x, t, text):
        noise = torch.randn_like(x)
        part = t.view(-1, 1, 1, 1, 1)
        said = model((1 - part) * x + part * noise, t * 1000, text)
        return ((said.float() - (noise - x)) ** 2).mean(dim=list(range(1, 5))).mean()


class UpBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Conv2d(c, c, 3, padding=1) for _ in range(4))
        self.out = nn.Conv2d(c, c, 1)

    def forward(self, x, skip=None):
        if skip is not None:
            x = x + skip + self.b(F.relu(self.a(F.relu(skip))))
        x = x + self.d(F.relu(self.c(F.relu(x))))
        return self.out(F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True))


class Depth(nn.Module):
    """Dense prediction: a pyramid is fused upwards; the loss compares windows, scales and gradients of the logarithm."""

    def __init__(self, c=48):
        super().__init__()
        self.stem = nn.ModuleList([nn.Conv2d(3, c, 4, 4), nn.Conv2d(c, c, 2, 2), nn.Conv2d(c, c, 2, 2)])
        self.up = nn.ModuleList(UpBlock(c) for _ in range(3))
        self.head = nn.Sequential(nn.Conv2d(c, c // 2, 3, padding=1), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(c // 2, 1, 3, padding=1), nn.Softplus())

    def forward(self, x):
        a = F.gelu(self.stem[0](x))
        b = F.gelu(self.stem[1](a))
        c = F.gelu(self.stem[2](b))
        y = self.up[0](c)
        y = self.up[1](y, b)
        return self.head(self.up[2](y, a))


def windows(x, y):
    mx, my = F.avg_pool2d(x, 3, 1), F.avg_pool2d(y, 3, 1)
    sx, sy = F.avg_pool2d(x**2, 3, 1) - mx**2, F.avg_pool2d(y**2, 3, 1) - my**2
    sxy = F.avg_pool2d(x * y, 3, 1) - mx * my
    ssim = (2 * mx * my + 1e-4) * (2 * sxy + 9e-4) / ((mx**2 + my**2 + 1e-4) * (sx + sy + 9e-4))
    return torch.clamp((1 - ssim) / 2, 0, 1)


@case("dense_depth", ["UpBlock"], precisions=["float32"], recompute=True)
class _:
    make = Depth
    batch = staticmethod(lambda device: (torch.randn(4, 3, 64, 64, device=device), torch.rand(4, 1, 64, 64, device=device) + 0.1))

    @staticmethod
    def forward(model, x, y):
        said = model(x)
        valid = y > 0.2
        e = torch.where(valid, torch.log(said + 1e-6) - torch.log(y), 0.0)
        count = valid.sum()
        scale = torch.sqrt(torch.clamp((e**2).sum() / count - 0.85 * (e.sum() / count) ** 2, min=1e-8))
        rough = (e[..., 1:] - e[..., :-1]).abs().mean() + (e[..., 1:, :] - e[..., :-1, :]).abs().mean()
        return scale + windows(said, y).mean() + 0.5 * rough


class EdsrBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.PReLU(c), nn.Conv2d(c, c, 3, padding=1))
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, c // 8, 1), nn.ReLU(True), nn.Conv2d(c // 8, c, 1), nn.Sigmoid())

    def forward(self, x):
        y = self.body(x)
        return torch.add(x, y * self.squeeze(y), alpha=0.1)


class Sharper(nn.Module):
    def __init__(self, c=48, blocks=4):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.45, 0.44, 0.40]).view(1, 3, 1, 1))
        self.head, self.blocks, self.tail = nn.Conv2d(3, c, 3, padding=1), nn.ModuleList(EdsrBlock(c) for _ in range(blocks)), nn.Conv2d(c, c, 3, padding=1)
        self.up = nn.Sequential(nn.Conv2d(c, 4 * c, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(c, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, x):
        h = self.head(x - self.mean)
        y = h
        for block in self.blocks:
            y = block(y)
        return self.up(h + self.tail(y)) + F.interpolate(x, scale_factor=4, mode="bicubic").clamp(0, 1)


@case("sharper_pictures", ["EdsrBlock"], precisions=["float32"])
class _:
    make = Sharper
    batch = staticmethod(lambda device: (torch.rand(4, 3, 24, 24, device=device), torch.rand(4, 3, 96, 96, device=device)))

    @staticmethod
    def forward(model, x, y):
        said = model(x)
        a, b = torch.fft.rfft2(said), torch.fft.rfft2(y)
        return torch.sqrt((said - y) ** 2 + 1e-6).mean() + 0.01 * (a - b).abs().mean()


class TwoWay(nn.Module):
    """Prompts and a picture attend to each other in turn (SAM's decoder)."""

    def __init__(self, d, heads=4):
        super().__init__()
        self.heads = heads
        self.own, self.there, self.back = (nn.ModuleList(nn.Linear(d, d // 2 if i < 3 and k else d) for i in range(3)) for k in range(3))
        self.outs = nn.ModuleList([nn.Linear(d, d), nn.Linear(d // 2, d), nn.Linear(d // 2, d)])
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(4))
        self.a, self.b = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def attend(self, layers, out, q, k, v):
        q, k, v = (f(z).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f, z in zip(layers, (q, k, v)))
        weight = torch.softmax(q @ k.permute(0, 1, 3, 2) / math.sqrt(q.shape[-1]), dim=-1)
        return out((weight @ v).transpose(1, 2).flatten(2))

    def forward(self, tokens, picture, token_place, place):
        q = tokens + token_place
        tokens = self.norms[0](tokens + self.attend(self.own, self.outs[0], q, q, tokens))
        q, k = tokens + token_place, picture + place
        tokens = self.norms[1](tokens + self.attend(self.there, self.outs[1], q, k, picture))
        tokens = self.norms[2](tokens + self.b(F.relu(self.a(tokens))))
        q, k = tokens + token_place, picture + place
        return tokens, self.norms[3](picture + self.attend(self.back, self.outs[2], k, q, tokens))


class Prompted(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, 64, 8, 8), nn.GELU(), nn.Conv2d(64, d, 1))
        self.register_buffer("gaussian", torch.randn(2, d // 2))
        self.kinds, self.masks = nn.Embedding(2, d), nn.Embedding(4, d)
        self.layers = nn.ModuleList(TwoWay(d) for _ in range(2))
        self.up = nn.Sequential(nn.ConvTranspose2d(d, d // 4, 2, 2), nn.GroupNorm(1, d // 4), nn.GELU(), nn.ConvTranspose2d(d // 4, d // 8, 2, 2), nn.GELU())
        self.hyper = nn.ModuleList(nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d // 8)) for _ in range(4))

    def places(self, x):
        x = (2 * x - 1) @ self.gaussian * (2 * math.pi)
        return torch.cat([x.sin(), x.cos()], dim=-1)

    def forward(self, x, points, labels):
        h = self.encode(x)
        b, d, s, _ = h.shape
        grid = torch.ones((s, s), device=x.device)
        y, z = grid.cumsum(0) - 0.5, grid.cumsum(1) - 0.5
        place = self.places(torch.stack([z / s, y / s], dim=-1)).view(1, s * s, d).expand(b, -1, -1)
        prompt = self.places(points)
        prompt = prompt + torch.where(labels.unsqueeze(-1) == 1, self.kinds.weight[1], self.kinds.weight[0])
        tokens = torch.cat([self.masks.weight.unsqueeze(0).expand(b, -1, -1), prompt], dim=1)
        given, picture = tokens, h.flatten(2).transpose(1, 2)
        for layer in self.layers:
            tokens, picture = layer(tokens, picture, given, place)
        up = self.up(picture.transpose(1, 2).reshape(b, d, s, s))
        heads = torch.stack([f(tokens[:, i]) for i, f in enumerate(self.hyper)], dim=1)
        return (heads @ up.flatten(2)).view(b, 4, 4 * s, 4 * s)


@case("prompted_masks", ["TwoWay"], precisions=["float32"])
class _:
    make = Prompted
    batch = staticmethod(
        lambda device: (torch.randn(4, 3, 128, 128, device=device), torch.rand(4, 3, 2, device=device), ids(2, 4, 3, device=device), (torch.rand(4, 64, 64, device=device) > 0.5).float())
    )  # fmt: skip

    @staticmethod
    def forward(model, x, points, labels, y):
        said = model(x, points, labels).float()
        y = y.unsqueeze(1).expand_as(said)
        p = said.sigmoid()
        each = F.binary_cross_entropy_with_logits(said, y, reduction="none")
        focal = ((1 - (p * y + (1 - p) * (1 - y))) ** 2 * each).mean((2, 3))
        dice = 1 - (2 * (p * y).sum((2, 3)) + 1) / (p.sum((2, 3)) + y.sum((2, 3)) + 1)
        return (20 * focal + dice).min(dim=1).values.mean()


# --------------------------------------------------------------------------------------------------------------- sound


class Joint(nn.Module):
    def __init__(self, d, v):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, v)

    def forward(self, sound, text):
        return self.out(torch.tanh(self.a(sound).unsqueeze(2) + self.b(text).unsqueeze(1)))


class Transducer(nn.Module):
    """Every frame meets every label; the loss walks the lattice row by row in logarithms."""

    def __init__(self, v=64, d=96):
        super().__init__()
        self.sound, self.embed = nn.LSTM(40, d, 2, batch_first=True, bidirectional=False), nn.Embedding(v, d)
        self.text, self.joint = nn.GRU(d, d, batch_first=True), Joint(d, v)

    def forward(self, x, y):
        a, _ = self.sound(x)
        b, _ = self.text(self.embed(F.pad(y, (1, 0))))
        return self.joint(a[:, ::2], b).log_softmax(-1)


@case("transducer", ["Joint"], precisions=["float32"])
class _:
    make = Transducer
    batch = staticmethod(lambda device: (torch.randn(8, 48, 40, device=device), ids(64, 8, 12, device=device)))

    @staticmethod
    def forward(model, x, y):
        logs = model(x, y)
        blank = logs[..., 0]
        emit = torch.gather(logs[:, :, :-1], 3, y[:, None, :, None].expand(-1, logs.shape[1], -1, 1)).squeeze(-1)
        row = torch.cat([logs.new_zeros(8, 1), emit[:, 0].cumsum(1)], dim=1)
        for t in range(1, logs.shape[1]):
            down = row + blank[:, t - 1]
            cells = [down[:, 0]]
            for u in range(1, down.shape[1]):
                cells.append(torch.logaddexp(down[:, u], cells[-1] + emit[:, t, u - 1]))
            row = torch.stack(cells, dim=1)
        return -(row[:, -1] + blank[:, -1, -1]).mean()


class FftBlock(nn.Module):
    def __init__(self, d, heads=2):
        super().__init__()
        self.attend, self.n1, self.n2 = nn.MultiheadAttention(d, heads, dropout=0.1, batch_first=True), nn.LayerNorm(d), nn.LayerNorm(d)
        self.a, self.b = nn.Conv1d(d, 4 * d, 9, padding=4), nn.Conv1d(4 * d, d, 1)

    def forward(self, x, pad):
        y, weight = self.attend(x, x, x, key_padding_mask=pad)
        x = self.n1(x + y).masked_fill(pad.unsqueeze(-1), 0)
        return self.n2(x + self.b(F.relu(self.a(x.transpose(1, 2)))).transpose(1, 2)).masked_fill(pad.unsqueeze(-1), 0)


class Spoken(nn.Module):
    """Letters are stretched by durations that one head predicts and the data gives; attention returns its weights."""

    def __init__(self, v=60, d=96):
        super().__init__()
        self.embed, self.encode, self.decode = nn.Embedding(v, d, padding_idx=0), nn.ModuleList(FftBlock(d) for _ in range(2)), nn.ModuleList(FftBlock(d) for _ in range(2))
        self.length = nn.Sequential(nn.Conv1d(d, d, 3, padding=1), nn.ReLU(), nn.Conv1d(d, 1, 1))
        self.pitch, self.mel = nn.Embedding(32, d), nn.Linear(d, 80)
        self.post = nn.Sequential(nn.Conv1d(80, 128, 5, padding=2), nn.BatchNorm1d(128), nn.Tanh(), nn.Dropout(0.5), nn.Conv1d(128, 80, 5, padding=2))

    def forward(self, x, stretch, pitch, pad, wide_pad):
        h = self.embed(x)
        for block in self.encode:
            h = block(h, pad)
        length = self.length(h.transpose(1, 2)).squeeze(1)
        h = torch.repeat_interleave(h.flatten(0, 1), stretch.flatten(), dim=0, output_size=x.shape[0] * 128).view(x.shape[0], 128, -1)
        h = h + self.pitch(torch.bucketize(pitch, torch.linspace(-2, 2, 31, device=x.device)))
        for block in self.decode:
            h = block(h, wide_pad)
        mel = self.mel(h)
        return mel, mel + self.post(mel.transpose(1, 2)).transpose(1, 2), length


@case("spoken_text", ["FftBlock"], precisions=["float32"])
class _:
    make = Spoken
    batch = staticmethod(
        lambda device: (
            ids(60, 8, 32, device=device), torch.full((8, 32), 4, device=device), torch.randn(8, 128, device=device), torch.zeros(8, 32, dtype=torch.bool, device=device),
            torch.zeros(8, 128, dtype=torch.bool, device=device), torch.randn(8, 128, 80, device=device),
        )
    )  # fmt: skip

    @staticmethod
    def forward(model, x, stretch, pitch, pad, wide_pad, y):
        mel, post, length = model(x, stretch, pitch, pad, wide_pad)
        return F.l1_loss(mel, y) + F.l1_loss(post, y) + F.mse_loss(length, torch.log(stretch.float() + 1))


# ------------------------------------------------------------------------------------------------------------ decoders


class SinkBlock(nn.Module):
    """A learned logit a head stands beside the scores; a window in every second layer; gates clamped (gpt-oss)."""

    def __init__(self, d, window, heads=8, groups=2):
        super().__init__()
        self.heads, self.groups, self.size, self.window = heads, groups, d // heads, window
        self.qkv, self.out = nn.Linear(d, (heads + 2 * groups) * self.size), nn.Linear(d, d)
        self.sinks, self.n1, self.n2 = nn.Parameter(torch.zeros(heads)), nn.RMSNorm(d), nn.RMSNorm(d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(2 * d, d)

    def attend(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).split([self.heads * self.size, self.groups * self.size, self.groups * self.size], -1)
        q = q.view(b, t, self.groups, self.heads // self.groups, self.size)
        k = k.view(b, t, self.groups, 1, self.size).expand(-1, -1, -1, self.heads // self.groups, -1)
        v = v.view(b, t, self.groups, 1, self.size).expand(-1, -1, -1, self.heads // self.groups, -1)
        mask = torch.triu(q.new_full((t, t), -float("inf")), diagonal=1)
        if self.window:
            mask += torch.tril(mask.new_full((t, t), -float("inf")), diagonal=-self.window)
        scores = torch.einsum("bqhmd,bkhmd->bhmqk", q, k) * self.size**-0.5 + mask[None, None, None]
        sinks = self.sinks.reshape(1, self.groups, -1, 1, 1).expand(b, -1, -1, t, -1)
        weight = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
        return self.out(torch.einsum("bhmqk,bkhmd->bqhmd", weight, v).reshape(b, t, -1))

    def forward(self, x):
        x = x + self.attend(self.n1(x))
        y = self.up(self.n2(x))
        gate, line = y[..., ::2].clamp(max=7.0), y[..., 1::2].clamp(min=-7.0, max=7.0)
        return x + self.down(gate * torch.sigmoid(1.702 * gate) * (line + 1))


class Sinks(nn.Module):
    def __init__(self, v=2000, d=256, layers=4):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(v, d), nn.RMSNorm(d), nn.Linear(d, v, bias=False)
        self.layers = nn.ModuleList(SinkBlock(d, 0 if i % 2 else 16) for i in range(layers))

    def forward(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


@case("attention_sinks", ["SinkBlock"], precisions=BOTH, recompute=True)
class _:
    make = Sinks
    batch = staticmethod(lambda device: (ids(2000, 2, 96, device=device), ids(2000, 2, 96, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


class ChosenBlocks(nn.Module):
    """Keys in blocks: their means, the blocks with the highest scores, and a window, weighed by gates (native sparse attention)."""

    def __init__(self, d, heads=4, block=16, top=3):
        super().__init__()
        self.heads, self.block, self.top, self.size = heads, block, top, d // heads
        self.qkv, self.gate, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, 3 * heads), nn.Linear(d, d, bias=False)
        self.squeeze = nn.Sequential(nn.Linear(block * self.size, self.size), nn.ReLU(), nn.Linear(self.size, self.size))
        self.n1, self.n2, self.up, self.down = nn.RMSNorm(d), nn.RMSNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def attend(self, x):
        b, t, d = x.shape
        n = t // self.block
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        place = torch.arange(t, device=x.device)
        kb, vb = (self.squeeze(z.reshape(b, self.heads, n, -1)) for z in (k, v))
        seen = place[:, None] >= (torch.arange(n, device=x.device)[None] + 1) * self.block - 1
        score = (q @ kb.transpose(-1, -2) * self.size**-0.5).masked_fill(~seen, -1e4)
        coarse = score.softmax(-1) @ vb
        with torch.no_grad():
            own = F.one_hot(place // self.block, n).bool()
            best = score.sum(1, keepdim=True).masked_fill(own, 1e4).topk(self.top, dim=-1).indices.expand(-1, self.heads, -1, -1)
        kf, vf = (z.view(b, self.heads, 1, n, self.block, -1).expand(-1, -1, t, -1, -1, -1) for z in (k, v))
        at = best[..., None, None].expand(-1, -1, -1, -1, self.block, self.size)
        kf, vf = kf.gather(3, at).flatten(3, 4), vf.gather(3, at).flatten(3, 4)
        where = (best[..., None] * self.block + torch.arange(self.block, device=x.device)).flatten(3)
        fine = torch.einsum("bhtd,bhtsd->bhts", q, kf) * self.size**-0.5
        fine = fine.masked_fill(where > place[:, None], -1e4).softmax(-1)
        fine = torch.einsum("bhts,bhtsd->bhtd", fine, vf)
        near = (place[:, None] >= place[None]) & (place[:, None] - place[None] < 2 * self.block)
        local = F.scaled_dot_product_attention(q, k, v, attn_mask=near)
        a, c, e = self.gate(x).sigmoid().view(b, t, self.heads, 3).transpose(1, 2).unsqueeze(-2).unbind(-1)
        return self.out((a * coarse + c * fine + e * local).transpose(1, 2).reshape(b, t, d))

    def forward(self, x):
        x = x + self.attend(self.n1(x))
        return x + self.down(F.relu(self.up(self.n2(x))).square())


class Sparse(nn.Module):
    def __init__(self, v=1000, d=128, layers=2):
        super().__init__()
        self.embed, self.layers, self.norm, self.head = nn.Embedding(v, d), nn.ModuleList(ChosenBlocks(d) for _ in range(layers)), nn.RMSNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


@case("chosen_blocks", ["ChosenBlocks"], precisions=BOTH, recompute=True)
class _:
    make = Sparse
    batch = staticmethod(lambda device: (ids(1000, 2, 128, device=device), ids(1000, 2, 128, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


class MatrixCell(nn.Module):
    """mLSTM in its parallel form: exponential gates as a matrix of sums, stabilised row by row."""

    def __init__(self, d, heads=4):
        super().__init__()
        self.heads = heads
        self.norm, self.up, self.down = nn.LayerNorm(d, bias=False), nn.Linear(d, 4 * d, bias=False), nn.Linear(2 * d, d, bias=False)
        self.conv = nn.Conv1d(2 * d, 2 * d, 4, groups=2 * d, padding=3)
        self.q, self.k, self.v = (nn.Linear(2 * d, 2 * d, bias=False) for _ in range(3))
        self.i, self.f, self.out_norm, self.skip = nn.Linear(6 * d, heads), nn.Linear(6 * d, heads), nn.GroupNorm(heads, 2 * d), nn.Parameter(torch.ones(2 * d))

    def mix(self, q, k, v, i, f):
        t = q.shape[-2]
        log_f = F.logsigmoid(f)
        sums = torch.cat([torch.zeros_like(log_f[..., :1, :]), torch.cumsum(log_f, dim=-2)], dim=-2).repeat(1, 1, 1, t + 1)
        matrix = sums - sums.transpose(-2, -1)
        low = torch.tril(torch.ones((t, t), dtype=torch.bool, device=q.device))
        log_d = torch.where(low, matrix[:, :, 1:, 1:], -float("inf")) + i.transpose(-2, -1)
        top, _ = torch.max(log_d, dim=-1, keepdim=True)
        d = torch.exp(log_d - top)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) * d
        norm = torch.maximum(scores.sum(dim=-1, keepdim=True).abs(), torch.exp(-top))
        return scores / (norm + 1e-6) @ v

    def forward(self, x):
        b, t, _ = x.shape
        a, z = self.up(self.norm(x)).chunk(2, dim=-1)
        c = F.silu(self.conv(a.transpose(1, 2))[..., :t].transpose(1, 2))
        q, k, v = self.q(c), self.k(c), self.v(a)
        gates = torch.cat([q, k, v], dim=-1)
        i, f = (g(gates).transpose(-1, -2).unsqueeze(-1) for g in (self.i, self.f))
        h = self.mix(*(y.view(b, t, self.heads, -1).transpose(1, 2) for y in (q, k, v)), i, f)
        h = self.out_norm(h.transpose(1, 2).reshape(b * t, -1)).view(b, t, -1)
        return x + self.down((h + self.skip * c) * F.silu(z))


class Xlstm(nn.Module):
    def __init__(self, v=1000, d=128, layers=2):
        super().__init__()
        self.embed, self.layers, self.norm, self.head = nn.Embedding(v, d), nn.ModuleList(MatrixCell(d) for _ in range(layers)), nn.LayerNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


@case("matrix_memory", ["MatrixCell"], precisions=BOTH, recompute=True)
class _:
    make = Xlstm
    batch = staticmethod(lambda device: (ids(1000, 4, 96, device=device), ids(1000, 4, 96, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


class HaltingCell(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.layer, self.halt = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True, norm_first=True), nn.Linear(d, 1)

    def forward(self, x, time):
        x = self.layer(x + time)
        return x, torch.sigmoid(self.halt(x)).squeeze(-1)


class Halting(nn.Module):
    """A universal transformer: one layer in a loop, every token says when it has had enough."""

    def __init__(self, v=1000, d=128, steps=5):
        super().__init__()
        self.embed, self.cell, self.times, self.head, self.steps = nn.Embedding(v, d), HaltingCell(d), nn.Embedding(steps, d), nn.Linear(d, v), steps

    def forward(self, x):
        h = self.embed(x)
        total, left, out = torch.zeros(x.shape, device=x.device), torch.zeros(x.shape, device=x.device), torch.zeros_like(h)
        for step in range(self.steps):
            h, p = self.cell(h, self.times.weight[step])
            running = (total < 1.0).float()
            ends = (total + p * running > 0.99).float() * running
            goes_on = (total + p * running <= 0.99).float() * running
            total = total + p * goes_on
            left = left + ends * (1 - total)
            total = total + ends * left
            weight = p * goes_on + ends * left
            out = h * weight.unsqueeze(-1) + out * (1 - weight.unsqueeze(-1))
        return self.head(out), left.mean()


@case("halting", ["HaltingCell"], precisions=["float32"])
class _:
    make = Halting
    batch = staticmethod(lambda device: (ids(1000, 4, 64, device=device), ids(1000, 4, 64, device=device)))

    @staticmethod
    def forward(model, x, y):
        logits, ponder = model(x)
        return token_loss(logits, y) + 0.01 * ponder


# ------------------------------------------------------------------------------------------------- weights out of weights


class DecomposedLinear(nn.Module):
    """DoRA: a frozen matrix plus a product of two small ones, each row scaled to a learned length."""

    def __init__(self, i, o, rank=8):
        super().__init__()
        self.base = nn.Linear(i, o, bias=False)
        self.base.weight.requires_grad_(False)
        self.a, self.b = nn.Linear(i, rank, bias=False), nn.Linear(rank, o, bias=False)
        self.length, self.drop = nn.Parameter(torch.ones(o)), nn.Dropout(0.05)

    def forward(self, x):
        weight = self.base.weight + 2.0 * (self.b.weight @ self.a.weight).detach()
        scale = (self.length / torch.linalg.norm(weight, dim=1).detach()).view(1, -1)
        y = self.drop(x)
        return self.base(x) + (scale - 1) * F.linear(y, self.base.weight) + scale * self.b(self.a(y)) * 2.0


class DecomposedBlock(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (DecomposedLinear(d, d) for _ in range(4))
        self.up, self.down, self.n1, self.n2 = DecomposedLinear(d, 4 * d), DecomposedLinear(4 * d, d), nn.RMSNorm(d), nn.RMSNorm(d)
        for norm in (self.n1, self.n2):
            norm.weight.requires_grad_(False)

    def forward(self, x):
        y = self.n1(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.n2(x))))


class Decomposed(nn.Module):
    def __init__(self, v=1000, d=192, layers=3):
        super().__init__()
        self.embed, self.layers, self.norm, self.head = nn.Embedding(v, d), nn.ModuleList(DecomposedBlock(d) for _ in range(layers)), nn.RMSNorm(d), nn.Linear(d, v, bias=False)
        for module in (self.embed, self.norm, self.head):
            module.requires_grad_(False)
        self.prompt = nn.Parameter(torch.randn(8, d))

    def forward(self, x):
        h = torch.cat([self.prompt.expand(x.shape[0], -1, -1), self.embed(x)], dim=1)
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))[:, 8:]


@case("decomposed", ["DecomposedBlock"], precisions=BOTH, recompute=True, orig_params=True)
class _:
    make = Decomposed
    batch = staticmethod(lambda device: (ids(1000, 4, 88, device=device), ids(1000, 4, 88, device=device)))

    @staticmethod
    def forward(model, x, y):
        return token_loss(model(x), y)


class Generator(nn.Module):
    def __init__(self, d, sizes):
        super().__init__()
        self.sizes, self.mlp = sizes, nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, sum(a * b + b for a, b in sizes)))

    def forward(self, z):
        return self.mlp(z)


class Generated(nn.Module):
    """A network of networks: one makes a small network's weights for each row, which are applied in batches."""

    def __init__(self, d=64):
        super().__init__()
        self.sizes = [(2, 32), (32, 32), (32, 3)]
        self.encode, self.make_weights = nn.Sequential(nn.Conv2d(3, d, 4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(d * 64, d)), Generator(d, self.sizes)

    def forward(self, x, places):
        w = self.make_weights(self.encode(x))
        h, at = places, 0
        for i, (a, b) in enumerate(self.sizes):
            matrix, at = w[:, at : at + a * b].view(-1, a, b), at + a * b
            bias, at = w[:, at : at + b].unsqueeze(1), at + b
            h = torch.baddbmm(bias, h, matrix)
            if i < 2:
                h = torch.sin(30.0 * h)
        return h


@case("generated_weights", ["Generator"], precisions=["float32"])
class _:
    make = Generated
    batch = staticmethod(lambda device: (torch.randn(16, 3, 32, 32, device=device), torch.rand(16, 1024, 2, device=device)))

    @staticmethod
    def forward(model, x, places):
        y = F.grid_sample(x, (places * 2 - 1).unsqueeze(1), align_corners=False).squeeze(2).transpose(1, 2)
        return F.mse_loss(model(x, places), y)


class Rule(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.register_buffer("sobel", torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8)
        self.a, self.b, self.c = nn.Conv2d(3 * c, 96, 1), nn.Conv2d(96, c, 1, bias=False), c

    def forward(self, x):
        kernels = torch.stack([self.sobel, self.sobel.t()]).repeat(self.c, 1, 1).unsqueeze(1)
        y = torch.cat([x, F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), kernels.to(x.dtype), groups=self.c)], dim=1)
        y = self.b(F.relu(self.a(y)))
        x = x + y * (torch.rand_like(x[:, :1]) <= 0.5).to(x.dtype)
        return x * (F.max_pool2d(x[:, 3:4], 3, 1, 1) > 0.1).to(x.dtype)


class Automaton(nn.Module):
    """A neural cellular automaton: one rule, many times, checkpointed in a sequence; states that live on are a pool."""

    def __init__(self, c=16, steps=8):
        super().__init__()
        self.rule, self.steps = Rule(c), steps

    def forward(self, x):
        return checkpoint_sequential([self.rule] * self.steps, 4, x, use_reentrant=False)


@case("automaton", ["Rule"], precisions=["float32"], versions=(2,))
class _:
    make = Automaton
    batch = staticmethod(lambda device: (torch.rand(8, 16, 40, 40, device=device), torch.rand(8, 4, 40, 40, device=device)))

    @staticmethod
    def forward(model, x, y):
        out = model(x.requires_grad_(False))
        return F.mse_loss(out[:, :4], y), out.detach()


# -------------------------------------------------------------------------------------------------- modules of torch.nn


class BuiltIn(nn.Module):
    """nn.Transformer whole, with masks, dropout and tied tables."""

    def __init__(self, v=1000, d=128):
        super().__init__()
        self.embed, self.place = nn.Embedding(v, d, padding_idx=0), nn.Embedding(64, d)
        self.body = nn.Transformer(d, 4, 2, 2, 4 * d, dropout=0.1, batch_first=True, norm_first=False)
        self.drop, self.d = nn.Dropout(0.1), d

    def table(self, x):
        return self.drop(self.embed(x) * math.sqrt(self.d) + self.place(torch.arange(x.shape[1], device=x.device)))

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        h = self.body(self.table(source), self.table(target), tgt_mask=mask, src_key_padding_mask=source == 0, tgt_key_padding_mask=torch.zeros(target.shape, device=target.device), memory_key_padding_mask=source == 0)
        return F.linear(h, self.embed.weight)


@case("whole_transformer", ["TransformerEncoderLayer", "TransformerDecoderLayer"], precisions=["float32"], strict=False)
class _:
    make = BuiltIn
    batch = staticmethod(lambda device: (ids(1000, 8, 48, device=device), ids(1000, 8, 40, device=device), ids(1000, 8, 40, device=device)))

    @staticmethod
    def forward(model, source, target, y):
        return F.cross_entropy(model(source, target).flatten(0, 1), y.flatten(), ignore_index=0, label_smoothing=0.1)


class CrossNet(nn.Module):
    def __init__(self, d, layers=3, experts=4, rank=16):
        super().__init__()
        self.u, self.v, self.c = (nn.Parameter(torch.randn(layers, experts, *s) * 0.05) for s in ((d, rank), (d, rank), (rank, rank)))
        self.gate, self.bias = nn.ModuleList(nn.Linear(d, 1, bias=False) for _ in range(experts)), nn.Parameter(torch.zeros(layers, d, 1))

    def forward(self, x):
        x0 = xl = x.unsqueeze(2)
        for i in range(self.u.shape[0]):
            outs, gates = [], []
            for e, gate in enumerate(self.gate):
                gates.append(gate(xl.squeeze(2)))
                v = torch.tanh(torch.matmul(self.v[i, e].t(), xl))
                v = torch.tanh(torch.matmul(self.c[i, e], v))
                outs.append((x0 * (torch.matmul(self.u[i, e], v) + self.bias[i])).squeeze(2))
            mixed = torch.matmul(torch.stack(outs, 2), torch.stack(gates, 1).softmax(1))
            xl = mixed + xl
        return xl.squeeze(2)


class Clicks(nn.Module):
    """Fields of different widths, sums of squares, crosses by experts, interest in a history by activation units."""

    def __init__(self, d=16, fields=12):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(500, d) for _ in range(fields))
        self.first, self.items = nn.ModuleList(nn.Embedding(500, 1) for _ in range(fields)), nn.Embedding(4000, d, padding_idx=0, max_norm=None)
        self.unit = nn.Sequential(nn.Linear(4 * d, 64), nn.PReLU(), nn.Linear(64, 1))
        self.cross, self.deep = CrossNet(d * (fields + 2)), nn.Sequential(nn.Linear(d * (fields + 2), 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 64))
        self.head = nn.Linear(64 + d * (fields + 2), 1)

    def forward(self, fields, item, history):
        e = torch.stack([t(fields[:, i]) for i, t in enumerate(self.tables)], dim=1)
        line = torch.cat([t(fields[:, i]) for i, t in enumerate(self.first)], dim=1).sum(1, keepdim=True)
        fm = 0.5 * (e.sum(1) ** 2 - (e**2).sum(1)).sum(1, keepdim=True)
        q, k = self.items(item), self.items(history)
        wide = q.unsqueeze(1).expand_as(k)
        weight = self.unit(torch.cat([wide, k, wide - k, wide * k], dim=-1))
        weight = torch.where((history != 0).unsqueeze(-1), weight, torch.full_like(weight, -(2**31) + 1)).transpose(1, 2)
        interest = torch.matmul(F.softmax(weight / q.shape[-1] ** 0.5, -1), k).squeeze(1)
        x = torch.cat([e.flatten(1), q, interest], dim=1)
        return (self.head(torch.cat([self.deep(x), self.cross(x)], dim=1)) + line + fm).squeeze(1)


@case("clicks", ["CrossNet"], precisions=["float32"])
class _:
    make = Clicks
    batch = staticmethod(lambda device: (ids(500, 512, 12, device=device), ids(4000, 512, device=device), ids(4000, 512, 40, device=device), torch.ones(512, device=device)))

    @staticmethod
    def forward(model, fields, item, history, y):
        said = model(fields, item, history)
        return F.binary_cross_entropy_with_logits(said, y) + 1e-4 * said.pow(2).mean()


class PointBlock(nn.Module):
    """Vector attention among the nearest sixteen points."""

    def __init__(self, d, k=16):
        super().__init__()
        self.k, self.into, self.out = k, nn.Linear(d, d), nn.Linear(d, d)
        self.q, self.key, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.place, self.gamma = (nn.Sequential(nn.Linear(i, d), nn.ReLU(), nn.Linear(d, d)) for i in (3, d))

    def forward(self, xyz, x):
        near = torch.cdist(xyz, xyz).argsort(dim=-1)[:, :, : self.k]
        b, n, k = near.shape
        take = lambda z: torch.gather(z, 1, near.reshape(b, -1, 1).expand(-1, -1, z.shape[-1])).view(b, n, k, -1)  # noqa: E731
        h = self.into(x)
        q, key, v = self.q(h), take(self.key(h)), take(self.v(h))
        place = self.place(xyz[:, :, None] - take(xyz))
        weight = F.softmax(self.gamma(q[:, :, None] - key + place) / math.sqrt(key.shape[-1]), dim=-2)
        return self.out(torch.einsum("bnkd,bnkd->bnd", weight, v + place)) + x


class Points(nn.Module):
    def __init__(self, d=64, layers=3):
        super().__init__()
        self.into, self.layers = nn.Sequential(nn.Linear(3, d), nn.ReLU(), nn.Linear(d, d)), nn.ModuleList(PointBlock(d) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(d, 2 * d), nn.BatchNorm1d(2 * d), nn.LeakyReLU(0.2), nn.Linear(2 * d, 40))

    def forward(self, xyz):
        h = self.into(xyz)
        for layer in self.layers:
            h = layer(xyz, h)
        return self.head(torch.cat([h.max(1).values, h.mean(1)], dim=1)[:, : self.head[0].in_features])


@case("near_points", ["PointBlock"], precisions=["float32"], recompute=True)
class _:
    make = Points
    batch = staticmethod(lambda device: (torch.randn(8, 128, 3, device=device), ids(40, 8, device=device)))

    @staticmethod
    def forward(model, xyz, y):
        logits = model(xyz)
        soft = torch.full_like(logits, 0.1 / 39).scatter(1, y.view(-1, 1), 0.9)
        return -(soft * F.log_softmax(logits, dim=1)).sum(dim=1).mean()


class Critic(nn.Module):
    def __init__(self, d, actions=12):
        super().__init__()
        self.value, self.advantage = (nn.Sequential(nn.Linear(d, 256), nn.ReLU(inplace=True), nn.Linear(256, n)) for n in (1, actions))

    def forward(self, x):
        a = self.advantage(x)
        return self.value(x) + a - a.mean(-1, keepdim=True)


class Player(nn.Module):
    """Double Q-learning: a target that is the slow copy of the network, its next action chosen by the network."""

    def __init__(self):
        super().__init__()
        make = lambda: nn.Sequential(nn.Conv2d(4, 32, 8, 4), nn.ReLU(inplace=True), nn.Conv2d(32, 64, 4, 2), nn.ReLU(inplace=True), nn.Flatten(), Critic(64 * 9 * 9))  # noqa: E731
        self.online, self.target = make(), make()
        self.target.requires_grad_(False)

    def forward(self, now, then, action, reward, done):
        q = self.online(now.float() / 255).gather(1, action.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            best = self.online(then.float() / 255).argmax(1, keepdim=True)
            goal = reward + 0.99 * (1 - done) * self.target(then.float() / 255).gather(1, best).squeeze(1)
        return F.smooth_l1_loss(q, goal), (q - goal).abs().detach()


@case("slow_copies", ["Critic"], precisions=["float32"], orig_params=True)
class _:
    make = Player
    batch = staticmethod(
        lambda device: (
            torch.randint(0, 255, (32, 4, 84, 84), dtype=torch.uint8, device=device), torch.randint(0, 255, (32, 4, 84, 84), dtype=torch.uint8, device=device),
            ids(12, 32, device=device), torch.randn(32, device=device), torch.zeros(32, device=device),
        )
    )  # fmt: skip

    @staticmethod
    def forward(model, *batch):
        return model(*batch)
