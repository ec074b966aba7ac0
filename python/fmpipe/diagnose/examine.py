"""Every check that a pipeline, some pictures with captions, and a run's log allow."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fmkernels import flow_loss, flow_pair, reparameterize
from fmkernels.flow import NonFiniteError, Trace, sample, uniform
from fmpipe.diagnose import checks
from fmpipe.diagnose.checks.sampling import judge_probes
from fmpipe.diagnose.verdict import Overrides, Verdict, not_finite, skipped

PROMPTS = ("a cat", "a car", "a red apple")  # the diary's
_IMAGES, _LOG = "needs pictures: --images DIR", "needs a run's log with its figures: --log RUN"
_PAIRS = "needs pictures and their captions, four at least: --images DIR --captions FILE"
_ENCODER = "needs a text encoder, which this pipeline has not"
_LACKS = {
    **dict.fromkeys(("vae_round_trip", "scale_contract", "latent_is_sample", "image_range"), _IMAGES),
    **dict.fromkeys(("pairing", "scale", "latent_scale", "one_step", "target_definition"), _PAIRS),
    **dict.fromkeys(("condition_use", "shooting", "teacher_euler", "endpoint", "leak", "gradient_path"), _PAIRS),
    **dict.fromkeys(("kl", "gradient_shares", "update_ratios", "loss_magnitudes", "overflow"), _LOG),
    **dict.fromkeys(("text_path", "probes"), _ENCODER),
    "dino": "needs the number of classes: call fmpipe.diagnose.checks.dino",
    "same_augmentation": "needs the batches of both paths: call fmpipe.diagnose.checks.same_augmentation",
    "time_embedding": "needs the embedding and the features: call fmpipe.diagnose.checks.time_embedding",
    "overfit": "needs a run on a small fixed set: fmpipe overfit",
    **dict.fromkeys(
        ("ablation_only_flow", "ablation_kl_off", "ablation_condition_shuffled"),
        "needs runs with a part left out: fmpipe ablate",
    ),
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
    overrides: Overrides = None,
) -> Examination:
    """All checks on a :class:`fmpipe.FlowPipeline`; those without their input are skipped and say what they lack.

    images: (B, 3, H, W) in [-1, 1], of the pipeline's size. captions: one for each. history: of a log, name -> values.
    The velocity is the network's own: neither guided nor with the pipeline's fm_gain.
    """
    if captions is not None and (images is None or len(captions) != len(images)):
        count = 0 if images is None else len(images)
        raise ValueError(f"examine: captions must be one for each image, got {len(captions)} for {count}")
    found, pictures = [checks.vae_eval(pipe.vae)], {}
    if pipe.text_encoder is not None:
        more, pictures = _on_prompts(pipe, prompts, steps, seed, overrides)
        found += more
    if images is not None:
        more, drawn = _on_images(pipe.vae, images, seed, overrides)
        found, pictures = found + more, drawn | pictures
    if captions is not None and pipe.text_encoder is not None:
        found += _on_pairs(pipe, images, list(captions), seed, overrides)
    if history is not None:
        found += _on_log(history, overrides)
    by_name = {verdict.name: verdict for verdict in found}
    verdicts = [by_name[name] if name in by_name else skipped(name, _LACKS[name]) for name in checks.CHECKS]
    return Examination(verdicts, pictures)


def _on_prompts(pipe, prompts, steps, seed, overrides) -> tuple[list[Verdict], dict[str, Tensor]]:
    """The text's way to z0, and the probes of a run with the pictures of A and C."""
    verdicts = [checks.text_path(lambda texts: pipe.encode(texts)[0], prompts, overrides=overrides)]
    try:
        out = pipe(list(prompts), steps, generator=torch.Generator().manual_seed(seed), output_type="latent")
    except NonFiniteError as error:
        broken = not_finite("probes", {str(error.anomaly): float("nan")}, "every step is finite")
        return [*verdicts, broken], {}
    verdicts.append(judge_probes(out.probes["A"], out.probes["B"], out.probes["C"], overrides=overrides))
    decoded = {name: pipe.vae.decode(z.to(pipe.vae.dtype)).float() for name, z in (("A", out.z0), ("C", out.z1))}
    return verdicts, decoded


def _on_images(vae, images, seed, overrides) -> tuple[list[Verdict], dict[str, Tensor]]:
    def encode(x):
        return vae.encode(x, generator=torch.Generator().manual_seed(seed))

    images = images.to(vae.device, vae.dtype)
    moments = vae.encode_moments(images)
    shift, scale = vae.shift_scale(moments.float())
    factor = torch.as_tensor(scale).abs().log().mean().exp().item()  # of a scale a channel, their geometric mean
    z1 = vae.sample(moments, torch.Generator().manual_seed(seed))
    verdicts = [
        checks.image_range(images, overrides=overrides),
        checks.vae_round_trip(encode, vae.decode, images, overrides=overrides),
        checks.scale_contract(encode, vae.decode, images, factor, overrides=overrides),
        checks.latent_is_sample(z1, moments, scale, shift, overrides=overrides),
    ]
    mean = moments[:, : vae.channels]
    direct = vae.vae.decode(mean).sample  # around the scale, not through it
    return verdicts, {"orig": images.float(), "recon_wrap": vae.decode(encode(images)).float(), "recon_direct": direct}


def _on_pairs(pipe, images, captions, seed, overrides) -> list[Verdict]:
    net, draw = pipe.velocity_net, torch.Generator().manual_seed(seed)
    mu, logvar = (x.float() for x in pipe.encode(captions))
    eps = torch.randn(mu.shape, generator=draw).to(mu)
    z0 = reparameterize(mu, logvar, eps=eps)[0].to(net.device)
    z1 = pipe.vae.encode(images.to(pipe.vae.device, pipe.vae.dtype), generator=draw).float().to(net.device)
    t = torch.rand(len(z0), generator=draw).to(z0)

    def score(_, texts):
        """Less the flow loss: t, eps and z1 are the same for all orders of the captions."""
        mu, logvar = (x.float() for x in pipe.encode(list(texts)))
        x_t, target = flow_pair(t, reparameterize(mu, logvar, eps=eps)[0].to(z1), z1)
        return -flow_loss(pipe.velocity(x_t, t).float(), v_target=target, reduction="none")

    common, ends = {"overrides": overrides}, (pipe.velocity, z0, z1)
    one_step, shot = checks.one_step(*ends, **common), checks.shooting(*ends, **common)
    spread = reparameterize(mu, logvar, eps=eps)[2].as_dict()["std/mean"]
    cos = sum(one_step.values["cos"]) / len(one_step.values["cos"])
    verdicts = [
        checks.scale(z0, z1, generator=torch.Generator().manual_seed(seed), **common),
        checks.latent_scale(*ends, **common),
        one_step,
        checks.target_definition(*ends, **common),
        shot,
        checks.leak(cos, shot.values["relative"][-1], spread, **common),
        checks.teacher_euler(z0, z1, integrate=_integrated, **common),
        checks.endpoint(*ends, **common),
        checks.gradient_path(
            lambda x0, x1: flow_pair(t, x0, x1)[1], z1, z0, eps=eps, logvar=logvar,
            kl=lambda eps: reparameterize(mu, logvar, eps=eps)[1].sum(), **common,
        ),
    ]  # fmt: skip
    if len(z0) > 1:
        verdicts.append(checks.condition_use(*ends, generator=torch.Generator().manual_seed(seed), **common))
    if len(set(captions)) > 1 and len(captions) >= 4:
        order = torch.Generator().manual_seed(seed)
        verdicts.append(checks.pairing(score, images, captions, generator=order, **common))
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
