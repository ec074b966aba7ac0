"""The Triton backend in the interpreter: launches, tables of addresses, mixtures, tuning.

Run by ``make test`` in a process of its own, with the native kernels' tests.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import CASES, TRITON, assert_close
from dense_calls import dense_calls, large_tensors, r

import fmkernels as fk
from fmkernels import backend

pytestmark = pytest.mark.skipif(
    not TRITON, reason="wants FMKERNELS_BACKEND=triton TRITON_INTERPRET=1, as make test does"
)
ROOT = Path(__file__).parent.parent
if TRITON:
    import interpreter

    sys.path.insert(0, str(ROOT / "benchmarks"))
    from count_launches import Launches

    from fmkernels import triton as kernels
    from fmkernels.triton import _launch, norm


# Where a tensor is not read once or written once: (times read, times written). The rest is read or written once.
ACCOUNT = {
    "td_norm": {"scale": (2, 0), "offset": (2, 0)},  # a norm's parameters: by each of the two programs
    "td_norm_out": {"scale": (2, 0), "y": (0, 1)},
    "td_norm_backward": {"scale": (2, 0)},
    "td_norm, a list": {"x[0]": (2, 0), "x[1]": (2, 0), "scale": (2, 0)},
    "td_norm, wide": {"x[0]": (2, 0), "residual": (2, 0), "scale": (2, 0), "offset": (2, 0)},
    "td_norm_backward, wide": {"grad_y": (3, 0), "s[0]": (3, 0), "scale": (4, 0)},
    "td_norm_backward, wide half": {"grad_y": (3, 0), "s[0]": (4, 0), "scale": (4, 0)},
    "psi_backward": {"x0": (0, 0), "x1": (0, 0)},  # only their dtypes matter
    "step_": {"x": (1, 1), "low": (0, 1)},
    "step_, without statistics": {"x": (1, 1)},
    "tdp_out": {"out": (0, 1)},
    "tdp_group_out": {"out": (0, 1)},
}


@pytest.mark.parametrize("name", dense_calls(64, 64) if TRITON else [])
def test_the_byte_account(name):
    """Every tensor of a size is read once and written once; ACCOUNT has the exceptions, ARCHITECTURE the reasons."""
    arguments = dense_calls(2200, norm.ROW)[name]  # some chunks, some blocks, a few rows
    with interpreter.Traffic() as traffic, torch.no_grad():
        results = getattr(kernels, name.split(",")[0])(*arguments)
    expected = ACCOUNT.get(name, {})
    for where, tensor, made in large_tensors(name, arguments, results):
        assert traffic.of(tensor) == ((0, 1) if made else expected.get(where, (1, 0))), where


def test_launches_of_every_op(monkeypatch):
    """Kernels by a stand-in for the launcher, torch's own by dispatch: nothing is run."""
    started = []
    monkeypatch.setattr(_launch, "hooks", [lambda kernel, *_: started.append(kernel) or True])
    counted = {}
    for name, arguments in dense_calls(64, norm.ROW).items():
        op = name.split(",")[0]
        started.clear()
        with torch.no_grad(), Launches() as by_torch:
            getattr(kernels, op)(*arguments)
        assert by_torch.counts.total() == 0, f"{name}: {by_torch.counts}"
        counted[op] = max(counted.get(op, 0), len(started))
    assert counted == kernels.LAUNCHES
    assert counted.keys() == backend.OPS.keys()


def test_the_hook_sees_what_runs(monkeypatch):
    seen = []
    monkeypatch.setattr(_launch, "hooks", [lambda kernel, grid, args, meta: seen.append((kernel.__name__, grid))])
    fk.flow_pair(torch.rand(3), r(3, 2000), r(3, 2000))
    fk.flow_pair(torch.rand(3), r(3, 0), r(3, 0))  # nothing to do, nothing started
    assert seen == [("_path", 6)]


def test_a_group_of_every_mixture_is_one_launch(monkeypatch):
    dtypes = [torch.float32, torch.bfloat16, torch.float16]
    params = [tuple(r(40, dtype=dtypes[(i * j + i) % 3]) for j in range(4)) for i in range(5)] + [tuple(r(4, 0))]
    seen, times = [], torch.randn(3)
    monkeypatch.setattr(_launch, "hooks", [lambda kernel, *_: seen.append(kernel)])
    with torch.no_grad():
        got = fk.tdp_group(params, times)
    assert len(seen) == 1
    for out, four in zip(got, params, strict=True):
        assert_close(out, fk.tdp(*(p.float() for p in four), times, weight_offset=1.0))


