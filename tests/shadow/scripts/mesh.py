"""Decoders on a mesh: sequences that ranks share, by context_parallel() or by hooks on attention; blocks cut over tensor ranks and recomputed by
operator, by styles that stand in the modules' forwards; rows exchanged by counts that the device has; experts on ranks; replicas; weights tied again."""

import argparse
import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental import _attention as ring
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

parser = argparse.ArgumentParser()
parser.add_argument("--context", choices=["buffers", "modules"])
parser.add_argument("--over", choices=["all", "rest", "none"], default="all")  # what shards: all ranks, those with other sequences, nothing
parser.add_argument("--tensor", action="store_true")
parser.add_argument("--forwards", action="store_true")
parser.add_argument("--logits", choices=["whole", "gathered"], default="whole")  # of tensor ranks: as they come out, or by the loss
parser.add_argument("--norms", action="store_true")  # norms gather what they hand on
parser.add_argument("--split", action="store_true")  # the first block cuts what the embedding hands on whole
parser.add_argument("--exchange", action="store_true")
parser.add_argument("--experts", action="store_true")
parser.add_argument("--replicate", action="store_true")
parser.add_argument("--tie", action="store_true")
parser.add_argument("--offload", action="store_true")
args = parser.parse_args()
SEQ, DIM, HEADS, WORDS = 512, 256, 4, 4000


def keep(context, operator, *rest, **options):
    kept = {torch.ops.aten._scaled_dot_product_flash_attention.default, torch.ops._c10d_functional.reduce_scatter_tensor.default}
    return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE


