"""Encoder-decoder, DLRM, contrastive two towers, custom autograd, no_grad parts, modules called several times."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from . import case, ids


# ----------------------------------------------------------------------------------------------- encoder, decoder


class EncoderDecoder(nn.Module):
    """nn.Transformer as the tutorials use it."""

    def __init__(self, v=1000, d=128):
        super().__init__()
        self.source, self.target = nn.Embedding(v, d), nn.Embedding(v, d)
        self.body = nn.Transformer(d, 4, 2, 2, 4 * d, dropout=0.1, batch_first=True)
        self.head = nn.Linear(d, v)

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1], device=tgt.device)
        padding = src == 0
        out = self.body(
            self.source(src), self.target(tgt), tgt_mask=mask.to(self.head.weight.dtype), src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )  # fmt: skip
        return self.head(out)


@case("encoder_decoder", ["TransformerEncoderLayer", "TransformerDecoderLayer"], strict=False)
class _:
    make = EncoderDecoder
    batch = staticmethod(lambda device: (ids(1000, 32, 48, device=device), ids(1000, 32, 65, device=device)))

    @staticmethod
    def forward(model, src, tgt):
        logits = model(src, tgt[:, :-1])
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), tgt[:, 1:].reshape(-1), ignore_index=0)


# ---------------------------------------------------------------------------------------------------------- DLRM


class Dlrm(nn.Module):
    def __init__(self, tables=6, rows=5000, d=32):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, d, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, d), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(pairs + d, 128), nn.ReLU(), nn.Linear(128, 1))
        self.register_buffer("places", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)

    def forward(self, dense, sparse):
        x = self.bottom(dense)
        parts = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        z = torch.stack([x, *parts], dim=1)
        inter = torch.bmm(z, z.transpose(1, 2))
        flat = inter[:, self.places[0], self.places[1]]
        return self.top(torch.cat([x, flat], dim=1)).squeeze(1)


@case("dlrm", ["EmbeddingBag"], precisions=["float32"])
class _:
    make = Dlrm
    batch = staticmethod(
        lambda device: (
            torch.randn(4096, 13, device=device),
            ids(5000, 4096, 6, 4, device=device),
            torch.rand(4096, device=device),
        )
    )

    @staticmethod
    def forward(model, dense, sparse, y):
        return F.binary_cross_entropy(torch.sigmoid(model(dense, sparse)), y)


# --------------------------------------------------------------------------------------------------- contrastive


class Tower(nn.Module):
    def __init__(self, a, d):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(a, d), nn.ReLU(), nn.LayerNorm(d), nn.Linear(d, d))

    def forward(self, x):
        return F.normalize(self.body(x), dim=-1)


class TwoTowers(nn.Module):
    """One tower called twice for two views, one for the text, a learned temperature."""

    def __init__(self):
        super().__init__()
        self.image, self.text = Tower(1024, 256), Tower(512, 256)
        self.logit_scale = nn.Parameter(torch.tensor([2.6]))

    def forward(self, a, b, text):
        x = (self.image(a) + self.image(b)) * 0.5
        return self.logit_scale.exp() * x @ self.text(text).t()


@case("two_towers", ["Tower"])
class _:
    make = TwoTowers
    batch = staticmethod(
        lambda device: (
            torch.randn(4096, 1024, device=device),
            torch.randn(4096, 1024, device=device),
            torch.randn(4096, 512, device=device),
        )
    )

    @staticmethod
    def forward(model, a, b, text):
        logits = model(a, b, text)
        labels = torch.arange(logits.shape[0], device=logits.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


# ----------------------------------------------------------------------------------------------- custom autograd


class SquaredRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clamp(min=0)
        ctx.save_for_backward(y)
        return y * y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return 2 * y * g


class CustomBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.down(SquaredRelu.apply(self.up(self.norm(x))))


class CustomNet(nn.Module):
    """An autograd.Function in every block, and a teacher under no_grad (shared weights, no gradient)."""

    def __init__(self, d=256, layers=4):
        super().__init__()
        self.blocks = nn.ModuleList(CustomBlock(d) for _ in range(layers))
        self.head = nn.Linear(d, d)

    def forward(self, x):
        with torch.no_grad():
            target = self.head(x).detach()
        for block in self.blocks:
            x = block(x)
        return self.head(x), target


@case("custom_autograd", ["CustomBlock"])
class _:
    make = CustomNet
    batch = staticmethod(lambda device: (torch.randn(8192, 256, device=device),))

    @staticmethod
    def forward(model, x):
        out, target = model(x)
        return (out - target).pow(2).mean()


# ------------------------------------------------------------------------------- products inside functions of one's own


class RoundedProduct(torch.autograd.Function):
    """A linear layer whose matrix is three values (BitNet's), made where they are used."""

    @staticmethod
    def rounded(w):
        scale = w.abs().mean()
        return (w / scale).round().clamp(-1, 1) * scale

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x.flatten(0, -2) @ RoundedProduct.rounded(w).t()).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        g, x_rows = g.flatten(0, -2), x.flatten(0, -2)
        return (g @ RoundedProduct.rounded(w)).view_as(x), g.t() @ x_rows


class OwnGelu(torch.autograd.Function):
    """By tanh, of operators that a list of selective checkpointing may name."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        inner = 0.79788456 * x * (1 + 0.044715 * x * x)
        return x * 0.5 * (1 + torch.tanh(inner))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        t = torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.79788456 * (1 + 3 * 0.044715 * x * x))


class RoundedLinear(nn.Module):
    def __init__(self, wide, narrow):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(wide, narrow))

    def forward(self, x):
        return RoundedProduct.apply(x, self.weight)


class RoundedBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), RoundedLinear(4 * d, d), RoundedLinear(d, 4 * d)

    def forward(self, x):
        return x + self.down(OwnGelu.apply(self.up(self.norm(x))))


class RoundedNet(nn.Module):
    def __init__(self, d=256, layers=4):
        super().__init__()
        self.blocks = nn.ModuleList(RoundedBlock(d) for _ in range(layers))
        self.head = nn.Linear(d, d)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@case("rounded_products", ["RoundedBlock"])
class _:
    make = RoundedNet
    batch = staticmethod(lambda device: (torch.randn(4, 1024, 256, device=device),))

    @staticmethod
    def forward(model, x):
        return model(x).pow(2).mean()
