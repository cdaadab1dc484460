"""What trainers do beside a plain step, one word each.

eval: the model trains in evaluation mode, as it comes from a hub. check: an evaluation with gradients and other rows comes first. alike: values
of the device are compared with each other. finite: a step is passed over whose gradients are not. shuffle: rank 0's generator of the sampler goes
to all over the device. frozen: the model has a table of settings that refuses to be changed. cache: keys are joined to a cache that is empty.
workers: rows come from processes that work on them. call: blocks run themselves again, from inside their own `__call__`. fsdp1: the other runtime.
images: the model is not given the batch, but what was made of it."""

import collections
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

WORDS, WIDTH, CLASSES, LENGTH = set(sys.argv[1:]), 512, 4096, 256


class Settings(collections.OrderedDict):
    def __init__(self, **given):
        super().__init__(**given)
        self.made = True

    def refuse(self, *args, **kwargs):
        raise TypeError("these are as they are")

    clear = update = pop = refuse


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.5)

    def __call__(self, x):
        return checkpoint(super().__call__, x, use_reentrant="fsdp1" in WORDS) if "call" in WORDS else super().__call__(x)

    def forward(self, x):
        y = self.drop(F.gelu(self.up(x)))
        if "cache" in WORDS:
            y = torch.cat([torch.tensor([], dtype=y.dtype, device=y.device), y], dim=-2)
        return x + self.down(y)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.settings = Settings(width=WIDTH) if "frozen" in WORDS else None
        self.words, self.head = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        row = torch.full((LENGTH,), at)
        for _ in range(4000 if "workers" in WORDS else 0):
            row = row + 1
        return row % CLASSES


def alike(loss):
    if not torch.allclose(loss, torch.zeros_like(loss)) or not torch.equal(loss, loss.clone()):
        raise ValueError("ranks differ")


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(0)
    model = Model().cuda()
    if "fsdp1" in WORDS:
        model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True)
    else:
        for part in (*model.blocks, model):
            fully_shard(part)
    model.train("eval" not in WORDS)
    optimizer = torch.optim.AdamW(model.parameters())
    if "check" in WORDS:
        model.eval()
        model(torch.zeros(1, 64, dtype=torch.int64, device="cuda")).mean()
        model.train()
    generator = torch.Generator()
    if "shuffle" in WORDS:
        state = generator.get_state().cuda()
        dist.broadcast(state, 0)
        generator.set_state(state.cpu())  # whole numbers that the host gave the device
        drawn = state.float()
        dist.broadcast(drawn, 0)
        generator.set_state(drawn.byte().cpu())  # what nobody knows
    for rows in DataLoader(Rows(), batch_size=4, shuffle=True, generator=generator, num_workers=2 if "workers" in WORDS else 0):
        rows = rows.cuda()
        if "images" in WORDS:
            images = torch.randn(4, 3, 512, 512, device="cuda")
            rows = rows + images.mean().long()
        loss = F.cross_entropy(model(rows).flatten(0, 1), rows.flatten())
        if "alike" in WORDS:
            alike(loss.detach())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) if "finite" in WORDS else None
        if norm is not None and not (torch.isfinite(norm) and torch.isfinite(rows).all().item()):
            optimizer.zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()


main()
