"""x += gain * dt * (a * v + b * v_prev), v = v_uncond + guidance * (v - v_uncond) when guided."""

import torch

from fmkernels.eager._dtypes import samples


def step_(x, v, v_prev, v_uncond, dt, dt_tensor, a, b, guidance, gain, low, stats):
    wide = x.dtype
    if dt_tensor is not None:
        # The product with gain is rounded once, as for a number; mps has no float64.
        dt = dt_tensor.reshape(()).to(wide if x.device.type == "mps" else torch.float64)
    velocity = v.to(wide)
    if v_uncond is not None:
        velocity = v_uncond.to(wide) + guidance * (velocity - v_uncond.to(wide))
    delta = gain * dt * a * velocity
    if v_prev is not None:
        delta = delta + gain * dt * b * v_prev.to(wide)
    after = x + delta
    if stats is not None:
        columns = [
            samples(x).abs().mean(1),
            samples(velocity).abs().mean(1),
            samples(delta).square().mean(1).sqrt(),
            (~torch.isfinite(samples(after))).sum(1).to(wide),
            x.new_zeros(x.shape[0]) + dt,
        ]
        stats.copy_(torch.stack(columns, dim=1))
    x.copy_(after)
    if low is not None:
        low.copy_(after)
