#!/usr/bin/env bash
# tools/package_check.sh [PYTHON] — installs the package as a new user would and uses it outside the repository:
# the README's install block, word for word, in a clean environment; a wheel from another directory; the sdist without
# a compiler; and a build without torch, which must fail with the command to run. Takes about six minutes.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
export PATH="$(dirname "$(realpath "$(command -v "${1:-python3}")")"):$PATH"
scratch=$(mktemp -d); trap 'rm -rf "$scratch"' EXIT
quiet() { "$@" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }; }
export PIP_DISABLE_PIP_VERSION_CHECK=1
unset VIRTUAL_ENV PYTHONPATH || true

mkdir "$scratch/clone" && cd "$scratch/clone"
git -C "$root" ls-files -z --cached --others --exclude-standard | tar -C "$root" --null -T - -cf - | tar -xf -

echo "== without torch, the build stops with the command to run"
python3 -m venv ../empty
if ../empty/bin/pip install . >"$scratch/log" 2>&1; then echo "it did not stop"; exit 1; fi
grep "fmkernels: torch is needed to build the extension, and it is not installed; run: pip install torch" "$scratch/log"

echo "== the README's install block"
sed -n '/^## Install/,/^## /p' README.md | sed -n '/^```sh$/,/^```$/p' | sed '/^```/d' >"$scratch/block.sh"
sed 's/^/    /' "$scratch/block.sh"
began=$SECONDS
quiet bash -euo pipefail "$scratch/block.sh"
echo "   $((SECONDS - began)) s; $(file -b cat.png)"
.venv/bin/pip list | grep -E '^torch +2\.13\.0' || { echo "the package replaced torch"; exit 1; }
(cd / && for _ in 1 2 3; do
  began=$(date +%s%N); "$scratch/clone/.venv/bin/fmpipe" generate "a cat" --out "$scratch/again.png" >/dev/null 2>&1
  echo "   fmpipe generate \"a cat\" from a cold process: $((($(date +%s%N) - began) / 1000000)) ms"
done)
cmp cat.png "$scratch/again.png"
echo "   backend: $(cd / && "$scratch/clone/.venv/bin/python" -W error -c \
  'import fmkernels; print(fmkernels.backend.served_by("tdp", "cpu")[0])')" | tee "$scratch/out"
grep -q cpp "$scratch/out"

echo "== the sdist has what a build needs; the wheel, installed and used elsewhere"
quiet .venv/bin/pip install 'setuptools>=77' wheel pybind11 ninja
quiet .venv/bin/python -c "from setuptools import build_meta as b; b.build_sdist('$scratch')"
quiet .venv/bin/pip wheel --no-deps -w dist .
sdist=$(ls "$scratch"/fmkernels-*.tar.gz) wheel=$(ls "$PWD"/dist/fmkernels-*.whl)
inside=$(tar tf "$sdist")
for needed in csrc/cpu/tdp.cpp csrc/cpu/common.h csrc/shared/scalar.h csrc/cuda/tdp.cu csrc/cuda/device.cuh csrc/find_cuda.py csrc/host.cpp fmkernels/py.typed python/fmpipe/models/dimr.py LICENSE; do
  grep -q "/$needed$" <<<"$inside" || { echo "$sdist lacks $needed"; exit 1; }
done
mkdir "$scratch/elsewhere" && cd "$scratch/elsewhere"
python3 -m venv .venv
quiet .venv/bin/pip install torch==2.13.0
quiet .venv/bin/pip install "$wheel[pipe]"
quiet .venv/bin/fmpipe generate "a cat" --out cat.png
cmp cat.png "$scratch/again.png"
echo "   $(basename "$wheel"): the same image"

echo "== the sdist with FMKERNELS_BUILD=0 and no compiler"
mkdir "$scratch/nocc"
quiet .venv/bin/pip uninstall --yes fmkernels
quiet env PATH="$scratch/nocc:$PWD/.venv/bin" FMKERNELS_BUILD=0 .venv/bin/python -m pip install --no-deps "$sdist"
.venv/bin/python -c 'import fmkernels; print("   backend:", fmkernels.backend.served_by("tdp", "cpu")[0])' 2>warning | tee out
grep -q eager out
grep -q "RuntimeWarning: fmkernels: _cpu was not built" warning
echo "ok"
