"""foreshard.model/2 (docs/formats/model.md) from a recording."""

from __future__ import annotations

import itertools
import json
import os
from typing import Any

import torch

from .._output import whole_file
from .values import Value, dtype_name, names_of

SCHEMA = "foreshard.model/2"


class CapturedModel:
    """A module's program, ready to be planned and simulated.

    Attributes:
        document: the model as foreshard.model/2 has it.
        notes: what was met on the way, one sentence each.
        device: "virtual" or "fake": where it was captured.
        allocator: on the virtual device what the real allocator said of the module's forward and backward by itself, without
            FSDP (bytes): {"state", "forward_peak", "forward_end", "backward_peak"}; else empty.
    """

    def __init__(self, document: dict[str, Any], notes: list[str], device: str = "fake"):
        self.document = document
        self.notes = notes
        self.device = device
        self.allocator: dict[str, int] = {}

    @property
    def name(self) -> str:
        return self.document["name"]

    def to_json(self) -> str:
        """The text of the file: one row a line."""
        parts = []
        for key, value in self.document.items():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                rows = ",\n  ".join(json.dumps(row, separators=(", ", ": ")) for row in value)
                parts.append(f'"{key}": [\n  {rows}]')
            else:
                parts.append(f'"{key}": {json.dumps(value)}')
        return "{" + ",\n ".join(parts) + "}\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model to a file that every verb of `foreshard` reads."""
        with whole_file(path) as file:
            file.write(self.to_json())

    def __repr__(self) -> str:
        count = sum(_numel(p["shape"]) for p in self.document["params"] if "shares" not in p)
        return f"<CapturedModel {self.name}: {count:,} parameters, {len(self.document['ops']):,} operators>"


def _numel(shape) -> int:
    out = 1
    for size in shape:
        out *= size
    return out


def _params(session, compute: str) -> list[dict[str, Any]]:
    """Those in a part of the model that computes in a dtype of its own say so."""
    rows = session.structure.params()
    for row in rows if session.parts else ():
        of_part = session.dtypes_of(row["fqn"].rpartition(".")[0])[0]
        own = row["dtype"] if of_part is None else dtype_name(of_part)
        if getattr(torch, own).is_floating_point and own != compute:
            row["gathered"] = own
    return rows


def make_document(session, regions: list[dict[str, Any]]) -> dict[str, Any]:
    program = _Program(session, regions)
    document: dict[str, Any] = {"schema": SCHEMA, "name": session.name, "architecture": "captured"}
    if block := session.structure.block_class():
        document["block_class"] = block
    if tokens := _tokens(session.table.inputs):
        document["tokens_per_batch"] = tokens
    document["has_loss"] = True
    compute = session.param or next(
        (p.dtype for p in session.module.parameters() if p.is_floating_point()), torch.float32
    )
    document["compute_dtype"] = dtype_name(compute)
    params = _params(session, dtype_name(compute))
    if session.param is not None and len({row["dtype"] for row in params}) > 1:
        document["params_cast"] = True
    if session.loss_begin >= 0:
        document["loss_begin"] = program.begin(session.loss_begin)
    document["lifetimes"] = "recorded"
    if session.recorder.assumes_choices:
        document["choices"] = "assumed"
    if session.job:
        document["job"] = session.job
    if session.recorder.mesh.groups:
        document["mesh"] = session.recorder.mesh.rows(torch.distributed.get_world_size())
    document["inputs"] = [_input(value) for value in session.table.inputs]
    document["modules"] = session.structure.modules
    document["params"] = params
    document["buffers"] = session.structure.buffers()
    document["ops"] = [_op(op, program, session.loss) for op in program.ops]
    _hold_what_is_shared(document["ops"], program.begin(session.once))
    document["module_calls"] = [_numbered(row) for row in session.module_calls]
    if regions:
        for row in regions:
            if "save" in row:
                row["save"] = [program.begin(k) for k in row["save"]]
        document["regions"] = [_numbered(row) for row in regions]
    document["outputs"] = [session.loss] + [name for name in session.outputs if name != session.loss]
    return document


def _hold_what_is_shared(ops: list[dict[str, Any]], once: int) -> None:
    """What several micro-batches share is there until the next time that it is made."""
    read = {name for op in ops[once:] for name in names_of(op["args"]) + names_of(op.get("kwargs", {}))} if once else set()
    for op in ops[:once]:
        for row in op["out"]:
            if isinstance(row, dict) and (row["name"] in read or row.get("held_until") == "step"):
                row["held_until"] = "next"


def _tokens(inputs: list[Value]) -> int:
    ids = next((v for v in inputs if v.dtype in (torch.int64, torch.int32) and len(v.shape) == 2), None)
    return ids.shape[0] * ids.shape[1] if ids else 0


def _numbered(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "call" or value}


def _input(value: Value) -> dict[str, Any]:
    row: dict[str, Any] = {"name": value.name, "shape": list(value.shape), "dtype": dtype_name(value.dtype)}
    if value.requires_grad:
        row["requires_grad"] = True
    if not value.contiguous:
        row["strides"] = list(value.strides)
    if value.alias_of:
        row["alias_of"] = value.alias_of
    return row


