"""One capture: a module, what it is called with, and where its loss comes from. Goes to another process as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch

from .document import CapturedModel
from .errors import CaptureError
from .session import Session, leaves_of


@dataclass
class Task:
    """What is to be captured: all that goes to another process."""

    module: torch.nn.Module
    kind: str  # "call": function makes the loss of what the module returns; "step": function(module, *batch) runs backward
    function: Callable[..., Any] | None
    batch: tuple[tuple, dict[str, Any]]
    names: list[str]  # of the batch's arguments
    mixed_precision: dict[str, Any] | None
    strict: bool
    chosen: float
    name: str

    def step(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if self.kind == "step":
            self.function(module, *args, **kwargs)
        else:
            _loss_of(module(*args, **kwargs), self.function).backward()

    def session(self, virtual: bool = False) -> Session:
        return Session(self.module, self.mixed_precision, self.strict, self.chosen, self.name, virtual)


def capture_fake(task: Task) -> CapturedModel:
    return task.session().run(task)


def _loss_of(output: Any, loss: Callable[[Any], torch.Tensor] | None) -> torch.Tensor:
    if loss is not None:
        result = loss(output)
        if not isinstance(result, torch.Tensor) or result.numel() != 1:
            raise CaptureError(
                "the loss is no scalar tensor",
                expected="loss(output) -> a tensor with one element",
                got=f"a tensor of shape {list(result.shape)}" if isinstance(result, torch.Tensor) else repr(type(result)),
            )
        return result
    named = getattr(output, "loss", None) if not isinstance(output, torch.Tensor) else None
    found = [
        leaf
        for leaf in ([named] if isinstance(named, torch.Tensor) else leaves_of(output))
        if isinstance(leaf, torch.Tensor) and leaf.numel() == 1 and leaf.requires_grad
    ]
    if not found:
        shapes = ", ".join(str(list(t.shape)) for t in leaves_of(output) if isinstance(t, torch.Tensor))
        raise CaptureError(
            "the module returns no scalar to start backward from",
            expected="an output with one element that needs a gradient",
            got=f"tensors of shapes {shapes}" if shapes else repr(type(output)),
            hint="give loss=, for example loss=lambda out: out.float().sum(), or use capture_step",
        )
    return found[0]
