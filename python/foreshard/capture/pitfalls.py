"""What a module does that goes otherwise under FSDP, or that only a collector of garbage ends: told as notes."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.utils._pytree import tree_flatten


def _holds_tensors(value: Any) -> bool:
    inside = getattr(value, "__dict__", None)
    return bool(inside) and any(isinstance(leaf, torch.Tensor) for leaf in tree_flatten(list(inside.values()))[0])


def hidden_results(output: Any) -> str:
    """The class of an object among a module's results whose tensors PyTorch's trees do not show; empty: there is none."""
    for leaf in tree_flatten(output)[0]:
        if not isinstance(leaf, (torch.Tensor, torch.nn.Module)) and _holds_tensors(leaf):
            return type(leaf).__name__
    return ""


def hidden_results_note(class_name: str, hidden: str) -> str:
    return (
        f"{class_name} returns a {hidden}, whose tensors fully_shard does not find: as a unit of FSDP2 it gathers nothing before its "
        "backward, which fails; return a tuple or a dictionary, or register the class with torch.utils._pytree"
    )


def own_result_note(name: str) -> str:
    return (
        f"{name} keeps its own result as an attribute of ctx: a cycle that holds it until Python collects garbage, where "
        "save_for_backward would not; it is planned as if it went with the graph"
    )


@contextlib.contextmanager
def functional_calls(notes: list[str]):
    """FSDP1 puts its views beside a module's dictionary of parameters, which functional_call changes without effect."""
    import torch.nn.utils.stateless as stateless

    original = stateless._functional_call

    def call(module, *args, **kwargs):
        note = (
            f"functional_call of {type(module).__name__}: FSDP1 goes on reading its own views there and takes the parameters "
            "that are given for nothing; FSDP2 takes them"
        )
        if note not in notes:
            notes.append(note)
        return original(module, *args, **kwargs)

    stateless._functional_call = call
    try:
        yield
    finally:
        stateless._functional_call = original
