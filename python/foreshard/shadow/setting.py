"""The FSDP set-up that a script uses, read from PyTorch's own state when its first optimizer step comes: by then units are
made, prefetches are set and the model has run once. Becomes the job file and the model beside it (model.py)."""

from __future__ import annotations

import functools
import os
import sys
import traceback
import weakref

from . import beside, float8, loss, model, names, own_parts, report, script_step, sequence, steps, tensor_plan, turns, units
from .hooks import after_import
from .notes import note
from .optimizers import memory, options
from .reads import allocator, values
from .tape import loose

_roots: list = []  # weak references to modules that FSDP or DDP was put on, outermost last
_replicas: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # replicate()'s DDP by module
_first_call: dict = {}  # the root's first batch: args, kwargs, autocast
_clip: float | None = None
_scaler = False
_checkpointed: dict[str, dict] = {}
_optimizer_of_step: weakref.ref | None = None
_gradients: dict = {}  # of a later step: whether there are any when its forward and its backward begin; bytes of another turn's
_together = None
_plain: dict = {"ends": lambda: None}
_in_training_mode = False  # a root has run in it
_have_trained: weakref.WeakSet = weakref.WeakSet()  # roots that have
_found: dict | None = None
_settings: list[dict] = []  # by turn, at the end


def begin() -> None:
    report.told_by("setting", lambda: _settings[0] if _settings else _found)
    report.told_by("turns", lambda: _settings[1:])
    steps.watched_by(optimizer_steps, offloads, finish, turn_ends, stepped)
    turns.watch(sys.modules[__name__], ("_first_call", "_checkpointed", "_optimizer_of_step", "_gradients", "_together", "_found", "_clip", "_scaler"))
    after_import("torch.distributed.fsdp._fully_shard._fully_shard", functools.partial(_watch_fully_shard, name="fully_shard"))
    after_import("torch.distributed._composable.replicate_with_fsdp", functools.partial(_watch_fully_shard, name="replicate"))
    after_import("torch.distributed.fsdp._fully_shard._fsdp_state", _watch_fsdp2_forward)
    after_import("torch.distributed.fsdp.fully_sharded_data_parallel", _watch_fsdp1)
    sequence.begin()
    after_import("torch.distributed.tensor._api", tensor_plan.watch_distribution)
    after_import("torch.nn.parallel.distributed", _watch_ddp)
    after_import("torch.distributed._composable.replicate", _watch_replicate)
    after_import("torch.nn.utils.clip_grad", _watch_clip)
    after_import("torch.amp.grad_scaler", _watch_scaler)
    after_import("torch.utils.checkpoint", _watch_checkpoint)
    after_import("torch", lambda torch: loss.watch(torch, backward_begins))
    after_import("torch", script_step.begin)
    after_import("torch.autograd.function", script_step.watch_functions)
    after_import("torch.nn.modules.module", tensor_plan.watch_numbers)
    after_import("torch.nn.modules.module", _watch_plain)


# ------------------------------------------------------------------------------------------------------ what is watched


def _remember(module) -> None:
    if not _roots:
        _plain["ends"]()
    _roots.append(weakref.ref(module))
    if loose.are_beside([module]):
        script_step.shards_begin()


def _watch_plain(python_module) -> None:
    """A model that nothing shards or replicates: the outermost module that trains on the device, until something does."""
    kind = python_module.Module
    inner = kind.__call__

    @functools.wraps(inner)
    def call(self, *args, **kwargs):
        if _plain.get("runs") or not _trains_alone(self):
            return inner(self, *args, **kwargs)
        _plain["runs"] = True
        steps.forward_begins(self)
        watched = _root_runs(self, args, kwargs)
        try:
            output = inner(self, *args, **kwargs)
        finally:
            _plain["runs"] = False
        if watched:
            _root_ran(output)
        return output

    def ends():
        kind.__call__ = inner
        if _first_call:  # it ran by itself before it was sharded
            _first_call.clear()
            script_step.forget()

    kind.__call__ = call
    _plain["ends"] = ends


