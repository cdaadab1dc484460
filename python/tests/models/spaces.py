"""Pictures, volumes, points, graphs and tables: windows, splines, reparameterised codes, adaptive norms."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from . import case, ids


# ------------------------------------------------------------------------------------------------------------ volumes


class Block3d(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.c1, self.n1 = nn.Conv3d(i, o, 3, padding=1, bias=False), nn.GroupNorm(4, o)
        self.c2, self.n2 = nn.Conv3d(o, o, 3, padding=1), nn.GroupNorm(4, o)
        self.skip = nn.Conv3d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x):
        y = F.leaky_relu(self.n1(self.c1(x)), 0.01, inplace=True)
        y = self.n2(self.c2(y))
        return F.leaky_relu_(y + self.skip(x), 0.01)


class UNet3d(nn.Module):
    def __init__(self, width=(8, 16, 32), classes=4):
        super().__init__()
        self.downs = nn.ModuleList(Block3d(i, o) for i, o in zip((1, *width), width))
        self.ups = nn.ModuleList(nn.ConvTranspose3d(o, i, 2, 2) for i, o in zip(width, width[1:]))
        self.merge = nn.ModuleList(Block3d(2 * i, i) for i in width[:-1])
        self.heads = nn.ModuleList(nn.Conv3d(w, classes, 1) for w in width[:-1])

    def forward(self, x):
        skips, outs = [], []
        for down in self.downs:
            x = down(x)
            skips.append(x)
            x = F.max_pool3d(x, 2)
        x = skips.pop()
        for i in reversed(range(len(self.ups))):
            x = self.merge[i](torch.cat([self.ups[i](x), skips.pop()], 1))
            outs.append(F.interpolate(self.heads[i](x), scale_factor=2**i, mode="trilinear", align_corners=False))
        return outs


def dice(logits, labels):
    p = logits.float().softmax(1)
    hot = torch.zeros_like(p).scatter_(1, labels.unsqueeze(1), 1)
    inter, total = (p * hot).sum((2, 3, 4)), p.sum((2, 3, 4)) + hot.sum((2, 3, 4))
    return 1 - ((2 * inter + 1) / (total + 1)).mean()


@case("unet3d", ["Block3d"], precisions=["float32", "bfloat16"])
class _:
    make = UNet3d
    batch = staticmethod(lambda device: (torch.randn(2, 1, 16, 32, 32, device=device), ids(4, 2, 16, 32, 32, device=device)))

    @staticmethod
    def forward(model, x, y):
        return sum(dice(z, y) + F.cross_entropy(z, y) for z in model(x))


# ----------------------------------------------------------------------------------------------------------- pictures


class SwinBlock(nn.Module):
    def __init__(self, d, heads, size, window, shift):
        super().__init__()
        self.heads, self.size, self.window, self.shift = heads, size, window, shift
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        self.register_buffer("index", torch.zeros(window**2, window**2, dtype=torch.long))
        n = (size // window) ** 2
        self.register_buffer("mask", torch.zeros(n, window**2, window**2) if shift else None, persistent=False)

    def windows(self, x):
        b, h, w, c = x.shape
        x = x.view(b, h // self.window, self.window, w // self.window, self.window, c)
        return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, self.window**2, c)

    def back(self, x, b):
        n = self.size // self.window
        x = x.view(b, n, n, self.window, self.window, -1)
        return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(b, self.size, self.size, -1)

    def forward(self, x):
        b, l, c = x.shape
        y = self.n1(x).view(b, self.size, self.size, c)
        if self.shift:
            y = torch.roll(y, shifts=(-self.shift, -self.shift), dims=(1, 2))
        y = self.windows(y)
        q, k, v = self.qkv(y).reshape(y.shape[0], -1, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        a = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1)
        bias = self.table[self.index.view(-1)].view(self.window**2, self.window**2, -1)
        a = a + bias.permute(2, 0, 1).contiguous().unsqueeze(0)
        if self.mask is not None:
            n = self.mask.shape[0]
            a = a.view(b, n, self.heads, self.window**2, -1) + self.mask.unsqueeze(1).unsqueeze(0).to(a.dtype)
            a = a.view(-1, self.heads, self.window**2, self.window**2)
        y = self.back(self.proj((a.softmax(-1) @ v).transpose(1, 2).reshape(-1, self.window**2, c)), b)
        if self.shift:
            y = torch.roll(y, shifts=(self.shift, self.shift), dims=(1, 2))
        x = x + self.drop_path(y.view(b, l, c))
        return x + self.drop_path(self.mlp(self.n2(x)))

    def drop_path(self, x):
        keep = x.new_empty((x.shape[0], 1, 1)).bernoulli_(0.9).div_(0.9)
        return x * keep


class PatchMerging(nn.Module):
    def __init__(self, d, size):
        super().__init__()
        self.size, self.norm, self.reduce = size, nn.LayerNorm(4 * d), nn.Linear(4 * d, 2 * d, bias=False)

    def forward(self, x):
        x = x.view(x.shape[0], self.size, self.size, -1)
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.reduce(self.norm(x.flatten(1, 2)))


class Swin(nn.Module):
    def __init__(self, d=48, size=32, window=4):
        super().__init__()
        self.patch, self.norm0 = nn.Conv2d(3, d, 4, 4), nn.LayerNorm(d)
        self.stage1 = nn.Sequential(*(SwinBlock(d, 3, size, window, 2 * (i % 2)) for i in range(2)))
        self.merge = PatchMerging(d, size)
        self.stage2 = nn.Sequential(*(SwinBlock(2 * d, 6, size // 2, window, 2 * (i % 2)) for i in range(2)))
        self.norm, self.head = nn.LayerNorm(2 * d), nn.Linear(2 * d, 100)

    def forward(self, x):
        x = self.norm0(self.patch(x).flatten(2).transpose(1, 2))
        x = self.norm(self.stage2(self.merge(self.stage1(x))))
        return self.head(F.adaptive_avg_pool1d(x.transpose(1, 2), 1).flatten(1))


@case("swin", ["SwinBlock"], precisions=["bfloat16", "float32"])
class _:
    make = Swin
    batch = staticmethod(lambda device: (torch.randn(8, 3, 128, 128, device=device), ids(100, 8, device=device)))

    @staticmethod
    def forward(model, x, y):
        # mixup, as vision recipes have it
        soft = F.one_hot(y, 100).float() * 0.7 + F.one_hot(y.flip(0), 100).float() * 0.3
        return torch.sum(-soft * F.log_softmax(model(x * 0.7 + x.flip(0) * 0.3), dim=-1), dim=-1).mean()


class JointBlock(nn.Module):
    """Two streams with norms that a time sets, one attention over both (SD3)."""

    def __init__(self, d, heads=4):
        super().__init__()
        self.heads = heads
        self.ada_x, self.ada_c = nn.Linear(d, 6 * d), nn.Linear(d, 6 * d)
        self.qkv_x, self.qkv_c = nn.Linear(d, 3 * d), nn.Linear(d, 3 * d)
        self.out_x, self.out_c = nn.Linear(d, d), nn.Linear(d, d)
        self.mlp_x, self.mlp_c = (
            nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d)) for _ in range(2)
        )
        self.norm = nn.LayerNorm(d, elementwise_affine=False, eps=1e-6)
        self.q_norm, self.k_norm = nn.RMSNorm(d // heads), nn.RMSNorm(d // heads)

    def forward(self, x, c, t):
        s1, b1, g1, s2, b2, g2 = self.ada_x(F.silu(t))[:, None].chunk(6, -1)
        u1, v1, h1, u2, v2, h2 = self.ada_c(F.silu(t))[:, None].chunk(6, -1)
        both = [self.qkv_x(torch.addcmul(b1, self.norm(x), 1 + s1)), self.qkv_c(torch.addcmul(v1, self.norm(c), 1 + u1))]
        q, k, v = (torch.cat([z.chunk(3, -1)[i] for z in both], 1).unflatten(-1, (self.heads, -1)).transpose(1, 2) for i in range(3))
        y = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v).transpose(1, 2).flatten(2)
        yx, yc = y.split([x.shape[1], c.shape[1]], 1)
        x, c = x + g1 * self.out_x(yx), c + h1 * self.out_c(yc)
        x = x + g2 * self.mlp_x(self.norm(x) * (1 + s2) + b2)
        return x, c + h2 * self.mlp_c(self.norm(c) * (1 + u2) + v2)


class JointDiT(nn.Module):
    def __init__(self, d=192, layers=3):
        super().__init__()
        self.patch, self.text, self.pool = nn.Conv2d(4, d, 2, 2), nn.Linear(96, d), nn.Linear(64, d)
        self.time = nn.Sequential(nn.Linear(128, d), nn.SiLU(), nn.Linear(d, d))
        self.register_buffer("place", torch.zeros(1, 256, d))
        self.blocks = nn.ModuleList(JointBlock(d) for _ in range(layers))
        self.last, self.ada = nn.Linear(d, 16), nn.Linear(d, 2 * d)

    def forward(self, x, t, text, pooled):
        h = self.patch(x).flatten(2).mT
        h = h + self.place.to(h.dtype)
        freq = torch.exp(-math.log(10000) * torch.arange(64, device=x.device, dtype=torch.float32) / 64)
        angle = t[:, None].float() * freq[None] * 1000
        t = self.time(torch.cat([angle.cos(), angle.sin()], -1).to(h.dtype)) + self.pool(pooled)
        c = self.text(text)
        for block in self.blocks:
            h, c = block(h, c, t)
        shift, scale = self.ada(F.silu(t)).chunk(2, 1)
        h = self.last(F.layer_norm(h, h.shape[-1:]) * (1 + scale[:, None]) + shift[:, None])
        return F.pixel_shuffle(h.mT.unflatten(2, (16, 16)), 2)


@case("joint_dit", ["JointBlock"])
class _:
    make = JointDiT
    batch = staticmethod(
        lambda device: (torch.randn(4, 4, 32, 32, device=device), torch.randn(4, 24, 96, device=device), torch.randn(4, 64, device=device))
    )

    @staticmethod
    def forward(model, x, text, pooled):
        noise = torch.randn_like(x)
        t = torch.sigmoid(torch.randn(x.shape[0], device=x.device))
        mixed = (1 - t.view(-1, 1, 1, 1)) * x + t.view(-1, 1, 1, 1) * noise
        weight = torch.ones_like(t)
        return (weight[:, None] * (model(mixed, t, text, pooled).float() - (noise - x)).square().flatten(1)).mean()


class Encode(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(i, o, 4, 2, 1), nn.BatchNorm2d(o)

    def forward(self, x):
        return F.leaky_relu(self.norm(self.conv(x)), 0.2)


class Decode(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.conv, self.norm = nn.ConvTranspose2d(i, o, 4, 2, 1), nn.BatchNorm2d(o)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


class Vae(nn.Module):
    def __init__(self, c=32, z=64):
        super().__init__()
        self.enc = nn.Sequential(Encode(3, c), Encode(c, 2 * c), Encode(2 * c, 4 * c))
        self.mean, self.logvar = nn.Linear(4 * c * 64, z), nn.Linear(4 * c * 64, z)
        self.back = nn.Linear(z, 4 * c * 64)
        self.dec = nn.Sequential(Decode(4 * c, 2 * c), Decode(2 * c, c), nn.ConvTranspose2d(c, 3, 4, 2, 1))

    def forward(self, x):
        h = self.enc(x).flatten(1)
        mean, logvar = self.mean(h), self.logvar(h).clamp(-10, 10)
        z = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)
        return self.dec(self.back(z).view(-1, 128, 8, 8)), mean, logvar


@case("vae", ["Encode", "Decode"], precisions=["float32"])
class _:
    make = Vae
    batch = staticmethod(lambda device: (torch.rand(32, 3, 64, 64, device=device),))

    @staticmethod
    def forward(model, x):
        y, mean, logvar = model(x)
        kl = -0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp(), dim=1)
        return F.binary_cross_entropy_with_logits(y, x, reduction="sum") / x.shape[0] + kl.mean(), y, (mean, logvar)


class Pyramid(nn.Module):
    """A detector: features of three sizes merged from above, focal and box losses over all anchors."""

    def __init__(self, c=32, classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, c, 7, 2, 3, bias=False), nn.BatchNorm2d(c), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        self.stages = nn.ModuleList(Stage(c * 2**i, c * 2 ** (i + 1)) for i in range(3))
        self.lateral = nn.ModuleList(nn.Conv2d(c * 2 ** (i + 1), 2 * c, 1) for i in range(3))
        self.smooth = nn.ModuleList(nn.Conv2d(2 * c, 2 * c, 3, padding=1) for _ in range(3))
        self.tower = nn.Sequential(nn.Conv2d(2 * c, 2 * c, 3, padding=1), nn.ReLU(inplace=True))
        self.cls, self.box = nn.Conv2d(2 * c, 3 * classes, 3, padding=1), nn.Conv2d(2 * c, 12, 3, padding=1)
        self.classes = classes

    def forward(self, x):
        x, feats = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            feats.append(x)
        feats = [f(z) for f, z in zip(self.lateral, feats)]
        for i in (1, 0):
            feats[i] = feats[i] + F.interpolate(feats[i + 1], scale_factor=2.0, mode="nearest")
        cls, box = [], []
        for f, z in zip(self.smooth, feats):
            z = self.tower(f(z))
            cls.append(self.cls(z).permute(0, 2, 3, 1).reshape(z.shape[0], -1, self.classes))
            box.append(self.box(z).permute(0, 2, 3, 1).reshape(z.shape[0], -1, 4))
        return torch.cat(cls, 1), torch.cat(box, 1)


class Stage(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))
        self.b = nn.Sequential(nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o))
        self.skip = nn.Conv2d(i, o, 1, 2)

    def forward(self, x):
        return F.relu(self.b(self.a(x)) + self.skip(x), inplace=True)


@case("detector", ["Stage"], precisions=["float32"])
class _:
    make = Pyramid
    batch = staticmethod(
        lambda device: (torch.randn(4, 3, 128, 128, device=device), ids(10, 4, 1008, device=device), torch.randn(4, 1008, 4, device=device))
    )

    @staticmethod
    def forward(model, x, labels, boxes):
        cls, box = model(x)
        cls, box = cls.float(), box.float()
        hot = F.one_hot(labels, 10).to(cls.dtype)
        p = cls.sigmoid()
        ce = F.binary_cross_entropy_with_logits(cls, hot, reduction="none")
        near = p * hot + (1 - p) * (1 - hot)
        focal = (0.25 * hot + 0.75 * (1 - hot)) * ce * (1 - near) ** 2
        found = (labels > 0).unsqueeze(-1)
        regress = torch.where(found, F.smooth_l1_loss(box, boxes, reduction="none", beta=0.1), torch.zeros_like(box))
        count = found.sum().clamp(min=1)
        return focal.sum() / count + regress.sum() / count


# ------------------------------------------------------------------------------------------- points, graphs, functions


class EdgeConv(nn.Module):
    def __init__(self, i, o, k=12):
        super().__init__()
        self.k, self.mlp = k, nn.Sequential(nn.Conv2d(2 * i, o, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2))

    def forward(self, x):
        inner = -2 * torch.matmul(x.transpose(2, 1), x)
        square = torch.sum(x**2, dim=1, keepdim=True)
        index = (-square - inner - square.transpose(2, 1)).topk(k=self.k, dim=-1)[1]
        b, c, n = x.shape
        index = (index + torch.arange(b, device=x.device).view(-1, 1, 1) * n).view(-1)
        x = x.transpose(2, 1).contiguous()
        near = x.view(b * n, -1)[index, :].view(b, n, self.k, c)
        x = x.view(b, n, 1, c).repeat(1, 1, self.k, 1)
        edges = torch.cat((near - x, x), dim=3).permute(0, 3, 1, 2).contiguous()
        return self.mlp(edges).max(dim=-1, keepdim=False)[0]


class Dgcnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([EdgeConv(3, 32), EdgeConv(32, 32), EdgeConv(32, 64)])
        self.last = nn.Sequential(nn.Conv1d(128, 256, 1, bias=False), nn.BatchNorm1d(256), nn.LeakyReLU(0.2))
        self.head = nn.Sequential(nn.Linear(512, 128, bias=False), nn.BatchNorm1d(128), nn.LeakyReLU(0.2), nn.Dropout(0.5), nn.Linear(128, 40))

    def forward(self, x):
        outs = []
        for conv in self.convs:
            x = conv(x)
            outs.append(x)
        x = self.last(torch.cat(outs, 1))
        return self.head(torch.cat([F.adaptive_max_pool1d(x, 1).squeeze(-1), F.adaptive_avg_pool1d(x, 1).squeeze(-1)], 1))


@case("dgcnn", ["EdgeConv"], precisions=["float32"])
class _:
    make = Dgcnn
    batch = staticmethod(lambda device: (torch.randn(8, 3, 256, device=device), ids(40, 8, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.cross_entropy(model(x), y, label_smoothing=0.2)


class Gat(nn.Module):
    """Graph attention: a softmax over the edges of each node by scatters."""

    def __init__(self, d, heads=4):
        super().__init__()
        self.heads, self.lin, self.norm = heads, nn.Linear(d, d, bias=False), nn.LayerNorm(d)
        self.a, self.b = nn.Parameter(torch.zeros(heads, d // heads)), nn.Parameter(torch.zeros(heads, d // heads))

    def forward(self, x, edge):
        n, (src, dst) = x.shape[0], edge
        h = self.lin(x).view(n, self.heads, -1)
        score = F.leaky_relu((h * self.a).sum(-1)[src] + (h * self.b).sum(-1)[dst], 0.2)
        where = dst[:, None].expand_as(score)
        top = torch.full((n, self.heads), -1e9, device=x.device, dtype=score.dtype).scatter_reduce(0, where, score.detach(), "amax")
        weight = torch.exp(score - top[dst])
        total = weight.new_zeros(n, self.heads).scatter_add_(0, where, weight)
        weight = F.dropout(weight / total.index_select(0, dst).clamp_min(1e-9), 0.1, self.training)
        out = torch.zeros_like(h)
        out.index_add_(0, dst, h[src] * weight.unsqueeze(-1))
        return F.elu(self.norm(x + out.flatten(1)))


class GraphAttention(nn.Module):
    def __init__(self, d=128, layers=3):
        super().__init__()
        self.inp = nn.Linear(50, d)
        self.layers = nn.ModuleList(Gat(d) for _ in range(layers))
        self.out = nn.Linear(2 * d, 7)

    def forward(self, x, edge, batch):
        h = self.inp(x)
        for layer in self.layers:
            h = layer(h, edge)
        mean = h.new_zeros(32, h.shape[1]).index_reduce_(0, batch, h, "mean", include_self=False)
        most = h.new_zeros(32, h.shape[1]).scatter_reduce(0, batch[:, None].expand_as(h), h, reduce="amax", include_self=False)
        return self.out(torch.cat([mean, most], 1))


@case("graph_attention", ["Gat"], precisions=["float32"])
class _:
    make = GraphAttention
    batch = staticmethod(
        lambda device: (torch.randn(2000, 50, device=device), ids(2000, 2, 12000, device=device), ids(32, 2000, device=device), ids(7, 32, device=device))
    )

    @staticmethod
    def forward(model, x, edge, batch, y):
        return F.multi_margin_loss(model(x, edge, batch), y)


class KanLayer(nn.Module):
    """Splines on every edge: bases by the recursion of de Boor over a grid that is a buffer."""

    def __init__(self, i, o, grid=5, order=3):
        super().__init__()
        self.i, self.o, self.order = i, o, order
        knots = torch.arange(-order, grid + order + 1) * (2 / grid) - 1
        self.register_buffer("grid", knots.expand(i, -1).contiguous())
        self.base = nn.Parameter(torch.zeros(o, i))
        self.spline = nn.Parameter(torch.zeros(o, i, grid + order))
        self.scale = nn.Parameter(torch.ones(o, i))

    def bases(self, x):
        x, grid = x.unsqueeze(-1), self.grid.to(x.dtype)
        b = ((x >= grid[:, :-1]) & (x < grid[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (x - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)]) * b[:, :, :-1]
            right = (grid[:, k + 1 :] - x) / (grid[:, k + 1 :] - grid[:, 1:(-k)]) * b[:, :, 1:]
            b = left + right
        return b.contiguous()

    def forward(self, x):
        weight = (self.spline * self.scale.unsqueeze(-1)).view(self.o, -1)
        return F.linear(F.silu(x), self.base) + F.linear(self.bases(x).view(x.shape[0], -1), weight)


class Kan(nn.Module):
    def __init__(self, sizes=(64, 96, 96, 10)):
        super().__init__()
        self.layers = nn.ModuleList(KanLayer(i, o) for i, o in zip(sizes, sizes[1:]))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def regularise(self):
        total = 0.0
        for layer in self.layers:
            size = layer.spline.abs().mean(-1)
            p = size / size.sum()
            total = total + size.sum() - torch.sum(p * (p + 1e-6).log())
        return total


class KanTrained(nn.Module):
    def __init__(self):
        super().__init__()
        self.kan = Kan()
        self.norm = nn.BatchNorm1d(64, affine=False)

    def forward(self, x):
        return self.kan(torch.tanh(self.norm(x)))


@case("kan", ["KanLayer"], precisions=["float32", "bfloat16"])
class _:
    make = KanTrained
    batch = staticmethod(lambda device: (torch.randn(2048, 64, device=device), ids(10, 2048, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.cross_entropy(model(x), y)


class VocoderBlock(nn.Module):
    """HiFi-GAN's residual block with normalised weights."""

    def __init__(self, c, dilations=(1, 3, 5)):
        super().__init__()
        self.a = nn.ModuleList(weight_norm(nn.Conv1d(c, c, 3, dilation=d, padding=d)) for d in dilations)
        self.b = nn.ModuleList(weight_norm(nn.Conv1d(c, c, 3, padding=1)) for _ in dilations)

    def forward(self, x):
        for a, b in zip(self.a, self.b):
            x = b(F.leaky_relu(a(F.leaky_relu(x, 0.1)), 0.1)) + x
        return x


