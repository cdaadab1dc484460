"""Capture on the virtual GPU (shadow/device): the module goes to a process that has the device in front of CUDA.

Parameters, buffers and the batch travel as shapes. The process is started once and serves every capture from a child of
its own, so that each one meets a fresh allocator and a crash costs only itself.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import threading
import types
from typing import Any

import torch
from torch.nn.utils import parametrize

from . import agreement, allocator
from .document import CapturedModel
from .errors import CaptureError
from .known import values_of
from .task import Task, capture_fake

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_DEVICE = "libfakegpu.so"
_VALUES = 1 << 16  # bytes: smaller tensors of the host, that are neither parameters nor batch, keep their values


class Unavailable(Exception):
    """Why the virtual device cannot be used here, and what to do."""

    def __init__(self, why: str, hint: str = "", told: bool = True):
        super().__init__(why)
        self.why, self.hint, self.told = why, hint, told


def capture_virtual(task: Task, required: bool) -> CapturedModel:
    """What the virtual device saw, with what fake tensors see otherwise. Not `required`: theirs where it does not work."""
    try:
        answer = _ask(task)
    except Unavailable as none:
        if required:
            raise CaptureError(
                f"the virtual device cannot be used: {none.why}", place="device", got='"virtual"',
                hint=none.hint or 'device="fake" needs nothing but PyTorch',
            ) from None  # fmt: skip
        model = capture_fake(task)
        if none.told:
            model.notes.append(f"captured on fake tensors: {none.why}" + (f"; {none.hint}" if none.hint else ""))
        return model
    try:
        fake, failure = capture_fake(task), None
    except CaptureError as error:
        fake, failure = None, error
    if isinstance(answer, CaptureError):
        if required or fake is None:
            raise answer
        fake.notes.append(f"captured on fake tensors: on the virtual device {answer.message} ({answer.place})")
        return fake
    if fake is None:
        answer.notes.append(f"fake tensors fail where the virtual device does not: {failure.message} ({failure.place})")
    else:
        answer.notes += agreement.differences(answer.document, fake.document)
    answer.notes += allocator.differences(answer)
    return answer


def _ask(task: Task) -> CapturedModel | CaptureError:
    text = _packed(task)
    document = _Server.ask(text)
    if error := document.get("error"):
        return CaptureError(error.pop("message"), **error)
    model = CapturedModel(document["document"], document["notes"], "virtual")
    model.allocator = document["allocator"]
    return model


# ------------------------------------------------------------------------------------------------------------ what goes


def _settings() -> dict[str, Any]:
    """What decides which kernel CUDA takes."""
    backends = torch.backends
    return {
        "cudnn": backends.cudnn.enabled,
        "flash": backends.cuda.flash_sdp_enabled(),
        "efficient": backends.cuda.mem_efficient_sdp_enabled(),
        "math": backends.cuda.math_sdp_enabled(),
        "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _packed(task: Task) -> bytes:
    """The task as bytes: tensors as shapes, what the script itself defines by value."""
    try:
        from cloudpickle import Pickler
    except ImportError:
        Pickler = pickle.Pickler
    with_values = {id(t) for t in [*task.module.buffers(), *_tensors_of(task.batch)]}
    shapes_only = {id(t) for t in task.module.parameters()} | with_values
    storages: dict[int, int] = {}

    class TaskPickler(Pickler):
        def reducer_override(self, value):
            if isinstance(value, torch.Tensor):
                known = values_of(value) if id(value) in with_values else None
                return _reduced(value, id(value) in shapes_only, known, storages)
            if isinstance(value, torch.nn.Module) and parametrize.is_parametrized(value):
                return _reduced_parametrized(value)
            if isinstance(value, types.MethodType) and isinstance(value.__self__, type) and getattr(value.__self__, value.__name__, None) == value:
                return getattr, (value.__self__, value.__name__)  # Scan.apply: there it is that process's, no copy of ours
            inner = getattr(super(), "reducer_override", None)
            return NotImplemented if inner is None else inner(value)

    file = io.BytesIO()
    try:
        TaskPickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump((task, _settings()))
    except CaptureError:
        raise
    except Exception as error:  # noqa: BLE001 - pickling has as many names for it as there are objects
        own = Pickler is pickle.Pickler
        raise Unavailable(
            f"the module or its step cannot be sent to its process ({type(error).__name__}: {error})",
            "pip install cloudpickle: what the script itself defines is then sent too" if own else "",
        ) from error
    return file.getvalue()


def _tensors_of(tree: Any) -> list[torch.Tensor]:
    from torch.utils._pytree import tree_flatten

    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _reduced(tensor: torch.Tensor, shape_only: bool, known: torch.Tensor | None, storages: dict[int, int]):
    from .virtual_server import made

    if tensor.layout != torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        kind = tensor.layout if tensor.layout != torch.strided else type(tensor).__name__
        raise Unavailable(f"a tensor of kind {kind} cannot be sent to its process")
    storage = storages.setdefault(tensor.untyped_storage()._cdata, len(storages))
    values = None
    if not shape_only and tensor.device.type == "cpu" and tensor.nbytes <= _VALUES:
        values = _bytes_of(tensor)
    where = "meta" if shape_only else "cuda" if tensor.device.type == "cuda" else "cpu"
    return made, (
        storage, tensor.untyped_storage().nbytes(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()),
        tensor.storage_offset(), tensor.requires_grad, isinstance(tensor, torch.nn.Parameter), where, values,
        None if known is None else _bytes_of(known),
    )  # fmt: skip


def _reduced_parametrized(module: torch.nn.Module):
    """torch.nn.utils.parametrize gives each module a class of its own that does not travel: the class below it does."""
    from .virtual_server import made_parametrized

    return made_parametrized, (type(module).__bases__[0],), dict(module.__dict__), None, None, _with_properties


def _with_properties(module: torch.nn.Module, state: dict[str, Any]) -> None:
    from torch.nn.utils.parametrize import _inject_new_class, _inject_property

    module.__dict__.update(state)
    _inject_new_class(module)
    for name in module.parametrizations:
        _inject_property(module, name)


# ------------------------------------------------------------------------------------------------------------ the process


def _library(name: str) -> str:
    """Beside a wheel's package, in a build tree, where Debian's package puts it; or as FORESHARD_VIRTUAL_DEVICE says."""
    folders = [os.path.join(_PACKAGE, "lib"), os.path.join(_PACKAGE, "..", "..", "lib"), os.path.join(_PACKAGE, "..", "..")]
    if given := os.environ.get("FORESHARD_VIRTUAL_DEVICE"):
        folders.insert(0, given)
    for folder in folders:
        if os.path.exists(path := os.path.join(folder, name)):
            return os.path.abspath(path)
    return ""


def _environment() -> dict[str, str]:
    if torch.version.cuda is None:
        raise Unavailable(
            f"PyTorch {torch.__version__} is built without CUDA",
            "install a CUDA build (pip install torch, without the index for CPUs): no GPU and no driver are needed", told=False,
        )  # fmt: skip
    device = _library(_DEVICE)
    if not device:
        raise Unavailable(f"{_DEVICE} is not installed", "the wheel brings it (scripts/package wheel)", told=False)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FAKEGPU_", "PYTORCH_CUDA", "PYTORCH_ALLOC", "FORESHARD_SHADOW"))}
    return kept | {
        "LD_PRELOAD": " ".join(filter(None, [device, _library("libfakenvrtc.so")])),
        "CUDA_VISIBLE_DEVICES": "0", "FAKEGPU_DEVICES": "1", "FAKEGPU_TIME": "instant", "FAKEGPU_MEM_GIB": "1000",
        "USE_PYTORCH_KERNEL_CACHE": "0", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1",
    }  # fmt: skip


_SERVE = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from foreshard.capture.virtual_server import serve; serve()"


class _Server:
    """The process that has the device; one for all captures of this one."""

    _process: subprocess.Popen | None = None
    _refused: Unavailable | None = None
    _lock = threading.Lock()  # captures of several threads go one after the other: an answer belongs to one question

    @classmethod
    def ask(cls, text: bytes) -> dict[str, Any]:
        with cls._lock:
            if not cls.running():
                cls.start()
            return cls.request(text)

    @classmethod
    def running(cls) -> bool:
        return cls._process is not None and cls._process.poll() is None

    @classmethod
    def start(cls) -> None:
        if cls._refused is not None:
            raise cls._refused
        path = json.dumps([os.path.dirname(_PACKAGE), *sys.path])
        environment = _environment()
        try:
            cls._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, path], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        except OSError as error:
            raise Unavailable(f"its process cannot be started ({error})") from error
        atexit.register(cls.stop)
        try:
            hello = cls._read()
            if why := hello.get("unavailable"):
                raise Unavailable(why, hello.get("hint", ""))
        except Unavailable as refused:  # it will not be there the next time either
            cls.stop()
            cls._refused = refused
            raise

    @classmethod
    def stop(cls) -> None:
        process, cls._process = cls._process, None
        if process is not None:
            with contextlib.suppress(OSError):  # what was not sent yet goes nowhere
                process.stdin.close()
            process.stdout.close()
            process.wait()

    @classmethod
    def request(cls, text: bytes) -> dict[str, Any]:
        try:
            cls._process.stdin.write(struct.pack("<Q", len(text)) + text)
            cls._process.stdin.flush()
            return cls._read()
        except BaseException as error:  # an answer half read, an interrupt: the next capture meets a new process
            if cls._process is not None:
                cls._process.kill()
            cls.stop()
            if isinstance(error, OSError):
                raise Unavailable(f"its process cannot be talked to ({error})") from error
            raise

    @classmethod
    def _read(cls) -> dict[str, Any]:
        head = cls._process.stdout.read(8)
        text = cls._process.stdout.read(struct.unpack("<Q", head)[0]) if len(head) == 8 else b""
        if not text:
            raise Unavailable("its process ended", "its last words are on standard error")
        return pickle.loads(text)
