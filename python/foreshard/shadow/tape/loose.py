"""Parameters that the script trains beside its sharded model: a projection's, a head's, a temperature. Whatever module has them, they are
plain tensors on every rank, which no unit gathers or reduces."""

from __future__ import annotations

import gc

from ..names import class_of, of_script

NAME = "beside"  # what holds them in the model


def are_beside(modules: list) -> bool:
    """Whether these, that a step calls, are sharded: beside what DDP replicates, or nothing does, another module is called by itself."""
    return bool(modules) and all(hasattr(each, "_fsdp_wrapped_module") or hasattr(each, "set_requires_gradient_sync") for each in modules)


def is_one(tensor) -> bool:
    import torch

    return type(tensor) is torch.nn.Parameter and tensor.requires_grad and tensor.is_leaf and tensor.is_cuda


def any_in(module) -> bool:
    """In what a module has beside the sharded parts in it."""
    sharded = {id(each) for part in module.modules() if are_beside([part]) for each in part.parameters()}
    return any(is_one(each) and id(each) not in sharded for each in module.parameters())


class Held:
    """Those that one step uses, as the parameters of a module that nobody calls."""

    def __init__(self):
        import torch

        self.module = torch.nn.Module()
        self.module.__dict__["holds_loose"] = True
        self._names: dict[int, str] = {}

    def name_of(self, parameter) -> str:
        if id(parameter) not in self._names:
            called, name, number = _called(parameter), "", 1
            while not name or name in self.module._parameters:
                name, number = called if number == 1 else f"{called}_{number}", number + 1
            self.module._parameters[name] = parameter
            self._names[id(parameter)] = name
        return self._names[id(parameter)]


    def count(self) -> int:
        return len(self._names)

    def back_to(self, count: int) -> None:
        """Those that were first asked for something that is no computation."""
        for key in list(self._names)[count:]:
            del self.module._parameters[self._names.pop(key)]

    def modules(self) -> list:
        return [self.module] if self._names else []


def holds(module) -> bool:
    return "holds_loose" in module.__dict__


def inside(root) -> bool:
    """Whether there are any in what a step calls."""
    return root is not None and any(holds(each) for each in root.children())


def _called(parameter) -> str:
    import torch

    for each in gc.get_referrers(parameter):
        if type(each) is not dict:
            continue
        name = next((key for key, value in each.items() if value is parameter), "")
        owner = next((one for one in gc.get_referrers(each) if isinstance(one, torch.nn.Module) and one._parameters is each), None)
        if owner is not None:
            return f"{of_script(owner) or class_of(owner).__name__.lower()}_{name}"
    return of_script(parameter) or "parameter"
