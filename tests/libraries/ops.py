"""Tuned operations of real libraries, each forward and backward, run in this process as stock, seeded or replaced.

`python ops.py MODE OUT.json LIMIT OP...` with MODE one of stock, seeded, replaced, and of each kernel the first LIMIT
configs (0: all); `python ops.py list` names the operations. Written to OUT: what each operation gave (a digest of its
results, and whether a second call gave the same), how long its first and its later calls took, how many configs were
benchmarked, and which config each kernel chose. The libraries must be importable; see `run.py`.
"""

import hashlib
import importlib
import importlib.util
import json
import sys
import time
import traceback
import types

import torch

RUNS = 30
synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None


def tensor(*shape, dtype=torch.bfloat16, grad=True, scale=1.0):
    generator = torch.Generator(device="cpu").manual_seed(len(shape) * 7919 + sum(shape))
    value = (torch.randn(*shape, generator=generator) * scale).to("cuda", dtype)
    return value.requires_grad_(grad)


def unit(*shape, dtype=torch.bfloat16):
    return (
        torch.nn.functional.normalize(tensor(*shape, dtype=dtype, grad=False).float(), dim=-1)
        .to(dtype)
        .requires_grad_()
    )


def with_backward(function, *inputs):
    """One call forward and backward; the result and all gradients."""

    def call():
        for value in inputs:
            if isinstance(value, torch.Tensor):
                value.grad = None
        result = function(*inputs)
        result = result[0] if isinstance(result, tuple) else result
        result.backward(torch.ones_like(result))
        return [
            result.detach(),
            *(value.grad for value in inputs if isinstance(value, torch.Tensor) and value.grad is not None),
        ]

    return call


def forward(function, *inputs):
    """One call without gradients."""

    def call():
        with torch.no_grad():
            result = function(*inputs)
        return [result[0] if isinstance(result, tuple) else result]

    return call


B, T, H, D = 2, 1024, 4, 64


def fla_rms_norm():
    from fla.modules.layernorm import rms_norm

    weight = torch.ones(512, device="cuda", requires_grad=True)
    return with_backward(lambda x, w: rms_norm(x, w, None), tensor(B * T, 512), weight)


def fla_l2norm():
    from fla.modules.l2norm import l2norm

    return with_backward(l2norm, tensor(B, T, H, D))


def fla_simple_gla():
    """Forward only, as fla_gated_delta_rule: fla refuses their backward on Hopper with Triton before 3.7.1."""
    from fla.ops.simple_gla import chunk_simple_gla

    gates = torch.nn.functional.logsigmoid(tensor(B, T, H, dtype=torch.float32, grad=False))
    return forward(chunk_simple_gla, tensor(B, T, H, D), tensor(B, T, H, D), tensor(B, T, H, D), gates)


def fla_delta_rule():
    from fla.ops.delta_rule import chunk_delta_rule

    beta = tensor(B, T, H, grad=False).sigmoid().requires_grad_()
    return with_backward(chunk_delta_rule, tensor(B, T, H, D), unit(B, T, H, D), tensor(B, T, H, D), beta)


def fla_gated_delta_rule():
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    beta = tensor(B, T, H, grad=False).sigmoid()
    gates = torch.nn.functional.logsigmoid(tensor(B, T, H, dtype=torch.float32, grad=False))
    return forward(chunk_gated_delta_rule, tensor(B, T, H, D), unit(B, T, H, D), tensor(B, T, H, D), gates, beta)


def fla_cumsum():
    from fla.ops.utils.cumsum import chunk_local_cumsum

    gates = tensor(B, T, H, dtype=torch.float32, grad=False)
    return lambda: [chunk_local_cumsum(gates, 64)]


def liger_dyt():
    from liger_kernel.ops.dyt import LigerDyTFunction

    x, gamma, beta = (
        tensor(512, 1024, dtype=torch.float32),
        tensor(1024, dtype=torch.float32),
        tensor(1024, dtype=torch.float32),
    )
    return with_backward(LigerDyTFunction.apply, x, torch.tensor([0.5], device="cuda", requires_grad=True), gamma, beta)


def conch_nms():
    from conch.ops.vision.nms import nms

    corners = tensor(512, 2, dtype=torch.float32, grad=False).abs() * 100
    boxes = torch.cat([corners, corners + 30], dim=1)
    scores = torch.rand(512, generator=torch.Generator().manual_seed(1)).cuda()
    return lambda: [nms(boxes, scores, 0.4)]


def mamba_layer_norm():
    norm = importlib.import_module("mamba_ssm.ops.triton.layer_norm").layer_norm_fn
    weight, bias = (torch.ones(512, device="cuda", requires_grad=True) for _ in range(2))
    return with_backward(lambda x, w, b: norm(x, w, b), tensor(B * T, 512), weight, bias)


def mamba_swiglu():
    swiglu = importlib.import_module("mamba_ssm.ops.triton.k_activations").swiglu
    return with_backward(swiglu, tensor(B, T, 1024))


