"""The module on a card that does not exist: its parameters, buffers and the batch as fake tensors, for a while."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, Callable

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .errors import CaptureError
from .known import KnownValues, values_of


OWN = frozenset(torch.nn.Module().__dict__)  # attributes that every module has


def check_module(module: torch.nn.Module) -> list[str]:
    """What lies on the module already, in words; raises where capture cannot go on."""
    notes, hooked = [], []
    for name, child in module.named_modules():
        kind = type(child).__name__
        at = name or "the root module"
        if kind in ("FullyShardedDataParallel", "DistributedDataParallel", "DataParallel") or kind.startswith("FSDP"):
            raise CaptureError(
                f"the module is wrapped by {kind} already",
                place=f"module {at}",
                expected="the module as it is before it is sharded",
                got=kind,
                hint="capture first, then wrap; Foreshard plans the sharding itself",
            )
        if kind == "OptimizedModule":
            notes.append(f"{at}: compiled by torch.compile; captured as it runs eagerly")
        hooks = sum(
            len(getattr(child, table, None) or {})
            for table in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        )
        if hooks:
            hooked.append(at)
    if hooked:
        more = f" and {len(hooked) - 3} more modules" if len(hooked) > 3 else ""
        notes.append(f"{', '.join(hooked[:3])}{more}: hooks run with them and are captured with them")
    devices: dict[str, str] = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
            raise CaptureError(
                "a lazy parameter has no shape yet",
                place=name,
                hint="run the module once, or give its sizes, before it is captured",
            )
        if hasattr(tensor, "device_mesh"):
            raise CaptureError(
                "a parameter is a DTensor: the module is sharded already",
                place=name,
                hint="capture first, then shard; Foreshard plans the sharding itself",
            )
        if tensor.device.type != "meta":
            devices.setdefault(str(tensor.device), name)
    if len(devices) > 1:
        raise CaptureError(
            "the module's parameters and buffers lie on several devices",
            place=f"module {type(module).__name__}",
            expected="one device (or meta)",
            got=", ".join(f"{name} on {device}" for device, name in devices.items()),
            hint="move the module to one device; Foreshard shards it, it places no layers",
        )
    return notes


def _holds_the_same(cache, content) -> bool:
    if len(cache) != len(content):
        return False
    if isinstance(cache, dict):
        return all(key in cache and cache[key] is value for key, value in content.items())
    return cache == content if isinstance(cache, set) else all(mine is theirs for mine, theirs in zip(cache, content))


class Fakes:
    """Stands fake tensors in for real ones; the same tensor always gets the same one."""

    def __init__(self, mode, device: torch.device, dtypes_of: Callable[[str], tuple], known: KnownValues):
        """`dtypes_of`: what parameters and buffers of the module by this name are cast to."""
        self._mode, self._device, self._known = mode, device, known
        self._dtypes_of = dtypes_of
        self._made: dict[int, torch.Tensor] = {}
        self._storages: dict[int, torch.Tensor] = {}
        self._keep: list[Any] = []  # what ids were taken of

    def of(self, tensor: torch.Tensor, cast: torch.dtype | None = None) -> torch.Tensor:
        """Same geometry on the card; tensors of one storage stay so unless they are cast."""
        known = self._made.get(id(tensor))
        if known is not None:
            return known
        if tensor.layout != torch.strided:
            raise CaptureError(
                f"a tensor of layout {tensor.layout} is given",
                expected="dense tensors",
                got=str(tuple(tensor.shape)),
                hint="sparse tensors are not captured",
            )
        dtype = cast if cast is not None and tensor.is_floating_point() else tensor.dtype
        with self._mode, torch.no_grad():
            nbytes = tensor.untyped_storage().nbytes() // tensor.element_size() * dtype.itemsize
            key = tensor.untyped_storage()._cdata
            base = self._storages.get(key)
            if base is None or base.dtype != dtype:
                base = torch.empty(nbytes // dtype.itemsize, dtype=dtype, device=self._device)
                self._storages[key] = base
            made = base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            if isinstance(tensor, torch.nn.Parameter):
                made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
            else:
                made = made.detach()  # no view that was made without gradients: it may be written to with them
                if tensor.requires_grad:
                    made.requires_grad_()
        self._made[id(tensor)] = made
        self._keep.append(tensor)
        if not isinstance(tensor, torch.nn.Parameter) and (values := values_of(tensor)) is not None:
            self._known.give(made, values)
        return made

    def _beside(self, value: Any, depth: int = 4) -> Any:
        """The same with fakes in the places of known tensors; the value itself where it has none."""
        if isinstance(value, torch.Tensor):
            return self._made.get(id(value), value)
        if not depth or isinstance(value, (torch.nn.Module, type)):
            return value
        if isinstance(value, dict):
            changed = {key: new for key, old in value.items() if (new := self._beside(old, depth - 1)) is not old}
            if not changed:
                return value
            again = copy.copy(value)  # a defaultdict too
            again.update(changed)
            return again
        if type(value) in (list, tuple):
            again = type(value)(self._beside(each, depth - 1) for each in value)
            return again if any(new is not old for new, old in zip(again, value)) else value
        inside = getattr(value, "__dict__", None)
        if type(inside) is not dict or callable(getattr(value, "__get__", None)):  # a function, a method
            return value
        changed = {key: new for key, old in inside.items() if (new := self._beside(old, depth - 2)) is not old} if depth > 2 else {}
        if not changed:
            return value
        twin = copy.copy(value)
        twin.__dict__.update(changed)
        return twin

    def batch(self, values: Any) -> Any:
        """What a step is given. Whole numbers on the host beside tensors that are not stay there, with their values (lengths of rows)."""
        leaves = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        mixed = any(leaf.device.type != "cpu" for leaf in leaves)

        def stays(leaf: torch.Tensor) -> bool:
            return mixed and leaf.device.type == "cpu" and not leaf.is_floating_point()

        return tree_map(lambda v: self.of(v) if isinstance(v, torch.Tensor) and not stays(v) else v, values)

    @contextlib.contextmanager
    def inside(self, module: torch.nn.Module):
        """The module's own tensors replaced; everything that it had is put back."""
        before, caches = [], []
        try:
            for path, child in module.named_modules():
                own, (param, buffers) = child.__dict__, self._dtypes_of(path)
                before.append((own, dict(own), dict(child._parameters), dict(child._buffers)))
                caches += [(value, value.copy()) for name, value in own.items() if isinstance(value, (dict, list, set)) and name not in OWN]
                for name, parameter in child._parameters.items():
                    if parameter is not None:
                        child._parameters[name] = self.of(parameter, param)
                for name, buffer in child._buffers.items():
                    if buffer is not None:
                        child._buffers[name] = self.of(buffer, buffers)
            for child in module.modules():  # what modules have in containers beside (nn.RNN's lists, tables by length)
                for name, value in list(child.__dict__.items()):
                    if name not in OWN:
                        child.__dict__[name] = self._beside(value)
            yield
        finally:
            for own, attributes, parameters, buffers in before:
                own.clear()
                own.update(attributes)
                own["_parameters"].clear()
                own["_parameters"].update(parameters)
                own["_buffers"].clear()
                own["_buffers"].update(buffers)
            for cache, content in caches:  # what the step has put there is no tensor of anybody's
                if not _holds_the_same(cache, content):  # those that refuse to be changed do
                    cache.clear()
                    (cache.extend if isinstance(cache, list) else cache.update)(content)
