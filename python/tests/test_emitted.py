"""What `schedule --emit fsdp2` writes, on PyTorch's own FSDP2 in a fake process group: it gathers as the schedule's plan does."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import types
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]
from test_apply import PROGRAM, WORLD, FakeGroup, gathered, gathers_of, net  # noqa: E402

SETTINGS = [f"cluster.world_size={WORLD}"]


def foreshard(*words):
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{words}\n{done.stdout}{done.stderr}")
    return done.stdout


def emitted(folder, more):
    """The module that was written, the schedule, and the plan that Foreshard makes of it."""
    import torch

    from foreshard.capture import capture

    model, file, script = (os.path.join(folder, name) for name in ("net.model.json", "plan.json", "apply.py"))
    capture(net(), torch.zeros(3, 12), loss=lambda out: out.sum()).save(model)
    sets = [word for setting in [*SETTINGS, *more] for word in ("--set", setting)]
    schedule = json.loads(foreshard("schedule", model, *sets, "--out", file, "--json"))
    foreshard("schedule", model, *sets, "--emit", "fsdp2", "--out", script)
    plan = json.loads(foreshard("plan", model, *sets, "--schedule", file, "--json"))
    spec = importlib.util.spec_from_file_location("emitted", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, schedule, plan


class Emitted(FakeGroup):
    def check(self, *more, batches=1):
        with tempfile.TemporaryDirectory() as folder:
            module, schedule, plan = emitted(folder, more)
        sharded = module.shard(net())
        module.apply(sharded)
        steps = types.SimpleNamespace(
            syncs=[True] * batches, begin_micro_batch=lambda index: module.begin_micro_batch(sharded, last=index == batches - 1)
        )
        self.assertEqual(gathered(sharded, steps), gathers_of(plan), more)
        return module, schedule, plan

    def test_pytorch_gathers_as_the_schedule_says(self):
        module, schedule, plan = self.check()
        self.assertEqual(plan["runtime"], "planned")
        kept = {row["module"] for row in schedule["units"] if row["keep"] != "reshard"}
        self.assertEqual({unit for unit, reshard in module.RESHARD_AFTER_FORWARD.items() if not reshard}, kept)
        self.assertTrue(any("budget" in text for text in module.NOT_EXPRESSED))

    def test_what_the_script_has_to_say_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            module, _, _ = emitted(folder, ["checkpointing.policy=block", "checkpointing.reentrant=true"])
        self.assertTrue(module.REENTRANT)
        with tempfile.TemporaryDirectory() as folder:
            module, _, _ = emitted(folder, ["checkpointing.policy=ops"])
        self.assertEqual(module.RECOMPUTED, [])  # whole blocks would be another thing
        self.assertTrue(any("checkpointing.save" in text for text in module.NOT_EXPRESSED))

    def test_units_inside_of_units_are_sharded_before_them(self):
        more = ["fsdp.wrap.policy=units", 'fsdp.wrap.units=["blocks.0.up", "blocks.0", "blocks.1"]']
        more.append('fsdp.overrides=[{units = ["blocks.0"], reshard_after_forward = true}]')  # no other units are tried
        with tempfile.TemporaryDirectory() as folder:
            module, _, _ = emitted(folder, more)
        names = [unit[0] for unit in module.UNITS]
        self.assertLess(names.index("blocks.0"), names.index("blocks.0.up"))  # as they run
        block = module.shard(net()).blocks[0]
        for unit, owner in ((block, block.down), (block.up, block.up)):
            params = unit._get_fsdp_state()._fsdp_param_group.fsdp_params
            self.assertEqual([p._module_info.module for p in params], [owner, owner])  # matrix and bias

    def test_a_unit_of_several_modules_comes_behind_what_is_inside_of_any(self):
        with tempfile.TemporaryDirectory() as folder:
            module, _, _ = emitted(folder, [])
        module.UNITS = [["blocks.0.up", "blocks.1"], ["blocks.1.down"], [""]]  # the deeper name first
        module.RESHARD_AFTER_FORWARD = {"blocks.0.up": True, "blocks.1.down": True}
        whole = net()
        sharded = []
        module.fully_shard = lambda modules, **_: sharded.append(modules)
        module.shard(whole)
        self.assertEqual(sharded, [whole.blocks[1].down, [whole.blocks[0].up, whole.blocks[1]], whole])

    def test_what_is_kept_over_micro_batches_is_gathered_once(self):
        module, _, _ = self.check("train.micro_batches=2", batches=2)
        self.assertTrue(module.KEPT_OVER_MICRO_BATCHES)

    def test_a_module_that_was_not_applied_gathers_otherwise(self):
        with tempfile.TemporaryDirectory() as folder:
            module, _, plan = emitted(folder, ["train.micro_batches=2"])
        sharded = module.shard(net())
        steps = types.SimpleNamespace(syncs=[True, True], begin_micro_batch=lambda index: None)
        self.assertNotEqual(gathered(sharded, steps), gathers_of(plan))


if __name__ == "__main__":
    if not os.path.exists(PROGRAM):
        print("skipped: FORESHARD names no program")
        sys.exit(77)
    unittest.main()
