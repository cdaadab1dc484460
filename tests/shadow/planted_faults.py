#!/usr/bin/env python3
"""Recordings with one fault planted each, and clean ones, made on the virtual device and on ranks on the host: `foreshard diagnose`
names the planted fault first, and nothing in the clean ones.

    planted_faults.py FORESHARD PYTHON [--all | NAME...] [--page FILE] [--keep DIR]     (exit code 77: no PyTorch built with CUDA)

Without --all a few of them: each takes seconds. --page writes the table of docs/measurements/.
"""
import argparse
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = HERE / "scripts" / "planted.py"
EXAMPLE = HERE.parents[1] / "examples" / "tiny-llama-2ranks.toml"
CUDA_OF_TORCH = """
import importlib.util, os, runpy
found = importlib.util.find_spec("torch")
print(runpy.run_path(os.path.join(os.path.dirname(found.origin), "version.py"))["cuda"] or "" if found else "")
"""


class Case:
    """One recording: `expected` is the finding that must come first, "" none at all."""

    def __init__(self, name, expected, what, words="", world=8, ranks=(0,), profile="h100-sxm-80", steps=3, often=False):
        self.name, self.expected, self.what, self.words = name, expected, what, words.split()
        self.world, self.ranks, self.profile, self.steps, self.often = world, ranks, profile, steps, often


FAULTS = [
    Case("no-units", "nothing_wrapped", "fully_shard of the root alone", "--no-units", often=True),
    Case("huge-root", "huge_root_unit", "embedding and head of 128k words in the root unit", "--root --vocabulary 131072"),
    Case("small-units", "small_units", "every linear layer a unit", "--small-units --width 512 --layers 12 --seq 1024 --batch 8"),
    Case("no-prefetch", "missing_prefetch", "FSDP2 whose units prefetch nothing in backward", "--no-prefetch --seq 2048", world=64),
    Case("checkpoint-outside", "duplicate_gathers", "a reentrant checkpoint_wrapper around FSDP(block)", "--fsdp 1 --checkpoint-outside", world=64, often=True),
    Case("item", "synchronising_copy", ".item() in every layer", "--item", often=True),
    Case("mask", "synchronising_copy", "nonzero() in every layer", "--mask"),
    Case("float32", "float32_compute", "no mixed precision", "--float32", often=True),
    Case("head-float32", "float32_upcast_products", "the head's product in float32", "--head-float32"),
    Case("float-casts", "float32_upcasts", "activations cast up and back in every layer", "--float-casts"),
    Case("logits", "logits_peak", "logits of 128k words whole, in float32", "--float-loss --vocabulary 131072 --batch 4 --checkpoint"),
    Case("kept-logits", "memory_grows", "every step's logits kept in a list", "--keep-logits --vocabulary 32768", steps=4, often=True),
    Case("optimizer-loop", "optimizer_launches", "AdamW(foreach=False)", "--optimizer loop --width 1024 --layers 32"),
    Case("optimizer-temporaries", "optimizer_temporaries", "AdamW(foreach=True), little else in memory", "--optimizer foreach --checkpoint --seq 1024 --layers 24", world=2),
    Case("offload", "copies_not_hidden", "parameters on the host, pinned", "--fsdp 1 --offload"),
    Case("offload-pageable", "pageable_copies", "parameters on the host, not pinned", "--offload-pageable --no-clip"),
    Case("pageable-batch", "pageable_copies", "large batches from memory that is not pinned", "--pageable --features 8192 --seq 1024"),
    Case("cache-emptied", "allocator_retries", "torch.cuda.empty_cache() in every step", "--empty-cache"),
    Case("lengths", "fragmentation", "batches that come longer and longer, memory nearly full", "--batch 11 --lengths 500"),
    Case("slow-loader", "dataloader_stall", "a data set that takes 150 ms a batch", "--slow-loader 150 --seq 1024", often=True),
    Case("late-rank", "straggler", "one rank of two has twice the sequences", "--late-rank 1", ranks=(0, 1)),
    Case("tiny-kernels", "host_bound", "kernels shorter than their launches", "--width 256 --layers 24 --seq 256 --batch 1"),
    Case("reduce-inside", "collective_on_compute_stream", "blocking all_reduces of activations in every layer", "--reduce"),
    Case("slow-network", "communication_longer_than_compute", "little computing for each gather", "--seq 512", world=64),
]  # fmt: skip
ON_HOST = [
    Case("slow-link", "communication_longer_than_compute", "ranks on the host, each collective 30 ms longer", "--link-latency 30000", often=True),
    Case("stopped-rank", "straggler", "ranks on the host, one of them stopped two thirds of the time"),
]
CLEAN = [
    Case("clean-fsdp2", "", "FSDP2, bfloat16, fused AdamW, pinned batches", often=True),
    Case("clean-fsdp1", "", "the same with FSDP1", "--fsdp 1"),
    Case("clean-checkpoint", "", "recomputation inside the units", "--checkpoint"),
    Case("clean-logged", "", "the loss read once a step", "--log"),
    Case("clean-ranks", "", "two ranks", ranks=(0, 1)),
    Case("clean-accumulated", "", "two micro-batches a step", "--accumulate 2"),
]


