"""PyTorch's autograd.Function, whose `apply` is in Python until 2.14 and in C since."""

from __future__ import annotations

import types
from typing import Any


def python_apply(function: Any) -> types.FunctionType:
    """The function behind `Function.apply`, which takes the class first. One in C gets one in Python before it, for nobody can stand in for
    the former: who has taken a subclass's `apply` by then goes past it."""
    found = function.__dict__["apply"]
    if not hasattr(found, "__func__"):
        function.apply = classmethod(lambda cls, *args, **kwargs: found.__get__(None, cls)(*args, **kwargs))
    return function.__dict__["apply"].__func__
