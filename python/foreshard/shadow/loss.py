"""What a script makes of its model's outputs, seen when backward starts: which loss, and whether it still holds the outputs."""

from __future__ import annotations

import functools
import sys
import weakref

from . import beside, names, script_step
from .notes import note

_LEAST = 1 << 20  # bytes
_running: dict = {}
_found: dict | None = None


def watch(torch, begins) -> None:
    """`begins()` when a backward does."""
    inner = torch.autograd.backward

    @functools.wraps(inner)
    def backward(tensors, *args, **kwargs):
        first = tensors[0] if isinstance(tensors, (tuple, list)) else tensors
        begins()
        script_step.ends(first)
        _look(first)
        return inner(tensors, *args, **kwargs)

    torch.autograd.backward = backward


def found() -> dict:
    return _found or {"kind": "unknown", "float32": False, "holds_outputs": False}


def root_begins() -> None:
    _still_held()


def forget() -> None:
    """The forward that was looked at was none of training."""
    if _found is None:
        _running.clear()


def root_ends(output) -> None:
    """The root's first training forward: its outputs are looked at."""
    if _found is not None or _running:
        return
    _running["outputs"] = [id(leaf) for leaf in _leaves(output)]
    _running["functions"] = {leaf.grad_fn for leaf in _leaves(output) if leaf.grad_fn is not None}
    _running["alive"] = [_watched(leaf) for leaf in _leaves(output)]
    _running["scalars"] = {id(leaf) for leaf in _leaves(output) if leaf.numel() == 1}


def _watched(tensor) -> tuple:
    """Its storage counts: what is left of a mean may lie in that of all its terms."""
    return weakref.ref(tensor), 0 if beside.is_transformed(tensor) else tensor.untyped_storage().nbytes()


def _by_storage(tensors: list) -> list[tuple]:
    """What is there, each storage once: what the script made of outputs (logits that were scaled) is held as they are."""
    there = [each for each in tensors if each is not None and not beside.is_transformed(each)]
    return list({id(each) if hasattr(each, "__tensor_flatten__") else each.untyped_storage().data_ptr(): _watched(each) for each in there}.values())


def kept() -> bool:
    """Whether names keep most of what a step returned while the next forward makes new ones."""
    return bool(_running.get("kept"))


def kept_returned() -> bool:
    """Whether it is most of what the model itself returned, and not what the script made of that alone."""
    return bool(_running.get("kept_returned"))


def _alive(watched: list[tuple]) -> int:
    return sum(size for tensor, size in watched if tensor() is not None)


def _still_held() -> None:
    """The first forward after the first backward begins."""
    if _found is None or "alive" not in _running:
        return
    watched = _running.pop("alive")
    alive = _alive(watched)
    _running["kept"] = alive >= _LEAST and 2 * alive >= sum(size for _, size in watched)
    returned = _running.pop("returned", [])
    _running["kept_returned"] = 2 * _alive(returned) >= sum(size for _, size in returned)
    if _running["kept"]:
        note(f"the model's outputs of one step ({alive / 2**20:.0f} MiB) are still held while the next forward runs: "
             "delete them after backward (del logits)")  # fmt: skip


def _leaves(tree) -> list:
    import torch
    from torch.utils._pytree import tree_flatten

    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in _leaves(value)]
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _look(loss) -> None:
    global _found
    if _found is not None or "outputs" not in _running:
        return
    _running["alive"].append(_watched(loss))
    _running["returned"] = list(_running["alive"])
    _running["alive"] = _by_storage([tensor() for tensor, _ in _running["alive"]] + script_step.held())
    names = _chain(loss, _running["functions"])
    kind = "own" if _running["scalars"] else "unknown"
    if kind == "unknown":
        for word, known in {"NllLoss": "cross_entropy", "CrossEntropy": "cross_entropy", "MseLoss": "mse", "Mean": "mean", "Sum": "sum"}.items():
            if any(name.startswith(word) for name in names):
                kind = known
                break
    if kind == "cross_entropy" and not any(name.startswith(("LogSoftmax", "CrossEntropy")) for name in names):
        kind = "nll"  # the model gives logarithms
    _found = {
        "kind": kind, "float32": any(name.startswith("ToCopy") for name in names), "holds_outputs": _held(),
        "shifted": any(name.startswith("Slice") for name in names), "operators": names,
    }  # fmt: skip
    _running["functions"] = set()  # the graph is the script's


def _chain(loss, ends) -> list[str]:
    """Names of autograd's functions between the loss and the model's outputs."""
    names, todo, seen = [], [loss.grad_fn], set()
    while todo and len(names) < 100:
        function = todo.pop(0)
        if function is None or function in ends or function in seen:
            continue
        seen.add(function)
        names.append(function.name())
        todo += [each for each, _ in function.next_functions]
    return names


def _held() -> bool:
    """Some frame of the script still has a name for an output."""
    wanted = set(_running["outputs"]) - _running["scalars"]
    frame = sys._getframe(2)
    while frame is not None:
        for value in names.variables(frame).values():
            if id(value) in wanted:
                return True
            if isinstance(value, dict) and any(id(each) in wanted for each in value.values()):
                return True
            if isinstance(value, (tuple, list)) and len(value) < 20 and any(id(each) in wanted for each in value):
                return True
        frame = frame.f_back
    return False
