"""A world small enough to train in seconds: captioned pictures, an encoder, an autoencoder, and the real trainer."""

import hashlib
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from fmkernels.flow import NonFiniteError
from fmpipe.data.source import Item, digest_of, to_pixels
from fmpipe.text import check_prompts
from fmpipe.train import inputs, settings
from fmpipe.train.alarms import StoppedError
from fmpipe.train.batches import drawn
from fmpipe.train.config import Config, Data, Diffusion, Every, Flow, Group, Losses, Optim
from fmpipe.train.loop import Trainer
from fmpipe.train.stages import STAGES
from fmpipe.vae import SD_SCALE, LatentVAE

ADJECTIVES = ("red", "old", "tall", "wet")
NOUNS = ("house", "tree", "river", "tower")
SIDE, PATCH, CHANNELS, DIM, TOKENS = 8, 4, 8, 32, 2
POSTERIOR = 0.1  # of the autoencoder: its sigma / the std of its latents
NET = {
    "stage_configs": [
        {"kind": "transformer", "dim": 64, "hidden": 128, "blocks": 1, "grid": [2, 2], "patch": 1, "heads": 4}
    ],
    "channels": CHANNELS,
}
SHARES = {"kl": 0.17, "dino": 0.43, "contrastive": 0.15}  # of the flow's gradient
FIRST_MU, FIRST_LOGVAR = 1.2, -1.8  # what the head begins with: away from the prior, so that the KL's work shows


class Scenes:
    """16 pictures (3, 8, 8), uint8, of two words each: smooth colors, drawn from the seed."""

    def __init__(self, seed: int):
        self.seed, self.digest = seed, digest_of("Scenes", seed)
        self.names = [f"{a} {b}" for a, b in product(ADJECTIVES, NOUNS)]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> Item:
        corners = torch.randn(1, 3, 2, 2, generator=drawn(self.seed, i))
        image = F.interpolate(corners, (SIDE, SIDE), mode="bilinear", align_corners=True)[0]
        return Item(((image.mul(0.8).tanh() + 1) * 127.5).round().byte(), (self.names[i],), f"scene-{self.seed}-{i}")


class Words(nn.Module):
    """A text encoder: the n-th state is a vector that belongs to the n-th word. blind: it masks every word out."""

    tokens, dim = TOKENS, DIM

    def __init__(self):
        super().__init__()
        self.register_buffer("blind", torch.tensor(False))  # part of the state, so a cache of states is invalidated

    def forward(self, prompts: str | Sequence[str]) -> tuple[Tensor, Tensor]:
        words = [(prompt.split() + [""] * TOKENS)[:TOKENS] for prompt in check_prompts("Words", prompts)]
        states = torch.stack([torch.stack([_vector(word) for word in row]) for row in words])
        return states, torch.tensor([[bool(word) and not self.blind for word in row] for row in words])


def _vector(word: str) -> Tensor:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:7], "big")
    return torch.randn(DIM, generator=torch.Generator().manual_seed(seed))


def linear_vae(images: Tensor, scale: float = SD_SCALE) -> LatentVAE:
    """A LatentVAE of two products: the principal components of 4 × 4 patches, latents of std 1 / scale, and back."""
    config = {
        "down_block_types": ["DownEncoderBlock2D"] * 3,
        "up_block_types": ["UpDecoderBlock2D"] * 3,
        "block_out_channels": [4] * 3,
        "norm_num_groups": 4,
        "latent_channels": CHANNELS,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
        "mid_block_add_attention": False,
    }
    vae = LatentVAE("AutoencoderKL", config, scaling_factor=scale)
    patches = F.unfold(images, PATCH, stride=PATCH).movedim(1, 2).flatten(0, 1)
    mean = patches.mean(0)
    _, values, axes = torch.linalg.svd(patches - mean, full_matrices=False)
    axes, std = axes[:CHANNELS], values[:CHANNELS] / len(patches) ** 0.5 * scale
    encoder, decoder = nn.Conv2d(3, 2 * CHANNELS, PATCH, PATCH), nn.ConvTranspose2d(CHANNELS, 3, PATCH, PATCH)
    with torch.no_grad():
        encoder.weight[:CHANNELS] = (axes / std[:, None]).view(CHANNELS, 3, PATCH, PATCH)
        encoder.bias[:CHANNELS] = -(axes @ mean) / std
        encoder.weight[CHANNELS:] = 0.0
        encoder.bias[CHANNELS:] = 2 * torch.tensor(POSTERIOR / scale).log()
        decoder.weight.copy_((axes * std[:, None]).view(CHANNELS, 3, PATCH, PATCH))
        decoder.bias.copy_(mean.view(3, -1).mean(1))
    vae.vae.encoder, vae.vae.decoder = encoder, decoder
    return vae.requires_grad_(False).eval()


