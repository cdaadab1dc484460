"""One text for every size: what a model's code was captured into at a few sizes says what it would be at others.

The numbers in a captured model are polynomials of the batch (first degree) and of the sequence (second: masks), as long as the code chooses nothing by
size. A pattern is learnt from three lengths, of one batch or of two, and every other capture is compared with it. A size is worked out only if one that
was found equal is at least as large in both, another at most as large in both, and if it is a multiple of what divides all sizes that were compared
beside those that it was learnt from: a window, a limit of tokens, chunks and padding would have shown in one of them. Every other size is captured
itself. What was worked out is told, and is not kept.
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import gcd, lcm

_NUMBER = re.compile(r"(\d+)")

Size = tuple[int, int]  # batch, sequence


class Pattern:
    """The numbers of a text as polynomials through those of `texts`, whose sizes are a grid."""

    def __init__(self, texts: dict[Size, str]):
        """ValueError: the texts differ in more than numbers."""
        self._grid = list(texts)
        pieces = [_NUMBER.split(text) for text in texts.values()]
        if any(each[::2] != pieces[0][::2] for each in pieces):
            raise ValueError("other operators at other sizes")
        self._pieces = pieces[0]
        self._places = [k for k in range(1, len(self._pieces), 2) if any(each[k] != self._pieces[k] for each in pieces)]
        self._values = [tuple(int(each[k]) for each in pieces) for k in self._places]
        self.equal = set(self._grid)  # sizes at which it was seen to hold

    def between(self, size: Size) -> bool:
        return all(min(e[k] for e in self.equal) <= size[k] <= max(e[k] for e in self.equal) for k in (0, 1))

    def trusts(self, size: Size) -> bool:
        compared = self.equal - set(self._grid)
        if not compared or any(size[k] % gcd(*(e[k] for e in compared)) for k in (0, 1)):
            return False
        above = any(e[0] >= size[0] and e[1] >= size[1] for e in self.equal)
        return above and any(e[0] <= size[0] and e[1] <= size[1] for e in self.equal)

    def at(self, size: Size) -> str | None:
        """None where a number would be none."""
        weights = [_weight(size, point, self._grid) for point in self._grid]
        whole = lcm(*(w.denominator for w in weights))
        factors = [int(w * whole) for w in weights]
        pieces, known = list(self._pieces), {}
        for place, values in zip(self._places, self._values):
            if values not in known:
                value, rest = divmod(sum(f * v for f, v in zip(factors, values)), whole)
                if rest or value < 0:
                    return None
                known[values] = str(value)
            pieces[place] = known[values]
        return "".join(pieces)


class SizedTexts:
    """Texts of one model by size. `capture(batch, seq)` makes one; it is asked as rarely as can be.

    A batch of one is a case of its own, as dimensions of one are expanded and not copied.
    """

    LEARN_AFTER = 2  # sizes of a case that are captured before others are worked out: who asks once pays for no more
    PATTERNS = 4  # of a case; a model whose code chooses more often is captured each time

    def __init__(self, capture):
        self._capture = capture
        self._texts: dict[Size, str] = {}
        self._worked_out: set[Size] = set()
        self._patterns: dict[bool, list[Pattern]] = {True: [], False: []}  # by whether the batch is one
        self._tries = {True: 0, False: 0}
        self._alone = {True: 0, False: 0}  # sizes since the last try that no pattern holds for

    def at(self, batch: int, seq: int) -> str:
        size = (batch, seq)
        if size not in self._texts:
            pattern = next((each for each in self._patterns[batch == 1] if each.trusts(size)), None)
            worked_out = pattern.at(size) if pattern else None
            if worked_out:
                self._worked_out.add(size)
            self._texts[size] = worked_out or self._captured(size)
        return self._texts[size]

    def was_worked_out(self, batch: int, seq: int) -> bool:
        return (batch, seq) in self._worked_out

    def _captured(self, size: Size) -> str:
        alone = size[0] == 1
        if self._alone[alone] >= self.LEARN_AFTER and self._tries[alone] < self.PATTERNS:
            self._learn(size)
        text = self._exact(size)
        patterns = self._patterns[alone]
        holding = [each for each in patterns if each.at(size) == text]
        for each in holding:
            each.equal.add(size)
        # Equal around it and not here: nothing can be said of others.
        self._patterns[alone] = [each for each in patterns if each in holding or not each.between(size)]
        self._alone[alone] += not holding
        return text

    def _exact(self, size: Size) -> str:
        if size not in self._texts or size in self._worked_out:
            self._texts[size] = self._capture(*size)
            self._worked_out.discard(size)
        return self._texts[size]

    def _learn(self, size: Size) -> None:
        """From this length on, else up to it: a limit of the code's lies at a round number, on either side."""
        batch, seq = size
        self._tries[batch == 1] += 1
        self._alone[batch == 1] = 0
        if seq < 16:
            return
        step = min(_evenness(seq), seq // 8)
        for lengths in ((seq, seq + step, seq + 2 * step), (seq, seq - step, seq - 2 * step)):
            grid = [(b, s) for b in ((1,) if batch == 1 else (batch, batch + 1)) for s in lengths]
            try:
                pattern = Pattern({each: self._exact(each) for each in grid})
            except ValueError:
                continue
            for known, text in self._texts.items():
                same_case = (known[0] == 1) == (batch == 1) and known not in self._worked_out
                if same_case and known not in pattern.equal and pattern.at(known) == text:
                    pattern.equal.add(known)
            self._patterns[batch == 1].append(pattern)
            return


def _evenness(number: int) -> int:
    """The largest power of two that divides it."""
    return number & -number or 1


def _weight(size: Size, point: Size, grid: list[Size]) -> Fraction:
    """Lagrange's: how much of the value at `point` the polynomial has at `size`."""
    weight = Fraction(1)
    for k in (0, 1):
        for other in {each[k] for each in grid} - {point[k]}:
            weight *= Fraction(size[k] - other, point[k] - other)
    return weight
