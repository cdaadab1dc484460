"""The words of a tape (../script_step.py): what stands in its rows for tensors, modules and functions, and what plays rows again."""

from __future__ import annotations

from ..names import class_of, of_script
from . import loose


class Apply:
    def __init__(self, cls):
        self._cls = cls

    def __call__(self, *args, **kwargs):
        return self._cls.apply(*args, **kwargs)


class Checkpoint:
    def __call__(self, *args, **kwargs):
        import torch.utils.checkpoint

        return torch.utils.checkpoint.checkpoint(*args, **kwargs)


class Copied:
    def __call__(self, tensor):
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)


class Slot:
    """A tensor of the step, by number."""

    def __init__(self, index: int):
        self.index = index


class Part:
    """A module of a root, by name; `tensor`: one of its own."""

    def __init__(self, root: int, name: str, tensor: str = ""):
        self.root, self.name, self.tensor = root, name, tensor


def leaves(tree) -> list:
    import torch
    from torch.utils._pytree import tree_flatten

    if isinstance(tree, dict):  # ModelOutput too
        return [leaf for value in tree.values() for leaf in leaves(value)]
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def autocast_of(torch) -> tuple:
    return torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"), torch.is_autocast_cache_enabled()


def hooks_of(torch):
    """Those that the script has on what autograd saves (save_on_cpu); None: none."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


class Player:
    """Plays rows; holds a tensor until its row says that the script let go of it."""

    def __init__(self, modules, given, keeps_returned: bool, returned=None):
        import torch

        self._modules, self._tensors, self._cast, self.loss = modules, dict(given), None, None
        self._returned: list | None = [] if keeps_returned else None
        self._behind_last = returned
        given.clear()  # a batch that no name holds goes when the rows say so
        self._outside = autocast_of(torch)
        self._hooks: tuple | None = None  # the script's, and the context that has them

    def play(self, rows) -> None:
        last = max((at for at, row in enumerate(rows) if row[0] == "forward"), default=-1)
        try:
            for at, row in enumerate(rows):
                if row[0] == "drop":
                    self._tensors.pop(row[1], None)
                elif row[0] == "make":
                    self._tensors[row[1]] = self._empty(*row[2:])
                elif row[0] == "backward":
                    self.loss = self._tensors[row[1]]
                else:
                    self._call(*row)
                    if at == last and self._behind_last is not None:
                        self._behind_last()
        finally:
            self._leave_cast()
            self._leave_hooks()

    @staticmethod
    def _empty(shape, dtype):
        import torch

        return torch.empty(shape, dtype=dtype, device="cuda")

    def _call(self, kind, function, packed, slots, grad, around) -> None:
        import torch
        from torch.utils._pytree import tree_map

        cast, hooks = around
        self._enter_cast(cast)
        self._enter_hooks(hooks)
        args, kwargs = tree_map(self._unpacked, packed)
        with torch.set_grad_enabled(grad):
            result = (self._unpacked(function) if kind == "forward" else function)(*args, **kwargs)
        if kind == "forward" and self._returned is not None:
            self._returned.append(result)
        for slot, tensor in zip(slots, leaves(result)):
            self._tensors[slot.index] = tensor

    def _unpacked(self, leaf):
        if isinstance(leaf, Slot):
            return self._tensors[leaf.index]
        if not isinstance(leaf, Part):
            return leaf
        module = self._modules[leaf.root].get_submodule(leaf.name)
        return getattr(module, leaf.tensor) if leaf.tensor else module

    def _enter_cast(self, cast) -> None:
        """Rows of one autocast share it: it keeps its casts until it ends."""
        import torch

        if self._cast is not None and self._cast[0] == cast:
            return
        self._leave_cast()
        if cast != self._outside:
            enabled, dtype, cache = cast
            self._cast = (cast, torch.autocast("cuda", dtype=dtype, enabled=enabled, cache_enabled=cache))
            self._cast[1].__enter__()

    def _enter_hooks(self, hooks) -> None:
        import torch

        if (self._hooks[0] if self._hooks else None) == hooks:
            return
        self._leave_hooks()
        if hooks is not None:
            self._hooks = (hooks, torch.autograd.graph.saved_tensors_hooks(*hooks))
            self._hooks[1].__enter__()

    def _leave_hooks(self) -> None:
        if self._hooks is not None:
            self._hooks[1].__exit__(None, None, None)
            self._hooks = None

    def _leave_cast(self) -> None:
        if self._cast is not None:
            self._cast[1].__exit__(None, None, None)
            self._cast = None


def together(modules: list, tape):
    """Several roots as the parts of one module, whose forward is the step: named as in the smallest module of the script's that has them all."""
    import gc

    import torch

    class Roots(torch.nn.Module):
        def forward(self, given, shared=None, returned=None):
            held, loss = tape.again([self.get_submodule(name) for name in called], given, shared=shared, returned=returned)
            return loss, held

    wanted = {id(each) for each in modules if not loose.holds(each)}
    owner, fewest = None, None
    for each in gc.get_objects() if len(wanted) > 1 else ():
        if issubclass(type(each), torch.nn.Module):
            inside = {id(part): name for name, part in each.named_modules()}
            if wanted <= inside.keys() and (fewest is None or len(inside) < fewest):
                owner, fewest = inside, len(inside)
    called = [loose.NAME if loose.holds(each) else owner[id(each)] if owner else of_script(each) or f"{class_of(getattr(each, '_fsdp_wrapped_module', each)).__name__.lower()}{i}" for i, each in enumerate(modules)]
    if len(set(called)) < len(called):
        called = [f"{name}{i}" for i, name in enumerate(called)]
    whole = Roots()
    for name, module in zip(called, modules):
        at, parts = whole, name.split(".")
        for part in parts[:-1]:
            if part not in at._modules:
                at._modules[part] = torch.nn.Module()
            at = at._modules[part]
        at._modules[parts[-1]] = module
    return whole
