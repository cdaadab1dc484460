"""What a script itself does around its model in its first step, from the root's forward until backward begins: written down as it runs, to
be run again on the copy of the model that is captured (model.py). Whatever its loss is, and how long it keeps names, the plan has it."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref

from .._autograd import python_apply
from . import beside, dtensors, names
from .names import variables
from .notes import note
from .reads import values
from .tape import loose
from .tape.words import Apply, Checkpoint, Copied, Part, Player, Slot, autocast_of, hooks_of, leaves, together

_MOST_ASIDE = 8  # forwards without gradients before the first with them: more are a text that is made, or an evaluation
_left_out = 0  # forwards that no plan has
_tape: Tape | None = None
_early = None  # the hook on modules that are called before a root is


def begin(torch) -> None:
    inner = torch.Tensor.backward

    @functools.wraps(inner)
    def backward(self, *args, **kwargs):  # before PyTorch hands it to function modes
        ends(self)
        return inner(self, *args, **kwargs)

    torch.Tensor.backward = backward


def watch_functions(python_module) -> None:
    """autograd.Function: its apply is one step of the script, whatever runs inside."""
    inner = python_apply(python_module.Function)

    def apply(cls, *args, **kwargs):
        run = functools.partial(inner, cls)
        return run(*args, **kwargs) if _tape is None else _tape.note_call(dtensors.stands_for(cls) or Apply(cls), args, kwargs, run)

    python_module.Function.apply = classmethod(functools.wraps(inner)(apply))


def shards_begin() -> None:
    """Something is sharded: plain modules that train may come before it in a step (a connector, prompts)."""
    global _early
    if _early is None:
        from torch.nn.modules.module import register_module_forward_pre_hook

        _early = register_module_forward_pre_hook(_before_roots)


def _before_roots(module, args) -> None:
    global _tape
    import torch

    if _tape is not None or not torch.is_grad_enabled() or loose.are_beside([module]) or torch._C._current_graph_task_id() != -1:
        return
    if loose.any_in(module):
        _tape = _new_tape()
        _tape.begins_early(module)


@contextlib.contextmanager
def aside():
    """What FSDP does before a root's forward is not the script's."""
    if _tape is None:
        yield
        return
    _tape.paused += 1
    try:
        yield
    finally:
        _tape.paused -= 1


def root_begins(module, args, kwargs) -> None:
    """The root begins a training forward; what it does inside is the model's."""
    global _tape, _left_out
    _fresh_tape()
    if not _tape.is_over() and _left_out:
        note(f"{_left_out} forwards without gradients before the first that trains are no part of the plan: a text that is made, an evaluation")
        _left_out = 0
    if _tape.is_over():
        _tape.begins_again()
    _tape.trains()
    _tape.root_begins(module, args, kwargs)


def root_begins_aside(module, args, kwargs) -> bool:
    """A root runs without gradients: between its training forward and backward, or before it, where its outputs may be of use in the
    loss (an old policy, a teacher). Whether that is of the step."""
    _fresh_tape()
    return _tape.root_begins(module, args, kwargs)


def _fresh_tape() -> None:
    """A tape that no rows of an evaluation, or of a text that was made, are on."""
    global _tape, _left_out
    if _tape is not None and _tape.is_spent():
        _left_out += _tape.forwards()
        _tape.close()
        _tape = None
    if _tape is None:
        _tape = _new_tape()


def root_ends(output) -> None:
    if _tape is not None:
        _tape.root_ends(output)


def ends(loss) -> None:
    """Backward begins."""
    if _tape is not None:
        _tape.ends(loss)


def checkpoint(inner, function, args, kwargs):
    """A region that the script itself recomputes."""
    if _tape is None:
        return inner(function, *args, **kwargs)
    return _tape.note_call(Checkpoint(), (function, *args), kwargs, inner)


def found() -> Tape | None:
    """The step, if it can be run again."""
    return _tape if _tape is not None and _tape.whole else None


