#!/usr/bin/env python3
"""A grid of plans on this process's threads, on a process pool and on a local Dask cluster of which a worker is killed.

    executor_sweep.py [--plans 100000] [--workers 2] [--kill-after SECONDS] [--only threads,pool,dask,killed]

Needs the package (FORESHARD_PACKAGE names a build tree's) and, for Dask, `pip install distributed`. Prints a table.
"""
from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor

if package := os.environ.get("FORESHARD_PACKAGE"):
    sys.path.insert(0, package)
    os.environ["PYTHONPATH"] = package
HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "..", "..", "examples", "llama-3-8b", "config.json")
JOB = {"fsdp.runtime": "fsdp2", "cluster.world_size": 64, "cluster.memory": "400GiB"}
# 100,000 combinations, all of them plans that differ.
AXES = {
    "model.batch": list(range(1, 11)), "model.seq": [128 * k for k in range(1, 21)], "fsdp.reshard_after_forward": [True, False],
    "checkpointing.policy": ["none", "block"], "fsdp.prefetch.forward_depth": list(range(5)),
    "fsdp.prefetch.backward_depth": list(range(5)), "cluster.world_size": [8, 16, 32, 64, 128],
}  # fmt: skip


def grid(plans: int) -> dict[str, list]:
    """The axes, the first of them shortened until there are about so many combinations."""
    chosen, count = {}, 1
    for key in reversed(AXES):
        length = max(1, min(len(AXES[key]), plans // count))
        chosen[key] = AXES[key][:length]
        count *= length
    return chosen


def told(sweep) -> str:
    """What does not hang on how long it took."""
    return json.dumps({k: v for k, v in sweep.document.items() if k not in ("seconds", "parts")}, sort_keys=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill-after", type=float, default=0.0, help="seconds; 0: a third of what Dask took")
    parser.add_argument("--only", default="threads,pool,dask,killed")
    options = parser.parse_args()
    import foreshard as fs

    over, only = grid(options.plans), options.only.split(",")
    parts = max(8 * options.workers, options.plans // 1000)
    rows, first = [], None

    def measure(name: str, **how) -> float:
        nonlocal first
        began = time.monotonic()
        sweep = fs.sweep(MODEL, JOB, over, **how)
        seconds, text = time.monotonic() - began, told(sweep)
        first = first or text
        rows.append((name, len(sweep.points), seconds, len(sweep.points) / seconds, "same" if text == first else "OTHER"))
        print("| {} | {:,} | {:.1f} s | {:,.0f} | {} |".format(*rows[-1]), flush=True)
        return seconds

    print("| on | plans | time | plans a second | bytes |\n|---|---|---|---|---|")
    if "threads" in only:
        measure(f"threads of this process ({options.workers})", threads=options.workers)
    if "pool" in only:
        with ProcessPoolExecutor(options.workers) as pool:
            measure(f"process pool ({options.workers})", executor=pool, parts=parts)
    if "dask" in only or "killed" in only:
        from dask.distributed import Client, LocalCluster

        with LocalCluster(options.workers, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
            seconds = measure(f"Dask ({options.workers} workers)", executor=client.get_executor(), parts=parts)
            if "killed" in only:
                victim = next(iter(client.run(os.getpid).values()))
                threading.Timer(options.kill_after or seconds / 3, os.kill, (victim, 9)).start()
                measure(f"Dask ({options.workers} workers, one killed)", executor=client.get_executor(), parts=parts)
    sys.exit(any(row[-1] != "same" for row in rows))


if __name__ == "__main__":
    main()
