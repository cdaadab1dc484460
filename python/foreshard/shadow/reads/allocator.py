"""How the script's caching allocator is set."""

from __future__ import annotations

from ..notes import note


def settings() -> dict:
    """The caching allocator as the script has it, by its environment or by itself."""
    import torch

    try:
        told = torch.cuda.memory._snapshot().get("allocator_settings", {})
    except RuntimeError:  # cudaMallocAsync, a pluggable one
        note("the script's allocator is not PyTorch's caching one, which the plan has")
        told = {}
    divisions = {int(each) for each in (told.get("roundup_power2_divisions") or {}).values()}
    if len(divisions) > 1:
        note("the allocator rounds sizes up by divisions that differ by size; the job has the most of them for all")
    most = int(told.get("max_split_size", 0))
    return {
        "expandable_segments": bool(told.get("expandable_segments")),
        "max_split_size_mb": most >> 20 if 0 < most < 1 << 44 else 0,  # else there is no limit
        "garbage_collection_threshold": float(told.get("garbage_collection_threshold", 0.0)),
        "roundup_power2_divisions": max(divisions, default=0),
    }
