"""The models of `models/` captured, predicted, and compared with what real PyTorch did (data/truth.jsonl.gz).

FORESHARD_ORACLE names the program that compares; without it there is nothing to test (77: skipped).
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]

SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

# A capture takes half a second, and FSDP1, FSDP2 and each precision want one of their own: one of them for each model, not the same for all,
# or all of them with FORESHARD_ALL_MODELS=1.
EVERY_PROGRAM = bool(os.environ.get("FORESHARD_ALL_MODELS"))


def program_of(row: str) -> str:
    return "-".join(json.loads(row)["id"].split("-")[:3])


def one_of_each_model(programs: set[str]) -> set[str]:
    of = {}
    for program in sorted(programs):
        of.setdefault(program.split("-")[0], []).append(program)
    return {some[place % len(some)] for place, (_, some) in enumerate(sorted(of.items()))}


def as_recorded(case):
    """The device that recorded computes nothing: where a script reads values, it has read zeros, constants' too."""
    if case.options.get("strict", True):
        return contextlib.nullcontext()
    return mock.patch("foreshard.capture.known.KnownValues.compute", lambda *args: None)


def capture_all(folder: str, wanted: set[str]) -> None:
    """What a model computes in, by version: FSDP1 casts buffers, FSDP2 the floating arguments of every unit. `wanted`: as the
    rows' ids begin; what is done to the same program, the row says."""
    import models
    import torch

    from foreshard.capture import capture_step

    torch.backends.cudnn.enabled = False  # as on the virtual device
    for name, case in models.load().items():
        for precision in SHORT:
            if not any(f"{name}-fsdp{version}-{SHORT[precision]}" in wanted for version in (1, 2)):
                continue
            with torch.device("meta"):
                module = case.make()
            for version in case.options.get("versions", (1, 2)):
                if (file := f"{name}-fsdp{version}-{SHORT[precision]}") not in wanted:
                    continue
                low = precision != "float32"
                mixed = {"param": precision} if low else {}
                if low:
                    mixed |= {"buffer": precision} if version == 1 else {"units": case.wrap}
                with as_recorded(case), models.among_ranks(case):
                    model = capture_step(
                        module,
                        models.training_step(case),
                        *case.batch("meta"),
                        mixed_precision=mixed,
                        strict=case.options.get("strict", True),
                    )
                model.save(os.path.join(folder, file + ".json"))


class Truth(unittest.TestCase):
    def test_predictions_are_what_pytorch_did(self):
        with tempfile.TemporaryDirectory() as folder:
            with gzip.open(os.path.join(HERE, "data", "truth.jsonl.gz"), "rt") as file:
                rows = [line for line in file if line.strip()]
            programs = {program_of(row) for row in rows}
            if not EVERY_PROGRAM:
                programs = one_of_each_model(programs)
                rows = [row for row in rows if program_of(row) in programs]
            capture_all(folder, programs)
            said = self.compare(folder, rows)
            self.assertIn(f"{len(rows)} passed, 0 failed, 0 skipped", said)
            # All peaks of all steps, in per cent.
            means = dict(re.findall(r"^(peak \w+) +mean ([0-9.]+) %", said, re.MULTILINE))
            self.assertLess(float(means["peak allocated"]), 0.1, said)
            self.assertLess(float(means["peak reserved"]), 1.0, said)

    def compare(self, folder: str, rows: list[str]) -> str:
        path = os.path.join(folder, "rows.jsonl")
        with open(path, "w") as file:
            file.writelines(rows)
        models = [os.path.join(folder, f) for f in sorted(os.listdir(folder)) if f.endswith(".json")]
        done = subprocess.run(
            [os.environ["FORESHARD_ORACLE"], "captured", *models, path], capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr


if __name__ == "__main__":
    if not os.path.exists(os.environ.get("FORESHARD_ORACLE", "")):
        print("skipped: FORESHARD_ORACLE names no program")
        sys.exit(77)
    unittest.main()
