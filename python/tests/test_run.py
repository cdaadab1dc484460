"""Captured modules trained by `foreshard run`: the losses are PyTorch's from the same weights and batches.

FORESHARD names the program, which starts foreshard-exec beside it; without both there is nothing to test (77: skipped).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]

PROGRAM = os.environ.get("FORESHARD", "")
STEPS, ROWS = 3, 2  # rows of a rank's batch
JOB = ["train.optimizer.lr=0.001", "train.clip_grad_norm=1.0", "fsdp.mixed_precision.param=none"]
# In one rank: statistics of a batch, and losses between its rows, are a rank's own.
ALONE = ("resnet_fp32", "unet", "two_towers", "written_in_place", "masked_words")
CASES = ("nanogpt", "meta_llama_checkpoint", "lstm", "gru", "resnet_fp32", "dlrm", "vit", "encoder_decoder", "written_in_place", "molecules", "masked_words", "sloped", "handed", "rounds", "video_windows")
# (Models that draw noise in their forward have losses of their own: PyTorch's random numbers are others.)
# (masked_encoder has positions for whole sequences only; these run on the first tokens.)
# What nobody can run without what only Python has.
REFUSED = {"custom_autograd": "opaque"}


def quiet(module):
    """Without random numbers, which are PyTorch's own."""
    for child in module.modules():
        for name in ("p", "dropout", "dropout_p"):
            if isinstance(child.__dict__.get(name), float):
                setattr(child, name, 0.0)
    return module


def small(batch, rows):
    """The first rows; of sequences the first tokens."""
    return tuple((t[:rows, :64] if t.dim() == 2 and t.shape[1] == 512 and not t.is_floating_point() else t[:rows]).contiguous() for t in batch)


def train(case, module, batch) -> list[float]:
    """What a script does: AdamW with the job's defaults."""
    import torch

    trainable = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses = []
    for _ in range(STEPS):
        out = case.forward(module, *batch)
        loss = out[0] if isinstance(out, tuple) else out
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def run(folder: str, model: str, settings: list[str], ranks: int, source: str = "model.source") -> tuple[list[float], str]:
    command = [PROGRAM, "run", model, "--json", *(["--nproc", str(ranks)] if ranks > 1 else [])]
    for setting in [*JOB, f"train.steps={STEPS}", f"cluster.world_size={ranks}", *settings]:
        command += ["--set", setting]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [line["loss"] for line in lines if "step" in line and "loss" in line], done.stdout + done.stderr


def masked_words():
    """A head on the words that a mask chooses: how many these are, the batch says (not one that has sizes alone)."""
    import models
    import torch
    from torch import nn

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(50, 16)
            self.layers = nn.ModuleList([nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU()) for _ in range(2)])
            self.head = nn.Linear(16, 50)

        def forward(self, ids, labels):
            x = self.words(ids)
            for layer in self.layers:
                x = x + layer(x)
            chosen = labels != -100
            return nn.functional.cross_entropy(self.head(x[chosen]), labels[chosen])

    def batch(device):
        ids = torch.randint(0, 50, (4, 24), device=device)
        return ids, torch.where(torch.rand(4, 24, device=device) < 0.3, ids, -100)

    return models.Case(Reader, batch, lambda module, *given: module(*given), ["Sequential"])


def reader(width, block, rows, norm=True):
    """Words, two blocks, a head and its loss, over `rows` of words: what is made, a batch of it, and how a step goes."""
    import models
    import torch
    from torch import nn

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.layers = nn.Embedding(50, width), nn.ModuleList(block() for _ in range(2))
            self.norm, self.head = nn.RMSNorm(width) if norm else nn.Identity(), nn.Linear(width, 50, bias=False)

        def forward(self, ids, labels):
            x = self.words(ids)
            for layer in self.layers:
                x = layer(x)
            return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())

    def batch(device):
        return tuple(torch.randint(0, 50, (rows, 24), device=device) for _ in range(2))

    return models.Case(Reader, batch, lambda module, *given: module(*given), ["Block"])


