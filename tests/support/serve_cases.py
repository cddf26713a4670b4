"""Run all cases of the named modules and fail if any call searched.

Usage: python tests/support/serve_cases.py DEVICE MODULE...
"""

from __future__ import annotations

import importlib
import sys


def tuned_objects(module: str):
    """The tuned objects of a module that have cases."""
    found = vars(importlib.import_module(module)).values()
    return [value for value in found if isinstance(getattr(value, "cases", None), list) and value.cases]


def run(kernel, device: str) -> None:
    """Launch each case once, and print times of look-ups and compilations."""
    cases = [case for generator in kernel.cases for case in generator(device)]
    for case in cases:
        launch = kernel[case["grid"]] if "grid" in case else kernel
        launch(*case.get("args", ()), **case.get("kwargs", {}))
    info = kernel.cache_info()
    if info.searches:
        sys.exit(f"{kernel.tuner.tunable.name}: {info.searches} searches, expected none")
    print(
        f"{kernel.tuner.tunable.name}: {len(cases)} cases, {info.misses} misses, 0 searches, "
        f"look-up {info.lookup_s * 1e3:.1f} ms, compile {info.compile_s:.2f} s"
    )


def main() -> None:
    """Run the modules given on the command line."""
    device, *modules = sys.argv[1:]
    for kernel in [kernel for module in modules for kernel in tuned_objects(module)]:
        run(kernel, device)


if __name__ == "__main__":
    main()
