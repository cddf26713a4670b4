#!/usr/bin/env bash
# Ship an application: tune on this GPU, build a wheel, install it into a fresh environment, serve with mode strict.
# Fails unless every call was answered, without a search, by the file of this very GPU out of the installed wheel.
# Usage: tests/gpu/ship.sh [folder for results]    (python3 must hold torch, triton, this package and pip)
# Without a network setuptools must be there too. SHIP_ON_CPU=1 does it all with Triton's interpreter.
set -euo pipefail
cd "$(dirname "$0")/../.."
results=$(mkdir -p "${1:-gpu-results}" && cd "${1:-gpu-results}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset AUTOTUNED_CONFIG_PATH AUTOTUNED_MODE
[ -n "${SHIP_ON_CPU:-}" ] && export TRITON_INTERPRET=1 || unset TRITON_INTERPRET
export AUTOTUNED_CACHE_DIR="$work/cache" PIP_DISABLE_PIP_VERSION_CHECK=1
command_line() { python3 -P -c "from autotuned.cli.main import app; app()" "$@"; }

slug=$(python3 -P -c "
import os
from autotuned.gpu import device
print((device.INTERPRETER if os.environ.get('TRITON_INTERPRET') else device.cuda()).slug)")
echo "== decorate and tune on $slug"
cp -r docs/examples/app "$work/app"
rm -rf "$work/app/example_app/tuned/$slug"
(
  cd "$work/app"
  command_line tune example_app.kernels --out example_app/tuned
  command_line check example_app/tuned
  test -f "example_app/tuned/$slug/example.bias_gelu.json"
)

echo "== wheel, into a fresh environment"
offline=$(python3 -P -c "import setuptools as s; print('--no-build-isolation' if int(s.__version__.split('.')[0]) > 70 else '')" || true)
python3 -m pip wheel --quiet --no-deps $offline --wheel-dir "$work/dist" "$work/app"
python3 -m venv --system-site-packages --without-pip "$work/venv"
site=$("$work/venv/bin/python" -P -c "import sysconfig; print(sysconfig.get_paths()['purelib'])")
# Where torch and triton lie when python3 is itself of a virtual environment.
python3 -P -c "import site; [print(f'import site; site.addsitedir({p!r})') for p in site.getsitepackages()]" > "$site/base.pth"
python3 -m pip install --quiet --no-deps --target "$site" "$work"/dist/*.whl

echo "== strict, with an empty store"
cd "$work"
export AUTOTUNED_CACHE_DIR="$work/empty" AUTOTUNED_MODE=strict
"$work/venv/bin/python" -P -m example_app | tee "$work/said"
grep -qx "searches: 0" "$work/said"
test "$(grep -c "$site/example_app/tuned/$slug/example.bias_gelu.json" "$work/said")" = 3
if "$work/venv/bin/python" -P -m example_app 777 > "$work/refused" 2>&1; then
  echo "a size that nobody tuned was served"
  exit 1
fi
grep "NotTunedError.*call.values.N_COLS: 777 here, 1000 there" "$work/refused"
cp -r "$work/app/example_app/tuned" "$results/"
echo "== shipped and served on $slug"
