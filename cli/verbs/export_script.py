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


def with_loss(model, loss):
    """The model itself, its forward ending in the loss: names of modules and parameters stay what they are."""
    run = model.forward

    def forward(*inputs):
        return loss(run, *inputs)

    model.forward = forward
    return model


def empty_ids(batch, seq):
    return torch.empty(batch, seq, dtype=torch.int64, device="meta")


def transformers_config(name):
    import transformers

    path = pathlib.Path(name)
    if path.suffix == ".json":
        keys = json.loads(path.read_text())
        return transformers.AutoConfig.for_model(keys.pop("model_type"), **keys)
    return transformers.AutoConfig.from_pretrained(name)


def transformers_model(name, batch, seq, dtype):
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers_config(name)
    if (config.architectures or [None])[0]:
        kind = getattr(transformers, config.architectures[0])
    else:
        kind = transformers.AutoModelForCausalLM
    build = kind._from_config if hasattr(kind, "_from_config") else kind.from_config
    with torch.device("meta"):
        try:
            model = build(config, dtype=dtype, attn_implementation="sdpa")
        except TypeError:  # before `dtype` had its name
            model = build(config, torch_dtype=dtype, attn_implementation="sdpa")
        except ValueError:  # no sdpa form (soft capping, ...)
            model = build(config, dtype=dtype, attn_implementation="eager")
    with contextlib.suppress(ImportError):
        # The library asks the data whether rows are packed, and builds a mask where it may not ask or is exported. In
        # training the answer is no, and attention runs on its causal flag: so it is exported.
        from transformers import masking_utils

        if hasattr(masking_utils, "find_packed_sequence_indices"):
            masking_utils.find_packed_sequence_indices = lambda position_ids: None
        for question in ("is_torchdynamo_exporting", "is_tracing"):
            if hasattr(masking_utils, question):
                setattr(masking_utils, question, lambda *tensors: False)
    names, tensors, fixed = transformers_inputs(model, config, batch, seq, dtype)

    def loss(run, *inputs):
        out = run(**dict(zip(names, inputs)), **fixed)
        return out.loss if getattr(out, "loss", None) is not None else out[0].sum()
    return with_loss(model, loss), tensors


def transformers_inputs(model, config, batch, seq, dtype):
    """Names and meta tensors of one training step's inputs, and arguments that are no tensors.

    Labels are given where the model takes them and can use them without looking at data; else the loss is the sum of the first output.
    """
    kind, takes = type(model).__name__, inspect.signature(type(model).forward).parameters
    text = getattr(config, "text_config", None) or config
    vision = getattr(config, "vision_config", None) or config
    longest = next((size for key in ("max_target_positions", "max_position_embeddings", "n_positions")
                    if (size := getattr(text, key, None))), 2048)
    seq = min(seq or 2048, longest) if longest > 0 else seq or 2048
    main = getattr(model, "main_input_name", "input_ids")
    inputs, fixed = {}, {}
    if main == "pixel_values" or "pixel_values" in takes and "input_ids" in takes:
        size = getattr(vision, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else size
        inputs["pixel_values"] = torch.empty(batch, getattr(vision, "num_channels", 3), height, width, dtype=dtype, device="meta")
    if main == "input_features":
        frames = 2 * getattr(config, "max_source_positions", 1500)
        inputs[main] = torch.empty(batch, getattr(config, "num_mel_bins", 80), frames, dtype=dtype, device="meta")
    if main == "input_values":  # sound: `seq` thousands of samples
        inputs[main] = torch.empty(batch, 1000 * min(seq, 16), dtype=dtype, device="meta")
    if "input_ids" in takes:
        inputs["input_ids"] = empty_ids(batch, seq)
    if config.is_encoder_decoder and "decoder_input_ids" in takes:
        inputs["decoder_input_ids"] = empty_ids(batch, seq)
    per_example = ("ForSequenceClassification", "ForImageClassification", "ForAudioClassification", "ForNextSentencePrediction")
    if "return_loss" in takes:
        fixed["return_loss"] = True
    elif kind.endswith(per_example) and "labels" in takes:
        config.problem_type = config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")
        inputs["labels"] = torch.empty(batch, dtype=dtype if config.num_labels == 1 else torch.int64, device="meta")
    elif "start_positions" in takes:
        inputs |= {key: torch.empty(batch, dtype=torch.int64, device="meta") for key in ("start_positions", "end_positions")}
    elif "labels" in takes and ("input_ids" in takes or "decoder_input_ids" in takes):
        inputs["labels"] = empty_ids(batch, seq)
    if "use_cache" in takes:
        fixed["use_cache"] = False
    if hasattr(model.config, "apply_spec_augment"):
        model.config.apply_spec_augment = False  # masks that the host draws while it runs
    return list(inputs), tuple(inputs.values()), fixed


def timm_model(name, batch, dtype):
    import timm

    with torch.device("meta"):
        model = timm.create_model(name).to(dtype)
    channels, height, width = getattr(model, "pretrained_cfg", {}).get("input_size", (3, 224, 224))
    images = torch.empty(batch, channels, height, width, dtype=dtype, device="meta")
    labels = torch.empty(batch, dtype=torch.int64, device="meta")
    return with_loss(model, lambda m, x, y: F.cross_entropy(m(x), y)), (images, labels)


def own_model(spec):
    path, _, function = spec.rpartition(":")
    sys.path.insert(0, str(pathlib.Path(path).resolve().parent))
    module_spec = importlib.util.spec_from_file_location("model_to_export", path)
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    with torch.device("meta"):
        built = getattr(module, function)()
    return built if isinstance(built, tuple) else (built, ())


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
    dtype = getattr(torch, args.dtype)
    kwargs = {}
    if args.model.startswith("timm:"):
        model, inputs = timm_model(args.model[5:], args.batch, dtype)
    elif ".py:" in args.model:
        model, inputs, *rest = own_model(args.model)
        kwargs = rest[0] if rest else {}
    else:
        model, inputs = transformers_model(args.model, args.batch, args.seq, dtype)
    model.train()
    export = getattr(torch.export, "export_for_training", None) if torch.__version__ < "2.7" else None
    program = (export or torch.export.export)(model, inputs, kwargs, strict=False)
    save(program, args.output)
    size = pathlib.Path(args.output).stat().st_size
    operators = sum(node.op == "call_function" for node in program.graph.nodes)
    print(f"{args.output}: {operators} operators, {size} bytes; next: foreshard simulate {args.output}")


if __name__ == "__main__":
    main()
