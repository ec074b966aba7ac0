#!/usr/bin/env bash
# tools/sanitize.sh PYTHON TEST... — builds the CPU object with AddressSanitizer and UBSan in a scratch copy
# and runs the op tests on it. The interpreter is not instrumented, so libasan is preloaded; leaks are
# Python's own and not looked for.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1"); shift
scratch=$(mktemp -d); trap 'rm -rf "$scratch"' EXIT
cp -r "$root"/{csrc,fmkernels,tests,benchmarks,setup.py,pyproject.toml,README.md,LICENSE} "$scratch"
rm -f "$scratch"/fmkernels/*.so
cd "$scratch"
echo "building with -fsanitize=address,undefined"
FMKERNELS_SANITIZE=1 "$python" setup.py --quiet build_ext --inplace >build.log 2>&1 || { cat build.log; exit 1; }
export LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)"
export ASAN_OPTIONS=detect_leaks=0:halt_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export PYTHONPATH="$scratch"
"$python" -c 'import fmkernels, pathlib; p = pathlib.Path(fmkernels.__file__); assert "'"$scratch"'" in str(p), p'
"$python" -m pytest -p no:cacheprovider "$@"
