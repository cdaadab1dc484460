"""Plan an FSDP run before you pay for it.

    import foreshard as fs
    model = fs.capture(module, *args, loss=lambda out: out.mean())   # needs torch; no GPU
    p = fs.simulate(model, {"fsdp": {"runtime": "fsdp2"}, "cluster": {"world_size": 64, "profile": "h100-sxm-80"}})
    p.step_time, p.peak_reserved, p.fits

Models are what `capture` gives, or the path of a config.json, a folder that holds one, a .pt2 archive or a model.json.
Jobs are dictionaries with the keys of a job file (docs/formats/job.md), flat ("fsdp.runtime") or nested, or its path.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import (  # noqa: F401
        Comparison, Export, Fit, Plan, Prediction, Schedule, Sweep, compare, export, fit, plan, schedule, simulate, sweep,
        view,
    )  # fmt: skip
    from .applying import Applied, apply  # noqa: F401
    from .capture import CaptureError, CapturedModel, capture, capture_step  # noqa: F401
    from .errors import Error  # noqa: F401
    from .weights import save_tensors, save_weights  # noqa: F401

_PLACES = {
    "api": ("Comparison", "Export", "Fit", "Plan", "Prediction", "Schedule", "Sweep", "compare", "export", "fit", "plan",
            "schedule",
            "simulate", "sweep", "view"),
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
