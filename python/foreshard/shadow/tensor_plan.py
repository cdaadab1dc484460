"""How the script has cut its modules over ranks (parallelize_module), in the words of mesh.plan: for tensor parallelism, and experts.

What a weight's DTensor says of its shards, and what a style's hooks close over of its layouts.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import weakref

from . import names
from .expert_weights import are_experts
from .notes import note

_numbers: dict[tuple[int, str], tuple] = {}  # by module and attribute: the module, the whole number that the attribute was at first
_made = ""
_cut_in_order: list = []  # weak references to modules as the script cuts them


def watch_numbers(python_module) -> None:
    """Whole numbers of modules that a script changes behind their making: heads that it divides by the ranks beside parallelize_module()."""
    inner = python_module.Module.__setattr__

    @functools.wraps(inner)
    def set_attribute(self, name, value):
        if type(value) is int and type(before := self.__dict__.get(name)) is int and before != value:
            key = (id(self), name)
            if key not in _numbers or _numbers[key][0]() is not self:
                _numbers[key] = (weakref.ref(self), before)
        inner(self, name, value)

    python_module.Module.__setattr__ = set_attribute


def made_where(root) -> str:
    """Where parameters are before anything shards them: "meta", "device", "host", or "parts" of a mesh on the device."""
    return _made if _made != "device" or root is None or not _blocks_first(root) else "device_blocks_first"


def _blocks_first(root) -> bool:
    """Whether what lies in stacks of blocks was cut before what stands outside of them."""
    inside = {id(part) for stack in root.modules() if _is_stack(stack) for block in stack.children() for part in block.modules()}
    order = [id(module()) in inside for module in _cut_in_order if module() is not None]
    return True in order and False in order and order.index(True) < order.index(False)


def _is_stack(module) -> bool:
    """A list of modules, or a dictionary or chain of modules of one class (core: sim/play/cut_on_device.cpp)."""
    import torch

    if isinstance(module, torch.nn.ModuleList):
        return True
    return isinstance(module, (torch.nn.ModuleDict, torch.nn.Sequential)) and len({type(each) for each in module.children()}) == 1


def before_sharding(module) -> None:
    """FSDP is about to be put on the module, or a list of them."""
    global _made
    first = module[0] if isinstance(module, (list, tuple)) else module
    parameter = next(first.parameters(), None)
    if not _made and parameter is not None:
        there = "parts" if any(hasattr(each, "device_mesh") for each in first.parameters()) else "device"
        _made = {"meta": "meta", "cpu": "host"}.get(parameter.device.type, there)


def watch_distribution(python_module) -> None:
    """Parameters that are cut over tensor ranks are whole where they have been made."""
    inner = python_module.distribute_tensor

    @functools.wraps(inner)
    def distribute_tensor(tensor, *args, **kwargs):
        global _made
        if not _made and isinstance(tensor, sys.modules["torch"].nn.Parameter) and not hasattr(tensor, "device_mesh"):
            _made = {"cuda": "device", "cpu": "host"}.get(tensor.device.type, "")
        return inner(tensor, *args, **kwargs)

    distributes = python_module.distribute_module

    @functools.wraps(distributes)
    def distribute_module(module, *args, **kwargs):
        _cut_in_order.append(weakref.ref(module))
        return distributes(module, *args, **kwargs)

    python_module.distribute_tensor, python_module.distribute_module = distribute_tensor, distribute_module


def whole_number(module, name: str, value, ranks: int):
    """What an attribute was before it was divided by the ranks of the tensor dimension; else what it is."""
    if ranks < 2 or type(value) is not int:
        return value
    owner, before = _numbers.get((id(module), name), (None, None))
    return before if owner is not None and owner() is module and before == value * ranks else value


def ranks(root) -> int:
    """Of the tensor dimension, if there is one; 1: none."""
    cut = [each for each in names.mesh_parameters(root) if getattr(each, "is_dtensor", False) and not are_experts(each)]
    return max((each._spmd_mesh.size(each._spmd_mesh.ndim - 1) for each in cut), default=1)


def found(root) -> dict | None:
    """{"plan": {pattern: word}, "sequence": bool, "loss": bool}; None: nothing is cut."""
    words: dict[str, str] = {}
    sequence = False
    silent: list[str] = []  # whole weights whose style says nothing of what comes in
    parts = _cut(root)
    if not parts:
        return None
    summed = {id(each._module_info.module) for each in names.mesh_parameters(root) if _is_summed_by_a_hook(each)}
    summed |= {id(module) for module in root.modules() if any(_has_summing_hook(each) for each in module._parameters.values())}
    paths = {names.clean(name): name for name, _ in root.named_modules()}
    for name, module in root.named_modules():
        layout, local = _output(module)
        word = _word(module, parts.get(id(module), []))
        if word is None and id(module) not in parts and _gathers(module):
            local_inside = _hands_on_local(module)
            word = "gather" if not local_inside else "summed" if layout is not None and layout.is_partial() else "gather_local"
        if word is None and id(module) not in parts and (word := _changes_along_sequence(module)) is not None:
            sequence = True
        if word is None and _splits_rows(module):
            word = "split"
        if word is None and id(module) in summed:
            word = "gradient_sum"
        if word == "sequence" and not _placements(module._forward_pre_hooks):
            silent.append(names.clean(name))
        elif word == "sequence" or (word in ("rowwise", "summed") and _scatters(module, layout)):
            sequence = True
        if word is not None:
            words[names.clean(name)] = word
    words |= {} if sequence else dict.fromkeys(silent, "replicate")
    if not sequence and brings_rows(root):
        words[""] = "rows"
    if sequence:
        words |= _given_whole(root, words)
        words |= {name: "rowwise_reduced" for name, word in words.items() if word == "rowwise" and _hands_on_whole(root.get_submodule(paths[name]))}
    heads = dict(_heads(root, words))
    cut = [name for name, whole in heads.items() if not whole]
    loss = bool(cut)
    words |= {name: "colwise_gathered" if loss and whole else "head" for name, whole in heads.items()}
    return {"plan": _patterns(words, paths), "sequence": sequence, "loss": loss, "cut": cut} if words else None


def why_not(root) -> str | None:
    """A parameter that is cut as no plan has it: over two dimensions beside FSDP's (experts over ranks, and each one's matrices, it has), or by hand."""
    if root is None:
        return None
    parts = _cut(root)
    for name, each in names.named(root, names.mesh_parameters(root)):
        module = getattr(each, "_module_info", None) and each._module_info.module
        if _is_cut_twice(each) and not are_experts(each):
            return f"{name} is cut over two dimensions beside FSDP's: not planned"
        cut = getattr(each, "is_dtensor", False) and any(one.is_shard() for one in names.spec(each).placements)
        if cut and _word(module, parts.get(id(module), [])) is None and id(module) in parts:
            return f"{name} is cut over ranks, and is no layer's, table's or stacked matrix that a plan cuts: not planned"
    for name, module in root.named_modules():
        layout, _ = _output(module)
        if _word(module, parts.get(id(module), [])) == "colwise" and layout is not None and layout.is_shard(0):
            return f"{names.clean(name)} hands on rows of what it has made columns of (an all-to-all): not planned"
    return None


def brings_rows(root) -> bool:
    """A layer gathers what each rank brings as rows of its own: the model's inputs are parts of what all ranks have."""
    for module in root.modules() if root is not None else ():
        taken = _placements(module._forward_pre_hooks)
        if isinstance(getattr(module, "weight", None), _dtensor()) and any(each.is_shard(0) for each in taken):
            return True
    return False


