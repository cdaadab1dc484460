#!/usr/bin/env python3
"""Step time of `foreshard run` against PyTorch FSDP1 and FSDP2: same model, optimizer, threads and ranks, taking turns.

step_time.py --foreshard build/release/bin/foreshard --python build/torch-venv/bin/python [--preset wide deep] [--rounds 3]

The programs run one after another, round by round, so that a disturbance of the machine hits all alike. Printed: medians
of all steps, the ratio to the faster PyTorch (the median of the rounds' ratios), and what recording costs. Targets: 1.00
where compute dominates (wide), 0.80 where the host does (deep), 0.65 at GPT-2's size (gpt2). --cpu tells the processor time of a step too (user and
system of all ranks: a run of many steps less one of few), which suffers less from what else the machine does.

--link 400mbit: all programs in a network namespace whose loopback carries no more than that (tc's token bucket; root and iproute2), both
ways together; runtime `planned` runs there too, scheduled for a profile that `foreshard calibrate` measures in it, with the memory that keeps all parameters.
"""
import argparse
import contextlib
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TARGET = {"wide": 1.00, "deep": 0.80, "gpt2": 0.65}


IN_LINK = []  # words before a command


@contextlib.contextmanager
def slow_loopback(rate):
    """Commands of run() talk over a loopback of this rate meanwhile."""
    name = f"foreshard-{os.getpid()}"
    run(["ip", "netns", "add", name])
    try:
        run(["ip", "-n", name, "link", "set", "lo", "up"])
        run(["tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "tbf", "rate", rate, "burst", "256kb", "latency", "1s"])
        IN_LINK[:] = ["ip", "netns", "exec", name]
        yield
    finally:
        IN_LINK.clear()
        run(["ip", "netns", "del", name])


def run(command):
    command = [*IN_LINK, *command]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def cpu_of(work):
    """Processor seconds of the processes that `work` starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def cpu_of_a_step(a, work):
    """`work(steps)` trains so many steps: what the start costs falls out."""
    return (cpu_of(lambda: work(a.warmup + a.steps)) - cpu_of(lambda: work(a.warmup))) / a.steps * 1e9


def pytorch(a, preset, impl, steps=None):
    script = a.peer or HERE / "pytorch_fsdp.py"
    timed = a.steps if steps is None else steps - a.warmup
    text = run([a.python, script, "--impl", impl, "--preset", preset, "--world", str(a.world), "--steps", str(max(timed, 1)),
                "--warmup", str(a.warmup if timed > 0 else a.warmup - 1), *(["--bf16"] if a.bf16 else [])])
    result = json.loads(text)
    # Scripts that keep no single times give their median.
    return result.get("step_time_ns") or [result["step_ms"]["median"] * 1e6]


def foreshard(a, job, runtime, timeline=None, steps=None, flags=()):
    command = [a.foreshard, "run", job, "--nproc", str(a.world), "--json", "--quiet", "--set", f"fsdp.runtime={runtime}", *flags]
    if steps is not None:
        command += ["--set", f"train.steps={steps}"]
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
param = "{param}"
reduce = "{reduce}"
[train]
steps = {steps}
clip_grad_norm = 0.0
optimizer = {{name = "adamw", lr = 1e-3, betas = [0.9, 0.95], eps = 1e-8, weight_decay = 0.1}}
[cluster]
profile = "cpu-host"
world_size = {world}
ranks_per_node = {world}
"""


def planned(a, job, folder):
    """Flags that train the job with a schedule for what calibrate measures here."""
    profile, schedule = folder / "here.toml", folder / "schedule.json"
    run([a.foreshard, "calibrate", job, "--output", profile, "--quiet"])
    here = ["--set", f"cluster.profile={profile}"]
    run([a.foreshard, "schedule", job, *here, "--out", schedule, "--quiet"])
    return [*here, "--schedule", schedule]


def compare(a, preset, folder):
    run([a.python, HERE / "pytorch_fsdp.py", "--preset", preset, "--save", folder])
    job = folder / "job.toml"
    param, reduce = ("bf16", "fp32") if a.bf16 else ("none", "none")
    job.write_text(JOB.format(folder=folder, steps=a.steps + a.warmup, world=a.world, param=param, reduce=reduce))
    programs = {
        "fsdp1": lambda steps=None: pytorch(a, preset, "fsdp1", steps),
        "foreshard fsdp2": lambda steps=None: foreshard(a, job, "fsdp2", None, steps),
        "fsdp2": lambda steps=None: pytorch(a, preset, "fsdp2", steps),
        "recording": lambda steps=None: foreshard(a, job, "fsdp2", folder / "run.fst", steps),
        "foreshard fsdp1": lambda steps=None: foreshard(a, job, "fsdp1", None, steps),
    }
    if a.link:
        flags = planned(a, job, folder)
        programs["foreshard planned"] = lambda steps=None: foreshard(a, job, "planned", None, steps, flags)
    times = {name: [] for name in programs}  # a list a round
    for _ in range(a.rounds):
        for name, program in programs.items():
            times[name].append(program())
    ratios = {
        name: statistics.median(
            statistics.median(own) / min(statistics.median(times[peer][r]) for peer in ("fsdp1", "fsdp2"))
            for r, own in enumerate(rounds))
        for name, rounds in times.items()
    }
    flat = {name: [t for steps in rounds for t in steps] for name, rounds in times.items()}
    best = min(min(flat[peer]) for peer in ("fsdp1", "fsdp2"))
    for name, steps in flat.items():
        print(f"{preset:6} {name:16} median {statistics.median(steps) / 1e6:8.2f} ms  min {min(steps) / 1e6:8.2f} ms  "
              f"ratio to the faster peer {ratios[name]:.2f} (of minima {min(steps) / best:.2f})")
    cost = ratios["recording"] / ratios["foreshard fsdp2"] - 1
    least = min(flat["recording"]) / min(flat["foreshard fsdp2"]) - 1
    print(f"{preset:6} target {TARGET[preset]:.2f}; recording costs {100 * cost:+.1f} % "
          f"(of the shortest step {100 * least:+.1f} %)")
    if a.cpu:
        cpu = {
            name: statistics.median(cpu_of_a_step(a, program) for _ in range(a.rounds))
            for name, program in programs.items()
        }
        peer = min(cpu["fsdp1"], cpu["fsdp2"])
        for name, ns in cpu.items():
            print(f"{preset:6} {name:16} processor time of a step, all ranks {ns / 1e6:8.2f} ms  ratio {ns / peer:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--foreshard", type=pathlib.Path, default=HERE / "../../build/release/bin/foreshard")
    parser.add_argument("--python", default=str(HERE / "../../build/torch-venv/bin/python"))
    parser.add_argument("--peer", default=os.environ.get("FORESHARD_PEER"),
                        help="another script with the flags of pytorch_fsdp.py (also $FORESHARD_PEER)")
    parser.add_argument("--preset", nargs="+", choices=TARGET, default=["wide", "deep"])
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bf16", action="store_true", help="all programs gather and compute in bfloat16 and reduce in float32")
    parser.add_argument("--cpu", action="store_true", help="processor time of a step too")
    parser.add_argument("--link", metavar="RATE", help="a loopback of this rate, in tc's words (400mbit)")
    a = parser.parse_args()
    with slow_loopback(a.link) if a.link else contextlib.nullcontext():
        for preset in a.preset:
            with tempfile.TemporaryDirectory() as folder:
                compare(a, preset, pathlib.Path(folder))


if __name__ == "__main__":
    main()
