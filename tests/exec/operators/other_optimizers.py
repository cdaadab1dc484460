"""Writes tests/exec/operators/other_optimizers.h: five parameters after seven steps of torch.optim's optimizers, by a loop
and as foreach, on a CPU.

usage: other_optimizers.py >other_optimizers.h      (a Python with PyTorch 2.11)
"""
import re

import torch

START, GRADIENT = [0.5, -1.25, 2.0, 0.0625, -0.75], [0.3, -0.7, 0.011, 1.9, -0.0004]
LR, EPS, DECAY, STEPS = 0.01, 1e-8, 0.1, 7  # RAdam rectifies from the sixth step on
KINDS = [
    ("adagrad", "Adagrad", {}), ("rmsprop", "RMSprop", {}), ("rmsprop_both", "RMSprop", {"momentum": 0.9, "centered": True}), ("nadam", "NAdam", {"betas": (0.9, 0.999)}),
    ("nadam_decoupled", "NAdam", {"betas": (0.9, 0.999), "decoupled_weight_decay": True}), ("radam", "RAdam", {"betas": (0.9, 0.999)}),
    ("radam_decoupled", "RAdam", {"betas": (0.9, 0.999), "decoupled_weight_decay": True}), ("adamax", "Adamax", {"betas": (0.9, 0.999)}),
]  # fmt: skip


def stepped(name, arguments, foreach):
    param = torch.nn.Parameter(torch.tensor(START))
    optimizer = getattr(torch.optim, name)([param], lr=LR, eps=EPS, weight_decay=DECAY, foreach=foreach, **arguments)
    for step in range(STEPS):
        param.grad = torch.tensor(GRADIENT) * (1.0 - 0.25 * step)  # changes its sign
        optimizer.step()
    return param.detach()


torch.set_num_threads(1)
print("// Written by other_optimizers.py with PyTorch " + torch.__version__.split("+")[0] + ": parameters after its steps.")
print("#pragma once\n\nnamespace foreshard::exec {\n\nstruct SteppedByTorch {\n  const char* kind;\n  bool foreach;\n  float params[5];\n};\n")
print("inline constexpr SteppedByTorch kSteppedByTorch[] = {")
for kind, name, arguments in KINDS:
    for foreach in (False, True):
        values = ", ".join(re.sub("0+p", "p", float(v).hex()) + "F" for v in stepped(name, arguments, foreach))
        print(f'    {{"{kind}", {str(foreach).lower()}, {{{values}}}}},')
print("};\n\n}  // namespace foreshard::exec")
