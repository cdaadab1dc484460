"""The recorder: every operator below autograd while a step runs, with the module that was running.

Operators that nobody can look into (an autograd.Function, a custom operator, a kernel of Triton) are one operator each:
what runs inside counts as their workspace.
"""

from __future__ import annotations

import contextlib
import functools
import math
import traceback
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten

from .. import _choices as choices
from . import collectives
from .answers import HOST_READS, TO_HOST, answer, unpinned
from .autocast import Casts
from .errors import CaptureError
from .known import KnownValues
from .values import Storage, Value, ValueTable, geometry, literals_of, names_of, storage_key

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
_FACTORS = {"aten.mm.default": (0, 1), "aten.bmm.default": (0, 1), "aten.addmm.default": (1, 2), "aten.baddbmm.default": (1, 2),
            "aten.convolution.default": (0, 1)}  # fmt: skip
_TEMPORARIES = 400  # that a function has one after the other: more count as one block
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


_LEFT_FACTORS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::addmm_": 1, "aten::baddbmm_": 1}
# The format has no unsigned types but uint8: those of the same size stand for them.
_SAME_SIZE = {"uint64": "int64", "uint32": "int32", "uint16": "int16"}


def _product_flops(func, args, out) -> int:
    """Of a product of matrices: two for each element of the result and of the inner dimension."""
    left = _LEFT_FACTORS.get(func._schema.name)
    return 0 if left is None or not isinstance(out, torch.Tensor) else 2 * out.numel() * args[left].shape[-1]


def dtype_name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return _SAME_SIZE.get(name, name)


@dataclass
class Place:
    """Of an operator, inside an opaque one too: the row that its result has, once that is written."""

    name: str
    row: int | None = None
    kept: bool = False  # by the policy of the region that runs


@dataclass
class Opaque:
    """An operator that runs as one."""

    name: str
    args: list[Any]
    peak: int = 0
    flops: int = 0  # of the products inside
    at_peak: dict[int, int] = field(default_factory=dict)  # storages
    events: list[tuple[int, int]] = field(default_factory=list)  # storages in order: (key, bytes) made, (key, -bytes) gone
    makers: list[str] = field(default_factory=list)  # beside `events`: the operator inside that made it
    asked: list[tuple[int, Place]] = field(default_factory=list)  # operators inside that made a storage: (event, place)
    forward: bool = True  # False: a backward, which is only measured
    live: dict[int, tuple[StorageWeakRef, int]] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)  # storages of the arguments
    tensors: list[torch.Tensor] = field(default_factory=list)  # the arguments, while it runs
    arguments: list[tuple[int, list[int], str, bool]] = field(default_factory=list)  # place, shape, dtype, grows
    saved: list[tuple[int, tuple[int, ...], torch.dtype, int]] = field(default_factory=list)
    row: dict[str, Any] = field(default_factory=dict)
    places: list[int | None] = field(default_factory=list)  # of `saved` in the row; None: not told
    meets: list[list] = field(default_factory=list)  # collectives inside, as the model has them
    unpacked: dict[int, int] = field(default_factory=dict)  # backward: storages made for `saved`, by place there

    def measure(self, outputs: Any, name: str) -> Place:
        """New storages of the operator `name` that ran inside, and its place."""
        place = Place(name)
        for key in [k for k, (weak, _) in self.live.items() if weak.expired()]:
            self._event(key, -self.live.pop(key)[1], "")
        for tensor in _tensors(outputs):
            if tensor.device.type == "cpu":
                continue
            key = storage_key(tensor)
            if key not in self.live and key not in self.known:
                self.live[key] = (StorageWeakRef(tensor.untyped_storage()), tensor.untyped_storage().nbytes())
                self.asked.append((len(self.events), place))
                self._event(key, self.live[key][1], name)
        now = sum(nbytes for _, nbytes in self.live.values())
        if now > self.peak:
            self.peak, self.at_peak = now, {key: nbytes for key, (_, nbytes) in self.live.items()}
        return place

    def _event(self, key: int, nbytes: int, maker: str) -> None:
        self.events.append((key, nbytes))
        self.makers.append(maker)

    def write_places(self, rows: dict[int, int]) -> None:
        """`rows`: of events."""
        for at, place in self.asked:
            place.row = rows.get(at) if place.row is None else place.row


