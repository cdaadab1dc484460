"""The script's model as a model file: a copy of the module on the meta device, as it was before sharding, captured."""

from __future__ import annotations

import contextlib
import json
import os
import time
import types

from .._output import whole_file
from . import PLAN, folder, script_step
from .names import class_of
from .notes import note

_SKIPPED = {"_forward_pre_hooks", "_forward_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs",
            "_forward_hooks_always_called", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
            "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"}  # fmt: skip


_STANDS = {"own": "the scalar among its outputs", "cross_entropy": "cross entropy", "nll": "the likelihood of a class", "mse": "a mean squared error",
           "sum": "a sum"}  # fmt: skip


def write(root, found: dict, call: dict) -> dict | None:
    """{"file", "seconds"} of model.json, or of model-config.json where the module cannot be captured; None without a root."""
    if root is None or not call or os.environ.get(PLAN) == "0":
        return None
    began = time.monotonic()
    copy = unsharded(root)
    try:
        captured = _capture(copy, found, call)
        captured.save(str(folder() / "model.json"))
        for text in captured.notes:
            note(text)
        return {"file": "model.json", "seconds": round(time.monotonic() - began, 2), "notes": list(captured.notes)}
    except Exception as error:
        config = getattr(copy, "config", None)
        if not hasattr(config, "to_dict"):
            raise
        note(f"the model is taken from its config, not from its code: {type(error).__name__}: {error}")
        text = json.dumps(config.to_dict(), default=str)
        with whole_file(folder() / "model-config.json") as file:
            file.write(text)
        return {"file": "model-config.json", "seconds": round(time.monotonic() - began, 2), "notes": []}


def _capture(copy, found, call):
    import torch
    import torch.nn.functional as F

    from foreshard.capture import capture_step

    units = found["units"]
    first = next((u for u in units if u["modules"] != [""]), units[0] if units else None)
    precision = {}
    if first is not None:
        for key in ("param", "buffer", "output"):
            if first[key] != "none":
                precision[key] = first[key]
        if found["runtime"] == "fsdp2" and first["cast_forward_inputs"]:
            precision["units"] = [name for unit in units for name in unit["modules"] if name]
    loss = found["loss"]

    def output_of(result):
        return result if isinstance(result, torch.Tensor) else next(iter(_tensors(result)))

    def loss_of(result):
        kind = loss["kind"]
        if kind == "own":
            return next(leaf for leaf in _tensors(result) if leaf.numel() == 1)
        out = output_of(result)
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

    def step(module, args, kwargs):
        cast = torch.autocast("cuda", dtype=getattr(torch, found["autocast"])) if found["autocast"] else contextlib.nullcontext()
        with cast:
            result = module(*args, **kwargs)
            value = loss_of(result)
        if not loss["holds_outputs"]:
            del result
        value.backward()

    copy.train()
    kwargs = {key: value for key, value in call["kwargs"].items()}
    own = script_step.found()
    if own is not None:
        numbers, given = zip(*own.given) if own.given else ((), ())

        def again(module, batch):
            given = list(zip(numbers, batch))
            del batch
            if len(own.roots) > 1:
                value, held = module(given)
            else:
                held, value = own.again([module], given)
            value.backward()

        try:
            return capture_step(copy, again, list(given), mixed_precision=precision or None, strict=False, name=found["model_class"], device="fake")
        except Exception as error:
            note(f"what the script does behind its model cannot be run again ({type(error).__name__}: {error}): {_STANDS.get(loss['kind'], 'a mean')} stands for it")
    elif script_step.why_not():
        note(f"what the script does behind its model cannot be run again ({script_step.why_not()}): {_STANDS.get(loss['kind'], 'a mean')} stands for it")
    return capture_step(copy, step, call["args"], kwargs, mixed_precision=precision or None, strict=False, name=found["model_class"],
                        device="fake")  # the script's own process is the virtual device's


def _tensors(tree):
    import torch
    from torch.utils._pytree import tree_flatten

    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in _tensors(value)]
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


# ---------------------------------------------------------------------------------------------------- copies


def unsharded(root):
    """The module tree on the meta device, whole parameters, without FSDP's classes, wrappers and hooks."""
    return _Copier(root).module(root)


class _Copier:
    def __init__(self, root):
        self._modules: dict[int, object] = {}
        self._tensors: dict[int, object] = {}
        self._shapes = _flat_shapes(root)

    def module(self, module):

        inner = getattr(module, "_fsdp_wrapped_module", None)
        if inner is None and type(module).__name__ == "DistributedDataParallel":
            inner = module.module
        if inner is not None:
            return self.module(inner)
        if id(module) in self._modules:
            return self._modules[id(module)]
        copy = object.__new__(class_of(module))
        self._modules[id(module)] = copy
        state = {}
        for key, value in module.__dict__.items():
            if key in ("_parameters", "_buffers", "_modules") or not isinstance(key, str) or "composable" in key:
                continue
            if key in ("forward", "_original_forward"):  # replaced on the instance: it holds the module that is sharded
                if getattr(value, "__self__", None) is module:
                    state[key] = types.MethodType(value.__func__, copy)
                elif key == "forward":
                    note(f"{type(module).__name__}: its forward was replaced on the instance; its class's stands in the model")
                continue
            state[key] = type(value)() if key in _SKIPPED else self._plain(value)
        state["_parameters"] = {name: self._parameter(module, name, p) for name, p in module._parameters.items()
                                if name != "_flat_param"}  # FSDP1's own
        for name, shape in self._shapes.get(id(module), {}).items():
            if name not in state["_parameters"] or state["_parameters"][name] is None:
                state["_parameters"][name] = self._made(*shape)
        state["_buffers"] = {name: self._tensor(b) for name, b in module._buffers.items()}
        state["_modules"] = {name: None if m is None else self.module(m) for name, m in module._modules.items()}
        copy.__dict__.update(state)
        for name in self._shapes.get(id(module), {}):
            copy.__dict__.pop(name, None)  # FSDP1 puts views in the parameters' places
        return copy

    def _plain(self, value):
        import torch

        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, dict) and type(value) is dict and any(isinstance(v, torch.Tensor) for v in value.values()):
            return {k: self._plain(v) for k, v in value.items()}
        return value

    def _tensor(self, tensor):
        import torch

        if tensor is None:
            return None
        if id(tensor) not in self._tensors:
            self._tensors[id(tensor)] = torch.empty_like(tensor, device="meta").detach() if type(tensor) in (
                torch.Tensor, torch.nn.Parameter) else torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")  # fmt: skip
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


def _flat_shapes(root) -> dict[int, dict[str, tuple]]:
    """FSDP1: id of a module -> name -> (key, shape, dtype, needs a gradient) of the parameters that lie in flat ones."""
    shapes: dict[int, dict[str, tuple]] = {}
    for wrapper in root.modules():
        handle = getattr(wrapper, "_handle", None)
        if handle is None or not hasattr(handle, "flat_param"):
            continue
        flat = handle.flat_param
        originals = getattr(flat, "_params", None) or [flat] * len(flat._shapes)
        for i, (info, shape) in enumerate(zip(flat._param_infos, flat._shapes)):
            row = (f"{id(handle)}.{i}", tuple(shape), flat.dtype, originals[i].requires_grad)
            shapes.setdefault(id(info.module), {})[info.param_name] = row
        for info in flat._shared_param_infos:
            first = shapes[id(info.prim_module)][info.prim_param_name]
            shapes.setdefault(id(info.module), {})[info.param_name] = first
    return shapes
