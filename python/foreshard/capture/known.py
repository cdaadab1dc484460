"""What is in tensors that hang on the batch and the buffers alone: computed on the host beside a card that computes nothing.

A mask made of labels, a longest length, `if mask.all()`: who captures with a batch that lies on the host has these values. A
storage is known or it is not; views of a known one are. What parameters have a part in is not known.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, Callable

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map

from .. import _choices as choices
from .values import storage_key

LARGEST = 1 << 22  # elements of a tensor: what is larger is not known
_HELD = 1 << 28  # bytes of all copies: beyond them those of storages that are gone go, and nothing more is known if all are there
_CARRIED = "_foreshard_values"  # of a tensor that stands for one of another process
# Of these arguments the geometry counts, not what is in them.
_LIKE = ("new_", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
_CHOOSING, _MASKS = ("nonzero", "masked_select", "index"), (torch.bool, torch.uint8)
_WRITERS = ("fill_", "zero_", "copy_", "random_", "uniform_", "normal_", "exponential_")  # whatever was there before


def values_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The numbers of a tensor that a script hands over; None: it only has sizes."""
    carried = getattr(tensor, _CARRIED, None)
    if carried is not None:
        return carried
    if _elsewhere is not None and tensor.is_cuda:
        return _elsewhere(tensor)
    plain = type(tensor) in (torch.Tensor, torch.nn.Buffer) and tensor.device.type == "cpu" and tensor.layout == torch.strided
    return tensor.detach() if plain and tensor.numel() <= LARGEST else None


