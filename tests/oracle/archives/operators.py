#!/usr/bin/env python3
"""Every operator of PyTorch's own test samples (OpInfo) as an archive: real allocations against predicted ones.

    operators.py export FOLDER [REGEX]                  one small .pt2 a sample (needs expecttest beside torch)
    operators.py truth FOLDER ROWS.jsonl [REGEX]        forward and backward on the virtual GPU (LD_PRELOAD=libfakegpu.so FAKEGPU_DEVICES=1)
    operators.py compare FOLDER ROWS.jsonl FORESHARD    peak and end of forward and backward, byte by byte

Floating arguments are parameters times one, so that autograd runs through all of them; the loss sums what comes out. A crash of the virtual device (kernels compiled at
run time) loses no rows: `truth` goes on behind the last sample that it has noted.
"""

import collections
import json
import os
import re
import subprocess
import sys
import warnings

import torch
from torch.utils import _pytree as pytree

warnings.filterwarnings("ignore")


class Sample(torch.nn.Module):
    def __init__(self, op, flat, spec):
        super().__init__()
        self.op, self.spec = op, spec
        self.flat = [None if isinstance(t, torch.Tensor) else t for t in flat]
        self.kinds = ["number"] * len(flat)
        self.own = torch.nn.Parameter(torch.zeros(1))
        for i, t in enumerate(flat):
            if not isinstance(t, torch.Tensor):
                continue
            self.kinds[i] = "input"
            if t.is_floating_point() or t.is_complex():
                self.register_parameter(f"p{i}", torch.nn.Parameter(t.detach().clone()))
                self.kinds[i] = "parameter"

    def forward(self, *inputs):
        return self.own.sum() + self.total(self.results(inputs))

    def total(self, outs):
        if not outs:
            return self.own.sum()
        if len(outs) == 1:
            return self.one(outs.pop())
        return self.one(outs.pop()) + self.total(outs)

    def one(self, out):
        return torch.view_as_real(out).sum() if out.is_complex() else out.sum()

    def results(self, inputs):
        out = self.call(self.arguments(inputs))
        return [
            o
            for o in pytree.tree_leaves(out)
            if isinstance(o, torch.Tensor) and (o.is_floating_point() or o.is_complex()) and o.requires_grad
        ]

    def call(self, flat):
        args, kwargs = pytree.tree_unflatten(flat, self.spec)
        return self.op(*args, **kwargs)

    def arguments(self, inputs):
        given, flat = iter(inputs), []
        for i, t in enumerate(self.flat):
            if self.kinds[i] == "parameter":
                t = getattr(self, f"p{i}") * 1.0
            elif self.kinds[i] == "input":
                t = next(given)
            flat.append(t)
        return flat


def samples(only):
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        name = (op.name + ("." + op.variant_test_name if op.variant_test_name else "")).replace("/", "_")
        if only and not re.search(only, name):
            continue
        dtype = next((d for d in (torch.float32, torch.complex64) if d in op.dtypes), torch.int64)
        try:
            torch.manual_seed(0)
            given = list(op.sample_inputs("cpu", dtype, requires_grad=False))
        except Exception:
            continue
        for k in sorted({0, len(given) // 2, len(given) - 1}) if given else []:
            flat, spec = pytree.tree_flatten(((given[k].input,) + tuple(given[k].args), dict(given[k].kwargs)))
            if not any(isinstance(t, torch.Tensor) and t.numel() == 0 for t in flat):
                yield f"{name}-{k}", op.op, flat, spec


def export(folder, only):
    os.makedirs(folder, exist_ok=True)
    done = collections.Counter()
    for name, op, flat, spec in samples(only):
        try:
            module = Sample(op, flat, spec)
            inputs = tuple(t for t, kind in zip(flat, module.kinds) if kind == "input")
            torch.export.save(torch.export.export(module, inputs, strict=False), f"{folder}/{name}.pt2")
            done["exported"] += 1
        except Exception:
            done["not exported"] += 1
    print(dict(done))


def step(module, given):
    allocated = torch.cuda.memory_allocated
    base = allocated()
    torch.cuda.reset_peak_memory_stats()
    inputs = [t.clone() for t in given]
    loss = module(*inputs)
    out = [torch.cuda.max_memory_allocated() - base, allocated() - base]
    torch.cuda.reset_peak_memory_stats()
    loss.backward()
    return out + [torch.cuda.max_memory_allocated() - base, allocated() - base]


def truth(folder, rows, only):
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    warm = torch.zeros(8, 8, device="cuda", requires_grad=True)
    (warm @ warm).sum().backward()  # cuBLAS's workspaces
    del warm
    known = {json.loads(line)["id"] for line in open(rows)} if os.path.exists(rows) else set()
    with open(rows, "a") as file:
        for name, op, flat, spec in samples(only):
            if name in known or not os.path.exists(f"{folder}/{name}.pt2"):
                continue
            row = {"id": name, "error": "the process ended"}
            place = file.tell()
            file.write(json.dumps(row) + "\n")
            file.flush()
            try:
                there = [t.to("cuda") if isinstance(t, torch.Tensor) else t for t in flat]
                there = [torch.device("cuda") if isinstance(t, torch.device) else t for t in there]
                module = Sample(op, there, spec).to("cuda")
                inputs = tuple(t for t, kind in zip(there, module.kinds) if kind == "input")
                del there
                step(module, inputs)
                for p in module.parameters():
                    p.grad = None
                row = {"id": name, "bytes": step(module, inputs)}
            except Exception as error:
                row = {"id": name, "error": str(error).splitlines()[0][:200]}
            file.seek(place)
            file.truncate()
            file.write(json.dumps(row) + "\n")
            file.flush()


def compare(folder, rows, program):
    loop = '[["fwd","bwd","step","zero"],["fwd","bwd","step","zero"]]'
    settings = (
        "fsdp.runtime=none", "cluster.world_size=1", "cluster.ranks_per_node=1", "cluster.profile=virtual", "fsdp.mixed_precision=none",
        "train.clip_grad_norm=0", "train.optimizer.name=sgd", f"train.script={loop}",
    )  # fmt: skip
    counts, unknown = collections.Counter(), collections.Counter()
    for line in open(rows):
        row = json.loads(line)
        if "bytes" not in row:
            counts["not run"] += 1
            continue
        flags = [word for setting in settings for word in ("--set", setting)]
        done = subprocess.run([program, "simulate", f"{folder}/{row['id']}.pt2", *flags, "--json"], capture_output=True, text=True)
        said = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        if "iterations" not in said:
            counts["refused"] += 1
            continue
        unknown.update(said["unknown_ops"])
        base = said["iterations"][0]["end_allocated_bytes"]
        phases = {p["name"]: p for p in said["iterations"][1]["phases"]}
        got = [phases[n][k] - base for n in ("forward", "backward") for k in ("peak_allocated_bytes", "end_allocated_bytes")]
        verdict = "unknown" if said["unknown_ops"] else "equal" if got == row["bytes"] else "kept equal" if got[1] == row["bytes"][1] else "differs"
        counts[verdict] += 1
        if verdict != "equal":
            print(row["id"], "expected", row["bytes"], "got", got, *said["unknown_ops"])
    print(dict(counts))
    print(unknown.most_common())


if __name__ == "__main__":
    verb, folder, *rest = sys.argv[1:]
    if verb == "export":
        export(folder, rest[0] if rest else None)
    elif verb == "truth":
        truth(folder, rest[0], rest[1] if len(rest) > 1 else None)
    else:
        compare(folder, rest[0], rest[1])
