"""Optimizers in turns, each behind a loss and a backward of its own (a GAN's generator and discriminator): every turn is a step with a plan of
its own, so what is watched of a step is kept apart by turn. A script with one optimizer, or whose optimizers all step together, has one turn."""

from __future__ import annotations

import copy
import weakref

from . import beside, loss, script_step
from .names import clean, fsdp2_parameters
from .notes import note

_PARTS = {
    beside: ("_of_step", "_held"), loss: ("_running", "_found"), script_step: ("_tape", "_left_out"),
}  # fmt: skip
_initial: dict = {}  # by module: values that a turn begins with
_kept: list[dict] = []  # by turn: what was watched of it
_steps: list[int] = []  # ... and in how many steps
_held_again: list = []  # what lay beside the only turn when it came again while another was awaited
_NEW, _MIXED = -1, -2
_live = _NEW  # the turn that what is watched now is of; _NEW: one that nobody has seen; _MIXED: another one has stepped in it


def watch(module, names: tuple[str, ...]) -> None:
    """What `module` watches of a step under these names; now is the time at which they have what a step begins with."""
    for part, own in (*_PARTS.items(), (module, names)):
        _initial[part] = {name: copy.copy(getattr(part, name)) for name in own}


def keeps(turn: int) -> bool:
    """A step of this turn has ended. Whether what was watched is the turn's, and is kept: it was expected, or is the first of a new one."""
    global _live
    new = len(_kept) == turn and _live == _NEW
    if new:
        _steps.append(0)
    elif _live != turn:
        if turn >= len(_kept):
            note(f"an optimizer steps behind others that came again before it (turn {turn + 1}): its steps are counted, and have no plan")
        elif _live != _NEW:
            note("optimizers do not strictly take turns: a step that comes where another's was expected is counted, and nothing else is read from it")
        _live = _MIXED
        return False
    _kept[turn:] = [_now(), *_kept[turn + 1 :]]
    _steps[turn] += 1
    _live = turn
    return True


def _now() -> dict:
    return {part: {name: _own(getattr(part, name)) for name in own} for part, own in _initial.items()}


def _own(value):
    """Containers, and rows that are counted up: what is watched of another turn's step must leave no trace."""
    if type(value) is dict:
        return {key: dict(row) if type(row) is dict else row for key, row in value.items()}
    return list(value) if type(value) is list else value


def go_to(turn: int) -> None:
    """What is watched from now on is of this turn; one that nobody has seen begins anew."""
    global _live
    script_step.pause()
    new = turn >= len(_kept)
    if _live == turn and len(_kept) == 1:  # it is
        return
    for part, own in (_initial if new else _kept[turn]).items():
        for name, value in own.items():
            setattr(part, name, _own(value))
    _live = _NEW if new else turn


def count() -> int:
    return len(_kept)


def read_as_later(turn: int, gradients: dict) -> None:
    """Where a new turn was awaited, and the only one came again instead: its first step does not know all. Of a new one `gradients` say nothing."""
    if _live != _NEW:
        return
    if turn < len(_kept) == 1:
        earlier = next(own["_gradients"] for own in _kept[turn].values() if "_gradients" in own)
        earlier.update({key: each for key, each in gradients.items() if key in ("forward", "backward")})
        _held_again[:] = beside._held
    gradients.clear()


def end_at(turn: int) -> None:
    """To tell what was watched of it."""
    go_to(turn)
    if len(_kept) == 1 and len(beside._held) == 1:  # no other ever came
        beside._held += _held_again


def steps_of(turn: int) -> int:
    """In which all was watched that is kept of it; at least the one that never ended."""
    return _steps[turn] if turn < len(_steps) else 1


# ---------------------------------------------------------------------------------------------------- parameters of optimizers


