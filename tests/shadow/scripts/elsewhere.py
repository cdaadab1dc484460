"""What autograd saves, kept elsewhere: checkpoints that a script has written itself, in the manners of Megatron, DeepSpeed and Unsloth; hooks that take saved
tensors to the host; and a teacher of another dtype, of rows that the ranks do not divide."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.checkpoint import checkpoint

WORDS = 4093


class Again(torch.autograd.Function):
    """Forward without gradients, backward again with them."""

    @staticmethod
    def forward(ctx, run, outputs, *args):
        ctx.run = run
        with torch.no_grad():
            result = run(*args)
        ctx.save_for_backward(*args)
        outputs.append(result)
        return result

    @staticmethod
    def backward(ctx, *grads):
        args = [each.detach().requires_grad_(each.requires_grad) for each in ctx.saved_tensors]
        with torch.enable_grad():
            result = ctx.run(*args)
        torch.autograd.backward([result], grads)
        return (None, None, *(each.grad for each in args))


class FromHost(torch.autograd.Function):
    """The same, but what it was called with waits on the host."""

    @staticmethod
    def forward(ctx, run, x):
        kept = x.to("cpu", non_blocking=True)
        with torch.no_grad():
            result = run(x)
        ctx.save_for_backward(kept)
        ctx.run = run
        return result

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        x = x.to("cuda", non_blocking=True).detach().requires_grad_(True)
        with torch.enable_grad():
            result = ctx.run(x)
        torch.autograd.backward(result, grad)
        return None, x.grad


class Block(nn.Module):
    def __init__(self, kind, width=256):
        super().__init__()
        self.kind, self.norm, self.up, self.down = kind, nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def run(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))

    def forward(self, x):
        if self.kind == "method":
            return checkpoint(self.run, x, use_reentrant=True)
        return FromHost.apply(self.run, x) if self.kind == "host" else self.run(x)


class Attending(nn.Module):
    """A head in float32, and attention that is a unit: what it is called with is one tensor three times."""

    def __init__(self, width=256):
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, width), nn.Linear(width, WORDS)
        self.blocks = nn.ModuleList(nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(4))

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = x + block(x, x, x, need_weights=False)[0]
        return self.head(x.float())


class Net(nn.Module):
    def __init__(self, kind, layers=6, width=256):
        super().__init__()
        self.kind, self.embedding, self.head = kind, nn.Embedding(WORDS, width), nn.Linear(width, WORDS)
        self.blocks = nn.ModuleList(Block(kind, width) for _ in range(layers))

    def forward(self, ids):
        x = self.embedding(ids)
        if self.kind == "several":  # two blocks a region
            for i in range(0, len(self.blocks), 2):
                outputs = []
                Again.apply(lambda h, i=i: self.blocks[i + 1](self.blocks[i](h)), outputs, x)
                (x,) = outputs
            return self.head(x)
        if self.kind == "saved":
            with save_on_cpu(pin_memory=True):
                for block in self.blocks:
                    x = block(x)
            return self.head(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def to_host(tensor):
    return tensor if tensor.numel() < 1 << 18 else (tensor.device, tensor.cpu())


def from_host(kept):
    return kept if torch.is_tensor(kept) else kept[1].to(kept[0])


def sharded(model, runtime, dtype=torch.bfloat16):
    if runtime == "fsdp1":
        return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=MixedPrecision(dtype, torch.float32), use_orig_params=True)
    for each in (*model.blocks, model):
        fully_shard(each, mp_policy=MixedPrecisionPolicy(dtype, torch.float32))
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["several", "host", "method", "saved", "hooks", "teacher", "types", "freezing"])
    parser.add_argument("runtime", choices=["fsdp1", "fsdp2"])
    given = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = Attending().cuda() if given.kind == "types" else Net(given.kind).cuda()
    if given.kind == "types":
        fully_shard(model.head)
    model = sharded(model, given.runtime)
    teacher = sharded(Net("").cuda().requires_grad_(False).eval(), given.runtime, torch.float16) if given.kind == "teacher" else None
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        if given.kind == "freezing" and step == 1:
            for name, each in model.named_parameters():
                each.requires_grad_("blocks.0" not in name)
        ids = torch.randint(0, WORDS, (8, 256), device="cuda")
        if teacher is not None:
            with torch.no_grad():
                wanted = teacher(ids)
            loss = F.mse_loss(model(ids).float(), wanted.float())
        elif given.kind == "hooks":
            with saved_tensors_hooks(to_host, from_host):
                loss = F.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten())
        else:
            loss = F.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
