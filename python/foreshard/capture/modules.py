"""Which module is running, and what it was called with."""

from __future__ import annotations

import contextlib
import types
from typing import Any, Callable

import torch


class ModuleStack:
    """Names are fully qualified, the root's is ""; calls count from 0 for every module."""

    def __init__(self, names: dict[torch.nn.Module, str], wrappers: dict[torch.nn.Module, str]):
        self._names, self._wrappers = names, wrappers
        self._stack: list[tuple[str, int]] = []
        self._counts: dict[str, int] = {}
        # Called with (name, call, args, kwargs) as a module's call begins; what it returns is what the module gets.
        self.on_enter: Callable[[str, int, tuple, dict], tuple[tuple, dict]] = lambda n, c, a, k: (a, k)
        # The same as the call of a wrapper begins, which runs the module that it names.
        self.on_wrapper: Callable[[str, tuple, dict], tuple[tuple, dict]] = lambda n, a, k: (a, k)
        # Called with (name, output) before it has ended; what it returns is what the caller gets.
        self.on_result: Callable[[str, Any], Any] = lambda n, o: o
        self.on_leave: Callable[[str, int, Any], None] = lambda n, c, o: None

    def name(self) -> str:
        return self._stack[-1][0] if self._stack else ""

    def call(self) -> int:
        return self._stack[-1][1] if self._stack else max(0, self._counts.get("", 0) - 1)

    def next_call(self, name: str) -> int:
        return self._counts.get(name, 0)

    def counts(self) -> dict[str, int]:
        return dict(self._counts)

    def count_from(self, counts: dict[str, int]) -> None:
        """What has run since was a trial."""
        self._counts = counts

    def name_of(self, module: torch.nn.Module) -> str | None:
        return self._names.get(module)

    def serves_its_caller(self, name: str, module: torch.nn.Module) -> bool:
        """Whether a module without parameters is called by one that it does not lie in (one embedding of positions for all layers): what it
        does is then the caller's, as no unit of FSDP comes in between."""
        caller = self.name()
        if not caller or name == caller or name.startswith(caller + "."):
            return False
        return next(module.parameters(), None) is None

    def _wrapped(self, name: str, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        self._stack.append((name, self.next_call(name)))
        try:
            return self.on_wrapper(name, args, kwargs)
        finally:
            self._stack.pop()

    @contextlib.contextmanager
    def watch(self):
        """Every call of a module, its hooks included, runs inside its entry on the stack."""
        stack, function = self, torch.nn.Module._wrapped_call_impl
        code = function.__code__
        original = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)

        def call(module, *args, **kwargs):
            name = stack._names.get(module)
            if name is None and module in stack._wrappers:
                args, kwargs = stack._wrapped(stack._wrappers[module], args, kwargs)
            if name is None or stack.serves_its_caller(name, module):
                return original(module, *args, **kwargs)
            number = stack._counts.get(name, 0)
            stack._counts[name] = number + 1
            stack._stack.append((name, number))
            try:
                args, kwargs = stack.on_enter(name, number, args, kwargs)
                output = stack.on_result(name, original(module, *args, **kwargs))
            finally:
                stack._stack.pop()
            stack.on_leave(name, number, output)
            return output

        # Classes write `__call__ = nn.Module.__call__`: the function itself goes another way, whoever has it.
        torch.nn.Module._captured_call = staticmethod(call)
        function.__code__ = _to_the_stack.__code__
        try:
            yield self
        finally:
            function.__code__ = code
            del torch.nn.Module._captured_call


def _to_the_stack(self, *args, **kwargs):
    import torch  # the code runs among others' globals

    return torch.nn.Module._captured_call(self, *args, **kwargs)
