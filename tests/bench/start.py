"""Start-up of a process whose choice is stored, for several installations, interleaved in one run.

    python tests/bench/start.py PYTHON [PYTHON ...] [--rounds 40] [--store URL]

Each PYTHON is the interpreter of an environment with one version of this package. In each round every one starts once,
imports torch and Triton, and is then measured from `import autotuned` to the first launch of a kernel (in Triton's
interpreter) whose choice is in the store: milliseconds of CPU time, modules of the package, and bytes of their code.
Times are minimum and median of the rounds. With --store each starts twice per round, without a shared store and with
this one, which it need not read.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from started import KERNEL

PROGRAM = """
import json, marshal, sys, time
import torch, triton
from triton.runtime import autotuner, interpreter
import kernel_file

x = torch.zeros(64)
configs = [triton.Config({"BLOCK": block}) for block in (64, 128)]
start = time.process_time()
import autotuned
tuned = autotuned.autotune(configs, key=["n"], name="start.add")(kernel_file.add)
target = getattr(tuned.tuner, "tunable", None) or tuned.tuner.target  # as it was called before
launch = target.launch
ended = []

def first(call, config):
    ended.append(time.process_time())
    return launch(call, config)

target.launch = first
tuned[(1,)](x, 64)
searches = tuned.cache_info().searches
ours = [module for name, module in sys.modules.items() if name.partition(".")[0] == "autotuned"]
code = sum(len(marshal.dumps(m.__loader__.get_code(m.__name__))) for m in ours if hasattr(m.__loader__, "get_code")
           and m.__loader__.get_code(m.__name__))
print(json.dumps([(ended[0] - start) * 1e3, len(ours), code, searches]))
"""


def one(python: str, folder: Path, url: str = "") -> list[float]:
    """Milliseconds, modules, bytes and searches of one process."""
    store = folder / python.strip("/").replace("/", "_")
    environment = os.environ | {"TRITON_INTERPRET": "1", "AUTOTUNED_CACHE_DIR": str(store), "PYTHONPATH": str(folder)}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")  # as installed; sources are not compiled again
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.pop("AUTOTUNED_STORE", None)
    if url:
        environment["AUTOTUNED_STORE"] = url
    done = subprocess.run([python, "-c", PROGRAM], env=environment, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{python}: {done.stderr}")
    found: list[float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="+")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--store", metavar="URL", default="")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kernel_file.py").write_text(KERNEL)
        for python in given.python:
            one(python, folder)  # searches, and stores
        ways = [(python, url) for python in given.python for url in dict.fromkeys(["", given.store])]
        rounds = [[one(python, folder, url) for python, url in ways] for _ in range(given.rounds)]
    for index, (python, url) in enumerate(ways):
        times, modules, size, searches = zip(*(found[index] for found in rounds))
        assert not any(searches), f"{python}: a choice was not stored"
        print(
            f"{python}{' with a store' if url else ''}: {min(times):.2f} ms, median {statistics.median(times):.2f}; {modules[0]} modules, {size[0]} bytes"
        )


if __name__ == "__main__":
    main()
