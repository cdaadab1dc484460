"""The script's model as a model file: a copy of the module on the meta device, as it was before sharding, captured."""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import json
import os
import time
import types

from .._output import whole_file
from . import PLAN, beside, expert_weights, float8, folder, names, own_parts, script_step, sequence, tensor_plan, told_sizes, units
from .names import class_of
from .notes import note
from .reads import values
from .tape import loose

_SKIPPED = {"_forward_pre_hooks", "_forward_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs",
            "_forward_hooks_always_called", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
            "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"}  # fmt: skip


_OTHERS_HOOKS = ("torch.", "foreshard.")
_FEW = 1000  # elements of a container that are looked at
_PRECISION = ("param", "buffer", "output")
_STANDS = {"own": "the scalar among its outputs", "cross_entropy": "cross entropy", "nll": "the likelihood of a class", "mse": "a mean squared error",
           "sum": "a sum"}  # fmt: skip


def write(root, found: dict, call: dict) -> dict | None:
    """{"file", "seconds"} of model.json, or of model-config.json where the module cannot be captured; None without a root."""
    if root is None or not call or os.environ.get(PLAN) == "0":
        return None
    began = time.monotonic()
    module = unsharded(root, call)
    try:
        try:
            with told_sizes.whole(1 if own_parts.exchanges() else tensor_plan.ranks(root)):
                captured = _captured(module, found, call)
        except Exception:  # its code may want tables of this rank's length
            if call.get("sequence") is None:
                raise
            module = unsharded(root, call, whole=False)
            captured = _captured(module, found, call)
        if "float8" in found:
            float8.mark(captured.document, found["float8"]["params"])
        own_parts.mark(root, captured.document, found)
        if found["watched"]:
            captured.document["optimizers"] = found["watched"]
        captured.save(str(folder() / "model.json"))
        for text in captured.notes:
            note(text)
        return {"file": "model.json", "seconds": round(time.monotonic() - began, 2), "notes": list(captured.notes)}
    except Exception as error:
        config = getattr(module, "config", None)
        if not hasattr(config, "to_dict"):
            raise
        forget_steps(found)
        note(f"the model is taken from its config, not from its code: {type(error).__name__}: {error}")
        text = json.dumps(config.to_dict(), default=str)
        with whole_file(folder() / "model-config.json") as file:
            file.write(text)
        return {"file": "model-config.json", "seconds": round(time.monotonic() - began, 2), "notes": []}


def forget_steps(found: dict) -> None:
    """Of optimizers that no job names: there is no file that has room for them."""
    for optimizer in (found["optimizer"], *found["others"]):
        optimizer["watched"] = ""


def name_by_turn(written: dict, turn: int) -> dict:
    """Behind the first turn's, which keeps the names: model-2.json."""
    stem, _, ending = written["file"].rpartition(".")
    name = f"{stem}-{turn + 1}.{ending}"
    os.replace(folder() / written["file"], folder() / name)
    return written | {"file": name}


def _captured(module, found, call):
    from foreshard.capture.known import beside_a_script

    with beside_a_script(values.of):
        return _capture(module, found, call)


def _capture(module, found, call):
    import torch
    from torch.utils._pytree import tree_map

    from foreshard.capture import capture_step, session

    precision = _precision(found)

    def step(module, args, kwargs):
        cast = torch.autocast("cuda", dtype=getattr(torch, found["autocast"])) if found["autocast"] else contextlib.nullcontext()
        with cast:
            result = module(*args, **kwargs)
            value = _loss_of(result, found["loss"])
        if not found["loss"]["holds_outputs"] and not found["keeps_outputs"]:
            del result
        value.backward()

    rows = _rows_of_all_ranks(found, call)
    args, kwargs = tree_map(rows, call["args"]), {key: tree_map(rows, value) for key, value in call["kwargs"].items()}
    own = script_step.found()
    if own is not None:
        shared = session.shared_so_far if found["once"] else None
        numbers, given = zip(*own.given) if own.given else ((), ())
        given = tree_map(rows, given)

        def again(module, batch):
            given = list(zip(numbers, batch))
            del batch
            if len(script_step.roots()) > 1:
                value, held = module(given, shared, session.parts_have_returned)
            else:
                # What the next forward still finds is held behind this one's backward, by whatever names.
                held, value = own.again([module], given, found["keeps_outputs"] and found["keeps_returned"], shared)
            value.backward()

        try:
            captured = capture_step(module, again, list(given), mixed_precision=precision or None, strict=False, name=found["model_class"], device="fake")
            for place in own.let_go:
                _mark_let_go(captured.document["inputs"], f"batch.{place}" if len(given) > 1 else "batch")
            return captured
        except Exception as error:
            note(f"what the script does behind its model cannot be run again ({type(error).__name__}: {error}): {_STANDS.get(found['loss']['kind'], 'a mean')} stands for it")
    elif script_step.why_not():
        note(f"what the script does behind its model cannot be run again ({script_step.why_not()}): {_STANDS.get(found['loss']['kind'], 'a mean')} stands for it")
    return capture_step(module, step, args, kwargs, mixed_precision=precision or None, strict=False, name=found["model_class"],
                        device="fake")  # the script's own process is the virtual device's


