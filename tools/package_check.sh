#!/usr/bin/env bash
# tools/package_check.sh PYTHON — builds sdist and wheel, looks inside, installs the wheel in a clean
# environment and uses it from outside the repository; then the same from the sdist without a compiler.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
scratch=$(mktemp -d); trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
quiet() { "$@" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }; }

echo "sdist and wheel"
mkdir source && git -C "$root" ls-files -z --cached --others --exclude-standard | tar -C "$root" --null -T - -cf - | tar -C source -xf -
(cd source && quiet "$python" -c "from setuptools import build_meta as b; b.build_sdist('$scratch'); b.build_wheel('$scratch')")
sdist=$(ls fmkernels-*.tar.gz) wheel=$(ls fmkernels-*.whl)
inside=$(tar tf "$sdist")
for needed in csrc/cpu/tdp.cpp csrc/cpu/common.h csrc/shared/scalar.h csrc/cuda/tdp.cu csrc/cuda/device.cuh csrc/find_cuda.py csrc/host.cpp fmkernels/py.typed python/fmpipe/models/dimr.py LICENSE; do
  grep -q "/$needed$" <<<"$inside" || { echo "$sdist lacks $needed"; exit 1; }
done
inside=$("$python" -m zipfile -l "$wheel")
for needed in fmkernels/_cpu fmkernels/_host fmkernels/py.typed fmpipe/models/dimr.py fmpipe/py.typed; do
  grep -q "$needed" <<<"$inside" || { echo "$wheel lacks $needed"; exit 1; }
done
echo "  $sdist, $wheel"

# Clean environments, torch by reference: it is the same for both and takes a gigabyte each.
packages=$("$python" -c "import torch, pathlib; print(pathlib.Path(torch.__file__).parent.parent)")
environment() { quiet "$python" -m venv "$1"; mkdir -p "$1/torch_only"; for p in "$packages"/*; do
  case "$(basename "$p")" in *fmkernels*|__editable__*) ;; *) ln -s "$p" "$1/torch_only/" ;; esac; done; }
use='
import warnings; warnings.simplefilter("always")
import torch, fmkernels as fk
out = fk.tdp(*torch.randn(4, 9), torch.randn(2)); x = torch.zeros(1, 3); fk.euler_step_(x, torch.ones(1, 3), 0.5)
assert out.shape == (2, 9) and x.eq(0.5).all()
print("  from", fk.__file__.split("/")[-3], "served by", fk.backend.served_by("tdp", "cpu")[0])'

echo "the wheel, non-editable, from outside the repository"
environment built
quiet built/bin/pip install --disable-pip-version-check --no-deps --no-index "$wheel"
PYTHONPATH=$scratch/built/torch_only built/bin/python -W error::RuntimeWarning -c "$use" | tee out
grep -q "served by cpp" out

echo "the sdist with FMKERNELS_BUILD=0 and no compiler"
environment pure
nocc=$scratch/nocc; mkdir "$nocc"
PATH=$nocc:$scratch/pure/bin FMKERNELS_BUILD=0 PYTHONPATH=$scratch/pure/torch_only \
  quiet "$scratch/pure/bin/python" -m pip install --disable-pip-version-check --no-deps --no-index --no-build-isolation "$sdist"
PYTHONPATH=$scratch/pure/torch_only pure/bin/python -c "$use" 2>warning | tee out
grep -q "served by eager" out
grep -q "RuntimeWarning: fmkernels: _cpu was not built" warning
echo "package-check passed"
