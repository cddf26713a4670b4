"""The operations of real libraries that are measured: which library each needs, and a call of it on inputs by seed.

Nothing is imported before an operation is made; nothing of the libraries is kept here.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

from plan import Call, Operation

B, T, H, D = 2, 1024, 4, 64  # batch, tokens, heads, numbers of a head


def device() -> str:
    """The GPU; the CPU where there is none."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def tensor(*shape: int, dtype: str = "bfloat16", grad: bool = True) -> Any:
    """Normal numbers, the same for the same shape."""
    import torch

    generator = torch.Generator().manual_seed(len(shape) * 7919 + sum(shape))
    value = torch.randn(*shape, generator=generator).to(device(), getattr(torch, dtype))
    return value.requires_grad_(grad)


def integers(low: int, high: int, *shape: int, dtype: str = "int64") -> Any:
    """Integers from `low` up to below `high`, the same for the same shape."""
    import torch

    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(low, high, shape, generator=generator).to(device(), getattr(torch, dtype))


def unit(*shape: int) -> Any:
    """Vectors of length one along the last dimension."""
    import torch

    rows = torch.nn.functional.normalize(tensor(*shape, grad=False).float(), dim=-1)
    return rows.to(torch.bfloat16).requires_grad_()


def gates(*shape: int) -> Any:
    """Logarithms of factors between 0 and 1."""
    import torch

    return torch.nn.functional.logsigmoid(tensor(*shape, dtype="float32", grad=False)).requires_grad_()


def both(function: Callable[..., Any], *inputs: Any) -> Call:
    """A call forward and backward: the result and the gradients of all inputs that have one."""
    import torch

    leaves = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]

    def call() -> list[Any]:
        for leaf in leaves:
            leaf.grad = None
        result = _first(function(*inputs))
        result.backward(torch.ones_like(result))
        return [result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    return call


def forward(function: Callable[..., Any], *inputs: Any) -> Call:
    """A call without gradients."""
    import torch

    def call() -> list[Any]:
        with torch.no_grad():
            return [_first(function(*inputs))]

    return call


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, (tuple, list)) else result


def attribute(path: str) -> Any:
    """`module:name` -> what the module has by that name."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def bare(package: str, **attributes: Any) -> None:
    """A package without its `__init__`, which may import what is compiled for one torch, or patch others."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"no package {package!r}", name=package)
    module = types.ModuleType(package)
    module.__path__ = list(spec.submodule_search_locations)
    vars(module).update(attributes)
    sys.modules[package] = module


def fla_forgetting_attention() -> Call:
    attention = attribute("fla.ops.forgetting_attn:parallel_forgetting_attn")
    inputs = (tensor(B, T, H, D) for _ in range(3))
    return both(attention, *inputs, gates(B, T, H))


def fla_delta_rule() -> Call:
    rule, beta = attribute("fla.ops.delta_rule:chunk_delta_rule"), tensor(B, T, H, grad=False).sigmoid()
    return both(rule, tensor(B, T, H, D), unit(B, T, H, D), tensor(B, T, H, D), beta.requires_grad_())


def fla_gated_delta_rule() -> Call:
    """Forward only, as is simple_gla: fla refuses their backward on Hopper with Triton before 3.7.1."""
    rule, beta = attribute("fla.ops.gated_delta_rule:chunk_gated_delta_rule"), tensor(B, T, H, grad=False).sigmoid()
    return forward(rule, tensor(B, T, H, D), unit(B, T, H, D), tensor(B, T, H, D), gates(B, T, H), beta)


def fla_simple_gla() -> Call:
    rule = attribute("fla.ops.simple_gla:chunk_simple_gla")
    return forward(rule, *(tensor(B, T, H, D) for _ in range(3)), gates(B, T, H))


def fla_rms_norm() -> Call:
    norm = attribute("fla.modules.layernorm:rms_norm")
    return both(lambda x, weight: norm(x, weight, None), tensor(B * T, 512), tensor(512, dtype="float32"))


