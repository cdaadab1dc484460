"""What stands beside a sharded model in a step: log-probabilities of a rollout, made once for several micro-batches or several steps; a head and a
temperature that nothing shards, and an optimizer with groups."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

WORDS = 1024


class Block(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.blocks, self.head = nn.Embedding(WORDS, 256), nn.ModuleList(Block() for _ in range(3)), nn.Linear(256, WORDS)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def sharded(model, runtime):
    if runtime == "fsdp1":
        return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=MixedPrecision(torch.bfloat16, torch.float32), use_orig_params=True)
    for each in (*model.blocks, model):
        fully_shard(each, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    return model


def log_probabilities(model, ids):
    logits = model(ids)
    return torch.gather(logits.float().log_softmax(-1), 2, ids[..., None]).squeeze(-1)


def rollout(runtime, own_steps):
    policy, reference = sharded(Net().cuda(), runtime), sharded(Net().cuda().requires_grad_(False).eval(), runtime)
    optimizer = torch.optim.AdamW(policy.parameters())
    for _ in range(4):
        ids = torch.randint(0, WORDS, (8, 256), device="cuda")
        with torch.no_grad():
            old, kept = log_probabilities(policy, ids), log_probabilities(reference, ids)
        for i in range(0, 8, 4):
            new = log_probabilities(policy, ids[i : i + 4])
            loss = -(new - old[i : i + 4]).exp().clamp(0.8, 1.2).mean() + (new - kept[i : i + 4]).square().mean()
            loss.backward()
            if own_steps or i == 4:
                optimizer.step()
                optimizer.zero_grad()


def head(runtime):
    model, scale = sharded(Net().cuda(), runtime), nn.Parameter(torch.ones([], device="cuda"))
    projection = nn.Sequential(nn.Linear(WORDS, 512), nn.GELU(), nn.Linear(512, 128)).cuda()
    optimizer = torch.optim.AdamW([{"params": model.parameters()}, {"params": [*projection.parameters(), scale], "lr": 1e-4}])
    for _ in range(4):
        one, other = (F.normalize(projection(model(torch.randint(0, WORDS, (8, 128), device="cuda")).mean(1).float()), dim=-1) for _ in range(2))
        F.cross_entropy(one @ other.t() * scale.exp(), torch.arange(8, device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("rollout", "steps", "head"))
    parser.add_argument("runtime", choices=("fsdp1", "fsdp2"))
    given = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    head(given.runtime) if given.kind == "head" else rollout(given.runtime, given.kind == "steps")
    dist.destroy_process_group()
