"""Captures models for a program that asks (cli/session/code_runner.cpp): a line of JSON in, a line of JSON out, until standard input ends.

A question is the arguments of foreshard.from_code and the file that the model goes into: {"words": [...], "output": PATH}. The answer: {"notes": [...]}, or
{"error": {message, place, expected, got, hint}}. What a model's code prints goes nowhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

from .from_code import captured, parser
from .sized_texts import SizedTexts


class Models:
    """What was asked for so far, so that other sizes of it cost less."""

    def __init__(self):
        self._sizes: dict[str, SizedTexts] = {}
        self.notes: list[str] = []

    def text(self, words: list[str]) -> str:
        options = parser().parse_args(words)

        def capture(batch: int, seq: int) -> str:
            options.batch, options.seq = batch, seq
            model = captured(options)
            self.notes = list(model.notes)
            return model.to_json()

        batch, seq = options.batch, options.seq
        options.batch = options.seq = 0
        return self._sizes.setdefault(repr(options), SizedTexts(capture)).at(batch, seq)


def error_of(error: BaseException) -> dict[str, str]:
    """As one of Foreshard's errors."""
    if hasattr(error, "message") and hasattr(error, "place"):
        return {key: str(getattr(error, key, "")) for key in ("message", "place", "expected", "got", "hint")}
    if isinstance(error, ModuleNotFoundError) and error.name:
        return {"message": str(error), "place": sys.executable, "hint": f"{sys.executable} -m pip install {error.name.partition('.')[0]}"}
    return {"message": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}", "place": "the model's own code"}


@contextlib.contextmanager
def silence():
    """What libraries print goes nowhere; yields where answers go."""
    with open(os.devnull, "w") as nowhere, os.fdopen(os.dup(1), "w") as out:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        yield out


def serve() -> None:
    models = Models()
    with silence() as out:
        for line in sys.stdin:
            question = json.loads(line)
            models.notes = []
            try:
                text = models.text(question["words"])
                with open(question["output"], "w") as file:
                    file.write(text)
                answer = {"notes": models.notes}
            except BaseException as error:  # whatever a model's code ends with
                answer = {"error": error_of(error)}
            print(json.dumps(answer), file=out, flush=True)
