"""Our own kernels against their references: cold and hit, every config by itself, and in place.

That they compile for a GPU, `tests/compiled/test_access.py` says.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from autotuned.kernels import layernorm_bwd, matmul, numpy_matmul, rmsnorm, shapes, softmax, splitk_matmul

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Where each kernel and its cases live.
KERNELS = {
    "rmsnorm": (rmsnorm, "rmsnorm_kernel", "cases"),
    "softmax": (softmax, "softmax_kernel", "cases"),
    "matmul": (matmul, "matmul_kernel", "cases"),
    "splitk_matmul": (splitk_matmul, "splitk_matmul_kernel", "cases"),
    "layernorm_bwd": (layernorm_bwd, "layernorm_bwd_kernel", "cases"),
    "layernorm_bwd_reduce": (layernorm_bwd, "layernorm_bwd_reduce_kernel", "reduce_cases"),
    "numpy_matmul": (numpy_matmul, "blocked_matmul", "cases"),
}
TRITON_KERNELS = [name for name in KERNELS if name != "numpy_matmul"]
# Of the largest element expected: a few roundings of the output's dtype, sums being kept in float32.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@dataclass(frozen=True)
class Example:
    """One way to reach a kernel: `make` gives fresh inputs, `call` a host function's results, in-place ones too."""

    kernel: str
    make: Callable[[], tuple[Any, ...]]
    call: Callable[..., tuple[Any, ...]]
    reference: Callable[..., tuple[Any, ...]]


def _random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=DEVICE).to(dtype)