def _dtensor() -> type:
    from torch.distributed.tensor import DTensor

    return DTensor


def _is_cut_twice(parameter) -> bool:
    return getattr(parameter, "is_dtensor", False) and sum(one.is_shard() for one in names.spec(parameter).placements) > 1


def gathered_by_the_loss(cut: dict) -> dict:
    """The same where the script itself makes whole what its head hands on as a DTensor."""
    words = {name: "head_gathered" if name in cut["cut"] and word == "head" else word for name, word in cut["plan"].items()}
    return cut | {"plan": words, "loss": False}


def over(parameters, fsdp_mesh) -> dict[str, int]:
    """Ranks of a dimension beside FSDP's that parameters of a unit are spread over, of experts and of the others; 1: none."""
    ranks = {"tensor_parallel": 1, "expert_parallel": 1}
    for each in parameters:
        if not getattr(each, "is_dtensor", False):
            continue
        sizes = {"tensor_parallel": 1, "expert_parallel": 1}
        if not are_experts(each):
            sizes["tensor_parallel"] = 1 if _is_cut_twice(each) else each._spmd_mesh.size() // fsdp_mesh.size()
        for dimension, placement in enumerate(names.spec(each).placements if are_experts(each) else ()):
            if placement.is_shard():
                sizes["expert_parallel" if placement.is_shard(0) else "tensor_parallel"] *= names.spec(each).mesh.size(dimension)
        ranks = {key: max(size, sizes[key]) for key, size in ranks.items()}
    return ranks


class _Twice:
    """Of a module's experts each rank has some, and of these a part."""

    def is_replicate(self) -> bool:
        return False


