"""Operators that nobody can look into (an autograd.Function, a custom operator, a kernel of Triton): one row each. What
runs inside counts as their workspace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_flatten

from .values import Storage, Value, dtype_name, storage_key, tensors_of

if TYPE_CHECKING:
    from .recorder import Recorder

_TEMPORARIES = 400  # that a function has one after the other: more count as one block
_LEFT_FACTORS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::addmm_": 1, "aten::baddbmm_": 1}


def product_flops(func, args, out) -> int:
    """Of a product of matrices: two for each element of the result and of the inner dimension."""
    left = _LEFT_FACTORS.get(func._schema.name)
    return 0 if left is None or not isinstance(out, torch.Tensor) else 2 * out.numel() * args[left].shape[-1]


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
    goes_back: bool = False  # backward: it calls the engine in turn
    asks: bool = False  # ... or asks it for gradients (torch.autograd.grad)
    ran: list[str] = field(default_factory=list)  # operators inside, in order
    meets: list[list] = field(default_factory=list)  # collectives inside, as the model has them
    unpacked: dict[int, int] = field(default_factory=dict)  # backward: storages made for `saved`, by place there

    def measure(self, outputs: Any, name: str) -> Place:
        """New storages of the operator `name` that ran inside, and its place."""
        place = Place(name)
        for key in [k for k, (weak, _) in self.live.items() if weak.expired()]:
            self._event(key, -self.live.pop(key)[1], "")
        for tensor in tensors_of(outputs):
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


def facts_of(func, tensors, results) -> dict[str, Any]:
    """A custom operator without autograd of its own, or a collective that the script calls."""
    moved = sum(t.numel() * t.element_size() for t in [*tensors, *results] if isinstance(t, torch.Tensor))
    # NCCL gathers into one tensor, whose parts are copied to those of the list (ProcessGroupNCCL: newLikeFlat).
    in_one = sum(t.numel() * t.element_size() for t in tensors[:-1]) if str(func) == "c10d.allgather_.default" else 0
    return {"saved": [], "bytes_moved": moved, "flops": 0, "workspace_bytes": in_one, "backward": []}


class OpaqueRuns:
    """Watches such an operator run, and writes its row. While one runs, it is the recorder's `opaque`."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder

    def begin(self, name: str, args: Any) -> Opaque:
        recorder = self._recorder
        recorder.look()
        places = [
            (i, t) for i, arg in enumerate(args) for t in tensors_of(arg) if t.device.type != "cpu"
        ]  # a function is differentiable in the tensors among its arguments, not in those inside lists
        tensors = [t for _, t in places]
        frame = Opaque(f"opaque.{name}", [recorder.reference(t) for t in tensors])
        frame.arguments = [(i, list(t.shape), dtype_name(t.dtype), t.requires_grad and args[i] is t) for i, t in places]
        frame.known = {storage_key(t) for t in tensors}
        frame.tensors = tensors
        recorder.opaque = frame
        return frame

    def end(self, frame: Opaque, outputs: Any, carried: list[torch.Tensor] | None = None) -> None:
        """`carried`: tensors that its node holds beside what it has saved: they live as long as the graph."""
        recorder = self._recorder
        recorder.opaque = None
        tensors, frame.tensors = frame.tensors, []
        results = tree_flatten(outputs)[0]
        row = recorder.new_row(frame.name, frame.args)
        index, all_told = write_temporaries(recorder, frame, row, results, carried or [])
        references = {storage_key(t): ref for t, ref in zip(tensors, frame.args)}  # by storage
        row["out"], kept = self._values_of(frame, results, carried or [], references, index)
        saved, kept_beside = _saved_of(frame, references)
        row["opaque"] = {
            "saved": saved,
            "bytes_moved": sum(t.numel() * t.element_size() for t in [*tensors, *results] if isinstance(t, torch.Tensor)),
            "flops": frame.flops,
            "workspace_bytes": 0 if all_told else max(0, frame.peak - kept - kept_beside),
            "backward": [],
        }
        if frame.meets:
            row["kwargs"] = row.get("kwargs", {}) | {"meets": frame.meets}
        frame.row = row

    def _values_of(self, frame: Opaque, results, carried, references: dict[int, str], index: int) -> tuple[list[Any], int]:
        """Its results, what it carries behind them, and how many bytes of its own they keep. `references` grows by them."""
        table = self._recorder.table
        out: list[Any] = []
        kept = 0
        for result in results:
            if not isinstance(result, torch.Tensor) or result.device.type == "cpu":
                out.append(None)
                continue
            reference = references.get(storage_key(result), "")
            if reference.startswith("%"):  # hands its argument on, or changes it in place
                out.append({"name": reference[1:]})
                storage = table.known_storage(result)
                table.also(result, next(v for v in storage.values if v.name == reference[1:]))
                continue
            value = table.add(table.new_name(), result, index)
            value.grows = result.requires_grad
            kept += frame.live.get(storage_key(result), (None, 0))[1]
            references[storage_key(result)] = "%" + value.name
            out.append(value)
        for tensor in carried:
            key = storage_key(tensor)
            if tensor.device.type != "cpu" and key not in references and key in frame.live:
                value = table.add_whole(table.new_name(), tensor, index)
                references[key] = "%" + value.name
                kept += frame.live[key][1]
                out.append(value)
        return out, kept

    def begin_backward(self, name: str, known: list[torch.Tensor]) -> Opaque:
        """Operators from now on are those of a backward: only what they allocate counts."""
        self._recorder.opaque = Opaque(name, [], known={storage_key(t) for t in known}, forward=False)
        return self._recorder.opaque

    def stand_in(self, name: str, args: list[torch.Tensor], result: torch.Tensor, frame: Opaque) -> None:
        """An operator that rules know, in the place of the opaque one that has run."""
        recorder = self._recorder
        recorder.look()
        row = recorder.new_row(name, [recorder.reference(t) for t in args])
        if kept := sorted({place.name for _, place in frame.asked if place.kept}):
            row["kwargs"] = {"kept_inside": [{"text": each} for each in kept]}
        recorder.ops.append(row)
        value = recorder.table.add(recorder.table.new_name(), result, recorder.now)
        value.grows = result.requires_grad
        row["out"] = [value]


