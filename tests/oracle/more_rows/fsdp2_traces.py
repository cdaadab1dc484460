"""Rows for `foreshard-oracle fsdp2-traces` that nobody wrote down: recorded configurations with one to four things changed at random.

    fsdp2_traces.py RECORDER_FOLDER OUT.jsonl SEED COUNT

RECORDER_FOLDER holds fsdp2_trace.py (shared/oracle/fsdp2); needs PyTorch 2.11. Some mixtures are refused by PyTorch; where it is a product of
matrices of two types that fails, or a process group of an earlier row that is not found, the plan knows nothing of it: these rows fail here.
"""
import copy
import os
import random
import runpy
import sys

PRECISION = [{"param_dtype": "bf16", "reduce_dtype": "fp32"}, {"param_dtype": "bf16"}, {"reduce_dtype": "bf16"}, {"param_dtype": "fp16"},
             {"param_dtype": "bf16", "reduce_dtype": "bf16", "output_dtype": "fp32"}]
SETUP = [["set_reshard_after_forward", True], ["set_reshard_after_forward", False], ["set_unshard_in_backward", False], ["set_reshard_after_backward", False],
         ["set_gradient_divide_factor", 3.0], ["set_force_sum_reduction_for_comms", True], ["set_requires_gradient_sync", False],
         ["set_allocate_memory_from_process_group_for_comm", True]]
BETWEEN = [["set_requires_gradient_sync", True], ["set_requires_gradient_sync", False], ["set_is_last_backward", True], ["set_is_last_backward", False],
           ["set_requires_all_reduce", True], ["set_requires_all_reduce", False], ["set_reshard_after_backward", False], ["reshard"], ["unshard"],
           ["set_post_optim_event"]]


def micro_batches(config):
    return [m for step in config["steps"] for m in step["micro"]]


def change(rng, config, configs):
    """One thing about a configuration."""
    names = [u["name"] for u in config["units"]]
    blocks = range(config["model"]["n_blocks"])
    what = rng.choice(["mesh", "mp", "unit mp", "offload", "reshard", "forward_prefetch", "backward_prefetch", "steps", "frozen", "ignored", "checkpoint_wrap",
                       "calls", "between", "clip", "state_dict", "no optimizer", "dtype", "micro", "hook", "units"])
    if what == "mesh":
        config.pop("world", None), config.pop("mesh", None)
        key, values = rng.choice([("world", [1, 2, 3, 4, 5, 6, 8]), ("mesh", [[2, 2], [2, 3], [1, 4], [4, 1], [2, 4], [3, 2]])])
        config[key] = rng.choice(values)
    elif what == "mp":
        config["mp"] = rng.choice(PRECISION)
    elif what == "unit mp":
        rng.choice(config["units"])["mp"] = rng.choice(PRECISION)
    elif what == "offload":
        config["offload"] = {"pin_memory": rng.random() < 0.5}
    elif what == "reshard":
        rng.choice(config["units"])["reshard_after_forward"] = rng.choice([True, False, 2])
    elif what in ("forward_prefetch", "backward_prefetch"):
        order = names if what == "forward_prefetch" else names[::-1]
        config[what] = {order[i]: order[i + 1:i + 1 + rng.randint(1, 2)] for i in range(len(order) - 1)}
    elif what == "steps":
        config["steps"] = copy.deepcopy(rng.choice(configs)["steps"])
    elif what == "frozen":
        config["frozen"] = rng.sample(["embed", "blocks.0", "blocks.0.lin1.bias", "head", "norm", "blocks.1.lin2"], rng.randint(1, 2))
    elif what == "ignored":
        config["ignored"] = [rng.choice(["blocks.0.lin1.weight", "head.lin.weight", "embed.weight", "norm.lin.bias"])]
    elif what == "checkpoint_wrap":
        config[what] = sorted(rng.sample(blocks, rng.randint(1, len(blocks))))
    elif what == "calls":
        config.setdefault("calls", []).append([rng.choice(names), *rng.choice(SETUP)])
    elif what == "between":
        rng.choice(micro_batches(config)).setdefault("calls", []).append([rng.choice(names), *rng.choice(BETWEEN)])
    elif what == "clip":
        rng.choice(config["steps"]).update(clip=1.0, clip_args=rng.choice([{}, {"foreach": False}, {"norm_type": 1.0}, {"norm_type": float("inf")}]))
    elif what == "state_dict":
        rng.choice(config["steps"])["state_dict"] = True
    elif what == "no optimizer":
        rng.choice(config["steps"])["optimizer"] = False
    elif what == "dtype":
        config["model"]["dtype"] = rng.choice(["bf16", "fp32"])
    elif what == "micro":
        rng.choice(micro_batches(config)).update(rng.choice([{"grad": False}, {"forward_twice": True}, {"backward": False}]))
    elif what == "hook":
        config["steps"][0]["micro"][0].setdefault("calls", []).append(["R", "all_reduce_hook", *rng.choice([[], [True]])])
    elif what == "units" and len(config["units"]) > 2:
        config["units"].pop(rng.randrange(len(config["units"]) - 1))
        config.pop("forward_prefetch", None), config.pop("backward_prefetch", None)


def changed(configs, seed, count):
    rng = random.Random(seed)
    rows = []
    for k in range(count):
        config = copy.deepcopy(rng.choice(configs))
        config.update(id=f"changed-{seed}-{k}-{config['id']}", note="")
        for _ in range(rng.randint(1, 4)):
            change(rng, config, configs)
        names = {u["name"] for u in config["units"]}
        for owner in [config, *micro_batches(config)]:
            for key in ("calls", "after"):
                if key in owner:
                    owner[key] = [call for call in owner[key] if call[0] in names]
        world = config.get("world") or (config["mesh"][0] * config["mesh"][1] if "mesh" in config else 4)
        config["rank"] = rng.randrange(world) if rng.random() < 0.2 else 0
        rows.append(config)
    return rows


if __name__ == "__main__":
    folder, out, seed, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    sys.path.insert(0, folder)
    import fsdp2_configs
    rows = changed(fsdp2_configs.configs(), seed, count)
    fsdp2_configs.configs = lambda: rows
    sys.argv = [os.path.join(folder, "fsdp2_trace.py"), out]
    runpy.run_path(sys.argv[0], run_name="__main__")
