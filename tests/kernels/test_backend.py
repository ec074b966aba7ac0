"""Which implementation serves: choosing, explaining, and going on without the compiled objects."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fmkernels as fk
from fmkernels import backend

PACKAGE = Path(fk.__file__).parent
WORKS = """
import torch, fmkernels as fk
x, s = torch.randn(2, 3, 8), torch.randn(8)
torch.testing.assert_close(fk.td_rms_norm(x, s), x / (x.norm(dim=-1, keepdim=True) * 8**-0.5 + 1e-8) * s)
leaf = torch.randn(4, requires_grad=True)
fk.tdp(leaf, *torch.randn(3, 4), torch.randn(2)).sum().backward()
group = fk.TdpGroup([tuple(torch.randn(4, 5))])
assert len(fk.tdp_group(group, torch.randn(2), out=group.buffer(2))) == 1
state, stats = torch.zeros(1, 3), torch.empty(1, 5)
fk.euler_step_(state, torch.ones(1, 3), 0.5, stats=stats)
assert state.eq(0.5).all() and stats[0, 4] == 0.5
assert torch.isfinite(leaf.grad).all()
print("served by", fk.backend.served_by("tdp", "cpu")[0])
"""


def python(code, cwd, **env):
    environment = {**os.environ, **env, "PYTHONPATH": str(cwd)}
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.fixture
def package_copy(tmp_path):
    """The package without its compiled objects, alone in a folder."""
    shutil.copytree(PACKAGE, tmp_path / "fmkernels", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path


def object_file(stem):
    return next(PACKAGE.glob(f"{stem}.*so"))


def break_nothing(folder):
    """_cpu is missing"""


def break_text(folder):
    """_cpu is not an object"""
    (folder / "_cpu.broken.so").write_text("not an object")


def break_symbols(folder):
    """_cpu needs a library that is not there"""
    data = object_file("_cpu").read_bytes()
    (folder / "_cpu.broken.so").write_bytes(data.replace(b"libtorch_cpu.so\0", b"libnowhere__.so\0"))


def break_kernels(folder):
    """_cpu loads but was built from other sources"""
    shutil.copy(object_file("_host"), folder / "_cpu.broken.so")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (break_nothing, "_cpu was not built"),
        (break_text, "does not load"),
        (break_symbols, "does not load"),
        (break_kernels, "no kernel for tdp"),
    ],
)
def test_without_the_object_one_warning_and_correct_results(package_copy, damage, reason):
    damage(package_copy / "fmkernels")
    run = python(WORKS, package_copy)
    assert run.returncode == 0, run.stderr
    assert "served by eager" in run.stdout
    assert run.stderr.count("RuntimeWarning") == 1
    assert reason in run.stderr
    assert "pip install --no-build-isolation" in run.stderr


def test_an_object_of_another_schema_is_not_loaded(package_copy):
    for stem in ("_cpu", "_host"):
        shutil.copy(object_file(stem), package_copy / "fmkernels")
    with open(package_copy / "fmkernels" / "schema.py", "a") as schema:
        schema.write("\n# changed\n")
    run = python(
        WORKS + "assert not torch._C._dispatch_has_kernel_for_dispatch_key('fmkernels::tdp', 'CPU')", package_copy
    )
    assert run.returncode == 0, run.stderr
    assert "served by eager" in run.stdout
    assert "schema.py changed since" in run.stderr


def test_gradients_without_the_object(package_copy):
    """torch.ops on a device without kernels: the eager forwards and the written-out backwards."""
    code = """
import torch, fmkernels as fk
x, s, r = (torch.randn(*n, dtype=torch.float64, requires_grad=True) for n in ((2, 3, 5), (2, 5), (2, 3, 5)))
assert torch.autograd.gradcheck(lambda x, s, r: fk.td_rms_norm(x, s, residual=r), (x, s, r))
print("ok")
"""
    run = python(code, package_copy)
    assert run.stdout == "ok\n", run.stderr


GRADIENTS = """
import torch, fmkernels as fk
x, s, o, r = (torch.randn(n, dtype=torch.float64, requires_grad=True) for n in ((2, 3, 6), (2, 6), (2, 6), (2, 3, 6)))
check = torch.autograd.gradcheck
assert check(lambda *a: fk.td_rms_norm(*a[:3], residual=a[3]), (x, s, o, r))
assert check(lambda x, s: fk.td_rms_norm(x, s), (x, s))
assert check(lambda x, s, r: fk.td_rms_norm(x, s, residual=r)[1], (x, s, r))
assert check(lambda x, s, o: fk.td_layer_norm(list(x.split([1, 5], -1)), s, o), (x, s, o))
assert check(fk.gelu_mul, (x, r)) and check(fk.gelu_mul, (x,))
assert check(fk.linear, (x, torch.randn(4, 6, dtype=torch.float64, requires_grad=True)))

