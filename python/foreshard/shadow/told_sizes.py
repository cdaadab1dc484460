"""Sizes that a model's code is told are those of one tensor rank, where it was written for that (heads divided when the model is made). The model
that is captured is whole: what would not fit there is as many times larger as there are ranks, in the part that ranks cut (heads, not the parts of a
fused projection around them)."""

from __future__ import annotations

import contextlib
import math

from .notes import note


def whole(ranks: int):
    """While a whole model runs."""
    return contextlib.nullcontext() if ranks < 2 else _mode(ranks)


def _mode(ranks: int):
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils.weak import WeakIdKeyDictionary

    changes = {
        torch.Tensor.view: _viewed, torch.Tensor.reshape: _viewed, torch.reshape: _viewed, torch.Tensor.unflatten: _unflattened, torch.unflatten: _unflattened,
        torch.Tensor.expand: _expanded, torch.Tensor.split: _split, torch.split: _split, torch.Tensor.split_with_sizes: _split,
    }  # fmt: skip

    class Whole(TorchFunctionMode):
        made = WeakIdKeyDictionary()  # result of a layer -> how many it holds that are as wide as what the layer reads

        def __torch_function__(self, function, types, args=(), kwargs=None):
            change = changes.get(function)
            if change is _split and len(args) == 2:
                args, kwargs = (*args, (kwargs or {}).get("dim", 0)), {}
            if change is not None and len(args) > 1:
                args = change(args[0], ranks, self.made.get(args[0]), *args[1:])
            result = function(*args, **(kwargs or {}))
            width = args[0].shape[-1] if function is torch._C._nn.linear and args else 0  # F.linear, which capture stands in for
            if width and result.shape[-1] % width == 0:
                self.made[result] = result.shape[-1] // width
            return result

    return Whole()


def _numbers(sizes) -> list | None:
    """Of view(2, 3) and view((2, 3)); None: a dtype, symbols."""
    flat = list(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else list(sizes)
    return flat if all(type(each) is int for each in flat) else None


def _whole_sizes(sizes, own, ranks: int, parts) -> list | None:
    """`sizes` of a rank's in place of those that the whole tensor has, for the whole model; None: they fit, or are no such ones. What changes is the
    outermost size of the dimensions that differ. [parts, heads, width] of a projection of so many `parts` are as many parts on every rank: there it is
    the heads. Where `parts` are not known, that is said."""
    told = _numbers(sizes)
    if told is None or min(told, default=0) < 1 or math.prod(told) * ranks != math.prod(own):
        return None
    at = _ahead(told, own)
    if len(told) - at - _behind(told[at + 1 :], own) > 2:
        if parts is None:
            note(f"sizes {told} of a tensor rank, where the model has {list(own)}: {told[at]} is taken for its heads, not for parts of a fused projection")
        elif told[at] == parts > 1:
            at += 1
    return [size * ranks if i == at else size for i, size in enumerate(told)]


def _ahead(told: list, own) -> int:
    """How many sizes stand for as many elements as the first dimensions of the tensor do: of all such dimensions the fewest sizes."""
    ahead = {}
    for i in range(len(told)):
        ahead.setdefault(math.prod(told[:i]), i)
    return next(ahead[math.prod(own[:j])] for j in reversed(range(len(own))) if math.prod(own[:j]) in ahead)


def _behind(told: list, own) -> int:
    """How many of the last dimensions stay as they are."""
    return next((i for i, (size, has) in enumerate(zip(reversed(told), reversed(own))) if size != has), min(len(told), len(own)))


def _viewed(tensor, ranks, parts, *sizes):
    whole_ones = _whole_sizes(sizes, tensor.shape, ranks, parts)
    return (tensor, *sizes) if whole_ones is None else (tensor, whole_ones)


def _unflattened(tensor, ranks, parts, dim, sizes, *rest):
    whole_ones = _whole_sizes([sizes], tensor.shape[dim : dim + 1 or None], ranks, parts) if type(dim) is int else None
    return (tensor, dim, sizes if whole_ones is None else whole_ones, *rest)


def _expanded(tensor, ranks, parts, *sizes):
    told = _numbers(sizes)
    lead = 0 if told is None else len(told) - tensor.dim()
    if told is None or lead < 0:
        return (tensor, *sizes)
    own = [1] * lead + list(tensor.shape)
    return tensor, [size * ranks if here != 1 and here == size * ranks else size for size, here in zip(told, own)]


def _split(tensor, ranks, parts, sizes, dim=0, *rest):
    told = _numbers([sizes]) if isinstance(sizes, (tuple, list)) else None
    if told is None or type(dim) is not int or sum(told) * ranks != tensor.shape[dim]:
        return (tensor, sizes, dim, *rest)
    return (tensor, [size * ranks for size in told], dim, *rest)
