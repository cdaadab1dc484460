"""What a virtual device cannot do is answered here, so that the script goes on as it would on a card.

- cuDNN is not played: convolutions unfold, recurrent layers run step by step, attention takes the next kernel (flash).
- torch.compile leaves functions as they are (but for FlexAttention: flex.py).
- Ranks compare their parameters' shapes by values that nobody computes: they are the same.
- Tensors of the device that are compared as a whole are alike: all of them read as zeros, but for whole numbers that the host gave them (reads/values.py).
- A generator of the host keeps its state where it is given one that came by way of the device.
- What is chosen by scores of the device is spread evenly (reads/values.py); rows that go to other ranks by other counts of the device go in even shares.
- Distributions do not look at their parameters' values.
- Kernels of Triton do nothing and take no time: what they write to was allocated by who calls them.
- Random and constant fills of large tensors on the host write nothing: an 8B model that is made there costs address space.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os

from .hooks import after_import
from .notes import note
from .reads import collectives, flags, masks, values

LARGE = 1 << 20  # bytes
OLDEST = (2, 6)
TESTED = ("2.11", "2.12", "2.15")


def begin() -> None:
    for name, value in {
        "TORCH_NCCL_ENABLE_MONITORING": "0",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "TORCHDYNAMO_DISABLE": "1",
        "USE_PYTORCH_KERNEL_CACHE": "0",  # what is compiled here is no code for a card
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }.items():
        os.environ.setdefault(name, value)
    after_import("torch", _torch)
    after_import("torch.distributed", collectives.begin)
    after_import("torch.distributed.utils", _utils)
    after_import("torch.nn.parallel.distributed", _buckets)
    after_import("torch.distributions.distribution", lambda python_module: python_module.Distribution.set_default_validate_args(False))
    after_import("torch.distributed._functional_collectives", collectives.begin_functional)
    after_import("torch.distributed.tensor._collective_utils", collectives.begin_placements)
    after_import("torch.distributed._functional_collectives", _exchanges)
    after_import("triton.runtime.jit", _triton_kernels)
    after_import("triton.runtime.autotuner", _triton_tuners)


def refuse(code: str, message: str, hint: str) -> None:
    """Ends the script: the verb tells why."""
    from . import report

    report.failure(code, message, hint)
    report.end(3)


def _torch(torch) -> None:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST:
        refuse("bad-input", f"the script's PyTorch is {torch.__version__}", f"PyTorch 2.6 or later is watched; tested with {', '.join(TESTED)}")
    if torch.version.cuda is None:
        refuse("bad-input", f"the script's PyTorch {torch.__version__} is built without CUDA",
               "install a CUDA build (pip install torch, without the index for CPUs): no GPU and no driver are needed")  # fmt: skip
    if ".".join(map(str, version)) not in TESTED:
        note(f"PyTorch {torch.__version__}: the virtual device is tested with {', '.join(TESTED)}")
    if not torch.cuda.is_available():
        refuse("bad-input", f"PyTorch {torch.__version__} for CUDA {torch.version.cuda} does not see the virtual device",
               "it plays CUDA 13: a PyTorch that is built for CUDA 13 is needed")  # fmt: skip
    _without_cudnn(torch)
    _fills(torch)
    _repeats(torch)
    _comparisons(torch)
    _generators(torch)
    masks.begin(torch)
    flags.begin(torch)
    values.begin(torch)
    _threads(torch)
    for name in ("repeat_interleave", "equal", "allclose", *flags.FUNCTIONS, *masks.FUNCTIONS):  # scripts of torch.jit know operators by the functions that stood for them
        torch.jit._builtins._register_builtin(getattr(torch, name), f"aten::{name}")


def _threads(torch) -> None:
    """A node's ranks share its cores; this machine may have fewer of them than ranks, and each rank none."""
    inner = torch.set_num_threads

    @functools.wraps(inner)
    def set_num_threads(count):
        inner(max(1, count))

    torch.set_num_threads = set_num_threads


