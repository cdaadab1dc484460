"""What training scripts put around a model, drawn at random and done to it: the practice half of `record_truth.py`.

Adapters (PEFT's own), frozen and ignored parts, recomputation by layers and operators, other optimizers and ones in backward,
gradient scalers, replicas, offload. The words are those of the rows of oracle/practice; `frozen`, `ignored` and
`grad_scaler` are this file's.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import importlib.util

# ------------------------------------------------------------------------------------------------------------- drawing


def modules_by_leaf(module):
    """Linear layers by the last part of their names; names that mean another class too are left out."""
    from torch import nn

    found, others = {}, set()
    for name, m in module.named_modules():
        leaf = name.rpartition(".")[2]
        if type(m) is nn.Linear:
            found.setdefault(leaf, []).append(name)
        else:
            others.add(leaf)
    return {leaf: names for leaf, names in found.items() if leaf not in others}


def drawn_adapters(draw, module, version, low):
    leaves = sorted(modules_by_leaf(module))
    if not leaves:
        return None
    others = sorted({name.rpartition(".")[2] for name, m in module.named_modules() if name and any(True for _ in m.parameters(recurse=False))} - set(leaves) - {str(k) for k in range(10)})
    targets = draw.choice([draw.sample(leaves, min(len(leaves), draw.choice((1, 2, 3)))), leaves, "all-linear"])
    copies = draw.sample(others, 1) if others and draw.random() < 0.25 else None  # they would take the adapters' dtype
    return {
        "modules_to_save": copies, "r": draw.choice((2, 4, 8, 16)), "alpha": 16, "targets": targets, "dropout": draw.choice((0.0, 0.0, 0.05)),
        "adapter_dtype": draw.choice(("float32", "bfloat16")) if version == 2 and low and not copies else "float32",
    }  # fmt: skip


def drawn_recomputation(draw, wrap, version):
    mode = draw.choice(("full", "layer", "op", "op", "op"))
    made = {"mode": mode, "classes": wrap, "impl": "NO_REENTRANT"}
    if mode == "layer":
        made["every"] = draw.choice((2, 3))
    elif mode == "op":
        made["save"] = draw.choice(("titan", "titan", ["aten.mm", "aten.addmm"], ["aten._scaled_dot_product_flash_attention"],
                                    ["aten.mm", "aten.mul.Tensor"], ["aten.silu"], ["aten.bmm", "aten.addmm", "aten.convolution"]))  # fmt: skip
        made["mm_every"] = draw.choice((0, 2, 2, 3))
    elif draw.random() < 0.3:
        made["impl"] = "REENTRANT"
    if version == 1 and mode != "layer" and draw.random() < 0.25:
        made["placement"] = "outside"
    return made


def drawn_optimizer(draw, version):
    kind = draw.choice(("other", "other", "in_backward", "adafactor")) if version == 2 else draw.choice(("other", "other", "adafactor"))
    if kind == "in_backward":
        return {"name": draw.choice(("AdamW", "SGD")), "foreach": draw.random() < 0.5, "in_backward": True}
    if kind == "adafactor" and version == 1:
        return {"name": "transformers.Adafactor", "relative_step": False, "scale_parameter": False, "warmup_init": False}
    made = dict(draw.choice((
        {"name": "Adagrad"}, {"name": "RMSprop"}, {"name": "RMSprop", "momentum": 0.9}, {"name": "RMSprop", "centered": True},
        {"name": "NAdam"}, {"name": "RAdam"}, {"name": "Adamax"},
    )))  # fmt: skip
    return made | {"foreach": draw.random() < 0.6, "weight_decay": draw.choice((0.0, 0.0, 0.01))}


def drawn_part(draw, module):
    """Patterns of parameters: a child of the root, or every module of one name."""
    names = [name for name, m in module.named_modules() if name and any(True for _ in m.parameters())]
    name = draw.choice(names)
    patterns = [f"{name.split('.')[0]}.*", f"*.{name.rpartition('.')[2]}.*", f"{name}.*"]
    return [draw.choice([one for one in patterns if 0 < len(matching(module, [one])) < len(matching(module, ["*"]))] or [f"{name}.*"])]


def drawn_practice(draw, c, case, module, settings):
    """`settings` with one or two of these features. FSDP1 mixes frozen and trained parameters with original ones alone."""
    low = c["precision"] != "float32"
    parts = any(name and any(True for _ in m.parameters()) for name, m in module.named_modules())  # else there is nothing to freeze
    kinds = ["lora", "lora", "sac", "sac", "optimizer", "hybrid", "offload", "frozen", "frozen", "scaler"] + ["offloading"] * bool(importlib.util.find_spec("trl")) + ([] if low else ["ignored"])
    chosen = {draw.choice(kinds)} | ({draw.choice(kinds)} if draw.random() < 0.4 else set())
    chosen -= ({"sac"} if not case.wrap else set()) | ({"frozen", "ignored"} if not parts else set())
    if "lora" in chosen:
        settings["lora"] = drawn_adapters(draw, module, c["version"], low)
        chosen -= {"frozen", "ignored"}
        if settings["lora"] and c["version"] == 1 and not low and draw.random() < 0.4:
            settings["peft_policy"] = True
    if "sac" in chosen:
        settings["activation_checkpointing"] = drawn_recomputation(draw, case.wrap, c["version"])
    if "optimizer" in chosen:
        settings["optimizer"] = drawn_optimizer(draw, c["version"])
        if settings["optimizer"].get("in_backward"):
            settings["clip"] = None
    if "hybrid" in chosen:
        settings["fsdp_mesh"] = [2, 4]
        settings["strategy"] = draw.choice(("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"))
        if settings.get("reshard_after_forward") == 4:
            settings["reshard_after_forward"] = 2
        if settings["no_sync"] and c["version"] == 2 and draw.random() < 0.5:
            settings["no_sync"] = "all_reduce_only"
    if "offload" in chosen:
        settings |= {"cpu_offload": True, "clip": None}
    if "frozen" in chosen:
        settings["frozen"] = drawn_part(draw, module)
    if "ignored" in chosen:
        settings["ignored"] = drawn_part(draw, module)
        if c["version"] == 2:  # lists of tensors beside DTensors are refused
            settings |= {"clip": None, "optimizer": settings["optimizer"] | {"foreach": False, "fused": False}}
    if c["version"] == 2 and draw.random() < 0.3:
        settings[draw.choice(("forward_prefetch_depth", "backward_prefetch_depth"))] = draw.choice((1, 2, 3))
    if c["version"] == 2 and draw.random() < 0.15:
        settings["root_reshard_after_forward"] = True
    if c["version"] == 2 and settings["grad_accum"] > 1 and draw.random() < 0.2:
        settings["keep_unsharded_between_micro_batches"] = True
    if "offloading" in chosen:
        settings["activation_offloading"] = True
        settings.get("activation_checkpointing", {}).pop("impl", None)
    if "scaler" in chosen and not settings["optimizer"].get("in_backward"):
        settings["grad_scaler"] = True
    if settings.get("lora") or settings.get("frozen"):
        settings["use_orig_params"] = True
    return settings


# --------------------------------------------------------------------------------------------------- done to the module


def adapted(module, given):
    """PEFT's wrapper around a plain module on the meta device; its adapters in the row's dtype."""
    import torch
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=given["r"], lora_alpha=given["alpha"], target_modules=given["targets"], lora_dropout=given["dropout"], bias="none",
                        modules_to_save=given.get("modules_to_save"))  # fmt: skip
    with torch.device("meta"):
        module = get_peft_model(module, config, autocast_adapter_dtype=False)
    for p in module.parameters():
        if p.requires_grad:
            p.data = p.data.to(getattr(torch, given["adapter_dtype"]))
    return module


def matching(module, patterns):
    return [p for name, p in module.named_parameters(remove_duplicate=False) if any(fnmatch.fnmatchcase(name, one) for one in patterns or [])]


def ignored_modules(module, patterns):
    """Modules all of whose parameters the patterns name: what FSDP1 is told."""
    named = {id(p) for p in matching(module, patterns)}
    whole = [m for m in module.modules() if any(True for _ in m.parameters()) and all(id(p) in named for p in m.parameters())]
    inner = {id(x) for m in whole for x in m.modules() if x is not m}
    return [m for m in whole if id(m) not in inner]


def materialise(module, device):
    for m in module.modules():
        m.to_empty(device=device, recurse=False) if any(p.is_meta for p in m.parameters(recurse=False)) else None


def peft_policy(module, classes):
    """PEFT's: the blocks, and every trainable leaf as a unit of its own."""
    import os

    from peft.utils.other import fsdp_auto_wrap_policy

    os.environ["FSDP_TRANSFORMER_CLS_TO_WRAP"] = ",".join(classes)
    return fsdp_auto_wrap_policy(module)


