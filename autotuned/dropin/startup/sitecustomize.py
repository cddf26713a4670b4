"""Run by every Python that `autotuned run` starts: runs the program's own `sitecustomize`, then arranges `install`."""

import importlib.machinery
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _run_the_next() -> None:
    """Python runs the first `sitecustomize` on its path only; the next one is the program's."""
    others = [path for path in sys.path if os.path.abspath(path) != _here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _arrange() -> None:
    try:
        from autotuned.dropin.import_hook import when_triton_is_imported
    except ImportError:  # a Python of another environment without this package: run the program unchanged
        return
    when_triton_is_imported()


try:
    _run_the_next()
finally:  # Python reports an error in the program's own and goes on
    _arrange()
