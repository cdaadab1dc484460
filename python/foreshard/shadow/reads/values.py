"""Whole numbers that the host gave the device keep their values: lengths of packed sequences, positions, labels that count.

Nothing is computed on the virtual device, so what is read from it would be zero, and a script that lays out its rows by such
lengths would have none. Small tensors of integers and booleans that come from the host have a mirror there; what functions make
of mirrored tensors alone is mirrored too, by the same function; what is read of them is the mirror's. Whatever else writes to
one ends its mirror. Other ranks do what this one does: their counts are its own.

Functions are followed, not operators as in capture/known.py: a mode that sees operators would hold their tensors a little
longer, and the memory of the script is what is watched here.
"""

from __future__ import annotations

import contextlib
import functools
import itertools

_MOST = 1 << 18  # elements of a mirror
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
    return _mirrors.of(tensor) if _mirrors is not None else None


def carried(tensor, stand_in):
    """`stand_in`, which has the sizes of `tensor` alone, with its values where they are known."""
    mirror = of(tensor)
    if mirror is not None and mirror.shape == stand_in.shape:
        from foreshard.capture.known import carry

        carry(stand_in, mirror.clone())
    return stand_in


class Mirrors:
    def __init__(self, torch, known, without_modes):
        self._torch, self._known, self._without_modes = torch, known, without_modes
        self._kinds = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}

    def of(self, tensor):
        return self._known.get(tensor) if type(tensor) is self._torch.Tensor and tensor.is_cuda else None

    def run(self, func, args, kwargs):
        name = getattr(func, "__name__", "")
        if self._known and (kept := _SIZES_BEHIND.get(name)) is not None:
            args, kwargs = (*args[:kept], *self._numbers(args[kept:])), self._numbers(kwargs)
        result = func(*args, **kwargs)
        if type(result) is self._torch.Tensor and result.dtype not in self._kinds and result.is_cuda:
            return result  # most of them
        if name in _READ:
            mirror = self.of(args[0]) if args else None
            return result if mirror is None else func(mirror, *args[1:], **kwargs)
        if name == "__set__":
            if func.__self__.__name__ == "data":
                self.forget(args[0])
        elif name.endswith("_") and not name.endswith("__") or name in _IN_PLACE or "out" in kwargs:
            self._written(func, name, args, kwargs)
        elif self._may_be_known(result):
            self._mirror(func, name, args, kwargs, result)
        elif self._known and self._is_on_host(result) and args:
            self._fetched(args[0], result)
        return result

    # ------------------------------------------------------------------ what is made

    def _may_be_known(self, result) -> bool:
        first = result[0] if isinstance(result, (tuple, list)) and result else result
        return type(first) is self._torch.Tensor and first.is_cuda and first.dtype in self._kinds and first.numel() <= _MOST

    def _mirror(self, func, name, args, kwargs, result) -> None:
        if any(part in name for part in _CHANCE):
            return
        stood = self._stood_for((args, kwargs))
        if stood is None:
            return
        done, made = self._computed(func, *stood)
        if not done:
            return
        for one, mirror in zip(_listed(result), _listed(made)):
            if type(one) is self._torch.Tensor and isinstance(mirror, self._torch.Tensor) and one.shape == mirror.shape and one.dtype == mirror.dtype:
                source = args[0] if args else None
                self._known[one] = mirror.clone() if isinstance(source, self._torch.Tensor) and not source.is_cuda else mirror

    def _stood_for(self, given):
        """What is given with mirrors in the places of the device's tensors; None where one has none."""
        try:
            return self._stand(given)
        except KeyError:
            return None

    def _stand(self, one):
        torch = self._torch
        if isinstance(one, torch.Tensor):
            if type(one) is not torch.Tensor:
                raise KeyError
            if one.is_cuda:
                return self._known[one]
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
        try:
            with self._without_modes(), self._torch._C.DisableTorchFunction(), self._torch.no_grad():
                return True, func(*args, **kwargs)
        except Exception:  # what the device takes and the host does not
            return False, None

    # ------------------------------------------------------------------ what is written and read

    def _written(self, func, name, args, kwargs) -> None:
        target = kwargs.get("out", args[0] if args else None)
        stood = self._stood_for((args[1:], kwargs)) if type(target) is self._torch.Tensor and "out" not in kwargs else None
        mirror = self.of(target)
        if type(target) is self._torch.Tensor and not target.is_cuda:
            source = self.of(args[1]) if name == "copy_" and len(args) > 1 else None
            if source is not None:
                self._computed(func, (target, source), {})
            return
        if stood is not None and mirror is None and name in _WHOLE and self._may_be_known(target):
            mirror = self._known[target] = self._torch.zeros(target.shape, dtype=target.dtype)
        if mirror is None:
            return
        if stood is None or any(part in name for part in _CHANCE) or not self._computed(func, (mirror, *stood[0]), stood[1])[0]:
            self.forget(target)

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
        mirror = self.of(source)
        if mirror is not None and result.shape == mirror.shape:
            with self._without_modes(), self._torch._C.DisableTorchFunction(), self._torch.no_grad():
                result.copy_(mirror)

    def _is_on_host(self, result) -> bool:
        return type(result) is self._torch.Tensor and result.device.type == "cpu"

    def _numbers(self, given):
        """Tensors of no dimension as the numbers that a function of sizes reads in them. The host waits for each."""
        if type(given) in (tuple, list):
            return type(given)(self._numbers(one) for one in given)
        if type(given) is dict:
            return {key: self._numbers(one) for key, one in given.items()}
        if type(given) is slice:
            return slice(*(self._numbers(one) for one in (given.start, given.stop, given.step)))
        mirror = self.of(given)
        if mirror is None or given.dim():
            return given
        self._torch._C.TensorBase.item(given)
        return mirror.item()


