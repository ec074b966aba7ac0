import pytest
import torch
from support.tiny_models import tiny_clip
from support.training import STEPS

from fmpipe.train.config import Every
from fmpipe.train.presets import shapes_tiny
from fmpipe.train.run import run


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A config of seconds: 6 steps a stage; its autoencoder is trained once and shared."""
    root = tmp_path_factory.mktemp("train")
    torch.manual_seed(0)
    tiny_clip().save_pretrained(root / "clip")
    config = shapes_tiny()
    config.out, config.data.cache, config.data.count, config.data.val = (
        str(root / "first"),
        str(root / "cache"),
        64,
        0.2,
    )
    config.flow.encoder, config.every = str(root / "clip"), Every(log=1, validate=3, save=1, sample=6)
    for optim in (config.vae.optim, config.flow.optim, config.diffusion.optim):
        optim.steps, optim.batch = STEPS, 8
    config.diffusion.net = config.flow.net
    left = run(config)
    config.vae.path = str(left["vae"])
    return config
