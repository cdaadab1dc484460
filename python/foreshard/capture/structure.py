"""The module tree as the format lists it: modules, parameters and buffers with their names."""

from __future__ import annotations

from collections import Counter
from typing import Any, Iterator

import torch

_WRAPPERS = ("CheckpointWrapper", "OffloadWrapper", "OptimizedModule")


def _is_wrapper(module: torch.nn.Module) -> bool:
    """A wrapper around one module, which is no part of the module's name."""
    return type(module).__name__ in _WRAPPERS


def _bases(cls: type) -> list[str]:
    out = []
    for base in cls.__mro__[1:]:
        if base is torch.nn.Module:
            break
        if issubclass(base, torch.nn.Module):
            out.append(base.__name__)
    return out


class Structure:
    """Names of modules, parameters and buffers; wrappers of checkpointing and torch.compile are looked through."""

    def __init__(self, root: torch.nn.Module):
        self.names: dict[torch.nn.Module, str] = {}
        self.wrappers: dict[torch.nn.Module, str] = {}  # by what they wrap
        self.modules: list[dict[str, Any]] = []
        self._classes: dict[str, str] = {}
        self._owners: list[tuple[str, torch.nn.Module]] = []
        self._walk("", root)

    def _walk(self, fqn: str, module: torch.nn.Module) -> None:
        while _is_wrapper(module):
            inner = next(iter(module.children()))
            if inner is module:
                break
            self.wrappers[module] = fqn
            module = inner
        known = self.names.get(module)
        row: dict[str, Any] = {"fqn": fqn, "class": type(module).__name__}
        if bases := _bases(type(module)):
            row["bases"] = bases
        if known is not None:
            row["alias_of"] = known
            self.modules.append(row)
            self._owners.append((fqn, module))
            return
        self.names[module] = fqn
        self._classes[fqn] = type(module).__name__
        self.modules.append(row)
        self._owners.append((fqn, module))
        for name, child in module._modules.items():
            if child is not None:
                self._walk(f"{fqn}.{name}" if fqn else name, child)

    def class_of(self, fqn: str) -> str:
        return self._classes.get(fqn, "")

    def state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters and buffers as they are now; a shared one under its first name first."""
        for fqn, module in self._owners:
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        yield (f"{fqn}.{name}" if fqn else name), tensor

    def params(self) -> list[dict[str, Any]]:
        rows, first = [], {}
        for fqn, module in self._owners:
            for name, parameter in module._parameters.items():
                if parameter is None:
                    continue
                full = f"{fqn}.{name}" if fqn else name
                row: dict[str, Any] = {
                    "fqn": full,
                    "shape": list(parameter.shape),
                    "dtype": str(parameter.dtype).removeprefix("torch."),
                }
                if not parameter.requires_grad:
                    row["requires_grad"] = False
                if id(parameter) in first:
                    row["shares"] = first[id(parameter)]
                else:
                    first[id(parameter)] = full
                rows.append(row)
        return rows

    def buffers(self) -> list[dict[str, Any]]:
        rows = []
        for fqn, module in self._owners:
            if any(r["fqn"] == fqn and "alias_of" in r for r in self.modules if r["fqn"] == fqn):
                continue
            for name, buffer in module._buffers.items():
                if buffer is None:
                    continue
                row: dict[str, Any] = {
                    "fqn": f"{fqn}.{name}" if fqn else name,
                    "shape": list(buffer.shape),
                    "dtype": str(buffer.dtype).removeprefix("torch."),
                }
                if name in module._non_persistent_buffers_set:
                    row["persistent"] = False
                rows.append(row)
        return rows

    def block_class(self) -> str:
        """The class of the repeated block: siblings in one list that hold most of the parameters."""
        held: Counter[str] = Counter()
        for fqn, module in self._owners:
            if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)):
                continue
            classes = Counter(type(child) for child in module.children() if any(True for _ in child.children()))
            for cls, count in classes.items():
                if count > 1 and not issubclass(cls, (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)):
                    held[cls.__name__] += sum(
                        p.numel() for c in module.children() if type(c) is cls for p in c.parameters()
                    )
        return held.most_common(1)[0][0] if held else ""
