#!/usr/bin/env bash
# tools/abi_check.sh PYTHON TEST... — the object built here, unrebuilt, under other torches: the registry's
# newest, and 2.10.0, the oldest the stable ABI promises. Each gets its own environment (gigabytes).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1"); shift
scratch=$(mktemp -d); trap 'rm -rf "$scratch"' EXIT
cp -r "$root"/{fmkernels,tests,pyproject.toml} "$scratch"
here=$(md5sum <"$(ls "$root"/fmkernels/_cpu.*so)")
checked=0
for torch in ${TORCHES:-newest 2.10.0}; do
  [ "$torch" = newest ] && wanted=torch || wanted="torch==$torch"
  env=$scratch/env-$torch
  "$python" -m venv "$env"
  echo "installing $wanted"
  if ! "$env/bin/pip" install --quiet --disable-pip-version-check $wanted numpy pytest hypothesis safetensors >"$scratch/log" 2>&1; then
    tail -3 "$scratch/log"; echo "$wanted does not install here: skipped"; continue
  fi
  version=$(cd "$scratch" && "$env/bin/python" -W error::RuntimeWarning -c "import torch, fmkernels; assert fmkernels.backend.status[\"cpp\"].available; print(torch.__version__)")
  [ "$(md5sum <"$(ls "$scratch"/fmkernels/_cpu.*so)")" = "$here" ] || { echo "the object changed"; exit 1; }
  echo "torch $version: the object loads; the op tests:"
  (cd "$scratch" && "$env/bin/python" -m pytest -p no:cacheprovider "$@")
  checked=$((checked + 1)); rm -rf "$env"
done
[ "$checked" -gt 0 ] || { echo "no other torch could be installed"; exit 1; }
echo "abi-check passed under $checked other torch version(s)"