def _cut(root) -> dict[int, list]:
    """By module: (dimensions, placement over the tensor dimension) of its weights, before FSDP shards them."""
    parts: dict[int, list] = {}
    for each in names.mesh_parameters(root):
        if getattr(each, "is_dtensor", False) and each._module_info.param_name != "bias":
            cut = [one for one in names.spec(each).placements if one.is_shard()]
            placement = _Twice() if are_experts(each) and len(cut) > 1 else names.spec(each).placements[-1]
            for module in (each._module_info.module, *each._module_info.shared_modules):
                parts.setdefault(id(module), []).append((len(each.sharded_param.shape), placement))
    return parts


def _is_summed_by_a_hook(parameter) -> bool:
    """A whole parameter beside the mesh whose gradient a hook of the script sums over its ranks where autograd makes it."""
    return not getattr(parameter, "is_dtensor", False) and _has_summing_hook(getattr(parameter, "_unsharded_param", None))


def _has_summing_hook(parameter) -> bool:
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    return not hasattr(parameter, "device_mesh") and any(is_of_mesh(hook) for hook in hooks.values())


def _word(module, parts) -> str | None:
    import torch

    if not parts:
        return None
    dims, placement = max(reversed(parts), key=lambda part: part[0])  # stacked matrices, not their biases
    if all(one.is_replicate() for _, one in parts):
        taken = _placements(module._forward_pre_hooks)
        return "replicate" if taken and all(one.is_replicate() for one in taken) else "sequence"
    packed = "packed_" if any(type(one).__name__ == "_StridedShard" for _, one in parts) else ""
    if isinstance(placement, _Twice):
        return "cut_experts"
    if dims > 2:
        return "experts" if placement.is_shard(0) else f"{packed}expert_tensor"
    if isinstance(module, torch.nn.Embedding):
        return "rowwise" if placement.dim == 0 else "colwise"
    if isinstance(module, torch.nn.Linear):
        return f"{packed}colwise" if placement.dim == 0 else "rowwise"
    return None


def _heads(root, words):
    """(name, whether all of it comes out) of the layers that make logits: what they hand on is whole, or a DTensor that no rowwise layer takes."""
    order = [(names.clean(name), module) for name, module in root.named_modules()]
    last = max((at for at, (name, _) in enumerate(order) if words.get(name) == "rowwise"), default=-1)
    for at, (name, module) in enumerate(order):
        layout, local = _output(module)
        if words.get(name) == "colwise" and layout is not None and (layout.is_replicate() or (not local and at > last)):
            yield name, local or layout.is_replicate()


def _closed_over(hooks):
    for hook in hooks.values():
        for cell in getattr(hook, "__closure__", None) or ():
            yield cell.cell_contents


def _placements(hooks) -> list:
    """Layouts that a style's hooks were made with."""
    from torch.distributed.tensor import Placement

    found, rest = [], [value.args for value in _closed_over(hooks) if isinstance(value, functools.partial)]
    while rest:
        value = rest.pop()
        if isinstance(value, Placement):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            rest.extend(value)
    return found


def inner_forward(module, forward):
    """What a style that stands in a module's forward has put itself around (Transformers' do); the forward itself where none stands there."""
    while isinstance(forward, types.FunctionType) and is_of_mesh(forward):
        within = [value for value in _closed_over({0: forward}) if isinstance(value, types.FunctionType) or getattr(value, "__self__", None) is module]
        if not within:
            break
        forward = within[0]
    return forward


def is_of_mesh(function) -> bool:
    from torch.distributed.device_mesh import DeviceMesh

    return any(isinstance(value, DeviceMesh) for value in _closed_over({0: function}))


def is_of_script(hook) -> bool:
    """Whether a hook on a module's forward changes how tensors lie over the ranks of a mesh, for which no plan stands where nothing is cut; context
    ranks' has one."""
    return isinstance(hook, types.FunctionType) and is_of_mesh(hook)


def _style(module):
    """The style that stands in a module's forward."""
    forward = module.__dict__.get("forward")
    if not isinstance(forward, types.FunctionType) or not is_of_mesh(forward):
        return None
    return next((value for value in _closed_over({0: forward}) if hasattr(value, "output_layouts")), None)


def _output(module) -> tuple:
    """(the layout that a style gives its module's output, whether it is a plain tensor again)."""
    from torch.distributed.tensor.parallel import PrepareModuleOutput

    if (style := _style(module)) is not None:
        return style.output_layouts, style.use_local_output
    for value in _closed_over(module._forward_hooks):
        if isinstance(value, functools.partial) and len(value.args) == 2 and isinstance(value.args[0], tuple) and value.args[0]:
            return value.args[0][0], bool(value.args[1])
        if isinstance(value, PrepareModuleOutput):
            return value.output_layouts[0], value.use_local_output
    return None, True


