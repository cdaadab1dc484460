#!/usr/bin/env python3
"""Records `models/operators.py` with real PyTorch on the virtual GPU: rows of kind `captured` that carry their model.

    record_operators.py OUT.jsonl.gz [--lib libfakegpu.so]
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]

import record_truth  # noqa: E402


def register() -> None:
    import models
    from models import operators

    models.CASES.clear()
    models.CASES.update(operators.cases())
    models.load = lambda: models.CASES


def capture(path: str) -> None:
    """Without the virtual GPU: a child of its own."""
    import models
    import torch

    from foreshard.capture import capture_step

    register()
    torch.backends.cudnn.enabled = False  # as on the virtual device
    with open(path, "w") as file, tempfile.TemporaryDirectory() as folder:
        for name, case in models.load().items():
            with torch.device("meta"):
                module = case.make()
            one = os.path.join(folder, "model.json")
            capture_step(module, models.training_step(case), *case.batch("meta"), strict=False).save(one)
            with open(one) as made:
                file.write(json.dumps({"case": name, "model": json.load(made)}, separators=(",", ":")) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--lib", default=os.path.join(record_truth.ROOT, "build", "release", "lib", "libfakegpu.so"))
    parser.add_argument("--capture", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--record", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.capture:
        return capture(options.out)
    if options.record:
        import torch  # noqa: F401 - once for all children

        register()
        return record_truth.record(options.out, set())
    with tempfile.TemporaryDirectory() as folder:
        rows, captured = os.path.join(folder, "rows.jsonl"), os.path.join(folder, "models.jsonl")
        subprocess.run([sys.executable, __file__, captured, "--capture"], check=True)
        libs = " ".join((options.lib, os.path.join(os.path.dirname(options.lib), "libfakenvrtc.so")))
        on_device = dict(os.environ, LD_PRELOAD=libs, FAKEGPU_DEVICES="8", FAKEGPU_TIME="lazy")
        subprocess.run([sys.executable, __file__, rows, "--record"], check=True, env=on_device)
        with open(captured) as file:
            found = {row["case"]: row["model"] for row in map(json.loads, file)}
        with open(rows) as file, gzip.GzipFile(options.out, "wb", 9, mtime=0) as out:
            for row in map(json.loads, file):
                row["model"] = found[row["id"].split("-fsdp")[0]]
                out.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")


if __name__ == "__main__":
    main()
