"""A decoder in micro-batches with what FSDP2's units can be told of a backward, one flag each."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--micro-batches", type=int, default=3)
for name in ("hybrid", "no-embedding", "last", "all-reduce", "keep", "sum", "divide", "hold", "hold-head", "reduce-all-last", "half", "keep-forward", "async-op"):
    parser.add_argument(f"--{name}", action="store_true")
args = parser.parse_args()
DIM, WORDS = 512, 16384


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(WORDS, DIM), nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(DIM, WORDS, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


dist.init_process_group("nccl")
torch.cuda.set_device(0)
model = Model().cuda()
world = dist.get_world_size()
mesh = init_device_mesh("cuda", (2, world // 2) if args.hybrid else (world,), mesh_dim_names=("replica", "shard") if args.hybrid else None)
options = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float16 if args.half else torch.float32)}
units = [model.embed, *model.blocks, model.head]
for unit in units:
    fully_shard(unit, **options, reshard_after_forward=unit is not model.head)
fully_shard(model, **options)
if args.no_embedding:
    model.embed.set_unshard_in_backward(False)
for unit in units:
    if args.sum:
        unit.set_force_sum_reduction_for_comms(True)
    if args.divide:
        unit.set_gradient_divide_factor(24.0)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(4):
    for batch in range(args.micro_batches):
        last = batch == args.micro_batches - 1
        if args.last:
            model.set_is_last_backward(last)
        if args.all_reduce:
            model.set_requires_all_reduce(last)
        if args.keep:
            model.set_reshard_after_backward(last)
        if args.keep_forward:
            model.set_reshard_after_forward(last)
        if args.async_op:
            model._set_unshard_async_op(True)
        if args.hold:
            model.set_requires_gradient_sync(last)
        if args.hold_head:
            model.head.set_requires_gradient_sync(last)
        if args.reduce_all_last:  # reduce-scatters from the second on, all-reduces with the last
            model.set_requires_gradient_sync(batch > 0)
            model.set_requires_all_reduce(last)
        tokens, labels = torch.randint(0, WORDS, (4, 512), device="cuda"), torch.randint(0, WORDS, (2048,), device="cuda")
        F.cross_entropy(model(tokens).flatten(0, 1).float(), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
