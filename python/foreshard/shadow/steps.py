"""Where steps begin and end, and what the allocator says of each.

A step ends with its optimizer's, and lasts until the next forward begins, so that what a script does after it (zero_grad, a
schedule, a line of log) belongs to it; what comes behind the last one (a checkpoint, a trainer that tidies up) does not. Nor is a step
what an optimizer does before the first backward: it makes its states for a checkpoint that is loaded. Peaks are those between two such
ends, whatever the script resets in between.
"""

from __future__ import annotations

import atexit
import functools
import gc
import io
import linecache
import os
import re
import sys
import weakref
from typing import Any, Callable, NamedTuple

from . import STEPS, device, report
from .hooks import after_import
from .notes import note
from .optimizers import memory
from .reads import values

PEAKS = ("allocated_bytes", "active_bytes", "reserved_bytes")
COUNTS = {"retries": "num_alloc_retries", "ooms": "num_ooms"}
_LEAST_GROWTH = 2**16  # bytes a step; less are figures that a script keeps
_MOST_AGAIN = 8  # steps of turns that are known, while a new one is awaited: a judge steps five times before what it judges

_state: _Steps | None = None


class _Watcher(NamedTuple):
    """Who reads the script's set-up: is told of its first optimizer step and of the end, and knows what is on the host."""

    optimizer_steps: Callable[[Any], None] = lambda optimizer: None
    offloads: Callable[[], bool] = lambda: False
    finish: Callable[[], None] = lambda: None
    turn_ends: Callable[[int, bool], bool] = lambda turn, anew: True  # its number, whether what comes may be another's; whether what was watched is its
    stepped: Callable[[], None] = lambda: None


_watcher = _Watcher()


def watched_by(*told: Callable) -> None:
    """In the order of _Watcher."""
    global _watcher
    _watcher = _Watcher(*told)


def begin() -> None:
    global _state
    report.told_by("steps", figures)
    _state = _Steps(int(os.environ.get(STEPS, "3")))
    after_import("torch.optim.optimizer", _state.watch)
    after_import("torch.autograd.graph", _state.watch_engine)
    # Before torch.cuda takes the name: what a script resets is kept.
    after_import("torch", _state.keep_peaks)
    atexit.register(_state.script_ends)
    _watch_errors()


def figures() -> list[dict]:
    return [] if _state is None else _state.figures


class Pass(NamedTuple):
    """Forwards and then a backward: whether that reduces gradients, and what FSDP's units are told when it begins."""

    reduces: bool = True
    switches: dict = {"last": True, "units": []}
    asides: int = 0  # forwards without gradients before its first with them, of models that the loss has to do with


def micro_batches_of_last_step(turn: int = 0) -> list[Pass]:
    return [Pass()] if _state is None else _state.passes_of_turn.get(turn) or [Pass()]


def asides_of_steps(turn: int = 0) -> list[list[int]]:
    """Of all steps of a turn, by micro-batch: forwards without gradients that stand before it."""
    return [] if _state is None else [[each.asides for each in row] for row in _state.asides_of_turn.get(turn, [])]


def aside() -> None:
    """A model runs without gradients whose outputs the loss may read (script_step)."""
    if _state is not None and not _state.forwards:
        _state.asides += 1


def optimizers(turn: int = 0) -> list:
    """All that have stepped in such a step: one for each parameter where they step in backward."""
    return [] if _state is None else list(_state.optimizers.get(turn, ()))


def between() -> bool:
    """Whether a step has ended and no forward of the next has begun."""
    return _state is not None and bool(_state.figures) and not _state.forwards and not _state.passes and not _state.is_first


def is_first() -> bool:
    """Whether no step of this turn has ended."""
    return _state is None or _state.is_first


def forward_begins(module) -> None:
    """Of a root that is watched from outside of its call: what hooks on every forward would do comes first."""
    if _state is not None and _state._forward_hook is not None:
        _state._forward_begins(module, ())