def as_one_module(modules: list):
    """What the step calls, as the parts of one module whose forward is the step."""
    return together(modules, _tape)


def roots() -> list:
    """The modules that the step calls, each by itself a root of FSDP's."""
    return [] if _tape is None else [each() for each in _tape.roots if each() is not None] + _tape.loose.modules()


def forget() -> None:
    """What ran so far was no step."""
    global _tape
    if _tape is not None:
        _tape.close()
    _tape = None


def pause() -> None:
    """What comes now belongs to another turn."""
    if _tape is not None and not _tape.is_over():
        _tape.close()


def has(module) -> bool:
    """A root of the step, or a part of one."""
    return _tape is not None and _tape.has(module)


def given_storages() -> set:
    return set() if _tape is None else _tape.given_storages()


def storages() -> set:
    """Addresses of all that the step was given or has made, as far as it is there."""
    return set() if _tape is None else _tape.storages()


def held() -> list:
    return [] if _tape is None else [each() for each in _tape.held if each() is not None]


def gathers_outputs() -> bool:
    """The model's outputs are DTensors, and the script makes them whole before it works on them."""
    return _tape is not None and _tape.gathers


def shared(asides: list[list[int]]) -> list[list[bool]]:
    """By step and micro-batch, whether it runs what stands before the first training forward (a rollout's log-probabilities), given the forwards
    without gradients before each; empty: all do."""
    if _tape is None or not _tape.whole or not _tape.before or all(each for step in asides for each in step):
        return []
    return [[bool(each) for each in step] for step in asides]


def why_not() -> str:
    return "" if _tape is None else _tape.broken


def _plain(tensor) -> bool:
    import torch

    return type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and not beside.is_transformed(tensor)


def _weak_storage(tensor):
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(tensor.untyped_storage()) if _plain(tensor) else None


