"""Losses of the tiny Llama on padded sequences, as Transformers trains it: record.py writes batches.safetensors and losses.json.

Four sequences of which two are padded; ten steps of AdamW on all four. Transformers 5.23, PyTorch 2.11, one thread.
"""
import json
import pathlib

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent
TINY = HERE.parent / "llama_tiny"


def model():
    keys = json.loads((TINY / "config.json").read_text())
    config = transformers.AutoConfig.for_model(keys.pop("model_type"), **{k: v for k, v in keys.items() if k != "architectures"})
    made = transformers.LlamaForCausalLM._from_config(config, attn_implementation="sdpa")
    made.load_state_dict(load_file(TINY / "model.safetensors"), strict=False)
    made.tie_weights()
    return made.train()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(3)
    ids = torch.randint(0, 96, (4, 16))
    mask = torch.ones(4, 16, dtype=torch.long)
    mask[1, 11:] = 0
    mask[3, 5:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    save_file({"input_ids": ids, "labels": labels, "attention_mask": mask}, HERE / "batches.safetensors")
    losses = {}
    for name, counted in (("auto", None), ("per_token", labels[:, 1:].ne(-100).sum())):
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1, foreach=False)
        losses[name] = []
        for _ in range(10):
            more = {} if counted is None else {"num_items_in_batch": counted}
            loss = net(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False, **more).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[name].append(loss.item())
    (HERE / "losses.json").write_text(json.dumps(losses, indent=1) + "\n")


main()