def _trains_alone(module) -> bool:
    import torch

    if not torch.is_grad_enabled():
        return False
    parameters = list(module.parameters())
    plain = all(type(p) is torch.nn.Parameter or hasattr(p, "device_mesh") for p in parameters)  # or DTensors
    return plain and any(p.requires_grad and p.is_cuda for p in parameters)


def _watch_fully_shard(python_module, name: str) -> None:
    inner = getattr(python_module, name)

    @functools.wraps(inner)
    def fully_shard(module, *args, **kwargs):
        tensor_plan.before_sharding(module)
        result = inner(module, *args, **kwargs)
        for each in module if isinstance(module, (list, tuple)) else [module]:
            _remember(each)
        return result

    fully_shard.state = inner.state
    setattr(python_module, name, fully_shard)


def _watch_fsdp2_forward(python_module) -> None:
    state = python_module.FSDPState
    inner = state._root_pre_forward

    @functools.wraps(inner)
    def root_pre_forward(self, module, args, kwargs):
        was_running = self._state_ctx.iter_forward_root is not None
        with script_step.aside():
            result = inner(self, module, args, kwargs)
        if not was_running and self._state_ctx.iter_forward_root is self and _root_runs(module, args, kwargs):

            def ends(module, args, output):
                handle.remove()
                _root_ran(output)

            handle = module.register_forward_hook(ends)
        return result

    state._root_pre_forward = root_pre_forward


def _watch_fsdp1(python_module) -> None:
    wrapper = python_module.FullyShardedDataParallel
    init, forward, clip = wrapper.__init__, wrapper.forward, wrapper.clip_grad_norm_

    @functools.wraps(init)
    def wrap(self, *args, **kwargs):
        tensor_plan.before_sharding(args[0] if args else kwargs["module"])
        init(self, *args, **kwargs)
        _remember(self)

    @functools.wraps(forward)
    def run(self, *args, **kwargs):
        if self._is_root is None or self._is_root:
            outermost = not getattr(run, "inside", False)
            if outermost:
                if _together is None:  # else they are called as in all of them
                    units.name_handles(self)
                watched = _root_runs(self, args, kwargs)
                run.inside = True
                try:
                    output = forward(self, *args, **kwargs)
                finally:
                    run.inside = False
                if watched:
                    _root_ran(output)
                return output
        return forward(self, *args, **kwargs)

    @functools.wraps(clip)
    def clip_grad_norm_(self, max_norm, *args, **kwargs):
        _clips(max_norm)
        return clip(self, max_norm, *args, **kwargs)

    wrapper.__init__, wrapper.forward, wrapper.clip_grad_norm_ = wrap, run, clip_grad_norm_


def _watch_ddp(python_module) -> None:
    wrapper = python_module.DistributedDataParallel
    init, forward = wrapper.__init__, wrapper.forward

    @functools.wraps(init)
    def wrap(self, *args, **kwargs):
        init(self, *args, **kwargs)
        _remember(self)

    @functools.wraps(forward)
    def run(self, *args, **kwargs):
        watched = _root_runs(self, args, kwargs)
        output = forward(self, *args, **kwargs)
        if watched:
            _root_ran(output)
        return output

    wrapper.__init__, wrapper.forward = wrap, run


def _watch_replicate(python_module) -> None:
    """DDP by hooks: replicate(module)."""
    state = python_module._ReplicateState
    init, begins, ends = state.init, state.forward_pre_hook, state.forward_post_hook

    @functools.wraps(init)
    def made(self, module, *args, **kwargs):
        _remember(module)
        return init(self, module, *args, **kwargs)

    @functools.wraps(begins)
    def forward_pre_hook(self, module, args, kwargs):
        result = begins(self, module, args, kwargs)
        _replicas[module] = self._ddp
        self._is_watched = _root_runs(module, args, kwargs)
        return result

    @functools.wraps(ends)
    def forward_post_hook(self, module, args, output):
        if self._is_watched:
            _root_ran(output)
        return ends(self, module, args, output)

    state.init, state.forward_pre_hook, state.forward_post_hook = made, forward_pre_hook, forward_post_hook


def _ddp_of(root):
    """The DDP that reduces this module's gradients."""
    return root if hasattr(root, "require_backward_grad_sync") else _replicas.get(root)


