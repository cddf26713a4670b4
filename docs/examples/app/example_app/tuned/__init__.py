"""The choices, one file a kernel and device, as `autotuned tune example_app.kernels --out` writes them."""
