"""Gradients that torch.func takes inside of forward (a memory that learns while it reads): operators like others.

Autograd's engine asks the driver for the card, so the graph is walked here, in its order: the last node first.
"""

from __future__ import annotations

import contextlib

import torch
from torch.autograd.graph import get_gradient_edge


def inside_transform() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_of_transform(tensor: torch.Tensor) -> bool:
    """Whether autograd saves it for a transform's own backward, which asks for that very tensor."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def gradients(outputs, inputs, grad_outputs=None, **_) -> tuple[torch.Tensor | None, ...]:
    """As torch.autograd.grad with create_graph gives them; None: nothing comes back to an input."""
    wanted = {get_gradient_edge(tensor)[:2]: place for place, tensor in enumerate(inputs)}
    found: list[torch.Tensor | None] = [None] * len(inputs)
    waiting: dict = {}  # by node: what has come to each of its outputs

    def arrive(node, number, gradient):
        if node is not None and gradient is not None:
            come = waiting.setdefault(node, {})
            come[number] = come[number] + gradient if number in come else gradient

    for place, output in enumerate(outputs):
        node, number = get_gradient_edge(output)[:2]
        arrive(node, number, torch.ones_like(output) if grad_outputs is None else grad_outputs[place])
    while waiting:
        node = max(waiting, key=lambda each: each._sequence_nr())
        come = waiting.pop(node)
        for number, gradient in come.items():
            if (node, number) in wanted:
                found[wanted[node, number]] = gradient
        if not node.next_functions:
            continue
        made = node(*(come.get(number) for number in range(max(come) + 1)))
        for (following, number), gradient in zip(node.next_functions, made if isinstance(made, tuple) else (made,)):
            arrive(following, number, gradient)
    return tuple(found)


@contextlib.contextmanager
def allowed():
    """torch.func refuses to run beside hooks of saved tensors, as capture's are."""
    refuses = torch.autograd.graph.disable_saved_tensors_hooks
    torch.autograd.graph.disable_saved_tensors_hooks = lambda message: contextlib.nullcontext()
    try:
        yield
    finally:
        torch.autograd.graph.disable_saved_tensors_hooks = refuses
