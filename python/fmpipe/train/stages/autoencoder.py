"""The stage ``vae``: trains an AutoencoderKL."""

from pathlib import Path

import torch
from diffusers import AutoencoderKL
from torch import nn

from fmpipe.train.batches import PixelBatches
from fmpipe.train.config import Autoencoder, Config
from fmpipe.train.inputs import StageInputs
from fmpipe.train.loss_weights import LossWeights
from fmpipe.train.objective import VAEObjective
from fmpipe.train.stages.base import IMAGES, Stage, on_device_of, save_sheet
from fmpipe.vae import LatentVAE

FIRST_LOGVAR = -6.0  # with an initial sigma of 1, noise would hide what the encoder finds first
SCALE_BATCHES = 32  # for the mean and std of the latents


def build_vae(settings: Autoencoder) -> AutoencoderKL:
    count = len(settings.widths)
    return AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * count,
        up_block_types=["UpDecoderBlock2D"] * count,
        block_out_channels=settings.widths,
        layers_per_block=settings.layers,
        norm_num_groups=settings.groups,
        latent_channels=settings.channels,
        mid_block_add_attention=False,
    )


class VAEStage(Stage):
    """Trains an AutoencoderKL; leaves a :class:`LatentVAE` whose latents have mean 0 and std 1 in every channel."""

    name = "vae"

    def __init__(self, config: Config, inputs: StageInputs):
        super().__init__(config, inputs)
        settings, model, self.optim, self.val = config.vae, build_vae(config.vae), config.vae.optim, inputs.val
        with torch.no_grad():
            model.quant_conv.bias[settings.channels :] = FIRST_LOGVAR
        inputs.load_start(vae=model)
        side = config.data.size // 2 ** (len(settings.widths) - 1)
        source, batch, latent = inputs.source, self.optim.batch, (settings.channels, side, side)
        self.batches = PixelBatches(source, inputs.train, batch, latent, config.seed, settings.augment)
        self.held_out = PixelBatches(source, self.val, min(batch, len(self.val)), latent, config.seed + 1)
        self.weights = LossWeights({"l1": settings.l1, "mse": settings.mse, "kl": settings.kl}, self.optim.steps)
        self.heads = {"encoder": "vae.encoder.conv_out", "decoder": "vae.decoder.conv_out"}
        self.objective = VAEObjective(model)

    def draw(self, objective: nn.Module, path: Path) -> None:
        batch = on_device_of(objective, self.held_out(0))
        images, decoded = batch["pixels"][:IMAGES], objective(**batch).tensors["decoded"][:IMAGES]
        captions = ["image"] * len(images) + ["decoded"] * len(decoded)
        save_sheet(torch.cat([images, decoded]), captions, path, len(images))

    def finish(self, objective: nn.Module) -> Path:
        with torch.no_grad():
            batches = (on_device_of(objective, self.batches(k)) for k in range(SCALE_BATCHES))
            latents = torch.cat([objective(**batch).tensors["latent"] for batch in batches]).double()
        mean, std = latents.mean((0, 2, 3)).tolist(), latents.std((0, 2, 3)).tolist()
        objective.vae.register_to_config(scaling_factor=1.0, latents_mean=mean, latents_std=std)
        LatentVAE.from_diffusers(objective.vae).save_pretrained(self.result)
        return self.result
