"""Score the report on a corpus: is the right cause ranked first, and are healthy runs left alone?

python tests/corpus/score.py FOLDER...     # each with a manifest.json, as make.py writes them
"""

import json
import sys
import warnings
from pathlib import Path

from fmpipe.diagnose.engine import judge
from fmpipe.diagnose.read import read
from fmpipe.diagnose.rule import Finding

# The cause of causes.md that a rule names, and, where it names several, that of its evidence.
RULES = {
    "vae_round_trip": "vae_roundtrip", "vae_eval": "vae_roundtrip", "scale_contract": "latent_scale_factor",
    "scale_factor": "latent_scale_factor", "latent_is_sample": "scale_mismatch", "latent_scale": "latent_scale_factor",
    "scale": "scale_mismatch", "target_definition": "wrong_target", "moving_target": "moving_target",
    "text_path": "text_ignored", "pairing": "condition_unused", "time_sampling": "time_sampling",
    "overflow": "amp_overflow", "self_stopped": "self_stopped", "resumed": "resume_from_scratch",
    "metrics_lost": "metrics_lost", "ema": "ema_broken", "input_range": "input_range", "image_range": "input_range",
    "kl": "kl_not_acting", "gradient_path": "moving_target", "gradient_shares": "weak_gradient_share",
    "update_ratios": "head_not_updated", "teacher_euler": "bf16_rounding", "sampler_state": "bf16_rounding",
    "leak": "z0_leak", "condition_use": "condition_unused", "endpoint": "train_infer_mismatch",
    "step_sizes": "step_schedule", "one_step": "weak_field", "shooting": "weak_field", "probes": "weak_field",
    "loss_numerics": "nan_loss", "time_slices": "t_edges", "schedule_constants": "schedule_constants",
    "generalization": "overfitting", "memorization": "periodic_memorisation",
}  # fmt: skip
EVIDENCE = {
    "trend/rise": "divergence", "trend/spikes": "loss_spikes", "trend/jump": "loss_spikes", "trend/flat": "no_learning",
    "lr/small": "lr_too_small", "lr/high": "lr_too_high", "lr/restart": "lr_restart", "step/backwards": "wrong_target",
    "gradient/exploding": "grad_explosion", "gradient/growing": "grad_explosion", "gradient/nonfinite": "nan_loss",
    "gradient/vanishing": "grad_vanishing", "dino/peaked": "teacher_collapsed", "dino/uniform": "teacher_uniform",
    "dino/student": "student_saturated", "kl/prior": "posterior_collapse", "kl/collapse": "sigma_collapse",
    "kl/clamp": "sigma_collapse", "kl/outside": "sigma_collapse", "kl/clamped": "sigma_collapse",
    "teacher/schedule": "step_schedule", "trace/nonfinite": "nan_loss", "trace/far": "step_schedule",
}  # fmt: skip


def cause(finding: Finding) -> str:
    key = finding.bad[0].message.key
    return EVIDENCE.get(key) or RULES.get(finding.name, f"? {finding.name} {key}")


def first_cause(path: Path) -> tuple[str, str]:
    """Return the cause that the report ranks first ("none" if it confirms nothing), and its evidence."""
    first = judge(read(path))[0]
    return (cause(first), first.bad[0].message) if first.status == "fail" else ("none", "")


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
    for folder in map(Path, sys.argv[1:]):
        right, faulty, false, healthy = score(folder)
        print(f"{folder}: right cause first {right} of {faulty} ({right / faulty:.0%}), false positives {false} of {healthy}")
