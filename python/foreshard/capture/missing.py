"""Shapes and types of operators that PyTorch's fake tensors do not know, or know otherwise."""

from __future__ import annotations

import torch
from torch._decomp import decomposition_table, meta_table
from torch._subclasses import fake_impls


def _gru_cell(mode, func, input_gates, hidden_gates, hidden, *biases, **named):
    with mode:
        workspace = hidden.new_empty(hidden.shape[0], hidden.shape[1] * 5)
        return torch.empty_like(hidden, memory_format=torch.contiguous_format), workspace


def _wider_product(mode, func, *args, out=None, **named):
    """mm, bmm, addmm and baddbmm with `out_dtype`: the decompositions take it for the factor of the sum."""
    if out is not None:
        return out
    left, right = args[-3:-1]
    with mode:
        return left.new_empty(*left.shape[:-1], right.shape[-1], dtype=args[-1])


def _ctc_loss(mode, func, log_probs, targets, input_lengths, target_lengths, *rest, **named):
    """A loss for each row, and the table of its alphas."""
    steps, rows = log_probs.shape[0], log_probs.shape[1] if log_probs.dim() == 3 else 1
    with mode:
        return log_probs.new_empty(rows), log_probs.new_empty(rows, steps, 2 * max(target_lengths, default=0) + 1)


def _like_first(mode, func, first, *args, **named):
    with mode:
        return torch.empty_like(first, memory_format=torch.contiguous_format)


def _with_mask(mode, func, first, *args, **named):
    with mode:
        return torch.empty_like(first), torch.empty_like(first, dtype=torch.bool)


def _cross_entropy_of_targets(mode, func, input, target, weight=None, pos_weight=None, reduction=1, **named):
    """`(1 - target).mul_(input)` is where ATen begins: the loss is of the target's type, whatever wider one the input has (Loss.cpp). The
    decomposition promotes."""
    with mode:
        return torch.empty_like(target) if reduction == 0 else target.new_empty(())


_FAKES = {
    "binary_cross_entropy_with_logits.default": _cross_entropy_of_targets,
    "_sample_dirichlet.default": _like_first,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": _with_mask,
    "_thnn_fused_gru_cell.default": _gru_cell,
    "_ctc_loss.default": _ctc_loss,
    "addmm.dtype": _wider_product,
    "addmm.dtype_out": _wider_product,
    "baddbmm.dtype": _wider_product,
    "baddbmm.dtype_out": _wider_product,
    "bmm.dtype_out": _wider_product,
}


def register() -> None:
    """Once in a process; what PyTorch knows by now stays its own, what it does not have is left out."""
    for name, function in _FAKES.items():
        packet, overload = name.split(".")
        operator = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if operator is not None and operator not in fake_impls.op_implementations_dict:
            fake_impls.register_op_impl(operator)(function)
            if operator in decomposition_table:  # is asked first, but where there is a form for meta tensors
                meta_table.setdefault(operator, function)
