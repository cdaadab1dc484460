"""The program's verbs, in process: arguments in, the document that it prints out."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Sequence

from .errors import Error

_HERE = os.path.dirname(os.path.abspath(__file__))
if os.path.isdir(os.path.join(_HERE, "share", "foreshard", "profiles")):
    os.environ.setdefault("FORESHARD_PROFILES", os.path.join(_HERE, "share", "foreshard", "profiles"))
os.environ.setdefault("FORESHARD_PYTHON", sys.executable)  # which runs models' own code, by this package
os.environ.setdefault("FORESHARD_PACKAGE_FOLDER", _HERE)


def run(arguments: Sequence[str]) -> tuple[int, str, str]:
    try:
        from . import _core
    except ImportError as error:
        raise ImportError(
            "the planning core is not there: this is the package's source alone; `scripts/package wheel` builds it"
        ) from error
    return _core.run(list(arguments))


def verb(arguments: Sequence[str]) -> tuple[int, str, str]:
    """A verb with --json: exit code, document as text, notes. Errors of the verb are raised."""
    code, text, notes = run([arguments[0], "--json", *arguments[1:]])
    if not text:
        raise Error({"code": "run_failed", "message": notes.strip() or f"{arguments[0]} gave no answer"})
    if text.startswith(('{"error"', '{\n  "error"')):
        raise Error(json.loads(text)["error"])
    return code, text, notes


def kept(digest: str, text: str) -> str:
    """The file of a captured model, written once."""
    path = os.path.join(tempfile.gettempdir(), f"foreshard-{digest}.model.json")
    if not os.path.exists(path):
        handle, partial = tempfile.mkstemp(dir=tempfile.gettempdir(), prefix="foreshard-", suffix=".partial")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(partial, path)
    return path
