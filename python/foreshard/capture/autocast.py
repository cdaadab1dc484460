"""`torch.autocast("cuda")` switches itself off where PyTorch sees no GPU; the tensors that are captured are a GPU's."""

from __future__ import annotations

import contextlib

import torch


@contextlib.contextmanager
def of_a_gpu():
    """Autocast that is constructed within works on fake tensors of a GPU as on one."""
    if torch.cuda.is_available():
        yield
        return
    common = torch.cuda.amp.common
    absent, bf16 = common.amp_definitely_not_available, torch.cuda.is_bf16_supported
    common.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda including_emulation=True: True
    try:
        yield
    finally:
        common.amp_definitely_not_available, torch.cuda.is_bf16_supported = absent, bf16
