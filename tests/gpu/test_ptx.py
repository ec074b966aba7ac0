"""The PTX interpreter: mistakes that it catches, what it computes, and the kernels that it runs and counts.

``make test-ptx`` runs it in its own process, together with the op tests: ``pytest --kernels ptx``.
"""

import struct

import count_instructions
import pytest
import torch
from support import host_cuda, ptx
from support.cases import CASES, TOLERANCE, assert_close
from support.dense_calls import dense_calls, large_tensors, r
from support.ptx import cuda, machine
from support.ptx.encode import encode
from support.ptx.parse import Module

import fmkernels as fk

HEADER = """
.version 9.0
.target sm_90
.address_size 64
.visible .entry kernel(.param .u64 to, .param .u64 from) {
    .reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<16>; .reg .f32 %f<8>; .reg .b64 %d<8>; .reg .f64 %fd<8>;
    .shared .align 4 .b8 room[128];
    ld.param.u64 %d1, [to];
    ld.param.u64 %d2, [from];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d3, %r1, 4;
    add.s64 %d4, %d1, %d3;
    add.s64 %d5, %d2, %d3;
    shl.b32 %r8, %r1, 2;
    mov.u32 %r9, room;
    add.s32 %r9, %r9, %r8;
"""


def run(body: str, to: torch.Tensor, *sources: torch.Tensor, threads: int = 32, grid: int = 1) -> torch.Tensor:
    """%d4 is where the thread's four bytes of ``to`` are, %d5 those of the source, [%r9] those in shared memory."""
    module = Module(HEADER + body + "\nret; }")
    arguments = [struct.pack("P", x.data_ptr()) for x in (to, *(sources or [to]))]
    machine.Loaded(encode(module["kernel"])).launch((grid, 1, 1), threads, 0, arguments)
    return to


