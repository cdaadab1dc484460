"""FSDP's units as the script has made them, read from PyTorch's own state."""

from __future__ import annotations

import sys

from . import names, tensor_plan
from .notes import note
from .tape import loose


def name_handles(root) -> None:
    for name, module in root.named_modules():
        if getattr(module, "_handle", None) is not None and hasattr(module, "_fsdp_wrapped_module"):
            names.name_handle(module._handle, names.clean(name))


def _dtype(value) -> str:
    return "none" if value is None else str(value).removeprefix("torch.")


def found(root) -> list[dict]:
    if root is None:
        return []
    if "torch.distributed.fsdp" not in sys.modules:
        return []
    from torch.distributed.fsdp import FullyShardedDataParallel

    if any(isinstance(module, FullyShardedDataParallel) for module in root.modules()):
        wrapped = [(name, m) for name, m in root.named_modules() if isinstance(m, FullyShardedDataParallel)]
        inner = {id(m._fsdp_wrapped_module) for _, m in wrapped}  # wrapped twice: the outer one has nothing to gather, and is the root of the other
        return [
            _unit1(name, m) | {"wrapped_twice": id(m) in inner}
            for name, m in wrapped if not isinstance(m._fsdp_wrapped_module, FullyShardedDataParallel)
        ]  # fmt: skip
    return _units2(root)


def _unit1(name: str, module) -> dict:
    precision = module.mixed_precision
    handle = module._handle
    return {
        "modules": [names.clean(name)], "class": type(module._fsdp_wrapped_module).__name__, "runtime": "fsdp1",
        "strategy": module.sharding_strategy.name, "reshard_after_forward": module.sharding_strategy.name in ("FULL_SHARD", "HYBRID_SHARD"),
        "param": _dtype(precision.param_dtype), "reduce": _dtype(precision.reduce_dtype), "buffer": _dtype(precision.buffer_dtype),
        "output": "none", "keep_low_precision_grads": precision.keep_low_precision_grads,
        "cast_forward_inputs": precision.cast_forward_inputs, "cast_root_forward_inputs": precision.cast_root_forward_inputs, "cpu_offload": module.cpu_offload.offload_params,
        "backward_prefetch": module.backward_prefetch.name if module.backward_prefetch else "NONE",
        "forward_prefetch": bool(module.forward_prefetch), "limit_all_gathers": bool(module.limit_all_gathers),
        "use_orig_params": bool(module._use_orig_params), "shard_group": module.process_group.size(),
        "replicas": module._inter_node_pg.size() if "HYBRID" in module.sharding_strategy.name else 1,
        "parameters": 0 if handle is None else len(handle.flat_param._shapes), "numel": 0 if handle is None else sum(handle.flat_param._numels),
        "forward": [], "backward": [], "shard_dim": {}, "expert_parallel": 1,
        "tensor_parallel": max((part.mesh.size() for part in getattr(getattr(handle, "flat_param", None), "_param_extensions", ()) if part is not None), default=1),
    }  # fmt: skip


def _units2(root) -> list[dict]:
    called = {id(module): name for name, module in root.named_modules()}
    twice = _sharded_twice(root)
    return [_unit2(state, called, twice) for state in _states2(root)]


def _states2(root) -> list:
    """FSDP2's states, each once, in the order of modules."""
    if root is None or not names.has_fsdp2():
        return []
    from torch.distributed.fsdp._fully_shard._fsdp_state import _get_module_fsdp_state

    wrappers = {id(wrapper) for wrapper in _sharded_twice(root).values()}
    modules = [module for module in root.modules() if id(module) not in wrappers]
    return list({id(state): state for state in map(_get_module_fsdp_state, modules) if state is not None}.values())


def fsdp2_groups(root) -> list:
    """FSDP2's groups of parameters, in the order of `found`; None: a unit without any."""
    return [state._fsdp_param_group for state in _states2(root)]


