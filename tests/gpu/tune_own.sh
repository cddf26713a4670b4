#!/usr/bin/env bash
# Tune the kernels of this package on this GPU for the shapes that its own config files hold (autotuned.kernels.shapes).
# Usage: tests/gpu/tune_own.sh FOLDER [SECONDS]    writes FOLDER/configs and FOLDER/cache, the records with all timings
set -euo pipefail
cd "$(dirname "$0")/../.."
results=$(mkdir -p "$1" && cd "$1" && pwd)
seconds=${2:-120}
unset TRITON_INTERPRET AUTOTUNED_CONFIG_PATH AUTOTUNED_MODE
export AUTOTUNED_CACHE_DIR="$results/cache" TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-$results/../triton-cache}"
command_line() { python3 -P -c "from autotuned.cli.main import app; app()" "$@"; }

command_line tune autotuned.kernels.shapes --out "$results/configs" --budget "$seconds" --json > "$results/tune.json" || true
python3 - "$results/tune.json" <<'P'
import collections, json, sys
found = json.load(open(sys.argv[1]))
print(found["device"], "seconds", found["seconds"], collections.Counter(case["status"] for case in found["cases"]))
for reason in sorted({case["reason"] for case in found["cases"] if case["reason"]})[:5]:
    print(" ", reason[:300])
P
command_line check "$results/configs"
echo "== from these files alone, with an empty store"
# The packaged files are in the tree already or not: what is served must come from the new ones, which are asked first.
AUTOTUNED_MODE=strict AUTOTUNED_CACHE_DIR="$results/empty" AUTOTUNED_CONFIG_PATH="$results/configs" \
  python3 -P -c "
import sys; sys.path.insert(0, 'tests')
import serve_cases, autotuned.kernels.shapes as shapes
for name in shapes.__all__:
    serve_cases.run(getattr(shapes, name), 'cuda')" || echo "not all cases are in the files (the budget ended the run)"
rm -rf "$results/empty"
python3 -P tests/bench/transfer.py --cache "$results/cache"
