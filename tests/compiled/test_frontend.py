"""Configs of a search that differ in warps and stages only share what Triton's front end made, and nothing else."""

import hashlib
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton import Config
from triton.compiler import ASTSource, code_generator
from triton.language.extra import cuda

from autotuned import autotune
from autotuned.store import listing, records
from autotuned.triton_compat import frontend

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
from problems import PROBLEMS  # noqa: E402

# A call and configs of two problems that are compiled quickly: small tiles.
FEW = {
    "matmul": ((64, 64, 64), [
        Config({"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 32, "GROUP_M": 8}, num_warps=warps, num_stages=stages)
        for warps, stages in ((1, 2), (2, 3))
    ]),
    "attention": ((2, 64, 16), [
        Config({"BLOCK_M": 16, "BLOCK_N": 16}, num_warps=warps, num_stages=2) for warps in (1, 2)
    ]),
}  # fmt: skip

CONFIGS = [
    Config({"BLOCK": block}, num_warps=warps, num_stages=stages)
    for block in (64, 128) for warps in (1, 2, 4) for stages in (1, 2)
]  # fmt: skip


def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


def tell_warps(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + cuda.num_warps(), mask=i < n)


def wrong(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK == 64, "the block is wrong")
    tl.store(y_ptr + tl.arange(0, BLOCK), tl.load(x_ptr + n))


@pytest.fixture(autouse=True)
def cold(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


@pytest.fixture
def built(monkeypatch):
    """Numbers of warps that the front end was run for."""
    seen = []
    original = code_generator.ast_to_ttir

    def counted(fn, src, *args, options, **kwargs):
        module = original(
            fn, src, *args, options=options, **kwargs
        )  # may fail, and is then tried again: see PARSER_TRIES
        seen.append(options._options.num_warps if isinstance(options, frontend.WatchedOptions) else options.num_warps)
        return module

    monkeypatch.setattr(code_generator, "ast_to_ttir", counted)
    return seen


def search(kernel, workers, monkeypatch, **options):
    """Tune it; the tuned kernel."""
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", str(workers))
    tuned = autotune(CONFIGS, key=["n"], do_bench=lambda call, quantiles: [1.0] * 3, **options)(triton.jit(kernel))
    tuned[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](torch.zeros(1000), torch.zeros(1000), 1000)
    return tuned


def digests(jit, name):
    """Hash of each stage of some configs of a problem, compiled one after the other."""
    shape, configs = FEW[name]
    arguments = PROBLEMS[name].arguments(shape, "cpu")
    found = []
    for config in configs:
        compiled = jit.warmup(*arguments, grid=(1,), **config.all_kwargs())
        found.append({
            stage: hashlib.sha256(text if isinstance(text, bytes) else str(text).encode()).hexdigest()
            for stage, text in compiled.asm.items()
        })  # fmt: skip
    return found


@pytest.mark.parametrize("workers", [1, 4])
def test_the_front_end_runs_once_for_all_warps_and_stages(built, monkeypatch, workers):
    tuned = search(add, workers, monkeypatch)
    assert len(built) == 2  # one a block, of twelve configs
    assert tuned.fn.ASTSource is ASTSource
    assert not [name for name in os.listdir(records.scratch_folder()) if name.startswith("form-")]


@pytest.mark.parametrize("name", FEW)
def test_what_is_compiled_is_the_same_to_the_byte(built, tmp_path, monkeypatch, real_stages, name):
    problem = PROBLEMS[name]
    alone = digests(problem.tuned(triton.autotune).fn, name)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "other"))
    again = problem.tuned(triton.autotune).fn
    with frontend.shared(again, tmp_path):
        shared = digests(again, name)
    assert len(built) == len(FEW[name][1]) + 1
    for one, other in zip(alone, shared):
        # Names of loop variables are all that is lost, and Triton prints them in its first two forms only.
        assert {**one, "source": "", "ttir": ""} == {**other, "source": "", "ttir": ""}


def test_a_kernel_that_asks_for_its_warps_is_built_for_each(built, monkeypatch):
    tuned = search(tell_warps, 4, monkeypatch)
    assert len(built) == len(CONFIGS)
    texts = [compiled.asm["ttir"] for binaries, *_ in tuned.fn.device_caches.values() for compiled in binaries.values()]
    assert {warps for warps in (1, 2, 4) for text in texts if f"dense<{warps}.0" in text or f"{warps}.000000" in text} == {
        1, 2, 4,
    }  # fmt: skip


def test_each_config_has_its_own_error(monkeypatch):
    tuned = search(wrong, 4, monkeypatch)
    ((_, record),) = listing.all_records()
    errors = {(timing.config["kwargs"]["BLOCK"], timing.status) for timing in record.timings}
    assert errors == {(64, "ok"), (64, "same"), (128, "failed")} or errors == {(64, "ok"), (128, "failed")}
    assert all("the block is wrong" in timing.error for timing in record.timings if timing.status == "failed")
    assert tuned.best_config.kwargs["BLOCK"] == 64


def test_nothing_is_shared_where_files_cannot_be_written(built, monkeypatch):
    def refuse(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(frontend.disk, "write_text", refuse)
    forms = frontend.Forms(Path("/nowhere"))
    assert [forms.get("key", CONFIGS[0], lambda options: "module", None) for _ in range(3)] == ["module"] * 3


def test_where_one_fails_the_next_builds_it_for_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(frontend, "_parsed", lambda path, context: path.read_text())
    forms, begun, answers = frontend.Forms(tmp_path), threading.Barrier(4, timeout=20), []

    def build(options):
        answers.append("failed" if not answers else "built")
        time.sleep(0.05)
        if len(answers) == 1:
            raise SystemError("AST constructor recursion depth mismatch")
        return "module"

    def ask(number):
        begun.wait()
        return forms.get("key", CONFIGS[0], build, None)

    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(ask, number) for number in range(4)]
    failed = [one.exception() for one in asked if one.exception()]
    assert [type(error) for error in failed] == [SystemError]
    assert [one.result() for one in asked if not one.exception()] == ["module"] * 3
    assert answers == ["failed", "built"]


@pytest.mark.parametrize("stuck", [False, True])
def test_forms_are_built_one_at_a_time_but_nobody_waits_for_a_slow_one(tmp_path, monkeypatch, stuck):
    monkeypatch.setattr(frontend, "PATIENCE_S", 0.05 if stuck else 60.0)
    forms, building, most, rest = frontend.Forms(tmp_path), [], [0], threading.Event()

    def build(number):
        building.append(number)
        most[0] = max(most[0], len(building))
        if stuck and number == 0:
            assert rest.wait(20)
        time.sleep(0.01)
        building.remove(number)
        return f"module {number}"

    def ask(number):
        made = forms.get(number, CONFIGS[0], lambda options: build(number), None)
        if number == 3:
            rest.set()
        return made

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, range(4))) == [f"module {number}" for number in range(4)]
    assert (most[0] == 1) is not stuck


def test_a_file_that_is_gone_is_built_again(tmp_path, built, monkeypatch):
    jit, x = triton.jit(add), torch.zeros(64)
    monkeypatch.setattr(frontend.Forms, "_kept", lambda self, text: tmp_path / "gone.ttir")
    with frontend.shared(jit, tmp_path):
        for config in CONFIGS[:2]:
            jit.warmup(x, x, 64, grid=(1,), **config.all_kwargs())
    assert len(built) == 2


def test_a_source_class_of_somebody_elses_is_left_alone(tmp_path):
    class Theirs(ASTSource):
        pass

    jit = triton.jit(add)
    jit.device_caches[0]
    jit.ASTSource = Theirs
    with frontend.shared(jit, tmp_path):
        assert jit.ASTSource is Theirs


def test_options_that_are_read_are_known():
    watched = frontend.WatchedOptions(CONFIGS[0])
    assert watched.num_warps == 1
    assert watched.seen() == {"num_warps"}
    vars_of = frontend.WatchedOptions(CONFIGS[0])
    assert vars_of.__dict__ == vars(CONFIGS[0])
    assert vars_of.seen() >= {"num_warps", "num_stages", "maxnreg"}
