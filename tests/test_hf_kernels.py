"""The layout for Hugging Face's kernels: its parser accepts the projects, and its loader loads and runs the ops."""

import ast
import subprocess
import sys
from pathlib import Path

import hf_kernels
import pytest

kernels = pytest.importorskip("kernels", reason="the package 'kernels' is not installed")
from kernels._rust import Backend, Build  # noqa: E402 (the parser of kernel-builder)

# In a process where fmkernels itself is loaded too: its eager functions are the oracle.
USE = """
import sys
from importlib import import_module
from pathlib import Path

import torch
from kernels import get_local_kernel

import fmkernels as fk

one, two = (get_local_kernel(Path(folder), backend="cpu") for folder in sys.argv[1:])
assert one.__name__ != two.__name__ and "fmkernels" in sys.modules
spaces = {kernel.backend.OPS["tdp"].overload.namespace for kernel in (fk, one, two)}
assert len(spaces) == 3 and "fmkernels" in spaces, spaces


def results(module, backend):
    torch.manual_seed(0)
    x, scale, w = torch.randn(2, 5, 62), torch.randn(62), torch.randn(4, 62)
    leaves = [a.requires_grad_() for a in (x, scale, w)]
    with module.use_backend(backend):
        s = module.tdp(*w, torch.tensor([0.25, -0.5]), weight_offset=1.0)
        rows = module.tdp_group([tuple(w)], torch.tensor([0.1]))[0]
        y = module.gelu_mul(module.td_rms_norm(x, scale)) + module.gelu_mul(module.td_layer_norm(x, s, rows[0]))
        path, target = module.flow_pair(torch.rand(2), *torch.randn(2, 2, 5, 31))
        loss, stats = module.flow_loss(y + path, v_target=target, return_stats=True)
        z, kl = module.reparameterize(*torch.randn(2, 2, 40), eps=torch.randn(2, 40))[:2]
        state = torch.randn(2, 31)
        module.euler_step_(state, torch.randn(2, 31), 0.1)
        return [loss, z, kl, state, stats.nmse, *torch.autograd.grad(loss, leaves)]


expected = results(fk, "eager")
for kernel in (one, two):
    launched = set()
    import_module(f"{kernel.__name__}.triton._launch").hooks.append(lambda jit, *_: launched.add(jit.fn.__name__))
    for backend in ("eager", "auto", "triton"):
        assert not launched
        torch.testing.assert_close(results(kernel, backend), expected, rtol=2e-5, atol=2e-5)
    assert {"_tdp", "_group"} < launched and len(launched) > 10, launched
    psi = kernel.backend.OPS["psi"].overload
    torch.library.opcheck(psi, (torch.rand(2), *torch.randn(2, 2, 3), 1e-5, 1.0))
"""


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    out = tmp_path_factory.mktemp("hf-kernels")
    hf_kernels.write_cuda(out / "fmkernels")
    hf_kernels.write_triton(out / "fmkernels-triton")
    hf_kernels.write_triton(out / "newer", version=2)
    return out


@pytest.mark.parametrize(
    ("project", "backends"),
    [("fmkernels", [Backend.CUDA]), ("fmkernels-triton", [Backend.CPU, Backend.CUDA, Backend.ROCm])],
)
def test_kernel_builder_accepts_the_project(layout, project, backends):
    assert Build.open(layout / project).general.backends == backends


@pytest.mark.parametrize("name", ["fmkernels", "fmkernels-triton"])
def test_imports_are_relative_and_nothing_names_the_namespace_of_fmkernels(layout, name):
    folder = layout / name / "torch-ext" / name.replace("-", "_")
    paths = sorted(folder.rglob("*.py"))
    assert {"tdp.py", "schema.py", "_launch.py"} <= {path.name for path in paths}
    allowed = {*sys.stdlib_module_names, "torch", "triton"}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module]
            assert {module.split(".")[0] for module in modules} <= allowed, (path, ast.unparse(node))
            assert not (isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch.ops.fmkernels")), path
            assert not (isinstance(node, ast.Constant) and node.value in ("fmkernels", "fmkernels::")), path


def test_every_cuda_source_registers_in_the_namespace_of_the_build(layout):
    sources = [path for path in (layout / "fmkernels" / "csrc").rglob("*.*") if path.is_file()]
    texts = {path.name: path.read_text() for path in sources}
    assert not any("LIBRARY_IMPL(fmkernels" in text for text in texts.values())
    families = {path.stem for path in sources if path.suffix == ".cu"}
    assert families == {name[:-2] for name, text in texts.items() if "IMPL(TORCH_EXTENSION_NAME, FMK_KEY" in text} - {
        "int8"
    }
    listed = (layout / "fmkernels" / "build.toml").read_text()
    assert all(str(path.relative_to(layout / "fmkernels")) in listed for path in sources)


@pytest.mark.slow
def test_two_builds_and_fmkernels_run_in_one_process(layout, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    command = [sys.executable, "-c", USE, str(layout / "fmkernels-triton"), str(layout / "newer")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    assert result.returncode == 0, result.stderr[-3000:]
