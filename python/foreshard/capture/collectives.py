"""Collectives that a script calls itself, as operators below autograd: whom they meet, and with how much."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

WAIT = "_c10d_functional.wait_tensor.default"
EXCHANGE = "_c10d_functional.all_to_all_single.default"
# By operator: what it is, and where in the arguments what comes out (None: its result), goes in, the group, and the rows for each rank lie.
_OPERATORS: dict[str, tuple[str, int | None, int, int, int | None]] = {
    "c10d.alltoall_base_.default": ("all_to_all", 0, 1, 2, 4),
    "c10d.alltoall_.default": ("all_to_all", 0, 1, 2, None),
    "c10d.allreduce_.default": ("all_reduce", 0, 0, 1, None),
    "c10d._allgather_base_.default": ("all_gather", 0, 1, 2, None),
    "c10d.allgather_.default": ("all_gather", 0, 1, 2, None),
    "c10d._reduce_scatter_base_.default": ("reduce_scatter", 0, 1, 2, None),
    "c10d.reduce_scatter_.default": ("reduce_scatter", 0, 1, 2, None),
    EXCHANGE: ("all_to_all", None, 0, 3, 2),
    "_c10d_functional.all_reduce.default": ("all_reduce", None, 0, 2, None),
    "_c10d_functional.all_reduce_.default": ("all_reduce", 0, 0, 2, None),
    "_c10d_functional.all_gather_into_tensor.default": ("all_gather", None, 0, 2, None),
    "_c10d_functional.reduce_scatter_tensor.default": ("reduce_scatter", None, 0, 3, None),
}
_adds: list[bool] = []  # whether the all-reduce that runs is a sum
_BACK = {"all_to_all": "all_to_all", "all_gather": "reduce_scatter", "reduce_scatter": "all_gather", "all_reduce": "all_reduce"}


@dataclass
class Collective:
    kind: str
    ranks: tuple[int, ...]
    place: int
    nbytes: int  # of the whole vector
    sizes: list[int] | None  # rows that go to each rank, where the script says so
    given: Any  # a tensor, or a list of them
    made: Any = None  # what is written; None: the result
    adds: bool = True  # what it reduces; else the largest, the smallest or the mean

    def row(self, dimension: int) -> list:
        return [self.kind, dimension, self.nbytes, *([True] if self.sizes else [])]

    def row_of_backward(self, dimension: int) -> list:
        return [_BACK[self.kind], *self.row(dimension)[1:]]


def met(func, args, out) -> Collective | None:
    """None: it meets nobody."""
    told = _OPERATORS.get(str(func))
    if told is None:
        return None
    kind, made, given, group, sizes = told
    of = _group(args[group])
    if of is None or of.size() < 2:
        return None
    result = out if made is None else args[made]
    nbytes = max(_bytes(args[given]), _bytes(result))
    ranks = tuple(torch.distributed.get_process_group_ranks(of))
    adds = _adds[-1] if kind == "all_reduce" and _adds else "sum" in [each for each in args if isinstance(each, str)] or not str(func).startswith("_c10d")
    return Collective(kind, ranks, of.rank(), nbytes, list(args[sizes]) if sizes is not None else None, args[given], None if made is None else result, adds)


@contextlib.contextmanager
def watched(recorder):
    """PyTorch's collectives that have a backward run below it, as if nothing were to be differentiated: the recorder is told."""
    if not torch.distributed.is_available():
        yield
        return
    operators = torch.ops._c10d_functional_autograd
    names = [name for name in ("all_to_all_single", "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce") if hasattr(operators, name)]
    originals = {name: getattr(operators, name) for name in names}

    def told(inner):
        @functools.wraps(inner)
        def collective(*args, **kwargs):
            recorder.differentiates = torch.is_grad_enabled()
            try:
                return inner(*args, **kwargs)
            finally:
                recorder.differentiates = False

        return collective

    for name, inner in originals.items():
        setattr(operators, name, told(inner))
    group, reduces = torch.distributed.ProcessGroup, torch.distributed.ProcessGroup.allreduce

    def allreduce(self, tensors, *options, **named):
        """Below it nobody sees what it makes of them."""
        given = options[0] if options else named.get("opts", named.get("op"))
        kind = getattr(given, "reduceOp", given)
        _adds.append(kind is None or kind == torch.distributed.ReduceOp.SUM)
        try:
            return reduces(self, tensors, *options, **named)
        finally:
            _adds.pop()

    group.allreduce = allreduce
    try:
        yield
    finally:
        group.allreduce = reduces
        for name, inner in originals.items():
            setattr(operators, name, inner)


def _group(told):
    import torch.distributed as dist

    try:
        return dist.distributed_c10d._resolve_process_group(told) if isinstance(told, str) else dist.ProcessGroup.unbox(told)
    except Exception:  # noqa: BLE001 - a group that is none of this process
        return None


def _bytes(tree) -> int:
    return sum(t.numel() * t.element_size() for t in tree_flatten(tree)[0] if isinstance(t, torch.Tensor))


class Mesh:
    """The groups that a program meets, numbered as it meets them."""

    def __init__(self) -> None:
        self.groups: list[tuple[tuple[int, ...], int]] = []

    def dimension(self, collective: Collective) -> int:
        key = (collective.ranks, collective.place)
        if key not in self.groups:
            self.groups.append(key)
        return self.groups.index(key)

    def rows(self, world: int) -> list[dict[str, Any]]:
        """As the model has them: one that spans the world is that of any world."""
        rows, others = [], 0
        for ranks, place in self.groups:
            others += len(ranks) < world
            name = "world" if len(ranks) == world else "script" + str(others) * (others > 1)
            rows.append({"name": name, "ranks": list(ranks), "place": place})
        return rows
