#!/usr/bin/env python3
"""Tensor parallelism without FSDP, on two CPU ranks beside one process: what clipping and momentum do to norms on a cut sequence.

    terms_alone.py

Prints by how much of the largest one parameters' updates are off after four steps, and of clipping the gradients. Norms' gradients stay Partial
DTensors; list operators scale a sum of them that nobody keeps (trap 58).
"""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

WORDS, DIM = 16, 8


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.up, self.down = nn.Embedding(WORDS, DIM), nn.LayerNorm(DIM), nn.Linear(DIM, 16), nn.Linear(16, DIM)
        self.last, self.head = nn.RMSNorm(DIM), nn.Linear(DIM, WORDS, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.down(torch.relu(self.up(self.norm(x))))
        return self.head(self.last(x))


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def trained(model, foreach, momentum, clip):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, foreach=foreach)
    torch.manual_seed(1)
    for _ in range(4):
        logits = model(torch.randint(0, WORDS, (2, 4)))
        (logits.logsumexp(-1).mean() - 5 * logits[..., 0].mean()).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        gradients = {name: whole(each.grad) for name, each in model.named_parameters()}
        optimizer.zero_grad()
    return gradients, {name: whole(each) for name, each in model.named_parameters()}


def made():
    torch.manual_seed(0)
    return Model()


def on_ranks(rank, store, settings):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for foreach, momentum, clip in settings:
        begun, model = made().state_dict(), made()
        plan = {"embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel(), "last": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel(output_layouts=Shard(1)),
                "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())}  # fmt: skip
        gradients, values = trained(parallelize_module(model, mesh, plan), foreach, momentum, clip)
        alone, right = trained(made(), foreach, momentum, clip)
        if rank == 0:
            off = {name: float((values[name] - right[name]).abs().max() / (right[name] - begun[name]).abs().max()) for name in right}
            larger = {name: float(gradients[name].norm() / alone[name].norm()) for name in right} if clip else {}
            print(f"foreach {foreach}, momentum {momentum}, clip {clip}")
            for name, each in off.items():
                print(f"  {name:12} update off {100 * each:8.2f} %" + (f", gradient x {larger[name]:.1f}" if clip else ""))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(on_ranks, (os.path.join(folder, "store"), [(True, 0.0, 0), (True, 0.9, 0), (False, 0.9, 0), (True, 0.0, 0.05)]), nprocs=2)