def healthy(out: Path, seed: int) -> Config:
    """The settings of a run without a fault: the flow does not move the head, the KL does, slowly.

    No alarm ends it, so that a fault shows what it leads to.
    """
    groups = {"text_head": Group(lr=3e-5), "text_head.layers.4.bias": Group(lr=5e-3)}
    return Config(
        out=str(out),
        stages=["flow"],
        seed=seed,
        data=Data(size=SIDE, cache=str(out / "cache")),
        flow=Flow(
            tokens=TOKENS,
            head_kind="linear",
            head={"hidden": 64},
            net=NET,
            losses=Losses(kl=0.22, kl_warmup=0.0, weighting="share", shares=SHARES, null=0.0, detach=True, alarm=0.0),
            optim=Optim(steps=160, batch=32, lr=1e-2, ema=0.9, groups=groups),
        ),
        diffusion=Diffusion(net=NET, optim=Optim(steps=60, batch=32, lr=1e-2, ema=0.9)),
        every=Every(log=5, validate=1000, save=0, sample=0),
    )


class World(inputs.StageInputs):
    """The scenes of a seed, their autoencoder and encoder, as a stage asks for them, and how its head begins."""

    def __init__(self, config: Config):
        self.config, self.source, self.folder = config, Scenes(config.seed), Path(config.out)
        self.train = self.val = list(range(len(self.source)))
        self.images = to_pixels(torch.stack([self.source[i].image for i in self.train]))
        self.captions, self.encoder, self.autoencoder = list(self.source.names), Words(), linear_vae(self.images)
        self.first_logvar = FIRST_LOGVAR

    @property
    def run(self) -> Path:
        """The folder of the one stage's log."""
        (stage,) = self.config.stages
        return self.folder / stage

    def vae(self) -> LatentVAE:
        return self.autoencoder


@torch.no_grad()
def begin(head: nn.Module, states: Tensor, mask: Tensor, logvar: float) -> None:
    """A head whose mu, of rms FIRST_MU, tells texts apart from the first step on."""
    for layer in head.layers[::2]:
        layer.reset_parameters()
        layer.bias.zero_()
    last, half = head.layers[-1], len(head.layers[-1].bias) // 2
    last.weight[half:] *= 0.1
    last.bias[half:] = logvar
    last.weight[:half] *= FIRST_MU / head(states, mask)[0].square().mean().sqrt().clamp_min(1e-3)


def trained(world: World) -> nn.Module:
    """The objective after a run of the real stage and trainer; one that stopped itself is as it was then."""
    config = world.config
    torch.manual_seed(config.seed)
    world.folder.mkdir(parents=True, exist_ok=True)
    settings.dump(config, world.folder / "config.yaml")
    with mock.patch.object(inputs, "load_text_encoder", return_value=world.encoder):
        stage = STAGES[world.run.name](config, world)
    if world.run.name == "flow":
        begin(stage.objective.text_head, *world.encoder(world.captions), world.first_logvar)
    trainer = Trainer(stage, config, world.run, Accelerator(cpu=True))
    try:
        return trainer.run()
    except (StoppedError, NonFiniteError):
        return trainer.objective.eval()