def test_a_table_is_made_once_and_follows_the_storage():
    group, times = fk.TdpGroup([tuple(r(4, 33)) for _ in range(7)]), torch.randn(2)
    with torch.no_grad():
        first = fk.tdp_group(group, times, out=group.buffer(2))
        made = _launch._table.cache_info().misses
        group.params[3][1].mul_(2)
        fk.tdp_group(group, times, out=group.buffer(2))
        assert _launch._table.cache_info().misses == made
        group.params[3][1].data = r(33)
        fk.tdp_group(group, times, out=group.buffer(2))
        assert _launch._table.cache_info().misses == made + 1
    assert_close(first[3], fk.tdp(*group.params[3], times, weight_offset=1.0))


def test_capturing_wants_a_table_that_is_there(monkeypatch):
    """A graph would upload it when it runs, and know its address for good; by a stand-in for the device."""
    gpu, capturing = torch.device("cuda", 0), [False]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *args, **kwargs: self)
    monkeypatch.setattr(_launch, "_captured", [])
    known = _launch.table(gpu, list, (1, 2))
    capturing[0] = True
    assert _launch.table(gpu, list, (1, 2)) is known
    assert _launch._captured == [known]
    with pytest.raises(RuntimeError, match="being captured"):
        _launch.table(gpu, list, (3, 4))
    capturing[0] = False
    assert _launch.table(gpu, list, (3, 4)).tolist() == [3, 4]


def test_float64_is_the_eager_ops():
    x = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(fk.gelu_mul, (x, x.detach().clone()))
    state = torch.zeros(2, 5)
    fk.euler_step_(state, torch.ones(2, 5), torch.tensor(0.5, dtype=torch.float64))  # one number is no reason
    assert state.eq(0.5).all()
    one = torch.full((1, 1), 1 / 3, dtype=torch.float64)
    assert fk.psi(torch.zeros(1), one, one, 1.0) == one  # not by way of fp32


def test_direct_calls_are_refused_as_the_compiled_kernels_refuse_them():
    with pytest.raises(ValueError, match="offset must have as many rows as scale"):
        torch.ops.fmkernels.td_norm([r(2, 3, 8)], r(8), r(2, 8), None, 1e-5, False)


def test_an_infinite_parameter_has_finite_gradients():
    four = [torch.full((3,), value, requires_grad=True) for value in (torch.inf, 1.0, -300.0, 0.0)]
    out = fk.tdp(*four, torch.ones(1))
    for a, b in zip(torch.autograd.grad(out.sum(), four[:2]), (0.0, 1.0), strict=True):
        assert a.eq(b).all()


@pytest.mark.parametrize("bins", [1, 20])
def test_slices_of_many_samples(bins):
    t = torch.cat([torch.rand(100), torch.tensor([1.5, torch.nan, 0.0, 1.0])])
    v, x0, x1 = r(104, 6), r(104, 6), r(104, 6)
    got = fk.velocity_stats(v, x0, x1, t=t).by_t(bins)
    with fk.use_backend("eager"):
        expected = fk.velocity_stats(v, x0, x1, t=t).by_t(bins)
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], equal_nan=True)


def test_the_far_ends_of_gelu():
    a, b = torch.tensor([[-1e4, -200.0, -19.0, -13.0, -5.5, 0.0, 5.5, 13.0, 19.0, 1e4]]), r(1, 10)
    a.requires_grad_()
    got = fk.gelu_mul(a, b)
    (grad,) = torch.autograd.grad(got.sum(), a)
    wide = a.detach().double().requires_grad_()
    expected = torch.nn.functional.gelu(wide) * b.double()
    assert_close(got, expected.float(), atol=1e-30)
    assert_close(grad, torch.autograd.grad(expected.sum(), wide)[0].float(), atol=1e-6)


@pytest.mark.parametrize("width", [32, 4100])
def test_rows_of_parameters_far_apart(width):
    """The values of a group are columns of one tensor: their rows are read where they are."""
    x, table = r(3, 4, width), r(3, 3 * width)
    scale, offset = table[:, 10 : 10 + width], r(3, width)
    assert_close(fk.td_rms_norm(x, scale, offset), fk.td_rms_norm(x, scale.contiguous(), offset))
    assert_close(fk.td_rms_norm(x, offset, scale), fk.td_rms_norm(x, offset, scale.contiguous()))
    assert_close(fk.td_layer_norm(x, scale.T.contiguous().T, offset), fk.td_layer_norm(x, scale, offset))


