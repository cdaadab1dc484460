"""Experts over ranks that tensor parallelism cuts the rest over: what the shared recorder has no case for.

    RECORDER_DIR=shared/oracle/practice expert_tensor.py --cases CASES.jsonl
    RECORDER_DIR=shared/oracle/practice expert_tensor.py --grid CASES.jsonl --out ROWS.jsonl [--logs DIR]
    RECORDER_DIR=shared/oracle/practice expert_tensor.py --train MODELS_DIR TRAINING_DIR OUT.jsonl     (4 CPU ranks, as train_practice.py)

As torchtitan's moe_sharding.py has it (sequence parallelism on): tokens stay cut along the sequence between a block's norm and its residual sum, the router's
weights are whole on every rank, experts lie on ranks side by side whatever dimension of the rest's mesh those are, FSDP shards them over the others.
"""
import json
import os
import sys

sys.path.insert(0, os.environ["RECORDER_DIR"])
import recorder  # noqa: E402

recorder.__file__ = os.path.abspath(__file__)  # children run this file
import parallel  # noqa: E402

MODEL = {"class": "TitanLlama", "config": {"model_type": "titan_llama", "dim": 512, "n_layers": 4, "n_heads": 8, "n_kv_heads": 4, "ffn": 1408, "vocab_size": 8192,
                                           "max_seq": 2048, "moe": {"experts": 8, "top_k": 2, "ffn": 704, "capacity": 1.0}}}


class Dimensions(dict):
    """Meshes by name, flattened ones too."""

    def __init__(self, root, subs):
        super().__init__(subs)
        self.root = root

    def __getitem__(self, name):  # or a pair: replicated over the first
        return super().__getitem__(name) if isinstance(name, str) else self.root[tuple(name)]

    def __missing__(self, name):
        return self.root[name]


make_mesh, apply_tp = parallel.make_mesh, parallel.apply_tp


def mesh_with_flattened(dims, device="cuda"):
    root, subs = make_mesh(dims, device)
    return root, Dimensions(root, subs)


def apply_tp_around_experts(model, mesh, t):
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import PrepareModuleInput, SequenceParallel, parallelize_module
    apply_tp(model, mesh, t)
    for block in model.layers.values():
        if hasattr(block, "moe"):
            same = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Shard(1),), use_local_output=True)
            parallelize_module(block, mesh, {"moe": same, "moe.gate": SequenceParallel(sequence_dim=0, use_local_output=True)})


parallel.make_mesh, parallel.apply_tp = mesh_with_flattened, apply_tp_around_experts


def case(name, mesh, flatten, experts, **more):
    fsdp = {"wrap": ["TransformerBlock"], "version": 2, "mesh_dims": more.pop("mesh_dims", ["dp"]), "flatten": flatten, "experts": experts,
            "mixed_precision": {"param_dtype": "bfloat16", "reduce_dtype": "float32"}, **more.pop("fsdp", {})}
    world = 1
    for _, size in mesh:
        world *= size
    return {"id": name, "kind": "ep_tp", "model": more.pop("model", MODEL), "world_size": world, "batch": 2, "seq": 512, "fsdp": fsdp, "mesh": mesh,
            "tp": {"plan": "titan", "sequence_parallel": True, "loss_parallel": True, **more.pop("tp", {})}, "ep": {"mesh": "ep"}, "loss": "ce_flat",
            **more}