def _mark_let_go(inputs: list[dict], name: str) -> None:
    """Nobody holds it when backward begins: an argument that the loop made in the call, a state that the step has put another in the place of."""
    for row in inputs:
        if row["name"] == name and "alias_of" not in row and all(each.get("alias_of") != name for each in inputs):
            row["held_until"] = "forward"


def _loss_of(result, loss: dict):
    """What stands for the script's loss: its own where a model returns it, else one of its kind."""
    import torch
    import torch.nn.functional as F

    kind = loss["kind"]
    if kind == "own":
        return next(leaf for leaf in _tensors(result) if leaf.numel() == 1)
    out = result if isinstance(result, torch.Tensor) else next(iter(_tensors(result)))
    if kind in ("cross_entropy", "nll"):
        if loss.get("shifted") and out.dim() == 3:
            out = out[:, :-1].contiguous()
        flat = out.flatten(0, -2)
        target = torch.zeros(flat.shape[0], dtype=torch.int64, device=out.device)
        flat = flat.float() if loss["float32"] else flat
        return F.nll_loss(flat, target) if kind == "nll" else F.cross_entropy(flat, target)
    if kind == "mse":
        return F.mse_loss(out, torch.zeros_like(out))
    if kind == "sum":
        return out.sum()
    return out.float().mean()


def _precision(found: dict) -> dict:
    """What most units compute in; of several roots each in its own, and casts what comes in."""
    rows = [unit for unit in found["units"] if unit["modules"] != [""]] or found["units"]
    if not rows:
        return {}
    counts: collections.Counter = collections.Counter()
    for unit in rows:  # by elements: FSDP1 makes a unit of every batch norm, which stays as it is
        counts[tuple(unit[key] for key in _PRECISION)] += unit["numel"]
    usual = counts.most_common(1)[0][0]
    precision = {key: value for key, value in zip(_PRECISION, usual) if value != "none"}
    outermost = [unit for unit in rows if not any(unit["modules"][0].startswith(f"{other['modules'][0]}.") for other in rows)] if found["roots"] > 1 else []
    casts = [name for unit in rows if unit["cast_forward_inputs"] for name in unit.get("casts_at", unit["modules"]) if name]
    if found["runtime"] == "fsdp1":
        casts += [unit["modules"][0] for unit in outermost if unit["cast_root_forward_inputs"]]
    whole = next((unit for unit in found["units"] if "" in unit["modules"]), None)
    if whole is not None and found["roots"] == 1:  # what the model returns is the root's to cast
        precision.pop("output", None)
        precision |= {"output": whole["output"]} if whole["output"] != "none" else {}
    key = "cast_root_forward_inputs" if found["runtime"] == "fsdp1" else "cast_forward_inputs"
    precision["root"] = whole is not None and whole[key]
    fsdp1 = found["runtime"] == "fsdp1"
    everyone = rows if fsdp1 else found["units"]
    differ = [unit for unit in everyone if any(unit[key] != value for key, value in zip(("param", "buffer"), usual))]
    if outermost or differ:
        own = {name: unit for unit in (outermost if not differ else everyone) for name in unit["modules"]}
        precision["parts"] = {name: tuple(None if own[name][key] == "none" else own[name][key] for key in ("param", "buffer")) for name in sorted(own, key=len, reverse=True)}  # the innermost first
    if not fsdp1 and (returned := {name: unit["output"] for unit in found["units"] for name in unit["modules"] if unit["output"] != "none" and (name or found["roots"] > 1)}):
        precision.pop("output", None)
        precision |= {"output": whole["output"]} if whole is not None and whole["output"] != "none" else {}
        precision["outputs"] = returned
    if not fsdp1:  # of a list of modules the first that is called alone
        precision["anew"] = [unit["modules"][0] for unit in found["units"] if len(unit["modules"]) == 1]
    if found["loose"]:
        precision["parts"] = precision.get("parts", {}) | {loose.NAME: (None, None)}
    return precision | ({"units": casts} if casts else {})


