"""psi = (t (r - 1) + 1) x0 + t x1,  Dt_psi = (r - 1) x0 + x1,  r = sigma_min / sigma_max."""

import torch

from fmkernels.eager._dtypes import compute_dtype, per_sample, promoted, rounded


def psi(t, x0, x1, sigma_min, sigma_max):
    wide = compute_dtype(x0, x1)
    time = per_sample(t.to(wide), x0)
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
    p, v = pred.flatten(1), target.flatten(1)
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


def flow_loss(v_pred, x0, x1, v_target, weight, sigma_min, sigma_max):
    """-> per-sample weight * mean((v_pred - v_target)^2), and the sums of velocity_stats."""
    wide = compute_dtype(v_pred, x0, x1, v_target)
    pred, target = v_pred.to(wide), _target(x0, x1, v_target, sigma_min, sigma_max, wide)
    loss = (pred - target).flatten(1).square().mean(1)
    if weight is not None:
        loss = loss * weight.detach().to(wide)
    return loss, _sums(pred.detach(), target)


def flow_loss_backward(grad, v_pred, x0, x1, v_target, weight, sigma_min, sigma_max):
    wide = compute_dtype(v_pred, x0, x1, v_target)
    pred, target = v_pred.to(wide), _target(x0, x1, v_target, sigma_min, sigma_max, wide)
    factor = grad.to(wide) * (1 if weight is None else weight.to(wide))
    factor = factor * (2 * v_pred.shape[0] / max(v_pred.numel(), 1))
    return rounded(per_sample(factor, pred) * (pred - target), v_pred.dtype)
