"""Whole numbers that the host gave the device keep their values: lengths of packed sequences, positions, labels that count. So do indices of
what is chosen by scores that nobody has computed, which are taken as balanced (_choices.py), and what counts them.

Nothing is computed on the virtual device, so what is read from it would be zero, and a script that lays out its rows by such
lengths would have none. Small tensors of integers and booleans that come from the host have a mirror there; what functions make
of mirrored tensors alone is mirrored too, by the same function; what is read of them is the mirror's. Whatever else writes to
one ends its mirror. Other ranks do what this one does: their counts are its own.

Functions are followed, not operators as in capture/known.py: a mode that sees operators would hold their tensors a little
longer, and the memory of the script is what is watched here.
"""

from __future__ import annotations

import contextlib
import itertools
import sys

from foreshard import _choices as choices

from ..notes import note

_MOST = 1 << 18  # elements of a mirror
_MOST_CHOSEN = 1 << 24  # ... where something was chosen, whose masks are larger
_COUNTERS = 1 << 20  # elements of floating zeros in which choices may be counted
_LIKE = ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
_CONSTANTS = ("zeros", "ones", "full", *_LIKE)
_CHANCE = ("rand", "empty", "bernoulli", "multinomial", "normal", "exponential", "resize", "set_")  # whose results are no function of what is given
# Functions that read sizes, and how many arguments come before these: the tensor whose sizes change.
_SIZES_BEHIND = dict.fromkeys(("arange", "full", "zeros", "ones", "empty", "linspace", "range"), 0) | dict.fromkeys(
    ("new_zeros", "new_full", "new_ones", "new_empty", "split", "split_with_sizes", "narrow", "view", "reshape", "expand", "repeat", "tensor_split",
     "__getitem__"), 1)  # fmt: skip
_WHOLE = ("copy_", "zero_", "fill_")  # every element is written
_READ = ("item", "tolist", "__bool__", "__int__", "__index__", "__float__", "__contains__")
_IN_PLACE = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__ifloordiv__", "__imod__", "__ipow__", "__iand__", "__ior__", "__ixor__",
             "__ilshift__", "__irshift__")  # fmt: skip


def begin(torch) -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import _disable_current_modes
    from torch.utils.weak import WeakIdKeyDictionary

    mirrors = Mirrors(torch, WeakIdKeyDictionary(), _disable_current_modes)

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return mirrors.run(func, args, kwargs or {})

    global _mirrors, _mode
    _mirrors, _mode = mirrors, Mode()
    # Layers take other kernels where a tensor is not PyTorch's own: of tensors that is asked, not of modes.
    torch.overrides.has_torch_function = _asks_tensors(torch)
    _mode.__enter__()


_mirrors: Mirrors | None = None
_mode = None


def in_backward():
    """The engine runs what PyTorch's own functions call while no mode is asked: what is recomputed there reads values too."""
    return _mode or contextlib.nullcontext()


def of(tensor):
    """The mirror of a tensor on the device, a tensor of the host; None where its values are not known."""
    if type(tensor).__name__ == "FakeTensor":
        return _captured().of(tensor) if _captured() is not None else None
    return _mirrors.of(tensor) if _mirrors is not None else None


def is_captured(args, kwargs) -> bool:
    """Whether a copy of the model is captured that calls this."""
    first = next((each for each in (*args, *kwargs.values()) if isinstance(each, (list, tuple)) and each or hasattr(each, "dim")), None)
    return type(first[0] if isinstance(first, (list, tuple)) else first).__name__ == "FakeTensor"


def _captured():
    """What is known in a copy of the model that is being captured (capture/known.py)."""
    module = sys.modules.get("foreshard.capture.known")
    return module.running() if module is not None else None


def carried(tensor, stand_in):
    """`stand_in`, which has the sizes of `tensor` alone, with its values where they are known."""
    mirror = of(tensor)
    if mirror is not None and mirror.shape == stand_in.shape:
        from foreshard.capture.known import carry

        carry(stand_in, mirror.clone())
    return stand_in


