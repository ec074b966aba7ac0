"""Measure everything that a model, images with captions, and the log of a run allow, and judge it."""

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
from fmpipe.diagnose.checks.sampling import probe
from fmpipe.diagnose.engine import RULES, judge
from fmpipe.diagnose.figures import Figures
from fmpipe.diagnose.rule import Evidence, Finding
from fmpipe.diagnose.texts import Message
from fmpipe.diagnose.thresholds import Limits, Overrides, limits
from fmpipe.metrics import gradient_norms
from fmpipe.own_model import Parts, drawing, evaluating, parts_of, seeded

PROMPTS = ("a cat", "a car", "a red apple")  # those of the debugging notes
LARGEST_GAIN = 1e4  # a larger one means that the velocity is 0
_ON_PAIRS = (
    *("pairing", "scale", "latent_scale", "one_step", "target_definition", "condition_use", "shooting"),
    *("teacher_euler", "endpoint", "leak"),
)
_CALLS = {  # what a check calls of a model, besides velocity
    "vae_round_trip": ("encode", "decode"),
    "scale_contract": ("encode", "decode", "scale_factor"),
    "text_path": ("draw",),
    "probes": ("draw", "decode"),
    "precision": ("draw", "decode"),
    "vae_eval": ("vae",),
    **dict.fromkeys(_ON_PAIRS, ("draw", "encode")),
}
_DEFINED = {
    "draw": "embed(prompts) / sample_z0(prompts)",
    "encode": "encode(images)",
    "decode": "decode(latents)",
    "scale_factor": "the attribute scale_factor",
    "vae": "the attribute vae, a module",
}
_NEEDS = {  # what else a rule needs; those that are not listed need the log of a run
    **dict.fromkeys(("vae_round_trip", "scale_contract", "latent_is_sample", "image_range"), "need/images"),
    **dict.fromkeys((*_ON_PAIRS, "gradient_path"), "need/pairs"),
    **dict.fromkeys(("sampler_state", "step_sizes"), "need/traces"),
    **dict.fromkeys(("same_augmentation", "time_embedding"), "need/call"),
    **dict.fromkeys([name for name in RULES if name.startswith("ablation")], "need/ablations"),
    "overfit": "need/overfit",
    "shooting_gain": "need/gain",
}
_NEEDS_OF_OWN_MODELS = _NEEDS | {
    **dict.fromkeys(("latent_is_sample", "gradient_path", "precision"), "need/call"),
    **dict.fromkeys(("gradient_shares", "loss_magnitudes"), "need/loss"),
}


class CheckResults(NamedTuple):
    """findings: of all rules, in the order of the engine. pictures: (N, 3, H, W) in [-1, 1]. figures: as judged."""

    findings: list[Finding]
    pictures: dict[str, Tensor]
    figures: Figures


@torch.no_grad()
def run_checks(
    model: object,
    images: Tensor | None = None,
    captions: Sequence[str] | None = None,
    figures: Figures | None = None,
    *,
    prompts: Sequence[str] = PROMPTS,
    steps: int | None = None,
    seed: int = 0,
    gain: float | None = None,
    overrides: Overrides = None,
) -> CheckResults:
    """Measure a model with every check that it allows and judge the result, together with the figures of its log.

    Rules without figures are skipped and state what they need. The velocity is that of the network: neither
    guided nor multiplied by the pipeline's fm_gain.

    Args:
        model: a :class:`fmpipe.FlowPipeline`, an object of the protocol in :mod:`fmpipe.own_model`, or an
            OpenUni-like model. It is set to eval mode while it is measured.
        images: (B, 3, H, W) in [-1, 1]; resized to the ``image_size`` of a model that has one.
        captions: one per image.
        figures: those of a log, see :func:`fmpipe.diagnose.read.read`.
        gain: also run the shooting check with this factor for the velocity, as the rule ``shooting_gain``.
    """
    _check_captions("run_checks", images, captions)
    pipeline = hasattr(model, "velocity_net") and hasattr(model, "vae")
    parts = _pipeline_parts(model) if pipeline else parts_of(model)
    images, figures = _resized(parts, images), replace(figures or Figures())  # those of the caller stay as they are
    limit, measured, pictures = limits(overrides), {}, {}
    if parts.vae is not None:
        measured["vae_eval"] = checks.vae_eval.measure(parts.vae)
    with evaluating(parts.module):
        if parts.draw is not None:
            pictures |= _on_prompts(parts, prompts, steps, seed, measured, model.velocity_net if pipeline else None)
        if images is not None:
            pictures |= _on_images(
                parts, images.to(parts.device), seed, measured, model.vae if pipeline else None, limit
            )
        if captions is not None and not _missing(parts, "one_step"):
            _on_pairs(parts, images.to(parts.device), list(captions), seed, gain, measured)
        if images is not None and parts.loss is not None:
            _on_loss(parts, images.to(parts.device), captions, seed, measured, figures)
    figures.measured = figures.measured | measured
    found = [f if f.evidence else replace(f, evidence=(Evidence("skipped", _lack(parts, f.name)),))
             for f in judge(figures, overrides)]  # fmt: skip
    return CheckResults(found, pictures, figures)


