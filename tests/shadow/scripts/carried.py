"""What models carry with them beside parameters and buffers, one word each.

table: a table on the host, of which every step brings some to the device. spectral, directions: torch.nn.utils'
spectral_norm and weight_norm, which are hooks.
partial: a forward that stands on an instance as a partial of another method. rows: features that are put where a mask of the device says.
encoder: a frozen part in bfloat16 beside weights in float32, blocks recomputed. fsdp1: the other runtime."""

import functools
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing, checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

WORDS, WIDTH, CLASSES, LENGTH, PLACE = set(sys.argv[1:]), 384, 4000, 256, 7


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        if "spectral" in WORDS:
            self.up = nn.utils.spectral_norm(self.up)
        if "directions" in WORDS:
            self.down = nn.utils.weight_norm(self.down)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x):
        return self.features(x, len(self.layers))[-1]

    def features(self, x, n):
        found = []
        for layer in self.layers[:n]:
            x = layer(x).relu()
            found.append(x)
        return found


def last_of(function):
    def forward(*args, **kwargs):
        return function(*args, **kwargs)[-1]

    return forward


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        if "partial" in WORDS:
            self.encoder.forward = last_of(functools.partial(self.encoder.features, n=1))
        self.words, self.head = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.angles = torch.randn(64 * LENGTH, WIDTH)  # no buffer

    def forward(self, ids, images):
        x = self.words(ids)
        with torch.set_grad_enabled(any(p.requires_grad for p in self.encoder.parameters())):
            seen = self.encoder(images.to(x.dtype))
        if "rows" in WORDS:
            x = x.clone()
            x[ids == PLACE] = seen.flatten(0, 1)
        else:
            x = torch.cat([seen, x[:, seen.shape[1] :]], 1)
        if "table" in WORDS:
            x = x + self.angles[: x.shape[1]].to(x.device, x.dtype)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def sharded(model):
    if "encoder" in WORDS:
        model.encoder.requires_grad_(False).to(torch.bfloat16)
    if "fsdp1" in WORDS:
        wrapped = FullyShardedDataParallel(
            model, auto_wrap_policy=ModuleWrapPolicy({Block, Encoder}), device_id=torch.cuda.current_device(), use_orig_params=True,
            mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16))  # fmt: skip
        if "encoder" in WORDS:
            apply_activation_checkpointing(wrapped, checkpoint_wrapper_fn=checkpoint_wrapper, check_fn=lambda module: isinstance(module, Block))
        return wrapped
    model.cuda()
    policy = MixedPrecisionPolicy(param_dtype=None if WORDS & {"spectral", "directions"} else torch.bfloat16, reduce_dtype=torch.float32)
    for part in (*model.blocks, model.encoder, model):
        fully_shard(part, mp_policy=policy)
    return model


def main():
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = sharded(Model())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    for _ in range(3):
        ids = torch.randint(PLACE + 1, CLASSES, (2, LENGTH))
        ids[:, 4:36] = PLACE
        logits = model(ids.cuda(), torch.randn(2, 32, WIDTH, device="cuda"))
        F.cross_entropy(logits.float().flatten(0, 1), ids.cuda().flatten()).backward()
        del logits
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
