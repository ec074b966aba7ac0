"""Score the report on the corpus: is the right cause ranked first, and are healthy runs left alone?

python tests/corpus/score.py OUT [tune|held]     # OUT: written by make.py
"""

import json
import sys
import warnings
from pathlib import Path

from fmpipe.diagnose import report

# The finding of the report that names a cause of causes.md.
SLUGS = {
    "loss/nonfinite": "nan_loss",
    "trend/rise": "divergence",
    "loss/drop": "divergence",
    "trend/spikes": "loss_spikes",
    "trend/jump": "loss_spikes",
    "loss/outliers": "loss_spikes",
    "trend/flat": "no_learning",
    "lr/small": "lr_too_small",
    "lr/high": "lr_too_high",
    "lr/restart": "lr_restart",
    "overfit/turn": "overfitting",
    "inference/val": "overfitting",
    "overfit/periodic": "periodic_memorisation",
    "gradient/exploding": "grad_explosion",
    "gradient/growing": "grad_explosion",
    "gradient/nonfinite": "nan_loss",
    "gradient/vanishing": "grad_vanishing",
    "run/overflow": "amp_overflow",
    "run/scratch": "resume_from_scratch",
    "loss/stopped": "self_stopped",
    "run/stopped": "self_stopped",
    "run/lost": "metrics_lost",
    "run/ema": "ema_broken",
    "gradient/share": "weak_gradient_share",
    "gradient/still": "head_not_updated",
    "gradient/teacher": "teacher_collapsed",
    "dino/uniform": "teacher_uniform",
    "dino/student": "student_saturated",
    "kl/drift": "kl_not_acting",
    "kl/mu": "kl_not_acting",
    "kl/prior": "posterior_collapse",
    "kl/std": "sigma_collapse",
    "kl/clamp": "sigma_collapse",
    "kl/outside": "sigma_collapse",
    "leak/cos": "z0_leak",
    "scale/norms": "scale_mismatch",
    "scale/start": "scale_mismatch",
    "scale/stds": "scale_mismatch",
    "field/other": "wrong_target",
    "scale/factor": "latent_scale_factor",
    "scale/latents": "latent_scale_factor",
    "scale/psnr": "vae_roundtrip",
    "check/vae_round_trip": "vae_roundtrip",
    "text/means": "text_ignored",
    "check/text_path": "text_ignored",
    "condition/gain": "condition_unused",
    "field/weak": "weak_field",
    "inference/cos": "weak_field",
    "inference/speed": "weak_field",
    "check/one_step": "weak_field",
    "check/shooting": "weak_field",
    "field/target": "wrong_target",
    "field/moving": "moving_target",
    "slices/ends": "t_edges",
    "time/mean": "time_sampling",
    "time/std": "time_sampling",
    "time/range": "time_sampling",
    "input/pixels": "input_range",
    "input/mean": "input_range",
    "input/std": "input_range",
    "schedule/betas": "schedule_constants",
    "schedule/end": "schedule_constants",
    "schedule/agree": "schedule_constants",
    "trace/rounded": "bf16_rounding",
    "trace/still": "bf16_rounding",
    "check/teacher_euler": "bf16_rounding",
    "trace/sum": "step_schedule",
    "trace/symmetry": "step_schedule",
    "inference/steps": "train_infer_mismatch",
    "inference/endpoint": "train_infer_mismatch",
}


def first_cause(path: Path) -> tuple[str, str]:
    """Return the slug of the cause that the report ranks first ("none" if it confirms nothing), and its finding."""
    for hypothesis in report.judge(report.read(path)):
        if hypothesis:
            said = next(e for e, ok in zip(hypothesis.evidence, hypothesis.marks, strict=True) if not ok)
            while said.key == "stage":
                said = said.values["said"]
            return SLUGS.get(said.key, f"? {said.key}"), str(said)
    return "none", ""


def score(folder: Path) -> tuple[int, int, int, int]:
    """Return (right, faulty, false positives, healthy), and print every miss."""
    right = faulty = false = healthy = 0
    for case in json.loads((folder / "manifest.json").read_text()):
        try:
            found, said = first_cause(folder / case["path"])
        except Exception as error:
            found, said = "unreadable", str(error)
        wanted = [case["expected"], *case["acceptable"]]
        ok = found in wanted
        if case["healthy"]:
            healthy, false = healthy + 1, false + (not ok)
        else:
            faulty, right = faulty + 1, right + ok
        if not ok:
            print(f"{case['id']} ({case['format']}): {' or '.join(wanted)}, got {found}: {said[:140]}")
    return right, faulty, false, healthy


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for half in sys.argv[2:] or ["tune"]:
        right, faulty, false, healthy = score(Path(sys.argv[1]) / half)
        print(f"{half}: right cause first {right} of {faulty} ({right / faulty:.0%}), false positives {false} of {healthy}")