def _clips(max_norm) -> None:
    global _clip
    try:
        value = float(max_norm)
        _clip = min(value, 1e30) if value == value else _clip  # inf: only the norm is wanted
    except (TypeError, ValueError):
        pass


def _watch_clip(python_module) -> None:
    for name in ("clip_grad_norm_", "_clip_grads_with_norm_"):
        inner = getattr(python_module, name, None)
        if inner is None:
            continue

        @functools.wraps(inner)
        def clips(parameters, max_norm, *args, _inner=inner, **kwargs):
            _clips(max_norm)
            return _inner(parameters, max_norm, *args, **kwargs)

        setattr(python_module, name, clips)


def _watch_scaler(python_module) -> None:
    """`step`, for ShardedGradScaler has a `scale` of its own."""
    inner = python_module.GradScaler.step

    @functools.wraps(inner)
    def step(self, optimizer, *args, **kwargs):
        global _scaler
        _scaler = _scaler or self.is_enabled()
        return inner(self, optimizer, *args, **kwargs)

    python_module.GradScaler.step = step


def _watch_checkpoint(python_module) -> None:
    inner = python_module.checkpoint

    @functools.wraps(inner)
    def checkpoint(function=None, *args, **kwargs):
        if function is None:  # @checkpoint(use_reentrant=False), since 2.15
            return lambda function: functools.wraps(function)(lambda *args, **more: checkpoint(function, *args, **kwargs, **more))
        owner = getattr(function, "__self__", None) or (function if hasattr(function, "forward") else None)
        name = type(owner).__name__ if owner is not None else getattr(function, "__qualname__", "a function")
        row = _checkpointed.setdefault(name, {"calls": 0, "reentrant": bool(kwargs.get("use_reentrant")), "selective": "context_fn" in kwargs})
        row["calls"] += 1
        return script_step.checkpoint(inner, function, args, kwargs)

    python_module.checkpoint = checkpoint


def _root_runs(module, args, kwargs) -> bool:
    """Whether this forward is watched to its end: one of training, or one without gradients in the same step (a reference's)."""
    import torch

    if torch._C._current_graph_task_id() != -1:  # backward runs it again
        return False
    if not torch.is_grad_enabled() or not _may_train(module):
        if not module.training and module in _have_trained and steps.between() and script_step.has(module):
            note("forwards without gradients behind the backward of a step (an evaluation) are no part of the plan; the figures of the step have their memory")
        watched = script_step.root_begins_aside(module, args, kwargs)
        if script_step.has(module):
            steps.aside()
        return watched
    if steps.root_forward():
        beside.step_begins()
        if not steps.is_first() or turns.count():  # the turn that is awaited may not be the one that comes
            _gradients["forward"] = _has_gradients(module)
    if not steps.is_first() and script_step.roots() and not script_step.has(module):
        note(f"another model trains beside it: {names.class_of(module).__name__}; the plan has of it what it held at first (train.beside)")
    script_step.root_begins(module, args, kwargs)
    loss.root_begins()
    if not _first_call:
        _first_call.update(
            root=weakref.ref(module), modes=model.modes(module), args=_shapes(args), kwargs=_shapes(kwargs), forwards=model.replaced_forwards(module), sequence=sequence.found(module),
            autocast=str(torch.get_autocast_dtype("cuda")).removeprefix("torch.") if torch.is_autocast_enabled("cuda") else "",
        )  # fmt: skip
    return True


def _may_train(module) -> bool:
    """Whether a forward with gradients is one of training. Modules in evaluation mode train too (they come so from a hub), until one has run in
    the other mode: what ran before that, and had no backward, was an evaluation."""
    global _in_training_mode
    if not module.training:
        return not _in_training_mode and any(p.requires_grad for p in module.parameters())
    if _first_call and not _in_training_mode and steps.forget_forwards():
        _first_call.clear()
        script_step.forget()
        loss.forget()
    _in_training_mode = True
    _have_trained.add(module)
    return True


