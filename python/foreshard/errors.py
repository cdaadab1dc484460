"""Errors of the planning core as exceptions."""

from __future__ import annotations

from typing import Any, Mapping

_FIELDS = ("code", "message", "file", "place", "expected", "got", "hint")


class Error(Exception):
    """A job, model or file that is wrong.

    Attributes:
        code: for example "unknown_key"; message: one sentence; file, place: where; expected, got; hint: what to do.
    """

    code: str
    message: str
    file: str
    place: str
    expected: str
    got: str
    hint: str

    def __init__(self, fields: Mapping[str, Any]):
        for name in _FIELDS:
            setattr(self, name, str(fields.get(name) or ""))
        text = ": ".join(part for part in (self.file, self.place, self.message) if part)
        told = ", ".join(f"{word} {value}" for word, value in (("expected", self.expected), ("got", self.got)) if value)
        super().__init__(text + (f" ({told})" if told else "") + (f"; {self.hint}" if self.hint else ""))

    def __reduce__(self):
        return Error, ({name: getattr(self, name) for name in _FIELDS},)
