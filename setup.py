"""Builds the compiled objects: ``_cpu`` and ``_cuda`` (the ops, on torch's stable ABI), ``_host`` (pybind11, no torch),
and ``_autograd`` (gradients of a few ops in C++, for this torch only: the stable ABI has no autograd).

``_cuda`` is built where torch is a CUDA build and nvcc is found (CUDA_HOME, or on PATH); no GPU is needed.
FORCE_CUDA=1          fail where it cannot be built; FORCE_CUDA=0 leave it out: Triton serves GPUs.
TORCH_CUDA_ARCH_LIST  the architectures, e.g. "9.0"; without it those of the GPUs here, or else all four we test.
FMKERNELS_BUILD=0     install without a compiler: eager PyTorch (and Triton) are used.
FMKERNELS_OBJECTS     a folder with compiled objects: only ``_host`` is compiled, and the others, which do not depend on
                      the Python version, are taken from there. FMKERNELS_TORCH is the torch that they were built with.
FMKERNELS_SANITIZE=1  AddressSanitizer and UBSan, for ``make sanitize``.
"""

import hashlib
import os
import shutil
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).parent / "csrc"))
from find_cuda import cuda_home, nvcc_version

TORCH_TARGET = "0x020a000000000000"  # the stable ABI of 2.10: one object for every torch from there on
ARCHITECTURES = "8.0;9.0;10.0;12.0+PTX"  # of tools/cuda_check.py; 8.6 and 8.9 run 8.0's code
OLD_ARCHITECTURES = "8.0;9.0+PTX"  # what nvcc knew before 12.8


def why_no_cuda(home):
    """Why ``_cuda`` cannot be built here; "" if it can."""
    import torch

    if not torch.version.cuda:
        return f"torch {torch.__version__} has no CUDA support: install a CUDA build of it"
    if home is None:
        named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
        return f"there is no bin/nvcc in {named}" if named else "no nvcc was found: set CUDA_HOME to the CUDA toolkit"
    nvcc = nvcc_version(home)
    if nvcc[0] != int(torch.version.cuda.split(".")[0]):
        return f"nvcc is of CUDA {nvcc[0]}.{nvcc[1]}, torch of {torch.version.cuda}: make their first numbers the same"
    return "" if nvcc >= (12, 1) else f"nvcc {nvcc[0]}.{nvcc[1]} is too old: 12.1 or newer is needed"


def cuda_extensions(include, libraries):
    """``_cuda``, or nothing, with a line that says why; FORCE_CUDA=1 makes that an error."""
    import torch

    forced = os.environ.get("FORCE_CUDA", "")
    if forced not in ("", "0", "1"):
        raise SystemExit(f"fmkernels: FORCE_CUDA must be 0 or 1, got {forced!r}")
    home = cuda_home()
    why_not = why_no_cuda(home)
    if forced == "1" and why_not:
        raise SystemExit(f"fmkernels: FORCE_CUDA=1, but {why_not}")
    if forced == "0" or why_not:
        if torch.version.cuda:
            print(f"fmkernels: _cuda is not built ({why_not or 'FORCE_CUDA=0'}); Triton will serve CUDA tensors")
        return []
    if not torch.cuda.is_available():
        known = ARCHITECTURES if nvcc_version(home) >= (12, 8) else OLD_ARCHITECTURES
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", known)
    return [
        Extension(
            "fmkernels._cuda",
            sources=sorted(str(path) for path in Path("csrc/cuda").glob("*.cu")),
            depends=[str(path) for folder in ("cuda", "shared") for path in Path("csrc", folder).glob("*.*h")],
            include_dirs=[*include, str(home / "include")],
            library_dirs=[*libraries, str(home / "lib64")],
            libraries=["torch_cpu", "torch_cuda", "cudart"],
            define_macros=[("TORCH_TARGET_VERSION", TORCH_TARGET), ("USE_CUDA", None)],
            extra_compile_args={"nvcc": ["-O3", "-std=c++17", "-Xcompiler", "-fvisibility=hidden"], "cxx": []},
            extra_link_args=["-Wl,-s"],
            language="c++",
        )
    ]


def require_build_tools():
    """Make torch importable, or exit with the command that installs what is missing.

    pip's isolated build environment hides the installed torch. The extension must be built for exactly that torch, and
    a second one would be a download of several gigabytes, so the installed one is put back on the path.
    """
    sys.path += {sysconfig.get_path(kind) for kind in ("purelib", "platlib")} - set(sys.path)
    for module, command in (
        ("torch", "pip install torch==2.13.0"),
        ("pybind11", "pip install pybind11 ninja 'setuptools>=77' wheel"),
    ):
        if find_spec(module) is None:
            raise SystemExit(
                f"fmkernels: {module} is needed to build the extension, and it is not installed; run: {command} "
                "(if it is installed elsewhere, or with uv, add --no-build-isolation; FMKERNELS_BUILD=0 builds nothing)"
            )