def mamba_chunk_scan():
    scan = importlib.import_module("mamba_ssm.ops.triton.ssd_combined").mamba_chunk_scan_combined
    x, dt = tensor(B, T, H, D), tensor(B, T, H, dtype=torch.float32, grad=False).sigmoid().requires_grad_()
    a = (-torch.rand(H, generator=torch.Generator().manual_seed(1)).exp()).cuda().requires_grad_()
    return with_backward(lambda *args: scan(*args, chunk_size=256), x, dt, a, tensor(B, T, 1, D), tensor(B, T, 1, D))


def gemlite_int4():
    from gemlite.core import DType, GemLiteLinear

    n, k = 1024, 1024
    weights = torch.randint(0, 15, (n, k), generator=torch.Generator().manual_seed(1), dtype=torch.uint8).cuda()
    scales = torch.full((n * k // 128, 1), 0.01, device="cuda", dtype=torch.float16)
    zeros = torch.full((n * k // 128, 1), 7.0, device="cuda", dtype=torch.float16)
    layer = GemLiteLinear(
        4, group_size=128, in_features=k, out_features=n, input_dtype=DType.FP16, output_dtype=DType.FP16
    )
    layer.pack(weights, scales, zeros, None)
    x = tensor(8, k, dtype=torch.float16, grad=False)
    return lambda: [layer(x)]


def flag_gems_softmax():
    import flag_gems

    x = tensor(512, 1024, dtype=torch.float32, grad=False)
    return lambda: [flag_gems.softmax(x, -1)]


def flag_gems_mm():
    import flag_gems

    one, other = tensor(512, 512, dtype=torch.float16, grad=False), tensor(512, 512, dtype=torch.float16, grad=False)
    return lambda: [flag_gems.mm(one, other)]


OPS = {
    name: value
    for name, value in list(globals().items())
    if name.startswith(("fla", "liger_", "conch_", "mamba_", "gemlite_"))
}
OPS = {name: value for name, value in OPS.items() if callable(value)}


def stand_in_for_mamba():
    """Only the Triton files: the package itself imports extensions that are compiled for one torch."""
    spec = importlib.util.find_spec("mamba_ssm")
    if spec is not None and spec.submodule_search_locations:
        package = types.ModuleType("mamba_ssm")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["mamba_ssm"] = package


class Benches:
    """Counts what Triton measures, by the printed name of the kernel."""

    def __init__(self, limit):
        from triton.runtime.autotuner import Autotuner

        self.count, self.tuners = 0, []
        bench, start = Autotuner._bench, Autotuner.__init__

        def counted(tuner, *args, **kwargs):
            self.count += 1
            return bench(tuner, *args, **kwargs)

        def noted(tuner, *args, **kwargs):
            start(tuner, *args, **kwargs)
            if type(tuner).__name__ == "Beside":  # what launches for another: it has the other's choices
                return
            self.tuners.append(tuner)
            tuner.configs = tuner.configs[: limit or None]

        Autotuner._bench, Autotuner.__init__ = counted, noted

    def launches(self, call):
        """How many launches of tuned kernels one call makes; Triton's own tuners only."""
        from triton.runtime.autotuner import Autotuner

        seen, run = [], Autotuner.run

        def counted(tuner, *args, **kwargs):
            seen.append(tuner)
            return run(tuner, *args, **kwargs)

        Autotuner.run = counted
        try:
            call()
        finally:
            Autotuner.run = run
        return len(seen)

    def choices(self):
        """The config of every key of every kernel."""
        found = {}
        for index, tuner in enumerate(self.tuners):
            for key, config in list(dict.items(tuner.cache)) if isinstance(tuner.cache, dict) else []:
                found[f"{tuner.base_fn.__module__}.{tuner.base_fn.__name__}#{index} {key}"] = str(config)
        return found


def digest(results):
    synchronize()
    return hashlib.sha256(
        b"".join(value.contiguous().view(torch.uint8).cpu().numpy().tobytes() for value in results)
    ).hexdigest()


def measure(name, benches, mode):
    before, start = benches.count, time.perf_counter()
    call = OPS[name]()
    results = call()
    synchronize()
    first_s = time.perf_counter() - start
    finite = all(bool(torch.isfinite(value.float()).all()) for value in results)
    again = digest(call())
    found = {"digest": again, "first_s": first_s, "benches": benches.count - before, "finite": finite}
    found["repeats"] = digest(call()) == again
    host, wall = [], []
    for _ in range(RUNS):
        synchronize()
        start = time.perf_counter()
        call()
        host.append(time.perf_counter() - start)  # what the host is busy for: launches, and autograd around them
        synchronize()
        wall.append(time.perf_counter() - start)
    if mode == "stock":
        found["launches"] = benches.launches(call)
    found["host_us"], found["wall_us"] = sorted(host)[RUNS // 2] * 1e6, sorted(wall)[RUNS // 2] * 1e6
    return found


def main():
    if sys.argv[1:] == ["list"]:
        print(*OPS)
        return
    mode, out, limit, *names = sys.argv[1:]
    benches = Benches(int(limit))
    if mode != "stock":
        import autotuned

        autotuned.install(replace=mode == "replaced")
    stand_in_for_mamba()
    found = {}
    for name in names or OPS:
        try:
            found[name] = measure(name, benches, mode)
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            traceback.print_exc()
    with open(out, "w") as file:
        json.dump({"mode": mode, "ops": found, "choices": benches.choices()}, file, indent=1)


if __name__ == "__main__":
    main()
