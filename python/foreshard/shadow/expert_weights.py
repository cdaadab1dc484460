"""Weights of experts in the copy of the script's model: whole, and a DTensor of the experts' ranks to the code that asks what they are.

Such code leaves to the ranks' exchange what it does itself without one (torchtitan's experts pad their rows).
"""

from __future__ import annotations

from . import names


def specs(root) -> dict[int, dict[str, object]]:
    """By module and name: how parameters lie over the experts' ranks, before FSDP2 shards them."""
    found: dict[int, dict[str, object]] = {}
    for each in names.mesh_parameters(root):
        if are_experts(each):
            found.setdefault(id(each._module_info.module), {})[each._module_info.param_name] = names.spec(each)
    return found


def are_experts(parameter) -> bool:
    """Stacked matrices, of which each rank has its own (or, over a second dimension, a part of its own), and biases that are stacked beside them."""
    if not getattr(parameter, "is_dtensor", False) or not any(each.is_shard(0) for each in names.spec(parameter).placements):
        return False
    module = parameter._module_info.module
    return len(parameter.sharded_param.shape) > 2 or any(_is_stacked(each) for each in module._parameters.values() if each is not None)


def has_experts(module) -> bool:
    """Whether a module has such weights of its own, as they lie in FSDP2's hands or beside them."""
    own = getattr(module, "_parameters", None)
    return type(own) is dict and any(_is_stacked(each) for each in own.values())


def _is_stacked(parameter) -> bool:
    return hasattr(parameter, "device_mesh") and parameter.dim() > 2 and any(each.is_shard(0) for each in parameter.placements)


def placed(twin, specs: dict[str, object]) -> None:
    """What attributes of the copy are to its forward; capture goes on seeing its parameters."""
    for name, spec in specs.items():
        if name in twin._parameters:
            twin.__dict__[name] = _Placed(twin._parameters, name, spec)


class _Placed:
    """A parameter of a module, whichever stands there now."""

    def __init__(self, parameters, name, spec):
        self._found, self._name = parameters, name
        self.device_mesh, self.placements = spec.mesh, spec.placements

    @property
    def __class__(self):
        from torch.distributed.tensor import DTensor

        return DTensor

    def to_local(self, **options):
        return self._found[self._name]

    def full_tensor(self, **options):
        return self._found[self._name]

    def __getattr__(self, name):
        return getattr(self._found[self._name], name)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        from torch.utils._pytree import tree_map

        args, kwargs = tree_map(lambda leaf: leaf.to_local() if type(leaf) is cls else leaf, (args, kwargs or {}))
        return function(*args, **kwargs)