def root_forward() -> bool:
    """The model's root begins a forward (of training). Whether it is the step's first."""
    if _state is None:
        return False
    if not _state.figures and not _state.passes and not _state.forwards:
        _state.begins()
    _state.forwards += 1
    return _state.forwards == 1 and not _state.passes


def forget_forwards() -> bool:
    """What ran so far was no step. Whether that may be: no backward has run."""
    if _state is None or _state.figures or _state.passes:
        return False
    _state.forwards = 0
    return True


def backward(begins: Pass) -> bool:
    """A backward begins; several of one forward are one pass. Whether it is the step's first."""
    if _state is None or not _state.forwards:
        nested = _state is not None and _state.engines > 0  # a checkpoint's own, within the step's
        if _state is not None and _state.passes and not _state.stepped() and _state.is_first and not nested:
            note("several backwards of one forward (retain_graph): the plan has the first one's alone; the others gather and reduce once more")
        return False
    _state.passes.append(begins._replace(asides=_state.asides))
    _state.forwards = _state.asides = 0
    return len(_state.passes) == 1


class _Steps:
    def __init__(self, wanted: int):
        self.wanted = wanted  # 0: until the script ends
        self.figures: list[dict] = []
        self.forwards = 0  # since the last backward
        self.engines = 0  # backwards that run, one within another
        self.passes: list[Pass] = []
        self.passes_of_turn: dict[int, list[Pass]] = {}  # of the last step of each
        self.asides = 0  # since the last backward
        self.asides_of_turn: dict[int, list[list[Pass]]] = {}  # of all steps of each
        self._peaks = dict.fromkeys(PEAKS, 0)
        self._last_ns = 0
        self._stepped_row: dict = {}  # figures until the latest optimizer's end
        self._current, self._left = 0, []  # bytes that are allocated; what each step has left when the next one begins
        self.optimizers: dict[int, weakref.WeakKeyDictionary] = {}  # that have stepped, by turn, in the order of their first steps
        self._now: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # since the last end
        self._stepped: set[int] = set()  # their ids
        self._turns: list[set[int]] = []  # by turn: those of its first step
        self._parameters: set[int] = set()  # ids of those that any has stepped
        self.is_first = True
        self._told = False  # the watcher, of the first optimizer
        self._backwards = 0  # that have begun
        self._unmarked = False  # optimizers step in a backward that has not ended
        self._on_host: set[int] = set()  # parameters that an optimizer steps there
        self._forward_hook = None
        self._reset = None
        self._ended = False

    # ---- the allocator

    def keep_peaks(self, torch) -> None:
        inner = torch._C._cuda_resetPeakMemoryStats
        self._reset = inner

        @functools.wraps(inner)
        def reset(index):
            self._fold(torch)
            inner(index)

        torch._C._cuda_resetPeakMemoryStats = reset

    def _fold(self, torch) -> None:
        if not torch.cuda.is_initialized():
            return
        statistics = torch.cuda.memory_stats()
        for name in PEAKS:
            self._peaks[name] = max(self._peaks[name], statistics.get(f"{name}.all.peak", 0))

    # ---- the optimizer

    def stepped(self) -> bool:
        """Whether an optimizer has stepped since the last end."""
        return bool(self._stepped)

    def watch(self, module) -> None:
        module.register_optimizer_step_pre_hook(self._before)
        module.register_optimizer_step_post_hook(self._after)
        hooked = module.Optimizer.profile_hook_step  # around every class's step
        module.Optimizer.profile_hook_step = staticmethod(lambda step: hooked(memory.tell_errors(step)))

    def watch_engine(self, module) -> None:
        """Every backward goes through it, and what asks for gradients alone."""
        inner = module._engine_run_backward

        @functools.wraps(inner)
        def run(*args, **kwargs):
            self._backwards += 1
            self.engines += 1
            try:
                with values.in_backward():
                    return inner(*args, **kwargs)
            finally:
                self.engines -= 1
                if self._unmarked and not in_backward():
                    self._mark()

        module._engine_run_backward = run

    def _before(self, optimizer, args, kwargs):
        if id(optimizer) in self._stepped and not in_backward():  # no forward of a module in between
            self._close()
        if self.is_first and not self._stepped and self.passes:  # else its closure runs the model
            self._tell(optimizer)
        memory.begins(optimizer, self._backwards)

    def _after(self, optimizer, args, kwargs):
        memory.ends(optimizer, self._backwards)
        if not self._backwards:
            note("what an optimizer did before the first backward belongs to the set-up: its states are there in the first step, in which the plan "
                 "makes them")  # fmt: skip
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        on_host = {id(p) for p in parameters if p.device.type == "cpu"}
        if parameters and len(on_host) == len(parameters) and not _watcher.offloads():
            self._ended = True
            report.failure("bad-input", "the script trains on the CPU: its optimizer's parameters are on the host",
                           "move the model to a GPU (model.cuda(), or FSDP on a mesh of \"cuda\"), as it would train")  # fmt: skip
            report.end(3)
        if self.is_first and not self._told:
            self._tell(optimizer)
        if not self._stepped:  # what comes now belongs to the next step's collectives already (model.unshard())
            if in_backward():  # of the first parameter: what autograd goes on with is this step's
                self._unmarked = True
            else:
                self._mark()
        self._stepped.add(id(optimizer))
        self._now[optimizer] = True
        self._parameters |= {id(p) for p in parameters}
        self._on_host |= on_host
        self._stepped_row = self._row()
        _watcher.stepped()
        if not self.figures:  # once more: what PyTorch takes down at exit, the later comes first, is still needed
            atexit.unregister(self.script_ends)
            atexit.register(self.script_ends)
        if self._forward_hook is None:
            from torch.nn.modules.module import register_module_forward_pre_hook

            self._forward_hook = register_module_forward_pre_hook(self._forward_begins)

    def _mark(self) -> None:
        self._unmarked = False
        device.mark(f"step {len(self.figures) + 1} ends")

    def _forward_begins(self, module, args):
        """A module without parameters of the training's may prepare the next batch, before zero_grad."""
        if not in_backward() and any(p.is_cuda or id(p) in self._on_host for p in module.parameters()):  # else it is computed again
            self._close()

    def _tell(self, optimizer) -> None:
        self._told = True
        _watcher.optimizer_steps(optimizer)

    def begins(self) -> None:
        """Time counts from here; what memory making the model took is the first step's."""
        self._last_ns = device.done_ns()

    # ---- ends

    def _row(self) -> dict:
        import torch

        self._fold(torch)
        statistics = torch.cuda.memory_stats()
        self._current = statistics.get("allocated_bytes.all.current", 0)
        row = dict(self._peaks) | {name: statistics.get(key, 0) for name, key in COUNTS.items()}
        return row | {"virtual_ns": device.done_ns() - self._last_ns}

    def _close(self, last: bool = False) -> None:
        import torch

        if self._forward_hook is not None:
            self._forward_hook.remove()
            self._forward_hook = None
        if not self._stepped:
            return
        memory.rest(self._now)
        turn = next((i for i, each in enumerate(self._turns) if not each.isdisjoint(self._stepped)), len(self._turns))
        if turn and turn == len(self._turns):
            note("optimizers step in turns, each behind a loss and a backward of its own (a GAN's generator and discriminator): every turn counts "
                 "as a step, and has a plan of its own; what other turns keep lies beside it")  # fmt: skip
        row = self._stepped_row if last else self._row()
        self._last_ns += row["virtual_ns"]
        self.figures.append(row | {"turn": turn})
        self._left += [] if last else [self._current]
        passes, self.passes, self.forwards = self.passes, [], 0
        self.optimizers.setdefault(turn, weakref.WeakKeyDictionary()).update(self._now)
        if self._next_turn(turn):
            self.passes_of_turn[turn] = passes
            self.asides_of_turn.setdefault(turn, []).append(passes)
        self._peaks = dict.fromkeys(PEAKS, 0)
        self._reset(torch.cuda.current_device())
        if self.wanted and len(self.figures) >= self.wanted:
            self.end(0)

    def _next_turn(self, turn: int) -> bool:
        """The step that begins may be the first of another turn as long as there is one. Whether what was watched is this turn's."""
        if turn == len(self._turns):
            self._turns.append(set(self._stepped))
        again = len(self.figures) - len(self._turns)
        several = self.is_first and again <= _MOST_AGAIN and _others_than(set().union(*self._turns), self._parameters)
        kept = _watcher.turn_ends(turn, several)
        self.is_first = several
        self._told = not several
        self._stepped.clear()
        self._now.clear()
        return kept

    def end(self, code: int) -> None:
        if self._ended:
            return
        self._ended = True
        self._tell_growth()
        _watcher.finish()
        report.end(code)

    def _tell_growth(self) -> None:
        grown = [after - before for before, after in zip(self._left, self._left[1:])]
        if len(self._turns) == 1 and len(grown) > 1 and min(grown) >= _LEAST_GROWTH and max(grown) < 2 * min(grown):
            note(f"every step leaves {min(grown) / 2**20:.2f} MiB more on the device than the one before, which no plan has: something is not let go of (a list "
                 "of outputs; what a recomputed block's collective makes, if nobody waits for it)")  # fmt: skip

    def script_ends(self) -> None:
        if self._ended or "torch" not in sys.modules or os.getpid() != _process:
            return
        self._close(last=True)
        if self.figures:
            self.end(0)
        # An interpreter beside the script's own (a launcher, a compiler's helper) trains nothing.
        if not report.exists():
            report.write()


