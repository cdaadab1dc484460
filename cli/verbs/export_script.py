#!/usr/bin/env python3
"""Exports a model to a small .pt2 archive for foreshard: meta tensors (no weights), the loss inside.

  python export.py meta-llama/Llama-3.2-1B --batch 1 --seq 2048 -o llama.pt2     a Transformers model or its folder
  python export.py ./config.json -o model.pt2                                    a configuration alone, nothing is loaded
  python export.py timm:resnet50 --batch 32 -o resnet50.pt2                      a timm model
  python export.py train.py:build -o mine.pt2                                    your own: build() returns (module, args)
                                                                                 or (module, args, kwargs)
Needs PyTorch 2.5 or newer. Set the dtype of the parameters as they are created with --dtype: with FSDP's mixed
precision that is float32, and the plan casts them.
"""
import argparse
import contextlib
import importlib.util
import inspect
import io
import json
import pathlib
import re
import sys
import zipfile

import torch
import torch.nn.functional as F

MODEL = ""
BATCH = 1
SEQ = 0
OUTPUT = "model.pt2"

from foreshard.named_models import named_model  # the script that is printed has that file's functions here


def ending_in_loss(named):
    """The model itself, its forward ending in the loss: names of modules and parameters stay what they are."""
    run, names, loss = named.module.forward, list(named.inputs), named.loss or (lambda out: out)
    count = len(named.args)
    own = () if named.targets is named.args else named.targets

    def forward(*inputs):
        args, rest = inputs[:count], inputs[count:]
        out = run(*args, **dict(zip(names, rest)), **named.fixed)
        return loss(out, *(rest[len(names) :] if own else args if named.targets else ()))

    named.module.forward = forward
    return named.module, (*named.args, *named.inputs.values(), *own)


def without_packed_rows():
    """The library asks the data whether rows are packed, and builds a mask where it may not ask or is exported. In training the answer is no,
    and attention runs on its causal flag: so it is exported."""
    with contextlib.suppress(ImportError):
        from transformers import masking_utils

        if hasattr(masking_utils, "find_packed_sequence_indices"):
            masking_utils.find_packed_sequence_indices = lambda position_ids: None
        for question in ("is_torchdynamo_exporting", "is_tracing"):
            if hasattr(masking_utils, question):
                setattr(masking_utils, question, lambda *tensors: False)


def save(program, path):
    """Compressed. The source's lines go along, for they say which values have names, but nobody's directories."""
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            if trace := node.meta.get("stack_trace"):
                node.meta["stack_trace"] = re.sub(r'File "[^"]*[/\\]', 'File "', trace)
    archive = io.BytesIO()
    torch.export.save(program, archive)
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for member in source.infolist():
            target.writestr(member.filename, source.read(member))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?" if MODEL else None, default=MODEL or None,
                        help="Transformers id, folder or config.json; timm:NAME; FILE.py:FUNCTION")
    parser.add_argument("--batch", type=int, default=BATCH, help="sequences or images of one rank (%(default)s)")
    parser.add_argument("--seq", type=int, default=SEQ, help="tokens of one sequence; 0 = the model's, at most 2048")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"],
                        help="dtype in which parameters are created (%(default)s)")
    parser.add_argument("-o", "--output", default=OUTPUT, help="the archive (%(default)s)")
    args = parser.parse_args()
    without_packed_rows()
    model, inputs = ending_in_loss(named_model(args.model, args.batch, args.seq, getattr(torch, args.dtype)))
    model.train()
    export = getattr(torch.export, "export_for_training", None) if torch.__version__ < "2.7" else None
    program = (export or torch.export.export)(model, inputs, strict=False)
    save(program, args.output)
    size = pathlib.Path(args.output).stat().st_size
    operators = sum(node.op == "call_function" for node in program.graph.nodes)
    print(f"{args.output}: {operators} operators, {size} bytes; next: foreshard simulate {args.output}")


if __name__ == "__main__":
    main()
