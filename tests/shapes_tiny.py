"""make train-check: trains the preset shapes-tiny and asks it for colours; exit code 1 if it falls short."""

import sys
import tempfile
import time

import torch

from fmpipe.data import dominant_colour
from fmpipe.data.shapes import COLOURS, SHAPES
from fmpipe.diagnose.log import read_log
from fmpipe.pipeline import FlowPipeline
from fmpipe.train import settings
from fmpipe.train.config import shapes_tiny
from fmpipe.train.run import run

FLOORS = {"psnr": 25.0, "cos": 0.7, "right": 0.9}
PROMPTS = [f"a large {colour} {shape} in the centre" for colour in COLOURS for shape in SHAPES]


def trained() -> dict[str, float]:
    """The preset, all of it trained here: seconds; the autoencoder's psnr; cos; the share of prompts drawn in their
    colour."""
    with tempfile.TemporaryDirectory() as folder:
        own = [f"out={folder}/run", f"data.cache={folder}/cache", "every.validate=0"]  # but after the last step
        config = settings.with_overrides(shapes_tiny(), own)
        begun = time.monotonic()
        left = run(config)
        seconds = time.monotonic() - begun
        psnr = read_log(f"{folder}/run/vae")[-1]["val/vae/psnr"]
        cos = read_log(f"{folder}/run/flow")[-1]["val/flow/cos"]
        pipe = FlowPipeline.from_pretrained(left["flow"])
    pipe.set_progress_bar_config(disable=True)
    draw = torch.Generator().manual_seed(1)
    images = pipe(PROMPTS, 10, generator=draw, output_type="pt", schedule="uniform").images
    right = [dominant_colour(2 * x - 1) == prompt.split()[2] for x, prompt in zip(images, PROMPTS, strict=True)]
    return {"seconds": seconds, "psnr": psnr, "cos": cos, "right": sum(right) / len(right)}


if __name__ == "__main__":
    found = trained()
    print(
        "trained in {seconds:.0f} s: autoencoder {psnr:.1f} dB, cos {cos:.3f}, asked colour {right:.0%}".format(**found)
    )
    sys.exit(any(found[name] < floor for name, floor in FLOORS.items()))
