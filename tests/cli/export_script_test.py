#!/usr/bin/env python3
"""Runs the script that `foreshard export-script` prints, and has foreshard read what it wrote.

python3 export_script_test.py FORESHARD PYTHON. Exit code 77 (a visible skip in ctest) where PYTHON has no torch; models
of transformers and timm are exported only where those are installed, and named when they are not.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(24, 24) for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            x = torch.relu(block(x))
        return x.square().mean()

def build():
    return Net(), (torch.empty(5, 24),)
"""
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}
T5 = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 32, "d_ff": 48, "d_kv": 8,
      "num_layers": 2, "num_heads": 4, "vocab_size": 64}
MAMBA_LIKE = {"model_type": "bloom", "architectures": ["BloomForCausalLM"], "hidden_size": 32, "n_layer": 2, "n_head": 4,
              "vocab_size": 64}
CLASSIFIER = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "hidden_size": 32, "intermediate_size": 48,
              "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64, "max_position_embeddings": 32}
CLIP = {"model_type": "clip", "architectures": ["CLIPModel"], "projection_dim": 16,
        "text_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
                        "max_position_embeddings": 16},
        "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
                          "patch_size": 8}}
WHISPER = {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "d_model": 32, "encoder_layers": 2,
           "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
           "vocab_size": 64, "max_source_positions": 20, "max_target_positions": 16, "num_mel_bins": 8, "pad_token_id": 1,
           "decoder_start_token_id": 2}


def has(python, module):
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0


def main():
    foreshard, python = sys.argv[1], sys.argv[2]
    if not has(python, "torch"):
        print(f"skipped: {python} has no torch")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        here = pathlib.Path(folder)
        (here / "own.py").write_text(OWN)
        cases = {"own": (str(here / "own.py") + ":build", 24 * 25 * 3)}
        if has(python, "transformers"):
            for name, keys in (("llama", LLAMA), ("t5", T5), ("bloom", MAMBA_LIKE), ("classifier", CLASSIFIER), ("clip", CLIP), ("whisper", WHISPER)):
                (here / f"{name}.json").write_text(json.dumps(keys))
                cases[name] = (str(here / f"{name}.json"), None)
        else:
            print("no transformers: its models are left out")
        if has(python, "timm"):
            cases["resnet"] = ("timm:resnet18", None)
        else:
            print("no timm: its models are left out")
        for name, (model, parameters) in cases.items():
            archive = here / f"{name}.pt2"
            script = subprocess.run([foreshard, "export-script", model, "--batch", "2", "--seq", "12", "--output",
                                     str(archive)], capture_output=True, text=True, check=True).stdout
            (here / f"export_{name}.py").write_text(script)
            run = subprocess.run([python, str(here / f"export_{name}.py")], capture_output=True, text=True)
            assert run.returncode == 0, f"{name}: {run.stderr[-2000:]}"
            report = subprocess.run([foreshard, "inspect", str(archive), "--json", "--report"], capture_output=True,
                                    text=True)
            assert report.returncode == 0, f"{name}: {report.stdout} {report.stderr}"
            numbers = json.loads(report.stdout)
            assert parameters is None or numbers["params"]["distinct"] == parameters, numbers["params"]
            simulated = subprocess.run([foreshard, "simulate", str(archive), "--set", "cluster.world_size=2", "--set",
                                        "cluster.ranks_per_node=2", "--set", "fsdp.wrap.policy=auto", "--json"], capture_output=True, text=True)
            assert simulated.returncode == 0, f"{name}: {simulated.stdout[-500:]} {simulated.stderr[-500:]}"
            print(f"{name}: {run.stdout.strip()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