def backward_begins() -> None:
    root = _root()
    _frozen_now["now"] = frozenset(_frozen(root))
    if steps.is_first():
        beside.backward_begins(root, script_step.storages())
    if steps.backward(steps.Pass(_reduces(root), units.switches(root))) and (not steps.is_first() or turns.count()):
        _gradients["backward"] = _has_gradients(root)
        if turns.count() > 1 and _optimizer_of_step is not None:
            _gradients["of_others"] = turns.gradients_of_others(root, _optimizer_of_step())


def _reduces(root) -> bool:
    """Whether a backward now reduces gradients: not in no_sync, not after set_requires_gradient_sync(False)."""
    if root is None:
        return True
    if (ddp := _ddp_of(root)) is not None:
        return ddp.require_backward_grad_sync
    if hasattr(root, "_sync_gradients"):  # FSDP1
        return root._sync_gradients
    return units.reduces(root)


def _root_ran(output) -> None:
    script_step.root_ends(output)
    loss.root_ends(output)


def _shapes(tree):
    """The batch without its storage: the script's own memory must not be held."""
    import torch
    from torch.utils._pytree import tree_map

    return tree_map(lambda leaf: values.carried(leaf, torch.empty_like(leaf, device="meta")) if isinstance(leaf, torch.Tensor) else leaf, tree)


def offloads() -> bool:
    return any(row.get("cpu_offload") for row in units.found(_root())) if _root() is not None else False


def _root():
    """The outermost module that runs; of several that one step calls, all of them."""
    global _together
    if len(script_step.roots()) > 1:
        if _together is None:
            _together = script_step.as_one_module(script_step.roots())
            if names.has_fsdp2():
                names.name_groups(_together)
            units.name_handles(_together)
        return _together
    called = _first_call.get("root")
    if called is not None and called() is not None:
        return called()
    alive = [each() for each in _roots if each() is not None]
    return alive[-1] if alive else None


# ---------------------------------------------------------------------------------------------------------- found


def _classes(root) -> str:
    each = script_step.roots() if len(script_step.roots()) > 1 else [root] if root is not None else []
    return " + ".join(names.class_of(getattr(one, "module", one)).__name__ for one in each)


def optimizer_steps(optimizer) -> None:
    """The first optimizer of the first step: everything is set by now."""
    global _found, _optimizer_of_step
    _optimizer_of_step = weakref.ref(optimizer)
    _plain["parts"] = _plain.get("parts") or _replicates_parts(optimizer)
    if _found is not None:  # one that holds others begins first: those are what steps
        _found["optimizer"] = options.of(optimizer)
        return
    root = _root()
    rows = units.found(root)
    ddp = _ddp_of(root) if root is not None else None
    import torch

    runtime = rows[0]["runtime"] if rows else "none"
    if runtime == "none":
        _plain["root"] = root  # nothing else holds it when the function that trains has returned
    _found = {
        "runtime": runtime, "units": rows, "ddp": ddp is not None, "ddp_ranks": 1 if ddp is None else ddp.process_group.size(), "alone": root is not None and not _roots,
        "model_class": _classes(root), "roots": max(1, len(script_step.roots())), "loose": loose.inside(root),
        "optimizer": options.of(optimizer),
        "frozen": _frozen(root), "ignored": units.ignored(root) if runtime != "none" else [], "tied": units.tied(root), "autocast": _first_call.get("autocast", ""),
        "batch": _batch(torch), "init": tensor_plan.made_where(_root()),
    }  # fmt: skip


def _optimizers_of(root, turn: int) -> list:
    trained = set() if root is None else {id(p) for p in root.parameters()}
    stepped = [each for each in steps.optimizers(turn) if not memory.holds_others(each)]
    return [each for each in stepped if any(id(p) in trained for group in each.param_groups for p in group["params"])]


def _zero_grad() -> str:
    """When gradients of the step before go: before the forward, between it and backward ("after_forward"), or never: they are filled with zeros."""
    if not _gradients.get("forward"):
        return "before_forward"
    return "zero" if _gradients.get("backward") else "after_forward"


def _has_gradients(root) -> bool:
    """Of what this turn's optimizer steps."""
    optimizer = _optimizer_of_step() if _optimizer_of_step is not None and turns.count() > 1 else None
    trained = [p for group in optimizer.param_groups for p in group["params"]] if optimizer is not None else root.parameters() if root is not None else []
    return any(p.grad is not None for p in trained)


