"""Our own tuned kernels: each with a host function, a reference, and the cases worth tuning; `rmsnorm.py` first.

`rmsnorm` (residual add and RMSNorm, in place), `softmax` (rows, out of place), `matmul` (half precision, grouped
order), `splitk_matmul` (partial sums added atomically), `layernorm_bwd` (partial sums behind spin locks, then a second
tuned kernel), `numpy_matmul` (a plain callable that needs no GPU). This package imports none of them.
"""
