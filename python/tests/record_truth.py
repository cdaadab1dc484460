#!/usr/bin/env python3
"""Trains the models of `tests/models` with real PyTorch FSDP on the virtual GPU and writes rows of kind `captured`.

    record_truth.py OUT.jsonl [--only NAME,...] [--lib libfakegpu.so]      --only: also of what is drawn
    record_truth.py OUT.jsonl --card            on the card of this machine: is the virtual one like it?
    record_truth.py OUT.jsonl --draw SEED ROWS  models and settings that nobody chose
    record_truth.py OUT.jsonl --practice SEED ROWS  the same with adapters, frozen parts, offload, ... (record_practice.py)

A row is one of oracle/gpu_memory's: configuration, bytes after wrapping, statistics of three steps and their phases.
cuDNN is switched off: the virtual device has none. On a card the other ranks are PyTorch's own "fake" group, whose
collectives move nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import sys
import time
import traceback

import record_practice

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
STATS = ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes", "inactive_split_bytes")
COUNTS = (
    "segment.all.current", "segment.large_pool.current", "segment.small_pool.current", "num_alloc_retries", "num_ooms",
    "num_device_alloc", "num_device_free", "allocation.all.allocated",
)  # fmt: skip

SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def configurations(name, case):
    precisions = case.options.get("precisions", ["bfloat16"])
    meshes = case.options.get("meshes")
    for version in case.options.get("versions", (1, 2)):
        for precision in precisions:
            for recompute in (False, True) if case.options.get("recompute") and precision == precisions[0] else (False,):
                for tag in meshes or (None,):
                    words = [name, f"fsdp{version}", SHORT[precision], recompute and "ckpt", tag]
                    yield {
                        "id": "-".join(filter(None, words)),
                        "case": name,
                        "precision": precision,
                        "version": version,
                        "recompute": recompute,
                        "mesh": tag,
                        "clock": {"FAKEGPU_TIME": "lazy"},  # as main has set it
                    }


def drawn_settings(draw, version):
    """What a job's script sets, at random."""
    accumulated = draw.choice((1, 1, 2, 3))
    settings = {
        "clip": draw.choice((None, None, 1.0)),
        "grad_accum": accumulated,
        "no_sync": accumulated > 1 and draw.random() < 0.5,
        "optimizer": draw.choice((
            {"name": "AdamW", "foreach": True}, {"name": "AdamW", "fused": True}, {"name": "AdamW", "foreach": False},
            {"name": "SGD", "foreach": True, "momentum": 0.9}, {"name": "SGD", "foreach": True},
        )),
        "mixed": draw.choice(("float32", "low")),
    }  # fmt: skip
    if version == 2:
        return settings | {"reshard_after_forward": draw.choice((True, True, False, 4))}
    return settings | {
        "strategy": draw.choice(("FULL_SHARD", "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")),
        "backward_prefetch": draw.choice(("BACKWARD_PRE", "BACKWARD_POST", None)),
        "forward_prefetch": draw.random() < 0.3, "limit_all_gathers": draw.random() < 0.7,
        "use_orig_params": draw.random() < 0.5,
    }  # fmt: skip


def drawn(cases, seed, count):
    draw = random.Random(seed)
    plain = [name for name, case in cases.items() if not case.options.get("meshes")]
    for number in range(count):
        name = draw.choice(plain)
        every = list(configurations(name, cases[name]))
        c = draw.choice(every)
        settings = drawn_settings(draw, c["version"])
        if cases[name].options.get("orig_params"):
            settings["use_orig_params"] = True
        yield c | {"id": f"{c['id']}-drawn-{seed}-{number}", "drawn": settings}


