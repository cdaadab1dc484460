"""What a step of an optimizer that no job names takes from the allocator and gives back, in its order: its states and its temporaries, whatever it
is. The allocator's own history tells; a script that records that history itself is left alone."""

from __future__ import annotations

import functools
import weakref

from .. import beside
from ..notes import note

_NAMED = {
    "torch": {"AdamW", "Adam", "SGD", "Adafactor", "Muon", "NAdam", "Adagrad", "RAdam", "RMSprop", "Adamax"},
    "transformers": {"Adafactor"}, "torchao": {"AdamW8bit"}, "bitsandbytes": {"AdamW8bit"},
}  # fmt: skip
_MOST_EVENTS = 200_000
_seen: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # by optimizer
_running: list[_Running] = []  # the outermost first
_stepped: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # named optimizers that have stepped inside of others: allocations before it
_holders: weakref.WeakSet = weakref.WeakSet()  # that have stepped others, and done nothing beside


class _Running:
    """A step that has begun; one of a class that calls its base's is one step."""

    def __init__(self, optimizer, backwards: int, head: list[dict]):
        self.optimizer, self.depth, self.is_whole, self.backwards, self.head = weakref.ref(optimizer), 1, True, backwards, head
        self.own = 0  # allocations of its step, less those of the named ones inside; of hooks behind it are the script's
        self.inside: set[int] = set()  # ids of the parameters that these have stepped


class _Seen:
    """`there`: addresses of what earlier steps have taken and none has given back, by place; None: a place whose block has gone."""

    def __init__(self):
        self.steps: list[dict] = []  # the first and the last
        self.there: list[int | None] = []
        self.sizes: dict[int, int] = {}  # by address
        self.params = 0
        self.last: tuple[dict[int, int], int, int] | None = None  # of the latest step: numbers by address, places before it, and with what it took


def is_named(optimizer) -> bool:
    """Whether a job can say it: of the class itself, not one that was made of it or has its name."""
    kind = type(optimizer)
    return kind.__name__ in _NAMED.get(kind.__module__.partition(".")[0], ())


def begins(optimizer, backwards: int) -> None:
    """`backwards`: how many have run."""
    import torch

    if is_named(optimizer):
        if _running:
            _stepped[optimizer] = _allocations(torch)
        return
    if not any(p.is_cuda for p in _parameters(optimizer)):
        return

    if _running and _running[-1].optimizer() is optimizer:
        _running[-1].depth += 1
        return
    try:
        if not _running and getattr(torch._C, "_cuda_isHistoryEnabled", bool)():
            note(f"the script records the allocator's history itself: what {type(optimizer).__name__} takes in its step is not watched")
            return
        live = _live(torch)
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=_MOST_EVENTS, clear_history=True)
    except RuntimeError as error:  # cudaMallocAsync and pluggable allocators have none
        note(f"what {type(optimizer).__name__} takes in its step is not watched: the allocator has no history ({str(error).splitlines()[0]})")
        return
    for each in _running:  # the inner one is what steps
        each.is_whole = False
    seen = _seen.setdefault(optimizer, _Seen())
    seen.last = None
    seen.params = _trained(optimizer) or seen.params
    _running.append(_Running(optimizer, backwards, _since(seen, live, optimizer)))


def ends(optimizer, backwards: int) -> None:
    if _running and optimizer in _stepped:
        import torch

        _running[-1].own -= _allocations(torch) - _stepped.pop(optimizer)
        _running[-1].inside |= {id(p) for p in _parameters(optimizer)}
        return
    if not _running or _running[-1].optimizer() is not optimizer:
        return
    import torch

    _running[-1].depth -= 1
    if _running[-1].depth:
        return
    step = _running.pop()
    if not step.is_whole:
        return
    if step.inside.issuperset(map(id, _parameters(optimizer))) and step.own == 0:
        torch.cuda.memory._record_memory_history(enabled=None)
        _seen.pop(optimizer, None)
        _holders.add(optimizer)
        return
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(enabled=None)
    seen = _seen[optimizer]
    if backwards > step.backwards:  # its closure runs the model, which takes memory too: what it keeps is all that is known
        trace = _difference(seen.there, step.head, optimizer)
        seen.params = seen.params or _trained(optimizer)
    if len(trace) < _MOST_EVENTS:
        _keep(seen, step.head + _without_gradients(trace, optimizer))
    else:
        note(f"a step of {type(optimizer).__name__} takes and gives back more blocks than are watched ({_MOST_EVENTS})")


def holds_others(optimizer) -> bool:
    """Whether those that it has stepped are all that it does (torchtitan's container)."""
    return optimizer in _holders


def _allocations(torch) -> int:
    """Of this process so far."""
    return torch.cuda.memory_stats()["allocation.all.allocated"]


def tell_errors(step):
    """A step that raises has no end that hooks are told of. PyTorch's own stay as they are, for compilers that know them."""
    if step.__module__.startswith("torch.optim."):
        return step

    @functools.wraps(step)
    def told(*args, **kwargs):
        step_of_its_own = _running[-1] if _running and _running[-1].optimizer() is args[0] and _running[-1].depth == 1 else None
        import torch

        before = _allocations(torch) if step_of_its_own else 0
        try:
            return step(*args, **kwargs)
        except BaseException:
            _fails(args[0])
            raise
        finally:
            if step_of_its_own:
                step_of_its_own.own += _allocations(torch) - before

    return told


