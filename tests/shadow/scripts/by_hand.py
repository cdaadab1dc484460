"""Layers over tensor ranks by hand, as Megatron's: parts as plain tensors, collectives in autograd functions."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

parser = argparse.ArgumentParser()
parser.add_argument("--tensor", type=int, default=2)
parser.add_argument("--beside", choices=["fsdp2", "none", "ddp", "fsdp1"], default="fsdp2")
parser.add_argument("--sequence", action="store_true")
parser.add_argument("--vocab", action="store_true")
parser.add_argument("--recompute", action="store_true")
args = parser.parse_args()
SEQ, DIM, HEADS, WORDS = 256, 256, 8, 4000
dist.init_process_group("nccl")
torch.cuda.set_device(0)
world = dist.get_world_size()
mesh = init_device_mesh("cuda", (world // args.tensor, args.tensor), mesh_dim_names=("data", "tensor"))
group = mesh["tensor"].get_group()
N, PLACE = args.tensor, mesh["tensor"].get_local_rank()


def summed(x):
    x = x.contiguous()
    dist.all_reduce(x, group=group)
    return x


def gathered(x, dim):
    parts = [torch.empty_like(x) for _ in range(N)]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, dim)


def gathered_first(x):
    out = torch.empty(N * x.shape[0], *x.shape[1:], dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(out, x.contiguous(), group=group)
    return out


def scattered_first(x):
    out = torch.empty(x.shape[0] // N, *x.shape[1:], dtype=x.dtype, device=x.device)
    dist.reduce_scatter_tensor(out, x.contiguous(), group=group)
    return out


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return summed(g)


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return summed(x)

    @staticmethod
    def backward(ctx, g):
        return g


class Gather(torch.autograd.Function):  # of the last dimension
    @staticmethod
    def forward(ctx, x):
        return gathered(x, -1)

    @staticmethod
    def backward(ctx, g):
        return g.chunk(N, -1)[PLACE].contiguous()


class GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return gathered_first(x)

    @staticmethod
    def backward(ctx, g):
        return scattered_first(g)


class ScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return scattered_first(x)

    @staticmethod
    def backward(ctx, g):
        return gathered_first(g)


class Columns(nn.Linear):
    def __init__(self, wide, out):
        super().__init__(wide, out // N, bias=False)

    def forward(self, x):
        x = GatherSequence.apply(x) if args.sequence else Copy.apply(x)
        return F.linear(x, self.weight)


class Rows(nn.Linear):
    def __init__(self, wide, out):
        super().__init__(wide // N, out, bias=False)

    def forward(self, x):
        x = F.linear(x, self.weight)
        return ScatterSequence.apply(x) if args.sequence else Reduce.apply(x)


class Words(nn.Embedding):
    def __init__(self, words, dim):
        super().__init__(words // N, dim)
        self.first = PLACE * words // N

    def forward(self, tokens):
        outside = (tokens < self.first) | (tokens >= self.first + self.num_embeddings)
        tokens = (tokens - self.first).masked_fill(outside, 0)
        x = F.embedding(tokens, self.weight)
        x = x.masked_fill(outside.unsqueeze(-1), 0.0)
        return ScatterSequence.apply(x) if args.sequence else Reduce.apply(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.o = Columns(DIM, 3 * DIM), Rows(DIM, DIM)
        self.up, self.down = Columns(DIM, 4 * DIM), Rows(4 * DIM, DIM)

    def attend(self, x):  # [sequence, batch, width]
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (each.unflatten(-1, (HEADS // N, DIM // HEADS)).permute(1, 2, 0, 3) for each in (q, k, v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).permute(2, 0, 1, 3).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.norm(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class VocabLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target):
        most = logits.max(-1).values
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        logits = logits - most.unsqueeze(-1)
        first, many = PLACE * logits.shape[-1], logits.shape[-1]
        outside = (target < first) | (target >= first + many)
        local = (target - first).masked_fill(outside, 0)
        wanted = logits.gather(-1, local.unsqueeze(-1)).squeeze(-1).masked_fill(outside, 0.0)
        wanted = summed(wanted)
        exps = logits.exp()
        total = summed(exps.sum(-1))
        loss = total.log() - wanted
        ctx.save_for_backward(exps.div_(total.unsqueeze(-1)), outside, local)
        return loss

    @staticmethod
    def backward(ctx, g):
        probs, outside, local = ctx.saved_tensors
        grad = probs
        flat = grad.reshape(-1, grad.shape[-1])
        flat[torch.arange(flat.shape[0], device=flat.device), local.reshape(-1)] -= 1.0 - outside.reshape(-1).float()
        return grad.mul_(g.unsqueeze(-1)), None


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = Words(WORDS, DIM) if args.vocab else nn.Embedding(WORDS, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.LayerNorm(DIM)
        self.head = Columns(DIM, WORDS)

    def forward(self, tokens):
        x = self.embed(tokens.t())
        if args.sequence and not args.vocab:
            x = x.chunk(N)[PLACE]
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if args.recompute else block(x)
        x = self.head(self.norm(x))
        return x if args.vocab else Gather.apply(x)


torch.manual_seed(0)
with torch.device("cuda"):
    model = Decoder()
if args.beside == "fsdp2":
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"], mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    fully_shard(model, mesh=mesh["data"], mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
elif args.beside == "fsdp1":
    model = FullyShardedDataParallel(model, device_mesh=mesh["data"], use_orig_params=True, auto_wrap_policy=ModuleWrapPolicy({Block}))
elif args.beside == "ddp":
    model = nn.parallel.DistributedDataParallel(model, device_mesh=mesh["data"])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(4):
    tokens, labels = (torch.randint(0, WORDS, (2, SEQ), device="cuda") for _ in range(2))
    logits = model(tokens)
    if args.vocab:
        VocabLoss.apply(logits.float(), labels.t()).mean().backward()
    else:
        F.cross_entropy(logits.flatten(0, 1).float(), labels.t().flatten()).backward()
    del logits
    optimizer.step()
    optimizer.zero_grad()
