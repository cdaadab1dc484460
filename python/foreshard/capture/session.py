"""One step of training under the recorder."""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import warnings
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from . import answers, autocast, collectives, flex, inner, missing, packed, pitfalls
from .attention import CudaComposites
from .checkpoints import Hooks, Regions
from .document import CapturedModel, make_document
from .engine import Engine, Known
from .errors import CaptureError
from .fakes import OWN, Fakes, check_module
from .functions import Functions
from .known import runs
from .modules import ModuleStack
from .recorder import Recorder
from .structure import Structure
from .values import Storage, ValueTable, dtype_name, storage_key

_OLDEST = (2, 6)
_TOLD = 1 << 16  # bytes that a module keeps beside its state
_PRECISION = ("param", "buffer", "output", "outputs", "anew", "units", "root", "parts")
WRAPPED = "_checkpoint_wrapped_module"  # what a unit's name ends with whose wrapper is no part of it


def leaves_of(tree: Any) -> list[Any]:
    if isinstance(tree, dict):  # ModelOutput and its like are no trees to every version of transformers
        return [leaf for value in tree.values() for leaf in leaves_of(value)]
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


def _cast(values, dtype: torch.dtype | None):
    """Floating tensors among them."""

    def cast(value):
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != dtype else value

    return tree_map(cast, values)


_runs: list[Session] = []  # the recording that runs


def shared_so_far() -> None:
    """What has run of the step that is recorded is run once for several micro-batches."""
    session = _runs[-1]
    session.recorder.look()
    session.once = len(session.recorder.ops)


def parts_have_returned() -> None:
    """Of a module whose forward is a script's step, calls of its parts: what comes now is the script's own."""
    session = _runs[-1]
    session.recorder.look()
    session.forward_end, session.is_script = len(session.recorder.ops), True


