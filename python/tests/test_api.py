"""The package's functions are the program's verbs: same bytes, same errors; threads and executors.

FORESHARD names the program, FORESHARD_PACKAGE the folder of the package with its core (77: skipped).
"""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
if package := os.environ.get("FORESHARD_PACKAGE"):
    sys.path.insert(0, package)
PROGRAM = os.environ.get("FORESHARD", "")
LLAMA = os.path.join(ROOT, "examples", "llama-3-8b", "config.json")
JOB = {"fsdp": {"runtime": "fsdp2"}, "cluster": {"world_size": 16}, "model.seq": 512}
FLAGS = ["--set", 'fsdp.runtime="fsdp2"', "--set", "cluster.world_size=16", "--set", "model.seq=512"]

TOY = """{"schema": "foreshard.model/2", "name": "toy", "lifetimes": "recorded", "has_loss": true, "compute_dtype": "float32", "block_class": "Linear",
 "job": {"fsdp.mixed_precision.param": "none", "train.optimizer.name": "sgd"},
 "inputs": [{"name": "x", "shape": [2, 4], "dtype": "float32"}],
 "modules": [{"fqn": "", "class": "Toy"}, {"fqn": "a", "class": "Linear"}],
 "params": [{"fqn": "a.weight", "shape": [4, 4], "dtype": "float32"}], "buffers": [],
 "ops": [{"op": "aten.mm.default", "module": "a", "args": ["%x", "@a.weight"], "out": [{"name": "h", "shape": [2, 4], "dtype": "float32"}]},
  {"op": "aten.sum.default", "module": "", "args": ["%h"], "out": [{"name": "y", "shape": [], "dtype": "float32"}]}],
 "outputs": ["y"]}
"""


class Captured:
    """What capture gives, as far as the functions ask."""

    def to_json(self) -> str:
        return TOY


def program(*arguments: str) -> tuple[int, str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("FORESHARD_PROFILES", "NO_COLOR", "TERM", "COLUMNS")}
    environment["LC_ALL"] = "C.UTF-8"
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stdout


def without_seconds(sweep) -> dict:
    """What does not hang on how long it took and into how many parts it was cut."""
    return {key: value for key, value in sweep.document.items() if key not in ("seconds", "parts")}


def random_settings(chance: random.Random) -> dict:
    """Keys of every section with values that may contradict each other."""
    every = {
        "model.batch": [1, 2, 5], "model.seq": [64, 500], "cluster.world_size": [1, 3, 8, 64],
        "cluster.profile": ["h100-sxm-80", "l40s"], "cluster.memory": ["8GiB", "64GiB"],
        "fsdp.runtime": ["fsdp1", "fsdp2", "none"], "fsdp.strategy": ["SHARD_GRAD_OP", "HYBRID_SHARD"],
        "fsdp.wrap.policy": ["size", "always", "none"], "fsdp.mixed_precision.param": ["none", "float16"],
        "checkpointing.policy": ["block", "every_k"], "checkpointing.k": [2], "mesh.tensor": [2, 4],
        "train.micro_batches": [2, 4], "train.clip_grad_norm": [0.0, 0.5], "train.optimizer.name": ["sgd"],
        "allocator.expandable_segments": [True], "train.no_sync": [True],
    }  # fmt: skip
    return {key: chance.choice(values) for key, values in every.items() if chance.random() < 0.3}