def named(root) -> list[tuple[list[str], object]]:
    """Parameters as an optimizer gets them, with the names of what is in each: several in FSDP1's flat ones. A root that nothing reshards has
    others in their places between its forward and its backward."""
    rows, known = [], set()
    whole = {id(each._unsharded_param): each.sharded_param for each in fsdp2_parameters(root) if hasattr(each, "_unsharded_param")}

    def add(names: list[str], parameter) -> None:
        parameter = whole.get(id(parameter), parameter)
        if id(parameter) not in known:
            known.add(id(parameter))
            rows.append((names, parameter))

    for path, module in root.named_modules():
        inside = f"{clean(path)}." if clean(path) else ""
        if (handle := getattr(module, "_handle", None)) is not None and hasattr(handle, "flat_param"):
            flat = handle.flat_param
            known |= {id(flat)} if flat._params is not None else set()
            for name, each in zip(flat._fqns, flat._params or ()):
                add([inside + clean(name)], each)
            add([inside + clean(name) for name in flat._fqns], flat)
        for name, each in module._parameters.items():
            if each is not None:
                add([inside + name], each)
    return rows


def _ids(optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _patterns(names: set[str], all_names: set[str]) -> list[str]:
    """The fewest patterns that name these of all parameters: whole parts of the model before single ones."""
    if names and names == all_names:
        return ["*"]
    found, left = [], set(names)
    for prefix in sorted({name[:at] for name in names for at, each in enumerate(name) if each == "."}, key=lambda prefix: (len(prefix), prefix)):
        inside = {name for name in all_names if name.startswith(prefix + ".")}
        if inside & left and inside <= names:
            found.append(f"{prefix}.*")
            left -= inside
    return found + sorted(left)


def parts(root, first, stepped: list) -> tuple[list[tuple[object, list[str]]], list[str]]:
    """Of a step in which `stepped` step, `first` as the job's own: the others with what they step, and what none of them does."""
    if root is None or first is None:
        return [], []
    rows = named(root)
    everything = {name for names, _ in rows for name in names}
    own = set().union(*(_ids(each) for each in stepped)) if stepped else set()
    if not any(id(p) in own for _, p in rows):  # it has copies
        return [], []
    others = []
    for each in stepped:
        names = {name for named, p in rows if id(p) in _ids(each) for name in named}
        if each is not first and names:
            others.append((each, _patterns(names, everything)))
    waiting = {name for names, p in rows if p.requires_grad and id(p) not in own for name in names}
    return others, _patterns(waiting, everything)


_LEAST_OF_GROUPS = 0.005  # of an optimizer's elements: less makes no difference to what its lists take


def groups(root, optimizer) -> list[tuple[dict, list[str]]]:
    """Of an optimizer that steps by lists, its further groups of parameters, with what is in each: a group's temporaries go before the next one's come."""
    if root is None or len(optimizer.param_groups) < 2:
        return []
    rows = named(root)
    everything = {name for names, _ in rows for name in names}
    sizes = [sum(p.numel() for p in group["params"] if p.requires_grad) for group in optimizer.param_groups]
    if sum(sizes) - max(sizes) < _LEAST_OF_GROUPS * sum(sizes):
        return []
    found = []
    for group in optimizer.param_groups[1:]:
        inside = {id(p) for p in group["params"]}
        names = {name for named_, p in rows if id(p) in inside for name in named_}
        found += [(group, _patterns(names, everything))] if names else []
    return found


def gradients_of_others(root, optimizer) -> list[tuple]:
    """Gradients on the device that this turn's optimizer does not step, as its backward begins: another turn's, that nobody has cleared."""
    own = _ids(optimizer) if optimizer is not None else set()
    grads = [p.grad for _, p in named(root) if p.grad is not None and id(p) not in own] if root is not None else []
    local = [each._local_tensor if hasattr(each, "_local_tensor") else each for each in grads]
    return [(weakref.ref(each), each._version, *_storage(each)) for each in local if each.is_cuda]


def _storage(tensor) -> tuple[int, int]:
    """Address and bytes: gradients of a unit lie side by side in what was reduced."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), -(-storage.nbytes() // 512) * 512


def untouched(gradients: list[tuple]) -> dict[int, int]:
    """Bytes by address of those that this turn has added nothing to: they lie beside."""
    return {address: size for tensor, version, address, size in gradients if tensor() is not None and tensor()._version == version}
