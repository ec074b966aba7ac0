"""The gates: tails, halves, infinities, work in place."""

import pytest
import torch
import torch.nn.functional as F
from support.cases import assert_close

import fmkernels as fk

ACTIVATIONS = {"gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu}


def test_gelu_mul_keeps_its_tail():
    a = torch.linspace(-12, 12, 40001)
    got = fk.gelu_mul(a, torch.ones_like(a)).double()
    exact = a.double() * 0.5 * torch.erfc(-a.double() / 2**0.5)
    assert_close(got, exact, atol=1e-35, rtol=2e-5)  # relative accuracy, where 1 + erf would have lost it
    inside = a.abs() < 4
    assert ((got - exact).abs()[inside] / exact.abs()[inside].clamp_min(1e-30)).max() < 2e-6


def test_gelu_mul_of_halves_is_gelu_mul():
    ab = torch.randn(3, 5, 2 * 77)
    a, b = ab.chunk(2, dim=-1)
    assert torch.equal(fk.gelu_mul(ab), fk.gelu_mul(a.contiguous(), b.contiguous()))
    assert torch.equal(fk.gelu_mul(ab), fk.gelu_mul(a, b))


@pytest.mark.kernels("cpu")
@pytest.mark.parametrize("n", [1, 16])
def test_gelu_of_infinity_is_that_of_float64(n):
    """torch's own differs between one element and a vector: inf and NaN, 3e38 and inf."""
    gates = torch.tensor([float("inf"), float("-inf"), 3e38, -3e38, 1e20]).repeat_interleave(n).view(5, n)
    y = torch.stack([fk.gelu_mul(gate, torch.ones(n)) for gate in gates])
    expected = torch.nn.functional.gelu(gates.double()).float()
    torch.testing.assert_close(y, expected, equal_nan=True)


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("gate_first", [True, False])
def test_either_half_gets_the_activation(act, gate_first):
    both = torch.randn(3, 5, 2 * 41)
    first, second = both.chunk(2, dim=-1)
    gate, up = (first, second) if gate_first else (second, first)
    expected = (ACTIVATIONS[act](gate.double()) * up.double()).float()
    assert_close(fk.gate_mul(both, act=act, gate_first=gate_first), expected)
    assert torch.equal(
        fk.gate_mul(both, act=act, gate_first=gate_first), fk.gate_mul(first, second, act, gate_first=gate_first)
    )


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activations_and_their_slopes_are_accurate_in_both_tails(act):
    x = torch.linspace(-30, 30, 60001, requires_grad=True)
    y = fk.gate_mul(x, torch.ones_like(x), act)
    (slope,) = torch.autograd.grad(y.sum(), x)
    exact = x.detach().double().requires_grad_()
    values = ACTIVATIONS[act](exact)
    (slopes,) = torch.autograd.grad(values.sum(), exact)
    assert_close(y.double(), values, atol=2e-7, rtol=1e-6)
    assert_close(slope.double(), slopes, atol=5e-7, rtol=2e-6)


@pytest.mark.parametrize("act", ["gelu_tanh", "silu"])
def test_large_gates_pass_and_very_negative_ones_close(act):
    gates = torch.tensor([float("inf"), 3e38, 1e20, -1e20, -3e38])
    assert fk.gate_mul(gates, torch.ones(5), act).tolist() == [*gates[:3].tolist(), 0, 0]


def test_gated_add_in_place_writes_x_and_returns_it():
    gate, y = torch.randn(2, 8), torch.randn(2, 3, 8)
    for x in (torch.randn(2, 3, 8), torch.randn(3, 2, 8).transpose(0, 1), torch.randn(2, 3, 16)[..., ::2]):
        expected = fk.gated_add(x, gate, y)
        assert fk.gated_add(x, gate, y, inplace=True) is x
        assert torch.equal(x, expected)
        per_token = fk.gated_add(x, y, y)  # a gate for each token
        assert torch.equal(fk.gated_add(x, y.clone(), y, inplace=True), per_token)


def test_gated_add_in_place_keeps_the_dtype_of_x():
    x, gate, y = torch.randn(2, 3, 8).bfloat16(), torch.randn(2, 8), torch.randn(2, 3, 8)
    expected = fk.gated_add(x, gate, y)
    assert expected.dtype == torch.float32
    assert torch.equal(fk.gated_add(x, gate, y, inplace=True), expected.bfloat16())


def test_work_in_place_is_seen_by_autograd():
    x, gate, y = torch.randn(2, 3, 8), torch.randn(2, 8), torch.randn(2, 3, 8)
    leaf = torch.randn(2, 3, 8, requires_grad=True)
    loss = (leaf * x).sum()
    with torch.no_grad():
        fk.gated_add(x, gate, y, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