def _fails(optimizer) -> None:
    if not _running or _running[-1].optimizer() is not optimizer:
        return
    import torch

    _running[-1].depth -= 1
    if not _running[-1].depth and _running.pop().is_whole:
        torch.cuda.memory._record_memory_history(enabled=None)


def rest(optimizers) -> None:
    """Steps have ended, and the next begins: what they took and others have given back since (a loop that clears gradients) goes at their end."""
    watched = [each for each in optimizers if each in _seen and _seen[each].last is not None]
    if not watched or _running:
        return
    import torch

    live = _live(torch)
    for each in watched:
        seen = _seen[each]
        places, before, taken = seen.last
        for address in _gone(seen, live, each):
            seen.steps[-1]["events"].append(-1 - places.pop(address))
        seen.there = _placed(places, before, taken)


def _live(torch) -> dict[int, int]:
    """Sizes by address of what is there."""
    device = torch.cuda.current_device()
    segments = [each for each in torch.cuda.memory._snapshot()["segments"] if each["device"] == device]
    return {block["address"]: block["requested_size"] for each in segments for block in each["blocks"] if block["state"] == "active_allocated"}


def _since(seen: _Seen, live: dict[int, int], optimizer) -> list[dict]:
    """What has happened since its last step, as events: what it took and others have given back, and states that no step has taken (of its
    constructor, of a checkpoint). A gradient may lie where something else lay."""
    gone, states, gradients = _gone(seen, live, optimizer), _states(optimizer), _gradients(optimizer)
    left = set(seen.there) - set(gone)
    made = {address: live[address] for address in states if address in live and address not in left and address not in gradients}
    return [{"action": "free_completed", "addr": a} for a in gone] + [{"action": "alloc", "addr": a, "size": size} for a, size in made.items()]


def _gone(seen: _Seen, live: dict[int, int], optimizer) -> list[int]:
    others = _gradients(optimizer) - set(_states(optimizer))
    return [address for address in seen.there if address is not None and (live.get(address) != seen.sizes[address] or address in others)]


def _without_gradients(trace: list[dict], optimizer) -> list[dict]:
    """Those that it has put in the place of others, which the plan has until they are cleared."""
    put, left = _gradients(optimizer) - set(_states(optimizer)), []
    for event in reversed(trace):
        if event["action"] == "alloc" and event["addr"] in put:
            put.remove(event["addr"])
        else:
            left.append(event)
    return left[::-1]


def _difference(there: list[int | None], head: list[dict], optimizer) -> list[dict]:
    """Of what was there when the step began, and of what it keeps now."""
    gone = {each["addr"] for each in head if each["action"] != "alloc"}
    before = [a for a in there if a is not None and a not in gone] + [each["addr"] for each in head if each["action"] == "alloc"]
    now, known = _states(optimizer), set(before)
    left = [{"action": "free_completed", "addr": address} for address in before if address not in now]
    return left + [{"action": "alloc", "addr": address, "size": size} for address, size in now.items() if address not in known and size]


def _states(optimizer) -> dict[int, int]:
    """Sizes by address of what its states keep, without what is a parameter's."""
    parameters, now = _addresses(_parameters(optimizer)), {}
    for state in getattr(optimizer, "state", {}).values():
        for each in beside.tensors_inside(state, 3):
            storage = each.untyped_storage()
            if storage.data_ptr() not in parameters:
                now[storage.data_ptr()] = storage.nbytes()
    return now


def _gradients(optimizer) -> set[int]:
    return _addresses(p.grad for p in _parameters(optimizer) if p.grad is not None)


def _addresses(tensors) -> set[int]:
    return {inner.untyped_storage().data_ptr() for each in tensors for inner in beside.tensors_inside(each, 0)}


def _parameters(optimizer) -> list:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _trained(optimizer) -> int:
    """Bytes of this rank's parameters that have a gradient."""
    return sum((p._local_tensor if hasattr(p, "_local_tensor") else p).nbytes for p in _parameters(optimizer) if p.grad is not None)


def _keep(seen: _Seen, trace: list[dict]) -> None:
    places = {address: number for number, address in enumerate(seen.there) if address is not None}
    before = taken = len(seen.there)
    events = []
    waiting: dict[int, bool] = {}  # given back; another stream may still read it
    for event in trace:
        action, address = event["action"], event.get("addr")
        waiting.pop(address, None)
        if action in ("alloc", "free_completed") and address in places:
            events.append(-1 - places.pop(address))
        if action == "alloc":
            places[address], seen.sizes[address] = taken, event["size"]
            taken += 1
            events.append(event["size"])
        elif action == "free_requested":
            waiting[address] = True
    events += [-1 - places.pop(address) for address in waiting if address in places]
    seen.there = _placed(places, before, taken)
    seen.sizes = {address: seen.sizes[address] for address in places}
    seen.steps[1:] = [{"there": before, "events": events}]
    seen.last = (places, before, taken)


def _placed(places: dict[int, int], before: int, taken: int) -> list[int | None]:
    """What is kept in the places of what has gone, and then behind: a place means the same in every step."""
    by_place = {place: address for address, place in places.items()}
    there = [by_place.get(place) for place in range(before)]
    kept = [by_place[place] for place in range(before, taken) if place in by_place]
    holes = [place for place in range(before) if there[place] is None]
    for place, address in zip(holes, kept):
        there[place] = address
    return there + kept[len(holes) :]


def kept(optimizers: list) -> set[int]:
    """Addresses of what their steps have taken and not given back, in their states or elsewhere."""
    return {address for each in optimizers if each in _seen for address in _seen[each].there if address is not None}


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
