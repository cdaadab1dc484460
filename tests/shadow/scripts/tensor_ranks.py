"""Layers over tensor ranks without FSDP: alone, beside DDP, or sharded over a mesh of one rank."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

parser = argparse.ArgumentParser()
parser.add_argument("--plain", action="store_true")  # norms stay plain tensors
parser.add_argument("--optimizer", choices=["foreach", "fused", "for-loop", "sgd", "momentum", "default"], default="default")
parser.add_argument("--clip", action="store_true")
parser.add_argument("--tied", action="store_true")  # the head, behind the plan
parser.add_argument("--micro-batches", type=int, default=1)
parser.add_argument("--beside", choices=["", "ddp", "replicate", "one", "copies"], default="")
args = parser.parse_args()
SEQ, DIM, HEADS, WORDS = 256, 256, 4, 8000


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.q, self.k, self.v, self.o = nn.LayerNorm(DIM), *(nn.Linear(DIM, DIM) for _ in range(4))
        self.norm2, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def attend(self, x):
        q, k, v = (layer(x).unflatten(-1, (-1, DIM // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.norm(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(WORDS, DIM), nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, WORDS, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def cut(model, mesh):
    for block in model.blocks:
        if args.plain:
            plan = {name: ColwiseParallel() for name in ("q", "k", "v", "up")} | {name: RowwiseParallel() for name in ("o", "down")}
        else:
            inside = {name: ColwiseParallel(input_layouts=Shard(1)) for name in ("q", "k", "v", "up")}
            plan = inside | {name: RowwiseParallel(output_layouts=Shard(1)) for name in ("o", "down")} | {name: SequenceParallel() for name in ("norm", "norm2")}
        parallelize_module(block, mesh, plan)
    if not args.plain:
        whole = {"embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel()}
        parallelize_module(model, mesh, whole | {"head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())})


def main():
    dist.init_process_group("nccl")
    tensor = dist.get_world_size() if args.beside in ("", "one") else 2
    mesh = init_device_mesh("cuda", (dist.get_world_size() // tensor, tensor), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Decoder()
    cut(model, mesh["tensor"])
    if args.tied:
        model.head.weight = model.embed.weight
    if args.beside == "ddp":
        model = nn.parallel.DistributedDataParallel(model, device_mesh=mesh["data"])
    elif args.beside == "replicate":
        from torch.distributed._composable.replicate import replicate

        replicate(model, device_mesh=mesh["data"], bucket_cap_mb=100)
    elif args.beside == "copies":
        from torch.distributed._composable.replicate_with_fsdp import replicate

        for block in model.blocks:
            replicate(block, mesh=mesh["data"])
        replicate(model, mesh=mesh["data"])
    elif args.beside == "one":
        for block in model.blocks:
            fully_shard(block, mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])
    kinds = {"foreach": {"foreach": True}, "fused": {"fused": True}, "for-loop": {"foreach": False}, "default": {}}
    if args.optimizer in kinds:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **kinds[args.optimizer])
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9 if args.optimizer == "momentum" else 0.0)
    for _ in range(3):
        for _ in range(args.micro_batches):
            tokens = torch.randint(0, WORDS, (2, SEQ), device="cuda")
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
            loss.backward()
        if args.clip:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
