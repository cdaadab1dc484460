"""What composite operators are made of on CUDA, unwatched: which kernel scaled_dot_product_attention takes, one_hot, linear.

Fake tensors never ask the device, so PyTorch would fall back to plain matrix products. The rules are those of
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp for compute capability 8.0 and later, in PyTorch's order: flash,
memory-efficient, math. cuDNN's attention, which recent builds prefer on Hopper, keeps tensors of the same sizes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from .autocast import Casts

_HALF = (torch.float16, torch.bfloat16)


def _dense_last(*tensors: torch.Tensor) -> bool:
    return all(t.stride(-1) == 1 or t.shape[-1] == 1 for t in tensors)


def kernel_of(q, k, v, mask, dropout_p, is_causal, enable_gqa) -> str:
    """"flash", "efficient" or "math"."""
    if not (q.dim() == k.dim() == v.dim() == 4) or q.shape[2] == 0 or k.shape[2] == 0 or q.shape[0] == 0:
        return "math"
    if q.shape[0] != k.shape[0] or not _dense_last(q, k, v) or k.shape[1] != v.shape[1]:
        return "math"
    grouped = q.shape[1] != k.shape[1]
    head, value_head = q.shape[-1], v.shape[-1]
    if grouped and not enable_gqa:
        return "math"
    if (
        torch.backends.cuda.flash_sdp_enabled()
        and q.dtype in _HALF
        and mask is None
        and head == k.shape[-1] == value_head
        and head <= 256
        and not (is_causal and q.shape[2] != k.shape[2])
        and (not grouped or q.shape[1] % k.shape[1] == 0)
    ):
        return "flash"
    align = 8 if q.dtype in _HALF else 4
    if (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and not grouped
        and q.dtype in (torch.float32, *_HALF)
        and head % align == 0
        and value_head % align == 0
        and (mask is None or _dense_last(mask))
    ):
        return "efficient"
    return "math"


_PLAIN = F.scaled_dot_product_attention


_ONE_HOT, _LINEAR = F.one_hot, F.linear
_LIST, _TENSOR = FakeTensor.tolist, torch.tensor


class CudaComposites(TorchFunctionMode):
    """Runs scaled_dot_product_attention as the composite operator does after it has chosen `kernel_of`, and the others.

    `fake`: of fake tensors; on a card all but linear and torch.tensor are what they are.

    A mode for who has taken the function's name already; the name itself for PyTorch's own functions
    (multi_head_attention_forward), inside which no mode is asked.
    """

    def __init__(self, fake: bool, casts: Casts):
        super().__init__()
        self._casts = casts
        self._own = {_LINEAR: linear, _TENSOR: written_down} | ({_PLAIN: attend, _ONE_HOT: one_hot} if fake else {})

    def __enter__(self):
        F.linear, FakeTensor.tolist = linear, listed
        F.scaled_dot_product_attention = self._own.get(_PLAIN, _PLAIN)
        return super().__enter__()

    def __exit__(self, *raised):
        F.linear, F.scaled_dot_product_attention, FakeTensor.tolist = _LINEAR, _PLAIN, _LIST
        return super().__exit__(*raised)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return self._casts.call(self._own.get(func, func), args, kwargs or {})


def linear(input, weight, bias=None):
    """PyTorch adds the bias in place where the input is not contiguous, but for a new tensor where a mode watches."""
    if bias is None or input.dim() == 2 or input.device.type != "cuda" or input.is_contiguous():
        return _LINEAR(input, weight, bias)
    return torch.matmul(input, weight.t()).add_(bias)


def written_down(data, *, device=None, requires_grad=False, pin_memory=False, **rest):
    """`torch.tensor(...)` on the device copies it there out of sight: here the copy is seen, and what it copies."""
    if device is None or torch.device(device).type == "cpu" or isinstance(data, torch.Tensor):
        return _TENSOR(data, device=device, requires_grad=requires_grad, pin_memory=pin_memory, **rest)
    return _TENSOR(data, device="cpu", **rest).to(device).requires_grad_(requires_grad)


def listed(tensor):
    """Fake tensors read one element after the other, a card's are copied at once."""
    copy = tensor.cpu()
    return _LIST(copy) if isinstance(copy, FakeTensor) else copy.tolist()


def one_hot(tensor, num_classes=-1):
    """Fake tensors compare with a range, since a compiler likes that better."""
    if tensor.device.type != "cuda" or num_classes < 0:
        return _ONE_HOT(tensor, num_classes)
    hot = torch.zeros(*tensor.shape, num_classes, dtype=torch.int64, device=tensor.device)
    return hot.scatter_(-1, tensor.unsqueeze(-1), 1)


def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    if query.device.type != "cuda":
        return _PLAIN(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if torch.is_autocast_enabled("cuda"):  # scaled_dot_product_attention is on its list; what it is made of runs below
        attn_mask, value, key, query = (_narrowed(t) for t in (attn_mask, value, key, query))
        with torch.autocast("cuda", enabled=False):
            return attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    chosen = kernel_of(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    if chosen == "flash":
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if chosen == "efficient":
        return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _narrowed(tensor):
    casts = tensor is not None and tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.to(torch.get_autocast_dtype("cuda")) if casts else tensor


def _flash(query, key, value, dropout_p, is_causal, scale):
    head = query.shape[-1]
    scale = 1.0 / math.sqrt(head) if scale is None else scale
    if head % 8:
        query, key, value = (F.pad(t, (0, 8 - head % 8)) for t in (query, key, value))
    out = torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )
    return out[0][..., :head] if head % 8 else out[0]


def _efficient(query, key, value, mask, dropout_p, is_causal, scale):
    if mask is not None:
        if mask.dtype == torch.bool:  # convert_boolean_attn_mask
            mask = torch.where(mask, 0.0, torch.scalar_tensor(-math.inf, dtype=query.dtype, device=mask.device))
        columns = mask.shape[-1]
        *steps, last = mask.stride()
        if last != 1 or any(step % 8 for step in steps):  # preprocess_mask: rows begin at aligned addresses, or are made to
            mask = F.pad(mask, (0, 8 - columns % 8))[..., :columns]
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    out = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, wanted, dropout_p, is_causal, scale=scale
    )
    return out[0]
