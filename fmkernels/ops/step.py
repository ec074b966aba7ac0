"""One step of a sampler, in place on an fp32 (or fp64) master state."""

import torch
from torch import Tensor

from fmkernels import checks, eager
from fmkernels.backend import Op


def _check_step(x, v, v_prev, v_uncond, dt, dt_tensor, a, b, guidance, gain, low, stats):
    op = "euler_step_" if v_prev is None else "multistep_step_"
    checks.batched(op, "x", x)
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(
            f"{op}: x must be float32 or float64, got {x.dtype}: a half-precision state swallows the steps; "
            "keep x in float32 and pass low= for the model's copy"
        )
    for name, value in (("v", v), ("v_prev", v_prev), ("v_uncond", v_uncond), ("low", low)):
        if value is not None or name == "v":
            checks.like(op, name, value, "x", x)
    if stats is not None:
        checks.floating(op, "stats", stats)
        checks.same_device(op, "stats", stats, "x", x)
        checks.shape(op, "stats", stats, (x.shape[0], 5), "(B, 5)")
        if stats.dtype != torch.float32:
            raise TypeError(f"{op}: stats must be float32, got {stats.dtype}")
    for name, value in (("a", a), ("b", b), ("guidance", guidance), ("gain", gain)):
        checks.number(op, name, value)
    if dt_tensor is None:
        checks.number(op, "dt", dt)
    else:
        checks.floating(op, "dt", dt_tensor)
        checks.same_device(op, "dt", dt_tensor, "x", x)
        if dt_tensor.numel() != 1:
            raise ValueError(f"{op}: dt must be a number or a one-element tensor, got shape {tuple(dt_tensor.shape)}")
        if dt_tensor.device.type == "cpu" and not checks.traced() and not torch.isfinite(dt_tensor).all():
            raise ValueError(f"{op}: dt must be finite, got {dt_tensor.item()}")
    read = {"v": v, "v_prev": v_prev, "v_uncond": v_uncond, "dt": dt_tensor}
    if stats is not None:
        checks.writable(op, "stats", stats, x=x, **read, low=low)
    if low is not None:
        checks.writable(op, "low", low, x=x, **read)
    checks.writable(op, "x", x, **read)


_STEP = Op("step_", eager.step_, _check_step)


def euler_step_(
    x: Tensor,
    v: Tensor,
    dt: float | Tensor,
    *,
    v_uncond: Tensor | None = None,
    guidance: float = 1.0,
    gain: float = 1.0,
    low: Tensor | None = None,
    stats: Tensor | None = None,
) -> Tensor:
    """``x += gain * dt * v`` in place, with ``v = v_uncond + guidance * (v - v_uncond)`` when guided. Returns x.

    x: (B, ...), float32 or float64 whatever v's dtype. dt: a number (negative runs time backwards) or a
    one-element tensor on x's device; a non-finite number raises, a non-finite value on a GPU shows in
    ``stats``. low: receives the new x in its own dtype, for the next forward. stats: (B, 5) float32,
    filled with mean|x| before the step, mean|v| (guided, before gain and dt), rms of the change, the
    number of non-finite elements after it, and dt. One pass, no copy to the host, no gradients.
    """
    return _step(x, v, None, dt, 1.0, 0.0, v_uncond, guidance, gain, low, stats, "euler_step_")


def multistep_step_(
    x: Tensor,
    v: Tensor,
    v_prev: Tensor,
    dt: float | Tensor,
    a: float,
    b: float,
    *,
    v_uncond: Tensor | None = None,
    guidance: float = 1.0,
    gain: float = 1.0,
    low: Tensor | None = None,
    stats: Tensor | None = None,
) -> Tensor:
    """``x += gain * dt * (a * v + b * v_prev)`` in place; everything else as :func:`euler_step_`. Returns x.

    Heun's corrector is a = b = 1/2, Adams-Bashforth a = 3/2, b = -1/2. Guidance applies to v; v_prev is
    the velocity as it was used in the step before.
    """
    if v_prev is None:
        raise TypeError("multistep_step_: v_prev must be a tensor, got None")
    return _step(x, v, v_prev, dt, a, b, v_uncond, guidance, gain, low, stats, "multistep_step_")


def _step(x, v, v_prev, dt, a, b, v_uncond, guidance, gain, low, stats, op):
    dt_tensor = None
    if isinstance(dt, Tensor):
        dt, dt_tensor = 0.0, dt
    else:
        checks.number(op, "dt", dt)
    for name, value in (("a", a), ("b", b), ("guidance", guidance), ("gain", gain)):
        if type(value) is not float:
            checks.number(op, name, value)
    checks.no_gradient(op, "x", x, v, v_prev, v_uncond, dt_tensor, low, stats)
    _STEP(x, v, v_prev, v_uncond, dt, dt_tensor, a, b, guidance, gain, low, stats)
    checks.written(x, low, stats)
    return x
