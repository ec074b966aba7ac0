"""z = mu + exp(logvar / 2) * eps with logvar clamped; KL of N(mu, sigma^2) to N(0, I) from mu and logvar."""

import torch

from fmkernels.eager._dtypes import compute_dtype, per_sample, promoted, rounded, samples


class _Clamp(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, low, high):
        return x.clamp(low, high)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, *ctx.bounds = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return _held_back(grad, x, *ctx.bounds), None, None


def inward_clamp(x, low, high):
    """``x.clamp(low, high)``. Outside the range, a gradient passes only if a descent step leads back inside."""
    return _Clamp.apply(x, low, high)


def _held_back(grad, raw, low, high):
    held = ((raw < low) & (grad > 0)) | ((raw > high) & (grad < 0))
    return torch.where(held, 0.0, grad)


def reparameterize(mu, logvar, eps, low, high):
    """-> z, kl per sample, and the eleven statistics in the order of csrc/shared/columns.h."""
    wide = compute_dtype(mu, logvar)
    m, raw, e = mu.to(wide), logvar.to(wide), eps.detach().to(wide)
    lv = inward_clamp(raw, low, high) if torch.is_grad_enabled() else raw.clamp(low, high)
    std = (0.5 * lv).exp()
    z = m + std * e
    kl = 0.5 * samples(m.square() + std.square() - 1 - lv).sum(1)
    return rounded(z, promoted(mu, logvar)), kl, _statistics(m, raw, lv, std, z)


@torch.no_grad()
def _statistics(mu, raw, logvar, std, z):
    if mu.numel() == 0:
        empty = mu.new_full((11,), torch.nan)
        empty[4], empty[5], empty[10] = torch.inf, 0.0, 0.0
        return empty
    columns = [
        mu.abs().mean(),
        mu.square().mean().sqrt(),
        logvar.mean(),
        std.mean(),
        std.min(),
        std.max(),
        z.mean(),
        z.var(unbiased=False),
        samples(z).std(dim=0, unbiased=False).mean(),
        (raw != logvar).to(z.dtype).mean(),
        (~torch.isfinite(z)).sum().to(z.dtype),
    ]
    return torch.stack(columns)


def reparameterize_backward(grad_z, grad_kl, mu, logvar, eps, low, high):
    wide = compute_dtype(mu, logvar, grad_z)
    m, raw, e = mu.to(wide), logvar.to(wide), eps.to(wide)
    std = (0.5 * raw.clamp(low, high)).exp()
    to_mu = torch.zeros_like(m) if grad_z is None else grad_z.to(wide)
    to_logvar = to_mu * 0.5 * std * e
    if grad_kl is not None:
        kl = per_sample(grad_kl.to(wide), m)
        to_mu = to_mu + kl * m
        to_logvar = to_logvar + kl * 0.5 * (std.square() - 1)
    return rounded(to_mu, mu.dtype), rounded(_held_back(to_logvar, raw, low, high), logvar.dtype)