def _repeats(torch) -> None:
    """Repetitions that the device has counted: none, as every value that is read; PyTorch would ask whether all are positive."""

    def size_of(rows, times, dim) -> int:
        """`rows`: None where the numbers themselves are repeated."""
        known = values.of(times)
        if known is None:
            note("repeat_interleave by counts that the device has: read as none, its result is empty")
            return 0
        if rows is None or known.numel() > 1:
            return int(known.sum())
        return int(known) * (rows.numel() if dim is None else rows.shape[dim])

    def counted(inner):
        @functools.wraps(inner)
        def repeat(*args, **kwargs):
            times = args[1] if len(args) > 1 else kwargs.get("repeats", args[0] if args else None)
            if isinstance(times, torch.Tensor) and times.is_cuda and kwargs.get("output_size") is None:
                rows = kwargs.get("input", args[0] if args else None)
                dim = args[2] if len(args) > 2 else kwargs.get("dim")
                kwargs["output_size"] = size_of(None if rows is times else rows, times, dim)
            return inner(*args, **kwargs)

        return repeat

    torch.repeat_interleave = counted(torch.repeat_interleave)
    torch.Tensor.repeat_interleave = counted(torch.Tensor.repeat_interleave)


def _comparisons(torch) -> None:
    """equal() and allclose() of the device's tensors: what reads as zeros is alike. By itself PyTorch would read a flag, and that as false."""

    def alike(inner):
        @functools.wraps(inner)
        def compared(input, other, *args, **kwargs):
            result = inner(input, other, *args, **kwargs)
            known = [values.of(one) for one in (input, other)]
            if all(one is not None for one in known):
                return inner(*known, *args, **kwargs)
            if not result and isinstance(input, torch.Tensor) and input.is_cuda and input.shape == getattr(other, "shape", None):
                note("equal() and allclose() of tensors on the device: they are, for all of them read as zeros")
                return True
            return result

        return compared

    for name in ("equal", "allclose"):
        for place in (torch, torch.Tensor):
            setattr(place, name, alike(getattr(place, name)))


def _generators(torch) -> None:
    """States of generators that rank 0 sends over the device are read back as zeros, which is none: ranks that do the same have the same."""
    kind = torch._C.Generator
    inner = kind.set_state

    @functools.wraps(inner)
    def set_state(self, state):
        if self.device.type == "cpu" and isinstance(state, torch.Tensor) and not state.any():
            note("a generator's state that came by way of the device: it keeps the one that it has")
            return self
        return inner(self, state)

    methods = gc.get_referents(kind.__dict__)[0]  # a type of C, whose attributes Python does not set
    methods["set_state"] = set_state
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _exchanges(module) -> None:
    """Rows that go to other ranks by counts that the device has (tokens to their experts): even shares where these are read as none."""

    def shared(inner):
        @functools.wraps(inner)
        def exchange(self, output_split_sizes, input_split_sizes, *args, **kwargs):  # by PyTorch's names: they are given by name too
            if input_split_sizes and self.shape[0] and not any(input_split_sizes) and not any(output_split_sizes or ()):
                note("all-to-all by counts that the device has: every rank sends and gets an even share")
                least, more = divmod(self.shape[0], len(input_split_sizes))
                output_split_sizes = input_split_sizes = [least + (rank < more) for rank in range(len(input_split_sizes))]
            return inner(self, output_split_sizes, input_split_sizes, *args, **kwargs)

        return exchange

    for name in ("all_to_all_single", "all_to_all_single_autograd"):
        setattr(module, name, shared(getattr(module, name)))


def _without_cudnn(torch) -> None:
    torch.backends.cudnn.enabled = False
    use = torch._C._set_sdp_use_cudnn
    use(False)

    @functools.wraps(use)
    def never(enabled):
        if enabled:
            note("attention: cuDNN's is not played; the next kernel of the list is taken (flash)")
        use(False)

    torch._C._set_sdp_use_cudnn = never


