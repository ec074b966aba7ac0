"""The stages of a run, by their names in the config. A stage is a class: ``STAGES[name](config, inputs)``."""

from fmpipe.train.stages.autoencoder import VAEStage, build_vae
from fmpipe.train.stages.base import Stage
from fmpipe.train.stages.diffusion import DiffusionStage
from fmpipe.train.stages.text_to_image import FlowStage, HeadStage, build_head

STAGES = {stage.name: stage for stage in (VAEStage, HeadStage, FlowStage, DiffusionStage)}

__all__ = ["STAGES", "DiffusionStage", "FlowStage", "HeadStage", "Stage", "VAEStage", "build_head", "build_vae"]
