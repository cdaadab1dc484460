"""The process in front of the virtual device: captures one task after the other, each in a child of its own."""

from __future__ import annotations

import importlib
import os
import pickle
import struct
import sys
import traceback
from typing import Any, NoReturn

import torch

from .known import carry

# ---------------------------------------------------------------------------------------------------------- tensors


_storages: dict[tuple[int, str], torch.Tensor] = {}  # of the task that is being read


def made(storage, nbytes, dtype, shape, stride, offset, requires_grad, is_parameter, where, values, known):
    """A tensor as virtual._reduced has it: those of one storage share one here. "meta" stands for what is to lie on the card."""
    if values is not None:
        tensor = torch.empty_strided(shape, stride, dtype=dtype).copy_(_read(values, dtype, shape))
    else:
        base = _storages.get((storage, where))
        if base is None or base.dtype != dtype:
            base = _storages[storage, where] = torch.empty(nbytes // dtype.itemsize, dtype=dtype, device=where)
        tensor = base.as_strided(shape, stride, offset)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    if known is not None:
        carry(tensor, _read(known, dtype, shape))
    return tensor.requires_grad_() if requires_grad and tensor.is_floating_point() else tensor


def _read(values: bytes, dtype: torch.dtype, shape) -> torch.Tensor:
    return torch.frombuffer(bytearray(values), dtype=dtype).reshape(shape) if values else torch.empty(shape, dtype=dtype)


def made_parametrized(kind: type) -> torch.nn.Module:
    """An empty module, before it has its state (virtual._with_properties)."""
    return kind.__new__(kind)


def _set(settings: dict[str, Any]) -> None:
    torch.backends.cuda.enable_flash_sdp(settings["flash"])
    torch.backends.cuda.enable_mem_efficient_sdp(settings["efficient"])
    torch.backends.cuda.enable_math_sdp(settings["math"])
    torch.set_default_dtype(settings["dtype"])
    torch._C._set_deterministic_algorithms(settings["deterministic"], warn_only=True)  # the public name imports the compiler
    # cuDNN is not played: attention takes the next kernel of its list, of the same sizes; convolutions and recurrent layers
    # are written down as the user's setting has them.
    torch._C._set_sdp_use_cudnn(False)
    torch.backends.cudnn.enabled = False


def _capture(text: bytes) -> dict[str, Any]:
    from . import allocator
    from .errors import CaptureError

    try:
        task, settings = pickle.loads(text)
        _storages.clear()
    except BaseException as error:  # noqa: BLE001 - whatever an import of the user's says, sys.exit too
        return {"error": {"message": f"the module cannot be made in the virtual device's process: {type(error).__name__}: {error}",
                          "hint": "its classes must be importable there; pip install cloudpickle sends them by value"}}  # fmt: skip
    _set(settings)
    try:
        session = task.session(virtual=True)
        session.recorder.cudnn = settings["cudnn"]
        model = session.run(task)
        return {"document": model.document, "notes": model.notes, "allocator": allocator.measure(task, session)}
    except CaptureError as error:
        fields = {key: getattr(error, key) for key in ("message", "place", "expected", "got", "hint")}
        return {"error": fields}
    except BaseException as error:  # noqa: BLE001 - told, with where; a step may call sys.exit
        return {"error": {"message": f"capture failed: {type(error).__name__}: {error}", "got": traceback.format_exc(limit=-3)}}


# ---------------------------------------------------------------------------------------------------------- serving


def _write(file, answer: dict[str, Any]) -> None:
    text = pickle.dumps(answer)
    file.write(struct.pack("<Q", len(text)) + text)
    file.flush()


_ANSWERED = 73  # exit code of a child: 0 is what a module's own os._exit may say


def _answer(out, text: bytes) -> NoReturn:
    """The child's whole life: nothing of it may go on in the parent's loop."""
    code = 1
    try:
        _write(out, _capture(text))
        code = _ANSWERED
    except BaseException:  # noqa: BLE001 - the parent answers
        traceback.print_exc()
    finally:
        os._exit(code)


def serve() -> None:
    """Until the other side closes."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what modules print
    if not torch.cuda.is_available():
        _write(out, {"unavailable": f"PyTorch {torch.__version__} for CUDA {torch.version.cuda} does not see it",
                     "hint": "it plays CUDA 13: a PyTorch that is built for CUDA 13 is needed"})  # fmt: skip
        return
    # What PyTorch would import in the middle of a forward: an import keeps the frames that it is called from, and their tensors.
    importlib.import_module("torch._dynamo")

    # Once for all children. CUDA does not survive a fork, what plays it does; autograd's threads would not: none has run.
    torch.empty(1, device="cuda")
    torch.cuda.empty_cache()
    torch.cuda._is_in_bad_fork = lambda: False
    _write(out, {})
    source = sys.stdin.buffer
    while len(head := source.read(8)) == 8:
        text = source.read(struct.unpack("<Q", head)[0])
        child = os.fork()
        if child == 0:
            _answer(out, text)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != _ANSWERED:
            _write(out, {"error": {"message": "the virtual device's process crashed", "got": f"wait status {status}",
                                   "hint": 'device="fake" needs nothing but PyTorch'}})  # fmt: skip
