"""Decoders whose layers lie over tensor ranks in ways of their own: one flag each."""

import argparse
import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor import parallel as tp

parser = argparse.ArgumentParser()
parser.add_argument("way", choices=["told", "keys", "tied", "inner", "table", "fsdp1", "silent", "hand", "rows", "width", "edges", "own", "sliced"])
way = parser.parse_args().way
SEQ, DIM, HEADS, WIDTH, WORDS = 256, 256, 8, 32, 4000
dist.init_process_group("nccl")
torch.cuda.set_device(0)
mesh = init_device_mesh("cuda", (dist.get_world_size() // 4, 4), mesh_dim_names=("data", "tensor"))
tensor = mesh["tensor"]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.keys = 2 if way == "keys" else HEADS  # two heads of keys for four ranks: each has both, and takes the one of its queries
        self.heads = HEADS // tensor.size()  # of a rank
        self.q, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(DIM, self.keys * WIDTH, bias=False) for _ in range(2))

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (-1, WIDTH)) for layer in (self.q, self.k, self.v))
        if way == "told":
            batch, length, _ = x.shape
            q, k, v = (each.reshape(batch, length, self.heads, WIDTH) for each in (q, k, v))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        if way == "keys":
            first, own = tensor.get_local_rank() * 2 // tensor.size(), q.shape[1]
            k, v = (each[:, first : first + 1].expand(-1, own, -1, -1) for each in (k, v))
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.o(made.reshape(*x.shape[:2], self.heads * WIDTH) if way == "told" else made.flatten(2))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(3 * DIM, DIM, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention, self.norm2, self.gated = nn.RMSNorm(DIM), Attention(), nn.RMSNorm(DIM), Gated()

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.gated(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(WORDS, DIM), nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.RMSNorm(DIM), nn.Linear(DIM, WORDS, bias=False)
        self.scale = nn.Parameter(torch.ones(DIM))

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Silent(tp.ParallelStyle):
    """Whole weights as DTensors; its hooks close over nothing."""

    def _apply(self, module, mesh):
        def enter(module, inputs, mesh):
            return (DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False),)

        return distribute_module(module, mesh, None, enter, lambda module, output, mesh: output.to_local())


def cut(model):
    whole, part = Replicate(), Shard(1)
    columns, rows = tp.ColwiseParallel, tp.RowwiseParallel
    for block in model.blocks:
        names = ["q"] if way == "keys" else ["q", "k", "v"]
        plan = {f"attention.{name}": columns() for name in names} | {"attention.o": rows(), "gated.gate": columns(), "gated.up": columns(), "gated.down": rows()}
        if way == "inner":  # the feed-forward's input is one DTensor for both of its layers
            plan = {f"attention.{name}": columns(input_layouts=part) for name in names} | {"attention.o": rows(output_layouts=part)}
            plan |= {"norm": tp.SequenceParallel(), "norm2": tp.SequenceParallel(), "gated.gate": columns(), "gated.up": columns()}
            plan["gated.down"] = rows(output_layouts=Partial())
            plan["gated"] = tp.PrepareModuleInputOutput(
                input_layouts=(part,), desired_input_layouts=(whole,), output_layouts=(Partial(),), desired_output_layouts=(part,)
            )
        if way == "edges":  # the first block cuts along the sequence, the last one gathers; layers of a gathered local tensor
            plan = {f"attention.{name}": columns(input_layouts=part) for name in names} | {"attention.o": rows(output_layouts=part)}
            plan |= {"norm": tp.SequenceParallel(), "norm2": tp.SequenceParallel(), "gated.gate": columns(), "gated.up": columns()}
            plan |= {"gated": tp.PrepareModuleInput(input_layouts=(part,), desired_input_layouts=(whole,), use_local_output=True)}
            plan["gated.down"] = rows(output_layouts=part)
        if way == "own":  # each rank has rows of its own, which these layers gather
            plan = {f"gated.{name}": columns(input_layouts=Shard(0)) for name in ("gate", "up")} | {"gated.down": rows(output_layouts=Shard(0))}
        if way == "sliced":  # gathered projections, whose own code may slice them, beside logits that stay cut
            plan |= {"gated.gate": columns(output_layouts=whole), "gated.up": columns(output_layouts=whole), "gated.down": rows(input_layouts=whole)}
        if way == "width":
            plan["gated.down"] = rows(output_layouts=Shard(-1))
            plan["gated"] = tp.PrepareModuleOutput(output_layouts=(Shard(-1),), desired_output_layouts=(whole,))
        tp.parallelize_module(block, tensor, plan)
    if way == "inner":
        tp.parallelize_module(model, tensor, {"embed": rows(input_layouts=whole, output_layouts=part), "norm": tp.SequenceParallel()})
        tp.parallelize_module(model, tensor, {"head": columns(input_layouts=part, output_layouts=whole)})
    for block in model.blocks if way == "silent" else ():
        tp.parallelize_module(block, tensor, {"norm": Silent(), "norm2": Silent()})
    if way == "edges":
        cuts = tp.PrepareModuleInput(input_layouts=(whole,), desired_input_layouts=(part,), use_local_output=True)
        tp.parallelize_module(model, tensor, {"blocks.0": cuts, "head": columns(output_layouts=whole)})
        tp.parallelize_module(model, tensor, {"blocks.2": tp.PrepareModuleOutput(output_layouts=(part,), desired_output_layouts=(whole,))})
    if way == "rows":  # each rank brings rows of its own
        tp.parallelize_module(model, tensor, {"head": columns(input_layouts=Shard(0), output_layouts=Shard(0))})
    if way == "sliced":
        tp.parallelize_module(model, tensor, {"head": columns(use_local_output=False)})
    if way == "table":  # the loss gathers the logits
        tp.parallelize_module(model, tensor, {"embed": columns(output_layouts=whole), "head": columns(use_local_output=False)})
    if way == "tied":
        tp.parallelize_module(model, tensor, {"embed": rows(input_layouts=whole), "head": columns(output_layouts=whole)})
        model.head.weight = model.embed.weight
    if way == "hand":
        model.scale = nn.Parameter(distribute_tensor(model.scale.detach(), tensor, [Shard(0)]))


torch.manual_seed(0)
with torch.device("cuda"):
    model = Decoder()
cut(model)
if way == "fsdp1":
    model = FullyShardedDataParallel(model, device_mesh=mesh["data"], use_orig_params=True, auto_wrap_policy=ModuleWrapPolicy({Block}))
else:
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"], mp_policy=half)
    fully_shard(model, mesh=mesh["data"], mp_policy=half)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(4):
    tokens, labels = (torch.randint(0, WORDS, (2, SEQ), device="cuda") for _ in range(2))
    logits = model(tokens)
    logits = logits.full_tensor() if isinstance(logits, DTensor) and way != "sliced" else logits
    with tp.loss_parallel() if way == "sliced" else contextlib.nullcontext():
        F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()).backward()
    del logits
    optimizer.step()
    optimizer.zero_grad()
