"""Functions that nobody can look into: autograd.Function, and kernels of Triton that are launched by hand."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

from .. import _placed as placed
from .._autograd import python_apply
from .checkpoints import OwnFrames, Regions
from .pitfalls import own_result_note
from .opaque import Opaque
from .recorder import Recorder
from .values import dtype_name, storage_key


def _name_of(cls: type) -> str:
    name = cls.__qualname__.replace("<locals>.", "")
    for prefix in ("GeneratedBackwardFor_",):  # torch.library's way to register autograd: NAMESPACE_NAME_OVERLOAD
        if name.startswith(prefix):
            return name.removeprefix(prefix).removesuffix("_default")
    module = cls.__module__
    return name if module in ("__main__", "builtins") else f"{module}.{name}"


def _to_the_recorder(code: types.CodeType) -> types.CodeType:
    """Takes the place of `code`, whose free variables it must have, too (PyTorch's `__class__`, or those of who has wrapped it)."""
    free = code.co_freevars
    lines = ["def around():", *(f"    {name} = None" for name in free), "    def apply(cls, *args, **kwargs):",
             "        import torch", *(f"        if 0: {name}" for name in free),
             "        return torch.autograd.Function._captured(cls, *args, **kwargs)", "    return apply"]  # fmt: skip
    space: dict[str, Any] = {}
    exec("\n".join(lines), space)  # noqa: S102 - names of the code's own
    return space["around"]().__code__


def _is_plain(cls: type) -> bool:
    """PyTorch's own functions do no work of their own here, but for collectives that have a backward."""
    return cls.__module__.startswith("torch.") and not cls.__module__.startswith(("torch._library", "torch.distributed.nn."))


def _node_of(out: Any) -> Any:
    nodes = (t.grad_fn for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor))
    return next((node for node in nodes if node is not None), None)


_NO_WORK = {"aten.detach.default", "aten.alias.default", "aten.view.default", "aten.clone.default", "aten._to_copy.default", "aten.t.default", "aten.empty.memory_format", "aten.copy_.default"}


def _may_go_back(cls: type) -> bool:
    """Whether a backward calls one: the engine's, or a tensor's."""
    return any("backward" in code.co_names for code in OwnFrames(cls.backward).codes)


def _carried(node: Any) -> list[torch.Tensor]:
    """Tensors that a function keeps as attributes of its `ctx`."""
    kept = tree_flatten(list(getattr(node, "__dict__", {}).values()))[0]
    return [t for t in kept if isinstance(t, torch.Tensor)]


def _of_sum(blocks: list[int], total: int) -> list[int]:
    """The first of these blocks that are no more than `total`, and what is left as one more."""
    taken = []
    for nbytes in blocks:
        if 0 < nbytes <= total:
            taken.append(nbytes)
            total -= nbytes
    return taken + [total] * (total > 0)


_FLOAT8 = "torchao.float8.float8_linear.matmul_with_hp_or_float8_args"
_RECIPES = {  # what x's scales are of, and whether the matrix's gradient is a product in 16 bits
    ("TENSORWISE", False): "tensorwise", ("AXISWISE", False): "rowwise", ("AXISWISE", True): "rowwise_with_gw_hp",
}  # fmt: skip


def _operator_of(cls: type, args: tuple) -> tuple[str, list[torch.Tensor]] | None:
    """The operator that rules know a library's function as, and what that takes: torchao's product in 8 bits of a matrix that is a parameter."""
    if f"{cls.__module__}.{cls.__qualname__}" != _FLOAT8:
        return None
    x, turned, _, config = args
    matrix = turned._base
    if matrix is None or matrix.dim() != 2 or tuple(turned.shape) != tuple(matrix.shape)[::-1] or not turned.is_floating_point():
        return None
    given, wide = config.cast_config_input, config.cast_config_input_for_grad_weight.scaling_type.name == "DISABLED"
    recipe = _RECIPES.get((given.scaling_granularity.name, wide)) if given.scaling_type.name == "DYNAMIC" else None
    return None if recipe is None else (f"torchao.matmul_float8_{recipe}.default", [x, matrix])