def titan_save_list():
    """torchtitan's list of operators whose results op-level selective checkpointing keeps."""
    import torch

    names = ("mm", "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention",
             "_scaled_dot_product_attention_math", "_scaled_dot_product_fused_attention_overrideable", "max")  # fmt: skip
    kept = {getattr(torch.ops.aten, name).default for name in names}
    return kept | {torch.ops._c10d_functional.reduce_scatter_tensor.default}


def operator_named(text):
    import torch

    space, name, *overload = text.split(".")
    return getattr(getattr(getattr(torch.ops, space), name), overload[0] if overload else "default")


def op_contexts(save, mm_every):
    """Every mm_every-th matrix product runs again, counted apart in forward and recomputation, as in torchtitan."""
    import torch
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    count = {False: 0, True: 0}

    def policy(ctx, op, *args, **kw):
        if op == torch.ops.aten.mm.default:
            count[ctx.is_recompute] += 1
            if mm_every and count[ctx.is_recompute] % mm_every == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.MUST_SAVE if op in save else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def recompute(root, given, unit_class=None):
    """`given` is a row's activation_checkpointing; "outside": around FSDP1's own modules."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, apply_activation_checkpointing, checkpoint_wrapper

    kw = {"checkpoint_impl": CheckpointImpl[given.get("impl", "NO_REENTRANT")]}
    mode = given.get("mode", "full")
    if mode == "op":
        save = titan_save_list() if given["save"] == "titan" else {operator_named(text) for text in given["save"]}
        kw["context_fn"] = functools.partial(op_contexts, save, given["mm_every"])
    outside = given.get("placement") == "outside"
    blocks = [m for m in root.modules() if (isinstance(m, unit_class) and m is not root if outside else type(m).__name__ in given["classes"])]
    if mode == "layer":
        blocks = blocks[given["every"] - 1 :: given["every"]]
    chosen = {id(m) for m in blocks}
    apply_activation_checkpointing(root, checkpoint_wrapper_fn=functools.partial(checkpoint_wrapper, **kw), check_fn=lambda m: id(m) in chosen)


# ------------------------------------------------------------------------------------------------------------ training


class InBackward:
    """One optimizer per parameter, stepped by a hook as soon as the gradient is accumulated."""

    def __init__(self, kind, params, given):
        self.each = {p: kind([p], lr=1e-4, **given) for p in params}
        for p in self.each:
            p.register_post_accumulate_grad_hook(self.hook)

    def hook(self, p):
        self.each[p].step()
        self.each[p].zero_grad(set_to_none=True)

    def step(self):
        pass

    def zero_grad(self, set_to_none=True):
        for one in self.each.values():
            one.zero_grad(set_to_none=set_to_none)


def optimizer_of(module, given):
    import torch

    given = dict(given)
    name = given.pop("name")
    trained = [p for p in module.parameters() if p.requires_grad]
    if name == "transformers.Adafactor":
        from transformers.optimization import Adafactor as kind
    else:
        kind = getattr(torch.optim, name)
    if given.pop("in_backward", False):
        return InBackward(kind, trained, given)
    return kind(trained, lr=1e-4, **given)


def scaler_of(config, version):
    """None: the loss as it is."""
    if not config.get("grad_scaler"):
        return None
    from torch.amp import GradScaler
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    return ShardedGradScaler() if version == 1 else GradScaler("cuda")


def offloading(module, config):
    """TRL's, made before the module is wrapped: what it enters and leaves around forward and backward."""
    if not config.get("activation_offloading"):
        return contextlib.nullcontext()
    from trl.models.activation_offloading import get_act_offloading_ctx_manager

    return get_act_offloading_ctx_manager(module, warn_if_no_head=False)


def set_prefetches(units, fsdp):
    """FSDP2's lists along the units in their order of registration."""
    for key, name in (("forward_prefetch_depth", "set_modules_to_forward_prefetch"), ("backward_prefetch_depth", "set_modules_to_backward_prefetch")):
        depth = fsdp.get(key, 0)
        for i, unit in enumerate(units if depth else []):
            ahead = units[i + 1 : i + 1 + depth] if key.startswith("forward") else units[max(0, i - depth) : i][::-1]
            getattr(unit, name)(ahead)


def held_gradients(version, config, module, micro):
    """No reduction before the last micro-batch, if the job says so."""
    last = micro + 1 == config["grad_accum"]
    if config["fsdp"].get("keep_unsharded_between_micro_batches"):
        module.set_reshard_after_backward(last)
    if not config.get("no_sync"):
        return contextlib.nullcontext()
    if version == 1:
        return contextlib.nullcontext() if last else module.no_sync()
    if config["no_sync"] == "all_reduce_only":
        module.set_requires_all_reduce(last)
    else:
        module.set_requires_gradient_sync(last)
    return contextlib.nullcontext()
