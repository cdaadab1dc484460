"""A small decoder whose losses no name says: preferences against a reference, ranks of pairs, distillation; and gradients held between
micro-batches. FSDP1 or FSDP2."""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

VOCABULARY = 4096


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Decoder(nn.Module):
    def __init__(self, width=512, layers=6):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Parts(nn.Module):
    """Sharded part by part: it is no unit itself."""

    def __init__(self, policy):
        super().__init__()
        self.body, self.head = Decoder(), nn.Linear(VOCABULARY, 512, bias=False)
        for block in self.body.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(self.body, mp_policy=policy)
        fully_shard(self.head, mp_policy=policy)

    def forward(self, tokens):
        return self.head(torch.tanh(self.body(tokens)))


class Clamped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-30, 30)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 30)


def preferences(model, tokens):
    """Two forwards and one backward: what DPO does for the chosen and the rejected."""
    logps = []
    for each in tokens.chunk(2):
        logits = model(each)[:, :-1].float()
        logps.append(torch.gather(logits.log_softmax(-1), 2, each[:, 1:].unsqueeze(-1)).squeeze(-1).sum(-1))
    return -F.logsigmoid(0.1 * (logps[0] - logps[1])).mean()


def distillation(model, tokens):
    logits = Clamped.apply(model(tokens).float())
    target = torch.softmax(torch.randn_like(logits), -1)
    soft = F.kl_div(F.log_softmax(logits / 2.0, -1), target, reduction="batchmean")
    entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
    return soft + 0.01 * entropy + F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))


def policy(model, tokens):
    logits = model(tokens).float()
    old = torch.distributions.Categorical(logits=logits.detach())
    new = torch.distributions.Categorical(logits=logits)
    ratio = (new.log_prob(tokens) - old.log_prob(tokens)).exp()
    return -torch.min(ratio, ratio.clamp(0.8, 1.2)).mean() - 0.01 * new.entropy().mean()


def clipped(model, tokens):
    """As PPO has it: what the policy itself said before, without gradients."""

    def logps():
        return torch.gather(model(tokens)[:, :-1].float().log_softmax(-1), 2, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)

    with torch.no_grad():
        old = logps()
    ratio = (logps() - old).exp()
    return -torch.min(ratio, ratio.clamp(0.8, 1.2)).mean()


def named(model, tokens):
    """A name keeps the outputs until the next forward has returned."""
    global logits
    logits = model(tokens)
    return F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY).float(), tokens[:, 1:].reshape(-1))


def masked(model, tokens):
    """Of the rows that masks choose, by each function that has them; classes are weighted, by way of page-locked memory."""
    logits, counted = model(tokens).flatten(0, 1), tokens.flatten() != -100
    weights = torch.ones(VOCABULARY).pin_memory().to("cuda", non_blocking=True)
    rows = torch.where(counted)[0]
    loss = F.cross_entropy(logits.index_select(0, rows).float(), tokens.flatten()[counted], weight=weights)
    places = ((tokens != -100).nonzero(), torch.argwhere(tokens != -100), torch.stack(torch.nonzero(tokens, as_tuple=True), 1))
    assert all(each.shape == (tokens.numel(), 2) for each in places), [each.shape for each in places]
    return loss + logits.masked_select(counted.unsqueeze(1)).float().mean()


def over_tensor_ranks():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cuda", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
    model = Decoder().to("cuda")
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh["data"], mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    return model


def sharded(model, fsdp):
    if fsdp == 1:
        half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
        return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=half, use_orig_params=True,
                                        device_id=torch.cuda.current_device())  # fmt: skip
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


@torch.no_grad()
def teach(teacher, tokens):
    return teacher(tokens[:, :16]).float().mean()


def main(args):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if args.tensor:
        model = over_tensor_ranks()
    else:
        model = Parts(MixedPrecisionPolicy(param_dtype=torch.bfloat16)) if args.parts else sharded(Decoder(), args.fsdp)
    if args.teacher != "none":
        teacher = Decoder().requires_grad_(False)
        teacher = sharded(teacher, args.fsdp) if args.teacher == "sharded" else teacher.to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    judge = torch.nn.Linear(VOCABULARY, 1, device="cuda") if args.turns else None
    turns = torch.optim.SGD(judge.parameters(), lr=1e-4) if args.turns else None
    losses = {"preferences": preferences, "distillation": distillation, "policy": policy, "clipped": clipped, "named": named, "masked": masked, "mean": lambda m, x: m(x).float().mean()}
    loss_of = losses["mean" if args.parts else args.loss]
    for _ in range(10):
        for micro in range(args.accumulate):
            last = micro + 1 == args.accumulate
            if args.fsdp == 2 and not args.parts:
                model.set_requires_gradient_sync(last)
            with model.no_sync() if args.fsdp == 1 and not last else contextlib.nullcontext():
                tokens = torch.randint(0, VOCABULARY, (4, 512), device="cuda")
                hint = teach(teacher, tokens) if args.teacher_first else 0.0
                loss = loss_of(model, tokens)
                if args.teacher != "none" and not args.teacher_first:
                    hint = teach(teacher, tokens)
                loss = loss + hint
                if args.zero == "after_forward" and micro == 0:
                    optimizer.zero_grad()
                (loss / args.accumulate).backward()
        optimizer.step()
        if args.zero != "after_forward":
            optimizer.zero_grad(set_to_none=args.zero != "keep")
        if args.turns:
            judge(torch.randn(4, VOCABULARY, device="cuda")).mean().backward()
            turns.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fsdp", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--teacher", default="none")
    parser.add_argument("--turns", action="store_true")
    parser.add_argument("--tensor", action="store_true")
    parser.add_argument("--teacher-first", action="store_true")
    parser.add_argument("--zero", default="before")
    parser.add_argument("--loss", default="preferences")
    main(parser.parse_args())
