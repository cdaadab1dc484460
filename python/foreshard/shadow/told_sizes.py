"""Sizes that a model's code is told are those of one tensor rank, where it was written for that (heads divided when the model is made). The model
that is captured is whole: what would not fit there is as many times larger as there are ranks, in its outermost part, as ranks cut it."""

from __future__ import annotations

import contextlib
import math

_PARTS = 3  # of a fused projection: queries, keys and values


def whole(ranks: int):
    """While a whole model runs."""
    return contextlib.nullcontext() if ranks < 2 else _mode(ranks)


def _mode(ranks: int):
    import torch
    from torch.overrides import TorchFunctionMode

    changes = {
        torch.Tensor.view: _viewed, torch.Tensor.reshape: _viewed, torch.reshape: _viewed, torch.Tensor.unflatten: _unflattened, torch.unflatten: _unflattened,
        torch.Tensor.expand: _expanded, torch.Tensor.split: _split, torch.split: _split, torch.Tensor.split_with_sizes: _split,
    }  # fmt: skip

    class Whole(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            change = changes.get(function)
            if change is _split and len(args) == 2:
                args, kwargs = (*args, (kwargs or {}).get("dim", 0)), {}
            if change is not None and len(args) > 1:
                args = change(args[0], ranks, *args[1:])
            return function(*args, **(kwargs or {}))

    return Whole()


def _numbers(sizes) -> list | None:
    """Of view(2, 3) and view((2, 3)); None: a dtype, symbols."""
    flat = list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else list(sizes)
    return flat if all(type(each) is int for each in flat) else None


def _times(sizes: list, shape, ranks: int) -> list:
    """The first size that is not the tensor's own; of [queries, keys and values, heads, width] the heads."""
    at = next((i for i, (size, own) in enumerate(zip(sizes, shape)) if size != own), len(shape))
    at += len(sizes) - at > 2 and sizes[at] == _PARTS and sizes[at + 1] != _PARTS
    return [size * ranks if i == min(at, len(sizes) - 1) else size for i, size in enumerate(sizes)]


def _viewed(tensor, ranks, *sizes):
    told = _numbers(sizes)
    if told is None or -1 in told or math.prod(told) * ranks != tensor.numel():
        return (tensor, *sizes)
    return tensor, _times(told, tensor.shape, ranks)


def _unflattened(tensor, ranks, dim, sizes, *rest):
    told = _numbers([sizes])
    if type(dim) is not int or told is None or -1 in told or math.prod(told) * ranks != tensor.shape[dim]:
        return (tensor, dim, sizes, *rest)
    return (tensor, dim, [told[0] * ranks, *told[1:]], *rest)


def _expanded(tensor, ranks, *sizes):
    told = _numbers(sizes)
    lead = 0 if told is None else len(told) - tensor.dim()
    if told is None or lead < 0:
        return (tensor, *sizes)
    own = [1] * lead + list(tensor.shape)
    return tensor, [size * ranks if here != 1 and here == size * ranks else size for size, here in zip(told, own)]


def _split(tensor, ranks, sizes, dim=0, *rest):
    told = _numbers([sizes]) if isinstance(sizes, (tuple, list)) else None
    if told is None or type(dim) is not int or sum(told) * ranks != tensor.shape[dim]:
        return (tensor, sizes, dim, *rest)
    return (tensor, [size * ranks for size in told], dim, *rest)
