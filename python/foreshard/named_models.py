"""A model and one micro-batch from a name, on the meta device: a Transformers id, folder or config.json; timm:NAME; FILE.py:FUNCTION.

Needs nothing else of this package: `foreshard export-script` prints these functions.
"""

import importlib.util
import inspect
import json
import pathlib
import sys

import torch
import torch.nn.functional as F


class NamedModel:
    """The module, what it is called with (tensors by name, and what is none), and from what it returns to the loss (None: the scalar of its outputs)."""

    def __init__(self, module, args=(), inputs=None, fixed=None, loss=None):
        self.module, self.args, self.inputs, self.fixed, self.loss = module, args, inputs or {}, fixed or {}, loss


def named_model(name, batch, seq, dtype=torch.float32, attention="sdpa", target_seq=0):
    """dtype of the parameters as they are created, None: the configuration's. seq 0: the model's longest, at most 2,048."""
    if name.startswith("timm:"):
        return timm_model(name[len("timm:") :], batch, dtype)
    if ".py:" in name:
        return own_model(name, batch, seq)
    return transformers_model(name, batch, seq, dtype, attention, target_seq)


def empty_ids(batch, seq):
    return torch.empty(batch, seq, dtype=torch.int64, device="meta")


def transformers_config(name):
    import transformers

    path = pathlib.Path(name)
    if path.suffix == ".json":
        keys = json.loads(path.read_text())
        return transformers.AutoConfig.for_model(keys.pop("model_type"), **keys)
    return transformers.AutoConfig.from_pretrained(name)


def transformers_model(name, batch, seq, dtype, attention="sdpa", target_seq=0):
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers_config(name)
    if (config.architectures or [None])[0]:
        kind = getattr(transformers, config.architectures[0])
    else:
        kind = transformers.AutoModelForCausalLM
    dtype = dtype or getattr(config, "dtype", None) or torch.float32
    build = kind._from_config if hasattr(kind, "_from_config") else kind.from_config
    with torch.device("meta"):
        try:
            model = build(config, dtype=dtype, attn_implementation=attention)
        except TypeError:  # before `dtype` had its name
            model = build(config, torch_dtype=dtype, attn_implementation=attention)
        except ValueError:  # no sdpa form (soft capping, ...)
            model = build(config, dtype=dtype, attn_implementation="eager")
    inputs, fixed = transformers_inputs(model, config, batch, seq, dtype, target_seq)

    def loss(out):
        return out.loss if getattr(out, "loss", None) is not None else out[0].sum()

    return NamedModel(model, inputs=inputs, fixed=fixed, loss=loss)


def transformers_inputs(model, config, batch, seq, dtype, target_seq=0):
    """Meta tensors of one training step's inputs by name, and arguments that are no tensors.

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
        inputs["decoder_input_ids"] = empty_ids(batch, target_seq or seq)
    per_example = ("ForSequenceClassification", "ForImageClassification", "ForAudioClassification", "ForNextSentencePrediction")
    if "return_loss" in takes:
        fixed["return_loss"] = True
    elif kind.endswith(per_example) and "labels" in takes:
        config.problem_type = config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")
        inputs["labels"] = torch.empty(batch, dtype=dtype if config.num_labels == 1 else torch.int64, device="meta")
    elif "start_positions" in takes:
        inputs |= {key: torch.empty(batch, dtype=torch.int64, device="meta") for key in ("start_positions", "end_positions")}
    elif "labels" in takes and ("input_ids" in takes or "decoder_input_ids" in takes):
        inputs["labels"] = empty_ids(batch, target_seq or seq if "decoder_input_ids" in inputs else seq)
    if "use_cache" in takes:
        fixed["use_cache"] = False
    if hasattr(model.config, "apply_spec_augment"):
        model.config.apply_spec_augment = False  # masks that the host draws while it runs
    return inputs, fixed


def timm_model(name, batch, dtype):
    import timm

    with torch.device("meta"):
        model = timm.create_model(name).to(dtype or torch.float32)
    channels, height, width = getattr(model, "pretrained_cfg", {}).get("input_size", (3, 224, 224))
    images = torch.empty(batch, channels, height, width, dtype=dtype or torch.float32, device="meta")
    labels = torch.empty(batch, dtype=torch.int64, device="meta")
    return NamedModel(model, inputs={"x": images}, loss=lambda out: F.cross_entropy(out, labels.to(out.device)))


def own_model(spec, batch, seq):
    """FUNCTION() returns the module, or (module, args), (module, args, kwargs), (module, args, kwargs, loss): what its forward is called with, and
    from what that returns to the loss. One with parameters `batch` and `seq` is handed the sizes."""
    path, _, function = spec.rpartition(":")
    sys.path.insert(0, str(pathlib.Path(path).resolve().parent))
    module_spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    file = importlib.util.module_from_spec(module_spec)
    sys.modules.setdefault(module_spec.name, file)
    module_spec.loader.exec_module(file)
    build = getattr(file, function)
    takes = inspect.signature(build).parameters
    sizes = {key: size for key, size in (("batch", batch), ("seq", seq)) if key in takes and (size or key == "batch")}
    with torch.device("meta"):
        built = build(**sizes)
    built = built if isinstance(built, tuple) else (built,)
    module, args, kwargs, loss = (*built, *((), {}, None)[len(built) - 1 :])
    return NamedModel(module, tuple(args), dict(kwargs), loss=loss)
