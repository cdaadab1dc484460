"""Records what PyTorch's compressing hooks do in FSDP1: losses of three SGD steps on each of two gloo ranks, and the
parameters after them. The model is that of ../toy.py. Run with torch 2.11: python record.py > recorded.json"""
import json, os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.distributed.algorithms._comm_hooks.default_hooks import LowPrecisionState, bf16_compress_hook, fp16_compress_hook
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from toy import ROWS, SIZE, Toy, numbers

STEPS, LR, RANKS = 3, 0.05, 2
LOW = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


CASES = {
    "none": (None, "FULL_SHARD", None),
    "fp16_compress": (fp16_compress_hook, "FULL_SHARD", None),
    "bf16_compress": (bf16_compress_hook, "FULL_SHARD", None),
    "fp16_compress NO_SHARD": (fp16_compress_hook, "NO_SHARD", None),
    "bf16_compress of bf16": (bf16_compress_hook, "SHARD_GRAD_OP", LOW),
}


def train(rank, hook, strategy, precision):
    options = dict(use_orig_params=True, device_id=torch.device("cpu"), sharding_strategy=ShardingStrategy[strategy],
                   mixed_precision=precision)
    model = Toy()
    for name in "abc":
        setattr(model, name, FSDP(getattr(model, name), **options))
    model = FSDP(model, **options)
    if hook is not None:
        model.register_comm_hook(LowPrecisionState(dist.group.WORLD), hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        out = model(numbers(ROWS * SIZE, 100 + 10 * rank + step).view(ROWS, SIZE))
        loss = out.float().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with FSDP.summon_full_params(model):
        params = [p.detach().double().flatten().tolist() for p in model.parameters()]
    every = [None] * RANKS
    dist.all_gather_object(every, losses)
    return {"losses": every, "params": params}


def main(rank):
    torch.Tensor.record_stream = lambda tensor, stream: None  # CPUs have none, and the hooks do not ask
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    recorded = {name: train(rank, *case) for name, case in CASES.items()}
    if rank == 0:
        print(json.dumps(recorded))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29618")
    mp.spawn(main, nprocs=RANKS)
