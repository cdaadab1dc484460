"""Modules for test_virtual, in a module that another process can import."""

from __future__ import annotations

import os
import sys

import torch
import torch.nn.functional as F
from torch import nn


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 1024, bias=False)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x):
        x = x * self.scale.to(x.dtype)
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


class ViewedInPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.b(F.relu(self.a(x), inplace=True))


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x):
        y = self.a(x)
        return y if y.sum().item() > 0 else -y


class Picks(Branches):
    def forward(self, x):
        y = self.a(x)
        return y[y > 0]


class Aborts(Branches):
    def forward(self, x):
        if x.is_cuda and not hasattr(x, "fake_mode"):
            os._exit(7)
        return self.a(x)


class Exits(Branches):
    def forward(self, x):
        if x.is_cuda and not hasattr(x, "fake_mode"):
            sys.exit(0)
        return self.a(x)


class Leaves(Branches):
    def forward(self, x):
        if x.is_cuda and not hasattr(x, "fake_mode"):
            os._exit(0)
        return self.a(x)


class Normalised(nn.Module):
    """weight_norm gives its layers classes that do not travel by themselves."""

    def __init__(self):
        super().__init__()
        self.a = nn.utils.parametrizations.weight_norm(nn.Linear(64, 64))

    def forward(self, x):
        return self.a(x)


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad
