"""Matrices of torchao's float8 layers that FSDP2 gathers in 8 bits: the tensors that it shards cast themselves before they are gathered."""

from __future__ import annotations

from . import names

_PRODUCT, _GATHERED = "torchao.matmul_float8_tensorwise.default", "torchao.matmul_float8_gathered.default"


def found(root) -> dict | None:
    """{"params": names, "precomputed": whether their scales are made behind each step}; None: nothing is gathered so."""
    tensors = {name: _local(each.sharded_param) for name, each in names.named(root, names.fsdp2_parameters(root))}
    cast = {name: tensor for name, tensor in tensors.items() if type(tensor).__module__.startswith("torchao.float8")}
    if not cast:
        return None
    return {"params": list(cast), "precomputed": any(getattr(each, "_precomputed_scale", None) is not None for each in cast.values())}


def _local(parameter):
    return getattr(parameter, "_local_tensor", parameter)


def mark(document: dict, params: list[str]) -> None:
    """Says so in a captured model, whose matrices are plain ones."""
    for row in document["params"]:
        if row["fqn"] in params:
            row["gathered"] = "float8_e4m3fn"
    for op in document["ops"]:
        if op["op"] == _PRODUCT and op["args"][1].removeprefix("@") in params:
            op["op"] = _GATHERED
