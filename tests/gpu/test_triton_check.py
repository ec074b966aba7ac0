"""tools/triton_check.py reports faulty kernels, and tools/triton_count.py counts loops as often as they run."""

import re
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kernels("cpu"),  # the interpreter compiles nothing
]
triton = pytest.importorskip("triton")
tl = triton.language
import triton_check  # noqa: E402
import triton_count  # noqa: E402

from fmkernels.triton._math import reciprocal  # noqa: E402


@triton.jit
def sound(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


@triton.jit
def atomic(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + i, mask=i < n, other=0.0)))


@triton.jit
def strided(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + 2 * i, mask=i < n) * 2, mask=i < n)


@triton.jit
def hoarding(x, out, n, BLOCK: tl.constexpr):
    """Keeps more values than there are registers."""
    i = tl.arange(0, BLOCK)
    kept = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(out + i, kept * tl.sum(kept), mask=i < n)


@triton.jit
def approximate(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 1.0 / tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def refined(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, reciprocal(tl.load(x + i, mask=i < n)), mask=i < n)


@pytest.fixture
def problems_of(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def problems(kernel, target, block):
        x = torch.empty(block)
        launch = triton_check.Launch(kernel, 1, (x, x, block), 128, {"BLOCK": block}, aligned=True)
        return triton_check.check(launch, target, 120)[1]

    return problems


@pytest.mark.parametrize("target", ["sm_80", "sm_120", "gfx942"])
@pytest.mark.parametrize(
    ("kernel", "block", "complaint"),
    [(sound, 1024, None), (atomic, 1024, "atomics"), (strided, 1024, "under 16 bytes"), (hoarding, 1 << 17, "spill")],
    ids=lambda x: getattr(getattr(x, "fn", None), "__name__", None),
)
def test_what_is_wrong_is_found(problems_of, kernel, block, complaint, target):
    problems = problems_of(kernel, target, block)
    assert any(complaint in problem for problem in problems) if complaint else problems == []


@pytest.mark.parametrize("target", ["sm_80", "sm_120"])
def test_an_approximate_reciprocal_needs_a_newton_step(problems_of, target):
    (problem,) = problems_of(approximate, target, 1024)
    assert "not correctly rounded" in problem
    assert problems_of(refined, target, 1024) == []


def test_instructions_in_a_loop_count_once_per_iteration():
    """Two instructions before the loop, three in it, one after it; ``mov`` and predicates do not count."""
    text = """.visible .entry k() {
        ld.param.b64 %rd1, [a];
        mov.b32 %r1, 0;
        setp.eq.s32 %p1, %r1, 0;
    $L1:
        add.s32 %r1, %r1, 1;
        setp.lt.s32 %p1, %r1, 8;
        @%p1 bra $L1;
        ret;
    }"""
    assert triton_count.ptx(text, 8) == 2 + 3 * 8 + 1


def test_every_kernel_is_recorded_in_every_dtype():
    found = triton_check.recorded()
    names = {launch.name.split(" ")[0] for launch in found}
    sources = (Path(triton_check.__file__).parent.parent / "fmkernels" / "triton").glob("*.py")
    launched = {
        f"{path.stem}.{name}" for path in sources for name in re.findall(r"\blaunch\(\s*(_\w+)", path.read_text())
    }
    assert launched
    assert names == launched
    for dtype in ("f32x", "f16x", "bf16x"):
        assert sum(f",{dtype}" in launch.name or f" {dtype}" in launch.name for launch in found) > 50


@pytest.mark.parametrize("target", triton_check.TARGETS)
def test_a_table_is_filled_by_one_kernel_whatever_the_addresses(target):
    """Triton specializes for integers that are 1, multiples of 16, or below 2^31; encoded ones are none of these."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend
    from triton.runtime.jit import native_specialize_impl

    from fmkernels.triton._table import _encode

    backend = make_backend(GPUTarget(*triton_check.TARGETS[target]))

    def kinds(values):
        return set(zip(*native_specialize_impl(backend, values, False, True, True), strict=True))

    values = (0, 1, 7, 8, 16, 1 << 31, 0x7F00_0000_0010, (1 << 57) - 1)
    assert len(kinds(values)) > 1
    assert len(kinds(tuple(map(_encode, values)))) == 1
