"""Captures models for a program that asks (cli/session/code_runner.cpp): a line of JSON in, a line of JSON out, until standard input ends. The model's
code reads nothing there: it would wait for ever.

A question is the arguments of foreshard.from_code and the file that the model goes into: {"words": [...], "output": PATH}. The answer: {"notes": [...],
"worked_out": whether it is of no capture of its own}, or {"error": {message, place, expected, got, hint}}. What a model's code prints goes nowhere.
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
        self._notes: dict[str, list[str]] = {}
        self.notes: list[str] = []  # of the latest text
        self.worked_out = False

    def text(self, words: list[str]) -> str:
        options = parser().parse_args(words)
        batch, seq = options.batch, options.seq
        options.batch = options.seq = 0
        key = repr(options)

        def capture(batch: int, seq: int) -> str:
            options.batch, options.seq = batch, seq
            model = captured(options)
            self._notes[key] = list(model.notes)
            return model.to_json()

        sizes = self._sizes.setdefault(key, SizedTexts(capture))
        text = sizes.at(batch, seq)
        self.notes, self.worked_out = self._notes[key], sizes.was_worked_out(batch, seq)
        return text


def error_of(error: BaseException) -> dict[str, str]:
    """As one of Foreshard's errors."""
    if hasattr(error, "message") and hasattr(error, "place"):
        return {key: str(getattr(error, key, "")) for key in ("message", "place", "expected", "got", "hint")}
    if isinstance(error, ModuleNotFoundError) and error.name:
        return {"message": str(error), "place": sys.executable, "hint": f"{sys.executable} -m pip install {error.name.partition('.')[0]}"}
    return {"message": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}", "place": "the model's own code"}


@contextlib.contextmanager
def silence():
    """What the model's code prints goes nowhere, and there is nothing for it to read; yields where questions come from and answers go."""
    with os.fdopen(os.dup(0)) as questions, os.fdopen(os.dup(1), "w") as answers:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        os.close(nothing)
        sys.stdin = open(0, closefd=False)
        yield questions, answers


def serve() -> None:
    models = Models()
    with silence() as (questions, out):
        for line in questions:
            question = json.loads(line)
            try:
                text = models.text(question["words"])
                with open(question["output"], "w") as file:
                    file.write(text)
                answer = {"notes": models.notes, "worked_out": models.worked_out}
            except BaseException as error:  # whatever a model's code ends with
                answer = {"error": error_of(error)}
            print(json.dumps(answer), file=out, flush=True)
    os._exit(0)  # threads that the model's code has left may go on for ever
