"""The same loop at the top of a script, and (`main`) in a function, whose frame Python may let see itself. `state`: what the model returns is an
attribute of an object until there is something new."""
import sys
import types

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())


def main():
    for _ in range(4):
        batch = torch.randn(16, 512, 1024, device="cuda")
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del batch, loss


if "main" in sys.argv:
    main()
elif "state" in sys.argv:
    state = types.SimpleNamespace()
    for _ in range(4):
        state.outputs = model(torch.randn(16, 512, 1024, device="cuda"))
        state.outputs.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
else:
    for _ in range(4):
        batch = torch.randn(16, 512, 1024, device="cuda")
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del batch, loss
