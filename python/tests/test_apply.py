"""foreshard.apply on PyTorch's own FSDP2, in a fake process group: it then gathers as the plan does."""

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
WORLD = 4


def net(blocks=5):
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(16, 40), nn.Linear(40, 16)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(x)))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(12, 16)
            self.blocks = nn.ModuleList(Block() for _ in range(blocks))
            self.head = nn.Linear(16, 8)

        def forward(self, x):
            x = self.embed(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    return Net()


def planned(folder, settings):
    import torch

    from foreshard.capture import capture

    path = os.path.join(folder, "net.model.json")
    capture(net(), torch.zeros(3, 12), loss=lambda out: out.sum()).save(path)
    command = [PROGRAM, "plan", path, "--json", "--set", f"cluster.world_size={WORLD}", "--set", "fsdp.runtime=fsdp2"]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    return json.loads(done.stdout)


def gathers_of(plan):
    """The steady step's all-gathers, between the hooks of units."""
    out = []
    for step in plan["iterations"][-1]["instructions"]:
        unit, name = step.get("unit", ""), step.get("name", "")
        if step["kind"] == "all_gather":
            out.append(f"gather {unit}")
        elif step["kind"] == "mark" and name in ("begin pre_forward", "begin pre_backward"):
            out.append(f"{name[6:]} {unit}")
    return out


def sharded():
    from torch.distributed.fsdp import fully_shard

    module = net()
    for block in module.blocks:
        fully_shard(block)
    return fully_shard(module)


def gathered(module, applied):
    """The same of PyTorch: its third step, micro-batch by micro-batch."""
    import torch
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group

    seen = []
    names = {id(child): name for name, child in module.named_modules()}

    def unit_of(params):
        name = names[id(params[0]._module_info.module)]
        return "" if name in ("embed", "head") else name.rsplit(".", 1)[0]

    real = {name: getattr(group.FSDPParamGroup, name) for name in ("pre_forward", "pre_backward")}
    gather = group.foreach_all_gather

    def hook(name):
        def recorded(self, *rest, **named):
            seen.append(f"{name} {unit_of(self.fsdp_params)}")
            return real[name](self, *rest, **named)

        return recorded

    def gather_recorded(params, *rest, **named):
        seen.append(f"gather {unit_of(params)}")
        return gather(params, *rest, **named)

    group.foreach_all_gather = gather_recorded
    for name in real:
        setattr(group.FSDPParamGroup, name, hook(name))
    try:
        for _ in range(3):
            seen.clear()
            for index in range(len(applied.syncs)):
                applied.begin_micro_batch(index)
                module(torch.ones(3, 12)).sum().backward()
    finally:
        group.foreach_all_gather = gather
        for name, function in real.items():
            setattr(group.FSDPParamGroup, name, function)
    return seen


class FakeGroup(unittest.TestCase):
    """One rank of WORLD, whose collectives move nothing."""

    @classmethod
    def setUpClass(cls):
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())

    @classmethod
    def tearDownClass(cls):
        import torch.distributed as dist

        dist.destroy_process_group()


class Apply(FakeGroup):
    def check(self, settings, not_expressed=0):
        from foreshard.applying import apply

        with tempfile.TemporaryDirectory() as folder:
            plan = planned(folder, settings)
        module = sharded()
        applied = apply(module, plan)
        self.assertEqual(len(applied.not_expressed), not_expressed, applied)
        if not not_expressed:
            self.assertEqual(gathered(module, applied), gathers_of(plan), settings)
        return applied, plan

    def test_pytorch_gathers_as_planned(self):
        plain, plan = self.check([])
        self.assertNotIn("forward_prefetch", [knob for _, knob, _ in plain.settings])
        for settings in (
            ["fsdp.prefetch={forward_depth = 2}"],
            ["fsdp.prefetch={forward_depth = 1, backward_depth = 2}"],
            ['fsdp.prefetch={forward = {"blocks.0" = ["blocks.2"], "" = ["blocks.1"]}, backward = {"blocks.4" = ["blocks.2"]}}'],
            ["fsdp.reshard_after_forward=false"],
            ['fsdp.overrides=[{units = ["blocks.1", "blocks.3"], reshard_after_forward = false}]'],
            ["train.micro_batches=3", "train.no_sync=true", "fsdp.prefetch={forward_depth = 1}"],
        ):
            with self.subTest(settings):
                other, its_plan = self.check(settings)
                self.assertNotEqual((other.settings, other.syncs), (plain.settings, plain.syncs))
                if "prefetch" in settings[0]:
                    self.assertNotEqual(gathers_of(its_plan), gathers_of(plan))

    def test_without_apply_pytorch_gathers_otherwise(self):
        from foreshard.applying import Applied

        with tempfile.TemporaryDirectory() as folder:
            plan = planned(folder, ["fsdp.prefetch={forward_depth = 2}"])
        module = sharded()
        self.assertNotEqual(gathered(module, Applied(module)), gathers_of(plan))

    def test_what_has_no_knob_is_told(self):
        applied, _ = self.check(["fsdp.reshard_after_forward=2"], not_expressed=5)
        self.assertIn("blocks.0: 2 ranks keep", applied.not_expressed[0])

    def test_schedules_are_lists_too(self):
        from foreshard.applying import apply

        rows = [{"module": "", "keep": "keep"}]
        rows += [{"module": f"blocks.{i}", "keep": "reshard", "gather_forward": f"blocks.{i - 2}" if i > 1 else ""} for i in range(5)]
        rows[2]["keep"] = "always"
        rows[3]["activations"] = "recompute"
        module = sharded()
        applied = apply(module, {"schema": "foreshard.schedule/1", "units": rows, "made_for": {"micro_batches": 2}})
        self.assertEqual(applied.kept_over_micro_batches, ["blocks.1"])
        self.assertEqual(len(applied.not_expressed), 1)
        seen = gathered(module, applied)
        begin = ["pre_forward ", "gather ", "gather blocks.0", "gather blocks.1", "pre_forward blocks.0", "gather blocks.2"]
        self.assertEqual(seen[:6], begin)
        self.assertEqual(seen.count("gather blocks.1"), 1)  # kept from the first micro-batch to the last one's backward

    def test_errors_name_what_is_wrong(self):
        from foreshard.applying import apply
        from foreshard.errors import Error

        with tempfile.TemporaryDirectory() as folder:
            plan = planned(folder, [])
            fsdp1 = planned(folder, ["fsdp.runtime=fsdp1"])
        for module, document, word in (
            (net(), plan, "not sharded by FSDP2"),
            (sharded(), fsdp1, "only FSDP2"),
            (sharded(), {"schema": "foreshard.model/2"}, "no plan and no schedule"),
        ):
            with self.assertRaisesRegex(Error, word):
                apply(module, document)
        fewer = dict(plan, units=plan["units"][:-1])
        with self.assertRaises(Error) as raised:
            apply(sharded(), fewer)
        self.assertEqual(raised.exception.place, "blocks.4")


if __name__ == "__main__":
    if not os.path.exists(PROGRAM):
        print("skipped: FORESHARD names no program")
        sys.exit(77)
    unittest.main()
