"""torch.autograd.grad in the midst of the step (forces, penalties, inner loops, attacks): what the engine runs is operators like others.

Autograd's engine asks the driver for the card, so the graph is walked here as the engine walks it: the newest node first, those alone that lie on
a way to what is asked for. Nothing is held for it: what a node has saved is known by its value, and a stand-in takes its place.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from .errors import CaptureError
from .values import Storage, Value


class Known:
    """What autograd has saved, as the program knows it."""

    def __init__(self, table, tensor: torch.Tensor):
        self.storage: Storage | None = table.known_storage(tensor)
        self.values: dict[Any, list[Value]] = table.by_geometry(tensor)
        self.nbytes = tensor.untyped_storage().nbytes()
        self.offset = tensor.storage_offset()


class Engine:
    def __init__(self, recorder, table):
        self._recorder, self._table = recorder, table
        self.makers: dict[int, str] = {}  # by the number of a node: the value that it stands behind
        recorder.on_reference.append(self._note)

    def _note(self, tensor: torch.Tensor, name: str) -> None:
        if tensor.grad_fn is not None:
            self.makers[tensor.grad_fn._sequence_nr()] = name

    def stand_in(self, known: Known, shape, stride, dtype, device) -> torch.Tensor:
        """A tensor that the program takes for what was saved."""
        size = dtype.itemsize
        with self._recorder.paused():
            whole = torch.empty((known.nbytes + size - 1) // size, dtype=dtype, device=device)
            made = whole.as_strided(shape, stride, known.offset)
        self._table.stand_for(made, known.storage, known.values)
        return made

    def grad(self, outputs, inputs, grad_outputs=None, retain_graph=None, create_graph=False, only_inputs=True, allow_unused=None,
             is_grads_batched=False, materialize_grads=False) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
        if self._recorder.region is not None or is_grads_batched:
            raise CaptureError(
                "torch.autograd.grad inside a checkpointed region, or of several gradients at once, is not captured",
                place=f"module {self._recorder.place()}", hint="take it outside of the region, one gradient after the other",
            )  # fmt: skip
        outputs, inputs = _listed(outputs), _listed(inputs)
        grad_outputs = _listed(grad_outputs) if grad_outputs is not None else (None,) * len(outputs)
        first = [torch.ones_like(out, memory_format=torch.preserve_format) if g is None else g for out, g in zip(outputs, grad_outputs)]
        for out in outputs:
            self._recorder.reference(out)
        walk = _Walk(self, self._recorder, inputs, release=not (create_graph if retain_graph is None else retain_graph))
        self._recorder.engine = True
        try:
            with torch.set_grad_enabled(create_graph):
                found = walk.run(outputs, first)
        finally:
            self._recorder.engine = False
        if materialize_grads:
            found = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found)]
        return tuple(found)


class _Walk:
    """One call of the engine."""

    def __init__(self, engine: Engine, recorder, inputs, release: bool):
        self._engine, self._recorder, self._table, self._release = engine, recorder, recorder.table, release
        self._wanted: dict[Any, list[int]] = {}
        with recorder.paused():  # a view of each leaf
            for place, tensor in enumerate(inputs):
                self._wanted.setdefault(get_gradient_edge(tensor)[:2], []).append(place)
        self._found: list[torch.Tensor | None] = [None] * len(inputs)
        self._leads: dict[Any, bool] = {}
        self._waiting: dict[Any, dict[int, torch.Tensor]] = {}  # by node: what has come to each of its outputs
        self._ways: Counter[Any] = Counter()  # by node: edges to it that nothing has come by yet

    def run(self, outputs, gradients) -> list[torch.Tensor | None]:
        roots = [get_gradient_edge(output)[:2] for output in outputs]
        self._count_ways([node for node, _ in roots])
        for (node, number), gradient in zip(roots, gradients):
            self._arrive(node, number, gradient)
        del outputs, gradients, gradient
        while self._waiting:
            node = max((each for each in self._waiting if not self._ways[each]), key=lambda each: each._sequence_nr())
            come = self._waiting.pop(node)
            for number, gradient in come.items():
                for place in self._wanted.get((node, number), ()):
                    self._found[place] = gradient
            if self._leads_on(node):
                self._execute(node, come)
        return self._found

    def _execute(self, node, come: dict[int, torch.Tensor]) -> None:
        if not hasattr(node, "_input_metadata") or isinstance(node, torch.autograd.function.BackwardCFunction):
            raise CaptureError(
                f"torch.autograd.grad goes through {type(node).__name__}, which nobody can look into", place=f"module {self._recorder.place()}",
                expected="operators of PyTorch between what is differentiated and what by",
            )  # fmt: skip
        began = len(self._recorder.ops)
        given = [come.get(number) for number in range(len(node._input_metadata))]
        come.clear()
        made = node(*given)
        given.clear()
        made = list(made) if isinstance(made, tuple) else [made]
        edges = list(node.next_functions)
        for i, (following, number) in enumerate(edges):
            if following is None or not ((following, number) in self._wanted or self._leads_on(following)):
                made[i] = None
        self._recorder.drop_unused(began, [g for g in made if g is not None])
        if self._release and (maker := self._engine.makers.get(node._sequence_nr())):
            last = next(row for row in reversed(self._recorder.ops) if "dropped" not in row)
            last.setdefault("releases", []).append(maker)
        for i, (following, number) in enumerate(edges):
            gradient, made[i] = made[i], None
            if following is not None:
                self._ways[following] -= 1
            if gradient is not None:
                self._arrive(following, number, gradient)

    def _count_ways(self, roots: list[Any]) -> None:
        seen, stack = set(roots), list(roots)
        while stack:
            for following, _ in stack.pop().next_functions:
                if following is None:
                    continue
                self._ways[following] += 1
                if following not in seen:
                    seen.add(following)
                    stack.append(following)

    def _arrive(self, node, number: int, gradient: torch.Tensor) -> None:
        """As the engine's validate_outputs and input buffers have it."""
        expected = node._input_metadata[number]
        if list(gradient.shape) != list(expected.shape):
            gradient = gradient.sum_to_size(list(expected.shape))
        if gradient.dtype != expected.dtype:
            gradient = gradient.to(expected.dtype)
        come = self._waiting.setdefault(node, {})
        if number not in come:
            come[number] = gradient
        elif torch.is_grad_enabled() or not _may_be_written(come[number]):
            come[number] = come[number] + gradient
        else:
            come[number] += gradient

    def _leads_on(self, node) -> bool:
        """Whether a way from the node's gradients leads to what is asked for."""
        stack = [node]
        while stack:
            top = stack[-1]
            if top in self._leads:
                stack.pop()
                continue
            below = [(following, number) for following, number in top.next_functions if following is not None]
            unknown = [following for following, _ in below if following not in self._leads]
            if unknown:
                stack.extend(unknown)
                continue
            self._leads[top] = any(edge in self._wanted or self._leads[edge[0]] for edge in below)
        return self._leads[node]


def _listed(tensors) -> tuple:
    return (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)


def _may_be_written(tensor: torch.Tensor) -> bool:
    """Whether nobody else has its memory (can_accumulate_inplace): the engine adds in place then."""
    dense = tensor.is_contiguous() or tensor._is_view() is False
    return dense and torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) <= 2
