"""Short runs that tell whether a long one is worth it: a small set learnt by heart, and a part left out at a time."""

import copy
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path

from fmpipe.diagnose import checks
from fmpipe.diagnose.log import history_of, read_log
from fmpipe.diagnose.rule import Finding
from fmpipe.train.config import Config
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
    """The three ablations of the debugging notes: flow loss alone; no KL; shuffled condition. In ``out/ablate-…``."""
    alone = _trial(config, "ablate-flow", steps)
    losses = alone.flow.losses
    losses.kl = losses.contrastive = losses.dino = losses.norm = 0.0
    flow = _history(alone, None, shown, device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "start: the text head of .* had")  # another std_range: meant so
        kl = [_history(trial, None, shown, device) for trial in kl_trials(config, steps, f"{alone.out}/pipeline")]
    gain = flow["flow/cond_gain_cos"][-1]
    return [
        checks.ablation_only_flow(flow),
        checks.ablation_kl_off(*kl),
        checks.ablation_condition_shuffled(flow["val/flow/cos"][-1], flow["val/flow/cos"][-1] - gain),
    ]


def kl_trials(config: Config, steps: int, start: str) -> tuple[Config, Config]:
    """With the KL and without it, the KL to be seen moving the head.

    So both begin with the head of a pipeline, away from the prior, and what else holds mu and sigma is left out:
    ``anchor``, ``match``, ``mu_rms``, and the upper end of ``std_range`` (1 instead).
    """
    with_kl, without = (_trial(config, f"ablate-{name}", steps) for name in ("kl", "no-kl"))
    for trial in (with_kl, without):
        trial.start, losses, head = start, trial.flow.losses, trial.flow.head
        losses.anchor = losses.match = losses.others = 0
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


def _history(trial: Config, samples: int | None, shown: Shown | None, device: str | None) -> dict[str, Sequence[float]]:
    trial.data.limit = samples
    shutil.rmtree(trial.out, ignore_errors=True)  # of an earlier try
    run(trial, shown=shown, device=device)
    return history_of(read_log(Path(trial.out) / "flow"))
