#!/usr/bin/env python3
"""scripts/gpu-check over programs that crash, hang and lie: what one step breaks costs no other step its numbers."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/gpu-check"

# Stands for every program: says what a card with time and memory enough would say, but for what BREAK asks.
STUB = r'''#!/usr/bin/env python3
import json, os, pathlib, subprocess, sys, time
name, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
here = pathlib.Path(os.environ["STUB_FOLDER"])
with open(here / "calls", "a") as calls:
    calls.write(f"{name} {' '.join(words)}\n")
broken = os.environ.get("BREAK", "")
if name.startswith("test_") and broken == "skip":
    print("[ RUN      ] A.B\n[  SKIPPED ] A.B (0 ms)")
    sys.exit(0)
if name.startswith("test_"):
    print("[ RUN      ] A.B\n[       OK ] A.B (0 ms)\n[ RUN      ] C.D", flush=True)
    if broken == "crash":
        os.kill(os.getpid(), 11)
    print("[       OK ] C.D (0 ms)\nworst relative difference 1.0e-07")
    sys.exit(0)
if name == "python":
    if "--save" in words:
        sys.exit(0)
    print(json.dumps({"step_time_ns": [110]}))
    sys.exit(0)
verb = words[0]
if verb == "calibrate" and broken == "hang":
    (here / "pid").write_text(str(os.getpid()))
    time.sleep(600)
if verb == "run" and "--emulate-world" in words and "8" in words and broken == "emulate":
    sys.exit("error: out of memory")
if verb == "run" and "--timeout" in words:  # its rank stands until somebody kills it
    ends = subprocess.Popen(["sleep", "120"], env={"RANK": str(int(words[words.index("--nproc") + 1]) - 1)}).wait()
    sys.exit("" if broken == "nobody notices" else "error: rank 1 was ended by signal 9" if ends else 0)
if verb == "doctor":
    found = broken != "no card"
    print(json.dumps({"found": [{"name": "GPU 0", "found": found, "detail": "Stub X1, 80 GiB", "remedy": "nvidia-smi"},
                                {"name": "CUPTI", "found": True, "detail": "yes", "remedy": ""}]}))
elif verb == "run":
    for step in range(5):
        print(json.dumps({"step": step, "loss": 1.0, "step_time_ns": 100}))
    print(json.dumps({"step_time_ns": {"value": 100}, "memory": {"peak_allocated_bytes": 7, "peak_reserved_bytes": 9}}))
elif verb == "simulate":
    print(json.dumps({"step_time_ns": {"value": 101}, "memory": {"peak_allocated_bytes": 7, "peak_reserved_bytes": 9}}))
elif verb == "calibrate":
    pathlib.Path(words[words.index("--output") + 1]).write_text("profile")
    print(json.dumps({"forward_ns": 50, "backward_ns": 50, "sum_forward_ns": 50, "sum_backward_ns": 51}))
elif verb == "compare":
    print("no JSON at all" if broken == "compare" else json.dumps(
        {"joined": 3, "only_a": 0, "only_b": 0, "compute": {"a_ns": 1, "b_ns": 1, "error": 0.0},
         "peak_allocated": {"a_bytes": 7, "b_bytes": 7, "error": 0.0}}))
'''


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        torch = self.folder / "venv/lib/python3.11/site-packages/torch"
        (torch / "lib").mkdir(parents=True)
        (torch / "lib/libtorch_cuda.so").touch()
        (torch / "version.py").write_text("__version__ = '2.11.0+cu130'\n")
        for place in ["build/bin/foreshard", "build/bin/test_virtual_gpu_backend", "build/bin/test_virtual_gpu_recorded",
                      "venv/bin/python"]:
            program = self.folder / place
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(STUB)
            program.chmod(0o755)

    def tearDown(self):
        self.temporary.cleanup()

    def begin(self, *more, broken=""):
        environment = {**os.environ, "STUB_FOLDER": str(self.folder), "FORESHARD_TORCH": str(self.folder / "venv"), "BREAK": broken}
        environment.pop("LD_PRELOAD", None)
        command = [sys.executable, SCRIPT, "--build", self.folder / "build", "--work", self.folder / "work", "--output",
                   self.folder / "out", *more]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def check(self, *more, broken=""):
        """Exit code, claims, and the report."""
        process = self.begin(*more, broken=broken)
        out, err = process.communicate(timeout=120)
        written = sorted((self.folder / "out").glob("*.json"))
        self.assertTrue(written, out + err)
        report = json.loads(written[-1].read_text())
        self.assertIn("| claim |", written[-1].with_suffix(".md").read_text())
        return process.returncode, {row[0]: row for row in report["claims"]}, report

    def calls(self, word):
        return sum(word in line.split() for line in (self.folder / "calls").read_text().splitlines())

    def test_a_card_that_keeps_every_claim(self):
        code, claims, report = self.check()
        self.assertEqual(code, 0, claims)
        self.assertEqual({row[2] for row in claims.values()}, {"holds", "-"})
        self.assertEqual(report["missing"], [])
        self.assertEqual(report["card"], "Stub X1, 80 GiB")
        for attention in ("flash attention in both", "attention as PyTorch chooses"):
            self.assertIn("0.909", claims[f"a step takes at most 1.00 of PyTorch FSDP2's on one GPU, {attention}"][1])

    def test_several_cards_are_checked_together(self):
        code, claims, report = self.check("--only", "doctor", "cards", "--gpus", "2")
        self.assertEqual(code, 0, claims)
        self.assertEqual(claims["2 cards: step time predicted within 5 %"][2], "holds")
        self.assertIn("worst 0.0e+00", claims["2 cards learn what 2 ranks of the host learn (10 steps, fp32), within 0.001"][1])
        killed = "a rank of 2 is killed: the others end within 60 s and name it"
        self.assertEqual(claims[killed][2], "holds", claims[killed])
        self.assertIn("flash attention in both", " ".join(claim for claim in claims if "on 2 GPUs" in claim))
        self.assertEqual(report["steps"]["cards"]["gpus"], 2)
        code, claims, _ = self.check("--only", "cards", "--gpus", "2", broken="nobody notices")
        self.assertEqual((code, claims[killed][2]), (1, "DOES NOT HOLD"))

    def test_the_results_are_packed_to_be_sent_home(self):
        self.check("--only", "doctor")
        work = self.folder / "work"
        (work / "recording.fst").write_bytes(os.urandom(3 << 20))
        (work / "too-long.fst").write_bytes(os.urandom(38 << 20))  # by itself it would fit
        (work / "steps.txt").write_text("small")
        code, _, _ = self.check()
        self.assertEqual(code, 0)
        packs = list(work.glob("*.tar.gz"))
        self.assertEqual(len(packs), 1)
        self.assertLess(packs[0].stat().st_size, 40 << 20)
        with tarfile.open(packs[0]) as archive:
            files = {name.split("/", 1)[1]: archive.getmember(name).size for name in archive.getnames()}
            listed = next(name for name in archive.getnames() if name.endswith("contents.txt"))
            contents = archive.extractfile(listed).read().decode()
        self.assertIn("recording.fst", files)
        self.assertIn("state.json", files)
        self.assertTrue(any(name.endswith(".md") for name in files), files)
        self.assertNotIn("too-long.fst", files)
        self.assertIn("left out", next(line for line in contents.splitlines() if line.endswith("too-long.fst")))

    def test_what_crashes_is_named_and_the_rest_is_measured(self):
        code, claims, report = self.check(broken="crash")
        self.assertEqual(code, 1)
        contract = next(row for claim, row in claims.items() if "contract" in claim)
        self.assertEqual(contract[1:], ["1 tests pass, exit code -11: C.D (the program ended by signal 11)", "DOES NOT HOLD"])
        self.assertEqual(claims["step time predicted within 2 %"][2], "holds")
        self.assertEqual(report["missing"], [])

    def test_tests_that_skip_themselves_hold_nothing(self):
        _, claims, _ = self.check("--only", "contract", broken="skip")
        self.assertEqual([row[2] for claim, row in claims.items() if "contract" in claim], ["DOES NOT HOLD"])
        self.assertIn("the card is found", claims, "whose report it is")

    def test_a_part_that_fails_leaves_the_other_parts_of_its_step(self):
        code, claims, _ = self.check(broken="emulate")
        self.assertEqual(code, 1)
        self.assertEqual(claims["one GPU for 8"], ["one GPU for 8", "error: out of memory", "DOES NOT RUN"])
        self.assertEqual(claims["one GPU for 64: step time predicted within 5 %"][2], "holds")
        code, claims, _ = self.check("--fresh", broken="compare")
        self.assertEqual(code, 1)
        self.assertEqual(claims["the step is recorded"][2], "DOES NOT RUN")
        self.assertEqual(claims["recording everything costs under 2 %"][2], "holds")

    def test_an_interrupted_check_is_gone_on_with(self):
        process = self.begin(broken="hang")
        for _ in range(600):
            if (self.folder / "pid").exists() and (self.folder / "pid").read_text():
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1)
        with self.assertRaises(ProcessLookupError, msg="nothing goes on using the card"):
            os.kill(int((self.folder / "pid").read_text()), 0)
        report = json.loads(next((self.folder / "out").glob("*.json")).read_text())
        self.assertIn("calibrate", report["missing"])
        self.assertIn("host_against_cuda, fp32", report["steps"]["host"])
        code, claims, report = self.check()
        self.assertEqual(code, 0, claims)
        self.assertEqual(self.calls("doctor"), 1, "what ran is kept")
        self.assertEqual(self.calls("calibrate"), 2)

    def test_time_that_is_over_ends_a_step_and_not_the_report(self):
        code, claims, report = self.check("--minutes", "0.3", broken="hang")
        self.assertEqual(code, 1)
        self.assertEqual(report["missing"], ["calibrate", "predict", "emulate", "speed", "cards"])
        self.assertEqual(claims["the card is found"][2], "holds")

    def test_times_are_no_predictions_on_a_card_that_was_not_calibrated(self):
        _, claims, _ = self.check("--only", "predict")
        self.assertEqual(claims["step time predicted within 2 % (card not calibrated)"][2], "-")

    def test_without_a_card_nothing_else_is_tried(self):
        code, claims, _ = self.check(broken="no card")
        self.assertEqual(code, 1)
        self.assertEqual(list(claims), ["step doctor runs"])
        code, _, _ = self.check()
        self.assertEqual(code, 0, "a card that comes later is found")

    def test_another_torch_is_refused_before_anything_fails(self):
        loader = importlib.machinery.SourceFileLoader("gpu_check", str(SCRIPT))
        sys.dont_write_bytecode = True
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
        loader.exec_module(module)
        module.PACK = self.folder
        torch = self.folder / "venv/lib/python3.11/site-packages/torch"
        for packed, refused in (({"torch": "2.11.0+cu130", "glibc": [2, 17]}, ""), ({"torch": "2.9.1+cu130", "glibc": [2]}, "2.9.1"),
                                ({"torch": "2.11.0+cu130", "glibc": [2, 99]}, "2.99")):
            (self.folder / "pack.json").write_text(json.dumps(packed))
            try:
                module.refuse_mismatch(torch)
                said = ""
            except SystemExit as error:
                said = str(error)
            self.assertEqual(refused in said, True, said)
            self.assertEqual(bool(refused), bool(said))


if __name__ == "__main__":
    unittest.main()
