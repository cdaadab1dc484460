"""What the script holds on the device beside the model that it trains when its first forward begins: a teacher, a reference, an average of
the weights. No job describes it; the job counts its bytes."""

from __future__ import annotations

import gc
import types
import weakref

from . import names

_LEAST = 1 << 20  # bytes that are worth a line in a job

_of_step: list[tuple] | None = None  # of the first: what its model is not given, and is there until backward (images that were encoded before)
_held: list[list[tuple]] = []  # at the first forward of each of the first steps: weak references, addresses, bytes


def step_begins() -> None:
    """The first forward of a step. What is there in the second and later too is kept: a teacher that runs behind the model has grown by then."""
    if len(_held) < 2:
        _held.append(there())


def there() -> list[tuple]:
    """Plain tensors on the device: weak references, addresses, bytes."""
    import torch

    plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    with torch._C.DisableTorchFunction():  # no question of the script's
        return [
            (weakref.ref(each), _address(each), -(-each.untyped_storage().nbytes() // 512) * 512)
            for each in gc.get_objects() if type(each) in plain and each.is_cuda and not is_transformed(each)
        ]  # fmt: skip


def is_transformed(tensor) -> bool:
    """One of torch.func's, around others: it has no storage."""
    import torch

    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def backward_begins(root, given: set[int]) -> None:
    """The first one. The rest of a batch that the model is not given lives as long as the script has a name for it: as a rule until the next."""
    global _of_step
    if _of_step is not None or len(_held) != 1 or root is None:
        return
    own = _owned(root, given)
    _of_step = [row for row in _held[0] if _is_there(row) and row[1] not in own]


def _owned(root, given: set[int]) -> set[int]:
    return set(given) | {_address(each) for each in (*_of_module(root), *carried(root))} if root is not None else set(given)


def _is_there(row: tuple) -> bool:
    return row[0]() is not None and _address(row[0]()) == row[1]


def found(root, given: set[int], optimizers: list, kept: set[int], gradients: dict[int, int]) -> tuple[int, int]:
    """Bytes, and how many of them came behind the first step: without the model's (another root of FSDP's may be part of it), what the step was
    seen to take (`given`) and what its optimizers keep (`kept`: outside of their states too), which the plan has. `gradients`: sizes by address of
    those that are another turn's."""
    own = _owned(root, given) | kept
    for state in (state for optimizer in optimizers for state in optimizer.state.values()):
        own |= {_address(each) for each in tensors_inside(state, 3)}
    rows = _held[-1] if _held else []
    if len(_held) == 2:
        rows = [row for row in rows if _is_there(row)]
    total = sum(({address: size for _, address, size in rows if address not in own} | gradients).values())
    total += sum({row[1]: row[2] for row in _of_step or () if not _is_there(row)}.values())
    if total < _LEAST:
        return 0, 0
    return total, _later(rows, own, given) if len(_held) == 2 else 0


def _later(rows: list, own: set[int], given: set[int]) -> int:
    """Bytes of what the second step finds and the first did not: what another turn's optimizer made, an average of the weights. What has gone in
    between had others in its place."""
    began = {row[1]: row[2] for row in _held[0] if row[1] not in (own if _is_there(row) else given)}
    later = sum({address: size for _, address, size in rows if address not in own}.values()) - sum(began.values())
    return later if later >= _LEAST else 0


def carried(root) -> list:
    """Tables on the device that modules keep in plain attributes, containers and objects: no buffers, but as long there."""
    owned = {id(each) for module in root.modules() for each in (*module._parameters.values(), *module._buffers.values())}
    found, views = {}, names.flat_shapes(root)
    for module in root.modules():
        for key, value in module.__dict__.items():
            own = key in ("_parameters", "_buffers", "_modules", "_handle", "_flat_param") or "fsdp" in key
            if not own and key not in views.get(id(module), ()):
                found |= {id(each): each for each in _kept(value, 4)}
    return [each for key, each in found.items() if key not in owned]


def _kept(value, depth: int) -> list:
    import torch

    if type(value) is torch.Tensor:
        return [value] if value.is_cuda and not value.requires_grad else []
    if not depth or isinstance(value, (torch.nn.Module, type, types.FunctionType, types.MethodType, types.ModuleType)):
        return []
    if isinstance(value, dict):
        return [each for inner in list(value.values()) for each in _kept(inner, depth - 1)]
    if type(value) in (list, tuple):
        return [each for inner in value for each in _kept(inner, depth - 1)]
    inside = getattr(value, "__dict__", None)
    return [each for inner in list(inside.values()) for each in _kept(inner, depth - 2)] if depth > 2 and type(inside) is dict else []


def address_of(tensor) -> int | None:
    """Of its storage on the device; None for a tensor in a wrapper (a DTensor), which has none."""
    return _address(tensor) if tensor.is_cuda and not hasattr(tensor, "__tensor_flatten__") and not is_transformed(tensor) else None


def _address(tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _of_module(root) -> list:
    """Parameters, their gradients, buffers, and what FSDP keeps for them."""
    found = [each for module in root.modules() for each in (*module._parameters.values(), *module._buffers.values())]
    found += [parameter.grad for parameter in root.parameters() if parameter.grad is not None]
    for module in root.modules():
        for key, value in module.__dict__.items():
            if "fsdp" in key or key in ("_handle", "_flat_param"):
                found += tensors_inside(value, 4)
    from torch.distributed._composable_state import _get_module_state

    for module in root.modules():
        group = getattr(_get_module_state(module), "_fsdp_param_group", None)
        for parameter in getattr(group, "fsdp_params", []):
            found += tensors_inside(vars(parameter), 3)
    return [each for value in found for each in tensors_inside(value, 3)]


def tensors_inside(value, depth: int) -> list:
    """Tensors on the device that a value holds: itself, in containers, what it wraps, what FSDP1 hangs on a flat parameter."""
    import torch

    if isinstance(value, torch.Tensor):
        if hasattr(value, "__tensor_flatten__"):  # a DTensor, a float8 weight: tensors in a wrapper that has no storage
            return [each for name in value.__tensor_flatten__()[0] for each in tensors_inside(getattr(value, name), depth)]
        hung = [each for each in vars(value).values() if isinstance(each, torch.Tensor)] if depth and hasattr(value, "__dict__") else []
        return [each for each in (value, *hung) if each.is_cuda and not hasattr(each, "__tensor_flatten__")]
    if not depth:
        return []
    if isinstance(value, dict):
        return [each for inner in list(value.values()) for each in tensors_inside(inner, depth - 1)]
    if isinstance(value, (tuple, list)):
        return [each for inner in value for each in tensors_inside(inner, depth - 1)]
    if type(value).__name__ == "FlatParamHandle":
        return tensors_inside(vars(value), depth - 1)
    return []
