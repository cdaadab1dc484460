"""How other people's libraries send tokens to experts on other ranks: by capacities that the device counts, by gathered counts and masks, by lists of
tensors, by every rank's own share of a loop."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("how", choices=["capacity", "counted", "masks", "lists", "loop"])
parser.add_argument("--experts", type=int, default=8)
parser.add_argument("--chosen", type=int, default=2)
parser.add_argument("--seq", type=int, default=256)
args = parser.parse_args()
DIM, WORDS, EXPERTS, CHOSEN, RANKS = 256, 2000, args.experts, args.chosen, 4


class Even(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group, x):
        ctx.group, x = group, x.contiguous()
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x, group=group)
        return out

    @staticmethod
    def backward(ctx, gradient):
        return None, Even.apply(ctx.group, gradient)


class Uneven(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group, x, there, here):
        ctx.group, ctx.sizes = group, (here, there)
        out = torch.empty(sum(there), x.shape[1], dtype=x.dtype, device=x.device)
        dist.all_to_all_single(out, x.contiguous(), there, here, group=group, async_op=True).wait()
        return out

    @staticmethod
    def backward(ctx, gradient):
        return None, Uneven.apply(ctx.group, gradient, *ctx.sizes), None, None


class Lists(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group, x, there, here):
        ctx.group, ctx.sizes = group, (here, there)
        out = [torch.empty(size, x.shape[1], dtype=x.dtype, device=x.device) for size in there]
        dist.all_to_all(out, [part.contiguous() for part in x.split(here)], group=group)
        return torch.cat(out)

    @staticmethod
    def backward(ctx, gradient):
        return None, Lists.apply(ctx.group, gradient, *ctx.sizes), None, None


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 2 * DIM, bias=False), nn.Linear(2 * DIM, DIM, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class Experts(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.list = nn.ModuleList(Expert() for _ in range(count))

    def forward(self, x, sizes=None):
        if sizes is None:
            return torch.stack([expert(rows) for expert, rows in zip(self.list, x.unbind(0))])
        return torch.cat([expert(rows) for expert, rows in zip(self.list, x.split(sizes))])


class Mixture(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group, self.own = group, EXPERTS // RANKS
        self.gate, self.experts = nn.Linear(DIM, EXPERTS, bias=False), Experts(self.own)

    def forward(self, given):
        return getattr(self, args.how)(given.view(-1, DIM)).view(given.shape)

    def _slots(self, x, scores, mask, capacity):
        """The two einsums of GShard around experts that each get as many rows."""
        places = ((mask.cumsum(0) - 1) * mask).sum(1)
        combine = (scores * mask.float()).unsqueeze(-1) * F.one_hot(places.clamp(max=capacity - 1), num_classes=capacity).float().unsqueeze(1)
        sent = Even.apply(self.group, torch.einsum("tec,td->ecd", combine.bool().to(x.dtype), x))
        sent = sent.view(RANKS, self.own, capacity, DIM).transpose(0, 1).reshape(self.own, RANKS * capacity, DIM)
        made = self.experts(sent).view(self.own, RANKS, capacity, DIM).transpose(0, 1).reshape(EXPERTS, capacity, DIM)
        return torch.einsum("tec,ecd->td", combine.to(x.dtype), Even.apply(self.group, made))

    def capacity(self, x):
        scores = self.gate(x).float().softmax(-1)
        mask = F.one_hot(scores.argmax(-1), EXPERTS)
        capacity = 2 * len(x) // EXPERTS
        return self._slots(x, scores, mask * ((mask.cumsum(0) - 1) * mask < capacity), capacity)

    def counted(self, x):
        """No token is dropped: the largest count of all ranks."""
        scores = self.gate(x).float().softmax(-1)
        mask = F.one_hot(scores.argmax(-1), num_classes=EXPERTS)
        most = mask.sum(0).max()
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self.group)
        return self._slots(x, scores, mask, int(most))

    def masks(self, x):
        scores, chosen = self.gate(x).float().topk(CHOSEN, -1)
        weights = torch.zeros(len(x), EXPERTS, device=x.device).scatter(1, chosen, scores.softmax(-1))
        routed = torch.zeros_like(weights).int().scatter(1, chosen, 1).bool()
        counts = routed.sum(0).long()
        every = torch.empty(RANKS * EXPERTS, dtype=counts.dtype, device=x.device)
        dist.all_gather_into_tensor(every, counts, group=self.group)
        first = dist.get_rank(self.group) * self.own
        mine = every.view(RANKS, EXPERTS)[:, first : first + self.own].contiguous()
        here, there = (each.to("cpu", non_blocking=True).numpy().tolist() for each in (counts.view(RANKS, self.own).sum(1), mine.sum(1)))
        turned = routed.T.contiguous()
        tokens = torch.arange(len(x), device=x.device).unsqueeze(0).expand(EXPERTS, -1).masked_select(turned)
        rows = Uneven.apply(self.group, x.index_select(0, tokens), there, here)
        sizes, order = mine.ravel().tolist(), [rank * self.own + expert for expert in range(self.own) for rank in range(RANKS)]
        parts = rows.split(sizes)
        parts = self.experts(torch.cat([parts[i] for i in order]), mine.sum(0).tolist()).split([sizes[i] for i in order])
        made = torch.cat([part for _, part in sorted(zip(order, parts), key=lambda pair: pair[0])])
        made = Uneven.apply(self.group, made, here, there) * weights.T.contiguous().masked_select(turned).unsqueeze(-1).to(x.dtype)
        return torch.zeros_like(x).scatter_add_(0, tokens.unsqueeze(1).expand(-1, DIM), made)

    def lists(self, x):
        scores, chosen = self.gate(x).float().softmax(-1).topk(CHOSEN, -1)
        experts, order = chosen.flatten().sort()
        counts = torch.stack([(experts == number).sum() for number in range(EXPERTS)])
        theirs = [torch.empty(self.own, dtype=counts.dtype, device=x.device) for _ in range(RANKS)]
        dist.all_to_all(theirs, list(counts.view(RANKS, self.own).unbind(0)), group=self.group)
        theirs = torch.stack(theirs)
        here, there = counts.view(RANKS, -1).sum(1).cpu().tolist(), theirs.sum(1).cpu().tolist()
        rows = Lists.apply(self.group, x[torch.div(order, CHOSEN, rounding_mode="floor")], there, here)
        by = torch.repeat_interleave(torch.arange(self.own, device=x.device).repeat(RANKS), theirs.flatten()).argsort(stable=True)
        back = torch.empty_like(by)
        back[by] = torch.arange(len(by), device=x.device)
        made = Lists.apply(self.group, self.experts(rows[by], theirs.sum(0).tolist())[back], here, there)
        whole = torch.zeros_like(made)
        whole[order] = made
        return (whole.view(-1, CHOSEN, DIM) * scores.unsqueeze(-1).to(made.dtype)).sum(1)

    def loop(self, x):
        scores, chosen = self.gate(x).float().softmax(-1).topk(CHOSEN, -1)
        counts, first = torch.bincount(chosen.flatten(), minlength=EXPERTS).tolist(), dist.get_rank(self.group) * self.own
        out = torch.zeros_like(x)
        for number in range(first, first + self.own):
            if counts[number]:
                rows, places = torch.where(chosen == number)
                out = out.index_add(0, rows, self.experts.list[number - first](x[rows]) * scores[rows, places, None].to(x.dtype))
        return Summed.apply(out, self.group)


class Block(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.norm, self.mix, self.out = nn.RMSNorm(DIM), nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.norm2, self.mixture = nn.RMSNorm(DIM), Mixture(group)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (4, -1)).transpose(1, 2) for each in self.mix(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mixture(self.norm2(x))


class Model(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(WORDS, DIM), nn.ModuleList(Block(group) for _ in range(3))
        self.norm, self.head = nn.RMSNorm(DIM), nn.Linear(DIM, WORDS, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


dist.init_process_group("nccl")
torch.cuda.set_device(0)
mesh = init_device_mesh("cuda", (dist.get_world_size() // RANKS, RANKS), mesh_dim_names=("rest", "experts"))
with torch.device("meta"):
    model = Model(mesh["experts"].get_group())
half = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
for block in model.blocks:
    for each in block.mixture.experts.list if args.how == "loop" else [block.mixture.experts]:
        fully_shard(each, mesh=mesh["rest"], mp_policy=half)
    fully_shard(block, mp_policy=half)
fully_shard(model, mp_policy=half)
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=False)
for step in range(4):
    tokens, labels = (torch.randint(0, WORDS, (2, args.seq), device="cuda") for _ in range(2))
    F.cross_entropy(model(tokens).flatten(0, 1).float(), labels.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