@torch.no_grad()
def calibrate_gain(model: object, images: Tensor, captions: Sequence[str], *, seed: int = 0) -> float:
    """Return ``fm_gain = median(|v_target| / |v_pred|)`` over the pairs at random t, of a model of :func:`run_checks`.

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


def _missing(parts: Parts, check: str) -> str:
    """Name what a check calls and the model does not define."""
    return ", ".join(_DEFINED[name] for name in _CALLS.get(check, ()) if getattr(parts, name) is None)


def _lack(parts: Parts, rule: str) -> Message:
    """Return what a rule needs to be judged."""
    if missing := _missing(parts, rule):
        return Message("need/encoder") if parts.pipeline else Message("need/method", names=missing)
    needs = _NEEDS if parts.pipeline else _NEEDS_OF_OWN_MODELS
    return Message(needs.get(rule, "need/log"), name=rule)


def _on_prompts(parts: Parts, prompts, steps, seed, measured: dict, net: torch.nn.Module | None) -> dict[str, Tensor]:
    """Measure the path of the text to z0, and the probes of a run; return the images of A and C."""
    seeds = count(seed)  # another sample at every call, for the control
    text = (lambda texts: parts.embed(texts)[0]) if parts.embed else (lambda texts: parts.draw(texts, next(seeds)))
    measured["text_path"] = checks.text_path.measure(text, prompts)
    if parts.decode is None:
        return {}
    z0 = parts.draw(prompts, seed)
    try:
        z1, trace = parts.flow(z0, steps)
    except NonFiniteError as error:
        measured["probes"] = {"anomaly": str(error.anomaly)}
        return {}
    decoded = {"A": parts.decode(z0), "C": parts.decode(z1)}
    first = trace.values[0, :, 2].mean().item()
    measured["probes"] = {"A": probe(decoded["A"], z0), "B": first, "C": probe(decoded["C"], z1)}
    if net is not None:
        measured["precision"] = checks.precision.measure(
            net, parts.velocity, z0, lambda z0: parts.flow(z0, steps)[0], parts.decode
        )
    return decoded


def _on_images(parts: Parts, images, seed, measured: dict, vae, limit: Limits) -> dict[str, Tensor]:
    def encode(x):
        return parts.encode(x, seed)

    measured["image_range"], pictures = checks.image_range.measure(images), {"orig": images.float()}
    if vae is not None:
        moments = vae.encode_moments(images.to(vae.device, vae.dtype))
        shift, scale = vae.shift_scale(moments.float())
        z1 = vae.sample(moments, torch.Generator().manual_seed(seed))
        measured["latent_is_sample"] = checks.latent_is_sample.measure(z1, moments, scale, shift, limit=limit)
        pictures["recon_direct"] = vae.vae.decode(moments[:, : vae.channels]).sample  # around the scale, not through it
    if parts.encode is None or parts.decode is None:
        return pictures
    measured["vae_round_trip"] = checks.vae_round_trip.measure(encode, parts.decode, images)
    if parts.scale_factor is not None:
        measured["scale_contract"] = checks.scale_contract.measure(encode, parts.decode, images, parts.scale_factor)
    return pictures | {"recon_wrap": parts.decode(encode(images))}


def _pairs(parts: Parts, images, captions, seed) -> tuple[Tensor, Tensor, Tensor]:
    """Return z0, z1 and random times; their noise is independent."""
    t = torch.rand(len(captions), generator=torch.Generator().manual_seed(seed + 2))
    return parts.draw(captions, seed), parts.encode(images, seed + 1), t.to(parts.device)


def _on_pairs(parts: Parts, images, captions, seed, gain, measured: dict) -> None:
    z0, z1, t = _pairs(parts, images, captions, seed)
    mu, logvar = parts.embed(captions) if parts.embed else (None, None)

    def score(_, texts):
        """The negative flow loss: t, eps and z1 are the same for all orders of the captions."""
        x_t, target = parts.path.pair(t, parts.draw(texts, seed), z1)
        return -flow_loss(parts.velocity(x_t, t), v_target=target, reduction="none")

    def drawn() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    ends, path = (parts.velocity, z0, z1), {"path": parts.path}
    step, shot = checks.one_step.measure(*ends, **path), checks.shooting.measure(*ends, **path)
    spread = None if logvar is None else reparameterize(mu, logvar, eps=z0 - mu)[2].as_dict()["std/mean"]
    on_device = torch.Generator(z0.device).manual_seed(seed)
    measured |= {
        "scale": checks.scale.measure(z0, z1, generator=on_device, **path),
        "latent_scale": checks.latent_scale.measure(*ends),
        "one_step": step,
        "target_definition": checks.target_definition.measure(*ends, **path),
        "shooting": shot,
        "leak": checks.leak.measure(sum(step["cos"]) / len(step["cos"]), shot["relative"][-1], spread),
        "teacher_euler": checks.teacher_euler.measure(z0, z1, integrate=_integrated, **path),
        "endpoint": checks.endpoint.measure(*ends),
    }
    if gain is not None:
        measured["shooting_gain"] = checks.shooting.measure(*ends, dt_scales=(), gain=gain, **path)
    if parts.pipeline:
        measured["gradient_path"] = checks.gradient_path.measure(
            lambda x0, x1: flow_pair(t, x0, x1)[1], z1, z0, eps=z0 - mu, logvar=logvar,
            kl=lambda eps: reparameterize(mu, logvar, eps=eps)[1].sum(),
        )  # fmt: skip
    if len(z0) > 1:
        measured["condition_use"] = checks.condition_use.measure(*ends, generator=drawn(), **path)
    if len(set(captions)) > 1 and len(captions) >= 4:
        measured["pairing"] = checks.pairing.measure(score, images, captions, generator=drawn())


def _on_loss(parts: Parts, images, captions, seed, measured: dict, figures: Figures) -> None:
    """Measure whether the loss is finite and, if it is a dict, the losses and their gradients."""
    with torch.enable_grad(), seeded(seed):
        losses = parts.loss({"images": images, "captions": captions})
        losses = losses if isinstance(losses, Mapping) else {"total": losses}
        parameters = [p for p in parts.module.parameters() if p.requires_grad] if parts.module else []
        pieces = {name: x.mean() for name, x in losses.items() if name != "total"}
        norms = gradient_norms(pieces, parameters) if len(pieces) > 1 and parameters else {}
    sizes = {f"loss/{name}": float(x.detach().mean()) for name, x in losses.items()}
    if lost := sum(not math.isfinite(x) for x in sizes.values()):
        measured["overflow"] = {"nonfinite": lost}
    if len(pieces) > 1:
        measured["loss_magnitudes"] = checks.loss_magnitudes.measure(sizes)
    if not figures.metrics.keys() & norms.keys():  # a log is better than one batch
        figures.metrics = figures.metrics | Figures.of({name: [x.item()] for name, x in norms.items()}).metrics


def _integrated(velocity, x: Tensor, steps: int) -> Tensor:
    """Integrate with the loop of fmkernels. A state that is not finite does not raise; the rule reports it."""
    return sample(velocity, x, uniform(steps), trace=Trace(nonfinite="continue")).x