def mamba_scan(wrap: Callable[..., Call]) -> Call:
    scan = attribute("mamba_ssm.ops.triton.ssd_combined:mamba_chunk_scan_combined")
    steps = tensor(B, T, H, dtype="float32", grad=False).sigmoid().requires_grad_()
    decay = (-tensor(H, dtype="float32", grad=False).exp()).requires_grad_()
    inputs = tensor(B, T, H, D), steps, decay, tensor(B, T, 1, D), tensor(B, T, 1, D)
    return wrap(lambda *given: scan(*given, chunk_size=256), *inputs)


def mamba_layer_norm() -> Call:
    norm, one = attribute("mamba_ssm.ops.triton.layer_norm:layer_norm_fn"), (512,)
    return both(lambda *given: norm(*given), tensor(B * T, *one), *(tensor(*one, dtype="float32") for _ in range(2)))


def mamba_swiglu() -> Call:
    return both(attribute("mamba_ssm.ops.triton.k_activations:swiglu"), tensor(B, T, 1024))


def liger_dyt() -> Call:
    function = attribute("liger_kernel.ops.dyt:LigerDyTFunction")
    x, alpha, gamma, beta = (tensor(*shape, dtype="float32") for shape in ((512, 1024), (1,), (1024,), (1024,)))
    return both(function.apply, x, alpha, gamma, beta)


def liger_fused_moe() -> Call:
    import torch

    function, (tokens, hidden, inner, experts, k) = (
        attribute("liger_kernel.ops:LigerFusedMoEFunction"),
        (512, 256, 512, 8, 2),
    )
    routes = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(1)).topk(k)
    weights = routes.values.softmax(-1).to(device(), torch.bfloat16)
    up, down = tensor(experts, 2 * inner, hidden), tensor(experts, hidden, inner)
    return both(function.apply, tensor(tokens, hidden), up, down, routes.indices.to(device(), torch.int32), weights)


def torchao_int8_mm() -> Call:
    multiply = attribute("torchao.prototype.quantized_training.int8_mm:scaled_int8_mm")
    one, other = (integers(-128, 128, 1024, 1024, dtype="int8") for _ in range(2))
    scale = tensor(1024, grad=False).abs()
    return lambda: [multiply(one, other, scale, scale)]


def torchao_blockwise_fp8() -> Call:
    name = "torchao.kernel.blockwise_quantization:"
    quantize, weights, multiply = (
        attribute(name + one) for one in ("fp8_blockwise_act_quant", "fp8_blockwise_weight_quant", "blockwise_fp8_gemm")
    )
    a, b = quantize(tensor(256, 1024, grad=False)), weights(tensor(1024, 1024, grad=False))
    return lambda: [multiply(*a, *b)]


def cut_cross_entropy() -> Call:
    """Tuned where its variable asks for it; what `torch.compile` makes of the sum around it is left out."""
    entropy = attribute("cut_cross_entropy:linear_cross_entropy")
    return both(entropy, tensor(1024, 256), tensor(8192, 256), integers(0, 8192, 1024))


def conch_nms() -> Call:
    import torch

    suppress = attribute("conch.ops.vision.nms:nms")
    corners = tensor(512, 2, dtype="float32", grad=False).abs() * 100
    boxes, scores = torch.cat([corners, corners + 30], dim=1), tensor(512, dtype="float32", grad=False).sigmoid()
    return lambda: [suppress(boxes, scores, 0.4)]


