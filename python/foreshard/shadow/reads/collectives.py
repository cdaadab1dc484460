"""What collectives give of values that are known: every other rank has this one's. What rank 0 hands out (broadcast) is what was there."""

from __future__ import annotations

import functools
import inspect

from foreshard import _choices as choices

from .. import own_parts
from . import values


def begin(module) -> None:
    """torch.distributed, whose functions write into tensors that they are given."""
    follows = {
        "all_reduce": _reduced, "all_gather": _gathered, "all_gather_into_tensor": _laid_out("all_gather"), "all_to_all_single": _laid_out("all_to_all"), "all_to_all": _sent,
        "reduce_scatter_tensor": _laid_out("reduce_scatter"),
    }  # fmt: skip
    for name in ("all_to_all_single", "all_to_all"):
        setattr(module, name, _told(getattr(module, name)))
    written = ("reduce", "reduce_scatter", "scatter", "recv")
    for name, follow in (follows | dict.fromkeys(written, _overwritten)).items():
        setattr(module, name, _followed(module, getattr(module, name), follow))


def begin_functional(module) -> None:
    """torch.distributed._functional_collectives, whose functions make their results."""
    kinds = {"all_to_all_single": "all_to_all", "all_gather_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter", "all_reduce": "all_reduce"}
    for name, kind in kinds.items():
        setattr(module, name, _made(module, getattr(module, name), kind))
    for name in ("all_to_all_single", "all_to_all_single_autograd"):
        setattr(module, name, _told(getattr(module, name)))


def begin_placements(module) -> None:
    """torch.distributed.tensor._collective_utils: an all-to-all from one dimension to another, in a model's own code or by its styles."""
    module.shard_dim_alltoall = _told(module.shard_dim_alltoall, own_parts.exchanged_dimensions)


def _told(inner, tell=own_parts.exchanged):
    @functools.wraps(inner)
    def exchange(*args, **kwargs):
        tell()
        return inner(*args, **kwargs)

    return exchange


def _followed(module, inner, others):
    names = list(inspect.signature(inner).parameters)

    @functools.wraps(inner)
    def collective(*args, **kwargs):
        own_parts.met()
        work = inner(*args, **kwargs)
        if values.any_known() and not values.is_captured(args, kwargs):  # which sees operators
            with values.aside():
                given = dict(zip(names, args)) | kwargs
                others(module, given, *(given.get(name) for name in names[:2]))
        return work

    return collective


def _overwritten(module, given, output, *_) -> None:
    values.forget(output)


def _reduced(module, given, tensor, op) -> None:
    mirror = values.of(tensor)
    if mirror is None:
        return
    if op is None or op == module.ReduceOp.SUM:
        mirror.mul_(module.get_world_size(given.get("group")))
    elif op not in (module.ReduceOp.MAX, module.ReduceOp.MIN, module.ReduceOp.AVG):
        values.forget(tensor)


def _gathered(module, given, tensors, tensor) -> None:
    for one in tensors:
        values.give(one, values.of(tensor))


def _sent(module, given, outputs, inputs) -> None:
    """Each gets what this one sends to itself."""
    for one in outputs:
        values.give(one, values.of(inputs[module.get_rank(given.get("group"))]))


def _laid_out(kind):
    def follow(module, given, output, tensor) -> None:
        mirror, group = values.of(tensor), given.get("group")
        if mirror is None:
            values.forget(output)
            return
        made = choices.received(kind, mirror.reshape(mirror.shape or (1,)), module.get_world_size(group), module.get_rank(group), given.get("input_split_sizes"))
        values.give(output, None if made is None or made.numel() != output.numel() else made.reshape(output.shape), mirror)

    return follow


def _made(module, inner, kind):
    names = list(inspect.signature(inner).parameters)

    @functools.wraps(inner)
    def collective(self, *args, **kwargs):
        result = inner(self, *args, **kwargs)
        mirror = None if values.is_captured((self,), {}) else values.of(self)
        if mirror is not None:
            with values.aside():
                values.give(values.here(result), _of(module, kind, mirror, dict(zip(names[1:], args)) | kwargs), mirror)
        return result

    return collective


def _of(module, kind, mirror, given: dict):
    """None: it is summed otherwise, or along another dimension than the first."""
    if given.get("reduceOp", "sum") != "sum" or given.get("gather_dim", 0) or given.get("scatter_dim", 0):
        return None
    group = module.c10d._resolve_process_group(module._resolve_group_name(given["group"], given.get("tag", "")))
    return choices.received(kind, mirror, group.size(), group.rank(), given.get("input_split_sizes"))
