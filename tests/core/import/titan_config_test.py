#!/usr/bin/env python3
"""What `foreshard import --script` prints finds in a configuration shaped as torchtitan's: sizes, adapters, converted layers.

usage: titan_config_test.py FORESHARD
"""
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

FORESHARD = sys.argv.pop(1)


def made(qualname, /, **fields):
    """An instance of a dataclass that is called as the one that torchtitan builds."""
    cls = dataclasses.make_dataclass("Config", list(fields))
    cls.__qualname__ = qualname
    return cls(**fields)


def linear(out, name="Linear.Config", **more):
    return made(name, in_features=64, out_features=out, **more)


def decoder(name="Llama3Model.Config", **layers):
    attention = made("GQAttention.Config", n_heads=8, n_kv_heads=None, rope=made("RoPE.Config", max_context_length=4096),
                     qkv_linear=made("FusedQKVLinear.Config", wqkv=layers.get("wqkv") or linear(192)), wo=linear(64))
    feed = made("FeedForward.Config", w1=linear(256), w2=layers.get("w2") or linear(64), w3=linear(256))
    block = made("Block.Config", attention=attention, feed_forward=feed)
    return made(name, dim=64, vocab_size=100, layers=[block] * 3, lm_head=linear(100))


class Script(unittest.TestCase):
    def setUp(self):
        text = subprocess.run([FORESHARD, "import", "--script"], capture_output=True, text=True, check=True).stdout
        self.script = types.ModuleType("titan_config")
        exec(compile(text, "titan_config.py", "exec"), self.script.__dict__)

    def model(self, tree):
        spec = made("ModelSpec", name="llama3", flavor="tiny", model=tree)
        training = made("TrainingConfig", max_context_length=128, num_tokens_per_microbatch_per_dp_rank=256)
        return self.script.table(made("Trainer.Config", model_spec=spec, training=training))

    def test_a_dense_llama_has_its_sizes(self):
        config = json.loads(self.model(decoder())["model"]["config"])
        self.assertEqual(config, {"model_type": "titan_llama", "dim": 64, "n_layers": 3, "n_heads": 8, "n_kv_heads": 8, "ffn": 256,
                                  "vocab_size": 100, "max_seq": 4096})
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "config.json")
            path.write_text(json.dumps(config))
            shown = subprocess.run([FORESHARD, "inspect", str(path)], capture_output=True, text=True, check=False)
            self.assertEqual(shown.returncode, 0, shown.stderr)

    def test_other_models_have_a_name_alone(self):
        self.assertEqual(self.model(decoder("Qwen3Model.Config"))["model"], {"name": "llama3", "flavor": "tiny"})

    def test_adapters_and_converted_layers(self):
        adapted = linear(192, "_get_lora_cls.<locals>.LoRALinear.Config", rank=8, alpha=16.0)
        found = self.model(decoder(wqkv=adapted, w2=linear(64, "Float8Linear.Config", _torchao_config="ScalingGranularity.AXISWISE")))
        self.assertEqual(found["model"]["lora"], {"rank": 8, "alpha": 16.0, "targets": ["wqkv"]})
        self.assertEqual(found["model"]["linear_layers"], "float8 rowwise")
        wide = self.model(decoder(w2=linear(64, "Float8Linear.Config", _torchao_config="ScalingGranularity.AXISWISE ... ScalingType.DISABLED")))
        self.assertEqual(wide["model"]["linear_layers"], "float8 rowwise_with_gw_hp")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "titan.json")
            path.write_text(json.dumps(found))
            job = subprocess.run([FORESHARD, "import", str(path)], capture_output=True, text=True, check=True).stdout
        self.assertIn('targets = ["wq", "wk", "wv"]', job)
        self.assertIn("n_layers", job)


if __name__ == "__main__":
    unittest.main()
