"""Images: ViT, ConvNeXt, UNet, DiT, a residual network with batch norms, a conditioned diffusion U-Net."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from . import case, ids


def pixels(b, c, h, device):
    return torch.randn(b, c, h, h, device=device)


# ----------------------------------------------------------------------------------------------------------- ViT


class VitBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * d, d))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    def __init__(self, d=192, layers=4, heads=3, size=64, patch=8):
        super().__init__()
        self.patch = nn.Conv2d(3, d, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.position = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, d))
        self.blocks = nn.ModuleList(VitBlock(d, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 100)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class _Classify:
    batch = staticmethod(lambda device: (pixels(64, 3, 64, device), ids(100, 64, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.cross_entropy(model(x), y, label_smoothing=0.1)


@case("vit", ["VitBlock"])
class _(_Classify):
    make = Vit


# ------------------------------------------------------------------------------------------------------ ConvNeXt


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        return F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.dwconv = nn.Conv2d(d, d, 7, padding=3, groups=d)
        self.norm = nn.LayerNorm(d, eps=1e-6)
        self.pwconv1, self.act, self.pwconv2 = nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)
        self.gamma = nn.Parameter(torch.ones(d))

    def forward(self, x):
        shortcut = x
        x = self.dwconv(x)
        x = x.permute(0, 2, 3, 1)
        x = self.norm(x)
        x = self.pwconv1(x)
        x = self.act(x)
        x = self.pwconv2(x)
        x = self.gamma * x
        x = x.permute(0, 3, 1, 2)
        return shortcut + x


class ConvNext(nn.Module):
    def __init__(self, dims=(48, 96, 192), depths=(2, 2, 3)):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, dims[0], 4, 4), LayerNorm2d(dims[0]))
        self.stages = nn.ModuleList()
        for i, (d, n) in enumerate(zip(dims, depths)):
            down = nn.Identity() if i == 0 else nn.Sequential(LayerNorm2d(dims[i - 1]), nn.Conv2d(dims[i - 1], d, 2, 2))
            self.stages.append(nn.Sequential(down, *[ConvNextBlock(d) for _ in range(n)]))
        self.norm, self.head = nn.LayerNorm(dims[-1]), nn.Linear(dims[-1], 100)

    def forward(self, x):
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.head(self.norm(x.mean([-2, -1])))


@case("convnext", ["ConvNextBlock"])
class _(_Classify):
    make = ConvNext


# -------------------------------------------------------------------------------------------------------- ResNet


class BasicBlock(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(a, b, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(b)
        self.conv2 = nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(b)
        self.relu = nn.ReLU(inplace=True)
        self.down = (
            nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b)) if stride != 1 or a != b else None
        )

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.down is not None:
            identity = self.down(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1, self.relu, self.pool = nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(128, 100)

    def forward(self, x):
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(self.avgpool(x), 1))


@case("resnet_fp32", ["BasicBlock"], precisions=["float32"])
class _(_Classify):
    make = ResNet


@case("resnet_low", ["BasicBlock"], versions=[1])  # its batch norms are units in float32; FSDP2's would be given two types
class _(_Classify):
    make = ResNet


# ---------------------------------------------------------------------------------------------------------- UNet


class DoubleConv(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU(), nn.Conv2d(b, b, 3, padding=1),
            nn.GroupNorm(8, b), nn.SiLU(),
        )  # fmt: skip

    def forward(self, x):
        return self.body(x)


class UNet(nn.Module):
    def __init__(self, widths=(32, 64, 128)):
        super().__init__()
        self.inc = DoubleConv(3, widths[0])
        self.downs = nn.ModuleList(DoubleConv(a, b) for a, b in zip(widths, widths[1:]))
        self.ups = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(widths, widths[1:]))
        self.convs = nn.ModuleList(DoubleConv(2 * a, a) for a in widths[:-1])
        self.out = nn.Conv2d(widths[0], 5, 1)

    def forward(self, x):
        skips = [self.inc(x)]
        for down in self.downs:
            skips.append(down(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up, conv in zip(reversed(self.ups), reversed(self.convs)):
            x = conv(torch.cat([skips.pop(), up(x)], dim=1))
        return self.out(x)


@case("unet", ["DoubleConv"])
class _:
    make = UNet
    batch = staticmethod(lambda device: (pixels(16, 3, 64, device), ids(5, 16, 64, 64, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.cross_entropy(model(x), y)


# ----------------------------------------------------------------------------------------------------------- DiT


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class TimestepEmbedder(nn.Module):
    def __init__(self, d, size=256):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(size, d), nn.SiLU(), nn.Linear(d, d))
        self.size = size

    def forward(self, t):
        half = self.size // 2
        freqs = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32, device=t.device) / half)
        args = t[:, None].float() * freqs[None]
        embedding = torch.cat([torch.cos(args), torch.sin(args)], dim=-1)
        return self.mlp(embedding.to(self.mlp[0].weight.dtype))


class DiTBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(d, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(d, elementwise_affine=False, eps=1e-6)
        self.qkv, self.proj, self.heads = nn.Linear(d, 3 * d), nn.Linear(d, d), heads
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(d, 6 * d))

    def attend(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))

    def forward(self, x, c):
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = self.adaLN_modulation(c).chunk(6, dim=1)
        x = x + gate_msa.unsqueeze(1) * self.attend(modulate(self.norm1(x), shift_msa, scale_msa))
        x = x + gate_mlp.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift_mlp, scale_mlp))
        return x


class DiT(nn.Module):
    def __init__(self, d=192, layers=4, heads=3, size=32, patch=2):
        super().__init__()
        self.x_embedder = nn.Conv2d(4, d, patch, patch)
        self.t_embedder, self.y_embedder = TimestepEmbedder(d), nn.Embedding(11, d)
        self.pos_embed = nn.Parameter(torch.zeros(1, (size // patch) ** 2, d), requires_grad=False)
        self.blocks = nn.ModuleList(DiTBlock(d, heads) for _ in range(layers))
        self.final = nn.Linear(d, patch * patch * 4)
        self.patch, self.side = patch, size // patch

    def unpatchify(self, x):
        x = x.reshape(x.shape[0], self.side, self.side, self.patch, self.patch, 4)
        x = torch.einsum("nhwpqc->nchpwq", x)
        return x.reshape(x.shape[0], 4, self.side * self.patch, self.side * self.patch)

    def forward(self, x, t, y):
        x = self.x_embedder(x).flatten(2).transpose(1, 2) + self.pos_embed
        c = self.t_embedder(t) + self.y_embedder(y)
        for block in self.blocks:
            x = block(x, c)
        return self.unpatchify(self.final(x))


@case("dit", ["DiTBlock"], orig_params=True)
class _:
    make = DiT
    batch = staticmethod(
        lambda device: (pixels(32, 4, 32, device), ids(1000, 32, device=device), ids(10, 32, device=device))
    )

    @staticmethod
    def forward(model, x, t, y):
        noise = torch.randn_like(x)
        alpha = (t.float() / 1000).cos()[:, None, None, None]
        noisy = alpha * x + (1 - alpha**2).sqrt() * noise
        return F.mse_loss(model(noisy, t, y).float(), noise)


# ------------------------------------------------------------------------------------- conditioned diffusion U-Net


class ResBlock(nn.Module):
    def __init__(self, a, b, emb):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, a), nn.Conv2d(a, b, 3, padding=1)
        self.emb = nn.Linear(emb, b)
        self.norm2, self.conv2 = nn.GroupNorm(8, b), nn.Conv2d(b, b, 3, padding=1)
        self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.emb(F.silu(emb))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return self.skip(x) + h


class CrossAttention(nn.Module):
    def __init__(self, d, context, heads=4):
        super().__init__()
        self.norm = nn.GroupNorm(8, d)
        self.q, self.kv, self.out = nn.Linear(d, d), nn.Linear(context, 2 * d), nn.Linear(d, d)
        self.heads = heads

    def forward(self, x, context):
        b, c, h, w = x.shape
        y = self.norm(x).view(b, c, h * w).transpose(1, 2)
        q = self.q(y).view(b, h * w, self.heads, -1).transpose(1, 2)
        k, v = self.kv(context).view(b, -1, 2, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h * w, c)
        return x + self.out(y).transpose(1, 2).reshape(b, c, h, w)


class ConditionedUNet(nn.Module):
    def __init__(self, w=32, emb=128, context=64):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(w, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.text = nn.Embedding(500, context)
        self.inp = nn.Conv2d(4, w, 3, padding=1)
        self.down1, self.attn1 = ResBlock(w, w, emb), CrossAttention(w, context)
        self.pool = nn.Conv2d(w, 2 * w, 3, 2, 1)
        self.mid, self.attn2 = ResBlock(2 * w, 2 * w, emb), CrossAttention(2 * w, context)
        self.up, self.attn3 = ResBlock(3 * w, w, emb), CrossAttention(w, context)
        self.out = nn.Conv2d(w, 4, 3, padding=1)
        self.w = w

    def forward(self, x, t, prompt):
        half = self.w // 2
        freqs = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        args = t[:, None] * freqs
        emb = self.time(torch.cat([args.sin(), args.cos()], -1).to(x.dtype))
        context = self.text(prompt)
        h = self.attn1(self.down1(self.inp(x), emb), context)
        m = self.attn2(self.mid(self.pool(h), emb), context)
        m = F.interpolate(m, scale_factor=2, mode="nearest")
        return self.out(self.attn3(self.up(torch.cat([h, m], 1), emb), context))


@case("conditioned_unet", ["ResBlock", "CrossAttention"])
class _:
    make = ConditionedUNet
    batch = staticmethod(
        lambda device: (pixels(16, 4, 32, device), ids(1000, 16, device=device), ids(500, 16, 16, device=device))
    )

    @staticmethod
    def forward(model, x, t, prompt):
        noise = torch.randn_like(x)
        out = model(x + noise, t, prompt)
        return F.smooth_l1_loss(out.float(), noise)
