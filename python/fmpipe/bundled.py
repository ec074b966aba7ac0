"""The parts of pipelines that come with the package, by name."""

import warnings

import torch

from fmpipe.models import DiMR, TextHead
from fmpipe.models.presets import PRESETS
from fmpipe.text import MiniLMText
from fmpipe.vae import CROSSFLOW_SCALE, LatentVAE

TOKENS = 32


def random_parts() -> dict:
    """64 × 64 pixels, MiniLM's real weights, everything behind it random: it runs, and draws nothing."""
    from diffusers import AutoencoderKL

    text_encoder = MiniLMText.from_pretrained(tokens=TOKENS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = TextHead(
            width=text_encoder.dim, tokens=TOKENS, latent_shape=(4, 8, 8), blocks=2, hidden=256, heads=4, reductions=2
        )
        net = DiMR(**PRESETS["small_dimr"].velocity_config)
        vae = AutoencoderKL(
            down_block_types=["DownEncoderBlock2D"] * 4,
            up_block_types=["UpDecoderBlock2D"] * 4,
            block_out_channels=[16] * 4,
            layers_per_block=1,
            norm_num_groups=4,
            latent_channels=4,
        )
    vae = LatentVAE.from_diffusers(vae, CROSSFLOW_SCALE)
    return {"text_encoder": text_encoder, "text_head": head.eval(), "velocity_net": net.eval(), "vae": vae}


def parts(name: str) -> dict:
    """The arguments of the pipeline of that name; KeyError if there is none."""
    make = BUNDLED[name]
    if make is random_parts:
        warnings.warn(
            f"the pipeline {name!r} has no trained weights yet: a small random one stands in, and draws noise",
            stacklevel=3,
        )
    return make()


BUNDLED = {"default": random_parts}
