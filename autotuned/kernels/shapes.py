"""More cases of our kernels: those that this package's config files are tuned for.

`autotuned tune autotuned.kernels.shapes --out configs` writes these files; without a GPU there are no cases. With
`--cover M=1:8192` the first number of each shape varies: the number of rows of a matrix product.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch

from autotuned.kernels import layernorm_bwd, matmul, rmsnorm, softmax, splitk_matmul
from autotuned.kernels.layernorm_bwd import layernorm_bwd_kernel, layernorm_bwd_reduce_kernel
from autotuned.kernels.matmul import matmul_kernel
from autotuned.kernels.rmsnorm import rmsnorm_kernel
from autotuned.kernels.softmax import softmax_kernel
from autotuned.kernels.splitk_matmul import splitk_matmul_kernel

__all__ = ["layernorm_bwd_kernel", "layernorm_bwd_reduce_kernel", "matmul_kernel", "rmsnorm_kernel", "softmax_kernel",
           "splitk_matmul_kernel"]  # fmt: skip

Shape = tuple[Any, ...]
FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
# Powers of two along the axis that varies in practice: a neighbour is at most a factor of 2 away.
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
MATMUL = [
    *(
        (m, *of, FP16)
        for of, m in product(((4096, 4096), (12288, 4096), (4096, 11008), (2048, 2048), (1024, 1024)), TOKENS)
    ),
    *((m, *of, BF16) for of, m in product(((4096, 4096), (4096, 11008)), TOKENS)),
]
SPLIT_K = [
    (m, *of, FP16)
    for of, m in product(((4096, 4096), (4096, 14336), (1024, 8192), (1024, 16384)), (4, 8, 16, 32, 48, 64))
]
# Columns are compiled in, rows are not: another number of rows needs no compilation.
SOFTMAX = [
    *((rows, cols, FP16) for cols, rows in product((256, 1000, 2048, 4096, 8192, 32000), (128, 256, 512, *TOKENS[6:]))),
    *((rows, cols, FP32) for cols, rows in product((256, 1000, 2048, 4096, 8192, 32000), (512, 1024, 4096))),
]
RMSNORM = [
    *((4096, cols, BF16) for cols in (512, 768, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192)),
    *((4096, cols, FP16) for cols in (1024, 2048, 4096, 8192)),
]
LAYERNORM = [
    (rows, cols, FP16) for cols, rows in product((1024, 2048, 4096, 8192), (512, 1024, 2048, 4096, 8192, 16384))
]
REDUCE = [(cols, FP16) for cols in (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)]
TUNED: list[tuple[Any, Callable[..., dict[str, Any]], list[Shape]]] = [
    (matmul_kernel, matmul.make_case, MATMUL),
    (splitk_matmul_kernel, splitk_matmul.make_case, SPLIT_K),
    (softmax_kernel, softmax.make_case, SOFTMAX),
    (rmsnorm_kernel, rmsnorm.make_case, RMSNORM),
    (layernorm_bwd_kernel, layernorm_bwd.make_case, LAYERNORM),
    (layernorm_bwd_reduce_kernel, layernorm_bwd.make_reduce_case, REDUCE),
]


def _register(kernel: Any, make_case: Callable[..., dict[str, Any]], shapes: list[Shape]) -> None:
    @kernel.case  # type: ignore[untyped-decorator]
    def cases(device: torch.device | str, *, M: int | None = None) -> Iterator[dict[str, Any]]:
        wanted = shapes if M is None else dict.fromkeys((M, *shape[1:]) for shape in shapes)
        for shape in wanted if torch.device(device).type == "cuda" else ():
            yield make_case(device, *shape)


for one in TUNED:
    _register(*one)
