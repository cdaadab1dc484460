"""Plan an FSDP run before you pay for it.

    import foreshard as fs
    model = fs.capture(module, *args, loss=lambda out: out.mean())   # needs torch; no GPU
    model.save("net.model.json")                                     # what every verb of the program reads
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .applying import Applied, apply  # noqa: F401
    from .capture import CaptureError, CapturedModel, capture, capture_step  # noqa: F401
    from .errors import Error  # noqa: F401
    from .weights import save_tensors, save_weights  # noqa: F401

_PLACES = {
    "applying": ("Applied", "apply"),
    "capture": ("CaptureError", "CapturedModel", "capture", "capture_step"),
    "errors": ("Error",),
    "weights": ("save_tensors", "save_weights"),
}  # fmt: skip
_PLACE = {name: place for place, names in _PLACES.items() for name in names}

__all__ = sorted(_PLACE)


def __getattr__(name: str):
    """Nothing is imported before it is asked for: torch by who captures, the planning core by who plans."""
    place = _PLACE.get(name)
    if place is None:
        raise AttributeError(f"module 'foreshard' has no attribute {name!r}")
    if place == "capture":
        try:
            import torch  # noqa: F401 - asked for first, to say what is missing
        except ImportError as error:
            raise ImportError("foreshard.capture needs PyTorch 2.6 or later: pip install torch") from error
    # The function capture has the name of its folder, which the import of the folder has just taken.
    module = importlib.import_module(f"foreshard.{place}")
    globals().update({each: getattr(module, each) for each in _PLACES[place]})
    return globals()[name]


def __dir__():
    return __all__
