"""Options, fixtures and the rows that belong to one implementation of the kernels.

``pytest tests`` tests the CPU kernels. ``--kernels triton`` runs the op tests on the Triton kernels in Triton's
interpreter, ``--kernels cuda`` on the CUDA kernels compiled for the host, ``--kernels ptx`` on the PTX that nvcc
makes of them. ``--second-device`` registers a second device in host memory. Each needs its own process. The mark
``kernels(...)`` on a test or a row of its table names the implementations that it is for ("cuda" includes "ptx");
without it, it is for all of them.
"""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

GOLDEN = Path(__file__).parent / "golden"
ONLY = {"test_triton.py": "triton", "test_cuda.py": "cuda", "test_ptx.py": "ptx"}  # files about one implementation
LONGEST = "test_shapes_tiny.py"  # starts first, so that no process is left waiting for it at the end


def pytest_addoption(parser):
    parser.addoption(
        "--kernels", choices=["cpu", "triton", "cuda", "ptx"], default="cpu", help="the kernels under test"
    )
    parser.addoption("--ulp", type=int, default=0, help="with --kernels ptx: seed of one-ulp errors, 0 for none")
    parser.addoption("--second-device", action="store_true", help="register a second device in host memory")


def pytest_configure(config):
    """Load the kernels under test before a test module imports fmkernels."""
    if config.getoption("kernels") == "triton":
        os.environ |= {"TRITON_INTERPRET": "1", "FMKERNELS_BACKEND": "triton"}
        from support import interpreter

        interpreter.patch_once_a_launch()
    if config.getoption("kernels") == "cuda":
        from support import host_cuda

        host_cuda.load()
    if config.getoption("kernels") == "ptx":
        import find_cuda

        if find_cuda.cuda_home() is None:
            message = "no nvcc here (looked in CUDA_HOME, PATH and /usr/local/cuda): no PTX was run"
            pytest.exit(message, returncode=0)
        from support.ptx import cuda, perturb

        cuda.load()
        perturb(config.getoption("ulp"))
    if config.getoption("second_device"):
        from support import second_device

        second_device.load()


def pytest_ignore_collect(collection_path, config):
    name, kernels = collection_path.name, config.getoption("kernels")
    wrong_device = name.startswith("test_second_device") and not config.getoption("second_device")
    return True if wrong_device or ONLY.get(name, kernels) != kernels else None


def pytest_collection_modifyitems(items, config):
    """Leave out the tests and rows of other kernels, and begin with the longest file."""
    kernels = config.getoption("kernels").replace("ptx", "cuda")
    left_out = [item for item in items if any(kernels not in m.args for m in item.iter_markers("kernels"))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    items.sort(key=lambda item: item.path.name != LONGEST)


@pytest.fixture(autouse=True)
def same_start():
    """Seed the generator, and restore the number of threads: with two, later tests would take ten times as long."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    yield
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def golden():
    """golden("tdp") -> the tensors of tests/golden/tdp.safetensors."""
    cache = {}

    def load(name):
        if name not in cache:
            tensors = load_file(GOLDEN / f"{name}.safetensors")
            cache[name] = {key: x.clone() for key, x in tensors.items()}  # in memory that torch allocated
        return cache[name]

    return load


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a tiny random pipeline."""
    from support.tiny_models import save_tiny_pipeline

    return save_tiny_pipeline(tmp_path_factory.mktemp("pipeline"))


@pytest.fixture(scope="module")
def one_thread():
    """Use one thread: with tiny tensors, a second one only adds waiting, especially on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
