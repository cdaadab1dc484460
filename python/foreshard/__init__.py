"""Plan an FSDP run before you pay for it.

    import foreshard as fs
    model = fs.capture(module, *args, loss=lambda out: out.mean())   # needs torch; no GPU
    p = fs.simulate(model, {"fsdp": {"runtime": "fsdp2"}, "cluster": {"world_size": 64, "profile": "h100-sxm-80"}})
    p.step_time, p.peak_reserved, p.fits

Models are what `capture` gives, or the path of a config.json, a folder that holds one, a .pt2 archive or a model.json.
Jobs are dictionaries with the keys of a job file (docs/formats/job.md), flat ("fsdp.runtime") or nested.
"""

from __future__ import annotations

import importlib

_API = ("Comparison", "Error", "Plan", "Prediction", "Sweep", "compare", "plan", "simulate", "sweep", "view")
_CAPTURE = ("CaptureError", "CapturedModel", "capture", "capture_step")

__all__ = [*_API, *_CAPTURE]


def __getattr__(name: str):
    """Nothing is imported before it is asked for: torch by who captures, the planning core by who plans."""
    if name in _API:
        return getattr(importlib.import_module("foreshard.api"), name)
    if name not in _CAPTURE:
        raise AttributeError(f"module 'foreshard' has no attribute {name!r}")
    try:
        import torch  # noqa: F401 - asked for first, to say what is missing
    except ImportError as error:
        raise ImportError("foreshard.capture needs PyTorch 2.6 or later: pip install torch") from error
    # The function has the name of its folder, which the import of the folder has just taken.
    module = importlib.import_module("foreshard.capture")
    globals().update({each: getattr(module, each) for each in _CAPTURE})
    return globals()[name]


def __dir__():
    return sorted(__all__)
