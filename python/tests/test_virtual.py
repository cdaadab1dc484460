"""Capture on the virtual GPU: says what fake tensors say, agrees with the real allocator, refuses what they refuse."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.environ.get("FORESHARD_PACKAGE", os.path.dirname(HERE)), HERE]

import torch

from foreshard.capture import CaptureError, capture, capture_step, virtual
from virtual_modules import Aborts, Attends, Branches, Exits, Leaves, Normalised, Picks, Squared, Two, ViewedInPlace

try:
    import cloudpickle
except ImportError:
    cloudpickle = None
# What the rules are off for a module by itself, of its peak: gates of recurrent layers, masks that nn.Transformer makes, the
# two gradients of a tied weight, a reentrant region beside one that is not (0.6 %), scatters' gradients (0.7 %), the first
# step of gradients inside, whose nodes run in another order than those of later steps (0.8 %).
WIDER = ("lstm", "gru", "encoder_decoder", "eager_llama_tied", "partly_recomputed", "checkpoints_inside", "faces", "neural_ode", "pinn")
# Fake tensors lay out a half-precision sum of an expanded and a transposed tensor in another order than any device.
OTHER_LAYOUT = ("perceiver",)
# What a device still does otherwise than fake tensors say, known and told to the user by the notes: strides of a product of
# einsum's operands, what a solve is made of, temporaries of a custom function, until when a name holds what was
# written through a view (nnunet, and weather as it stood).
OTHERWISE = ("sliding_chunks", "mamba2_ssd", "delta_net", "mamba_function", "written_in_place", "whole_transformer", "rooms", "nnunet", "weather")
# Of these: until when a custom function's names hold what it saved hangs on when Python lets go of cycles.
SOMETIMES = ("mamba_function",)
# A capture on the device takes two seconds: of the models that are said to agree, one in EVERY, or all of them with
# FORESHARD_ALL_MODELS=1. test_captured.py compares them all with recorded runs.
EVERY = 1 if os.environ.get("FORESHARD_ALL_MODELS") else 6
ALWAYS = ("forces",)  # gradients inside: nothing that stands for what autograd saved may stay behind
# cuFFT has no plans on a virtual device: capture says so and takes fake tensors.
SPECTRA = ("fourier_operator", "long_convolutions", "sharper_pictures")


def on_device(module, *args, **more):
    return capture(module, *args, loss=torch.sum, device="virtual", **more)


class Agreement(unittest.TestCase):
    def test_models_are_what_fake_tensors_and_the_allocator_say(self):
        import models

        torch.backends.cudnn.enabled = False  # as on the virtual device
        for place, (name, case) in enumerate(models.load().items()):
            if name not in (*WIDER, *OTHER_LAYOUT, *SPECTRA, *ALWAYS) and place % EVERY:
                continue
            with torch.device("meta"):
                module = case.make()
            if name in SPECTRA:
                model = capture_step(module, models.NamedStep(name), *case.batch("meta"))
                self.assertTrue(any("captured on fake tensors" in n and "cuFFT" in n for n in model.notes), model.notes)
                continue
            low = case.options.get("precisions", ["bfloat16"])[0]
            model = capture_step(
                module, models.NamedStep(name), *case.batch("meta"), device="virtual", strict=case.options.get("strict", True),
                mixed_precision={} if low == "float32" else {"param": low, "buffer": low},
            )  # fmt: skip
            with self.subTest(name):
                self.assertEqual(model.device, "virtual")
                if not any("hang on the values" in note for note in model.notes):  # drawn ones: the device has zeros
                    self.assertGreater(model.allocator["backward_peak"], model.allocator["state"])
                told = [n for n in model.notes if "differ" in n]
                if name in OTHERWISE:
                    if name not in SOMETIMES:
                        self.assertNotEqual(told, [])
                    continue
                self.assertEqual([n for n in told if name not in OTHER_LAYOUT or not ("strides" in n or "places more" in n)], [])
                if name not in WIDER:
                    self.assertEqual([n for n in model.notes if "by itself" in n], [])

    def test_attention_is_cudas_own_choice(self):
        for dtype, kernel in ((torch.bfloat16, "flash"), (torch.float32, "efficient")):
            model = on_device(Attends(), torch.empty(2, 4, 128, 64, dtype=dtype))
            self.assertTrue(any(kernel in op["op"] for op in model.document["ops"]), dtype)

    def test_the_allocator_counts_forward_and_backward(self):
        model = on_device(Two(), torch.empty(1024, 1024))
        mib = 1 << 20
        state, forward = model.allocator["state"], model.allocator["forward_end"]
        self.assertEqual(state, 12 * mib)  # two weights and the batch
        # cuBLAS's workspace of an H100, what the second product read, the loss.
        self.assertEqual(forward - state, 32 * mib + 4 * mib + 512)
        # The gradients of both weights, beside what the last product of backward holds.
        self.assertGreaterEqual(model.allocator["backward_peak"], state + 32 * mib + 8 * mib)

    @unittest.skipIf(cloudpickle is None, "a module that the script itself defines is sent by cloudpickle")
    def test_a_function_that_the_script_bound_before_travels_by_its_name(self):
        bound = Squared.apply

        class Bound(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.f = torch.nn.Linear(6, 6)

            def forward(self, x):
                return bound(self.f(x))

        model = on_device(Bound(), torch.empty(4, 6))
        self.assertEqual((model.device, model.notes), ("virtual", []))
        self.assertEqual([op["op"] for op in model.document["ops"] if "opaque" in op["op"]], ["opaque.virtual_modules.Squared"])

    def test_parametrized_modules_travel(self):
        model = on_device(Normalised(), torch.empty(8, 64))
        self.assertEqual((model.device, model.notes), ("virtual", []))
        self.assertTrue(any("weight_norm" in op["op"] for op in model.document["ops"]))

    def test_views_made_anew_after_a_change_in_place_are_no_difference(self):
        model = on_device(ViewedInPlace(), torch.empty(4, 6, 8))
        self.assertEqual(model.notes, [])


    def test_kernels_that_describe_their_tensors_to_the_card_say_nothing(self):
        """CUTLASS prints a page for every tensor whose description the driver refuses."""
        code = (
            "import models, torch; from foreshard.capture import capture_step; case = models.load()['grouped_experts'];"
            "torch.set_default_device('meta'); module = case.make(); torch.set_default_device(None);"
            "capture_step(module, models.NamedStep('grouped_experts'), *case.batch('meta'), device='virtual')"
        )
        paths = os.pathsep.join([os.environ.get("FORESHARD_PACKAGE", os.path.dirname(HERE)), HERE])
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": paths})
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))


class Refusals(unittest.TestCase):
    def test_what_hangs_on_values_is_refused_as_on_fake_tensors(self):
        for module in (Branches(), Picks()):
            with self.assertRaises(CaptureError) as virtual_error:
                on_device(module, torch.empty(4, 8))
            with self.assertRaises(CaptureError) as fake_error:
                capture(module, torch.empty(4, 8), loss=torch.sum, device="fake")
            self.assertEqual(virtual_error.exception.message, fake_error.exception.message)
            self.assertEqual(virtual_error.exception.hint, fake_error.exception.hint)

    def test_not_strict_reads_zeros(self):
        self.assertEqual(on_device(Branches(), torch.empty(4, 8), strict=False).device, "virtual")

    def test_a_crash_costs_one_capture(self):
        with self.assertRaises(CaptureError) as refused:
            on_device(Aborts(), torch.empty(4, 8))
        self.assertIn("crashed", refused.exception.message)
        self.assertEqual(on_device(Two(), torch.empty(8, 1024)).device, "virtual")

    def test_a_step_that_exits_is_an_answer(self):
        for module, told in ((Exits(), "SystemExit"), (Leaves(), "crashed")):
            with self.assertRaises(CaptureError) as refused:
                on_device(module, torch.empty(4, 8))
            self.assertIn(told, refused.exception.message)
        self.assertEqual(on_device(Two(), torch.empty(8, 1024)).device, "virtual")

    def test_a_process_that_is_gone_falls_back(self):
        on_device(Two(), torch.empty(8, 1024))
        gone = virtual._Server._process
        gone.kill()
        gone.wait()
        with mock.patch.object(virtual._Server, "running", return_value=True):
            model = capture(Two(), torch.empty(8, 1024), loss=torch.sum)
        self.assertEqual(model.device, "fake")
        self.assertIn("its process cannot be talked to", model.notes[0])
        self.assertEqual(on_device(Two(), torch.empty(8, 1024)).device, "virtual")

    def test_an_unknown_device(self):
        with self.assertRaises(CaptureError) as refused:
            capture(Two(), torch.empty(8, 1024), loss=torch.sum, device="cuda")
        self.assertIn('"virtual"', refused.exception.expected)

    def test_a_build_without_cuda_says_what_to_install(self):
        known, torch.version.cuda = torch.version.cuda, None
        virtual._Server.stop()
        try:
            with self.assertRaises(CaptureError) as refused:
                on_device(Two(), torch.empty(8, 1024))
            self.assertIn("install a CUDA build", refused.exception.hint)
            model = capture(Two(), torch.empty(8, 1024), loss=torch.sum)  # nothing asked for: fake tensors, without a word
            self.assertEqual((model.device, model.notes), ("fake", []))
        finally:
            torch.version.cuda = known

    def test_the_module_is_left_as_it_was(self):
        module = Two()
        before = {k: id(v) for k, v in module.state_dict(keep_vars=True).items()}
        on_device(module, torch.empty(8, 1024))
        self.assertEqual({k: id(v) for k, v in module.state_dict(keep_vars=True).items()}, before)
        self.assertEqual({v.device.type for v in module.state_dict().values()}, {"cpu"})


class OfTheScript(unittest.TestCase):
    """Classes and functions that only the script has."""

    def test_by_value_with_cloudpickle_else_told(self):
        class Local(Two):
            pass

        scale = torch.full((1024,), 2.0)
        model = capture(Local(), torch.empty(8, 1024), loss=lambda out: (out * scale.to(out.device)).sum())
        if cloudpickle is None:
            self.assertEqual(model.device, "fake")
            self.assertIn("pip install cloudpickle", model.notes[-1])
        else:
            self.assertEqual((model.device, model.notes), ("virtual", []))


if __name__ == "__main__":
    if torch.version.cuda is None or not virtual._library("libfakegpu.so"):
        print("skipped: no PyTorch with CUDA, or no virtual device (FORESHARD_VIRTUAL_DEVICE)")
        sys.exit(77)
    unittest.main()
