"""--fake-weights: what a script would take from a hub is made here.

- Models: from the config of a local folder, or of FORESHARD_SHADOW_CONFIGS/OWNER/NAME (or NAME), without any weights file.
- Tokenizers that are not on this machine: one of bytes, 256 of them, three special tokens and those that a script asks for, with a plain chat template.
- Data sets that are not on this machine: 512 rows with `text` and `messages`, both longer than most sequences; a trainer of TRL that learns from
  preferences gets rows of `chosen` and `rejected` in their place.
"""

from __future__ import annotations

import functools
import os
import pathlib

from .hooks import after_import
from .notes import note

CONFIGS = "FORESHARD_SHADOW_CONFIGS"
ROWS, WORDS = 512, 1600
PREFERENCES = ("DPOTrainer", "RewardTrainer")
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
    for trainer in PREFERENCES:
        after_import(f"trl.trainer.{trainer.lower().removesuffix('trainer')}_trainer", functools.partial(_preferences, trainer))


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
        if kwargs.get("tp_plan") is not None or kwargs.get("distributed_config") is not None:
            note(f"{name}: it is not cut over ranks as from_pretrained() is asked to: that goes with weights that are read")
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


class Vocabulary(dict):
    """Of a tokenizer that has every special token (`<|im_end|>`) from the moment that a script asks for it."""

    tokenizer = None

    def __contains__(self, token):
        if not super().__contains__(token) and isinstance(token, str) and len(token) > 2 and token[0] + token[-1] in ("<>", "[]"):
            self.tokenizer.add_special_tokens({"additional_special_tokens": [token]}, False)
            self[token] = len(self)
        return super().__contains__(token)


@functools.cache
def _stand_in_class():
    from transformers import PreTrainedTokenizerFast

    class ByteTokenizer(PreTrainedTokenizerFast):
        def get_vocab(self):
            known = Vocabulary(super().get_vocab())
            known.tokenizer = self
            return known

        def convert_tokens_to_ids(self, tokens):
            known = self.get_vocab()
            for token in [tokens] if isinstance(tokens, str) else tokens:
                token in known  # noqa: B015 - asking gives it
            return super().convert_tokens_to_ids(tokens)

    return ByteTokenizer


def _byte_tokenizer(name):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    special = ["<s>", "</s>", "<pad>"]
    vocabulary = {each: i for i, each in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), *special])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    note(f"{name}: a tokenizer of bytes stands in for its own")
    made = _stand_in_class()(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", chat_template=TEMPLATE)
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


_STAND_INS: set[str] = set()  # fingerprints of data sets that were made up here


def _texts():
    return [f"Row {row} of a stand-in. " + "word " * WORDS for row in range(ROWS)]


def _said(asked, answered):
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]


def _preferences(trainer, module) -> None:
    """A made-up data set that a trainer of preferences is given is made up as one."""
    kind = getattr(module, trainer, None)
    if kind is None:
        return
    inner = kind.__init__

    @functools.wraps(inner)
    def __init__(self, *args, **kwargs):
        given = {key: _preferred(kwargs[key]) for key in ("train_dataset", "eval_dataset") if key in kwargs}
        inner(self, *args, **{**kwargs, **given})

    kind.__init__ = __init__


def _preferred(rows):
    if getattr(rows, "_fingerprint", None) not in _STAND_INS:
        return rows
    from datasets import Dataset

    note("the stand-in data set has rows of preferences: chosen and rejected answers of one length")
    text = _texts()
    return Dataset.from_dict({key: [_said(each[:200], each) for each in text] for key in ("chosen", "rejected")})


def _data_sets(module) -> None:
    inner = module.load_dataset

    @functools.wraps(inner)
    def load_dataset(path, name=None, *args, split=None, streaming=False, **kwargs):
        if os.path.exists(str(path)) or kwargs.get("data_files"):
            return inner(path, name, *args, split=split, streaming=streaming, **kwargs)
        from datasets import Dataset, DatasetDict

        note(f"{path}: {ROWS} rows of made-up text stand in for the data set")
        text = _texts()
        rows = Dataset.from_dict({"text": text, "messages": [_said(each[:200], each) for each in text]})
        _STAND_INS.add(rows._fingerprint)
        made = rows if split is not None else DatasetDict(train=rows, validation=rows, test=rows)
        if not streaming:
            return made
        return made.to_iterable_dataset() if split is not None else {key: each.to_iterable_dataset() for key, each in made.items()}

    module.load_dataset = load_dataset
