"""The step once more on the virtual device, its backward too: what the real allocator says of it, beside what the rules say.

The module runs by itself, without FSDP, as PyTorch runs it on one card.
"""

from __future__ import annotations

import contextlib
import gc
import json
from typing import Any

import torch

from . import flex
from .fakes import Fakes
from .modules import ModuleStack

ALLOWED = 0.005  # share of a peak: what the rules may be off before it is told


def measure(task, session) -> dict[str, int]:
    """Bytes: state (parameters, buffers, batch), peaks of forward and backward, what forward leaves. Empty if it failed.

    `session`: the one that has recorded the task.
    """
    if session.recorder.known.used:  # on the device itself all values are zeros: it would choose otherwise
        return {}
    figures: dict[str, int] = {}
    stack = ModuleStack(session.structure.names, session.structure.wrappers)
    fakes = Fakes(contextlib.nullcontext(), session.device, session.dtypes_of, session.recorder.known)

    def enter(name, call, args, kwargs):
        return session.lowered(name, (args, kwargs)) if session.casts_at(name) else (args, kwargs)

    stack.on_enter, stack.on_wrapper, stack.on_result = enter, session.cast_at_wrapper, session.cast_result
    original = torch.autograd.backward

    def backward(*args, **kwargs):
        if "forward_end" in figures:  # a step may go on after its first backward; the model is that far
            return original(*args, **kwargs)
        figures["forward_peak"], figures["forward_end"] = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        original(*args, **kwargs)
        figures["backward_peak"] = torch.cuda.max_memory_allocated()

    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # taken again by the first product
    with fakes.inside(task.module):
        batch = fakes.batch(task.batch)
        figures["state"] = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        torch.autograd.backward = backward
        try:
            with flex.fused([]), stack.watch():
                task.step(task.module, *batch)
        except Exception:  # noqa: BLE001 - values are zeros here: a step may fail over them that captures well
            if "backward_peak" not in figures:
                return {}
        finally:
            torch.autograd.backward = original
    return figures


def differences(model) -> list[str]:
    """Whether the rules say something else than the allocator, in a sentence. Nothing without the planning core."""
    if any("cudnn" in str(op.get("kwargs", {}).get("backend", "")) for op in model.document["ops"]):
        model.allocator = {}  # what was run is not what is planned: cuDNN is not played
    if not model.allocator:
        return []
    from ..errors import Error

    try:
        said = _predicted(model.document)
    except (Error, ImportError):
        return []
    real = max(model.allocator["forward_peak"], model.allocator["backward_peak"])
    if abs(said - real) <= ALLOWED * real:
        return []
    return [
        f"the module by itself: the real allocator's peak is {real / 2**20:.1f} MiB, the rules say {said / 2**20:.1f} MiB "
        f"({(said / real - 1) * 100:+.1f} %)"
    ]


class _Alone:
    """The module as one card runs it: parameters in the precision that FSDP casts them to."""

    def __init__(self, document: dict[str, Any]):
        job = document.get("job", {})
        self._document = {k: v for k, v in document.items() if k != "job"}
        for key, name in (("params", "param"), ("buffers", "buffer")):
            low = job.get(f"fsdp.mixed_precision.{name}", "none")
            if low != "none":
                rows = document[key]
                self._document[key] = [{**r, "dtype": low} if "float" in r["dtype"] else r for r in rows]

    def to_json(self) -> str:
        return json.dumps(self._document)


def _predicted(document: dict[str, Any]) -> int:
    """The peak of forward and backward (bytes)."""
    from ..api import simulate

    job = {"fsdp.runtime": "none", "cluster.world_size": 1, "cluster.memory": "1000GiB", "fsdp.mixed_precision.param": "none",
           "fsdp.mixed_precision.reduce": "none", "train.optimizer.name": "sgd"}  # fmt: skip
    first = simulate(_Alone(document), job).document["iterations"][0]
    return max(phase["peak_allocated_bytes"] for phase in first["phases"] if phase["name"] in ("forward", "backward"))
