"""What users write: `@autotune`, tuned kernels and functions, `heuristics`, `freeze`; `api/decorator.py` first."""
