"""Queries and keys: the variants of diffusers, layouts, columns of one product, work in place."""

import pytest
import torch
import torch.nn.functional as F
from support.cases import assert_close

import fmkernels as fk


def tables(tokens, width, interleaved, batch=None):
    """(freqs, cos, sin): complex numbers of length 1 as models have them, and the tables of qk_norm_rope."""
    angles = torch.randn(*([batch] if batch else []), tokens, width // 2)
    freqs = torch.polar(torch.ones_like(angles), angles)

    def full(x):
        return x.repeat_interleave(2, -1) if interleaved else torch.cat([x, x], dim=-1)

    return freqs, full(freqs.real), full(freqs.imag)


def rotated(x, freqs, interleaved):
    """x of (B, S, H, D), its first columns as complex numbers times freqs, the others as they are."""
    width = 2 * freqs.shape[-1]
    x, rest = x[..., :width], x[..., width:]
    pairs = x.unflatten(-1, (-1, 2)) if interleaved else x.unflatten(-1, (2, -1)).transpose(-1, -2)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * freqs[..., None, :])
    turned = turned.flatten(-2) if interleaved else turned.transpose(-1, -2).flatten(-2)
    return torch.cat([turned, rest], dim=-1)


@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "split"])
@pytest.mark.parametrize("width", [96, 64, 10, 2], ids=["all", "part", "odd part", "a pair"])
@pytest.mark.parametrize("batch", [None, 2], ids=["shared", "by sample"])
@pytest.mark.parametrize("sequence_dim", [1, 2])
def test_every_kind_is_a_complex_product(interleaved, width, batch, sequence_dim):
    q, k, weight = torch.randn(2, 5, 3, 96), torch.randn(2, 5, 1, 96), torch.randn(96)
    freqs, cos, sin = tables(5, width, interleaved, batch)
    leaves = [x.requires_grad_() for x in (q, k, weight)]
    inputs = (q, k) if sequence_dim == 1 else (q.transpose(1, 2), k.transpose(1, 2))
    settings = {"eps": 0.1, "interleaved": interleaved, "sequence_dim": sequence_dim}
    got = fk.qk_norm_rope(*inputs, weight, None, cos, sin, **settings)
    got = [y if sequence_dim == 1 else y.transpose(1, 2) for y in got]
    expected = [rotated(F.rms_norm(x, (96,), w, 0.1), freqs, interleaved) for x, w in ((q, weight), (k, None))]
    weights = [torch.randn_like(y) for y in got]
    for a, b in zip(got, expected, strict=True):
        assert_close(a, b, atol=5e-6)
    for a, b in zip(
        torch.autograd.grad(got, leaves, weights), torch.autograd.grad(expected, leaves, weights), strict=True
    ):
        assert_close(a, b, atol=2e-5, rtol=1e-4)


def test_axes_are_joined_in_the_tables():
    """Two axes of a 3 by 4 grid, each with half of the columns."""
    x = torch.randn(1, 12, 2, 16)
    rows, columns = torch.polar(torch.ones(3, 4), torch.randn(3, 4)), torch.polar(torch.ones(4, 4), torch.randn(4, 4))
    freqs = torch.cat([rows[:, None].expand(3, 4, 4), columns[None].expand(3, 4, 4)], dim=-1).reshape(12, 8)
    cos, sin = (part.repeat_interleave(2, -1) for part in (freqs.real, freqs.imag))
    got = fk.qk_norm_rope(x, None, None, None, cos, sin, norm=False)
    halves = [rotated(x[..., 8 * i : 8 * i + 8], freqs[:, 4 * i : 4 * i + 4], True) for i in range(2)]
    assert_close(got, torch.cat(halves, dim=-1))


def test_one_norm_over_all_heads():
    q, weight = torch.randn(2, 5, 3, 16), torch.randn(48)
    freqs, cos, sin = tables(5, 16, True)
    expected = rotated(F.rms_norm(q.flatten(2), (48,), weight, 1e-6).unflatten(-1, (3, 16)), freqs, True)
    assert_close(fk.qk_norm_rope(q, None, weight, None, cos, sin), expected, atol=2e-6)
    swapped = fk.qk_norm_rope(q.transpose(1, 2).contiguous(), None, weight, None, cos, sin, sequence_dim=2)
    assert_close(swapped.transpose(1, 2), expected, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_columns_of_one_product_are_changed_in_place(dtype):
    """q and k are views of the product that has v too; v and the tokens outside keep their bits."""
    product = torch.randn(2, 7, 3, 4, 16).to(dtype)
    _, cos, sin = tables(5, 16, False)
    before = product.clone()
    q, k, _ = product[:, 1:6].unbind(2)
    expected = fk.qk_norm_rope(q, k, None, None, cos, sin, interleaved=False)
    got = fk.qk_norm_rope(q, k, None, None, cos, sin, interleaved=False, inplace=True)
    assert got[0] is q
    assert got[1] is k
    assert torch.equal(q, expected[0])
    assert torch.equal(k, expected[1])
    untouched = before.clone()
    untouched[:, 1:6, :2] = product[:, 1:6, :2]
    assert torch.equal(product, untouched)


def test_rows_that_are_not_contiguous_are_changed_in_place():
    wide = torch.randn(2, 5, 3, 32)
    q = wide[..., ::2]
    _, cos, sin = tables(5, 16, True)
    expected = fk.qk_norm_rope(q, None, None, None, cos, sin)
    assert fk.qk_norm_rope(q, None, None, None, cos, sin, inplace=True) is q
    assert torch.equal(q, expected)


def test_a_rotation_keeps_the_length_and_its_gradient_turns_back():
    q = torch.randn(1, 6, 2, 32, requires_grad=True)
    _, cos, sin = tables(6, 32, True)
    y = fk.qk_norm_rope(q, None, None, None, cos, sin, norm=False)
    assert_close(y.square().sum(-1), q.square().sum(-1), atol=1e-4)
    (grad,) = torch.autograd.grad(y, q, y.detach())
    assert_close(grad, q.detach(), atol=1e-5)


def test_only_one_of_both_gets_a_gradient():
    q, k = torch.randn(1, 4, 2, 8), torch.randn(1, 4, 2, 8, requires_grad=True)
    weight = torch.ones(8, requires_grad=True)
    _, cos, sin = tables(4, 8, True)
    _, new_k = fk.qk_norm_rope(q, k, None, weight, cos, sin)
    to_k, to_weight = torch.autograd.grad(new_k.sum(), (k, weight))
    assert to_k.shape == k.shape
    assert to_weight.shape == weight.shape
    (to_k,) = torch.autograd.grad(fk.qk_norm_rope(q, k, None, None, cos, sin)[0].sum(), k, allow_unused=True)
    assert to_k is None or not to_k.any()


def test_one_rounding_is_closer_to_float64_than_three():
    q = torch.randn(2, 64, 4, 64).bfloat16()
    weight = torch.rand(64).bfloat16() + 0.5
    freqs, cos, sin = tables(64, 64, True)
    exact = rotated(F.rms_norm(q.double(), (64,), weight.double(), 1e-6), freqs.to(torch.complex128), True)
    ours = fk.qk_norm_rope(q, None, weight, None, cos, sin)
    plain = rotated(F.rms_norm(q, (64,), weight, 1e-6).float(), freqs, True).bfloat16()
    assert (ours.double() - exact).square().mean() < (plain.double() - exact).square().mean()
