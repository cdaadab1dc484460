"""What libraries on PyPI do: caches that the first step makes, modules handed on as functions, windows of videos with eight dimensions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from . import case, ids

BOTH = ["bfloat16", "float32"]


def token_loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


class SlopedAttention(nn.Module):
    """ALiBi as x-transformers has it: the first call registers what the later ones take; the weights stay for who wants to look."""

    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(d), nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.register_buffer("bias", None, persistent=False)

    def sloped(self, n, device):
        if self.bias is None or self.bias.shape[-1] < n:
            far = (torch.arange(n, device=device)[None] - torch.arange(n, device=device)[:, None]).abs()
            slopes = torch.tensor([2.0 ** -(i + 1) for i in range(self.heads)], device=device)
            self.register_buffer("bias", -far * slopes[:, None, None], persistent=False)
        return self.bias

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (y.view(b, n, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) * (d // self.heads) ** -0.5 + self.sloped(n, x.device)
        weights = scores.softmax(-1).to(v.dtype)
        self.looked_at = weights.detach()
        return x + self.out((weights @ v).transpose(1, 2).reshape(b, n, d))


class SlopedDecoder(nn.Module):
    def __init__(self, d=128, layers=4):
        super().__init__()
        self.embed, self.blocks, self.head = nn.Embedding(1000, d), nn.ModuleList(SlopedAttention(d, 4) for _ in range(layers)), nn.Linear(d, 1000)
        self.places = {}  # by length

    def forward(self, tokens):
        n = tokens.shape[1]
        if n not in self.places:
            self.places[n] = torch.arange(n, device=tokens.device)[:, None].float() * torch.ones(128, device=tokens.device)
        x = self.embed(tokens)
        x = x + self.places[n].to(x.dtype)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@case("sloped", ["SlopedAttention"], precisions=BOTH)
class _:
    make = SlopedDecoder
    batch = staticmethod(lambda device: (ids(1000, 4, 256, device=device), ids(1000, 4, 256, device=device)))
    forward = staticmethod(lambda model, x, y: token_loss(model(x), y))


class Distance(nn.Module):
    """T5's buckets, made simple; the root's own parameters."""

    def __init__(self, heads):
        super().__init__()
        self.table = nn.Embedding(32, heads)

    def forward(self, n, device):
        far = (torch.arange(n, device=device)[None] - torch.arange(n, device=device)[:, None]).clamp(-16, 15) + 16
        return self.table(far).permute(2, 0, 1)


class HandedAttention(nn.Module):
    """Calls a module that is none of its children, in the midst of its own operators or before any of them."""

    def __init__(self, d, heads, early):
        super().__init__()
        self.heads, self.early = heads, early
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)

    def forward(self, x, distance):
        b, n, d = x.shape
        bias = distance(n, x.device) if self.early else None
        q, k, v = (y.view(b, n, self.heads, -1).transpose(1, 2) for y in self.qkv(x).split(d, dim=-1))
        if bias is None:
            bias = distance(n, x.device)
        weights = (q @ k.transpose(-2, -1) * (d // self.heads) ** -0.5 + bias).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(b, n, d))


class HandedDecoder(nn.Module):
    def __init__(self, d=128, layers=4):
        super().__init__()
        self.embed, self.distance = nn.Embedding(1000, d), Distance(4)
        self.blocks, self.head = nn.ModuleList(HandedAttention(d, 4, i % 2 == 1) for i in range(layers)), nn.Linear(d, 1000)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.distance)
        return self.head(x)


@case("handed", ["HandedAttention"], precisions=["float32"])
class _:
    make = HandedDecoder
    batch = staticmethod(lambda device: (ids(1000, 4, 128, device=device), ids(1000, 4, 128, device=device)))
    forward = staticmethod(lambda model, x, y: token_loss(model(x), y))


class WindowBlock(nn.Module):
    """Video Swin's windows: eight dimensions."""

    def __init__(self, d, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.norm, self.qkv, self.proj = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, h, w, d = x.shape
        wt, wh, ww = self.window
        y = self.norm(x).view(b, t // wt, wt, h // wh, wh, w // ww, ww, d)
        y = y.permute(0, 1, 3, 5, 2, 4, 6, 7).reshape(-1, wt * wh * ww, d)
        q, k, v = self.qkv(y).view(*y.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, wt * wh * ww, d)
        y = self.proj(y).view(b, t // wt, h // wh, w // ww, wt, wh, ww, d).permute(0, 1, 4, 2, 5, 3, 6, 7)
        return x + y.reshape(b, t, h, w, d)


class VideoWindows(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.patch, self.blocks, self.head = nn.Linear(2 * 4 * 4 * 3, d), nn.ModuleList(WindowBlock(d, 3, (2, 4, 4)) for _ in range(3)), nn.Linear(d, 100)

    def forward(self, clips):
        b, c, t, h, w = clips.shape
        y = clips.view(b, c, t // 2, 2, h // 4, 4, w // 4, 4).permute(0, 2, 4, 6, 3, 5, 7, 1)
        x = self.patch(y.reshape(b, t // 2, h // 4, w // 4, -1))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2, 3)))


@case("video_windows", ["WindowBlock"], precisions=BOTH)
class _:
    make = VideoWindows
    batch = staticmethod(lambda device: (torch.randn(2, 3, 8, 64, 64, device=device), ids(100, 2, device=device)))
    forward = staticmethod(lambda model, x, y: F.cross_entropy(model(x), y))


class Mixer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Round(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.mixer = Mixer(d)

    def forward(self, x):
        return self.mixer(x) * 0.5


class Rounds(nn.Module):
    """Perceiver's tied layers: the same blocks again and again, listed under other names."""

    def __init__(self, d=256):
        super().__init__()
        self.embed, self.head = nn.Embedding(1000, d), nn.Linear(d, 1000)
        a, b = Round(d), Round(d)
        self.layers = nn.ModuleList([a, b, a, b, a, b])

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@case("rounds", ["Mixer"], precisions=["float32"])
class _:
    make = Rounds
    batch = staticmethod(lambda device: (ids(1000, 2, 128, device=device), ids(1000, 2, 128, device=device)))
    forward = staticmethod(lambda model, x, y: token_loss(model(x), y))


class Stage(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


class ShallowEncoder(nn.Module):
    """segmentation_models_pytorch's encoders: the last stages are there, and their head does not ask for them."""

    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(Stage(i, o) for i, o in ((3, 64), (64, 512), (512, 768), (768, 768)))
        self.head = nn.Conv2d(512, 5, 1)

    def forward(self, x):
        for stage in self.stages[:2]:
            x = stage(x)
        return F.interpolate(self.head(x), scale_factor=4, mode="bilinear", align_corners=False)


@case("shallow", ["Stage"], precisions=BOTH, orig_params=True)
class _:
    make = ShallowEncoder
    batch = staticmethod(lambda device: (torch.randn(2, 3, 64, 64, device=device), ids(5, 2, 64, 64, device=device)))
    forward = staticmethod(lambda model, x, y: F.cross_entropy(model(x).float(), y))


class Scan(torch.autograd.Function):
    """A recurrence along the sequence, in place and back."""

    @staticmethod
    def forward(ctx, decay, x):
        out = x.clone()
        for k in (1, 2, 4, 8):
            out[:, k:] += out[:, :-k].clone() * decay[:, k:]
        ctx.save_for_backward(decay, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        decay, out = ctx.saved_tensors
        back = grad.clone()
        for k in (8, 4, 2, 1):
            back[:, :-k] += back[:, k:].clone() * decay[:, k:]
        return back * out, back


scan = Scan.apply  # bound long before anybody captures


class ScanBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.inner, self.decay, self.out = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        y = self.norm(x)
        return x + self.out(scan(torch.sigmoid(self.decay(y)), self.inner(y)))


def scanner(d=128):
    return nn.Sequential(nn.Embedding(1000, d), *(ScanBlock(d) for _ in range(3)), nn.Linear(d, 1000))


@case("bound_scan", ["ScanBlock"], precisions=["float32"])
class _:
    make = staticmethod(scanner)
    batch = staticmethod(lambda device: (ids(1000, 4, 256, device=device), ids(1000, 4, 256, device=device)))
    forward = staticmethod(lambda model, x, y: token_loss(model(x), y))