def _triton_kernels(module) -> None:
    def run(self, *args, **kwargs):
        note(f"Triton's kernel {getattr(getattr(self, 'fn', None), '__name__', 'of the script')} is not run and takes no time: "
             "what it would write is zero")  # fmt: skip

    module.JITFunction.run = run


def _triton_tuners(module) -> None:
    """Nothing to measure: the kernel itself, with the first of its configurations."""
    def run(self, *args, **kwargs):
        return self.fn.run(*args, **kwargs)

    for name in ("Autotuner", "Heuristics"):
        if hasattr(module, name):
            getattr(module, name).run = run


def _buckets(module) -> None:
    """After a step DDP orders its buckets anew, by sizes that rank 0 sends over the device: read back there are none."""

    class Reducer(module.dist.Reducer):
        def _rebuild_buckets(self):
            note("DDP: buckets stay in the order of the parameters; a real run orders them anew after its first step, as gradients came")
            return False

    module.dist.Reducer = Reducer


def _utils(module) -> None:
    def same_everywhere(*args, **kwargs):
        return None

    if hasattr(module, "_verify_param_shape_across_processes"):
        module._verify_param_shape_across_processes = same_everywhere


NO_VALUES = "large tensors of the host are not given their initial values: they cost address space, no memory"


def _writes_nothing(tensor) -> bool:
    import torch

    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.is_floating_point()
    return plain and tensor.device.type == "cpu" and tensor.nbytes >= LARGE


def _fills(torch) -> None:
    """Initial values of large tensors of the host: by torch.nn.init, or by the methods of a tensor."""
    parameters_only = {"fill_", "zero_", "copy_"}

    def quiet(inner, only_parameters=False):
        @functools.wraps(inner)
        def filled(tensor, *args, **kwargs):
            if _writes_nothing(tensor) and (not only_parameters or isinstance(tensor, torch.nn.Parameter)):
                note(NO_VALUES)
                return tensor
            return inner(tensor, *args, **kwargs)

        return filled

    def empty_cast(inner, dtype_of):
        """A large tensor of the host in another dtype, or once more: room for it."""

        @functools.wraps(inner)
        def cast(tensor, *args, **kwargs):
            if _writes_nothing(tensor) and not (tensor.requires_grad and torch.is_grad_enabled()):
                dtype = dtype_of(tensor, args, kwargs)
                if dtype is not None and dtype.is_floating_point:
                    note(NO_VALUES)
                    return torch.empty_like(tensor, dtype=dtype)
            return inner(tensor, *args, **kwargs)

        return cast

    def dtype_of_to(tensor, args, kwargs):
        try:
            device, dtype, *_ = torch._C._nn._parse_to(*args, **{k: v for k, v in kwargs.items() if k in ("device", "dtype", "non_blocking")})
        except (TypeError, RuntimeError):  # of another tensor's kind
            return None
        return dtype if dtype not in (None, tensor.dtype) and (device is None or device.type == "cpu") else None

    torch.Tensor.to = empty_cast(torch.Tensor.to, dtype_of_to)
    torch.Tensor.clone = empty_cast(torch.Tensor.clone, lambda tensor, args, kwargs: tensor.dtype)
    for name, dtype in {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16}.items():
        inner = getattr(torch.Tensor, name)
        setattr(torch.Tensor, name, empty_cast(inner, lambda tensor, args, kwargs, dtype=dtype: dtype if dtype != tensor.dtype else None))
    for name in ("normal_", "uniform_", "random_", "bernoulli_", "exponential_", "log_normal_", "erfinv_", *parameters_only):
        setattr(torch.Tensor, name, quiet(getattr(torch.Tensor, name), name in parameters_only))
    for name in dir(torch.nn.init):
        if name.endswith("_") and not name.startswith("_") and callable(getattr(torch.nn.init, name)):
            setattr(torch.nn.init, name, quiet(getattr(torch.nn.init, name)))
