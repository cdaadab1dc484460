"""Small models in the styles that users write them, each with its batch and the forward of its training script.

A `Case` is made on any device; the same `forward` is what capture sees and what the recorder of truths trains.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
from dataclasses import dataclass, field
from typing import Any, Callable

import torch

CASES: dict[str, "Case"] = {}


@dataclass
class Case:
    make: Callable[[], torch.nn.Module]
    batch: Callable[[Any], tuple]  # of a device
    forward: Callable[..., torch.Tensor]  # (module, *batch) -> loss, or (loss, what the script holds beside it)
    wrap: list[str]  # classes of FSDP units
    options: dict[str, Any] = field(default_factory=dict)  # "orig_params": FSDP1 with use_orig_params; "inner": gradients inside of forward


def case(name: str, wrap: list[str], **options: Any):
    """Registers make, batch and forward of a class as a case."""

    def register(cls):
        CASES[name] = Case(cls.make, cls.batch, cls.forward, wrap, options)
        return cls

    return register


def ids(vocabulary: int, *shape: int, device) -> torch.Tensor:
    return torch.randint(0, vocabulary, shape, device=device)


def load() -> dict[str, Case]:
    from . import archivists, composers, corners, decoders, drafts, experts, further, images, inventors, latecomers, learners, makers, mechanics, meshed, moderns, newcomers, others, outsiders, penalties, potters, recurrent, sequences, spaces, strangers, surveyors, tinkerers, toolbox, trainings, visitors, weavers  # noqa: F401 - they register

    return CASES


@contextlib.contextmanager
def among_ranks(case: Case):
    """For cases that meet other ranks themselves ("ranks"): a group that moves nothing, while they are captured."""
    if not (ranks := case.options.get("ranks")):
        yield
        return
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def compared() -> set[str]:
    """Names of cases with rows of PyTorch's own runs (data/truth.jsonl.gz)."""
    with gzip.open(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "truth.jsonl.gz"), "rt") as rows:
        return {json.loads(row)["id"].split("-")[0] for row in rows if row.strip()}


def training_step(case: Case):
    """step(module, *batch) for capture_step: what the training loop below does."""

    def step(module, *batch):
        out = case.forward(module, *batch)
        loss = out[0] if isinstance(out, tuple) else out
        loss.backward()

    return step


class NamedStep:
    """`training_step` of a case by its name: it can be sent to another process."""

    def __init__(self, name: str):
        self.name = name

    def __call__(self, module, *batch):
        training_step(load()[self.name])(module, *batch)
