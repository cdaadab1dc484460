"""What capture says of operators that no card would run, or that hang on values nobody has."""

from __future__ import annotations

import traceback

from .answers import HOST_READS
from .errors import CaptureError
from .values import describe, tensors_of

_FACTORS = {"aten.mm.default": (0, 1), "aten.bmm.default": (0, 1), "aten.addmm.default": (1, 2), "aten.baddbmm.default": (1, 2),
            "aten.convolution.default": (0, 1)}  # fmt: skip


def refuse_unlike(module: str, name: str, args) -> None:
    """Fake tensors multiply numbers of two types; no card does."""
    factors = [args[i] for i in _FACTORS.get(name, ()) if i < len(args)]
    if len({t.dtype for t in factors}) > 1:
        raise CaptureError(
            f"{name} is given factors of two types",
            place=_where(module, name),
            expected="one dtype",
            got=", ".join(describe(t) for t in factors),
            hint="on a GPU this module fails in the same way: cast one, as in x.to(weight.dtype); under FSDP2 buffers keep their type "
            "while parameters are cast",
        )


def data_dependent(module: str, name: str, args, kwargs) -> CaptureError:
    read = name in HOST_READS
    return CaptureError(
        f"{name} needs the values of a tensor, and capture has none",
        place=_where(module, name),
        expected="sizes and control flow that do not hang on computed values",
        got=", ".join(describe(t) for t in tensors_of((args, kwargs))) or "nothing",
        hint="if it hangs on the batch alone, give a batch that lies on the CPU, with its values; "
        + (
            "capture with strict=False: the host then reads zeros"
            if read
            else "capture with strict=False: a mask then chooses a share of its elements (chosen=); give the operator a fixed size (a stated capacity per expert), or wrap it in a torch.library.custom_op, "
            "which is captured as one opaque operator"
        ),
    )


def failed(module: str, name: str, args, kwargs, error) -> CaptureError:
    tensors = tensors_of((args, kwargs))
    kinds = {t.device.type for t in tensors if t.dim()}
    if len(kinds) > 1:
        return CaptureError(
            f"{name} is given tensors on the host and on the GPU",
            place=_where(module, name),
            expected="all on one device",
            got=", ".join(describe(t) for t in tensors),
            hint="on a GPU this module fails in the same way: make the tensor with device=x.device, or register it "
            "as a buffer",
        )
    return CaptureError(
        f"{name} failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
        place=_where(module, name),
        got=", ".join(describe(t) for t in tensors),
        hint="an operator that fake tensors do not know needs torch.library.register_fake; it is then captured as "
        "one opaque operator",
    )


def _where(module: str, name: str) -> str:
    frame = next(
        (
            f
            for f in reversed(traceback.extract_stack())
            if "/torch/" not in f.filename and "/foreshard/capture/" not in f.filename and "/foreshard/shadow/reads/values.py" not in f.filename
        ),
        None,
    )
    line = f" ({frame.filename}:{frame.lineno})" if frame else ""
    return f"module {module}, operator {name}{line}"
