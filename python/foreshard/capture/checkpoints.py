"""Activation checkpointing inside the module: its regions, by both implementations and by operator.

The regions run once and hold nothing here: what they will keep and recompute follows from their kind and arguments.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.utils.checkpoint as checkpointing
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.utils._pytree import tree_flatten

from .opaque import Place
from .recorder import Recorder


OUTSIDE = "_hooks_outside"  # of a module whose unit wraps it: what its `__call__` runs again has none of the unit's hooks
_STOOD_FOR = ("_checkpoint_without_reentrant_generator", "_checkpoint_without_reentrant_generator_impl", "CheckpointFunction")  # the second since 2.15
_COLLECTIVES = ("all_gather_into_tensor", "all_reduce", "all_to_all_single", "reduce_scatter_tensor")  # what parallel styles bring in


def _keeps(answer) -> bool:
    return answer is True or answer in (checkpointing.CheckpointPolicy.MUST_SAVE, checkpointing.CheckpointPolicy.PREFER_SAVE)


def _keeps_collective(policy, context, name, args) -> bool:
    """Whether a policy would keep what this collective makes: no such call was met, the model ran whole."""
    collective = getattr(getattr(torch.ops, "_c10d_functional", None), name, None)
    if collective is None:
        return False
    given = [leaf for leaf in tree_flatten(args)[0] if isinstance(leaf, torch.Tensor)][:1]
    try:
        return _keeps(policy(context, collective.default, *given))
    except Exception:  # it looks at arguments that there are not
        return False


def _wrapped_by_pytorch(function) -> torch.nn.Module | None:
    """The module that CheckpointWrapper runs: as it is, or by a function of its own where the implementation is reentrant."""
    cells = dict(zip(getattr(getattr(function, "__code__", None), "co_freevars", ()), getattr(function, "__closure__", None) or ()))
    owner = cells["self"].cell_contents if "self" in cells else None
    return owner._checkpoint_wrapped_module if isinstance(owner, CheckpointWrapper) else None


class Regions:
    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self.rows: list[dict[str, Any]] = []

    def _begin(self, kind: str, function, args, kwargs) -> dict[str, Any]:
        recorder = self._recorder
        function = _wrapped_by_pytorch(function) or function
        module = function if isinstance(function, torch.nn.Module) else getattr(getattr(function, "func", function), "__self__", None)
        name = recorder.modules.name_of(module) if isinstance(module, torch.nn.Module) else None
        inside = name is not None and getattr(module, OUTSIDE, False) and recorder.modules.name() != name
        whole = name is not None and (inside or isinstance(function, torch.nn.Module))
        if inside:
            recorder.enter(name, args)
        references = []
        for leaf in tree_flatten((args, kwargs))[0]:
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu":
                reference = recorder.reference(leaf)
                if reference.startswith("%") and reference[1:] not in references:
                    references.append(reference[1:])
        row = {
            "id": len(self.rows),
            "kind": kind,
            "module": name if whole else recorder.modules.name(),
            "call": recorder.modules.next_call(name) if whole else recorder.modules.call(),
            "args": references,
        }
        self.rows.append(row)
        recorder.region = row["id"]
        return row

    @contextlib.contextmanager
    def watch(self):
        originals = {name: getattr(checkpointing, name) for name in _STOOD_FOR if hasattr(checkpointing, name)}

        def non_reentrant(function, preserve, context_fn, *rest, **kwargs):
            # (determinism_check, debug[, early_stop], *args): the number before the arguments hangs on the version.
            count = originals["_checkpoint_without_reentrant_generator"].__code__.co_argcount - 3
            args = rest[count:]
            yield from since_2_15(function, args, kwargs, context_fn=context_fn, early_stop=count < 3 or bool(rest[2]))

        def since_2_15(function, args, kwargs, *, context_fn=checkpointing.noop_context_fn, early_stop=True, **_):
            early = getattr(checkpointing, "_enable_checkpoint_early_stop", None)
            if not self._recorder.recording or self._recorder.region is not None:
                yield
                return
            yield from self._non_reentrant(function, context_fn, args, kwargs, early_stop if early is None else early)

        class Reentrant:
            @staticmethod
            def apply(function, preserve, *args):
                if not self._recorder.recording or self._recorder.region is not None:
                    return function(*args)
                self._begin("reentrant", function, args, {})
                try:
                    return function(*args)
                finally:
                    self._recorder.region = None

        for name, stand_in in zip(_STOOD_FOR, (non_reentrant, since_2_15, Reentrant)):
            if name in originals:
                setattr(checkpointing, name, stand_in)
        try:
            yield self
        finally:
            for name, original in originals.items():
                setattr(checkpointing, name, original)

    def _non_reentrant(self, function, context_fn, args, kwargs, early):
        forward_context, _ = context_fn()
        policy = getattr(forward_context, "policy_fn", None)
        row = self._begin("nonreentrant" if policy is None else "ops", function, args, kwargs)
        if not early:
            row["early_stop"] = False
        if policy is None:
            with forward_context:
                yield
        else:
            keep = row["save"] = []
            context = checkpointing.SelectiveCheckpointContext(is_recompute=False)

            def decide(func, fargs, fkwargs, index):
                if func in checkpointing.SAC_IGNORED_OPS:
                    return
                if _keeps(policy(context, func, *fargs, **fkwargs)):
                    keep.append(index)
                    if isinstance(index, Place):
                        index.kept = True

            self._recorder.on_operator.append(decide)
            try:
                yield
            finally:
                self._recorder.on_operator.remove(decide)
                collectives = [name for name in _COLLECTIVES if _keeps_collective(policy, context, name, args)]
                if collectives:
                    row["save_collectives"] = [f"_c10d_functional.{name}" for name in collectives]
                rows = [place.row if isinstance(place, Place) else place for place in keep]
                keep[:] = list(dict.fromkeys(number for number in rows if number is not None))
        self._recorder.region = None
