"""Blocks cut over tensor ranks around experts that lie on the same ranks: each tensor rank sorts and sends its own tokens. --cut: the experts lie on
data ranks, and the tensor ranks cut the matrices of each."""

import argparse
import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor import parallel as tp

parser = argparse.ArgumentParser()
parser.add_argument("--cut", action="store_true")
args = parser.parse_args()
SEQ, DIM, EXPERTS, CHOSEN, WORDS, ALIGNED = 256, 256, 8, 2, 2000, 8


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(DIM, EXPERTS, bias=False)

    def forward(self, x):
        return torch.sigmoid(self.gate(x).float()).topk(CHOSEN, dim=-1, sorted=False)


class Order(nn.Module):
    def forward(self, scores, choice):
        counts = torch.histc(choice.view(-1), bins=EXPERTS, min=0, max=EXPERTS)
        places = torch.argsort(choice.view(-1), stable=True)
        return scores.view(-1)[places], places, counts


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Parameter(torch.empty(EXPERTS, DIM, 2 * DIM)), nn.Parameter(torch.empty(EXPERTS, 2 * DIM, DIM))

    def forward(self, x, counts):
        if not isinstance(self.up, DTensor):  # nobody else has made room for whole tiles
            x = torch.cat([x, x.new_zeros(EXPERTS * ALIGNED, DIM)])
        up, down = (each.to_local() if isinstance(each, DTensor) else each for each in (self.up, self.down))
        ends = counts.cumsum(0, dtype=torch.int32)
        return torch._grouped_mm(F.silu(torch._grouped_mm(x.bfloat16(), up.bfloat16(), offs=ends)), down.bfloat16(), offs=ends)


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.order, self.experts = Router(), Order(), Experts()

    def forward(self, given):
        x = given.view(-1, DIM)
        scores, choice = self.router(x)
        scores, places, counts = self.order(scores, choice)
        made = self.experts((x[places // CHOSEN].float() * scores.view(-1, 1)).to(x.dtype), counts)
        back = torch.zeros(len(x) * CHOSEN, DIM, dtype=made.dtype, device=made.device)
        back[places] = made[: len(places)]
        return back.view(-1, CHOSEN, DIM).sum(dim=1).view(given.shape)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(DIM), nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(4 * DIM, DIM, bias=False)
        self.norm2, self.mixture = nn.RMSNorm(DIM), Mixture()

    def forward(self, x):
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return x + self.mixture(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(WORDS, DIM), nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.RMSNorm(DIM), nn.Linear(DIM, WORDS, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Whole(tp.ParallelStyle):
    """Computed on every rank with whole tensors."""

    def _apply(self, module, mesh):
        def enter(layout, module, inputs, mesh):
            return DTensor.from_local(inputs[0], mesh, [layout], run_check=False)

        def leave(layouts, local, module, outputs, mesh):
            return outputs.to_local()

        return distribute_module(module, mesh, None, functools.partial(enter, Replicate()), functools.partial(leave, (Replicate(),), True))


class OwnRows(tp.ParallelStyle):
    def _apply(self, module, mesh):
        def enter(module, inputs, mesh):
            return tuple(x.chunk(mesh.size())[mesh.get_local_rank()] for x in inputs)

        def leave(module, outputs, mesh):
            scores, places, counts = outputs
            return scores, places + len(scores) * mesh.get_local_rank(), counts

        return distribute_module(module, mesh, None, enter, leave)


class Exchanged(tp.ParallelStyle):
    def _apply(self, module, mesh):
        kept = {}

        def part(name, module, mesh):
            for key, value in list(module.named_parameters(recurse=False)):
                matrices = [Shard(2 if key == "up" else 1)] if args.cut else []
                module.register_parameter(key, nn.Parameter(distribute_tensor(value, mesh, [Shard(0), *matrices])))

        def enter(module, inputs, mesh):
            rows, counts = inputs
            if args.cut:
                rows = DTensor.from_local(rows, mesh["tensor"], (Replicate(),)).to_local(grad_placements=(Partial(),))
                mesh = mesh["experts"]
            with torch.no_grad():
                theirs = torch.ops._c10d_functional.wait_tensor(all_to_all_single(counts, None, None, group=mesh.get_group()))
                sent = counts.view(mesh.size(), -1).sum(dim=1).to("cpu", non_blocking=True)
                received = theirs.view(mesh.size(), -1).sum(dim=1).to("cpu")
                kept["sent"], kept["received"] = sent.tolist(), received.tolist()
            rows = all_to_all_single_autograd(rows, kept["received"], kept["sent"], mesh.get_group())
            own = EXPERTS // mesh.size()
            padded = (len(rows) + own * ALIGNED + ALIGNED - 1) // ALIGNED * ALIGNED
            kept["order"] = torch.zeros(padded, dtype=torch.int32, device=rows.device)
            kept["shape"] = (len(rows) + 1, DIM)
            return torch.vstack((rows, rows.new_zeros(DIM)))[kept["order"]], theirs.view(mesh.size(), -1).sum(dim=0)

        def leave(module, outputs, mesh):
            mesh = mesh["experts"] if args.cut else mesh
            rows = outputs.new_empty(kept["shape"])
            rows[kept["order"]] = outputs
            return all_to_all_single_autograd(rows[:-1], kept["sent"], kept["received"], mesh.get_group())

        return distribute_module(module, mesh, part, enter, leave)


def cut(model, tensor, experts):
    model_plan = {"embed": tp.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": tp.SequenceParallel(),
                  "head": tp.ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())}  # fmt: skip
    tp.parallelize_module(model, tensor, model_plan)
    for block in model.blocks:
        summed = tp.PrepareModuleInputOutput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_input=True,
                                             output_layouts=(Partial(),), desired_output_layouts=(Shard(1),))  # fmt: skip
        plan = {"norm": tp.SequenceParallel(), "norm2": tp.SequenceParallel(), "up": tp.ColwiseParallel(input_layouts=Shard(1)),
                "down": tp.RowwiseParallel(output_layouts=Shard(1)), "mixture": summed, "mixture.router.gate": Whole()}  # fmt: skip
        plan |= {} if args.cut else {"mixture.order": OwnRows()}
        tp.parallelize_module(block, tensor, plan)
        tp.parallelize_module(block.mixture.experts, experts, Exchanged())


dist.init_process_group("nccl")
torch.cuda.set_device(0)
shared = "experts" if args.cut else "shared"
mesh = init_device_mesh("cuda", (dist.get_world_size() // (4 if args.cut else 2), 2 if args.cut else 1, 2), mesh_dim_names=("rest", shared, "tensor"))
with torch.device("meta"):
    model = Model()
cut(model, mesh["tensor"], mesh["experts", "tensor"] if args.cut else mesh["shared", "tensor"]._flatten("experts"))
half = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
for block in model.blocks:
    fully_shard(block.mixture.experts, mesh=mesh["rest"], mp_policy=half)
    fully_shard(block, mesh=mesh["rest", shared]._flatten("data"), mp_policy=half)
fully_shard(model, mesh=mesh["rest", shared]._flatten("data"), mp_policy=half)
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(4):
    tokens, labels = (torch.randint(0, WORDS, (2, SEQ), device="cuda") for _ in range(2))
    loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), labels.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