def _sharded_twice(root) -> dict[int, object]:
    """Modules that are sharded, and so is the checkpoint wrapper around them (accelerate), by id: the wrapper has no parameters, and casts what comes in."""
    from torch.distributed.fsdp._fully_shard._fsdp_state import _get_module_fsdp_state as state_of

    pairs = [(module, module._modules.get("_checkpoint_wrapped_module")) for module in root.modules()]
    return {id(inner): wrapper for wrapper, inner in pairs if inner is not None and state_of(wrapper) is not None and state_of(inner) is not None}


def has_hooks_around_reentrant(module) -> bool:
    """A reentrant checkpoint wrapper that is a unit itself, of FSDP2 or in one of FSDP1: what runs again is inside of the unit's hooks."""
    inner = module._modules.get("_fsdp_wrapped_module")
    if str(getattr(module if inner is None else inner, "checkpoint_impl", "")) != "CheckpointImpl.REENTRANT":
        return False
    if inner is not None or not names.has_fsdp2():
        return inner is not None
    from torch.distributed.fsdp._fully_shard._fsdp_state import _get_module_fsdp_state as state_of

    return state_of(module) is not None and state_of(module._checkpoint_wrapped_module) is None


_SWITCHES = {
    "reduce_grads": True, "reshard_after_backward": True, "unshard_in_backward": True, "force_sum_reduction_for_comms": False,
    "gradient_divide_factor": None, "unshard_async_op": False,
}  # fmt: skip


def switches(root) -> dict:
    """What FSDP2's units are told when a backward begins, in the order of `found`: whether it is the last one, and what parts from PyTorch's defaults."""
    states = _states2(root)
    roots = [state for state in states if state._is_root]
    last = not roots or any(state._state_ctx.is_last_backward for state in roots)
    return {"last": last, "units": [_switches_of(state._fsdp_param_group) for state in states]}


def switches_by_name(rows: list[dict], told: dict) -> dict:
    """Of the units `rows` those that are told anything."""
    units = {}
    for row, each in zip(rows, told["units"]):
        if each.get("reshard_after_forward") == row["reshard_after_forward"]:
            each = {key: value for key, value in each.items() if key != "reshard_after_forward"}
        if each.get("unshard_async_op"):
            note("_set_unshard_async_op(True): gathers run beside compute on NCCL's own stream; the plan's stand in line with compute, so its step is longer")
        if each:
            units[row["modules"][0]] = each
    return {"last": told["last"], "units": units}


def _switches_of(group) -> dict:
    if group is None:
        return {}
    told = {name: getattr(group, name, usual) for name, usual in _SWITCHES.items() if getattr(group, name, usual) != usual}
    if group.reduce_grads and not group.all_reduce_grads and _replicas_of(group) > 1:
        told["all_reduce_grads"] = False
    return told | {"reshard_after_forward": _reshards(group)}


def reduces(root) -> bool:
    """Whether any of FSDP2's units reduces gradients in a backward that begins now."""
    states = _states2(root)
    return not states or any(state._fsdp_param_group.reduce_grads for state in states if state._fsdp_param_group is not None)


def _reshards(group) -> bool | int:
    """Among how many ranks, where it is not whether at all."""
    after = group.post_forward_mesh_info
    shards = getattr(group.mesh_info, "shard_mesh_size", 0) or 0
    among = getattr(after, "shard_mesh_size", shards)
    return among if after is not None and among != shards else after is not None


def _replicas_of(group) -> int:
    return getattr(group.mesh_info, "replicate_mesh_size", 1)


def _modules_of(state, called) -> list[str]:
    """Names of its modules as PyTorch lists them: the first names the unit."""
    modules = [names.clean(called.get(id(module), "?")) for module in state._modules]
    order = [names.clean(each) for each in (getattr(state._fsdp_param_group, "_module_fqn", None) or "").split(", ")]
    return order if sorted(order) == sorted(modules) else modules