fours = [tuple(torch.randn(n, dtype=d, requires_grad=True) for _ in range(4))
         for n, d in (((5,), torch.float64), ((2, 3), torch.float64), ((7,), torch.float32))]
times, leaves = torch.randn(3, dtype=torch.float64, requires_grad=True), [p for four in fours[:2] for p in four]
assert check(lambda t, *_: tuple(fk.tdp_group(fours[:2], t)), (times, *leaves))
first, second, third = fk.tdp_group(fours, times)
second.sum().backward()
assert fours[0][0].grad is None and fours[1][2].grad.shape == (2, 3)
third.sum().backward()  # through the same node again
assert fours[2][1].grad.dtype == torch.float32
with torch.no_grad():
    fours[0][3].add_(1)
try:
    first.sum().backward()
    raise AssertionError("a parameter that was changed went unnoticed")
except RuntimeError as error:
    assert "changed in place between" in str(error)
y = fk.td_rms_norm(x.float(), s.bfloat16(), o)
y.sum().backward()
print([n for n in ("td_norm", "gate_mul", "tdp") if fk.backend.OPS[n].direct], s.grad.dtype, o.grad.dtype)
"""


@pytest.mark.parametrize(
    ("present", "python_gradients", "warns"),
    [
        (("_cpu", "_host", "_autograd"), "['tdp']", 0),
        (("_cpu", "_host"), "['td_norm', 'gate_mul', 'tdp']", 0),
        (("_cpu", "_host", "broken"), "['td_norm', 'gate_mul', 'tdp']", 1),
    ],
    ids=["in C++", "not built", "broken"],
)
def test_gradients_in_cpp_and_in_python(package_copy, present, python_gradients, warns):
    for stem in present:
        if stem == "broken":
            (package_copy / "fmkernels" / "_autograd.broken.so").write_text("not an object")
        else:
            shutil.copy(object_file(stem), package_copy / "fmkernels")
    run = python(GRADIENTS, package_copy)
    assert run.stdout == f"{python_gradients} torch.float64 torch.float64\n", run.stderr
    assert run.stderr.count("RuntimeWarning") == warns


@pytest.mark.parametrize(
    ("env", "served", "warns"),
    [("eager", "eager", 0), ("cpp", "cpp", 0), ("auto", "cpp", 0), ("cuda", "cpp", 1), ("triton", "cpp", 1)],
)
def test_environment_variable(tmp_path, env, served, warns):
    run = python(WORKS, PACKAGE.parent, FMKERNELS_BACKEND=env)
    assert run.returncode == 0, run.stderr
    assert f"served by {served}" in run.stdout
    assert run.stderr.count("RuntimeWarning") == warns


def test_triton_on_the_cpu_by_its_interpreter():
    run = python(WORKS, PACKAGE.parent, FMKERNELS_BACKEND="triton", TRITON_INTERPRET="1")
    assert run.returncode == 0, run.stderr
    assert "served by triton" in run.stdout
    assert run.stderr == ""


def test_triton_serves_gpus_without_the_object_and_is_imported_late():
    """As a torch with GPU support would have it; no kernel is run."""
    code = """
import sys, torch
torch.version.cuda = "13.0"
import fmkernels as fk
from fmkernels.schema import KERNELS
assert all(fk.backend.served_by(name, "cuda") == ("triton", "_cuda was not built") for name in KERNELS["triton"])
assert fk.backend.served_by("linear", "cuda") == ("eager", "torch's own function")
assert fk.backend.served_by("tdp", "cpu")[0] == "cpp"
with fk.use_backend("triton"):
    assert fk.backend.served_by("tdp", "cuda") == ("triton", "asked for")
    try:
        fk.psi(torch.zeros(1), torch.zeros(1, 2), torch.zeros(1, 2))
    except ValueError as error:
        print(error)
assert "triton" not in sys.modules and "fmkernels.triton" not in sys.modules
"""
    run = python(code, PACKAGE.parent)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "psi: backend 'triton' supports cuda tensors, got one on cpu\n"


def test_choosing_triton_puts_it_over_the_compiled_kernels_and_takes_it_away():
    code = """
import torch, fmkernels as fk
from fmkernels.triton import _launch
seen = []
_launch.hooks.append(lambda kernel, *_: seen.append(kernel.__name__))
a = torch.randn(2, 8)
compiled = torch.compile(lambda a: fk.gelu_mul(a, a), fullgraph=True, backend="aot_eager")
with torch.no_grad():
    for call in (lambda: fk.gelu_mul(a, a), lambda: torch.ops.fmkernels.gate_mul(a, a, 0, True), lambda: compiled(a)):
        call()
        with fk.use_backend("triton"):
            call()
            with fk.use_backend("eager"):
                fk.gelu_mul(a, a)
            call()
        call()
