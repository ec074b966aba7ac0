#!/usr/bin/env bash
# tools/fuzz_checks.sh PYTHON SECONDS — builds the CPU object with ASan, UBSan and coverage counters in a scratch copy, and
# runs atheris (libFuzzer) on the arguments of its ops. gcc has no counters that libFuzzer reads: tools/coverage.c makes them.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1"); seconds=$2
scratch=$(mktemp -d); trap 'rm -rf "$scratch"' EXIT
cp -r "$root"/{csrc,fmkernels,setup.py,pyproject.toml,README.md,LICENSE} "$scratch"
rm -f "$scratch"/fmkernels/*.so
cd "$scratch"
gcc -O2 -shared -fPIC -o coverage.so "$root/tools/coverage.c"
echo "building with -fsanitize=address,undefined and -fsanitize-coverage=trace-pc"
CFLAGS="-fsanitize-coverage=trace-pc" FMKERNELS_SANITIZE=1 "$python" setup.py --quiet build_ext --inplace \
    >build.log 2>&1 || { tail -50 build.log; exit 1; }
mkdir corpus
export LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $scratch/coverage.so"
export ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export PYTHONPATH="$scratch:${PYTHONPATH:-}" OMP_NUM_THREADS=1
"$python" "$root/tools/fuzz_checks.py" corpus -max_total_time="$seconds" -max_len=512 -timeout=30 -rss_limit_mb=4000
