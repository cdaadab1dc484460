"""What capture writes down, and what it says of modules that it cannot capture."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import types
import unittest

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__))), os.path.dirname(os.path.abspath(__file__))]

import torch
from torch.distributed.nn.functional import all_reduce
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from foreshard.capture import CaptureError, capture, capture_step


def ops(model, name=""):
    return [op for op in model.document["ops"] if name in op["op"]]


def value(model, name):
    return next(
        o for op in model.document["ops"] for o in op["out"] if o is not None and o["name"] == name and "shape" in o
    )


def lifetimes(model):
    """Words until when values are held beyond their uses."""
    held = [out.get("held_until") for op in ops(model) for out in op["out"] if out]
    return {word for word in held if isinstance(word, str)}


def scalar(out):
    return out.float().sum()


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 10), nn.Linear(10, 6)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class Penalised(nn.Module):
    """What its score is by its input, squared."""

    def __init__(self, keeps=True):
        super().__init__()
        self.a, self.b, self.keeps = nn.Linear(6, 10), nn.Linear(10, 1), keeps

    def forward(self, x):
        score = self.b(torch.tanh(self.a(x.requires_grad_())))
        (slope,) = torch.autograd.grad(score.sum(), x, create_graph=self.keeps)
        return score.mean() + (slope if self.keeps else slope.detach()).square().sum()


class InnerGradients(unittest.TestCase):
    """torch.autograd.grad in the midst of forward: what the engine runs there is operators of the program."""

    def run_by_engine(self, model):
        return [op for op in model.document["ops"] if op.get("kwargs", {}).get("engine")]

    def test_are_operators_on_the_way_to_what_is_asked_for(self):
        model = capture(Penalised(), torch.empty(3, 6))
        made = [op["op"].split(".")[1] for op in self.run_by_engine(model)]
        self.assertEqual(made, ["expand", "t", "mm", "tanh_backward", "t", "mm"])  # no gradients of weights and biases
        leaf = next(op for op in model.document["ops"] if op["out"][0].get("requires_grad"))
        self.assertEqual((leaf["op"], leaf["args"]), ("aten.detach.default", ["%x"]))

    def test_read_what_was_saved_by_its_name(self):
        model = capture(Penalised(), torch.empty(3, 6))
        tanh = ops(model, "aten.tanh.default")[0]["out"][0]["name"]
        self.assertEqual(ops(model, "tanh_backward")[0]["args"][1], "%" + tanh)
        transposed = ops(model, "aten.t.")
        turned = {op["args"][0] for op in transposed if op.get("kwargs", {}).get("engine")}  # views of the layers' own views, not the weights
        self.assertEqual(turned, {"%" + op["out"][0]["name"] for op in transposed if op["args"][0].startswith("@")})

    def test_let_go_of_a_graph_that_nobody_keeps(self):
        def released(model):
            return [name["text"] for op in model.document["ops"] for name in op.get("kwargs", {}).get("releases", [])]

        self.assertEqual(released(capture(Penalised(), torch.empty(3, 6))), [])
        model = capture(Penalised(keeps=False), torch.empty(3, 6))
        tanh = ops(model, "aten.tanh.default")[0]["out"][0]["name"]
        self.assertIn(tanh, released(model))

    def test_put_gradients_in_place_where_no_mode_looks_on(self):
        class Picked(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.empty(6, 6))

            def forward(self, x, places):
                x = x.requires_grad_()
                (slope,) = torch.autograd.grad((x @ self.w)[places].square().sum(), x, create_graph=True)
                return slope.sum()

        model = capture(Picked(), torch.empty(3, 6), torch.zeros(4, dtype=torch.long))
        self.assertEqual([op["op"] for op in ops(model, "index_put")], ["aten.index_put_.default"])


class Programs(unittest.TestCase):
    def test_lists_modules_parameters_and_operators(self):
        model = capture(Two(), torch.empty(3, 6), loss=scalar)
        d = model.document
        self.assertEqual([m["fqn"] for m in d["modules"]], ["", "a", "b"])
        self.assertEqual([p["fqn"] for p in d["params"]], ["a.weight", "a.bias", "b.weight", "b.bias"])
        self.assertEqual(
            [(o["op"], o["module"]) for o in d["ops"]],
            [
                ("aten.t.default", "a"), ("aten.addmm.default", "a"), ("aten.relu.default", ""),
                ("aten.t.default", "b"), ("aten.addmm.default", "b"), ("aten.sum.default", ""),
            ],
        )  # fmt: skip
        self.assertEqual(d["inputs"], [{"name": "x", "shape": [3, 6], "dtype": "float32"}])
        self.assertEqual(d["ops"][1]["args"], ["@a.bias", "%x", "%v0"])
        self.assertEqual(value(model, "v0"), {"name": "v0", "shape": [6, 10], "dtype": "float32", "strides": [1, 6]})

    def test_script_loss_begins_after_the_forward(self):
        model = capture(Two(), torch.empty(3, 6), loss=scalar)
        self.assertEqual(model.document["loss_begin"], 5)
        self.assertEqual(len(model.document["outputs"]), 2)

    def test_module_is_left_as_it_was(self):
        module = Two()
        before = {k: (id(v), v.clone()) for k, v in module.state_dict(keep_vars=True).items()}
        attributes = dict(module.__dict__)
        capture(module, torch.empty(3, 6), loss=scalar)
        self.assertEqual(module.__dict__, attributes)
        for name, tensor in module.state_dict(keep_vars=True).items():
            self.assertEqual(id(tensor), before[name][0])
            self.assertTrue(torch.equal(tensor, before[name][1]))
            self.assertIsNone(tensor.grad)

    def test_tied_weights_share(self):
        module = Two()
        module.b.weight = nn.Parameter(torch.empty(6, 10))
        module.c = nn.Linear(10, 6)
        module.c.weight = module.b.weight
        rows = {p["fqn"]: p for p in capture(module, torch.empty(3, 6), loss=scalar).document["params"]}
        self.assertEqual(rows["c.weight"]["shares"], "b.weight")

    def test_calls_of_one_module_are_numbered(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.f = nn.Linear(6, 6)

            def forward(self, x):
                return self.f(self.f(x))

        model = capture(Twice(), torch.empty(3, 6), loss=scalar)
        self.assertEqual([o.get("call", 0) for o in ops(model, "addmm")], [0, 1])
        self.assertEqual([c["args"] for c in model.document["module_calls"] if c["module"] == "f"], [["x"], ["v1"]])

    def test_what_a_module_without_parameters_does_for_others_is_theirs(self):
        class Layer(nn.Module):
            def __init__(self, turn):
                super().__init__()
                self.f, self.turn = nn.Linear(6, 6), turn

            def forward(self, x):
                return self.f(self.turn(x))

        turn = nn.Tanh()
        model = capture(nn.Sequential(Layer(turn), Layer(turn)), torch.empty(3, 6), loss=scalar)
        self.assertEqual([o["module"] for o in ops(model, "tanh")], ["0.turn", "1"])
        self.assertNotIn("0", [c["module"] for c in model.document["module_calls"][3:]])

    def test_what_has_no_derivative_is_not_detached(self):
        class Summed(Two):
            def forward(self, x, index):
                h = super().forward(x)
                total = torch.zeros_like(h).index_add_(0, index, h * 2)
                return h[index] + total + F.one_hot(h.argmax(-1), 6)

        model = capture(Summed(), torch.empty(3, 6), torch.zeros(3, dtype=torch.int64), loss=scalar)
        self.assertEqual(ops(model, "detach"), [])
        (added,) = ops(model, "index_add_")
        self.assertEqual(added["args"][0], "%" + ops(model, "zeros_like")[0]["out"][0]["name"])
        self.assertEqual(len(ops(model, "scatter_")), 1)  # one_hot, as CUDA makes it

    def test_a_bias_is_added_in_place_where_the_input_is_not_contiguous(self):
        class Turned(Two):
            def forward(self, x):
                return super().forward(x.transpose(0, 1))

        d = capture(Turned(), torch.empty(3, 5, 6), loss=scalar)
        self.assertEqual([o["op"] for o in ops(d, "add")][:1], ["aten.add_.Tensor"])
        self.assertEqual(len(ops(d, "addmm")), 1)  # the second input is contiguous

    def test_flex_attention_is_one_operator(self):
        from torch.nn.attention.flex_attention import flex_attention

        class Flexible(nn.Module):
            def __init__(self):
                super().__init__()
                self.inp = nn.Linear(64, 192)

            def forward(self, x):
                q, k, v = self.inp(x).view(2, 32, 3, 4, 16).permute(2, 0, 3, 1, 4)
                return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (i - j))

        model = capture(Flexible(), torch.empty(2, 32, 64), loss=scalar)
        (op,) = ops(model, "Flex")
        self.assertEqual([out["shape"] for out in op["out"]], [[2, 4, 32, 16], [2, 4, 32]])
        self.assertEqual([g["shape"] for g in op["opaque"]["backward"]], [[2, 4, 32, 16]] * 3)
        self.assertIn(op["out"][0]["name"], op["opaque"]["saved"])
        self.assertEqual(op["opaque"]["workspace_bytes"], 0)
        self.assertTrue(any("flex_attention" in note for note in model.notes))

    def test_what_a_module_keeps_from_step_to_step_stays(self):
        class Keeps(Two):
            def forward(self, x):
                self.seen = super().forward(x)
                return self.seen

        model = capture(Keeps(), torch.empty(4096, 6), loss=scalar)
        self.assertTrue(any("keeps `seen` (0.1 MiB) from step to step" in note for note in model.notes), model.notes)
        self.assertEqual(lifetimes(model), {"next"})

    def test_a_buffer_that_is_replaced_goes_with_the_first_step(self):
        class Averages(Two):
            def __init__(self):
                super().__init__()
                self.register_buffer("mean", torch.zeros(6))
                self.register_buffer("count", torch.zeros(6))

            def forward(self, x):
                y = super().forward(x)
                with torch.no_grad():
                    self.mean = 0.9 * self.mean + 0.1 * y.mean(0)
                    self.count.add_(1)
                return y

        model = capture(Averages(), torch.empty(3, 6), loss=scalar)
        self.assertEqual([o["held_until"] for op in ops(model) for o in op["out"] if o and "held_until" in o], [{"next": "mean"}])

    def test_a_detached_view_of_the_same_memory_is_another_value(self):
        class Routes(Two):
            def forward(self, x):
                y = super().forward(x)
                frozen = y.detach()
                share = (frozen.view_as(frozen) * 2).softmax(0)  # a view that lies as y does
                return share * y

        model = capture(Routes(), torch.empty(3, 6), loss=scalar)
        self.assertEqual(ops(model, "mul")[-1]["args"][1], "%" + ops(model, "addmm")[1]["out"][0]["name"])

    def test_gradients_that_a_transform_takes_inside_are_operators(self):
        class Learns(Two):
            def forward(self, x):
                def loss(weight, rows):
                    return (torch.tanh(rows @ weight.T) ** 2).sum()

                made = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(self.a.weight, x)
                return x @ made.transpose(1, 2)

        model = capture(Learns(), torch.empty(3, 2, 6), loss=scalar)
        self.assertEqual(len(ops(model, "tanh_backward")), 1)
        self.assertEqual(len(ops(model, "aten.tanh.default")), 1)
        self.assertTrue(any("@a.weight" in str(op["args"]) for op in ops(model)))
        self.assertEqual({op.get("kwargs", {}).get("engine", False) for op in ops(model, "mm")}, {False, True})  # whose thread runs them

    def test_a_collective_of_the_script_makes_no_new_memory(self):
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        class Gathers(Two):
            def forward(self, x):
                y = super().forward(x)
                parts = [torch.zeros_like(y) for _ in range(4)]
                dist.all_gather(parts, y)
                return y @ torch.cat(parts).T

        with self.assertRaises(CaptureError) as caught:
            capture(Gathers(), torch.empty(3, 6), loss=scalar)
        self.assertIn("FakeStore", str(caught.exception))
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
        try:
            model = capture(Gathers(), torch.empty(3, 6), loss=scalar)
        finally:
            dist.destroy_process_group()
        (gather,) = ops(model, "c10d.allgather_")
        self.assertEqual([out for out in gather["out"] if out], [{"name": arg[1:]} for arg in gather["args"][:4]])
        self.assertEqual(gather["opaque"]["workspace_bytes"], 4 * 3 * 6 * 4)  # NCCL's own

    def test_operators_that_fake_tensors_do_not_know_have_their_shapes(self):
        class Rounds(Two):
            def forward(self, x):
                scale, zero = torch.ones(1, device=x.device), torch.zeros(1, dtype=torch.int32, device=x.device)
                y = torch.fake_quantize_per_tensor_affine(super().forward(x), scale, zero, -8, 7)
                time = torch.distributions.Beta(torch.tensor(1.5, device=x.device), torch.tensor(1.0, device=x.device)).sample((3,))
                return y * time[:, None]

        model = capture(Rounds(), torch.empty(3, 6), loss=scalar)
        self.assertEqual(len(ops(model, "fake_quantize")), 1)
        self.assertEqual(ops(model, "_sample_dirichlet")[0]["out"][0]["shape"], [3, 2])

    def test_products_by_groups_are_of_any_dtype(self):
        class Experts(nn.Module):
            def __init__(self, dtype):
                super().__init__()
                self.weight = nn.Parameter(torch.empty(4, 16, 10, dtype=dtype, device="meta"))

            def forward(self, rows, ends):
                return torch._grouped_mm(rows, self.weight.repeat(1, 1, 4).transpose(-2, -1).contiguous().transpose(-2, -1), offs=ends)

        for dtype in (torch.bfloat16, torch.float32):
            rows, ends = torch.empty(24, 16, dtype=dtype, device="meta"), torch.empty(4, dtype=torch.int32, device="meta")
            model = capture(Experts(dtype), rows, ends, loss=scalar, device="fake")
            (op,) = ops(model, "_grouped_mm")
            self.assertEqual(op["out"][0]["shape"], [24, 40])

    def test_what_a_script_writes_down_goes_along(self):
        class Literal(Two):
            def forward(self, x):
                y = super().forward(x) * torch.tensor([[0.5], [2.0]], device=x.device)
                y = y + torch.tensor([1, 2, 3, 4, 5, 6]).to(x.device) + torch.tensor(float("inf"), device=x.device).clamp(max=1.0)
                return torch.where(torch.tensor(True, device=x.device), y, torch.zeros(2000).to(x.device)[:6])

        model = capture(Literal(), torch.empty(2, 6, device="meta"), loss=scalar)
        made = [op.get("kwargs") for op in ops(model, "aten.empty.memory_format")]
        self.assertEqual(made, [{"values": [0.5, 2.0], "dtype": {"dtype": "float32"}}, {"values": [1, 2, 3, 4, 5, 6], "dtype": {"dtype": "int64"}}, None,
                                {"values": [True], "dtype": {"dtype": "bool"}}, None])  # fmt: skip

    def test_what_the_first_step_alone_makes_is_a_cache(self):
        class Caches(Two):
            def __init__(self):
                super().__init__()
                self._by_length = {}
                self.register_buffer("bias", None, persistent=False)

            def forward(self, x):
                if len(x) not in self._by_length:
                    self._by_length[len(x)] = torch.arange(6 * len(x), device=x.device, dtype=torch.float32).view(len(x), 6)
                    self.register_buffer("bias", self._by_length[len(x)].cos(), persistent=False)
                return super().forward(x + self._by_length[len(x)] + self.bias)

        module = Caches()
        model = capture(module, torch.empty(4096, 6), loss=scalar)
        self.assertEqual(lifetimes(model), {"run"})
        for name in ("_by_length", "bias"):
            self.assertTrue(any(f"keeps `{name}` (0.1 MiB) from the first step on" in note for note in model.notes), model.notes)
        self.assertEqual((module._by_length, module.bias), ({}, None))  # the module is as it was

    def test_a_mask_chooses_every_row_where_it_may_be_guessed(self):
        class Picks(Two):
            def forward(self, x):
                y = super().forward(x)
                return y[(x > 0).all(-1)]

        with self.assertRaises(CaptureError):
            capture(Picks(), torch.empty(2, 4, 6, device="meta"), loss=scalar)
        model = capture(Picks(), torch.empty(2, 4, 6, device="meta"), loss=scalar, strict=False)
        self.assertEqual(ops(model, "aten.index.Tensor")[0]["out"][0]["shape"], [8, 6])

        class Selects(Two):
            def forward(self, x):
                return torch.masked_select(super().forward(x), (x > 0).all(-1, keepdim=True))

        model = capture(Selects(), torch.empty(2, 4, 6, device="meta"), loss=scalar, strict=False)
        self.assertEqual(ops(model, "aten.masked_select")[0]["out"][0]["shape"], [48])

    def test_distributions_look_at_no_values(self):
        def loss(out):
            return torch.distributions.Categorical(logits=out).entropy().mean()

        capture(Two(), torch.empty(4, 6), loss=loss)
        self.assertTrue(torch.distributions.Distribution._validate_args)

    def test_inputs_of_one_storage_alias(self):
        class Pair(Two):
            def forward(self, x, y):
                return super().forward(x) + super().forward(y)

        x = torch.empty(3, 6)
        rows = capture(Pair(), x, x.view(3, 6), loss=scalar).document["inputs"]
        self.assertEqual(rows[1]["alias_of"], "x")
        self.assertEqual(len(capture(Pair(), x, x, loss=scalar).document["inputs"]), 1)

    def test_takes_cudas_attention(self):
        class Attend(nn.Module):
            def __init__(self):
                super().__init__()
                self.f = nn.Linear(64, 64)

            def forward(self, x, mask=None):
                q = self.f(x).view(2, 16, 4, 16).transpose(1, 2)
                return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

        half = {"param": "bfloat16"}
        x = torch.empty(2, 16, 64)
        mask = torch.ones(2, 1, 1, 16, dtype=torch.bool)
        self.assertEqual(len(ops(capture(Attend(), x, loss=scalar, mixed_precision=half), "flash_attention")), 1)
        self.assertEqual(len(ops(capture(Attend(), x, loss=scalar), "efficient_attention")), 1)
        self.assertEqual(len(ops(capture(Attend(), x, mask, loss=scalar, mixed_precision=half), "efficient")), 1)

    def test_masks_are_made_to_begin_rows_at_aligned_addresses(self):
        class Masked(nn.Module):
            def forward(self, q, mask):
                return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

        def pads(columns, room):
            mask = torch.empty(1, 1, columns, room)[..., :columns]
            model = capture(Masked(), torch.empty(2, 4, columns, 32, requires_grad=True), mask, loss=scalar)
            return [op["args"][1] for op in ops(model, "constant_pad_nd")]

        self.assertEqual([pads(*sizes) for sizes in ((72, 72), (66, 66), (72, 73))], [[], [[0, 6]], [[0, 8]]])

    def test_takes_cudas_attention_inside_pytorchs_modules(self):
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        model = capture(layer, torch.empty(2, 16, 64), loss=scalar, mixed_precision={"param": "bfloat16"})
        self.assertEqual(len(ops(model, "flash_attention")), 1)

    def test_parameters_of_several_dtypes_that_fsdp_casts(self):
        class Both(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.then = nn.Linear(6, 6).bfloat16(), nn.Linear(6, 6)

            def forward(self, x):
                return self.then(self.first(x.to(self.first.weight.dtype)).to(self.then.weight.dtype))

        cast = capture(Both(), torch.empty(3, 6), loss=scalar, mixed_precision={"param": "bfloat16"}).document
        self.assertTrue(cast["params_cast"])
        self.assertEqual([row["dtype"] for row in cast["params"]], ["bfloat16"] * 2 + ["float32"] * 2)
        self.assertNotIn("params_cast", capture(Both(), torch.empty(3, 6), loss=scalar).document)

    def test_what_the_root_returns_is_cast_within_its_call(self):
        layer = nn.Linear(6, 6)
        model = capture(layer, torch.empty(3, 6), loss=lambda out: out.sum(), mixed_precision={"param": "bfloat16", "output": "float32"})
        cast = ops(model, "_to_copy")[-1]
        self.assertEqual((cast["module"], cast["out"][0]["dtype"]), ("", "float32"))
        self.assertIn(cast["out"][0]["name"], model.document["outputs"])

    def test_parts_of_a_model_have_dtypes_of_their_own(self):
        """Several roots of FSDP's: each casts what comes in, the whole nothing."""

        class Both(nn.Module):
            def __init__(self):
                super().__init__()
                self.policy, self.reference = Two(), Two()

            def forward(self, x):
                return self.policy(x) + self.reference(x)

        parts = {"policy": ("bfloat16", None), "reference": (None, None)}
        model = capture(Both(), torch.empty(3, 6), loss=scalar,
                        mixed_precision={"param": "bfloat16", "root": False, "units": ["policy", "reference"], "parts": parts})  # fmt: skip
        self.assertEqual({row["fqn"].split(".")[0]: row.get("gathered") for row in model.document["params"]}, {"policy": None, "reference": "float32"})
        dtypes = {op["module"].split(".")[0]: op["out"][0]["dtype"] for op in ops(model, "addmm")}
        self.assertEqual(dtypes, {"policy": "bfloat16", "reference": "float32"})

    def test_type_as_does_what_it_will_do(self):
        class Norm(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.ones(6))

            def forward(self, x):
                return x.float().pow(2).type_as(x) * self.w

        model = capture(Norm(), torch.empty(3, 6), loss=scalar, mixed_precision={"param": "bfloat16"})
        casts = [o["out"][0]["dtype"] for o in ops(model, "_to_copy")]
        self.assertEqual(casts[:3], ["bfloat16", "float32", "bfloat16"])  # of the input, .float(), type_as
        self.assertEqual(model.document["compute_dtype"], "bfloat16")
        self.assertEqual(model.document["params"][0]["dtype"], "float32")


    def test_what_autograd_copies_before_an_operator_in_place_is_not_copied_twice(self):
        class InPlace(Two):
            def forward(self, x):
                h = F.silu(super().forward(x), inplace=True)
                gate = torch.sigmoid(h)
                return (h + 1).mul_(gate)

        model = capture(InPlace(), torch.empty(3, 6), loss=scalar)
        self.assertFalse(ops(model, "clone"))
        self.assertFalse(ops(model, "silu_") + ops(model, "mul_"))
        self.assertEqual(len(ops(model, "aten.silu.default")), 1)
        (product,) = ops(model, "aten.mul.Tensor")
        self.assertEqual(product["args"], ["%" + ops(model, "add")[-1]["out"][0]["name"], "%" + ops(model, "sigmoid")[0]["out"][0]["name"]])

    def test_an_operator_in_place_on_a_view_writes_its_base(self):
        class InPlace(Two):
            def forward(self, x):
                h = super().forward(x)  # three dimensions: a view of what the product made
                return F.silu(h, inplace=True) * 2

        model = capture(InPlace(), torch.empty(2, 3, 6), loss=scalar)
        self.assertFalse(ops(model, "clone") + ops(model, "aten.silu.default"))
        self.assertEqual(len(ops(model, "silu_")), 1)

    def test_a_copy_of_the_script_stays_before_an_operator_in_place(self):
        class Copies(Two):
            def forward(self, x):
                h = super().forward(x)
                before = h.clone()
                return h.mul_(2) + before

        self.assertEqual(len(ops(capture(Copies(), torch.empty(3, 6), loss=scalar), "clone")), 1)

    def test_results_written_to_out_are_made_and_copied(self):
        class Writes(Two):
            def __init__(self):
                super().__init__()
                self.register_buffer("last", torch.zeros(6))

            def forward(self, x):
                with torch.no_grad():
                    torch.div(x[0], 2.0 * x[1], out=self.last)
                return super().forward(x)

        model = capture(Writes(), torch.empty(3, 6), loss=scalar)
        self.assertFalse(ops(model, ".out"))
        (copy,) = ops(model, "copy_")
        self.assertEqual(copy["args"], ["@last", "%" + ops(model, "div.Tensor")[0]["out"][0]["name"]])

    def test_copies_to_the_host_take_nothing(self):
        class Logs(Two):
            def forward(self, x):
                h = super().forward(x)
                self.seen = h.detach().float().cpu()
                return h

        self.assertFalse(ops(capture(Logs(), torch.empty(3, 6), loss=scalar), "_to_copy"))

    def test_page_locked_memory_is_the_hosts_own(self):
        class Pins(Two):
            def forward(self, x):
                h = super().forward(x)
                self.seen = h.detach().cpu().pin_memory()
                self.drawn = torch.randn(3, pin_memory=True)
                scales = torch.tensor([1, 2, 3, 4, 5, 6]).pin_memory()
                return h * scales.to(x.device, non_blocking=True)

        model = capture(Pins(), torch.empty(3, 6, device="meta"), loss=scalar)
        self.assertFalse(ops(model, "pin_memory") + ops(model, "clone") + ops(model, "_to_copy") + ops(model, "randn"))
        (made,) = ops(model, "aten.empty.memory_format")
        self.assertEqual(made["kwargs"]["values"], [1, 2, 3, 4, 5, 6])

    def packed(self, lengths):
        class Packed(nn.Module):
            def __init__(self):
                super().__init__()
                self.lstm = nn.LSTM(6, 6, batch_first=True)

            def forward(self, x, lengths):
                packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
                return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=5)[0]

        return capture(Packed(), torch.empty(3, 5, 6, device="meta"), lengths, loss=scalar)

    def test_a_scalar_of_the_device_that_is_converted_keeps_its_operand(self):
        class Gated(nn.Module):
            def __init__(self):
                super().__init__()
                self.gate = nn.Parameter(torch.zeros(6))

            def forward(self, x):
                return x * self.gate.float().sum().to(torch.bfloat16)

        (row,) = [o for o in ops(capture(Gated(), torch.empty(3, 6, dtype=torch.bfloat16), loss=scalar), "_to_copy") if o["out"][0]["shape"] == []]
        self.assertTrue(row["args"][0].startswith("%"))

    def test_what_asks_the_card_is_told_of_an_h100(self):
        class Chooses(nn.Module):
            def forward(self, x):
                return x.exp() if torch.cuda.get_device_capability(x.device) >= (9, 0) else x.sin()

        self.assertTrue(ops(capture(Chooses(), torch.empty(3, 6, requires_grad=True), loss=scalar, device="fake"), "exp"))

    def test_sequences_are_packed_by_the_lengths_that_the_host_knows(self):
        for lengths in ([2, 5, 4], torch.tensor([2, 5, 4])):
            model = self.packed(lengths)
            (op,) = ops(model, "opaque.")
            self.assertEqual(op["out"][0]["shape"], [11, 6])
            self.assertEqual(len(ops(model, "_thnn_fused_lstm_cell")), 5)
            self.assertEqual([o["shape"] for o in ops(model, "aten.full")[0]["out"]], [[5, 3, 6]])
            self.assertEqual(model.notes, [])

    def test_rows_whose_lengths_nobody_knows_are_full(self):
        model = self.packed(torch.empty(3, dtype=torch.int64, device="meta"))
        self.assertEqual(ops(model, "opaque.")[0]["out"][0]["shape"], [15, 6])
        self.assertIn("every row counts as full", model.notes[0])


    def ctc(self, seen, said, **more):
        class Speech(Two):
            def forward(self, x, labels):
                return F.ctc_loss(super().forward(x).log_softmax(-1), labels, seen, said, **more)

        return capture(Speech(), torch.empty(9, 3, 6), torch.zeros(3, 4, dtype=torch.int64), loss=torch.sum)

    def test_a_loss_of_logits_has_its_targets_type(self):
        """ATen begins with (1 - target).mul_(input)."""

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.f = nn.Linear(4, 4)

            def forward(self, x, y):
                return F.binary_cross_entropy_with_logits(self.f(x), y, reduction="none")

        model = capture(Net(), torch.empty(3, 4), torch.empty(3, 4, dtype=torch.bfloat16), loss=lambda out: out.mean())
        (op,) = ops(model, "binary_cross_entropy_with_logits")
        self.assertEqual((op["out"][0]["dtype"], op["out"][0]["shape"]), ("bfloat16", [3, 4]))

    def test_ctc_takes_the_lengths_that_the_host_knows(self):
        """They lie on the host in most scripts; fake tensors refuse that, a card does not."""
        for seen, said in (((9, 9, 7), (2, 3, 1)), (torch.tensor([9, 9, 7]), torch.tensor([2, 3, 1]))):
            model = self.ctc(seen, said, zero_infinity=True)
            (op,) = ops(model, "_ctc_loss")
            self.assertEqual(op["args"][2:4], [[9, 9, 7], [2, 3, 1]])
            self.assertEqual([o["shape"] for o in op["out"]], [[3], [3, 9, 7]])  # alphas of the longest label
            self.assertEqual(model.notes, [])
        full = self.ctc(torch.empty(3, dtype=torch.int64, device="meta"), torch.empty(3, dtype=torch.int64, device="meta"))
        self.assertEqual(ops(full, "_ctc_loss")[0]["args"][2:4], [[9] * 3, [4] * 3])
        self.assertIn("every row counts as full", full.notes[0])

    def test_sequences_whose_batch_sizes_nobody_knows_are_refused(self):
        from foreshard.capture.known import KnownValues
        from foreshard.capture.packed import planned

        sizes = torch.empty(3, dtype=torch.int64, device="meta")
        with planned([], KnownValues()), self.assertRaisesRegex(CaptureError, "batch sizes have no values") as told:
            torch._VF._pad_packed_sequence(torch.empty(4, 6, device="meta"), sizes, False, 0.0, 3)
        self.assertIn("on the CPU", told.exception.expected)


