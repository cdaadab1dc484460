"""A step as SVG: one row a stream, one rectangle a run of work."""

from __future__ import annotations

from html import escape
from typing import Any

_WIDTH, _LEFT, _ROW, _GAP = 960, 130, 22, 6
_COLORS = {
    "compute": "#4c78a8", "all_gather": "#f58518", "reduce_scatter": "#e45756", "all_reduce": "#b279a2",
    "broadcast": "#ff9da6", "copy": "#72b7b2", "cast": "#9d755d", "memset": "#bab0ac", "optimizer": "#54a24b",
    "host_issue": "#9ecae9", "host_wait": "#d6d6d6", "wait": "#d6d6d6", "send_recv": "#eeca3b",
}  # fmt: skip

Lane = tuple[str, list[tuple[float, float, str]]]  # name, [(start, duration, kind)]: nanoseconds from the step's begin


def lanes_of(trace: dict[str, Any], step_ns: float) -> list[Lane]:
    """The last `step_ns` of a Chrome trace that `foreshard simulate --trace` wrote: rank 0's streams."""
    events = trace["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name" and e["pid"] == 0}
    spans = [e for e in events if e["ph"] == "X" and e["pid"] == 0]
    end = max((e["ts"] + e.get("dur", 0) for e in spans), default=0) * 1e3
    begin = max(0.0, end - step_ns)
    near = step_ns / 2000  # what lies closer than half a pixel is drawn as one
    lanes: dict[int, list[tuple[float, float, str]]] = {tid: [] for tid in names}
    for event in sorted(spans, key=lambda e: e["ts"]):
        start, length, kind = event["ts"] * 1e3 - begin, event.get("dur", 0) * 1e3, event.get("cat", "other")
        if length <= 0 or start + length <= 0:
            continue
        length, start = length + min(start, 0), max(start, 0)
        row = lanes.setdefault(event["tid"], [])
        if row and row[-1][2] == kind and start - (row[-1][0] + row[-1][1]) < near:
            row[-1] = (row[-1][0], max(row[-1][1], start + length - row[-1][0]), kind)
        else:
            row.append((start, length, kind))
    return [(names.get(tid, str(tid)), row) for tid, row in lanes.items() if row]


def draw(lanes: list[Lane], headline: str) -> str:
    """The picture, a whole SVG document."""
    end = max((start + length for _, spans in lanes for start, length, _ in spans), default=1)
    scale = (_WIDTH - _LEFT - 10) / max(end, 1)
    height = 34 + len(lanes) * (_ROW + _GAP) + 26
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="8" y="20" font-weight="bold">{escape(headline)}</text>',
    ]
    for row, (name, spans) in enumerate(lanes):
        top = 34 + row * (_ROW + _GAP)
        out.append(f'<text x="8" y="{top + 15}">{escape(name)}</text>')
        for start, length, kind in spans:
            color = _COLORS.get(kind, "#888888")
            width = max(length * scale, 0.4)
            out.append(
                f'<rect x="{_LEFT + start * scale:.2f}" y="{top}" width="{width:.2f}" height="{_ROW}" fill="{color}">'
                f"<title>{escape(kind)} {length / 1e6:.3f} ms</title></rect>"
            )
    foot = height - 8
    out.append(f'<text x="{_LEFT}" y="{foot}">0</text>')
    out.append(f'<text x="{_WIDTH - 10}" y="{foot}" text-anchor="end">{end / 1e6:.3f} ms</text></svg>')
    return "\n".join(out)