def any_known() -> bool:
    return _mirrors is not None and bool(_mirrors._known)


def aside():
    """Mirrors alone are worked on."""
    return _mirrors.aside()


def forget(tensor) -> None:
    _mirrors.forget(tensor)


def give(tensor, mirror, of=None) -> None:
    """`tensor` has the values of a mirror from now on, none where that is None. `of`: a mirror that it was made of."""
    if mirror is None or mirror.shape != tensor.shape:
        _mirrors.forget(tensor)
        return
    of = mirror if of is None else of
    _mirrors.give(tensor, mirror.to(tensor.dtype, copy=True), hasattr(of, "is_chosen"))


def give_chosen(tensor, mirror) -> None:
    """`tensor` has values that hang on choices."""
    if type(tensor).__name__ != "FakeTensor":
        _mirrors.give(tensor, mirror, True)
    elif _captured() is not None:
        _captured().give_chosen(tensor, mirror)


def of_numbers(tensor, again):
    """A tensor that the model's copy makes of numbers while it is captured; `again`: the same on the host, of a dtype."""
    if type(tensor).__name__ == "FakeTensor" and tensor.is_cuda and tensor.numel() <= _COUNTERS and _captured() is not None:
        with aside():
            _captured().give(tensor, again(tensor.dtype), False)
    return tensor


def chosen(tensor):
    """The mirror of a tensor that hangs on choices, read to decide something; None otherwise."""
    if type(tensor).__name__ == "FakeTensor":
        return of(tensor) if _captured() is not None and _captured().is_chosen(tensor) else None
    mirror = of(tensor)
    return told(mirror) if mirror is not None and hasattr(mirror, "is_chosen") else None


def mask(tensor):
    """The mirror of a mask whose values are known, by choices or from the host; None otherwise. While the model's copy runs its capture chooses."""
    mirror = chosen(tensor)
    return of(tensor) if mirror is None and type(tensor).__name__ != "FakeTensor" else mirror


def give_places(tensor, mirror, of_mask) -> None:
    """`tensor` has the places that a mask chooses."""
    if type(tensor).__name__ == "FakeTensor" or hasattr(of_mask, "is_chosen"):
        give_chosen(tensor, mirror)
    else:
        _mirrors.give(tensor, mirror, False)


def told(mirror):
    """A mirror that the host reads, or None."""
    if mirror is not None and hasattr(mirror, "is_chosen"):
        note(choices.NOTE)
    return mirror