class Attend(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Experts(nn.Module):
    """The first one alone works: who has which is what counts here."""

    def __init__(self):
        super().__init__()
        self.stacked = nn.Parameter(torch.empty(4, DIM, DIM))

    def forward(self, rows):
        own = self.stacked.to_local() if hasattr(self.stacked, "to_local") else self.stacked
        return rows @ own[0]


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, y):
        return self.down(F.silu(self.gate(y)) * self.up(y))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.q, self.k, self.v = nn.RMSNorm(DIM), *(nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.attend, self.o = Attend(), nn.Linear(DIM, DIM, bias=False)
        self.experts = Experts() if args.experts else None
        self.heads = nn.RMSNorm(DIM // HEADS) if args.forwards else nn.Identity()
        self.gated = Gated() if args.norms else None
        self.norm2, self.up, self.down = nn.RMSNorm(DIM), nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x, table):
        x = x + self.attention(self.norm(x), table)
        return x + self.feed(self.norm2(x))

    def attention(self, y, table):
        b, t, _ = y.shape
        q, k, v = ((each(y).view(b, t, -1, DIM // HEADS) * table[None, :t, None].to(y.dtype)).transpose(1, 2) for each in (self.q, self.k, self.v))
        q = self.heads(q)
        return self.o(self.attend(q, k, v).reshape(b, -1, t, DIM // HEADS).transpose(1, 2).reshape(b, t, -1))

    def feed(self, y):
        if args.norms:
            return self.gated(y)
        if args.experts:
            y = y + self.experts(y)
        if args.exchange:
            rows = y.flatten(0, 1)
            counts = torch.bincount(rows.sum(-1).long() % dist.get_world_size(), minlength=dist.get_world_size()).tolist()  # chosen by no function that is known
            there = all_to_all_single_autograd(rows, input_split_sizes=counts, output_split_sizes=counts, group=dist.group.WORLD)
            back = all_to_all_single_autograd(there, counts, counts, dist.group.WORLD)
            y = back.view(y.shape)
        return self.down(F.gelu(self.up(y)))


class Model(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(WORDS, DIM), nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(DIM, WORDS, bias=False)
        self.register_buffer("table", torch.ones(SEQ, DIM // HEADS), persistent=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            if args.tensor:
                x = checkpoint(block, x, self.table, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(keep))
            else:
                x = block(x, self.table)
        return self.head(x)


def cut(model, mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module

    plan = {"embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())}
    if args.logits == "gathered":
        plan["head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)
    if args.split:
        plan["embed"] = RowwiseParallel(input_layouts=Replicate())
        plan["blocks.0"] = PrepareModuleInput(input_layouts=(Replicate(), None), desired_input_layouts=(Shard(1), None), use_local_output=True)
    class Gathering(SequenceParallel):
        @staticmethod
        def _prepare_output_fn(use_local_output, module, outputs, mesh):
            return outputs.redistribute(placements=[Replicate()])

    for i in range(len(model.blocks)):
        plan |= {f"blocks.{i}.{name}": SequenceParallel() for name in ("norm", "norm2")}
        plan |= {f"blocks.{i}.{name}": ColwiseParallel(input_layouts=Shard(1)) for name in ("q", "k", "v", "up")}
        plan |= {f"blocks.{i}.{name}": RowwiseParallel(output_layouts=Shard(1)) for name in ("o", "down")}
        if args.norms:
            plan |= {f"blocks.{i}.norm2": Gathering(), f"blocks.{i}.gated.gate": ColwiseParallel(), f"blocks.{i}.gated.up": ColwiseParallel()}
            plan |= {f"blocks.{i}.gated.down": RowwiseParallel(output_layouts=Shard(1))}
    parallelize_module(model, mesh, plan)


class Style:
    """In a module's forward, as Transformers' are."""

    def __init__(self, dim, given, output_layouts, use_local_output=True):
        self.dim, self.given, self.output_layouts, self.use_local_output = dim, given, output_layouts, use_local_output

    def around(self, module, mesh):
        from torch.distributed.tensor import DTensor, distribute_tensor
        from torch.distributed.tensor.placement_types import _StridedShard

        placement = Shard(self.dim) if module.out_features != 4 * DIM else _StridedShard(self.dim, split_factor=2)
        module.weight = nn.Parameter(distribute_tensor(module.weight, mesh, [placement], src_data_rank=None))
        whole = module.forward

        def forward(x):
            x = DTensor.from_local(x, mesh, [self.given], run_check=False)
            with local_weight(module) if module.out_features == 4 * DIM else contextlib.nullcontext():
                out = whole(x.to_local(grad_placements=[Partial()]) if module.out_features == 4 * DIM else x)
            out = out if isinstance(out, DTensor) else DTensor.from_local(out, mesh, [self.output_layouts], run_check=False)
            return out.redistribute(placements=[self.output_layouts]).to_local()

        module.forward = forward


@contextlib.contextmanager
def local_weight(module):
    weight = module._parameters.pop("weight")
    module.weight = weight.to_local()
    try:
        yield
    finally:
        del module.weight
        module._parameters["weight"] = weight


def summed(module, mesh):
    """Gradients of its weights, where autograd makes them."""
    whole, known = module.forward, []

    def forward(x):
        if module.weight is not (known[0] if known else None):
            known[:] = [module.weight]
            module.weight.register_post_accumulate_grad_hook(lambda weight: dist.all_reduce(weight.grad, group=mesh.get_group()))
        return whole(x)

    module.forward = forward


def cut_in_forwards(model, mesh):
    column, row = Style(0, Replicate(), Shard(-1)), Style(1, Shard(-1), Replicate())
    for block in model.blocks:
        for layer in (block.q, block.k, block.v, block.up):
            column.around(layer, mesh)
        row.around(block.o, mesh)
        row.around(block.down, mesh)
        summed(block.heads, mesh)
    Style(0, Replicate(), Replicate()).around(model.head, mesh)


dist.init_process_group("nccl")
torch.cuda.set_device(0)
world = dist.get_world_size()
with torch.device("meta"):
    model = Model()
half = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
places = {"mp_policy": half, "offload_policy": CPUOffloadPolicy() if args.offload else OffloadPolicy()}
shared = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("rest", "shared"))
if args.replicate:
    from torch.distributed._composable.replicate import replicate

    model.to_empty(device="cuda")
    replicate(model, bucket_cap_mb=100)
else:
    if args.tensor:
        cut(model, shared["shared"])
        places["mesh"] = shared["rest"]
    if args.forwards:
        cut_in_forwards(model, shared["shared"])
        places["mesh"] = shared["rest"]
    if args.experts:
        from torch.distributed.tensor import distribute_tensor

        for block in model.blocks:
            block.experts.stacked = nn.Parameter(distribute_tensor(block.experts.stacked, shared["shared"], [Shard(0)]))
            fully_shard(block.experts, **places, mesh=shared["rest"])
    if args.context == "modules":
        ring._enable_context_parallel_dispatcher()
        for block in model.blocks:
            ring._ContextParallel(seq_dim=2, attention_type=ring._ContextParallel.AttentionType.SDPA)._apply(block.attend, shared["shared"])
    if args.over == "rest":
        places["mesh"] = shared["rest"]
    for part in (model.embed, *model.blocks, model.head) if args.over != "none" else ():
        fully_shard(part, **places)
    if args.over != "none":
        fully_shard(model, **places)
    model.to_empty(device="cpu" if args.offload else "cuda")
    if args.tie:
        model.head.weight = model.embed.weight
    if args.offload:
        model.table = model.table.cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(4):
    tokens = torch.randint(0, WORDS, (2, SEQ), device="cuda")
    labels = torch.randint(0, WORDS, (2, SEQ), device="cuda")

    def train(tokens, labels):
        with torch.autocast("cuda", torch.bfloat16, enabled=args.over == "none"):  # flash attention, which has a ring
            out = model(tokens)
        logits = out.flatten(0, 1).float()
        if args.logits == "gathered":
            logits = logits.full_tensor()
        loss = F.cross_entropy(logits, labels.flatten())
        loss.backward()

    if args.context == "buffers":
        with context_parallel(shared["shared"], buffers=[tokens, labels, model.table], buffer_seq_dims=[1, 1, 0]):
            train(tokens, labels)
    elif args.context == "modules":
        balancer = ring._HeadTailLoadBalancer(SEQ, 2, "cuda")
        train(*ring._context_parallel_shard(shared["shared"], [tokens, labels], [1, 1], balancer))
    else:
        train(tokens, labels)
    for p in model.parameters() if args.over == "none" else ():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=shared["shared"].get_group())
    optimizer.step()
    optimizer.zero_grad()
