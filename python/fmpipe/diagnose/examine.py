"""Every check that a model, some images with captions, and the log of a run allow."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fmkernels import flow_loss, flow_pair, reparameterize, velocity_stats
from fmkernels.flow import NonFiniteError, Trace, sample, uniform
from fmpipe.diagnose import checks
from fmpipe.diagnose.checks.sampling import judge_probes, probe
from fmpipe.diagnose.metrics import gradient_norms
from fmpipe.diagnose.model import Parts, drawing, evaluating, parts_of, seeded
from fmpipe.diagnose.verdict import Overrides, Verdict, not_finite, skipped

PROMPTS = ("a cat", "a car", "a red apple")  # the diary's
LARGEST_GAIN = 1e4  # a larger one means that the velocity is 0
_IMAGES, _LOG = "needs pictures: --images DIR", "needs a run's log with its figures: --log RUN"
_PAIRS = "needs pictures and their captions, four at least: --images DIR --captions FILE"
_ENCODER = "needs a text encoder, which this pipeline has not"
_ON_PAIRS = (
    *("pairing", "scale", "latent_scale", "one_step", "target_definition", "condition_use", "shooting"),
    *("teacher_euler", "endpoint", "leak", "gradient_path"),
)
_LACKS = {
    **dict.fromkeys(("vae_round_trip", "scale_contract", "latent_is_sample", "image_range"), _IMAGES),
    **dict.fromkeys(_ON_PAIRS, _PAIRS),
    **dict.fromkeys(("kl", "gradient_shares", "update_ratios", "loss_magnitudes", "overflow"), _LOG),
    "dino": "needs the number of classes: call fmpipe.diagnose.checks.dino",
    "same_augmentation": "needs the batches of both paths: call fmpipe.diagnose.checks.same_augmentation",
    "time_embedding": "needs the embedding and the features: call fmpipe.diagnose.checks.time_embedding",
    "overfit": "needs a run on a small fixed set: fmpipe overfit",
    **dict.fromkeys(
        ("ablation_only_flow", "ablation_kl_off", "ablation_condition_shuffled"),
        "needs runs with a part left out: fmpipe ablate",
    ),
}
_CALLS = {  # what a check calls of a model, besides velocity
    "vae_round_trip": ("encode", "decode"),
    "scale_contract": ("encode", "decode", "scale_factor"),
    "text_path": ("draw",),
    "probes": ("draw", "decode"),
    "vae_eval": ("vae",),
    **dict.fromkeys((name for name in _ON_PAIRS if name != "gradient_path"), ("draw", "encode")),
}
_DEFINED = {
    "draw": "embed(prompts) or sample_z0(prompts)",
    "encode": "encode(images)",
    "decode": "decode(latents)",
    "scale_factor": "the attribute scale_factor",
    "vae": "the attribute vae, a module",
}
_OWN = {  # of a model that is not a pipeline
    **dict.fromkeys(
        ("gradient_shares", "loss_magnitudes"),
        "needs a run's log, --log RUN, or --images and a method loss(batch) of the model that returns several losses",
    ),
    "latent_is_sample": "needs the autoencoder's moments: call fmpipe.diagnose.checks.latent_is_sample",
    "gradient_path": "needs the target and the KL of your loss: call fmpipe.diagnose.checks.gradient_path",
}


class Examination(NamedTuple):
    """verdicts: one of each check, in the order of CHECKS. pictures: the diary's, (N, 3, H, W) in [-1, 1], by name."""

    verdicts: list[Verdict]
    pictures: dict[str, Tensor]


@torch.no_grad()
def examine(
    pipe,
    images: Tensor | None = None,
    captions: Sequence[str] | None = None,
    history: Mapping[str, Sequence[float]] | None = None,
    *,
    prompts: Sequence[str] = PROMPTS,
    steps: int | None = None,
    seed: int = 0,
    gain: float | None = None,
    overrides: Overrides = None,
) -> Examination:
    """All checks on a :class:`fmpipe.FlowPipeline`; those without their input are skipped and say what they lack.

    images: (B, 3, H, W) in [-1, 1], of the pipeline's size. captions: one for each. history: of a log, name -> values.
    gain: also run the shooting check with this factor for the velocity; its verdict is named ``shooting_gain``.
    The velocity is the network's own: neither guided nor with the pipeline's fm_gain.
    """
    _check_captions("examine", images, captions)
    more = ([], {}) if images is None else _on_moments(pipe.vae, images, seed, overrides)
    return _examined(_pipeline_parts(pipe), images, captions, history, prompts, steps, seed, gain, overrides, more)


