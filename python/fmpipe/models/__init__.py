"""Velocity networks and text heads: CrossFlow's keys and results, on fmkernels' ops."""

from fmpipe.models.checkpoint import load_checkpoint
from fmpipe.models.dimr import DiMR
from fmpipe.models.dimr_stage import StageConfig
from fmpipe.models.dit import DiT
from fmpipe.models.mixture_head import Mixture, MixtureHead
from fmpipe.models.networks import CheckpointError, Networks
from fmpipe.models.presets import PRESETS, Preset, build
from fmpipe.models.text_head import LinearHead, TextHead, VariationalHead

__all__ = [
    "PRESETS",
    "CheckpointError",
    "DiMR",
    "DiT",
    "LinearHead",
    "Mixture",
    "MixtureHead",
    "Networks",
    "Preset",
    "StageConfig",
    "TextHead",
    "VariationalHead",
    "build",
    "load_checkpoint",
]
