"""The pipelines that come with the package, by name: folders under ``assets/`` without a text encoder."""

from importlib.resources import files
from pathlib import Path

import torch

from fmpipe.models import DiMR, LinearHead
from fmpipe.text import MiniLMText
from fmpipe.vae import LatentVAE

BUNDLED = {"default": "emoji-64", "emoji-64": "emoji-64"}


def parts(name: str) -> dict:
    """The arguments of the pipeline of that name, in fp32 (its files are fp16); KeyError if there is none.

    Its text encoder is MiniLM of its own package, which says how to install it where it is missing.
    """
    folder = Path(str(files("fmpipe") / "assets" / BUNDLED[name]))
    classes = {"text_head": LinearHead, "velocity_net": DiMR, "vae": LatentVAE}
    made = {part: cls.from_pretrained(folder / part, torch_dtype=torch.float32) for part, cls in classes.items()}
    return {"text_encoder": MiniLMText.from_pretrained(tokens=made["text_head"].config.tokens), **made}
