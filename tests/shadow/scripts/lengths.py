"""Rows of several texts behind each other, whose lengths the host has given the device: read back where attention needs them, in a
region that runs again too; a head that has its call from nn.Module; a loss that all ranks sum. With --reentrant the wrapper is."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.nn.functional import all_reduce

parser = argparse.ArgumentParser()
parser.add_argument("--reentrant", action="store_true")
options = parser.parse_args()

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))

LENGTHS = (96, 160, 256)
WIDTH, WORDS = 256, 1000


class Texts:
    """What belongs to a row of texts, as trainers hand it on: no tensor among the arguments."""

    def __init__(self, ends):
        self.ends = ends


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, texts, longest=None):
        lengths = texts.ends[1:] - texts.ends[:-1]
        if int(lengths.max()) != longest:
            raise ValueError(f"lengths are read as {lengths.tolist()}")
        parts = [F.scaled_dot_product_attention(*part.view(1, -1, 12, 64).transpose(1, 2).chunk(3, 1), is_causal=True)
                 for part in self.qkv(self.norm(x)).split(lengths.tolist())]  # fmt: skip
        return x + self.out(torch.cat([part.transpose(1, 2).reshape(-1, WIDTH) for part in parts]))


class Head(nn.Linear):
    def forward(self, x, labels):
        return F.cross_entropy(super().forward(x).float(), labels)

    __call__ = nn.Module.__call__


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        implementation = CheckpointImpl.REENTRANT if options.reentrant else CheckpointImpl.NO_REENTRANT
        self.blocks = nn.ModuleList(checkpoint_wrapper(Block(), checkpoint_impl=implementation) for _ in range(3))
        self.head = Head(WIDTH, WORDS, bias=False)

    def forward(self, words, labels, texts, longest):
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x, texts, longest=longest)
        return self.head(x, labels)


model = Model().cuda()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
for block in [*model.blocks, model.head]:
    fully_shard(block, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters())

lengths = torch.tensor(LENGTHS)


def repeated():
    """Each form of it, by counts of the device; what ranks have exchanged is what this one has sent to itself."""
    rows, two, each = torch.zeros(3, 4, device="cuda"), torch.tensor(2).cuda(), torch.tensor([1, 2, 4]).cuda()
    told = [torch.repeat_interleave(rows, repeats=two).shape, torch.repeat_interleave(rows, two, dim=1).shape,
            torch.repeat_interleave(input=rows, repeats=each, dim=0).shape, torch.repeat_interleave(each).shape]  # fmt: skip
    if told != [(24,), (3, 8), (7, 4), (7,)]:
        raise ValueError(f"rows are repeated to {told}")
    dist.broadcast(each, 0)
    kept = each.tolist()
    given = torch.full((8,), 5, device="cuda")
    dist.all_to_all_single(given, torch.arange(8, device="cuda"))
    if kept != [1, 2, 4] or given.tolist() != [0, 1] * 4:
        raise ValueError(f"{kept} and {given.tolist()} are read")


repeated()
for _ in range(3):
    ends = F.pad(lengths.cumsum(0), (1, 0)).to("cuda", non_blocking=True)
    words = torch.randint(0, WORDS, (sum(LENGTHS) + 1,)).cuda()
    counted = torch.tensor(len(LENGTHS), device="cuda")
    dist.all_reduce(counted)
    if counted[None].tolist() != [len(LENGTHS) * dist.get_world_size()] or counted.view(1).item() != counted.item():
        raise ValueError(f"{counted.item()} texts on all ranks")
    loss = model(words[:-1], words[1:], Texts(ends), int(lengths.max()))
    all_reduce(loss / counted).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