def _dispatched(name: str) -> dict[str, Any]:
    """What a dispatch mode saw where a storage was made inside an opaque operator (docs/formats/model.md)."""
    return {"dispatched": {"text": name}} if name else {}


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


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
        self.opaque: Opaque | None = None
        self.engine = False  # autograd's engine runs what comes, in the midst of forward
        self.casts = Casts()
        self.on_reference: list[Any] = []  # called with (tensor, name of its value)
        self.on_operator: list[Any] = []  # called with (func, args, kwargs, Place) for every operator
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
            out = self._run(func, name, args, kwargs)
            place = self.opaque.measure(out, name)
            self.opaque.flops += _product_flops(func, args, out)
            if (collective := collectives.met(func, args, out)) is not None:
                self.opaque.meets.append(collective.row(self.mesh.dimension(collective)))
            if self.opaque.forward:
                for visit in self.on_operator:
                    visit(func, args, kwargs, place)
            return out
        if (plain := _without_out(func)) is not None and kwargs["out"].numel():
            made = self.__torch_dispatch__(plain, types, args, {k: v for k, v in kwargs.items() if k != "out"})
            return self.__torch_dispatch__(torch.ops.aten.copy_.default, types, (kwargs["out"], made))
        if self.engine and name == "aten.index_put.default" and args[3:4] == (True,):  # formulas write in place where no mode looks on
            return self.__torch_dispatch__(torch.ops.aten.index_put_.default, types, args)
        self._refuse_unlike(name, args)
        self.table.watch(self.now)
        tensors = _tensors((args, kwargs))
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
        row = {"op": name, "module": self.modules.name(), "call": self.modules.call(), "args": arguments}
        if named:
            row["kwargs"] = named
        if func.namespace not in ("aten", "prims"):
            row["op"] = f"opaque.{func.namespace}.{func._schema.name.split('::')[-1]}"
            row["args"] = [refs[id(t)] for t in tensors if t.device.type != "cpu"]
            row.pop("kwargs", None)
            row["opaque"] = self._unknown(func, tensors, results, refs)
            if (collective := collectives.met(func, args, out)) is not None:
                self._meet(row, collective, tensors, on_device, refs)
        turned = [r for r in on_device if before.get(id(r), geometry(r)) != geometry(r)]
        if turned:  # transpose_ and its like give their tensor another shape: a view of what it was
            row["op"] = _VIEW_OF.get(row["op"], row["op"])
        place.row = len(self.ops)
        self._finish(row, func, tensors, results, refs, {id(t) for t in turned})
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
        tensors = _tensors((args, kwargs))
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
        if self.virtual and _hangs_on_values(func, name, args, kwargs):
            if name in HOST_READS and not self.strict:
                return self._read(func, name, args, kwargs)
            raise self._data_dependent(name, args, kwargs)
        try:
            return func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            if name in HOST_READS and not self.strict:
                return self._read(func, name, args, kwargs)
            raise self._data_dependent(name, args, kwargs) from error
        except CaptureError:
            raise
        except Exception as error:
            raise self._failed(name, args, kwargs, error) from error

    def _read(self, func, name, args, kwargs):
        """What the host reads from a device that computes nothing: what is known, else zero."""
        if (computed := self.known.compute(func, args, kwargs)) is not None:
            return computed
        if name != "aten._local_scalar_dense.default":
            return False
        dtype = args[0].dtype
        return False if dtype == torch.bool else 0.0 if dtype.is_floating_point else 0

    def _refuse_unlike(self, name: str, args) -> None:
        """Fake tensors multiply numbers of two types; no card does."""
        factors = [args[i] for i in _FACTORS.get(name, ()) if i < len(args)]
        if len({t.dtype for t in factors}) > 1:
            raise CaptureError(
                f"{name} is given factors of two types",
                place=self._where(name),
                expected="one dtype",
                got=", ".join(_describe(t) for t in factors),
                hint="on a GPU this module fails in the same way: cast one, as in x.to(weight.dtype); under FSDP2 buffers keep their type "
                "while parameters are cast",
            )

    def _data_dependent(self, name, args, kwargs) -> CaptureError:
        read = name in HOST_READS
        return CaptureError(
            f"{name} needs the values of a tensor, and capture has none",
            place=self._where(name),
            expected="sizes and control flow that do not hang on computed values",
            got=", ".join(_describe(t) for t in _tensors((args, kwargs))) or "nothing",
            hint="if it hangs on the batch alone, give a batch that lies on the CPU, with its values; "
            + (
                "capture with strict=False: the host then reads zeros"
                if read
                else "capture with strict=False: a mask then chooses a share of its elements (chosen=); give the operator a fixed size (a stated capacity per expert), or wrap it in a torch.library.custom_op, "
                "which is captured as one opaque operator"
            ),
        )

    def _failed(self, name, args, kwargs, error) -> CaptureError:
        tensors = _tensors((args, kwargs))
        kinds = {t.device.type for t in tensors if t.dim()}
        if len(kinds) > 1:
            return CaptureError(
                f"{name} is given tensors on the host and on the GPU",
                place=self._where(name),
                expected="all on one device",
                got=", ".join(_describe(t) for t in tensors),
                hint="on a GPU this module fails in the same way: make the tensor with device=x.device, or register it "
                "as a buffer",
            )
        return CaptureError(
            f"{name} failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            place=self._where(name),
            got=", ".join(_describe(t) for t in tensors),
            hint="an operator that fake tensors do not know needs torch.library.register_fake; it is then captured as "
            "one opaque operator",
        )

    def _where(self, name: str) -> str:
        frame = next(
            (
                f
                for f in reversed(traceback.extract_stack())
                if "/torch/" not in f.filename and "/foreshard/capture/" not in f.filename and "/foreshard/shadow/reads/values.py" not in f.filename
            ),
            None,
        )
        line = f" ({frame.filename}:{frame.lineno})" if frame else ""
        return f"module {self.place()}, operator {name}{line}"

    # -------------------------------------------------------------------------------------------- arguments

    def reference(self, tensor: torch.Tensor) -> str:
        """How the program names a tensor."""
        storage = self.table.known_storage(tensor)
        # A view of a view of a parameter may lie as that does; its history does not.
        settled = not self._writes and _is_settled(tensor)
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
            self.ops.append(
                {"op": "aten.detach.default", "module": self.modules.name(), "call": self.modules.call(),
                 "args": [reference]}
            )  # fmt: skip
            if self.region is not None:
                self.ops[-1]["region"] = self.region
            value = self.table.add(self.table.new_name(), tensor, len(self.ops) - 1)
            value.detached = True
            self.ops[-1]["out"] = [value]
            name = self._detached[key] = value.name
        return "%" + name

    def _leaf(self, tensor: torch.Tensor, value: Value) -> Value:
        """What a script has called requires_grad_() of: the same memory, from which gradients are asked for."""
        self._row("aten.detach.default", ["%" + value.name])
        leaf = self.table.add(self.table.new_name(), tensor, self.now)
        leaf.grows = leaf.leaf = True
        self.ops[-1]["out"] = [leaf]
        return leaf

    def _row(self, op: str, args: list[Any]) -> None:
        self.ops.append({"op": op, "module": self.modules.name(), "call": self.modules.call(), "args": args})
        if self.region is not None:
            self.ops[-1]["region"] = self.region

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

    def enter(self, name: str, args: Any) -> None:
        """The module `name` is called: what comes is in its call, though it has not begun (a `__call__` of its own). A view says so."""
        given = next((t for t in _tensors(args) if t.device.type != "cpu" and t.is_floating_point()), None)
        if given is None:
            return
        row = {"op": "aten.view.default", "module": name, "call": self.modules.next_call(name), "args": [self.reference(given), list(given.shape)]}
        value = self.table.add(self.table.new_name(), given, len(self.ops))
        value.grows = given.requires_grad and torch.is_grad_enabled()
        self.ops.append(row | {"out": [value]})

    def _appeared(self, tensor: torch.Tensor, storage) -> Value | None:
        """A tensor that no recorded operator made."""
        if tensor.device.type == "cpu":
            return None
        row: dict[str, Any] = {"module": self.modules.name(), "call": self.modules.call()}
        if storage is not None:  # a view that was made out of sight
            base = next(iter(storage.references.values()), "") or "%" + storage.values[0].name
            row |= {
                "op": "aten.as_strided.default",
                "args": [base, list(tensor.shape), list(tensor.stride()), tensor.storage_offset()],
            }
        else:  # a tensor that a module or a closure carries with it
            row |= {"op": "aten.empty.memory_format", "args": [list(tensor.shape)]}
            if tensor.numel():
                self.notes.append(
                    f"{self.place()}: a tensor {_describe(tensor)} that is no parameter, buffer or input is counted as made "
                    "in every step"
                )
        if self.region is not None:
            row["region"] = self.region
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
            return self._argument(_host_number(value), refs)
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

    # ----------------------------------------------------------------------------------------------- opaque

    def _unknown(self, func, tensors, results, refs) -> dict[str, Any]:
        """A custom operator without autograd of its own, or a collective that the script calls."""
        moved = sum(t.numel() * t.element_size() for t in [*tensors, *results] if isinstance(t, torch.Tensor))
        # NCCL gathers into one tensor, whose parts are copied to those of the list (ProcessGroupNCCL: newLikeFlat).
        in_one = sum(t.numel() * t.element_size() for t in tensors[:-1]) if str(func) == "c10d.allgather_.default" else 0
        return {"saved": [], "bytes_moved": moved, "flops": 0, "workspace_bytes": in_one, "backward": []}

    def write(self, name: str, args: list[torch.Tensor], result: torch.Tensor, frame: Opaque) -> None:
        """An operator that rules know, in the place of the opaque one that has run."""
        self.table.watch(self.now)
        row = {"op": name, "module": self.modules.name(), "call": self.modules.call(), "args": [self.reference(t) for t in args]}
        if self.region is not None:
            row["region"] = self.region
        if kept := sorted({place.name for _, place in frame.asked if place.kept}):
            row["kwargs"] = {"kept_inside": [{"text": each} for each in kept]}
        self.ops.append(row)
        value = self.table.add(self.table.new_name(), result, self.now)
        value.grows = result.requires_grad
        row["out"] = [value]

    def begin_opaque(self, name: str, args: Any) -> Opaque:
        self.table.watch(self.now)
        places = [
            (i, t) for i, arg in enumerate(args) for t in _tensors(arg) if t.device.type != "cpu"
        ]  # a function is differentiable in the tensors among its arguments, not in those inside lists
        tensors = [t for _, t in places]
        frame = Opaque(f"opaque.{name}", [self.reference(t) for t in tensors])
        frame.arguments = [
            (i, list(t.shape), dtype_name(t.dtype), t.requires_grad and args[i] is t) for i, t in places
        ]
        frame.known = {storage_key(t) for t in tensors}
        frame.tensors = tensors
        self.opaque = frame
        return frame

    def end_opaque(self, frame: Opaque, outputs: Any, carried: list[torch.Tensor] | None = None) -> None:
        """`carried`: tensors that its node holds beside what it has saved: they live as long as the graph."""
        self.opaque = None
        tensors, frame.tensors = frame.tensors, []
        results = tree_flatten(outputs)[0]
        row: dict[str, Any] = {
            "op": frame.name,
            "module": self.modules.name(),
            "call": self.modules.call(),
            "args": frame.args,
        }
        if self.region is not None:
            row["region"] = self.region
        index, all_told = self._write_temporaries(frame, row, results, carried or [])
        by_storage = {storage_key(t): ref for t, ref in zip(tensors, frame.args)}
        out, kept = [], 0
        for result in results:
            if not isinstance(result, torch.Tensor) or result.device.type == "cpu":
                out.append(None)
                continue
            reference = by_storage.get(storage_key(result), "")
            if reference.startswith("%"):  # hands its argument on, or changes it in place
                out.append({"name": reference[1:]})
                storage = self.table.known_storage(result)
                self.table.also(result, next(v for v in storage.values if v.name == reference[1:]))
                continue
            value = self.table.add(self.table.new_name(), result, index)
            value.grows = result.requires_grad
            kept += frame.live.get(storage_key(result), (None, 0))[1]
            by_storage[storage_key(result)] = "%" + value.name
            out.append(value)
        row["out"] = out
        for tensor in carried or []:
            key = storage_key(tensor)
            if tensor.device.type != "cpu" and key not in by_storage and key in frame.live:
                value = self.table.add_whole(self.table.new_name(), tensor, index)
                by_storage[key] = "%" + value.name
                kept += frame.live[key][1]
                out.append(value)
        saved: dict[str, Any] = {}
        for key, shape, dtype, nbytes in frame.saved:
            reference = by_storage.get(key, "")
            told: Any = reference[1:]
            if not reference:
                told = {"shape": list(shape), "dtype": dtype_name(dtype)}
                kept += nbytes
            elif not reference.startswith("%"):
                frame.places.append(None)
                continue
            saved.setdefault(str(told), told)
            frame.places.append(list(saved).index(str(told)))
        row["opaque"] = {
            "saved": list(saved.values()),
            "bytes_moved": sum(
                t.numel() * t.element_size() for t in [*tensors, *results] if isinstance(t, torch.Tensor)
            ),
            "flops": frame.flops,
            "workspace_bytes": 0 if all_told else max(0, frame.peak - kept),
            "backward": [],
        }
        if frame.meets:
            row["kwargs"] = row.get("kwargs", {}) | {"meets": frame.meets}
        frame.row = row

    def _write_temporaries(self, frame: Opaque, row, results, carried) -> tuple[int, bool]:
        """The operator's row, and around it what else it had while it ran, in the order in which that came and went: blocks of their
        own sizes take other room than one of their sum. The row's number, and whether they are all told."""
        stays = {storage_key(t) for t in [*_tensors(results), *carried]} | {key for key, *_ in frame.saved}
        last = {key: at for at, (key, nbytes) in enumerate(frame.events) if nbytes > 0}  # a key is used again
        made = sorted(at for key, at in last.items() if key in stays and key in frame.live)
        before = len(self.ops)
        first = next((storage_key(t) for t in _tensors(results)), None)
        if first in last and last[first] in made:
            row["kwargs"] = _dispatched(frame.makers[last[first]])
        if len(frame.events) > _TEMPORARIES or not made:
            self.ops.append(row)
            frame.write_places({at: before for at in made})
            return before, False
        at_once, rows, row_of = made[-1], [], {}  # what stays is the row's: when the last of it is made
        early = _made_before_others(frame, made)

        live: dict[int, Storage] = {}
        for at, (key, nbytes) in enumerate(frame.events):
            if at == at_once:
                for standing in (each for each in early if each in live):
                    live.pop(standing).death = before + len(rows) - 1
                rows.append(row)
            elif nbytes > 0 and (at not in made or key in early):
                live[key] = Storage(None, nbytes, born=before + len(rows), death=before + len(rows))
                value = Value(self.table.new_name(), (nbytes,), torch.uint8, (1,), live[key])
                live[key].values.append(value)
                rows.append(
                    {"op": "aten.empty.memory_format", "module": row["module"], "call": row["call"], "args": [[nbytes]],
                     "kwargs": {"dtype": {"dtype": "uint8"}} | _dispatched("" if at in made else frame.makers[at]), "out": [value]}
                )  # fmt: skip
                if at not in made:
                    row_of[at] = before + len(rows) - 1
                if "region" in row:
                    rows[-1]["region"] = row["region"]
            elif key in live:
                live.pop(key).death = before + len(rows) - 1
        for storage in live.values():
            storage.death = before + len(rows) - 1
        self.ops.extend(rows)
        own = before + rows.index(row)
        frame.write_places(row_of | {at: own for at in made})
        return own, True

    def begin_opaque_backward(self, name: str, known: list[torch.Tensor]) -> Opaque:
        """Operators from now on are those of a backward: only what they allocate counts."""
        self.opaque = Opaque(name, [], known={storage_key(t) for t in known}, forward=False)
        return self.opaque


