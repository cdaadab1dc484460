"""Captures a model that has a name instead of a file of operators, by running its own code on tensors without memory.

  python -m foreshard.from_code gemma3/config.json --seq 4096 -o model.json      Transformers: any family that it can build
  python -m foreshard.from_code train.py:build --batch 2 -o model.json           your own (docs/models.md)
  python -m foreshard.from_code timm:resnet50 --batch 32 -o model.json           a timm model

`foreshard simulate gemma3/config.json` does this by itself where a config.json is of no family that is built.
"""

from __future__ import annotations

import argparse
import os
import sys


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m foreshard.from_code", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("model", help="config.json, a folder or id of Transformers; timm:NAME; FILE.py:FUNCTION")
    made.add_argument("--batch", type=int, default=1, help="sequences or images of one micro-batch (%(default)s)")
    made.add_argument("--seq", type=int, default=0, help="tokens of one sequence; 0 = the model's, at most 2,048")
    made.add_argument("--target-seq", type=int, default=0, help="tokens of a decoder behind an encoder; 0 = --seq")
    made.add_argument("--dtype", default="float32", help="of the parameters as they are created; config = the configuration's (%(default)s)")
    made.add_argument("--param", default="", help="FSDP's mixed precision: what parameters and floating inputs are cast to")
    made.add_argument("--buffer", default="", help="the same of buffers (FSDP1)")
    made.add_argument("--attention", default="sdpa", help="sdpa or eager, where the model has both (%(default)s)")
    made.add_argument("-o", "--output", default="model.json", help="the model (%(default)s)")
    return made


def captured(options: argparse.Namespace):
    """The model of one size, as `foreshard.capture` gives it."""
    import torch

    from .capture import CaptureError, capture, capture_step
    from .named_models import named_model

    dtype = None if options.dtype == "config" else getattr(torch, options.dtype)
    named = named_model(options.model, options.batch, options.seq, dtype, options.attention, options.target_seq)
    ids, labels = named.inputs.get("input_ids"), named.inputs.get("labels")
    if ids is not None and labels is not None and ids.shape == labels.shape:
        named.inputs["labels"] = ids  # as scripts of language models have it: one tensor, given twice
    named.module.train()
    casts = None
    if options.param:
        # Every unit casts what it is called with; the library says which of its modules may not be split.
        units = sorted(getattr(named.module, "_no_split_modules", None) or [])
        casts = {"param": options.param, "units": units} | ({"buffer": options.buffer} if options.buffer else {})
    name = os.path.basename(os.path.dirname(os.path.abspath(options.model))) if options.model.endswith(".json") else ""

    def step(module, *tensors, **inputs):
        out = module(*tensors[: len(named.args)], **inputs)
        named.loss(out, *tensors[-len(named.targets) :]).backward()

    def capture_it(**more):
        more |= {"device": "fake", "mixed_precision": casts, "name": name}
        if not named.targets:
            return capture(named.module, *named.args, loss=named.loss, **named.inputs, **named.fixed, **more)
        own = named.targets if named.targets is not named.args else ()
        return capture_step(named.module, step, *named.args, *own, **named.inputs, **named.fixed, **more)

    try:
        return capture_it()
    except CaptureError as error:
        if "values of a tensor" not in error.message:
            raise
        return capture_it(strict=False)  # routers and masks: balanced, and told (docs/python.md)


def main() -> int:
    options = parser().parse_args()
    model = captured(options)
    model.save(options.output)
    for note in model.notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"{options.output}: {model}; next: foreshard simulate {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
