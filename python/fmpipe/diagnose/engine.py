"""Judge every rule whose figures are known, find out which findings explain which, and rank them: root causes first."""

from collections.abc import Sequence
from dataclasses import replace

from fmpipe.diagnose import rules as _rules  # noqa: F401  registers them
from fmpipe.diagnose.figures import Figures
from fmpipe.diagnose.rule import REGISTRY, Finding, Rule
from fmpipe.diagnose.thresholds import Overrides, limits

_BROKEN = "loss_numerics gradients overflow learning_rate"
_LATENTS = "scale_contract latent_is_sample scale_factor latent_scale"
_FIELD = f"{_BROKEN} {_LATENTS} time_sampling target_definition moving_target gradient_path pairing text_path kl"
SMALL = 0.1  # an effect below which a root cause ranks behind the others

# The cause graph: the rules that would explain a failure of each rule (evidence may name others). The order of the
# rows is that in which several root causes are named.
CAUSES = {
    "vae_eval": "",
    "image_range": "",
    "scale_contract": "",
    "scale_factor": "scale_contract latent_is_sample image_range",
    "schedule_constants": "",
    "latent_is_sample": "scale_contract",
    "vae_round_trip": "scale_contract latent_is_sample scale_factor image_range vae_eval",
    "scale": f"{_LATENTS} kl gradients loss_numerics target_definition moving_target gradient_path",
    "latent_scale": "scale_contract latent_is_sample loss_numerics gradients kl",
    "target_definition": "text_path loss_numerics gradients scale_contract latent_scale latent_is_sample kl",
    "moving_target": "kl gradient_path",
    "text_path": "loss_numerics gradients kl",
    "pairing": f"text_path {_BROKEN} {_LATENTS} target_definition time_sampling gradient_shares kl",
    "time_sampling": "",
    "learning_rate": "",
    "overflow": "",
    "self_stopped": f"{_FIELD} scale",
    "resumed": "",
    "metrics_lost": "loss_numerics gradients overflow",
    "ema": "",
    "input_range": f"{_LATENTS} image_range scale",
    "same_augmentation": "",
    "forward_process": f"{_LATENTS} scale gradient_path input_range time_sampling schedule_constants",
    "kl": f"{_BROKEN} gradient_path text_path leak gradient_shares",
    "gradient_path": "loss_numerics",
    "dino": "loss_numerics",
    "gradients": "scale scale_factor overflow",
    "gradient_shares": f"dino {_BROKEN} {_LATENTS} scale",
    "update_ratios": "loss_numerics gradients learning_rate overflow",
    "loss_magnitudes": f"gradient_shares {_BROKEN} {_LATENTS} kl gradient_path leak",
    "teacher_euler": "loss_numerics",
    "sampler_state": "teacher_euler",
    "leak": f"{_LATENTS} {_BROKEN} gradient_path text_path target_definition one_step",
    "condition_use": f"{_FIELD} leak scale gradient_shares input_range one_step",
    "endpoint": f"{_FIELD} scale leak condition_use gradient_shares input_range sampler_state",
    "step_sizes": "teacher_euler",
    "one_step": f"{_FIELD} scale endpoint condition_use gradient_shares input_range schedule_constants resumed "
    "model_output forward_process",
    "shooting": f"{_FIELD} scale leak endpoint one_step condition_use gradient_shares",
    "shooting_gain": f"{_FIELD} scale leak endpoint one_step condition_use gradient_shares",
    "time_embedding": "",
    "probes": f"{_FIELD} scale endpoint one_step shooting vae_round_trip",
    "precision": "",
    "loss_numerics": "kl scale overflow",
    "time_slices": f"{_FIELD} scale leak",
    "model_output": f"{_FIELD} scale schedule_constants forward_process one_step input_range",
    "generalization": f"{_BROKEN} scale",
    "memorization": "",
    "loss_trend": f"{_FIELD} scale self_stopped resumed metrics_lost ema input_range image_range schedule_constants "
    "model_output generalization memorization condition_use one_step",
    "overfit": "",
    "ablation_only_flow": "",
    "ablation_kl_off": "",
    "ablation_condition_shuffled": "",
    "ablation_dino_shuffled": "",
}
RULES: dict[str, Rule] = {name: REGISTRY[name] for name in CAUSES}


def judge(figures: Figures, overrides: Overrides = None) -> list[Finding]:
    """Return the findings of all rules: failures, warnings, then what could not be judged, then what passed.

    Failures that no other failure explains come first, those with a large effect before those with a small one, each in
    the order of :data:`CAUSES`. KeyError for an unknown threshold.
    """
    limit = limits(overrides)
    found = {name: rule.judge(figures, limit) for name, rule in RULES.items()}
    causes = _causes({name: f for name, f in found.items() if f.status == "fail"})
    out = [replace(f, causes=causes.get(name, ())) for name, f in found.items()]
    order = ("fail", "warn", "skipped", "pass").index
    return sorted(out, key=lambda f: (order(f.status), bool(f.causes), f.status == "fail" and f.effect < SMALL))


def judged(name: str, overrides: Overrides = None, figures: Figures | None = None, **measured: object) -> Finding:
    """Return the finding of one rule on measured numbers."""
    figures = figures or Figures()
    return RULES[name].judge(replace(figures, measured={name: measured} if measured else {}), limits(overrides))


def _causes(bad: dict[str, Finding]) -> dict[str, tuple[str, ...]]:
    """Return which failure is a consequence of which; of those that only explain each other, the first is a root."""
    causes = {}
    for name, finding in bad.items():
        rows = [e.causes if e.causes is not None else CAUSES[name].split() for e in finding.bad]
        explained = [[c for c in row if c in bad and c != name] for row in rows]
        causes[name] = tuple(dict.fromkeys(c for cs in explained for c in cs)) if all(explained) else ()
    reached = {name for name in bad if not causes[name]}
    while len(reached) < len(bad):
        more = {name for name in bad if reached & set(causes[name])} - reached
        if not more:
            above = {name: _above(name, causes) for name in bad if name not in reached}
            first = next(name for name, cs in above.items() if all(name in above[c] for c in cs))
            causes[first], more = (), {first}
        reached |= more
    # Two that explain each other, and a third that explains one of them: the nearer to it is the cause.
    return {name: tuple(c for c in cs if name not in causes[c]) or cs for name, cs in causes.items()}


def _above(name: str, causes: dict[str, tuple[str, ...]]) -> set[str]:
    """Return everything that explains a failure, directly or not."""
    found, new = set(), set(causes[name])
    while new:
        found |= new
        new = {c for n in new for c in causes[n]} - found
    return found


def evaluated(findings: Sequence[Finding]) -> tuple[int, int]:
    """Return how many rules could be judged, and how many there are."""
    return sum(f.status != "skipped" for f in findings), len(findings)