def gemlite_int4() -> Call:
    import torch

    kinds, linear = attribute("gemlite.core:DType"), attribute("gemlite.core:GemLiteLinear")
    n, k = 1024, 1024
    scales, zeros = (
        torch.full((n * k // 128, 1), value, device=device(), dtype=torch.float16) for value in (0.01, 7.0)
    )
    layer = linear(4, group_size=128, in_features=k, out_features=n, input_dtype=kinds.FP16, output_dtype=kinds.FP16)
    layer.pack(integers(0, 15, n, k, dtype="uint8"), scales, zeros, None)
    x = tensor(8, k, dtype="float16", grad=False)
    return lambda: [layer(x)]


def flag_gems_mm() -> Call:
    multiply = attribute("flag_gems:mm")
    one, other = (tensor(512, 512, dtype="float16", grad=False) for _ in range(2))
    return lambda: [multiply(one, other)]


def unsloth_bare() -> None:
    """The grouped product alone: the package itself imports and patches a dozen others."""
    import torch

    bare("unsloth", DEVICE_TYPE="cuda")
    kinds = types.ModuleType("unsloth.device_type")
    vars(kinds)["cuda_visible_capabilities"] = lambda: [torch.cuda.get_device_capability()]
    tools = types.ModuleType("unsloth.kernels.utils")
    vars(tools)["torch_gpu_device"] = torch.cuda.device
    sys.modules.update({kinds.__name__: kinds, tools.__name__: tools})
    if importlib.util.find_spec("pandas") is None:  # for tables that nothing here prints
        sys.modules["pandas"] = types.ModuleType("pandas")
    bare("unsloth.kernels")


def unsloth_grouped_gemm() -> Call:
    import torch

    multiply, (tokens, experts, k) = attribute("unsloth.kernels.moe.grouped_gemm.interface:grouped_gemm"), (512, 4, 256)
    sizes = torch.full((experts,), tokens // experts, device=device(), dtype=torch.int32)
    x, weights = tensor(tokens, k, grad=False), tensor(experts, 512, k, grad=False)
    return forward(lambda: multiply(x, weights, sizes, 1, autotune=True))


def _of(package: str, distribution: str, **common: Any) -> Callable[..., Operation]:
    def operation(name: str, make: Callable[[], Call], *modules: str, **own: Any) -> Operation:
        return Operation(name, package, distribution, make, modules, **{**common, **own})

    return operation


_fla = _of("fla", "fla-core", required=True)
_mamba = _of("mamba_ssm", "mamba-ssm", required=True, stand_in=lambda: bare("mamba_ssm"))
_liger = _of("liger_kernel", "liger-kernel", required=True)
_ao = _of("torchao", "torchao")
_SSD = "mamba_ssm.ops.triton.ssd_combined"
OPERATIONS: tuple[Operation, ...] = (
    _fla("fla forgetting_attn", fla_forgetting_attention, "fla.ops.forgetting_attn", main=True),
    _mamba("mamba ssd, forward", lambda: mamba_scan(forward), _SSD, main=True),
    _liger("liger DyT", liger_dyt, "liger_kernel.ops.dyt", main=True),
    _fla("fla delta_rule", fla_delta_rule, "fla.ops.delta_rule"),
    _mamba("mamba ssd", lambda: mamba_scan(both), _SSD),
    _liger("liger fused_moe", liger_fused_moe, "liger_kernel.ops"),
    _ao("torchao int8_mm", torchao_int8_mm, "torchao.prototype.quantized_training.int8_mm"),
    _of("cut_cross_entropy", "cut-cross-entropy")(
        "cut_cross_entropy",
        cut_cross_entropy,
        "cut_cross_entropy",
        environment={"CCE_AUTOTUNE": "1", "TORCHDYNAMO_DISABLE": "1"},
    ),
    _of("conch", "conch-triton-kernels")("conch nms", conch_nms, "conch.ops.vision.nms"),
    _of("gemlite", "gemlite")("gemlite int4", gemlite_int4, "gemlite.core"),
    _of("flag_gems", "flag-gems")("flag_gems mm", flag_gems_mm, "flag_gems"),
    _fla("fla simple_gla, forward", fla_simple_gla, "fla.ops.simple_gla"),
    _fla("fla gated_delta_rule, forward", fla_gated_delta_rule, "fla.ops.gated_delta_rule"),
    _fla("fla rms_norm", fla_rms_norm, "fla.modules.layernorm"),
    _mamba("mamba layer norm", mamba_layer_norm, "mamba_ssm.ops.triton.layer_norm"),
    _mamba("mamba swiglu", mamba_swiglu, "mamba_ssm.ops.triton.k_activations"),
    _ao("torchao blockwise fp8", torchao_blockwise_fp8, "torchao.kernel.blockwise_quantization"),
    _of("unsloth", "unsloth", stand_in=unsloth_bare)(
        "unsloth grouped_gemm, forward", unsloth_grouped_gemm, "unsloth.kernels.moe.grouped_gemm.interface"
    ),
)
