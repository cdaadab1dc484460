#!/usr/bin/env python3
"""The recorder of `foreshard-oracle practice` with torchao's Float8Linear: cases that have a key "float8".

    FAKEGPU_DIR=.. RECORDER=shared/oracle/practice/recorder.py float8.py --grid CASES.jsonl --out ROWS.jsonl

`"float8": {"recipe": "tensorwise" | "rowwise", "gather": bool, "precompute": bool}`: every linear layer whose sizes are multiples of 16, the output layer aside, is converted before
the model is wrapped, as torchtitan's converter does it. `gather` is enable_fsdp_float8_all_gather, `precompute` precompute_float8_dynamic_scale_for_fsdp behind each optimizer's step.
Eager kernels: the virtual device compiles nothing, so rows' scales are rounded by kernels that PyTorch has ready (log for log2, exp for exp2: as many, of the same sizes). Needs torchao beside the recorder's own packages; the rows say which.
"""
import around
from around import recorder

OUTPUT_LAYERS = ("output", "lm_head")


def config_of(asked):
    from torchao.float8 import Float8LinearConfig
    if asked["recipe"] == "tensorwise":
        return Float8LinearConfig(enable_fsdp_float8_all_gather=asked.get("gather", False))
    return Float8LinearConfig.from_recipe_name(asked["recipe"])


def converts(module, name):
    return name.rsplit(".", 1)[-1] not in OUTPUT_LAYERS and all(size % 16 == 0 for size in module.weight.shape)


def convert(case):
    """Converts what recorder.build makes; scales are made behind each step where they are asked for."""
    import torch
    import torchao.float8.float8_utils as utils
    from torch.optim.optimizer import register_optimizer_step_post_hook
    asked, build = case["float8"], recorder.build
    utils._round_scale_down_to_power_of_2 = lambda x: torch.exp(torch.floor(torch.log(x)))

    def built(c):
        from torchao.float8 import convert_to_float8_training, precompute_float8_dynamic_scale_for_fsdp
        model, batch = build(c)
        convert_to_float8_training(model, config=config_of(asked), module_filter_fn=converts)
        if asked.get("precompute"):
            register_optimizer_step_post_hook(lambda *_: precompute_float8_dynamic_scale_for_fsdp(model))
        return model, batch

    recorder.build = built


if __name__ == "__main__":
    around.main(__file__, "float8", convert, "torchao")
