#!/usr/bin/env python3
"""The recorder of `foreshard-oracle practice` with TRL's activation offload: cases that say `"activation_offloading": true`.

    FAKEGPU_DIR=.. RECORDER=shared/oracle/practice/recorder.py offload.py --grid CASES.jsonl --out ROWS.jsonl

Needs trl beside the recorder's own packages; the rows say which. As the trainer does it: the manager is made before the model is wrapped (without FSDP: once it is on the
device), entered behind the batch and left behind `loss.backward()`, for each micro-batch. Its stream has the role `offload`.
"""
import around
from around import recorder


class Offload:
    """TRL's manager of one model."""

    def __init__(self, model, wrapped):
        self.model = model
        self.manager = self.made() if wrapped else None

    def made(self):
        from trl.models.activation_offloading import get_act_offloading_ctx_manager
        return get_act_offloading_ctx_manager(self.model, warn_if_no_head=False)

    def enter(self):
        self.manager = self.manager or self.made()
        self.manager.__enter__()


def watch(case):
    """Enters and leaves the manager of `case`, whatever else the recorder does."""
    import torch
    build, backward, mark = recorder.build, torch.Tensor.backward, recorder.base.Shim.mark
    held = {}

    def built(c):
        model, batch = build(c)
        offload = held["offload"] = Offload(model, bool(c["fsdp"]["version"]))

        def entered():
            made = batch()
            offload.enter()
            return made

        return model, entered

    def left(loss, *args, **kwargs):
        backward(loss, *args, **kwargs)
        held["offload"].manager.__exit__(None, None, None)

    def marked(shim, text):
        if text.startswith("group ") and not held.get("told"):
            held["told"] = True
            mark(shim, "role offload")
            torch.cuda.Event().record(held["offload"].manager.s1)
        mark(shim, text)

    recorder.build, torch.Tensor.backward, recorder.base.Shim.mark = built, left, marked


if __name__ == "__main__":
    around.main(__file__, "activation_offloading", watch, "trl")
