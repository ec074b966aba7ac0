"""Write the ops in the layout of Hugging Face's ``kernels``: what kernel-builder builds, and what the Hub loads.

python tools/hf_kernels.py [OUT]      # default: build/hf-kernels

OUT/fmkernels           the CUDA and Triton ops, a source project for kernel-builder (torch's stable ABI)
OUT/fmkernels-triton    the Triton ops, Python only: the source project and, in build/, its variants

    kernels.get_local_kernel(Path("build/hf-kernels/fmkernels-triton")).tdp(...)

Both are generated from fmkernels/ and csrc/. Imports become relative, and every build has its own namespace of ops, so
that several versions of a kernel, and fmkernels itself, can be loaded in one process.
"""

import argparse
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MODULES = ("schema.py", "checks.py", "ops", "eager", "autograd", "triton", "backend")
CUDA_SOURCES = ("csrc/cuda", "csrc/shared")
CAPABILITIES = ("8.0", "9.0", "10.0", "12.0")  # of tools/cuda_check.py
NOARCH_BACKENDS = ("cpu", "cuda", "rocm")
STABLE_ABI = "2.10"
NAMED = {
    '"fmkernels"': "NAMESPACE",
    "fmkernels": "{NAMESPACE}",
}  # in Library("fmkernels", ...); in f"fmkernels::{name}"
VERSION = 1  # the branch of the Hub repository: v1

INIT = '''"""Fused operations of flow-matching text-to-image models; see the docstrings of the functions."""

from . import backend

backend.load()

from . import eager
from .backend import explain, use_backend
from .ops import *
from .ops import __all__ as _ops

__all__ = [*_ops, "eager", "explain", "use_backend"]
'''
NAMESPACE = '''"""The namespace of this build's ops; kernel-builder writes ``_ops``."""

from ._ops import add_op_namespace_prefix, ops

NAMESPACE = add_op_namespace_prefix("").removesuffix("::")
'''
# Importing _ops has registered the kernels of the module that kernel-builder built, if the variant has one.
LOADING = '''

def remedy(name: str) -> str:
    return ""


def load_objects(asked: str) -> None:
    """Fill ``status``. A Hub kernel contains no compiled CPU ops and no C++ gradients."""
    status["cpp"] = status["autograd"] = Status(False, "not part of the Hub kernel: install fmkernels for it")
    _note("cuda", _find_cuda)
    _note("triton", _find_triton)


def _find_cuda() -> None:
    if not has_kernel("tdp", "CUDA"):
        raise _NotLoadedError("this build variant has no CUDA kernels")
'''
OPS = '''"""The namespace of the ops of this build, as kernel-builder names it."""

import torch

_NAME = "{name}"
ops = getattr(torch.ops, _NAME)


def add_op_namespace_prefix(op_name: str) -> str:
    return f"{{_NAME}}::{{op_name}}"
'''
BINDING = """// The sources in csrc/cuda register their kernels; schema.py defines the ops.
#include "registration.h"

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
"""
GENERAL = """[general]
name = "{name}"
version = {version}
edition = 5
license = "MIT"
backends = [{backends}]
"""
CUDA_BUILD = """
[torch]
src = ["torch-ext/torch_binding.cpp"]

[torch.stable-abi]
cuda = "{abi}"

[kernel.ops]
backend = "cuda"
depends = ["torch"]
cuda-capabilities = [{capabilities}]
cuda-flags = ["-O3", "-std=c++17", "-Xcompiler", "-fvisibility=hidden"]
src = [
{sources}
]
"""


def quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def relative(text: str, depth: int) -> str:
    """Return Python source with relative imports and the namespace of the build; depth: folders above the module."""
    dots = "." * (depth + 1)
    text = re.sub(r"(?m)^(\s*from )fmkernels(?:\.(\S+))? import ", rf"\1{dots}\2 import ", text)
    text, ops = re.subn(r"\btorch\.ops\.fmkernels\b", "ops", text)
    text, names = re.subn(r'(?<=Library\()"fmkernels"|(?<=f")fmkernels(?=::{)', lambda m: NAMED[m[0]], text)
    if used := ["NAMESPACE"] * bool(names) + ["ops"] * bool(ops):
        line = f"import torch\n\nfrom {dots}_namespace import {', '.join(used)}"
        text = re.sub(r"(?m)^import torch$", line, text, count=1)
    return text


def package() -> Iterator[tuple[Path, str]]:
    """The path and text of every Python file of the kernel, without ``_ops.py``."""
    yield Path("__init__.py"), INIT
    yield Path("_namespace.py"), NAMESPACE
    for name in MODULES:
        top = ROOT / "fmkernels" / name
        for path in sorted(top.rglob("*.py")) if top.is_dir() else [top]:
            inside = path.relative_to(ROOT / "fmkernels")
            text = relative(path.read_text(), len(inside.parts) - 1)
            yield inside, text + LOADING if inside == Path("backend/loading.py") else text


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_package(folder: Path) -> None:
    for path, text in package():
        write(folder / path, text)


def write_triton(out: Path, version: int = VERSION) -> None:
    """Write the project without compiled code, and its variants, which are the same for every torch and Python."""
    name = "fmkernels-triton"
    write(out / "build.toml", GENERAL.format(name=name, version=version, backends=quoted(NOARCH_BACKENDS)))
    with (out / "build.toml").open("a") as file:
        file.write("\n[torch-noarch]\n")
    write_package(out / "torch-ext" / name.replace("-", "_"))
    contents = "".join(f"{path}\n{text}" for path, text in package()) + str(version)
    unique = hashlib.sha1(contents.encode()).hexdigest()[:7]
    for backend in NOARCH_BACKENDS:
        ops, variant = f"_fmkernels_triton_{backend}_{unique}", out / "build" / f"torch-{backend}"
        write_package(variant)
        write(variant / "_ops.py", OPS.format(name=ops))
        facts = {"name": name, "id": ops, "version": version, "license": "MIT", "python-depends": []}
        write(variant / "metadata.json", json.dumps(facts | {"backend": {"type": backend}}, indent=2))


def write_cuda(out: Path) -> None:
    """Write the project with the CUDA sources; kernel-builder compiles it."""
    write_package(out / "torch-ext" / "fmkernels")
    write(out / "torch-ext" / "torch_binding.cpp", BINDING)
    sources = [path for folder in CUDA_SOURCES for path in sorted((ROOT / folder).iterdir())]
    for path in sources:
        text = path.read_text().replace("TORCH_LIBRARY_IMPL(fmkernels,", "TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME,")
        write(out / path.relative_to(ROOT), text)
    lines = ",\n".join(f'  "{path.relative_to(ROOT)}"' for path in sources)
    build = CUDA_BUILD.format(abi=STABLE_ABI, capabilities=quoted(CAPABILITIES), sources=lines)
    write(out / "build.toml", GENERAL.format(name="fmkernels", version=VERSION, backends=quoted(("cuda",))) + build)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "build" / "hf-kernels", help="output folder")
    out = parser.parse_args().out
    for name, project in (("fmkernels", write_cuda), ("fmkernels-triton", write_triton)):
        shutil.rmtree(out / name, ignore_errors=True)
        project(out / name)
        print(out / name)


if __name__ == "__main__":
    main()