@torch.no_grad()
def examine_model(
    model: object,
    images: Tensor | None = None,
    captions: Sequence[str] | None = None,
    history: Mapping[str, Sequence[float]] | None = None,
    *,
    prompts: Sequence[str] = PROMPTS,
    steps: int | None = None,
    seed: int = 0,
    gain: float | None = None,
    overrides: Overrides = None,
) -> Examination:
    """Run every check that the methods of a model allow; the others are skipped and say what they lack.

    model: an object of the protocol in :mod:`fmpipe.diagnose.model`, or an OpenUni-like one. It is set to eval mode
    while it is measured. images: (B, 3, H, W) in [-1, 1], resized to the model's ``image_size`` if it has one. The
    other arguments are those of :func:`examine`.
    """
    _check_captions("examine_model", images, captions)
    parts = parts_of(model)
    return _examined(parts, _resized(parts, images), captions, history, prompts, steps, seed, gain, overrides)


@torch.no_grad()
def calibrate_gain(model: object, images: Tensor, captions: Sequence[str], *, seed: int = 0) -> float:
    """Return ``fm_gain = median(|v_target| / |v_pred|)`` over the pairs at random t, of a model as in examine_model.

    It is 1.0 if the predicted speed is unbiased. Raises ValueError if the model lacks a method for this, or if its
    velocity is nearly 0 or not finite.
    """
    _check_captions("calibrate_gain", images, captions)
    parts = parts_of(model)
    if missing := _missing(parts, "one_step"):
        raise ValueError(f"calibrate_gain: the model must define {missing}")
    with evaluating(parts.module):
        z0, z1, t = _pairs(parts, _resized(parts, images), captions, seed)
        x_t, target = parts.path.pair(t, z0, z1)
        gain = velocity_stats(parts.velocity(x_t, t), v_target=target).gain.item()
    if not gain < LARGEST_GAIN:
        raise ValueError(f"calibrate_gain: the velocity is nearly 0 or not finite: a gain of {gain:.3g}")
    return gain


def _check_captions(where: str, images: Tensor | None, captions: Sequence[str] | None) -> None:
    if captions is not None and (images is None or len(captions) != len(images)):
        count = 0 if images is None else len(images)
        raise ValueError(f"{where}: captions must be one for each image, got {len(captions)} for {count}")


def _resized(parts: Parts, images: Tensor | None) -> Tensor | None:
    size = parts.image_size
    if images is None or size is None or images.shape[-2:] == (size, size):
        return images
    return F.interpolate(images.float(), (size, size), mode="bilinear", antialias=True)


def _pipeline_parts(pipe) -> Parts:
    vae, net = pipe.vae, pipe.velocity_net

    def embed(prompts):
        return tuple(x.float().to(net.device) for x in pipe.encode(list(prompts)))

    def encode(images, seed):
        draw = torch.Generator().manual_seed(seed)
        return vae.encode(images.to(vae.device, vae.dtype), generator=draw).float().to(net.device)

    def flow(z0, steps):
        out = pipe(latents=z0, num_inference_steps=steps, output_type="latent")
        return out.z1, out.trace

    _, scale = vae.shift_scale(torch.empty(0))
    text = pipe.text_encoder is not None
    return Parts(
        lambda x, t: pipe.velocity(x, t).float(),
        flow,
        embed if text else None,
        drawing(embed) if text else None,
        encode,
        lambda z: vae.decode(z.to(vae.device, vae.dtype)).float().to(net.device),
        device=net.device,
        scale_factor=torch.as_tensor(scale).abs().log().mean().exp().item(),  # one per channel: their geometric mean
        vae=vae,
        pipeline=True,
    )


def _examined(parts, images, captions, history, prompts, steps, seed, gain, overrides, more=((), {})) -> Examination:
    """Run the checks on parts. more: verdicts and pictures that the caller measured."""
    found, pictures = list(more[0]), {}
    if parts.vae is not None:
        found.append(checks.vae_eval(parts.vae))
    with evaluating(parts.module):
        if parts.draw is not None:
            verdicts, pictures = _on_prompts(parts, prompts, steps, seed, overrides)
            found += verdicts
        if images is not None:
            images = images.to(parts.device)
            verdicts, drawn = _on_images(parts, images, seed, overrides)
            found, pictures = found + verdicts, drawn | more[1] | pictures
        if captions is not None and not _missing(parts, "one_step"):
            found += _on_pairs(parts, images, list(captions), seed, gain, overrides)
        if images is not None and parts.loss is not None:
            found += _on_loss(parts, images, captions, seed, overrides)
    if history is not None:
        found += _on_log(history, overrides)
    by_name = {verdict.name: verdict for verdict in found}
    order = [*checks.CHECKS, *(name for name in by_name if name not in checks.CHECKS)]
    verdicts = [by_name[name] if name in by_name else skipped(name, _lack(parts, name)) for name in order]
    return Examination(verdicts, pictures)


