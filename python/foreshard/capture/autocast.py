"""`torch.autocast("cuda")` switches itself off where PyTorch sees no GPU; the tensors that are captured are a GPU's."""

from __future__ import annotations

import contextlib

import torch


@contextlib.contextmanager
def of_a_gpu():
    """Autocast that is constructed within works on fake tensors of a GPU as on one."""
    if torch.cuda.is_available():
        yield
        return
    common = torch.cuda.amp.common
    absent, bf16 = common.amp_definitely_not_available, torch.cuda.is_bf16_supported
    common.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda including_emulation=True: True
    try:
        yield
    finally:
        common.amp_definitely_not_available, torch.cuda.is_bf16_supported = absent, bf16


_ASKED = {torch.Tensor.to, torch.Tensor.type, torch.Tensor.type_as, torch.Tensor.bfloat16, torch.Tensor.half}


class Casts:
    """Casts of parameters that autocast keeps for their next use. A recording makes each of them, and says until when it would be
    kept: under FSDP1 parameters are views in forward, no leaves, and nothing is."""

    def __init__(self):
        self.kept: list = []  # values, until the outermost autocast exits
        self._cache, self._depth, self._asked = torch.is_autocast_cache_enabled(), 0, False

    def call(self, func, args, kwargs):
        """A function of Python's: a cast that is asked for is none of autocast's."""
        was, self._asked = self._asked, func in _ASKED
        try:
            return func(*args, **kwargs)
        finally:
            self._asked = was

    def is_kept(self, source: torch.Tensor, result: torch.Tensor) -> bool:
        """cached_cast of ATen/autocast_mode.cpp."""
        lower = source.dtype == torch.float32 and result.dtype == torch.get_autocast_dtype("cuda")
        return self._cache and self._depth > 0 and not self._asked and lower and source.is_leaf and source.requires_grad

    def end(self, number: int) -> None:
        """`number`: of the last operator in it."""
        for value in self.kept:
            value.cast_until = number
        self.kept = []

    @contextlib.contextmanager
    def watch(self, last):
        """`last`: gives the number of the last operator."""
        names = ("set_autocast_cache_enabled", "is_autocast_cache_enabled", "clear_autocast_cache", "autocast_increment_nesting",
                 "autocast_decrement_nesting")  # fmt: skip
        switch, asked, clear, enter, leave = originals = [getattr(torch, name) for name in names]
        was = asked()

        def cleared():
            self.end(last())
            clear()

        def deeper():
            self._depth = enter()
            return self._depth

        def back():
            self._depth = leave()
            return self._depth

        replaced = (lambda enabled: setattr(self, "_cache", enabled), lambda: self._cache, cleared, deeper, back)
        for name, function in zip(names, replaced):
            setattr(torch, name, function)
        switch(False)
        try:
            yield
        finally:
            self.end(last())
            for name, original in zip(names, originals):
                setattr(torch, name, original)
            switch(was)