def _replicates_parts(optimizer) -> bool:
    """Whether DDP was put around DTensors: it takes their local tensors for its own (before the optimizer is made, or in the first forward)."""
    replicates = any(each() is not None and _ddp_of(each()) is not None for each in _roots)
    return replicates and any(hasattr(each, "_st_info") or hasattr(each, "device_mesh") for group in optimizer.param_groups for each in group["params"])


def _frozen(root) -> list[str]:
    root = root.module if type(root).__name__ == "DistributedDataParallel" else root
    return [] if root is None else [name for inside, p in turns.named(root) for name in inside if not p.requires_grad]


def _batch(torch) -> dict:
    """Sequences and their length, where the first whole-number or three-dimensional input says so."""
    from torch.utils._pytree import tree_flatten

    leaves = [leaf for leaf in tree_flatten((_first_call.get("args", ()), _first_call.get("kwargs", {})))[0] if isinstance(leaf, torch.Tensor)]
    tokens = [leaf for leaf in leaves if not leaf.is_floating_point() and leaf.dim() == 2] or [leaf for leaf in leaves if leaf.dim() == 3]
    if tokens:
        return {"batch": tokens[0].shape[0], "seq": tokens[0].shape[1]}
    return {"batch": leaves[0].shape[0]} if leaves and leaves[0].dim() else {}


def stepped() -> None:
    """Before the script clears another turn's gradients for the forward that comes."""
    if "of_others" in _gradients:
        _gradients["behind"] = turns.untouched(_gradients.pop("of_others"))


def turn_ends(turn: int, anew: bool) -> bool:
    """A step of this turn has ended (turns.py). Whether what was watched is the turn's. Turns are expected to come round in one order."""
    turns.read_as_later(turn, _gradients)
    kept = turns.keeps(turn)
    if kept and "now" in _frozen_now:
        _frozen_in.setdefault(turn, []).append(_frozen_now.pop("now"))
    if anew or turns.count() > 1 or not kept:
        turns.go_to(turns.count() if anew else (turn + 1) % turns.count())
    return kept


_frozen_now: dict[str, frozenset] = {}  # what the backward that has begun does not train
_frozen_in: dict[int, list[frozenset]] = {}  # ... and each step, by turn


def _tell_what_is_frozen_later(turn: int) -> None:
    """A plan has one set of parameters that train."""
    each = _frozen_in.get(turn, [])
    other = [i + 1 for i, frozen in enumerate(each) if frozen != each[0]]
    if other:
        changed = frozenset().union(*(each[i - 1] ^ each[0] for i in other))
        note(
            f"what trains changes from step to step ({len(changed)} parameters, {min(changed)} among them, in watched step {', '.join(map(str, other))}): a plan has one set, so its memory, "
            "gathers and reductions are those of no step. For the beginning, watch one step (--steps 1); for what comes later, start the script with those parameters frozen"
        )  # fmt: skip


def finish() -> None:
    """What only the end knows, and the models as files: that of the first turn last."""
    _plain["runs"] = True  # what runs from now on is a copy
    for turn in range(turns.count() - 1, -1, -1) or (0,):
        if turns.count():
            turns.end_at(turn)
        if _found is None:
            continue
        _finish(turn)
        _tell_what_is_frozen_later(turn)
        _found.pop("watched", None)
        if _found["model"] is None:
            model.forget_steps(_found)
        elif turn:
            _found["model"] = model.name_by_turn(_found["model"], turn)
        _settings.insert(0, _found)


def _tell_optimizers(turn: int, roots_optimizers: list) -> None:
    root, first = _root(), _optimizer_of_step() if _optimizer_of_step is not None else None
    _found["optimizer"]["states"] = options.states(first)
    rows = {} if "in_backward" in _found["optimizer"]["impl"] else memory.found([first, *(each for each in roots_optimizers if each is not first)])
    _found["watched"] = [row for _, row in rows.values()]
    _found["optimizer"]["watched"] = rows.get(id(first), ("",))[0]
    others, _found["waiting"] = ([], []) if "in_backward" in _found["optimizer"]["impl"] else turns.parts(root, first, roots_optimizers)
    _found["others"] = [options.of(each) | {"states": options.states(each), "params": names_, "watched": rows.get(id(each), ("",))[0]} for each, names_ in others]
    if first is not None and not others and _found["optimizer"]["impl"] == "foreach" and not _found["optimizer"]["watched"]:
        own = {"states": options.states(first), "watched": ""}
        _found["others"] = [options.of(first, group) | own | {"params": names_} for group, names_ in turns.groups(root, first)]


