#!/usr/bin/env python3
"""Models that are code: foreshard runs it and plans what it has captured.

own_code_test.py FORESHARD PYTHON. Exit code 77 (a visible skip in ctest) where PYTHON has no torch; a model of
transformers is captured only where that is installed, and named when it is not.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

OWN = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(64) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()

def build(batch, seq=32):
    print("what a script prints is no answer")
    return Net(), (torch.empty(batch, seq, 64),)
"""
GEMMA3 = {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128}
JOB = ["--set", "cluster.world_size=2", "--set", "cluster.ranks_per_node=2", "--set", "fsdp.mixed_precision=none", "--set", "fsdp.wrap.policy=auto"]


class Program:
    def __init__(self, foreshard, python, cache):
        self.foreshard, self.python = foreshard, python
        self.environment = dict(os.environ, FORESHARD_PYTHON=python, FORESHARD_CACHE=str(cache))
        self.environment.pop("FORESHARD_CAPTURE_DEVICE", None)

    def __call__(self, *arguments, expect=0, **environment):
        run = subprocess.run([self.foreshard, *arguments, "--json"], capture_output=True, text=True, env=self.environment | environment)
        assert run.returncode == expect, f"{arguments}: exit code {run.returncode}\n{run.stdout[-1000:]}\n{run.stderr[-1000:]}"
        return json.loads(run.stdout), run.stderr


def memory_of(answer):
    return answer["memory"]["peak_allocated_bytes"]


def own_function(program, here):
    (here / "net.py").write_text(OWN)
    name = str(here / "net.py") + ":build"
    answer, notes = program("simulate", name, *JOB, "--set", "model.batch=4")
    assert notes.count("captured by its own code") == 1, notes
    # The same by hand: the module of the package, then the file.
    root = pathlib.Path(__file__).resolve().parents[2] / "python"
    subprocess.run([program.python, "-m", "foreshard.from_code", name, "--batch", "4", "-o", str(here / "m.json")], check=True, capture_output=True,
                   env=dict(program.environment, PYTHONPATH=str(root)))
    by_hand, _ = program("simulate", str(here / "m.json"), *JOB)
    assert memory_of(by_hand) == memory_of(answer), (memory_of(by_hand), memory_of(answer))
    small, _ = program("simulate", name, *JOB)
    assert memory_of(small) < memory_of(answer), "the batch is that of the job"
    # In a job file, beside it.
    (here / "job.toml").write_text('[model]\nsource = "net.py:build"\nbatch = 4\n[cluster]\nworld_size = 2\nranks_per_node = 2\n'
                                   '[fsdp]\nmixed_precision = "none"\nwrap = {policy = "auto"}\n')
    of_job, _ = program("simulate", str(here / "job.toml"))
    assert memory_of(of_job) == memory_of(answer)
    swept, _ = program("sweep", name, *JOB, "--over", "model.batch=1,2,4")
    assert len(swept["points"]) == 3 and not any(p.get("refused") for p in swept["points"])
    for wrong, says in ((str(here / "net.py") + ":nothing", "nothing"), (str(here / "absent.py") + ":build", "absent.py")):
        error, _ = program("simulate", wrong, *JOB, expect=3)
        assert says in error["error"]["message"], error
    print("a function of a file: captured, planned, swept")


def library(program, here):
    folder = here / "gemma3"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(GEMMA3))
    answer, notes = program("simulate", str(folder), *JOB, "--set", "model.seq=64")
    assert "captured by its own code" in notes
    again, notes = program("simulate", str(folder), *JOB, "--set", "model.seq=64")
    assert "captured" not in notes and memory_of(again) == memory_of(answer), "kept between calls"
    longer, _ = program("simulate", str(folder), *JOB, "--set", "model.seq=128")
    assert memory_of(longer) > memory_of(answer)
    print("transformers: a family that is not built is captured, and kept")


def main():
    foreshard, python = sys.argv[1], sys.argv[2]

    def has(module):
        return subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0

    with tempfile.TemporaryDirectory() as folder:
        here = pathlib.Path(folder)
        program = Program(foreshard, python, here / "cache")
        config = here / "config.json"
        config.write_text(json.dumps({"model_type": "nobody_builds_this"}))
        error, _ = program("simulate", str(config), expect=3, FORESHARD_PYTHON=str(here / "no-python"))
        assert "not built" in error["error"]["message"] and "FORESHARD_PYTHON" in error["error"]["hint"], error
        if not has("torch"):
            print(f"skipped: {python} has no torch")
            return 77
        error, _ = program("simulate", str(config), expect=3)
        assert "not built" in error["error"]["message"], error
        own_function(program, here)
        if has("transformers"):
            library(program, here)
        else:
            assert "transformers" in error["error"]["message"], error
            print("no transformers: its models are left out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
