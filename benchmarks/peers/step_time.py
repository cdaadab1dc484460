#!/usr/bin/env python3
"""Step time of `foreshard run` against PyTorch FSDP1 and FSDP2: same model, optimizer, threads and ranks, taking turns.

step_time.py --foreshard build/release/bin/foreshard --python build/torch-venv/bin/python [--preset wide deep] [--rounds 3]

The programs run one after another, round by round, so that a disturbance of the machine hits all alike; of each the steps
of all rounds are one sample. Printed: medians, the ratio to the faster PyTorch, and what recording costs. Targets: 1.00
where compute dominates (wide), 0.80 where the host does (deep).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TARGET = {"wide": 1.00, "deep": 0.80}


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def pytorch(a, preset, impl):
    script = a.peer or HERE / "pytorch_fsdp.py"
    text = run([a.python, script, "--impl", impl, "--preset", preset, "--world", str(a.world), "--steps", str(a.steps),
                "--warmup", str(a.warmup)])
    result = json.loads(text)
    # Scripts that keep no single times give their median.
    return result.get("step_time_ns") or [result["step_ms"]["median"] * 1e6]


def foreshard(a, job, runtime, timeline=None):
    command = [a.foreshard, "run", job, "--nproc", str(a.world), "--json", "--quiet", "--set", f"fsdp.runtime={runtime}"]
    if timeline:
        command += ["--timeline", timeline]
    lines = [json.loads(line) for line in run(command).splitlines() if line.startswith("{")]
    return [line["step_time_ns"] for line in lines if "step" in line][a.warmup:]


JOB = """[model]
source = "{folder}/model.pt2"
loss = "none"
[fsdp.wrap]
classes = ["Layer"]
[fsdp.mixed_precision]
param = "none"
reduce = "none"
[train]
steps = {steps}
clip_grad_norm = 0.0
optimizer = {{name = "adamw", lr = 1e-3, betas = [0.9, 0.95], eps = 1e-8, weight_decay = 0.1}}
[cluster]
profile = "cpu-host"
world_size = {world}
ranks_per_node = {world}
"""


def compare(a, preset, folder):
    run([a.python, HERE / "pytorch_fsdp.py", "--preset", preset, "--save", folder])
    job = folder / "job.toml"
    job.write_text(JOB.format(folder=folder, steps=a.steps + a.warmup, world=a.world))
    times = {name: [] for name in ("fsdp1", "fsdp2", "foreshard fsdp1", "foreshard fsdp2", "recording")}
    for _ in range(a.rounds):
        times["fsdp1"] += pytorch(a, preset, "fsdp1")
        times["foreshard fsdp2"] += foreshard(a, job, "fsdp2")
        times["fsdp2"] += pytorch(a, preset, "fsdp2")
        times["recording"] += foreshard(a, job, "fsdp2", folder / "run.fst")
        times["foreshard fsdp1"] += foreshard(a, job, "fsdp1")
    result = {name: {"median_ms": statistics.median(t) / 1e6, "min_ms": min(t) / 1e6} for name, t in times.items()}
    best = min(("fsdp1", "fsdp2"), key=lambda name: result[name]["median_ms"])
    for name, row in result.items():
        print(f"{preset:6} {name:16} median {row['median_ms']:8.2f} ms  min {row['min_ms']:8.2f} ms  "
              f"ratio to the faster peer {row['median_ms'] / result[best]['median_ms']:.2f} "
              f"(of minima {row['min_ms'] / result[best]['min_ms']:.2f})")
    cost = result["recording"]["min_ms"] / result["foreshard fsdp2"]["min_ms"] - 1
    print(f"{preset:6} target {TARGET[preset]:.2f}; recording costs {100 * cost:+.1f} % of the shortest step")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--foreshard", type=pathlib.Path, default=HERE / "../../build/release/bin/foreshard")
    parser.add_argument("--python", default=str(HERE / "../../build/torch-venv/bin/python"))
    parser.add_argument("--peer", default=os.environ.get("FORESHARD_PEER"),
                        help="another script with the flags of pytorch_fsdp.py (also $FORESHARD_PEER)")
    parser.add_argument("--preset", nargs="+", choices=TARGET, default=list(TARGET))
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    a = parser.parse_args()
    for preset in a.preset:
        with tempfile.TemporaryDirectory() as folder:
            compare(a, preset, pathlib.Path(folder))


if __name__ == "__main__":
    main()
