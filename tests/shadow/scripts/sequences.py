"""Sequences cut by hand: heads are exchanged for positions around attention (Ulysses; also by DTensors that the code makes, or a style does), or keys and
values gathered; alone, and beside layers that styles cut over tensor ranks."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_module
from torch.distributed.tensor import parallel as tp

parser = argparse.ArgumentParser()
parser.add_argument("--gather", action="store_true")
parser.add_argument("--placed", choices=["code", "style", "own style"])
parser.add_argument("--tensor", type=int, default=1)
parser.add_argument("--data", action="store_true")  # FSDP over the ranks with other sequences alone
args = parser.parse_args()
SEQ, DIM, HEADS, WORDS = 512, 256, 8, 3000
dist.init_process_group("nccl")
torch.cuda.set_device(0)
mesh = init_device_mesh("cuda", (dist.get_world_size() // 2 // args.tensor, 2, args.tensor), mesh_dim_names=("data", "sequence", "tensor"))
group, N, PLACE = mesh["sequence"].get_group(), 2, mesh["sequence"].get_local_rank()


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cut, joined):
        ctx.cut, ctx.joined = cut, joined
        sent = torch.stack(x.chunk(N, cut)).contiguous()
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent, group=group)
        return torch.cat(got.unbind(0), joined)

    @staticmethod
    def backward(ctx, g):
        return Exchange.forward(ctx, g, ctx.joined, ctx.cut), None, None


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(N)]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, 2)

    @staticmethod
    def backward(ctx, g):
        sent = torch.stack(g.chunk(N, 2)).contiguous()
        got = torch.empty_like(sent[0])
        dist.reduce_scatter_tensor(got, sent, group=group)
        return got


POSITIONS, PLACED_HEADS = Shard(2), Shard(1)


def placed(x, was, wanted):
    return DTensor.from_local(x, mesh["sequence"], [was], run_check=False).redistribute(placements=[wanted]).to_local()


class Attend(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Ulysses(tp.ParallelStyle):
    def _apply(self, module, mesh):
        def enter(module, inputs, mesh):
            return tuple(placed(each, POSITIONS, PLACED_HEADS) for each in inputs)

        return distribute_module(module, mesh, None, enter, lambda module, out, mesh: placed(out, PLACED_HEADS, POSITIONS))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Attend()
        self.norm, self.norm2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def attend(self, x):
        q, k, v = (layer(x).unflatten(-1, (-1, DIM // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if args.gather:
            return F.scaled_dot_product_attention(q, Gather.apply(k), Gather.apply(v))
        if args.placed == "code":
            return placed(self.inner(*(placed(each, POSITIONS, PLACED_HEADS) for each in (q, k, v))), PLACED_HEADS, POSITIONS)
        if args.placed:
            return self.inner(q, k, v)
        q, k, v = (Exchange.apply(each, 1, 2) for each in (q, k, v))
        return Exchange.apply(F.scaled_dot_product_attention(q, k, v, is_causal=True), 2, 1)

    def forward(self, x):
        x = x + self.o(self.attend(self.norm(x)).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.places, self.blocks = nn.Embedding(WORDS, DIM), nn.Embedding(SEQ, DIM), nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.RMSNorm(DIM), nn.Linear(DIM, WORDS, bias=False)

    def forward(self, tokens, places):
        x = self.embed(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


torch.manual_seed(0)
with torch.device("cuda"):
    model = Decoder()
for block in model.blocks if args.tensor > 1 else ():
    layers = dict.fromkeys(("q", "k", "v", "up"), tp.ColwiseParallel()) | dict.fromkeys(("o", "down"), tp.RowwiseParallel())
    tp.parallelize_module(block, mesh["tensor"], layers)
inner = tp.PrepareModuleInputOutput(
    input_layouts=(POSITIONS,) * 3, desired_input_layouts=(PLACED_HEADS,) * 3, use_local_input=True, output_layouts=PLACED_HEADS, desired_output_layouts=POSITIONS
)
for block in model.blocks if args.placed and args.placed != "code" else ():
    tp.parallelize_module(block.inner, mesh["sequence"], inner if args.placed == "style" else Ulysses())
mesh["data", "sequence"]._flatten("shared")
over = {"mesh": mesh["data" if args.data else "shared"], "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
for block in model.blocks:
    fully_shard(block, **over)
fully_shard(model, **over)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(4):
    tokens, labels = (torch.randint(0, WORDS, (2, SEQ), device="cuda") for _ in range(2))
    places = torch.arange(SEQ, device="cuda").expand(2, SEQ)
    tokens, labels, places = (each.chunk(N, 1)[PLACE].contiguous() for each in (tokens, labels, places))
    F.cross_entropy(model(tokens, places).float().flatten(0, 1), labels.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