class Lifetimes(unittest.TestCase):
    def test_a_name_outlives_the_last_use(self):
        class Named(Two):
            def forward(self, x):
                h = self.a(x)  # named until the function returns
                y = torch.relu(h)
                z = self.b(y)
                return z * 2

        model = capture(Named(), torch.empty(3, 6), loss=scalar)
        made = ops(model, "addmm")[0]["out"][0]
        self.assertEqual(made["held_until"], {"op": 5})  # the multiplication, after which forward returns
        self.assertNotIn("held_until", ops(capture(Two(), torch.empty(3, 6), loss=scalar), "addmm")[0]["out"][0])

    def test_autocast_keeps_casts_of_parameters_until_it_exits(self):
        def step(module, x):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                y = scalar(module(x))
            y.backward()

        model = capture_step(Two(), step, torch.empty(3, 6))
        casts = [o for o in ops(model, "_to_copy") if str(o["args"][0]).startswith("@")]
        self.assertEqual(len(casts), 4)  # two weights and two biases
        last = {o["out"][0]["held_until"]["autocast"] for o in casts}
        self.assertEqual(len(last), 1, "all go when it exits")
        self.assertGreater(last.pop(), [o["op"] for o in ops(model)].index("aten.addmm.default"))
        self.assertTrue(all(o["out"][0]["dtype"] == "bfloat16" for o in ops(model, "addmm")))

    def test_what_the_script_keeps_lives_through_backward(self):
        def keeps(module, x):
            logits = module(x)
            loss = scalar(logits)
            loss.backward()

        def drops(module, x):
            scalar(module(x)).backward()

        kept, dropped = (capture_step(Two(), step, torch.empty(3, 6)) for step in (keeps, drops))
        self.assertEqual(ops(kept, "addmm")[1]["out"][0]["held_until"], "step")
        self.assertNotIn("held_until", ops(dropped, "addmm")[1]["out"][0])

    def test_in_place_gives_its_argument_a_new_value(self):
        class InPlace(Two):
            def forward(self, x):
                return self.b(F.relu(self.a(x), inplace=True))

        model = capture(InPlace(), torch.empty(3, 6), loss=scalar)
        relu = ops(model, "relu_")[0]
        self.assertNotEqual("%" + relu["out"][0]["name"], relu["args"][0])
        self.assertEqual(ops(model, "addmm")[1]["args"][1], "%" + relu["out"][0]["name"])

    def test_no_grad_is_said_of_frozen_parameters_too(self):
        """In a flat parameter that trains they would have gradients."""

        class Frozen(Two):
            def forward(self, x):
                with torch.no_grad():
                    x = F.linear(x, self.a.weight)
                return self.b(x)

        module = Frozen()
        module.a.requires_grad_(False)
        model = capture(module, torch.empty(3, 6), loss=scalar)
        self.assertEqual([op["args"] for op in ops(model, "detach")], [["@a.weight"]])

    def test_no_grad_is_a_detach(self):
        class Teacher(Two):
            def forward(self, x):
                with torch.no_grad():
                    target = self.a(x)
                return self.a(x) - target

        model = capture(Teacher(), torch.empty(3, 6), loss=scalar)
        cut = {o["args"][0] for o in ops(model, "detach")}
        self.assertEqual(cut, {"@a.weight", "@a.bias"})
        first, second = ops(model, "addmm")
        self.assertTrue(first["args"][0].startswith("%"))
        self.assertEqual(second["args"][0], "@a.bias")

    def test_no_grad_is_said_in_every_call(self):
        class Turns(Two):
            def forward(self, x):
                with torch.no_grad():
                    for _ in range(2):
                        x = self.b(self.a(x))
                return self.b(self.a(x))

        model = capture(Turns(), torch.empty(3, 6), loss=scalar)
        self.assertEqual([(o["args"][0], o.get("call", 0)) for o in ops(model, "detach") if o["args"][0] == "@a.bias"], [("@a.bias", 0), ("@a.bias", 1)])

    def test_what_is_written_in_no_grad_keeps_its_history(self):
        class Cosine(Two):
            def forward(self, x):
                h = self.a(x)
                return F.cosine_similarity(h, h.flip(0), dim=-1)  # divides by norms that it clamps in no_grad

        model = capture(Cosine(), torch.empty(3, 6), loss=scalar)
        norms = {o["out"][0]["name"] for o in ops(model, "clone")}
        self.assertEqual({o["args"][1][1:] for o in ops(model, "div")}, norms)