class Tape:
    """Holds no tensor of the script's."""

    def __init__(self, mode):
        self.whole = False
        self.broken = ""
        self.given: list = []  # tensors that the step did not make, without storage
        self._addresses: list = []  # of their storages
        self._storages: list = []  # weak references to these
        self.let_go: list[int] = []  # those that nobody holds when backward begins, by their places in `given`
        self.held: list = []  # weak references to what was made of the model's outputs and has a name when backward begins
        self._rows: list[tuple] = []
        self._mode = mode
        self._slots: dict[int, tuple[Slot, weakref.ref]] = {}
        self._made = 0
        self._trains = False  # a forward with gradients has begun
        self.gathers = False  # DTensors of the model's
        self.before = 0  # rows before the training forward, where there are forwards among them
        self._early: list[tuple] = []  # what they have made: slots and weak references
        self._stays: set[int] | None = None  # slots of these that the next micro-batch finds
        self._there: dict[int, weakref.ref] = {}  # by address, what there was when the training forward began
        self._made_since: list[int] = []  # addresses of what others have made behind that
        self.loose = loose.Held()  # behind the roots
        self._derived: set[int] = set()  # slots that the model's outputs went into
        self._over = False
        self._call: tuple | None = None  # of the root, while it runs
        self.paused = 0  # inside the root, or inside what is one step
        self._foreign = 0  # inside another module's forward
        self._kept: dict[int, tuple] = {}  # by id: such a module, whether it has tensors of its own
        self.roots: list[weakref.ref] = []
        self._names: dict[int, Part] = {}
        self._hooks = _foreign_modules(self)

    # ---- the model

    def begins_early(self, module) -> None:
        """Before any root: this module, which trains beside them, is called."""
        self.foreign(module, 1)  # its own hooks have begun
        self._mode.__enter__()

    def trains(self) -> None:
        import torch

        if not self._trains and not self._over and self.forwards():
            self.before = len(self._rows)
            self._early = list(self._slots.values())
        if not self._trains and not self._over:
            with torch._C.DisableTorchFunction():
                self._there = {address: tensor for tensor, address, _ in beside.there()}
        self._trains = True

    def begins_again(self) -> None:
        """The next micro-batch, or step: what is left of what stood before the training forward is whatever somebody holds."""
        if self._stays is None:
            self._stays = {slot.index for slot, tensor in self._early if tensor() is not None}

    def has(self, module) -> bool:
        return id(module) in self._names

    def is_spent(self) -> bool:
        """Before the training forward: nothing is left of what ran without gradients, or more ran than goes into one loss."""
        if self._over or self._trains or self.paused or not self.roots:
            return False
        return self.forwards() > _MOST_ASIDE or not any(self._is_of_use(slot.index, tensor()) for slot, tensor in self._slots.values())

    def forwards(self) -> int:
        return sum(row[0] == "forward" for row in self._rows)

    def is_over(self) -> bool:
        return self._over

    def _is_of_use(self, index: int, tensor) -> bool:
        """Words that were chosen are a batch like any other."""
        return index in self._derived and tensor is not None and tensor.is_floating_point()

    def close(self) -> None:
        """Nothing more is written down."""
        self._over = True
        self._kept.clear()
        self._leave_mode()
        for hook in self._hooks:
            hook.remove()

    def root_begins(self, module, args, kwargs) -> bool:
        if self._over or self.paused:
            return False
        if id(module) not in self._names:
            self._names |= {id(each): Part(len(self.roots), names.clean(name)) for name, each in module.named_modules()}
            self.roots.append(weakref.ref(module))
        self._leave_mode()
        self.paused += 1
        self._call = (self._names[id(module)], self._packed((args, kwargs)), *self._state())
        return True

    def root_ends(self, output) -> None:
        if self._over or self._call is None:
            return
        called, packed, grad, cast = self._call
        self._call = None
        self.paused -= 1
        slots = [self._slot_of_result(leaf, derived=True) for leaf in leaves(output)]  # a reference's outputs are the model's too
        self._rows.append(("forward", called, packed, slots, grad, cast))
        self._mode.__enter__()

    def foreign(self, module, delta: int) -> None:
        """What a module with tensors of its own makes is none of this model's; a loss that is a module has none."""
        if id(module) in self._names:
            return
        kept = self._kept.get(id(module))
        if kept is None:
            others = (each for each in module.modules() if id(each) not in self._names)
            kept = self._kept[id(module)] = (module, any(each._parameters or each._buffers for each in others))
        self._foreign += delta if kept[1] else 0

    # ---- the script

    def note_call(self, function, args, kwargs, run):
        """Runs a function of PyTorch's and writes it down; what it calls in turn is part of it."""
        if self._over or self.paused or self.broken:
            return run(*args, **kwargs)
        tensors = leaves((args, kwargs))
        derived = any(id(each) in self._slots and self._slots[id(each)][0].index in self._derived for each in tensors)
        if not derived and any(self._is_loose(each) for each in tensors):
            derived = True  # it trains beside the model
        if not derived and (self._foreign or not all(_plain(each) for each in tensors)):
            return run(*args, **kwargs)
        known, given, loose_ones, rows = set(self._slots), len(self.given), self.loose.count(), len(self._rows)
        since = len(self._made_since)
        packed, grad, cast = self._packed((args, kwargs)), *self._state()
        self.paused += 1
        try:
            result = run(*args, **kwargs)
        finally:
            self.paused -= 1
        made = leaves(result)
        if isinstance(function, dtensors.Whole):
            function = self._look_at_places(function, tensors, made, derived)
        if getattr(function, "__name__", "") == "__deepcopy__":  # goes to the storage itself, which a copy of the step has not
            function, packed = Copied(), ((packed[0][0],), {})
        if not made:  # a question, or a setting: no step of the computation
            self._forget(known, given)
            self._rows[rows:] = [row for row in self._rows[rows:] if row[0] != "make"]
            self.loose.back_to(loose_ones)
            del self._made_since[since:]
        else:
            self._rows.append(("call", function, packed, [self._slot_of_result(each, derived) for each in made], grad, cast))
        return result

    def _look_at_places(self, function, given: list, made: list, derived: bool):
        if not dtensors.is_whole(given, made):
            self.broken = self.broken or "it works on its rank's part of a DTensor"
            return function
        gathers = derived and dtensors.is_gathered(made[0]) and not dtensors.is_gathered(given[0])
        self.gathers = self.gathers or gathers
        return dtensors.Gathered() if gathers else function

    def ends(self, loss) -> None:
        if self._over or self.paused:
            return
        if not self.roots:  # of another model, before this one's
            return forget()
        if not self._trains:  # gradients of outputs alone (GradCache): the model's backward comes
            return
        self.close()
        self.let_go = [place for place, each in enumerate(self._storages) if each is not None and each.expired()]
        slot = self._slots.get(id(loss))
        if slot is None or slot[0].index not in self._derived:
            self.broken = self.broken or "its loss was not made from the model's outputs by functions of PyTorch"
            return
        held = _named_tensors()
        self.held = [alive for key, (each, alive) in self._slots.items() if key in held and each.index in self._derived]
        for key, (each, alive) in list(self._slots.items()):
            if key not in held and key != id(loss):
                self._rows.append(("drop", each.index))
        self._rows.append(("backward", slot[0].index))
        self.whole = not self.broken

    def given_storages(self) -> set:
        return set(self._addresses) | set(self._made_since)

    def storages(self) -> set:
        alive = [tensor() for _, tensor in self._slots.values()]
        return self.given_storages() | {beside.address_of(each) for each in alive if each is not None and _plain(each)}

    # ---- again

    def again(self, modules, given, keeps_returned: bool = False, shared=None, returned=None):
        """The step up to its loss, on the roots as they were before they were sharded; what it holds until backward is over, and the loss.
        `shared`: called behind what other micro-batches share; `returned`: behind the last call of a root."""
        player = Player(modules, given, keeps_returned, returned)
        if shared is None:
            player.play(self._rows)
            return player, player.loss
        stays = self._stays or set()
        rows = [row for at, row in enumerate(self._rows) if at < self.before or row[0] != "drop" or row[1] not in stays]
        player.play(rows[: self.before])
        shared()
        player.play(rows[self.before :])
        return player, player.loss

    # ---- tensors

    def _state(self) -> tuple:
        import torch

        return torch.is_grad_enabled(), (autocast_of(torch), hooks_of(torch))

    def _packed(self, tree):
        from torch.utils._pytree import tree_map

        return tree_map(self._pack, tree)

    def _pack(self, leaf):
        import torch

        if isinstance(leaf, torch.nn.Module) and id(leaf) in self._names:
            return self._names[id(leaf)]
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) in self._slots:
            return self._slots[id(leaf)][0]
        if (own := self._own(leaf)) is not None:
            return own
        if self._is_loose(leaf):
            return Part(-1, "", self.loose.name_of(leaf))
        if beside.is_transformed(leaf):
            self.broken = self.broken or "torch.func transforms what it is called with"
            return None
        if not _plain(leaf):
            self.broken = self.broken or f"it works on a {type(leaf).__name__}"
        slot = self._new_slot(leaf)
        if self._is_made_since(leaf):
            self._made_since.append(beside.address_of(leaf))
            self._rows.append(("make", slot.index, tuple(leaf.shape), leaf.dtype))
            return slot
        self._addresses.append(beside.address_of(leaf))
        self._storages.append(_weak_storage(leaf))
        with torch._C.DisableTorchFunction():
            given = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
        # A gradient penalty's input; other modules' parameters are no part of this model.
        values.carried(leaf, given)
        given.requires_grad_(leaf.requires_grad and leaf.is_leaf and not isinstance(leaf, torch.nn.Parameter))
        self.given.append((slot.index, given))
        return slot

    def _is_made_since(self, tensor) -> bool:
        """What other models, or kernels that nobody has a row for, have made since the forward began: not there before."""
        if not self._trains or not self._whole_of_its_own(tensor):
            return False
        address = beside.address_of(tensor)
        known = self._there.get(address)
        return address not in self._made_since and (known is None or known() is None) and address not in self._addresses

    @staticmethod
    def _whole_of_its_own(tensor) -> bool:
        """Numbers that no host has given, in memory of their own."""
        if not _plain(tensor) or not tensor.is_cuda or not tensor.is_floating_point() or tensor.requires_grad or not tensor.is_contiguous():
            return False
        return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()

    def _is_loose(self, tensor) -> bool:
        import torch

        return torch.is_grad_enabled() and loose.is_one(tensor) and (not self.roots or loose.are_beside([each() for each in self.roots])) and self._own(tensor) is None

    def _own(self, tensor) -> Part | None:
        """A parameter of the model used behind its forward (a head in the loss, a penalty), gathered: FSDP1's are views in its place."""
        if not tensor.is_floating_point():
            return None
        for root in self.roots:
            for module in root().modules() if root() is not None else ():
                for name, value in (*module._parameters.items(), *module.__dict__.items()):
                    if value is tensor and id(module) in self._names:
                        part = self._names[id(module)]
                        return Part(part.root, part.name, name)
        return None

    def _forget(self, known: set, given: int) -> None:
        """Tensors that were first seen since."""
        for key in self._slots.keys() - known:
            self._slots.pop(key)
        del self.given[given:], self._addresses[given:], self._storages[given:]

    def _slot_of_result(self, tensor, derived: bool) -> Slot:
        slot = self._slots[id(tensor)][0] if id(tensor) in self._slots else self._new_slot(tensor)
        if derived:
            self._derived.add(slot.index)
        return slot

    def _new_slot(self, tensor) -> Slot:
        slot, key = Slot(self._made), id(tensor)
        self._made += 1

        def dies(_):
            self._slots.pop(key, None)
            if not self._over:
                self._rows.append(("drop", slot.index))

        self._slots[key] = (slot, weakref.ref(tensor, dies))
        return slot

    # ---- the mode

    def _leave_mode(self) -> None:
        from torch.overrides import _get_current_function_mode

        if _get_current_function_mode() is self._mode:
            self._mode.__exit__(None, None, None)


