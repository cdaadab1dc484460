"""FlexAttention as the fused kernel that torch.compile makes of it: uncompiled it would hold every score."""

from __future__ import annotations

import contextlib
import importlib

import torch


class FlexAttention(torch.autograd.Function):
    """Keeps its operands, its result and a float32 number a row and head. Captured as one opaque operator."""

    @staticmethod
    def forward(ctx, query, key, value):
        shape = (*query.shape[:-1], value.shape[-1])
        # The result lies in memory as the query does.
        order = sorted(range(4), key=lambda i: (query.stride(i), query.shape[i]), reverse=True)
        out = query.new_empty([shape[i] for i in order]).permute([order.index(i) for i in range(4)])
        sums = query.new_empty(shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, sums)
        return out, sums

    @staticmethod
    def backward(ctx, *gradients):
        return tuple(torch.empty_like(each) for each in ctx.saved_tensors[:3])


def attend(query, key, value) -> tuple:
    """In the place of flex_attention_hop: the result, and twice the numbers of rows, as it hands on sums and maxima."""
    out, sums = FlexAttention.apply(query, key, value)
    return out, sums, sums


@contextlib.contextmanager
def fused(notes: list[str]):
    """While it lasts flex_attention is that; `notes` gets a sentence when it is called."""
    try:
        module = importlib.import_module("torch.nn.attention.flex_attention")
        original = module.flex_attention_hop
    except (ImportError, AttributeError):
        yield
        return

    def hop(query, key, value, *rest, **named):
        told = "flex_attention: planned as the kernel that torch.compile makes of it; uncompiled it holds every score"
        if told not in notes:
            notes.append(told)
        return attend(query, key, value)

    module.flex_attention_hop = hop
    try:
        yield
    finally:
        module.flex_attention_hop = original
