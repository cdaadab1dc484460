"""A configuration of torchtitan (config_registry.py, since 2026) as JSON that `foreshard import` reads.

    python titan_config.py --module llama3 --config llama3_8b [torchtitan's own flags ...] > titan.json
    foreshard import titan.json --model config.json > job.toml

Runs where torchtitan is installed; builds nothing and needs no GPU.
"""
import contextlib
import dataclasses
import json
import sys

# What no plan depends on, and what is not data.
LEFT_OUT = {"dataloader", "tokenizer", "metrics", "profiler", "comm", "validator", "override"}


def plain(value):
    """Configurations as tables with the name of their class, everything else as JSON has it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: plain(getattr(value, f.name, None)) for f in dataclasses.fields(value)}
        return {"_class": type(value).__qualname__, **fields}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def modules(config, name=""):
    """Configurations of modules, by the names of the modules they build."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        yield name, config
        parts = [(f.name, getattr(config, f.name, None)) for f in dataclasses.fields(config)]
    elif isinstance(config, (list, tuple)):
        parts = enumerate(config)
    else:
        parts = config.items() if isinstance(config, dict) else ()
    for key, part in parts:
        yield from modules(part, f"{name}.{key}" if name else str(key))


def llama(tree):
    """The sizes of a dense Llama, as Foreshard's titan_llama has them; None: another model."""
    layers = getattr(tree, "layers", None) or []
    if "llama" not in type(tree).__qualname__.lower() or any(getattr(layer, "feed_forward", None) is None for layer in layers) or not layers:
        return None
    attention, feed = layers[0].attention, layers[0].feed_forward
    longest = getattr(getattr(attention, "rope", None), "max_context_length", None)
    return {"model_type": "titan_llama", "dim": tree.dim, "n_layers": len(layers), "n_heads": attention.n_heads,
            "n_kv_heads": attention.n_kv_heads or attention.n_heads, "ffn": feed.w1.out_features, "vocab_size": tree.vocab_size,
            **({"max_seq": longest} if longest else {})}


def float8_recipe(layer):
    """torchtitan's own are by rows."""
    told = str(getattr(layer, "_torchao_config", "")).lower()
    if "axiswise" in told and "disabled" in told:
        return "rowwise_with_gw_hp"
    return "tensorwise" if "tensorwise" in told and "axiswise" not in told else "rowwise"


def model(spec):
    """A model's name, its sizes where Foreshard builds it, and what converters made of its linear layers."""
    out = {"name": getattr(spec, "name", None), "flavor": getattr(spec, "flavor", None)}
    tree = getattr(spec, "model", None)
    if sizes := llama(tree):
        out["config"] = json.dumps(sizes)
    layers = [(name.rsplit(".", 1)[-1], part) for name, part in modules(tree) if hasattr(part, "in_features") and hasattr(part, "out_features")]
    adapted = [(name, part) for name, part in layers if hasattr(part, "rank") and hasattr(part, "alpha")]
    if adapted:
        first = adapted[0][1]
        out["lora"] = {"rank": first.rank, "alpha": first.alpha, "targets": list(dict.fromkeys(name for name, _ in adapted))}
    for kind in ("float8", "mxfp8", "nvfp4"):
        converted = [part for _, part in layers if kind in type(part).__qualname__.lower()]
        if converted:
            out["linear_layers"] = f"float8 {float8_recipe(converted[0])}" if kind == "float8" else kind
    return out


def table(config):
    out = {"foreshard_torchtitan": 1}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name, None)
        if field.name == "model_spec":
            out["model"] = model(value)
        elif field.name not in LEFT_OUT:
            out[field.name] = plain(value)
    # One group that takes every parameter is the optimizer; several are told by number.
    groups = (out.get("optimizer") or {}).pop("param_groups", None)
    if groups:
        first = groups[0]
        out["optimizer"].update(name=first.get("optimizer_name"), **(first.get("optimizer_kwargs") or {}))
        if len(groups) > 1:
            out["optimizer"]["further_param_groups"] = len(groups) - 1
    return out


def main():
    with contextlib.redirect_stdout(sys.stderr):  # torchtitan talks while it is imported
        from torchtitan.config import ConfigManager

        config = ConfigManager().parse_args(sys.argv[1:])
    json.dump(table(config), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