class SameBytes(unittest.TestCase):
    """Law: the library and the program say the same."""

    def test_simulate_plan_and_their_variants(self):
        import foreshard as fs

        for settings, flags in (
            (JOB, FLAGS),
            ({"fsdp.runtime": "fsdp1", "checkpointing.policy": "block"}, ["--set", 'fsdp.runtime="fsdp1"', "--set", 'checkpointing.policy="block"']),
            ({"fsdp.prefetch": {"forward_depth": 2}, "cluster.memory": "1GiB"},
             ["--set", 'fsdp.prefetch={"forward_depth" = 2}', "--set", 'cluster.memory="1GiB"']),
        ):  # fmt: skip
            code, text = program("simulate", "--json", LLAMA, *flags)
            prediction = fs.simulate(LLAMA, settings)
            self.assertEqual(prediction.text, text)
            self.assertEqual(prediction.exit_code, code)
            self.assertEqual(prediction.fits, code != 4)
            self.assertEqual(fs.plan(LLAMA, settings).text, program("plan", "--json", LLAMA, *flags)[1])

    def test_random_jobs_by_flags_by_file_and_by_dictionary(self):
        import foreshard as fs

        seed = int(os.environ.get("FORESHARD_LAWS_SEED", "1"))
        for number in range(seed, seed + 20):
            settings = random_settings(random.Random(number))
            flags = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
            code, text = program("simulate", "--json", LLAMA, *flags)
            with self.subTest(seed=number, flags=flags), tempfile.TemporaryDirectory() as folder:
                try:
                    prediction = fs.simulate(LLAMA, settings)
                except fs.Error as error:  # refused by both, or by none
                    self.assertEqual((code, error.message in text), (3, True), text)
                    continue
                self.assertEqual((prediction.exit_code, prediction.text), (code, text))
                file = os.path.join(folder, "job.toml")
                with open(file, "w", encoding="utf-8") as job:
                    job.write(program("config", "show", LLAMA, *flags)[1])
                self.assertEqual(program("simulate", "--json", file), (code, text))

    def test_a_job_file(self):
        import foreshard as fs

        file = os.path.join(ROOT, "examples", "toy.toml")
        self.assertEqual(fs.plan(file).text, program("plan", "--json", file)[1])
        other = os.path.join(ROOT, "examples", "gpt2-8xa100.toml")
        expected = program("simulate", "--json", other, "--set", f'model.source="{LLAMA}"')[1]
        self.assertEqual(fs.simulate(LLAMA, other).text, expected)

    def test_sweep(self):
        import foreshard as fs

        over = ["--over", "cluster.world_size=8,16,32", "--over", "checkpointing.policy=none,block"]
        _, text = program("sweep", "--json", LLAMA, *FLAGS, *over)
        sweep = fs.sweep(LLAMA, JOB, {"cluster.world_size": [8, 16, 32], "checkpointing.policy": ["none", "block"]})
        expected = json.loads(text)
        expected.pop("seconds"), expected.pop("parts")
        self.assertEqual(json.dumps(without_seconds(sweep)), json.dumps(expected))
        self.assertLessEqual(1, len(sweep.front))
        self.assertIn("on the front", repr(sweep))
        self.assertIn("<table>", sweep._repr_html_())

    def test_errors_have_the_programs_fields(self):
        import foreshard as fs

        for job in ({"fsdp.runtim": "fsdp2"}, {"cluster.world_size": -1}, {"cluster.profile": "no-such-card"}):
            with self.assertRaises(fs.Error) as raised:
                fs.simulate(LLAMA, job)
            (key, value), = job.items()
            code, text = program("simulate", "--json", LLAMA, "--set", f"{key}={json.dumps(value)}")
            told = json.loads(text)["error"]
            self.assertEqual(code, 3)
            self.assertEqual({name: getattr(raised.exception, name) for name in told}, told)
            again = pickle.loads(pickle.dumps(raised.exception))
            self.assertEqual((again.code, str(again)), (raised.exception.code, str(raised.exception)))
        for wrong, word in ((3, "no model"), (object(), "no model")):
            with self.assertRaisesRegex(fs.Error, word):
                fs.simulate(wrong)
        with self.assertRaisesRegex(fs.Error, "no job"):
            fs.simulate(LLAMA, 3)


class Captures(unittest.TestCase):
    def test_a_captured_model_brings_its_jobs_defaults(self):
        import foreshard as fs

        plan = fs.plan(Captured(), {"cluster.world_size": 2})
        self.assertEqual(plan.units[0]["param_dtype"], "float32")
        for job in ({"fsdp.mixed_precision.param": "bfloat16"}, {"fsdp": {"mixed_precision": {"param": "bfloat16"}}}):
            with self.assertRaises(fs.Error) as raised:
                fs.simulate(Captured(), {"cluster.world_size": 2, **job})
            self.assertEqual(raised.exception.place, "fsdp.mixed_precision.param")
            self.assertIn("captured with another precision", raised.exception.message)
            self.assertIn('"none"', raised.exception.expected)
            self.assertEqual(raised.exception.got, "bfloat16")


