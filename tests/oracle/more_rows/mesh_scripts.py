#!/usr/bin/env python3
"""The recorder of `foreshard-oracle meshes` for scripts that it has no plan for: losses in pieces and adapters over a tensor dimension.

    FAKEGPU_DIR=.. RECORDER=shared/oracle/practice/recorder.py mesh_scripts.py --grid CASES.jsonl --out ROWS.jsonl

Losses in pieces: torchtitan's ChunkedLossWrapper has the hidden states on every tensor rank before they are cut into pieces. Adapters: beside a layer cut by rows of its weight
`lora_A` is whole and `lora_B` cut, beside one cut by columns `lora_A` is cut and `lora_B` whole, as torchtitan and PEFT shard them; whole ones see what the layer sees.
"""
import os
import sys

RECORDER = os.path.abspath(os.environ["RECORDER"])
sys.path[:0] = [os.path.dirname(RECORDER)]
import recorder  # noqa: E402


def unwrapped(model):
    """The model in the script's wrapper and in PEFT's."""
    import practice
    if isinstance(model, practice.WithLoss):
        model = model.model
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def whole_style(on_part):
    """Weights on every rank: input and result stay DTensors as they are, or (`on_part`) local parts of the sequence, of which DTensor multiplies no three dimensions."""
    import torch.nn.functional as F
    from torch.distributed.tensor import Partial, distribute_module
    from torch.distributed.tensor.parallel import ParallelStyle

    class Whole(ParallelStyle):
        def _apply(self, module, mesh):
            distribute_module(module, mesh)
            if on_part:
                module.forward = lambda x: F.linear(x, module.weight.to_local(grad_placements=[Partial()]))
            return module

    return Whole()


def beside_adapters(module, plan, sequence):
    """`plan` for a module some of whose layers have adapters."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
    out = {}
    for name, style in plan.items():
        layer = module.get_submodule(name)
        if not hasattr(layer, "lora_A"):
            out[name] = style
            continue
        out[name + ".base_layer"] = style
        if isinstance(style, RowwiseParallel):
            out[name + ".lora_A.default"] = RowwiseParallel(output_layouts=Shard(1)) if sequence else RowwiseParallel()
            if sequence:
                out[name + ".lora_B.default"] = whole_style(True)
        else:
            out[name + ".lora_B.default"] = ColwiseParallel()
            if sequence:
                out[name + ".lora_A.default"] = whole_style(False)
    return out


def apply_tp(model, mesh, t):
    import parallel
    import practice
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    pieces = isinstance(model, practice.WithLoss)
    model, sequence, spread = unwrapped(model), t.get("sequence_parallel", True), t.get("loss_parallel", False)
    titan = t["plan"] == "titan"
    root, block = (parallel.titan_plan if titan else parallel.hf_plan)(sequence, spread)
    if pieces:  # of hidden states that every rank has
        root["output" if titan else "lm_head"] = ColwiseParallel(output_layouts=Shard(-1) if spread else Replicate(), use_local_output=not spread)
    parallelize_module(model, mesh, beside_adapters(model, root, sequence))
    for one in model.layers.values() if titan else model.model.layers:
        parallelize_module(one, mesh, beside_adapters(one, block, sequence))


def with_loss(self, input_ids, labels):
    import torch
    import torch.nn.functional as F
    from torch.distributed.tensor import DTensor, Replicate
    from torch.utils.checkpoint import checkpoint
    m = unwrapped(self)
    if hasattr(m, "hidden"):
        h, head = m.hidden(input_ids), m.output
    else:
        places = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)  # of all words: a rank's embeddings may be a part
        h, head = m.get_decoder()(input_ids=input_ids, position_ids=places, use_cache=False).last_hidden_state, m.get_output_embeddings()
    if isinstance(h, DTensor):
        h = h.redistribute(placements=[Replicate()])
    hs, ys = h.chunk(self.chunks, 1), labels.chunk(self.chunks, 1)
    n = (labels != -100).sum()

    def part(x, y):
        return F.cross_entropy(head(x).flatten(0, 1).float(), y.flatten(), ignore_index=-100, reduction="sum")

    total = 0.0
    if self.kind == "chunked_logits":
        logits = [head(x) for x in hs]
        for x, y in zip(logits, ys):
            total = total + F.cross_entropy(x.flatten(0, 1).float(), y.flatten(), ignore_index=-100, reduction="sum")
    else:
        for x, y in zip(hs, ys):
            total = total + checkpoint(part, x, y, use_reentrant=False)
    return total / n


def main():
    if os.environ.get("FAKEGPU_CHILD"):
        import parallel
        import practice
        parallel.apply_tp = apply_tp
        practice.WithLoss.forward = with_loss
    recorder.__file__ = os.path.abspath(__file__)  # what it starts for each case
    recorder.main()


if __name__ == "__main__":
    main()