def tied(root) -> dict[str, str]:
    """Parameters of units that the script has tied once more when they were sharded, each with the other."""
    named, pairs = {}, {}
    for name, each in names.named(root, names.fsdp2_parameters(root)):
        first = named.setdefault(id(each.sharded_param), name)
        if first != name:
            pairs[name] = first
    return pairs | _tied_behind_a_plan(root)


def ignored(root) -> list[str]:
    """Parameters in a module that FSDP2 shards, which it was told to leave alone."""
    held = [f"{loose.NAME}.*"] if loose.inside(root) else []
    if root is None or not names.has_fsdp2():
        return held
    managed = {id(module) for state in _states2(root) for module in state._modules}
    known = {(id(owner), name) for each in names.fsdp2_parameters(root) for owner, name in _places(each._module_info)}
    found = {}
    for path, module in root.named_modules():
        inside = any(id(root.get_submodule(path[:at])) in managed for at in (0, *(i for i, each in enumerate(path) if each == "."), len(path)))
        for name, each in module._parameters.items() if inside else ():
            if each is not None and (id(module), name) not in known:
                found.setdefault(id(each), names.clean(f"{path}.{name}".removeprefix(".")))
    return list(found.values()) + held


def _places(info):
    return ((info.module, info.param_name), *zip(info.shared_modules, info.shared_param_names))


def _tied_behind_a_plan(root) -> dict[str, str]:
    """Parameters that two modules of a unit have in common, as one DTensor: a plan over tensor ranks has untied what was tied before it."""
    called = {id(module): names.clean(name) for name, module in root.named_modules()} if root is not None else {}
    pairs, firsts = {}, {}
    for name, each in names.named(root, names.mesh_parameters(root)):
        info = each._module_info
        if isinstance(each, names.Unmanaged) and (first := firsts.setdefault(id(each.sharded_param), name)) != name:
            pairs[name] = first
        for module, shared in zip(info.shared_modules, info.shared_param_names) if getattr(each, "is_dtensor", False) else ():
            pairs[f"{called.get(id(module), '')}.{shared}".removeprefix(".")] = name
    return pairs


def _unit2(state, called, twice) -> dict:
    """`called`: names of modules by id, with wrappers; `twice`: _sharded_twice()."""
    group, policy = state._fsdp_param_group, state._mp_policy
    parameters = group.fsdp_params if group is not None else []
    mesh = group.mesh_info if group is not None else None

    def names_of(states):
        return [names.clean(called.get(id(each._modules[0]), "?")) for each in states]

    dims = {p._module_info.param_name: p.fsdp_placement.dim for p in parameters if getattr(p.fsdp_placement, "dim", 0) != 0}
    first = state._modules[0]
    wrapped = [called.get(id(twice.get(id(module), module)), "?") for module in state._modules]
    return {
        "modules": _modules_of(state, called),
        "class": names.class_of(first).__name__, "runtime": "fsdp2",
        "strategy": "HYBRID_SHARD" if group is not None and _replicas_of(group) > 1 else "FULL_SHARD",
        "reshard_after_forward": group is not None and _reshards(group), "param": _dtype(policy.param_dtype), "reduce": _dtype(policy.reduce_dtype), "buffer": "none",
        "output": _dtype(policy.output_dtype), "cast_forward_inputs": policy.cast_forward_inputs,
        "cpu_offload": group is not None and hasattr(group.offload_policy, "pin_memory"),
        "shard_group": 0 if mesh is None else getattr(mesh, "shard_mesh_size", 1), "replicas": 1 if group is None else _replicas_of(group), "parameters": len(parameters), "numel": sum(p._orig_size.numel() for p in parameters), "forward": names_of(state._states_to_forward_prefetch),
        "backward": names_of(state._states_to_backward_prefetch), "shard_dim": dims,
        "casts_at": [names.beside_wrapper(name) for name in wrapped],
        **tensor_plan.over(parameters, mesh.mesh if mesh is not None else None),
    }  # fmt: skip
