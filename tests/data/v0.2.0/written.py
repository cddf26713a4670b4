"""What the samples of this folder were tuned for. It stays as it is: its text is in their keys.

The functions tell their benchmark, through the environment, what they would have taken.
"""

import os

from autotuned import Check, Config, Space, autotune, pow2s, within


def bench(call, quantiles):
    call()
    return [float(os.environ["WRITTEN_MS"])] * 3


def takes(ms):
    os.environ["WRITTEN_MS"] = str(ms)


STEPS = [Config({"step": step}) for step in (1, 2, 4)]
OFFSET = 2


@autotune(
    STEPS, key=["x", "n", "mode"], bucket={"n": lambda n: -(-n // 100) * 100}, do_bench=bench, name="written.listed"
)
def listed(x, n, mode="fast", *, step):
    takes(1 + abs(step - OFFSET))
    return step


@autotune(Space({"step": pow2s(1, 64), "unroll": range(1, 5)}, where=[lambda step, unroll: step * unroll <= 64]),
          key=["n"], do_bench=bench, name="written.spaced")  # fmt: skip
def spaced(n, *, step, unroll):
    takes(1 + abs(step - 16) + unroll)
    return step, unroll


@autotune(STEPS, key=["n"], do_bench=bench, name="written.checked", default=STEPS[2], version=("v", 1), restore_value=["x"],
          reset_to_zero=["y"], check=Check(lambda x, y, n: (x + n, y), tolerance=0.1))  # fmt: skip
def checked(x, y, n, *, step):
    takes(1 + abs(step - OFFSET))
    x += n + (step == 1)  # which is wrong
    return step


BLOCKS = [Config({"block": block}) for block in (256, 64, 128)]
SIZES = [16 * number - (number == 79) for number in range(1, 81)]  # one is odd


@autotune(BLOCKS, key=["m"], do_bench=bench, name="written.ruled", nearest=within("5%", strict=True))
def ruled(m, *, block):
    best = 64 if m % 64 == 0 else 128
    takes(10 if block == best else 30 if block == 256 else 15)
    return block


@autotune(STEPS, key=["n"], do_bench=bench, name="written.stopped")
def stopped(n, *, step):
    left = int(os.environ.get("WRITTEN_STOP", 0))
    if left == 1 and n == 5:
        raise KeyboardInterrupt
    if left == 1:
        os._exit(0)
    if left:
        os.environ["WRITTEN_STOP"] = str(left - 1)
    takes(10 * step if left else step)
    return step
