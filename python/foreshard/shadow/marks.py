"""Lines in the device's log that say for which unit FSDP gathers, reduces and frees: `gather layers.3`, `end gather layers.3`."""

from __future__ import annotations

import functools

from . import device, names
from .hooks import after_import


def begin() -> None:
    after_import("torch.distributed.fsdp._fully_shard._fsdp_param_group", _fsdp2)
    after_import("torch.distributed.fsdp._runtime_utils", _fsdp1)


def _between(inner, word, name_of):
    @functools.wraps(inner)
    def marked(*args, **kwargs):
        name = name_of(args)
        device.mark(f"{word} {name}")
        try:
            return inner(*args, **kwargs)
        finally:
            device.mark(f"end {word} {name}")

    return marked


def _fsdp2(module) -> None:
    group = module.FSDPParamGroup

    def name_of(args):
        return names.fsdp2_name(args[0]) or "(root)"

    for method, word in {"unshard": "gather", "wait_for_unshard": "wait", "post_backward": "reduce", "reshard": "free"}.items():
        setattr(group, method, _between(getattr(group, method), word, name_of))


def _fsdp1(module) -> None:
    def name_of(args):
        # A prefetch hands the state of one unit and the handle of another: whose parameters they are counts.
        handles = [each for each in args if hasattr(each, "flat_param")] or [getattr(each, "_handle", None) for each in args]
        return next((names.fsdp1_name(handle) or "(root)" for handle in handles if handle is not None), "(root)")

    for function, word in {"_unshard": "gather", "_post_backward_hook": "reduce", "_reshard": "free"}.items():
        setattr(module, function, _between(getattr(module, function), word, name_of))
