#!/usr/bin/env python3
"""torchtitan's own trainer under `foreshard shadow`, in many settings: what its plan says beside what PyTorch's allocator held.

    torchtitan_scripts.py FORESHARD PYTHON TORCHTITAN [NAME...]

TORCHTITAN: a checkout of 0.2.2 (its configuration files are not in the wheel), with a tokenizer in tests/assets/tokenizer and lines of {"text": ...}
in tests/assets/c4_test. PYTHON has PyTorch built for CUDA 13, torchtitan's requirements, Triton, and torchao for the float8 rows. Prints a row of a
table for each: the third step's allocated and reserved memory, the plan's beside them, differences of the collectives.
"""
import json
import subprocess
import sys
import tempfile

MODELS = {
    "llama3": "llama3/train_configs/debug_model.toml", "llama3-8b": "llama3/train_configs/llama3_8b.toml", "llama3-70b": "llama3/train_configs/llama3_70b.toml",
    "llama4": "llama4/train_configs/debug_model.toml", "deepseek": "deepseek_v3/train_configs/debug_model.toml",
    "qwen3-moe": "qwen3/train_configs/qwen3_moe_debug.toml", "qwen3-0.6b": "qwen3/train_configs/qwen3_0.6b.toml",
}  # fmt: skip
TP, CP, EP = (f"--parallelism.{kind}_parallel_degree" for kind in ("tensor", "context", "expert"))
ETP, ALONE = "--parallelism.expert_tensor_parallel_degree", "--parallelism.data_parallel_shard_degree 1"
REPLICAS, AC, OPS = "--parallelism.data_parallel_replicate_degree 2", "--activation_checkpoint.mode", "--activation_checkpoint.selective_ac_option op"
FLOAT8 = "--model.converters quantize.linear.float8"
ROWS = "--quantize.linear.float8.recipe_name rowwise"
GATHERS = "--quantize.linear.float8.enable_fsdp_float8_all_gather"
BEHIND = "--quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp"
CASES = {  # name: (model, ranks, flags); every second block recomputes unless the flags say else
    "plain": ("llama3", 8, ""), "nothing recomputed": ("llama3", 8, f"{AC} none"), "all recomputed": ("llama3", 8, f"{AC} full"), "by operator": ("llama3", 8, OPS),
    "replicas": ("llama3", 8, REPLICAS), "never resharded": ("llama3", 8, "--parallelism.fsdp_reshard_after_forward never"),
    "offload": ("llama3", 8, "--training.enable_cpu_offload"), "micro-batches": ("llama3", 8, "--training.global_batch_size 128"),
    "foreach": ("llama3", 8, "--optimizer.implementation foreach"), "for-loop": ("llama3", 8, "--optimizer.implementation for-loop"),
    "step in backward": ("llama3", 8, "--optimizer.early_step_in_backward"), "float32": ("llama3", 8, "--training.mixed_precision_param float32"),
    "bfloat16": ("llama3", 8, "--training.dtype bfloat16"), "validation": ("llama3", 8, "--validation.enable --validation.dataset c4_test --validation.freq 2 --validation.steps 1"),
    "DDP": ("llama3", 8, "--parallelism.data_parallel_shard_degree 1 --parallelism.data_parallel_replicate_degree 8"),
    "tensor 2": ("llama3", 8, f"{TP} 2"), "tensor 2, nothing recomputed": ("llama3", 8, f"{TP} 2 {AC} none"), "tensor 2, all recomputed": ("llama3", 8, f"{TP} 2 {AC} full"),
    "tensor 2, by operator": ("llama3", 8, f"{TP} 2 {OPS}"), "tensor 2, whole logits": ("llama3", 8, f"{TP} 2 --parallelism.disable_loss_parallel"),
    "tensor 2, replicas": ("llama3", 8, f"{TP} 2 {REPLICAS}"), "tensor 2, micro-batches": ("llama3", 8, f"{TP} 2 --training.global_batch_size 64"),
    "tensor 4, nothing recomputed": ("llama3", 8, f"{TP} 4 {AC} none"), "tensor 4, by operator": ("llama3", 8, f"{TP} 4 {OPS}"),
    "context 2": ("llama3", 8, f"{CP} 2"), "context 2, all recomputed": ("llama3", 8, f"{CP} 2 {AC} full"), "context 2, by operator": ("llama3", 8, f"{CP} 2 {OPS}"),
    "context 4, a ring": ("llama3", 8, f"{CP} 4 --parallelism.context_parallel_rotate_method alltoall"), "tensor 2, context 2": ("llama3", 8, f"{TP} 2 {CP} 2"),
    "float8": ("llama3", 8, FLOAT8), "float8, all recomputed": ("llama3", 8, f"{FLOAT8} {AC} full"), "float8, by operator": ("llama3", 8, f"{FLOAT8} {OPS}"),
    "float8 by rows": ("llama3", 8, f"{FLOAT8} {ROWS}"), "float8 by rows, by operator": ("llama3", 8, f"{FLOAT8} {ROWS} {OPS}"),
    "float8 gathers": ("llama3", 8, f"{FLOAT8} {GATHERS}"), "float8 gathers, scales behind the step": ("llama3", 8, f"{FLOAT8} {GATHERS} {BEHIND}"),
    "float8, tensor 2": ("llama3", 8, f"{FLOAT8} {TP} 2"), "float8 gathers, tensor 2": ("llama3", 8, f"{FLOAT8} {GATHERS} {BEHIND} {TP} 2"),
    "8B, replicas of 8, by operator": ("llama3-8b", 64, "--parallelism.data_parallel_replicate_degree 8"), "8B, tensor 8": ("llama3-8b", 64, f"{TP} 8"),
    "8B, context 8, 32,768 tokens": ("llama3-8b", 64, f"{CP} 8 --training.seq_len 32768"), "70B, tensor 8, all recomputed": ("llama3-70b", 256, ""),
    "Llama 4": ("llama4", 8, ""), "Llama 4, all recomputed": ("llama4", 8, f"{AC} full"), "Llama 4, experts 2": ("llama4", 8, f"{EP} 2"),
    "Llama 4, experts 8": ("llama4", 8, f"{EP} 8"), "Llama 4, experts 2, replicas": ("llama4", 8, f"{EP} 2 {REPLICAS}"), "Llama 4, tensor 2": ("llama4", 8, f"{TP} 2"),
    "DeepSeek-V3": ("deepseek", 8, ""), "DeepSeek-V3, experts 4": ("deepseek", 8, f"{EP} 4"), "DeepSeek-V3, experts 2, nothing recomputed": ("deepseek", 8, f"{EP} 2 {AC} none"),
    "DeepSeek-V3, tensor 2": ("deepseek", 8, f"{TP} 2"), "DeepSeek-V3, tensor 4, nothing recomputed": ("deepseek", 8, f"{TP} 4 {AC} none"),
    "DeepSeek-V3, tensor 2, by operator": ("deepseek", 8, f"{TP} 2 {OPS}"), "Llama 4, tensor 4, all recomputed": ("llama4", 8, f"{TP} 4 {AC} full"),
    "Llama 4, tensor 2, replicas": ("llama4", 8, f"{TP} 2 {REPLICAS}"), "Qwen3 with experts, tensor 2": ("qwen3-moe", 8, f"{TP} 2"),
    "Qwen3 with experts": ("qwen3-moe", 8, ""), "Qwen3 with experts, experts 4": ("qwen3-moe", 8, f"{EP} 4"), "Qwen3 0.6B": ("qwen3-0.6b", 8, "--training.seq_len 1024"),
    "Llama 4, tensor 2, experts 2": ("llama4", 8, f"{TP} 2 {EP} 2"), "Llama 4, tensor 2, experts 4": ("llama4", 8, f"{TP} 2 {EP} 4"),
    "Llama 4, tensor 2, experts 8, all recomputed": ("llama4", 8, f"{TP} 2 {EP} 8 {AC} full"), "Llama 4, tensor 2, experts 4, replicas": ("llama4", 16, f"{TP} 2 {EP} 4 {REPLICAS}"),
    "DeepSeek-V3, tensor 2, experts 4": ("deepseek", 8, f"{TP} 2 {EP} 4"), "DeepSeek-V3, tensor 2, experts 4, by operator": ("deepseek", 8, f"{TP} 2 {EP} 4 {OPS}"),
    "DeepSeek-V3, tensor 4, experts 8, nothing recomputed": ("deepseek", 8, f"{TP} 4 {EP} 8 {AC} none"), "Qwen3 with experts, tensor 2, experts 4": ("qwen3-moe", 8, f"{TP} 2 {EP} 4"),
    "tensor 4 alone": ("llama3", 4, f"{ALONE} {TP} 4"), "tensor 8 alone, foreach, nothing recomputed": ("llama3", 8, f"{ALONE} {TP} 8 {AC} none --optimizer.implementation foreach"),
    "tensor 2 alone, for-loop, whole logits": ("llama3", 2, f"{ALONE} {TP} 2 {AC} full --optimizer.implementation for-loop --parallelism.disable_loss_parallel"),
    "Llama 4, tensor 4 alone": ("llama4", 4, f"{ALONE} {TP} 4"), "DeepSeek-V3, tensor 2 alone": ("deepseek", 2, f"{ALONE} {TP} 2"),
    "Llama 4, tensor 2, cut experts 2": ("llama4", 8, f"{TP} 2 {ETP} 2 {EP} 2"), "Llama 4, tensor 2, cut experts 4, all recomputed": ("llama4", 8, f"{TP} 2 {ETP} 2 {EP} 4 {AC} full"),
    "Llama 4, tensor 2, cut experts 2, replicas": ("llama4", 16, f"{TP} 2 {ETP} 2 {EP} 2 {REPLICAS}"), "DeepSeek-V3, tensor 2, cut experts 4": ("deepseek", 8, f"{TP} 2 {ETP} 2 {EP} 4"),
    "DeepSeek-V3, tensor 2, cut experts 2, nothing recomputed": ("deepseek", 8, f"{TP} 2 {ETP} 2 {EP} 2 {AC} none"),
    "DeepSeek-V3, tensor 4, cut experts 2, by operator": ("deepseek", 8, f"{TP} 4 {ETP} 4 {EP} 2 {OPS}"), "Qwen3 with experts, tensor 2, cut experts 2": ("qwen3-moe", 8, f"{TP} 2 {ETP} 2 {EP} 2"),
}  # fmt: skip


