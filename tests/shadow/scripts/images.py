"""A vision transformer over tensor ranks: whole on the device before it is cut, images that a function makes for its loss and lets go of."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import parallel as tp

parser = argparse.ArgumentParser()
parser.add_argument("--edges", action="store_true", help="what stands around the blocks is cut first")
parser.add_argument("--alone", action="store_true", help="nothing shards")
parser.add_argument("--keeps", action="store_true", help="a list has every step's mean image")
parser.add_argument("--host", action="store_true", help="made on the host")
words = parser.parse_args()
DIM, HEADS, CLASSES = 256, 8, 20000
dist.init_process_group("nccl")
torch.cuda.set_device(0)
mesh = init_device_mesh("cuda", (1, 8) if words.alone else (4, 2), mesh_dim_names=("data", "tensor"))
tensor = mesh["tensor"]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        normed = self.norm(x)
        q, k, v = (layer(normed).unflatten(-1, (-1, DIM // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.blocks = nn.Conv2d(3, DIM, 16, 16), nn.Sequential(*(Block() for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, CLASSES)

    def forward(self, images):
        return self.head(self.norm(self.blocks(self.patch(images).flatten(2).transpose(1, 2))).mean(1))


def cut_blocks(model):
    for block in model.blocks:
        columns, rows = ("q", "k", "v", "up"), ("o", "down")
        tp.parallelize_module(block, tensor, {name: tp.ColwiseParallel() for name in columns} | {name: tp.RowwiseParallel() for name in rows})


torch.manual_seed(0)
with torch.device("cpu" if words.host else "cuda"):
    model = Net()
for cut in (1, 0) if words.edges else (0, 1):
    if cut:
        tp.parallelize_module(model, tensor, {"head": tp.ColwiseParallel(output_layouts=tp.style.Replicate())})
    else:
        cut_blocks(model)
if not words.alone:
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"], mp_policy=half)
    fully_shard(model, mesh=mesh["data"], mp_policy=half)
kept = []
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=not words.alone)


def loss():
    images, labels = torch.randn(8, 3, 224, 224, device="cuda"), torch.randint(0, CLASSES, (8,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled=words.alone):
        return F.cross_entropy(model(images), labels)


for _ in range(4):
    loss().backward()
    if words.keeps:
        kept.append(torch.zeros(3, 224, 224, device="cuda"))
    optimizer.step()
    optimizer.zero_grad()
