"""Optimizers of one's own, one that is called as PyTorch's is; batches that nobody holds behind the call, a carry that each step replaces; batch norms in
FSDP1's units; a frozen teacher whose parameters FSDP1 has made flat; logits of a micro-batch that are still named in the next one; a root that casts what it
returns; rows that labels choose."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Shard, distribute_tensor

KEPT = ("mixed", "grad", "hook", "constructed", "attribute", "raising", "several")


class Block(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(256, 512)

    def forward(self, x, carry=None):
        x = x if carry is None else x + carry
        for block in self.blocks:
            x = block(x)
        return self.head(x), x.detach()


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(64 if i else 3, 64, 3, padding=1) for i in range(4))
        self.norms, self.blocks = nn.ModuleList(nn.BatchNorm2d(64) for _ in range(4)), nn.ModuleList([Block(64)])

    def forward(self, x):
        for convolution, norm in zip(self.convolutions, self.norms):
            x = F.relu(norm(convolution(x)))
        return self.blocks[0](x.mean((2, 3))).float().square().mean()


class Muon(torch.optim.Optimizer):
    """Called as PyTorch's: gathers nothing, keeps one state and a low-rank one, steps with two temporaries."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state, gradient = self.state[p], p.grad.to_local()
                if not state:
                    state["momentum"], state["rows"] = torch.zeros_like(gradient), gradient.new_zeros(gradient.shape[0])
                state["rows"] = state["rows"] * 0.9 + gradient.flatten(1).square().mean(1) if gradient.dim() > 1 else state["rows"]
                state["momentum"].lerp_(gradient, 0.1)
                p.to_local().add_(gradient.lerp(state["momentum"], 0.9).tanh(), alpha=-group["lr"])


class Kept(torch.optim.Optimizer):
    """Keeps a moment for each parameter, and more by `kind`."""

    def __init__(self, params, kind):
        super().__init__(params, {"lr": 1e-3})
        self.kind, self.beside, self.raises = kind, {}, kind == "raising"
        for p in self.param_groups[0]["params"] if kind == "constructed" else ():
            self.state[p]["moment"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.beside.setdefault(p, {}) if self.kind == "attribute" else self.state[p]
            if "moment" not in state:
                state["moment"] = torch.zeros_like(p)
            if self.kind == "mixed":  # in place, and another each step
                state["scale"] = p.to_local().norm(2)
            if self.kind == "grad":
                p.grad = p.grad * 2
            if self.kind == "hook":  # what the loop clears between steps
                p.update = p.grad.to_local().tanh()
            if self.raises and len(self.state) == 2:
                self.raises = False
                raise FloatingPointError("not a number")
            state["moment"].lerp_(p.grad, 0.1)
            p.add_(state["moment"], alpha=-1e-3)


class Held(torch.optim.Optimizer):
    """Steps others, of a part of the parameters each; `slow`: and keeps averages of its own."""

    def __init__(self, parts, slow):
        self.inside = [torch.optim.AdamW(part.parameters(), 1e-4) for part in parts]
        super().__init__([p for each in self.inside for group in each.param_groups for p in group["params"]], {})
        self.slow = slow

    @torch.no_grad()
    def step(self):
        for each in self.inside:
            each.step()
        for p in self.param_groups[0]["params"] if self.slow else ():
            self.state[p].setdefault("slow", torch.zeros_like(p)).lerp_(p, 0.1)


def sharded(model, output=None):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model.to("cuda"), mp_policy=MixedPrecisionPolicy(policy.param_dtype, policy.reduce_dtype, output))


def flat(model, **options):
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=half, device_id=torch.cuda.current_device(), **options)