class InnerGradients(unittest.TestCase):
    """torch.autograd.grad in the midst of forward, back through a unit."""

    def test_fsdp2_ends_there_and_fsdp1_gathers(self):
        import foreshard as fs

        document = json.loads(TOY)
        document["ops"][1:1] = [
            {"op": "aten.t.default", "module": "", "args": ["@a.weight"], "kwargs": {"engine": True}, "out": [{"name": "t", "shape": [4, 4], "dtype": "float32", "strides": [1, 4]}]},
            {"op": "aten.mm.default", "module": "", "args": ["%h", "%t"], "kwargs": {"engine": True}, "out": [{"name": "g", "shape": [2, 4], "dtype": "float32"}]},
        ]  # fmt: skip
        document["ops"][-1]["args"] = ["%g"]

        class Penalised:
            def to_json(self):
                return json.dumps(document)

        def planned(runtime, policy):
            return fs.simulate(Penalised(), {"fsdp": {"runtime": runtime, "wrap": {"policy": policy, "classes": ["Linear"]}}, "cluster": {"world_size": 2}})

        with self.assertRaisesRegex(fs.Error, "torch.autograd.grad in the midst of forward"):
            planned("fsdp2", "module_class")
        planned("fsdp1", "module_class")
        with self.assertRaisesRegex(fs.Error, "gradients are taken in the midst of forward"):
            fs.simulate(Penalised(), {"fsdp.runtime": "fsdp1", "cluster.world_size": 2, "checkpointing.offload_activations": True})
        planned("fsdp2", "none")


class Answers(unittest.TestCase):
    def test_pictures_explanations_and_comparisons(self):
        import foreshard as fs

        p = fs.simulate(LLAMA, JOB)
        self.assertRegex(repr(p), r"^<Prediction (fits|does not fit), .* reserved, .* a step>$")
        picture = p._repr_html_()
        self.assertTrue(picture.startswith("<svg"))
        self.assertGreater(picture.count("<rect"), 50)
        self.assertIn("all_gather", picture)
        self.assertEqual(p.explain(), program("simulate", "--explain", LLAMA, *FLAGS)[1])
        low, high = p.step_time_interval
        self.assertTrue(low <= p.step_time <= high)
        with tempfile.TemporaryDirectory() as folder:
            trace = p.save_timeline(os.path.join(folder, "p.json.gz"))
            same = fs.compare(p, trace)
            self.assertEqual(same["step_error"], 0)
            self.assertGreater(same["joined"], 100)
            self.assertTrue(os.path.getsize(fs.view(p, os.path.join(folder, "p.svg"))) > 1000)

    def test_verbs_that_are_not_there_are_errors(self):
        import foreshard as fs
        from foreshard import api

        with self.assertRaises(fs.Error) as raised:
            api._verb(["nonsense", LLAMA])
        self.assertEqual(raised.exception.code, "usage")

    def test_other_threads_run_on_meanwhile(self):
        import foreshard as fs

        ticks, done = [], threading.Event()

        def tick():
            while not done.is_set():
                ticks.append(time.perf_counter())
                time.sleep(0.002)

        thread = threading.Thread(target=tick)
        thread.start()
        begin = time.perf_counter()
        fs.sweep(LLAMA, JOB, {"model.seq": [512, 1024, 2048], "cluster.world_size": [8, 16, 32, 64]}, threads=1)
        seconds = time.perf_counter() - begin
        done.set()
        thread.join()
        inside = [t for t in ticks if begin < t < begin + seconds]
        self.assertGreater(len(inside), 3, seconds)

    def test_side_by_side_in_threads(self):
        import foreshard as fs

        sizes = [8, 16, 32, 64] * 3
        with ThreadPoolExecutor(4) as pool:
            texts = list(pool.map(lambda n: fs.simulate(LLAMA, {**JOB, "cluster.world_size": n}).text, sizes))
        self.assertEqual(texts[:4], texts[4:8])
        self.assertEqual(len(set(texts)), 4)


