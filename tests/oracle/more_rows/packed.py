"""Records rows of `foreshard-oracle practice` whose script hands position_ids of several sequences in a row (Transformers' packed
sequences, which shared/oracle/practice/recorder.py does not know).

    packed.py PRACTICE_FOLDER ROWS.jsonl [ID ...]        (needs what the recorder needs, and FAKEGPU_DIR)

The recorder is run with two changes: a batch has position_ids, and the library asks itself whether rows are packed. What the positions
hold is not seen by the virtual device: its answer is that they are.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

BF16 = {"param_dtype": "bfloat16", "reduce_dtype": "float32"}
ALL = {"rms_norm_eps": 1e-05, "tie_word_embeddings": False, "max_position_embeddings": 4096, "attention_dropout": 0.0, "hidden_act": "silu"}


def model(kind, cls, **config):
    return {"class": cls + "ForCausalLM", "config": {"model_type": kind, **ALL, **config}}, cls + "DecoderLayer"


def wide(layers, hidden, heads, kv, ffn, vocab):
    return {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv, "intermediate_size": ffn, "vocab_size": vocab}


LLAMA = model("llama", "Llama", **wide(3, 512, 8, 2, 1408, 8192), attention_bias=False, mlp_bias=False)
QWEN3 = model("qwen3", "Qwen3", **wide(2, 512, 8, 4, 1000, 10000), head_dim=64, attention_bias=False, use_sliding_window=False)
MISTRAL = model("mistral", "Mistral", **wide(3, 512, 4, 4, 1536, 8192), sliding_window=96)
GPT2 = ({"class": "GPT2LMHeadModel", "config": {"model_type": "gpt2", "n_layer": 3, "n_embd": 512, "n_head": 8, "vocab_size": 5003, "n_positions": 1024, "attn_pdrop": 0.0,
                                                "embd_pdrop": 0.0, "resid_pdrop": 0.0, "tie_word_embeddings": True}}, "GPT2Block")
PHI3 = model("phi3", "Phi3", **wide(2, 512, 8, 4, 1408, 8192), pad_token_id=0, sliding_window=None)
CASES = {
    "packed-llama": (LLAMA, 2, dict(batch=1, seq=1024)),
    "packed-llama-rows": (LLAMA, 2, dict(batch=3, seq=320)),
    "packed-llama-fsdp1": (LLAMA, 1, dict(batch=2, seq=512)),
    "packed-llama-recomputed": (LLAMA, 2, dict(batch=1, seq=1024, activation_checkpointing={"classes": ["LlamaDecoderLayer"]})),
    "packed-llama-eager": (LLAMA, 2, dict(batch=1, seq=512, attn="eager")),
    "packed-llama-micro": (LLAMA, 2, dict(batch=1, seq=512, grad_accum=2)),
    "packed-qwen3": (QWEN3, 2, dict(batch=2, seq=384)),
    "packed-mistral-window": (MISTRAL, 2, dict(batch=1, seq=512)),
    "packed-gpt2-fsdp1": (GPT2, 1, dict(batch=2, seq=256)),
    "packed-phi3": (PHI3, 2, dict(batch=1, seq=512)),
}

CHANGES = [('        if c["tp"] and c["tp"]["plan"]', '''        out["position_ids"] = torch.zeros(B, S, dtype=torch.long, device="cuda")
        if c["tp"] and c["tp"]["plan"]'''),
           ("    model, make_batch = build(c)\n", '''    model, make_batch = build(c)
    import importlib.util
    from transformers import masking_utils
    spec = importlib.util.find_spec("transformers.masking_utils")
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    masking_utils.find_packed_sequence_indices = fresh.find_packed_sequence_indices
''')]


def main():
    folder, out, only = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:]
    text = (folder / "recorder.py").read_text()
    for old, new in CHANGES:
        assert text.count(old) == 1, f"the recorder has changed: {old!r}"
        text = text.replace(old, new)
    text = text.replace("os.path.dirname(os.path.abspath(__file__))", repr(str(folder)))
    with tempfile.TemporaryDirectory() as path:
        script, grid = pathlib.Path(path) / "recorder.py", pathlib.Path(path) / "cases.jsonl"
        script.write_text(text)
        with open(grid, "w") as f:
            for name, ((shape, block), version, more) in CASES.items():
                if only and name not in only:
                    continue
                fsdp = {"wrap": [block], "version": version, "mixed_precision": dict(BF16)}
                if version == 1:
                    fsdp.update(strategy="FULL_SHARD", backward_prefetch="BACKWARD_PRE", forward_prefetch=False, limit_all_gathers=True, use_orig_params=True)
                f.write(json.dumps({"id": name, "kind": "other", "model": shape, "fsdp": fsdp, "packed": True, "clock": {"FAKEGPU_TIME": "model"}, **more}) + "\n")
        sys.exit(subprocess.run([sys.executable, str(script), "--grid", str(grid), "--out", str(out)],
                                env={**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}).returncode)


if __name__ == "__main__":
    main()
