import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent))
if os.environ.get("TRITON_INTERPRET") == "1":
    import interpreter

    interpreter.patch_once_a_launch()

if os.environ.get("FMKERNELS_CUDA_ON_HOST") == "1":
    import host_cuda

    host_cuda.load()

if os.environ.get("FMKERNELS_SECOND_DEVICE") == "1":
    import second_device

    second_device.load()

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def golden():
    """golden("tdp") -> the tensors of tests/golden/tdp.safetensors; see shared/golden/README.md for their names."""
    cache = {}

    def load(name):
        if name not in cache:
            tensors = load_file(GOLDEN / f"{name}.safetensors")
            cache[name] = {key: x.clone() for key, x in tensors.items()}  # in memory of torch's own
        return cache[name]

    return load


@pytest.fixture(scope="module")
def one_thread():
    """For files of tiny tensors: a second thread is only waited for, long where others use the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
