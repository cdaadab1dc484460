"""Activation checkpointing inside the module: its regions, by both implementations and by operator.

The regions run once and hold nothing here: what they will keep and recompute follows from their kind and arguments.
"""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any

import torch
import torch.utils.checkpoint as checkpointing
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.utils._pytree import tree_flatten

from .opaque import Place
from .recorder import Recorder
from .values import storage_key


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


class OwnFrames:
    """The running frames of a function, and of what it is decorated with: the code of a decorator is everybody's, so what it calls counts there."""

    def __init__(self, *functions):
        self.codes, self._wrapped = [], []
        for function in functions:
            while (inner := getattr(function, "__wrapped__", None)) is not None:
                self._wrapped.append(inner)
                function = inner
            self.codes += [function.__code__] * hasattr(function, "__code__")

    def has(self, frame) -> bool:
        return frame.f_code in self.codes or any(frame.f_locals.get("func") is inner for inner in self._wrapped)


class _Context:
    """Stands for the `ctx` of a function that runs as a region."""

    def __init__(self, args):
        self.needs_input_grad = tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
        self.saved_tensors: tuple = ()

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors

    def mark_dirty(self, *tensors): ...
    def mark_non_differentiable(self, *tensors): ...
    def mark_shared_storage(self, *pairs): ...
    def set_materialize_grads(self, value): ...

    def holds(self) -> list[torch.Tensor]:
        return [t for t in tree_flatten(list(self.__dict__.values()))[0] if isinstance(t, torch.Tensor)]


@contextlib.contextmanager
def _with_gradients(own: OwnFrames):
    """What a function's own code runs without gradients is run again with them, so the region has them; what is called in it, by its own word."""
    enter, begin, set_ = torch.no_grad.__enter__, torch.set_grad_enabled.__init__, torch.set_grad_enabled.__enter__

    def no_grad_enters(block):
        if not own.has(sys._getframe(1)):
            return enter(block)
        block.prev = torch.is_grad_enabled()  # leaves as it has found it
        return None

    def set_grad_begins(block, mode):
        if not own.has(sys._getframe(1)):
            return begin(block, mode)
        block.prev, block.mode = torch.is_grad_enabled(), mode
        return None

    def set_grad_enters(block):
        return None if own.has(sys._getframe(1)) else set_(block)

    torch.no_grad.__enter__, torch.set_grad_enabled.__init__, torch.set_grad_enabled.__enter__ = no_grad_enters, set_grad_begins, set_grad_enters
    try:
        yield
    finally:
        torch.no_grad.__enter__, torch.set_grad_enabled.__init__, torch.set_grad_enabled.__enter__ = enter, begin, set_


class Hooks:
    """torch.autograd.graph.saved_tensors_hooks of the script's own, save_on_cpu and its like: which of the tensors that an operator saves they take
    to the host. A row says so of its arguments by their places, of its results by -1 - place (`saved_on_host`)."""

    def __init__(self, recorder: Recorder, pack, unpack):
        self._recorder, self._pack, self._unpack = recorder, pack, unpack
        self._hooks: list = []  # of the script, the innermost last
        self._away: dict[int, bool] = {}  # by storage, the latest: brought to memory that lies side by side, or as it lay
        self._row: tuple | None = None  # the latest operator: what it saves is known when the next one comes

    @contextlib.contextmanager
    def watch(self, own):
        cls = torch.autograd.graph.saved_tensors_hooks
        entered, left = cls.__enter__, cls.__exit__

        def enter(hooks):
            if hooks is own or not self._recorder.recording or self._recorder.opaque is not None:
                return entered(hooks)
            self._hooks.append(hooks)
            self._recorder.hooks = self
            torch._C._autograd._push_saved_tensors_default_hooks(self._packed, self._unpack)
            return None

        def leave(hooks, *args):
            if self._hooks and self._hooks[-1] is hooks:
                self._settle()
                self._hooks.pop()
                self._recorder.hooks = self if self._hooks else None
            return left(hooks, *args)

        cls.__enter__, cls.__exit__ = enter, leave
        try:
            yield
        finally:
            cls.__enter__, cls.__exit__ = entered, left

    def _packed(self, tensor):
        if self._recorder.recording and self._recorder.opaque is None and tensor.device.type != "cpu":
            self.goes(tensor)
        return self._pack(tensor)

    def goes(self, tensor: torch.Tensor) -> bool:
        """Whether the hooks take it to the host."""
        with self._recorder.paused(), torch.no_grad():
            kept = [t for t in tree_flatten(self._hooks[-1].pack_hook(tensor))[0] if isinstance(t, torch.Tensor)]
        key = storage_key(tensor)
        away = bool(kept) and all(t.device.type == "cpu" for t in kept)
        if away:
            self._away[key] = kept[0].is_contiguous() and not tensor.is_contiguous()
        else:
            self._away.pop(key, None)
            if any(storage_key(t) != key for t in kept if t.device.type != "cpu"):
                self._recorder.notes.append("hooks on saved tensors (saved_tensors_hooks) keep other tensors on the device than operators save: the plan has what operators save")
        return away

    def note_row(self, row, tensors, results) -> None:
        self._settle()
        places = {i: storage_key(t) for i, t in enumerate(t for t in tensors if t.device.type != "cpu")}
        made = [t for t in results if isinstance(t, torch.Tensor) and t.device.type != "cpu"]
        self._row = (row, places | {-1 - i: storage_key(t) for i, t in enumerate(made)})

    def _settle(self) -> None:
        if self._row is None:
            return
        row, places = self._row
        self._row = None
        away = [place for place, key in places.items() if key in self._away]
        if away:
            row["kwargs"] = row.get("kwargs", {}) | {"saved_on_host": away}
            if any(self._away[places[place]] for place in away):
                row["kwargs"]["saved_contiguous"] = True