def recorded(case, options, folder):
    files = []
    clean = {key: value for key, value in os.environ.items() if key not in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    for rank in case.ranks:
        files.append(str(folder / f"{case.name}-{rank}.fst"))
        words = [options.foreshard, "shadow", "--no-plan", "--world", case.world, "--rank", rank, "--profile", case.profile, "--steps", case.steps,
                 "--timeline", files[-1], "--", options.python, SCRIPT, "--steps", case.steps + 1, *case.words]  # fmt: skip
        end = subprocess.run(list(map(str, words)), env=clean, capture_output=True, text=True, timeout=300)
        if end.returncode != 0:
            raise RuntimeError(f"{case.name}: shadow ended with {end.returncode}: {end.stderr[-1500:]}")
    return files


def recorded_on_host(case, options, folder):
    """Two processes that train a small Llama; of the last case the second one is stopped again and again."""
    file = str(folder / f"{case.name}.fst")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(2):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        words = [options.foreshard, "run", EXAMPLE, "--backend", "host", "-q", "--set", "train.steps=8", "--timeline", file, *case.words]
        ranks.append(subprocess.Popen(list(map(str, words)), env={**os.environ, **{key: str(value) for key, value in own.items()}},
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True))  # fmt: skip
    until = time.monotonic() + 120
    while ranks[1].poll() is None and time.monotonic() < until:
        if case.name == "stopped-rank":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(ranks[1].pid, signal.SIGSTOP)
                time.sleep(0.02)
                os.killpg(ranks[1].pid, signal.SIGCONT)
        time.sleep(0.01)
    for rank in ranks:
        if rank.poll() is None and time.monotonic() >= until:
            rank.kill()
        said = rank.communicate(timeout=60)[1]
        if rank.returncode != 0:
            raise RuntimeError(f"{case.name}: a rank ended with {rank.returncode}: {said[-1500:]}")
    return [file]


def diagnosed(files, options):
    end = subprocess.run([options.foreshard, "diagnose", *files, "--json"], capture_output=True, text=True, timeout=120)
    if end.returncode != 0:
        raise RuntimeError(f"diagnose ended with {end.returncode}: {end.stderr}")
    return json.loads(end.stdout)


def complete(finding):
    """What every finding owes its reader."""
    costs = finding["cost_ns"] > 0 or finding["cost_bytes"] > 0
    saves = finding["predicted_saving_ns"] is not None or finding["predicted_saving_bytes"] is not None
    return costs and saves and finding["where"] and finding["evidence"] and finding["remedy"]


def wrong(case, answer):
    """What is wrong with the answer; "" if nothing is."""
    found = [finding["name"] for finding in answer["findings"]]
    if found[:1] != ([case.expected] if case.expected else []):
        return f"expected {case.expected or 'nothing'}, found {', '.join(found) or 'nothing'}"
    lacking = [finding["name"] for finding in answer["findings"] if not complete(finding)]
    return f"without cost, place, evidence, remedy or saving: {', '.join(lacking)}" if lacking else ""


def time_text(ns):
    return f"{ns / 1e9:.3g} s" if ns >= 1e9 else f"{ns / 1e6:.3g} ms"


def cost_text(finding):
    costs = [time_text(finding["cost_ns"])] if finding["cost_ns"] > 0 else []
    costs += [f"{finding['cost_bytes'] / 2**30:.3g} GiB"] if finding["cost_bytes"] > 0 else []
    return ", ".join(costs)


def row_of(case, answer):
    found = answer["findings"]
    first = f"`{found[0]['name']}`: {cost_text(found[0])}" if found else "nothing"
    others = ", ".join(f"`{each['name']}` {cost_text(each)}" for each in found[1:])
    return f"| {case.what} | {time_text(answer['step_ns'])} | {first} | {others} |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("foreshard")
    parser.add_argument("python")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--page")
    parser.add_argument("--keep")
    options = parser.parse_args()
    asked = subprocess.run([options.python, "-c", CUDA_OF_TORCH], capture_output=True, text=True)
    if asked.returncode != 0 or not asked.stdout.strip().startswith("13"):
        return 77
    # Ranks on the host need the executor, which is not built everywhere.
    on_host = ON_HOST if pathlib.Path(options.foreshard + "-exec").exists() else []
    cases = [case for case in FAULTS + on_host + CLEAN if (case.name in options.names if options.names else options.all or case.often)]
    if unknown := sorted(set(options.names) - {case.name for case in cases}):
        parser.error(f"there is no case {', '.join(unknown)}" + ("" if on_host else " without foreshard-exec"))
    if not on_host:
        print(f"skipped, for foreshard-exec is not built: {', '.join(case.name for case in ON_HOST)}", flush=True)
    failures, rows = 0, {}
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(options.keep or made)
        folder.mkdir(parents=True, exist_ok=True)
        for case in cases:
            began = time.monotonic()
            try:
                make = recorded_on_host if case in ON_HOST else recorded
                answer = diagnosed(make(case, options, folder), options)
                said = wrong(case, answer)
                rows[case.name] = row_of(case, answer)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                answer, said = {"findings": []}, str(error)
            failures += bool(said)
            print(f"{'WRONG' if said else 'ok   '} {case.name:22} {said or case.expected or 'silent'}  ({time.monotonic() - began:.1f} s)", flush=True)
            for finding in answer["findings"] if said else []:
                print(f"        {finding['name']} {finding['share']:.1%}: {finding['cause']}")
    if options.page:
        page(options.page, rows)
    return 1 if failures else 0


def page(path, rows):
    head = ["| planted | step | named first | beside it |", "|---|---|---|---|"]
    text = ["# Planted faults", "", "Recordings of `tests/shadow/scripts/planted.py` on the virtual device (`foreshard shadow --timeline`), each with one thing",
            "wrong, and what `foreshard diagnose` says of them. Written by `tests/shadow/planted_faults.py --all --page`; costs are those of a mean step.", ""]  # fmt: skip
    text += head + [rows[case.name] for case in FAULTS + ON_HOST if case.name in rows]
    text += ["", "Without a fault:", "", *head, *(rows[case.name] for case in CLEAN if case.name in rows)]
    text += ["", "Ranks on the host without a fault have no row: where others use the machine they wait for each other, and that is what is found (`ranks_out_of_step`)."]
    pathlib.Path(path).write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    sys.exit(main())
