#!/usr/bin/env bash
# tools/cuda_build_check.sh PYTHON — the real CUDA extension without a GPU: a second environment with the CUDA build of
# torch (4.6 GB), everything compiled and linked for four architectures, imported with no driver, and every op's CUDA
# kernel found registered. Nothing is executed on a device.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
place=$root/build/cuda-torch
home=$("$python" -c "import sys; sys.path.insert(0, '$root/csrc'); import find_cuda; print(find_cuda.cuda_home() or '')")
[ -n "$home" ] || { echo "cuda-build-check: no nvcc here: set CUDA_HOME to the CUDA toolkit"; exit 1; }

if [ ! -e "$place/.installed" ]; then
  echo "installing the CUDA build of torch into build/cuda-torch"
  "$python" -m venv "$place"
  # "===": without the local label +cpu
  "$place/bin/pip" --quiet --disable-pip-version-check install 'torch===2.13.0' numpy ninja pybind11 'setuptools>=77' wheel
  touch "$place/.installed"
fi
scratch=$(mktemp -d); trap 'rm -rf "$scratch"' EXIT
cp -r "$root/csrc" "$root/fmkernels" "$root/python" "$root"/{setup.py,pyproject.toml,README.md,LICENSE} "$scratch"
rm -f "$scratch"/fmkernels/*.so
include=$("$place/bin/python" -c "import site; print(site.getsitepackages()[0])")/nvidia/cu13/include

echo "compiling and linking _cuda for 8.0 9.0 10.0 12.0"
start=$SECONDS
(cd "$scratch" && env CUDA_HOME="$home" CPATH="$include" FORCE_CUDA=1 MAX_JOBS=2 TORCH_CUDA_ARCH_LIST="8.0;9.0;10.0;12.0" \
  "$place/bin/python" setup.py -q build_ext --inplace >"$scratch/log" 2>&1) || { tail -40 "$scratch/log"; exit 1; }
echo "  $((SECONDS - start)) s, $(cd "$scratch" && ls -lh fmkernels/_cuda*.so | awk '{print $5}')"

cd "$scratch"
PATH=$place/bin:$PATH "$place/bin/python" -W error::RuntimeWarning - <<'PYTHON'
import torch
import fmkernels
from fmkernels import backend, schema

assert not torch.cuda.is_available(), "there is a GPU: run make gpu-check"
assert backend._loaded["cuda"] == "", backend._loaded["cuda"]
found = [name for name in schema.NAMES if backend._has_kernel(name, "CUDA")]
missing = set(schema.NAMES) - set(found) - {*backend._CPU_ONLY, *backend._ABOVE_DEVICES}
assert not missing, missing
print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, no driver: _cuda loads, {len(found)} ops registered for CUDA")
fmkernels.explain()
PYTHON
disassembler=$("$python" -c "import sys; sys.path.insert(0, '$root/tools'); import cuda_check; print(cuda_check.cuobjdump())")
echo "device code: $("$disassembler" --list-elf "$(echo fmkernels/_cuda*.so)" | grep -o 'sm_[0-9]*' | sort | uniq -c | xargs)"
echo "cuda-build-check passed"
