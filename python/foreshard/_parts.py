"""A sweep over any executor: parts out as text, merged again."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from concurrent.futures import BrokenExecutor
from typing import Any, Sequence

from . import api
from .errors import Error

_TRIES = 4  # of one part: its worker dies, the next one takes it


def _part(arguments: list[str], digest: str, text: str) -> str:
    """In the worker. `text`: the captured model, where there is one, under the name that its file has everywhere."""
    if text:
        path = api._kept(digest, text)
        arguments = [path if argument == _MODEL else argument for argument in arguments]
    return api._verb(arguments)[1]


_MODEL = "<the captured model>"


def run_parts(arguments: Sequence[str], model: Any, executor: Any, parts: int, threads: int) -> tuple[int, str, str]:
    """The merged document, as `_verb` gives it."""
    arguments, digest, text = list(arguments), "", ""
    if hasattr(model, "to_json"):
        text = model.to_json()
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        path = api._kept(digest, text)
        arguments = [_MODEL if argument == path else argument for argument in arguments]
    count = parts or max(8, 4 * (getattr(executor, "_max_workers", 0) or 2))
    calls = [[*arguments, "--threads", str(threads), "--part", f"{i + 1}/{count}"] for i in range(count)]
    texts = _collect(calls, lambda call: executor.submit(_part, call, digest, text))
    with tempfile.TemporaryDirectory(prefix="foreshard-") as folder:
        files = []
        for i, document in enumerate(texts):
            files.append(os.path.join(folder, f"part-{i:05}.json"))
            with open(files[-1], "w", encoding="utf-8") as file:
                file.write(document)
        return api._verb(["sweep", "merge", *files])


def _collect(calls, submit) -> list[str]:
    """Every part's document. An executor that is broken takes no more: the rest is told as an error, not left out."""
    waiting = {i: submit(call) for i, call in enumerate(calls)}
    done: dict[int, str] = {}
    for attempt in range(_TRIES):
        failed: dict[int, BaseException] = {}
        for i, future in waiting.items():
            try:
                done[i] = future.result()
            except Error:
                for other in waiting.values():
                    other.cancel()
                raise
            except Exception as error:  # noqa: BLE001 - the worker's end has as many names as there are executors
                failed[i] = error
        if not failed:
            return [done[i] for i in range(len(calls))]
        last = next(iter(failed.values()))
        if attempt + 1 == _TRIES:
            raise _lost(len(failed), len(calls), last) from last
        time.sleep(0.2 * attempt)
        try:
            waiting = {i: submit(calls[i]) for i in failed}
        except (BrokenExecutor, RuntimeError) as error:
            raise _lost(len(failed), len(calls), error) from error
    raise AssertionError("unreachable")


def _lost(failed: int, parts: int, error: BaseException) -> Error:
    return Error({
        "code": "run_failed", "message": "the executor has lost parts of the sweep and takes no more", "place": "executor",
        "expected": f"{parts} parts", "got": f"{parts - failed} parts, then {type(error).__name__}: {error}",
        "hint": "a new executor; concurrent.futures' process pool ends with its first worker, Dask's cluster does not",
    })  # fmt: skip