class Functions:
    def __init__(self, recorder: Recorder, regions: Regions):
        self.recorder, self._regions = recorder, regions

    @contextlib.contextmanager
    def watch(self):
        function = python_apply(torch.autograd.Function)
        code = function.__code__
        plain = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
        recorder = self.recorder

        def apply(cls, *args, **kwargs):
            what = placed.kind(cls, args) if recorder.recording and recorder.opaque is None else ""
            if what:
                return placed.run(what, self, plain, cls, args, kwargs)
            if not recorder.recording or recorder.opaque is not None or _is_plain(cls):
                return plain(cls, *args, **kwargs)
            known = _operator_of(cls, args)
            counted, lists = recorder.modules.counts(), [(a, list(a)) for a in args if isinstance(a, list)]
            frame = recorder.opaques.begin(_name_of(cls), args)
            try:
                out = plain(cls, *args, **kwargs)
            finally:
                recorder.opaque = None
            if known is not None:
                recorder.opaques.stand_in(*known, out, frame)
                return out
            node = _node_of(out)
            if known is None and self._runs_again(cls, frame, out, node):
                recorder.modules.count_from(counted)
                for changed, was in lists:
                    changed[:] = was
                return self._regions.of_function(cls, args, kwargs)
            carried = _carried(node)
            if {storage_key(t) for t in carried} & {storage_key(t) for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor)}:
                recorder.notes.append(own_result_note(_name_of(cls)))
            recorder.opaques.end(frame, out, carried)
            results = out if isinstance(out, tuple) else (out,)  # backward takes one for each, tensor or not
            with torch.no_grad(), recorder.paused():
                given = [torch.empty_like(t) if isinstance(t, torch.Tensor) and t.grad_fn is not None else None for t in results]
            self.run_backward(frame, results, node, given, lambda gradient: gradient, carried)
            return out

        # Scripts write `scan = Scan.apply`: the function itself goes another way, whoever has it.
        torch.autograd.Function._captured = staticmethod(apply)
        function.__code__ = _to_the_recorder(code)
        with self._triton():
            try:
                yield self
            finally:
                function.__code__ = code
                del torch.autograd.Function._captured

    def _runs_again(self, cls: type, frame: Opaque, out: Any, node: Any) -> bool:
        """Whether its backward runs what forward ran, with gradients, and goes back through that: a checkpoint of the script's own."""
        if node is None or not hasattr(node, "apply") or not _may_go_back(cls):
            return False
        recorder = self.recorder
        with recorder.paused():
            given = [torch.empty_like(t) if isinstance(t, torch.Tensor) and t.grad_fn is not None else None for t in (out if isinstance(out, tuple) else (out,))]
        inside = recorder.opaques.begin_backward("", [t for t in given if t is not None])
        counted, held = recorder.modules.counts(), dict(getattr(node, "__dict__", {}))
        try:
            with torch.no_grad():
                node.apply(*given)
        except Exception:  # noqa: BLE001 - where it goes back it ends; what else it does is told when it is measured
            pass
        finally:
            recorder.opaque = None
            recorder.modules.count_from(counted)
            if held:  # a backward may use up what its ctx has
                node.__dict__.clear()
                node.__dict__.update(held)
        if not inside.goes_back:
            return False
        work = [name for name in frame.ran if name not in _NO_WORK]
        if [name for name in inside.ran if name not in _NO_WORK][-len(work) :] == work:
            return True
        recorder.notes.append(
            f"{frame.name}: its backward runs its forward again in pieces (reversible layers), which is not planned: in the plan it is one operator that keeps "
            "what it saves; units and gradients inside of it are not there; a checkpoint around the layers, or around each, is planned"
        )
        return False

    def run_backward(self, frame: Opaque, results, node: Any, given: list, local, carried: list[torch.Tensor] = []) -> None:  # noqa: B006 - not changed
        """What gradients its backward makes, and what it needs beside them: run once, outside the program. `given`: gradients of the results; `local`:
        what a gradient is on this rank."""
        if node is None or not hasattr(node, "apply"):
            return
        recorder = self.recorder
        with torch.no_grad():
            inside = recorder.opaques.begin_backward(frame.name, [local(t) for t in given if t is not None] + carried)
            try:
                gradients = node.apply(*given)
                gradients = tree_map_only(torch.Tensor, local, gradients)
            except Exception as error:  # noqa: BLE001 - whatever the function does; told, and assumed
                self.recorder.notes.append(
                    f"{frame.name}: its backward failed on tensors without values ({type(error).__name__}: {error}); a "
                    "gradient for every argument is assumed"
                )
                gradients = None
            finally:
                recorder.opaque = None
        if inside.asks:
            recorder.notes.append(
                f"{frame.name}: its backward asks autograd for gradients (torch.autograd.grad), whose memory the plan has not: that of its backward is the least that "
                "it can be; a checkpoint (torch.utils.checkpoint) instead of such a function is planned"
            )
        if inside.meets:
            frame.row["kwargs"] = frame.row.get("kwargs", {}) | {"meets_backward": inside.meets}
        of_tensors = [None if g is None else local(g) for g, t in zip(given, results) if isinstance(t, torch.Tensor)]
        over_given = {storage_key(t): i for i, t in enumerate(of_tensors) if t is not None}
        over_saved = {
            key: frame.places[place]
            for key, place in inside.unpacked.items()
            if place < len(frame.places) and frame.places[place] is not None
        }
        places = {"over_given": over_given, "over_saved": over_saved}
        frame.row["opaque"]["backward"] = self._gradients_of(frame, gradients, places)
        made = {storage_key(t) for t in tree_flatten(gradients)[0] if isinstance(t, torch.Tensor)}
        workspace = inside.peak - sum(nbytes for key, (_, nbytes) in inside.live.items() if key in made)
        if gradients is not None:
            if inside.flops != 2 * frame.flops:  # what a forward has computed ahead, or a backward computes again
                frame.row["opaque"]["backward_flops"] = inside.flops
            blocks = sorted((nbytes for key, nbytes in inside.at_peak.items() if key not in made), reverse=True)
            frame.row["opaque"]["backward"] += [{"shape": [n], "dtype": "uint8"} for n in _of_sum(blocks, workspace)]

    @staticmethod
    def _gradients_of(
        frame: Opaque, gradients: Any, places: dict[str, dict[int, int]]
    ) -> list[dict[str, Any] | None]:
        """One for each tensor argument, in order; backward gives one for every argument. `places`: whose storage it may be."""
        if gradients is None:
            return [{"shape": shape, "dtype": dtype} if wanted else None for _, shape, dtype, wanted in frame.arguments]
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        out = []
        for position, _, _, _ in frame.arguments:
            g = gradients[position] if position < len(gradients) else None
            if g is None:
                out.append(None)
                continue
            over = {word: there[storage_key(g)] for word, there in places.items() if storage_key(g) in there}
            out.append({"shape": list(g.shape), "dtype": dtype_name(g.dtype), **over})
        return out

    @contextlib.contextmanager
    def _triton(self):
        jit = getattr(sys.modules.get("triton.runtime.jit"), "JITFunction", None)
        if jit is None:
            yield
            return
        original, recorder = jit.run, self.recorder

        def run(kernel, *args, **kwargs):
            """No kernel runs; what it is given it may have changed."""
            if not recorder.recording:
                return None
            if recorder.opaque is None:
                tensors = [a for a in tree_flatten((args, kwargs))[0] if isinstance(a, torch.Tensor)]
                name = getattr(getattr(kernel, "fn", kernel), "__qualname__", "kernel")
                frame = recorder.opaques.begin(f"triton.{name}", tensors)
                recorder.opaques.end(frame, ())
            return None

        jit.run = run
        try:
            yield
        finally:
            jit.run = original
