"""Flags of the device that say that all is well. Every value reads as zero, and zero is finite: what isfinite() finds, and all() and any() make
of it, reads as true."""

from __future__ import annotations

import functools
import weakref

FUNCTIONS = ("isfinite", "all", "any")  # of torch that are others' here
_true: dict[int, weakref.ref] = {}


def begin(torch) -> None:
    for name in FUNCTIONS:
        for place in (torch, torch.Tensor):
            setattr(place, name, _marking(torch, getattr(place, name), always=name == "isfinite"))
    for name in ("__bool__", "item"):
        setattr(torch.Tensor, name, _reading(getattr(torch.Tensor, name)))


def _marking(torch, inner, always: bool):
    @functools.wraps(inner)
    def flag(input, *args, **kwargs):
        result = inner(input, *args, **kwargs)
        if isinstance(result, torch.Tensor) and result.is_cuda and (always or _is_true(input)):
            key = id(result)
            _true[key] = weakref.ref(result, lambda _: _true.pop(key, None))
        return result

    return flag


def _reading(inner):
    @functools.wraps(inner)
    def read(self):
        value = inner(self)
        return True if _is_true(self) else value

    return read


def _is_true(tensor) -> bool:
    known = _true.get(id(tensor))
    return known is not None and known() is tensor
