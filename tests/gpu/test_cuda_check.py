"""The compile gates of tools/cuda_check.py can fail: on kernels that spill, use the stack, or load single elements."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
import cuda_check  # noqa: E402
import find_cuda  # noqa: E402

pytestmark = pytest.mark.slow

needs_nvcc = pytest.mark.skipif(find_cuda.cuda_home() is None, reason="no nvcc")

SYMBOLS = """
0000000000001000 W void fmk::step_kernel<float>(fmk::Tiles, fmk::Step, unsigned int)
0000000000001100 W void fmk::norm_kernel<float, fmk::RowParts<4> >(fmk::RowParts<4>, fmk::Norm)
0000000000001200 T fmk::velocity_summary_kernel(fmk::Source, long)
0000000000001300 t fmk::step_kernel<float>(fmk::Tiles, unsigned int)::{lambda(long)#1}::operator()(long) const
0000000000001400 u guard variable for fmk::head_kernel<double>(fmk::Head, unsigned int)::means
0000000000001500 W void fmk::for_all_packs<fmk::path_kernel<float>(fmk::Tiles)::{lambda(long)#1}>(fmk::Tiles const&)
"""
LOG = """
ptxas info    : Compiling entry function '_Zone' for 'sm_90'
ptxas info    : Function properties for _Zone
    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 16 bytes cumulative stack size, 144 bytes smem
ptxas info    : Compiling entry function '_Ztwo' for 'sm_90'
ptxas info    : Function properties for _Ztwo
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Function properties for a_function_it_calls
    24 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 29 registers
"""


def test_the_kernels_are_read_off_the_object():
    assert cuda_check.kernels(SYMBOLS) == [
        "fmk::norm_kernel<float, fmk::RowParts<4> >",
        "fmk::step_kernel<float>",
        "fmk::velocity_summary_kernel",
    ]


def test_every_global_function_of_the_sources_is_among_them(monkeypatch):
    assert len(cuda_check.kernels_of_the_sources()) > 40
    monkeypatch.setitem(cuda_check.KERNELS, "forgotten_kernel", (32, 1, 1))
    with pytest.raises(RuntimeError, match="differ"):
        cuda_check.kernels_of_the_sources()


def test_the_assemblers_words():
    assert cuda_check.resources(LOG) == {
        "_Zone": {"registers": 64, "stack": 16, "spilled": 12, "shared": 144},
        "_Ztwo": {"registers": 29, "stack": 24, "spilled": 0, "shared": 0},
    }
    with pytest.raises(RuntimeError, match="otherwise"):
        cuda_check.resources(LOG.replace("bytes stack frame", "octets of stack"))


def test_wide_accesses_are_counted_by_function():
    sass = """
        Function : _Zone
        /*0010*/ LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0020*/ LDG.E.128 R8, desc[UR4][R2.64+0x10] ;
        /*0030*/ STG.E.128 desc[UR4][R2.64], R4 ;
        Function : _Ztwo
        /*0010*/ LDG.E.U16.CONSTANT R4, desc[UR4][R2.64] ;
    """
    assert cuda_check.wide_accesses(sass) == {"_Zone": (2, 1), "_Ztwo": (0, 0)}


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "share"),
    [
        ("sm_90", 256, 32, 0, 1.0),
        ("sm_90", 256, 64, 0, 0.5),
        ("sm_90", 256, 65, 0, 3 / 8),  # 72 registers: three blocks
        ("sm_90", 256, 32, 56 << 10, 0.5),  # four blocks of 57 KB in 228
        ("sm_90", 32, 32, 0, 0.5),  # 32 blocks
        ("sm_120", 256, 32, 0, 1.0),
        ("sm_120", 256, 32, 48 << 10, 1 / 3),  # two blocks of 49 KB in 100
    ],
)
def test_occupancy(arch, threads, registers, shared, share):
    assert cuda_check.occupancy(arch, threads, registers, shared) == pytest.approx(share)


@pytest.mark.parametrize(
    ("symbol", "kernel"),
    [
        ("void fmk::runs_kernel<float>(long, long, float const*)", "fmk::runs_kernel<float>"),
        ("fmk::velocity_summary_kernel(fmk::Source, long)", "fmk::velocity_summary_kernel"),
        (
            "void fmk::gate_mul_kernel<fmk::Any<float>, (fmk::Activation)2>(fmk::Tiles, fmk::Rows<fmk::Any<float> >)",
            "fmk::gate_mul_kernel<fmk::Any<float>, (fmk::Activation)2>",
        ),
    ],
)
def test_the_kernel_of_a_symbol(symbol, kernel):
    assert cuda_check.without_arguments(symbol) == kernel


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, []),
        ({"spilled": 8}, ["0 bytes of stack, 8 spilled"]),
        ({"stack": 64}, ["64 bytes of stack, 0 spilled"]),
        ({"loads": 7}, ["128-bit loads 7 of 8, stores 16 of 16"]),
        ({"stores": 15}, ["128-bit loads 8 of 8, stores 15 of 16"]),
        ({"kernel": "fmk::step_kernel<fmk::Any<double>, true>"}, ["128-bit loads 8 of 16, stores 16 of 16"]),
        ({"kernel": "fmk::step_kernel<fmk::Common<fmk::bf16, float>, true>", "loads": 4, "stores": 2}, []),
        (
            {"kernel": "fmk::step_kernel<fmk::Common<float, float>, true>", "loads": 7, "stores": 4},
            ["128-bit loads 7 of 8, stores 4 of 4"],
        ),
        (
            {"kernel": "fmk::step_kernel<fmk::Common<fmk::f16, float>, true>", "registers": 65},
            ["65 registers, more than 64"],
        ),
        ({"kernel": "fmk::runs_kernel<float>", "stores": 0, "loads": 0}, []),
        ({"occupancy": 0.0}, ["no block fits on an SM"]),
        (
            {"kernel": "fmk::norm_backward_kernel<fmk::Any<float>, fmk::OneRow>", "stores": 24, "shared": 2049},
            ["2049 bytes of shared memory beside that of a row, more than 2048"],
        ),
    ],
)
def test_what_a_kernel_is_failed_for(changed, said):
    row = {"kernel": "fmk::step_kernel<fmk::Any<float>, true>", "loads": 8, "stores": 16, "occupancy": 0.5}
    assert cuda_check.faults({**row, "registers": 64, "stack": 0, "spilled": 0, "shared": 0, **changed}) == said


@pytest.mark.parametrize(
    ("kernel", "block"),
    [
        ("gate_mul_kernel<fmk::Any<double>, (fmk::Activation)0>", (256, 0)),
        ("step_kernel<fmk::Any<double>, true>", (256, 0)),
        ("step_kernel<fmk::Common<fmk::bf16, float>, true>", (512, 0)),
        ("norm_kernel<fmk::Common<fmk::bf16, fmk::bf16>, fmk::OneRow>", (128, 8 << 10)),
        ("norm_kernel<fmk::Common<float, float>, fmk::RowParts>", (512, 16 << 10)),
        ("norm_kernel<fmk::Any<double>, fmk::RowParts>", (256, 16 << 10)),
        ("norm_backward_kernel<fmk::Common<fmk::bf16, float>, fmk::OneRow>", (128, 48 << 10)),
        ("norm_backward_kernel<fmk::Common<float, float>, fmk::OneRow>", (128, 64 << 10)),
        ("norm_backward_kernel<fmk::Any<double>, fmk::OneRow>", (128, 64 << 10)),
        ("norm_wide_backward_kernel<fmk::Common<fmk::bf16, fmk::bf16>>", (512, 0)),
    ],
)
def test_threads_and_shared_memory_of_a_block(kernel, block):
    assert cuda_check.of_block(f"fmk::{kernel}") == block


@pytest.mark.parametrize(("spilled", "code", "last"), [(0, 0, "no fault"), (8, 1, "8 spilled")])
def test_the_printed_table_is_also_written(tmp_path, monkeypatch, capsys, spilled, code, last):
    row = {"kernel": "fmk::step_kernel<float, true>", "arch": "sm_90", "threads": 512, "registers": 64, "shared": 0}
    row |= {"block_shared": 0, "loads": 8, "stores": 16, "occupancy": 0.5, "stack": 0, "spilled": spilled}
    monkeypatch.setattr(cuda_check, "cuda_home", lambda: tmp_path)
    monkeypatch.setattr(cuda_check, "kernels_of_the_sources", lambda: [row["kernel"]])
    monkeypatch.setattr(cuda_check, "check", lambda *_: [row])
    monkeypatch.setattr(sys, "argv", ["cuda_check.py", "--out", str(tmp_path / "table.txt")])
    assert cuda_check.main() == code
    printed = capsys.readouterr().out
    assert printed.strip().endswith(last)
    assert (tmp_path / "table.txt").read_text() == printed


PROBE = """
namespace fmk {
__global__ void copy_kernel(const float4* from, float4* to) { to[threadIdx.x] = from[threadIdx.x]; }
__global__ void stack_kernel(const float4* from, float4* to, int i) {
  float4 kept[64];
  for (int k = 0; k < 64; k++) kept[k * i % 64] = from[k];
  to[threadIdx.x] = kept[threadIdx.x % 64];
}
__global__ void scalar_kernel(const float* from, float* to) { to[threadIdx.x] = from[threadIdx.x]; }
SPILL
}
"""
SPILL = """
__global__ void __launch_bounds__(1024, 2) spill_kernel(const float4* from, float4* to) {
  float4 kept[16];
#pragma unroll
  for (int k = 0; k < 16; k++) kept[k] = from[k * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 16; k++) to[k * 1024 + threadIdx.x] = kept[15 - k];
}
"""


@needs_nvcc
def test_the_real_compiler_on_bad_kernels(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_check, "KEPT", tmp_path)
    probes = dict.fromkeys(("copy_kernel", "stack_kernel", "scalar_kernel", "spill_kernel"), (256, 0.5, 0.125))
    monkeypatch.setattr(cuda_check, "KERNELS", probes)  # one load and one store
    compiler = find_cuda.cuda_home() / "bin" / "nvcc"
    (tmp_path / "probe.cu").write_text(PROBE.replace("SPILL", ""))
    names = ["fmk::copy_kernel", "fmk::stack_kernel", "fmk::scalar_kernel"]
    rows = {row["kernel"]: row for row in cuda_check.compiled(compiler, "probe", names, "sm_90")}
    assert cuda_check.faults(rows["fmk::copy_kernel"]) == []
    assert "bytes of stack" in cuda_check.faults(rows["fmk::stack_kernel"])[0]
    assert "128-bit loads 0 of" in cuda_check.faults(rows["fmk::scalar_kernel"])[0]
    with pytest.raises(RuntimeError, match="not compiled: fmk::forgotten_kernel"):
        cuda_check.compiled(compiler, "probe", [*names, "fmk::forgotten_kernel"], "sm_90")
    (tmp_path / "probe.cu").write_text(PROBE.replace("SPILL", SPILL))
    with pytest.raises(RuntimeError, match="spilled to local memory"):
        cuda_check.compiled(compiler, "probe", names, "sm_90")


@needs_nvcc
def test_results_are_kept_until_something_changes(tmp_path, monkeypatch):
    made = []

    def compiled(compiler, family, names, arch):
        made.append((family, arch))
        return [{"kernel": name, "arch": arch} for name in names]

    monkeypatch.setattr(cuda_check, "KEPT", tmp_path)
    monkeypatch.setattr(cuda_check, "compiled", compiled)
    compiler, names = find_cuda.cuda_home() / "bin" / "nvcc", ["fmk::step_kernel<float>", "fmk::path_kernel<float>"]
    first = cuda_check.check(compiler, names, ["sm_90"])
    assert sorted(made) == [("path", "sm_90"), ("step", "sm_90")]
    assert cuda_check.check(compiler, names, ["sm_90"]) == first
    assert len(made) == 2
    cuda_check.check(compiler, names, ["sm_80", "sm_90"])
    assert len(made) == 4
    cuda_check.check(compiler, [*names, "fmk::head_kernel<float>"], ["sm_90"])
    assert len(made) == 7
    assert all(json.loads(path.read_text()) for path in tmp_path.glob("*.json"))


def test_without_nvcc_it_says_so_and_that_is_no_failure(tmp_path):
    run = subprocess.run(
        [sys.executable, cuda_check.__file__],
        env={"PATH": str(tmp_path), "CUDA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.count("\n") == 1
    assert "nothing was compiled" in run.stdout


@pytest.mark.parametrize("wrapped", [False, True])
def test_nvcc_is_found_behind_a_wrapper(tmp_path, monkeypatch, wrapped):
    """What is on PATH may be a script somewhere else; the compiler says where it is."""
    home, elsewhere = tmp_path / "cuda", tmp_path / "bin"
    for folder in (home / "bin", elsewhere):
        folder.mkdir(parents=True)
    compiler = home / "bin" / "nvcc"
    compiler.write_text(f"#!/bin/sh\necho '#$ _SPACE_= ' >&2\necho '#$ _HERE_={home}/bin' >&2\n")
    (elsewhere / "nvcc").write_text(f'#!/bin/sh\nexec {compiler} "$@"\n')
    for path in (compiler, elsewhere / "nvcc"):
        path.chmod(0o755)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{elsewhere if wrapped else home / 'bin'}:/bin:/usr/bin")
    assert find_cuda.cuda_home() == home
    monkeypatch.setenv("CUDA_HOME", str(elsewhere.parent))
    assert find_cuda.cuda_home() == elsewhere.parent
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nothing"))
    assert find_cuda.cuda_home() is None
