"""What two captures of one step say differently: on the virtual device and on fake tensors."""

from __future__ import annotations

import difflib
from typing import Any

_NAMED = 3  # differences that are told one by one


def differences(virtual: dict[str, Any], fake: dict[str, Any]) -> list[str]:
    """One sentence each; none where the programs are the same."""
    a, b = virtual["ops"], fake["ops"]
    numbered = True
    if [_key(op) for op in a] != [_key(op) for op in b]:
        a, b, numbered = _without_views(a), _without_views(b), False
    names_a, names_b = [_key(op) for op in a], [_key(op) for op in b]
    found: list[str] = []
    if names_a != names_b:
        matcher = difflib.SequenceMatcher(None, names_a, names_b, autojunk=False)
        for word, i, j, k, m in matcher.get_opcodes():
            if word != "equal":
                found.append(f"{_place(a[i:j] or b[k:m])}: {_words(a[i:j])} on the virtual device, {_words(b[k:m])} on fake tensors")
    else:
        for op, other in zip(a, b):
            if difference := _of_results(op, other, numbered):
                found.append(f"{_place([op])}: {op['op']} {difference}")
    told = [f"the virtual device and fake tensors differ: {text}" for text in found[:_NAMED]]
    if len(found) > _NAMED:
        told.append(f"the virtual device and fake tensors differ in {len(found) - _NAMED} places more")
    return told


_VIEWS = tuple(f"aten.{name}" for name in ("view.default", "as_strided.default", "alias.default", "slice.Tensor", "select.int", "lift_fresh.default"))


def _without_views(ops: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """After a change in place autograd makes views anew, fake tensors by operators, a card out of sight; a constant is lifted on a card only."""
    return [op for op in ops if op["op"] not in _VIEWS]


def _key(op: dict[str, Any]) -> tuple[str, str]:
    return op["op"], op["module"]


def _place(ops: list[dict[str, Any]]) -> str:
    return ops[0]["module"] or "the root module"


def _words(ops: list[dict[str, Any]]) -> str:
    names = [op["op"] for op in ops[:_NAMED]]
    return (", ".join(names) + (f" and {len(ops) - _NAMED} more" if len(ops) > _NAMED else "")) or "nothing"


def _steps(row: dict[str, Any]) -> list[int]:
    """Strides of the dimensions that are stepped along."""
    shape, strides, step = row.get("shape") or [], row.get("strides"), 1
    if strides is None:
        strides = []
        for size in reversed(shape):
            strides.insert(0, step)
            step *= max(size, 1)
    return [stride for size, stride in zip(shape, strides) if size > 1]


def _of_results(op: dict[str, Any], other: dict[str, Any], numbered: bool) -> str:
    """`numbered`: both number their operators alike."""
    def said(row: dict[str, Any], key: str) -> Any:
        if key == "strides":
            return _steps(row)
        return "op" if not numbered and key == "held_until" and isinstance(row.get(key), dict) else row.get(key)

    for mine, its in zip(op["out"], other["out"]):
        if (mine is None) != (its is None):
            return "gives a result on one of them only"
        for key, word in (("shape", "shape"), ("dtype", "dtype"), ("strides", "strides"), ("held_until", "held until")):
            if mine and said(mine, key) != said(its, key):
                return f"has {word} {mine.get(key)} on the virtual device, {its.get(key)} on fake tensors"
    if op.get("opaque") != other.get("opaque"):
        return "is opaque with other facts"
    if op.get("kwargs") != other.get("kwargs"):
        return f"takes {op.get('kwargs')} on the virtual device, {other.get('kwargs')} on fake tensors"
    return ""
