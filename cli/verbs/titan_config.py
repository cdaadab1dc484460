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


def table(config):
    out = {"foreshard_torchtitan": 1}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name, None)
        if field.name == "model_spec":
            out["model"] = {"name": getattr(value, "name", None), "flavor": getattr(value, "flavor", None)}
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