def _scatters(module, layout) -> bool:
    """A sum over the ranks of which each keeps its part of the sequence."""
    from torch.distributed.tensor.parallel import PrepareModuleOutput

    for value in _closed_over(module._forward_hooks):
        if isinstance(value, PrepareModuleOutput):
            layout = value.desired_output_layouts[0]
    return layout is not None and layout.is_shard(1)


def _gathers(module) -> bool:
    """Whether what the module is called with is made whole; what was whole and is cut before it (a first block's) is no gather."""
    from torch.distributed.tensor.parallel import PrepareModuleInput

    prepared = [value for value in _closed_over(module._forward_pre_hooks) if isinstance(value, PrepareModuleInput)]
    return any(not was.is_replicate() for each in prepared for was, _ in _changes(each))


def _changes_along_sequence(module) -> str | None:
    """Of a module without weights of its own on the mesh: it is handed its part of what is whole, or hands on all of what is cut."""
    from torch.distributed.tensor.parallel import PrepareModuleInput, PrepareModuleOutput

    prepared = [value for value in _closed_over(module._forward_pre_hooks) if isinstance(value, PrepareModuleInput)]
    changes = [pair for each in prepared for pair in _changes(each)]
    if changes and all(was.is_replicate() and wanted.is_shard(1) for was, wanted in changes):
        return "part"
    for value in _closed_over(module._forward_hooks):
        if isinstance(value, PrepareModuleOutput) and value.output_layouts[0].is_shard(1) and value.desired_output_layouts[0].is_replicate():
            return "gather_output"
    return None


def _hands_on_whole(module) -> bool:
    """The sum of a rowwise layer, as its style says."""
    layout, _ = _output(module)
    return layout is not None and layout.is_replicate()


def _hands_on_local(module) -> bool:
    """Whether what is made whole is a local tensor inside; layers that are given one DTensor have one gradient of it."""
    from torch.distributed.tensor.parallel import PrepareModuleInput

    return all(value.use_local_output for value in _closed_over(module._forward_pre_hooks) if isinstance(value, PrepareModuleInput))


def _given_whole(root, words: dict) -> dict[str, str]:
    """Modules whose columnwise layers are given what is whole, where norms work on parts: what gathers it (the norm's own style) does so once
    for all of them."""
    found, of_parts = {}, [name for name, word in words.items() if word == "sequence"]
    for path, module in root.named_modules():
        name = names.clean(path)
        taken = _placements(module._forward_pre_hooks) if words.get(name) == "colwise" else []
        owner = name.rpartition(".")[0]
        above = [owner[:at] for at, each in enumerate(owner) if each == "."] + [owner]
        if not taken or not owner or words.get(owner) or not all(one.is_replicate() for one in taken):
            continue
        told = any(words.get(each) in ("gather", "gather_local", "summed") for each in above) or any(each.startswith(f"{owner}.") for each in of_parts)
        if not told:
            found[owner] = "gather"
    return found


def _changes(prepared) -> list[tuple]:
    """(layout that comes, layout that is wanted) where these differ."""
    named = [(was, prepared.desired_input_kwarg_layouts.get(key)) for key, was in prepared.input_kwarg_layouts.items()]
    pairs = [*zip(prepared.input_layouts or (), prepared.desired_input_layouts or ()), *named]
    return [(was, wanted) for was, wanted in pairs if was is not None and wanted is not None and was != wanted]


def _splits_rows(module) -> bool:
    """Whether a style's hook hands each rank its rows of all that the module is given: tried with rows of our own."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    each = 4
    for hook in module._forward_pre_hooks.values():
        mesh = next((value for value in _closed_over({0: hook}) if isinstance(value, DeviceMesh)), None)
        if mesh is None or mesh.size() == 1 or any(True for _ in module.parameters()):
            continue
        inputs = [torch.zeros(each * mesh.size(), 2) for _ in inspect.signature(module.forward).parameters]
        try:
            given = hook(module, tuple(inputs))
        except Exception:  # it wants something else than rows
            continue
        if isinstance(given, tuple) and given and all(isinstance(one, torch.Tensor) and one.shape == (each, 2) for one in given):
            return True
    return False


def _patterns(words: dict[str, str], modules) -> dict[str, str]:
    """Layers that are cut alike share a pattern, where all of its modules are."""
    made: dict[str, set[str | None]] = {}
    for name in (*modules, *words):
        made.setdefault(re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name), set()).add(words.get(name))
    alike = {pattern: next(iter(each)) for pattern, each in made.items() if len(each) == 1 and None not in each}
    return alike | {name: word for name, word in words.items() if re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name) not in alike}
