"""Something done right after a module is imported, before anybody takes a name from it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from typing import Callable

_wanted: dict[str, list[Callable]] = {}


def after_import(name: str, action: Callable) -> None:
    """`action(module)` once `name` has been imported; at once if it has been."""
    if name in sys.modules:
        action(sys.modules[name])
    else:
        _wanted.setdefault(name, []).append(action)


class _Loader(importlib.abc.Loader):
    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):  # runpy and inspect ask the loader for code and source
        return getattr(self._inner, name)

    def create_module(self, spec):
        return self._inner.create_module(spec)

    def exec_module(self, module):
        # The module keeps the loader that it would have without us: resources and inspection go by it.
        module.__spec__.loader = module.__loader__ = self._inner
        self._inner.exec_module(module)
        for action in _wanted.pop(module.__name__, ()):
            action(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in _wanted:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader)
        return spec


def install() -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
