"""Our own kernels on a real GPU: every case they ship, cold and hit, against their references and torch.autograd."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from autotuned.kernels import layernorm_bwd, matmul, rmsnorm, softmax, splitk_matmul

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

# Of the largest element expected: a few roundings of the output's dtype; sums of thousands of float32 products.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def _rmsnorm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x, residual = x.clone(), residual.clone()
    rmsnorm.rmsnorm_(x, residual, weight)
    return x, residual


# Kernels to forget, what makes the cases, the inputs among a case's arguments, the host function and its reference.
SUBJECTS: dict[str, tuple[tuple[Any, ...], Any, slice, Callable[..., Any], Callable[..., Any]]] = {
    "rmsnorm": ((rmsnorm.rmsnorm_kernel,), rmsnorm.cases, slice(0, 3), _rmsnorm, rmsnorm.reference),
    "softmax": ((softmax.softmax_kernel,), softmax.cases, slice(1, 2), softmax.softmax, softmax.reference),
    "matmul": ((matmul.matmul_kernel,), matmul.cases, slice(0, 2), matmul.matmul, matmul.reference),
    "splitk_matmul": (
        (splitk_matmul.splitk_matmul_kernel,),
        splitk_matmul.cases,
        slice(0, 2),
        splitk_matmul.splitk_matmul,
        splitk_matmul.reference,
    ),
    "layernorm_bwd": (
        (layernorm_bwd.layernorm_bwd_kernel, layernorm_bwd.layernorm_bwd_reduce_kernel),
        layernorm_bwd.cases,
        slice(4, 9),
        layernorm_bwd.layernorm_bwd,
        layernorm_bwd.reference,
    ),
}


def _assert_close(got: Any, expected: Any) -> None:
    for one, wanted in zip(_tensors(got), _tensors(expected), strict=True):
        tolerance = TOLERANCE[wanted.dtype]
        torch.testing.assert_close(one, wanted, rtol=tolerance, atol=tolerance * wanted.float().abs().max().item())


def _tensors(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_case_agrees_with_the_reference_cold_and_hit(name: str) -> None:
    kernels, cases, chosen, host, reference = SUBJECTS[name]
    for kernel in kernels:
        kernel.cache_clear()
    for case in cases("cuda"):
        inputs = case["args"][chosen]
        expected = reference(*inputs)
        _assert_close(host(*inputs), expected)
        searches = [kernel.cache_info().searches for kernel in kernels]
        _assert_close(host(*inputs), expected)
        assert [kernel.cache_info().searches for kernel in kernels] == searches


def test_the_reduction_of_layernorm_bwd_agrees_over_its_cases() -> None:
    kernel = layernorm_bwd.layernorm_bwd_reduce_kernel
    kernel.cache_clear()
    for case in layernorm_bwd.reduce_cases("cuda"):
        dw, db, dw_partial, db_partial = case["args"][:4]
        for _ in range(2):
            dw.fill_(float("nan"))
            db.fill_(float("nan"))
            kernel[case["grid"]](*case["args"])
            _assert_close((dw, db), (dw_partial.sum(0).to(dw.dtype), db_partial.sum(0).to(db.dtype)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("rows", "n_cols"), [(1, 64), (77, 1000), (4096, 1024), (3000, 5120)])
def test_layernorm_bwd_agrees_with_autograd(rows: int, n_cols: int, dtype: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    x, dy = torch.randn((2, rows, n_cols), generator=generator, device="cuda").to(dtype)
    weight, bias = torch.randn((2, n_cols), generator=generator, device="cuda").to(dtype)
    variables = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    y, mean, rstd = torch.native_layer_norm(variables[0], (n_cols,), variables[1], variables[2], 1e-5)
    y.backward(dy)
    expected = tuple(variable.grad for variable in variables)
    mean, rstd = mean.detach().flatten().float(), rstd.detach().flatten().float()
    for _ in range(2):
        _assert_close(layernorm_bwd.layernorm_bwd(dy, x, weight, mean, rstd), expected)


def test_softmax_takes_strided_rows_and_hidden_starts() -> None:
    x = torch.randn((130, 3000), generator=torch.Generator("cuda").manual_seed(0), device="cuda")[::2, 7:2900]
    x[:, :2100] = float("-inf")
    for _ in range(2):
        _assert_close(softmax.softmax(x), softmax.reference(x))


@pytest.mark.parametrize("product", [matmul, splitk_matmul], ids=["matmul", "splitk_matmul"])
def test_products_take_odd_sizes_and_transposed_inputs(product: Any) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    a = torch.randn((333, 67), generator=generator, device="cuda").half().T
    b = torch.randn((129, 333), generator=generator, device="cuda").half().T
    host = getattr(product, product.__name__.rpartition(".")[2])
    for _ in range(2):
        _assert_close(host(a, b), product.reference(a, b))


def test_rmsnorm_takes_strided_rows_and_odd_widths() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    x, residual = torch.randn((2, 65, 3111), generator=generator, device="cuda").bfloat16()[:, :, 3:3000]
    weight = torch.randn(x.shape[1], generator=generator, device="cuda").bfloat16()
    for _ in range(2):
        expected = rmsnorm.reference(x, residual, weight)
        rmsnorm.rmsnorm_(x, residual, weight)
        _assert_close((x, residual), expected)
