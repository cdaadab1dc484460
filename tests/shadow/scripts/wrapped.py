"""Checkpoint wrappers and units: wrapped.py fsdp1|fsdp2 inside|around|both [reentrant]. inside: units around wrappers; around: wrappers around units; both: a
module and its wrapper are units (accelerate's fsdp_activation_checkpointing)."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard

RUNTIME, WHERE = sys.argv[1:3]
FORM = CheckpointImpl.REENTRANT if "reentrant" in sys.argv else CheckpointImpl.NO_REENTRANT
WIDTH, WORDS = 512, 2000


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.blocks = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Block() for _ in range(6))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def unit(module):
    if RUNTIME == "fsdp2":
        return fully_shard(module, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    return FullyShardedDataParallel(module, mixed_precision=MixedPrecision(torch.bfloat16, torch.float32), use_orig_params=True)


dist.init_process_group("nccl")
torch.cuda.set_device(0)
model = Model().cuda()
for i, block in enumerate(model.blocks):
    inner = block if WHERE == "inside" else unit(block)
    model.blocks[i] = checkpoint_wrapper(inner, FORM) if WHERE == "around" else unit(checkpoint_wrapper(inner, FORM))
model = unit(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(4):
    ids = torch.randint(0, WORDS, (8, 512), device="cuda")
    loss = F.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
