#!/usr/bin/env python3
"""foreshard shadow over scripts that nobody changes for it: figures, set-up, plan, differences, and what goes wrong.

    scripts_test.py FORESHARD PYTHON [CLASS[.METHOD]...]     (exit code 77: this Python has no PyTorch built with CUDA)
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import tomllib
import unittest

HERE = pathlib.Path(__file__).resolve().parent
SCRIPTS = HERE / "scripts"
FORESHARD, PYTHON = "", ""
# An error of the watching's own, and one of what it stands around.
PLACES = """
import sys
from foreshard.shadow import steps, tensor_plan
from foreshard.shadow.optimizers import memory
for call in (lambda: tensor_plan.brings_rows(0), lambda: memory.tell_errors(int)("none")):
    try:
        call()
    except (AttributeError, ValueError):
        print(steps._place(sys.exc_info()[2]))
"""
# Of the version file alone: importing torch takes longer than some of these scripts.
CUDA_OF_TORCH = """
import importlib.util, os, runpy
found = importlib.util.find_spec("torch")
print(runpy.run_path(os.path.join(os.path.dirname(found.origin), "version.py"))["cuda"] or "" if found else "")
"""


def run(*command, flags=(), environment=None):
    words = [FORESHARD, "shadow", *flags, "--", *map(str, command)]
    clean = {key: value for key, value in os.environ.items() if key not in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    return subprocess.run(words, env={**clean, **(environment or {})}, capture_output=True, text=True, timeout=240)


class Shadow(unittest.TestCase):
    def watch(self, script, *words, flags=("--world", "4"), python=None, environment=None):
        """The answer of a script that must go well."""
        end = run(*(python or [PYTHON]), SCRIPTS / script, *words, flags=("--json", *flags), environment=environment)
        self.assertEqual(end.returncode, 0, end.stderr[-3000:])
        answer = json.loads(end.stdout)
        self.assertEqual(answer["schema"], "foreshard.shadow/1")
        self.assertEqual(len(answer["steps"]), 3)
        return answer, tomllib.loads(answer["job"])

    def assert_as_planned(self, answer, within=0.005, reserved=0.05, time=0.5):
        """Every step's peaks are the plan's; what is reserved hangs on what making the model left in the allocator."""
        self.assertTrue(answer["plan"], answer["notes"])
        for i, step in enumerate(answer["steps"]):
            planned = answer["plan"][min(i, len(answer["plan"]) - 1)]
            for key, delta in {"allocated_bytes": within, "reserved_bytes": reserved}.items():
                self.assertAlmostEqual(planned[key] / step[key], 1, delta=delta, msg=f"{key} of step {i + 1}: {answer['steps']} {answer['plan']}")
        if time is not None:
            self.assertAlmostEqual(planned["step_time_ns"] / step["virtual_ns"], 1, delta=time)
        self.assertEqual((step["retries"], step["ooms"]), (0, 0))

    def test_fsdp2_of_the_tutorial(self):
        answer, job = self.watch("fsdp2_tutorial.py")
        self.assert_as_planned(answer)
        self.assertEqual(answer["differences"], [])
        self.assertEqual(job["fsdp"]["wrap"]["units"], [f"layers.{i}" for i in range(10)])
        self.assertEqual(job["fsdp"]["mixed_precision"], {"param": "none", "reduce": "none"})
        self.assertEqual(job["model"]["seq"], 64)

    def test_explicit_prefetching_and_mixed_precision_are_found(self):
        answer, job = self.watch("fsdp2_tutorial.py", "--explicit-prefetching", "--mixed-precision")
        self.assert_as_planned(answer)
        self.assertEqual(answer["differences"], [])
        self.assertEqual(job["fsdp"]["prefetch"]["forward"]["layers.0"], ["layers.1", "layers.2"])
        self.assertEqual(job["fsdp"]["prefetch"]["backward"]["layers.9"], ["layers.8", "layers.7"])
        self.assertNotIn("mixed_precision", job["fsdp"])  # bfloat16, reduced in float32: the job's defaults

    def test_fsdp1_of_the_tutorial_with_convolutions_and_workers(self):
        answer, job = self.watch("fsdp1_tutorial.py")
        self.assert_as_planned(answer, time=None)  # without cuDNN its convolutions take ten times as long as planned
        self.assertEqual(job["fsdp"]["runtime"], "fsdp1")
        self.assertEqual(job["fsdp"]["wrap"]["units"], ["fc1"])
        self.assertEqual([each["where"] for each in answer["differences"]], ["train.optimizer"])  # Adadelta

    def test_both_runtimes_of_a_gpt(self):
        for fsdp in ("1", "2"):
            answer, job = self.watch("nanogpt.py", "--fsdp", fsdp, flags=("--world", "8", "--rank", "3"))
            self.assert_as_planned(answer)
            self.assertEqual(answer["differences"], [])
            self.assertEqual(job["train"]["optimizer"]["impl"], "fused")
            self.assertEqual(answer["rank"], 3)

    def test_recomputation_and_accumulation(self):
        answer, job = self.watch("nanogpt.py", "--recompute", "--accumulate", "2")
        self.assert_as_planned(answer)
        self.assertEqual(job["train"]["micro_batches"], 2)

    def test_losses_that_no_name_says(self):
        """What the script does between the model's outputs and backward is its own: the plan runs the same."""
        for fsdp, loss in (("2", "preferences"), ("2", "distillation"), ("1", "distillation")):
            answer, job = self.watch("losses.py", "--fsdp", fsdp, "--loss", loss)
            self.assert_as_planned(answer)
            self.assertNotIn("micro_batches", job["train"])  # two forwards of one backward are one
            self.assertFalse([note for note in answer["notes"] if "stands for it" in note])

    def test_a_trainers_method_in_the_place_of_forward(self):
        for words in (["fsdp2"], ["fsdp1", "2"]):
            answer, job = self.watch("trainer.py", *words)
            self.assert_as_planned(answer, within=0.001)
            self.assertEqual((answer["world_size"], answer["differences"]), (4, []), words)
            self.assertEqual((job["model"]["batch"], job["model"]["seq"], job["train"]["optimizer"]["lr"]), (8, 129, 0.01), words)
            self.assertFalse(any("stands" in note for note in answer["notes"]), answer["notes"])

    def test_gradients_that_are_held_between_micro_batches(self):
        for fsdp in ("1", "2"):
            answer, job = self.watch("losses.py", "--fsdp", fsdp, "--loss", "distillation", "--accumulate", "3")
            self.assert_as_planned(answer)
            self.assertEqual((job["train"]["micro_batches"], job["train"]["no_sync"]), (3, True))

    def test_what_units_are_told_of_single_backwards(self):
        """Flags of FSDP2's units that change between micro-batches, or stay."""
        called = {
            ("--no-embedding",): ["call:embed:set_unshard_in_backward:false"],
            ("--hybrid", "--all-reduce", "--last"): ["call::set_is_last_backward:false", "call::set_requires_all_reduce:false"],
            ("--keep", "--last", "--hold"): ["no_sync{", "call::set_is_last_backward:false", "call::set_reshard_after_backward:false"],
            ("--hold-head",): ["call:head:set_requires_gradient_sync:false,recurse=false"],
            ("--keep-forward",): ["call::set_reshard_after_forward:false"],
            ("--half", "--divide", "--sum"): ["call:head:set_force_sum_reduction_for_comms:true", "call:head:set_gradient_divide_factor:24"],
        }
        for words, calls in called.items():
            with self.subTest(words):
                answer, job = self.watch("switches.py", *words, flags=("--world", "8"))
                self.assert_as_planned(answer, within=0.001, reserved=0.01)
                self.assertEqual(answer["differences"], [])
                self.assertLessEqual(set(calls), set(job["train"]["script"][0]))
        answer, _ = self.watch("switches.py", "--async-op", flags=("--world", "8"))
        self.assert_as_planned(answer, within=0.001, reserved=0.01)
        self.assertTrue(any("_set_unshard_async_op" in note for note in answer["notes"]), answer["notes"])
        _, job = self.watch("switches.py", "--all-reduce", flags=("--world", "8"))  # nothing to all-reduce
        self.assertNotIn("script", job["train"])

    def test_optimizers_in_turns_have_plans_of_their_own(self):
        for fsdp in ("2", "1"):
            with self.subTest(fsdp):
                end = run(PYTHON, SCRIPTS / "turns.py", "in_turns", "--fsdp", fsdp, flags=("--json", "--world", "8", "--steps", "5"))
                answer = json.loads(end.stdout)
                self.assertEqual([step["turn"] for step in answer["steps"]], [0, 1, 0, 1, 0])
                (second,) = map(tomllib.loads, answer["turns"])
                first = tomllib.loads(answer["job"])
                self.assertTrue(first["train"]["optimizer"]["amsgrad"])
                self.assertEqual(first["train"]["optimizer"]["parts"], [{"params": ["maker.*"], "name": "none"}])
                self.assertEqual(second["train"]["optimizer"]["parts"], [{"params": ["judge.*"], "name": "none"}])
                for step, planned in list(zip(answer["steps"], answer["plan"]))[1:]:
                    within = 0.0001 if step["turn"] == 0 else 0.01  # the judge's gradients, which the maker's turn adds to, are there from its start
                    self.assertAlmostEqual(planned["allocated_bytes"] / step["allocated_bytes"], 1, delta=within, msg=answer["plan"])

    def test_turns_that_do_not_strictly_take_turns(self):
        """A judge that steps twice before its generator does: its second step is no part of either plan."""
        end = run(PYTHON, SCRIPTS / "turns.py", "in_turns", "--judged", "2", flags=("--json", "--world", "8", "--steps", "6"))
        answer = json.loads(end.stdout)
        self.assertEqual([step["turn"] for step in answer["steps"]], [0, 0, 1, 0, 0, 1])
        jobs = [tomllib.loads(answer["job"]), *map(tomllib.loads, answer["turns"])]
        self.assertEqual([each["train"]["optimizer"].get("amsgrad", False) for each in jobs], [True, False])
        waiting = [[{"params": [f"{each}.*"], "name": "none"}] for each in ("maker", "judge")]
        self.assertEqual([each["train"]["optimizer"]["parts"] for each in jobs], waiting)
        self.assertEqual([each["train"]["steps"] for each in jobs], [4, 2])
        self.assertTrue(any("strictly take turns" in note for note in answer["notes"]), answer["notes"])
        for step, planned in list(zip(answer["steps"], answer["plan"]))[2:]:
            self.assertAlmostEqual(planned["allocated_bytes"] / step["allocated_bytes"], 1, delta=0.006, msg=answer["plan"])

    def test_an_error_of_the_watchings_is_told_as_its_own(self):
        end = subprocess.run([PYTHON, "-c", PLACES], env={**os.environ, "PYTHONPATH": str(HERE.parents[1] / "python")}, capture_output=True, text=True, timeout=60)
        own, of_script = end.stdout.splitlines() or self.fail(end.stderr)
        self.assertIn("tensor_plan.py:", own)
        self.assertTrue(of_script.startswith("<string>:"), of_script)

    def test_several_optimizers_of_one_step(self):
        answer, job = self.watch("turns.py", "together", flags=("--world", "8"))
        self.assert_as_planned(answer)
        self.assertEqual(job["train"]["optimizer"]["impl"], "for_loop")
        self.assertEqual(job["train"]["optimizer"]["parts"], [{"params": ["judge.*"], "name": "sgd", "weight_decay": 0.0, "momentum": 0.9}])

    def test_gradients_of_outputs_come_before_those_of_the_model(self):
        """The first backward reaches outputs alone; the last step ends inside of an evaluation's inference_mode."""
        answer, job = self.watch("turns.py", "cached", flags=("--world", "8"))
        self.assert_as_planned(answer)
        self.assertEqual(job["train"]["micro_batches"], 2)
        self.assertFalse(any("stands for it" in note for note in answer["notes"]), answer["notes"])
        self.assertTrue(any("an evaluation" in note for note in answer["notes"]), answer["notes"])

    def test_an_optimizer_of_ones_own_steps_as_it_was_seen_to(self):
        """Called as PyTorch's; a carry that each step replaces, arguments that the loop made in the call."""
        answer, job = self.watch("own_steps.py", "own", flags=("--world", "8"))
        self.assert_as_planned(answer, within=0.001, time=None)
        self.assertEqual([each["where"] for each in answer["differences"]], ["train.optimizer"])
        self.assertEqual((job["train"]["optimizer"]["name"], job["train"]["optimizer"]["watched"]), ("watched", "Muon"))

    def test_what_an_optimizer_of_ones_own_keeps_stays_as_much(self):
        """In place and another each step, in the place of gradients, until the loop clears it, from its constructor on, outside of its states; and one
        that raises once."""
        for kind in ("mixed", "grad", "hook", "constructed", "attribute", "raising"):
            with self.subTest(kind):
                answer, job = self.watch("own_steps.py", kind, flags=("--world", "2"))
                began = kind in ("constructed", "raising")  # its states are there before the first step, or the first step was cut short
                for of_script, of_plan in list(zip(answer["steps"], answer["plan"], strict=True))[began:]:
                    self.assertAlmostEqual(of_plan["allocated_bytes"] / of_script["allocated_bytes"], 1, delta=0.002, msg=f"{answer['steps']} {answer['plan']}")
                self.assertEqual(job["train"]["optimizer"]["watched"], "Kept")
                self.assertFalse(any("not watched" in note for note in answer["notes"]), answer["notes"])

    def test_several_optimizers_of_ones_own_in_the_same_words(self):
        """Whatever order Python has its sets in."""
        found = [self.watch("own_steps.py", "several", flags=("--world", "2"), environment={"PYTHONHASHSEED": str(seed)}) for seed in range(3)]
        self.assertEqual(len({answer["job"] for answer, _ in found}), 1, [answer["job"] for answer, _ in found])
        self.assert_as_planned(found[0][0], within=0.002, time=None)
        optimizer = found[0][1]["train"]["optimizer"]
        self.assertEqual((optimizer["watched"], [(each["watched"], each["params"]) for each in optimizer["parts"]]), ("Kept", [("Kept-2", ["1.*", "2.*"])]))

    def test_an_optimizer_that_steps_others_is_these(self):
        """Unless it keeps something of its own."""
        answer, job = self.watch("own_steps.py", "held", flags=("--world", "8"))
        self.assert_as_planned(answer, within=0.001, time=None)
        self.assertEqual(answer["differences"], [])
        self.assertNotIn("watched", answer["job"])
        _, job = self.watch("own_steps.py", "slow", flags=("--world", "8"))
        self.assertIn("Held", [each.get("watched") for each in (job["train"]["optimizer"], *job["train"]["optimizer"].get("parts", []))])

    def test_steps_inside_of_a_backward_end_with_it(self):
        answer, job = self.watch("own_steps.py", "inside", flags=("--world", "8"))
        self.assert_as_planned(answer, within=0.001, time=None)
        self.assertEqual(answer["differences"], [])
        self.assertEqual(job["train"]["optimizer"]["impl"], "in_backward_foreach")

    def test_an_allocator_that_has_no_history(self):
        answer, job = self.watch("own_steps.py", "mixed", flags=("--world", "2"), environment={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
        self.assertNotIn("watched", job["train"]["optimizer"])
        self.assertTrue(any("is not watched: the allocator has no history" in note for note in answer["notes"]), answer["notes"])

    def test_parameters_that_no_module_has(self):
        """No model, and so no file that has an optimizer's steps."""
        answer, job = self.watch("own_steps.py", "bare", flags=("--world", "2"))
        self.assertFalse(answer["plan"])
        self.assertNotIn("watched", job["train"]["optimizer"])

    def test_batch_norms_that_fsdp1_leaves_out_of_mixed_precision(self):
        answer, job = self.watch("own_steps.py", "norms", flags=("--world", "8"))
        self.assert_as_planned(answer, within=0.0001, time=None)
        self.assertNotIn("param", job["fsdp"].get("mixed_precision", {}))  # bfloat16 is the default

    def test_a_frozen_teacher_in_flat_parameters(self):
        answer, job = self.watch("own_steps.py", "teacher", flags=("--world", "8"))
        self.assert_as_planned(answer, within=0.0001, time=None)
        self.assertIn("head.weight", {name.partition(".")[2] for name in job["fsdp"]["frozen"]})
        self.assertFalse(any("an evaluation" in note for note in answer["notes"]), answer["notes"])

    def test_logits_of_a_micro_batch_that_are_named_in_the_next(self):
        answer, job = self.watch("own_steps.py", "micro", flags=("--world", "8"))
        self.assert_as_planned(answer, within=0.0001, time=None)
        self.assertTrue(job["train"]["keeps_outputs"])

    def test_a_rollout_that_several_micro_batches_share(self):
        """Once a step, and once for two steps."""
        for runtime in ("fsdp1", "fsdp2"):
            for kind, first in (("rollout", ["zero", "fwd", "bwd", "fwd_rest", "bwd", "step"]), ("steps", ["zero", "fwd", "bwd", "step"])):
                with self.subTest(runtime=runtime, kind=kind):
                    answer, job = self.watch("beside.py", kind, runtime, flags=("--world", "8"))
                    self.assert_as_planned(answer, within=0.012, time=None)  # 1 MiB of a small model
                    self.assertEqual(answer["differences"], [])
                    script = job["train"]["script"]
                    self.assertEqual(script[0], first)
                    self.assertEqual(["fwd_rest" in each for each in script], [True] * 3 if kind == "rollout" else [False, True, False])

    def test_checkpoints_that_a_script_has_written_itself(self):
        """Two blocks a region; one from a copy on the host; PyTorch's own, reentrant, inside of a unit's forward (no third gather under FSDP1)."""
        for kind in ("several", "host", "method"):
            for runtime in ("fsdp1", "fsdp2"):
                with self.subTest(kind=kind, runtime=runtime):
                    answer, _ = self.watch("elsewhere.py", kind, runtime, flags=("--world", "8"))
                    self.assert_as_planned(answer, within=0.0005, reserved=0.03, time=None)
                    self.assertEqual(answer["differences"], [])
                    self.assertFalse(any("several backwards" in note for note in answer["notes"]), answer["notes"])

    def test_saved_tensors_on_the_host(self):
        """save_on_cpu in the model, which takes weights too, and hooks with a threshold around the model and its loss."""
        for kind in ("saved", "hooks"):
            for runtime in ("fsdp1", "fsdp2"):
                with self.subTest(kind=kind, runtime=runtime):
                    answer, _ = self.watch("elsewhere.py", kind, runtime, flags=("--world", "8"))
                    self.assert_as_planned(answer, within=0.0005, reserved=0.03, time=None)
                    self.assertEqual(answer["differences"], [])

    def test_a_teacher_in_float16_and_a_loss_that_is_as_large_as_its_terms(self):
        """Rows that the ranks do not divide; the loss of the step before is there until the next one is made."""
        for runtime in ("fsdp1", "fsdp2"):
            with self.subTest(runtime):
                answer, _ = self.watch("elsewhere.py", "teacher", runtime, flags=("--world", "8"))
                self.assert_as_planned(answer, within=0.004, reserved=0.03, time=None)  # 1 MiB of a small model

    def test_units_of_several_types(self):
        answer, _ = self.watch("elsewhere.py", "types", "fsdp2", flags=("--world", "8"))
        self.assert_as_planned(answer, within=0.0005, reserved=0.03, time=None)
        self.assertEqual(answer["differences"], [])

    def test_what_is_frozen_as_training_goes_on_is_told(self):
        for runtime in ("fsdp1", "fsdp2"):
            with self.subTest(runtime):
                answer, _ = self.watch("elsewhere.py", "freezing", runtime, flags=("--world", "8"))
                self.assertTrue(any("what trains changes from step to step (6 parameters, blocks.0" in note for note in answer["notes"]), answer["notes"])

    def test_a_head_that_nothing_shards(self):
        for runtime in ("fsdp1", "fsdp2"):
            with self.subTest(runtime):
                answer, job = self.watch("beside.py", "head", runtime, flags=("--world", "8"))
                self.assert_as_planned(answer, within=0.004, time=None)
                self.assertEqual(job["fsdp"]["ignored"], ["beside.*"])
                self.assertEqual([each["params"] for each in job["train"]["optimizer"]["parts"]], [["beside.*"]])

    def test_what_pytorch_refuses_is_pytorchs_to_say(self):
        end = run(PYTHON, SCRIPTS / "own_steps.py", "transformed", flags=("--json", "--world", "8"))
        self.assertEqual(end.returncode, 1, end.stderr[-2000:])
        error = json.loads(end.stdout)["error"]
        self.assertIn("NotImplementedError: Cannot access storage", error["message"])
        self.assertIn("_fsdp_param.py:", error["hint"])  # not where the watching stands between

    def test_rows_that_labels_of_the_host_choose(self):
        answer, _ = self.watch("own_steps.py", "labelled", flags=("--world", "8"))
        self.assert_as_planned(answer, within=0.001, time=None)
        self.assertFalse(any("chooses every row" in note for note in answer["notes"]), answer["notes"])

    def test_a_root_that_casts_what_it_returns(self):
        answer, _ = self.watch("own_steps.py", "returned", flags=("--world", "8"))
        self.assert_as_planned(answer, within=0.0001, time=None)

    def test_blocks_that_fsdp1_wraps_twice(self):
        answer, job = self.watch("turns.py", "twice", flags=("--world", "8"))
        self.assert_as_planned(answer)
        self.assertEqual(answer["differences"], [])
        self.assertEqual([each["units"] for each in job["fsdp"]["overrides"]], [["blocks.0"], ["blocks.1"], ["blocks.2"]])

    def test_what_the_script_holds_beside_its_model(self):
        """A teacher that is whole on every rank: no part of the model, bytes of the job."""
        answer, job = self.watch("losses.py", "--teacher", "whole")
        self.assert_as_planned(answer, reserved=0.1)
        held = job["train"]["beside"]
        self.assertGreater(int(held[:-3]) * 1024 if held.endswith("KiB") else int(held.rstrip("B")), 30e6)

    def test_what_runs_without_gradients_for_the_loss(self):
        """The policy as it was, before its own forward; a sharded teacher before or after the student: parts of the step."""
        for fsdp in ("2", "1"):
            answer, _ = self.watch("losses.py", "--fsdp", fsdp, "--loss", "clipped")
            self.assert_as_planned(answer)
            self.assertEqual(answer["differences"], [])
        for fsdp, more in (("2", []), ("2", ["--teacher-first"]), ("1", []), ("1", ["--teacher-first"])):
            answer, job = self.watch("losses.py", "--fsdp", fsdp, "--teacher", "sharded", *more)
            self.assert_as_planned(answer, reserved=0.1)
            self.assertEqual(answer["differences"], [])
            self.assertFalse(job["fsdp"]["wrap"]["root"])
            self.assertIn("teacher.blocks.0", job["fsdp"]["wrap"]["units"])

    def test_what_models_carry_beside_their_parameters(self):
        """Tables on the host, norms of weights, forwards by partial, places for features; a frozen encoder in another dtype."""
        for words in (["table"], ["spectral"], ["directions"], ["partial"], ["rows"], ["encoder", "fsdp1"], ["partial", "rows", "fsdp1"]):
            with self.subTest(words):
                answer, _ = self.watch("carried.py", *words)
                self.assert_as_planned(answer, within=0.02 if words == ["directions"] else 0.002)
                self.assertEqual(answer["differences"], [])
                self.assertFalse(any("stands" in note for note in answer["notes"]), answer["notes"])

    def test_models_that_train_in_evaluation_mode(self):
        """As they come from a hub: no dropout; and an evaluation with gradients that comes first is none of their steps."""
        for words in (["eval"], ["check"]):
            with self.subTest(words):
                answer, job = self.watch("modes.py", *words)
                self.assert_as_planned(answer, within=0.001)
                self.assertEqual((job["model"]["batch"], job["model"]["seq"]), (4, 256))
                self.assertEqual("aten.native_dropout.default" in self.operators(*words), words == ["check"])

    def operators(self, *words):
        """Names of the model's operators that the script leaves behind."""
        with tempfile.TemporaryDirectory() as folder:
            self.watch("modes.py", *words, flags=("--world", "4", "--out", folder))
            return {op["op"] for op in json.loads((pathlib.Path(folder) / "model.json").read_text())["ops"]}

    def test_values_of_the_device_that_a_script_compares_or_takes_back(self):
        """All are zeros, so that they are alike, and finite; a generator's state that is no state stays what it was."""
        answer, job = self.watch("modes.py", "alike", "finite", "shuffle")
        self.assertEqual(job["train"].get("clip_grad_norm", 1.0), 1.0)
        self.assert_as_planned(answer, within=0.001)
        self.assertTrue(any("all of them read as zeros" in note for note in answer["notes"]), answer["notes"])
        self.assertTrue(any("keeps the one that it has" in note for note in answer["notes"]), answer["notes"])

    def test_settings_that_refuse_to_be_changed_and_empty_caches(self):
        answer, _ = self.watch("modes.py", "frozen", "cache")
        self.assert_as_planned(answer, within=0.001)
        self.assertFalse(any("cannot be run again" in note or "counted as made" in note for note in answer["notes"]), answer["notes"])

    def test_blocks_that_run_again_from_inside_their_call(self):
        """FSDP1 wraps such a module, so that what runs again gathers nothing; FSDP2's hooks are in what runs again."""
        for words in (["call", "fsdp1"], ["call"]):
            with self.subTest(words):
                answer, _ = self.watch("modes.py", *words)
                self.assert_as_planned(answer, within=0.002, reserved=0.1)
                self.assertEqual(answer["differences"], [])

    def test_a_batch_that_the_model_is_not_given_is_there_all_the_same(self):
        answer, job = self.watch("modes.py", "images")
        self.assert_as_planned(answer, within=0.002)
        self.assertEqual(job["train"]["beside"], "12MiB")

    def test_images_that_a_function_lets_go_of_and_layers_that_were_whole_on_the_device(self):
        for flags, made in (([], "device_blocks_first"), (["--edges"], "device"), (["--host", "--edges"], "host"), (["--alone"], "device_blocks_first")):
            with self.subTest(flags):
                answer, job = self.watch("images.py", *flags, flags=("--world", "8"))
                self.assert_as_planned(answer, within=0.001, reserved=0.001)
                self.assertEqual(answer["differences"], [])
                self.assertEqual(job["cluster"]["init"], made)

    def test_what_is_left_on_the_device_step_by_step_is_told(self):
        for keeps in (True, False):
            answer, _ = self.watch("images.py", *["--keeps"][:keeps], flags=("--world", "8"))
            told = [note for note in answer["notes"] if "every step leaves 0.57 MiB more on the device" in note]
            self.assertEqual(len(told), int(keeps), answer["notes"])

    def test_workers_write_no_lines_of_the_devices_log(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "run.fst"
            answer, _ = self.watch("modes.py", "workers", flags=("--world", "4", "--timeline", str(path)))
            self.assertTrue(path.exists())
        self.assert_as_planned(answer, within=0.001)

    def test_optimizers_in_turns_are_told(self):
        answer, _ = self.watch("losses.py", "--loss", "mean", "--turns")
        self.assertTrue(any("in turns" in note for note in answer["notes"]), answer["notes"])
        self.assertEqual(len(answer["steps"]), 3)

    def test_outputs_that_a_name_keeps(self):
        answer, job = self.watch("losses.py", "--loss", "named")
        self.assert_as_planned(answer, reserved=0.02)
        self.assertTrue(job["train"]["keeps_outputs"])

    def test_blocks_that_are_cut_over_tensor_ranks(self):
        answer, job = self.watch("losses.py", "--tensor", "--loss", "named")
        self.assert_as_planned(answer)
        self.assertEqual(job["mesh"]["tensor"], 2)
        self.assertEqual(job["mesh"]["plan"], {"blocks.*.down": "rowwise", "blocks.*.up": "colwise"})
        self.assertFalse(job["mesh"]["sequence_parallel"])
        self.assertEqual(answer["differences"], [])

    def test_layers_over_tensor_ranks_that_nothing_shards(self):
        cases = {(): [], ("--clip", "--optimizer", "fused"): [58], ("--optimizer", "foreach", "--micro-batches", "2"): [], ("--optimizer", "sgd"): [],
                 ("--optimizer", "momentum"): [58], ("--plain", "--optimizer", "for-loop"): [], ("--tied",): []}  # fmt: skip
        for words, traps in cases.items():
            with self.subTest(words):
                answer, job = self.watch("tensor_ranks.py", *words)
                self.assert_as_planned(answer, within=0.006, reserved=0.02, time=None)
                self.assertEqual(answer["differences"], [])
                self.assertEqual((job["fsdp"]["runtime"], job["mesh"]["tensor"], job["cluster"]["world_size"]), ("none", 4, 4))
                self.assertEqual(job["fsdp"].get("allow_traps", []), traps)
                self.assertEqual(job["train"].get("micro_batches", 1), 2 if "--micro-batches" in words else 1)

    def test_layers_over_tensor_ranks_beside_one_data_rank(self):
        answer, job = self.watch("tensor_ranks.py", "--beside", "one", "--clip")
        self.assert_as_planned(answer, within=0.002)
        self.assertEqual((answer["differences"], job["fsdp"].get("allow_traps", [])), ([], []))
        self.assertEqual(job["fsdp"]["wrap"]["units"], [f"blocks.{i}" for i in range(3)])

    def test_layers_over_tensor_ranks_that_fsdps_ground_replicates(self):
        answer, job = self.watch("tensor_ranks.py", "--beside", "copies", "--clip")
        self.assert_as_planned(answer, within=0.002)
        self.assertEqual(answer["differences"], [])
        self.assertEqual((job["fsdp"]["strategy"], job["cluster"]["shard_group"], job["cluster"]["world_size"]), ("HYBRID_SHARD", 1, 4))
        self.assertEqual(job["fsdp"]["wrap"]["units"], [f"blocks.{i}" for i in range(3)])

    def test_ddp_around_dtensors_is_told(self):
        for way in ("ddp", "replicate"):
            answer, _ = self.watch("tensor_ranks.py", "--beside", way)
            self.assertTrue(any("DDP replicates a model" in note for note in answer["notes"]), answer["notes"])

    def test_layers_that_are_cut_in_ways_of_their_own(self):
        """Heads that a rank counts when it makes the model, keys of fewer heads than ranks, a head tied behind the plan, one DTensor for several layers,
        a table that is gathered beside logits that the loss gathers, DTensors in FSDP1's flat parameters, styles that say nothing of what comes in."""
        found = {"told": {}, "keys": {"allow_traps": [54]}, "tied": {"tied": {"head.weight": "embed.weight"}}, "inner": {}, "table": {}, "fsdp1": {}, "silent": {}}
        for way, fsdp in found.items():
            with self.subTest(way):
                answer, job = self.watch("styles.py", way, flags=("--world", "8"))
                self.assert_as_planned(answer, within=0.001, reserved=0.04)
                self.assertEqual(answer["differences"], [])
                self.assertEqual(job["mesh"]["tensor"], 4)
                self.assertEqual({key: job["fsdp"].get(key) for key in fsdp}, fsdp)
                self.assertEqual("allow_traps" in job["fsdp"], way == "keys", job["fsdp"])

    def test_layers_that_a_script_cuts_by_hand(self):
        """Its model is captured as it runs on one rank; the ranks that it meets beside FSDP's are the tensor dimension."""
        settings = {("--beside", "fsdp2", "--recompute"): 2, ("--beside", "fsdp2", "--sequence", "--vocab", "--tensor", "4"): 4, ("--beside", "fsdp1",): 2,
                    ("--beside", "ddp",): 2, ("--beside", "none", "--tensor", "8", "--vocab"): 8}  # fmt: skip
        for words, ranks in settings.items():
            with self.subTest(words):
                answer, job = self.watch("by_hand.py", *words, flags=("--world", "8"))
                self.assert_as_planned(answer, within=0.0005, reserved=0.01, time=None)
                buckets = {"all-reduce"} if "ddp" in words else set()  # other ones than the plan's, which notes say
                self.assertEqual({each["kind"] for each in answer["differences"]}, buckets, answer["differences"])
                self.assertEqual((job["mesh"], job.get("cluster", {}).get("world_size", 8)), ({"tensor": ranks}, 8))

    def test_collectives_of_another_kind_are_told(self):
        """What no style says: a product that is scattered along its width and gathered by its module."""
        answer, _ = self.watch("styles.py", "width", flags=("--world", "8"))
        self.assert_as_planned(answer)
        kinds = {each["kind"] for each in answer["differences"]}
        self.assertEqual(kinds, {"gather", "reduce", "all-reduce"}, answer["differences"])

    def test_modules_that_cut_and_gather_along_the_sequence(self):
        answer, job = self.watch("styles.py", "edges", flags=("--world", "8"))
        self.assert_as_planned(answer, within=0.001, reserved=0.04)
        self.assertEqual(answer["differences"], [])
        plan = job["mesh"]["plan"]
        self.assertEqual({plan["blocks.0"], plan["blocks.2"], plan["blocks.*.gated"]}, {"part", "gather_output", "gather_local"})
        self.assertNotIn("blocks.*", plan)  # the block between them has none

    def test_projections_that_are_gathered_beside_logits_that_are_not(self):
        answer, job = self.watch("styles.py", "sliced", flags=("--world", "8"))
        self.assert_as_planned(answer, within=0.001, reserved=0.04)
        self.assertEqual(answer["differences"], [])
        self.assertEqual((job["mesh"]["plan"]["blocks.*.gated.up"], job["mesh"]["plan"]["head"]), ("colwise_gathered", "head"))

    def test_rows_that_each_tensor_rank_brings(self):
        """The model is captured with all ranks' rows; what no layer gathers trains on a rank's own (trap 54)."""
        answer, job = self.watch("styles.py", "own", flags=("--world", "8"))
        self.assert_as_planned(answer, within=0.001, reserved=0.04)
        self.assertEqual(answer["differences"], [])
        self.assertEqual((job["mesh"]["plan"][""], job["fsdp"]["allow_traps"]), ("rows", [54]))

    def test_what_no_plan_cuts_is_told(self):
        for way, text in {"hand": "scale is cut over ranks, and is no layer's", "rows": "head hands on rows of what it has made columns of"}.items():
            answer, _ = self.watch("styles.py", way, flags=("--world", "8"))
            self.assertTrue(any(text in note for note in answer["notes"]), answer["notes"])
            self.assertFalse(answer["plan"])

    def test_sequences_that_ranks_share(self):
        for way, buffers in {"buffers": "resized", "modules": "whole"}.items():
            with self.subTest(way):
                answer, job = self.watch("mesh.py", "--context", way)
                self.assert_as_planned(answer)
                self.assertEqual(job["mesh"]["context"], 2)
                self.assertEqual(job["mesh"].get("context_buffers", "resized"), buffers)
                self.assertEqual(job["model"]["seq"], 512)
                self.assertEqual(answer["differences"], [])

    def test_collectives_that_a_policy_keeps(self):
        """The model is captured whole; its policy is asked about what cutting it brings in."""
        answer, _ = self.watch("mesh.py", "--tensor")
        self.assert_as_planned(answer)
        self.assertEqual(answer["differences"], [])

    def test_logits_of_tensor_ranks_that_the_loss_makes_whole(self):
        """full_tensor() of a DTensor behind the model: a gather, while the rank's part is what a name keeps."""
        answer, job = self.watch("mesh.py", "--tensor", "--logits", "gathered")
        self.assert_as_planned(answer)
        self.assertEqual(job["mesh"]["plan"]["head"], "head_gathered")
        self.assertFalse(job["mesh"]["loss_parallel"])
        self.assertFalse([note for note in answer["notes"] if "stands for it" in note])

    def test_sequences_that_ranks_share_and_nothing_shards(self):
        """The script sums the gradients itself, which the plan has not, and is told."""
        answer, job = self.watch("mesh.py", "--context", "buffers", "--over", "none", flags=("--world", "2"))
        self.assert_as_planned(answer, time=None)
        self.assertEqual(((job["fsdp"]["runtime"]), job["fsdp"]["wrap"]["root"], job["mesh"]["context"]), ("none", False, 2))
        self.assertEqual({each["kind"] for each in answer["differences"]}, {"all-reduce"})

    def test_sequences_that_ranks_share_beside_those_that_shard(self):
        answer, _ = self.watch("mesh.py", "--context", "buffers", "--over", "rest", flags=("--world", "4"))
        self.assertFalse(answer["plan"])
        self.assertTrue(any("share a sequence" in note for note in answer["notes"]), answer["notes"])

    def test_sequences_that_a_script_cuts_by_hand(self):
        """Ranks that share them lie among those that FSDP shards over, or beside them; a plan that cuts layers leaves their collectives alone."""
        ways = [([], None), (["--gather"], None), (["--data"], 2), (["--tensor", "2"], 2), (["--tensor", "2", "--gather"], 2)]
        ways += [(["--placed", "code"], None), (["--placed", "style", "--data"], 2), (["--placed", "own style"], None)]
        for words, degree in ways:
            with self.subTest(words), tempfile.TemporaryDirectory() as folder:
                answer, job = self.watch("sequences.py", *words, flags=("--world", "8", "--out", folder))
                self.assert_as_planned(answer, within=0.0005, reserved=0.02)
                self.assertEqual(answer["differences"], [])
                self.assertEqual(job.get("mesh", {}).get("tensor"), degree)
                document = json.loads((pathlib.Path(folder) / "model.json").read_text())
                apart = 2 if "--tensor" in words else 1
                self.assertEqual(document["mesh"], [{"name": "tensor" if "--data" in words else "script", "ranks": [0, apart], "place": 0}])

    def test_decoders_that_go_their_own_way_in_one_place(self):
        for way, traps in (("positions", None), ("teacher", None), ("fused", [53]), ("summed", None)):
            with self.subTest(way):
                answer, job = self.watch("corners.py", way, flags=("--world", "8"))
                self.assert_as_planned(answer, within=0.01 if way == "teacher" else 0.0005, reserved=0.02)
                self.assertEqual(answer["differences"], [])
                self.assertEqual(job["fsdp"].get("allow_traps"), traps)

    def test_norms_that_gather_what_they_hand_on(self):
        answer, job = self.watch("mesh.py", "--tensor", "--norms")
        self.assert_as_planned(answer)
        self.assertEqual(job["mesh"]["plan"]["blocks.*.gated"], "gather")

    def test_a_first_block_that_cuts_the_sequence(self):
        answer, job = self.watch("mesh.py", "--tensor", "--split")
        self.assert_as_planned(answer)
        self.assertNotIn("gather", [style for name, style in job["mesh"]["plan"].items() if name.startswith("blocks")])

    def test_experts_on_ranks(self):
        _, job = self.watch("mesh.py", "--experts")  # it sets no divide factor
        self.assertEqual(job["mesh"], {"expert": 2, "expert_divide_factor": -1, "plan": {"blocks.*.experts": "experts"}})

    def test_experts_beside_sequences_that_ranks_share(self):
        """What the ring sends on in backward is no exchange of the script's: experts are whole in the model, and the plan cuts them."""
        with tempfile.TemporaryDirectory() as folder:
            _, job = self.watch("mesh.py", "--experts", "--context", "modules", flags=("--world", "4", "--out", folder))
            document = json.loads((pathlib.Path(folder) / "model.json").read_text())
        self.assertEqual({key: job["mesh"].get(key) for key in ("expert", "context", "plan")}, {"expert": 2, "context": 2, "plan": {"blocks.*.experts": "experts"}})
        self.assertEqual([row["shape"] for row in document["params"] if row["fqn"] == "blocks.0.experts.stacked"], [[4, 256, 256]])

    def test_checkpoint_wrappers_inside_of_units_and_around_them(self):
        for words in (("fsdp1", "inside"), ("fsdp1", "around"), ("fsdp2", "around"), ("fsdp2", "both"), ("fsdp1", "inside", "reentrant"),
                      ("fsdp2", "inside", "reentrant")):  # fmt: skip
            with self.subTest(words):
                answer, job = self.watch("wrapped.py", *words)
                self.assert_as_planned(answer, within=0.0005)
                self.assertEqual(answer["differences"], [])
                self.assertEqual(job["fsdp"]["wrap"]["units"], [f"blocks.{i}" for i in range(6)])

    def test_styles_that_stand_in_forwards(self):
        """As Transformers' do; a hook sums gradients of a norm of heads, and a packed layer is cut part by part."""
        answer, job = self.watch("mesh.py", "--forwards")
        self.assert_as_planned(answer, within=0.0005, reserved=0.02)
        self.assertEqual(answer["differences"], [])
        words = {name.removeprefix("blocks.*."): word for name, word in job["mesh"]["plan"].items()}
        self.assertEqual(words, {"q": "colwise", "k": "colwise", "v": "colwise", "up": "packed_colwise", "o": "rowwise", "down": "rowwise",
                                 "heads": "gradient_sum", "head": "head"})  # fmt: skip
        self.assertNotIn("allow_traps", job["fsdp"])

    def test_tokens_that_tensor_ranks_split_for_experts(self):
        """Experts lie on the tensor ranks too; their code asks of a DTensor what their ranks' exchange does for it."""
        answer, job = self.watch("chosen.py")
        self.assert_as_planned(answer, within=0.0005, reserved=0.02)
        self.assertEqual(answer["differences"], [])
        self.assertEqual((job["mesh"]["tensor"], job["mesh"]["expert"]), (2, 2))
        self.assertEqual(job["mesh"]["plan"]["blocks.*.mixture.order"], "split")
        self.assertEqual(job["fsdp"]["allow_traps"], [54, 57])

    def test_experts_that_are_cut_over_tensor_ranks_too(self):
        answer, job = self.watch("chosen.py", "--cut", flags=("--world", "8"))
        self.assert_as_planned(answer, within=0.002, reserved=0.02)
        self.assertEqual(answer["differences"], [])
        self.assertEqual((job["mesh"]["tensor"], job["mesh"]["expert"]), (2, 2))
        self.assertEqual(job["mesh"]["plan"]["blocks.*.mixture.experts"], "cut_experts")
        self.assertEqual(job["fsdp"]["allow_traps"], [46])  # no divide factor; routers weigh what experts take

    def test_weights_that_are_tied_when_they_are_sharded(self):
        answer, job = self.watch("mesh.py", "--tie")
        self.assert_as_planned(answer, within=0.0005, reserved=0.02)
        self.assertEqual(answer["differences"], [])
        self.assertEqual(job["fsdp"]["tied"], {"head.weight": "embed.weight"})

    def test_tokens_that_the_device_has_counted_go_in_even_shares(self):
        answer, _ = self.watch("mesh.py", "--exchange")
        self.assertTrue(any("even share" in note for note in answer["notes"]), answer["notes"])

    def test_experts_whose_rows_the_script_exchanges_by_itself(self):
        """By counts that its routers make on the device: routing is balanced, which is told. The program is that of one rank, with its collectives."""
        settings = {
            ("--send", "function"): ["all_to_all", "all_to_all"], ("--send", "functional", "--run", "grouped", "--count", "histc", "--recompute"): ["all_to_all"],
            ("--select",): ["all_to_all", "all_to_all"],
            ("--send", "nn", "--run", "padded", "--count", "one_hot"): ["all_to_all", "all_to_all"], ("--send", "everywhere", "--run", "loop"): ["all_gather", "reduce_scatter"],
            ("--send", "gathered", "--run", "loop", "--count", "scatter"): ["all_reduce", "all_reduce"],
        }  # fmt: skip
        for words, kinds in settings.items():
            with self.subTest(words), tempfile.TemporaryDirectory() as folder:
                answer, job = self.watch("experts.py", *words, flags=("--world", "8", "--out", folder))
                self.assert_as_planned(answer, within=0.0005, reserved=0.01)
                self.assertEqual(answer["differences"], [])
                self.assertTrue(any("routing is taken as balanced" in note for note in answer["notes"]), answer["notes"])
                self.assertEqual((job["mesh"]["expert"], job["mesh"]["expert_divide_factor"]), (4, -1))
                document = json.loads((pathlib.Path(folder) / "model.json").read_text())
                self.assertEqual(document["choices"], "assumed")
                self.assertEqual(document["mesh"], [{"name": "expert", "ranks": [0, 1, 2, 3], "place": 0}])
                own = {row["fqn"] for row in document["params"] if row.get("part") == {"mesh": 0}}
                self.assertEqual(own, {row["fqn"] for row in document["params"] if ".experts." in row["fqn"]})
                met = [row for op in document["ops"] for key in ("meets", "meets_backward") for row in op.get("kwargs", {}).get(key, [])]
                self.assertLessEqual(set(kinds), {row[0] for row in met}, met)

    def test_dispatchers_as_libraries_have_them(self):
        for words in (["capacity"], ["counted"], ["masks", "--experts", "12", "--chosen", "3", "--seq", "250"], ["lists"], ["loop"]):
            with self.subTest(words):
                answer, job = self.watch("dispatchers.py", *words, flags=("--world", "8", "--rank", "6"))
                self.assert_as_planned(answer, within=0.0005, reserved=0.01)
                self.assertEqual((answer["differences"], job["mesh"]["expert"]), ([], 4))

    def test_experts_that_no_other_rank_has(self):
        """Nothing shards them: FSDP2 was told to leave them alone."""
        answer, job = self.watch("experts.py", "--degree", "8", "--run", "grouped", "--batch", "3", flags=("--world", "8"))
        self.assert_as_planned(answer, within=0.0005, reserved=0.01)
        self.assertEqual(answer["differences"], [])
        self.assertEqual(job["fsdp"]["ignored"], [f"blocks.{i}.mixture.experts.{name}" for i in range(3) for name in ("up", "down")])

    def test_experts_in_flat_parameters_over_groups_of_their_own_are_told(self):
        answer, _ = self.watch("experts.py", "--fsdp", "1", flags=("--world", "8"))
        self.assertTrue(any("over fewer ranks than the rest" in note for note in answer["notes"]), answer["notes"])

    def test_lengths_that_the_host_gave_the_device_are_read_back(self):
        """In forward and where it runs again; the head has nn.Module's call as its own, the loss is summed by a function of torch.distributed.nn."""
        for words in ([], ["--reentrant"]):
            with self.subTest(words):
                answer, job = self.watch("lengths.py", *words)
                self.assert_as_planned(answer, within=0.0005, reserved=0.001, time=None)
                self.assertIn("head", job["fsdp"]["wrap"]["units"])
                self.assertEqual([d["kind"] for d in answer["differences"]], ["all-reduce"], answer["differences"])
                self.assertTrue(any("hang on the values of this batch" in note for note in answer["notes"]), answer["notes"])

    def test_a_replica_by_hooks(self):
        answer, job = self.watch("mesh.py", "--replicate")
        self.assert_as_planned(answer, within=0.02, time=None)
        self.assertEqual(job["fsdp"]["runtime"], "none")

    def test_offload_where_the_root_has_no_parameters(self):
        answer, job = self.watch("mesh.py", "--offload")
        self.assert_as_planned(answer, time=None)
        self.assertTrue(job["fsdp"]["cpu_offload"])

    def test_parts_of_a_module_that_is_no_unit(self):
        """Each part is a root of FSDP's; the step calls one after the other."""
        answer, job = self.watch("losses.py", "--parts")
        self.assert_as_planned(answer)
        self.assertIn("head", job["fsdp"]["wrap"]["units"])
        self.assertIn("body.blocks.0", job["fsdp"]["wrap"]["units"])

    def test_heads_that_are_roots_beside_their_backbone(self):
        """Each root keeps a reduction's input, and has streams, so that its memory comes from pools of its own."""
        for more in ([], ["--teacher"]):
            answer, job = self.watch("heads.py", *more)
            self.assert_as_planned(answer, reserved=0.02)
            self.assertEqual(answer["differences"], [])
            self.assertFalse(job["fsdp"]["wrap"]["root"])

    def test_a_recipe_with_groups_on_the_host_and_a_sharded_checkpoint(self):
        answer, job = self.watch("recipe.py")
        self.assert_as_planned(answer, time=None)
        self.assertEqual(job["train"]["optimizer"]["impl"], "fused")
        self.assertNotIn("grad_scaler", job["train"])

    def test_states_that_are_made_before_the_first_backward_are_no_step(self):
        answer, job = self.watch("recipe.py", "--resume")
        self.assert_as_planned(answer, within=0.12, reserved=0.15, time=None)  # in its first step the plan makes them
        self.assertTrue(any("before the first backward" in note for note in answer["notes"]), answer["notes"])
        self.assertNotIn("lr", job["train"]["optimizer"])  # 3e-4, the default; 0 while they are made

    def test_a_scaler_of_fsdp_is_found(self):
        answer, job = self.watch("recipe.py", "--scaler")
        self.assert_as_planned(answer, within=0.01, time=None)  # the first step takes 0.6 % more
        self.assertTrue(job["train"]["grad_scaler"]["enabled"])

    def test_distributions_look_at_no_values(self):
        answer, _ = self.watch("losses.py", "--loss", "policy")
        self.assert_as_planned(answer)

    def test_masks_of_the_device_choose_every_row(self):
        answer, _ = self.watch("losses.py", "--loss", "masked")
        self.assert_as_planned(answer)
        self.assertTrue(any("chooses every row" in note for note in answer["notes"]), answer["notes"])
        self.assertFalse([note for note in answer["notes"] if "stands for it" in note])

    def test_when_gradients_of_the_step_before_go(self):
        answer, job = self.watch("losses.py", "--zero", "after_forward")
        self.assert_as_planned(answer)
        self.assertEqual(job["train"]["script"][0], ["fwd", "zero", "bwd", "step"])
        answer, job = self.watch("losses.py", "--zero", "keep")
        self.assert_as_planned(answer)
        self.assertEqual(job["train"]["zero_grad"], "zero")

    def test_what_differs_from_the_job_that_was_meant_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            end = run(PYTHON, SCRIPTS / "nanogpt.py", "--prefetch", flags=("--world", "4", "--out", folder))
            self.assertEqual(end.returncode, 0, end.stderr[-2000:])
            answer, _ = self.watch("nanogpt.py", "--skip", "1", flags=("--world", "4", "--job", f"{folder}/job.toml"))
        told = {each["kind"]: each for each in answer["differences"]}
        self.assertEqual(told["unit"]["where"], "h.0")
        self.assertIn("a unit in the plan", told["unit"]["text"])
        self.assertEqual(told["setting"]["where"], "fsdp.prefetch.forward")
        self.assertEqual(told["bytes"]["where"], "(root)")  # which holds the forgotten unit's parameters now

    def test_a_script_that_fails_leaves_the_answer_before_as_it_was(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("model-config.json", "device-0.jsonl", "own.jsonl", "job-2.toml", "model-2.json", "job-3.toml", "model-3.json"):
                (pathlib.Path(folder) / name).write_text("old")
            setting = {"units": [], "optimizer": {}, "model": {"file": "model-2.json"}}
            (pathlib.Path(folder) / "report.json").write_text(json.dumps({"steps": [], "setting": None, "turns": [setting]}))
            end = run(PYTHON, SCRIPTS / "nanogpt.py", flags=("--world", "4", "--out", folder))
            self.assertEqual(end.returncode, 0, end.stderr[-2000:])
            old = [path.name for path in pathlib.Path(folder).iterdir() if path.read_bytes() == b"old"]
            self.assertEqual(sorted(old), ["job-3.toml", "model-3.json", "own.jsonl"])  # the user's: no report names them
            before = {name: (pathlib.Path(folder) / name).read_bytes() for name in os.listdir(folder)}
            self.assertLessEqual({"job.toml", "model.json", "report.json"}, set(before))
            end = run(PYTHON, "-c", "import torch; raise SystemExit(3)", flags=("--world", "4", "--out", folder))
            self.assertEqual(end.returncode, 1, end.stderr[-2000:])
            after = {name: (pathlib.Path(folder) / name).read_bytes() for name in os.listdir(folder)}
        self.assertEqual(before, after)

    def test_under_torchrun_one_rank_stands_for_all(self):
        torchrun = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--nnodes", "1"]
        answer, _ = self.watch("nanogpt.py", flags=(), python=torchrun)
        self.assertEqual(answer["world_size"], 2)
        answer, _ = self.watch("nanogpt.py", flags=("--no-plan",), environment={"WORLD_SIZE": "16", "RANK": "9", "LOCAL_WORLD_SIZE": "8"})
        self.assertEqual((answer["world_size"], answer["rank"]), (16, 9))

    def test_a_given_world_is_as_torchrun_would_have_started_it(self):
        """And where the script makes another one, that is told."""
        text = """
import os, torch, torch.distributed as dist
more = {} if os.environ.get("TORCHELASTIC_RUN_ID") and WORLD is None else {"world_size": WORLD or 1, "rank": 0}
dist.init_process_group("nccl", **more)
model = torch.nn.Linear(256, 256, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.ones(4, 256, device="cuda")).sum().backward()
    optimizer.step()
"""
        for world in (None, 1):
            answer = self.trained(f"WORLD = {world}\n{text}")
            self.assertEqual(answer["world_size"], world or 2)
            self.assertEqual(any("a world of 1, not the 2" in note for note in answer["notes"]), world == 1, answer["notes"])

    def test_equal_runs_give_equal_figures(self):
        first, second = (self.watch("nanogpt.py", flags=("--world", "4", "--no-plan"))[0] for _ in range(2))
        self.assertEqual(first["steps"], second["steps"])

    def test_a_large_model_made_on_the_host_costs_neither_memory_nor_time(self):
        words = ("--width", "4096", "--layers", "32", "--heads", "32", "--seq", "1024", "--batch", "1")
        answer, _ = self.watch("nanogpt.py", *words, flags=("--world", "64", "--no-plan"))
        self.assertLess(answer["host_peak_bytes"], 4 << 30)
        self.assertGreater(answer["steps"][2]["allocated_bytes"], 6.4e9 / 64 * 12)

    def test_what_does_not_fit_says_so(self):
        end = run(PYTHON, SCRIPTS / "nanogpt.py", "--width", "4096", "--layers", "32", "--heads", "32", "--batch", "64", "--seq", "2048",
                  flags=("--world", "1", "--json", "--no-plan"))  # fmt: skip
        self.assertEqual(end.returncode, 4, end.stderr[-2000:])
        self.assertGreater(json.loads(end.stdout)["steps"][-1]["ooms"], 0)

    def test_what_trainers_put_around_a_model(self):
        for words in ((), ("weight",), ("module",), ("before",), ("table",), ("unit",)):
            with self.subTest(words):
                answer, job = self.watch("trainers.py", *words)
                self.assert_as_planned(answer, within=0.0005)
                self.assertEqual(answer["differences"], [])
                self.assertNotIn("beside", job["train"])
                self.assertFalse([note for note in answer["notes"] if "another model" in note])

    def test_compiled_flex_attention_holds_no_scores(self):
        compiled, _ = self.watch("trainers.py", "flex", "compiled")
        self.assert_as_planned(compiled, within=0.0005)
        plain, _ = self.watch("trainers.py", "flex")
        self.assertGreater(plain["steps"][-1]["allocated_bytes"], compiled["steps"][-1]["allocated_bytes"] + 2**24)
        self.assertTrue([note for note in plain["notes"] if "uncompiled it holds every score" in note])

    def test_the_allocator_is_as_the_script_sets_it(self):
        for answer, job in (
            self.watch("trainers.py", "segments"),
            self.watch("trainers.py", environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        ):
            self.assertEqual(job["allocator"], {"expandable_segments": True})
            self.assert_as_planned(answer, within=0.0005, reserved=0.001)
        self.assertNotIn("allocator", self.watch("trainers.py")[1])

    def test_a_model_that_nothing_shards_can_be(self):
        with tempfile.TemporaryDirectory() as folder:
            answer, job = self.watch("alone.py", flags=("--world", "4", "--out", folder))
            self.assert_as_planned(answer, within=0.0005)
            self.assertEqual((job["fsdp"]["runtime"], job["cluster"]["world_size"]), ("none", 1))
            self.assertTrue([note for note in answer["notes"] if "nothing shards this model" in note])
            sharded = [FORESHARD, "simulate", f"{folder}/job.toml", "--json", "--set", "fsdp.runtime=fsdp2", "--set", "cluster.world_size=8"]
            end = subprocess.run([*sharded, "--set", 'fsdp.wrap={policy="module_class", classes=["Block"]}'], capture_output=True, text=True)
            self.assertEqual(end.returncode, 0, end.stderr)
            self.assertLess(json.loads(end.stdout)["memory"]["peak_allocated_bytes"], answer["steps"][-1]["allocated_bytes"])

    def test_a_function_keeps_no_step_for_being_watched(self):
        """Until Python 3.13 its frame keeps what somebody has read of its names."""
        inside, outside = (self.watch("kept.py", *words)[0]["steps"][-1]["allocated_bytes"] for words in (("main",), ()))
        self.assertEqual(inside, outside)

    def test_outputs_that_an_object_keeps(self):
        answer, job = self.watch("kept.py", "state")
        self.assertTrue(job["train"]["keeps_outputs"])
        self.assert_as_planned(answer, within=0.0005, reserved=0.001)

    def test_a_timeline_is_written(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/run.fst"
            self.watch("nanogpt.py", flags=("--world", "4", "--no-plan", "--timeline", path))
            read = subprocess.run([FORESHARD, "trace", "analyse", path, "--json"], capture_output=True, text=True)
        self.assertEqual(read.returncode, 0, read.stderr)

    def trained(self, text, *words):
        """The answer of a script given as text, which must go well."""
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "script.py"
            file.write_text(text)
            end = run(PYTHON, file, flags=("--json", "--world", "2", "--no-plan", *words))
        self.assertEqual(end.returncode, 0, end.stderr[-2000:])
        return json.loads(end.stdout)

    def test_wrappers_of_an_optimizer_are_no_turns_to_come(self):
        """As Accelerate's, which nothing hooks; nor is one that was never made whole."""
        self.trained("""
import torch, torch.distributed as dist
from foreshard.shadow import steps
dist.init_process_group("nccl")
model = torch.nn.Linear(256, 256, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
class Wrapper(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner = inner
    @property
    def param_groups(self):
        return self.inner.param_groups
kept = Wrapper(optimizer), Wrapper.__new__(Wrapper)
for i in range(3):
    model(torch.ones(4, 256, device="cuda")).sum().backward()
    assert steps.is_first() == (i == 0)
    optimizer.step()
""")

    def test_what_a_virtual_device_is_asked_for_beside_training(self):
        """Kernels compiled at run time, cuDNN's attention first in the list, a watchdog while the host is idle, values; the card's power and
        load, by the management library's own name; a share of fewer cores than ranks; scripts of torch.jit."""
        answer = self.trained("""
import ctypes, time, torch, torch.distributed as dist, torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
dist.init_process_group("cpu:gloo,cuda:nccl", timeout=__import__("datetime").timedelta(seconds=2))
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)).cuda()
for p in model.parameters():
    torch.nn.init.trunc_normal_(p)
@torch.jit.script
def rows(x: torch.Tensor):
    return torch.where(x > 0)[0], torch.repeat_interleave(x, 2)
assert rows(torch.ones(2))[0].tolist() == [0, 1]
torch.set_num_threads(0)
assert torch.get_num_threads() == 1
class Load(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]
management, card, power, load = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), ctypes.c_uint(), Load(9, 9)
assert management.nvmlInitWithFlags(0) == management.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card)) == 0
assert management.nvmlDeviceGetPowerUsage(card, ctypes.byref(power)) == 0 and power.value == 95000
assert management.nvmlDeviceGetUtilizationRates(card, ctypes.byref(load)) == 0 and load.gpu == 0
names = [None] * dist.get_world_size()
dist.all_gather_object(names, "mine")
assert names == ["mine", "mine"]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = model(torch.ones(4, 8, 256, device="cuda", dtype=torch.float32)).half().unflatten(-1, (4, 64)).transpose(1, 2)
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        loss = F.scaled_dot_product_attention(x, x, x).float().sum()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    time.sleep(1.5)
    optimizer.step()
    optimizer.zero_grad()
    assert loss.item() == 0 and not torch.isnan(loss)
dist.barrier()
""")
        self.assertEqual(len(answer["steps"]), 3)
        self.assertTrue(any("cuDNN" in note for note in answer["notes"]), answer["notes"])

    def test_groups_on_the_host_are_what_was_asked_for(self):
        """By name and by method; a way around NCCL that meets ranks at a store is off."""
        answer = self.trained("""
import os
os.environ["ENABLE_INTRA_NODE_COMM"] = "1"
import torch, torch.distributed as dist
dist.init_process_group("cuda:nccl,cpu:gloo")
host, same, card = dist.new_group(backend="gloo"), dist.new_group([0]), dist.new_group(backend="nccl")
assert [dist.get_backend(each) for each in (None, host, same, card)] == ["cuda:nccl,cpu:gloo", "gloo", "cuda:nccl,cpu:gloo", "nccl"]
assert "cpu:gloo" in dist.distributed_c10d.get_backend_config()
host.monitored_barrier()
dist.monitored_barrier(host)
model = torch.nn.Linear(256, 256, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    loss = model(torch.ones(4, 256, device="cuda")).sum()
    loss.backward()
    dist.all_reduce(loss, group=card)
    optimizer.step()
""")
        self.assertTrue(any("ENABLE_INTRA_NODE_COMM" in note for note in answer["notes"]), answer["notes"])

    def test_a_step_ends_where_a_module_with_parameters_on_the_device_runs(self):
        """What comes before it, modules that prepare the next batch too, belongs to the step before."""
        answer = self.trained("""
import torch
prepare, judge = torch.nn.Softmax(dim=-1), torch.nn.Linear(256, 256)
model = torch.nn.Linear(256, 256, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.ones(4, 256, device="cuda")).sum().backward()
    optimizer.step()
    judge(prepare(torch.ones(4, 256)))
    scratch = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    del scratch
    optimizer.zero_grad()
model(torch.ones(4, 256, device="cuda"))
""")
        self.assertTrue(all(step["allocated_bytes"] > 256 << 20 for step in answer["steps"]), answer["steps"])

    def test_ddp_goes_on_after_its_first_step(self):
        answer = self.trained("""
import torch, torch.distributed as dist
dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(torch.ones(4, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""")
        self.assertEqual(len(answer["steps"]), 3)
        self.assertTrue(any("buckets stay" in note for note in answer["notes"]), answer["notes"])

    def refused(self, script, code, *words, flags=("--world", "2")):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "script.py"
            file.write_text(script)
            end = run(PYTHON, file, flags=("--json", *flags))
        self.assertEqual(end.returncode, code, end.stdout + end.stderr[-2000:])
        told = end.stdout
        for word in words:
            self.assertIn(word, told)

    def test_a_script_on_the_cpu(self):
        self.refused(
            "import torch\nm = torch.nn.Linear(4, 4)\no = torch.optim.SGD(m.parameters())\n"
            "for _ in range(5):\n    m(torch.ones(2, 4)).sum().backward()\n    o.step()\n", 3, "trains on the CPU")  # fmt: skip

    def test_a_script_that_never_trains(self):
        self.refused("import torch\nprint(torch.ones(3, device='cuda').sum())\n", 3, "never trained")
        self.refused("print('no torch')\n", 3, "never")

    def test_a_script_that_fails(self):
        self.refused("import torch\nraise ValueError('of its own')\n", 1, "ValueError: of its own", "script.py:2")
        self.refused("import torch, os\nos.kill(os.getpid(), 11)\n", 1, "failed before its first step")

    def test_where_a_script_of_a_group_failed_is_printed(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "script.py"
            file.write_text("import torch.distributed as dist\ndist.init_process_group('nccl')\nraise ValueError('of its own')\n")
            end = run(PYTHON, file)
        self.assertIn("script.py\", line 3", end.stderr)  # PyTorch holds the trace back while hooks run

    def test_a_script_that_hangs(self):
        self.refused("import torch, time\ntime.sleep(1000)\n", 1, "no step within the time", flags=("--timeout", "8"))

    def test_a_program_that_is_not_there(self):
        end = run("no-such-python", "train.py")
        self.assertEqual(end.returncode, 3)
        self.assertIn("cannot be started", end.stderr)
        self.assertEqual(run(PYTHON, "x.py", flags=("--rank", "9", "--world", "4")).returncode, 3)


def has(*modules):
    return all(subprocess.run([PYTHON, "-c", f"import {m}"], capture_output=True).returncode == 0 for m in modules)


class Libraries(unittest.TestCase):
    """Where PYTHON has them: the training loops of others, with stand-ins for what a hub would give."""

    def watch(self, *command):
        end = run(*command, flags=("--json", "--fake-weights"), environment={"FORESHARD_SHADOW_CONFIGS": str(HERE / "configs")})
        self.assertEqual(end.returncode, 0, end.stderr[-3000:])
        answer = json.loads(end.stdout)
        self.assertEqual((len(answer["steps"]), answer["world_size"]), (3, 8))
        return answer

    def launched(self, script):
        return [PYTHON, "-m", "accelerate.commands.launch", "--config_file", SCRIPTS / "accelerate_fsdp2.yaml", SCRIPTS / script]

    def test_transformers_trainer_with_accelerates_fsdp2(self):
        if not has("transformers", "accelerate", "datasets"):
            self.skipTest("transformers, accelerate or datasets is not installed")
        answer = self.watch(*self.launched("transformers_trainer.py"))
        planned, step = answer["plan"][-1], answer["steps"][-1]
        self.assertAlmostEqual(planned["allocated_bytes"] / step["allocated_bytes"], 1, delta=0.005)

    def test_sft_of_trl_with_lora(self):
        if not has("trl", "peft"):
            self.skipTest("trl or peft is not installed")
        self.assertIn("fsdp.frozen", self.watch(*self.launched("trl_sft.py"))["job"])

    def test_scripts_that_trl_brings(self):
        """As its documentation calls them, with a special token that is the model's own, and a data set of preferences."""
        if not has("trl", "peft"):
            self.skipTest("trl or peft is not installed")
        words = ("--model_name_or_path", "Qwen/Qwen2.5-0.5B", "--per_device_train_batch_size", "2", "--use_peft", "--report_to", "none")
        for kind, data, more in (("sft", "trl-lib/Capybara", ("--eos_token", "<|im_end|>")), ("dpo", "trl-lib/ultrafeedback_binarized", ())):
            launched = [PYTHON, "-m", "accelerate.commands.launch", "--config_file", SCRIPTS / "accelerate_fsdp2.yaml", "-m", f"trl.scripts.{kind}"]
            with tempfile.TemporaryDirectory() as folder:
                answer = self.watch(*launched, *words, *more, "--dataset_name", data, "--output_dir", folder)
            planned, step = answer["plan"][-1], answer["steps"][-1]
            self.assertAlmostEqual(planned["allocated_bytes"] / step["allocated_bytes"], 1, delta=0.02)
            self.assertAlmostEqual(planned["reserved_bytes"] / step["reserved_bytes"], 1, delta=0.1)


if __name__ == "__main__":
    FORESHARD, PYTHON = sys.argv[1:3]
    asked = subprocess.run([PYTHON, "-c", CUDA_OF_TORCH], capture_output=True, text=True)
    if asked.returncode != 0 or not asked.stdout.startswith("13"):
        sys.exit(77)
    ran = unittest.main(argv=sys.argv[:1] + sys.argv[3:], exit=False).result
    sys.exit(1 if not ran.wasSuccessful() else 77 if ran.testsRun == len(ran.skipped) else 0)
