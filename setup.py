"""Builds the compiled objects: ``_cpu`` (the ops, on torch's stable ABI), ``_host`` (pybind11, no torch), and
``_autograd`` (gradients of a few ops in C++, for this torch only: the stable ABI has no autograd).

FMKERNELS_BUILD=0   install without a compiler: eager PyTorch (and Triton) serve.
FMKERNELS_SANITIZE=1  AddressSanitizer and UBSan, for ``make sanitize``.
"""

import hashlib
import os
from pathlib import Path

from setuptools import setup

TORCH_TARGET = "0x020a000000000000"  # the stable ABI of 2.10: one object for every torch from there on


def extensions():
    import pybind11
    import torch
    from setuptools import Extension
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
    host = Extension(
        "fmkernels._host",
        sources=["csrc/host.cpp"],
        depends=["fmkernels/schema.py"],
        include_dirs=[pybind11.get_include()],
        define_macros=[
            ("FMK_TORCH_TARGET", f'"{TORCH_TARGET}"'),
            ("FMK_BUILT_WITH_TORCH", f'"{torch.__version__}"'),
            ("FMK_SCHEMA", f'"{hashlib.sha256(Path("fmkernels/schema.py").read_bytes()).hexdigest()[:16]}"'),
        ],
        extra_compile_args=["-O2", "-std=c++17", "-g0", "-fvisibility=hidden"],
        extra_link_args=["-Wl,-s"],
        language="c++",
    )
    autograd = Extension(
        "fmkernels._autograd",
        sources=["csrc/autograd.cpp"],
        include_dirs=include_paths(),
        library_dirs=library_paths(),
        libraries=["c10", "torch_cpu", "torch"],
        define_macros=[("_GLIBCXX_USE_CXX11_ABI", str(int(torch._C._GLIBCXX_USE_CXX11_ABI)))],
        extra_compile_args=["-O1", "-std=c++20", "-g0", "-fvisibility=hidden"],
        extra_link_args=["-Wl,-s"],
        language="c++",
    )
    return {"ext_modules": [cpu, host, autograd], "cmdclass": {"build_ext": BuildExtension}}


setup(**(extensions() if os.environ.get("FMKERNELS_BUILD", "1") != "0" else {}))