def _rmsnorm(rows: int, n_cols: int, dtype: torch.dtype, spread: bool = False) -> Example:
    def make() -> tuple[torch.Tensor, ...]:
        x, residual = _random(2, rows, n_cols + 7 if spread else n_cols, dtype=dtype)
        return x[:, :n_cols], residual[:, :n_cols], _random(n_cols, dtype=dtype, seed=1)

    def call(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rmsnorm.rmsnorm_(x, residual, weight, 1e-5)
        return x, residual

    return Example("rmsnorm", make, call, lambda *inputs: rmsnorm.reference(*inputs, 1e-5))


def _softmax(make: Callable[[], torch.Tensor]) -> Example:
    return Example("softmax", lambda: (make(),), lambda x: (softmax.softmax(x),), lambda x: (softmax.reference(x),))


def _hidden_start() -> torch.Tensor:
    x = _random(3, 700)
    x[:, :600] = float("-inf")
    return x


def _product(module: Any, m: int, n: int, k: int, dtype: torch.dtype, transposed: bool = False) -> Example:
    def make() -> tuple[torch.Tensor, ...]:
        if transposed:
            return _random(k, m, dtype=dtype).T, _random(n, k, dtype=dtype, seed=1).T
        return _random(m, k, dtype=dtype), _random(k, n, dtype=dtype, seed=1)

    name = module.__name__.rpartition(".")[2]
    host = getattr(module, name)
    return Example(name, make, lambda a, b: (host(a, b),), lambda a, b: (module.reference(a, b),))


def _layernorm_bwd(
    rows: int, n_cols: int, dtype: torch.dtype, spread: bool = False, kernel: str = "layernorm_bwd"
) -> Example:
    def make() -> tuple[torch.Tensor, ...]:
        dy, x = _random(2, rows, n_cols + 5 if spread else n_cols, dtype=dtype)[:, :, :n_cols]
        variance, mean = torch.var_mean(x.float(), dim=1, correction=0)
        return dy, x, _random(n_cols, dtype=dtype, seed=1), mean, torch.rsqrt(variance + 1e-5)

    return Example(kernel, make, layernorm_bwd.layernorm_bwd, layernorm_bwd.reference)


def _numpy(m: int, n: int, k: int, transposed: bool = False) -> Example:
    def make() -> tuple[Any, ...]:
        generator = np.random.default_rng(0)
        a = generator.standard_normal((k, m), np.float32).T if transposed else generator.standard_normal((m, k))
        return a, generator.standard_normal((k, n), a.dtype)

    reference = numpy_matmul.reference
    return Example("numpy_matmul", make, lambda a, b: (numpy_matmul.matmul(a, b),), lambda a, b: (reference(a, b),))


EXAMPLES = {
    "rmsnorm": _rmsnorm(2, 300, torch.float16),
    "rmsnorm of strided rows": _rmsnorm(2, 45, torch.bfloat16, spread=True),
    "softmax": _softmax(lambda: _random(5, 300)),
    "softmax of strided rows": _softmax(lambda: _random(6, 40, dtype=torch.float16)[::2, 3:33]),
    "matmul": _product(matmul, 70, 30, 100, torch.float16),
    "matmul of transposed inputs": _product(matmul, 33, 65, 30, torch.float16, transposed=True),
    "split-K": _product(splitk_matmul, 17, 30, 300, torch.float16),
    "split-K of transposed inputs": _product(splitk_matmul, 3, 31, 70, torch.float16, transposed=True),
    "layernorm backward": _layernorm_bwd(3, 40, torch.float32),
    "layernorm backward of strided rows": _layernorm_bwd(2, 33, torch.float16, spread=True),
    "numpy": _numpy(70, 33, 90),
    "numpy of transposed inputs": _numpy(40, 50, 70, transposed=True),
}
# Where configs differ in what they do: several blocks a row, more rows than groups, K behind the last split; and edges.
EXAMPLES_OF_CONFIGS = {
    "rmsnorm": _rmsnorm(2, 1100, torch.float32),
    "rmsnorm of one column": _rmsnorm(2, 1, torch.float32),
    "softmax": _softmax(lambda: _random(3, 1100)),
    "softmax of one row": _softmax(lambda: _random(1, 65, dtype=torch.bfloat16)),
    "softmax of a hidden start": _softmax(_hidden_start),
    "matmul": _product(matmul, 140, 70, 100, torch.float16),
    "matmul of vectors": _product(matmul, 1, 1, 40, torch.float16),
    "matmul over nothing": _product(matmul, 3, 5, 0, torch.float16),
    "split-K": _product(splitk_matmul, 17, 33, 700, torch.float16),
    "split-K of vectors": _product(splitk_matmul, 1, 1, 40, torch.float16),
    "layernorm backward": _layernorm_bwd(35, 520, torch.float32),
    "layernorm backward of one column": _layernorm_bwd(2, 1, torch.float32),
    "layernorm backward, reduce": _layernorm_bwd(3, 40, torch.float32, kernel="layernorm_bwd_reduce"),
    "numpy": _numpy(300, 200, 150),
}


def _kernel(name: str) -> Any:
    module, attribute, _ = KERNELS[name]
    return getattr(module, attribute)


def _cases(name: str) -> list[dict[str, Any]]:
    module, _, cases = KERNELS[name]
    return list(getattr(module, cases)(DEVICE))


@pytest.fixture(autouse=True)
def _forgetful() -> None:
    # The store is new for every test; what a kernel remembers in this process would outlive it.
    for name in KERNELS:
        _kernel(name).cache_clear()


def _assert_close(got: Any, expected: Any) -> None:
    if isinstance(expected, np.ndarray):
        got, expected = torch.from_numpy(got).float(), torch.from_numpy(expected).float()
    size = expected.float().abs().max().item() if expected.numel() else 0.0
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance * size)


def _assert_agrees(example: Example) -> None:
    inputs = example.make()
    expected = example.reference(*inputs)
    for got, wanted in zip(example.call(*inputs), expected, strict=True):
        _assert_close(got, wanted)


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_cold_call_and_hit_agree_with_the_reference(
    example: Example, monkeypatch: pytest.MonkeyPatch, measured_once: None
) -> None:
    # The cases below have a search among all of them.
    for name in KERNELS:
        monkeypatch.setattr(_kernel(name), "configs", _kernel(name).configs[::4])
    kernel = _kernel(example.kernel)
    searches = [kernel.cache_info().searches]
    for _ in range(2):
        _assert_agrees(example)
        searches.append(kernel.cache_info().searches - searches[0])
    assert searches[1:] == [1, 1]


