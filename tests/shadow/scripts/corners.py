"""Decoders over tensor ranks whose code goes its own way in one place: a table of positions along the sequence, a teacher without gradients,
a fused projection by heads, experts that all see all tokens and are summed from zeros on."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor import parallel as tp

parser = argparse.ArgumentParser()
parser.add_argument("way", choices=["positions", "teacher", "fused", "summed"])
way = parser.parse_args().way
SEQ, DIM, HEADS, WORDS = 256, 256, 8, 3000
dist.init_process_group("nccl")
torch.cuda.set_device(0)
mesh = init_device_mesh("cuda", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
along = way in ("positions", "summed")
whole, part = Replicate(), Shard(1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = HEADS // 2 if way == "fused" else HEADS
        if way == "fused":
            self.qkv = nn.Linear(DIM, 3 * DIM)
        else:
            self.q, self.k, self.v = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.o = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        if way == "fused":
            q, k, v = self.qkv(x).reshape(batch, length, 3, self.heads, DIM // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            q, k, v = (layer(x).unflatten(-1, (-1, DIM // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(DIM, 4, bias=False), nn.ModuleList(Gated() for _ in range(4))

    def forward(self, x):
        weights, out = F.softmax(self.router(x), -1), torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            out = out + expert(x) * weights[..., i : i + 1]
        return out


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 2 * DIM, bias=False), nn.Linear(2 * DIM, DIM, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention, self.norm2, self.mlp = nn.RMSNorm(DIM), Attention(), nn.RMSNorm(DIM), Experts() if way == "summed" else Gated()

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.places, self.blocks = nn.Embedding(WORDS, DIM), nn.Embedding(SEQ, DIM), nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.RMSNorm(DIM), nn.Linear(DIM, WORDS, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        if way == "positions":
            x = x + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def made():
    with torch.device("cuda"):
        model = Decoder()
    layouts = {"output_layouts": part} if along else {}
    for block in model.blocks:
        plan = {f"attention.{name}": tp.ColwiseParallel() for name in ("q", "k", "v", "qkv") if hasattr(block.attention, name)}
        plan |= {"attention.o": tp.RowwiseParallel(**layouts)}
        if along:
            plan |= {name: tp.SequenceParallel() for name in ("norm", "norm2")}
            plan["attention"] = tp.PrepareModuleInput(input_layouts=(part,), desired_input_layouts=(whole,))
        if way == "summed":
            plan |= {"mlp.experts.*.up": tp.ColwiseParallel(), "mlp.experts.*.down": tp.RowwiseParallel(output_layouts=Partial())}
            plan["mlp"] = tp.PrepareModuleInputOutput(
                input_layouts=(part,), desired_input_layouts=(whole,), use_local_input=True, output_layouts=(Partial(),), desired_output_layouts=(part,)
            )
        else:
            plan |= {"mlp.up": tp.ColwiseParallel(input_layouts=part if along else whole), "mlp.down": tp.RowwiseParallel(**layouts)}
        tp.parallelize_module(block, mesh["tensor"], plan)
    top = {"embed": tp.RowwiseParallel(input_layouts=whole, output_layouts=part if along else whole)}
    top["head"] = tp.ColwiseParallel(input_layouts=part if along else whole, output_layouts=whole)
    if along:
        top["norm"] = tp.SequenceParallel()
    if way == "positions":
        top["places"] = tp.RowwiseParallel(input_layouts=whole, output_layouts=Shard(0))
    tp.parallelize_module(model, mesh["tensor"], top)
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh["data"], mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    return model


torch.manual_seed(0)
model = made()
teacher = made().requires_grad_(False).eval() if way == "teacher" else None
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(4):
    tokens, labels = (torch.randint(0, WORDS, (2, SEQ), device="cuda") for _ in range(2))
    logits = model(tokens)
    if teacher is None:
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
    else:
        with torch.no_grad():
            wanted = teacher(tokens)
        loss = F.kl_div(F.log_softmax(logits.float(), -1), F.softmax(wanted.float(), -1), reduction="batchmean")
    loss.backward()
    del logits, loss
    optimizer.step()
    optimizer.zero_grad()
