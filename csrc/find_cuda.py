"""Where the CUDA toolkit is: for setup.py and the tools, which run before and beside the package."""

import os
import re
import shutil
import subprocess
from pathlib import Path


def cuda_home() -> Path | None:
    """The folder above bin/nvcc: CUDA_HOME, or what the nvcc on PATH says of itself, or the usual place.

    An nvcc on PATH may be a wrapper in another folder, so its location proves nothing: nvcc itself is asked.
    """
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            return _checked(Path(os.environ[name]))
    on_path = shutil.which("nvcc")
    if on_path:
        said = subprocess.run([on_path, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True)
        top = re.search(r"^#\$ _HERE_=(.+)$", said.stdout + said.stderr, re.M)
        if top:
            return _checked(Path(top.group(1)).parent)
    return _checked(Path("/usr/local/cuda"))


def nvcc_version(home: Path) -> tuple[int, int]:
    """(13, 0)"""
    said = subprocess.run([home / "bin" / "nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in re.search(r"release (\d+)\.(\d+)", said).groups())


def _checked(home: Path) -> Path | None:
    return home if (home / "bin" / "nvcc").exists() else None
