"""Parameters of which each rank has its own (experts): what FSDP2 shards over fewer ranks than the rest, in a model whose program meets the ranks between.

Such a program is captured as it runs on one rank, with the sizes of its parts and the script's own collectives.
"""

from __future__ import annotations

import math
import sys

from . import expert_weights, names, tensor_plan, units, world
from .notes import note

_own = False
_is_decided = False  # what the copy of the model calls is no news
_tries = 0
_MOST_TRIES = 500  # collectives that are looked at
_OF_DTENSORS = "/torch/distributed/tensor/"
_LAYERS = {"colwise", "rowwise", "head", "head_gathered", "colwise_gathered", "packed_colwise"}  # words of mesh.plan that cut layers
_NEAR = 4  # frames between a module's forward and what it calls


def exchanged() -> None:
    """An all-to-all is called. Hooks of distribute_module() are no part of the copy of the model that is captured: the plan's own exchange
    stands for them (core/mesh); so does its ring for what context ranks send on. Whatever else calls one is."""
    global _own
    if _is_decided:
        return
    frame = None if _own else sys._getframe(1)
    while frame is not None and _OF_DTENSORS not in frame.f_code.co_filename:
        frame = frame.f_back
    _own = _own or frame is None


def exchanged_dimensions() -> None:
    """What is cut along one dimension is cut along another (DTensor.redistribute(), a style): no plan has that where no layer is cut."""
    global _own
    _own = _own or not _is_decided


def met() -> None:
    """Another collective is called: it is of the same kind where a module of experts calls it, which brings all ranks' rows to each."""
    global _own, _tries
    _tries += 1
    frame = None if _own or _is_decided or _tries > _MOST_TRIES else sys._getframe(2)
    for _ in range(_NEAR):
        if frame is None or "/torch/" in frame.f_code.co_filename and "/torch/distributed/nn/" not in frame.f_code.co_filename:
            return
        if "self" in frame.f_code.co_varnames and expert_weights.has_experts(names.variables(frame).get("self")):
            _own = True
        frame = frame.f_back


def exchanges() -> bool:
    """Whether the model's own code sends rows to other ranks: it is captured as it runs on this one, with this one's parts."""
    return _own


def mark(root, document: dict, found: dict) -> None:
    """Names the dimension of the model's mesh on which they lie, and what lies on it: all that FSDP2 shards over the ranks beside."""
    if not document.get("mesh"):
        return
    if not _own and tensor_plan.found(root) is not None:
        _keep_groups_across(document, root)
        return
    if (not _own or _have_all(root, found)) and _lies_over_tensor_ranks(document, found):
        return
    degrees = _degrees(root)
    degree = next(iter(set(degrees.values()) - {1}), 1)
    at = next((i for i, row in enumerate(document["mesh"]) if len(row["ranks"]) == degree), None)
    if at is None or several_meshes(root):
        return
    document["mesh"][at]["name"] = "expert"
    for row in document["params"]:
        if degrees.get(row["fqn"]) == degree:
            row["part"] = {"mesh": at}
    for unit, group in zip(found["units"], units.fsdp2_groups(root)):
        unit["tensor_parallel"], unit["expert_parallel"] = 1, 1 if group is None else _degree(group)


def _lies_over_tensor_ranks(document: dict, found: dict) -> bool:
    """A model whose own code meets the ranks beside those that shard or replicate all of it, which have the same samples: layers that were cut by
    hand (Megatron's). Its parameters are parts already; the dimension is the tensor one."""
    degree = ranks_beside(found)
    near = [row for row in document["mesh"] if len(row["ranks"]) == degree and row["ranks"] == list(range(row["ranks"][0], row["ranks"][0] + degree))]
    if degree < 2 or not near:
        return False
    near[0]["name"] = "tensor"
    for unit in found["units"]:
        unit["tensor_parallel"], unit["expert_parallel"] = degree, 1
    if not found["units"]:
        found["tensor"] = {"plan": {}, "ranks": degree}
    return True


def _have_all(root, found: dict) -> bool:
    """Whether FSDP or DDP has every parameter, and none is of a rank's experts. The ranks that a model with an exchange of its own meets beside may
    then share a sequence; what else is there may be a rank's own."""
    if found["alone"] or any(expert_weights.has_experts(each) for each in root.modules()):
        return False
    if found["runtime"] != "fsdp2":
        return not any(getattr(each, key, None) for each in root.modules() for key in ("_ignored_params", "_ddp_params_and_buffers_to_ignore"))
    infos = [each._module_info for each in names.fsdp2_parameters(root)]
    managed = {(id(info.module), info.param_name) for info in infos}
    managed |= {(id(module), name) for info in infos for module, name in zip(info.shared_modules, info.shared_param_names)}
    return all((id(module), name) in managed for module in root.modules() for name, each in module._parameters.items() if each is not None)


