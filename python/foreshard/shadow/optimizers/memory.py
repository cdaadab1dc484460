"""What a step of an optimizer that no job names takes from the allocator and gives back, in its order: its states and its temporaries, whatever it
is. The allocator's own history tells; a script that records that history itself is left alone."""

from __future__ import annotations

import weakref

from .. import beside

_NAMED = {
    "torch": {"AdamW", "Adam", "SGD", "Adafactor", "Muon", "NAdam", "Adagrad", "RAdam", "RMSprop", "Adamax"},
    "transformers": {"Adafactor"}, "torchao": {"AdamW8bit"}, "bitsandbytes": {"AdamW8bit"},
}  # fmt: skip
_MOST_EVENTS = 200_000
_seen: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # by optimizer
_running: list[_Running] = []  # the outermost first


class _Running:
    """A step that has begun; one of a class that calls its base's is one step."""

    def __init__(self, optimizer, backwards: int):
        self.optimizer, self.depth, self.is_whole, self.backwards = weakref.ref(optimizer), 1, True, backwards


class _Seen:
    """`there`: addresses of what earlier steps have taken and none has given back."""

    def __init__(self):
        self.steps: list[dict] = []  # the first and the last
        self.there: list[int] = []
        self.params = 0


def is_named(optimizer) -> bool:
    """Whether a job can say it: of the class itself, not one that was made of it or has its name."""
    kind = type(optimizer)
    return kind.__name__ in _NAMED.get(kind.__module__.partition(".")[0], ())


def begins(optimizer, backwards: int) -> None:
    """`backwards`: how many have run."""
    if is_named(optimizer) or not any(p.is_cuda for group in optimizer.param_groups for p in group["params"]):
        return
    import torch

    if _running and _running[-1].optimizer() is optimizer:
        _running[-1].depth += 1
        return
    if not _running and getattr(torch._C, "_cuda_isHistoryEnabled", bool)():  # the script's
        return
    for each in _running:  # the inner one is what steps
        each.is_whole = False
    _running.append(_Running(optimizer, backwards))
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=_MOST_EVENTS, clear_history=True)


def ends(optimizer, backwards: int) -> None:
    if not _running or _running[-1].optimizer() is not optimizer:
        return
    import torch

    _running[-1].depth -= 1
    if _running[-1].depth:
        return
    step = _running.pop()
    if not step.is_whole:
        return
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(enabled=None)
    seen = _seen.setdefault(optimizer, _Seen())
    if backwards > step.backwards:  # its closure runs the model, which takes memory too: what it keeps is all that is known
        trace = _difference(seen.there, optimizer)
    if len(trace) < _MOST_EVENTS:
        _keep(seen, trace, optimizer)


def _difference(there: list[int], optimizer) -> list[dict]:
    now = {}
    for state in optimizer.state.values():
        for each in beside.tensors_inside(state, 3):
            storage = each.untyped_storage()
            now[storage.data_ptr()] = storage.nbytes()
    gone = [{"action": "free_completed", "addr": address} for address in there if address not in now]
    return gone + [{"action": "alloc", "addr": address, "size": size} for address, size in now.items() if address not in there and size]


def _local(parameter):
    return parameter._local_tensor if hasattr(parameter, "_local_tensor") else parameter


def _keep(seen: _Seen, trace: list[dict], optimizer) -> None:
    alive = {address: number for number, address in enumerate(seen.there)}
    before = taken = len(alive)
    events = []
    for event in trace:
        address = event["addr"]
        if event["action"] == "alloc":
            alive[address] = taken
            taken += 1
            events.append(event["size"])
        elif event["action"] == "free_completed" and address in alive:
            events.append(-1 - alive.pop(address))
    seen.there = list(alive)
    seen.params = sum(_local(p).nbytes for group in optimizer.param_groups for p in group["params"] if p.grad is not None) or seen.params
    seen.steps[1:] = [{"there": before, "events": events}]


def found(optimizers: list) -> dict[int, tuple[str, dict]]:
    """By an optimizer's id: a name of its own, and the row of the model's file."""
    rows: dict[int, tuple[str, dict]] = {}
    names: dict[str, int] = {}
    for each in optimizers:
        seen = _seen.get(each) if each is not None else None
        if seen is None or not seen.steps:
            continue
        kind = type(each).__name__
        names[kind] = names.get(kind, 0) + 1
        name = kind if names[kind] == 1 else f"{kind}-{names[kind]}"
        rows[id(each)] = (name, {"name": name, "params_bytes": seen.params, "first": seen.steps[0], "steady": seen.steps[-1] if len(seen.steps) > 1 else _without_states(seen.steps[0])})
    return rows


def _without_states(step: dict) -> dict:
    """Of a first step, what a second one takes as far as that is known: what it has given back."""
    goes = {-1 - event: True for event in step["events"] if event < 0}
    numbers, events, taken = {}, [], step["there"]
    for event in step["events"]:
        if event > 0:
            if taken in goes:
                numbers[taken] = len(numbers)
                events.append(event)
            taken += 1
        elif -1 - event in numbers:
            events.append(-1 - numbers[-1 - event])
    return {"there": 0, "events": events}
