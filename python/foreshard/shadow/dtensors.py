"""DTensors behind a script's model. The model that is captured is whole: what hands on all of a DTensor (to_local() of a replica) is nothing
there, and what makes it whole (full_tensor()) a copy, in whose place a plan over ranks has the gather."""

from __future__ import annotations

_ROOM = "torch.distributed.tensor."


class Whole:
    """An autograd.Function of DTensor's, run again on a tensor that is whole."""

    def __call__(self, tensor, *rest):
        return tensor


class Gathered:
    """The same of one that ranks have parts of."""

    def __call__(self, tensor, *rest):
        return tensor.clone()


def stands_for(cls) -> Whole | None:
    return Whole() if cls.__module__.startswith(_ROOM) else None


def is_whole(given: list, made: list) -> bool:
    """Whether nothing but places changed from the tensors given to those made: no rank's part."""
    return bool(given and made) and given[0].shape == made[0].shape


def is_gathered(tensor) -> bool:
    """A plain tensor, or one that every rank has."""
    return all(one.is_replicate() for one in getattr(tensor, "placements", ()))
