"""A module's values as a safetensors file, for `model.weights` and data for `train.data`. Needs no library but torch."""

from __future__ import annotations

import json
import os
from typing import Any, Mapping

from ._output import whole_file

_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "complex64": "C64", "complex128": "C128",
}  # fmt: skip


def save_weights(module: Any, path: str | os.PathLike[str]) -> None:
    """Writes every parameter and buffer of a module, those that its state_dict leaves out too, so that `foreshard run`
    starts from them: model.weights = path. A shared parameter is written once, under its first name.

    Raises:
        ValueError: a parameter on the meta device, which has no values.
    """
    tensors: dict[str, Any] = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.device.type == "meta":
            raise ValueError(f"{name} lies on the meta device: it has no values (module.to_empty, then its own init)")
        tensors[name] = tensor
    save_tensors(tensors, path)


def save_tensors(tensors: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes tensors by name, as `safetensors.torch.save_file` does: batches for train.data = {kind = "tensors"}, say."""
    import torch

    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # wide types first: all aligned
    header, end = {}, 0
    for name in order:
        tensor = tensors[name]
        size = tensor.numel() * tensor.element_size()
        kind = _NAMES.get(str(tensor.dtype).removeprefix("torch."))
        if kind is None:
            raise ValueError(f"{name} is {tensor.dtype}, which a safetensors file has no word for")
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with whole_file(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            plain = tensors[name].detach().cpu().contiguous()
            file.write(plain.view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
