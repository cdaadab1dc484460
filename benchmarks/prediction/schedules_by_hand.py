#!/usr/bin/env python3
"""Gains that people published for schedules changed by hand, beside what `foreshard schedule` finds unaided.

schedules_by_hand.py --foreshard build/release/bin/foreshard

Each row: a job near the published one, the published gain in tokens/s, the gain of the same change where the job's keys can say
it, and the gain of what `schedule` proposes (predicted, over fsdp2 of the same job at the card's memory).
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
LLAMA = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "vocab_size": 128256, "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": False,
         "max_position_embeddings": 8192}
LLAMA_70B = {**LLAMA, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}
COMMON = ["model.batch=1", "model.seq=4096", "checkpointing.policy=block", "cluster.ranks_per_node=8"]
ROWS = [
    # published, its gain, model, settings, the change by hand
    ("never reshard (torchtune#2402)", 8, LLAMA, ["cluster.profile=l40s", "cluster.world_size=8"], ["fsdp.reshard_after_forward=false"]),
    ("the same", 8, LLAMA, ["cluster.profile=a100-sxm-80", "cluster.world_size=8"], ["fsdp.reshard_after_forward=false"]),
    ("the same", 8, LLAMA, ["cluster.profile=h100-sxm-80", "cluster.world_size=8"], ["fsdp.reshard_after_forward=false"]),
    ("gradients kept sharded late (lingbot-vla#50)", 21, LLAMA,
     ["cluster.profile=a100-sxm-80", "cluster.world_size=8", "train.micro_batches=4"], ["fsdp.reshard_after_forward=false"]),
    ("explicit prefetch, 70B full (Automodel#1711)", 39 / 36 * 100 - 100, LLAMA_70B,
     ["cluster.profile=h100-sxm-80", "cluster.world_size=64"], ["fsdp.prefetch.forward_depth=2", "fsdp.prefetch.backward_depth=2"]),
]


def asked(program, verb, config, settings):
    command = [program, verb, config, "--json", "--quiet"] + [word for one in settings for word in ("--set", one)]
    done = subprocess.run(command, capture_output=True, text=True)
    return json.loads(done.stdout) if done.stdout.startswith("{") else None


def gain(before, after):
    return f"{100 * (before / after - 1):+.1f} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--foreshard", type=pathlib.Path, default=HERE / "../../build/release/bin/foreshard")
    a = parser.parse_args()
    print("| published | its gain | job | fsdp2 ms | by hand | planned | proposed | above the bound |\n|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, published, model, job, change in ROWS:
            config = pathlib.Path(folder) / "config.json"
            config.write_text(json.dumps(model))
            settings = COMMON + job
            by_hand = asked(a.foreshard, "simulate", config, settings + change)
            found = asked(a.foreshard, "schedule", config, settings)
            before = found["fsdp2_step_time_ns"]
            hand = gain(before, by_hand["step_time_ns"]["value"]) if by_hand and by_hand["fits"] else "does not fit"
            proposed = found["proposed"]
            print(f"| {name} | {published:+.0f} % | {', '.join(job)} | {before / 1e6:.0f} | {hand} | "
                  f"{gain(before, found['step_time_ns'])} | {proposed['runtime']} {gain(before, proposed['step_time_ns'])} | "
                  f"{100 * found['gap']:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
