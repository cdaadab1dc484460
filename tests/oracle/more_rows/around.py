"""The recorder of `foreshard-oracle practice` (RECORDER) with something around each case that has a key of its own."""
import importlib
import os
import sys

RECORDER = os.path.abspath(os.environ["RECORDER"])
sys.path[:0] = [os.path.dirname(RECORDER)]
import recorder  # noqa: E402


def main(file, key, prepare, library):
    """`prepare(case)` comes before each case with `key`, whose rows say which `library` it was; `file` is started for each case."""
    run = recorder.run

    def prepared(case, args):
        asked = case.get(key)
        if asked:
            prepare(case)
        got = run(case, args)
        if asked:
            got["versions"][library] = importlib.import_module(library).__version__
        return got

    recorder.run = prepared
    recorder.__file__ = os.path.abspath(file)
    recorder.main()