class Regions(unittest.TestCase):
    class Blocks(nn.Module):
        def __init__(self, how):
            super().__init__()
            self.blocks, self.how = nn.ModuleList(Two() for _ in range(2)), how

        def forward(self, x):
            for block in self.blocks:
                x = self.how(block, x)
            return x

    def test_both_kinds(self):
        for kind, reentrant in (("nonreentrant", False), ("reentrant", True)):
            how = lambda block, x: checkpoint(block, x, use_reentrant=reentrant)  # noqa: B023, E731
            model = capture(self.Blocks(how), torch.empty(3, 6), loss=scalar)
            regions = model.document["regions"]
            self.assertEqual([(r["kind"], r["module"]) for r in regions], [(kind, "blocks.0"), (kind, "blocks.1")])
            self.assertEqual(regions[0]["args"], ["x"])
            self.assertEqual({o.get("region") for o in ops(model) if o["module"].startswith("blocks.1")}, {1})
            self.assertNotIn("region", ops(model, "sum")[0])

    def test_what_runs_again_to_its_end_says_so(self):
        from torch.utils.checkpoint import set_checkpoint_early_stop

        for early in (True, False):
            asked = {} if early else {"early_stop": False}
            how = lambda block, x: checkpoint(block, x, use_reentrant=False, **asked)  # noqa: B023, E731
            regions = capture(self.Blocks(how), torch.empty(3, 6), loss=scalar).document["regions"]
            self.assertEqual([r.get("early_stop", True) for r in regions], [early, early])
        with set_checkpoint_early_stop(False):
            regions = capture(self.Blocks(lambda block, x: checkpoint(block, x, use_reentrant=False)), torch.empty(3, 6), loss=scalar).document["regions"]
        self.assertEqual([r["early_stop"] for r in regions], [False, False])

    def test_by_operator(self):
        def policy(ctx, func, *args, **kwargs):
            keep = func is torch.ops.aten.addmm.default
            return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

        contexts = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
        how = lambda block, x: checkpoint(block, x, use_reentrant=False, context_fn=contexts)  # noqa: E731
        model = capture(self.Blocks(how), torch.empty(3, 6), loss=scalar)
        first = model.document["regions"][0]
        self.assertEqual(first["kind"], "ops")
        self.assertEqual([ops(model)[k]["op"] for k in first["save"]], ["aten.addmm.default"] * 2)

    def test_units_cast_before_what_wraps_them_for_recomputation(self):
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(6, 6, bias=False)

            def forward(self, x, table):
                return torch.sin(self.linear(x) * table)

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = torch.nn.ModuleList(checkpoint_wrapper(Block()) for _ in range(2))
                self.register_buffer("table", torch.ones(6))

            def forward(self, x):
                for block in self.blocks:
                    x = block(x, self.table)
                return x

        sharded = {"wrapper": ["blocks.0", "blocks.1"], "wrapper by class": ["Block"], "inside": [f"blocks.{i}._checkpoint_wrapped_module" for i in range(2)]}
        for who, units in sharded.items():
            with self.subTest(who):
                model = capture(Model(), torch.empty(3, 6), loss=scalar, mixed_precision={"param": "bfloat16", "units": units})
                casts = [op for op in ops(model, "_to_copy") if op["args"] == ["@table"]]
                self.assertEqual([op["module"] for op in casts], ["blocks.0", "blocks.1"])
                self.assertEqual([op.get("region") for op in casts], [0, 1] if who == "inside" else [None, None])
                held = [casts[i]["out"][0]["name"] in model.document["regions"][i]["args"] for i in range(2)]
                self.assertEqual(held, [who != "inside"] * 2)

    def test_float8_products_of_torchao_are_operators_that_rules_know(self):
        """By the name of its function: torchao itself is not needed here."""
        from types import SimpleNamespace as Is

        class Product(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, turned, mm, config):
                ctx.save_for_backward(x, turned)
                return x @ (turned * x.abs().max())

            @staticmethod
            def backward(ctx, gradient):
                x, turned = ctx.saved_tensors
                return gradient @ turned.t(), x.t() @ gradient, None, None

        Product.__module__, Product.__qualname__ = "torchao.float8.float8_linear", "matmul_with_hp_or_float8_args"

        class Block(torch.nn.Module):
            def __init__(self, granularity, of_gradient):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.empty(16, 16))
                self.config = Is(cast_config_input=Is(scaling_granularity=Is(name=granularity), scaling_type=Is(name="DYNAMIC")),
                                 cast_config_input_for_grad_weight=Is(scaling_type=Is(name=of_gradient)))  # fmt: skip

            def forward(self, x):
                return Product.apply(x, self.weight.t(), None, self.config)

        recipes = {("TENSORWISE", "DYNAMIC"): "tensorwise", ("AXISWISE", "DYNAMIC"): "rowwise", ("AXISWISE", "DISABLED"): "rowwise_with_gw_hp"}
        for given, recipe in recipes.items():
            model = capture(Block(*given), torch.empty(16, 16), loss=scalar)
            self.assertEqual([op["args"] for op in ops(model, f"matmul_float8_{recipe}")], [["%x", "@weight"]])
            self.assertFalse([op for op in ops(model) if "opaque" in op])

        unknown = capture(Block("TENSORWISE", "DISABLED"), torch.empty(16, 16), loss=scalar)
        self.assertEqual(len([op for op in ops(unknown) if "opaque" in op]), 1, "no recipe of torchao's: nobody guesses")

        def policy(ctx, func, *args, **kwargs):
            return CheckpointPolicy.MUST_SAVE if func is torch.ops.aten.max.default else CheckpointPolicy.PREFER_RECOMPUTE

        class Recomputed(Block):
            def forward(self, x):
                return checkpoint(super().forward, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy))

        model = capture(Recomputed("TENSORWISE", "DYNAMIC"), torch.empty(16, 16), loss=scalar)
        (product,) = ops(model, "matmul_float8_tensorwise")
        self.assertEqual(product["kwargs"], {"kept_inside": [{"text": "aten.max.default"}]})
        self.assertEqual(model.document["regions"][0]["save"], [])

        from foreshard.shadow import float8

        float8.mark(model.document, ["weight"])
        self.assertEqual(model.document["params"][0]["gathered"], "float8_e4m3fn")
        self.assertEqual(product["op"], "torchao.matmul_float8_gathered.default")

    def test_sizes_of_a_tensor_rank_in_a_whole_model(self):
        """A module that counts its rank's heads: of [parts, heads, width] they are behind the parts, where the layer holds so many."""
        from foreshard.shadow import notes, told_sizes

        x, one, two, three = torch.zeros(4, 6, 8), *(nn.Linear(8, 8 * parts) for parts in (1, 2, 3))
        before = notes.notes()
        with told_sizes.whole(2):
            shapes = {
                three(x).view(4, 6, 3, 2, 2).shape: (4, 6, 3, 4, 2),
                three(x).reshape(24, 3, 2, 2).shape: (24, 3, 4, 2),
                three(x).unflatten(-1, (3, 1, 4)).shape: (4, 6, 3, 2, 4),
                two(x).view(4, 6, 2, 1, 4).shape: (4, 6, 2, 2, 4),
                one(x).view(4, 6, 2, 1, 2).shape: (4, 6, 4, 1, 2),  # queries by groups
                one(x).unflatten(-1, (1, 4)).shape: (4, 6, 2, 4),
                one(x).view(4, 6, 1, 4).shape: (4, 6, 2, 4),
                torch.zeros(4, 6, 4, 2).reshape(4, 6, 4).shape: (4, 6, 8),
                one(x).view(4, 6, 4, 2).shape: (4, 6, 4, 2),
            }
            self.assertEqual(notes.notes(), before)
            shapes[(three(x) + 1).view(4, 6, 3, 2, 2).shape] = (4, 6, 6, 2, 2)  # nobody knows
        self.assertEqual([tuple(each) for each in shapes], list(shapes.values()))
        self.assertEqual(len(notes.notes()), len(before) + 1)

    def test_groups_that_lie_across_tensor_ranks(self):
        from foreshard.shadow import own_parts

        for ranks, along, lies in (([0, 2], [], True), ([0, 2, 3, 5], [], False), ([0, 1], [0, 4], True), ([0, 4], [0, 4], False), ([0], [], False)):
            self.assertEqual(own_parts._lies_across(ranks, along, 2), lies, (ranks, along))
        op = {"op": "mesh.all_to_all", "args": ["%x", 0], "out": [{"name": "y", "shape": [3, 5], "dtype": "float8_e4m3fn"}]}
        self.assertEqual(own_parts._as_function(op)["meets"], [["all_to_all", 0, 15]])

    def test_ranks_beside_a_model_with_an_exchange_may_have_experts(self):
        from foreshard.shadow import own_parts

        model, found = nn.Sequential(nn.Linear(2, 2)), {"alone": False, "runtime": "none", "ddp": True}
        self.assertTrue(own_parts._have_all(model, found))
        self.assertFalse(own_parts._have_all(model, found | {"alone": True}))
        self.assertFalse(own_parts._have_all(model, found | {"runtime": "fsdp2"}))  # of which FSDP2 has none
        model._ddp_params_and_buffers_to_ignore = ["0.weight"]
        self.assertFalse(own_parts._have_all(model, found))

    def test_a_policy_is_asked_about_collectives_that_a_mesh_brings_in(self):
        def policy(ctx, func, *args, **kwargs):
            keep = func is torch.ops._c10d_functional.reduce_scatter_tensor.default
            return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

        def particular(ctx, func, *args, **kwargs):  # it looks at what a collective is not called with here
            return func.namespace == "aten" or args[1] > 0

        for each, names in {policy: ["_c10d_functional.reduce_scatter_tensor"], particular: None}.items():
            contexts = lambda each=each: create_selective_checkpoint_contexts(each)  # noqa: E731
            how = lambda block, x, contexts=contexts: checkpoint(block, x, use_reentrant=False, context_fn=contexts)  # noqa: E731
            first = capture(self.Blocks(how), torch.empty(3, 6), loss=scalar).document["regions"][0]
            self.assertEqual(first.get("save_collectives"), names)

    def test_region_holds_nothing_itself(self):
        how = lambda block, x: checkpoint(block, x, use_reentrant=False)  # noqa: E731
        model = capture(self.Blocks(how), torch.empty(3, 6), loss=scalar)
        self.assertFalse([o for op in ops(model) for o in op["out"] if o and o.get("held_until") == "step"])


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        y = x.exp()
        ctx.save_for_backward(x, y)
        ctx.factor = factor
        return (y * y).sum(-1)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g.unsqueeze(-1) * y * ctx.factor, None


