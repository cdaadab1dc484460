"""What trainers put around a model, in one loop: trainers.py WORD...

weight: the head's matrix is used in the loss. module: the loss is a module that adds its terms up in place.
before: so does a tensor from before the forward. table: a table that an object of the module keeps by device and length. unit: the head is a unit that
the loss calls behind the root. segments: the allocator's segments grow. flex: a layer of FlexAttention; compiled: by torch.compile."""
import collections
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

WORDS, WIDTH, LENGTH, CLASSES = set(sys.argv[1:]), 256, 512, 8192
BEHIND = WORDS & {"weight", "unit"}


class Attention(nn.Module):
    def forward(self, x):
        from torch.nn.attention.flex_attention import flex_attention

        attend = torch.compile(flex_attention) if "compiled" in WORDS else flex_attention
        heads = x.unflatten(-1, (32, -1)).transpose(1, 2)
        return x + attend(heads, heads, heads).transpose(1, 2).flatten(-2)


class Table:
    def __init__(self):
        self.by_device = collections.defaultdict(dict)

    def __call__(self, x):
        lengths = self.by_device[x.device.index]
        if LENGTH not in lengths:
            lengths[LENGTH] = torch.randn(1, LENGTH * WIDTH, device=x.device).view(LENGTH, WIDTH)
        return x * lengths[LENGTH].to(x.dtype)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(CLASSES, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(4))
        self.attention = Attention() if "flex" in WORDS else nn.Identity()
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        self.table = Table()

    def forward(self, ids):
        x = self.words(ids)
        if "table" in WORDS:
            x = self.table(x)
        x = self.attention(x)
        for block in self.blocks:
            x = x + block(x)
        return x if BEHIND else self.head(x)


class Loss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.head = model.head if "unit" in WORDS else None

    def forward(self, x, labels):
        total = torch.tensor(0.0, device=labels.device)
        for part, wanted in zip(x.flatten(0, 1).tensor_split(4), labels.flatten().tensor_split(4)):
            logits = self.head(part) if self.head is not None else part
            total += F.cross_entropy(logits.float(), wanted, reduction="sum")
        return total / labels.numel()


def loss_of(model, module, total, x, labels):
    if "weight" in WORDS:
        return F.cross_entropy(F.linear(x, model.head.weight).flatten(0, 1).float(), labels.flatten()) + 0.01 * model.head.weight.square().mean()
    if WORDS & {"module", "unit"}:
        return module(x, labels)
    if "before" in WORDS:
        for part, wanted in zip(x.flatten(0, 1).chunk(4), labels.flatten().chunk(4)):
            total += F.cross_entropy(part.float(), wanted, reduction="sum")
        return total / labels.numel()
    return F.cross_entropy(x.flatten(0, 1).float(), labels.flatten())


def step(model, module, optimizer):
    ids, labels = torch.randint(0, CLASSES, (2, 4, LENGTH), device="cuda")
    total = torch.zeros((), device="cuda")
    out = model(ids)
    loss = loss_of(model, module, total, out, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def main():
    if "segments" in WORDS:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    dist.init_process_group("nccl")
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Model()
    for block in model.blocks:
        fully_shard(block)
    if "unit" in WORDS:
        fully_shard(model.head)
    fully_shard(model)
    module, optimizer = Loss(model), torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(4):
        step(model, module, optimizer)


main()
