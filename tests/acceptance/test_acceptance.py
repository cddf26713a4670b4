"""The twelve shapes compute what they should on every path that leads to a config, on a GPU or in the interpreter."""

from functools import partial

import paths
import pytest
import torch
import triton
from torch.library import triton_op, wrap_triton
from twelve import SHAPES

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
gpu = pytest.mark.gpu


def skipped(shape):
    """The marks of a shape that does not run everywhere."""
    bounds = shape.bounds and not GPU and triton.__version__.startswith("3.6.")
    return [gpu] * bool(shape.gpu) + [pytest.mark.skip(reason="not interpreted by Triton 3.6 with NumPy 2")] * bounds


def check(shape, found, data):
    expected = shape.expect(data)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = max(1.0, float(value.abs().max()))
        difference = float((found[name].double() - value).abs().max())
        assert difference <= shape.tolerance * scale, f"{name}: off by {difference}, values up to {scale}"


@pytest.mark.parametrize("shape", [pytest.param(one, id=name, marks=skipped(one)) for name, one in SHAPES.items()])
def test_shape(shape, monkeypatch, tmp_path):
    """Measured, from the table, from disk as in another process, from a config file, and untuned."""
    # On a GPU the search is as it is; elsewhere a trial is two launches and all configs are equal. The benchmark is a part
    # of the key.
    make = partial(shape.make, shape.configs, **({} if GPU else {"do_bench": paths.quick}))
    launch_and_check(shape, make(), times=3, searches=1)
    launch_and_check(shape, make())
    paths.ship(tmp_path / "shipped", monkeypatch)
    launch_and_check(shape, make())
    monkeypatch.delenv("AUTOTUNED_CONFIG_PATH")
    launch_and_check(shape, make(default=shape.configs[-1]))


def launch_and_check(shape, tuned, times=2, searches=0):
    """The first launch is on the path; the others hit, and must not depend on what lies in their outputs."""
    for _ in range(times):
        check(shape, shape.launch(tuned, shape.data(DEVICE)), shape.data(DEVICE))
    info = tuned.cache_info()
    assert info.searches == searches and info.hits >= times - 1


@pytest.mark.skipif(bool(skipped(SHAPES["10-int4"])), reason="not interpreted by Triton 3.6 with NumPy 2")
def test_constexprs_that_the_caller_passes_are_in_the_key():
    shape = SHAPES["10-int4"]
    tuned = shape.make(shape.configs, do_bench=paths.quick)
    for split in (1, 2, 1, 2):
        check(shape, shape.launch(tuned, {**shape.data(DEVICE), "split": split}), shape.data(DEVICE))
    assert tuned.cache_info().searches == 2


def test_a_shape_inside_an_operator_of_torchs():
    """Shape 11 as its library launches it: through `wrap_triton`, traced and eager."""
    shape = SHAPES["11-norm-50-parameters"]
    tuned = shape.make(shape.configs, do_bench=paths.quick)

    @triton_op("autotuned_acceptance::norm", mutates_args={})
    def op(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        found = shape.launch(wrap_triton(tuned), {"x": x, "residual": residual, "w": w, "b": b})
        return [found["y"], found["rstd"], found["stored"]]

    data = shape.data(DEVICE)
    for call in (op, torch.compile(op, fullgraph=True, backend="aot_eager")) if GPU else (op,):
        check(shape, dict(zip(("y", "rstd", "stored"), call(**data))), shape.data(DEVICE))


@gpu
@pytest.mark.parametrize("path", ["table", "disk", "file", "default"])
@pytest.mark.parametrize("name", ["9-paged-decode", "7-cross-entropy", "8-scatter", "6-75-arguments"])
def test_a_shape_in_a_graph(name, path, monkeypatch, tmp_path):
    """Captured on each path that needs no search, and replayed on other data."""
    shape = SHAPES[name]
    tuned = paths.on_path(
        path,
        lambda configs, **options: shape.make(configs, do_bench=paths.quick, **options),
        shape.configs,
        lambda tuned: shape.launch(tuned, shape.data(DEVICE)),
        monkeypatch,
        tmp_path,
    )
    data = shape.data(DEVICE)
    given = {name: value.clone() for name, value in data.items()}
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = shape.launch(tuned, data)
    for _ in range(2):
        for name, value in given.items():
            data[name].copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        check(shape, found, shape.data(DEVICE))
    assert tuned.cache_info().searches == (path == "table")