def host_extension(torch_version):
    import pybind11

    return Extension(
        "fmkernels._host",
        sources=["csrc/host.cpp"],
        depends=["fmkernels/schema.py", "csrc/shared/limits.h", "csrc/cpu/int8_kernel.h"],
        include_dirs=[pybind11.get_include()],
        define_macros=[
            ("FMK_TORCH_TARGET", f'"{TORCH_TARGET}"'),
            ("FMK_BUILT_WITH_TORCH", f'"{torch_version}"'),
            ("FMK_SCHEMA", f'"{hashlib.sha256(Path("fmkernels/schema.py").read_bytes()).hexdigest()[:16]}"'),
        ],
        extra_compile_args=["-O2", "-std=c++17", "-g0", "-fvisibility=hidden"],
        extra_link_args=["-Wl,-s"],
        language="c++",
    )


class CopyObjects(build_ext):
    """Copy an extension without sources from FMKERNELS_OBJECTS; compile the others."""

    def build_extension(self, extension):
        if extension.sources:
            return super().build_extension(extension)
        (path,) = objects_in(os.environ["FMKERNELS_OBJECTS"], f"{extension.name.rpartition('.')[2]}.*so")
        shutil.copy(path, self.get_ext_fullpath(extension.name))


def objects_in(folder, pattern="_*.so"):
    return [path for path in sorted(Path(folder).glob(pattern)) if not path.name.startswith("_host.")]


def host_and_objects(folder, torch_version):
    """The extensions of a wheel for another Python version; torch is not needed."""
    if not torch_version:
        raise SystemExit("fmkernels: FMKERNELS_OBJECTS needs FMKERNELS_TORCH, the torch version of the objects")
    copies = [Extension(f"fmkernels.{path.name.split('.')[0]}", sources=[]) for path in objects_in(folder)]
    if not copies:
        raise SystemExit(f"fmkernels: there are no compiled objects in FMKERNELS_OBJECTS={folder}")
    return {"ext_modules": [host_extension(torch_version), *copies], "cmdclass": {"build_ext": CopyObjects}}


def extensions():
    if folder := os.environ.get("FMKERNELS_OBJECTS"):
        return host_and_objects(folder, os.environ.get("FMKERNELS_TORCH"))
    require_build_tools()
    if cuda_home():
        os.environ["CUDA_HOME"] = str(cuda_home())  # before torch looks for it and finds a wrapper
    import torch
    from torch.utils.cpp_extension import BuildExtension, include_paths, library_paths

    # -fno-trapping-math and -fno-math-errno change no result: they let the compiler turn branches into
    # selects. Nothing of -ffast-math is used.
    flags = [
        "-O3",
        "-std=c++17",
        "-g0",
        "-fvisibility=hidden",
        "-fopenmp-simd",
        "-fno-trapping-math",
        "-fno-math-errno",
    ]
    link = ["-Wl,-s"]
    if os.environ.get("FMKERNELS_SANITIZE") == "1":
        flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-O1", "-g1", "-DFMK_NO_CLONES"]
        link = ["-fsanitize=address,undefined"]
    cpu = Extension(
        "fmkernels._cpu",
        sources=sorted(str(path) for path in Path("csrc/cpu").glob("*.cpp")),
        depends=[str(path) for path in Path("csrc").glob("*/*.h")],
        include_dirs=include_paths(),
        library_dirs=library_paths(),
        libraries=["torch_cpu"],
        define_macros=[("TORCH_TARGET_VERSION", TORCH_TARGET)],
        extra_compile_args=flags,
        extra_link_args=link,
        language="c++",
    )
    autograd = Extension(
        "fmkernels._autograd",
        sources=sorted(str(path) for path in Path("csrc/autograd").glob("*.cpp")),
        depends=["csrc/autograd/common.h", "csrc/shared/limits.h"],
        include_dirs=include_paths(),
        library_dirs=library_paths(),
        libraries=["c10", "torch_cpu", "torch"],
        define_macros=[("_GLIBCXX_USE_CXX11_ABI", str(int(torch._C._GLIBCXX_USE_CXX11_ABI)))],
        extra_compile_args=["-O1", "-std=c++20", "-g0", "-fvisibility=hidden"],
        extra_link_args=["-Wl,-s"],
        language="c++",
    )
    modules = [cpu, host_extension(torch.__version__), autograd, *cuda_extensions(include_paths(), library_paths())]
    return {"ext_modules": modules, "cmdclass": {"build_ext": BuildExtension}}


setup(**(extensions() if os.environ.get("FMKERNELS_BUILD", "1") != "0" else {}))