class _Lossy:
    """An executor whose workers die: every second part once."""

    _max_workers = 2

    def __init__(self):
        self.submitted = 0

    def submit(self, function, *args):
        self.submitted += 1
        future: Future = Future()
        if self.submitted % 2 and self.submitted < 8:
            future.set_exception(ConnectionError("the worker is gone"))
        else:
            try:
                future.set_result(function(*args))
            except Exception as error:  # as executors do
                future.set_exception(error)
        return future


class Executors(unittest.TestCase):
    OVER = {"cluster.world_size": [8, 16, 32, 64], "model.batch": [1, 2, 3]}

    def test_a_process_pool_gives_what_one_process_gives(self):
        import multiprocessing

        import foreshard as fs

        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
            spread = fs.sweep(LLAMA, JOB, self.OVER, executor=pool)
            toy = fs.sweep(Captured(), {"cluster.world_size": 2}, {"cluster.world_size": [1, 2, 4]}, executor=pool, parts=2)
        here = fs.sweep(LLAMA, JOB, self.OVER)
        self.assertEqual(json.dumps(without_seconds(spread)), json.dumps(without_seconds(here)))
        here = fs.sweep(Captured(), {"cluster.world_size": 2}, {"cluster.world_size": [1, 2, 4]})
        self.assertEqual(json.dumps(without_seconds(toy)), json.dumps(without_seconds(here)))

    def test_parts_of_workers_that_die_are_done_again(self):
        import foreshard as fs

        executor = _Lossy()
        spread = fs.sweep(LLAMA, JOB, self.OVER, executor=executor, parts=6)
        self.assertGreater(executor.submitted, 6)
        here = fs.sweep(LLAMA, JOB, self.OVER)
        self.assertEqual(json.dumps(without_seconds(spread)), json.dumps(without_seconds(here)))

    def test_a_fit_is_that_of_one_machine(self):
        import foreshard as fs

        tiny = os.path.join(ROOT, "examples", "tiny-llama", "config.json")
        how = {"methods": ("full", "lora"), "context": 128, "threads": 1}
        alone = fs.fit(tiny, "8xh100-sxm-80", **how)
        executor = _Lossy()
        self.assertEqual(fs.fit(tiny, "8xh100-sxm-80", **how, executor=executor).document, alone.document)
        self.assertGreater(executor.submitted, 2)
        with self.assertRaises(fs.Error) as refused:
            fs.fit(tiny, "8xh100-sxm-80", **how, executor=executor, emit=["trl"], out="/tmp/nowhere")
        self.assertIn("foreshard.export", refused.exception.hint)

    def test_a_fit_of_no_method_is_what_the_program_says(self):
        import foreshard as fs

        tiny = os.path.join(ROOT, "examples", "tiny-llama", "config.json")

        def said(**how):
            try:
                return without_seconds(fs.fit(tiny, "8xh100-sxm-80", methods=[], context=128, threads=1, **how))
            except fs.Error as error:
                return str(error)

        self.assertEqual(said(executor=_Lossy()), said())

    def test_an_executor_that_only_loses_is_an_error(self):
        import foreshard as fs

        class Broken(_Lossy):
            def submit(self, function, *args):
                future: Future = Future()
                future.set_exception(ConnectionError("gone"))
                return future

        with self.assertRaisesRegex(fs.Error, "lost parts of the sweep"):
            fs.sweep(LLAMA, JOB, self.OVER, executor=Broken(), parts=2)

    def test_a_wrong_job_is_told_once(self):
        import foreshard as fs

        with self.assertRaises(fs.Error) as raised:
            fs.sweep(LLAMA, {"fsdp.runtim": 1}, self.OVER, executor=_Lossy(), parts=2)
        self.assertEqual(raised.exception.code, "unknown_key")


if __name__ == "__main__":
    try:
        from foreshard import _core  # noqa: F401
    except ImportError:
        print("skipped: this build has no module foreshard._core")
        sys.exit(77)
    if not os.path.exists(PROGRAM):
        print("skipped: FORESHARD names no program")
        sys.exit(77)
    unittest.main()
