"""PyTorch's own ranges (operators, autograd's nodes, FSDP's, the optimizer's, the loader's) in the device's log, by the means that
`torch.autograd.profiler.emit_nvtx` has, from the making of the script's first optimizer on. While the script profiles itself
they are left out: PyTorch has one profiler a thread."""

from __future__ import annotations

import functools

from .hooks import after_import

_on = False
_wanted = False


def begin() -> None:
    after_import("torch.optim.optimizer", _watch_optimizers)
    after_import("torch.autograd.profiler", _stand_aside)


def _watch_optimizers(module) -> None:
    inner = module.Optimizer.__init__

    @functools.wraps(inner)
    def make(self, *args, **kwargs):
        inner(self, *args, **kwargs)
        if not _on:
            _begin()

    module.Optimizer.__init__ = make


def _begin() -> None:
    global _on, _wanted
    _wanted = True
    from torch.autograd import profiler

    nothing = profiler._ExperimentalConfig()
    wanted = profiler.ProfilerConfig(profiler.ProfilerState.NVTX, False, False, False, False, False, nothing)
    try:
        _enable(wanted, set())
    except RuntimeError:  # the script's own is running
        return
    _on = True


def _enable(*args):
    import torch

    torch.autograd._enable_profiler(*args)


def _stand_aside(module) -> None:
    enable, disable = module._enable_profiler, module._disable_profiler

    @functools.wraps(enable)
    def begins(*args, **kwargs):
        global _on
        if _on:
            _on = False
            disable()
        return enable(*args, **kwargs)

    @functools.wraps(disable)
    def ends(*args, **kwargs):
        result = disable(*args, **kwargs)
        if _wanted:
            _begin()
        return result

    module._enable_profiler, module._disable_profiler = begins, ends