def practised(cases, seed, count):
    """Drawn rows with what scripts put around a model."""
    import torch

    draw = random.Random(seed)
    plain = [name for name, case in cases.items() if not case.options.get("meshes")]
    for number in range(count):
        case = cases[name := draw.choice(plain)]
        c = draw.choice([one for one in configurations(name, case) if not one["recompute"]])
        if c["precision"] == "bfloat16" and draw.random() < 0.2:
            c |= {"precision": "float16", "id": c["id"].replace("bf16", "fp16")}
        with torch.device("meta"):
            module = case.make()
        settings = record_practice.drawn_practice(draw, c, case, module, drawn_settings(draw, c["version"]))
        if case.options.get("orig_params"):
            settings["use_orig_params"] = True
        yield c | {"id": f"{c['id']}-practice-{seed}-{number}", "drawn": settings}


def row_config(c, case):
    """The configuration in the words of oracle/gpu_memory."""
    config = chosen_config(c, case)
    settings = c.get("drawn")
    if not settings:
        return config
    for key in ("clip", "grad_accum", "no_sync", "optimizer", "lora", "activation_checkpointing", "frozen", "ignored", "grad_scaler",
                "activation_offloading"):  # fmt: skip
        if settings.get(key) is not None:
            config[key] = settings[key]
    fsdp = config["fsdp"]
    for key in (*fsdp, "cpu_offload", "peft_policy", "forward_prefetch_depth", "backward_prefetch_depth", "root_reshard_after_forward",
                "keep_unsharded_between_micro_batches"):  # fmt: skip
        if key in settings:
            fsdp[key] = settings[key]
    if settings.get("fsdp_mesh"):
        fsdp["mesh"] = settings["fsdp_mesh"]
    if fsdp["mixed_precision"] and settings["mixed"] == "float32":
        fsdp["mixed_precision"]["reduce_dtype"] = "float32"
    return config


