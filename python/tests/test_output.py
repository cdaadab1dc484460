"""What the package writes is written whole or not at all. Needs nothing but Python."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from foreshard._output import whole_file  # noqa: E402


class WholeFile(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "model.json")

    def content(self) -> str:
        with open(self.path, encoding="utf-8") as file:
            return file.read()

    def old(self, mode: int = 0o640) -> None:
        with open(self.path, "w", encoding="utf-8") as file:
            file.write("old")
        os.chmod(self.path, mode)

    def test_it_takes_the_old_ones_place_and_rights(self):
        self.old(0o600)
        with whole_file(self.path) as file:
            file.write("new")
            self.assertEqual(self.content(), "old")
        self.assertEqual(self.content(), "new")
        self.assertEqual(stat.S_IMODE(os.stat(self.path).st_mode), 0o600)
        self.assertEqual(os.listdir(self.folder.name), ["model.json"])

    def test_an_error_leaves_the_old_one(self):
        self.old()
        with self.assertRaises(ZeroDivisionError), whole_file(self.path) as file:
            file.write("half")
            file.flush()
            1 / 0
        self.assertEqual(self.content(), "old")
        self.assertEqual(os.listdir(self.folder.name), ["model.json"])

    def test_a_file_that_grows_too_large_leaves_the_old_one(self):
        self.old()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            with self.assertRaises(OSError) as told, whole_file(self.path, "wb") as file:
                file.write(b"x" * 5000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, before)
        self.assertEqual(told.exception.filename, self.path)
        self.assertEqual(self.content(), "old")
        self.assertEqual(os.listdir(self.folder.name), ["model.json"])

    def test_links_are_followed(self):
        self.old()
        link = os.path.join(self.folder.name, "link")
        os.symlink("model.json", link)
        with whole_file(link) as file:
            file.write("new")
        self.assertTrue(os.path.islink(link))
        self.assertEqual(self.content(), "new")

    def test_descriptors_are_written_to(self):
        for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
            code = f"from foreshard._output import whole_file\nwith whole_file({name!r}) as file: file.write('told')"
            command = [sys.executable, "-c", code]
            end = subprocess.run(command, cwd=os.path.dirname(HERE), capture_output=True, text=True, check=False)
            self.assertEqual((end.stdout, end.stderr, end.returncode), ("told", "", 0), name)
            self.old()
            held = os.stat(self.path).st_ino
            with open(self.path, "w", encoding="utf-8") as file:
                subprocess.run(command, cwd=os.path.dirname(HERE), stdout=file, check=True)
            self.assertEqual((self.content(), os.stat(self.path).st_ino), ("told", held), name)

    def test_what_is_no_file_is_written_to(self):
        with whole_file("/dev/null") as file:
            file.write("gone")
        with self.assertRaises(OSError), whole_file("/dev/full") as file:
            file.write("full")
        with self.assertRaises(FileNotFoundError) as told, whole_file(os.path.join(self.folder.name, "no", "x")) as file:
            file.write("nowhere")
        self.assertTrue(told.exception.filename.endswith(os.path.join("no", "x")))


if __name__ == "__main__":
    unittest.main()
