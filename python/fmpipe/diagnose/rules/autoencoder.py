"""Rules about the autoencoder: its round trip, its scale factor, what is taken for its latent, its mode."""

from collections.abc import Iterator
from math import sqrt

from fmpipe.diagnose.figures import Figures
from fmpipe.diagnose.rule import Evidence, measured_rule, rule, say
from fmpipe.diagnose.thresholds import Limits


@rule("vae/psnr")
def vae_round_trip(f: Figures, limit: Limits) -> Iterator[Evidence]:
    m, series = f.measured.get("vae_round_trip"), f.first_of("vae/psnr")
    if m:
        yield _psnr(m["psnr"], limit)
        if "var" in m:
            std = sqrt(m["var"])
            if std < limit["vae/latent_std_low"]:
                yield say("warn", "vae/std_small", std=std)
            else:
                yield say("warn" if std > limit["vae/latent_std_high"] else "pass", "vae/std", std=std)
    if series is not None and f.stage != "vae" and "loss/rec" not in f.metrics:
        learning = series.late > 1.3 * series.early  # an autoencoder that is still being trained
        yield say("pass", "vae/good", psnr=series.late) if learning else _psnr(series.late, limit)


def _psnr(psnr: float, limit: Limits) -> Evidence:
    if not psnr >= limit["vae/psnr_fail"]:
        return say("fail", "vae/lost", psnr=psnr)
    return say("warn", "vae/poor", psnr=psnr) if psnr < limit["vae/psnr_warn"] else say("pass", "vae/good", psnr=psnr)


@measured_rule
def scale_contract(m: dict, limit: Limits) -> Iterator[Evidence]:
    margin, plain, multiplied, divided = limit["vae/contract_db"], *(m[k] for k in ("plain", "multiplied", "divided"))
    if plain >= max(multiplied, divided) + margin:
        yield say("pass", "contract/once", **m)
    elif multiplied > plain + margin and multiplied >= divided:
        yield say("fail", "contract/lacks", **m)
    elif divided > plain + margin:
        yield say("fail", "contract/twice", **m)
    else:
        yield say("warn", "contract/close", **m)


WRONG_LATENTS = ("mean", "unscaled sample", "unscaled mean", "twice scaled sample", "twice scaled mean")


@measured_rule
def latent_is_sample(m: dict, limit: Limits) -> Iterator[Evidence]:
    if m["channels"] != 1:
        yield say("fail", "latent/moments", channels=m["channels"])
        return
    misfit, rms, share = m["misfit"], m["rms"], m["share"]
    best = min(misfit, key=misfit.get)
    best = "sample" if misfit["sample"] <= misfit[best] + limit["latent/tie"] else best
    if not rms[best] <= limit["latent/rms_high"]:
        yield say("fail", "latent/neither", best=best, residual=rms[best])
    elif best != "sample":
        yield say("warn" if best == "mean" else "fail", f"latent/{best}", residual=rms[best])
    elif share < 0.5:
        yield say("pass", "latent/quiet", share=share)
    elif not rms[best] >= limit["latent/rms_low"] * share:
        yield say("fail", "latent/shrunk", residual=rms[best])
    else:
        yield say("pass", "latent/sample", residual=rms[best])


@measured_rule
def vae_eval(m: dict, limit: Limits) -> Iterator[Evidence]:
    training = m["training"]
    if training:
        yield say("fail", "mode/training", count=len(training), names=training[:5] + ["…"] * (len(training) > 5))
    elif m["trainable"]:
        yield say("warn", "mode/trainable", count=m["trainable"])
    else:
        yield say("pass", "mode/eval")
