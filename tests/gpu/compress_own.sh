#!/usr/bin/env bash
# How few configs serve the calls of this package's own files, and rules for other calls, right after tune_own.sh.
# Usage: tests/gpu/compress_own.sh FOLDER [SECONDS]    FOLDER as tune_own.sh left it
# 1. Of all timings: the fewest configs a kernel that hold each call within 10% of its best; more than 10 fail.
# 2. For SECONDS (150 by default, 0 for none) more sizes M of the matrix products are tuned on this GPU: a rule needs them.
# 3. Rules at 5% are put into FOLDER/configs, whose entries stay the best of each call, and these files into configs/.
# TUNE_ON_CPU=1 tries it all with Triton's interpreter and small shapes, and leaves configs/ alone.
set -euo pipefail
cd "$(dirname "$0")/../.."
results=$(cd "$1" && pwd)
seconds=${2:-150}
unset TRITON_INTERPRET AUTOTUNED_CONFIG_PATH AUTOTUNED_MODE
target=autotuned.kernels.shapes:matmul_kernel range=M=1:8192
if [ -n "${TUNE_ON_CPU:-}" ]; then
  export TRITON_INTERPRET=1
  target=autotuned.kernels.matmul range=M=1:24
fi
export AUTOTUNED_CACHE_DIR="$results/cache" TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-$results/../triton-cache}"
command_line() { python3 -P -c "from autotuned.cli.main import app; app()" "$@"; }

echo "== the fewest configs within 10%"
rm -rf "$results/few" "$results/rules"
command_line compress "$results/configs" --within 10% --out "$results/few" --json > "$results/few.json" ||
  [ $? = 3 ] # calls that keep their config are named
python3 -P - "$results/few.json" <<'P'
import json, sys
found = json.load(open(sys.argv[1]))["kernels"]
for one in found:
    print(f"{one['kernel']}: {one['calls']} calls, {len(one['configs'])} configs instead of {one['before']}, at least"
          f" {one['least']}, worst loss {one['worst']:.1%}")
print(f"{sum(one['calls'] for one in found)} calls; at most {max(len(one['configs']) for one in found)} configs a kernel")
sys.exit(any(len(one["configs"]) > 10 for one in found))
P
if [ "$seconds" != 0 ]; then
  echo "== more sizes"
  command_line tune "$target" --cover "$range" --out "$results/wide" --budget "$seconds" --json > "$results/wide.json" ||
    [ $? = 3 ] # the budget is over: what was tuned counts
  python3 -P -c "
import json, sys
for one in json.load(open(sys.argv[1]))['cover']: print(one)" "$results/wide.json"
fi
echo "== rules"
command_line compress "$results/cache" --within 5% --out "$results/rules" || [ $? = 3 ]
python3 -P tests/support/add_rules.py "$results/rules" "$results/configs"
command_line check "$results/configs" --import
if [ -z "${TUNE_ON_CPU:-}" ]; then
  cp -r "$results/configs"/*/ configs/
  git diff --stat -- configs 2> /dev/null || true
fi
echo "== compressed"
