"""FSDP2's public knobs, set on a module as a plan or schedule says."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from .errors import Error

_WRAPPERS = ("_checkpoint_wrapped_module", "_orig_mod")


@dataclass
class Applied:
    """What was set.

    Attributes:
        settings: (unit, knob, value) in the order in which they were set; the root is "".
        not_expressed: what the plan decides and the knobs have no word for, one sentence each.
        syncs: by micro-batch, whether gradients are reduced in its backward.
    """

    module: Any
    settings: list[tuple[str, str, Any]] = field(default_factory=list)
    not_expressed: list[str] = field(default_factory=list)
    syncs: list[bool] = field(default_factory=lambda: [True])
    kept_over_micro_batches: list[str] = field(default_factory=list)

    def begin_micro_batch(self, index: int) -> None:
        """Before the forward of each micro-batch, counted from 0, where gradients are accumulated."""
        last = index == len(self.syncs) - 1
        self.module.set_requires_gradient_sync(self.syncs[index])
        self.module.set_is_last_backward(last)
        units = _units(self.module)
        for name in self.kept_over_micro_batches:
            units[name].set_reshard_after_backward(last, recurse=False)

    def __repr__(self) -> str:
        lines = [f"<Applied {len(self.settings)} settings>", *(f"  not expressed: {text}" for text in self.not_expressed)]
        return "\n".join(lines)


@dataclass
class _Unit:
    name: str
    reshard: bool | int
    forward: list[str] | None = None  # units whose gather its pre-forward issues; None: as FSDP2 does
    backward: list[str] | None = None


def apply(module: Any, schedule: Any) -> Applied:
    """Sets FSDP2's public knobs on a module that `fully_shard` has sharded: set_reshard_after_forward,
    set_modules_to_forward_prefetch, set_modules_to_backward_prefetch; `begin_micro_batch` of what it returns sets
    set_requires_gradient_sync, set_is_last_backward and set_reshard_after_backward.

    Args:
        module: the root, every unit sharded as the plan's are.
        schedule: what `foreshard.plan` or `foreshard.schedule` gives, its document, or the path of one.

    Raises:
        Error: no FSDP2 module, no plan of fsdp2, units that are not the plan's.
    """
    document = _document(schedule)
    kind = str(document.get("schema", "")).rsplit("/", 1)[0]
    modules = _units(module)
    if kind == "foreshard.plan":
        applied, units = _of_plan(module, document)
    elif kind == "foreshard.schedule":
        applied, units = _of_schedule(module, document)
    else:
        raise Error({
            "code": "wrong_type", "message": "this is no plan and no schedule", "place": "schema",
            "expected": '"foreshard.plan/1" or "foreshard.schedule/1"', "got": repr(document.get("schema")),
        })  # fmt: skip
    _check_units(modules, [unit.name for unit in units])
    for unit in units:
        _set(applied, modules, unit)
    return applied


def _document(schedule: Any) -> dict[str, Any]:
    if isinstance(schedule, (str, os.PathLike)):
        with open(schedule, encoding="utf-8") as file:
            schedule = json.load(file)
    return getattr(schedule, "document", schedule)


def _units(module: Any) -> dict[str, Any]:
    """FSDP modules by the name that they had before wrappers for checkpointing and compilation."""
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError as error:
        raise Error({
            "code": "unsupported", "message": "this PyTorch has no FSDP2", "expected": "torch 2.6 or later",
        }) from error  # fmt: skip
    found = {}
    for name, child in module.named_modules():
        if isinstance(child, FSDPModule):
            found.setdefault(".".join(part for part in name.split(".") if part not in _WRAPPERS), child)
    if "" not in found:
        raise Error({
            "code": "wrong_type", "message": "the module is not sharded by FSDP2", "expected": "fully_shard(module) before apply",
            "got": type(module).__name__,
        })  # fmt: skip
    return found


def _check_units(modules: dict[str, Any], planned: list[str]) -> None:
    missing = [name for name in planned if name not in modules]
    more = [name for name in modules if name not in planned]
    if not missing and not more:
        return
    told = [f"{len(names)} {what} ({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})"
            for what, names in (("of the plan's are not sharded", missing), ("are not in the plan", more)) if names]  # fmt: skip
    raise Error({
        "code": "inconsistent", "message": "the module is sharded into other units than the plan", "place": (missing + more)[0],
        "expected": f"{len(planned)} units", "got": "; ".join(told),
        "hint": "fully_shard the modules that fsdp.wrap names, or plan with the classes that you shard",
    })  # fmt: skip


def _set(applied: Applied, modules: dict[str, Any], unit: _Unit) -> None:
    module = modules[unit.name]
    where = unit.name or "the root"
    if isinstance(unit.reshard, bool):
        module.set_reshard_after_forward(unit.reshard, recurse=False)
        applied.settings.append((unit.name, "reshard_after_forward", unit.reshard))
    else:
        applied.not_expressed.append(
            f"{where}: {unit.reshard} ranks keep the parameters together after forward: an argument of fully_shard "
            f"(reshard_after_forward={unit.reshard}), which no setter changes"
        )
    for direction, names in (("forward", unit.forward), ("backward", unit.backward)):
        if names:
            getattr(module, f"set_modules_to_{direction}_prefetch")([modules[name] for name in names])
            applied.settings.append((unit.name, f"{direction}_prefetch", list(names)))


# ------------------------------------------------------------------------------------------------------------- plans


def _of_plan(module: Any, plan: dict[str, Any]) -> tuple[Applied, list[_Unit]]:
    if plan["runtime"] not in ("fsdp2", "planned"):
        raise Error({
            "code": "unsupported", "message": "only FSDP2 has these knobs", "place": "runtime",
            "expected": '"fsdp2"', "got": json.dumps(plan["runtime"]), "hint": "plan with fsdp.runtime = \"fsdp2\"",
        })  # fmt: skip
    applied = Applied(module)
    steady = plan["iterations"][-1]["instructions"]
    cuts = [i for i, step in enumerate(steady) if step["kind"] == "mark" and step.get("name") == "micro_batch"] or [0]
    batches = [steady[a:b] for a, b in zip(cuts, [*cuts[1:], len(steady)])]
    applied.syncs = [any(s["kind"] in ("reduce_scatter", "all_reduce") for s in batch) for batch in batches]
    forward, backward = _prefetched(batches[0], "pre_forward"), _prefetched(batches[0], "pre_backward")
    for number, batch in enumerate(batches[1:], 1):
        if (_prefetched(batch, "pre_forward"), _prefetched(batch, "pre_backward")) != (forward, backward):
            applied.not_expressed.append(f"micro-batch {number} gathers in another order than the first: lists hold for all")
    default = _default_backward(plan)
    units = []
    for row in plan["units"]:
        unit = _Unit(row["module"], row["reshard_after_forward"])
        unit.forward = forward.get(unit.name)
        own, usual = backward.get(unit.name, []), default.get(unit.name, [])
        if own != usual:
            unit.backward = own
            if not own:
                applied.not_expressed.append(
                    f"{unit.name or 'the root'}: gathers nothing ahead in backward: FSDP2 gathers {usual[0]} there, an empty "
                    "list means just that"
                )
        units.append(unit)
    return applied, units


def _prefetched(batch: list[dict[str, Any]], hook: str) -> dict[str, list[str]]:
    """By unit: the others that are unsharded behind its hook, in order; gathered where they are not yet."""
    out: dict[str, list[str]] = {}
    inside: str | None = None
    for step in batch:
        unit, name = step.get("unit", ""), step.get("name")
        if step["kind"] == "mark" and name == f"begin {hook}":
            inside = unit
        elif step["phase"] != hook:
            inside = None
        elif step["kind"] == "mark" and name == "begin unshard" and inside is not None and unit != inside:
            out.setdefault(inside, []).append(unit)
    return out


def _default_backward(plan: dict[str, Any]) -> dict[str, list[str]]:
    """What FSDP2 prefetches without a list: the unit before in the order of post-forwards."""
    order = plan["order"]["post_forward"]
    return {unit: [before] for before, unit in zip(order, order[1:])}


# --------------------------------------------------------------------------------------------------------- schedules


def _of_schedule(module: Any, document: dict[str, Any]) -> tuple[Applied, list[_Unit]]:
    applied = Applied(module)
    units = {row["module"]: _Unit(row["module"], True) for row in document["units"]}
    made_for = document.get("made_for", {})
    applied.syncs = [True] * int(made_for.get("micro_batches", 1))
    for row in document["units"]:
        unit, name = units[row["module"]], row["module"] or "the root"
        keep = row.get("keep") or ("keep" if not row["module"] else "reshard")  # FSDP2 keeps its root
        unit.reshard = int(keep) if keep.isdigit() else keep == "reshard"
        if keep == "always":
            applied.kept_over_micro_batches.append(unit.name)
        for direction in ("forward", "backward"):
            at = row.get(f"gather_{direction}")
            if at is None or at == unit.name:
                continue
            lists = units[at]
            setattr(lists, direction, [*(getattr(lists, direction) or []), unit.name])
        if row.get("activations") in ("recompute", "offload"):
            applied.not_expressed.append(
                f"{name}: activations are {'recomputed' if row['activations'] == 'recompute' else 'offloaded'}: wrap the module before fully_shard "
                "(torch.distributed.algorithms._checkpoint.checkpoint_wrapper)"
            )
        if row.get("reduce") not in (None, row["module"]):
            applied.not_expressed.append(f"{name}: gradients are reduced after {row['reduce'] or 'the root'}: FSDP2 reduces at once")
        if row.get("bucket") and len(row.get("modules", [])) > 1:
            applied.not_expressed.append(f"{name}: one collective for {', '.join(row['modules'])}: fully_shard([...]) of that list")
    return applied, list(units.values())
