"""What operators give whose results hang on values, where these are known (known.py)."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from .known import KnownValues
from .values import tensors_of

HOST_READS = ("aten._local_scalar_dense.default", "aten.equal.default", "aten.is_nonzero.default")
TO_HOST = {"aten._to_copy.default", "aten.copy_.default"}


def answer(func, args, kwargs, computed: Any, known: KnownValues, device: torch.device) -> tuple[bool, Any]:
    """(True, result) of what the host reads, of a copy to it, of sizes; (False, None): the device runs it.

    computed: what the operator gives on the host (`KnownValues.compute`), None where that is not known.
    """
    name = str(func)
    if computed is not None and name in HOST_READS:
        return True, computed
    if computed is not None and name in TO_HOST and _goes_to_host(name, args, kwargs):
        return True, args[0] if name == "aten.copy_.default" else computed
    if name == "aten._grouped_mm.default" and args[0].dtype != torch.bfloat16 and isinstance(args[0], FakeTensor):
        return True, _grouped(*args, **kwargs)
    if torch.Tag.dynamic_output_shape not in func.tags:
        return False, None
    if computed is None:
        out = _chosen(func, name, args, known, device)
        return out is not None, out
    return True, tree_map(lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device), computed)


def unpinned(func, args, kwargs):
    """The same on pageable memory: fake tensors know no other, and the device sees nothing of it. Pinning is a copy on the host."""
    if str(func) == "aten._pin_memory.default":
        return torch.ops.aten.clone.default, args[:1], {}
    return func, args, {name: value for name, value in kwargs.items() if name != "pin_memory"}


def _chosen(func, name: str, args, known: KnownValues, device: torch.device) -> torch.Tensor | None:
    """What masks choose, of which it is known, or guessed, how much that is."""
    if name == "aten.nonzero.default":
        count = known.places_of(args[0])
        return None if count is None else torch.empty(args[0].dim(), count, dtype=torch.int64, device=device).t()
    if name == "aten.masked_select.default":
        count = known.places_of(args[1].expand(torch.broadcast_shapes(args[0].shape, args[1].shape)))
        return None if count is None else args[0].new_empty(count)
    if name != "aten.index.Tensor":
        return None
    places: list[torch.Tensor | None] = []
    for index in args[1]:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            places.append(index)
            continue
        if (count := known.places_of(index)) is None:
            return None
        places += [torch.empty(count, dtype=torch.int64, device=device) for _ in range(index.dim())]
    return func(args[0], places)


def _grouped(rows, matrices, ends=None, bias=None, out_dtype=None):
    """A product by groups in another dtype than bfloat16: CUDA has it, fake tensors do not know it. Rows of the result begin at 16 bytes."""
    sizes = [rows.shape[-2], matrices.shape[-1]]
    if rows.dim() == matrices.dim():
        sizes.insert(0, ends.shape[0] if rows.dim() == 2 else rows.shape[0])
    dtype = out_dtype or rows.dtype
    each = 16 // dtype.itemsize
    apart = (sizes[-1] + each - 1) // each * each
    return rows.new_empty_strided(sizes, [sizes[-2] * apart, apart, 1][-len(sizes) :], dtype=dtype)


def _goes_to_host(name: str, args, kwargs) -> bool:
    if name == "aten.copy_.default":
        return type(args[0]) is torch.Tensor and args[0].device.type == "cpu" and args[1].device.type != "cpu"
    return torch.device(kwargs.get("device") or "cuda").type == "cpu" and args[0].device.type != "cpu"


@contextlib.contextmanager
def asked_by_libraries(known: KnownValues):
    """Transformers asks whether a tensor is fake, to leave alone what would hang on its values (a mask that masks nothing goes): one whose
    values are known is like any other."""
    module = sys.modules.get("transformers.utils.import_utils")
    inner = getattr(module, "is_fake_tensor", None)
    if inner is None:
        yield
        return
    module.is_fake_tensor = lambda tensor: inner(tensor) and known.of(tensor) is None
    try:
        yield
    finally:
        module.is_fake_tensor = inner


def hangs_on_values(func, name: str, args, kwargs) -> bool:
    """Whether the host would have to know what a card has computed: fake tensors refuse by themselves, a card answers."""
    if not any(t.device.type == "cuda" for t in tensors_of((args, kwargs))):
        return False
    if name in HOST_READS:
        return True
    if torch.Tag.dynamic_output_shape not in func.tags or name == "aten._ctc_loss.default":  # whose lengths are lists
        return False
    if name == "aten.index.Tensor":  # by masks alone
        return any(t.dtype in (torch.bool, torch.uint8) for t in tensors_of(args[1]))
    return kwargs.get("output_size") is None
