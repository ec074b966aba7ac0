"""Checks of whole integrations: shooting, the exact field, the trend of the endpoint, a leak, the probes.

x0, x1, velocity and path are those of :mod:`fmpipe.field`.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fmkernels import checks, quantize, restore
from fmkernels.flow import PATHS, Path, Trace, midpoint, sample, uniform
from fmkernels.precision import precision_of
from fmpipe.diagnose.checks.base import LEAST_MSE, check, rms_of, skip
from fmpipe.diagnose.checks.field import TIMES
from fmpipe.field import Velocity, check_any, check_ends, endpoint_rmse, mse, pooled_gain, stats_at, times_of


@check
def shooting(
    velocity: Velocity,
    x0: Tensor,
    x1: Tensor,
    steps: Sequence[int] = (5, 20, 50),
    dt_scales: Sequence[float] = (1.0, 2.0, 3.0),
    gain: float | None = None,
    *,
    path: Path | None = None,
) -> dict:
    """Measure ``MSE(z_end, x1) / MSE(x0, x1)``, z_end integrated from x0 on the midpoint schedule, for each of steps.

    At the most steps, it is also measured with each dt_scale (which multiplies the step as a gain does) and with the
    gain (None: the median of |v*| / |v_pred| of these pairs). The check is meant for pairs in which x0 determines x1,
    such as a text and its image; from pure noise, another image is a correct end, and the value is about 1. Use newly
    drawn x0, not those that the network was trained on.
    """
    check_ends("shooting", x0, x1)
    check_any("shooting", "steps", steps)
    start = _start("shooting", x0, x1)
    if gain is None:
        gain = pooled_gain(stats_at("shooting", velocity, x0, x1, TIMES, path))

    def relative(n, **options):
        return mse(sample(velocity, x0, midpoint(n), trace=Trace(nonfinite="continue"), **options).x, x1) / start

    steps = sorted(steps)
    out = {"start": start, "steps": steps, "relative": [relative(n) for n in steps], "fm_gain": gain}
    if dt_scales:
        out["dt_scale"] = list(dt_scales)
        out["relative_dt_scale"] = [relative(steps[-1], dt_scale=scale) for scale in dt_scales]
    return out | {"relative_gain": relative(steps[-1], gain=gain) if math.isfinite(gain) else math.nan}


@check
@torch.no_grad()
def latent_scale(velocity: Velocity, x0: Tensor, x1: Tensor, steps: int = 20) -> dict[str, float]:
    """Measure ``E|x1|``, ``E|z_end|``, their mean cosine and the share of x0 left in z_end, integrated from x0."""
    check_ends("latent_scale", x0, x1)
    end = sample(velocity, x0, midpoint(steps), trace=Trace(nonfinite="continue")).x
    start, wanted, got = (x.flatten(1).double() for x in (x0, x1, end))
    cos = torch.cosine_similarity(got, wanted, dim=1).mean().item()
    left = math.nan
    if got.isfinite().all() and wanted.isfinite().all():  # z_end = a x1 + b x0 as nearly as possible: b
        left = torch.linalg.lstsq(torch.stack([wanted, start], -1).flatten(0, 1), got.reshape(-1, 1)).solution[1].item()
    return {"x1": wanted.norm(dim=1).mean().item(), "end": got.norm(dim=1).mean().item(), "cos": cos, "left": left}


@check
@torch.no_grad()
def teacher_euler(
    x0: Tensor,
    x1: Tensor,
    steps: Sequence[int] = (5, 10, 20, 50, 100),
    dtype: torch.dtype = torch.float32,
    integrate: Callable[[Velocity, Tensor, int], Tensor] | None = None,
    *,
    path: Path | None = None,
) -> dict:
    """Measure ``MSE(z_N, x1)`` of the exact field, integrated from x0 in N even Euler steps, for each N of steps.

    x0, x1 and v are rounded to dtype first, and ``x = x + v * dt`` after every step, as in a plain loop in dtype: what
    remains is the error of the loop. integrate: another loop, ``integrate(velocity, x0, n) -> z_N``, which gets x0 and
    v in that dtype. ValueError for fewer than two different N, and for equal x0 and x1.
    """
    check_ends("teacher_euler", x0, x1)
    _check_counts("teacher_euler", "steps", steps)
    checks.floating("teacher_euler", "dtype", torch.empty(0, dtype=dtype))
    path, x0, x1 = path or PATHS["psi"], x0.to(dtype), x1.to(dtype)
    start = _start("teacher_euler", x0, x1)

    def velocity(x, t, **_):
        return path.velocity(t, x0, x1).to(dtype)

    def loop(velocity, x, n):
        for t, dt in uniform(n):
            x = x + velocity(x, times_of(x, t)) * dt
        return x

    ends = {n: (integrate or loop)(velocity, x0.clone(), n) for n in steps}
    for n, end in ends.items():
        checks.like("teacher_euler", f"what integrate returns for {n} steps", end, "x0", x0)
    return {"steps": list(ends), "error": [mse(end, x1) for end in ends.values()], "start": start}


@check
def endpoint(
    velocity: Velocity,
    x0: Tensor,
    x1: Tensor,
    ks: Sequence[int] = (8, 16, 32, 64),
    solvers: Sequence[str] = ("euler", "heun"),
) -> dict:
    """Measure :func:`~fmpipe.field.endpoint_rmse` of each solver at each K, and RMSE(x0, x1).

    ValueError for fewer than two different K, and without a solver.
    """
    _check_counts("endpoint", "ks", ks)
    check_any("endpoint", "solvers", solvers)
    rmse = {solver: endpoint_rmse(velocity, x0, x1, ks, solver) for solver in solvers}
    rmse = {solver: {str(k): x for k, x in by_k.items()} for solver, by_k in rmse.items()}  # as JSON has its keys
    return {"rmse": rmse, "start": math.sqrt(mse(x0, x1))}


@check
def leak(cos: float, relative_shooting: float | None = None, std_mean: float | None = None) -> dict[str, float]:
    """Take cos (one step, mean over t), relative_shooting (:func:`shooting` on newly drawn x0) and ``std/mean``."""
    given = {"cos": cos, "relative_shooting": relative_shooting, "std/mean": std_mean}
    return {name: value for name, value in given.items() if value is not None}


@check
@torch.no_grad()
def probes(z0: Tensor, z1: Tensor, decode: Callable[[Tensor], Tensor], first_step_rms: float) -> dict:
    """Measure [A] decode(z0), [B] the rms change of the first step, and [C] decode(z1).

    decode: returns pixels in about [-1, 1]. The pipeline's ``probes`` are the same numbers.
    """
    check_ends("probes", z0, z1, letter="z")
    return {"A": probe(decode(z0), z0), "B": first_step_rms, "C": probe(decode(z1), z1)}


@check
@torch.no_grad()
def precision(
    net: nn.Module,
    velocity: Velocity,
    z0: Tensor,
    flow: Callable[[Tensor], Tensor],
    decode: Callable[[Tensor], Tensor],
    precisions: Sequence[str] = ("bf16", "int8"),
) -> dict:
    """Measure what :func:`fmkernels.quantize` changes in velocities, end latents and pictures, for each of precisions.

    The errors of v at t = 0.1, 0.5, 0.9 and of the end latent flow(z0) are relative to the rms of those in the
    network's own dtype; the PSNR of decode(end) is that of the worst picture, with pixels in [-1, 1]. Layers are
    converted whether that is faster here or not; those that are too sensitive are left unchanged. net: the network
    that velocity and flow call; it is restored. Skipped if it is quantized already or has no linear layers.
    """
    check_any("precision", "precisions", precisions)
    if precision_of(net) != "fp32":
        return skip("precision/quantized", name=precision_of(net))
    end = flow(z0)
    picture, points = decode(end), [(torch.lerp(z0, end, t), times_of(z0, t)) for t in (0.1, 0.5, 0.9)]
    wanted = torch.stack([velocity(x, t) for x, t in points])
    out: dict = {"psnr": {}, "velocity": {}, "latent": {}, "left": {}, "layers": 0}
    for name in precisions:
        report = quantize(net, name, sample=lambda: velocity(*points[1]), min_gain=0)
        try:
            if report.swapped:
                got = flow(z0)
                v = torch.stack([velocity(x, t) for x, t in points])
                error = (decode(got) - picture).square().flatten(1).mean(1).max().item()
                out["psnr"][name] = 10 * math.log10(4 / max(error, LEAST_MSE)) if error == error else math.nan
                out["velocity"][name] = rms_of(v - wanted) / rms_of(wanted)
                out["latent"][name] = rms_of(got - end) / rms_of(end)
                out["left"][name], out["layers"] = len(report.left), len(report.layers)
        finally:
            restore(net)
    return out if out["psnr"] else skip("precision/none")


def _start(op: str, x0: Tensor, x1: Tensor) -> float:
    """Return MSE(x0, x1); ValueError if it is 0."""
    start = mse(x0, x1)
    if start <= 0:
        raise ValueError(f"{op}: x0 and x1 are equal but must differ: MSE(x0, x1) is 0")
    return start


def _check_counts(op: str, name: str, counts: Sequence[int]) -> None:
    if len(set(counts)) < 2:
        raise ValueError(f"{op}: {name} must have two or more different numbers of steps, got {list(counts)}")


def probe(image: Tensor, z: Tensor) -> dict[str, float]:
    """Return ``low high contrast rms``: the range and std of the decoded pixels, and the rms of the latent z."""
    if not isinstance(image, Tensor) or not image.is_floating_point() or image.numel() < 2:
        raise ValueError(f"probes: decode must return a floating point tensor of pixels, got {type(image).__name__}")
    image, rms = image.float(), z.float().square().mean().sqrt()
    numbers = (image.min(), image.max(), image.std(), rms)
    return {name: x.item() for name, x in zip(("low", "high", "contrast", "rms"), numbers, strict=True)}
