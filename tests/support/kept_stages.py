"""Run Triton's back end once for each form of a kernel: results are kept by IR and options.

A kernel that many tests compile into empty caches is lowered, and assembled by ptxas, once per session, which would be
most of the time of these tests. Everything else is Triton's own: front end, caches, files, hooks and listeners. IR that
differs only in source lines counts as the same. `real_stages` is for tests of the back end's results,
`no_machine_code` for tests that compile many kernels without using the machine code.
"""

import hashlib
import os
import pickle
import re
from contextlib import suppress
from pathlib import Path

import pytest
import triton
from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.backends.nvidia.compiler import CUDABackend

_PLACE = re.compile(r' loc\((?:#loc\d*|unknown|"[^"]*"\(#loc\d*\))\)|^#loc.*\n', re.MULTILINE)
_PTXAS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
_add_stages = CUDABackend.add_stages
_is_on = _lowers = True


def install(folder: Path) -> None:
    """Keep results in a folder, from now on and for this process; other processes may use it at the same time."""
    folder.mkdir(parents=True, exist_ok=True)

    def add_stages(backend, stages, options, language):
        _add_stages(backend, stages, options, language)
        if not _lowers:
            stages |= {
                "llir": _named,
                "ptx": lambda text, metadata: text,
                "cubin": lambda text, metadata: text.encode(),
            }
        if _is_on and _is_plain():
            stages.update(_Kept(folder, backend.target, options, dict(stages)).stages())

    CUDABackend.add_stages = add_stages


@pytest.fixture
def real_stages(monkeypatch):
    """Triton's back end, run each time."""
    monkeypatch.setattr("kept_stages._is_on", False)


@pytest.fixture
def no_machine_code(monkeypatch):
    """Skip LLVM and ptxas, which take most of the time: Triton's GPU IR replaces their results."""
    monkeypatch.setattr("kept_stages._lowers", False)


def _named(module, metadata):
    """The metadata that later stages and a launch read, for a kernel without shared memory."""
    metadata |= dict.fromkeys(("shared", "tmem_size", "global_scratch_size", "profile_scratch_size"), 0)
    metadata |= {"global_scratch_align": 1, "profile_scratch_align": 1}
    text = str(module)
    metadata["name"] = re.search(r"tt\.func public @(\w+)", text)[1]
    return text


def _is_plain():
    asked = knobs.compilation
    return not (
        asked.override or asked.dump_ir or asked.use_ir_loc or knobs.runtime.add_stages_inspection_hook is not None
    )


class _Kept:
    """One compilation; its first stage looks up the kept results."""

    def __init__(self, folder, target, options, stages):
        self._folder, self._stages, self._made = folder, stages, None
        environment = sorted(get_cache_invalidating_env_vars().items()), [os.environ.get(name) for name in _PTXAS]
        self._asked = repr((_lowers, triton.__version__, target, sorted(vars(options).items(), key=repr), environment))

    def stages(self):
        return {name: lambda module, metadata, name=name: self._run(name, module, metadata) for name in self._stages}

    def _run(self, name, module, metadata):
        first, last = next(iter(self._stages)), [*self._stages][-1]
        if name == first and not metadata.get("ir_override"):
            self._begin(module)
        if self._made is None:  # from the caller's IR, which starts at a later stage
            return self._stages[name](module, metadata)
        if name not in self._made:
            before = dict(metadata)
            found = self._stages[name](module, metadata)
            changed = {key: value for key, value in metadata.items() if key not in before or before[key] != value}
            self._made[name] = found if isinstance(found, bytes) else str(found), changed
            if name == last:
                self._keep()
            return found
        found, changed = self._made[name]
        metadata.update(changed)
        return found

    def _begin(self, module):
        text = _PLACE.sub("", str(module)) + self._asked
        self._path = self._folder / hashlib.sha256(text.encode()).hexdigest()
        self._made = {}
        with suppress(FileNotFoundError):
            self._made = pickle.loads(self._path.read_bytes())

    def _keep(self):
        unfinished = self._path.with_suffix(f".{os.getpid()}-{id(self)}")
        unfinished.write_bytes(pickle.dumps(self._made))
        os.replace(unfinished, self._path)
