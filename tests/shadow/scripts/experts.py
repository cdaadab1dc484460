"""Experts on several ranks whose rows the script exchanges by itself: it counts rows on the device, reads the counts, and sends by them. Each rank
makes the weights of its own experts as plain parameters, which FSDP2 shards over the ranks that have the same."""

import argparse

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

parser = argparse.ArgumentParser()
parser.add_argument("--send", choices=["function", "nn", "functional", "everywhere", "gathered"], default="function")
parser.add_argument("--count", choices=["bincount", "histc", "one_hot", "scatter", "unique", "search"], default="bincount")
parser.add_argument("--run", choices=["list", "grouped", "loop", "padded"], default="list")
parser.add_argument("--degree", type=int, default=4)
parser.add_argument("--experts", type=int, default=8)
parser.add_argument("--chosen", type=int, default=2)
parser.add_argument("--fsdp", choices=["2", "1", "none"], default="2")
parser.add_argument("--shared", action="store_true")
parser.add_argument("--recompute", action="store_true")
parser.add_argument("--select", action="store_true")  # by operator: what the host reads is kept
parser.add_argument("--balance", action="store_true")  # a loss that balances the routers, which counts too
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--layers", type=int, default=3)
args = parser.parse_args()
SEQ, DIM, WORDS = 256, 256, 2000


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, received, sent, group):
        ctx.sizes, ctx.group = (received, sent), group
        out = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx, gradient):
        received, sent = ctx.sizes
        out = gradient.new_empty(sum(sent), gradient.shape[1])
        dist.all_to_all_single(out, gradient.contiguous(), sent, received, group=ctx.group)
        return out, None, None, None


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, group):
        ctx.group = group
        out = rows.new_empty(rows.shape[0] * dist.get_world_size(group), *rows.shape[1:])
        dist.all_gather_into_tensor(out, rows.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, gradient):
        out = gradient.new_empty(gradient.shape[0] // dist.get_world_size(ctx.group), *gradient.shape[1:])
        dist.reduce_scatter_tensor(out, gradient.contiguous(), group=ctx.group)
        return out, None


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, group):
        ctx.group = group
        out = rows.new_empty(rows.shape[0] // dist.get_world_size(group), *rows.shape[1:])
        dist.reduce_scatter_tensor(out, rows.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, gradient):
        out = gradient.new_empty(gradient.shape[0] * dist.get_world_size(ctx.group), *gradient.shape[1:])
        dist.all_gather_into_tensor(out, gradient.contiguous(), group=ctx.group)
        return out, None


def send(rows, received, sent, group):
    if args.send == "functional":
        return all_to_all_single_autograd(rows, received, sent, group)
    if args.send == "nn":
        return dist_nn.all_to_all_single(rows.new_empty(sum(received), rows.shape[1]), rows.contiguous(), received, sent, group)
    return Exchange.apply(rows, received, sent, group)


def counted(choice, experts):
    flat = choice.flatten()
    if args.count == "histc":
        return torch.histc(flat.float(), bins=experts, min=0, max=experts - 1).long()
    if args.count == "one_hot":
        return F.one_hot(flat, experts).sum(dim=0)
    if args.count == "scatter":
        return torch.zeros(experts, dtype=torch.long, device=flat.device).scatter_add_(0, flat, torch.ones_like(flat))
    if args.count == "unique":
        return (flat.unsqueeze(0) == torch.arange(experts, device=flat.device).unsqueeze(1)).sum(dim=1)
    if args.count == "search":
        ends = torch.searchsorted(flat.sort().values, torch.arange(experts + 1, device=flat.device))
        return ends.diff()
    return torch.bincount(flat, minlength=experts)


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 2 * DIM, bias=False), nn.Linear(2 * DIM, DIM, bias=False)

    def forward(self, rows):
        return self.down(F.silu(self.up(rows)))


class Experts(nn.Module):
    """Those of one rank."""

    def __init__(self, count):
        super().__init__()
        self.count = count
        if args.run in ("list", "loop"):
            self.list = nn.ModuleList(Expert() for _ in range(count))
        else:
            self.up, self.down = nn.Parameter(torch.empty(count, DIM, 2 * DIM)), nn.Parameter(torch.empty(count, 2 * DIM, DIM))

    def forward(self, rows, counts):
        if args.run == "grouped":
            ends = counts.cumsum(0).int()
            return torch._grouped_mm(F.silu(torch._grouped_mm(rows.bfloat16(), self.up.bfloat16(), offs=ends)), self.down.bfloat16(), offs=ends).to(rows.dtype)
        if args.run == "padded":
            most = int(counts.max())
            padded = rows.new_zeros(self.count, most, DIM)
            places = torch.repeat_interleave(torch.arange(self.count, device=rows.device), counts)
            inside = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[places]
            padded[places, inside] = rows
            return torch.bmm(F.silu(torch.bmm(padded, self.up.to(rows.dtype))), self.down.to(rows.dtype))[places, inside]
        sizes = counts.tolist()
        assert sum(sizes) == len(rows), f"{sizes} rows of {len(rows)}"
        return torch.cat([expert(part) for expert, part in zip(self.list, rows.split(sizes))])


