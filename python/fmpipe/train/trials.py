"""Short runs that tell whether a long one is worth it: a small set learnt by heart, and a part left out at a time."""

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
from fmpipe.train.run import Shown, run

SAMPLES = 128  # of the debugging notes
ABLATION_STEPS = 200  # of the debugging notes


def overfit(
    config: Config, *, samples: int = SAMPLES, shown: Shown | None = None, device: str | None = None
) -> list[Finding]:
    """Trains the flow on ``samples`` items alone; the run goes to ``out/overfit``."""
    return [checks.overfit(_history(_trial(config, "overfit"), samples, shown, device))]


def ablate(
    config: Config, *, steps: int = ABLATION_STEPS, shown: Shown | None = None, device: str | None = None
) -> list[Finding]:
    """The ablations of the debugging notes: the flow loss alone; no KL; conditions shuffled. In ``out/ablate-…``.

    Conditions are shuffled in a run with all of the config's losses: what a field or a student makes of a text depends
    on what trains the head. For ``dino``, every text gets the targets of another image.
    """
    whole = _trial(config, "ablate-none", steps)
    as_given = _history(whole, None, shown, device)
    if "flow/cond_gain_cos" not in as_given:
        raise ValueError(
            "ablate: conditions can only be shuffled in a batch of two or more held-out images; raise data.val, got "
            f"{config.data.val}, or flow.optim.batch, got {config.flow.optim.batch}"
        )
    # With detach, the flow loss never trains the text side: without the first run's, no endpoint could be reached.
    alone, head, trained = flow_alone(config, steps), None, Path(whole.out) / "pipeline"
    if config.flow.losses.detach:
        head = trained / "text_head"
        if (trained / "text_encoder" / QUERIES).is_file():  # the head reads the encoder that was trained with it
            alone.flow.encoder = str(trained / "text_encoder")
    flow = _history(alone, None, shown, device, head)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "start: the text head of .* had")  # another std_range: meant so
        kl = [_history(trial, None, shown, device) for trial in kl_trials(config, steps, f"{whole.out}/pipeline")]
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
    """With the flow loss alone: every other weight is 0, and nothing balances weights."""
    alone = _trial(config, "ablate-flow", steps)
    _off(alone.flow.losses, *(name for name in LOSSES if name != "flow"))
    return alone


def _off(losses: Losses, *names: str) -> None:
    """Set weights to 0, and leave out what only serves these losses."""
    for name in names:
        setattr(losses, name, 0.0)
    losses.others, losses.weighting = 0, "constant"


def kl_trials(config: Config, steps: int, start: str) -> tuple[Config, Config]:
    """With the KL and without it, the KL to be seen moving the head.

    So both begin with the head of a pipeline, away from the prior, and what else holds or moves mu and sigma is left
    out: every loss but the flow's and the KL, ``mu_rms``, and the upper end of ``std_range`` (1 instead).
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
    """The flow stage alone, in a folder of its own, with the run's autoencoder; logged and validated often."""
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
    trial: Config, samples: int | None, shown: Shown | None, device: str | None, head: Path | None = None
) -> dict[str, Sequence[float]]:
    """The log of a trial. head: a trained text head, which is kept as it is."""
    trial.data.limit = samples
    shutil.rmtree(trial.out, ignore_errors=True)  # of an earlier try
    if head is not None:
        shutil.copytree(head, Path(trial.out) / "head" / "result")
    run(trial, shown=shown, device=device)
    return history_of(read_log(Path(trial.out) / "flow"))
