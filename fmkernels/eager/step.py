"""x += gain * dt * (a * v + b * v_prev), v = v_uncond + guidance * (v - v_uncond) when guided."""

import torch


def step_(x, v, v_prev, v_uncond, dt, dt_tensor, a, b, guidance, gain, low, stats):
    wide = x.dtype
    if dt_tensor is not None:
        dt = dt_tensor.to(wide).reshape(())
    velocity = v.to(wide)
    if v_uncond is not None:
        velocity = v_uncond.to(wide) + guidance * (velocity - v_uncond.to(wide))
    delta = gain * dt * a * velocity
    if v_prev is not None:
        delta = delta + gain * dt * b * v_prev.to(wide)
    after = x + delta
    if stats is not None:
        n = max(x[:1].numel(), 1)
        columns = [
            x.flatten(1).abs().sum(1) / n,
            velocity.flatten(1).abs().sum(1) / n,
            (delta.flatten(1).square().sum(1) / n).sqrt(),
            (~torch.isfinite(after)).flatten(1).sum(1).to(wide),
            x.new_zeros(x.shape[0]) + dt,
        ]
        stats.copy_(torch.stack(columns, dim=1))
    x.copy_(after)
    if low is not None:
        low.copy_(after)
