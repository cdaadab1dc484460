"""docs/python.md: its blocks run, one after the other."""

import os
import re
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
# The package with its core, as the build tree has it.
sys.path.insert(0, os.environ.get("FORESHARD_PACKAGE", os.path.dirname(HERE)))


class Page(unittest.TestCase):
    def test_blocks_run(self):
        with open(os.path.join(HERE, "..", "..", "docs", "python.md"), encoding="utf-8") as page:
            blocks = re.findall(r"^```python\n(.*?)^```", page.read(), re.MULTILINE | re.DOTALL)
        self.assertGreater(len(blocks), 1)
        names: dict = {"__name__": "page"}
        for number, block in enumerate(blocks):
            exec(compile(block, f"docs/python.md, block {number}", "exec"), names)


if __name__ == "__main__":
    try:
        from foreshard import _core  # noqa: F401
    except ImportError:
        print("skipped: this build has no module foreshard._core")
        sys.exit(77)
    unittest.main()
