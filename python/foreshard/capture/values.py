"""Tensors as values of a program: which tensor is which value, and until when Python holds its storage.

A value is known by its storage and geometry, since autograd hands views on as new Python objects. Storages are watched
through weak references: one that has expired since the last look died between the last operator and this one.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten


def host_values(tensor: torch.Tensor) -> list[int] | None:
    """What is in a tensor on the host; None where nobody knows."""
    known = getattr(tensor, "constant", None) if isinstance(tensor, FakeTensor) else tensor
    if not isinstance(known, torch.Tensor) or known.device.type != "cpu":
        return None
    with _disable_current_modes():
        return known.tolist()


_LITERALS = 1024  # elements that a program takes down


def literals_of(tensor: torch.Tensor) -> list[Any] | None:
    """Few finite numbers or truth values that lie on the host, row by row; None: others, or nobody knows."""
    if tensor.numel() > _LITERALS or tensor.is_complex() or (content := host_values(tensor)) is None:
        return None
    flat = tree_flatten(content)[0]
    return flat if all(isinstance(x, (bool, int)) or math.isfinite(x) for x in flat) else None


# The format has no unsigned types but uint8: those of the same size stand for them.
_SAME_SIZE = {"uint64": "int64", "uint32": "int32", "uint16": "int16"}


def dtype_name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return _SAME_SIZE.get(name, name)


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def describe(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor.dtype)}{list(tensor.shape)} on {tensor.device.type}"


def host_number(tensor: torch.Tensor) -> bool | int | float:
    """A tensor on the host where the card's operator takes a number: NaN where its value is not there."""
    constant = getattr(tensor, "constant", None) if isinstance(tensor, FakeTensor) else tensor
    if isinstance(constant, torch.Tensor) and constant.numel() == 1 and constant.device.type == "cpu":
        with _disable_current_modes():
            number = constant.item()
        return number if isinstance(number, (bool, int, float)) else math.nan
    return math.nan if tensor.dtype.is_floating_point else 0


def is_settled(tensor: torch.Tensor) -> bool:
    """Whether its history can be asked for: that of a view whose memory has been written to is made when it is asked for first, which is
    autograd's to do."""
    return tensor._version == 0 or not tensor._is_view()


