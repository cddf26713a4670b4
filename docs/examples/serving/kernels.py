"""What the server computes: each row divided by its root mean square, so many rows at a time as is fastest here."""

import numpy as np

from autotuned import Config, autotune


@autotune([Config({"rows": rows}) for rows in (1, 16, 256)], key=["x"], default=Config({"rows": 1}))
def normalize(x, out, rows):
    for start in range(0, len(x), rows):
        part = x[start : start + rows]
        np.divide(part, np.sqrt((part * part).mean(axis=1, keepdims=True)), out=out[start : start + rows])