def own(args):
    model = sharded(Net())
    optimizer = Muon(model.parameters())
    carry = torch.zeros(4096, 256, device="cuda", dtype=torch.bfloat16)
    for _ in range(10):
        out, carry = model(torch.randn(4096, 256).cuda(), carry)
        F.cross_entropy(out.float(), torch.randint(0, 512, (4096,)).cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()


def kept(args):
    model = nn.Sequential(*(Block(512) for _ in range(3)))
    for block in model:
        fully_shard(block)
    parts = [fully_shard(model.cuda())] if args.loop != "several" else [model[0], model[1:]]
    optimizers = [Kept(part.parameters(), args.loop) for part in parts]
    for _ in range(10):
        model(torch.randn(16, 512).cuda()).square().mean().backward()
        try:
            for each in optimizers:
                each.step()
        except FloatingPointError:
            print("raised, history", torch._C._cuda_isHistoryEnabled())
        for p in model.parameters():
            p.grad = p.update = None


def held(args):
    model = sharded(Net())
    optimizer, kept = Held([model.blocks, model.head], slow=args.loop == "slow"), []
    optimizer.register_step_post_hook(lambda *_: kept.append(torch.ones(1, device="cuda")) if len(kept) < 2 else None)  # the script's, of no step
    for _ in range(10):
        model(torch.randn(4096, 256).cuda())[0].square().mean().backward()
        optimizer.step()
        optimizer.inside[0].zero_grad()
        optimizer.inside[1].zero_grad()


def inside(args):
    """Each parameter is stepped where its gradient is made."""
    model = sharded(Net())
    optimizers = {p: torch.optim.AdamW([p], 1e-4) for p in model.parameters()}

    def hook(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(hook)
    for _ in range(10):
        model(torch.randn(4096, 256).cuda())[0].square().mean().backward()


def bare(args):
    """Parts of a mesh that no module has."""
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    weight = nn.Parameter(distribute_tensor(nn.Parameter(torch.randn(512, 512, device="cuda")), mesh, [Shard(0)]))
    optimizer = Kept([weight], "mixed")
    for _ in range(10):
        weight.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def norms(args):
    model = flat(Normed(), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(10):
        model(torch.randn(16, 3, 64, 64).cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()


def teacher(args):
    model, taught = flat(Net(), use_orig_params=True), flat(Net().requires_grad_(False), use_orig_params=False).eval()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    for _ in range(10):
        x = torch.randn(2048, 256).cuda()
        with torch.no_grad():
            wanted = taught(x)[0]
        F.kl_div(model(x)[0].float().log_softmax(-1), wanted.float().softmax(-1), reduction="batchmean").backward()
        optimizer.step()
        optimizer.zero_grad()


def scaled(model, x):
    logits = model(x)[0] / 0.7
    return logits, logits.float().log_softmax(-1)[:, 0]


def micro(args):
    model = sharded(Net())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(10):
        for _ in range(2):
            logits, chosen = scaled(model, torch.randn(4096, 256).cuda())
            (-chosen.mean() / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def returned(args):
    """The root alone casts what the model returns."""
    model = sharded(Net(), output=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(10):
        logits, _ = model(torch.randn(4096, 256).cuda())
        F.cross_entropy(logits, torch.randint(0, 512, (4096,)).cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()


def labelled(args):
    """Rows that labels choose, whose values the host gave the device; targets' lengths that CTC reads there."""
    model = sharded(Net())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    labels, letters = torch.full((4096,), -100), torch.full((8, 20), -100)
    labels[:1000], letters[:, :12] = 3, 5
    for _ in range(10):
        logits, _ = model(torch.randn(4096, 256).cuda())
        of_device, kept = labels.cuda(), letters.cuda() >= 0
        loss = F.cross_entropy(logits[of_device != -100].float(), of_device[of_device != -100])
        chances = logits.float().log_softmax(-1).view(8, 512, 512).transpose(0, 1)
        with torch.backends.cudnn.flags(enabled=False):
            spoken = F.ctc_loss(chances, letters.cuda().masked_select(kept), torch.full((8,), 512), kept.sum(-1))
        (loss + spoken).backward()
        optimizer.step()
        optimizer.zero_grad()


def transformed(args):
    """Derivatives forward (MeanFlow): PyTorch's FSDP2 has no room for tensors of torch.func, and says so."""
    model = sharded(Net(), output=torch.float32)
    x = torch.randn(64, 256).cuda()
    torch.func.jvp(lambda x: model(x)[0], (x,), (torch.ones_like(x),))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("loop", choices=("own", "norms", "teacher", "micro", "returned", "labelled", "transformed", "bare", "held", "slow", "inside", *KEPT))
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    arguments = parser.parse_args()
    loops = {"own": own, "norms": norms, "teacher": teacher, "micro": micro, "returned": returned, "labelled": labelled, "transformed": transformed, "bare": bare}
    loops |= {"held": held, "slow": held, "inside": inside}
    loops.get(arguments.loop, kept)(arguments)
