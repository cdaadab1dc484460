"""Records what PyTorch's gradient scalers do in float16 on two gloo ranks: losses and scales of eight steps, some of which
overflow on both ranks or on one alone, and the parameters after them. The model is that of ../toy.py. Run with
torch 2.11: python record.py, which writes recorded.json."""
import json, os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.utils import clip_grad_norm_

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from toy import ROWS, SIZE, Toy, numbers

STEPS, LR, RANKS = 8, 0.05, 2
SCALER = dict(init_scale=8192.0, growth_interval=2)


CASES = {
    "fsdp1 foreach": (1, dict(foreach=True), 0.0),
    "fsdp1 foreach clipped": (1, dict(foreach=True), 0.5),
    "fsdp2 foreach": (2, dict(foreach=True), 0.0),
    "fsdp2 fused clipped": (2, dict(fused=True), 0.5),
}


def sharded(runtime):
    model = Toy()
    if runtime == 1:
        options = dict(use_orig_params=True, device_id=torch.device("cpu"),
                       mixed_precision=MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16))
        for name in "abc":
            setattr(model, name, FSDP(getattr(model, name), **options))
        return FSDP(model, **options), ShardedGradScaler("cpu", **SCALER)
    policy = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float16)
    mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS,))
    for name in "abc":
        fully_shard(getattr(model, name), mp_policy=policy, mesh=mesh)
    return fully_shard(model, mp_policy=policy, mesh=mesh), torch.amp.GradScaler("cpu", **SCALER)


def train(rank, runtime, impl, clip):
    model, scaler = sharded(runtime)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1, **impl)
    losses, scales = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        x = numbers(ROWS * SIZE, 100 + 10 * rank + step).view(ROWS, SIZE)
        if rank == 1 and step == 4:
            x = x * 16
        out = model(x.half())
        loss = out.float().sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if clip:
            model.clip_grad_norm_(clip) if runtime == 1 else clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    if runtime == 1:
        with FSDP.summon_full_params(model):
            params = [p.detach().double().flatten().tolist() for p in model.parameters()]
    else:
        params = [p.full_tensor().detach().double().flatten().tolist() for p in model.parameters()]
    every = [None] * RANKS
    dist.all_gather_object(every, losses)
    state = scaler.state_dict()
    return {"losses": every, "scales": scales, "growth_tracker": state["_growth_tracker"], "params": params}


def main(rank, out):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29641")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    results = {name: train(rank, *case) for name, case in CASES.items()}
    if rank == 0:
        with open(out, "w") as file:
            json.dump(results, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    path = sys.argv[1] if len(sys.argv) > 1 else "recorded.json"
    mp.spawn(main, args=(path,), nprocs=RANKS)
