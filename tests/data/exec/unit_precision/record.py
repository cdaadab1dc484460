"""Records what PyTorch does where units have a precision of their own: losses of three SGD steps and the parameters after
them, on one gloo rank. Run with torch 2.11: python record.py > recorded.json"""
import json, os, sys, torch, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, MixedPrecisionPolicy, fully_shard

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from toy import ROWS, SIZE, Toy, numbers

STEPS, LR = 3, 0.05
B, F = torch.bfloat16, torch.float32


def fsdp2(root, a, b, c):
    model = Toy()
    for name, policy in (("a", a), ("b", b), ("c", c)):
        fully_shard(getattr(model, name), mp_policy=MixedPrecisionPolicy(reduce_dtype=F, **policy))
    fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=F, **root))
    return model


def fsdp1(root, a, b, c):
    model = Toy()
    for name, policy in (("a", a), ("b", b), ("c", c)):
        setattr(model, name, FSDP(getattr(model, name), mixed_precision=MixedPrecision(reduce_dtype=F, **policy),
                                  use_orig_params=True, device_id=torch.device("cpu")))
    return FSDP(model, mixed_precision=MixedPrecision(reduce_dtype=F, **root), use_orig_params=True,
                device_id=torch.device("cpu"))


LOW, HIGH = {"param_dtype": B}, {"param_dtype": F}
CAST = {"cast_forward_inputs": True}
CASES = {
    "fsdp2 b high": (fsdp2, LOW, LOW, HIGH, LOW),
    "fsdp2 b high, a gives float32": (fsdp2, LOW, LOW | {"output_dtype": F}, HIGH, LOW),
    "fsdp2 b high, the root casts nothing": (fsdp2, LOW | {"cast_forward_inputs": False}, LOW, HIGH, LOW),
    "fsdp2 all low": (fsdp2, LOW, LOW, LOW, LOW),
    "fsdp1 b high": (fsdp1, LOW, LOW, HIGH | CAST, LOW | CAST),
    "fsdp1 all low": (fsdp1, LOW, LOW, LOW, LOW),
}


def train(make, *policies):
    model = make(*policies)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        out = model(numbers(ROWS * SIZE, 100 + step).view(ROWS, SIZE))
        loss = out.float().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return {"losses": losses, "params": [p.detach().double().flatten().tolist() for p in full]}


os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29617")
dist.init_process_group("gloo", rank=0, world_size=1)
print(json.dumps({name: train(*case) for name, case in CASES.items()}))
dist.destroy_process_group()
