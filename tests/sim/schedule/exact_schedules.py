#!/usr/bin/env python3
"""Shortest steps of small jobs, proved by CP-SAT: the fixtures of exact_schedule_test.cpp (tests/data/sim/exact_schedules.json).

exact_schedules.py --test build/release/bin/test_sim_schedule --fixtures tests/data/sim/exact_schedules.json

Of another file's cases (name, sizes, profile, budget_share) the test tells with FORESHARD_EXACT_FIXTURES=FILE.
Needs ortools (pip install ortools). The test measures each case (durations and bytes by unit), this script solves it and writes
both. Decided: which units stay gathered, which blocks keep activations, when every gather and reduction starts. One compute
stream and one communicator; parameters and activations share the budget at every moment. Times in units of 100 ns, rounded
down, so an answer is never above the true one. What the problem leaves out (gradients, logits, blocks of an allocator) takes
memory too, so each case is solved for several shares of it: the test takes the best answer that fits in the simulator.
"""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile

from ortools.sat.python import cp_model

TICK_NS, BLOCK = 100, 1 << 16
SHARES = (1, 0.8, 0.6, 0.4, 0.2)


def ticks(ns):
    return int(ns // TICK_NS)


class Problem:
    """One micro-batch: forward in order, backward in its order, then the optimizer."""

    def __init__(self, parts, share):
        self.share = share
        self.p, self.m = parts, cp_model.CpModel()
        self.n = len(parts["units"])
        self.horizon = sum(sum(map(ticks, parts[k])) for k in ("forward_ns", "backward_ns", "recompute_ns", "reduce_ns"))
        self.horizon += 3 * sum(map(ticks, parts["gather_ns"])) + ticks(parts["last_ns"]) + 10
        self.links, self.held, self.demands = [], [], []
        self.keep = [self.m.NewBoolVar(f"keep{u}") for u in range(self.n)]
        self.again = [self.m.NewBoolVar(f"again{u}") for u in range(self.n)]
        for u in range(self.n):
            if parts["recompute_ns"][u] <= 0:
                self.m.Add(self.again[u] == 0)

    def time(self, name):
        return self.m.NewIntVar(0, self.horizon, name)

    def work(self, length, name, present=None):
        """A collective: its start and its end."""
        start, end = self.time(name + " start"), self.time(name + " end")
        args = (start, length, end)
        self.links.append(self.m.NewIntervalVar(*args, name) if present is None else
                          self.m.NewOptionalIntervalVar(*args, present, name))
        return start, end

    def hold(self, start, end, size, present, name):
        length = self.time(name + " length")
        self.held.append(self.m.NewOptionalIntervalVar(start, length, end, present, name))
        self.demands.append(int(size // BLOCK))

    def build(self):
        p, m, n = self.p, self.m, self.n
        gathers = [self.work(ticks(p["gather_ns"][u]), f"gather{u}") for u in range(n)]
        forward, now = [], 0
        for u in range(n):  # (begin, end) of compute
            begin, end = self.time(f"f{u}"), self.time(f"f{u} end")
            m.Add(begin >= now)
            m.Add(begin >= gathers[u][1])
            m.Add(end == begin + ticks(p["forward_ns"][u]))
            forward.append((begin, end))
            now = end
            if u:
                m.Add(gathers[u][0] >= gathers[u - 1][1])  # none is better in another order
        backward, ends = {}, []
        for u in p["backward_order"]:
            begin, end = self.time(f"b{u}"), self.time(f"b{u} end")
            lost = self.keep[u].Not()
            start2, end2 = self.work(ticks(p["gather_ns"][u]), f"regather{u}", lost)
            m.Add(start2 >= forward[u][1]).OnlyEnforceIf(lost)
            m.Add(begin >= end2).OnlyEnforceIf(lost)
            m.Add(begin >= now)
            m.Add(end == begin + ticks(p["backward_ns"][u]) + ticks(p["recompute_ns"][u]) * self.again[u])
            backward[u], now = (begin, end), end
            ends.append(end)
            self.hold(gathers[u][0], end, p["bytes"][u], self.keep[u], f"kept{u}")
            self.hold(gathers[u][0], forward[u][1], p["bytes"][u], lost, f"lost{u}")
            self.hold(start2, end, p["bytes"][u], lost, f"back{u}")
            self.hold(forward[u][1], begin, p["activations"][u], self.again[u].Not(), f"activations{u}")
        m.AddNoOverlap(self.links)
        before = forward[-1][1]
        step = self.time("step")
        for u in range(n):
            start, end = self.work(ticks(p["reduce_ns"][u]), f"reduce{u}")
            after = p["reduces_after"][u]
            m.Add(start >= (ends[after - 1] if after else before))
            m.Add(step >= end + ticks(p["last_ns"]))
        m.Add(step >= now + ticks(p["last_ns"]))
        m.AddNoOverlap(self.links)
        m.AddCumulative(self.held, self.demands, int(self.share * p["free_bytes"] // BLOCK) + 1)
        m.Minimize(step)
        return step


def solve(parts, share, seconds):
    problem = Problem(parts, share)
    step = problem.build()
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 2
    status = solver.Solve(problem.m)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return {
        "optimum_ns": solver.BestObjectiveBound() * TICK_NS,  # proved: nothing is below
        "proved": status == cp_model.OPTIMAL,
        "reached_ns": solver.Value(step) * TICK_NS,
        "keeps": [problem.p["units"][u] for u in range(problem.n) if solver.Value(problem.keep[u])],
        "units_lost": [problem.p["units"][u] for u in range(problem.n) if not solver.Value(problem.keep[u])],
        "recomputes": [problem.p["units"][u] for u in range(problem.n) if solver.Value(problem.again[u])],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test", type=pathlib.Path, required=True, help="the program of exact_schedule_test.cpp")
    parser.add_argument("--fixtures", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=60, help="for one case")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asked = pathlib.Path(folder) / "parts.json"
        subprocess.run([a.test, "--gtest_filter=ExactSchedules.*"], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "FORESHARD_EXACT_PARTS": str(asked),
                                                "FORESHARD_EXACT_FIXTURES": str(a.fixtures)})
        document = json.loads(asked.read_text())
    for row in document["cases"]:
        row["answers"] = []
        for share in SHARES:
            answer = solve(row["parts"], share, a.seconds)
            if answer is None:  # not even one unit after the other
                continue
            row["answers"].append({"memory_share": share, **answer})
            print(f"{row['name']}, {share:.0%} of memory: {answer['optimum_ns'] / 1e6:.3f} ms proved, "
                  f"{answer['reached_ns'] / 1e6:.3f} reached, keeps {len(answer['keeps'])}, "
                  f"recomputes {len(answer['recomputes'])}")
        if not row["answers"] or row["answers"][0]["memory_share"] != 1:
            raise SystemExit(f"{row['name']}: no answer with all of the memory")
    a.fixtures.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