class Mixture(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group, self.ranks = group, dist.get_world_size(group)
        self.gate, self.experts = nn.Linear(DIM, args.experts, bias=False), Experts(args.experts // self.ranks)
        self.shared = Expert() if args.shared else None
        self.register_buffer("load", torch.zeros(args.experts), persistent=False)

    def forward(self, given):
        x = given.view(-1, DIM)
        scores, choice = self.gate(x).float().softmax(dim=-1).topk(args.chosen, dim=-1)
        made = {"everywhere": self.everywhere, "gathered": self.gathered}.get(args.send, self.exchanged)(x, scores.to(x.dtype), choice)
        if self.shared is not None:
            made = made + self.shared(x)
        return made.view(given.shape)

    def exchanged(self, x, scores, choice):
        order = torch.argsort(choice.flatten(), stable=True)
        rows, counts = x[order // args.chosen], counted(choice, args.experts)
        if args.balance:
            self.load += counts
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self.group)
        sent = counts.view(self.ranks, -1).sum(dim=1).to("cpu").tolist()
        received = theirs.view(self.ranks, -1).sum(dim=1).tolist()
        assert sum(sent) == len(rows) and sum(received) > 0, "no rows"
        rows = send(rows, received, sent, self.group)
        own = self.experts.count
        of = torch.arange(own, device=x.device).repeat(self.ranks).repeat_interleave(theirs, output_size=sum(received))
        by_expert = torch.argsort(of, stable=True)
        made = self.experts(rows[by_expert], theirs.view(self.ranks, own).sum(dim=0))
        back = torch.empty_like(made)
        back[by_expert] = made
        back = send(back, sent, received, self.group)
        whole = torch.empty_like(back)
        whole[order] = back
        return (whole.view(-1, args.chosen, DIM) * scores.unsqueeze(-1)).sum(dim=1)

    def everywhere(self, x, scores, choice):
        """Ranks gather all tokens, each works on those of its own experts, and what they make is summed."""
        every = Gather.apply(x, self.group)
        scores, choice = Gather.apply(scores, self.group), Gather.apply(choice, self.group)
        out, first = torch.zeros_like(every), dist.get_rank(self.group) * self.experts.count
        for number, expert in enumerate(self.experts.list):
            tokens, places = torch.where(choice == first + number)
            out.index_add_(0, tokens, expert(every[tokens]) * scores[tokens, places].unsqueeze(-1))
        return Scatter.apply(out, self.group)

    def gathered(self, x, scores, choice):
        """Every rank has the same tokens in the same order: no rows move, the sum does."""
        order = torch.argsort(choice.flatten(), stable=True)
        ends = counted(choice, args.experts).cumsum(0).tolist()
        first = dist.get_rank(self.group) * self.experts.count
        begin, out = ([0] + ends)[first], torch.zeros_like(x)
        for number, expert in enumerate(self.experts.list):
            mine = order[begin : ends[first + number]]
            begin = ends[first + number]
            out = out.index_add(0, mine // args.chosen, expert(x[mine // args.chosen]) * scores.flatten()[mine].unsqueeze(-1))
        return dist_nn.all_reduce(out, group=self.group)


class Block(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.norm, self.mix, self.out = nn.RMSNorm(DIM), nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.norm2, self.mixture = nn.RMSNorm(DIM), Mixture(group)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (4, -1)).transpose(1, 2) for each in self.mix(self.norm(x)).chunk(3, dim=-1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mixture(self.norm2(x))


def keep(context, operator, *given, **options):
    kept = operator is torch.ops.aten.mm.default or operator is torch.ops.aten._to_copy.default and options.get("device") == torch.device("cpu")
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


class Model(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(WORDS, DIM), nn.ModuleList(Block(group) for _ in range(args.layers))
        self.norm, self.head = nn.RMSNorm(DIM), nn.Linear(DIM, WORDS, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            if args.select:
                x = checkpoint(block, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(keep))
            else:
                x = checkpoint(block, x, use_reentrant=False) if args.recompute else block(x)
        return self.head(self.norm(x))


dist.init_process_group("nccl")
torch.cuda.set_device(0)
mesh = init_device_mesh("cuda", (dist.get_world_size() // args.degree, args.degree), mesh_dim_names=("rest", "experts"))
with torch.device("meta"):
    model = Model(mesh["experts"].get_group())
half = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
if args.fsdp == "2":
    for block in model.blocks:
        alone = block.mixture.experts.list if args.run == "loop" else [block.mixture.experts]  # whose forwards are called
        for each in alone if mesh["rest"].size() > 1 else ():
            fully_shard(each, mesh=mesh["rest"], mp_policy=half)
        if mesh["rest"].size() == 1:
            block.mixture.experts.bfloat16()
        ignored = set() if mesh["rest"].size() > 1 else set(block.mixture.experts.parameters())
        fully_shard(block, mp_policy=half, ignored_params=ignored)
    ignored = set() if mesh["rest"].size() > 1 else {p for block in model.blocks for p in block.mixture.experts.parameters()}
    fully_shard(model, mp_policy=half, ignored_params=ignored)
    model.to_empty(device="cuda")
elif args.fsdp == "1":
    model.to_empty(device="cuda")
    for block in model.blocks:
        block.mixture.experts = FullyShardedDataParallel(block.mixture.experts, process_group=mesh["rest"].get_group(), use_orig_params=True)
    for i, block in enumerate(model.blocks):
        model.blocks[i] = FullyShardedDataParallel(block, use_orig_params=True)
    model = FullyShardedDataParallel(model, use_orig_params=True)
else:
    model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=False if args.degree == dist.get_world_size() else None)
for step in range(4):
    tokens, labels = (torch.randint(0, WORDS, (args.batch, SEQ), device="cuda") for _ in range(2))
    loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), labels.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
