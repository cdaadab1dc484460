"""DTensors that a model's own code makes of its plain tensors and takes apart again (`DTensor.from_local(x).redistribute(...).to_local()`):
between the two stands one operator, with the collectives that bring one placement to the other; what goes in and comes out are places alone."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

_ROOM = "torch.distributed.tensor."
_SEEN = "_foreshard_seen"  # of a DTensor: a plain tensor with its history, which lies as its local one does


def kind(cls: type, args: tuple) -> str:
    """"in", "between" or "out": what one of DTensor's functions does with these; "": none of these functions, or of a tensor that was none before."""
    if not cls.__module__.startswith(_ROOM) or not args:
        return ""
    if cls.__name__ == "_FromTorchTensor":
        return "in"
    known = hasattr(args[0], _SEEN)
    return {"Redistribute": "between", "_ToTorchTensor": "out"}.get(cls.__name__, "") if known else ""


def run(what: str, functions, plain, cls: type, args: tuple, kwargs: dict) -> Any:
    """`functions`: of the capture; `plain`: autograd.Function's own apply."""
    recorder = functions.recorder
    if what == "in":
        with recorder.paused():
            out = plain(cls, *args, **kwargs)
        setattr(out, _SEEN, args[0])
        return out
    source = getattr(args[0], _SEEN)
    if what == "out" or _stays(*args):
        with recorder.paused():
            out = plain(cls, *args, **kwargs)
        if what == "between":
            setattr(out, _SEEN, source)
        return out
    frame = recorder.opaques.begin(f"{cls.__module__}.{cls.__name__}", [source])
    try:
        with _exchanges_in_steps():
            out = plain(cls, *args, **kwargs)
    finally:
        recorder.opaque = None
    with recorder.paused():
        seen = out._local_tensor.detach().requires_grad_(out.requires_grad)
    setattr(out, _SEEN, seen)
    recorder.opaques.end(frame, [seen])
    if out.grad_fn is not None:
        with torch.no_grad(), recorder.paused():
            given = type(out)(torch.empty_like(seen), out._spec, requires_grad=False)
        with _exchanges_in_steps():
            functions.run_backward(frame, [seen], out.grad_fn, [given], lambda gradient: gradient._local_tensor)
    return out


def _stays(tensor, mesh, placements, *rest) -> bool:
    return tuple(tensor._spec.placements) == tuple(placements) and not any(isinstance(each, torch.dtype) and each != tensor.dtype for each in rest)


@contextlib.contextmanager
def _exchanges_in_steps():
    """`_dtensor.shard_dim_alltoall` is one operator whose steps no mode sees (torch/csrc/distributed/c10d/Functional.cpp): a copy of the part for each rank,
    room for theirs, the exchange, and what is joined."""
    from torch.distributed.tensor import _collective_utils, placement_types

    rooms = [room for room in (_collective_utils, placement_types) if hasattr(room, "shard_dim_alltoall")]
    originals = [room.shard_dim_alltoall for room in rooms]
    for room in rooms:
        room.shard_dim_alltoall = _shard_dim_alltoall
    try:
        yield
    finally:
        for room, original in zip(rooms, originals):
            room.shard_dim_alltoall = original


def _shard_dim_alltoall(tensor, gather_dim, shard_dim, mesh, mesh_dim):
    group = mesh.get_group(mesh_dim)
    length = tensor.shape[shard_dim] // group.size()
    sent = [tensor.narrow(shard_dim, at * length, length).contiguous() for at in range(group.size())]
    got = [torch.empty_like(sent[0]) for _ in sent]
    torch.distributed.all_to_all(got, sent, group=group)
    return torch.cat(got, gather_dim)