def watched(foreshard, python, titan, model, ranks, flags):
    with tempfile.TemporaryDirectory() as folder:
        command = [foreshard, "shadow", "--json", "--world", str(ranks), "--out", folder, "--", python, "-m", "torchtitan.train",
                   "--job.config_file", f"torchtitan/models/{MODELS[model]}", "--model.hf_assets_path", "tests/assets/tokenizer",
                   "--training.dataset", "c4_test", *flags.split()]  # fmt: skip
        end = subprocess.run(command, cwd=titan, capture_output=True, text=True, timeout=900)
    return json.loads(end.stdout) if end.returncode == 0 else end.stderr.strip().splitlines()[-1]


def row(name, answer):
    if isinstance(answer, str):
        return f"| {name} | | | ends: {answer[:90]} | | |"
    step, mib = answer["steps"][-1], 2**20
    figures = f"{step['allocated_bytes'] / mib:,.0f} | {step['reserved_bytes'] / mib:,.0f}"
    if not answer["plan"]:
        why = next((note for note in answer["notes"] if "no plan" in note), "no plan")
        return f"| {name} | {figures} | {why[:110]} | | |"
    plan = answer["plan"][-1]
    beside = [f"{100 * (plan[key] / step[key] - 1):+.2f} %" for key in ("allocated_bytes", "reserved_bytes")]
    time = 100 * (plan["step_time_ns"] / step["virtual_ns"] - 1)
    return f"| {name} | {figures} | {' | '.join(beside)} | {time:+.0f} % |"


def main():
    foreshard, python, titan, *names = sys.argv[1:]
    print("| | allocated, MiB | reserved, MiB | plan, allocated | plan, reserved | plan, time |\n|---|---|---|---|---|---|")
    for name, case in CASES.items():
        if not names or name in names:
            print(row(name, watched(foreshard, python, titan, *case)), flush=True)


if __name__ == "__main__":
    main()
