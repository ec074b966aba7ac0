"""Checks of the autoencoder: its round trip, its scale factor, its latents, its mode.

Pixels are (B, C, H, W) in [-1, 1], so that the peak of a PSNR is 2. encode and decode are any callables: pixels to the
latent that the flow works on, and back.
"""

from collections.abc import Callable
from math import isfinite

import torch
from torch import Tensor, nn

from fmpipe.diagnose.checks.base import LEAST_MSE, check, check_floating, check_images, rms_of, skip
from fmpipe.diagnose.thresholds import Limits

_OVERFLOW = 1e6  # in place of NaN or infinity where a wrong scale is tried on purpose
_LOGVAR = (-30.0, 20.0)  # the clamp of LDM and diffusers


@check
@torch.no_grad()
def vae_round_trip(
    encode: Callable[[Tensor], Tensor],
    decode: Callable[[Tensor], Tensor],
    images: Tensor,
) -> dict[str, float]:
    """Measure ``PSNR = mean_i 10 log10(4 / MSE_i)`` of decode(encode(images)) and statistics of the latents.

    images: in [-1, 1]. TypeError if encode returns no tensor, ValueError if decode does not return images' shape.
    """
    check_images("vae_round_trip", "images", images)
    z = _encoded("vae_round_trip", encode, images)
    psnr = _psnr("vae_round_trip", decode(z), images)
    z = z.double()
    mean, var, low, high = (x.item() for x in (z.mean(), z.var(correction=0), z.min(), z.max()))
    return {"psnr": psnr, "mean": mean, "var": var, "low": low, "high": high}


@check
@torch.no_grad()
def scale_contract(
    encode: Callable[[Tensor], Tensor],
    decode: Callable[[Tensor], Tensor],
    images: Tensor,
    scale: float,
) -> dict[str, float]:
    """Measure the PSNR of decode(z), decode(z * scale) and decode(z / scale), z = encode(images); skipped for scale 1.

    scale: the autoencoder's factor, 0.18215 for Stable Diffusion's. An overflow at a wrong scale counts as a bad
    image, not as a failure. ValueError unless scale is a positive number.
    """
    if not isinstance(scale, (int, float)) or not isfinite(scale) or scale <= 0:
        raise ValueError(f"scale_contract: scale must be a positive number, got {scale!r}")
    if scale == 1:
        return skip("contract/one")
    check_images("scale_contract", "images", images)
    z = _encoded("scale_contract", encode, images)
    plain = _psnr("scale_contract", decode(z), images)
    multiplied, divided = (
        _psnr("scale_contract", decode(wrong).nan_to_num(_OVERFLOW, _OVERFLOW, -_OVERFLOW), images)
        for wrong in (z * scale, z / scale)
    )
    return {"plain": plain, "multiplied": multiplied, "divided": divided}


@check
@torch.no_grad()
def latent_is_sample(
    z1: Tensor,
    moments: Tensor,
    scale: float | Tensor = 1.0,
    shift: float | Tensor = 0.0,
    *,
    limit: Limits,
) -> dict:
    """Measure how well ``z1 = (mean + std eps - shift) scale``, eps ~ N(0, 1), explains z1; moments = mean, logvar.

    z1: (B, C, ...); moments: (B, 2C, ...). scale, shift: numbers, or tensors that broadcast to (B, C, ...). Each
    explanation is a Gaussian with center c (the mean: scaled; as it is; scaled twice) and noise
    ``s² = ρ² (+ its std² for a sample)``, ``ρ = max(latent/rounding, eps of the dtypes) (|c| + rms c)``: noise below ρ
    cannot be told from rounding or from a second run of the encoder, and nothing depends on it. With
    ``r = (z1 - c) / s`` the explanation of least ``mean(r²/2 + log s)`` is taken. A sample passes, the scaled mean
    warns (right in scale, but every epoch sees one point of the posterior), all else fails. With scale 1 and shift 0
    the scaled mean is the raw one. ValueError for other shapes than (B, C, ...) and (B, 2C, ...), or z1 like moments.
    """
    name = "latent_is_sample"
    for label, x in (("z1", z1), ("moments", moments)):
        check_floating(name, label, x)
    if moments.dim() < 2 or moments.shape[1] % 2:
        raise ValueError(f"{name}: moments must be (B, 2C, ...), got {tuple(moments.shape)}")
    if z1.shape == moments.shape:
        return {"channels": 2.0}
    mean, logvar = moments.double().chunk(2, dim=1)
    if z1.shape != mean.shape:
        raise ValueError(f"{name}: z1 must be {tuple(mean.shape)}, half of moments' channels, got {tuple(z1.shape)}")
    std = torch.exp(logvar.clamp(*_LOGVAR) / 2)
    rounding = max(limit["latent/rounding"], *(torch.finfo(x.dtype).eps for x in (z1, moments)))
    once, twice = (mean - shift) * scale, ((mean - shift) * scale - shift) * scale
    ways = {"": (once, std * scale)}
    if bool(torch.as_tensor(scale != 1).any()) or bool(torch.as_tensor(shift != 0).any()):
        ways |= {"unscaled ": (mean, std), "twice scaled ": (twice, std * scale * scale)}
    misfit, rms, share = {}, {}, 1.0
    for way, (center, noise) in ways.items():
        floor = rounding * (center.abs() + rms_of(center)) + 1e-30  # of a mean that is 0 everywhere
        for kind, s in (("sample", torch.sqrt(floor**2 + noise**2)), ("mean", floor)):
            r = (z1.double() - center) / s
            misfit[way + kind] = (r.square() / 2 + s.log()).mean().item()
            rms[way + kind] = rms_of(r)
            if way + kind == "sample":
                share = rms_of(noise / s)
    return {"channels": 1.0, "misfit": misfit, "rms": rms, "share": share}


@check
def vae_eval(module: nn.Module) -> dict:
    """List the modules that are in training mode, dropout and batch norm first, and count trainable parameters."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"vae_eval: module must be a torch.nn.Module, got {type(module).__name__}")
    acting = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
    training = [(name, m) for name, m in module.named_modules() if m.training]
    training.sort(key=lambda item: not isinstance(item[1], acting))  # stable: those whose mode matters come first
    names = [f"{name or 'itself'} ({type(m).__name__})" for name, m in training]
    return {"training": names, "trainable": sum(p.requires_grad for p in module.parameters())}


def _encoded(check: str, encode: Callable, images: Tensor) -> Tensor:
    z = encode(images)
    check_floating(check, "encode(images)", z)
    return z


def _psnr(check: str, decoded: Tensor, images: Tensor) -> float:
    check_floating(check, "decode(z)", decoded)
    if decoded.shape != images.shape:
        raise ValueError(f"{check}: decode(z) must be {tuple(images.shape)} as images, got {tuple(decoded.shape)}")
    mse = (decoded.double() - images.double()).square().flatten(1).mean(1).clamp_min(LEAST_MSE)
    return (10 * torch.log10(4 / mse)).mean().item()
