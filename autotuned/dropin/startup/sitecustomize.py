"""Run by every Python that `autotuned run` starts: lets the program's own `sitecustomize` run, then arranges for us."""

import importlib.machinery
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _run_the_next() -> None:
    """Python runs one `sitecustomize`, the first on its path; the one behind this is the program's."""
    others = [path for path in sys.path if os.path.abspath(path) != _here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_run_the_next()
try:
    from autotuned.dropin.import_hook import when_triton_is_imported
except ImportError:  # a Python of another environment, where this package is not: its program runs as ever
    pass
else:
    when_triton_is_imported()
