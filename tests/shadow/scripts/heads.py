"""A backbone and two heads on it, as self-supervised vision has them (DINO): each part is sharded by itself, so that FSDP2 has three roots
in a step. A teacher of the same parts follows by a running mean."""

import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Backbone(nn.Module):
    def __init__(self, width=512, layers=4):
        super().__init__()
        self.patches = nn.Linear(768, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, images):
        x = self.patches(images)
        for block in self.blocks:
            x = block(x)
        return x


def sharded(parts):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in parts["backbone"].blocks:
        fully_shard(block, mp_policy=policy)
    for part in parts.values():
        fully_shard(part, mp_policy=policy, reshard_after_forward=True)
    return parts


def outputs(parts, images):
    features = parts["backbone"](images)
    return parts["of_images"](features), parts["of_patches"](features)


def loss_of(student, teacher, images):
    if teacher is None:
        return sum(each.float().log_softmax(-1).square().mean() for each in outputs(student, images))
    with torch.no_grad():
        targets = [each.float().softmax(-1) for each in outputs(teacher, images)]
    said = outputs(student, images)
    return sum(-(target * each.float().log_softmax(-1)).sum(-1).mean() for target, each in zip(targets, said))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--teacher", action="store_true")
    given = parser.parse_args()
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    heads = [nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 8192, bias=False)) for _ in range(2)]
    student = nn.ModuleDict({"backbone": Backbone(), "of_images": heads[0], "of_patches": heads[1]}).to("cuda")
    teacher = sharded(copy.deepcopy(student).requires_grad_(False)) if given.teacher else None
    sharded(student)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4)
    for _ in range(3):
        loss_of(student, teacher, torch.randn(2, 256, 768, device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad()
        if teacher is not None:
            with torch.no_grad():
                torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.01)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