def _missing(parts: Parts, check: str) -> str:
    """Name what a check calls and the model does not define."""
    return " and ".join(_DEFINED[name] for name in _CALLS.get(check, ()) if getattr(parts, name) is None)


def _lack(parts: Parts, check: str) -> str:
    missing = _missing(parts, check)
    if parts.pipeline:
        return _ENCODER if missing else _LACKS[check]
    return f"needs {missing} of the model" if missing else {**_LACKS, **_OWN}[check]


def _on_prompts(parts, prompts, steps, seed, overrides) -> tuple[list[Verdict], dict[str, Tensor]]:
    """The text's way to z0, and the probes of a run with the pictures of A and C."""
    seeds = count(seed)  # another sample at every call, for the control
    text = (lambda texts: parts.embed(texts)[0]) if parts.embed else (lambda texts: parts.draw(texts, next(seeds)))
    verdicts = [checks.text_path(text, prompts, overrides=overrides)]
    if parts.decode is None:
        return verdicts, {}
    z0 = parts.draw(prompts, seed)
    try:
        z1, trace = parts.flow(z0, steps)
    except NonFiniteError as error:
        broken = not_finite("probes", {str(error.anomaly): float("nan")}, "every step is finite")
        return [*verdicts, broken], {}
    decoded = {"A": parts.decode(z0), "C": parts.decode(z1)}
    first = trace.values[0, :, 2].mean().item()
    found = judge_probes(probe(decoded["A"], z0), first, probe(decoded["C"], z1), overrides=overrides)
    return [*verdicts, found], decoded


def _on_images(parts, images, seed, overrides) -> tuple[list[Verdict], dict[str, Tensor]]:
    def encode(x):
        return parts.encode(x, seed)

    verdicts, pictures = [checks.image_range(images, overrides=overrides)], {"orig": images.float()}
    if parts.encode is None or parts.decode is None:
        return verdicts, pictures
    verdicts.append(checks.vae_round_trip(encode, parts.decode, images, overrides=overrides))
    if parts.scale_factor is not None:
        verdicts.append(checks.scale_contract(encode, parts.decode, images, parts.scale_factor, overrides=overrides))
    return verdicts, pictures | {"recon_wrap": parts.decode(encode(images))}


def _on_moments(vae, images, seed, overrides) -> tuple[list[Verdict], dict[str, Tensor]]:
    moments = vae.encode_moments(images.to(vae.device, vae.dtype))
    shift, scale = vae.shift_scale(moments.float())
    z1 = vae.sample(moments, torch.Generator().manual_seed(seed))
    direct = vae.vae.decode(moments[:, : vae.channels]).sample  # around the scale, not through it
    return [checks.latent_is_sample(z1, moments, scale, shift, overrides=overrides)], {"recon_direct": direct}


def _pairs(parts, images, captions, seed) -> tuple[Tensor, Tensor, Tensor]:
    """Return z0, z1 and random times; their noise is independent."""
    t = torch.rand(len(captions), generator=torch.Generator().manual_seed(seed + 2))
    return parts.draw(captions, seed), parts.encode(images, seed + 1), t.to(parts.device)


def _on_pairs(parts, images, captions, seed, gain, overrides) -> list[Verdict]:
    z0, z1, t = _pairs(parts, images, captions, seed)
    mu, logvar = parts.embed(captions) if parts.embed else (None, None)

    def score(_, texts):
        """Less the flow loss: t, eps and z1 are the same for all orders of the captions."""
        x_t, target = parts.path.pair(t, parts.draw(texts, seed), z1)
        return -flow_loss(parts.velocity(x_t, t), v_target=target, reduction="none")

    common, ends = {"overrides": overrides}, (parts.velocity, z0, z1)
    on_path = {"path": parts.path, **common}
    one_step, shot = checks.one_step(*ends, **on_path), checks.shooting(*ends, **on_path)
    spread = None if logvar is None else reparameterize(mu, logvar, eps=z0 - mu)[2].as_dict()["std/mean"]
    cos = sum(one_step.values["cos"]) / len(one_step.values["cos"])
    verdicts = [
        checks.scale(z0, z1, generator=torch.Generator(z0.device).manual_seed(seed), **on_path),
        checks.latent_scale(*ends, **common),
        one_step,
        checks.target_definition(*ends, **on_path),
        shot,
        checks.leak(cos, shot.values["relative"][-1], spread, **common),
        checks.teacher_euler(z0, z1, integrate=_integrated, **on_path),
        checks.endpoint(*ends, **common),
    ]
    if gain is not None:
        given = checks.shooting(*ends, dt_scales=(), gain=gain, **on_path)
        verdicts.append(replace(given, name="shooting_gain"))
    if parts.pipeline:
        verdicts.append(
            checks.gradient_path(
                lambda x0, x1: flow_pair(t, x0, x1)[1], z1, z0, eps=z0 - mu, logvar=logvar,
                kl=lambda eps: reparameterize(mu, logvar, eps=eps)[1].sum(), **common,
            )
        )  # fmt: skip
    if len(z0) > 1:
        order = torch.Generator().manual_seed(seed)
        verdicts.append(checks.condition_use(*ends, generator=order, **on_path))
    if len(set(captions)) > 1 and len(captions) >= 4:
        order = torch.Generator().manual_seed(seed)
        verdicts.append(checks.pairing(score, images, captions, generator=order, **common))
    return verdicts


