"""How the script shares sequences among ranks (context parallelism), read while its model runs: from the hooks on its attention modules, or from
what context_parallel() has put in attention's place."""

from __future__ import annotations

import functools
import sys
import weakref

from .hooks import after_import
from .notes import note

_RING = "torch.distributed.tensor.experimental._context_parallel._attention"
_ROTATES = {"ALL_TO_ALL": "alltoall", "ALL_GATHER": "allgather"}


_wholes: dict[int, tuple] = {}  # what context_parallel() cuts in place: a weak reference, its shape before


def begin() -> None:
    after_import(_RING, _watch)


def _watch(ring) -> None:
    inner = ring.context_parallel

    @functools.wraps(inner)
    def context_parallel(mesh, *, buffers=None, **options):
        _wholes.update({id(each): (weakref.ref(each), tuple(each.shape)) for each in buffers or ()})
        return inner(mesh, buffers=buffers, **options)

    ring.context_parallel = context_parallel


def whole_shape(tensor) -> tuple:
    """Outside of the context that cuts it."""
    alive, shape = _wholes.get(id(tensor), (lambda: None, ()))
    return shape if alive() is tensor else tuple(tensor.shape)


def found(root) -> dict | None:
    """{"ranks": int, "rotate": "allgather" | "alltoall", "buffers": "whole" | "resized", "balanced": bool}; None: nobody shares."""
    ring = sys.modules.get(_RING)
    if ring is None or root is None:
        return None
    mesh, buffers = _of_modules(root, ring), "whole"
    if mesh is None:
        mesh, buffers = _of_function(ring), "resized"
    if mesh is None or mesh.size() < 2:
        return None
    options = ring._cp_options
    return {"ranks": mesh.size(), "rotate": _ROTATES.get(options.rotate_method.name, "allgather"), "buffers": buffers,
            "balanced": bool(options.enable_load_balance)}  # fmt: skip


def _of_modules(root, ring):
    for module in root.modules():
        for hook in module._forward_pre_hooks.values():
            style = getattr(getattr(hook, "func", None), "__self__", None)
            if not isinstance(hook, functools.partial) or not isinstance(style, ring._ContextParallel):
                continue
            if style.attention_type is ring._ContextParallel.AttentionType.FLEX:
                note("ranks share sequences by FlexAttention, which gathers keys and values whole: not planned")
                return None
            return hook.keywords.get("mesh")
    return None


def _of_function(ring):
    import torch.nn.functional as F
    from torch.distributed.device_mesh import DeviceMesh

    function = F.scaled_dot_product_attention
    if function not in ring._replaced_functions:
        return None
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    return next((each for each in cells if isinstance(each, DeviceMesh)), None)
