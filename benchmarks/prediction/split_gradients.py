#!/usr/bin/env python3
"""torchtitan's experts on its tensor ranks: their gradients on two CPU ranks beside one process.

    split_gradients.py TORCHTITAN [BATCH...]

TORCHTITAN: a checkout of 0.2.2. For each batch, and for tokens that the ranks split (experts on ranks of their own) or share (every expert's matrices cut),
prints by how much of the largest one the gradients of the layer's input and of its parameters are off on each rank.
"""
import functools
import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SEQ, WIDTH = 8, 16


def made():
    from torchtitan.models.moe.moe import MoE, MoEArgs

    torch.manual_seed(0)
    layer = MoE(MoEArgs(num_experts=4, num_shared_experts=1, top_k=2, use_grouped_mm=False, load_balance_coeff=None), dim=WIDTH, hidden_dim=2 * WIDTH)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return layer


def over_ranks(layer, split):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInputOutput, RowwiseParallel, parallelize_module
    from torchtitan.distributed import NoParallel
    from torchtitan.distributed.expert_parallel import ExpertParallel, ReordererSequenceParallel, TensorParallel

    tensor, experts = (init_device_mesh("cpu", (2,), mesh_dim_names=(name,)) for name in ("tp", "ep"))
    block = torch.nn.Module()
    block.moe = layer
    plan = {  # apply_moe_ep_tp of torchtitan/models/llama4/infra/parallelize.py
        "moe": PrepareModuleInputOutput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_input=True, output_layouts=(Partial(),), desired_output_layouts=(Shard(1),)
        ),
        "moe.router.gate": NoParallel(),
        "moe.shared_experts.w1": ColwiseParallel(), "moe.shared_experts.w2": RowwiseParallel(output_layouts=Partial()), "moe.shared_experts.w3": ColwiseParallel(),
    }  # fmt: skip
    if split:
        plan["moe.reorderer"] = ReordererSequenceParallel()
    parallelize_module(block, tensor, plan)
    parallelize_module(layer.experts, experts if split else tensor, ExpertParallel() if split else TensorParallel())


def off(one, other):
    return ((one - other).abs().max() / other.abs().max()).item()


def run(rank, titan, batch, split, port):
    sys.path.insert(0, titan)
    import torchtitan.models.moe.utils as utils
    from torch.distributed.tensor import DTensor

    utils.generate_permute_indices = functools.partial(utils.generate_permute_indices, use_cpu=True)
    counted = torch.histc
    torch.histc = lambda x, **options: counted(x.float(), **options).to(x.dtype)  # the host has none of whole numbers
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    whole, layer = made(), made()
    torch.manual_seed(1)
    x, weights = torch.randn(batch, SEQ, WIDTH, requires_grad=True), torch.randn(batch, SEQ, WIDTH)
    (whole(x) * weights).sum().backward()
    over_ranks(layer, split)
    own = x.detach().chunk(2, 1)[rank].clone().requires_grad_()
    out = layer(own)
    out = out.to_local() if isinstance(out, DTensor) else out
    (out * weights.chunk(2, 1)[rank]).sum().backward()
    figures = {"input": off(own.grad, x.grad.chunk(2, 1)[rank])}
    for (name, mine), (_, theirs) in zip(layer.named_parameters(), whole.named_parameters()):
        grad = mine.grad.full_tensor() if isinstance(mine.grad, DTensor) else mine.grad
        figures[name] = off(grad, theirs.grad)
    print(f"batch {batch}, tokens {'split' if split else 'shared'}, rank {rank}: " + ", ".join(f"{name} {100 * value:.0f} %" for name, value in figures.items()), flush=True)
    dist.destroy_process_group()


def main():
    titan, *batches = sys.argv[1:]
    for batch in map(int, batches or ["1", "2"]):
        for split in (True, False):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            mp.spawn(run, args=(os.path.abspath(titan), batch, split, port), nprocs=2)


if __name__ == "__main__":
    main()
