"""Rows that a mask on the device chooses, whose values nobody has computed: all of them, the most that it can choose."""

from __future__ import annotations

import functools

from .notes import note


def begin(torch) -> None:
    """x[mask]: every row is chosen, which is the most that it can be."""
    inner = torch.Tensor.__getitem__
    masked = (torch.bool, torch.uint8)

    @functools.wraps(inner)
    def get(tensor, key):
        keys = key if type(key) is tuple else (key,)
        if any(isinstance(k, torch.Tensor) and k.is_cuda and k.dtype in masked for k in keys):
            note("a mask of the device (x[mask]) chooses every row: the most that it can")
            chosen: list = []
            for k in keys:
                if isinstance(k, torch.Tensor) and k.is_cuda and k.dtype in masked:
                    chosen += [torch.zeros(k.numel(), dtype=torch.int64, device=k.device) for _ in range(k.dim())]
                else:
                    chosen.append(k)
            key = tuple(chosen)
        return inner(tensor, key)

    torch.Tensor.__getitem__ = get
    # A type with this method of Python's is a sequence to C, and a tensor of no dimension one without a length.
    for name in ("tensor", "as_tensor"):
        setattr(torch, name, _of_numbers(torch, getattr(torch, name)))


def _of_numbers(torch, inner):
    """`inner` of lists, in which tensors of no dimension are the numbers that they hold."""

    def number(each, seen):
        if isinstance(each, (list, tuple)):
            return [number(inside, seen) for inside in each]
        if isinstance(each, torch.Tensor) and each.dim() == 0:
            seen.append(each)
            return each.item()
        return each

    @functools.wraps(inner)
    def made(data, *args, **kwargs):
        seen: list = []
        plain = number(data, seen) if isinstance(data, (list, tuple)) else data
        if not seen:
            return inner(data, *args, **kwargs)
        if kwargs.get("dtype") is None and not args:
            kwargs["dtype"] = functools.reduce(torch.promote_types, (each.dtype for each in seen))
        return inner(plain, *args, **kwargs)

    return made
