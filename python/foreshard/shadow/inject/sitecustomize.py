"""Found by the interpreter because `foreshard shadow` puts this folder first on PYTHONPATH."""

import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _begin():
    root = os.path.dirname(os.path.dirname(_here))  # the package's folder, whatever else is installed under its name
    name = "foreshard"
    spec = importlib.util.spec_from_file_location(name, os.path.join(root, "__init__.py"), submodule_search_locations=[root])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    from foreshard.shadow import begin

    begin()


if os.environ.get("FORESHARD_SHADOW"):
    try:
        _begin()
    except Exception as error:  # a script must not go on half watched
        print(f"foreshard shadow: the script cannot be watched: {type(error).__name__}: {error}", file=sys.stderr)
        os._exit(3)

# The one that this one hides.
sys.path[:] = [place for place in sys.path if os.path.abspath(place) != _here]
_mine = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # noqa: F401
except ImportError:
    if _mine is not None:
        sys.modules["sitecustomize"] = _mine
