"""Exports tiny models of several families with their loss inside and records PyTorch's loss over a few SGD steps.

Usage: record.py OUT_FOLDER [NAME...]; needs torch and transformers. Writes NAME.pt2 (weights inside) and losses.json.
Steps: eager forward and backward of the module itself (not of the export), p -= 0.05 * p.grad. Every step sees the same inputs,
which tests/exec/trained_programs_test.cpp makes by the same formulas: integers (7 i + 3) % 5 except masks, which are ones;
numbers fill(n, index of the input).
"""
import json
import pathlib
import sys
import zipfile

import torch

STEPS, RATE = 6, 0.05


def fill(n, shift):
    i = torch.arange(n, dtype=torch.float64)
    return (i * 0.6180339887498949 + 0.1 * shift) % 1.0 - 0.5


def integers(*shape):
    n = 1
    for s in shape:
        n *= s
    return ((torch.arange(n) * 7 + 3) % 5).reshape(shape)


def numbers(index, *shape):
    n = 1
    for s in shape:
        n *= s
    return fill(n, index).reshape(shape).float()


class WithLoss(torch.nn.Module):
    """Transformers' own loss from labels; positional inputs only."""

    def __init__(self, model, names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *args):
        return self.model(**dict(zip(self.names, args)), **({"use_cache": False} if "cache" in self.model.__dict__ else {})).loss


def families():
    import transformers as t

    tokens = (integers(2, 8), integers(2, 8))
    text = ["input_ids", "labels"]
    small = dict(vocab_size=31, hidden_size=12, num_hidden_layers=2, num_attention_heads=3)
    yield "bert", lambda: WithLoss(t.BertForMaskedLM(t.BertConfig(
        **small, intermediate_size=20, max_position_embeddings=16, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0)), text), tokens
    yield "gpt2", lambda: WithLoss(t.GPT2LMHeadModel(t.GPT2Config(
        vocab_size=31, n_embd=12, n_layer=2, n_head=3, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        use_cache=False)), text), tokens
    yield "gpt_neox", lambda: WithLoss(t.GPTNeoXForCausalLM(t.GPTNeoXConfig(
        **{**small, "hidden_size": 24}, intermediate_size=20, max_position_embeddings=16, rotary_pct=0.5, hidden_dropout=0.0,
        attention_dropout=0.0, use_cache=False)), text), tokens
    yield "phi3", lambda: WithLoss(t.Phi3ForCausalLM(t.Phi3Config(
        **{**small, "hidden_size": 24}, intermediate_size=20, max_position_embeddings=16, num_key_value_heads=1, pad_token_id=0,
        use_cache=False)), text), tokens
    for name, experts in (("mixtral", "batched_mm"), ("mixtral_grouped", "grouped_mm")):
        yield name, lambda experts=experts: WithLoss(t.MixtralForCausalLM(t.MixtralConfig(
            **small, intermediate_size=20, max_position_embeddings=16, num_key_value_heads=1, num_local_experts=3,
            experts_implementation=experts, use_cache=False)), text), tokens
    yield "t5", lambda: WithLoss(t.T5ForConditionalGeneration(t.T5Config(
        vocab_size=31, d_model=12, d_kv=4, d_ff=20, num_layers=2, num_heads=3, dropout_rate=0.0, use_cache=False,
        decoder_start_token_id=0, pad_token_id=0)), ["input_ids", "labels"]), tokens
    yield "vit", lambda: WithLoss(t.ViTForImageClassification(t.ViTConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, image_size=16, patch_size=4,
        num_labels=5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)), ["pixel_values", "labels"]), (
            numbers(0, 2, 3, 16, 16), integers(2))

    yield "resnet", lambda: WithLoss(t.ResNetForImageClassification(t.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 24], depths=[1, 2], num_labels=5)), ["pixel_values", "labels"]), (
            numbers(0, 2, 3, 32, 32), integers(2))


def deflate(path):
    """The program's JSON is nine tenths of a tiny archive; weights stay as they are."""
    with zipfile.ZipFile(path) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members:
            kind = zipfile.ZIP_DEFLATED if name.endswith(".json") else zipfile.ZIP_STORED
            archive.writestr(zipfile.ZipInfo(name), data, kind)


def losses_of(module, inputs):
    losses = []
    for _ in range(STEPS):
        module.zero_grad()
        loss = module(*inputs)
        loss.backward()
        losses.append(float(loss))
        with torch.no_grad():
            for p in module.parameters():
                if p.grad is not None:
                    p -= RATE * p.grad
    return losses


def main():
    torch.set_num_threads(1)
    out = pathlib.Path(sys.argv[1])
    known = out / "losses.json"
    recorded = json.loads(known.read_text()) if known.exists() else {}
    for name, make, inputs in families():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        torch.manual_seed(7)
        module = make().float().train()
        program = torch.export.export(module, inputs)
        for node in program.graph.nodes:
            for key in ("stack_trace", "custom", "source_fn_stack", "torch_fn"):
                node.meta.pop(key, None)
        torch.export.save(program, out / f"{name}.pt2")
        deflate(out / f"{name}.pt2")
        recorded[name] = losses_of(module, inputs)
        print(name, recorded[name][0], recorded[name][-1], flush=True)
    known.write_text(json.dumps(recorded, indent=1) + "\n")


main()
