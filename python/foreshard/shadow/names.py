"""What units and modules are called in a plan, whatever PyTorch has wrapped around them."""

from __future__ import annotations

import sys

_names1: dict[int, str] = {}  # FSDP1: id of a flat parameter's handle -> name


def clean(name: str) -> str:
    """A unit's name without the wrappers that a plan does not have."""
    parts = (part for part in (name or "").split(".") if part not in ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"))
    return ".".join(parts)


def name_handle(handle, name: str) -> None:
    _names1[id(handle)] = name


def fsdp1_name(handle) -> str:
    return _names1.get(id(handle), "")


def class_of(module) -> type:
    """The module's class as written: fully_shard puts one of its own in front."""
    kind = type(module)
    if kind.__name__.startswith("FSDP") and "torch.distributed.fsdp" in sys.modules:
        from torch.distributed.fsdp import FSDPModule

        if issubclass(kind, FSDPModule):
            return kind.__mro__[2]
    return kind
