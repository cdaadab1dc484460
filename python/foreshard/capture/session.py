"""One step of training under the recorder."""

from __future__ import annotations

import contextlib
import gc
import inspect
import logging
import warnings
from typing import Any, Callable

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_flatten, tree_map

from . import missing
from .attention import CudaAttention
from .checkpoints import Regions
from .document import CapturedModel, make_document
from .errors import CaptureError
from .fakes import Fakes, check_module
from .functions import Functions
from .modules import ModuleStack
from .recorder import Recorder, dtype_name
from .structure import Structure
from .values import ValueTable, storage_key

_OLDEST = (2, 6)
_PRECISION = ("param", "buffer", "output", "units")


def capture(
    module: torch.nn.Module,
    *args: Any,
    loss: Callable[[Any], torch.Tensor] | None = None,
    device: str | None = None,
    mixed_precision: dict[str, Any] | None = None,
    strict: bool = True,
    name: str = "",
    **kwargs: Any,
) -> CapturedModel:
    """Runs one forward and backward of a module under fake tensors and writes down what happens.

    Nothing is computed and no GPU is needed: a module of any size takes seconds. The module may lie on any device, the
    meta device included, and is left as it was.

    Args:
        module: the module as it is before it is sharded.
        *args, **kwargs: one micro-batch; tensors of any device, the sizes count.
        loss: from what the module returns to the scalar that backward starts from; default: the scalar among the
            outputs that needs a gradient.
        device: "fake" (fake tensors, anywhere); None: the same.
        mixed_precision: the casts of FSDP's mixed precision, e.g. {"param": "bfloat16"}: parameters and floating inputs
            are cast, so that type_as and .to(x.dtype) do what they will do. "buffer": buffers too (FSDP1). "output":
            what the module returns. "units": classes or names of modules whose floating arguments are cast as well
            (FSDP2 casts at every unit).
        strict: False: the host reads zeros where the module asks for computed values.
        name: of the model; default: the module's class.

    Raises:
        CaptureError: with the operator and module where it happened and what to do.
    """

    def step(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        _loss_of(module(*args, **kwargs), loss).backward()

    session = _Session(module, device, mixed_precision, strict, name)
    return session.run(step, (args, kwargs), _argument_names(module.forward, args, kwargs))


def capture_step(
    module: torch.nn.Module,
    step: Callable[..., Any],
    *batch: Any,
    device: str | None = None,
    mixed_precision: dict[str, Any] | None = None,
    strict: bool = True,
    name: str = "",
    **kwargs: Any,
) -> CapturedModel:
    """As `capture`, but `step(module, *batch, **kwargs)` runs forward and `loss.backward()` itself, as a training script does.

    What the step keeps names for (logits, say) is held as long as it holds it. Only the first backward counts; what
    follows it (the optimizer) is looked at for the job's defaults.
    """
    names = _argument_names(step, (module, *batch), kwargs)[1:]

    def run(module: torch.nn.Module, batch: tuple, kwargs: dict[str, Any]) -> None:
        step(module, *batch, **kwargs)

    return _Session(module, device, mixed_precision, strict, name).run(run, (batch, kwargs), names)


def _argument_names(function: Callable, args: tuple, kwargs: dict[str, Any]) -> list[str]:
    """A name for every argument, positional ones first."""
    try:
        parameters = [
            p
            for p in inspect.signature(function).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        parameters = []
    names = [parameters[i].name if i < len(parameters) else f"arg{i}" for i in range(len(args))]
    return names + list(kwargs)


def _loss_of(output: Any, loss: Callable[[Any], torch.Tensor] | None) -> torch.Tensor:
    if loss is not None:
        result = loss(output)
        if not isinstance(result, torch.Tensor) or result.numel() != 1:
            raise CaptureError(
                "the loss is no scalar tensor",
                expected="loss(output) -> a tensor with one element",
                got=f"a tensor of shape {list(result.shape)}" if isinstance(result, torch.Tensor) else repr(type(result)),
            )
        return result
    named = getattr(output, "loss", None) if not isinstance(output, torch.Tensor) else None
    found = [
        leaf
        for leaf in ([named] if isinstance(named, torch.Tensor) else _leaves(output))
        if isinstance(leaf, torch.Tensor) and leaf.numel() == 1 and leaf.requires_grad
    ]
    if not found:
        shapes = ", ".join(str(list(t.shape)) for t in _leaves(output) if isinstance(t, torch.Tensor))
        raise CaptureError(
            "the module returns no scalar to start backward from",
            expected="an output with one element that needs a gradient",
            got=f"tensors of shapes {shapes}" if shapes else repr(type(output)),
            hint="give loss=, for example loss=lambda out: out.float().sum(), or use capture_step",
        )
    return found[0]


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):  # ModelOutput and its like are no trees to every version of transformers
        return [leaf for value in tree.values() for leaf in _leaves(value)]
    return tree_flatten(tree)[0]


def _precision(dtype: torch.dtype | None) -> str:
    return "none" if dtype is None else dtype_name(dtype)


def _dtype(value: Any, key: str) -> torch.dtype | None:
    if value is None or isinstance(value, torch.dtype):
        return value
    dtype = getattr(torch, str(value), None)
    if not isinstance(dtype, torch.dtype):
        raise CaptureError(
            "this is no dtype",
            place=f"mixed_precision[{key!r}]",
            expected='"bfloat16", "float16" or "float32"',
            got=repr(value),
        )
    return dtype


class _Session:
    def __init__(self, module, device, mixed_precision, strict, name):
        version = tuple(int(p) for p in torch.__version__.split("+")[0].split(".")[:2])
        if version < _OLDEST:
            raise CaptureError(
                "this version of PyTorch is too old to capture",
                expected="torch 2.6 or later",
                got=f"torch {torch.__version__}",
            )
        if not isinstance(module, torch.nn.Module):
            raise CaptureError("this is no module", expected="a torch.nn.Module", got=repr(type(module)))
        if device not in (None, "fake"):
            raise CaptureError(
                "capture cannot run on this device",
                place="device",
                expected='"fake" (fake tensors, anywhere)',
                got=repr(device),
            )
        precision = dict(mixed_precision or {})
        for key in precision:
            if key not in _PRECISION:
                raise CaptureError(
                    f"mixed_precision has no {key!r}", expected=", ".join(_PRECISION), got=key, place="mixed_precision"
                )
        self.module = module
        self.notes = check_module(module)
        self.name = name or type(module).__name__
        self.strict = strict
        self.param = _dtype(precision.get("param"), "param")
        self.buffer = _dtype(precision.get("buffer"), "buffer")
        self.output = _dtype(precision.get("output"), "output")
        self.units = set(precision.get("units") or [])
        self.device = torch.device("cuda", 0)
        self.structure = Structure(module)
        self.table = ValueTable()
        self.stack = ModuleStack(self.structure.names)
        self.recorder = Recorder(self.table, self.stack, self.device, strict)
        self.module_calls: list[dict[str, Any]] = []
        self.forward_end = -1
        self.outputs: list[str] = []
        self.loss = ""
        self.loss_begin = -1
        # The job computes in what was captured, or the other way round.
        self.job: dict[str, Any] = {"fsdp.mixed_precision.param": _precision(self.param)}
        for key, dtype in (("buffer", self.buffer), ("output", self.output)):
            if dtype is not None:
                self.job[f"fsdp.mixed_precision.{key}"] = _precision(dtype)

    # --------------------------------------------------------------------------------------------------- run

    def run(self, step, batch, names) -> CapturedModel:
        mode = FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
        missing.register()
        fakes = Fakes(mode, self.device, self.param, self.buffer)
        regions, functions = Regions(self.recorder), Functions(self.recorder)
        collecting = gc.isenabled()
        with warnings.catch_warnings(), contextlib.ExitStack() as inside:
            warnings.simplefilter("ignore")
            inside.enter_context(fakes.inside(self.module))
            self._name_state()
            batch = fakes.tree(batch)
            self._name_inputs(batch, names)
            for context in (regions.watch(), functions.watch(), self.stack.watch(), self._watch_backward(),
                            self._watch_optimizer(), _quiet_rnn(), _quiet_log()):  # fmt: skip
                inside.enter_context(context)
            self.stack.on_enter, self.stack.on_leave = self._enter, self._leave
            gc.disable()  # what only cycles hold lives on in a step as well
            try:
                with mode, CudaAttention(), self.recorder:
                    with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                        step(self.module, *batch)
            except CaptureError:
                raise
            except Exception as error:
                if not self.recorder.done:
                    raise self._failed(error) from error
                self.notes.append(f"after backward the step failed: {type(error).__name__}: {error}")
            finally:
                if collecting:
                    gc.enable()
        if not self.recorder.done:
            raise CaptureError(
                "the step never ran backward",
                place=f"module {type(self.module).__name__}",
                expected="step(module, *batch) to call loss.backward()",
                got=f"{len(self.recorder.ops)} operators and no backward",
                hint="hand a loss to capture, or call backward in the step",
            )
        return CapturedModel(make_document(self, regions.rows), self.notes + list(dict.fromkeys(self.recorder.notes)))

    def _failed(self, error: Exception) -> CaptureError:
        return CaptureError(
            f"the module failed: {type(error).__name__}: {error}",
            place=f"module {self.recorder.place()}",
            hint="the module must run as it is called here; see the exception above for the line",
        )

    # ------------------------------------------------------------------------------------------------- state

    def _name_state(self) -> None:
        for fqn, tensor in self.structure.state():
            self.table.keep(tensor, "@" + fqn)
            if tensor.requires_grad:
                self.recorder.trainable["@" + fqn] = True

    def _name_inputs(self, batch, names) -> None:
        args, kwargs = batch
        taken: set[str] = set()
        for name, argument in zip(names, [*args, *kwargs.values()]):
            leaves = [leaf for leaf in _leaves(argument) if isinstance(leaf, torch.Tensor)]
            for i, leaf in enumerate(leaves):
                if self.table.find(leaf) is not None and id(leaf) in self._seen_inputs:
                    continue
                own = name if len(leaves) == 1 else f"{name}.{i}"
                while own in taken or (own[:1] == "v" and own[1:].isdigit()):
                    own += "_"
                taken.add(own)
                self._seen_inputs.add(id(leaf))
                self.table.add_input(own, leaf)

    @property
    def _seen_inputs(self) -> set[int]:
        return self.__dict__.setdefault("_seen", set())

    # ------------------------------------------------------------------------------------------------- calls

    def _enter(self, name: str, call: int, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if not self.recorder.recording or self.recorder.opaque is not None:
            return args, kwargs
        if self.param is not None and (name == "" or self._is_unit(name)):
            args, kwargs = tree_map(self._low, (args, kwargs))
        seen: list[str] = []
        for leaf in _leaves((args, kwargs)) + [v for a in args if isinstance(a, dict) for v in _leaves(a)]:
            if not isinstance(leaf, torch.Tensor) or leaf.device.type == "cpu":
                continue
            value = self.table.find(leaf)
            if value is not None and value.name not in seen:
                seen.append(value.name)
        if seen:
            self.module_calls.append({"module": name, "call": call, "args": seen})
        return args, kwargs

    def _is_unit(self, name: str) -> bool:
        return bool(self.units) and (name in self.units or self.structure.class_of(name) in self.units)

    def _low(self, value):
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != self.param:
            return value.to(self.param)
        return value

    def _leave(self, name: str, call: int, output: Any) -> None:
        if name or not self.recorder.recording:
            return
        self.recorder.look()
        self.forward_end = len(self.recorder.ops)
        for leaf in _leaves(output):
            if not isinstance(leaf, torch.Tensor):
                continue
            value = self.table.find(leaf)
            if value is not None and value not in self.table.inputs and value.name not in self.outputs:
                self.outputs.append(value.name)

    # ---------------------------------------------------------------------------------------------- autograd

    def _pack(self, tensor: torch.Tensor):
        """Autograd holds no storage here: what it keeps follows from the operators. Opaque ones are asked."""
        if tensor.device.type == "cpu" or not self.recorder.recording:
            return tensor
        frame = self.recorder.opaque
        if frame is not None:
            frame.saved.append(
                (storage_key(tensor), tuple(tensor.shape), tensor.dtype, tensor.untyped_storage().nbytes())
            )
        return (tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)

    def _unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        shape, stride, dtype, device = packed
        with self.recorder.paused():
            return torch.empty_strided(shape, stride, dtype=dtype, device=device)

    @contextlib.contextmanager
    def _watch_backward(self):
        original = torch.autograd.backward

        def backward(tensors, *args, **kwargs):
            """Not run: autograd's engine asks the driver for the card, and what it does follows from the forward."""
            if not self.recorder.done:
                self._begin_backward(tensors[0] if isinstance(tensors, (tuple, list)) else tensors)

        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = original

    def _begin_backward(self, loss: torch.Tensor) -> None:
        if not loss.requires_grad:
            raise CaptureError(
                "backward starts from a tensor that needs no gradient",
                place=f"module {type(self.module).__name__}",
                hint="some parameter must have requires_grad=True, and the loss must not be made in no_grad",
            )
        self.recorder.look()
        value = self.table.find(loss)
        if value is None:
            raise CaptureError("the loss is not made by the module or the step", expected="a result of an operator")
        self.loss = value.name
        if 0 <= self.forward_end <= value.storage.born:
            self.loss_begin = self.forward_end
        self.recorder.done = True

    # ------------------------------------------------------------------------------------------------ script

    @contextlib.contextmanager
    def _watch_optimizer(self):
        """What the step's optimizer and scaler are becomes the job's defaults."""

        def stepping(optimizer, args, kwargs):
            name = type(optimizer).__name__.lower()
            if name in ("adamw", "adam", "sgd"):  # Adam's state and kernels are AdamW's
                self.job["train.optimizer.name"] = "sgd" if name == "sgd" else "adamw"
            defaults = optimizer.defaults
            if defaults.get("fused"):
                self.job["train.optimizer.impl"] = "fused"
            elif defaults.get("foreach") is False:
                self.job["train.optimizer.impl"] = "for_loop"
            else:
                self.job["train.optimizer.impl"] = "foreach"

        hook = register_optimizer_step_pre_hook(stepping)
        scaler, scale = torch.amp.GradScaler, torch.amp.GradScaler.scale

        def scaling(this, outputs):
            self.job["train.grad_scaler.enabled"] = True
            return outputs if not this.is_enabled() else scale(this, outputs)

        scaler.scale = scaling
        try:
            yield
        finally:
            hook.remove()
            scaler.scale = scale


@contextlib.contextmanager
def _quiet_log():
    """What fails is raised with its place; PyTorch's own log of it says less in more lines."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = disabled


@contextlib.contextmanager
def _quiet_rnn():
    """cuDNN's recurrent layers ask the driver; without one the layers run step by step, as with cuDNN switched off."""
    if torch.cuda.is_available() or not torch.backends.cudnn.enabled:
        yield
        return
    import torch.nn.modules.rnn as rnn

    originals = {name: getattr(rnn._VF, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}

    def without(function):
        def run(*args, **kwargs):
            with torch.backends.cudnn.flags(enabled=False):
                return function(*args, **kwargs)

        return run

    for name, function in originals.items():
        setattr(rnn._VF, name, without(function))
    try:
        yield
    finally:
        for name in originals:
            delattr(rnn._VF, name)
