"""The recorder: every operator below autograd while a step runs, with the module that was running."""

from __future__ import annotations

import contextlib
import functools
import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten

from .. import _choices as choices
from . import collectives
from .answers import HOST_READS, TO_HOST, answer, hangs_on_values, unpinned
from .autocast import Casts
from .errors import CaptureError
from .known import KnownValues
from .opaque import Opaque, OpaqueRuns, Place, facts_of, product_flops
from .refusals import data_dependent, failed, refuse_unlike
from .values import (
    Value, ValueTable, describe, dtype_name, geometry, host_number, is_settled, literals_of, names_of, tensors_of,
)  # fmt: skip

# Questions about a tensor, no work.
_NO_WORK = {
    "prim.device.default",
    "aten.sym_size.default",
    "aten.sym_stride.default",
    "aten.sym_numel.default",
    "aten.is_same_size.default",
}
# What neither sizes nor strides nor memory hang on.
_PLACEMENT = {"device", "layout", "pin_memory", "non_blocking", "generator"}

# Results from this one on lie on the host, whatever the fake tensors say: seed and offset of a dropout.
_HOST_RESULTS = {"aten._scaled_dot_product_efficient_attention.default": 2}
# Operators that change the shape of their tensor, as what they do.
_VIEW_OF = {
    "aten.transpose_.default": "aten.transpose.int",
    "aten.t_.default": "aten.t.default",
    "aten.unsqueeze_.default": "aten.unsqueeze.default",
    "aten.squeeze_.default": "aten.squeeze.default",
    "aten.squeeze_.dim": "aten.squeeze.dim",
    "aten.squeeze_.dims": "aten.squeeze.dims",
    "aten.as_strided_.default": "aten.as_strided.default",
}
# c10 DTypes that the format has (core/dtype.h).
_DTYPES = {
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128,
}  # fmt: skip


