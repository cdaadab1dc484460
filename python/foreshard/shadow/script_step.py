"""What a script itself does around its model in its first step, from the root's forward until backward begins: written down as it runs, to
be run again on the copy of the model that is captured (model.py). Whatever its loss is, and how long it keeps names, the plan has it."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref

from .._autograd import python_apply
from . import beside, dtensors, names
from .names import class_of, of_script, variables
from .notes import note
from .reads import values

_MOST_ASIDE = 8  # forwards without gradients before the first with them: more are a text that is made, or an evaluation
_left_out = 0  # forwards that no plan has
_tape: Tape | None = None


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
        return run(*args, **kwargs) if _tape is None else _tape.note_call(dtensors.stands_for(cls) or _Apply(cls), args, kwargs, run)

    python_module.Function.apply = classmethod(functools.wraps(inner)(apply))


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
    return _tape.note_call(_Checkpoint(), (function, *args), kwargs, inner)


def found() -> Tape | None:
    """The step, if it can be run again."""
    return _tape if _tape is not None and _tape.whole else None


def roots() -> list:
    """The modules that the step calls, each by itself a root of FSDP's."""
    return [] if _tape is None else [each() for each in _tape.roots if each() is not None]


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


def why_not() -> str:
    return "" if _tape is None else _tape.broken


class _Apply:
    def __init__(self, cls):
        self._cls = cls

    def __call__(self, *args, **kwargs):
        return self._cls.apply(*args, **kwargs)


class _Checkpoint:
    def __call__(self, *args, **kwargs):
        import torch.utils.checkpoint

        return torch.utils.checkpoint.checkpoint(*args, **kwargs)


class _Copied:
    def __call__(self, tensor):
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)


class _Slot:
    """A tensor of the step, by number."""

    def __init__(self, index: int):
        self.index = index


class _Part:
    """A module of a root, by name; `tensor`: one of its own."""

    def __init__(self, root: int, name: str, tensor: str = ""):
        self.root, self.name, self.tensor = root, name, tensor


def leaves(tree) -> list:
    import torch
    from torch.utils._pytree import tree_flatten

    if isinstance(tree, dict):  # ModelOutput too
        return [leaf for value in tree.values() for leaf in leaves(value)]
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _plain(tensor) -> bool:
    import torch

    return type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and not beside.is_transformed(tensor)


def _weak_storage(tensor):
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(tensor.untyped_storage()) if _plain(tensor) else None


def _autocast(torch) -> tuple:
    return torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"), torch.is_autocast_cache_enabled()


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
        self._slots: dict[int, tuple[_Slot, weakref.ref]] = {}
        self._made = 0
        self._trains = False  # a forward with gradients has begun
        self.gathers = False  # DTensors of the model's
        self._derived: set[int] = set()  # slots that the model's outputs went into
        self._over = False
        self._call: tuple | None = None  # of the root, while it runs
        self.paused = 0  # inside the root, or inside what is one step
        self._foreign = 0  # inside another module's forward
        self._kept: dict[int, tuple] = {}  # by id: such a module, whether it has tensors of its own
        self.roots: list[weakref.ref] = []
        self._names: dict[int, _Part] = {}
        self._hooks = _foreign_modules(self)

    # ---- the model

    def trains(self) -> None:
        self._trains = True

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
            self._names |= {id(each): _Part(len(self.roots), names.clean(name)) for name, each in module.named_modules()}
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
        if not derived and (self._foreign or not all(_plain(each) for each in tensors)):
            return run(*args, **kwargs)
        known, given = set(self._slots), len(self.given)
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
            function, packed = _Copied(), ((packed[0][0],), {})
        if not made:  # a question, or a setting: no step of the computation
            self._forget(known, given)
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
        if self._over or self.paused or not self._trains:  # gradients of outputs alone (GradCache): the model's backward comes
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
        return set(self._addresses)

    def storages(self) -> set:
        alive = [tensor() for _, tensor in self._slots.values()]
        return self.given_storages() | {beside.address_of(each) for each in alive if each is not None and _plain(each)}

    # ---- again

    def again(self, modules, given, keeps_returned: bool = False):
        """The step up to its loss, on the roots as they were before they were sharded; what it holds until backward is over, and the loss."""
        player = _Player(modules, given, keeps_returned)
        player.play(self._rows)
        return player, player.loss

    # ---- tensors

    def _state(self) -> tuple:
        import torch

        return torch.is_grad_enabled(), _autocast(torch)

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
        if beside.is_transformed(leaf):
            self.broken = self.broken or "torch.func transforms what it is called with"
            return None
        if not _plain(leaf):
            self.broken = self.broken or f"it works on a {type(leaf).__name__}"
        slot = self._new_slot(leaf)
        self._addresses.append(beside.address_of(leaf))
        self._storages.append(_weak_storage(leaf))
        with torch._C.DisableTorchFunction():
            given = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
        # A gradient penalty's input; other modules' parameters are no part of this model.
        values.carried(leaf, given)
        given.requires_grad_(leaf.requires_grad and leaf.is_leaf and not isinstance(leaf, torch.nn.Parameter))
        self.given.append((slot.index, given))
        return slot

    def _own(self, tensor) -> _Part | None:
        """A parameter of the model used behind its forward (a head in the loss, a penalty), gathered: FSDP1's are views in its place."""
        if not tensor.is_floating_point():
            return None
        for root in self.roots:
            for module in root().modules() if root() is not None else ():
                for name, value in (*module._parameters.items(), *module.__dict__.items()):
                    if value is tensor and id(module) in self._names:
                        part = self._names[id(module)]
                        return _Part(part.root, part.name, name)
        return None

    def _forget(self, known: set, given: int) -> None:
        """Tensors that were first seen since."""
        for key in self._slots.keys() - known:
            self._slots.pop(key)
        del self.given[given:], self._addresses[given:], self._storages[given:]

    def _slot_of_result(self, tensor, derived: bool) -> _Slot:
        slot = self._slots[id(tensor)][0] if id(tensor) in self._slots else self._new_slot(tensor)
        if derived:
            self._derived.add(slot.index)
        return slot

    def _new_slot(self, tensor) -> _Slot:
        slot, key = _Slot(self._made), id(tensor)
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