def cases():
    wide = [["dp_mod_ep", 2], ["dp_in_ep", 2], ["tp", 2]]
    over_both = {"dp": ["dp_mod_ep", "dp_in_ep"], "ep": ["dp_in_ep", "tp"]}
    # experts over the tensor ranks themselves: another group of the same ranks, as torchtitan's sparse mesh makes it
    same, anew = [["dp", 4], ["one", 1], ["tp", 2]], {"ep": ["one", "tp"], "edp": ["dp", "one"]}
    inner = [["dp", 2], ["tp_mod_ep", 2], ["ep", 2]]
    inside = {"tp": ["tp_mod_ep", "ep"], "edp": ["dp", "tp_mod_ep"]}
    full = {"classes": ["TransformerBlock"], "mode": "full"}
    titan = {"classes": ["TransformerBlock"], "mode": "op", "save": "titan", "mm_every": 2}
    every_other = json.loads(json.dumps(MODEL))
    every_other["config"]["moe"]["every"] = 2
    loop = {"name": "AdamW", "lr": 0.0001, "foreach": False}
    yield case("et0", wide, over_both, "dp_mod_ep", keep_log=True)
    yield case("et1", wide, over_both, "dp_mod_ep", activation_checkpointing=full, rank=5, fsdp={"expert_divide_factor": 4})
    yield case("et2", same, anew, "edp", optimizer=loop, rank=3)
    yield case("et3", inner, inside, "edp", rank=6, activation_checkpointing=titan)
    yield case("et4", wide, over_both, "dp_mod_ep", tp={"loss_parallel": False}, fsdp={"expert_shard_dim": 1, "expert_divide_factor": 4}, model=every_other)
    yield case("et5", wide, over_both, "dp_mod_ep", clip=1.0, optimizer=loop, fsdp={"expert_divide_factor": 4, "clip_by_mesh": True})
    yield case("et6", same, anew, "edp", clip=1.0, fsdp={"clip_by_mesh": True, "expert_divide_factor": 4})
    yield case("et7", [["dp", 2], ["one", 1], ["tp", 4]], anew, "edp", batch=1, grad_accum=2, no_sync=True, rank=2)
    yield case("et8", [["dp_replicate", 2], ["dp_mod_ep", 2], ["dp_in_ep", 2], ["tp", 2]], over_both, ["dp_replicate", "dp_mod_ep"],
               mesh_dims=["dp_replicate", "dp"], rank=11, kind="ep_hsdp_tp", fsdp={"expert_divide_factor": 8})
    yield case("et9", [["dp_shard", 2], ["cp", 2], ["tp", 2]], {"dp": ["dp_shard", "cp"], "ep": ["cp", "tp"]}, "dp_shard", cp={"rotate": "allgather"}, rank=6,
               kind="ep_cp_tp", activation_checkpointing=full, fsdp={"expert_divide_factor": 4})


def training():
    settings = {"model": "moe_tiny", "how": "fsdp2", "world": 4, "model_parallel": 2, "mesh_dims": ["dp"],
                "tp": {"plan": "titan", "sequence_parallel": True, "loss_parallel": False}}
    yield {"id": "moe_tiny/ep-tp/fsdp2-dp2-tp2-ep4", "mesh": [["dp_mod_ep", 1], ["dp_in_ep", 2], ["tp", 2]],
           "flatten": {"dp": ["dp_mod_ep", "dp_in_ep"], "ep": ["dp_in_ep", "tp"]}, "ep": {"shard_mesh": "dp_mod_ep", "divide_factor": 2}, **settings}
    yield {"id": "moe_tiny/ep-tp/fsdp2-dp2-tp2-ep2", "mesh": [["dp", 2], ["one", 1], ["tp", 2]], "flatten": {"ep": ["one", "tp"], "edp": ["dp", "one"]},
           "ep": {"shard_mesh": "edp"}, **settings}


def train(models, folder, out):
    import tempfile
    import train_practice
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as spec:
        spec.writelines(json.dumps({**train_practice.DEFAULT, **row}) + "\n" for row in training())
        spec.flush()
        sys.argv[1:] = ["run", models, folder, spec.name, out]
        train_practice.main()


if __name__ == "__main__":
    if "--train" in sys.argv:
        sys.exit(train(*sys.argv[-3:]))
    if "--cases" in sys.argv:
        with open(sys.argv[sys.argv.index("--cases") + 1], "w") as out:
            for row in cases():
                out.write(json.dumps(row) + "\n")
    else:
        recorder.main()