# Name -> a kernel with XXX, what XXX is in the faulty kernel and in the correct one, what is said, threads.
BROKEN = {
    "out of bounds": ("ld.global.u32 %r2, [%d5+XXX];", "4", "0", "out of bounds: reads 4 bytes outside every tensor"),
    "store out of bounds": ("st.global.u32 [%d4+XXX], %r1;", "-4", "0", "out of bounds: writes 4 bytes"),
    "misaligned": ("ld.global.XXX;", "v2.u32 {%r3, %r4}, [%d2+4]", "u32 %r3, [%d2+4]", "misaligned: reads 8 bytes"),
    "beyond a shared variable": (
        "st.shared.u32 [room+XXX], %r1;",
        "128",
        "124",
        "out of bounds: writes 4 bytes of shared",
    ),
    "beyond the parameters": (
        "ld.param.u64 %d6, [from+XXX];",
        "8",
        "0",
        "out of bounds: reads 8 bytes beyond the param",
    ),
    "barrier in a branch": ("setp.lt.u32 %p1, %r1, XXX; @%p1 bar.sync 0;", "7", "99", "divergent barrier: some lanes"),
    "barriers of two warps": (
        "setp.lt.u32 %p1, %r1, XXX; @%p1 bra one; bar.sync 0; bra end; one: bar.sync 0; end:",
        "32",
        "99",
        "divergent barriers: another warp",
        64,
    ),
    "barrier after an exit": (
        "setp.lt.u32 %p1, %r1, XXX; @%p1 ret; bar.sync 0;",
        "32",
        "0",
        "is missed by thread 0",
        64,
    ),
    "shuffle in a branch": (
        "setp.lt.u32 %p1, %r1, XXX; @%p1 shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;",
        "16",
        "99",
        "names lane 16, which is not there",
    ),
    "shuffle without its own lane": (
        "shfl.sync.bfly.b32 %r2, %r1, 1, 31, XXX;",
        "3",
        "-1",
        "whose mask does not name it",
    ),
    "undefined register stored": (
        "XXX add.s32 %r3, %r2, 1; st.global.u32 [%d4], %r3;",
        "",
        "mov.u32 %r2, 1;",
        "undefined",
    ),
    "undefined address": ("XXX add.s64 %d6, %d7, %d4; ld.global.u32 %r2, [%d6];", "", "mov.u64 %d7, 0;", "undefined"),
    "undefined condition": ("XXX @%p1 bra end; end:", "", "setp.eq.s32 %p1, %r1, 0;", "undefined"),
    "undefined in some lanes": (
        "setp.ne.u32 %p1, %r1, XXX; @%p1 mov.u32 %r2, 1; st.global.u32 [%d4], %r2;",
        "9",
        "99",
        "thread 9",
    ),
    "unwritten shared memory": (
        "XXX bar.sync 0; ld.shared.u32 %r2, [%r9];",
        "",
        "st.shared.u32 [%r9], %r1;",
        "before it is",
    ),
}
UNKNOWN = {
    "an opcode": "cos.exact.f32 %f1, %f2;",
    "a rounding that is not implemented": "add.rz.f32 %f1, %f1, %f1;",
    "a modifier of a load": "ld.weak.global.u32 %r2, [%d4];",
    "a register of the wrong width": "add.s32 %r2, %d1, 1;",
    "a result of the wrong width": "add.s32 %d2, %r1, 1;",
    "an unknown register": "add.s32 %r99, %r1, 1;",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_kernel_is_caught_and_a_correct_one_is_not(name):
    body, wrong, right, said, *threads = BROKEN[name]
    threads = threads[0] if threads else 32
    with pytest.raises(ptx.PtxError, match=said):
        run(body.replace("XXX", wrong), torch.zeros(threads, dtype=torch.int32), threads=threads)
    run(body.replace("XXX", right), torch.zeros(threads, dtype=torch.int32), threads=threads)


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_implemented_is_an_error_before_the_launch(name):
    with pytest.raises(NotImplementedError, match=UNKNOWN[name].split()[0].split(".")[0]):
        run(UNKNOWN[name], torch.zeros(32))


def test_arguments_of_another_size_are_an_error():
    loaded = machine.Loaded(encode(Module(HEADER + "ret; }")["kernel"]))
    with pytest.raises(ptx.PtxError, match=r"parameters of \[8, 8\] bytes, got \[8, 4\]"):
        loaded.launch((1, 1, 1), 32, 0, [bytes(8), bytes(4)])


def test_an_undefined_value_that_nothing_depends_on_is_no_error():
    run("add.s32 %r3, %r2, 1; selp.b32 %r4, %r1, %r3, 1; st.global.u32 [%d4], %r4;", torch.zeros(32, dtype=torch.int32))


# Instruction -> what thread i stores, from %r1 = i.
VALUES = {
    "shl.b32 %r2, %r1, 31": lambda i: i << 31,
    "shl.b32 %r2, 1, %r1": lambda i: 1 << i,
    "shl.b32 %r2, %r1, 32": lambda i: 0,
    "shr.s32 %r2, -8, %r1": lambda i: -8 >> i,
    "shr.s32 %r2, -8, 99": lambda i: -1,
    "shr.u32 %r2, -8, %r1": lambda i: (2**32 - 8) >> i,
    "bfe.u32 %r2, 0xabcd, %r1, 4": lambda i: 0xABCD >> i & 15,
    "bfe.s32 %r2, 0xabcd, 8, 4": lambda i: 0xB - 16,
    "bfi.b32 %r2, %r1, -1, 8, 4": lambda i: 0xFFFFF0FF | (i & 15) << 8,
    "prmt.b32 %r2, 0x33221100, 0x77665544, 0x7531": lambda i: 0x77553311,
    "prmt.b32 %r2, 0x80, 0, 0x8888": lambda i: -1,
    "mul.hi.u32 %r2, %r1, 0x80000000": lambda i: i // 2,
    "mad.lo.s32 %r2, %r1, -3, 7": lambda i: 7 - 3 * i,
    "div.s32 %r2, -7, 2": lambda i: -3,
    "rem.s32 %r2, -7, 2": lambda i: -1,
    "min.s32 %r2, %r1, -1": lambda i: -1,
    "max.u32 %r2, %r1, 5": lambda i: max(i, 5),
    "shfl.sync.bfly.b32 %r2, %r1, 3, 31, -1": lambda i: i ^ 3,
    "shfl.sync.down.b32 %r2, %r1, 30, 31, -1": lambda i: i + 30 if i < 2 else i,
    "shfl.sync.up.b32 %r2, %r1, 30, 0, -1": lambda i: i - 30 if i >= 30 else i,
    "shfl.sync.idx.b32 %r2, %r1, 5, 31, -1": lambda i: 5,
    "shfl.sync.idx.b32 %r2, %r1, 5, 0x181f, -1": lambda i: i // 8 * 8 + 5,
    "cvt.rn.bf16x2.f32 %r2, 0f3F800001, 0f3F808000": lambda i: 0x3F803F80,
    "mov.b32 {%h1, %h2}, %r1; mov.b32 %r2, {%h2, %h1}": lambda i: i << 16,
    "setp.lt.u32 %p1, %r1, 4; selp.b32 %r2, 1, 0, %p1": lambda i: int(i < 4),
    "setp.equ.f32 %p1, 0f7FC00000, 0f00000000; selp.b32 %r2, 1, 0, %p1": lambda i: 1,
    "setp.eq.f32 %p1, 0f7FC00000, 0f00000000; selp.b32 %r2, 1, 0, %p1": lambda i: 0,
    "setp.ne.f32 %p1, 0f7FC00000, 0f00000000; selp.b32 %r2, 1, 0, %p1": lambda i: 0,
    "cvt.rn.f32.s32 %f1, %r1; fma.rn.f32 %f2, %f1, %f1, %f1; cvt.rn.f32.s32 %f3, 0; add.f32 %f4, %f2, %f3; "
    "mov.b32 %r2, %f4": lambda i: struct.unpack("i", struct.pack("f", i * i + i))[0],
    # loops of another length in every lane, and a branch inside
    "mov.u32 %r2, 0; mov.u32 %r3, 0; top: setp.ge.u32 %p1, %r3, %r1; @%p1 bra end; and.b32 %r4, %r3, 1; "
    "setp.eq.s32 %p2, %r4, 0; @%p2 bra even; add.s32 %r2, %r2, %r3; bra next; even: sub.s32 %r2, %r2, %r3; "
    "next: add.s32 %r3, %r3, 1; bra top; end:": lambda i: sum(j if j % 2 else -j for j in range(i)),
    "mov.u32 %r2, 1; setp.lt.u32 %p1, %r1, 9; @!%p1 bra end; mov.u32 %r2, 2; end:": lambda i: 2 if i < 9 else 1,
    "st.shared.u32 [%r9], %r1; bar.sync 0; xor.b32 %r8, %r8, 4; mov.u32 %r3, room; add.s32 %r3, %r3, %r8; "
    "ld.shared.u32 %r2, [%r3]": lambda i: i ^ 1,
}


@pytest.mark.parametrize("body", VALUES)
def test_values(body):
    got = run(
        f"{body}{'' if body.endswith(':') else ';'} st.global.u32 [%d4], %r2;", torch.zeros(32, dtype=torch.int32)
    )
    expected = torch.tensor([VALUES[body](i) & 0xFFFFFFFF for i in range(32)]).to(torch.uint32).view(torch.int32)
    assert got.tolist() == expected.tolist()


def test_atomics_of_several_blocks():
    got = run("atom.global.add.u32 %r2, [%d1], 1;", torch.zeros(1, dtype=torch.int32), threads=64, grid=3)
    assert got.item() == 192


def test_counts_and_bytes():
    x, y = torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    with ptx.counting() as counts:
        run("setp.lt.u32 %p1, %r1, 40; @%p1 ld.global.u32 %r2, [%d5]; @%p1 st.global.u32 [%d4], %r2;", y, x, threads=64)
    assert counts.warps["ld.global.u32"] == 2
    assert counts.lanes["ld.global.u32"] == 40
    assert counts.issued(mov=True) - counts.issued() == 2 * 2
    assert (counts.bytes(x), counts.bytes(y)) == ((160, 0), (0, 160))
    assert counts.launches == {"kernel": 1}


@pytest.fixture
def perturbed(request):
    yield ptx.perturb
    ptx.perturb(request.config.getoption("ulp"))


@pytest.mark.parametrize("op", ["rcp.approx.ftz.f32", "sqrt.approx.f32", "ex2.approx.f32", "rsqrt.approx.f32"])
def test_approximate_instructions_are_one_ulp_off_as_the_seed_says(perturbed, op):
    x = torch.rand(1024) + 0.5

    def result(seed):
        perturbed(seed)
        return run(
            f"ld.global.f32 %f1, [%d5]; {op} %f2, %f1; st.global.f32 [%d4], %f2;", torch.empty(1024), x, threads=1024
        )

    exact, first, again, other = (result(seed).view(torch.int32) for seed in (0, 1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert set((first - exact).tolist()) == {-1, 0, 1}


@pytest.mark.parametrize("arch", cuda.ARCHS)
@pytest.mark.parametrize(
    "family", ["gate", "head", "norm", "norm_wide", "path", "rope", "rope_whole", "runs", "step", "tdp"]
)
def test_every_kernel_is_loaded(arch, family):
    """Every opcode of every kernel is known."""
    (path,) = [path for path in cuda.compiled(arch) if path.stem == family]
    module = Module(path.read_text())
    assert module.entries
    for name in module.entries:
        assert len(cuda.kernel(arch, name).program.records) > 100


def check(case, n, dtype):
    """Against the same op in float64 in eager PyTorch, with the tolerances of test_every_op.py."""
    inputs = case.inputs(n, dtype)
    absolute, relative = TOLERANCE[dtype]
    for run, factor in (("outputs", 1), *([("gradients", 10)] if case.grads else [])):
        with fk.use_backend("eager"):
            expected = getattr(case, run)([x.double() for x in inputs])
        for a, b in zip(getattr(case, run)(inputs), expected, strict=True):
            scale = max(1.0, b.abs().max().item()) if factor > 1 else 1.0
            assert_close(a.double(), b.double(), atol=factor * absolute * scale, rtol=factor * relative)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("seed", [2, 3])
def test_one_ulp_in_approximate_instructions_changes_no_verdict(perturbed, case, seed):
    """``make test-ptx`` runs the op tests with seed 1."""
    perturbed(seed)
    check(case, 1025, torch.float32)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize(("n", "dtype"), [(40, torch.float32), (1025, torch.bfloat16)], ids=["small", "odd"])
def test_the_ptx_for_sm_80(case, n, dtype):
    with cuda.architecture("sm_80"):
        check(case, n, dtype)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_any_order_and_any_grid_give_the_same_bits(case):
    inputs = case.inputs(1025, torch.bfloat16)

    def bits():
        return case.outputs(inputs) + (case.gradients(inputs) if case.grads else [])

    expected = bits()
    for seed, most_blocks in ((1, 0), (2, 3)):
        with host_cuda.ordered(seed, most_blocks):
            assert all(torch.equal(a, b) for a, b in zip(bits(), expected, strict=True))


ROW = 12032  # floats of a row that the CUDA kernels keep
# Triton's int8 product for sm_90 uses the instructions of a warp group (wgmma), which the interpreter does not have.
TRITON_CALLS = [name for name in dense_calls(64, 64) if not name.startswith("linear_int8")]


@pytest.mark.parametrize("name", TRITON_CALLS)
def test_the_ptx_of_the_triton_kernels_gives_what_that_of_the_cuda_kernels_gives(name):
    pytest.importorskip("triton")
    from support.ptx import triton

    import fmkernels.triton as ours

    def tensors(*values):
        listed = [x for v in values for x in (v if isinstance(v, (list, tuple)) else [v])]
        return [x for x in listed if isinstance(x, torch.Tensor)]

    def called(function):
        torch.manual_seed(0)
        arguments = dense_calls(2200, ROW)[name]
        if name == "velocity_summary":
            arguments = (arguments[0].abs(), *arguments[1:])  # sums of squares
        return tensors(function(*arguments), *arguments)

    op = name.split(",")[0]
    expected = called(getattr(torch.ops.fmkernels, op))
    with triton.ours(), ptx.counting() as counts:
        got = called(getattr(ours, op))
    assert counts.issued()
    for a, b in zip(got, expected, strict=True):
        if b.numel():
            rounding = {torch.bfloat16: 2**-7, torch.float16: 2**-10}.get(b.dtype, 0)  # one ulp
            scale = b.double().abs().nan_to_num().max().item()
            close = {"atol": 2e-5 * scale, "rtol": 1e-4 + rounding, "equal_nan": True}
            torch.testing.assert_close(a.double(), b.double(), **close)


@pytest.mark.parametrize("name", ["td_norm", "gate_mul", "psi", "velocity_stats", "step_", "tdp_group"])
def test_bytes_by_tensor(name):
    """As the host execution counts them: large tensors are read or written once, a norm's parameters by each row."""
    arguments = dense_calls(2200, ROW)[name]
    with ptx.counting() as counts, torch.no_grad():
        results = getattr(torch.ops.fmkernels, name)(*arguments)
    often = {"scale": (2, 0), "offset": (2, 0), "gate": (2, 0)} if name == "td_norm" else {}
    often |= {"x": (1, 1), "low": (0, 1)} if name == "step_" else {}
    for where, tensor, made in large_tensors(name, arguments, results):
        if tensor.untyped_storage().nbytes() != tensor.nbytes:
            continue
        read, written = (0, 1) if made else often.get(where, (1, 0))
        assert counts.bytes(tensor) == (read * tensor.nbytes, written * tensor.nbytes), where


# Executed PTX instructions per element without moves, today's values as upper limits: kernels may only get better.
# The shapes are those of benchmarks/count_instructions.py, which compares them with Liger-Kernel's.
LIMITS = {
    "gelu_mul": 30.9,
    "gelu_mul backward": 37.6,
    "gated_add": 9.0,
    "gated_add backward": 9.3,
    "qk_norm_rope": 23.2,
    "qk_norm_rope backward": 53.0,
    "RMS norm": 12.8,
    "RMS norm + residual": 17.3,
    "RMS norm backward": 35.0,
    "layer norm": 19.8,
    "layer norm backward": 42.3,
    "layer norm of 66 tensors": 30.8,
    "tdp group, T=1": 56.5,
    "tdp group, T=50": 31.3,
    "tdp group backward, T=1": 101.8,
    "step, guided, low, stats": 25.3,
    "psi": 10.0,
    "Dt_psi": 8.1,
    "flow_pair": 11.9,
    "velocity_stats": 33.6,
    "flow_loss": 33.6,
    "flow_loss backward": 14.0,
    "reparameterize": 236.9,
    "reparameterize backward": 71.5,
}


@pytest.mark.parametrize("name", count_instructions.CUDA)
def test_executed_instructions_per_element(name):
    assert count_instructions.counted(count_instructions.CUDA[name]).per_element <= LIMITS[name]


def test_an_op_of_no_elements_launches_nothing():
    with ptx.counting() as counts:
        assert fk.gelu_mul(r(2, 0), r(2, 0)).shape == (2, 0)
    assert not counts.launches