def _listed(made) -> list:
    return list(itertools.chain.from_iterable(map(_listed, made))) if isinstance(made, (tuple, list)) else [made]


def _asks_tensors(torch):
    plain = (torch.Tensor, torch.nn.Parameter)

    def has_torch_function(given) -> bool:
        return any(type(one) not in plain and hasattr(type(one), "__torch_function__") for one in given)

    return has_torch_function


# ---------------------------------------------------------------------- other ranks


def watch_collectives(module) -> None:
    """torch.distributed: every other rank has this one's numbers. What rank 0 hands out (broadcast) is what was there."""
    others = {"all_reduce": _reduced, "all_gather": _gathered, "all_gather_into_tensor": _laid_out}
    written = ("reduce", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "scatter", "recv")
    for name, follow in (others | dict.fromkeys(written, _overwritten)).items():
        setattr(module, name, _followed(module, getattr(module, name), follow))


def _followed(module, inner, others):
    @functools.wraps(inner)
    def collective(*args, **kwargs):
        work = inner(*args, **kwargs)
        if _mirrors is not None and _mirrors._known:
            others(module, *args, **kwargs)
        return work

    return collective


def _overwritten(module, output, *args, **kwargs) -> None:
    _mirrors.forget(output)


def _reduced(module, tensor, op=None, group=None, *args, **kwargs) -> None:
    mirror = of(tensor)
    if mirror is None:
        return
    if op is None or op == module.ReduceOp.SUM:
        mirror.mul_(module.get_world_size(group))
    elif op not in (module.ReduceOp.MAX, module.ReduceOp.MIN, module.ReduceOp.AVG):
        _mirrors.forget(tensor)


def _gathered(module, tensors, tensor, *args, **kwargs) -> None:
    for one in tensors:
        _given(one, of(tensor))


def _laid_out(module, output, tensor, *args, **kwargs) -> None:
    mirror = of(tensor)
    _given(output, None if mirror is None else mirror.reshape(-1).repeat(output.numel() // max(mirror.numel(), 1)).reshape(output.shape))


def _given(tensor, mirror) -> None:
    if mirror is not None and mirror.shape == tensor.shape:
        _mirrors._known[tensor] = mirror.to(tensor.dtype, copy=True)
    else:
        _mirrors.forget(tensor)
