"""Every threshold of the rules, in one table. ``--set name=value`` and ``overrides`` replace rows of it."""

import difflib
from collections.abc import Mapping
from types import MappingProxyType

Overrides = Mapping[str, float] | None
Limits = Mapping[str, float]

THRESHOLDS: Limits = MappingProxyType(
    {
        # the autoencoder
        "vae/psnr_warn": 25.0,  # dB of decode(encode(x)); the debugging notes: 29.08
        "vae/psnr_fail": 20.0,
        "vae/latent_std_low": 0.3,  # of scaled latents, which should be near 1
        "vae/latent_std_high": 3.0,
        "vae/contract_db": 1.0,  # dB that decode(z) must be better than decode(z * scale) and decode(z / scale)
        "latent/rounding": 1e-3,  # noise below this part of a latent is not told from rounding
        "latent/tie": 0.05,  # nats an element by which a sample may fit worse than another explanation of z1
        "latent/rms_low": 0.8,  # of (z1 - mean) / std, which is 1 for a sample
        "latent/rms_high": 1.25,
        "latent/alike": 0.65,  # least cosine of the flow's ends with x1 for comparing their lengths
        "latent/left": 0.3,  # of x0 that may be left in the flow's ends: with more of it, the field is to blame
        "latent/apart": 1.4,  # of one length to the other, at most; 1.15 / cosine if that is more
        # text, data
        "text/cos": 0.9,  # mean pairwise cosine of z_text of different prompts, below
        "data/pairing": 0.0,  # score of true pairs less that of shuffled ones, above
        "data/pairing_fail": 2.0,  # standard errors by which it must be above
        "data/pairing_warn": 4.0,
        "data/same": 0.01,  # rms of the difference of two paths' images / their std, at most
        "data/alike": 0.95,  # correlation that names how they differ
        "data/range": 0.01,  # by which pixels may leave [-1, 1]
        # the field
        "scale/ratio": 3.0,  # largest / smallest of E|z0|, E|z1|, E|x_t|, E|v*|, at most
        "one_step/cos": 0.5,
        "one_step/ratio_low": 0.5,
        "one_step/ratio_high": 2.0,
        "shooting/relative": 0.5,  # MSE(z_end, x1) / MSE(x0, x1), below
        "shooting/fall": 0.95,  # that with the calibrated gain / without, at most, to count as falling
        "teacher/growth": 3.0,  # MSE at N = 100 / MSE at N = 5, at most
        "teacher/floor": 1e-7,  # of MSE(x0, x1): smaller errors count as this one
        "teacher/relative": 0.01,  # of MSE(x0, x1), at most
        "target/margin": 0.1,  # cosine with the velocity above that with any other target
        "endpoint/rise": 1.05,  # RMSE at a K / that at the K before, at most
        "endpoint/creep": 1.15,  # RMSE at a K / the least of smaller K, at most
        "endpoint/floor": 1e-3,  # of RMSE(x0, x1): smaller errors may do anything
        "condition/gain": 0.0,  # cos(cond) - cos(shuffled), above
        "condition/loss": 0.005,  # loss with shuffled conditions / with the right ones, less 1, above
        "condition/weak": 0.02,  # below, it may be chance
        "condition/printed": 0.005,  # gain in a study that was printed, on many samples, above
        "leak/cos": 0.9,
        "leak/relative": 0.5,
        "leak/std": 0.3,
        "probes/contrast": 0.05,  # std over pixels in [-1, 1] of a decoded latent, above
        "probes/range": 1.5,  # |pixel| of a decoded latent, at most; 1 is white, and decoders overshoot
        "probes/first_step": 1e-4,  # rms of the first step's change / rms of z0, above
        "precision/psnr": 42.0,  # dB of the worst picture in a lower precision to that in the network's own dtype
        # training
        "gradient_path/leak": 1e-6,  # norm of d target / d x1, of d KL / d eps, at most
        "kl/there": 0.1,  # distance of mu/abs_mean, std/mean, logvar/mean from 0, 1, 0 that needs no trend, at most
        "kl/z_mean": 0.1,  # |mean| of z_init, at most
        "kl/z_var_low": 0.5,
        "kl/z_var_high": 2.0,
        "kl/collapse_std": 0.05,  # std/mean below
        "kl/clamped": 0.5,  # share of logvar at its clamp, at most
        "dino/entropy": 0.05,  # of log K, above
        "share/warn": 0.10,  # grad/one / grad/total
        "share/fail": 0.05,
        "share/dino_low": 0.2,  # of grad/flow
        "share/dino_high": 0.5,
        "share/kl_low": 0.1,
        "share/kl_high": 0.3,
        "share/over": 5.0,  # times the upper end of its band, above which a logged share warns
        "update/ratio": 1e-5,  # median over the last steps of |change| / |parameter|, above
        "update/jump": 1e-1,  # the same median, at most
        "time/rms": 3.0,  # rms of the time embedding / rms of the features it is added to, at most
        "loss/ratio": 100.0,  # largest / smallest weighted loss, at most
        "overflow/skipped": 0.05,  # share of optimizer steps skipped for overflow, at most
        "overflow/scale": 1.0,  # of a GradScaler at the end, at least
        "overfit/loss": 0.5,  # last / first flow MSE, below
        "overfit/cos": 0.5,  # at the end, above
        "overfit/kl": 3.0,  # largest / smallest KL, at most
        "ablation/drop": 0.05,  # of cos or a relative loss, that counts as a change
        "ablation/gain": 0.02,  # of cos by the right condition, at or below which it is noise
        "ablation/dino": 0.1,  # of shuffled loss/dino - ent/teacher, that the right targets must save
        "ablation/left": 0.5,  # share of the KL's trend that may be left at w_kl = 0
        # logs
        "input/mean": 0.25,  # |median mean| of latents, at most
        "input/std_low": 0.65,  # median std of latents; the debugging notes' 1.19, SD's VAE at CrossFlow's factor 1.26
        "input/std_high": 1.5,
        "time/mean": 0.03,  # of the range of t, in addition to four standard errors
        "time/std": 0.03,
        "forward/mean": 0.05,  # of a diffusion's noise
        "forward/std": 0.1,
        "forward/reach": 1.45,  # largest |x_t| / largest |end|: √2 where √ᾱ and √(1 - ᾱ) meet
        "forward/misfit": 0.15,  # of the std of x_t from what its ends and t give
        "output/low": 0.2,  # std of the prediction / of its target, at the end
        "output/high": 2.0,
        "schedule/relative": 0.02,  # of a constant from what the others give
        "schedule/end": 0.01,  # alphas_cumprod at the last step, at most
        "gradient/vanishing": 1e-4,  # late / early norm of all of them, at least, once the loss has stopped falling
        "gradient/exploding": 30.0,  # largest of the last three quarters / median of the first, at most
        "gradient/growth": 8.0,  # late / early norm of gradients that grow for the whole run
        "kl/mu": 3.0,  # mu/rms, at most; the prior's z has 1
        "kl/formula": 0.25,  # spread of loss/kl / the KL that mu and logvar give, at most
        "trace/moves": 0.4,  # share of steps at which |x| is not what it was, at least
        "trace/displaced": 0.1,  # |x| at the end less at the beginning / Σ|v| dt: below, with so few moves, it is stuck
        "trace/far": 10.0,  # |x| / as far as the first velocity leads, at most
        "trace/lost": 0.1,  # of a step's change, to rounding
        "trace/sum": 0.025,  # of Σ|dt| from 1; the logit-normal grid's is 0.983
        "lr/least": 1e-8,  # the highest LR of a run, at least
        "lr/small": 3e-7,  # the same, where the loss does not fall either
        "lr/high": 5e-4,  # a rough loss is blamed on an LR of at least this
        "lr/swing": 1.0,  # 5th to 95th percentile of loss / level at such an LR
        "lr/jump": 2.5,  # LR / the one before, of a restart
        "trend/flat": 0.03,  # of the loss, the least fall that counts
        "trend/low": 0.5,  # a flat loss below this is that of a trained model; untrained, it is 1 to 2
        "trend/rise": 1.2,  # loss at the end / its lowest level
        "trend/spike": 3.0,  # loss / its level
        "trend/spikes": 0.004,  # share of the last half that may be spikes
        "overfit/quality": 1.15,  # FID at the end / its lowest, and the highest CLIP score / the last
        "overfit/turn": 1.06,  # held-out loss at the end / its lowest
        "overfit/few": 1.1,  # the same with fewer than five values, which must rise one by one
        "overfit/period": 0.4,  # correlation of the loss with itself, a period earlier
        "overfit/exact": 0.95,  # the same, from which on a period that may not be the epoch fails
        "run/lost": 0.15,  # of the run, for which a metric is missing at the end
        "overflow/low": 512.0,  # a loss scale above this at the end has only been searched for
        "overflow/fall": 256.0,  # highest loss scale / the last
        "overflow/share": 0.3,  # of the steps that were skipped
        "ema/behind": 0.6,  # of the raw weights' gain, by which the averaged ones may be behind
        "slices/ratio": 2.5,  # nmse at an end of the path / in its middle
        "slices/cos": 0.35,  # cos in the middle less that at an end
        "target/sign": 0.2,  # a cosine below minus this is another target
        "target/moving": 0.45,  # |v*| at the end / at the beginning, at least
        "kl/prior_mu": 0.06,  # mu/abs_mean below which, with sigma near 1, the posterior is the prior
        "kl/prior_std": 0.06,  # distance of std/mean from 1
        "kl/prior_nats": 0.01,  # KL per element of an autoencoder's latent, at least
        "kl/drift": 2.5,  # mu/abs_mean at the end / at the beginning, at most, where only the KL holds it
        "kl/away": 0.3,  # by which std/mean and logvar/mean may move away from the prior
        "dino/uniform": 0.985,  # of log K, at most
        "scale/start": 3.0,  # |x| at step 0 / 0.8, or between two traces, at most
        "scale/factor": 0.1,  # relative distance of a latent's std from a known scale factor that names it
        "inference/left": 2.2,  # MSE(z_end, z1) / MSE(z0, z1), at most: another picture of the same text has up to 2
        "inference/slow": 0.6,  # flow/speed_ratio / flow/cos, at least: the best prediction of a cosine c has length c
        "inference/good": 0.7,  # from this flow/cos on, the endpoint error must have fallen during training
        "inference/unexplained": 0.35,  # MSE(z_end, z1) / MSE(z0, z1) left by a good field, plus 1.5 (1 - cos²)
        "inference/learnt": 0.2,  # least flow/cos for judging the others
        "inference/fast": 2.0,  # flow/speed_ratio, at most
        "inference/cos": 0.1,  # flow/cos after inference/steps, at least
        "inference/steps": 500,
        "inference/val": 5.0,  # held-out loss / training loss, at most
        # the band of reference runs
        "reference/widen": 3.0,  # standard deviations beyond the lowest and highest run; more for few runs
        "reference/least": 0.1,  # by which it is at least wider: of the value, or of the range of a cosine
        "reference/single": 2.0,  # factor of the band around a single run, for positive metrics
        "reference/single_range": 0.4,  # the same for the others, of the range of the curve
        "reference/points": 3.0,  # consecutive points outside that count as leaving the band
    }
)


def limits(overrides: Overrides = None) -> dict[str, float]:
    """Return :data:`THRESHOLDS` with some rows replaced. KeyError for an unknown name, with the nearest known one."""
    for name in overrides or {}:
        if name not in THRESHOLDS:
            near = difflib.get_close_matches(name, THRESHOLDS, 1, 0.0)
            raise KeyError(f"limits: there is no threshold {name!r}; the nearest is {near[0]!r}")
    return {**THRESHOLDS, **(overrides or {})}