class Session:
    """One recording. Made for one step; not used again."""

    def __init__(self, module, mixed_precision, strict, chosen, name, virtual):
        version = tuple(int(p) for p in torch.__version__.split("+")[0].split(".")[:2])
        if version < _OLDEST:
            raise CaptureError(
                "this version of PyTorch is too old to capture",
                expected="torch 2.6 or later",
                got=f"torch {torch.__version__}",
            )
        if not isinstance(module, torch.nn.Module):
            raise CaptureError("this is no module", expected="a torch.nn.Module", got=repr(type(module)))
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
        self.anew = set(precision.get("anew") or [])
        self.casts_at_root = bool(precision.get("root", True))
        self.parts = {name: (_dtype(param, "param"), _dtype(buffer, "buffer")) for name, (param, buffer) in (precision.get("parts") or {}).items()}
        self.outputs_of = {name: _dtype(output, "outputs") for name, output in (precision.get("outputs") or {}).items()}
        self.device = torch.device("cuda", 0)
        self.structure = Structure(module)
        self.table = ValueTable()
        self.stack = ModuleStack(self.structure.names, self.structure.wrappers)
        self.virtual = virtual
        self.recorder = Recorder(self.table, self.stack, self.device, strict, chosen, virtual)
        self.engine = Engine(self.recorder, self.table)
        self._buffers: set[str] = set()
        self.module_calls: list[dict[str, Any]] = []
        self.forward_end, self.is_script = -1, False
        self.outputs: list[str] = []
        self.loss = ""
        self.loss_begin = -1
        self.once = 0  # operators that several micro-batches share
        # The job computes in what was captured, or the other way round.
        self.job: dict[str, Any] = {"fsdp.mixed_precision.param": _precision(self.param)}
        for key, dtype in (("buffer", self.buffer), ("output", self.output)):
            if dtype is not None:
                self.job[f"fsdp.mixed_precision.{key}"] = _precision(dtype)

    # --------------------------------------------------------------------------------------------------- run

    def run(self, task) -> CapturedModel:
        """The program of what `task` (calling.Task) runs."""
        mode = contextlib.nullcontext()  # of the virtual device: tensors are CUDA's
        if not self.virtual:
            mode = FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
            missing.register()
        fakes = Fakes(mode, self.device, self.dtypes_of, self.recorder.known)
        regions = Regions(self.recorder)
        functions = Functions(self.recorder, regions)
        collecting = gc.isenabled()
        with warnings.catch_warnings(), contextlib.ExitStack() as inside:
            warnings.simplefilter("ignore")
            inside.enter_context(fakes.inside(self.module))
            self._name_state()
            batch = fakes.batch(task.batch)
            self._name_inputs(batch, task.names)
            for context in (runs(self.recorder.known), collectives.watched(self.recorder), inner.allowed(), flex.fused(self.notes), packed.planned(self.notes, self.recorder.known),
                            answers.asked_by_libraries(self.recorder.known), regions.watch(), functions.watch(),
                            pitfalls.functional_calls(self.notes), self.stack.watch(), self._watch_backward(),
                            self._watch_optimizer(), autocast.of_a_gpu(), self.recorder.casts.watch(lambda: len(self.recorder.ops) - 1), _of_an_h100(), _quiet_rnn(),
                            _quiet_log(), _unvalidated()):  # fmt: skip
                inside.enter_context(context)
            self.stack.on_enter, self.stack.on_wrapper, self.stack.on_leave = self._enter, self.cast_at_wrapper, self._leave
            self.stack.on_result = self.cast_result
            gc.disable()  # what only cycles hold lives on in a step as well
            _runs.append(self)
            try:
                with mode, CudaComposites(not self.virtual, self.recorder.casts), self.recorder:
                    own = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
                    with Hooks(self.recorder, self._pack, self._unpack).watch(own), own:
                        task.step(self.module, *batch)
            except CaptureError:
                raise
            except Exception as error:
                if not self.recorder.done:
                    raise self._failed(error) from error
                self.notes.append(f"after backward the step failed: {type(error).__name__}: {error}")
            finally:
                _runs.remove(self)
                if collecting:
                    gc.enable()
            self._watch_what_stays(task, batch, mode)
            self.table.let_go()
        if not self.recorder.done:
            raise CaptureError(
                "the step never ran backward",
                place=f"module {type(self.module).__name__}",
                expected="step(module, *batch) to call loss.backward()",
                got=f"{len(self.recorder.ops)} operators and no backward",
                hint="hand a loss to capture, or call backward in the step",
            )
        if used := list(self.recorder.known.used):
            more = f" and {len(used) - 3} more" if len(used) > 3 else ""
            self.notes.append(f"sizes or branches hang on the values of this batch, in {', '.join(used[:3])}{more}: the plan is for batches like it")
        regions.finish()
        notes = self.notes + list(dict.fromkeys(self.recorder.notes))
        return CapturedModel(make_document(self, regions.rows), notes, "virtual" if self.virtual else "fake")

    def _failed(self, error: Exception) -> CaptureError:
        hint = "the module must run as it is called here; see the exception above for the line"
        if "process group has not been initialized" in str(error):
            hint = (
                "a script that meets other ranks itself wants a group of its size before capture, which moves nothing: torch.distributed.init_process_group("
                '"fake", store=torch.testing._internal.distributed.fake_pg.FakeStore(), rank=0, world_size=N)'
            )
        return CaptureError(f"the module failed: {type(error).__name__}: {error}", place=f"module {self.recorder.place()}", hint=hint)

    # ------------------------------------------------------------------------------------------------- state

    def _name_state(self) -> None:
        for fqn, tensor in self.structure.state():
            self.table.keep(tensor, "@" + fqn)
            if isinstance(tensor, torch.nn.Parameter):
                self.recorder.trainable["@" + fqn] = tensor.requires_grad
            else:
                self._buffers.add(fqn)

    def _name_inputs(self, batch, names) -> None:
        args, kwargs = batch
        taken: set[str] = set()
        for name, argument in zip(names, [*args, *kwargs.values()]):
            leaves = [leaf for leaf in leaves_of(argument) if isinstance(leaf, torch.Tensor)]
            for i, leaf in enumerate(leaves):
                if leaf.device.type == "cpu":  # stays on the host
                    continue
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

    def _watch_what_stays(self, task, batch, mode) -> None:
        """What modules hold when the step has returned lives on in the next one, which puts another in its place or does not
        make it again. The step is run once more to see which."""
        gc.collect()
        kept = self._kept_attributes() if self.recorder.done else []
        if not kept:
            return
        again = True
        try:
            with mode, CudaComposites(not self.virtual, self.recorder.casts):
                task.step(self.module, *batch)
        except Exception:  # it hangs on values that only the recording knew
            again = False
        gc.collect()
        for storage, place in kept:
            storage.stays = "run" if again and not storage.weak.expired() else "next"
            until = "from the first step on" if storage.stays == "run" else "from step to step"
            if storage.nbytes >= _TOLD:
                self.notes.append(f"{place} ({storage.nbytes / 2**20:.1f} MiB) {until}")

    def _kept_attributes(self) -> list[tuple[Storage, str]]:
        """What operators have made and modules hold, each once, and who."""
        made = {id(storage): storage for storage in self.table.alive()}
        kept: list[tuple[Storage, str]] = []
        for module, fqn in self.structure.names.items():
            for attribute, value in (*module.__dict__.items(), *module._buffers.items()):
                for leaf in leaves_of(value) if attribute not in OWN else ():
                    storage = self.table.known_storage(leaf) if isinstance(leaf, torch.Tensor) else None
                    if storage is not None and made.pop(id(storage), None) is not None:
                        kept.append((storage, f"{fqn or 'the root module'} keeps `{attribute}`"))
                        full = f"{fqn}.{attribute}" if fqn else attribute
                        storage.replaces = full if full in self._buffers else ""
        return kept

    # ------------------------------------------------------------------------------------------------- calls

    def _enter(self, name: str, call: int, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if not self.recorder.recording or self.recorder.opaque is not None:
            return args, kwargs
        self.recorder.entered[name] = (call, len(self.recorder.ops))
        if self.casts_at(name):
            args, kwargs = self.lowered(name, (args, kwargs))
        if name in self.anew and torch.is_grad_enabled():
            args, kwargs = self._handed_on(args, kwargs)
        seen: list[str] = []
        for leaf in leaves_of((args, kwargs)) + [v for a in args if isinstance(a, dict) for v in leaves_of(a)]:
            if not isinstance(leaf, torch.Tensor) or leaf.device.type == "cpu":
                continue
            value = self.table.find(leaf)
            if value is not None and value.name not in seen:
                seen.append(value.name)
        if seen:
            self.module_calls.append({"module": name, "call": call, "args": seen})
        return args, kwargs

    def _handed_on(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """FSDP2 hands what requires a gradient on by a function of its own (RegisterPostBackwardFunction): to a unit's code it is another tensor at each
        place, which `key is value` asks (nn.MultiheadAttention)."""
        leaves, spec = tree_flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if len({id(leaves[i]) for i in places}) == len(places):  # nothing is there twice
            return args, kwargs
        with self.recorder.paused():
            for i in places:
                leaves[i] = leaves[i].view_as(leaves[i])
        return tree_unflatten(leaves, spec)

    def dtypes_of(self, name: str) -> tuple[torch.dtype | None, torch.dtype | None]:
        """Of the parameters and buffers of this module."""
        return next((dtypes for part, dtypes in self.parts.items() if not part or f"{name}.".startswith(f"{part}.")), (self.param, self.buffer))

    def casts_at(self, name: str) -> bool:
        """Whether this module's floating arguments are cast."""
        unit = self.units & {name, f"{name}.{WRAPPED}", self.structure.class_of(name)}
        return self.dtypes_of(name)[0] is not None and (name == "" and self.casts_at_root or bool(unit))

    def cast_at_wrapper(self, name: str, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """What is wrapped for recomputation before FSDP shards it is cast before it: the wrapper's regions hold the casts."""
        inside = f"{name}.{WRAPPED}" in self.units
        return self.lowered(name, (args, kwargs)) if self.casts_at(name) and not inside else (args, kwargs)

    def lowered(self, name: str, values):
        return _cast(values, self.dtypes_of(name)[0])

    def cast_result(self, name: str, output):
        """FSDP2's output_dtype: what a unit returns, within its call (_post_forward)."""
        dtype = self.outputs_of.get(name, None if name else self.output)
        return output if dtype is None else _cast(output, dtype)

    def _leave(self, name: str, call: int, output: Any) -> None:
        if not self.recorder.recording:
            return
        if name:
            if hidden := pitfalls.hidden_results(output):
                note = pitfalls.hidden_results_note(self.structure.class_of(name), hidden)
                self.notes += [note] * (note not in self.notes)
            return
        self.recorder.look()
        self.forward_end = self.forward_end if self.is_script else len(self.recorder.ops)
        for leaf in leaves_of(output):
            if not isinstance(leaf, torch.Tensor):
                continue
            value = self.table.find(leaf)
            if value is not None and value not in self.table.inputs and value.name not in self.outputs:
                self.outputs.append(value.name)

    # ---------------------------------------------------------------------------------------------- autograd

    def _pack(self, tensor: torch.Tensor):
        """Autograd holds no storage here: what it keeps follows from the operators. Opaque ones are asked."""
        if tensor.device.type == "cpu" or not self.recorder.recording or inner.is_of_transform(tensor):
            return tensor
        frame = self.recorder.opaque
        if frame is not None:
            frame.saved.append(
                (storage_key(tensor), tuple(tensor.shape), tensor.dtype, tensor.untyped_storage().nbytes())
            )
        place = len(frame.saved) - 1 if frame is not None else None
        known = Known(self.table, tensor) if frame is None else None
        return (tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device, place, known)

    def _unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        shape, stride, dtype, device, place, known = packed
        if self.recorder.engine and known is not None and known.storage is not None:
            return self.engine.stand_in(known, shape, stride, dtype, device)
        if self.recorder.engine and known is not None and not shape:  # a seed, which lies on the host (recorder: _HOST_RESULTS)
            device = torch.device("cpu")
        with self.recorder.paused():
            made = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        if self.recorder.opaque is not None:  # a backward that is measured: it does not allocate what was saved
            self.recorder.opaque.known.add(storage_key(made))
            if place is not None:
                self.recorder.opaque.unpacked[storage_key(made)] = place
        return made

    @contextlib.contextmanager
    def _watch_backward(self):
        original = torch.autograd.backward

        def backward(tensors, *args, **kwargs):
            """Not run: autograd's engine asks the driver for the card, and what it does follows from the forward."""
            trial = self.recorder.opaque
            if trial is not None and not trial.forward:
                trial.goes_back = True
                raise RuntimeError("the engine within a backward of the script's own")
            if not self.recorder.done:
                self._begin_backward(tensors[0] if isinstance(tensors, (tuple, list)) else tensors)

        gradients = torch.autograd.grad

        def grad(*args, **kwargs):
            if self.recorder.done or self.recorder.opaque is not None:
                if self.recorder.opaque is not None and not self.recorder.opaque.forward:
                    self.recorder.opaque.asks = True
                return gradients(*args, **kwargs)
            if not inner.inside_transform():
                return self.engine.grad(*args, **kwargs)
            self.recorder.engine = True
            try:
                return inner.gradients(*args, **kwargs)
            finally:
                self.recorder.engine = False

        torch.autograd.backward, torch.autograd.grad = backward, grad
        try:
            yield
        finally:
            torch.autograd.backward, torch.autograd.grad = original, gradients

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
            defaults = optimizer.defaults
            others = ("adagrad", "rmsprop", "nadam", "radam", "adamax")
            if name in ("adamw", "adam", "sgd", *others):  # Adam's state and kernels are AdamW's
                self.job["train.optimizer.name"] = "adamw" if name == "adam" else name
            for argument in ("momentum", "centered", "decoupled_weight_decay"):
                if name in others and defaults.get(argument):  # states and temporaries hang on them
                    self.job[f"train.optimizer.{argument}"] = defaults[argument]
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
def _unvalidated():
    """Distributions look at their parameters' values, which nobody computes."""
    distributions = sys.modules.get("torch.distributions")
    if distributions is None:
        yield
        return
    Distribution = distributions.Distribution
    was = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(was)


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
def _of_an_h100():
    """Models that choose kernels by the card ask what it can do (Transformers' experts): without one, the virtual device's answer."""
    if torch.cuda.is_available():
        yield
        return
    own, torch.cuda.get_device_capability = torch.cuda.get_device_capability, lambda device=None: (9, 0)
    try:
        yield
    finally:
        torch.cuda.get_device_capability = own


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
