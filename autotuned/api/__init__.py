"""What users write: `@autotune`, tuned kernels and functions, `heuristics`, `freeze`; `decorator.py` first."""