def _op(op: dict[str, Any], program: _Program, loss: str) -> dict[str, Any]:
    row = {"op": op["op"], "module": op["module"]}
    if op.get("call"):
        row["call"] = op["call"]
    row["args"] = op["args"]
    if op.get("kwargs"):
        row["kwargs"] = op["kwargs"]
    if "releases" in op:
        row["kwargs"] = row.get("kwargs", {}) | {"releases": [{"text": name} for name in op["releases"]]}
    row["out"] = [_result(out, program, loss) if isinstance(out, Value) else out for out in op["out"]]
    for key in ("region", "opaque"):
        if key in op:
            row[key] = op[key]
    return row


def _result(value: Value, program: _Program, loss: str) -> dict[str, Any]:
    row: dict[str, Any] = {"name": value.name, "shape": list(value.shape), "dtype": dtype_name(value.dtype)}
    if value.leaf:
        row["requires_grad"] = True
    if not value.contiguous:
        row["strides"] = list(value.strides)
    if value.cast_until is not None:
        row["held_until"] = {"autocast": max(program.begin(value.cast_until + 1) - 1, 0)}
        return row
    if value.storage.persistent or value.name == loss or not program.holds(value):
        return row
    until = program.held_until(value)
    if until is not None:
        row["held_until"] = {"op": until} if isinstance(until, int) else until
    return row


class _Program:
    """The recorded operators without autograd's own detaches and copies, which only a recorder sees, and numbered anew."""

    def __init__(self, session, regions: list[dict[str, Any]]):
        ops = list(session.recorder.ops)
        used = {session.loss, *session.outputs}
        for row in [*session.module_calls, *regions]:
            used.update(row["args"])
        for op in ops:
            if "dropped" not in op:
                used.update(names_of(op["args"]), names_of(op.get("kwargs", {})))
        kept = [
            "dropped" not in op and (op["op"] != "aten.detach.default" or any(isinstance(o, Value) and o.name in used for o in op["out"]))
            for op in ops
        ]
        views = _views(ops)
        for i, (op, after) in enumerate(zip(ops, ops[1:])):
            plain = _beside_its_copy(op, after, used)
            if not plain:
                continue
            kept[i] = False
            if op["args"][0][1:] not in views:  # a view is written for its base, too
                ops[i + 1] = {**after, "op": plain}
        self.ops = [op for op, keep in zip(ops, kept) if keep]
        self._before = list(itertools.accumulate(kept, initial=0))  # operators kept before this one
        self._storages = {}
        self._last_value, self.last_use = {}, {}
        for number, op in enumerate(self.ops):
            for out in op["out"]:
                if isinstance(out, Value):
                    self._storages[out.name] = out.storage
                    self._last_value[id(out.storage)] = out.name
                    self.last_use[id(out.storage)] = number
            for name in names_of(op["args"]) + names_of(op.get("kwargs", {})):
                if name in self._storages:
                    self.last_use[id(self._storages[name])] = number

    def begin(self, number: int) -> int:
        """What the first operator from `number` on is called now."""
        return self._before[min(number, len(self._before) - 1)]

    def holds(self, value: Value) -> bool:
        """Of several values of one storage the last one made stands for it."""
        return self._last_value.get(id(value.storage)) == value.name

    def held_until(self, value: Value) -> int | str | dict[str, str] | None:
        storage = value.storage
        if storage.death is None:
            return {"next": storage.replaces} if storage.stays == "next" and storage.replaces else storage.stays or "step"
        last = self._before[storage.death + 1] - 1
        return last if last > self.last_use[id(storage)] else None


def _views(ops: list[dict[str, Any]]) -> set[str]:
    """Values that other values' memory is seen through."""
    views = set()
    for op in ops:
        if not op["op"].startswith("aten."):
            continue
        base, overload = op["op"].removeprefix("aten.").rsplit(".", 1)
        returns = getattr(getattr(torch.ops.aten, base), overload)._schema.returns
        if any(r.alias_info is not None and not r.alias_info.is_write for r in returns):
            views.update(out.name for out in op["out"] if isinstance(out, Value))
    return views


def _beside_its_copy(copy: dict[str, Any], op: dict[str, Any], used: set[str]) -> str:
    """An operator in place whose derivative reads what it overwrites: autograd copies that first, and a program need not say
    so. What it takes is what the operator out of place takes, whose name this is. Empty: nothing of that kind."""
    if copy["op"] != "aten.clone.default" or not op["op"].startswith("aten.") or not op["args"]:
        return ""
    kept, result = copy["out"][0], op["out"][0] if op["out"] else None
    if not isinstance(kept, Value) or not isinstance(result, Value) or kept.name in used or copy["args"] != op["args"][:1]:
        return ""
    if not result.grows or result.storage.persistent or _numel(result.shape) * result.dtype.itemsize != result.storage.nbytes:
        return ""
    base, overload = op["op"].removeprefix("aten.").rsplit(".", 1)
    schema = getattr(getattr(torch.ops.aten, base), overload)._schema
    packet = getattr(torch.ops.aten, base.removesuffix("_"), None)
    wanted = [(a.name, str(a.type)) for a in schema.arguments]
    for name in packet.overloads() if packet is not None and schema.is_mutable else []:
        other = getattr(packet, name)._schema
        if not other.is_mutable and [(a.name, str(a.type)) for a in other.arguments] == wanted:
            return f"aten.{base.removesuffix('_')}.{name}"
    return ""
