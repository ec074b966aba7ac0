"""make train-check: trains the preset shapes-tiny and asks it for colours; exit code 1 if it falls short."""

import sys
import tempfile
import time
from pathlib import Path

import torch

from fmpipe.data import dominant_colour
from fmpipe.data.shapes import COLOURS, SHAPES
from fmpipe.pipeline import FlowPipeline
from fmpipe.run_log import read_log
from fmpipe.train import settings
from fmpipe.train.presets import PRESETS
from fmpipe.train.run import run

FLOORS = {"psnr": 25.0, "cos": 0.7, "right": 0.9}
PROMPTS = [f"a large {colour} {shape} in the centre" for colour in COLOURS for shape in SHAPES]


def trained(preset: str, folder: Path, *overrides: str) -> float:
    """Train a preset in ``folder/preset`` and return the seconds; it is validated after the last step only."""
    own = [f"out={folder / preset}", f"data.cache={folder / 'cache'}", "every.validate=0", *overrides]
    begun = time.monotonic()
    run(settings.with_overrides(PRESETS[preset](), own))
    return time.monotonic() - begun


def right(run: Path, prompts: list[str] = PROMPTS) -> float:
    """Return the share of ``PROMPTS`` that are drawn in their colour if ``prompts`` are given in their place."""
    pipe = FlowPipeline.from_pretrained(run / "pipeline")
    pipe.set_progress_bar_config(disable=True)
    draw = torch.Generator().manual_seed(1)
    images = pipe(prompts, 10, generator=draw, output_type="pt", schedule="uniform").images
    found = [dominant_colour(2 * x - 1) == prompt.split()[2] for x, prompt in zip(images, PROMPTS, strict=True)]
    return sum(found) / len(found)


def figures(run: Path) -> dict[str, float]:
    """Return the autoencoder's PSNR, the held-out cosine, and the share of prompts drawn in their colour."""
    psnr = read_log(run / "vae")[-1]["val/vae/psnr"]
    return {"psnr": psnr, "cos": read_log(run / "flow")[-1]["val/flow/cos"], "right": right(run)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        seconds = trained("shapes-tiny", Path(folder))
        found = figures(Path(folder) / "shapes-tiny")
    print(
        "trained in {:.0f} s: autoencoder {psnr:.1f} dB, cos {cos:.3f}, asked colour {right:.0%}".format(
            seconds, **found
        )
    )
    sys.exit(any(found[name] < floor for name, floor in FLOORS.items()))
