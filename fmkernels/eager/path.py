"""psi = (t (r - 1) + 1) x0 + t x1,  Dt_psi = (r - 1) x0 + x1,  r = sigma_min / sigma_max."""

import torch

from fmkernels.eager._dtypes import compute_dtype, per_sample, promoted, rounded, samples


def psi(t, x0, x1, sigma_min, sigma_max):
    wide = compute_dtype(x0, x1)
    time = per_sample(t.detach().to(wide), x0)
    out = (time * (sigma_min / sigma_max - 1) + 1) * x0.to(wide) + time * x1.to(wide)
    return rounded(out, promoted(x0, x1))


def psi_backward(grad, t, x0, x1, sigma_min, sigma_max):
    wide = compute_dtype(x0, x1, grad)
    time, g = per_sample(t.to(wide), x0), grad.to(wide)
    to_x0 = (time * (sigma_min / sigma_max - 1) + 1) * g
    return rounded(to_x0, x0.dtype), rounded(time * g, x1.dtype)


def dt_psi(x0, x1, sigma_min, sigma_max):
    wide = compute_dtype(x0, x1)
    return rounded((sigma_min / sigma_max - 1) * x0.to(wide) + x1.to(wide), promoted(x0, x1))


def flow_pair(t, x0, x1, sigma_min, sigma_max, dtype):
    wide = compute_dtype(x0, x1)
    dtype = promoted(x0, x1) if dtype is None else dtype
    a, b = x0.to(wide), x1.to(wide)
    x_t, velocity = psi(t, a, b, sigma_min, sigma_max), dt_psi(a, b, sigma_min, sigma_max)
    return rounded(x_t, dtype), rounded(velocity.detach(), dtype)


def _target(x0, x1, v_target, sigma_min, sigma_max, wide):
    if v_target is not None:
        return v_target.detach().to(wide)
    return dt_psi(x0.detach().to(wide), x1.detach().to(wide), sigma_min, sigma_max)


def _sums(pred, target):
    p, v = samples(pred), samples(target)
    zero = p.new_zeros(p.shape[0], 1)
    nonfinite = ~(torch.isfinite(p) & torch.isfinite(v))

    def largest(x):  # NaN is counted in its own column; no elements give 0
        return torch.cat([zero, x.abs().nan_to_num(nan=0.0, posinf=torch.inf)], dim=1).amax(1)

    columns = [
        (p - v).square().sum(1),
        p.square().sum(1),
        v.square().sum(1),
        (p * v).sum(1),
        p.abs().sum(1),
        v.abs().sum(1),
        largest(p),
        largest(v),
        nonfinite.sum(1).to(p.dtype),
    ]
    return torch.stack(columns, dim=1)


def velocity_stats(v_pred, x0, x1, v_target, sigma_min, sigma_max):
    wide = compute_dtype(v_pred, x0, x1, v_target)
    return _sums(v_pred.detach().to(wide), _target(x0, x1, v_target, sigma_min, sigma_max, wide))


def velocity_summary(sums, t, n, bins):
    """(1 + bins, 4): nmse (pooled), cos and speed_ratio (means) and the number of samples.

    Row 0 is the whole batch, the others the slices (k/bins, (k+1)/bins] of t (none without t); t = 0 is in
    the first, and a slice without samples is NaN. The guards 1e-8 and 1e-12 are those of the debugging notes.
    """
    pred, target = sums[:, 1].sqrt(), sums[:, 2].sqrt()
    cos = sums[:, 3] / (pred.clamp_min(1e-8) * target.clamp_min(1e-8))
    columns = [sums[:, 0], sums[:, 2], cos, pred / (target + 1e-12), torch.ones_like(pred)]
    inside = torch.ones(1, sums.shape[0], dtype=torch.bool, device=sums.device)
    if t is not None:
        t = t.reshape(-1) if t.dtype == torch.float64 else t.reshape(-1).float()
        edges = (torch.arange(1, bins, dtype=torch.float64, device=t.device) / bins).to(t.dtype)
        slices = torch.bucketize(t, edges) == torch.arange(bins, device=t.device).unsqueeze(1)
        inside = torch.cat([inside, slices & ~t.isnan()])
    # torch.where, not a product with the mask: 0 * NaN would carry one bad sample into every slice.
    total = torch.where(inside.unsqueeze(1), torch.stack(columns), 0.0).sum(2)
    error, target2, cos, speed, count = total.unbind(1)
    return torch.stack([error / target2.maximum(1e-12 * n * count), cos / count, speed / count, count], dim=1)


def flow_loss(v_pred, x0, x1, v_target, weight, sigma_min, sigma_max):
    """-> per-sample weight * mean((v_pred - v_target)^2), and the sums of velocity_stats."""
    wide = compute_dtype(v_pred, x0, x1, v_target)
    pred, target = v_pred.to(wide), _target(x0, x1, v_target, sigma_min, sigma_max, wide)
    loss = samples(pred - target).square().mean(1)
    if weight is not None:
        loss = loss * weight.detach().to(wide)
    return loss, _sums(pred.detach(), target)


def flow_loss_backward(grad, v_pred, x0, x1, v_target, weight, sigma_min, sigma_max):
    wide = compute_dtype(v_pred, x0, x1, v_target)
    pred, target = v_pred.to(wide), _target(x0, x1, v_target, sigma_min, sigma_max, wide)
    factor = grad.to(wide) * (1 if weight is None else weight.to(wide))
    factor = factor * (2 * v_pred.shape[0] / max(v_pred.numel(), 1))
    return rounded(per_sample(factor, pred) * (pred - target), v_pred.dtype)