def _new_tape() -> Tape:
    import torch
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function == torch.Tensor.grad.__get__:  # zero_grad between loss and backward; gradients of outputs, which are given
                return function(*args, **(kwargs or {}))
            return self.tape.note_call(function, args, kwargs or {}, function)

    mode = Mode()
    mode.tape = Tape(mode)
    return mode.tape


def _foreign_modules(tape) -> list:
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    return [
        register_module_forward_pre_hook(lambda module, args: tape.foreign(module, 1)),
        register_module_forward_hook(lambda module, args, output: tape.foreign(module, -1), always_call=True),
    ]


def _named_tensors() -> set[int]:
    """Tensors that some frame of the script has a name for, by itself or in a container."""
    import torch

    found: set[int] = set()

    def look(value, depth):
        if isinstance(value, torch.Tensor):
            found.add(id(value))
        elif depth and isinstance(value, dict):
            for each in list(value.values()):
                look(each, depth - 1)
        elif depth and isinstance(value, (tuple, list)) and len(value) < 1000:
            for each in value:
                look(each, depth - 1)
        elif depth and hasattr(type(value), "__dataclass_fields__"):  # the value's own __getattr__ may do anything
            look(dict(vars(value)), depth)

    frame = sys._getframe(2)
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith(("torch.", "foreshard.")):
            for value in variables(frame).values():
                look(value, 3)
        frame = frame.f_back
    return found