def chosen_config(c, case):
    mixed = {"param_dtype": c["precision"]} if c["precision"] != "float32" else None
    if mixed and c["version"] == 1:
        mixed |= {"reduce_dtype": c["precision"], "buffer_dtype": c["precision"]}
    fsdp = {"version": c["version"], "wrap": case.wrap, "mixed_precision": mixed}
    cut = case.options["meshes"][c["mesh"]] if c["mesh"] else None
    if cut:
        fsdp |= {"mesh_dims": ["dp"]}
    if c["version"] == 1:
        fsdp |= {
            "strategy": "FULL_SHARD", "backward_prefetch": "BACKWARD_PRE", "forward_prefetch": False,
            "limit_all_gathers": True, "use_orig_params": bool(cut or case.options.get("orig_params")), "cpu_offload": False,
        }  # fmt: skip
    else:
        fsdp |= {"reshard_after_forward": True}
    return {
        "world_size": 8, "rank": 0, "gpus_per_node": 8, "steps": 3, "param_dtype": "float32", "clip": None,
        "grad_accum": 1, "init": "meta", "optimizer": {"name": "AdamW", "foreach": True}, "fsdp": fsdp,
        "precision": c["precision"],
    } | (
        {"mesh": [["dp", 8 // cut["tensor"]], ["tp", cut["tensor"]]],
         "tp": {"plan": cut["plan"], "sequence_parallel": cut.get("sequence", False), "loss_parallel": cut.get("loss", False)}}
        if cut else {}
    ) | ({"activation_checkpointing": {"classes": case.wrap, "impl": "NO_REENTRANT"}} if c["recompute"] else {})  # fmt: skip


def statistics(torch):
    s = torch.cuda.memory_stats()
    out = {k: {"current": s[f"{k}.all.current"], "peak": s[f"{k}.all.peak"]} for k in STATS}
    return out | {k: s.get(k, 0) for k in COUNTS}


def style(module, word, sequence, loss):
    """What torch.distributed.tensor.parallel calls a word of mesh.plan; None: it does nothing here."""
    from torch import nn
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel

    along = Shard(1) if sequence else Replicate()
    table = isinstance(module, nn.Embedding)
    if word == "colwise":
        return ColwiseParallel(input_layouts=None if table else along)
    if word == "rowwise":
        return RowwiseParallel(input_layouts=Replicate() if table else None, output_layouts=along)
    if word == "head":
        return ColwiseParallel(input_layouts=along, output_layouts=Shard(-1) if loss else Replicate(), use_local_output=not loss)
    if word == "sequence":
        return SequenceParallel() if sequence else None
    if word == "gather":
        import inspect

        count = len(inspect.signature(module.forward).parameters)
        rest = (None,) * (count - 1)
        given = {"input_layouts": (along, *rest), "desired_input_layouts": (Replicate(), *rest)}
        return PrepareModuleInput(**given) if sequence else None
    raise ValueError(f"no style is called {word}")


def cut_module(module, mesh, tp):
    """The patterns of the plan in its order, the last that matches a module says how it is cut."""
    import fnmatch

    from torch.distributed.tensor.parallel import parallelize_module

    words = {}
    for pattern, word in tp["plan"].items():
        words |= {name: word for name, _ in module.named_modules() if fnmatch.fnmatchcase(name, pattern)}
    inside = {name for name, word in words.items() if word == "gather"}
    for name, word in words.items():
        part = module.get_submodule(name)
        gathered = any(name.startswith(outer + ".") for outer in inside)
        if made := style(part, word, tp["sequence_parallel"] and not (gathered and word == "colwise"), tp["loss_parallel"]):
            parallelize_module(part, mesh, made)


def materialiser(torch):
    """A param_init_fn: tied parameters stay tied."""
    memo = {}

    def init(m):
        for k, p in list(m._parameters.items()):
            if p is not None and p.is_meta:
                if p not in memo:
                    memo[p] = torch.nn.Parameter(torch.empty_like(p, device="cuda"), requires_grad=p.requires_grad)
                m._parameters[k] = memo[p]
        for k, b in list(m._buffers.items()):
            if b is not None and b.is_meta:
                m._buffers[k] = torch.empty_like(b, device="cuda")

    return init


def wrap1(torch, module, case, config, mesh=None):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    fsdp, recomputation = config["fsdp"], config.get("activation_checkpointing")
    init, ignored = materialiser(torch), record_practice.ignored_modules(module, config.get("ignored"))
    for m in (x for one in ignored for x in one.modules()):
        init(m)
    classes = {type(m) for m in module.modules() if type(m).__name__ in case.wrap}
    mixed = fsdp["mixed_precision"]
    if mesh is not None:  # parameters are DTensors, which the script materialises itself
        module.to_empty(device="cuda")
        init = None
    if fsdp.get("mesh"):
        mesh = init_device_mesh("cuda", tuple(fsdp["mesh"]), mesh_dim_names=("replicate", "shard"))
    wrapped = FullyShardedDataParallel(
        module,
        sharding_strategy=ShardingStrategy[fsdp["strategy"]],
        auto_wrap_policy=record_practice.peft_policy(module, fsdp["wrap"]) if fsdp.get("peft_policy") else ModuleWrapPolicy(classes),
        backward_prefetch=BackwardPrefetch[fsdp["backward_prefetch"]] if fsdp["backward_prefetch"] else None,
        forward_prefetch=fsdp["forward_prefetch"],
        limit_all_gathers=fsdp["limit_all_gathers"],
        use_orig_params=fsdp["use_orig_params"],
        device_id=torch.cuda.current_device(),
        param_init_fn=init,
        device_mesh=mesh,
        ignored_modules=ignored or None,
        cpu_offload=CPUOffload(offload_params=True) if fsdp["cpu_offload"] else None,
        mixed_precision=MixedPrecision(**{k: getattr(torch, v) for k, v in mixed.items()}) if mixed else None,
    )
    if recomputation:
        record_practice.recompute(wrapped, recomputation, FullyShardedDataParallel)
    return wrapped


def wrap2(torch, module, case, config, mesh=None):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    fsdp, recomputation = config["fsdp"], config.get("activation_checkpointing")
    if mesh is None:
        shape = tuple(fsdp.get("mesh") or (8,))
        mesh = init_device_mesh("cuda", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    kw = {"mesh": mesh}
    if config.get("ignored"):
        kw["ignored_params"] = set(record_practice.matching(module, config["ignored"]))
    if fsdp.get("cpu_offload"):
        kw["offload_policy"] = CPUOffloadPolicy()
    if fsdp["mixed_precision"]:
        kw["mp_policy"] = MixedPrecisionPolicy(
            **{k: getattr(torch, v) for k, v in fsdp["mixed_precision"].items()}
        )
    if recomputation:
        record_practice.recompute(module, recomputation)
    inner = {id(m._checkpoint_wrapped_module) for m in module.modules() if hasattr(m, "_checkpoint_wrapped_module")}
    units = [m for m in module.modules() if type(getattr(m, "_checkpoint_wrapped_module", m)).__name__ in case.wrap and id(m) not in inner]
    for m in units:
        fully_shard(m, reshard_after_forward=fsdp["reshard_after_forward"], **kw)
    if "root_reshard_after_forward" in fsdp:
        kw["reshard_after_forward"] = fsdp["root_reshard_after_forward"]
    fully_shard(module, **kw)
    record_practice.set_prefetches(units, fsdp)
    module.to_empty(device="cpu" if fsdp.get("cpu_offload") else "cuda")
    if fsdp.get("cpu_offload"):
        for m in module.modules():
            m._buffers |= {k: b.to("cuda") for k, b in m._buffers.items() if b is not None}
    return module


class Card:
    """What the virtual device tells of itself, of a real one."""

    def __init__(self, torch):
        self.torch = torch

    def fakegpu_host_ns(self):
        return time.perf_counter_ns()

    def fakegpu_device_used(self, _):
        free, whole = self.torch.cuda.mem_get_info()
        return whole - free

    fakegpu_device_peak = fakegpu_device_used


def shim():
    lib = ctypes.CDLL(None)
    for name in ("fakegpu_host_ns", "fakegpu_device_used", "fakegpu_device_peak"):
        getattr(lib, name).restype = ctypes.c_longlong
    return lib


def run(c):
    import gc

    os.environ |= {"TORCH_NCCL_ENABLE_MONITORING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "LOCAL_RANK": "0"}
    import torch
    import torch.distributed as dist

    sys.path.insert(0, HERE)
    import models

    case = models.load()[c["case"]]
    config = row_config(c, case)
    torch.set_num_threads(1)
    torch.cuda.set_device(0)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.enabled = False
    if c.get("card"):
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    else:
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=8)
    with torch.device("meta"):
        module = case.make()
    if config.get("lora"):
        module = record_practice.adapted(module, config["lora"])
    for p in record_practice.matching(module, config.get("frozen")):
        p.requires_grad_(False)
    count = sum(p.numel() for p in module.parameters())
    mesh, together = None, contextlib.nullcontext
    if config.get("mesh"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import loss_parallel

        names, sizes = zip(*config["mesh"])
        root = init_device_mesh("cuda", sizes, mesh_dim_names=names)
        cut_module(module, root["tp"], config["tp"])
        mesh = root["dp"]
        together = loss_parallel if config["tp"]["loss_parallel"] else together
    offloading = record_practice.offloading(module, config)
    module = (wrap1 if c["version"] == 1 else wrap2)(torch, module, case, config, mesh)
    optimizer, scaler = record_practice.optimizer_of(module, config["optimizer"]), record_practice.scaler_of(config, c["version"])
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    after = statistics(torch)
    gc.disable()
    steps, device = [], Card(torch) if c.get("card") else shim()
    for number in range(config["steps"]):
        phases = []

        def phase(name):
            phases.append({"phase": name, **statistics(torch)})
            torch.cuda.reset_peak_memory_stats()

        torch.cuda.reset_peak_memory_stats()
        began = device.fakegpu_host_ns()
        for micro in range(config["grad_accum"]):
            batch = case.batch("cuda")
            with offloading, together(), record_practice.held_gradients(c["version"], config, module, micro):
                out = case.forward(module, *batch)
                loss = out[0] if isinstance(out, tuple) else out
                if case.options.get("inner"):  # the engine's thread lets go of a graph some moments after it has answered
                    time.sleep(0.05)
                phase("forward")
                (scaler.scale(loss) if scaler else loss).backward()
                phase("backward")
            del loss, out, batch
        if config["clip"]:
            if scaler:
                scaler.unscale_(optimizer)
            if c["version"] == 1:
                module.clip_grad_norm_(config["clip"])
            else:
                torch.nn.utils.clip_grad_norm_(module.parameters(), config["clip"])
            if not scaler:
                phase("clip")
        scaler.step(optimizer) if scaler else optimizer.step()
        if scaler:
            scaler.update()
        phase("optimizer")
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        phase("end")
        total = {"step": number, "virtual_ms": (device.fakegpu_host_ns() - began) / 1e6}
        for k in STATS:
            total[k + ".peak"] = max(p[k]["peak"] for p in phases)
            total[k + ".end"] = phases[-1][k]["current"]
        for k in COUNTS:
            total[k] = phases[-1][k]
        total["device_used"], total["device_peak"] = device.fakegpu_device_used(0), device.fakegpu_device_peak(0)
        total["phases"] = [{"phase": p["phase"], **{k: [p[k]["current"], p[k]["peak"]] for k in STATS}} for p in phases]
        steps.append(total)
        gc.collect()
    return {
        "id": c["id"], "config": config, "clock": c["clock"],
        "result": {"n_params": count, "after_init": {k: after[k]["current"] for k in STATS}, "steps": steps},
        "versions": {"torch": torch.__version__},
    }  # fmt: skip


def recorded(c):
    """A row, made by a child: what it does to the device and to PyTorch goes with it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            text = json.dumps(run(c), separators=(",", ":"))
        except BaseException:  # noqa: BLE001 - told by the parent
            text = "FAILED: " + traceback.format_exc()[-1500:]
        with open(writer, "w") as file:
            file.write(text)
        os._exit(0)
    os.close(writer)
    with open(reader) as file:
        text = file.read()
    os.waitpid(child, 0)
    return text or "FAILED: it ended without a word"


def record(out, only, card, draw, practice):
    import torch  # noqa: F401 - once for all children

    sys.path.insert(0, HERE)
    import models

    done = set()
    with contextlib.suppress(FileNotFoundError), open(out) as file:
        done = {json.loads(line)["id"] for line in file}
    cases = {name: case for name, case in models.load().items() if not only or name in only}
    every = (c for name, case in cases.items() for c in configurations(name, case))
    if draw:
        every = drawn(cases, *draw)
    if practice:
        every = practised(cases, *practice)
    for c in every:
        if c["id"] in done:
            continue
        text = recorded(c | {"card": card})
        if text.startswith("{"):
            with open(out, "a") as file:
                file.write(text + "\n")
        print(c["id"], "recorded" if text.startswith("{") else text, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--only", default="")
    parser.add_argument("--lib", default=os.path.join(ROOT, "build", "release", "lib", "libfakegpu.so"))
    parser.add_argument("--card", action="store_true")
    parser.add_argument("--draw", nargs=2, type=int, metavar=("SEED", "ROWS"))
    parser.add_argument("--practice", nargs=2, type=int, metavar=("SEED", "ROWS"))
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    if options.card:
        return record(options.out, only, True, options.draw, options.practice)
    libs = " ".join((options.lib, os.path.join(os.path.dirname(options.lib), "libfakenvrtc.so")))
    if os.environ.get("LD_PRELOAD") != libs:
        os.execve(sys.executable, [sys.executable, *sys.argv],
                  dict(os.environ, LD_PRELOAD=libs, FAKEGPU_DEVICES="8", FAKEGPU_TIME="lazy"))  # fmt: skip
    record(options.out, only, False, options.draw, options.practice)


if __name__ == "__main__":
    main()
