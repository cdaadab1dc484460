#!/usr/bin/env python3
"""What a schedule gains over fsdp2 on CPU ranks joined by a slow link, predicted and measured: twelve jobs.

throttled_schedules.py --foreshard build/release/bin/foreshard [--world 2] [--steps 8] [--rounds 2] [--json FILE]

For two shapes and two links the machine is calibrated through the link; three jobs each (plain, recomputed, two micro-batches)
are scheduled with all the memory there is and run in turns with fsdp2. Targets: the sign right in all, the size within a
third where it is more than 2 %, no job slower. Losses are compared to the last bit.
"""
import argparse
import json
import pathlib
import statistics
import tempfile

from host_plans import HERE, SHAPES, run, write_job

LINKS = {"1 ms, 100 MB/s": ["--link-latency", "1000", "--link-bandwidth", "100MB"],
         "5 ms, 400 MB/s": ["--link-latency", "5000", "--link-bandwidth", "400MB"]}
JOBS = {"plain": [], "recomputed": ["checkpointing.policy=block"], "two micro-batches": ["train.micro_batches=2"]}


def sets(values):
    return [word for value in values for word in ("--set", value)]


def steps(a, job, link, values, schedule=None):
    plan = ["--schedule", schedule] if schedule else []
    text = run([a.foreshard, "run", job, "--nproc", a.world, "--json", "--quiet", *link, *plan, *sets(values)])
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
    lines = [line for line in lines if "step" in line]
    return [line["step_time_ns"] for line in lines][a.warmup:], [line["loss"] for line in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--foreshard", type=pathlib.Path, default=HERE / "../../build/release/bin/foreshard")
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--link", nargs="+", choices=LINKS, default=list(LINKS))
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5, help="of the calibration")
    parser.add_argument("--json", type=pathlib.Path)
    a = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as path:
        for shape in a.shape:
            folder = pathlib.Path(path) / shape
            folder.mkdir()
            job = write_job(folder, SHAPES[shape], a.world, a.steps + a.warmup)
            for link_name in a.link:
                link = LINKS[link_name]
                profile, plan = folder / "here.toml", folder / "plan.json"
                run([a.foreshard, "calibrate", job, "--ranks", a.world, "--output", profile, "--repeats", a.repeats, "--steps", "0",
                     *link])
                for name, values in JOBS.items():
                    values = [*values, f"cluster.profile={profile}"]
                    found = json.loads(run([a.foreshard, "schedule", job, "--json", "--out", plan, *sets(values)]))
                    predicted = 1 - found["step_time_ns"] / found["fsdp2_step_time_ns"]
                    plain, planned, equal = [], [], True
                    for _ in range(a.rounds):
                        times, losses = steps(a, job, link, values)
                        plain += times
                        times, others = steps(a, job, link, values, plan)
                        planned += times
                        equal = equal and losses == others
                    p, m = statistics.median(planned), statistics.median(plain)
                    rows.append({"shape": shape, "link": link_name, "job": name, "fsdp2_ns": m, "planned_ns": p, "predicted": predicted,
                                 "measured": 1 - p / m, "equal_losses": equal})
                    print(f"{shape:5} {link_name:15} {name:18} fsdp2 {m / 1e6:8.1f} ms  planned {p / 1e6:8.1f} ms  gain predicted "
                          f"{100 * predicted:+6.1f} %  measured {100 * (1 - p / m):+6.1f} %  losses {'equal' if equal else 'DIFFER'}",
                          flush=True)
    right = sum((r["predicted"] > 0.005) == (r["measured"] > 0.005) for r in rows)
    slower = sum(r["measured"] < -0.005 for r in rows)
    near = sum(abs(r["measured"] - r["predicted"]) <= max(0.02, abs(r["predicted"]) / 3) for r in rows)
    print(f"sign right in {right} of {len(rows)}, size within a third in {near}, slower in {slower}, equal losses in {sum(r['equal_losses'] for r in rows)}")
    if a.json:
        a.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