@dataclass
class Value:
    """A tensor of the program. Shapes and strides in elements."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...]
    storage: "Storage"
    detached: bool = False  # made by detach, or in no_grad: autograd does not see where it came from
    grows: bool = False  # autograd knows where it came from
    made: Any = None  # weakly, the tensor that the operator gave
    writes: int = 0  # into its memory, before it was made
    requires_grad: bool = False  # of inputs
    alias_of: str = ""  # of inputs
    key: tuple[Any, ...] = ()  # geometry
    leaf: bool = False  # of the script: what is made of it has a gradient
    cast_until: int | None = None  # autocast keeps this cast of a parameter until that operator has run

    @property
    def contiguous(self) -> bool:
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size != 1 and stride != step:
                return False
            step *= max(size, 1)
        return True


@dataclass
class Storage:
    """Memory behind values: when it died (numbers of operators)."""

    weak: StorageWeakRef | None
    nbytes: int
    born: int = -1
    death: int | None = None  # the last operator that ran before it was gone; None: outlived the recording
    values: list[Value] = field(default_factory=list)
    references: dict[tuple[Any, ...], str] = field(default_factory=dict)  # "@fqn" of parameters and buffers, by geometry
    persistent: bool = False  # parameters, buffers, inputs: the caller's
    writes: int = 0  # by operators in place, until now
    stays: str = ""  # beyond the step: "next": until the next one has made another, "run": no step makes it again
    replaces: str = ""  # "next": the buffer that the first step has it in the place of


def geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


def storage_key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def names_of(arg: Any) -> list[str]:
    """The values that an argument refers to."""
    if isinstance(arg, str):
        return [arg[1:]] if arg.startswith("%") else []
    if isinstance(arg, (list, tuple)):
        return [name for item in arg for name in names_of(item)]
    if isinstance(arg, dict):
        return [name for item in arg.values() for name in names_of(item)]
    return []


class ValueTable:
    """All values of one recording. Holds no tensor."""

    def __init__(self) -> None:
        self.inputs: list[Value] = []
        self.made = 0
        self._by_key: dict[int, Storage] = {}
        self._live: dict[int, Storage] = {}
        self._by_geometry: dict[tuple[int, tuple[Any, ...]], list[Value]] = {}
        self._stand_ins: dict[int, tuple[torch.Tensor, Storage]] = {}  # tensors in the place of what autograd has saved

    def watch(self, now: int) -> None:
        """Notes which storages are gone. `now`: the last operator that has run, -1 before the first."""
        gone = [key for key, storage in self._live.items() if storage.weak is not None and storage.weak.expired()]
        for key in gone:
            self._live[key].death = now
            self._forget(key)

    def _forget(self, key: int) -> None:
        storage = self._by_key.pop(key, None)
        self._live.pop(key, None)
        if storage is not None:
            for value in storage.values:
                self._by_geometry.pop((key, value.key), None)

    def alive(self) -> list[Storage]:
        """What somebody still holds, of what operators have made."""
        return [s for s in self._live.values() if s.weak is not None and not s.weak.expired()]

    def storage_of(self, tensor: torch.Tensor, now: int) -> Storage:
        key = storage_key(tensor)
        if key in self._stand_ins:
            return self._stand_ins[key][1]
        storage = self._by_key.get(key)
        if storage is not None and storage.weak is not None and storage.weak.expired():
            storage.death = now - 1  # died inside this operator's call; its address is used again
            self._forget(key)
            storage = None
        if storage is None:
            untyped = tensor.untyped_storage()
            storage = Storage(StorageWeakRef(untyped), untyped.nbytes(), born=now)
            self._by_key[key] = self._live[key] = storage
        return storage

    def by_geometry(self, tensor: torch.Tensor) -> dict[tuple[Any, ...], list[Value]]:
        """The values in a tensor's memory that lie as it does."""
        key = geometry(tensor)
        found = self._by_geometry.get((storage_key(tensor), key))
        return {} if found is None else {key: found}

    def stand_for(self, tensor: torch.Tensor, storage: Storage, values: dict[tuple[Any, ...], list[Value]]) -> None:
        """From now on `tensor` is what lies in that storage, though that may be gone; it is kept, so that nobody else has its place."""
        key = storage_key(tensor)
        self._stand_ins[key] = (tensor, storage)
        for place, found in values.items():
            self._by_geometry[key, place] = found

    def let_go(self) -> None:
        """Of the tensors that stand for others: nothing is recorded any more."""
        self._stand_ins.clear()

    def known_storage(self, tensor: torch.Tensor) -> Storage | None:
        if (known := self._stand_ins.get(storage_key(tensor))) is not None:
            return known[1]
        storage = self._by_key.get(storage_key(tensor))
        return None if storage is None or (storage.weak is not None and storage.weak.expired()) else storage

    def keep(self, tensor: torch.Tensor, reference: str) -> None:
        """A parameter or buffer, by name."""
        storage = self.storage_of(tensor, -1)
        self._live.pop(storage_key(tensor), None)
        storage.persistent = True
        storage.references.setdefault(geometry(tensor), reference)

    def add_input(self, name: str, tensor: torch.Tensor) -> Value:
        shared = self.known_storage(tensor)
        value = self.add(name, tensor, -1)
        value.requires_grad = tensor.requires_grad
        value.grows = tensor.requires_grad
        if shared is not None and shared.values[0] is not value:
            value.alias_of = shared.values[0].name
        self._live.pop(storage_key(tensor), None)
        value.storage.persistent = True
        self.inputs.append(value)
        return value

    def add(self, name: str, tensor: torch.Tensor, now: int) -> Value:
        storage = self.storage_of(tensor, now)
        value = Value(name, tuple(tensor.shape), tensor.dtype, tuple(tensor.stride()), storage)
        value.key = geometry(tensor)
        value.made, value.writes = weakref.ref(tensor), storage.writes
        storage.values.append(value)
        self.also(tensor, value)
        return value

    def add_whole(self, name: str, tensor: torch.Tensor, now: int) -> Value:
        """The storage behind a tensor, as one row of its elements."""
        value = self.add(name, tensor, now)
        value.shape, value.strides = (value.storage.nbytes // tensor.element_size(),), (1,)
        value.detached = True
        return value

    def also(self, tensor: torch.Tensor, value: Value) -> None:
        """This tensor is that value too."""
        self._by_geometry.setdefault((storage_key(tensor), geometry(tensor)), []).append(value)

    def new_name(self) -> str:
        self.made += 1
        return f"v{self.made - 1}"

    def made_as(self, tensor: torch.Tensor) -> bool:
        """Whether an operator gave this very tensor."""
        return any(value.made() is tensor for value in self._by_geometry.get((storage_key(tensor), geometry(tensor)), ()))

    def find(self, tensor: torch.Tensor) -> Value | None:
        """The value that a tensor is; of several with one geometry its own, or the last that autograd sees as it sees the tensor."""
        if self.known_storage(tensor) is None:
            return None
        found = self._by_geometry.get((storage_key(tensor), geometry(tensor)))
        if not found:
            return None
        grows = tensor.requires_grad
        for alike in (
            lambda value: value.made() is tensor and value.writes == value.storage.writes and not (grows and value.detached),
            lambda value: value.grows == grows != value.detached,
            lambda value: value.detached != grows,
        ):
            if value := next(filter(alike, reversed(found)), None):
                return value
        return found[-1]