def _rows_of_all_ranks(found, call):
    """What a leaf of the batch is to a model that is captured whole: where each tensor rank brings rows of its own, as many as all of them."""
    import torch

    tensor = found.get("tensor", {})
    if "rows" not in tensor.get("plan", {}).values():
        return lambda leaf: leaf
    ranks = tensor.get("ranks") or max((unit["tensor_parallel"] for unit in found["units"]), default=1)
    first = next((leaf.shape[0] for leaf in _tensors([call["args"], call["kwargs"]]) if leaf.dim()), 0)

    def whole(leaf):
        if not isinstance(leaf, torch.Tensor) or not leaf.dim() or leaf.shape[0] != first:
            return leaf
        return torch.empty((leaf.shape[0] * ranks, *leaf.shape[1:]), dtype=leaf.dtype, device=leaf.device, requires_grad=leaf.requires_grad)

    return whole


def _tensors(tree):
    import torch
    from torch.utils._pytree import tree_flatten

    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in _tensors(value)]
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


# ---------------------------------------------------------------------------------------------------- copies


def replaced_forwards(root) -> dict:
    """What stands in for a forward while the root runs, by the module's id: a trainer's method that is to run inside its wrappers."""
    found = {id(m): tensor_plan.inner_forward(m, m.__dict__["forward"]) for m in root.modules() if "forward" in m.__dict__}
    return {key: forward for key, forward in found.items() if isinstance(forward, (types.FunctionType, functools.partial))}


def modes(root) -> dict:
    """Of training or evaluation, by the module's id."""
    return {id(module): module.training for module in root.modules()}


def unsharded(root, call: dict, whole: bool = True):
    """The module tree on the meta device, whole parameters, without FSDP's classes, wrappers and hooks. `call`: what is copied, with its
    replaced_forwards() and modes(); `whole`: buffers that ranks share parts of are whole too."""
    return _Copier(root, call, whole).module(root)


def _keeps_precision(hook) -> bool:
    """FSDP1's own around what it leaves out of mixed precision (batch norms): they cast what comes in and goes out."""
    return getattr(hook, "__qualname__", "").startswith("_override_module_mixed_precision.")


