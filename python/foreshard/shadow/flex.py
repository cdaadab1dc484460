"""FlexAttention of a script that compiles: the kernel that torch.compile would make of it, which holds no scores, and takes no time here."""

from __future__ import annotations

import functools

from .hooks import after_import
from .notes import note

_compiles = False
_OWN = "_flex_attention_hop_wrapper"  # what flex_attention compiles itself where nobody has


def begin() -> None:
    after_import("torch", _watch_compile)
    after_import("torch.nn.attention.flex_attention", _fuse)


def _watch_compile(torch) -> None:
    inner = torch.compile

    @functools.wraps(inner)
    def compile(model=None, *args, **kwargs):
        global _compiles
        _compiles = _compiles or getattr(model, "__name__", None) != _OWN
        return inner(model, *args, **kwargs)

    torch.compile = compile


def _fuse(module) -> None:
    inner = module.flex_attention_hop

    def hop(query, key, value, *rest, **named):
        if not _compiles:
            return inner(query, key, value, *rest, **named)
        from ..capture.flex import attend

        note("flex_attention runs as the kernel that torch.compile makes of it: no scores are held, and it takes no time")
        return attend(query, key, value)

    module.flex_attention_hop = hop
