"""A model and one micro-batch from a name, on the meta device: a Transformers id, folder or config.json; timm:NAME; FILE.py:FUNCTION.

Needs nothing else of this package: `foreshard export-script` prints these functions.
"""

import importlib.util
import inspect
import json
import pathlib
import re
import sys

import torch
import torch.nn.functional as F


class NamedModel:
    """The module, what it is called with (tensors by name, and what is none), and from what it returns to the loss (None: the scalar of its outputs),
    which is handed `targets` too, if there are any."""

    def __init__(self, module, args=(), inputs=None, fixed=None, loss=None, targets=()):
        self.module, self.args, self.inputs, self.fixed, self.loss, self.targets = module, args, inputs or {}, fixed or {}, loss, targets


def named_model(name, batch, seq, dtype=torch.float32, attention="sdpa", target_seq=0):
    """dtype of the parameters as they are created, None: the configuration's. seq 0: the model's longest, at most 2,048."""
    if name.startswith("timm:"):
        return timm_model(name[len("timm:") :], batch, dtype)
    if ".py:" in name:
        return own_model(name, batch, seq, dtype)
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
    dtype = dtype or getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or torch.float32
    build = kind._from_config if hasattr(kind, "_from_config") else kind.from_config
    named = "dtype" if hasattr(config, "dtype") else "torch_dtype"  # as releases before 4.56 call it
    with torch.device("meta"):
        try:
            model = build(config, **{named: dtype}, attn_implementation=attention)
        except ValueError:  # no sdpa form (soft capping, ...)
            model = build(config, **{named: dtype}, attn_implementation="eager")
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
    return NamedModel(model, (images,), loss=F.cross_entropy, targets=(labels,))


_own_folders = set()  # of functions that were run


def forget_own():
    """What a function of an own file has imported from beside it: the next one's modules may have the same names, or be newer."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name != "__main__" and any(str(pathlib.Path(file).resolve()).startswith(folder + "/") and "site-packages" not in file for folder in _own_folders):
            del sys.modules[name]
    sys.path[:] = [path for path in sys.path if path not in _own_folders]
    _own_folders.clear()


def own_model(spec, batch, seq, dtype=None):
    """FUNCTION() returns the module, or (module, args), (module, args, kwargs), (module, args, kwargs, loss): what its forward is called with, and
    from what that returns (and from `args`, where it takes them behind that) to the loss. One with parameters `batch` and `seq` is handed the sizes; `dtype` is the default one while it runs."""
    path, _, function = spec.rpartition(":")
    forget_own()
    _own_folders.add(str(pathlib.Path(path).resolve().parent))
    sys.path.insert(0, *_own_folders)
    module_spec = importlib.util.spec_from_file_location("model_" + re.sub(r"\W", "_", str(pathlib.Path(path).resolve())), path)
    file = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = file
    module_spec.loader.exec_module(file)
    build = getattr(file, function)
    takes = inspect.signature(build).parameters
    sizes = {key: size for key, size in (("batch", batch), ("seq", seq)) if key in takes and (size or key == "batch")}
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        with torch.device("meta"):
            built = build(**sizes)
    finally:
        torch.set_default_dtype(before)
    built = built if isinstance(built, tuple) else (built,)
    module, args, kwargs, loss = (*built, *((), {}, None)[len(built) - 1 :])
    with_batch = loss is not None and len(inspect.signature(loss).parameters) > 1
    args = tuple(args)
    return NamedModel(module, args, dict(kwargs), loss=loss, targets=args if with_batch else ())
