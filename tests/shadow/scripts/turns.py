"""A generator and what judges it, each a root of FSDP's with an optimizer of its own: in turns, or both behind one loss; and blocks that FSDP1 wraps twice."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

WIDTH = 512


class Block(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.leaky_relu(self.up(x), 0.2))


class Net(nn.Module):
    def __init__(self, into, out, blocks):
        super().__init__()
        self.first, self.blocks, self.last = nn.Linear(into, WIDTH), nn.ModuleList(Block() for _ in range(blocks)), nn.Linear(WIDTH, out)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def sharded(model, fsdp):
    if fsdp == 1:
        half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=half, use_orig_params=True,
                                        device_id=torch.cuda.current_device())  # fmt: skip
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model.to("cuda"), mp_policy=policy)


def wrapped_twice(model):
    """Nothing wraps the model itself; each part is wrapped, and what comes of it too."""
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)

    def wrap(part):
        return FullyShardedDataParallel(part, mixed_precision=half, use_orig_params=True, device_id=torch.cuda.current_device())

    model.first, model.last = wrap(model.first), wrap(model.last)
    model.blocks = nn.ModuleList(wrap(wrap(block)) for block in model.blocks)
    return model


def in_turns(maker, judge, args):
    makes, judges = torch.optim.AdamW(maker.parameters(), 1e-4), torch.optim.AdamW(judge.parameters(), 1e-4, amsgrad=True)
    for _ in range(10):
        real, noise = torch.randn(2048, 256, device="cuda"), torch.randn(2048, 64, device="cuda")
        for _ in range(args.judged):
            judges.zero_grad()
            with torch.no_grad():
                made = maker(noise)
            (F.softplus(-judge(real).float()).mean() + F.softplus(judge(made).float()).mean()).backward()
            judges.step()
        makes.zero_grad()
        F.softplus(-judge(maker(noise)).float()).mean().backward()
        makes.step()


def together(maker, judge, args):
    makes, judges = torch.optim.AdamW(maker.parameters(), 1e-4, foreach=False), torch.optim.SGD(judge.parameters(), 1e-4, momentum=0.9)
    for _ in range(10):
        judge(maker(torch.randn(2048, 64, device="cuda"))).float().square().mean().backward()
        for each in (makes, judges):
            each.step()
            each.zero_grad()


def cached(model, _, args):
    """Representations first, without a graph; their gradients, then the model again by pieces (GradCache). Behind each step an evaluation."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(10):
        model.train()
        rows = torch.randn(1024, 64, device="cuda")
        with torch.no_grad():
            made = torch.cat([model(piece) for piece in rows.chunk(2)]).float()
        made.requires_grad_()
        F.cross_entropy(made @ made.t(), torch.arange(1024, device="cuda")).backward()
        for piece, gradient in zip(rows.chunk(2), made.grad.chunk(2)):
            (model(piece).float() * gradient).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.inference_mode():
            model(rows[:8])


def alone(model, _, args):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(10):
        model(torch.randn(2048, 64, device="cuda")).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("loop", choices=("in_turns", "together", "twice", "cached"))
    parser.add_argument("--fsdp", type=int, default=2)
    parser.add_argument("--judged", type=int, default=1, help="steps of the judge before one of the maker")
    args = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if args.loop == "twice":
        alone(wrapped_twice(Net(64, 256, 3)), None, args)
    elif args.loop == "cached":
        cached(sharded(Net(64, 256, 3), args.fsdp), None, args)
    else:
        {"in_turns": in_turns, "together": together}[args.loop](sharded(Net(64, 256, 3), args.fsdp), sharded(Net(256, 1, 2), args.fsdp), args)
