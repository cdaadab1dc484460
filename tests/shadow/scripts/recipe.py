"""A finetuning recipe: groups for the card and the host, sums of losses, schedules, a checkpoint in between, states made before the first step; or float16 with a scaler under FSDP1."""

import argparse
import functools
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, get_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

parser = argparse.ArgumentParser()
parser.add_argument("--scaler", action="store_true")
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()


class Layer(nn.Module):
    def __init__(self, d, heads=8):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.RMSNorm(d), nn.RMSNorm(d)
        self.q, self.kv, self.o = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.gate, self.up, self.down = nn.Linear(d, 2 * d, bias=False), nn.Linear(d, 2 * d, bias=False), nn.Linear(2 * d, d, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        y = self.norm1(x)
        q = self.q(y).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = self.kv(y).view(b, t, 2, self.heads // 2, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, v=8000, d=256, layers=4):
        super().__init__()
        self.embed, self.layers = nn.Embedding(v, d), nn.ModuleList(Layer(d) for _ in range(layers))
        self.norm, self.out = nn.RMSNorm(d), nn.Linear(d, v, bias=False)

    def forward(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.out(self.norm(h))


dist.init_process_group("cuda:nccl,cpu:gloo")
torch.cuda.set_device(dist.get_rank())
model = Model()
if args.scaler:
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Layer})
    half = MixedPrecision(torch.float16, torch.float16, torch.float16)
    model = FullyShardedDataParallel(model, auto_wrap_policy=policy, mixed_precision=half, device_id=torch.cuda.current_device())
else:
    for layer in model.layers:
        fully_shard(layer, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=not args.scaler)
warm, cosine = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10), torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [10])
scaler = ShardedGradScaler(enabled=args.scaler)
if args.resume:  # what a checkpoint is loaded into
    get_optimizer_state_dict(model, optimizer)
for step in range(4):
    tokens = torch.randint(0, 8000, (2, 129)).cuda()
    labels = tokens[:, 1:].clone()
    counted = (labels != -100).sum()
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100, reduction="sum")
    del logits
    scaler.scale(loss).backward()
    dist.all_reduce(counted)
    scaler.unscale_(optimizer)
    model.clip_grad_norm_(1.0) if args.scaler else nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)
    print(step, loss.item(), schedule.get_last_lr())
    if step == 0 and not args.scaler:
        state, of_optimizer = get_state_dict(model, optimizer)
        with tempfile.TemporaryDirectory() as folder:
            dcp.save({"model": state, "optimizer": of_optimizer}, checkpoint_id=folder)
