#!/usr/bin/env bash
# The GPU suite in one go: tests, tuning by command line, files served with an empty store, launch times.
# Usage: tests/gpu/run.sh [folder for results]    (python3 must hold torch, triton and this package's needs)
set -euo pipefail
cd "$(dirname "$0")/../.."
results=$(mkdir -p "${1:-gpu-results}" && cd "${1:-gpu-results}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export AUTOTUNED_CACHE_DIR="$work/cache"
unset TRITON_INTERPRET
command_line() { python3 -P -c "from autotuned.cli.main import app; app()" "$@"; }

python3 -c "import torch, triton, sys; print(torch.cuda.get_device_name(), 'torch', torch.__version__, 'triton', triton.__version__, 'python', sys.version.split()[0])"
failed=0  # what follows says more about a failure than an early end
python3 -P -m pytest -q -p no:cacheprovider tests/gpu tests/acceptance tests/upstream || failed=$?

echo "== the launcher under compute-sanitizer"
tests/gpu/memcheck.sh "$results/memcheck.txt" || [ $? -eq 2 ] || failed=1  # 2: there is none here

modules=(autotuned.kernels.{rmsnorm,softmax,matmul,splitk_matmul,layernorm_bwd,numpy_matmul})
echo "== tune every kernel of the package into files"
command_line tune "${modules[@]}" --out "$work/tuned"
cp -r "$work/tuned" "$results/"

echo "== the same again: everything is stored, nothing is measured"
AUTOTUNED_MODE=strict python3 tests/support/serve_cases.py cuda "${modules[@]}"
echo "== files alone, with an empty store"
AUTOTUNED_MODE=strict AUTOTUNED_CACHE_DIR="$work/empty" AUTOTUNED_CONFIG_PATH="$work/tuned" \
  python3 tests/support/serve_cases.py cuda "${modules[@]}"

python3 tests/bench/launch.py --json "$results/launch.json"
exit "$failed"