def ranks_beside(found: dict) -> int:
    """Ranks for each of those that FSDP shards and replicates every parameter over; 1: there are none, or others for other parameters."""
    if found["alone"]:
        return world.world_size()
    if found["ddp"]:
        return world.world_size() // found["ddp_ranks"]
    over = {unit["shard_group"] * unit["replicas"] for unit in found["units"] if unit["parameters"]}
    return world.world_size() // over.pop() if len(over) == 1 else 1


def _keep_groups_across(document: dict, root) -> None:
    """A whole model, which mesh.plan cuts: groups along its tensor ranks are the plan's alone; those across them (ranks that share a sequence by
    hand) are the script's."""
    rows = document["mesh"]
    along, degree = _tensor_ranks(root), tensor_plan.ranks(root)
    kept = [i for i, row in enumerate(rows) if row["name"].startswith("script") and _lies_across(row["ranks"], along, degree)]
    if kept:
        document["mesh"] = [rows[i] for i in kept]
    else:
        del document["mesh"]
    for op in document["ops"]:
        kwargs = op.get("kwargs", {})
        if op["op"] == "mesh.all_to_all":
            kwargs = kwargs | _as_function(op)
        for key in ("meets", "meets_backward"):
            met = [[row[0], kept.index(row[1]), *row[2:]] for row in kwargs.pop(key, []) if row[1] in kept]
            if met:
                kwargs[key] = met
        if kwargs:
            op["kwargs"] = kwargs


def _as_function(op: dict) -> dict:
    """An exchange becomes one of those that nobody looks into; what it meets."""
    import torch

    made = {key: op["out"][0][key] for key in ("shape", "dtype")}
    met = ["all_to_all", op["args"][1], getattr(torch, made["dtype"]).itemsize * math.prod(made["shape"])]
    op |= {"op": "opaque._c10d_functional.all_to_all_single", "args": op["args"][:1], "opaque": {"saved": [], "backward": [made]}}
    return {"meets": [met], "meets_backward": [list(met)]}


def _tensor_ranks(root) -> list[int]:
    """Those around this rank, as DTensors have them; empty: this rank is on no such mesh."""
    cut = [each for each in names.mesh_parameters(root) if getattr(each, "is_dtensor", False) and not expert_weights.are_experts(each)]
    mesh = max((each._spmd_mesh for each in cut), key=lambda each: each.size(each.ndim - 1), default=None)
    place = None if mesh is None else mesh.get_coordinate()
    return [] if place is None else mesh.mesh[tuple(place[:-1])].flatten().tolist()


def _lies_across(ranks: list[int], along: list[int], degree: int) -> bool:
    """Whether a group has this rank alone of the tensor ranks `along`; where these are not known they are neighbours."""
    if along:
        return len(ranks) > 1 and len(set(ranks) & set(along)) < 2
    return len(ranks) > 1 and all((rank - ranks[0]) % degree == 0 for rank in ranks)


def tell_flat(rows: list[dict]) -> None:
    """FSDP1 over several groups: no job has that."""
    if rows and rows[0]["runtime"] == "fsdp1" and len({row["shard_group"] for row in rows}) > 1:
        few = [row["modules"][0] for row in rows if row["shard_group"] < max(each["shard_group"] for each in rows)]
        note(f"FSDP1 shards {few[0]}{' and others' if len(few) > 1 else ''} over fewer ranks than the rest: planned over as many as the rest, which is less memory")


def stand_alone(root) -> bool:
    """Whether nothing but such parts lies over ranks. Beside layers that styles cut, rows of no experts (a sequence's)
    leave the model whole: the plan cuts it, and the groups across its ranks stay the script's."""
    global _own, _is_decided
    _is_decided = True
    if not _own:
        return True
    cut = tensor_plan.found(root)
    words = set() if cut is None else set(cut["plan"].values())
    if not words & _LAYERS:
        return not several_meshes(root)
    if several_meshes(root) or any("expert" in word for word in words):
        return False
    _own = False
    return True


def several_meshes(root) -> bool:
    """Whether some parameters lie over other numbers of ranks than others: layers cut over tensor ranks beside experts."""
    return len(set(_degrees(root).values()) - {1}) > 1


def _degrees(root) -> dict[str, int]:
    """Of how many ranks FSDP2 sees one where it shards a parameter, by its name."""
    owners = {id(each): group for group in units.fsdp2_groups(root) if group is not None for each in group.fsdp_params}
    return {name: _degree(owners[id(each)]) for name, each in names.named(root, names.fsdp2_parameters(root)) if id(each) in owners}


def _degree(group) -> int:
    return world.world_size() // group.mesh_info.mesh.size()