class _Player:
    """Plays rows; holds a tensor until its row says that the script let go of it."""

    def __init__(self, modules, given, keeps_returned: bool):
        import torch

        self._modules, self._tensors, self._cast, self.loss = modules, dict(given), None, None
        self._returned: list | None = [] if keeps_returned else None
        given.clear()  # a batch that no name holds goes when the rows say so
        self._outside = _autocast(torch)

    def play(self, rows) -> None:
        try:
            for row in rows:
                if row[0] == "drop":
                    self._tensors.pop(row[1], None)
                elif row[0] == "backward":
                    self.loss = self._tensors[row[1]]
                else:
                    self._call(*row)
        finally:
            self._leave_cast()

    def _call(self, kind, function, packed, slots, grad, cast) -> None:
        import torch
        from torch.utils._pytree import tree_map

        self._enter_cast(cast)
        args, kwargs = tree_map(self._unpacked, packed)
        with torch.set_grad_enabled(grad):
            result = (self._unpacked(function) if kind == "forward" else function)(*args, **kwargs)
        if kind == "forward" and self._returned is not None:
            self._returned.append(result)
        for slot, tensor in zip(slots, leaves(result)):
            self._tensors[slot.index] = tensor

    def _unpacked(self, leaf):
        if isinstance(leaf, _Slot):
            return self._tensors[leaf.index]
        if not isinstance(leaf, _Part):
            return leaf
        module = self._modules[leaf.root].get_submodule(leaf.name)
        return getattr(module, leaf.tensor) if leaf.tensor else module

    def _enter_cast(self, cast) -> None:
        """Rows of one autocast share it: it keeps its casts until it ends."""
        import torch

        if self._cast is not None and self._cast[0] == cast:
            return
        self._leave_cast()
        if cast != self._outside:
            enabled, dtype, cache = cast
            self._cast = (cast, torch.autocast("cuda", dtype=dtype, enabled=enabled, cache_enabled=cache))
            self._cast[1].__enter__()

    def _leave_cast(self) -> None:
        if self._cast is not None:
            self._cast[1].__exit__(None, None, None)
            self._cast = None


def together(modules: list):
    """Several roots as the parts of one module, whose forward is the step: named as in the smallest module of the script's that has them all."""
    import gc

    import torch

    class Roots(torch.nn.Module):
        def forward(self, given):
            held, loss = _tape.again([self.get_submodule(name) for name in called], given)
            return loss, held

    wanted = {id(each) for each in modules}
    owner, fewest = None, None
    for each in gc.get_objects():
        if issubclass(type(each), torch.nn.Module):
            inside = {id(part): name for name, part in each.named_modules()}
            if wanted <= inside.keys() and (fewest is None or len(inside) < fewest):
                owner, fewest = inside, len(inside)
    called = [owner[id(each)] if owner else of_script(each) or f"{class_of(getattr(each, '_fsdp_wrapped_module', each)).__name__.lower()}{i}" for i, each in enumerate(modules)]
    if len(set(called)) < len(called):
        called = [f"{name}{i}" for i, name in enumerate(called)]
    whole = Roots()
    for name, module in zip(called, modules):
        at, parts = whole, name.split(".")
        for part in parts[:-1]:
            if part not in at._modules:
                at._modules[part] = torch.nn.Module()
            at = at._modules[part]
        at._modules[parts[-1]] = module
    return whole
