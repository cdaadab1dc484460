"""Records PyTorch's loss over a few SGD steps of tiny models that the Transformers library builds from a config.json.

Usage: record.py OUT_FOLDER; needs torch and transformers. Writes NAME/config.json (no dropout) and losses.json. Weights, by
their names, and inputs are made by formulas that tests/exec/family_training_test.cpp repeats.
"""
import json
import pathlib
import sys

import torch
import transformers as t

STEPS, RATE = 4, 0.05
SMALL = dict(vocab_size=31, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
             max_position_embeddings=16)
CAUSAL = dict(SMALL, num_key_value_heads=1, head_dim=8, bos_token_id=1, eos_token_id=2, pad_token_id=0)
FAMILIES = {
    "bert": (t.BertForMaskedLM, t.BertConfig(**SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)),
    "gemma2": (t.Gemma2ForCausalLM, t.Gemma2Config(**CAUSAL, query_pre_attn_scalar=8, sliding_window=4)),
    "gpt2": (t.GPT2LMHeadModel, t.GPT2Config(vocab_size=31, n_embd=12, n_layer=2, n_head=3, n_positions=16, resid_pdrop=0.0,
                                             embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2)),
    "gpt_neox": (t.GPTNeoXForCausalLM, t.GPTNeoXConfig(**SMALL, rotary_pct=0.5, hidden_dropout=0.0, attention_dropout=0.0,
                                                       bos_token_id=1, eos_token_id=2)),
    "llama": (t.LlamaForCausalLM, t.LlamaConfig(**CAUSAL)),
    "mistral": (t.MistralForCausalLM, t.MistralConfig(**CAUSAL, sliding_window=4)),
    "opt": (t.OPTForCausalLM, t.OPTConfig(vocab_size=31, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, ffn_dim=20,
                                          max_position_embeddings=16, word_embed_proj_dim=12, dropout=0.0,
                                          attention_dropout=0.0, bos_token_id=1, eos_token_id=2)),
    "phi3": (t.Phi3ForCausalLM, t.Phi3Config(**{k: v for k, v in CAUSAL.items() if k != "head_dim"})),
    "qwen2": (t.Qwen2ForCausalLM, t.Qwen2Config(**CAUSAL)),
    "qwen3": (t.Qwen3ForCausalLM, t.Qwen3Config(**CAUSAL)),
    "t5": (t.T5ForConditionalGeneration, t.T5Config(vocab_size=31, d_model=12, d_kv=4, d_ff=20, num_layers=2, num_heads=3,
                                                    dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0)),
    "vit": (t.ViTForImageClassification, t.ViTConfig(hidden_size=12, num_hidden_layers=2, num_attention_heads=3,
                                                     intermediate_size=20, image_size=16, patch_size=4, num_labels=5,
                                                     hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)),
}


def fill(n, shift):
    i = torch.arange(n, dtype=torch.float64)
    return (i * 0.6180339887498949 + 0.1 * shift) % 1.0 - 0.5


def made(name, parameter):
    value = fill(parameter.numel(), sum(name.encode()) % 97).reshape(parameter.shape)
    return (1 + 0.1 * value if parameter.dim() == 1 else 0.1 * value).float()


def integers(*shape):
    n = 1
    for s in shape:
        n *= s
    return ((torch.arange(n) * 7 + 3) % 5).reshape(shape)


def losses_of(model):
    image = "pixel_values" in model.main_input_name
    inputs = ({"pixel_values": fill(2 * 3 * 16 * 16, 0).reshape(2, 3, 16, 16).float(), "labels": integers(2)}
              if image else {"input_ids": integers(2, 8), "labels": integers(2, 8)})
    losses = []
    for _ in range(STEPS):
        model.zero_grad()
        loss = model(**inputs).loss
        loss.backward()
        losses.append(float(loss.detach()))
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= RATE * p.grad
    return losses


def main():
    torch.set_num_threads(1)
    out, recorded = pathlib.Path(sys.argv[1]), {}
    for name, (kind, config) in FAMILIES.items():
        config.architectures = [kind.__name__]
        config.use_cache = False
        model = kind(config).float().train()
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                parameter.copy_(made(key, parameter))
        (out / name).mkdir(exist_ok=True)
        (out / name / "config.json").write_text(json.dumps(config.to_dict(), indent=1, sort_keys=True, default=str) + "\n")
        recorded[name] = losses_of(model)
        print(name, recorded[name], flush=True)
    (out / "losses.json").write_text(json.dumps(recorded, indent=1) + "\n")


main()