def latent_and_experts():
    """Keys and values from what all heads share, experts whose inputs are weighed, a layer beside them."""
    import torch
    from torch import nn

    width, heads, size, turned, experts = 16, 4, 4, 2, 3

    class Latent(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.RMSNorm(width)
            self.wq = nn.Linear(width, heads * (size + turned), bias=False)
            self.wkv_a = nn.Linear(width, 8 + turned, bias=False)
            self.kv_norm = nn.RMSNorm(8)
            self.wkv_b = nn.Linear(8, heads * 2 * size, bias=False)
            self.wo = nn.Linear(heads * size, width, bias=False)

        def forward(self, x):
            rows, length, _ = x.shape
            x = self.norm(x)
            q = self.wq(x).view(rows, length, -1, size + turned).transpose(1, 2)
            latent, place = self.wkv_a(x).split([8, turned], dim=-1)
            k, v = self.wkv_b(self.kv_norm(latent)).view(rows, length, -1, 2 * size).split(size, dim=-1)
            k = torch.cat([k, (place.unsqueeze(2) * 0.5).expand(-1, -1, heads, -1)], dim=-1)
            scores = torch.softmax(q @ k.permute(0, 2, 3, 1), dim=-1)
            return self.wo((scores @ v.transpose(1, 2)).transpose(1, 2).reshape(rows, length, -1))

    class Matrices(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Parameter(torch.randn(experts, width, 24) / 4), nn.Parameter(torch.randn(experts, 24, width) / 4)

        def forward(self, x):
            return torch.bmm(nn.functional.silu(torch.bmm(x, self.up)), self.down)

    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.experts = nn.Linear(width, experts, bias=False), Matrices()
            self.inner, self.outer = nn.Linear(width, 32, bias=False), nn.Linear(32, width, bias=False)

        def forward(self, given):
            x = given.view(-1, width)
            weighed = x.unsqueeze(0) * torch.softmax(self.gate(x), dim=-1).t().unsqueeze(-1)
            beside = self.outer(nn.functional.silu(self.inner(x)))
            return (self.experts(weighed).sum(dim=0) + beside).view(given.shape)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.norm, self.mixture = Latent(), nn.RMSNorm(width), Mixture()

        def forward(self, x):
            x = x + self.attention(x)
            return x + self.mixture(self.norm(x))

    plan = {"words": "rowwise", "layers.*.attention.norm": "sequence", "layers.*.attention": "gather", "layers.*.norm": "sequence"}
    plan |= {f"layers.*.attention.{name}": "colwise" for name in ("wq", "wkv_b")}
    plan |= {f"layers.*.{name}": "replicate" for name in ("attention.wkv_a", "attention.kv_norm", "mixture.gate")}
    plan |= {"layers.*.attention.wo": "rowwise", "layers.*.mixture": "summed", "layers.*.mixture.experts": "expert_tensor"}
    plan |= {"layers.*.mixture.inner": "colwise", "layers.*.mixture.outer": "rowwise", "norm": "sequence", "head": "head"}

    return reader(width, Block, 4), plan


def chosen_experts(trained=False):
    """Tokens that choose two of four experts; each tensor rank sorts and sends its own, as torchtitan's do. Scores are constants unless the router is
    `trained`: its gradient would be of a rank's own tokens (trap 54; tests/data/captured/split_experts.json)."""
    import torch
    from torch import nn

    width, experts, chosen = 16, 4, 2

    class Order(nn.Module):
        def forward(self, scores, choice):
            counts = torch.histc(choice.view(-1).float(), bins=experts, min=0, max=experts)
            places = torch.argsort(choice.view(-1), stable=True)
            return scores.view(-1)[places], places, counts

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Parameter(torch.randn(experts, width, 24) / 4), nn.Parameter(torch.randn(experts, 24, width) / 4)

        def forward(self, x, counts):
            ends = counts.cumsum(0).to(torch.int32)
            inner = torch._grouped_mm(x.bfloat16(), self.up.bfloat16(), offs=ends)
            return torch._grouped_mm(nn.functional.silu(inner), self.down.bfloat16(), offs=ends).float()

    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.order, self.experts = nn.Linear(width, experts, bias=False), Order(), Experts()
            self.inner, self.outer = nn.Linear(width, 32, bias=False), nn.Linear(32, width, bias=False)

        def forward(self, given):
            x = given.view(-1, width)
            with torch.set_grad_enabled(trained):
                scores, choice = torch.sigmoid(self.gate(x)).topk(chosen, dim=-1)
            scores, places, counts = self.order(scores, choice)
            made = self.experts(x[places // chosen] * scores.view(-1, 1), counts)
            back = torch.zeros(x.shape[0] * chosen, width, dtype=made.dtype, device=made.device)
            back[places] = made
            beside = self.outer(nn.functional.silu(self.inner(x)))
            return (beside + back.view(-1, chosen, width).sum(dim=1)).view(given.shape)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.mixture = nn.RMSNorm(width), Mixture()

        def forward(self, x):
            return x + self.mixture(self.norm(x))

    plan = {"words": "rowwise", "layers.*.norm": "sequence", "layers.*.mixture": "summed", "layers.*.mixture.gate": "replicate"}
    plan |= {"layers.*.mixture.order": "split", "layers.*.mixture.experts": "experts", "layers.*.mixture.inner": "colwise"}
    plan |= {"layers.*.mixture.outer": "rowwise", "norm": "sequence", "head": "head"}

    return reader(width, Block, 2), plan


def normed_heads():
    """A norm of heads between cut layers: whole weights, whose gradients a hook sums over the ranks (Transformers' Qwen3)."""
    import torch
    from torch import nn

    width, size = 16, 4

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.heads, self.down = nn.Linear(width, 32, bias=False), nn.RMSNorm(size), nn.Linear(32, width, bias=False)

        def forward(self, x):
            return x + self.down(nn.functional.silu(self.heads(self.up(x).unflatten(-1, (-1, size)))).flatten(-2))

    plan = {"layers.*.up": "colwise", "layers.*.heads": "gradient_sum", "layers.*.down": "rowwise"}
    return reader(width, Block, 4, norm=False), plan


class Runs(unittest.TestCase):
    def captured(self, folder, name, ranks):
        import models
        import torch

        from foreshard.capture import capture_step
        from foreshard.weights import save_tensors, save_weights

        case = masked_words() if name == "masked_words" else models.load()[name]
        torch.manual_seed(3)
        module = quiet(case.make())
        batch = small(case.batch("cpu"), ROWS * ranks)
        step = models.training_step(case)
        strict = case.options.get("strict", True)
        model = capture_step(module, step, *small(batch, ROWS), strict=strict)
        inputs = [row["name"] for row in model.document["inputs"]]
        model.save(os.path.join(folder, "model.json"))
        save_weights(module, os.path.join(folder, "weights.safetensors"))
        save_tensors(dict(zip(inputs, batch)), os.path.join(folder, "batch.safetensors"))
        return case, module, batch

    def losses(self, name, runtime):
        ranks = 1 if name in ALONE else 2
        with tempfile.TemporaryDirectory() as folder:
            case, module, batch = self.captured(folder, name, ranks)
            data = 'train.data={kind = "tensors", file = "batch.safetensors"}'
            wrap = f"fsdp.wrap.classes={json.dumps(case.wrap)}"
            settings = ["model.weights=weights.safetensors", data, f"fsdp.runtime={runtime}", wrap]
            got, said = run(folder, "model.json", settings, ranks)
            if name in REFUSED:
                return [], said
            return list(zip(train(case, module, batch), got)), said

    def losses_on_a_mesh(self, case, plan, rows, settings):
        """PyTorch's of one process, and those of `settings` on four ranks each, `rows` of the batch on a rank."""
        import models
        import torch

        from foreshard.capture import capture_step
        from foreshard.weights import save_tensors, save_weights

        torch.manual_seed(5)
        module, batch = case.make(), case.batch("cpu")
        with tempfile.TemporaryDirectory() as folder:
            model = capture_step(module, models.training_step(case), *small(batch, rows))
            model.save(os.path.join(folder, "model.json"))
            save_weights(module, os.path.join(folder, "weights.safetensors"))
            save_tensors(dict(zip([row["name"] for row in model.document["inputs"]], batch)), os.path.join(folder, "batch.safetensors"))
            words = ", ".join(f'"{name}" = "{style}"' for name, style in plan.items())
            data = 'train.data={kind = "tensors", file = "batch.safetensors"}'
            given = ["model.weights=weights.safetensors", data, 'fsdp.wrap.classes=["Block"]', "mesh.tensor=2", f"mesh.plan={{{words}}}"]
            return train(case, module, batch), [run(folder, "model.json", [*given, *more], 4) for more in settings]

    def assert_losses(self, truth, runs, within):
        for got, said in runs:
            self.assertEqual(len(got), STEPS, said)
            for one, other in zip(truth, got):
                self.assertLess(abs(one - other), within * max(1.0, abs(one)), f"{truth} {got}")

    def test_losses_over_tensor_ranks_are_pytorchs(self):
        settings = [[f"mesh.sequence_parallel={on}", f"mesh.loss_parallel={on}", "fsdp.allow_traps=[45]"] for on in ("true", "false")]
        truth, runs = self.losses_on_a_mesh(*latent_and_experts(), ROWS, settings)
        self.assert_losses(truth, runs, 2e-5)

    def test_losses_are_pytorchs_where_a_hook_sums_gradients_of_heads(self):
        truth, runs = self.losses_on_a_mesh(*normed_heads(), ROWS, [["mesh.sequence_parallel=false", "mesh.loss_parallel=false", "fsdp.allow_traps=[45]"]])
        self.assert_losses(truth, runs, 2e-5)

    def test_a_layer_that_is_cut_part_by_part_is_planned_and_not_run(self):
        case, plan = normed_heads()
        _, [(losses, said)] = self.losses_on_a_mesh(case, plan | {"layers.*.up": "packed_colwise"}, ROWS, [["mesh.sequence_parallel=false", "fsdp.allow_traps=[45]"]])
        self.assertEqual(losses, [])
        self.assertIn("layers.0.up is cut part by part", said)

    def test_losses_of_tokens_that_tensor_ranks_split_for_their_experts_are_pytorchs(self):
        settings = [[f"mesh.expert={ranks}", "fsdp.allow_traps=[45]"] for ranks in (2, 4)]
        truth, runs = self.losses_on_a_mesh(*chosen_experts(), 1, settings)
        self.assert_losses(truth, runs, 1e-4)  # products in bfloat16: 2.7e-5 at most, by instruction set

    def test_losses_are_pytorchs(self):
        for name in os.environ.get("CASES", ",".join(CASES)).split(","):
            runtime = "fsdp1" if name in ("nanogpt", "dlrm") else "fsdp2"
            with self.subTest(name, runtime=runtime):
                pairs, said = self.losses(name, runtime)
                self.assertEqual(len(pairs), STEPS, said)
                self.assertIn("starts from the weights of weights.safetensors", said)
                for truth, got in pairs:
                    self.assertLess(abs(got - truth), 2e-5 * max(1.0, abs(truth)), f"{name}: {pairs}")
                self.assertNotAlmostEqual(pairs[0][0], pairs[-1][0], places=5)  # it has learnt something

    def test_opaque_operators_refuse_by_name(self):
        for name, word in REFUSED.items():
            _, said = self.losses(name, "fsdp2")
            self.assertIn(word, said)
            self.assertIn("SquaredRelu", said)


if __name__ == "__main__":
    if not os.path.exists(PROGRAM) or not os.path.exists(os.path.join(os.path.dirname(PROGRAM), "foreshard-exec")):
        print("skipped: FORESHARD names no program with foreshard-exec beside it")
        sys.exit(77)
    unittest.main()