def _others_than(stepped: set[int], parameters: set[int]) -> bool:
    """Whether there is an optimizer that has not stepped in any turn, and has parameters that none has stepped: others are wrappers."""
    from torch.optim import Optimizer

    found = [each for each in gc.get_objects() if issubclass(type(each), Optimizer) and id(each) not in stepped]
    return any(not _parameters_of(each) <= parameters for each in found)


def _parameters_of(optimizer) -> set[int]:
    try:
        return {id(p) for group in optimizer.param_groups for p in group["params"]}
    except (AttributeError, KeyError, TypeError):  # half made
        return set()


def in_backward() -> bool:
    """Autograd runs: what is called now, its hooks call."""
    import torch

    return torch._C._current_graph_task_id() >= 0


_process = os.getpid()
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def _watch_errors() -> None:
    """An exception that ends the script: what it is, and whether memory is what was missing."""
    inner = sys.excepthook

    def hook(kind, value, trace):
        inner(kind, value, trace)
        if _state is None or _state._ended or os.getpid() != _process:
            return
        if isinstance(sys.stderr, io.StringIO):  # torch.distributed's hook would write it out behind this one
            sys.__stderr__.write(sys.stderr.getvalue())
            sys.__stderr__.flush()
        if not _state.figures and report.exists():  # another process of the script has trained and told
            return
        name = kind.__name__
        if name == "OutOfMemoryError":
            report.failure("does-not-fit", str(value).split(". ")[0], "")
            if not _state.figures:
                _out_of_memory()
            _state._ended = True
            _watcher.finish()
            report.end(4)
        report.failure("script", f"the script ended by {name}: {value}", f"raised at {_place(trace)}")
        _state._ended = True
        report.end(1)

    sys.excepthook = hook


def _place(trace) -> str:
    """Where it was raised. What watches is on the way of every call: a line of it that calls what it was given is not where."""
    place = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        file, given = code.co_filename, (*code.co_freevars, *code.co_varnames[: code.co_argcount])
        is_own = file.startswith(_OWN)
        stands_between = any(re.search(rf"\b{each}\(", linecache.getline(file, trace.tb_lineno)) for each in given)
        if not place or not is_own or not (stands_between or trace.tb_next):
            place = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def _out_of_memory() -> None:
    """The step in which memory ran out is told as far as it came."""
    import torch

    _state.figures.append(_state._row() | {"turn": 0})
    note("memory ran out in this step: its figures are those until then")
