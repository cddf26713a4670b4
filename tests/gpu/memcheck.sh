#!/usr/bin/env bash
# The launcher's GPU tests under NVIDIA's compute-sanitizer: no launch may read or write outside of its tensors.
# Usage: tests/gpu/memcheck.sh [file for the report]    (python3 must hold torch, triton and this package's needs)
# compute-sanitizer comes with the CUDA toolkit, and in the wheel nvidia-cuda-sanitizer-api; COMPUTE_SANITIZER names it
# where it is not on PATH.
set -euo pipefail
cd "$(dirname "$0")/../.."
report=$(realpath -m "${1:-gpu-results/memcheck.txt}")
mkdir -p "$(dirname "$report")"
sanitizer=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -1 || true)}
if [ -z "$sanitizer" ]; then
  echo "memcheck: expected compute-sanitizer on PATH, in /usr/local/cuda*/bin or named by COMPUTE_SANITIZER; found none" >&2
  exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export AUTOTUNED_CACHE_DIR="$work/cache" TRITON_CACHE_DIR="$work/triton"
unset TRITON_INTERPRET
# Each tensor in memory of its own: within torch's pool a write beyond a tensor would be into memory that is allocated.
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
# Left out: profilers, since only one tool at a time is told of launches; graphs, in which nothing may be allocated, and so
# not without the pool; counts of memory, which are the pool's; a config that is made to fail; and races.
left_out="proton or profiler or graph or memory or does_not_fit or race or second_process"
python3 -c "import torch; assert torch.cuda.is_available(), 'memcheck: expected a GPU, found none'"
status=0
"$sanitizer" --tool memcheck --leak-check no --report-api-errors no --error-exitcode 9 --log-file "$report" \
  python3 -P -m pytest -q -p no:cacheprovider -k "not ($left_out)" \
  tests/gpu/test_gpu_launch.py tests/gpu/test_gpu_core.py \
  tests/gpu/test_gpu_outputs.py::test_outputs_of_kernels_are_right_whatever_is_kept || status=$?
tail -n 3 "$report"
grep -q "ERROR SUMMARY: 0 errors" "$report" || { echo "memcheck: errors were found, or none were looked for; see $report" >&2; exit 1; }
exit "$status"
