"""Rows for `foreshard-oracle fsdp1-schedules` that nobody wrote down: recorded configurations with options changed at random.

    FAKEGPU_LIB=build/release/lib/libfakegpu.so fsdp1_schedules.py RECORDER_FOLDER OUT.jsonl SEED COUNT

RECORDER_FOLDER holds record_schedules.py (shared/oracle/fsdp1); needs PyTorch 2.11. Some mixtures are refused by PyTorch:
the row then says so, and no plan may come of it either.
"""
import copy
import os
import random
import runpy
import sys

PRECISION = [None, {"param_dtype": "bf16"}, {"param_dtype": "bf16", "reduce_dtype": "fp32"}, {"reduce_dtype": "bf16"}, {"param_dtype": "fp16"},
             {"param_dtype": "bf16", "keep_low_precision_grads": True}, {"param_dtype": "bf16", "reduce_dtype": "fp16"}]
PER_UNIT = [{"strategy": "SHARD_GRAD_OP"}, {"strategy": "NO_SHARD"}, {"mixed_precision": {"param_dtype": "bf16"}}, {"mixed_precision": None},
            {"backward_prefetch": "none"}, {"forward_prefetch": True}]


def change(rng, config, iterations):
    """One thing about a configuration."""
    options = config["options"]
    what = rng.choice(["strategy", "backward_prefetch", "flag", "flag", "mixed_precision", "world", "iterations", "iterations", "per_unit", "units"])
    if what == "strategy":
        options["strategy"] = rng.choice(["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"])
        options.pop("shard_group_size", None)
        if "HYBRID" in options["strategy"]:
            config["W"] = rng.choice([2, 4, 6, 8])
            options["shard_group_size"] = rng.choice([n for n in (1, 2, 3, 4) if config["W"] % n == 0])
    elif what == "backward_prefetch":
        options[what] = rng.choice(["PRE", "POST", "none"])
    elif what == "flag":
        flag = rng.choice(["forward_prefetch", "limit_all_gathers", "use_orig_params", "cpu_offload"])
        options[flag] = not options.get(flag, flag == "limit_all_gathers")
    elif what == "mixed_precision":
        options[what] = rng.choice(PRECISION)
    elif what == "world" and "shard_group_size" not in options:
        config["W"] = rng.choice([1, 2, 3, 4, 8])
    elif what == "iterations":
        config[what] = copy.deepcopy(rng.choice(iterations))
    elif what == "per_unit" and config["units"]:
        config.setdefault(what, {})[rng.choice(config["units"])] = rng.choice(PER_UNIT)
    elif what == "units" and len(config["units"]) > 1:
        gone = config["units"].pop(rng.randrange(len(config["units"])))
        config.get("per_unit", {}).pop(gone, None)


def changed(configs, seed, count):
    rng = random.Random(seed)
    iterations = [c["iterations"] for c in configs]
    rows = []
    for k in range(count):
        config = copy.deepcopy(rng.choice(configs))
        config["id"] = f"changed-{seed}-{k}-{config['id']}"
        for _ in range(rng.randint(1, 4)):
            change(rng, config, iterations)
        group = config["options"].get("shard_group_size")
        if group and config["W"] % group:
            config["options"]["shard_group_size"] = 1
        config["rank"] = rng.randrange(config["W"]) if rng.random() < 0.3 else 0
        rows.append(config)
    return rows


if __name__ == "__main__":
    folder, out, seed, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if "fakegpu" not in os.environ.get("LD_PRELOAD", ""):  # the recorder would start itself anew, without these changes
        import tempfile
        os.environ.update(LD_PRELOAD=os.environ["FAKEGPU_LIB"], TORCH_NCCL_ENABLE_MONITORING="0", TORCH_NCCL_DUMP_ON_TIMEOUT="0",
                          FAKEGPU_LOG_QUERIES="0", FSDP1_LOG=os.path.join(tempfile.mkdtemp(), "log"))
        os.execv(sys.executable, [sys.executable] + sys.argv)
    sys.path.insert(0, folder)
    import schedule_configs
    rows = changed(schedule_configs.configs(), seed, count)
    schedule_configs.configs = lambda: rows
    sys.argv = [os.path.join(folder, "record_schedules.py"), out]
    runpy.run_path(sys.argv[0], run_name="__main__")
