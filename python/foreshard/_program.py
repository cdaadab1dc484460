"""The program `foreshard` as the package brings it."""

from __future__ import annotations

import os
import sys


def main() -> None:
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "foreshard")
    os.execv(path, [path, *sys.argv[1:]])
