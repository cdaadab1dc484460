"""A sweep or a fit over any executor: parts out as text, merged again."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from concurrent.futures import BrokenExecutor
from typing import Any, Sequence

from ._verbs import kept, verb
from .errors import Error

_TRIES = 4  # of one part: its worker dies, the next one takes it


def _part(arguments: list[str], digest: str, text: str) -> str:
    """In the worker. `text`: the captured model, where there is one, under the name that its file has everywhere."""
    if text:
        path = kept(digest, text)
        arguments = [path if argument == _MODEL else argument for argument in arguments]
    return verb(arguments)[1]


_MODEL = "<the captured model>"


def _sendable(arguments: Sequence[str], model: Any) -> tuple[list[str], str, str]:
    """The arguments without this machine's path of a captured model, and the model's digest and text."""
    if not hasattr(model, "to_json"):
        return list(arguments), "", ""
    text = model.to_json()
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = kept(digest, text)
    return [_MODEL if argument == path else argument for argument in arguments], digest, text


def run_parts(arguments: Sequence[str], model: Any, executor: Any, parts: int, threads: int) -> tuple[int, str, str]:
    """The merged document, as `_verb` gives it."""
    arguments, digest, text = _sendable(arguments, model)
    count = parts or max(8, 4 * (getattr(executor, "_max_workers", 0) or 2))
    calls = [[*arguments, "--threads", str(threads), "--part", f"{i + 1}/{count}"] for i in range(count)]
    texts = _collect(calls, lambda call: executor.submit(_part, call, digest, text), "the sweep")
    with tempfile.TemporaryDirectory(prefix="foreshard-") as folder:
        files = []
        for i, document in enumerate(texts):
            files.append(os.path.join(folder, f"part-{i:05}.json"))
            with open(files[-1], "w", encoding="utf-8") as file:
                file.write(document)
        return verb(["sweep", "merge", *files])


def run_methods(arguments: Sequence[str], model: Any, executor: Any, methods: Sequence[str]) -> tuple[int, str, str]:
    """A fit of several methods: one part each, joined in their order, as the program itself lists them."""
    if len(methods) < 2:  # nothing to join
        return verb([*arguments, "--method", ",".join(methods)])
    arguments, digest, text = _sendable(arguments, model)
    calls = [[*arguments, "--method", method] for method in methods]
    texts = _collect(calls, lambda call: executor.submit(_part, call, digest, text), "the fit")
    documents = [json.loads(document) for document in texts]
    joined = documents[0]
    for other in documents[1:]:
        for key in ("choices", "longest_context", "methods"):
            joined[key] += other[key]
    return (0 if joined["choices"] else 4), json.dumps(joined) + "\n", ""


def _collect(calls, submit, what: str) -> list[str]:
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
            raise _lost(what, len(failed), len(calls), last) from last
        time.sleep(0.2 * attempt)
        try:
            waiting = {i: submit(calls[i]) for i in failed}
        except (BrokenExecutor, RuntimeError) as error:
            raise _lost(what, len(failed), len(calls), error) from error
    raise AssertionError("unreachable")


def _lost(what: str, failed: int, parts: int, error: BaseException) -> Error:
    return Error({
        "code": "run_failed", "message": f"the executor has lost parts of {what} and takes no more", "place": "executor",
        "expected": f"{parts} parts", "got": f"{parts - failed} parts, then {type(error).__name__}: {error}",
        "hint": "a new executor; concurrent.futures' process pool ends with its first worker, Dask's cluster does not",
    })  # fmt: skip
