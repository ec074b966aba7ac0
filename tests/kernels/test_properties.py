"""Properties that hold for whatever hypothesis thinks of."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fmkernels as fk

few = settings(max_examples=60, deadline=None)
sizes = st.integers(0, 3000)
seeds = st.integers(0, 2**31)
dtypes = st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16])


def randn(seed, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@few
@given(sizes, st.integers(0, 5), seeds, dtypes)
def test_tdp_lies_between_its_ends(n, steps, seed, dtype):
    p0, p1, w, b = randn(seed, 4, n, dtype=dtype)
    out = fk.tdp(p0, p1, w, b, randn(seed + 1, steps) * 10)
    slack = 2 * torch.finfo(dtype).eps * torch.maximum(p0.abs(), p1.abs())
    assert (out >= torch.minimum(p0, p1) - slack).all()
    assert (out <= torch.maximum(p0, p1) + slack).all()


@few
@given(st.lists(st.integers(0, 400), min_size=1, max_size=12), st.integers(0, 4), seeds)
def test_a_group_is_its_parameters(widths, steps, seed):
    params = [tuple(randn(seed + i, 4, n)) for i, n in enumerate(widths)]
    times = randn(seed, steps)
    for out, four in zip(fk.tdp_group(params, times), params, strict=True):
        assert torch.equal(out, fk.tdp(*four, times, weight_offset=1.0))


@few
@given(st.integers(1, 3000), st.integers(1, 4), seeds)
def test_rms_norm_has_rms_one(n, rows, seed):
    y = fk.td_rms_norm(randn(seed, rows, n) + 0.1, torch.ones(n))
    torch.testing.assert_close(y.square().mean(-1), torch.ones(rows), atol=1e-5, rtol=1e-5)


@few
@given(st.lists(st.integers(1, 700), min_size=1, max_size=6), seeds)
def test_a_list_is_normalised_as_its_concatenation(widths, seed):
    parts = [randn(seed + i, 2, 3, n) for i, n in enumerate(widths)]
    weight, bias = randn(seed, 2, 2, sum(widths))
    joined = fk.td_layer_norm(torch.cat(parts, -1), weight, bias)
    torch.testing.assert_close(fk.td_layer_norm(parts, weight, bias), joined, atol=2e-6, rtol=1e-5)


@few
@given(st.integers(1, 5), sizes, seeds, dtypes)
def test_the_path_ends_where_it_should(batch, n, seed, dtype):
    x0, x1 = randn(seed, batch, n, dtype=dtype), randn(seed + 1, batch, n, dtype=dtype)
    assert torch.equal(fk.psi(torch.zeros(batch), x0, x1), x0)
    torch.testing.assert_close(fk.psi(torch.ones(batch), x0, x1, sigma_min=0.0), x1)


@few
@given(st.integers(1, 5), st.integers(1, 2500), seeds, st.floats(-2, 2), st.floats(0.1, 4))
def test_a_step_and_its_opposite_cancel(batch, n, seed, dt, gain):
    x, v = randn(seed, batch, n), randn(seed + 1, batch, n)
    state = x.clone()
    fk.euler_step_(state, v, dt, gain=gain)
    fk.euler_step_(state, v, -dt, gain=gain)
    torch.testing.assert_close(state, x, atol=1e-5, rtol=1e-5)


@few
@given(st.integers(1, 40), st.integers(1, 300), seeds, st.integers(1, 20))
def test_slices_pool_to_the_whole(batch, n, seed, bins):
    v, x0, x1 = randn(seed, 3, batch, n)
    t = torch.rand(batch, generator=torch.Generator().manual_seed(seed))
    stats = fk.velocity_stats(v, x0, x1, t=t)
    slices = stats.by_t(bins)
    assert slices["count"].sum() == batch
    filled = slices["count"] > 0
    cos = (slices["cos"] * slices["count"])[filled].sum() / batch
    torch.testing.assert_close(cos, stats.cos, atol=1e-5, rtol=1e-4)


@few
@given(st.integers(1, 6), st.integers(1, 2500), seeds)
def test_kl_is_never_negative_and_zero_for_the_prior(batch, n, seed):
    mu, logvar = randn(seed, 2, batch, n)
    _, kl, _ = fk.reparameterize(mu, logvar, eps=torch.zeros(batch, n))
    assert (kl >= 0).all()
    zero = torch.zeros(batch, n)
    assert fk.reparameterize(zero, zero, eps=zero)[1].abs().max() < 1e-6 * n
