"""Checks of the autoencoder: its round trip, its scale factor, what is taken for its latent, its mode.

Pixels are (B, C, H, W) in [-1, 1], so that a PSNR's peak is 2. encode and decode are anybody's callables: pixels to the
latent the flow works on, and back.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite, sqrt

import torch
from torch import Tensor, nn

from fmpipe.diagnose.verdict import Overrides, Verdict, limits, nonfinite, not_finite, skipped

Finding = tuple[str, str, str]  # status, meaning, advice

_LEAST_MSE = 1e-12  # an exact reconstruction has 126 dB, not infinitely many
_OVERFLOW = 1e6  # in place of NaN or infinity where a wrong scale is tried on purpose
_LOGVAR = (-30.0, 20.0)  # the clamp of LDM and diffusers

CHECKLIST = (
    "The diary's first checklist asks for captions that belong to their images, the same augmentation on both paths "
    "and an autoencoder in eval mode, before anything is blamed on the flow."
)


def verdict_of(name: str, values: dict, rule: str, found: Finding, experience: str) -> Verdict:
    """found, unless a measured value is not finite: that fails, whatever a comparison made of it."""
    if nonfinite(values):
        return not_finite(name, values, rule, experience)
    return Verdict(name, found[0], values, rule, *found[1:], experience)


def described(x: object) -> str:
    return f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__


def check_floating(check: str, name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(f"{check}: {name} must be a floating point tensor, got {described(x)}")
    if not x.numel():
        raise ValueError(f"{check}: {name} must not be empty, got {tuple(x.shape)}")


def check_images(check: str, name: str, x: Tensor) -> None:
    check_floating(check, name, x)
    if x.dim() != 4:
        raise ValueError(f"{check}: {name} must be (B, C, H, W), got {tuple(x.shape)}")


def rms_of(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


def judge_vae_round_trip(
    psnr: float,
    *,
    mean: float | None = None,
    var: float | None = None,
    low: float | None = None,
    high: float | None = None,
    overrides: Overrides = None,
) -> Verdict:
    """psnr: of decode(encode(x)) in dB, mean over images. mean, var, low, high: of the latents, as the flow sees them.

    Fails below ``vae/psnr_fail``, warns below ``vae/psnr_warn`` or with the latents' std far from 1.
    """
    limit = limits(overrides)
    worst, enough = limit["vae/psnr_fail"], limit["vae/psnr_warn"]
    least, most = limit["vae/latent_std_low"], limit["vae/latent_std_high"]
    values = {"psnr": psnr, "mean": mean, "var": var, "low": low, "high": high}
    values = {name: float(value) for name, value in values.items() if value is not None}
    if var is not None and var < 0:
        raise ValueError(f"judge_vae_round_trip: var must not be negative, got {var}")
    std = None if var is None else sqrt(var)
    latents = "" if std is None else f" Latents have std {std:.3g}."
    if not psnr >= worst:
        found = (
            "fail",
            f"Reconstruction has {psnr:.2f} dB: the autoencoder loses the picture.{latents}",
            "Check pixel range, weights and scale factor (scale_contract) first: the flow cannot do better than this.",
        )
    elif psnr < enough:
        found = (
            "warn",
            f"Reconstruction has {psnr:.2f} dB: recognisable, but poor.{latents}",
            "Compare with the PSNR its authors state; check resolution, dtype and preprocessing.",
        )
    elif std is not None and not least <= std <= most:
        wrong = "multiplied twice, or too small" if std < least else "missing, or undone"
        found = (
            "warn",
            f"Reconstruction has {psnr:.2f} dB, but latents have std {std:.3g}: the scale factor is probably {wrong}.",
            "Print the latents' std with and without the factor; multiply once in encode, divide once in decode.",
        )
    else:
        found = ("pass", f"Reconstruction has {psnr:.2f} dB.{latents}", "")
    rule = f"PSNR below {worst:g} dB fails, below {enough:g} warns; a latent std outside {least:g} to {most:g} warns"
    return verdict_of(
        "vae_round_trip",
        values,
        rule,
        found,
        "The diary measured 29.08 dB with latents in [-4.500, 5.562], mean -0.014, var 1.414. That cleared the "
        "autoencoder in one line; the pictures were bad for another reason.",
    )


@torch.no_grad()
def vae_round_trip(
    encode: Callable[[Tensor], Tensor],
    decode: Callable[[Tensor], Tensor],
    images: Tensor,
    *,
    overrides: Overrides = None,
) -> Verdict:
    """``PSNR = mean_i 10 log10(4 / MSE_i)`` of decode(encode(images)) and the latents' statistics; images in [-1, 1].

    TypeError if encode gives no tensor, ValueError if decode gives another shape than that of images.
    """
    check_images("vae_round_trip", "images", images)
    z = _encoded("vae_round_trip", encode, images)
    psnr = _psnr("vae_round_trip", decode(z), images)
    z = z.double()
    mean, var, low, high = (x.item() for x in (z.mean(), z.var(correction=0), z.min(), z.max()))
    return judge_vae_round_trip(psnr, mean=mean, var=var, low=low, high=high, overrides=overrides)


def judge_scale_contract(plain: float, multiplied: float, divided: float, *, overrides: Overrides = None) -> Verdict:
    """PSNR, in dB, of decode(z), decode(z * scale) and decode(z / scale).

    Fails if one of the last two is better than the first by ``vae/contract_db``, warns if it is not worse by as much:
    shrinking a noisy sample a little may help by itself.
    """
    margin = limits(overrides)["vae/contract_db"]
    values = {"decode(z)": float(plain), "decode(z*scale)": float(multiplied), "decode(z/scale)": float(divided)}
    numbers = f"decode(z) has {plain:.2f} dB, decode(z*scale) {multiplied:.2f}, decode(z/scale) {divided:.2f}"
    if plain >= max(multiplied, divided) + margin:
        found = ("pass", f"{numbers}: encode and decode apply the factor once each, outside nobody should.", "")
    elif multiplied > plain + margin and multiplied >= divided:
        found = (
            "fail",
            f"{numbers}: z lacks a factor, so encode does not multiply by it, or decode divides twice.",
            "Multiply once inside encode (or sample) and divide once inside decode; remove every other place.",
        )
    elif divided > plain + margin:
        found = (
            "fail",
            f"{numbers}: z has a factor too many, so encode multiplies twice, or decode does not divide.",
            "Multiply once inside encode (or sample) and divide once inside decode; remove every other place.",
        )
    else:
        found = (
            "warn",
            f"{numbers}: too close to tell where the factor belongs.",
            "Look at vae_round_trip first: a poor decoder, or a factor near 1, hides the difference.",
        )
    rule = f"decode(z) better than decode(z*scale) and decode(z/scale) by {margin:g} dB; fails if one is better by that"
    return verdict_of(
        "scale_contract",
        values,
        rule,
        found,
        "The diary saw decode(z) sharp and decode(z * sf) blurred: decode divides by the factor itself, so nobody "
        "outside multiplies or divides.",
    )


@torch.no_grad()
def scale_contract(
    encode: Callable[[Tensor], Tensor],
    decode: Callable[[Tensor], Tensor],
    images: Tensor,
    scale: float,
    *,
    overrides: Overrides = None,
) -> Verdict:
    """PSNR of decode(z), decode(z * scale), decode(z / scale) for one ``z = encode(images)``; skipped for scale 1.

    scale: the autoencoder's factor, 0.18215 for Stable Diffusion's. An overflow at a wrong scale counts as a bad
    picture, not as a failure. ValueError for a scale that is no positive number.
    """
    if not isinstance(scale, (int, float)) or not isfinite(scale) or scale <= 0:
        raise ValueError(f"scale_contract: scale must be a positive number, got {scale!r}")
    if scale == 1:
        return skipped("scale_contract", "The scale factor is 1: there is nothing to multiply by.")
    check_images("scale_contract", "images", images)
    z = _encoded("scale_contract", encode, images)
    plain = _psnr("scale_contract", decode(z), images)
    multiplied, divided = (
        _psnr("scale_contract", decode(wrong).nan_to_num(_OVERFLOW, _OVERFLOW, -_OVERFLOW), images)
        for wrong in (z * scale, z / scale)
    )
    return judge_scale_contract(plain, multiplied, divided, overrides=overrides)


_WRONG_LATENTS = {  # explanation -> status, meaning
    "mean": ("warn", "z1 is the scaled mean of the moments, without noise"),
    "unscaled sample": ("fail", "z1 is a sample, but without the scale factor (or shift)"),
    "unscaled mean": ("fail", "z1 is the raw mean of the moments: neither sampled nor scaled"),
    "twice scaled sample": ("fail", "z1 is a sample with the scale factor (or shift) applied twice"),
    "twice scaled mean": ("fail", "z1 is the mean of the moments with the scale factor (or shift) applied twice"),
}


def judge_latent_is_sample(
    misfit: Mapping[str, float],
    rms: Mapping[str, float],
    *,
    share: float = 1.0,
    channels: float = 1.0,
    overrides: Overrides = None,
) -> Verdict:
    """misfit, rms: of each explanation of z1 (``sample``, ``mean``, ``unscaled mean``, …), see latent_is_sample.

    misfit: mean over elements of ``r²/2 + log s``, the negative log-likelihood; the least wins, and ``sample`` wins
    ties (``latent/tie``). rms: of the standardised residual r, 1 where the explanation is right. share: rms of std / s,
    the part of s that is posterior noise. channels: of z1 over those of a latent; 2 for raw moments, which fails
    without the rest (misfit and rms may then be empty).
    """
    limit = limits(overrides)
    low, high, tie = limit["latent/rms_low"], limit["latent/rms_high"], limit["latent/tie"]
    values = {"channels": float(channels), "misfit": dict(misfit), "rms": dict(rms), "share": float(share)}
    rule = (
        f"z1 has a latent's channels, and of all explanations a scaled sample of the moments fits best "
        f"(a tie within {tie:g} goes to it), its residual's rms in {low:g} to {high:g}"
    )
    advice = "Take z1 = sample(moments) from the autoencoder, which applies shift and scale there and nowhere else."
    if channels != 1:
        found = ("fail", f"z1 has {channels:g} times a latent's channels: these are raw moments, not a sample.", advice)
    elif misfit.keys() != rms.keys() or "sample" not in misfit or misfit.keys() - _WRONG_LATENTS.keys() != {"sample"}:
        raise ValueError(
            f"judge_latent_is_sample: misfit and rms must have the same keys, 'sample' among them, the rest of "
            f"{', '.join(_WRONG_LATENTS)}; got {list(misfit)} and {list(rms)}"
        )
    else:
        best = min(misfit, key=misfit.get)
        best = "sample" if misfit["sample"] <= misfit[best] + tie else best
        if not rms[best] <= high:
            found = (
                "fail",
                f"z1 is neither a sample of these moments nor their mean, scaled or not: the residual of the nearest "
                f"explanation ({best}) has rms {rms[best]:.3g}.",
                "Check that z1 and moments are of the same images, and the order of mean and logvar. " + advice,
            )
        elif best != "sample":
            status, meaning = _WRONG_LATENTS[best]
            found = (status, f"{meaning} (its residual has rms {rms[best]:.3g}).", advice)
        elif share < 0.5:
            found = (
                "pass",
                f"z1 fits a scaled sample, whose noise is too small (a part of {share:.2g}) to tell it from the mean.",
                "",
            )
        elif not rms[best] >= low * share:
            found = ("fail", f"The noise in z1 is {rms[best]:.3g} of the posterior's std: it was shrunk.", advice)
        else:
            found = ("pass", f"z1 is a scaled sample of the moments: its residual has rms {rms[best]:.3g}.", "")
    return verdict_of(
        "latent_is_sample",
        values,
        rule,
        found,
        "The diary's norms were 151 for z0 against 896 to 1224 for z1. The cause was not the head: the moments had "
        "been used without sampling, and so without the factor that sample() applies.",
    )


@torch.no_grad()
def latent_is_sample(
    z1: Tensor,
    moments: Tensor,
    scale: float | Tensor = 1.0,
    shift: float | Tensor = 0.0,
    *,
    overrides: Overrides = None,
) -> Verdict:
    """Is ``z1 = (mean + std eps - shift) scale`` with eps of N(0, 1), for moments = mean, logvar of the same images?

    z1: (B, C, ...); moments: (B, 2C, ...). scale, shift: numbers, or tensors that broadcast to (B, C, ...). Each
    explanation is a Gaussian with centre c (the mean: scaled; as it is; scaled twice) and noise
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
        return judge_latent_is_sample({}, {}, channels=2.0, overrides=overrides)
    mean, logvar = moments.double().chunk(2, dim=1)
    if z1.shape != mean.shape:
        raise ValueError(f"{name}: z1 must be {tuple(mean.shape)}, half of moments' channels, got {tuple(z1.shape)}")
    std = torch.exp(logvar.clamp(*_LOGVAR) / 2)
    rounding = max(limits(overrides)["latent/rounding"], *(torch.finfo(x.dtype).eps for x in (z1, moments)))
    once, twice = (mean - shift) * scale, ((mean - shift) * scale - shift) * scale
    ways = {"": (once, std * scale)}
    if bool(torch.as_tensor(scale != 1).any()) or bool(torch.as_tensor(shift != 0).any()):
        ways |= {"unscaled ": (mean, std), "twice scaled ": (twice, std * scale * scale)}
    misfit, rms, share = {}, {}, 1.0
    for way, (centre, noise) in ways.items():
        floor = rounding * (centre.abs() + rms_of(centre)) + 1e-30  # of a mean that is 0 everywhere
        for kind, s in (("sample", torch.sqrt(floor**2 + noise**2)), ("mean", floor)):
            r = (z1.double() - centre) / s
            misfit[way + kind] = (r.square() / 2 + s.log()).mean().item()
            rms[way + kind] = rms_of(r)
            if way + kind == "sample":
                share = rms_of(noise / s)
    return judge_latent_is_sample(misfit, rms, share=share, overrides=overrides)