def _made_before_others(frame: Opaque, made: list[int]) -> set[int]:
    """Storages that stay and are there while others come and go (a gradient that chunks are added to): until the row makes them, room
    of their size stands for them."""
    between = [at for at, (_, nbytes) in enumerate(frame.events) if nbytes > 0 and at not in made and at < made[-1]]
    return {frame.events[at][0] for at in made[:-1] if between and at < between[-1]}


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


def _hangs_on_values(func, name: str, args, kwargs) -> bool:
    """Whether the host would have to know what a card has computed: fake tensors refuse by themselves, a card answers."""
    if not any(t.device.type == "cuda" for t in _tensors((args, kwargs))):
        return False
    if name in HOST_READS:
        return True
    if torch.Tag.dynamic_output_shape not in func.tags or name == "aten._ctc_loss.default":  # whose lengths are lists
        return False
    if name == "aten.index.Tensor":  # by masks alone
        return any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(args[1]))
    return kwargs.get("output_size") is None


def _is_settled(tensor: torch.Tensor) -> bool:
    """Whether its history can be asked for: that of a view whose memory has been written to is made when it is asked for first, which is
    autograd's to do."""
    return tensor._version == 0 or not tensor._is_view()


def _describe(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)} on {tensor.device.type}"


def _host_number(tensor: torch.Tensor) -> bool | int | float:
    """A tensor on the host where the card's operator takes a number: NaN where its value is not there."""
    constant = getattr(tensor, "constant", None) if isinstance(tensor, FakeTensor) else tensor
    if isinstance(constant, torch.Tensor) and constant.numel() == 1 and constant.device.type == "cpu":
        with _disable_current_modes():
            number = constant.item()
        return number if isinstance(number, (bool, int, float)) else math.nan
    return math.nan if tensor.dtype.is_floating_point else 0
