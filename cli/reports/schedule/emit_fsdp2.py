"""FSDP2's public knobs set as a schedule of Foreshard says: @MODEL@.

@NUMBERS@

    checkpoint(model)            # before fully_shard: recomputes what the schedule recomputes
    shard(model, mesh=mesh)      # fully_shard, unit by unit; or shard the same units yourself
    apply(model)                 # prefetch lists, what is kept after forward
    begin_micro_batch(model, last=True)    # before each forward, where gradients are accumulated

NOT_EXPRESSED says what PyTorch's API has no word for.
"""
import torch
from torch.distributed.fsdp import fully_shard

@DATA@
NOT_EXPRESSED = [
@MISSING@]


def _unit(model, name):
    return model.get_submodule(name) if name else model


def _is_around(names, inner):
    return inner is not names and any(name.startswith(outer + ".") for outer in names for name in inner)


def checkpoint(model):
    """Wraps the modules that recompute; names stay as they were."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        CheckpointImpl, apply_activation_checkpointing, checkpoint_wrapper)
    chosen = {id(model.get_submodule(name)) for name in RECOMPUTED}
    impl = CheckpointImpl.REENTRANT if REENTRANT else CheckpointImpl.NO_REENTRANT
    apply_activation_checkpointing(
        model, checkpoint_wrapper_fn=lambda m: checkpoint_wrapper(m, checkpoint_impl=impl),
        check_fn=lambda m: id(m) in chosen)


def shard(model, **options):
    """fully_shard of every unit, inner ones before those around them, the root last; options (mesh, mp_policy, ...)
    go to each call."""
    left = [names for names in UNITS if names != [""]]
    while left:
        names = next((names for names in left if not any(_is_around(names, inner) for inner in left)), left[0])
        left.remove(names)
        modules = [model.get_submodule(name) for name in names]
        fully_shard(modules if len(modules) > 1 else modules[0],
                    reshard_after_forward=RESHARD_AFTER_FORWARD[names[0]], **options)
    return fully_shard(model, reshard_after_forward=RESHARD_AFTER_FORWARD.get("", False), **options)


def apply(model):
    """Of a model that is sharded by the same units. A list that names its own unit gathers nothing ahead."""
    for name, value in RESHARD_AFTER_FORWARD.items():
        _unit(model, name).set_reshard_after_forward(value, recurse=False)
    for name, targets in FORWARD_PREFETCH.items():
        _unit(model, name).set_modules_to_forward_prefetch([_unit(model, target) for target in targets])
    for name, targets in BACKWARD_PREFETCH.items():
        _unit(model, name).set_modules_to_backward_prefetch([_unit(model, target) for target in targets])
    return model


def begin_micro_batch(model, last):
    """Units that stay gathered over micro-batches are given back in the last one's backward."""
    for name in KEPT_OVER_MICRO_BATCHES:
        _unit(model, name).set_reshard_after_backward(last, recurse=False)