def _is_of_others(hook) -> bool:
    """What watches or shards; norms of weights (spectral_norm, weight_norm) are the model's, whoever wrote them."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    where = getattr(hook, "__module__", None) or type(hook).__module__
    return where.startswith(_OTHERS_HOOKS) and not where.startswith("torch.nn.utils.")


class _Copier:
    def __init__(self, root, call, whole):
        self._whole = whole
        self._modules: dict[int, object] = {}
        self._tensors: dict[int, object] = {}
        self._shapes = names.flat_shapes(root) | names.sharded_shapes(root, own_parts.exchanges())
        self._forwards, self._modes = call["forwards"], call["modes"]
        self._known = {id(module) for module in root.modules()}
        self._carried = {id(each) for each in beside.carried(root)}
        self._ranks, self._experts = 1 if own_parts.exchanges() else tensor_plan.ranks(root), expert_weights.specs(root)
        self._places = tensor_plan.found(root) is None  # styles that move what is whole, or a rank's own, are the model's
        self._found: list = []  # copies of carried tensors that the module has which is being copied

    def module(self, module):
        import torch

        from foreshard.capture import checkpoints

        inner = module._modules.get("_fsdp_wrapped_module")  # an attribute's name goes through a checkpoint wrapper to what it wraps
        if inner is None and type(module).__name__ == "DistributedDataParallel":
            inner = module.module
        if inner is not None:
            twin = self.module(inner)
            if class_of(inner).__call__ is not torch.nn.Module.__call__ and hasattr(module, "_fsdp_wrapped_module"):
                twin.__dict__[checkpoints.OUTSIDE] = True
            self._mark_reentrant(module, twin)
            return twin
        if id(module) in self._modules:
            return self._modules[id(module)]
        twin = object.__new__(class_of(module))
        self._modules[id(module)] = twin
        state, around, self._found = {}, self._found, []
        for key, value in module.__dict__.items():
            if key in ("_parameters", "_buffers", "_modules") or not isinstance(key, str) or "composable" in key:
                continue
            if key in ("forward", "_original_forward"):  # replaced on the instance: it holds the module that is sharded
                if getattr(value, "__self__", None) is module:
                    state[key] = types.MethodType(value.__func__, twin)
                elif key == "forward" and id(module) not in self._forwards and tensor_plan.inner_forward(module, value) is value:
                    note(f"{type(module).__name__}: its forward was replaced on the instance; its class's stands in the model")
                continue
            value = tensor_plan.whole_number(module, key, value, self._ranks)
            state[key] = self._hooks(module, key, value) if key in _SKIPPED else self._plain(value)
        state["training"] = self._modes.get(id(module), module.training)
        state["_parameters"] = {name: self._parameter(module, name, p) for name, p in module._parameters.items()
                                if name != "_flat_param"}  # FSDP1's own
        for name, shape in self._shapes.get(id(module), {}).items():
            if name not in state["_parameters"] or state["_parameters"][name] is None:
                state["_parameters"][name] = self._made(*shape)
        state["_buffers"] = {name: self._tensor(b) for name, b in module._buffers.items()}
        state["_buffers"] |= {f"carried_{i}": each for i, each in enumerate(self._found)}  # on the device as buffers are
        self._found = around
        state["_modules"] = {name: None if m is None else self.module(m) for name, m in module._modules.items()}
        twin.__dict__.update(state)
        self._mark_reentrant(module, twin)
        for name in self._shapes.get(id(module), {}):
            twin.__dict__.pop(name, None)  # FSDP1 puts views in the parameters' places
        own = module.__dict__.get("forward")
        if own_parts.exchanges() and isinstance(own, types.FunctionType) and tensor_plan.is_of_mesh(own):
            twin.__dict__["forward"] = self._rebound(own, 2)  # a style's, which exchanges by objects of its own
        elif id(module) in self._forwards:
            own = self._forwards[id(module)]
            self._replace_forward(twin, self._rebound(own) if isinstance(own, types.FunctionType) else self._counterpart(own))
        if "forward" not in twin.__dict__ or not own_parts.exchanges():
            expert_weights.placed(twin, self._experts.get(id(module), {}))
        if any(base.__name__ == "LightningModule" for base in type(module).__mro__):  # its trainer's records know no copies
            twin.__dict__["log"] = twin.__dict__["log_dict"] = lambda *args, **kwargs: None
        return twin

    @staticmethod
    def _mark_reentrant(module, twin) -> None:
        """`twin`: of a checkpoint wrapper that is a unit, or of the one in a unit of FSDP1."""
        from foreshard.capture import checkpoints

        if units.has_hooks_around_reentrant(module):
            twin._modules["_checkpoint_wrapped_module"].__dict__[checkpoints.OUTSIDE] = True

    def _hooks(self, module, key, table):
        """Hooks of the model itself on its forward; those of FSDP and of what watches go."""
        kept = type(table)()
        if not key.startswith("_forward"):
            return kept
        hooks = module._forward_pre_hooks if "_pre_" in key else module._forward_hooks
        for number, value in table.items():
            hook = hooks.get(number)
            placed = self._places and tensor_plan.is_of_script(hook)
            if hook is None or _is_of_others(hook) and not _keeps_precision(hook) and not placed:
                continue
            kept[number] = value if value is not hook or _keeps_precision(hook) else self._rebound(hook) if isinstance(hook, types.FunctionType) else self._plain(hook)
        return kept

    def _replace_forward(self, twin, function):
        """For every call: what stands in takes itself away when it is called."""

        @functools.wraps(function)
        def forward(*args, **kwargs):
            try:
                return function(*args, **kwargs)
            finally:
                twin.__dict__["forward"] = forward

        twin.__dict__["forward"] = forward

    def _rebound(self, function, deep: int = 0):
        """The same function over the copies of what it has closed over; `deep`: objects in objects that are copied too."""
        copied = functools.partial(self._plain, deep=deep) if deep else self._counterpart
        cells = tuple(types.CellType(copied(cell.cell_contents)) for cell in function.__closure__ or ())
        again = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
        again.__kwdefaults__ = function.__kwdefaults__
        return again

    def _counterpart(self, value):
        import torch

        if isinstance(value, torch.nn.Module) and id(value) in self._known:
            return self.module(value)
        if isinstance(value, types.MethodType) and id(value.__self__) in self._known:
            return types.MethodType(value.__func__, self.module(value.__self__))
        if isinstance(value, functools.partial):
            args, kwargs = map(self._counterpart, value.args), {key: self._counterpart(each) for key, each in value.keywords.items()}
            return functools.partial(self._counterpart(value.func), *args, **kwargs)
        return value

    def _plain(self, value, deep=1):
        """What is no module of the tree itself: with copies in the places of modules and tensors that it holds. `deep` in objects
        others are left: a trainer holds all of a program."""
        import torch

        if isinstance(value, torch.Tensor):
            again = self._tensor(value) if value.device.type != "cpu" else self._on_host(value)
            if id(value) in self._carried and all(again is not each for each in self._found):
                self._found.append(again)
            return again
        if isinstance(value, (torch.nn.Module, types.MethodType)):
            return self._counterpart(value)
        if not self._holds(value, deep):
            return value
        if isinstance(value, dict):
            again = copy.copy(value)  # a defaultdict too
            again.update({k: self._plain(v, deep) for k, v in value.items()})
            return again
        if isinstance(value, (list, tuple)):
            return type(value)(self._plain(each, deep) for each in value)
        if isinstance(value, functools.partial):
            return functools.partial(self._plain(value.func, deep), *self._plain(value.args, deep), **value.keywords)
        try:
            again = copy.copy(value)
            again.__dict__.update({k: self._plain(v, deep - 1) for k, v in vars(value).items()})
        except TypeError:  # it has no copies
            return value
        return again

    def _on_host(self, tensor):
        """A table that a module carries beside its buffers, and that every step brings to the device."""
        import torch

        if id(tensor) not in self._tensors:
            floats = tensor.is_floating_point() or tensor.is_complex()
            self._tensors[id(tensor)] = torch.empty_like(tensor).detach() if floats else tensor.detach().clone()
        return self._tensors[id(tensor)]

    def _holds(self, value, deep) -> bool:
        """Whether something of the tree, or a tensor, is in it: only that is copied."""
        import torch

        if isinstance(value, torch.Tensor):
            return True
        if isinstance(value, torch.nn.Module):
            return id(value) in self._known
        if isinstance(value, types.MethodType):
            return id(value.__self__) in self._known
        if isinstance(value, dict):
            return any(self._holds(each, deep) for each in list(value.values())[:_FEW])
        if type(value) in (list, tuple):
            return any(self._holds(each, deep) for each in value[:_FEW])
        if isinstance(value, functools.partial):
            return self._holds(value.func, deep) or self._holds(value.args, deep)
        if not deep or isinstance(value, (type, types.FunctionType, types.ModuleType)) or type(value).__name__ == "DeviceMesh":
            return False
        return type(getattr(value, "__dict__", None)) is dict and any(self._holds(each, deep - 1) for each in vars(value).values())

    def _tensor(self, tensor):
        import torch

        if tensor is None:
            return None
        if id(tensor) not in self._tensors:
            shape = sequence.whole_shape(tensor) if self._whole else tuple(tensor.shape)
            self._tensors[id(tensor)] = torch.empty_like(tensor, device="meta").detach() if type(tensor) in (
                torch.Tensor, torch.nn.Parameter) and shape == tuple(tensor.shape) else torch.empty(shape, dtype=tensor.dtype, device="meta")  # fmt: skip
            values.carried(tensor, self._tensors[id(tensor)])
        return self._tensors[id(tensor)]

    def _parameter(self, module, name, parameter):
        import torch

        if parameter is None:
            return None
        shape = self._shapes.get(id(module), {}).get(name)
        if shape is not None:
            return self._made(*shape)
        if id(parameter) not in self._tensors:
            whole = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
            self._tensors[id(parameter)] = torch.nn.Parameter(whole, requires_grad=parameter.requires_grad)
        return self._tensors[id(parameter)]

    def _made(self, key, shape, dtype, needs_gradient):
        import torch

        if key not in self._tensors:
            self._tensors[key] = torch.nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=needs_gradient)
        return self._tensors[key]
