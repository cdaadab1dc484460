#!/usr/bin/env python3
"""Trains a small Llama with PyTorch FSDP1 or FSDP2: the peer that the executor is measured against. On CPUs over Gloo, or
(--device cuda) on GPUs over NCCL in bf16 with float32 reductions and the fused AdamW.

pytorch_fsdp.py --impl fsdp2 --preset wide --steps 20     prints one JSON object: step times of rank 0, first and last loss
pytorch_fsdp.py --preset wide --save DIR                  writes DIR/model.pt2, the same model for `foreshard run`

Needs torch 2.11 (build/torch-venv/bin/python has it). Ranks are processes with one compute thread each, as torchrun sets
them; every step begins with a barrier outside of its time.
"""
import argparse
import json
import os
import pathlib
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.nn.functional as F

PRESETS = {
    "wide": dict(layers=4, hidden=256, heads=8, ffn=688, vocab=1024, seq=128, batch=4),
    "deep": dict(layers=12, hidden=128, heads=4, ffn=344, vocab=512, seq=64, batch=2),
    # As many parameters as GPT-2 (124M), whose head is its embedding: here each has half the rows.
    "gpt2": dict(layers=12, hidden=768, heads=12, ffn=2048, vocab=25128, seq=256, batch=1),
    "gpu": dict(layers=16, hidden=2048, heads=16, ffn=5632, vocab=32000, seq=2048, batch=2),
}


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rotate(x, cos, sin):
    left, right = x.chunk(2, -1)
    return x * cos.type_as(x) + torch.cat((-right, left), -1) * sin.type_as(x)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        dim, self.heads = c["hidden"], c["heads"]
        self.input_norm, self.post_norm = Norm(dim), Norm(dim)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.gate_proj, self.up_proj = (nn.Linear(dim, c["ffn"], bias=False) for _ in range(2))
        self.down_proj = nn.Linear(c["ffn"], dim, bias=False)

    def forward(self, x, cos, sin):
        batch, seq, dim = x.shape
        y = self.input_norm(x)
        q, k, v = (proj(y).view(batch, seq, self.heads, dim // self.heads).transpose(1, 2)
                   for proj in (self.q_proj, self.k_proj, self.v_proj))
        a = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.o_proj(a.transpose(1, 2).reshape(batch, seq, dim))
        y = self.post_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


class Llama(nn.Module):
    """tokens, targets [batch, seq] -> mean cross entropy."""

    def __init__(self, c):
        super().__init__()
        self.embed = nn.Embedding(c["vocab"], c["hidden"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["layers"]))
        self.norm = Norm(c["hidden"])
        self.head = nn.Linear(c["hidden"], c["vocab"], bias=False)
        size = c["hidden"] // c["heads"]
        angle = torch.arange(c["seq"]).float()[:, None] * (1e4 ** (-torch.arange(0, size, 2).float() / size))[None]
        angle = torch.cat((angle, angle), -1)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def batch_of(c, rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    tokens = torch.randint(0, c["vocab"], (c["batch"], c["seq"] + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def wrap(model, impl, world, device, bf16):
    half = dict(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bf16 else {}
    if impl == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        options = dict(mesh=init_device_mesh(device, (world,)), mp_policy=MixedPrecisionPolicy(**half))
        for layer in model.layers:
            fully_shard(layer, **options)
        return fully_shard(model, **options)
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Layer}), device_id=torch.device(device),
                                    mixed_precision=MixedPrecision(**half) if half else None, use_orig_params=True)


def train(rank, a, c, store, path):
    torch.set_num_threads(a.threads)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    cuda = a.device == "cuda"
    if cuda:
        torch.cuda.set_device(rank)
        torch.backends.cuda.enable_cudnn_sdp(not a.no_cudnn)
    dist.init_process_group("nccl" if cuda else "gloo", init_method=f"file://{store}", rank=rank, world_size=a.world)
    torch.manual_seed(0)
    net = wrap(Llama(c).to(a.device), a.impl, a.world, a.device, a.bf16 or cuda)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=cuda or None)
    data = [[part.to(a.device) for part in batch_of(c, rank, step)] for step in range(4)]
    times, losses = [], []
    for step in range(a.warmup + a.steps):
        tokens, targets = data[step % len(data)]
        dist.barrier()
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter_ns()
        loss = net(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if cuda:
            torch.cuda.synchronize()
        if step >= a.warmup:
            times.append(time.perf_counter_ns() - start)
        losses.append(loss.detach())
    if rank == 0:
        result = {"impl": a.impl, "step_time_ns": times, "first_loss": float(losses[0]), "last_loss": float(losses[-1])}
        pathlib.Path(path).write_text(json.dumps(result))
    dist.destroy_process_group()


def save(c, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.export.save(torch.export.export(Llama(c), batch_of(c, 0, 0), strict=False), folder / "model.pt2")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--impl", choices=["fsdp1", "fsdp2"], default="fsdp2")
    parser.add_argument("--preset", choices=PRESETS, default="wide")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--no-cudnn", action="store_true", help="attention by the flash kernel alone")
    parser.add_argument("--bf16", action="store_true", help="gathers and computes in bfloat16, reduces in float32 (on GPUs: always)")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="compute threads of a rank")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--save", metavar="DIR")
    a = parser.parse_args()
    if a.save:
        return save(PRESETS[a.preset], a.save)
    with tempfile.TemporaryDirectory() as folder:
        store, path = os.path.join(folder, "store"), os.path.join(folder, "result")
        mp.spawn(train, args=(a, PRESETS[a.preset], store, path), nprocs=a.world, join=True)
        print(pathlib.Path(path).read_text())


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
