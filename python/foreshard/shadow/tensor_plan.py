"""How the script has cut its modules over ranks (parallelize_module), in the words of mesh.plan: for tensor parallelism, and experts.

What a weight's DTensor says of its shards, and what a style's hooks close over of its layouts.
"""

from __future__ import annotations

import functools
import re
import sys

from . import names

_STATE = "torch.distributed.fsdp._fully_shard._fsdp_state"


def found(root) -> dict | None:
    """{"plan": {pattern: word}, "sequence": bool, "loss": bool}; None: nothing is cut."""
    if root is None or _STATE not in sys.modules:
        return None
    words: dict[str, str] = {}
    sequence = loss = False
    placements = _cut(root)
    experts = {id(each._module_info.module) for each in names.fsdp2_parameters(root) if getattr(each, "is_dtensor", False) and _is_experts(each)}
    if not placements:
        return None
    for name, module in root.named_modules():
        placement = placements.get(id(module))
        layout, local = _output(module)
        word = "experts" if id(module) in experts else _word(module, placement)
        if word == "colwise" and layout is not None and (layout.is_replicate() or not local):
            word, loss = "head", loss or not local
        if word is None and placement is None and _gathers(module):
            word = "gather"
        sequence = sequence or word == "sequence" or (word == "rowwise" and layout is not None and layout.is_shard(1))
        if word is not None:
            words[names.clean(name)] = word
    return {"plan": _patterns(words), "sequence": sequence, "loss": loss} if words else None


def over(parameters, fsdp_mesh) -> dict[str, int]:
    """Ranks of a dimension beside FSDP's that parameters of a unit are spread over, of experts and of the others; 1: none."""
    ranks = {"tensor_parallel": 1, "expert_parallel": 1}
    for each in parameters:
        if getattr(each, "is_dtensor", False):
            key = "expert_parallel" if _is_experts(each) else "tensor_parallel"
            ranks[key] = max(ranks[key], each._spmd_mesh.size() // fsdp_mesh.size())
    return ranks


def _is_experts(parameter) -> bool:
    """Stacked matrices, of which each rank has its own."""
    return len(parameter.sharded_param.shape) > 2 and parameter._tp_spec.placements[-1].is_shard(0)


def _cut(root) -> dict[int, object]:
    """By module: the placement of its weight over the tensor dimension, before FSDP shards it."""
    return {
        id(each._module_info.module): each._tp_spec.placements[-1]
        for each in names.fsdp2_parameters(root)
        if getattr(each, "is_dtensor", False) and each._module_info.param_name != "bias"
    }


def _word(module, placement) -> str | None:
    import torch

    if placement is None:
        return None
    if placement.is_replicate():
        return "sequence"
    if isinstance(module, torch.nn.Embedding):
        return "rowwise" if placement.dim == 0 else "colwise"
    if isinstance(module, torch.nn.Linear):
        return "colwise" if placement.dim == 0 else "rowwise"
    return None


def _closed_over(hooks):
    for hook in hooks.values():
        for cell in getattr(hook, "__closure__", None) or ():
            yield cell.cell_contents


def _output(module) -> tuple:
    """(the layout that a style gives its module's output, whether it is a plain tensor again)."""
    for value in _closed_over(module._forward_hooks):
        if isinstance(value, functools.partial) and len(value.args) == 2 and isinstance(value.args[0], tuple) and value.args[0]:
            return value.args[0][0], bool(value.args[1])
    return None, True


def _gathers(module) -> bool:
    from torch.distributed.tensor.parallel import PrepareModuleInput

    return any(isinstance(value, PrepareModuleInput) for value in _closed_over(module._forward_pre_hooks))


def _patterns(words: dict[str, str]) -> dict[str, str]:
    """Layers that are cut alike share a pattern."""
    made: dict[str, set[str]] = {}
    for name, word in words.items():
        made.setdefault(re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name), set()).add(word)
    alike = {pattern: next(iter(each)) for pattern, each in made.items() if len(each) == 1}
    return alike | {name: word for name, word in words.items() if re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name) not in alike}
