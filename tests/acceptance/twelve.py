"""Small kernels in the shape of twelve that real libraries tune, each with its data, its launch and its reference."""

from norms import CROSS_ENTROPY, IN_PLACE, LOCKS, NORM
from products import DESCRIPTORS, DEVICE_DESCRIPTORS, FP8, INT4, SPLIT_K
from sequences import CHUNKS, MANY, PAGED, SCATTER

SHAPES = {
    "1-spin-locks": LOCKS,
    "2-in-place-norm": IN_PLACE,
    "3-split-k": SPLIT_K,
    "4-descriptors": DESCRIPTORS,
    "4-device-descriptors": DEVICE_DESCRIPTORS,
    "5-heuristics-outside": CHUNKS,
    "6-75-arguments": MANY,
    "7-cross-entropy": CROSS_ENTROPY,
    "8-scatter": SCATTER,
    "9-paged-decode": PAGED,
    "10-int4": INT4,
    "11-norm-50-parameters": NORM,
    "12-fp8-blocks": FP8,
}
