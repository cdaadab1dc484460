"""Rows that a mask on the device chooses: those that it says where its values are known, else all of them, the most that it can choose."""

from __future__ import annotations

import functools

from ..notes import note
from . import values

NOTE = "a mask of the device (x[mask], nonzero, where, masked_select) chooses every row: the most that it can"
FUNCTIONS = ("where", "nonzero", "argwhere", "masked_select", "tensor", "as_tensor")  # of torch that are others' here


def begin(torch) -> None:
    _indices(torch)
    _places(torch)
    _selections(torch)


def _indices(torch) -> None:
    """x[mask], and x[mask] = rows"""
    inner, put = torch.Tensor.__getitem__, torch.Tensor.__setitem__
    masked = (torch.bool, torch.uint8)

    def is_mask(k):
        return isinstance(k, torch.Tensor) and k.is_cuda and k.dtype in masked

    def places(keys, rows_of):
        chosen: list = []
        for k in keys:
            if (mask := values.mask(k)) is not None and mask.dtype in masked:
                chosen += _columns(torch, mask, k.device)
            elif is_mask(k):
                chosen += [torch.zeros(rows_of(k), dtype=torch.int64, device=k.device) for _ in range(k.dim())]
            else:
                chosen.append(k)
        return tuple(chosen)

    def every_row(mask):
        note(NOTE)
        return mask.numel()

    @functools.wraps(inner)
    def get(tensor, key):
        keys = key if type(key) is tuple else (key,)
        return inner(tensor, places(keys, every_row) if any(map(is_mask, keys)) else key)

    @functools.wraps(put)
    def set_(tensor, key, value):
        keys = key if type(key) is tuple else (key,)
        if not any(map(is_mask, keys)) or not isinstance(value, torch.Tensor) or value.numel() == 1:  # one value goes where the mask says
            return put(tensor, key, value)

        def given_rows(mask):
            """As many as there are to be put there."""
            behind = tensor.dim() - mask.dim()
            return value.shape[0] if len(keys) == 1 and value.dim() == behind + 1 else every_row(mask)

        return put(tensor, places(keys, given_rows), value)

    torch.Tensor.__getitem__, torch.Tensor.__setitem__ = get, set_
    # A type with this method of Python's is a sequence to C, and a tensor of no dimension one without a length.
    for name in ("tensor", "as_tensor"):
        setattr(torch, name, _of_numbers(torch, getattr(torch, name)))


def _places(torch) -> None:
    """Where a tensor is not zero: nonzero, argwhere, where(condition)."""

    count = torch.nonzero

    def rows(tensor):
        if (mask := values.mask(tensor)) is not None:
            _waits(torch, count, tensor)
            return _known(torch, mask, tensor.device)
        note(NOTE)
        _waits(torch, count, tensor)
        return torch.zeros(tensor.dim(), tensor.numel(), dtype=torch.int64, device=tensor.device).t()  # as CUDA's lie

    def columns(tensor):
        return rows(tensor if tensor.dim() else tensor.unsqueeze(0)).unbind(1)

    def nonzero(inner):
        @functools.wraps(inner)
        def found(input, *, as_tuple=False, **more):
            if more or not _is_of_device(torch, input):
                return inner(input, as_tuple=as_tuple, **more)
            return columns(input) if as_tuple else rows(input)

        return found

    def argwhere(inner):
        @functools.wraps(inner)
        def found(input):
            return rows(input) if _is_of_device(torch, input) else inner(input)

        return found

    where = torch.where

    @functools.wraps(where)
    def chosen(*args, **kwargs):
        condition = args[0] if args else kwargs.get("condition")
        if len(args) + len(kwargs) == 1 and _is_of_device(torch, condition):
            return columns(condition)
        return where(*args, **kwargs)

    torch.where = chosen
    for place in (torch, torch.Tensor):
        place.nonzero, place.argwhere = nonzero(place.nonzero), argwhere(place.argwhere)


def _selections(torch) -> None:
    """masked_select(): its places lie on the device beside what they choose; its backward needs the mask and fills zeros."""

    def selected(inner):
        @functools.wraps(inner)
        def select(input, mask, **more):
            if more or not _is_of_device(torch, input) or not _is_of_device(torch, mask):
                return inner(input, mask, **more)
            shape = torch.broadcast_shapes(input.shape, mask.shape)
            if (known := values.mask(mask)) is not None:
                _waits(torch, inner, input, mask)
                return input.expand(shape)[_columns(torch, known.expand(shape), mask.device)]
            note(NOTE)
            _waits(torch, inner, input, mask)
            places = torch.zeros(len(shape), shape.numel(), dtype=torch.int64, device=mask.device)
            chosen = torch.masked_fill(input, mask, 0).reshape(-1)
            del places
            return chosen

        return select

    for place in (torch, torch.Tensor):
        place.masked_select = selected(place.masked_select)


def _places_in(torch, mask):
    """Where a mask whose values are known has chosen, on the host."""
    with values.aside():
        return torch._C._VariableFunctions.nonzero(mask)


def _known(torch, mask, device):
    places = _places_in(torch, mask)
    made = torch.zeros(places.shape[::-1], dtype=torch.int64, device=device).t()  # as CUDA's lie
    values.give_places(made, places, mask)
    return made


def _columns(torch, mask, device) -> tuple:
    return _known(torch, mask, device).unbind(1)


def _waits(torch, count, *given) -> None:
    """The host waits for the device to count, as on a card; what came of it (no rows) goes, and no step of the script's is made of it."""
    if all(type(each) in (torch.Tensor, torch.nn.Parameter) for each in given):  # else nothing is run: the model is written down
        with torch._C.DisableTorchFunction(), torch.no_grad():
            count(*given)


def _is_of_device(torch, tensor) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.is_cuda and not hasattr(tensor, "device_mesh")


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
            return values.of_numbers(inner(data, *args, **kwargs), lambda dtype: inner(data, dtype=dtype))
        if kwargs.get("dtype") is None and not args:
            kwargs["dtype"] = functools.reduce(torch.promote_types, (each.dtype for each in seen))
        return inner(plain, *args, **kwargs)

    return made