class Vocoder(nn.Module):
    def __init__(self, c=64):
        super().__init__()
        self.pre = weight_norm(nn.Conv1d(80, c, 7, padding=3))
        self.ups = nn.ModuleList(weight_norm(nn.ConvTranspose1d(c // 2**i, c // 2 ** (i + 1), 8, 4, 2)) for i in range(2))
        self.blocks = nn.ModuleList(VocoderBlock(c // 2 ** (i + 1)) for i in range(2))
        self.post = weight_norm(nn.Conv1d(c // 4, 1, 7, padding=3))

    def forward(self, x):
        x = self.pre(x)
        for up, block in zip(self.ups, self.blocks):
            x = block(up(F.leaky_relu(x, 0.1)))
        return torch.tanh(self.post(F.leaky_relu(x)))


@case("vocoder", ["VocoderBlock"], precisions=["float32"])
class _:
    make = Vocoder
    batch = staticmethod(lambda device: (torch.randn(8, 80, 64, device=device), torch.randn(8, 1, 1024, device=device)))

    @staticmethod
    def forward(model, mel, audio):
        y = model(mel)
        frames = lambda z: z.squeeze(1).unfold(-1, 64, 16)  # noqa: E731
        return F.l1_loss(y, audio) + (frames(y).norm(dim=-1) - frames(audio).norm(dim=-1)).abs().mean()
