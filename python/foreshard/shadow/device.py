"""The virtual device's own functions (shadow/device)."""

from __future__ import annotations

import ctypes
import functools


@functools.cache
def _library():
    library = ctypes.CDLL(None)
    library.fakegpu_mark.argtypes = [ctypes.c_char_p]
    library.fakegpu_advance_us.argtypes = [ctypes.c_double]
    for name in ("fakegpu_done_ns", "fakegpu_host_ns", "fakegpu_calls"):
        getattr(library, name).restype = ctypes.c_longlong
    return library


def present() -> bool:
    try:
        return hasattr(_library(), "fakegpu_mark")
    except (AttributeError, OSError):
        return False


def mark(text: str) -> None:
    """A line of the device's log."""
    _library().fakegpu_mark(text.encode())


def advance(seconds: float) -> None:
    """The host does something else for so long, on the virtual clock."""
    _library().fakegpu_advance_us(seconds * 1e6)


def done_ns() -> int:
    """When everything that was asked for is done, on the virtual clock."""
    return _library().fakegpu_done_ns()


def flush() -> None:
    _library().fakegpu_log_flush()
