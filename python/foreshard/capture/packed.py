"""Rows of several lengths, packed or before CTC: how long each is, the host knows, or it counts as full."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .errors import CaptureError
from .known import KnownValues
from .values import host_values


class PackPaddedSequence(torch.autograd.Function):
    """ATen's, whose own fake form there is none of. Captured as one opaque operator."""

    @staticmethod
    def forward(ctx, padded, runs, batch_first):
        ctx.runs, ctx.batch_first, ctx.shape = runs, batch_first, padded.shape
        steps = padded.transpose(0, 1) if batch_first else padded
        parts = [steps[begin:end, :rows].contiguous().view(-1, *steps.shape[2:]) for begin, end, rows in runs]
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        shape = (ctx.shape[1], ctx.shape[0], *ctx.shape[2:]) if ctx.batch_first else ctx.shape
        padded = gradient.new_zeros(shape)
        return padded.transpose(0, 1) if ctx.batch_first else padded, None, None


def runs_of(lengths: list[int]) -> list[tuple[int, int, int]]:
    """(first step, end, rows) of steps that as many rows have. REQUIRES falling lengths."""
    runs, begin = [], 0
    for rows in range(len(lengths), 0, -1):
        if lengths[rows - 1] > begin:
            runs.append((begin, lengths[rows - 1], rows))
            begin = lengths[rows - 1]
    return runs


def _on_host(numbers: list[int]) -> torch.Tensor:
    with _disable_current_modes():
        return torch.tensor(numbers, dtype=torch.int64, device="cpu")


def _told(notes: list[str], what: str) -> None:
    told = f"{what}: the lengths have no values here, every row counts as full (give them on the CPU)"
    if told not in notes:
        notes.append(told)


def _numbers(known: KnownValues, tensor: torch.Tensor) -> Any:
    """What is in a tensor, as a list; None: nobody knows."""
    values = known.of(tensor)
    return host_values(tensor if values is None else values)


def _ctc_of_lists(notes: list[str], values: KnownValues) -> Any:
    """torch.ctc_loss as LossCTC.cpp has it on a GPU without cuDNN: both lengths are read on the host; fake tensors cannot be filled with them."""

    def lengths(given: Any, full: int, rows: int) -> list[int]:
        known = _numbers(values, given) if isinstance(given, torch.Tensor) else list(given)
        if known is None:
            _told(notes, "ctc_loss")
        return [full] * rows if known is None else [known] if isinstance(known, int) else known

    def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction=1, zero_infinity=False):
        chances = log_probs if log_probs.dim() == 3 else log_probs.unsqueeze(1)
        rows = chances.shape[1]
        full = targets.shape[1] if targets.dim() == 2 else targets.shape[0] // rows
        seen, said = lengths(input_lengths, chances.shape[0], rows), lengths(target_lengths, full, rows)
        loss, _ = torch._ctc_loss(chances, targets.to(chances.device, torch.long), seen, said, blank, zero_infinity)
        if zero_infinity:
            loss = torch.where(loss == float("inf"), loss.new_zeros(()), loss)
        if reduction == 1:
            return (loss / loss.new_empty(rows).clamp_min(1)).mean()
        return loss.sum() if reduction == 2 else loss if log_probs.dim() == 3 else loss.squeeze(0)

    return ctc_loss


@contextlib.contextmanager
def planned(notes: list[str], values: KnownValues):
    """While it lasts sequences are packed and padded by what the host knows; `notes` gets a sentence where it knows nothing."""

    def pack(padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
        steps = padded.shape[1 if batch_first else 0]
        known = _numbers(values, lengths)
        if known is None:
            _told(notes, "packed sequences")
            known = [steps] * padded.shape[0 if batch_first else 1]
        if any(a < b for a, b in zip(known, known[1:])):
            raise RuntimeError("`lengths` array must be sorted in decreasing order when `enforce_sorted` is True.")
        runs = runs_of(known)
        return PackPaddedSequence.apply(padded, runs, batch_first), _on_host([n for a, b, n in runs for _ in range(a, b)])

    def pad(data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, value: Any, total: int) -> tuple[torch.Tensor, torch.Tensor]:
        sizes = _numbers(values, batch_sizes)
        if sizes is None:
            raise CaptureError(
                "packed sequences are given whose batch sizes have no values here",
                expected="batch_sizes on the CPU beside tensors on meta",
                hint="pack inside the module, or give the other tensors on meta",
            )
        lengths = [sum(n > row for n in sizes) for row in range(sizes[0])]
        padded = torch.full((max(total, len(sizes)), sizes[0], *data.shape[1:]), value, dtype=data.dtype, device=data.device)
        offset = 0
        for begin, end, rows in runs_of(lengths):
            part = data[offset : offset + rows * (end - begin)]
            padded[begin:end, :rows].copy_(part.view(end - begin, rows, *data.shape[1:]))
            offset += rows * (end - begin)
        return padded.transpose(0, 1) if batch_first else padded, _on_host(lengths)

    vf = torch._VF
    vf._pack_padded_sequence, vf._pad_packed_sequence = pack, pad
    ctc = torch.ctc_loss
    torch.ctc_loss = _ctc_of_lists(notes, values)
    try:
        yield
    finally:
        torch.ctc_loss = ctc
        del vf._pack_padded_sequence, vf._pad_packed_sequence
