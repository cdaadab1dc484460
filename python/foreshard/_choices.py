"""Which of several is chosen by scores that nobody has computed (an expert for a token): each as often as any other.

A stated assumption, for sizes hang on it: rows that go to an expert, and to its rank. What counts, sorts or masks these choices
follows from them like from any known values.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

NOTE = "routing is taken as balanced: of what scores on the device choose among (topk, argmax, multinomial), each is chosen equally often"
_INDICES_OF = {"topk": 1, "max": 1, "min": 1, "kthvalue": 1, "sort": 1, "argmax": 0, "argmin": 0, "argsort": 0, "multinomial": 0}  # by name: which result
_PLACE_OF_DIM = {"topk": 2, "kthvalue": 2}  # among the arguments; else the next behind the scores
_ORDERS = ("sort", "argsort")
CHOOSING = frozenset(_INDICES_OF)


def chosen(name: str, args, kwargs, results, most: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(the tensor of indices among `results`, what is in it) of a function or an operator `name`; None: it chooses nothing, or more
    than `most`."""
    import torch

    at = _INDICES_OF.get(name)
    scores = args[0] if args else kwargs.get("input", kwargs.get("self"))
    if at is None or not isinstance(scores, torch.Tensor) or not scores.dim():
        return None
    results = results if isinstance(results, (tuple, list)) else (results,)
    if len(results) <= at or not isinstance(results[at], torch.Tensor) or results[at].dtype != torch.int64 or results[at].numel() > most:
        return None
    dim = -1 if name == "multinomial" else _dim(name, args, kwargs)
    if dim is None or type(dim) is not int:
        return None
    return results[at], balanced(tuple(results[at].shape), scores.shape, dim % scores.dim(), name in _ORDERS)


def _dim(name: str, args, kwargs):
    if "dim" in kwargs:
        return kwargs["dim"]
    numbers = [value for value in args[_PLACE_OF_DIM.get(name, 1) :] if type(value) is int]
    return numbers[0] if numbers else None if name in ("argmax", "argmin", "max", "min") else -1


def balanced(shape: tuple[int, ...], scores, dim: int, orders: bool = False) -> torch.Tensor:
    """Indices of `shape` into `scores` along `dim`, no two of a row alike. `orders`: all of them, the first of each row balanced."""
    import torch

    among = scores[dim]
    others = [size for at, size in enumerate(scores) if at != dim]
    rows = functools.reduce(int.__mul__, others, 1)
    each = functools.reduce(int.__mul__, shape, 1) // max(rows, 1)
    steps = torch.arange(rows).unsqueeze(1) * (1 if orders else each) + torch.arange(each)
    found = _spread(among)[steps % among].view(*others, each)
    return found.movedim(-1, dim).reshape(shape) if each != 1 or len(shape) == len(scores) else found.reshape(shape)


def counted(function, args, kwargs) -> torch.Tensor | None:
    """What the device counts of whole numbers (histc), and the host of floating ones alone."""
    import torch

    given = args[0] if args else None
    if getattr(function, "__name__", "").partition(".")[0] != "histc" or not isinstance(given, torch.Tensor):
        return None
    return function(given.double(), *args[1:], **kwargs).to(given.dtype)


@functools.cache
def _spread(among: int) -> torch.Tensor:
    """All of them in an order whose every beginning is spread evenly over neighbours: those of one rank get no more than others."""
    import torch

    bits = max(among - 1, 1).bit_length()
    return torch.tensor(sorted(range(among), key=lambda i: int(f"{i:0{bits}b}"[::-1], 2)))


# ---------------------------------------------------------------------- other ranks, which do the same


def received(kind: str, sent: torch.Tensor, ranks: int, place: int, sizes=None) -> torch.Tensor | None:
    """What a collective gives of these values, if every rank has them. `sizes`: rows that go to each rank; None: as many to each."""
    import torch

    if kind == "all_reduce":
        return sent * ranks
    if kind == "all_gather":
        return torch.cat([sent] * ranks)
    if not sent.dim() or (not sizes and sent.shape[0] % ranks):
        return None
    if sizes and (len(sizes) != ranks or sum(sizes) != sent.shape[0]):
        return None
    own = sent.split(list(sizes) if sizes else sent.shape[0] // ranks)[place] if sent.shape[0] else sent
    return own * ranks if kind == "reduce_scatter" else torch.cat([own] * ranks)