@pytest.mark.parametrize("width", [32, 4100])
def test_a_large_eps_and_outputs_that_are_views(width):
    x, scale, residual = r(2, 3, width), r(width), r(2, 3, width)
    y, total = torch.zeros(2, 3, 2 * width)[..., ::2], torch.zeros(3, 2, width).transpose(0, 1)
    fk.td_rms_norm(x, scale, residual=residual, eps=0.3, out=(y, total))
    leaves = [z.requires_grad_() for z in (x, scale, residual)]
    got = fk.td_rms_norm(x, scale, residual=residual, eps=0.3)
    grads = torch.autograd.grad(got[0].square().sum(), leaves)
    with fk.use_backend("eager"):
        expected = fk.td_rms_norm(x, scale, residual=residual, eps=0.3)
        oracle = torch.autograd.grad(expected[0].square().sum(), leaves)
    for a, b, c in zip((y, total), got, expected, strict=True):
        assert_close(a, c.detach(), atol=1e-5)
        assert torch.equal(a, b)
    for a, b in zip(grads, oracle, strict=True):
        assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_alignment_is_claimed_where_it_is():
    """A wrong claim is a fault on the device that the interpreter does not see."""
    assert _launch.aligned([32, 64], [8, 1024])
    assert not _launch.aligned([32, 68], [8])
    assert not _launch.aligned([32], [8, 12])


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("width", [*norm.ROWS, 100, 3000, norm.ROW + 1] if TRITON else [])
def test_every_row_of_the_norms_table(center, width):
    call = fk.td_layer_norm if center else fk.td_rms_norm
    leaves = [y.requires_grad_() for y in (r(3, 7, width), r(3, width), r(3, width))]
    got = call(*leaves)
    grads = torch.autograd.grad(got.square().sum(), leaves)
    with fk.use_backend("eager"):
        wide = [y.detach().double().requires_grad_() for y in leaves]
        expected = call(*wide)
        oracle = torch.autograd.grad(expected.square().sum(), wide)
    assert_close(got, expected.float())
    for a, b in zip(grads, oracle, strict=True):
        assert_close(a, b.float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("n", [1 << 12, (1 << 12) + 1, (1 << 18) + 3])
def test_every_row_of_the_chunk_table(n):
    v, x0, x1 = r(1, n), r(1, n), r(1, n)
    got = fk.velocity_stats(v, x0, x1).sums
    with fk.use_backend("eager"):
        assert_close(got, fk.velocity_stats(v.double(), x0.double(), x1.double()).sums.float(), rtol=1e-4)


@pytest.mark.parametrize("name", ["velocity_stats", "flow_loss", "euler_step_", "reparameterize", "tdp", "td_rms_norm"])
def test_partial_sums_are_added_in_several_turns(name, monkeypatch):
    """As for samples of millions of elements: two partial sums at a time, all rows of a norm in one run."""
    for family in ("path", "step", "head", "tdp"):
        monkeypatch.setattr(sys.modules[f"fmkernels.triton.{family}"], "PARTS", 2)
    monkeypatch.setattr(norm, "COLUMNS", 16)
    monkeypatch.setattr(norm, "RUNS", 1)
    case = next(case for case in CASES if case.name == name)
    inputs = case.inputs(5003 if "norm" not in name else 130, torch.float32)
    if "norm" in name:
        inputs[0] = r(1, 40, 130)
    with fk.use_backend("eager"):
        oracle = [x.double() for x in inputs]
        expected = case.outputs(oracle) + (case.gradients(oracle) if case.grads else [])
    got = case.outputs(inputs) + (case.gradients(inputs) if case.grads else [])
    for a, b in zip(got, expected, strict=True):
        assert_close(a, b.float(), atol=1e-4, rtol=1e-4)


TUNING = """
import time, torch, triton
from triton.runtime.autotuner import Autotuner
tried = []
def bench(self, *args, config, **meta):
    tried.append(config)
    current = {**meta, **config.all_kwargs()}
    full = {**self.nargs, **current}
    self.pre_hook(full)
    self.fn.run(*args, **current)
    self.post_hook(full, exception=None)
    return [float(len(tried)), 0.0, 0.0]
Autotuner._bench = bench
import fmkernels as fk
x, v = torch.randn(2, 3000), torch.randn(2, 3000)
expected = x + 0.5 * v
fk.euler_step_(x, v, 0.5)
torch.testing.assert_close(x, expected)
torch.testing.assert_close(fk.td_rms_norm(x, v[0]), x / (x.norm(dim=-1, keepdim=True) * 3000**-0.5) * v[0])
print(len(tried))
"""


def test_tuning_on_request_gives_the_same_results():
    """FMKERNELS_AUTOTUNE=1 wraps the kernels in triton.autotune; x is put back between trials."""
    run = subprocess.run(
        [sys.executable, "-c", TUNING], env={**os.environ, "FMKERNELS_AUTOTUNE": "1"}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 6


def test_every_case_is_served_by_triton(monkeypatch):
    """None of the tables above was computed by anything else."""
    for case in CASES:
        seen = []
        monkeypatch.setattr(_launch, "hooks", [lambda kernel, *_, seen=seen: seen.append(kernel)])
        case.outputs(case.inputs(5, torch.float32))
        assert seen, case.name
