#!/usr/bin/env bash
# Tune the kernels of this package on this GPU for the shapes that its own config files hold (autotuned.kernels.shapes).
# Usage: tests/gpu/tune_own.sh FOLDER [SECONDS]    writes FOLDER/configs and FOLDER/cache, the records with all timings
# All are measured anew, since the package answers with its own files. What SECONDS (420 by default) are too short for is
# left open, exit code 3. TUNE_ON_CPU=1 tries it all with Triton's interpreter and small shapes.
set -euo pipefail
cd "$(dirname "$0")/../.."
results=$(mkdir -p "$1" && cd "$1" && pwd)
seconds=${2:-420}
unset TRITON_INTERPRET AUTOTUNED_CONFIG_PATH AUTOTUNED_MODE
kernels=(rmsnorm softmax matmul splitk_matmul layernorm_bwd)
if [ -n "${TUNE_ON_CPU:-}" ]; then
  export TRITON_INTERPRET=1
  device=cpu modules=("${kernels[@]/#/autotuned.kernels.}")
else
  device=cuda modules=(autotuned.kernels.shapes)
fi
export AUTOTUNED_CACHE_DIR="$results/cache" TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-$results/../triton-cache}"
command_line() { python3 -P -c "from autotuned.cli.main import app; app()" "$@"; }

tuned=0
command_line tune "${modules[@]}" --force --out "$results/configs" --budget "$seconds" --json > "$results/tune.json" || tuned=$?
python3 -P - "$results/tune.json" <<'P'
import collections, json, sys
found = json.load(open(sys.argv[1]))
print(found["device"], "seconds", found["seconds"], dict(collections.Counter(case["status"] for case in found["cases"])))
print("measured now", sum(case["source"] == "measured" for case in found["cases"]), "of", len(found["cases"]))
for reason in sorted({case["reason"] for case in found["cases"] if case["reason"]})[:5]:
    print(" ", reason[:300])
P
command_line check "$results/configs"
if [ "$tuned" != 0 ]; then
  echo "not all cases are tuned yet (exit code $tuned)"
  exit "$tuned"
fi
echo "== from these files alone, with an empty store"
# The packaged files are in the tree already or not: what is served must come from the new ones, which are asked first.
AUTOTUNED_MODE=strict AUTOTUNED_CACHE_DIR="$results/empty" AUTOTUNED_CONFIG_PATH="$results/configs" \
  python3 -P tests/support/serve_cases.py "$device" "${modules[@]}"
rm -rf "$results/empty"
echo "== what a neighbour's choice costs"
python3 -P tests/bench/transfer.py --cache "$results/cache"
echo "== all tuned"
