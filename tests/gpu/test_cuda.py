"""The CUDA kernels on the CPU: what the checked execution catches, bytes, launches, orders, mixtures.

``make test-cuda`` runs it in its own process, together with the op tests: ``pytest --kernels cuda``.
"""

import pytest
import torch
from count_launches import Launches
from roofline import CUDA_LAUNCHES
from support import host_cuda
from support.cases import CASES, assert_close
from support.dense_calls import dense_calls, large_tensors, r

import fmkernels as fk
from fmkernels.schema import KERNELS

ROW = (99 - 2) * 256  # floats a block keeps of a wide row, of the 99 KB that cuda_on_host gives it

BROKEN = {
    "out of bounds": "outside every tensor",
    "misaligned": "misaligned: reads 16 bytes at once",
    "missing barrier before a read": "a barrier is missing before a read",
    "missing barrier before a write": "a barrier is missing before a write",
    "unwritten shared memory": "read before it is written",
    "missed barrier": "a barrier is missed by thread 7, which has ended",
    "divergent barriers": "divergent barriers: at lines",
    "exited lane": "names lane 31, which has ended",
    "lanes elsewhere": "waits for lanes that are elsewhere",
    "unnamed lane": "whose mask does not name it",
    "too much shared memory": "more than 48 KB of shared memory",
    "read-only load": "a read-only load of what this launch has written",
    "no fence": "before a fence",
    "no barrier behind the fence": "before a barrier",
    "votes": "votes",
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_broken_kernel_is_caught_and_a_fixed_one_is_not(name, seed):
    with host_cuda.ordered(seed):
        said = host_cuda.broken(name)
        assert said.startswith("cuda_on_host: ")
        if seed == 0:
            assert BROKEN[name] in said
        assert host_cuda.broken(f"fixed {name}") == ""


# Weights are read by each of the two rows, tables by each of q and k too.
ROPE = {"q_weight": (2, 0), "k_weight": (2, 0), "cos": (4, 0), "sin": (4, 0)}
# Where a tensor is not read once or written once: (times read, times written). The rest is read or written once.
ACCOUNT = {
    "td_norm": {"scale": (2, 0), "offset": (2, 0), "gate": (2, 0)},  # a norm's parameters: by each of the two rows
    "td_norm_out": {"scale": (2, 0), "y": (0, 1)},
    "td_norm_backward": {"scale": (4, 0)},
    "td_norm, a list": {"scale": (2, 0)},
    "td_norm, wide": {
        "x[0]": (2, 0),
        "residual": (2, 0),
        "gate": (4, 0),
        "scale": (2, 0),
        "offset": (2, 0),
    },
    "td_norm_backward, wide": {"grad_y": (3, 0), "s[0]": (3, 0), "scale": (4, 0)},
    "td_norm_backward, wide half": {"grad_y": (3, 0), "s[0]": (4, 0), "scale": (4, 0)},
    "gated_add": {"gate": (2, 0)},
    "gated_add_": {"x": (1, 1), "gate": (2, 0)},
    "gated_add_backward": {"gate": (8, 0)},  # by every warp of a block
    "qk_norm_rope": ROPE,
    "qk_norm_rope_": ROPE | {"q": (1, 1), "k": (1, 1)},
    "qk_norm_rope_backward": ROPE,
    "psi_backward": {"x0": (0, 0), "x1": (0, 0)},  # only their dtypes matter
    "step_": {"x": (1, 1), "low": (0, 1)},
    "step_, without statistics": {"x": (1, 1)},
    "tdp_out": {"out": (0, 1)},
    "tdp_group_out": {"out": (0, 1)},
}


def cuda_calls(n: int, row: int) -> dict[str, tuple]:
    return {name: call for name, call in dense_calls(n, row).items() if name.split(",")[0] in KERNELS["cuda"]}


@pytest.mark.parametrize("name", cuda_calls(64, 64))
def test_the_byte_account(name):
    """Every byte of a tensor of a size is read once and written once; ACCOUNT has the exceptions."""
    arguments = dense_calls(2200, ROW)[name]
    op = getattr(torch.ops.fmkernels, name.split(",")[0])
    with host_cuda.counting(), torch.no_grad():
        results = op(*arguments)
    expected, seen = ACCOUNT.get(name, {}), 0
    for where, tensor, made in large_tensors(name, arguments, results):
        read, written = (0, 1) if made else expected.get(where, (1, 0))
        assert host_cuda.traffic(tensor) == (read, read, written, written), where
        seen += 1
    assert seen or name == "velocity_summary"


def test_launches_of_every_op():
    """Kernels as they are started, torch's own by dispatch."""
    counted, cleared = {}, set()
    for name, arguments in cuda_calls(2200, ROW).items():
        op, before, memsets = name.split(",")[0], host_cuda.launches(), host_cuda.memsets()
        with torch.no_grad(), Launches() as by_torch:
            getattr(torch.ops.fmkernels, op)(*arguments)
        by_torch.counts.pop(op)
        assert by_torch.counts.total() == 0, f"{name}: {by_torch.counts}"
        counted[op] = max(counted.get(op, 0), host_cuda.launches() - before)
        cleared |= {op} if host_cuda.memsets() > memsets else set()
    assert counted == CUDA_LAUNCHES
    assert counted.keys() == set(KERNELS["cuda"])
    # A counter of blocks is cleared first; ops on samples of up to 16384 elements need none.
    assert cleared == {"tdp_backward", "tdp_group_backward", "reparameterize"}


@pytest.mark.parametrize(("n", "memsets"), [(16384, 0), (16385, 1)])
def test_a_step_of_latents_is_one_launch_and_nothing_else(n, memsets):
    x, v, low, stats = r(2, n), r(2, n), r(2, n).bfloat16(), r(2, 5)
    expected = (x + 0.5 * v).double()
    before = host_cuda.launches(), host_cuda.memsets()
    fk.euler_step_(x, v, 0.5, low=low, stats=stats)
    assert (host_cuda.launches() - before[0], host_cuda.memsets() - before[1]) == (1, memsets)
    assert_close(x.double(), expected)
    assert_close(stats[:, 2].double(), (0.5 * v).double().square().mean(1).sqrt())


def bits(case, inputs):
    return case.outputs(inputs) + (case.gradients(inputs) if case.grads else [])


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize(
    ("n", "dtype"), [(5, torch.float32), (1025, torch.bfloat16), (3096, torch.float32)], ids=["small", "odd", "large"]
)
def test_any_order_and_any_grid_give_the_same_bits(case, n, dtype):
    inputs = case.inputs(n, dtype)
    expected = bits(case, inputs)
    for seed, most_blocks in ((1, 0), (2, 3), (0, 1)):
        with host_cuda.ordered(seed, most_blocks):
            got = bits(case, inputs)
        for a, b in zip(got, expected, strict=True):
            assert torch.equal(a, b), f"order {seed}, at most {most_blocks or 'all'} blocks"


@pytest.mark.parametrize(("batch", "rows"), [(2, 1), (2, 1500), (1, 4300), (3, 37)])
def test_a_backward_of_many_rows_in_any_order(batch, rows):
    """Runs of several rows, added up in a second launch."""
    x, scale = r(batch, rows, 24).requires_grad_(), r(24).requires_grad_()

    def gradients():
        return torch.autograd.grad(fk.td_rms_norm(x, scale).square().sum(), (x, scale))

    expected = gradients()
    with host_cuda.ordered(3, 5):
        got = gradients()
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    with fk.use_backend("eager"):
        oracle = torch.autograd.grad(fk.td_rms_norm(x.double(), scale.double()).square().sum(), (x, scale))
    for a, b in zip(got, oracle, strict=True):
        assert_close(a, b.float(), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("width", [1016, 1024, 1028, 1032, 4104])
@pytest.mark.parametrize(
    ("dtype", "parameters"),
    [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32), (torch.float32, torch.float32)],
    ids=["bf16", "fp16 with fp32 parameters", "fp32"],
)
@pytest.mark.parametrize("scales", [1, 3])
def test_norms_where_a_row_passes_from_a_warp_to_a_block(width, dtype, parameters, scales):
    x, residual = (r(3, 2, width, dtype=dtype).requires_grad_() for _ in range(2))
    scale, offset = (r(scales, width, dtype=parameters).requires_grad_() for _ in range(2))
    leaves = (x, residual, scale, offset)

    def results(leaves):
        x, residual, scale, offset = leaves
        y, sum_ = fk.td_layer_norm(x, scale, offset, residual=residual)
        return [y, sum_, *torch.autograd.grad((y.float() * 0.5 + sum_.float()).square().sum(), leaves)]

    got = results(leaves)
    with fk.use_backend("eager"):
        expected = results([leaf.detach().double().requires_grad_() for leaf in leaves])
    tolerance = 1e-5 if dtype == torch.float32 else 8e-3 if dtype == torch.float16 else 5e-2
    for a, b in zip(got, expected, strict=True):
        assert_close(a.double(), b, atol=tolerance * max(1.0, b.abs().max().item()), rtol=tolerance)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_addresses_that_are_not_aligned(case):
    """Views that begin in the middle of 16 bytes are read element by element, to the same bits."""
    inputs = case.inputs(40, torch.bfloat16)

    def shifted(x):
        room = torch.empty(x.numel() + 1, dtype=x.dtype)
        return room[1:].copy_(x.flatten()).view(x.shape)

    for a, b in zip(bits(case, [shifted(x) for x in inputs]), bits(case, inputs), strict=True):
        assert torch.equal(a, b)


def test_a_group_of_every_mixture_is_one_launch():
    dtypes = [torch.float32, torch.bfloat16, torch.float16]
    params = [tuple(r(40, dtype=dtypes[(i * j + i) % 3]) for j in range(4)) for i in range(5)] + [tuple(r(4, 0))]
    times, before = torch.randn(3), host_cuda.launches()
    with torch.no_grad():
        got = fk.tdp_group(params, times)
    assert host_cuda.launches() == before + 1
    for out, four in zip(got, params, strict=True):
        assert_close(out, fk.tdp(*(p.float() for p in four), times, weight_offset=1.0))


@pytest.mark.parametrize(("count", "launches"), [(1, 1), (192, 1), (193, 1), (640, 1), (641, 2)])
def test_groups_of_any_length(count, launches):
    """The list of parameters travels with the launch: 640 of them at most, then another."""
    leaves = [[p.requires_grad_() for p in r(4, 1 + i % 3)] for i in range(count)]
    times = torch.randn(2, requires_grad=True)
    flat = [p for four in leaves for p in four]

    def gradients():
        return torch.autograd.grad(sum(out.square().sum() for out in fk.tdp_group(leaves, times)), [*flat, times])

    before = host_cuda.launches()
    with torch.no_grad():
        fk.tdp_group(leaves, times)
    assert host_cuda.launches() == before + launches
    with fk.use_backend("eager"):
        expected = gradients()
    for a, b in zip(gradients(), expected, strict=True):
        assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_lists_of_any_length_up_to_the_launch():
    x = [r(2, 1 + i % 5) for i in range(30)]
    scale = r(sum(part.shape[1] for part in x))
    assert_close(fk.td_layer_norm(x, scale, scale), fk.td_layer_norm(torch.cat(x, 1), scale, scale))
    with pytest.raises(RuntimeError, match="at most 256 tensors"):
        fk.td_layer_norm([r(1, 1)] * 257, r(257), r(257))


def test_wide_rows_with_a_scale_of_each_sample():
    """A separate kernel computes the gradients of scale and offset; many rows of one scale are cut into runs."""
    for shape, scales in (((2, 3, 6300), 2), ((1, 150, 6304), 1)):
        leaves = [y.requires_grad_() for y in (r(*shape), r(scales, shape[2]), r(scales, shape[2]))]
        grads = torch.autograd.grad(fk.td_layer_norm(*leaves).square().sum(), leaves)
        wide = [y.detach().double().requires_grad_() for y in leaves]
        with fk.use_backend("eager"):
            expected = torch.autograd.grad(fk.td_layer_norm(*wide).square().sum(), wide)
        for a, b in zip(grads, expected, strict=True):
            assert_close(a, b.float(), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("value", [0.0, 1e20, -1e20])
@pytest.mark.parametrize("width", [1, 8, 1000])
def test_constant_rows_are_centred_to_nothing(value, width):
    y = fk.td_layer_norm(torch.full((2, width), value), torch.ones(width), torch.zeros(width))
    assert y.eq(0).all()


@pytest.mark.parametrize("far", [1e4, 1e6])
def test_rows_far_from_zero(far):
    """As good as the mean that is subtracted: it is rounded to x's own precision."""
    x, one, zero = r(2, 1000) + far, torch.ones(1000), torch.zeros(1000)
    with fk.use_backend("eager"):
        expected = fk.td_layer_norm(x.double(), one.double(), zero.double())
    assert (fk.td_layer_norm(x, one, zero) - expected).abs().max() < 2 * far * 2**-24


def test_an_infinite_time_stays_within_its_parameter():
    """What is beyond the end of a parameter is 0, and 0 * infinity would be NaN in the gradient to times."""
    leaves = [p.requires_grad_() for p in r(4, 13)]
    times = torch.tensor([float("inf"), 1.0], requires_grad=True)

    def gradients():
        return torch.autograd.grad(fk.tdp(*leaves, times, weight_offset=1.0).sum(), [*leaves, times])

    with fk.use_backend("eager"):
        expected = gradients()
    for a, b in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize("width", [ROW, ROW + 1])
@pytest.mark.parametrize("norm", [fk.td_rms_norm, fk.td_layer_norm])
def test_rows_at_the_edge_of_shared_memory(norm, width):
    x, scale, offset = (r(2, width) + 100).requires_grad_(), r(width).requires_grad_(), r(width).requires_grad_()
    got = norm(x, scale, offset)
    grads = torch.autograd.grad(got.square().sum(), (x, scale, offset))
    wide = [y.detach().double().requires_grad_() for y in (x, scale, offset)]
    with fk.use_backend("eager"):
        expected = norm(*wide)
        oracle = torch.autograd.grad(expected.square().sum(), wide)
    assert_close(got, expected.float(), atol=2e-4, rtol=2e-4)  # x itself is rounded to 1e-5 of its spread
    for a, b in zip(grads, oracle, strict=True):
        assert_close(a, b.float(), atol=2e-3, rtol=2e-3)


def test_every_case_is_served_by_the_cuda_kernels():
    """None of the tables was computed by anything else."""
    for case in CASES:
        before = host_cuda.launches()
        case.outputs(case.inputs(5, torch.float32))
        assert host_cuda.launches() > before, case.name
