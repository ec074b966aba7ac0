#!/usr/bin/env bash
# tools/cuda_build_check.sh PYTHON [OUT] — builds the real CUDA extension without a GPU: in a second environment with the
# CUDA build of torch (4.6 GB), it compiles and links everything for four architectures, imports it without a driver and
# verifies that every op has a CUDA kernel. Nothing is executed on a device. If all of it passes, the printed lines are
# also written to OUT.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
out=${2:+$(cd "$(dirname "$2")" && pwd)/$(basename "$2")}
place=$root/build/cuda-torch
home=$("$python" -c "import sys; sys.path.insert(0, '$root/csrc'); import find_cuda; print(find_cuda.cuda_home() or '')")
[ -n "$home" ] || { echo "cuda-build-check: no nvcc here: set CUDA_HOME to the CUDA toolkit"; exit 1; }

if [ ! -e "$place/.installed" ]; then
  echo "installing the CUDA build of torch into build/cuda-torch" >&2
  "$python" -m venv "$place"
  # "===": without the local label +cpu
  "$place/bin/pip" --quiet --disable-pip-version-check install 'torch===2.13.0' numpy ninja pybind11 'setuptools>=77' wheel
  touch "$place/.installed"
fi
scratch=$(mktemp -d); trap 'rm -rf "$scratch"' EXIT
cp -r "$root/csrc" "$root/fmkernels" "$root/python" "$root"/{setup.py,pyproject.toml,README.md,LICENSE} "$scratch"
rm -f "$scratch"/fmkernels/*.so
include=$("$place/bin/python" -c "import site; print(site.getsitepackages()[0])")/nvidia/cu13/include

{
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
assert backend.status["cuda"].available, backend.status["cuda"].reason
found = [name for name in schema.KERNELS["cuda"] if backend.has_kernel(name, "CUDA")]
missing = set(schema.KERNELS["cuda"]) - set(found)
assert not missing, missing
print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, no driver: _cuda loads, {len(found)} ops registered for CUDA")
fmkernels.explain()
PYTHON
disassembler=$("$python" -c "import sys; sys.path.insert(0, '$root/tools'); import cuda_check; print(cuda_check.cuobjdump())")
echo "device code: $("$disassembler" --list-elf "$(echo fmkernels/_cuda*.so)" | grep -o 'sm_[0-9]*' | sort | uniq -c | xargs)"
echo "cuda-build-check passed"
} | tee "$scratch/printed"
[ -z "$out" ] || cp "$scratch/printed" "$out"