def _finish(turn: int) -> None:
    if _found["alone"] and _first_call.get("sequence"):
        note("nothing shards or replicates this model: the job is one of the ranks that share its sequences, whose gradients are summed by the script itself, or by nobody")
    elif _found["alone"] and tensor_plan.ranks(_root()) == 1:
        note("nothing shards this model: the job is one rank's; with --set fsdp.runtime=fsdp2 --set cluster.world_size=8 its plan is sharded (fsdp.wrap says how)")
    passes = steps.micro_batches_of_last_step(turn)
    _found["micro_batches"] = len(passes)
    _found["no_sync"] = len(passes) > 1 and [each.reduces for each in passes] == [False] * (len(passes) - 1) + [True]
    if _found["runtime"] == "fsdp2":
        _found["backwards"] = [units.switches_by_name(_found["units"], each.switches) for each in passes]
    _found["zero_grad"] = _zero_grad()
    _found["once"] = script_step.shared(steps.asides_of_steps(turn))
    stepped = _optimizers_of(_root(), turn)
    _tell_optimizers(turn, stepped)
    kept = memory.kept(stepped) if _found["watched"] else set()
    total, later = beside.found(_root(), script_step.given_storages(), stepped, kept, _gradients.get("behind", {}))
    _found["beside"], _found["beside_later"] = total - later, later
    _found["allocator"] = allocator.settings()
    _found["clip"] = _clip or 0.0
    _found["scaler"] = _scaler
    done = turns.steps_of(turn)
    _found["checkpointed"] = {name: row | {"calls": row["calls"] // (done * len(passes))} for name, row in _checkpointed.items()}
    _found["loss"] = loss.found()
    _found["keeps_outputs"], _found["keeps_returned"] = loss.kept(), loss.kept_returned()
    own_parts.tell_flat(_found["units"])
    if not own_parts.stand_alone(_root()):
        note("experts' rows that the script's own code sends to other ranks, beside layers that are cut over tensor ranks: not planned")
        _found["model"] = None
        return
    if not own_parts.exchanges() and (cut := tensor_plan.found(_root())) is not None:
        _found["tensor"] = tensor_plan.gathered_by_the_loss(cut) if script_step.gathers_outputs() else cut
        if _found["alone"]:
            _found["tensor"]["ranks"] = tensor_plan.ranks(_root())
    if _found["runtime"] == "fsdp2" and (narrow := float8.found(_root())) is not None:
        _found["float8"] = narrow
    if _first_call.get("sequence"):
        _found["sequence"] = _first_call["sequence"]
    if not own_parts.exchanges() and (reason := tensor_plan.why_not(_root())) is not None:
        note(reason)
        _found["model"] = None
        return
    if _first_call.get("sequence") and (apart := own_parts.ranks_beside(_found) // tensor_plan.ranks(_root())) > 1 and not _found["alone"]:
        note(f"FSDP or DDP has one of {apart} ranks that share a sequence in its group, and the script sums their gradients itself, or nobody does: not planned "
             "(a group of both dimensions is, mesh[\"data\", \"context\"]._flatten())")  # fmt: skip
        _found["model"] = None
        return
    if _plain.get("parts"):
        note("DDP replicates a model whose layers lie over tensor ranks: not planned (fully_shard over a mesh of both dimensions is)")
        _found["model"] = None
        return
    import torch

    try:
        with torch.inference_mode(False), torch.enable_grad():  # the step that ends may end before an evaluation
            _found["model"] = model.write(_root(), _found, _first_call)
    except Exception as error:  # the figures stand without it
        if os.environ.get("FORESHARD_SHADOW_DEBUG"):
            traceback.print_exc()
        note(f"the model could not be written down: {type(error).__name__}: {error}")
        _found["model"] = None