print(len(seen), set(seen))
"""
    run = python(code, PACKAGE.parent, TRITON_INTERPRET="1")
    assert run.stdout == "6 {'_gate_mul'}\n", run.stderr
    assert "Warning" not in run.stderr


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match="auto, cpp, cuda, triton, eager"):
        fk.use_backend("fast")
    run = python("import fmkernels", PACKAGE.parent, FMKERNELS_BACKEND="fast")
    assert run.returncode == 1
    assert "auto, cpp, cuda, triton, eager" in run.stderr


def test_unavailable_names_say_why(monkeypatch):
    monkeypatch.setitem(backend.status, "cpp", backend.Status(False, "_cpu was not built"))
    with pytest.raises(RuntimeError, match=r"was not built\. To build it: pip install"):
        fk.use_backend("cpp")
    monkeypatch.setitem(backend.status, "cuda", backend.Status(False, "this torch has no GPU support: install one"))
    with pytest.raises(RuntimeError, match=r"no GPU support: install one$"):
        fk.use_backend("cuda")
    monkeypatch.setitem(backend.status, "triton", backend.Status(False, "not installed: pip install triton"))
    with pytest.raises(RuntimeError, match=r"not installed: pip install triton$"):
        fk.use_backend("triton")


def test_use_backend_nests_and_ends_on_errors():
    assert backend.current() == "auto"
    with fk.use_backend("eager"):
        with fk.use_backend("auto"):
            assert backend.current() == "auto"
        assert backend.served_by("psi", "cpu") == ("eager", "asked for")
        with pytest.raises(KeyError), fk.use_backend("cpp"):
            raise KeyError
        assert backend.current() == "eager"
    assert backend.current() == "auto"


def test_use_backend_blocks_may_end_in_any_order():
    first, second = fk.use_backend("eager"), fk.use_backend("cpp")
    first.__enter__(), first.__enter__(), second.__enter__()
    first.__exit__(), first.__exit__()
    assert backend.current() == "cpp"
    second.__exit__()
    assert backend.current() == "auto"


def test_use_backend_in_several_threads():
    """Blocks of threads end in any order; none is left open, and nobody finds the registration half made."""
    code = """
import threading, torch, fmkernels as fk
errors = []
def work(name):
    try:
        for _ in range(40):
            with fk.use_backend(name):
                pass
    except Exception as error:
        errors.append(repr(error))
threads = [threading.Thread(target=work, args=(name,)) for name in ("triton", "eager", "auto", "triton", "cpp")]
[t.start() for t in threads], [t.join() for t in threads]
print(errors, fk.backend.current(), fk.td_rms_norm(torch.randn(2, 8), torch.randn(8)).shape[1])
"""
    run = python(code, PACKAGE.parent, TRITON_INTERPRET="1")
    assert run.stdout == "[] auto 8\n", run.stderr


def test_use_backend_changes_who_computes():
    a, b = torch.randn(2, 64), torch.randn(2, 64)

    def names():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            fk.gelu_mul(a, b)
        return {event.name for event in profile.events()}

    assert "fmkernels::gate_mul" in names()
    with fk.use_backend("eager"):
        assert names() >= {"aten::gelu", "aten::mul"}
    with fk.use_backend("cpp"):
        assert "fmkernels::gate_mul" in names()
        with pytest.raises(ValueError, match="meta"):
            fk.gelu_mul(a.to("meta"), b.to("meta"))


def test_explain(capsys):
    text = fk.explain()
    assert capsys.readouterr().out.strip() == text
    table, reasons = (part.splitlines() for part in text.split("\n\n"))
    assert [line.split()[:2] for line in table[1:]] == [[op, "cpp"] for op in backend.OPS]
    assert "cpu, cpp: compiled object loaded" in reasons
    assert len(reasons) == len(set(reasons))
    with fk.use_backend("eager"):
        assert "asked for" in fk.explain()


def test_env_report():
    run = python("from fmkernels.env_report import main; main()", PACKAGE.parent)
    assert run.returncode == 0, run.stderr
    for fact in ("torch", "kernels run with", "backend cpp", "bf16 products safe", "build: compiler"):
        assert fact in run.stdout


def test_import_is_light():
    """Nothing heavy comes along with import fmkernels."""
    code = "import torch, sys; before = set(sys.modules); import fmkernels; print(*sorted(set(sys.modules) - before))"
    added = python(code, PACKAGE.parent).stdout.split()
    assert added
    assert {name.split(".")[0] for name in added} <= {"fmkernels", "weakref", "dataclasses"}, added