def _saved_of(frame: Opaque, references: dict[int, str]) -> tuple[list[Any], int]:
    """What it keeps for its backward, each once, and the bytes of it that are neither argument nor result. Notes their places in the frame."""
    saved: dict[str, Any] = {}
    beside = 0
    for key, shape, dtype, nbytes in frame.saved:
        reference = references.get(key, "")
        told: Any = reference[1:]
        if not reference:
            told = {"shape": list(shape), "dtype": dtype_name(dtype)}
            beside += nbytes
        elif not reference.startswith("%"):
            frame.places.append(None)
            continue
        saved.setdefault(str(told), told)
        frame.places.append(list(saved).index(str(told)))
    return list(saved.values()), beside


def write_temporaries(recorder: Recorder, frame: Opaque, row, results, carried) -> tuple[int, bool]:
    """The operator's row, and around it what else it had while it ran, in the order in which that came and went: blocks of their
    own sizes take other room than one of their sum. The row's number, and whether they are all told."""
    stays = {storage_key(t) for t in [*tensors_of(results), *carried]} | {key for key, *_ in frame.saved}
    last = {key: at for at, (key, nbytes) in enumerate(frame.events) if nbytes > 0}  # a key is used again
    made = sorted(at for key, at in last.items() if key in stays and key in frame.live)
    before = len(recorder.ops)
    first = next((storage_key(t) for t in tensors_of(results)), None)
    if first in last and last[first] in made:
        row["kwargs"] = _dispatched(frame.makers[last[first]])
    if len(frame.events) > _TEMPORARIES or not made:
        recorder.ops.append(row)
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
            value = Value(recorder.table.new_name(), (nbytes,), torch.uint8, (1,), live[key])
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
    recorder.ops.extend(rows)
    own = before + rows.index(row)
    frame.write_places(row_of | {at: own for at in made})
    return own, True


def _made_before_others(frame: Opaque, made: list[int]) -> set[int]:
    """Storages that stay and are there while others come and go (a gradient that chunks are added to): until the row makes them, room
    of their size stands for them."""
    between = [at for at, (_, nbytes) in enumerate(frame.events) if nbytes > 0 and at not in made and at < made[-1]]
    return {frame.events[at][0] for at in made[:-1] if between and at < between[-1]}
