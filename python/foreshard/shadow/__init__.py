"""What stands in a script's interpreter while `foreshard shadow` runs it on a GPU that is not there (docs/shadow.md).

Nothing here is called by hand: `inject/sitecustomize.py` is found by the interpreter, and `begin` puts hooks on what PyTorch
makes public. The script is not edited, and no library but PyTorch is patched by name, unless stand-ins were asked for.
"""

from __future__ import annotations

import os
import pathlib

FOLDER = "FORESHARD_SHADOW"  # where the report goes; its presence is what switches all of this on
STEPS = "FORESHARD_SHADOW_STEPS"
STAND_INS = "FORESHARD_SHADOW_FAKE_WEIGHTS"
PLAN = "FORESHARD_SHADOW_PLAN"
WORLD_GIVEN = "FORESHARD_SHADOW_WORLD_GIVEN"
RANGES = "FORESHARD_SHADOW_RANGES"


def begin() -> None:
    """Called once in every interpreter that starts under the verb, before anything of the script's is imported."""
    from . import answers, flex, launcher, management, marks, ranges, setting, sleeps, standins, steps, world
    from .hooks import install

    install()
    for part in (answers, flex, world, launcher, management, marks, setting, steps, sleeps):
        part.begin()
    if os.environ.get(RANGES) == "1":
        ranges.begin()
    if os.environ.get(STAND_INS) == "1":
        standins.begin()


def folder() -> pathlib.Path:
    return pathlib.Path(os.environ[FOLDER])
