#!/usr/bin/env python3
"""Gains that people published for schedules changed by hand, beside what `foreshard schedule` finds unaided.

schedules_by_hand.py --foreshard build/release/bin/foreshard [--from-8-to-64]

Each row: a job near the published one, the published gain in tokens/s, the gain of the same change where the job's keys can say
it, and the gain of what `schedule` proposes (predicted, over fsdp2 of the same job at the card's memory).

--from-8-to-64: what Llama-3-8B with batch 1 loses of its tokens/s a card from 8 to 64 H100, as fsdp2 has it and scheduled, by
tokens and by network of a card.
"""
import argparse
import json
import pathlib
import re
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


def lost(from_ns, to_ns):
    return f"{100 * (1 - from_ns / to_ns):.0f} %" if from_ns and to_ns else "does not fit"


def from_8_to_64(program, folder):
    profile = (HERE / "../../profiles/h100-sxm-80.toml").read_text()
    config = folder / "config.json"
    config.write_text(json.dumps(LLAMA))
    print("| tokens | recomputed | Gb/s a card | fsdp2, 8: tokens/s | fsdp2, 64 | fsdp2 loses | free on 64 | planned, 64 | planned loses | and of fsdp2's on 8 |\n"
          "|---|---|---|---|---|---|---|---|---|---|")
    for tokens in (1024, 2048, 4096):
        for policy in ("none", "block"):
            for gigabits in (400, 200, 100):
                network = folder / f"h100-{gigabits}.toml"
                network.write_text(re.sub(r"(?m)^scale_out_gb_per_s = [0-9.]+$", f"scale_out_gb_per_s = {gigabits / 8}", profile))
                by_ranks = []
                for ranks in (8, 64):
                    settings = [f"model.seq={tokens}", "model.batch=1", f"checkpointing.policy={policy}", "cluster.ranks_per_node=8",
                                f"cluster.profile={network}", f"cluster.world_size={ranks}"]
                    by_ranks.append((asked(program, "schedule", config, settings), asked(program, "simulate", config, settings)))
                (few, _), (many, plain) = by_ranks
                def speed(ns):
                    return f"{tokens / ns * 1e9:.0f}" if ns else "does not fit"
                fsdp2 = [one["fsdp2_step_time_ns"] for one in (few, many)]
                free = 1 - plain["memory"]["peak_reserved_bytes"] / many["budget_bytes"]
                print(f"| {tokens} | {policy} | {gigabits} | {speed(fsdp2[0])} | {speed(fsdp2[1])} | {lost(*fsdp2)} | {100 * free:.0f} % | "
                      f"{speed(many['step_time_ns'])} | {lost(few['step_time_ns'], many['step_time_ns'])} | {lost(fsdp2[0], many['step_time_ns'])} |",
                      flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--foreshard", type=pathlib.Path, default=HERE / "../../build/release/bin/foreshard")
    parser.add_argument("--from-8-to-64", action="store_true")
    a = parser.parse_args()
    if a.from_8_to_64:
        with tempfile.TemporaryDirectory() as folder:
            return from_8_to_64(a.foreshard, pathlib.Path(folder))
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
