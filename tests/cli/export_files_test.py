"""What `foreshard export` writes, read by the programs that it is for.

usage: export_files_test.py FORESHARD JOB

Without FORESHARD_TRAINERS_PYTHON, a Python with accelerate, transformers and trl, it is reported as skipped (77).
"""
import os
import subprocess
import sys
import tempfile

SKIPPED = 77

READER = '''
import json, sys
from dataclasses import dataclass
folder = sys.argv[1]
from accelerate.commands.config.config_args import load_config_from_file
accelerate = load_config_from_file(folder + "/accelerate.yaml")
assert accelerate.num_processes == 16, accelerate.num_processes
assert accelerate.fsdp_config["fsdp_version"] == 2, accelerate.fsdp_config
from transformers import HfArgumentParser, TrainingArguments

@dataclass
class Model:
    model_name_or_path: str = None
    dtype: str = None

@dataclass
class Data:
    block_size: int = None

# A machine without the card's bfloat16 refuses it: that is no matter of the file.
given = json.load(open(folder + "/transformers.json")) | {"use_cpu": True}
model, data, arguments = HfArgumentParser((Model, Data, TrainingArguments)).parse_dict(given)
assert data.block_size == 4096 and arguments.gradient_accumulation_steps == 4, (data, arguments)
assert arguments.fsdp_plugin_args["reshard_after_forward"] is False, arguments.fsdp_plugin_args
assert arguments.fsdp_plugin_args["activation_checkpointing"] is True, arguments.fsdp_plugin_args
from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser
argv = ["--config", folder + "/trl.yaml", "--dataset_name", "none", "--use_cpu"]
script, arguments, model = TrlParser((ScriptArguments, SFTConfig, ModelConfig)).parse_args_and_config(argv)
assert arguments.max_length == 4096 and arguments.max_steps == 7, arguments
assert arguments.learning_rate == 1e-05 and arguments.optim == "adamw_torch_fused", arguments
assert arguments.fsdp_plugin_args["fsdp_version"] == 2, arguments.fsdp_plugin_args
print("read")
'''


def main() -> int:
    python = os.environ.get("FORESHARD_TRAINERS_PYTHON")
    if not python:
        print("skipped: FORESHARD_TRAINERS_PYTHON names no Python with accelerate, transformers and trl")
        return SKIPPED
    program, job = sys.argv[1:3]
    settings = ["cluster.world_size=16", "model.seq=4096", "train.micro_batches=4", "train.steps=7",
                "train.optimizer.lr=1e-5", "train.optimizer.impl=fused", "fsdp.reshard_after_forward=false",
                "checkpointing.policy=block"]
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "export", job, "--as", "torchtitan,accelerate,transformers,trl", "--out", folder]
        for setting in settings:
            command += ["--set", setting]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        environment = dict(os.environ, CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1")
        read = subprocess.run([python, "-c", READER, folder], env=environment, capture_output=True, text=True)
    if "read" not in read.stdout.splitlines():
        print(read.stdout + read.stderr)
        return 1
    print("accelerate, Transformers and TRL read the files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
