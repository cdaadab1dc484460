"""What a job says of an optimizer, as the script has made it."""

from __future__ import annotations

from .. import steps


def of(optimizer, group: dict | None = None) -> dict:
    options = group or optimizer.param_groups[0]
    betas = options.get("betas")
    return {
        "name": type(optimizer).__name__,
        "library": type(optimizer).__module__.partition(".")[0],
        "impl": _impl(options, _loops(optimizer)),
        "amsgrad": bool(options.get("amsgrad")), "lr": float(options.get("initial_lr", options.get("lr", 0))), "eps": options.get("eps"), "betas": list(map(float, betas)) if betas else None,
        "weight_decay": float(options.get("weight_decay") or 0), "momentum": float(options.get("momentum") or 0),
        "alpha": float(options.get("alpha") or 0.99), "centered": bool(options.get("centered")), "decoupled_weight_decay": bool(options.get("decoupled_weight_decay")),
    }  # fmt: skip


def _loops(optimizer) -> bool:
    """Neither fused nor foreach: PyTorch takes foreach where all parameters lie on the device, but for Adafactor."""
    options = optimizer.param_groups[0]
    if options.get("foreach", False) is None:
        return type(optimizer).__module__ == "torch.optim._adafactor"
    return not options.get("foreach")


def _impl(options: dict, loops: bool) -> str:
    if steps.in_backward():
        return "in_backward" if loops or options.get("fused") else "in_backward_foreach"
    return "fused" if options.get("fused") else "for_loop" if loops else "foreach"


def states(optimizer) -> int:
    """Tensors of a parameter's size that the optimizer keeps for each; -1 where that is not known."""
    for parameter, state in getattr(optimizer, "state", {}).items():
        if isinstance(state, dict) and parameter.numel() > 1:
            return sum(1 for each in state.values() if getattr(each, "shape", None) == parameter.shape)
    return -1
