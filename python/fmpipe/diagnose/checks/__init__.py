# ruff: noqa: F401  the checks are re-exported
"""Every check, by name: a function that measures, and judges what it measured by the rule of the same name.

All of them take ``overrides`` of thresholds and return a :class:`~fmpipe.diagnose.rule.Finding`.
"""

from fmpipe.diagnose.checks.autoencoder import latent_is_sample, scale_contract, vae_eval, vae_round_trip
from fmpipe.diagnose.checks.base import CHECKS
from fmpipe.diagnose.checks.data import image_range, pairing, same_augmentation, text_path, time_embedding
from fmpipe.diagnose.checks.field import condition_use, one_step, scale, target_definition
from fmpipe.diagnose.checks.sampling import endpoint, latent_scale, leak, precision, probes, shooting, teacher_euler
from fmpipe.diagnose.checks.training import (
    ablation_condition_shuffled,
    ablation_dino_shuffled,
    ablation_kl_off,
    ablation_only_flow,
    dino,
    gradient_path,
    gradient_shares,
    kl,
    loss_magnitudes,
    overfit,
    overflow,
    update_ratios,
)

__all__ = ["CHECKS", *CHECKS]
