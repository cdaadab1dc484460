#!/usr/bin/env python3
"""How well `simulate` predicts `run` on this machine: calibrates, predicts six plans, runs them in turns, prints the errors.

host_plans.py --foreshard build/release/bin/foreshard [--shape wide deep] [--rounds 3] [--steps 20] [--json FILE]

Targets (quiet machine): every step time within 10 %, the six in the right order (rank correlation 1). Each round runs all
plans one after another, so that a disturbance hits all alike; of a plan the steps of all rounds are one sample, its
median is compared. The calibration is repeated in every round and its predictions are averaged: what the machine did
while it was calibrated counts for as much as what it did while it ran.
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

SHAPES = {
    "wide": dict(layers=4, hidden=256, heads=8, ffn=688, vocab=1024, seq=128, batch=4),
    "deep": dict(layers=12, hidden=128, heads=4, ffn=344, vocab=512, seq=64, batch=2),
}

# What differs from fsdp2 with its defaults. All of them run the operators that were calibrated.
PLANS = {
    "fsdp2": [],
    "fsdp2, kept gathered": ["fsdp.reshard_after_forward=false"],
    "fsdp2, recomputed": ["checkpointing.policy=block"],
    "fsdp1": ["fsdp.runtime=fsdp1"],
    "fsdp1, not sharded": ["fsdp.runtime=fsdp1", "fsdp.strategy=NO_SHARD"],
    "fsdp2, two micro-batches": ["train.micro_batches=2"],
}

JOB = """[model]
source = "{folder}/config.json"
batch = {batch}
seq = {seq}
[fsdp.mixed_precision]
param = "none"
reduce = "none"
[train]
steps = {steps}
clip_grad_norm = 0.0
optimizer = {{name = "adamw", lr = 1e-3}}
[cluster]
profile = "cpu-host"
world_size = {world}
ranks_per_node = {world}
"""


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def settings(plan, *more):
    return [word for value in [*PLANS[plan], *more] for word in ("--set", value)]


def write_job(folder, shape, world, steps):
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": shape["hidden"],
        "intermediate_size": shape["ffn"], "num_hidden_layers": shape["layers"], "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["heads"], "vocab_size": shape["vocab"], "max_position_embeddings": shape["seq"],
        "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False
    }
    (folder / "config.json").write_text(json.dumps(config))
    job = folder / "job.toml"
    job.write_text(JOB.format(folder=folder, batch=shape["batch"], seq=shape["seq"], steps=steps, world=world))
    return job


def measured_steps(a, job, plan):
    text = run([a.foreshard, "run", job, "--nproc", a.world, "--json", "--quiet", *settings(plan)])
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
    return [line["step_time_ns"] for line in lines if "step" in line][a.warmup:]


def predicted_step(a, job, plan, profile):
    text = run([a.foreshard, "simulate", job, "--json", *settings(plan, f"cluster.profile={profile}")])
    return json.loads(text)["step_time_ns"]["value"]


def places(values):
    order = sorted(range(len(values)), key=values.__getitem__)
    place = [0] * len(values)
    for k, i in enumerate(order):
        place[i] = k
    return place


def rank_correlation(a, b):
    """Spearman's, for lists without ties."""
    n = len(a)
    return 1 - 6 * sum((x - y)**2 for x, y in zip(places(a), places(b))) / (n * (n * n - 1))


def compare(a, name):
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        job = write_job(folder, SHAPES[name], a.world, a.steps + a.warmup)
        predicted = {plan: [] for plan in PLANS}
        measured = {plan: [] for plan in PLANS}
        for _ in range(a.rounds):
            profile = folder / "here.toml"
            run([a.foreshard, "calibrate", job, "--ranks", a.world, "--output", profile, "--repeats", a.repeats])
            for plan in PLANS:
                predicted[plan].append(predicted_step(a, job, plan, profile))
                measured[plan] += measured_steps(a, job, plan)
    rows = {}
    for plan in PLANS:
        p, m = statistics.mean(predicted[plan]), statistics.median(measured[plan])
        low, high = statistics.quantiles(measured[plan], n=4)[::2]
        rows[plan] = {"predicted_ns": p, "measured_ns": m, "quartiles_ns": [low, high], "error": p / m - 1}
        print(f"{name:5} {plan:26} predicted {p / 1e6:8.2f} ms  measured {m / 1e6:8.2f} ms "
              f"(quartiles {low / 1e6:.2f} to {high / 1e6:.2f})  {100 * (p / m - 1):+6.1f} %")
    values = list(rows.values())
    correlation = rank_correlation([r["predicted_ns"] for r in values], [r["measured_ns"] for r in values])
    worst = max(values, key=lambda r: abs(r["error"]))["error"]
    print(f"{name:5} worst error {100 * worst:+.1f} % (target 10 %), rank correlation {correlation:.3f} (target 1)")
    return {"plans": rows, "worst_error": worst, "rank_correlation": correlation}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--foreshard", type=pathlib.Path, default=HERE / "../../build/release/bin/foreshard")
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["wide"])
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=15, help="of the calibration")
    parser.add_argument("--json", type=pathlib.Path)
    a = parser.parse_args()
    before = os.getloadavg()[0]
    results = {name: compare(a, name) for name in a.shape}
    print(f"load average before {before:.1f}, after {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if a.json:
        a.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
