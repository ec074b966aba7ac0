"""The norms: golden vectors, tiny inputs, lists that are never joined."""

import pytest
import torch
import torch.nn.functional as F
from support.cases import BACKENDS, assert_close

import fmkernels as fk


def time_parameter(tensors, name, log_snr):
    """What CrossFlow's TimeDependentParameter gives: tdp with nodecay_weight + 1 and log_snr / 4."""
    four = [tensors[f"{name}.{k}"] for k in ("param0", "param1", "nodecay_weight", "nodecay_bias")]
    return fk.tdp(*four, log_snr / 4, weight_offset=1.0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", ["tdrms", "tdrms_bias", "tdln"])
def test_golden(golden, name, rows, backend):
    tag = f"{name}_t{rows}."
    g = {k.removeprefix(tag): v for k, v in golden("td_norms").items() if k.startswith(tag)}
    params = {k.removeprefix("param."): v.clone().requires_grad_() for k, v in g.items() if k.startswith("param.")}
    x = g["x"].clone().requires_grad_()
    with fk.use_backend(backend):
        if name == "tdln":
            weight, bias = (time_parameter(params, k, g["log_snr"]) for k in ("weight", "bias"))
            y = fk.td_layer_norm(x, weight, bias)
        else:
            scale = time_parameter(params, "scale", g["log_snr"])
            offset = time_parameter(params, "offset", g["log_snr"]) if name == "tdrms_bias" else None
            y = fk.td_rms_norm(x, scale, offset)
        grads = torch.autograd.grad(y, [x, *params.values()], g["grad_y"])
    assert_close(y, g["y"])
    assert_close(grads[0], g["grad_x"], atol=1e-5, rtol=1e-4)
    for key, grad in zip(params, grads[1:], strict=True):
        assert_close(grad, g[f"grad_param.{key}"], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("name", "size"), [("tdrms", "1e-7"), ("tdrms", "1e-9"), ("tdln", "1e-3")])
def test_golden_edges(golden, name, size):
    g = golden("edges")
    params = {k.removeprefix(f"{name}.param."): v for k, v in g.items() if k.startswith(f"{name}.param.")}
    x, log_snr, expected = (g[f"{name}.{size}.{k}"] for k in ("x", "log_snr", "y"))
    if name == "tdln":
        y = fk.td_layer_norm(x, *(time_parameter(params, k, log_snr) for k in ("weight", "bias")))
    else:
        y = fk.td_rms_norm(x, time_parameter(params, "scale", log_snr))
    assert_close(y, expected, atol=1e-7, rtol=1e-4)


def test_eps_stands_outside_the_root():
    x = torch.full((1, 4), 1e-8)
    assert_close(fk.td_rms_norm(x, torch.ones(4)), torch.full((1, 4), 0.5))
    assert torch.equal(fk.td_rms_norm(torch.zeros(2, 4), torch.ones(4)), torch.zeros(2, 4))


def test_gradient_at_zero_is_finite_and_eagers():
    x = torch.zeros(2, 8, requires_grad=True)
    scale = torch.randn(8)
    (grad,) = torch.autograd.grad(fk.td_rms_norm(x, scale).sum(), x)
    with fk.use_backend("eager"):
        (expected,) = torch.autograd.grad(fk.td_rms_norm(x, scale).sum(), x)
    assert_close(grad, expected)


@pytest.mark.parametrize("shift", [0.0, 1e3, 1e5])
def test_layer_norm_far_from_zero(shift):
    x = torch.randn(4, 3000, dtype=torch.float64) + shift
    x32 = x.float()
    got = fk.td_layer_norm(x32, torch.ones(3000), torch.zeros(3000))
    expected = F.layer_norm(x32.double(), (3000,))
    rounding = shift * 2**-24  # of the mean itself, which is kept in float32
    assert (got - expected).abs().max() <= 2e-6 + 1.1 * rounding


def test_list_of_66_skips():
    parts = [torch.randn(2, 5, 1024) for _ in range(66)]
    weight, bias = torch.randn(2, 67584), torch.randn(2, 67584)
    expected = F.layer_norm(torch.cat(parts, -1), (67584,)) * weight[:, None] + bias[:, None]
    assert_close(fk.td_layer_norm(parts, weight, bias), expected, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("norm", [fk.td_rms_norm, fk.td_layer_norm])
def test_out_is_the_result_in_memory_of_ones_own(norm, dtype, backend):
    x, residual = torch.randn(2, 3, 5, 70).to(dtype)
    scale, offset = torch.randn(2, 3, 70)
    with fk.use_backend(backend):
        y, summed = norm(x, scale, offset, residual=residual)
        out = torch.full((3, 5, 71), 9.0, dtype=dtype)[..., :70], torch.empty_like(x)  # one of them not dense
        versions = [o._version for o in out]
        assert norm(x, scale, offset, residual=residual, out=out) is out
        single, expected = torch.empty_like(x), norm(x, scale, offset)
        norm(x, scale, offset, out=single)
    assert torch.equal(out[0], y)
    assert torch.equal(out[1], summed)
    assert torch.equal(single, expected)
    assert all(o._version > v for o, v in zip(out, versions, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_rows_of_scale_far_apart(dtype):
    """The values of a group are columns of one tensor: read where they are, they give what a copy gives."""
    table = torch.randn(3, 200).to(dtype)
    scale, offset = table[:, 7:57], table[:, 100:150]
    x = torch.randn(3, 4, 50, dtype=torch.float64 if dtype == torch.float64 else torch.float32).requires_grad_()
    results = []
    for s, o in ((scale, offset), (scale.contiguous(), offset.contiguous())):
        y = fk.td_layer_norm(x, s, o)
        results.append((y, *torch.autograd.grad(y.square().sum(), x)))
    for far, near in zip(*results, strict=True):
        assert torch.equal(far, near)
    one = fk.td_rms_norm(x, scale[:1].expand(3, 50))
    assert torch.equal(one, fk.td_rms_norm(x, scale[0]))


def test_residual_of_another_dtype():
    x, residual, scale = torch.randn(2, 3, 40).bfloat16(), torch.randn(2, 3, 40), torch.randn(40)
    y, summed = fk.td_rms_norm(x, scale, residual=residual)
    assert y.dtype == summed.dtype == torch.float32
    assert_close(summed, x.float() + residual)
    assert_close(y, fk.td_rms_norm(x.float() + residual, scale))
    x.requires_grad_(), residual.requires_grad_()
    grads = torch.autograd.grad(fk.td_rms_norm(x, scale, residual=residual)[0].sum(), [x, residual])
    assert [g.dtype for g in grads] == [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("shapes", [((8,), (1, 8)), ((8,), (2, 8)), ((2, 8), (8,)), ((1, 8), (2, 8))])
def test_scale_and_offset_may_have_other_rows(shapes):
    x = torch.randn(2, 3, 8)
    leaves = [torch.randn(s, requires_grad=True) for s in shapes]
    wide = [p.expand(2, 8).unsqueeze(1) for p in leaves]
    expected = x / (x.norm(dim=-1, keepdim=True) * 8**-0.5 + 1e-8) * wide[0] + wide[1]
    got = fk.td_rms_norm(x, *leaves)
    assert_close(got, expected)
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), leaves) for y in (got, expected)), strict=True):
        assert_close(a, b, atol=1e-4)


def test_offset_gradient_keeps_its_own_precision():
    x, scale, offset = torch.randn(2, 500, 8), torch.randn(8).bfloat16(), torch.randn(8, requires_grad=True)
    seed = torch.randn(2, 500, 8)
    (grad,) = torch.autograd.grad(fk.td_rms_norm(x, scale, offset), offset, seed)
    assert_close(grad, seed.sum((0, 1)), atol=1e-4)


@pytest.mark.kernels("cpu")
@pytest.mark.parametrize(
    ("mean", "std", "bound"), [(1.0, 1e-6, 0.06), (1e4, 1e-2, 0.06), (0.0, 1e-20, 1e-6), (1e18, 1e17, 1e-5)]
)
def test_rows_at_the_limits_of_float32(mean, std, bound):
    """The rounding of the mean, 6e-8 of it, is all that a nearly constant row loses beside float64."""
    torch.manual_seed(0)
    h, one, zero = (mean + std * torch.randn(2, 256, dtype=torch.float64)).float(), torch.ones(256), torch.zeros(256)
    for norm, rest, most in ((fk.td_layer_norm, (one, zero), bound), (fk.td_rms_norm, (one,), 1e-6)):
        exact = norm(h.double(), *(q.double() for q in rest), eps=1e-30)
        assert (norm(h, *rest, eps=1e-30) - exact).abs().max() <= most * exact.abs().max()


@pytest.mark.kernels("cpu")
def test_beyond_the_root_of_the_largest_float_squares_overflow():
    """As documented: the RMS norm is 0. In float64, it is not."""
    h, one = torch.full((2, 256), 1e20), torch.ones(256)
    assert (fk.td_rms_norm(h, one) == 0).all()
    assert (fk.td_rms_norm(h.double(), one) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("eps_outside", [False, True])
def test_norm_modulate_is_the_norm_of_torch_and_its_modulation(kind, eps_outside):
    x, weight, bias = torch.randn(2, 5, 24), torch.randn(24), torch.randn(24)
    scale, shift = torch.randn(2, 24), torch.randn(2, 1, 24)
    got = fk.norm_modulate(x, scale, shift, weight, bias, kind=kind, eps=0.3, eps_outside=eps_outside)
    wide = x.double()
    power = wide.square().mean(-1, keepdim=True) if kind == "rms" else wide.var(-1, correction=0, keepdim=True)
    centered = wide if kind == "rms" else wide - wide.mean(-1, keepdim=True)
    normed = centered / (power.sqrt() + 0.3 if eps_outside else (power + 0.3).sqrt())
    expected = (normed * weight + bias) * (1 + scale[:, None]) + shift
    assert_close(got, expected.float(), atol=1e-5)


@pytest.mark.parametrize(
    ("x", "rows"),
    [
        ((2, 3, 4, 8), [(8,), (2, 8), (2, 1, 1, 8), (1, 1, 1, 8), (2, 3, 1, 8), (2, 3, 4, 8), (1, 3, 1, 8)]),
        ((5, 8), [(8,), (5, 8), (1, 8)]),
        ((8,), [(8,)]),
    ],
)
def test_rows_of_every_kind_broadcast_as_in_torch(x, rows):
    """As one parameter, and beside one of another kind; gradients have the parameters' shapes."""
    x, other = torch.randn(x), torch.randn(8)
    for shape in rows:
        row = torch.randn(shape, requires_grad=True)
        broadcast = row if len(shape) != 2 or x.dim() == 2 else row[:, None, None]
        normed = F.layer_norm(x, (8,), eps=1e-6)
        assert_close(fk.norm_modulate(x, row), normed * (1 + broadcast), atol=1e-5)
        assert_close(fk.norm_modulate(x, other, row), normed * (1 + other) + broadcast, atol=1e-5)
        assert_close(fk.gated_add(x, row, normed), x + broadcast * normed)
        y, stream = fk.norm_modulate(x, residual=normed, gate=row)
        assert_close(stream, normed + broadcast * x)
        assert_close(y, F.layer_norm(stream, (8,), eps=1e-6), atol=1e-5)
        weights = torch.randn_like(x)
        (got,) = torch.autograd.grad(fk.norm_modulate(x, row), row, weights)
        (expected,) = torch.autograd.grad(normed * (1 + broadcast), row, weights)
        assert_close(got, expected, atol=1e-5)


def test_the_gated_stream_has_the_same_bits_as_the_gated_sum():
    x, residual, gate = (torch.randn(3, 7, 40).bfloat16(), torch.randn(3, 7, 40).bfloat16(), torch.randn(3, 40))
    _, stream = fk.norm_modulate(x, residual=residual, gate=gate)
    assert torch.equal(stream, fk.gated_add(residual, gate, x))


def test_a_norm_reads_the_unrounded_stream():
    """Closer to float64 than a norm of the rounded stream."""
    x, residual, gate = (torch.randn(4, 64, 256).bfloat16() for _ in range(3))
    gate = gate[:, 0]
    exact, _ = fk.norm_modulate(*(v.double() for v in (x,)), residual=residual.double(), gate=gate.double())
    y, stream = fk.norm_modulate(x, residual=residual, gate=gate)
    error, of_rounded = ((v.double() - exact).square().mean() for v in (y, fk.norm_modulate(stream)))
    assert error < of_rounded