class Mirrors:
    def __init__(self, torch, known, without_modes):
        self._torch, self._known, self._without_modes = torch, known, without_modes
        self._follows_floats = self._stood_on_choices = False
        self._kinds = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}

    def of(self, tensor):
        tensor = here(tensor)
        return self._known.get(tensor) if type(tensor) is self._torch.Tensor and tensor.is_cuda else None

    def give(self, tensor, mirror, is_chosen: bool) -> None:
        self._known[tensor] = mirror
        if is_chosen:
            mirror.is_chosen = self._follows_floats = True

    @contextlib.contextmanager
    def aside(self):
        with self._without_modes(), self._torch._C.DisableTorchFunction(), self._torch.no_grad():
            yield

    def run(self, func, args, kwargs):
        name = getattr(func, "__name__", "")
        if self._known and (kept := _SIZES_BEHIND.get(name)) is not None:
            args, kwargs = (*args[:kept], *self._numbers(args[kept:])), self._numbers(kwargs)
        if self._known and name == "ctc_loss":
            lengths = {key: self._on_host(each) for key, each in kwargs.items() if key.endswith("_lengths")}
            args, kwargs = (*args[:2], *map(self._on_host, args[2:])), kwargs | lengths
        result = func(*args, **kwargs)
        if type(result) is self._torch.Tensor and result.dtype not in self._kinds and result.is_cuda and not self._is_counted(name, args, result):
            return result  # most of them
        if name in _READ:
            mirror = told(self.of(args[0])) if args else None
            return result if mirror is None else func(mirror, *args[1:], **kwargs)
        if name == "__set__":
            if func.__self__.__name__ == "data":
                self.forget(args[0])
        elif name.endswith("_") and not name.endswith("__") or name in _IN_PLACE or "out" in kwargs:
            self._written(func, name, args, kwargs)
        elif self._may_be_known(result) and self._mirror(func, name, args, kwargs, result):
            pass
        elif name in choices.CHOOSING:
            self._choose(name, args, kwargs, result)
        elif self._known and self._is_on_host(result) and args:
            self._fetched(args[0], result)
        return result

    # ------------------------------------------------------------------ what is made

    def _may_be_known(self, result) -> bool:
        first = here(result[0] if isinstance(result, (tuple, list)) and result else result)
        if type(first) is not self._torch.Tensor or not first.is_cuda:
            return False
        most = _MOST_CHOSEN if self._follows_floats else _MOST
        return first.numel() <= most and (first.dtype in self._kinds or self._follows_floats)

    def _is_counted(self, name, args, result) -> bool:
        """Floating numbers are followed where choices are counted in them: zeros to begin with, and what is made of known ones."""
        if not self._follows_floats:
            return name in choices.CHOOSING
        known = any(type(one) is self._torch.Tensor and one in self._known for one in args)
        return known or name in _IN_PLACE or name.endswith("_") or (name in _CONSTANTS and result.numel() <= _COUNTERS)

    def _choose(self, name, args, kwargs, result) -> None:
        with self.aside():
            made = choices.chosen(name, args, kwargs, result, _MOST_CHOSEN)
        if made is not None and type(made[0]) is self._torch.Tensor and made[0].is_cuda:
            self.give(*made, True)

    def _mirror(self, func, name, args, kwargs, result) -> bool:
        """Whether it is known what the function has made."""
        if any(part in name for part in _CHANCE):
            return False
        stood = self._stood_for((self._geometry(args) if name in _LIKE else args, kwargs))
        if stood is None:
            return False
        is_chosen, floats = self._stood_on_choices, name in _CONSTANTS
        if not is_chosen and any(one.numel() > (_COUNTERS if floats else _MOST) for one in _listed(result) if isinstance(one, self._torch.Tensor)):
            return False
        done, made = self._computed(func, *stood)
        if not done:
            return False
        for one, mirror in zip(_listed(result), _listed(made)):
            one = here(one)
            if type(one) is not self._torch.Tensor or not isinstance(mirror, self._torch.Tensor) or one.shape != mirror.shape or one.dtype != mirror.dtype:
                continue
            if one.dtype in self._kinds or is_chosen or floats:
                source = args[0] if args else None
                self.give(one, mirror.clone() if isinstance(source, self._torch.Tensor) and not source.is_cuda else mirror, is_chosen)
        return True

    def _geometry(self, args):
        """Of the first the sizes count, and not what is in it."""
        first = args[0] if args else None
        if type(first) is not self._torch.Tensor or not first.is_cuda or first in self._known or first.numel() > _COUNTERS:
            return args
        with self.aside():
            return (self._torch.zeros(first.shape, dtype=first.dtype), *args[1:])

    def _stood_for(self, given):
        """What is given with mirrors in the places of the device's tensors; None where one has none."""
        self._stood_on_choices = False
        try:
            return self._stand(given)
        except KeyError:
            return None

    def _stand(self, one):
        torch = self._torch
        if isinstance(one, torch.Tensor):
            one = here(one)
            if type(one) is not torch.Tensor:
                raise KeyError
            if one.is_cuda:
                mirror = self._known[one]
                self._stood_on_choices = self._stood_on_choices or hasattr(mirror, "is_chosen")
                return mirror
            if one.device.type != "cpu" or one.numel() > _MOST:
                raise KeyError
            return one
        if type(one) in (tuple, list):
            return type(one)(self._stand(inside) for inside in one)
        if type(one) is dict:
            return {key: self._stand(inside) for key, inside in one.items()}
        if isinstance(one, torch.device):
            return torch.device("cpu") if one.type == "cuda" else one
        if isinstance(one, str) and one.split(":")[0] == "cuda":
            return "cpu"
        return one

    def _computed(self, func, args, kwargs) -> tuple:
        """Whether the host does it, and what comes of it."""
        if getattr(func, "__name__", "") == "cuda":
            return True, args[0]
        if "pin_memory" in kwargs:
            kwargs = {**kwargs, "pin_memory": False}
        with self.aside():
            try:
                return True, func(*args, **kwargs)
            except Exception:  # what the device takes and the host does not
                made = choices.counted(func, args, kwargs)
                return made is not None, made

    # ------------------------------------------------------------------ what is written and read

    def _written(self, func, name, args, kwargs) -> None:
        target = kwargs.get("out", args[0] if args else None)
        stood = self._stood_for((args[1:], kwargs)) if type(target) is self._torch.Tensor and "out" not in kwargs else None
        is_chosen = self._stood_on_choices
        mirror = self.of(target)
        if type(target) is self._torch.Tensor and not target.is_cuda:
            source = told(self.of(args[1])) if name == "copy_" and len(args) > 1 else None
            if source is not None:
                self._computed(func, (target, source), {})
            return
        if stood is not None and mirror is None and name in _WHOLE and self._may_be_known(target):
            mirror = self._known[target] = self._torch.zeros(target.shape, dtype=target.dtype)
        if mirror is None:
            return
        if stood is None or any(part in name for part in _CHANCE) or not self._computed(func, (mirror, *stood[0]), stood[1])[0]:
            self.forget(target)
        elif is_chosen:
            self.give(target, mirror, True)

    def forget(self, *tensors) -> None:
        """These, and all that share their memory."""
        for tensor in _listed(tensors):
            mirror = self.of(tensor)
            if mirror is None:
                continue
            place = mirror.untyped_storage().data_ptr()
            for other in [t for t, m in self._known.items() if m.untyped_storage().data_ptr() == place]:
                del self._known[other]

    def _fetched(self, source, result) -> None:
        mirror = told(self.of(source))
        if mirror is not None and result.shape == mirror.shape:
            with self.aside():
                result.data.copy_(mirror)  # what a checkpoint has kept is not told that it is written

    def _is_on_host(self, result) -> bool:
        return type(result) is self._torch.Tensor and result.device.type == "cpu"

    def _on_host(self, given):
        """Lengths that a function of PyTorch's brings to the host itself, where Python is not asked (ctc_loss)."""
        mirror = told(self.of(given))
        if mirror is None:
            return given
        self._torch._C.TensorBase.cpu(given)  # the host waits
        return mirror.clone()

    def _numbers(self, given):
        """Tensors of no dimension as the numbers that a function of sizes reads in them. The host waits for each."""
        if type(given) in (tuple, list):
            return type(given)(self._numbers(one) for one in given)
        if type(given) is dict:
            return {key: self._numbers(one) for key, one in given.items()}
        if type(given) is slice:
            return slice(*(self._numbers(one) for one in (given.start, given.stop, given.step)))
        mirror = told(self.of(given))
        if mirror is None or given.dim():
            return given
        self._torch._C.TensorBase.item(given)
        return mirror.item()


def here(tensor):
    """Of what a collective of PyTorch's functions hands on, which waits when it is used: what it will be."""
    return getattr(tensor, "elem", tensor) if type(tensor).__name__ == "AsyncCollectiveTensor" else tensor


def _listed(made) -> list:
    return list(itertools.chain.from_iterable(map(_listed, made))) if isinstance(made, (tuple, list)) else [made]


def _asks_tensors(torch):
    plain = (torch.Tensor, torch.nn.Parameter)

    def has_torch_function(given) -> bool:
        return any(type(one) not in plain and hasattr(type(one), "__torch_function__") for one in given)

    return has_torch_function