class Recorder(TorchDispatchMode):
    """Writes `ops`. Made for one step; not used again."""

    def __init__(self, table: ValueTable, modules, device: torch.device, strict: bool, chosen: float = 1.0, virtual: bool = False):
        super().__init__()
        self.virtual = virtual  # tensors are those of a card that computes nothing
        self.cudnn = torch.backends.cudnn.enabled  # as the user has it, whatever plays the card
        self.table = table
        self.modules = modules
        self.device = device
        self.strict = strict
        self.known = KnownValues(guess=None if strict else chosen)
        self.ops: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.assumes_choices = False  # sizes hang on choices that nobody computed
        self.region: int | None = None
        self.opaques = OpaqueRuns(self)
        self.opaque: Opaque | None = None  # the one that runs
        self.engine = False  # autograd's engine runs what comes, in the midst of forward
        self.casts = Casts()
        self.on_reference: list[Any] = []  # called with (tensor, name of its value)
        self.on_operator: list[Any] = []  # called with (func, args, kwargs, Place) for every operator
        self.entered: dict[str, tuple[int, int]] = {}  # by module: its latest call, and how many operators there were
        self.hooks = None  # the script's own on what autograd saves, while it has some (checkpoints.Hooks)
        self._paused = 0
        self._writes = False
        self.trainable: dict[str, bool] = {}  # of parameters, by reference
        self._detached: dict[tuple[Any, ...], str] = {}
        self.mesh = collectives.Mesh()
        self.differentiates = False  # a collective that has a backward runs
        self.done = False  # backward has run: what follows is no part of the model

    # ------------------------------------------------------------------------------------------------ state

    @contextlib.contextmanager
    def paused(self):
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    @property
    def recording(self) -> bool:
        return not self._paused and not self.done

    @property
    def now(self) -> int:
        """The last operator that has run."""
        return len(self.ops) - 1

    def look(self) -> None:
        self.table.watch(self.now)

    def place(self) -> str:
        return self.modules.name() or "the root module"

    # --------------------------------------------------------------------------------------------- dispatch

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        func, args, kwargs = unpinned(func, args, kwargs or {})
        name = str(func)
        if name == collectives.WAIT and isinstance(args[0], FakeTensor):
            return args[0]  # where the device is left out, another tensor would come back
        if self._paused or name in _NO_WORK or name == collectives.WAIT:
            return func(*args, **kwargs)
        if self.differentiates and not torch.is_grad_enabled():
            with torch.enable_grad():
                return self.__torch_dispatch__(func, types, args, kwargs)
        if self._of_host(func, args, kwargs):
            with _disable_current_modes():
                return func(*args, **kwargs)
        if self.done:
            return self._read(func, name, args, kwargs) if name in HOST_READS else func(*args, **kwargs)
        if self.opaque is not None:
            return self._run_inside(self.opaque, func, name, args, kwargs)
        if (plain := _without_out(func)) is not None and kwargs["out"].numel():
            made = self.__torch_dispatch__(plain, types, args, {k: v for k, v in kwargs.items() if k != "out"})
            return self.__torch_dispatch__(torch.ops.aten.copy_.default, types, (kwargs["out"], made))
        if self.engine and name == "aten.index_put.default" and args[3:4] == (True,):  # formulas write in place where no mode looks on
            return self.__torch_dispatch__(torch.ops.aten.index_put_.default, types, args)
        refuse_unlike(self.place(), name, args)
        self.table.watch(self.now)
        tensors = tensors_of((args, kwargs))
        self._writes = func._schema.is_mutable  # autograd is in the midst of a tensor's history
        refs: dict[int, str] = {}
        for tensor in tensors:
            if id(tensor) not in refs:
                refs[id(tensor)] = self.reference(tensor)
        arguments, named = self._arguments(func, args, kwargs, refs)
        place = Place(name)  # what only the host gets has no row
        for visit in self.on_operator:
            visit(func, args, kwargs, place)
        before = {id(t): geometry(t) for t in tensors} if func._schema.is_mutable else {}
        out = self._run(func, name, args, kwargs)
        results = tree_flatten(out)[0]
        if name in _HOST_RESULTS:
            results[_HOST_RESULTS[name] :] = [None] * len(results[_HOST_RESULTS[name] :])
        on_device = [r for r in results if isinstance(r, torch.Tensor) and r.device.type != "cpu"]
        if not on_device and not any(t.device.type != "cpu" for t in tensors):
            return out  # the host's own work
        if not on_device and name in TO_HOST:
            return out  # a copy that takes nothing on the device
        row: dict[str, Any] = {"op": name, "module": self.modules.name(), "call": self.modules.call(), "args": arguments}
        if named:
            row["kwargs"] = named
        if func.namespace not in ("aten", "prims"):
            row["op"] = f"opaque.{func.namespace}.{func._schema.name.split('::')[-1]}"
            row["args"] = [refs[id(t)] for t in tensors if t.device.type != "cpu"]
            row.pop("kwargs", None)
            row["opaque"] = facts_of(func, tensors, results)
            if (collective := collectives.met(func, args, out)) is not None:
                self._meet(row, collective, tensors, on_device, refs)
        turned = [r for r in on_device if before.get(id(r), geometry(r)) != geometry(r)]
        if turned:  # transpose_ and its like give their tensor another shape: a view of what it was
            row["op"] = _VIEW_OF.get(row["op"], row["op"])
        place.row = len(self.ops)
        self._finish(row, func, tensors, results, refs, {id(t) for t in turned})
        return out

    def _run_inside(self, opaque: Opaque, func, name: str, args, kwargs):
        out = self._run(func, name, args, kwargs)
        place = opaque.measure(out, name)
        opaque.flops += product_flops(func, args, out)
        opaque.ran.append(name)
        if (collective := collectives.met(func, args, out)) is not None:
            opaque.meets.append(collective.row(self.mesh.dimension(collective)))
        if opaque.forward:
            for visit in self.on_operator:
                visit(func, args, kwargs, place)
        return out

    def _meet(self, row, collective, tensors, results, refs) -> None:
        """A collective by itself. PyTorch's all-to-all with a backward is an operator that rules know."""
        dimension = self.mesh.dimension(collective)
        if row["op"] == "opaque._c10d_functional.all_to_all_single":
            row.pop("opaque")
            row["op"] = "mesh.all_to_all"
            row["args"] = [refs[id(tensors[0])], dimension, *([results[0].shape[0]] if collective.sizes else [])]
            return
        row["kwargs"] = {"meets": [collective.row(dimension)]}
        if collective.made is None and torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            row["kwargs"]["meets_backward"] = [collective.row_of_backward(dimension)]
            row["opaque"]["backward"] = [{"shape": list(t.shape), "dtype": dtype_name(t.dtype)} for t in tensors]

    def _of_host(self, func, args, kwargs) -> bool:
        """Whether the host really computes this, as a script's own lengths and indices: its tensors have values."""
        tensors = tensors_of((args, kwargs))
        real = all(type(t) is torch.Tensor and t.device.type == "cpu" for t in tensors)
        return bool(tensors) and real and not func._schema.is_mutable and str(kwargs.get("device") or "cpu") == "cpu"

    def _finish(self, row, func, tensors, results, refs, turned=frozenset()) -> None:
        if self.region is not None:
            row["region"] = self.region
        grows = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        index = len(self.ops)
        if all(t.device.type == "cpu" for t in tensors):
            self._made_from_host(row, tensors)
        self.ops.append(row)
        out = []
        for result in results:
            if not isinstance(result, torch.Tensor) or result.device.type == "cpu":
                out.append(None)
                continue
            same = next((t for t in tensors if t is result and id(t) not in turned), None)
            if same is not None and row["op"].startswith("opaque."):  # a collective, a custom operator: no new memory
                out.append({"name": refs[id(same)][1:]} if refs[id(same)].startswith("%") else None)
                continue
            if same is not None:  # changed in place
                out.append(self._changed(result, refs[id(same)], index))
                continue
            value = self.table.add(self.table.new_name(), result, index)
            value.detached = func is torch.ops.aten.detach.default or not torch.is_grad_enabled()
            value.grows = grows and not value.detached
            if row["op"] == "aten._to_copy.default" and refs[id(tensors[0])].startswith("@") and self.casts.is_kept(tensors[0], result):
                self.casts.kept.append(value)
            out.append(value)
        row["out"] = out
        if self.hooks is not None:
            self.hooks.note_row(row, tensors, results)

    def _changed(self, tensor, reference: str, index: int) -> Value | None:
        """What an operator leaves of its argument: a value anew, its gradient goes another way than the old one's.

        In no_grad autograd does not see it: the tensor's history stays what it was."""
        if not reference.startswith("%"):
            return None
        old = self.table.find(tensor)
        self.table.storage_of(tensor, index).writes += 1
        value = self.table.add(self.table.new_name(), tensor, index)
        unseen = not torch.is_grad_enabled()
        value.detached = unseen or (old is not None and old.detached and not tensor.requires_grad)
        value.grows = tensor.requires_grad and not unseen
        return value

    def _made_from_host(self, row, tensors) -> None:
        """A copy from the host needs memory on the device like any new tensor. What a script wrote down itself (`torch.tensor([...])`)
        goes along, as long as no value of the batch has decided anything."""
        if tensors and row["op"] == "aten._to_copy.default":
            row["op"], row["args"] = "aten.empty.memory_format", [list(tensors[0].shape)]
            to = (row.pop("kwargs", None) or {}).get("dtype")
            content = None if self.known.used else literals_of(tensors[0])
            if content is not None:
                row["kwargs"] = {"values": content, "dtype": to or {"dtype": dtype_name(tensors[0].dtype)}}

    def _run(self, func, name, args, kwargs):
        computed = self.known.compute(func, args, kwargs)
        with self.paused():
            answered, out = answer(func, args, kwargs, computed, self.known, self.device)
        if not answered:
            out = self._run_on_device(func, name, args, kwargs)
        elif self.known.guessed:
            self.notes.append(f"masks whose values nobody knows choose {self.known.guess:.4g} of their elements here (chosen=)")
            self.known.guessed, self.assumes_choices = False, True
        elif self.known.hangs_on_batch:
            self.known.used[self.place()] = None
        on_choices = computed is not None and self.known.hangs_on_choices
        if answered and on_choices:
            self.notes.append(choices.NOTE)
            self.assumes_choices = True
        self.known.follow(func, args, kwargs, out, computed, on_choices)
        if computed is None:
            self.known.choose(func, args, kwargs, out)
            if (collective := collectives.met(func, args, out)) is not None:
                self.known.exchange(collective, out)
        return out

    def _run_on_device(self, func, name, args, kwargs):
        if self.virtual and hangs_on_values(func, name, args, kwargs):
            if name in HOST_READS and not self.strict:
                return self._read(func, name, args, kwargs)
            raise data_dependent(self.place(), name, args, kwargs)
        try:
            return func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            if name in HOST_READS and not self.strict:
                return self._read(func, name, args, kwargs)
            raise data_dependent(self.place(), name, args, kwargs) from error
        except CaptureError:
            raise
        except Exception as error:
            raise failed(self.place(), name, args, kwargs, error) from error

    def _read(self, func, name, args, kwargs):
        """What the host reads from a device that computes nothing: what is known, else zero."""
        if (computed := self.known.compute(func, args, kwargs)) is not None:
            return computed
        if name != "aten._local_scalar_dense.default":
            return False
        dtype = args[0].dtype
        return False if dtype == torch.bool else 0.0 if dtype.is_floating_point else 0

    # -------------------------------------------------------------------------------------------- arguments

    def reference(self, tensor: torch.Tensor) -> str:
        """How the program names a tensor."""
        storage = self.table.known_storage(tensor)
        # A view of a view of a parameter may lie as that does; its history does not.
        settled = not self._writes and is_settled(tensor)
        seen = settled and tensor.grad_fn is not None and self.table.made_as(tensor)
        if storage is not None and not seen and (kept := storage.references.get(geometry(tensor))):
            # A frozen parameter grows too where it lies in a flat parameter that trains: no_grad is said of every one.
            grows = self.trainable.get(kept, False) or (kept in self.trainable and not torch.is_grad_enabled())
            return self._without_history(kept, tensor, grows)
        value = self.table.find(tensor)
        if value is None:
            value = self._appeared(tensor, storage)
            if value is None:
                return ""
        if value.grows and not tensor.requires_grad and value.made() is tensor:
            value.grows = False  # its operator has no derivative (zeros_like, an index)
        if settled and torch.is_grad_enabled() and tensor.requires_grad and tensor.is_leaf and not value.grows and self.opaque is None:
            value = self._leaf(tensor, value)
        for visit in self.on_reference if settled else ():
            visit(tensor, value.name)
        return self._without_history("%" + value.name, tensor, value.grows and not value.detached)

    def _without_history(self, reference: str, tensor: torch.Tensor, grows: bool) -> str:
        """In no_grad, or where `.data` is used, the program says so by a detach."""
        cut = grows and (not torch.is_grad_enabled() or not tensor.requires_grad)
        if not cut or self.opaque is not None:
            return reference
        # Of a parameter it is said again in every call: the call is read as one without gradients.
        key = (reference, self.modules.name(), self.modules.call()) if reference.startswith("@") else (reference,)
        name = self._detached.get(key)
        if name is None or self.table.known_storage(tensor) is None:
            self.ops.append(self.new_row("aten.detach.default", [reference]))
            value = self.table.add(self.table.new_name(), tensor, len(self.ops) - 1)
            value.detached = True
            self.ops[-1]["out"] = [value]
            name = self._detached[key] = value.name
        return "%" + name

    def _leaf(self, tensor: torch.Tensor, value: Value) -> Value:
        """What a script has called requires_grad_() of: the same memory, from which gradients are asked for."""
        self.ops.append(self.new_row("aten.detach.default", ["%" + value.name]))
        leaf = self.table.add(self.table.new_name(), tensor, self.now)
        leaf.grows = leaf.leaf = True
        self.ops[-1]["out"] = [leaf]
        return leaf

    def new_row(self, op: str, args: list[Any]) -> dict[str, Any]:
        """Of an operator that runs now, not yet among `ops`."""
        row = {"op": op, "module": self.modules.name(), "call": self.modules.call(), "args": args}
        return row if self.region is None else row | {"region": self.region}

    def drop_unused(self, began: int, results: list[torch.Tensor]) -> None:
        """Of the operators from `began` on only those count that these results are made with: autograd's nodes make no gradient that nobody
        asks for, but where they are called by themselves."""
        needed = {value.name for value in map(self.table.find, results) if value is not None}
        for row in reversed(self.ops[began:]):
            made = [out.name if isinstance(out, Value) else None for out in row["out"]]
            if not needed.intersection(made):
                row["dropped"] = True
                continue
            for i, arg in enumerate(row["args"]):
                if isinstance(arg, list) and len(arg) == len(made) == 3 and all(isinstance(x, bool) for x in arg):  # output_mask
                    row["args"][i] = [name in needed for name in made]
                    row["out"] = [out if name in needed else None for out, name in zip(row["out"], made)]
            needed.update(names_of(row["args"]), names_of(row.get("kwargs", {})))

    def begins_before(self, args: Any) -> None:
        """The module that runs has begun, though none of its operators has run: a view says so."""
        self._view(self.modules.name(), self.modules.call(), args)

    def enter(self, name: str, args: Any) -> None:
        """The module `name` is called: what comes is in its call, though it has not begun (a `__call__` of its own). A view says so."""
        self._view(name, self.modules.next_call(name), args)

    def _view(self, name: str, call: int, args: Any) -> None:
        given = next((t for t in tensors_of(args) if t.device.type != "cpu" and t.is_floating_point()), None)
        if given is None:
            return
        row = {"op": "aten.view.default", "module": name, "call": call, "args": [self.reference(given), list(given.shape)]}
        value = self.table.add(self.table.new_name(), given, len(self.ops))
        value.grows = given.requires_grad and torch.is_grad_enabled()
        self.ops.append(row | {"out": [value]})

    def _appeared(self, tensor: torch.Tensor, storage) -> Value | None:
        """A tensor that no recorded operator made."""
        if tensor.device.type == "cpu":
            return None
        if storage is not None:  # a view that was made out of sight
            base = next(iter(storage.references.values()), "") or "%" + storage.values[0].name
            row = self.new_row("aten.as_strided.default", [base, list(tensor.shape), list(tensor.stride()), tensor.storage_offset()])
        else:  # a tensor that a module or a closure carries with it
            row = self.new_row("aten.empty.memory_format", [list(tensor.shape)])
            if tensor.numel():
                self.notes.append(f"{self.place()}: a tensor {describe(tensor)} that is no parameter, buffer or input is counted as made in every step")
        self.ops.append(row)
        value = self.table.add(self.table.new_name(), tensor, len(self.ops) - 1)
        row["out"] = [value]
        return value

    def _arguments(self, func, args, kwargs, refs):
        schema = func._schema.arguments
        named = {
            key: self._argument(value, refs)
            for key, value in kwargs.items()
            if key not in _PLACEMENT and not (value is None)
        }
        positional = [
            self._argument(value, refs)
            for i, value in enumerate(args)
            if i >= len(schema) or schema[i].name not in _PLACEMENT
        ]
        if self.engine and func.namespace == "aten":  # its thread has a handle of cuBLAS and numbers of nodes of its own
            named["engine"] = True
        if func is torch.ops.aten.convolution.default:
            named["backend"] = self._convolution_backend(args)
        if func is torch.ops.aten.convolution_backward.default:
            named["backend"] = self._convolution_backend((*args[1:3], None, *args[4:10]))
        return positional, named

    def _argument(self, value, refs):
        if isinstance(value, torch.Tensor):
            if refs.get(id(value)):
                return refs[id(value)]
            return self._argument(host_number(value), refs)
        if isinstance(value, (list, tuple)):
            return [self._argument(v, refs) for v in value]
        if isinstance(value, torch.dtype):
            return {"dtype": dtype_name(value)} if value in _DTYPES else {"text": dtype_name(value)}
        if isinstance(value, bool) or value is None or isinstance(value, (int, torch.SymInt)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
        return {"text": str(value)}

    def _convolution_backend(self, args) -> str:
        """Which kernel CUDA takes for a convolution: with cuDNN switched off it unfolds its input into memory."""
        try:
            with torch.backends.cudnn.flags(enabled=self.cudnn):
                chosen = torch._C._select_conv_backend(*args[:9])
        except Exception:  # noqa: BLE001 - a question only; not all builds answer it
            return "cudnn"
        return str(chosen).split(".")[-1].lower()

@functools.cache
def _without_out(func):
    """The operator that makes its result, of one that writes it into an `out=`."""
    arguments = func._schema.arguments
    if [a.name for a in arguments if a.is_out] != ["out"]:
        return None
    wanted = [(a.name, str(a.type)) for a in arguments if not a.is_out]
    packet = getattr(getattr(torch.ops, func.namespace), func._schema.name.split("::")[-1])
    for overload in packet.overloads():
        other = getattr(packet, overload)
        if not other._schema.is_mutable and [(a.name, str(a.type)) for a in other._schema.arguments] == wanted:
            return other
    return None