def _on_loss(parts, images, captions, seed, overrides) -> list[Verdict]:
    """Whether the loss is finite and, if it is a dict, the losses and their gradients against each other."""
    with torch.enable_grad(), seeded(seed):
        losses = parts.loss({"images": images, "captions": captions})
        losses = losses if isinstance(losses, Mapping) else {"total": losses}
        parameters = [p for p in parts.module.parameters() if p.requires_grad] if parts.module else []
        pieces = {name: x.mean() for name, x in losses.items() if name != "total"}
        norms = gradient_norms(pieces, parameters) if len(pieces) > 1 and parameters else {}
    sizes = {f"loss/{name}": float(x.detach().mean()) for name, x in losses.items()}
    lost = sum(not math.isfinite(x) for x in sizes.values())
    verdicts = [checks.overflow(nonfinite=lost, overrides=overrides)] if lost else []
    if len(pieces) > 1:
        verdicts.append(checks.loss_magnitudes(sizes, overrides=overrides))
    if norms:
        verdicts.append(checks.gradient_shares({k: x.item() for k, x in norms.items()}, overrides=overrides))
    return verdicts


def _integrated(velocity, x: Tensor, steps: int) -> Tensor:
    """Whatever comes of it: that an end is not finite is the check's to say."""
    return sample(velocity, x, uniform(steps), trace=Trace(nonfinite="continue")).x


def _on_log(history, overrides) -> list[Verdict]:
    """Those whose names the log has; a trend needs two values."""
    history = {name: values for name, values in history.items() if len(values) > 1}
    losses = {k: v for k, v in history.items() if k.startswith("loss/") and k != "loss/total"}
    weights = {k.replace("w/", "loss/"): v[-1] for k, v in history.items() if k.startswith("w/")}
    held = [name for name in ("anchor", "match") if history.get(f"w/{name}", [0])[-1]]
    if held:  # then the KL is not what shapes the head, and is small by design
        losses.pop("loss/kl", None)
    verdicts = [checks.update_ratios(history, overrides=overrides)]
    if held:
        verdicts.append(skipped("kl", f"the text head is trained by {' and '.join(held)}, not shaped by the KL"))
    elif {"mu/abs_mean", "std/mean", "logvar/mean"} <= history.keys() and ("loss/kl" in losses or not losses):
        verdicts.append(checks.kl(history, overrides=overrides))
    if "grad/total" in history:
        grads = {n: v for n, v in history.items() if n.startswith("grad/") and not (held and n == "grad/kl")}
        verdicts.append(checks.gradient_shares(grads, overrides=overrides))
    if losses:
        weights = {name: weight for name, weight in weights.items() if name in losses}
        verdicts.append(checks.loss_magnitudes(losses, weights, overrides=overrides))
    lost = sum(not math.isfinite(x) for name, row in history.items() if name.startswith("loss/") for x in row)
    lost += sum(int(x) for name, row in history.items() if name.endswith("/nonfinite") for x in row)
    if lost or "scaler/scale" in history:
        verdicts.append(checks.overflow(history.get("scaler/scale"), nonfinite=lost, overrides=overrides))
    return verdicts


def history_of(lines: Sequence[Mapping]) -> dict[str, list[float]]:
    """name -> its values in the order of the lines of :func:`fmpipe.diagnose.log.read_log`; numbers only."""
    history: dict[str, list[float]] = {}
    for line in lines:
        for name, value in line.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                history.setdefault(name, []).append(value)
    return history
