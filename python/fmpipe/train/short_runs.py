"""Short runs that show whether a long one is worth it: memorize a few images, or leave out one part at a time."""

import copy
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path

from fmpipe.diagnose import checks
from fmpipe.diagnose.rule import Finding
from fmpipe.run_log import history_of, read_log
from fmpipe.text.meta_query import QUERIES
from fmpipe.train.config import LOSSES, Config, Losses
from fmpipe.train.lock import locked
from fmpipe.train.run import OnLog, run

SAMPLES = 128  # of the debugging notes
ABLATION_STEPS = 200  # of the debugging notes


def overfit(
    config: Config, *, samples: int = SAMPLES, on_log: OnLog | None = None, device: str | None = None
) -> list[Finding]:
    """Train the flow on ``samples`` items only; the run is written to ``out/overfit``."""
    return [checks.overfit(_history(_trial(config, "overfit"), samples, on_log, device))]


def ablate(
    config: Config, *, steps: int = ABLATION_STEPS, on_log: OnLog | None = None, device: str | None = None
) -> list[Finding]:
    """Run the ablations of the debugging notes (flow loss alone, no KL, shuffled conditions) in ``out/ablate-…``.

    Conditions are shuffled in a run with all losses of the config, because the use of a text depends on the losses that
    train the head. For ``dino``, every text gets the targets of another image.
    """
    whole = _trial(config, "ablate-none", steps)
    as_given = _history(whole, None, on_log, device)
    if "flow/cond_gain_cos" not in as_given:
        raise ValueError(
            "ablate: conditions can only be shuffled in a batch of two or more held-out images; raise data.val, got "
            f"{config.data.val}, or flow.optim.batch, got {config.flow.optim.batch}"
        )
    # With detach, the flow loss never trains the text side, so the flow needs that of the first run to reach z1.
    alone, head, trained = flow_alone(config, steps), None, Path(whole.out) / "pipeline"
    if config.flow.losses.detach:
        head = trained / "text_head"
        if (trained / "text_encoder" / QUERIES).is_file():  # the head reads the encoder that was trained with it
            alone.flow.encoder = str(trained / "text_encoder")
    flow = _history(alone, None, on_log, device, head)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "start: the text head of .* had")  # another std_range, intended
        kl = [_history(trial, None, on_log, device) for trial in kl_trials(config, steps, f"{whole.out}/pipeline")]
    cos, gain = (as_given[name][-1] for name in ("val/flow/cos", "flow/cond_gain_cos"))
    found = [
        checks.ablation_only_flow(flow),
        checks.ablation_kl_off(*kl),
        checks.ablation_condition_shuffled(cos, cos - gain),
    ]
    if "val/ent/shuffled" in as_given:
        names = ("val/loss/dino", "val/ent/shuffled", "val/ent/teacher")
        found.append(checks.ablation_dino_shuffled(*(as_given[name][-1] for name in names)))
    return found


def flow_alone(config: Config, steps: int) -> Config:
    """Return a config with the flow loss alone: every other weight is 0, and the weights are constant."""
    alone = _trial(config, "ablate-flow", steps)
    _off(alone.flow.losses, *(name for name in LOSSES if name != "flow"))
    return alone


def _off(losses: Losses, *names: str) -> None:
    """Set weights to 0, and switch off what only these losses use."""
    for name in names:
        setattr(losses, name, 0.0)
    losses.others, losses.weighting = 0, "constant"


def kl_trials(config: Config, steps: int, start: str) -> tuple[Config, Config]:
    """Return two configs, with the KL and without it, in which the effect of the KL on the head is visible.

    Both start with the head of a pipeline, away from the prior, and without anything else that bounds or moves mu and
    sigma: every loss except flow and KL, ``mu_rms``, and the upper end of ``std_range`` (1 instead).
    """
    with_kl, without = (_trial(config, f"ablate-{name}", steps) for name in ("kl", "no-kl"))
    for trial in (with_kl, without):
        trial.start, losses, head = start, trial.flow.losses, trial.flow.head
        _off(losses, *(name for name in LOSSES if name not in ("flow", "kl")))
        head.pop("mu_rms", None)
        if head.get("std_range"):
            head["std_range"] = [head["std_range"][0], 1.0]
    with_kl.flow.losses.kl, with_kl.flow.losses.kl_warmup = config.flow.losses.kl or 1e-2, 0.0
    without.flow.losses.kl = 0.0
    return with_kl, without


def _trial(config: Config, name: str, steps: int | None = None) -> Config:
    """Return a config with the flow stage alone, in another folder, with the run's autoencoder and frequent logs."""
    trial = copy.deepcopy(config)
    own = Path(config.out) / "vae" / "result"
    if not config.vae.path and (own.is_dir() or not config.start):
        trial.vae.path = str(own)
    trial.out, trial.stages = str(Path(config.out) / name), ["flow"]
    trial.flow.optim.steps = steps or trial.flow.optim.steps
    often = max(1, trial.flow.optim.steps // 20)
    trial.every.log, trial.every.validate, trial.every.save, trial.every.sample = often, 2 * often, 0, 0
    return trial


def _history(
    trial: Config, samples: int | None, on_log: OnLog | None, device: str | None, head: Path | None = None
) -> dict[str, Sequence[float]]:
    """Run a trial and return its metrics by name. head: a trained text head, which is not trained further."""
    trial.data.limit = samples
    with locked(Path(trial.out)):
        shutil.rmtree(trial.out, ignore_errors=True)  # of an earlier run
    if head is not None:
        shutil.copytree(head, Path(trial.out) / "head" / "result")
    run(trial, on_log=on_log, device=device)
    return history_of(read_log(Path(trial.out) / "flow"))