class Regions:
    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self.rows: list[dict[str, Any]] = []
        self._on_host: dict[int, list[int]] = {}  # by region, places among its arguments

    def _begin(self, kind: str, function, args, kwargs) -> dict[str, Any]:
        recorder = self._recorder
        function = _wrapped_by_pytorch(function) or function
        module = function if isinstance(function, torch.nn.Module) else getattr(getattr(function, "func", function), "__self__", None)
        name = recorder.modules.name_of(module) if isinstance(module, torch.nn.Module) else None
        inside = name is not None and getattr(module, OUTSIDE, False) and recorder.modules.name() != name
        whole = name is not None and (inside or isinstance(function, torch.nn.Module))
        if inside:
            recorder.enter(name, args)
        elif kind == "reentrant" and not whole and recorder.entered.get(recorder.modules.name()) == (recorder.modules.call(), len(recorder.ops)):
            recorder.begins_before(args)  # its module's hooks are outside of it
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
        if recorder.hooks is not None:  # what the function is called with is saved too
            given = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu"]
            names = {recorder.reference(leaf)[1:]: leaf for leaf in given}
            self._on_host[row["id"]] = [i for i, name in enumerate(references) if name in names and recorder.hooks.goes(names[name])]
        recorder.region = row["id"]
        return row

    def finish(self) -> None:
        """The first operator of each region says what the region is called with that is on the host until it runs again."""
        for op in self._recorder.ops:
            if away := self._on_host.pop(op.get("region"), None):
                op["kwargs"] = op.get("kwargs", {}) | {"region_on_host": away}

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

    def of_function(self, cls, args, kwargs):
        """An autograd.Function that is a checkpoint: forward runs without gradients, backward runs the same again and goes back through it. What it
        keeps is what its `ctx` holds; tensors that it has brought to the host come back when it runs again."""
        recorder = self._recorder
        given = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor) and t.device.type != "cpu"]
        called = next((a for a in args if callable(a) and not isinstance(a, torch.Tensor)), None)
        inside = recorder.region is not None  # of another region, which runs all of it again
        row = None if inside else self._begin("reentrant", called, args, kwargs)
        ctx = _Context(args)
        own_setup = cls.setup_context is not torch.autograd.Function.setup_context
        try:
            with _with_gradients(OwnFrames(cls.forward)):
                out = cls.forward(*args, **kwargs) if own_setup else cls.forward(ctx, *args, **kwargs)
            if own_setup:
                cls.setup_context(ctx, args, out)
        finally:
            if not inside:
                recorder.region = None
        if row is not None:
            self._say_what_is_kept(row, ctx, given)
        return out

    def _say_what_is_kept(self, row, ctx: _Context, given: list[torch.Tensor]) -> None:
        recorder = self._recorder
        held = ctx.holds()
        on_device = {storage_key(t) for t in held if t.device.type != "cpu"}
        shapes = [(t.shape, t.dtype) for t in held if t.device.type == "cpu"]
        away = []
        for tensor in given:
            name = recorder.reference(tensor)[1:]
            if name not in row["args"] or storage_key(tensor) in on_device or (tensor.shape, tensor.dtype) not in shapes:
                continue
            shapes.remove((tensor.shape, tensor.dtype))
            away.append(row["args"].index(name))
        self._on_host[row["id"]] = sorted({*away, *self._on_host.get(row["id"], [])})

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
