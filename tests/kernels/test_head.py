"""reparameterize: z, KL, the clamp's gradient, and the statistics as the debugging notes compute them."""

import pytest
import torch
from support.cases import BACKENDS, assert_close
from torch.distributions import Normal, kl_divergence

import fmkernels as fk


@pytest.mark.parametrize("backend", BACKENDS)
def test_z_kl_and_statistics(backend):
    torch.manual_seed(0)
    mu, logvar, eps = torch.randn(6, 4, 9, 5) * 2, torch.randn(6, 4, 9, 5) - 1, torch.randn(6, 4, 9, 5)
    with fk.use_backend(backend):
        z, kl, stats = fk.reparameterize(mu, logvar, eps=eps)
    std = (0.5 * logvar).exp()
    assert_close(z, mu + std * eps)
    assert_close(kl, kl_divergence(Normal(mu, std), Normal(0.0, 1.0)).flatten(1).sum(1), atol=1e-4)
    expected = {
        "mu/abs_mean": mu.abs().mean(),
        "mu/rms": mu.square().mean().sqrt(),
        "logvar/mean": logvar.mean(),
        "std/mean": std.mean(),
        "std/min": std.min(),
        "std/max": std.max(),
        "z_init/mean": z.mean(),
        "z_init/var": z.var(unbiased=False),
        "z_init/std_per_dim_mean": z.flatten(1).std(dim=0, unbiased=False).mean(),
    }
    assert stats.as_dict() == pytest.approx({k: v.item() for k, v in expected.items()}, rel=1e-4, abs=1e-6)
    assert_close(stats["mu/rms"], expected["mu/rms"])
    assert stats.nonfinite == 0
    assert stats.clamped == 0
    with pytest.raises(KeyError, match="mu/rms"):
        stats["mu/typo"]


def test_variance_far_from_zero():
    mu = torch.full((32, 5000), 1000.0)
    z, _, stats = fk.reparameterize(mu, torch.full_like(mu, -4.0), generator=torch.Generator().manual_seed(0))
    assert_close(stats["z_init/var"].double(), z.double().var(unbiased=False), rtol=2e-3, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_clamp_lets_the_gradient_back_in(backend):
    logvar = torch.tensor([[-9.0, -9.0, 0.0, 9.0, 9.0]], requires_grad=True)
    mu, eps = torch.zeros(1, 5, requires_grad=True), torch.tensor([[1.0, -1.0, 1.0, 1.0, -1.0]])
    with fk.use_backend(backend):
        z, _, stats = fk.reparameterize(mu, logvar, eps=eps)
        (grad,) = torch.autograd.grad(z.sum(), logvar)
        _, kl, _ = fk.reparameterize(mu, logvar, eps=eps)
        (grad_kl,) = torch.autograd.grad(kl.sum(), logvar)
    std = torch.tensor([-6.0, -6.0, 0.0, 6.0, 6.0]).mul(0.5).exp()
    assert_close(z[0], std * eps[0])
    assert stats.clamped == pytest.approx(0.8)
    # Descent moves against the gradient: below, a negative one leads back up; above, a positive one down.
    full = 0.5 * std * eps[0]
    assert_close(grad[0], torch.stack([torch.zeros(()), full[1], full[2], full[3], torch.zeros(())]))
    assert (grad_kl[0, :2] < 0).all()
    assert (grad_kl[0, 3:] > 0).all()


def test_kl_does_not_depend_on_the_noise():
    mu, logvar = torch.randn(4, 10), torch.randn(4, 10)
    eps = torch.randn(4, 10, requires_grad=True)
    z, kl, _ = fk.reparameterize(mu.requires_grad_(), logvar, eps=eps)
    assert torch.autograd.grad(kl.sum(), eps, allow_unused=True, retain_graph=True)[0] is None
    assert torch.equal(kl, fk.reparameterize(mu, logvar, eps=torch.zeros(4, 10))[1])
    assert torch.autograd.grad(z.sum(), eps, allow_unused=True)[0] is None


def test_noise_is_the_generators():
    mu, logvar = torch.zeros(3, 7).bfloat16(), torch.zeros(3, 7).bfloat16()
    draws = [fk.reparameterize(mu, logvar, generator=torch.Generator().manual_seed(s))[0] for s in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert draws[0].dtype == torch.bfloat16
