"""NVIDIA's management library by its own name: the virtual device plays the functions that tell of a card (shadow/device/fakenvml.cpp), but goes
by the driver's name alone. What opens it, counts cards and asks how busy they are is played here: it needs no figure of the device."""

from __future__ import annotations

import ctypes
import functools
import os

from . import device

_NAMES = ("libnvidia-ml.so.1", "libnvidia-ml.so")
_DONE = 0


def begin() -> None:
    if not device.present():
        return
    inner = ctypes.CDLL.__init__

    @functools.wraps(inner)
    def load(self, name, *args, **kwargs):
        if name not in _NAMES:
            inner(self, name, *args, **kwargs)
            return
        inner(self, "libcuda.so.1", *args, **kwargs)
        self.nvmlInitWithFlags, self.nvmlShutdown = _done, _done
        self.nvmlDeviceGetCount_v2, self.nvmlDeviceGetUtilizationRates = _count, _at_rest

    ctypes.CDLL.__init__ = load


def _done(*args) -> int:
    return _DONE


def _count(found) -> int:
    found._obj.value = int(os.environ.get("FAKEGPU_DEVICES", "1"))
    return _DONE


def _at_rest(handle, found) -> int:
    found._obj.gpu = found._obj.memory = 0
    return _DONE
