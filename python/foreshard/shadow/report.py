"""What a watched script leaves behind for the verb: report.json, written whole or not at all."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Callable

from .._output import whole_file

_failure: dict | None = None
_parts: dict[str, Callable[[], Any]] = {}


def told_by(part: str, found: Callable[[], Any]) -> None:
    """What a part of the watching knows at the end."""
    _parts[part] = found


def failure(code: str, message: str, hint: str = "") -> None:
    """The first one counts: it is the cause of the others."""
    global _failure
    if _failure is None:
        _failure = {"code": code, "message": message, "hint": hint}


def write() -> None:
    from . import folder, world
    from .notes import notes

    document = {
        "rank": world.rank(), "world_size": world.world_size(), "steps": _told("steps", []), "setting": _told("setting", None), "turns": _told("turns", []), "notes": notes(),
        "failure": _failure, "host_peak_bytes": _host_peak(), "python": sys.version.split()[0],
    }  # fmt: skip
    if "torch" in sys.modules:
        document["torch"] = sys.modules["torch"].__version__
        document["keeps_workspaces"] = os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1"  # since 2.15 a choice
    text = json.dumps(document, indent=1, allow_nan=False)
    with whole_file(folder() / "report.json") as file:
        file.write(text)


def _told(part: str, otherwise: Any) -> Any:
    return _parts[part]() if part in _parts else otherwise


def exists() -> bool:
    from . import folder

    return (folder() / "report.json").exists()


def _host_peak() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def end(code: int) -> None:
    """Ends the script here: destructors of communicators and loaders of data would wait for what is not there."""
    write()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    if "torch" in sys.modules:
        from . import device

        if device.present():
            device.flush()
    os._exit(code)