def judge_vae_eval(training: Sequence[str], trainable: int = 0) -> Verdict:
    """training: names of the modules in training mode (fails if any); trainable: parameters with gradients (warns)."""
    if training:
        named = ", ".join(training[:5]) + (" and others" if len(training) > 5 else "")
        found = (
            "fail",
            f"{len(training)} modules of the autoencoder are in training mode: {named}.",
            "Call vae.eval() after every model.train(), which reaches it if it is a submodule.",
        )
    elif trainable:
        found = (
            "warn",
            f"{trainable} parameters of the autoencoder take gradients.",
            "Call vae.requires_grad_(False), and leave it out of the optimizer.",
        )
    else:
        found = ("pass", "The autoencoder is in eval mode and frozen.", "")
    values = {"training": list(training), "trainable": int(trainable)}
    rule = "no module in training mode; a parameter that takes gradients warns"
    return verdict_of("vae_eval", values, rule, found, CHECKLIST)


def vae_eval(module: nn.Module) -> Verdict:
    """Are all modules of the autoencoder in eval mode, dropout and batch norm first, and its parameters frozen?"""
    if not isinstance(module, nn.Module):
        raise TypeError(f"vae_eval: module must be a torch.nn.Module, got {type(module).__name__}")
    acting = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
    training = [(name, m) for name, m in module.named_modules() if m.training]
    training.sort(key=lambda item: not isinstance(item[1], acting))  # stable: those whose mode matters come first
    names = [f"{name or 'itself'} ({type(m).__name__})" for name, m in training]
    return judge_vae_eval(names, sum(p.requires_grad for p in module.parameters()))


def _encoded(check: str, encode: Callable, images: Tensor) -> Tensor:
    z = encode(images)
    check_floating(check, "encode(images)", z)
    return z


def _psnr(check: str, decoded: Tensor, images: Tensor) -> float:
    check_floating(check, "decode(z)", decoded)
    if decoded.shape != images.shape:
        raise ValueError(f"{check}: decode(z) must be {tuple(images.shape)} as images, got {tuple(decoded.shape)}")
    mse = (decoded.double() - images.double()).square().flatten(1).mean(1).clamp_min(_LEAST_MSE)
    return (10 * torch.log10(4 / mse)).mean().item()