class _Pinned:
    """Stands in for a tuned kernel and launches one config of it, without the tuner."""

    def __init__(self, kernel: Any, config: Any) -> None:
        self.kernel = kernel
        self.config = config

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args: self.launch(grid, args)

    def __call__(self, *args: Any) -> None:
        self.kernel.fn(*args, **self.config.kwargs)

    def launch(self, grid: Any, args: tuple[Any, ...]) -> None:
        bound = dict(zip(self.kernel.arg_names, args, strict=False))
        for name in self.kernel.reset_to_zero:
            bound[name].zero_()
        self.kernel.fn[grid](*args, **self.config.all_kwargs())


@pytest.mark.parametrize("example", EXAMPLES_OF_CONFIGS.values(), ids=EXAMPLES_OF_CONFIGS.keys())
def test_every_config_agrees_with_the_reference(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute, _ = KERNELS[example.kernel]
    kernel = getattr(module, attribute)
    assert len(kernel.configs) >= 6
    for name in set(KERNELS) - {example.kernel}:  # which a host function launches too: no search among theirs
        monkeypatch.setattr(_kernel(name), "configs", _kernel(name).configs[-1:])
    for config in kernel.configs:
        monkeypatch.setattr(module, attribute, _Pinned(kernel, config))
        _assert_agrees(example)


@pytest.mark.parametrize("name", KERNELS)
def test_first_call_of_a_case_leaves_what_one_clean_launch_leaves(
    name: str, measured_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = _kernel(name)
    monkeypatch.setattr(kernel, "configs", kernel.configs[::3])
    cases = _cases(name)
    assert len(cases) >= 2
    for case in cases:
        cold, clean = _copy(case["args"]), _copy(case["args"])
        _launch(kernel, case, cold)
        _launch(_Pinned(kernel, kernel.best_config), case, clean)
        for got, expected in zip(cold, clean, strict=True):
            assert _bytes(got) == _bytes(expected)


def _copy(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(copy.deepcopy(arg) for arg in args)


def _launch(kernel: Any, case: dict[str, Any], args: tuple[Any, ...]) -> None:
    launch = kernel[case["grid"]] if "grid" in case else kernel
    launch(*args, **case["kwargs"])


def _bytes(value: Any) -> Any:
    # Buffers may hold anything, NaN too, where a kernel writes nothing.
    if isinstance(value, torch.Tensor):
        return value.contiguous().view(torch.uint8).cpu().numpy().tobytes()
    return value.tobytes() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("name", KERNELS)
def test_cases_are_the_same_every_time(name: str) -> None:
    written = {"out", "out_ptr", "c_ptr", "dx_ptr", "dw_ptr", "db_ptr", "dw_partial_ptr", "db_partial_ptr", "lock_ptr"}
    for first, second in zip(_cases(name), _cases(name), strict=True):
        for argument, one, other in zip(_kernel(name).arg_names, first["args"], second["args"], strict=False):
            assert argument in written or _bytes(one) == _bytes(other)


def test_cases_on_a_gpu_are_not_the_tiny_ones() -> None:
    for module in (rmsnorm, softmax, matmul, splitk_matmul, layernorm_bwd):
        assert len(module._shapes("cuda")) > len(module._shapes("cpu"))


def test_the_packaged_files_are_for_at_least_200_shapes_each_listed_once() -> None:
    listed = {kernel.tuner.tunable.name: made for kernel, _, made in shapes.TUNED}
    assert sum(len(made) for made in listed.values()) >= 200
    assert all(len(set(made)) == len(made) for made in listed.values())
    assert len(listed) == len(shapes.__all__)


@pytest.mark.parametrize("module", [matmul, splitk_matmul])
def test_empty_products_launch_nothing(module: Any) -> None:
    host = getattr(module, module.__name__.rpartition(".")[2])
    assert host(_random(0, 4, dtype=torch.float16), _random(4, 3, dtype=torch.float16)).shape == (0, 3)


def test_layernorm_bwd_of_no_rows_gives_zeros() -> None:
    inputs = _random(0, 4), _random(0, 4), _random(4), _random(0), _random(0)
    dx, dw, db = layernorm_bwd.layernorm_bwd(*inputs)
    assert dx.shape == (0, 4) and not dw.any() and not db.any()


def test_reference_of_layernorm_bwd_agrees_with_autograd() -> None:
    x, weight, bias = (tensor.requires_grad_() for tensor in (_random(3, 50), _random(50, seed=1), _random(50, seed=2)))
    dy = _random(3, 50, seed=3)
    y, mean, rstd = torch.native_layer_norm(x, (50,), weight, bias, 1e-5)
    y.backward(dy)
    with torch.no_grad():
        got = layernorm_bwd.reference(dy, x, weight, mean[:, 0], rstd[:, 0])
    for mine, wanted in zip(got, (x.grad, weight.grad, bias.grad), strict=True):
        _assert_close(mine, wanted)


HALF = torch.zeros(4, 4, dtype=torch.float16)
FULL = torch.zeros(4, 4)
ROW = torch.zeros(4)
REFUSED = {
    "rmsnorm of a vector": (rmsnorm.rmsnorm_, (ROW, ROW, ROW), r"rmsnorm_: x: expected a matrix .*Flatten"),
    "rmsnorm of two shapes": (rmsnorm.rmsnorm_, (FULL, FULL[:2], ROW), r"residual: expected the shape of x"),
    "rmsnorm of two dtypes": (rmsnorm.rmsnorm_, (FULL, HALF, ROW), r"residual: expected the dtype of x"),
    "rmsnorm of columns": (rmsnorm.rmsnorm_, (FULL.T, FULL.clone(), ROW), r"x: expected column stride 1"),
    "rmsnorm with a short weight": (rmsnorm.rmsnorm_, (FULL, FULL.clone(), ROW[:3]), r"weight: expected a contiguous"),
    "rmsnorm onto itself": (rmsnorm.rmsnorm_, (FULL, FULL, ROW), r"residual: expected memory of its own"),
    "softmax of a vector": (softmax.softmax, (ROW,), r"softmax: x: expected a matrix"),
    "softmax of columns": (softmax.softmax, (FULL.T,), r"softmax: x: expected column stride 1"),
    "matmul of float32": (matmul.matmul, (FULL, FULL), r"matmul: a: expected float16, .* got torch.float32"),
    "matmul of bfloat16 in the interpreter": (
        matmul.matmul,
        (FULL.bfloat16(),) * 2,
        r"a: expected float16, or bfloat16 on",
    ),
    "matmul of two dtypes": (matmul.matmul, (HALF, FULL), r"matmul: b: expected the dtype of a"),
    "matmul of two K": (matmul.matmul, (HALF, HALF[:3]), r"matmul: b: expected a matrix \(K, N\) with the K of a"),
    "split-K of a vector": (splitk_matmul.splitk_matmul, (HALF[0], HALF), r"splitk_matmul: a: expected a matrix"),
    "split-K of two K": (splitk_matmul.splitk_matmul, (HALF, HALF[:3]), r"splitk_matmul: b: expected a matrix"),
    "layernorm of two shapes": (
        layernorm_bwd.layernorm_bwd,
        (FULL[:2], FULL, ROW, ROW, ROW),
        r"dy: expected the shape",
    ),
    "layernorm of columns": (layernorm_bwd.layernorm_bwd, (FULL, FULL.T, ROW, ROW, ROW), r"x: expected column stride"),
    "layernorm with a half mean": (
        layernorm_bwd.layernorm_bwd,
        (FULL, FULL, ROW, HALF[0], ROW),
        r"mean: expected a contiguous float32 vector",
    ),
    "numpy of integers": (numpy_matmul.matmul, (np.ones((2, 2), int),) * 2, r"a: expected a floating-point dtype"),
    "numpy of two K": (numpy_matmul.matmul, (np.ones((2, 2)), np.ones((3, 2))), r"b: expected a matrix \(K, N\)"),
}


@pytest.mark.parametrize(("host", "args", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_inputs_that_do_not_fit_are_refused(host: Callable[..., Any], args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        host(*args)
