"""--fake-weights: what a script would take from a hub is made here.

- Models: from the config of a local folder, or of FORESHARD_SHADOW_CONFIGS/OWNER/NAME (or NAME), without any weights file.
- Tokenizers that are not on this machine: one of bytes, 256 of them and three special tokens, with a plain chat template.
- Data sets that are not on this machine: 256 rows with `text` and `messages`, both longer than most sequences.
"""

from __future__ import annotations

import functools
import os
import pathlib

from .hooks import after_import
from .notes import note

CONFIGS = "FORESHARD_SHADOW_CONFIGS"
ROWS, WORDS = 256, 1600
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{{ eos_token }}\n{% endfor %}"


def begin() -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    after_import("transformers.configuration_utils", _configs)
    after_import("transformers.modeling_utils", _models)
    after_import("transformers.models.auto.auto_factory", _auto_models)
    after_import("transformers.models.auto.tokenization_auto", _tokenizers)
    after_import("transformers.models.auto.processing_auto", _processors)
    after_import("datasets.load", _data_sets)


def folder_of(name) -> str:
    """The local folder that stands for a name of the hub."""
    name = str(name)
    if os.path.exists(name):
        return name
    given = os.environ.get(CONFIGS, "")
    last = name.split("/")[-1]
    for place in (pathlib.Path(given) / name, pathlib.Path(given) / last, pathlib.Path(given) / last.lower()):
        if given and (place / "config.json").exists():
            return str(place)
    raise OSError(
        f"foreshard shadow --fake-weights: there is no config of {name} on this machine: "
        f"put its config.json into {given or '$' + CONFIGS}/{name}/"
    )


def _configs(module) -> None:
    base = getattr(module, "PretrainedConfig", None) or module.PreTrainedConfig
    inner = base.get_config_dict.__func__

    @functools.wraps(inner)
    def get_config_dict(cls, name, **kwargs):
        return inner(cls, folder_of(name), **kwargs)

    base.get_config_dict = classmethod(get_config_dict)


def _dtype(kwargs, config):
    import torch

    wanted = kwargs.get("dtype", kwargs.get("torch_dtype", "auto"))
    if wanted == "auto":
        wanted = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or torch.get_default_dtype()
    return getattr(torch, wanted) if isinstance(wanted, str) else wanted


def _models(module) -> None:
    base = module.PreTrainedModel

    def from_pretrained(cls, name, *args, config=None, **kwargs):
        if config is None or isinstance(config, (str, os.PathLike)):
            config = cls.config_class.from_pretrained(folder_of(config or name))
        note(f"{name}: weights are made from its config, none are read")
        more = {key: kwargs[key] for key in ("attn_implementation",) if kwargs.get(key) is not None}
        model = cls._from_config(config, dtype=_dtype(kwargs, config), **more)
        model.eval()
        model.name_or_path = str(name)
        return (model, {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": [], "error_msgs": []}) if kwargs.get("output_loading_info") else model

    base.from_pretrained = classmethod(functools.wraps(base.from_pretrained.__func__)(from_pretrained))


def _auto_models(module) -> None:
    base = module._BaseAutoModelClass
    inner = base.from_pretrained.__func__

    @functools.wraps(inner)
    def from_pretrained(cls, name, *args, **kwargs):
        return inner(cls, folder_of(name), *args, **kwargs)

    base.from_pretrained = classmethod(from_pretrained)


def _byte_tokenizer(name):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<s>", "</s>", "<pad>"]
    vocabulary = {each: i for i, each in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), *special])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    note(f"{name}: a tokenizer of bytes stands in for its own")
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", chat_template=TEMPLATE)
    made.name_or_path = str(name)
    return made


def _tokenizer_of(inner, name, args, kwargs):
    place = str(name)
    try:
        place = folder_of(name)
    except OSError:
        pass
    if any(os.path.exists(os.path.join(place, file)) for file in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")):
        return inner(place, *args, **kwargs)
    return _byte_tokenizer(name)


def _tokenizers(module) -> None:
    inner = module.AutoTokenizer.from_pretrained

    def from_pretrained(cls, name, *args, **kwargs):
        return _tokenizer_of(inner, name, args, kwargs)

    module.AutoTokenizer.from_pretrained = classmethod(from_pretrained)


def _processors(module) -> None:
    def from_pretrained(cls, name, *args, **kwargs):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(name, *args, **kwargs)

    module.AutoProcessor.from_pretrained = classmethod(from_pretrained)


def _data_sets(module) -> None:
    inner = module.load_dataset

    @functools.wraps(inner)
    def load_dataset(path, name=None, *args, split=None, streaming=False, **kwargs):
        if os.path.exists(str(path)) or kwargs.get("data_files"):
            return inner(path, name, *args, split=split, streaming=streaming, **kwargs)
        from datasets import Dataset, DatasetDict

        note(f"{path}: {ROWS} rows of made-up text stand in for the data set")
        text = [f"Row {row} of a stand-in. " + "word " * WORDS for row in range(ROWS)]
        messages = [[{"role": "user", "content": each[:200]}, {"role": "assistant", "content": each}] for each in text]
        rows = Dataset.from_dict({"text": text, "messages": messages})
        made = rows if split is not None else DatasetDict(train=rows, validation=rows, test=rows)
        if not streaming:
            return made
        return made.to_iterable_dataset() if split is not None else {key: each.to_iterable_dataset() for key, each in made.items()}

    module.load_dataset = load_dataset