def carry(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`tensor`, which has sizes alone, with the values that belong to it."""
    setattr(tensor, _CARRIED, values)
    return tensor


_masks_of_batch = True
_elsewhere: Callable[[torch.Tensor], torch.Tensor | None] | None = None


@contextlib.contextmanager
def beside_a_script(values: Callable[[torch.Tensor], torch.Tensor | None]):
    """Where a script's own run is captured: `values` knows what is in tensors of its card, and what masks made of the batch choose
    counts as not known, as it does there (shadow/reads/masks.py)."""
    global _masks_of_batch, _elsewhere
    _masks_of_batch, _elsewhere = False, values
    try:
        yield
    finally:
        _masks_of_batch, _elsewhere = True, None


_running: list[KnownValues] = []


def running() -> KnownValues | None:
    """What is known in the capture that runs."""
    return _running[-1] if _running else None


@contextlib.contextmanager
def runs(known: KnownValues):
    _running.append(known)
    try:
        yield
    finally:
        _running.pop()


class KnownValues:
    """Flat copies of storages, by the storage they stand for."""

    def __init__(self, guess: float | None = None) -> None:
        self.guess = guess  # the share of a mask that counts as chosen where nobody knows; None: there is no telling
        self._masks_of_batch = _masks_of_batch
        self.guessed = False
        self._flat: dict[int, tuple[StorageWeakRef, torch.Tensor, bool]] = {}  # the last: the batch has a part in it
        self.hangs_on_batch = False  # what was computed last, and not on constants alone
        self._choices: dict[int, StorageWeakRef] = {}  # storages whose values hang on what was taken as chosen
        self.hangs_on_choices = False  # what was computed last
        self._held = 0  # bytes, those of storages that are gone among them
        self.used: dict[str, None] = {}  # where a value has decided something
        self._random: torch.Tensor | None = None  # the state of our own generator: the script's draws nothing for us

    # ------------------------------------------------------------------------------------------------- tensors

    def give(self, tensor: torch.Tensor, values: torch.Tensor, of_batch: bool = True) -> None:
        """`tensor` has these values (of its shape)."""
        whole = tensor.untyped_storage().nbytes() // tensor.element_size()
        if whole > LARGEST or tensor.is_conj() or tensor.is_neg() or not self._has_room(tensor.untyped_storage().nbytes()):
            return
        with _disable_current_modes(), torch.no_grad():
            flat, before = self._find(tensor), self._is_of_batch(tensor)
            if flat is None or flat.dtype != tensor.dtype:
                flat = torch.zeros(whole, dtype=tensor.dtype)
                self._held += flat.nbytes
            self._flat[storage_key(tensor)] = (StorageWeakRef(tensor.untyped_storage()), flat, of_batch or before)
            flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(values)

    def _has_room(self, nbytes: int) -> bool:
        if self._held + nbytes > _HELD:
            self._flat = {key: entry for key, entry in self._flat.items() if not entry[0].expired()}
            self._held = sum(flat.nbytes for _, flat, _ in self._flat.values())
        return self._held + nbytes <= _HELD

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A view of the copy; None: nobody knows."""
        if type(tensor) is torch.Tensor and tensor.device.type == "cpu":
            return tensor
        constant = getattr(tensor, "constant", None)  # of a fake tensor that was made from numbers
        if isinstance(constant, torch.Tensor) and constant.device.type == "cpu":
            return constant
        flat = self._find(tensor)
        if flat is None and _elsewhere is not None and type(tensor) is torch.Tensor:
            return _elsewhere(tensor)
        if flat is None or tensor.is_conj() or tensor.is_neg():
            return None
        with _disable_current_modes(), torch.no_grad():
            if flat.dtype != tensor.dtype:
                if flat.dtype.itemsize != tensor.dtype.itemsize:
                    return None
                flat = flat.view(tensor.dtype)
            return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _find(self, tensor: torch.Tensor) -> torch.Tensor | None:
        entry = self._flat.get(storage_key(tensor))
        if entry is None:
            return None
        if entry[0].expired():  # its place is another's now
            del self._flat[storage_key(tensor)]
            return None
        return entry[1]

    def _is_of_batch(self, tensor: torch.Tensor) -> bool:
        if self._find(tensor) is not None:
            return self._flat[storage_key(tensor)][2]
        return _elsewhere is not None and type(tensor) is torch.Tensor and tensor.is_cuda and _elsewhere(tensor) is not None

    # ----------------------------------------------------------------------------------------------- operators

    def compute(self, func, args, kwargs) -> Any:
        """The operator's results on the host, in-place ones done; None: they are not known."""
        name = func._schema.name.split("::")[-1]
        like = name.startswith(_LIKE)
        if name.startswith("empty") or func.namespace not in ("aten", "prims"):
            return None
        leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        if name in _CHOOSING and not self._masks_of_batch and any(leaf.dtype in _MASKS and self._is_of_batch(leaf) for leaf in leaves):
            return None
        stand_ins: dict[int, torch.Tensor] = {}
        for place, leaf in enumerate(leaves):
            values = self.of(leaf)
            if values is None and (like or (place == 0 and name in _WRITERS and _is_whole(leaf))) and leaf.numel() <= LARGEST:
                with _disable_current_modes():
                    values = torch.zeros(leaf.shape, dtype=leaf.dtype)
            if values is None:
                return None
            stand_ins[id(leaf)] = values
        if _result_numel(func, args) > LARGEST:
            return None
        drawn = torch.Tag.nondeterministic_seeded in func.tags
        self.hangs_on_batch = drawn or any(self._is_of_batch(leaf) for leaf in leaves)
        self.hangs_on_choices = any(self.is_chosen(leaf) for leaf in leaves)

        def here(value):
            if isinstance(value, torch.Tensor):
                return stand_ins[id(value)]
            return torch.device("cpu") if isinstance(value, torch.device) else value

        with _disable_current_modes(), torch.no_grad(), self._drawing(func):
            given, named = tree_map(here, (args, {k: v for k, v in kwargs.items() if k != "pin_memory"}))
            try:
                return func(*given, **named)
            except Exception:  # noqa: BLE001 - an operator that the host does not have, or has not for this dtype
                return choices.counted(func, given, named)

    @contextlib.contextmanager
    def _drawing(self, func):
        """Random numbers come from a generator of our own."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            yield
            return
        outside = torch.get_rng_state()
        if self._random is None:
            self._random = torch.Generator().manual_seed(0).get_state()
        torch.set_rng_state(self._random)
        try:
            yield
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(outside)

    def places_of(self, mask: torch.Tensor) -> int | None:
        """How many elements a mask chooses; None: nobody knows, and there is no guess."""
        self.hangs_on_batch = self._is_of_batch(mask)
        values = self.of(mask) if self._masks_of_batch or not self.hangs_on_batch else None
        if values is None and self.guess is not None:
            self.guessed = True
            return math.ceil(self.guess * mask.numel())
        if values is None:
            return None
        with _disable_current_modes():
            return int(torch.count_nonzero(values))

    def follow(self, func, args, kwargs, out: Any, computed: Any, on_choices: bool = False) -> None:
        """After an operator: what its results are known to be; what it has written with values unknown is forgotten."""
        if computed is None:
            if func._schema.is_mutable:
                self._forget(func, args, kwargs)
            return
        if not torch.is_tensor(out) and not isinstance(out, (tuple, list)):
            return
        for result, values in zip(tree_flatten(out)[0], tree_flatten(computed)[0]):
            if not isinstance(result, torch.Tensor) or type(result) is torch.Tensor and result.device.type == "cpu":
                continue
            known = self._find(result) is not None
            if known and not func._schema.is_mutable:  # a view
                continue
            if result.shape == values.shape and values.numel() <= LARGEST:
                self.give(result, values, self.hangs_on_batch)
                if on_choices:
                    self._choices[storage_key(result)] = StorageWeakRef(result.untyped_storage())

    # ------------------------------------------------------------------------------------------------- choices

    def choose(self, func, args, kwargs, out: Any) -> None:
        """What an operator has chosen by scores that nobody knows, where it may be guessed and no share is told (`chosen`)."""
        if self.guess != 1:
            return
        with _disable_current_modes():
            made = choices.chosen(func._schema.name.split("::")[-1], args, kwargs, out, LARGEST)
        if made is not None:
            self.give_chosen(*made)

    def exchange(self, collective, out: Any) -> None:
        """What a collective gives of known values: every rank has the same."""
        given, made = (tree_flatten(each)[0] for each in (collective.given, out if collective.made is None else collective.made))
        at = collective.place if len(given) == len(collective.ranks) and collective.kind == "all_to_all" else 0  # lists: what goes to each
        values = self.of(given[at]) if len(given) == 1 or at or len(given) == len(collective.ranks) else None
        if values is None or not all(isinstance(each, torch.Tensor) for each in made):
            return
        with _disable_current_modes():
            got = values if not collective.adds else choices.received(collective.kind, values.reshape(values.shape or (1,)), len(collective.ranks), collective.place, collective.sizes)
            for each in made:
                part = values if len(made) > 1 else got  # a list of what every rank has
                if part is not None and part.numel() == each.numel():
                    self.give_chosen(each, part.reshape(each.shape), self._is_of_batch(given[at]))

    def give_chosen(self, tensor, values, of_batch: bool = False) -> None:
        self.give(tensor, values, of_batch)
        self._choices[storage_key(tensor)] = StorageWeakRef(tensor.untyped_storage())

    def is_chosen(self, tensor) -> bool:
        weak = self._choices.get(storage_key(tensor))
        return weak is not None and not weak.expired()

    def _forget(self, func, args, kwargs) -> None:
        for argument, value in [*zip(func._schema.arguments, args), *((a, kwargs.get(a.name)) for a in func._schema.arguments)]:
            if argument.alias_info is not None and argument.alias_info.is_write:
                for leaf in tree_flatten(value)[0]:
                    if isinstance(leaf, torch.Tensor):
                        self._flat.pop(storage_key(leaf), None)



def _is_whole(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _result_numel(func, args) -> int:
    """Of what makes a tensor out of sizes (a range, noise): how much that is."""
    of_another = bool(args) and isinstance(args[0], torch.Tensor)  # a slice's end is open
    for argument, value in zip(func._schema.arguments, args):
        if argument.name in (("size",) if of_another else ("size", "end")) and not isinstance(value, torch.Tensor):
            sizes = value if isinstance(value, (list, tuple)) else [value]
            count = 1
            for size in sizes:
                count *= int(size)
            return count
    return 0
