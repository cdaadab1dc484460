"""What capture says when it cannot go on."""

from __future__ import annotations


class CaptureError(Exception):
    """A module that could not be captured.

    Attributes:
        message: one sentence, what is wrong.
        place: the module (fully qualified name) and operator where it happened; empty if neither is known.
        expected, got: as far as they can be told; else empty.
        hint: what to do; else empty.
    """

    def __init__(self, message: str, *, place: str = "", expected: str = "", got: str = "", hint: str = ""):
        self.message, self.place, self.expected, self.got, self.hint = message, place, expected, got, hint
        super().__init__(self._text())

    def _text(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        if self.expected:
            text += f"; expected {self.expected}"
        if self.got:
            text += f"; got {self.got}"
        if self.hint:
            text += f"\n  hint: {self.hint}"
        return text
