"""A decoder trained as it should be, with one thing wrong for each flag: what `foreshard diagnose` is asked to name. Made for a
virtual device: sizes are a card's, values are never looked at."""

import argparse
import functools
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.data import DataLoader, Dataset


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        width = args.width
        self.args = args
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (-1, 128)).transpose(1, 2) for each in self.qkv(self.norm_1(x)).chunk(3, dim=-1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.norm_2(x))))
        if self.args.item and x.abs().max().item() > 1e4:
            print("large")
        if self.args.mask:
            x = x * (x[:, :, 0] > 0).nonzero().size(0)
        if self.args.reduce:
            for _ in range(4):
                total = x.detach().clone()
                dist.all_reduce(total)
                x = x + 0 * total
        if self.args.float_casts:
            for _ in range(4):
                x = x.float().to(x.dtype)
        return x


class Head(nn.Linear):
    def __init__(self, width, vocabulary, upcast):
        super().__init__(width, vocabulary, bias=False)
        self.upcast = upcast

    def forward(self, x):
        return F.linear(x.float(), self.weight.float()) if self.upcast else super().forward(x)


class Decoder(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.embedding = nn.Embedding(args.vocabulary, args.width)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.norm = nn.RMSNorm(args.width)
        self.head = Head(args.width, args.vocabulary, args.head_float32)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Text(Dataset):
    """Made beforehand, or slowly one by one."""

    def __init__(self, args):
        self.args = args
        self.row = torch.zeros(args.seq, args.features or 1, dtype=torch.int64).squeeze(-1)

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        if self.args.slow_loader:
            time.sleep(self.args.slow_loader / 1e3 / self.args.batch)
        return self.row


def sharded1(model, args):
    precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    prefetch = None if args.no_prefetch else BackwardPrefetch.BACKWARD_PRE
    model = FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy({Block, nn.Embedding}), mixed_precision=precision, backward_prefetch=prefetch, use_orig_params=True,
        device_id=torch.cuda.current_device(), cpu_offload=CPUOffload(args.offload), limit_all_gathers=not args.no_limit, forward_prefetch=True,
        param_init_fn=lambda module: module.to_empty(device="cuda", recurse=False),
    )  # fmt: skip
    if args.checkpoint_outside:  # its forward has no graph: what is gathered for the recomputation goes before backward needs it
        blocks = model.module.blocks
        for i, block in enumerate(blocks):
            blocks[i] = checkpoint_wrapper(block, checkpoint_impl=CheckpointImpl.REENTRANT)
    return model


def sharded2(model, args):
    policy = MixedPrecisionPolicy() if args.float32 else MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options = {"mp_policy": policy}
    if args.offload or args.offload_pageable:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=not args.offload_pageable)
    shard = functools.partial(fully_shard, **options)
    if not args.no_units:
        for block in model.blocks:
            if args.small_units:
                for part in (block.qkv, block.out, block.up, block.down):
                    shard(part)
            shard(block)
        if not args.root:
            shard(model.embedding)
            shard(model.head)
    shard(model)
    if args.no_prefetch:  # each prefetches itself: none comes early
        for block in model.blocks:
            block.set_modules_to_backward_prefetch([block])
    model.to_empty(device="cpu" if args.offload or args.offload_pageable else "cuda")
    return model


def loss_of(model, tokens, args, kept):
    logits = model(tokens)
    if args.keep_logits:
        kept.append(logits)
    if args.float_loss:
        return F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def main(args):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    with torch.device("meta"):
        model = Decoder(args)
    if args.checkpoint:
        model.blocks = nn.ModuleList(checkpoint_wrapper(block, checkpoint_impl=CheckpointImpl.NO_REENTRANT) for block in model.blocks)
    model = sharded1(model, args) if args.fsdp == 1 else sharded2(model, args)
    impl = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}[args.optimizer]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **impl)
    batches = iter(DataLoader(Text(args), batch_size=args.batch, pin_memory=not args.pageable, num_workers=0))
    kept = []
    for step in range(args.steps):
        tokens = next(batches).to("cuda", non_blocking=not args.pageable)
        if tokens.dim() == 3:
            tokens = tokens[:, :, 0]
        if args.lengths:
            tokens = tokens[:, : args.seq - args.lengths * (2 - step % 3)]
        if args.late_rank == dist.get_rank():
            tokens = tokens.repeat(2, 1)
        for _ in range(args.accumulate):
            loss = loss_of(model, tokens, args, kept)
            loss.backward()
        if args.fsdp == 2 and not args.no_clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if args.empty_cache:
            torch.cuda.empty_cache()
        if args.log:
            print(f"step {step}: {loss.item()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    numbers = {"fsdp": 2, "width": 4096, "layers": 8, "vocabulary": 8192, "seq": 4096, "batch": 2, "steps": 5, "accumulate": 1, "slow_loader": 0,
               "features": 0, "late_rank": -1, "lengths": 0}  # fmt: skip
    for name, value in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--optimizer", default="fused")
    for name in ("item", "mask", "reduce", "float-casts", "head-float32", "float32", "float-loss", "no-units", "small-units", "root", "no-prefetch",
                 "no-limit", "checkpoint", "checkpoint-outside", "offload", "offload-pageable", "pageable", "keep-logits", "empty-cache", "no-clip", "log"):  # fmt: skip
        parser.add_argument(f"--{name}", action="store_true")
    main(parser.parse_args())
