"""What the script was answered instead of what a machine would have said; told once each, in the report."""

from __future__ import annotations

_notes: list[str] = []


def note(text: str) -> None:
    if text not in _notes:
        _notes.append(text)


def notes() -> list[str]:
    return list(_notes)
