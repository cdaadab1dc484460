"""Whole shapes of the parameters that FSDP holds, by the module that has them."""

from __future__ import annotations

from . import names


def of_fsdp2(root, parts: bool) -> dict[int, dict[str, tuple]]:
    """FSDP2, as of_fsdp1(): a root that stays gathered has parameters in the dtype that it computes in. `parts`: this rank's of DTensors."""
    found: dict[int, dict[str, tuple]] = {}
    for parameter in names.fsdp2_parameters(root):
        info, sharded = parameter._module_info, parameter.sharded_param
        shape = parameter._orig_size if parts else sharded.shape
        row = (f"{id(parameter)}", tuple(shape), sharded.dtype, sharded.requires_grad)
        found.setdefault(id(info.module), {})[info.param_name] = row
        for module, name in zip(info.shared_modules, info.shared_param_names):
            found.setdefault(id(module), {})[name] = row
    return found


def of_fsdp1(root) -> dict[int, dict[str, tuple]]:
    """FSDP1: id of a module -> name -> (key, shape, dtype, needs a gradient) of the parameters that lie in flat ones."""
    found: dict[int, dict[str, tuple]] = {}
    for wrapper in root.modules():
        handle = getattr(wrapper, "_handle", None)
        if handle is None or not hasattr(handle, "flat_param"):
            continue
        flat = handle.flat_param
        originals = getattr(flat, "_params", None) or [flat] * len(flat._shapes)
        for i, (info, shape, part) in enumerate(zip(flat._param_infos, flat._shapes, flat._param_extensions)):
            whole = tuple(shape if part is None else part.shape)  # a DTensor's, whose part of this rank was flattened
            row = (f"{id(handle)}.{i}", whole, flat.dtype, originals[i].requires_grad)
            found.setdefault(id(info.module), {})[info.param_name] = row
        for info in flat._shared_param_infos:
            first = found[id(info.prim_module)][info.prim_param_name]
            found.setdefault(id(info.module), {})[info.param_name] = first
    return found
