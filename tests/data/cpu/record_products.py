"""Records what a bfloat16 product of matrices allocates beside its result on this CPU (LibTorch's CPU kernels).
usage: [ONEDNN_MAX_CPU_ISA=...] record.py ISA   prints isa, threads, batch, m, n, k, a, b (n: as stored, t: transposed), bytes
"""
import random
import sys

import torch
from torch.profiler import ProfilerActivity, profile


def beside(run):
    run()  # what is made once only
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = run()
    taken = [e.nbytes() for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    return sum(b for b in taken if b > 0) - result.numel() * result.itemsize


def matrix(batch, rows, columns, transposed):
    shape = ([batch] if batch > 1 else []) + ([columns, rows] if transposed else [rows, columns])
    made = torch.zeros(shape, dtype=torch.bfloat16)
    return made.transpose(-1, -2) if transposed else made


random.seed(7)
shapes = [(1, 64, 96, 32), (1, 37, 70, 50), (1, 512, 1024, 256), (1, 4, 64, 64), (1, 100, 300, 7), (4, 32, 32, 16), (8, 128, 128, 64),
          (1, 1024, 64, 4096), (1, 48, 1024, 2048), (1, 64, 96, 8192), (1, 1280, 512, 512), (1, 1024, 2752, 128)]
for _ in range(28):
    batch = random.choice([1, 1, 1, 2, 6])
    shapes.append((batch, *(random.choice([random.randint(2, 40), random.randint(20, 300), 16 * random.randint(1, 60)]) for _ in range(3))))
for threads in (1, 2, 4):
    torch.set_num_threads(threads)
    for batch, m, n, k in shapes:
        for a in "nt":
            for b in "nt":
                left, right = matrix(batch, m, k, a == "t"), matrix(batch, k, n, b == "t")
                print(sys.argv[1], threads, batch, m, n, k, a, b, beside(lambda: torch.matmul(left, right) if batch == 1 else torch.bmm(left, right)), sep="\t", flush=True)
