"""test_wheel.py SOURCE BUILD: scripts/package wheel, installed in a fresh environment and used there.

Skipped (77) where scripts/setup-package has not been run, or where BUILD is not the release build that is packed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = (os.path.abspath(path) for path in sys.argv[1:3])
# The loader's and what every wheel for Linux may ask of the system (PEP 600).
SYSTEM = r"^(linux-vdso|ld-linux-.*|lib(c|m|dl|rt|pthread|util|stdc\+\+|gcc_s|z))\.so"
TORCH = r"^lib(torch.*|c10.*)\.so"

USE = """
import importlib.metadata, json, os, sys
import foreshard as fs

assert "site-packages" in fs.__file__, fs.__file__
model = sys.argv[1]
job = {"fsdp": {"runtime": "fsdp2"}, "cluster": {"world_size": 8, "profile": "h100-sxm-80"}, "model.seq": 256}
p = fs.simulate(model, job)
assert p.fits and p.step_time > 0 and p.peak_reserved > 0
assert p._repr_html_().startswith("<svg") and "peak" in p.explain()
assert len(fs.plan(model, job).units) > 2
assert len(fs.sweep(model, job, {"cluster.world_size": [4, 8]}).points) == 2
trace = p.save_timeline("t.json.gz")
assert fs.compare(p, trace)["step_error"] == 0
assert os.path.getsize(fs.view(p, "p.svg")) > 1000
found = fs.fit(model, "2xh100-sxm-80", {"model.seq": 256}, tokens_per_step=2 * 256 * 4)
assert found.fits and found.longest_context() > 256
written = fs.export(model, job, tools=["accelerate"], out="exported")
assert written.files and len(os.listdir("exported")) > 0
try:
    fs.simulate(model, {"no.such": 1})
except fs.Error as error:
    assert error.code == "unknown_key"
else:
    raise AssertionError("an unknown key passes")
print("planned")
try:
    import torch
except ImportError:
    sys.exit()
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
captured = fs.capture(net, torch.zeros(4, 6), loss=lambda out: out.square().mean())
assert fs.simulate(captured, job | {"fsdp.wrap.policy": "none"}).fits
captured.save("net.model.json")
fs.save_weights(net, "net.safetensors")
print("captured")
"""


def run(*command: str, **options) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def torch_folder() -> str:
    root = os.path.join(SOURCE, "build", "torch-venv", "lib")
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folder = os.path.join(root, name, "site-packages")
    return folder if os.path.isdir(os.path.join(folder, "torch")) else ""


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        out = os.path.join(cls.folder.name, "out")
        run(os.path.join(SOURCE, "scripts", "package"), "wheel", out)
        (wheel,) = os.listdir(out)
        cls.wheel = os.path.join(out, wheel)
        cls.venv = os.path.join(cls.folder.name, "venv")
        run(sys.executable, "-m", "venv", cls.venv)
        cls.python = os.path.join(cls.venv, "bin", "python")
        run(cls.python, "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", cls.wheel)
        cls.site = run(cls.python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip()
        # No word of the build in the environment.
        cls.environment = {k: v for k, v in os.environ.items() if not k.startswith(("FORESHARD", "PYTHON", "LD_"))}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def use(self) -> str:
        model = os.path.join(SOURCE, "examples", "gpt2", "config.json")
        work = os.path.join(self.folder.name, "work")
        os.makedirs(work, exist_ok=True)
        return run(self.python, "-c", USE, model, cwd=work, env=self.environment)

    def test_1_its_libraries_are_inside(self):
        self.assertRegex(os.path.basename(self.wheel), r"-cp3\d+-cp3\d+-manylinux_2_\d+_x86_64\.whl$")
        glibc = int(re.search(r"manylinux_2_(\d+)", self.wheel)[1])
        self.assertLessEqual(glibc, 36)
        seen = 0
        for folder, _, files in os.walk(self.site):
            for name in files:
                path = os.path.join(folder, name)
                if "foreshard" not in path or os.path.islink(path):
                    continue
                with open(path, "rb") as file:
                    if file.read(4) != b"\x7fELF":
                        continue
                seen += 1
                for line in run("ldd", path, env=self.environment).splitlines():
                    library = os.path.basename(line.split()[0])
                    if re.match(SYSTEM, library) or (name.startswith("foreshard-exec") and re.match(TORCH, library)):
                        continue
                    if name.startswith("foreshard-exec") and "not found" not in line and self.site not in line:
                        continue  # what LibTorch brings
                    self.assertIn(self.site, line, f"{name} takes {library} from the system")
        self.assertGreater(seen, 2)

    def test_2_plans_without_torch(self):
        self.assertEqual(self.use().split(), ["planned"])

    def test_3_the_program_is_on_the_path(self):
        program = os.path.join(self.venv, "bin", "foreshard")
        self.assertIn('"foreshard.version/1"', run(program, "version", "--json", env=self.environment))
        self.assertIn("h100-sxm-80", run(program, "config", "show", os.path.join(SOURCE, "examples", "toy.toml"), env=self.environment))

    def test_4_stubs_say_what_the_core_has(self):
        with open(os.path.join(self.site, "foreshard", "_core.pyi"), encoding="utf-8") as file:
            self.assertIn("def run(arguments: list[str]) -> tuple[int, str, str]", file.read())
        self.assertTrue(os.path.exists(os.path.join(self.site, "foreshard", "py.typed")))

    def test_6_shadow_finds_its_parts(self):
        if not os.path.exists(os.path.join(BUILD, "lib", "libfakegpu.so")):
            self.skipTest("this build has no virtual device")
        command = [os.path.join(self.venv, "bin", "foreshard"), "shadow", "--", self.python, "-c", "pass"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("never imported PyTorch", done.stdout + done.stderr)

    def test_5_with_torch_beside_it_captures_and_trains(self):
        if not torch_folder():
            self.skipTest("no torch in build/torch-venv for this Python")
        # As if it were installed here: torch's own folder, and all that it needs on the path.
        os.symlink(os.path.join(torch_folder(), "torch"), os.path.join(self.site, "torch"))
        with open(os.path.join(self.site, "torch-beside.pth"), "w", encoding="utf-8") as file:
            file.write(torch_folder() + "\n")
        self.assertEqual(self.use().split(), ["planned", "captured"])
        if not os.path.exists(os.path.join(self.site, "foreshard", "bin", "foreshard-exec")):
            self.skipTest("this build has no executor")
        program = os.path.join(self.venv, "bin", "foreshard")
        work = os.path.join(self.folder.name, "work")
        flags = ["--set", "train.steps=2", "--set", "cluster.world_size=1", "--set", "fsdp.wrap.policy=none", "--set", "model.weights=net.safetensors"]
        said = run(program, "run", "net.model.json", "--json", *flags, cwd=work, env=self.environment)
        self.assertEqual(said.count('"loss"'), 2)


if __name__ == "__main__":
    sys.argv[1:] = sys.argv[3:]
    if not os.path.exists(os.path.join(SOURCE, "build", "package-venv", "bin", "auditwheel")):
        print("skipped: no build/package-venv (scripts/setup-package makes it)")
        sys.exit(77)
    if BUILD != os.path.join(SOURCE, "build", "release"):
        print("skipped: scripts/package packs the release build")
        sys.exit(77)
    unittest.main()
