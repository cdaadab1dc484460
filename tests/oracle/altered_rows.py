#!/usr/bin/env python3
"""The comparison program must see every altered row.

    altered_rows.py ORACLE KIND FILE [--rows N] [--each N] [--work FOLDER] [-- ARGUMENTS OF ORACLE...]

Takes the first N rows of each shape (the keys that a row states) from FILE, alters what a row *states* (not its configuration) one place at a time, and demands that
the program fails each altered row, by its exit code, and passes the unaltered ones. Places that differ in a number only (a step, a
layer) are one kind of place, of which EACH are altered. What is left out, and why, stands in PLACES.
"""
import argparse
import collections
import gzip
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# Per kind: the keys of a row that are facts, and patterns of places that are none: names of what was looked at, texts that are the library's own.
PLACES = {
    "gpu-memory": (["result"], []),
    "practice": (["result"], [r"/(launches|copies)(/|$)", r"^/result/error$"]),
    # What is allocated, and the steps and phases in which it is; the rest is told only.
    "captured": (["result"], [r"/(virtual_ms|wall_s|api_calls|device_\w+)$", r"/(active|reserved|requested|inactive_split)_bytes",
                              r"/(segment|allocation|num)[._]", r"/allocated_bytes/1$", r"^/result$", r"/after_init$", r"/(steps|phases)/\d+$"]),
    "fsdp1-schedules": (["result"], [r"/error/2$"]),
    "fsdp1-wrapping": (["result"], []),
    "fsdp1-layouts": (["result"], [r"/error/1$"]),
    "fsdp1-errors": (["result", "rule"], [r"/message$", r"/warnings/\d+$"]),
    "fsdp1-numerics": (["result"], []),
    "fsdp2-traces": (["events", "layout", "counts", "state_dict", "error"], [r"^/error"]),
    "fsdp2-layouts": (None, [r"^/(id|world|param_dtype|reduce_dtype|params|unit|mesh)"]),
    "op-rules": (["forward", "backward", "saved", "aliases", "flops", "result"], []),
    "training": (["loss", "grad_norm", "micro_loss", "final"], []),
}


def altered(value, name=""):
    """Values that cannot be taken for this one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        other = value * 2 + (2**34 if "inactive_split" in name else 1)  # held to a share of what is reserved
        return [other if other != value else value - 8]
    if isinstance(value, str):
        return [value + "~"]
    if value is None:
        return [1]
    if isinstance(value, list):
        return [value + ["altered" if isinstance(value[-1], str) else altered(value[-1])[0]]] + ([] if name.endswith("/warnings") else [value[:-1]]) if value else [[1]]
    return [{**value, "altered": 1}]


def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, path + (key,))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, path + (index,))


def at(row, path):
    for step in path:
        row = row[step]
    return row


def with_change(text, path, value):
    row = json.loads(text)
    at(row, path[:-1])[path[-1]] = value
    return row


def kind_of_place(path):
    return "/" + re.sub(r"\d+", "N", "/".join(str(p) for p in path))


def changes(kind, text, each):
    facts, free = PLACES[kind]
    row = json.loads(text)
    seen = collections.Counter()
    for key in row if facts is None else facts:
        if key not in row or (key == "rule" and row["result"]["outcome"] == "ok"):  # nothing is refused: a label
            continue
        for path in places(row[key], (key,)):
            name = "/" + "/".join(str(p) for p in path)
            if any(re.search(pattern, name) for pattern in free):
                continue
            group = kind_of_place(path)
            if seen[group] >= each:
                continue
            seen[group] += 1
            for value in altered(at(row, path), name):
                yield name, with_change(text, path, value)


def shape_of(row):
    """Rows of one shape state the same things."""
    result = row.get("result")
    inner = sorted(result) if isinstance(result, dict) else type(result).__name__
    return json.dumps([row.get("case"), sorted(row), inner])


def run(oracle, kind, rows, folder, arguments):
    file = Path(folder) / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = subprocess.run([oracle, kind, str(file), "--json", *arguments], capture_output=True, text=True)
    return done, [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main():
    arguments = sys.argv[1:]
    own, rest = (arguments[:arguments.index("--")], arguments[arguments.index("--") + 1:]) if "--" in arguments else (arguments, [])
    parser = argparse.ArgumentParser()
    parser.add_argument("oracle")
    parser.add_argument("kind")
    parser.add_argument("file")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--each", type=int, default=1)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--list", action="store_true", help="all places that are not seen, and no verdict")
    a = parser.parse_args(own)
    opened = gzip.open(a.file, "rt") if a.file.endswith(".gz") else open(a.file)
    texts = [line for line in opened if line.strip()]
    trees = [json.loads(t) for t in texts if a.kind == "fsdp1-wrapping" and json.loads(t)["id"].startswith("tree:")]
    shapes, chosen = collections.Counter(), []
    for text in texts:
        row = json.loads(text)
        if row["id"].startswith("tree:") or (a.only and row["id"] not in a.only):
            continue
        shapes[shape_of(row)] += 1
        if shapes[shape_of(row)] <= a.rows:
            chosen.append(text)
    with tempfile.TemporaryDirectory() as folder:
        plain, verdicts = run(a.oracle, a.kind, trees + [json.loads(t) for t in chosen], folder, rest)
        bad = [v for v in verdicts if v["verdict"] == "fail"]
        if plain.returncode != 0 or bad:
            print("the rows themselves fail:", bad[:3], plain.stderr[:500])
            if not a.list:
                return 1
        chosen = [t for t, v in zip(chosen, verdicts[len(trees):]) if v["verdict"] == "pass"]
        tried = [(json.loads(text)["id"], name, row) for text in chosen for name, row in changes(a.kind, text, a.each)]
        done, verdicts = run(a.oracle, a.kind, trees + [row for _, _, row in tried], folder, rest)
        verdicts = verdicts[len(trees):]
        if len(verdicts) != len(tried) or not tried:
            print(f"{len(tried)} altered rows, {len(verdicts)} verdicts", done.stderr[:500])
            return 1
        unseen = [(row, name, v["verdict"]) for (row, name, _), v in zip(tried, verdicts) if v["verdict"] != "fail"]
        for row, name, verdict in unseen[:200 if a.list else 20]:
            print(f"{row} altered at {name}: {verdict}")
        empty = Path(folder) / "empty.jsonl"
        empty.write_text("")
        none = subprocess.run([a.oracle, a.kind, str(empty), *rest], capture_output=True).returncode
        print(f"{len(chosen)} rows, {len(tried)} altered, {len(unseen)} not seen; a file without rows exits {none}")
        return 0 if not unseen and done.returncode == 1 and none == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
