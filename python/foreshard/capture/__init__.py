"""Writes down what a module's training step does, as a model that Foreshard plans and simulates."""

import sys
import types

from .calling import capture, capture_step
from .document import CapturedModel
from .errors import CaptureError

__all__ = ["CaptureError", "CapturedModel", "capture", "capture_step"]


class _Callable(types.ModuleType):
    """`foreshard.capture` is this folder and the function of the same name: whichever Python finds first can be called."""

    def __call__(self, *args, **kwargs):
        return capture(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
