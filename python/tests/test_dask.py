"""A grid on a local Dask cluster of two workers, of which one is killed: nothing is lost, the bytes are one machine's.

FORESHARD_PACKAGE names the folder of the package with its core. Skipped (77) without it or without `distributed`, which
scripts/setup-package installs.
"""

from __future__ import annotations

import os
import sys
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
if package := os.environ.get("FORESHARD_PACKAGE"):
    sys.path.insert(0, package)
    os.environ["PYTHONPATH"] = package  # the workers' too
LLAMA = os.path.join(os.path.dirname(os.path.dirname(HERE)), "examples", "llama-3-8b", "config.json")
JOB = {"fsdp": {"runtime": "fsdp2"}, "cluster": {"world_size": 16, "memory": "400GiB"}}
OVER = {
    "model.seq": [128 * k for k in range(1, 11)], "fsdp.prefetch.forward_depth": [0, 1, 2],
    "fsdp.reshard_after_forward": [True, False], "cluster.world_size": [8, 16],
}  # fmt: skip
PARTS = 24


def told(sweep) -> dict:
    """What does not hang on how long it took and into how many parts it was cut."""
    return {key: value for key, value in sweep.document.items() if key not in ("seconds", "parts")}


class Watched:
    """Dask's executor; says when the first part is done."""

    def __init__(self, executor, on_first):
        self.executor, self.done, self.on_first = executor, threading.Event(), on_first
        self.submitted = 0

    def submit(self, *args, **kwargs):
        self.submitted += 1
        future = self.executor.submit(*args, **kwargs)
        future.add_done_callback(self.first)
        return future

    def first(self, _):
        if not self.done.is_set():
            self.done.set()
            self.on_first()


class Cluster(unittest.TestCase):
    def test_a_killed_worker_loses_nothing(self):
        with LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
            workers = client.run(os.getpid)
            self.assertEqual(len(workers), 2)
            victim = next(iter(workers.values()))
            executor = Watched(client.get_executor(), lambda: os.kill(victim, 9))
            spread = fs.sweep(LLAMA, JOB, OVER, executor=executor, parts=PARTS)
            self.assertTrue(executor.done.is_set())
            self.assertNotIn(victim, client.run(os.getpid).values())
        self.assertGreaterEqual(executor.submitted, PARTS)
        self.assertEqual(len(spread.points), 120)
        self.assertEqual(told(spread), told(fs.sweep(LLAMA, JOB, OVER)))


if __name__ == "__main__":
    try:
        import foreshard as fs
        from dask.distributed import Client, LocalCluster

        fs.plan  # noqa: B018 - the package without its core says so here
    except ImportError as missing:
        print(f"skipped: {missing} (scripts/setup-package installs what is missing)")
        sys.exit(77)
    unittest.main()
