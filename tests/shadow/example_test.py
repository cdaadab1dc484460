#!/usr/bin/env python3
"""examples/shadow: the script is watched as its page says, and the answer is the one that stands beside it.

    example_test.py FORESHARD PYTHON FOLDER [--write]     (exit code 77: this Python has no PyTorch built with CUDA 13)
"""
import difflib
import os
import pathlib
import subprocess
import sys


def main():
    foreshard, python, folder = sys.argv[1:4]
    asked = subprocess.run([python, "-c", "import torch; print(torch.version.cuda or '')"], capture_output=True, text=True)
    if asked.returncode != 0 or not asked.stdout.startswith("13"):
        return 77
    clean = {key: value for key, value in os.environ.items() if key not in ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE")}
    end = subprocess.run([foreshard, "shadow", "--no-color", "--world", "8", "--", python, "train.py"], cwd=folder,
                         env={**clean, "LC_ALL": "C.UTF-8"}, capture_output=True, text=True, timeout=240)  # fmt: skip
    if end.returncode != 0:
        print(end.stdout, end.stderr)
        return 1
    # Real time and the host's memory are another machine's; the plan's numbers have tests of their own.
    lines, planned = [], False
    for line in end.stdout.splitlines(keepends=True):
        planned = line.startswith("The plan") or (planned and line != "\n")
        if not planned and "on the virtual device" not in line:
            lines.append(line)
    expected = pathlib.Path(folder) / "expected.txt"
    if sys.argv[4:] == ["--write"]:
        expected.write_text("".join(lines))
    differs = list(difflib.unified_diff(expected.read_text().splitlines(keepends=True), lines, "expected.txt", "answer"))
    print("".join(differs))
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
