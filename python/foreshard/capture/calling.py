"""The two ways in: a module and its loss, or a step of the user's; on fake tensors, on the virtual GPU, or on both."""

from __future__ import annotations

import inspect
import os
from typing import Any, Callable

import torch

from .document import CapturedModel
from .errors import CaptureError
from .task import Task, capture_fake
from .virtual import capture_virtual


def capture(
    module: torch.nn.Module,
    *args: Any,
    loss: Callable[[Any], torch.Tensor] | None = None,
    device: str | None = None,
    mixed_precision: dict[str, Any] | None = None,
    strict: bool = True,
    chosen: float = 1.0,
    name: str = "",
    **kwargs: Any,
) -> CapturedModel:
    """Runs one forward and backward of a module on a card that does not exist and writes down what happens.

    Nothing is computed and no GPU is needed: a module of any size takes seconds. The module may lie on any device, the
    meta device included, and is left as it was.

    Args:
        module: the module as it is before it is sharded.
        *args, **kwargs: one micro-batch; tensors of any device. Of those on the CPU the values are known: what hangs on them
            alone (x[labels != -100], if mask.all()) goes as with this batch; of the others the sizes count.
        loss: from what the module returns to the scalar that backward starts from; default: the scalar among the
            outputs that needs a gradient.
        device: "fake": fake tensors, anywhere. "virtual": the virtual GPU, in a process of its own: CUDA's own dispatch, the
            real allocator; needs a PyTorch built for CUDA 13, and cloudpickle for what is defined in the script itself.
            None: "virtual" where that works, else "fake". Where both work they are compared, `notes` tell what differs.
        mixed_precision: the casts of FSDP's mixed precision, e.g. {"param": "bfloat16"}: parameters and floating inputs
            are cast, so that type_as and .to(x.dtype) do what they will do. "buffer": buffers too (FSDP1). "output":
            what the module returns; "outputs": by name what modules in it return. "anew": modules that FSDP2
            shards: it hands them a tensor that is passed twice as two tensors. "units": classes or names of modules whose floating arguments are cast as well
            (FSDP2 casts at every unit). "root": False: the root's are not. "parts": by name of a module the dtypes of parameters and
            buffers in it, where these are others. Of a module in a checkpoint wrapper it is the wrapper that FSDP shards; a name that ends
            with "._checkpoint_wrapped_module" says that it is the module inside.
        strict: False: the host reads zeros where the module asks for values that nobody knows, and such a mask (x[mask],
            torch.where(mask)) chooses `chosen` of its elements.
        chosen: a share from 0 to 1; 1 is the most that there can be, 1 / experts where a loop over experts takes the tokens
            whose router has chosen each.
        name: of the model; default: the module's class.

    Raises:
        CaptureError: with the operator and module where it happened and what to do.
    """

    names = _argument_names(module.forward, args, kwargs) if isinstance(module, torch.nn.Module) else []
    return run_task(Task(module, "call", loss, (args, kwargs), names, mixed_precision, strict, chosen, name), device)


def capture_step(
    module: torch.nn.Module,
    step: Callable[..., Any],
    *batch: Any,
    device: str | None = None,
    mixed_precision: dict[str, Any] | None = None,
    strict: bool = True,
    chosen: float = 1.0,
    name: str = "",
    **kwargs: Any,
) -> CapturedModel:
    """As `capture`, but `step(module, *batch, **kwargs)` runs forward and `loss.backward()` itself, as a training script does.

    What the step keeps names for (logits, say) is held as long as it holds it. Only the first backward counts; what
    follows it (the optimizer) is looked at for the job's defaults.
    """
    names = _argument_names(step, (module, *batch), kwargs)[1:]
    return run_task(Task(module, "step", step, (batch, kwargs), names, mixed_precision, strict, chosen, name), device)


def run_task(task: Task, device: str | None) -> CapturedModel:
    """On the device that is asked for; on both, and compared, where the virtual one works."""
    if device is None:
        device = os.environ.get("FORESHARD_CAPTURE_DEVICE") or None
    if device not in (None, "fake", "virtual"):
        raise CaptureError(
            "capture cannot run on this device",
            place="device",
            expected='"fake" (fake tensors, anywhere) or "virtual" (the virtual GPU)',
            got=repr(device),
        )
    if not 0 <= task.chosen <= 1:
        raise CaptureError("this is no share", place="chosen", expected="a number from 0 to 1", got=repr(task.chosen))
    task.session()  # what is wrong with the module or the arguments is told at once
    if device == "fake":
        return capture_fake(task)
    return capture_virtual(task, required=device == "virtual")


def _argument_names(function: Callable, args: tuple, kwargs: dict[str, Any]) -> list[str]:
    """A name for every argument, positional ones first."""
    try:
        parameters = [
            p
            for p in inspect.signature(function).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        parameters = []
    names = [parameters[i].name if i < len(parameters) else f"arg{i}" for i in range(len(args))]
    return names + list(kwargs)