class Long(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        for _ in range(500):  # more than are told one by one
            y = y + 1
        return y.sum(-1)

    @staticmethod
    def backward(ctx, g):
        return g.unsqueeze(-1) * ctx.saved_tensors[0]


class Carries(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        whole = x.exp()
        ctx.rows = [whole[:1]]  # a view keeps all of it
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.rows[0]


bound_square = Square.apply  # as scripts write it, before anybody captures


class Opaque(unittest.TestCase):
    def test_a_function_that_was_bound_before_is_found(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.f = nn.Linear(6, 6)

            def forward(self, x):
                return bound_square(self.f(x), 2.0)

        model = capture(Model(), torch.empty(4, 6, device="meta"), loss=scalar)
        self.assertEqual(len(ops(model, "opaque.")), 1)
        y = bound_square(torch.ones(2, 3, requires_grad=True), 2.0)  # nobody listens any more
        y.sum().backward()

    def test_a_class_that_has_modules_call_as_its_own_is_a_module(self):
        class Head(nn.Linear):
            __call__ = nn.Module.__call__  # as scripts say what types it takes

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.head = nn.Linear(6, 6), Head(6, 4)

            def forward(self, x):
                return self.head(self.body(x))

        module = Model()
        model = capture(module, torch.empty(4, 6, device="meta"), loss=scalar)
        self.assertIn("head", {op.get("module") for op in ops(model, "aten.addmm")})
        self.assertEqual(module(torch.ones(2, 6)).shape, (2, 4))  # nobody listens any more

    def test_collectives_that_have_a_backward_are_operators(self):
        dist = torch.distributed
        dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=4)
        self.addCleanup(dist.destroy_process_group)

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.f = nn.Linear(6, 6)

            def forward(self, x):
                return all_reduce(self.f(x).sum())

        model = capture(Model(), torch.empty(4, 6), loss=scalar, device="fake")
        (op,) = ops(model, "opaque.")
        self.assertTrue(op["op"].endswith("_AllReduce"))
        self.assertTrue(op["opaque"]["backward"])
        self.assertEqual(ops(model, "aten.detach"), [])
        self.assertEqual((op["kwargs"]["meets"], op["kwargs"]["meets_backward"]), ([["all_reduce", 0, 4]], [["all_reduce", 0, 4]]))
        self.assertEqual(model.document["mesh"], [{"name": "world", "ranks": [0, 1, 2, 3], "place": 0}])

    def test_rows_that_go_to_other_ranks(self):
        """Sizes that routers make: of each rank as of this one. The exchange is an operator with a history; groups have names of their own."""
        from torch.distributed._functional_collectives import all_to_all_single_autograd
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist = torch.distributed
        dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
        self.addCleanup(dist.destroy_process_group)
        group = dist.new_group([0, 1])

        class Sends(nn.Module):
            def __init__(self):
                super().__init__()
                self.gate, self.own = nn.Linear(6, 4), nn.Linear(6, 6)

            def forward(self, x):
                choice = self.gate(x).argmax(-1)
                counts = torch.bincount(choice, minlength=4)
                theirs, most = torch.empty_like(counts), counts.max()
                dist.all_to_all_single(theirs, counts, group=group)
                dist.all_reduce(most, op=dist.ReduceOp.MAX)
                there, here = theirs.view(2, 2).sum(1).tolist(), counts.view(2, 2).sum(1).tolist()
                rows = all_to_all_single_autograd(x[choice.argsort()] * self.gate.weight[0], there, here, group)
                return all_to_all_single_autograd(self.own(rows), here, there, group) + int(most)

        model = capture(Sends(), torch.empty(9, 6), loss=scalar, device="fake", strict=False)
        self.assertEqual([(row["name"], row["ranks"], row["place"]) for row in model.document["mesh"]], [("script", [0, 1], 1), ("world", [0, 1, 2, 3], 1)])
        there, back = ops(model, "mesh.all_to_all")
        self.assertEqual((there["args"][1:], back["args"][1:]), ([0, 8], [0, 9]))  # rows 3, 2, 2, 2: five stay on the other rank, 4 + 4 come here
        product = ops(model, "aten.addmm.default")[-1]
        self.assertIn("%" + there["out"][0]["name"], product["args"])  # with its history
        self.assertEqual(back["args"][0], "%" + product["out"][0]["name"])
        (lifted,) = [op for op in ops(model, "aten.add.Tensor") if op["args"][1:] and type(op["args"][1]) is int]
        self.assertEqual(lifted["args"][1], 3)  # the largest, not the sum of the ranks'

    def test_autograd_function_is_one_operator(self):
        class Custom(nn.Module):
            def __init__(self):
                super().__init__()
                self.f = nn.Linear(6, 6)

            def forward(self, x):
                return Square.apply(self.f(x), 2.0)

        model = capture(Custom(), torch.empty(3, 6), loss=scalar)
        (op,) = ops(model, "opaque.")
        self.assertTrue(op["op"].endswith("Square"))
        self.assertEqual(op["args"], ["%v1"])
        self.assertEqual(op["out"][0]["shape"], [3])
        self.assertEqual(op["opaque"]["saved"], ["v1", {"shape": [3, 6], "dtype": "float32"}])
        made, beside = op["opaque"]["backward"]
        self.assertEqual(made, {"shape": [3, 6], "dtype": "float32"})
        self.assertEqual(beside, {"shape": [3 * 6 * 4], "dtype": "uint8"})  # g * y
        self.assertEqual(op["opaque"]["workspace_bytes"], 0)  # y * y stands before it, a block of its own
        early, beside = ops(model, "empty.memory_format")  # y itself is there before
        self.assertEqual((early["args"], beside["args"]), ([[3 * 6 * 4]], [[3 * 6 * 4]]))
        self.assertEqual(early["out"][0]["held_until"], {"op": model.document["ops"].index(op) - 1})
        self.assertEqual(beside["out"][0]["held_until"], {"op": model.document["ops"].index(op)})
        self.assertFalse(ops(model, "exp"))
        self.assertEqual(op["kwargs"], {"dispatched": {"text": "aten.sum.dim_IntList"}})  # what a dispatch mode saw
        self.assertEqual(beside["kwargs"]["dispatched"], {"text": "aten.mul.Tensor"})

    def test_a_policy_is_asked_about_what_runs_inside_a_function(self):
        from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

        asked = []

        def policy(context, func, *args, **kwargs):
            asked.append(str(func))
            return CheckpointPolicy.MUST_SAVE if func is torch.ops.aten.mul.Tensor else CheckpointPolicy.PREFER_RECOMPUTE

        class Custom(nn.Module):
            def __init__(self):
                super().__init__()
                self.f = nn.Linear(6, 6)

            def forward(self, x):
                contexts = functools.partial(create_selective_checkpoint_contexts, policy)
                return checkpoint(lambda y: Square.apply(self.f(y), 2.0), x, use_reentrant=False, context_fn=contexts)

        model = capture(Custom(), torch.empty(3, 6), loss=scalar)
        _, beside = ops(model, "empty.memory_format")
        self.assertEqual(model.document["regions"][0]["save"], [model.document["ops"].index(beside)])
        first = asked.index("aten.exp.default")
        self.assertEqual(asked[first : first + 3], ["aten.exp.default", "aten.mul.Tensor", "aten.sum.dim_IntList"])

    def test_products_inside_a_function_are_counted(self):
        """With them it asks cuBLAS for its workspace; `out_dtype` is no factor of addmm's sum."""

        class Wide(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, weight):
                ctx.save_for_backward(x, weight)
                return torch.mm(x, weight)

            @staticmethod
            def backward(ctx, grad):
                x, weight = ctx.saved_tensors
                total = torch.zeros(x.shape, device=x.device)
                torch.addmm(total, grad, weight.t(), out_dtype=torch.float32, out=total)
                return total.to(x.dtype), None

        class Custom(Two):
            def forward(self, x):
                return Wide.apply(self.a(x), self.b.weight.t())

        model = capture(Custom().bfloat16(), torch.empty(3, 6, dtype=torch.bfloat16), loss=scalar)
        (op,) = ops(model, "opaque.")
        self.assertEqual(op["opaque"]["flops"], 2 * 3 * 10 * 6)
        self.assertEqual(op["opaque"]["backward"][2:], [{"shape": [3 * 10 * 4], "dtype": "uint8"}])  # the sum in float
        self.assertEqual([note for note in model.notes if "failed" in note], [])

    def test_a_gradient_that_a_loop_adds_to_is_there_from_the_first_piece_on(self):
        """A head and its loss by pieces: forward has the gradients ready, backward multiplies nothing."""

        class Pieces(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, weight):
                total, sums = torch.zeros_like(weight), 0.0
                for piece in x.chunk(3):
                    y = piece @ weight.t()
                    total += y.t() @ piece
                    sums = sums + y.sum()
                ctx.save_for_backward(total)
                return sums

            @staticmethod
            def backward(ctx, gradient):
                return None, ctx.saved_tensors[0] * gradient

        class Custom(Two):
            def forward(self, x):
                return Pieces.apply(self.a(x), self.b.weight)

        model = capture(Custom(), torch.empty(3, 6), loss=scalar)
        (op,) = ops(model, "opaque.")
        first = ops(model, "empty.memory_format")[0]
        (rows, columns) = op["opaque"]["saved"][0]["shape"]
        self.assertEqual(first["args"], [[rows * columns * 4]])
        self.assertNotIn("dispatched", first["kwargs"])  # a list keeps the function's own
        self.assertEqual(first["out"][0]["held_until"], {"op": model.document["ops"].index(op) - 1})
        self.assertEqual(op["opaque"]["backward_flops"], 0)
        self.assertGreater(op["opaque"]["flops"], 0)

    def test_many_temporaries_of_a_function_that_saves_are_one_workspace(self):
        class Custom(Two):
            def forward(self, x):
                return Long.apply(super().forward(x))

        (op,) = ops(capture(Custom(), torch.empty(3, 6), loss=scalar), "opaque.")
        self.assertEqual(op["opaque"]["saved"], [{"shape": [3, 6], "dtype": "float32"}])
        # Three of a size at a time, one of them saved, and room for the result.
        self.assertEqual(op["opaque"]["workspace_bytes"], (3 - 1) * 3 * 6 * 4 - 3 * 4)

    def test_memory_that_is_used_again_for_what_stays_was_a_temporary_before(self):
        from foreshard.capture import opaque

        frame = opaque.Opaque("opaque.f", [], events=[(1, 96), (1, -96), (1, 64)], live={1: (None, 64)}, makers=["aten.a", "", "aten.b"])
        frame.saved = [(1, (16,), torch.float32, 64)]
        made = types.SimpleNamespace(ops=[], table=types.SimpleNamespace(new_name=lambda: "v"))
        row = {"module": "", "call": 0}
        told = opaque.write_temporaries(made, frame, row, [], [])
        self.assertEqual(told, (1, True))
        self.assertEqual([op.get("args") for op in made.ops], [[[96]], None])

    def test_what_a_function_carries_beside_what_it_saves_lives_to_the_end(self):
        class Custom(Two):
            def forward(self, x):
                return Carries.apply(super().forward(x))

        (op,) = ops(capture(Custom(), torch.empty(3, 6), loss=scalar), "opaque.")
        carried = {"shape": [3 * 6], "dtype": "float32", "held_until": "step"}
        self.assertEqual([{k: v for k, v in o.items() if k != "name"} for o in op["out"][1:]], [carried])

    def test_a_gradient_over_what_was_saved_or_given_is_told_so(self):
        class InPlace(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, y):
                half = x * 0.5
                ctx.save_for_backward(x, half)
                return None, x + y

            @staticmethod
            def backward(ctx, _, g):
                x, half = ctx.saved_tensors
                half.mul_(2)
                return half, g.mul_(3)

        class Custom(nn.Module):
            def __init__(self):
                super().__init__()
                self.f, self.h = nn.Linear(6, 6), nn.Linear(6, 6)

            def forward(self, x):
                return InPlace.apply(self.f(x), self.h(x))[1]

        (op,) = ops(capture(Custom(), torch.empty(3, 6), loss=scalar), "opaque.")
        made = {"shape": [3, 6], "dtype": "float32"}
        self.assertEqual(op["opaque"]["saved"], [op["args"][0][1:], made])
        self.assertEqual(op["opaque"]["backward"], [{**made, "over_saved": 1}, {**made, "over_given": 0}])

    def test_custom_operator_is_one_operator(self):
        @torch.library.custom_op("foreshard_tests::gate", mutates_args=())
        def gate(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @gate.register_fake
        def _(x):
            return torch.empty_like(x)

        gate.register_autograd(lambda ctx, g: g * 2)

        class Custom(Two):
            def forward(self, x):
                return gate(super().forward(x))

        (op,) = ops(capture(Custom(), torch.empty(3, 6), loss=scalar), "opaque.")
        self.assertIn("foreshard_tests", op["op"])
        self.assertIn("gate", op["op"])
        self.assertEqual(op["opaque"]["backward"], [{"shape": [3, 6], "dtype": "float32"}])

    def test_kernel_of_triton_is_one_operator(self):
        class JITFunction:
            def __init__(self, fn):
                self.fn = fn

            def run(self, *args, **kwargs):
                raise AssertionError("no kernel runs in capture")

        def add_one(*_):
            """What triton.jit would wrap."""

        stub = types.ModuleType("triton.runtime.jit")
        stub.JITFunction = JITFunction
        kernel = JITFunction(add_one)

        class Custom(Two):
            def forward(self, x):
                y = super().forward(x)
                kernel.run(y, 18, grid=(1,))
                return y

        sys.modules["triton.runtime.jit"] = stub
        try:
            (op,) = ops(capture(Custom(), torch.empty(3, 6), loss=scalar), "opaque.")
        finally:
            del sys.modules["triton.runtime.jit"]
        self.assertTrue(op["op"].startswith("opaque.triton.") and op["op"].endswith("add_one"), op["op"])
        self.assertEqual(op["args"], ["%v4"])


class BadInput(unittest.TestCase):
    def fails(self, *words, call):
        with self.assertRaises(CaptureError) as caught:
            call()
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_host_and_device_together(self):
        class Forgets(Two):
            def forward(self, x):
                return super().forward(x) + torch.zeros(3, 6)

        self.fails("aten.add", "root module", "device=x.device", "test_capture.py", call=lambda: capture(
            Forgets(), torch.empty(3, 6), loss=scalar))  # fmt: skip

    def test_module_on_two_devices(self):
        module = Two()
        module.b.weight = nn.Parameter(torch.empty(6, 10, device="meta"))
        capture(module, torch.empty(3, 6), loss=scalar)  # meta is no device
        module.a.weight.data = module.a.weight.data  # a plain one still is

        class Elsewhere:
            type = "cuda"

            def __str__(self):
                return "cuda:1"

        from foreshard.capture import fakes

        class Fake:
            device = Elsewhere()

        class Odd(Two):
            def named_buffers(self, *args, **kwargs):
                return [("far", Fake())]

        self.fails("several devices", "far on cuda:1", call=lambda: fakes.check_module(Odd()))

    def test_computed_values(self):
        class Asks(Two):
            def forward(self, x):
                y = super().forward(x)
                return y * 2 if bool((y > 0).all()) else y

        self.fails("_local_scalar_dense", "strict=False", call=lambda: capture(
            Asks(), torch.empty(3, 6), loss=scalar))  # fmt: skip
        lenient = capture(Asks(), torch.empty(3, 6), loss=scalar, strict=False)
        self.assertFalse(ops(lenient, "mul"))  # the host reads zeros

    def test_sizes_that_hang_on_data(self):
        class Picks(Two):
            def forward(self, x):
                return super().forward(x)[x[:, 0] > 0]

        self.fails("needs the values", "capacity", "lies on the CPU", call=lambda: capture(
            Picks(), torch.empty(3, 6, device="meta"), loss=scalar))  # fmt: skip

    def test_never_trains(self):
        self.fails("never ran backward", call=lambda: capture_step(Two(), lambda m, x: m(x), torch.empty(3, 6)))

    def test_no_loss(self):
        self.fails("no scalar", "[3, 6]", "loss=", call=lambda: capture(Two(), torch.empty(3, 6)))

    def test_frozen(self):
        self.fails("needs no gradient", call=lambda: capture(
            Two().requires_grad_(False), torch.empty(3, 6), loss=scalar))  # fmt: skip

    def test_module_fails_by_itself(self):
        self.fails("aten.addmm", "module a", call=lambda: capture(Two(), torch.empty(3, 7), loss=scalar))
        module = Two()  # and is whole again
        with self.assertRaises(CaptureError):
            capture(module, torch.empty(3, 7), loss=scalar)
        self.assertEqual(module.a.weight.device.type, "cpu")
        self.assertTrue(torch.is_grad_enabled())
        module(torch.zeros(3, 6)).sum().backward()

    def test_options(self):
        x = torch.empty(3, 6)
        self.fails("device", '"fake"', call=lambda: capture(Two(), x, loss=scalar, device="cpu"))
        self.fails("no dtype", "bf17", call=lambda: capture(Two(), x, loss=scalar, mixed_precision={"param": "bf17"}))
        self.fails("has no 'parm'", call=lambda: capture(Two(), x, loss=scalar, mixed_precision={"parm": "bfloat16"}))
        self.fails("no module", call=lambda: capture(lambda y: y, x))

    def test_lazy(self):
        self.fails("lazy", call=lambda: capture(nn.LazyLinear(3), torch.empty(3, 6), loss=scalar))

    def test_hooks_are_told(self):
        module = Two()
        module.a.register_forward_hook(lambda m, args, out: out * 2)
        model = capture(module, torch.empty(3, 6), loss=scalar)
        self.assertTrue(any("a: hooks run with them" in note for note in model.notes))
        self.assertEqual(len(ops(model, "mul")), 1)


class UnlikeTypes(unittest.TestCase):
    def test_a_product_of_two_types_is_refused_as_a_card_does(self):
        class Table(nn.Module):
            def __init__(self):
                super().__init__()
                self.f = nn.Linear(6, 6)
                self.register_buffer("table", torch.zeros(3, 6))

            def forward(self, x):
                return x + self.f(self.table)

        with self.assertRaises(CaptureError) as caught:
            capture(Table(), torch.empty(3, 6), loss=scalar, mixed_precision={"param": "bfloat16"})
        self.assertIn("two types", caught.exception.message)
        self.assertIn("float32[3, 6]", caught.exception.got)
        capture(Table(), torch.empty(3, 6), loss=scalar, mixed_precision={"param": "bfloat16", "buffer": "bfloat16"})


class Scripts(unittest.TestCase):
    def test_optimizer_becomes_the_jobs_default(self):
        module = Two()
        optimizer = torch.optim.AdamW(module.parameters(), fused=False, foreach=False)

        def step(module, x):
            scalar(module(x)).backward()
            optimizer.step()

        self.assertEqual(
            capture_step(module, step, torch.empty(3, 6)).document["job"],
            {
                "fsdp.mixed_precision.param": "none",
                "train.optimizer.name": "adamw",
                "train.optimizer.impl": "for_loop",
            },
        )

    def test_other_optimizers_bring_what_their_states_hang_on(self):
        module = Two()
        optimizer = torch.optim.RMSprop(module.parameters(), momentum=0.9, centered=True)

        def step(module, x):
            scalar(module(x)).backward()
            optimizer.step()

        job = capture_step(module, step, torch.empty(3, 6)).document["job"]
        self.assertEqual(job["train.optimizer.name"], "rmsprop")
        self.assertEqual((job["train.optimizer.momentum"], job["train.optimizer.centered"]), (0.9, True))

    def test_all_models_of_the_suite_are_captured(self):
        import models

        torch.backends.cudnn.enabled = False
        compared = models.compared() if os.path.exists(os.environ.get("FORESHARD_ORACLE", "")) else set()  # test_captured.py captures those
        for name, case in models.load().items():
            if name in compared:
                continue
            with self.subTest(name), models.among_ranks(case):
                with torch.device("meta"):
                    module = case.make()
                model = capture_step(
                    module,
                    models.training_step(case),
                    *case.batch("meta"),
                    strict=case.options.get("strict", True),
                )
                self.assertGreater(len(ops(model)), 5)
                self.assertEqual(model.document["lifetimes"], "recorded")

    def test_eighty_layers_are_a_small_file(self):
        import models.decoders as decoders

        with torch.device("meta"):
            module = decoders.MetaLlama(d=8192, layers=80, heads=64, kv=8)
            batch = decoders._MetaStep.batch("meta")
        model = capture_step(module, lambda m, *b: decoders._MetaStep.forward(m, *b).backward(), *batch)
        self.assertLess(len(model.to_json()), 5_000_000)


class Pitfalls(unittest.TestCase):
    """What goes otherwise under FSDP, or cannot be captured, is told."""

    def test_gradients_inside_a_region_are_refused(self):
        class Inside(nn.Module):
            def forward(self, x):
                return checkpoint(lambda x: torch.autograd.grad((x * x).sum(), x, create_graph=True)[0].sum(), x.requires_grad_(), use_reentrant=False)

        with self.assertRaisesRegex(CaptureError, "inside a checkpointed region"):
            capture(Inside(), torch.empty(3, 6), loss=scalar)

    def test_results_that_no_tree_shows_are_told(self):
        @dataclasses.dataclass
        class Out:
            hidden: torch.Tensor

        class Inner(nn.Linear):
            def forward(self, x):
                return Out(super().forward(x))

        class Outer(nn.Module):
            def __init__(self, kind):
                super().__init__()
                self.inner, self.kind = kind(6, 6), kind

            def forward(self, x):
                out = self.inner(x)
                return self.inner(x).hidden + out.hidden if self.kind is Inner else out

        told = [n for n in capture(Outer(Inner), torch.empty(3, 6), loss=scalar).notes if "fully_shard" in n]
        self.assertEqual(len(told), 1)
        self.assertRegex(told[0], "^Inner returns a Out, ")
        self.assertEqual(capture(Outer(nn.Linear), torch.empty(3, 6), loss=scalar).notes, [])

    def test_a_function_that_holds_its_own_result_is_told(self):
        class Cycle(torch.autograd.Function):
            own = True

            @staticmethod
            def forward(ctx, x):
                y = x.tanh()
                ctx.y = y if Cycle.own else 1 - y * y
                return y

            @staticmethod
            def backward(ctx, g):
                return g * ctx.y

        class Custom(Two):
            def forward(self, x):
                return Cycle.apply(super().forward(x))

        self.assertRegex(" ".join(capture(Custom(), torch.empty(3, 6), loss=scalar).notes), "Cycle keeps its own result")
        Cycle.own = False
        self.assertEqual(capture(Custom(), torch.empty(3, 6), loss=scalar).notes, [])

    def test_every_cast_of_a_parameter_is_told_and_how_long_autocast_keeps_it(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(6, 6)

            def forward(self, x):
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    y = self.a(self.a(x)) + self.a.bias.to(torch.bfloat16)  # that one is the script's
                with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
                    return self.a(y)

        cache = torch.is_autocast_cache_enabled()
        model = capture(Twice(), torch.empty(3, 6), loss=scalar)
        casts = [(op["args"][0], op["out"][0].get("held_until")) for op in ops(model, "_to_copy") if op["args"][0].startswith("@")]
        last = next(i for i, op in enumerate(model.document["ops"]) if op["op"] == "aten.add.Tensor")
        kept = {"autocast": last}
        self.assertEqual(casts, [("@a.bias", kept), ("@a.weight", kept)] * 2 + [("@a.bias", None)] + [("@a.bias", None), ("@a.weight", None)])
        self.assertEqual(torch.is_autocast_cache_enabled(), cache)

    def test_calls_with_other_parameters_are_told(self):
        class Called(Two):
            def forward(self, x):
                return torch.func.functional_call(self.a, {"weight": self.a.weight * 2}, (x,))

        (note,) = capture(Called(), torch.empty(3, 6), loss=scalar).notes
        self.assertRegex(note, "functional_call of Linear: FSDP1 goes on reading its own views")


if __name__ == "__main__":
    unittest.main()
