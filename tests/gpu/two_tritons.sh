#!/usr/bin/env bash
# A record made under one Triton is a miss under another, `explain` says so, and each then has its own.
# Usage: tests/gpu/two_tritons.sh SITE    (a folder with another Triton; python3 must hold torch, triton and this package)
set -euo pipefail
other=${1:?a folder to put before PYTHONPATH, with another Triton in it}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export AUTOTUNED_CACHE_DIR="$work/cache"
first() { python3 -P "$@"; }
second() { PYTHONPATH="$other${PYTHONPATH:+:$PYTHONPATH}" python3 -P "$@"; }
explain='from autotuned.cli.main import app; app(["explain", "two_tritons.add"])'
version=$(first -c 'import triton; print(triton.__version__)')
second -c "import triton; assert triton.__version__ != '$version', 'both folders hold Triton $version'"

first "$here/two_tritons.py" searched none
first "$here/two_tritons.py" stored hit
second -c "$explain" | tee "$work/explained"
grep -q "other toolchain; answered by search" "$work/explained"
grep -q "context.triton: \"$version\" -> " "$work/explained"
second "$here/two_tritons.py" searched "$version"
second "$here/two_tritons.py" stored hit
first "$here/two_tritons.py" stored hit
test "$(find "$AUTOTUNED_CACHE_DIR/v2" -name '*.json' | wc -l)" = 2
echo "two Tritons: two records, each served to its own"
