"""As trainers and recipes that own the loop do: a method of theirs runs in the place of the model's forward, inside the optimizer's closure; it records a
copy of the loss; gradients go between loss and backward; the environment of ranks is cleared, and a whole checkpoint gathered, when all is done.

    trainer.py fsdp1|fsdp2 [MICRO_BATCHES]
"""
import copy
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self, width, turn):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.turn = turn

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.turn(self.norm(x)))))


class Turn(nn.Module):
    """Without parameters; one of all blocks, registered in none but the first."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("angles", torch.tensor([1.0 / (x + 1) for x in torch.arange(float(width))]), persistent=False)

    def forward(self, x):
        return x * torch.cos(self.angles).to(x.dtype)


class Tied:
    """No module: it multiplies by another's weight."""

    def __init__(self, other):
        self.other = other

    def __call__(self, x):
        return F.linear(x, self.other.weight)


class Task(nn.Module):
    """No forward of its own."""

    def __init__(self, width=256, layers=4, words=4000):
        super().__init__()
        self.words = nn.Embedding(words, width)
        turn = Turn(width)
        self.blocks = nn.Sequential(*(Block(width, turn) for _ in range(layers)))
        self.head = Tied(self.words)
        self.records = []

    def training_step(self, batch):
        logits = self.head(self.blocks(self.words(batch[:, :-1])))
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        self.records.append(copy.deepcopy(loss.detach()))
        return loss


def redirected(wrapper, task, batch):
    own = task.forward

    def instead(*args):
        task.forward = own
        return task.training_step(*args)

    task.forward = instead
    return wrapper(batch)


def main():
    runtime, micro_batches = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    task = Task().cuda()
    if runtime == "fsdp1":
        wrapper = FullyShardedDataParallel(task, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True,
                                           mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))
    else:
        for block in task.blocks:
            fully_shard(block)
        wrapper = fully_shard(task)
    optimizer = torch.optim.AdamW(wrapper.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))  # begins at nothing

    def passes(first):
        batch = torch.randint(4000, (8, 129), device="cuda")
        loss = redirected(wrapper, task, batch) / micro_batches
        if first:
            trained = [p for p in wrapper.parameters() if p.requires_grad]  # a question that makes nothing
            assert trained
            optimizer.zero_grad()
        loss.backward()
        return loss

    for _ in range(3):
        for number in range(micro_batches - 1):
            passes(number == 0)
        optimizer.step(lambda: passes(micro_batches == 1))
        schedule.step()
    get_model_state_dict(wrapper, options=StateDictOptions(full_state_dict=True))
    whole = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")  # what comes behind the last step is no step's
    print(whole.numel(), len(task.records))
    dist.destroy_process_group()
    for name in ("WORLD_SIZE", "RANK"):
        os.environ.pop(name)


main()
