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

COS, PSNR, RIGHT = 0.7, 25.0, 0.9


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        config = settings.with_overrides(shapes_tiny(), [f"out={folder}/run", f"data.cache={folder}/cache"])
        begun = time.monotonic()
        left = run(config)
        seconds = time.monotonic() - begun
        cos = read_log(f"{folder}/run/flow")[-1]["val/flow/cos"]
        psnr = read_log(f"{folder}/run/vae")[-1]["val/vae/psnr"]
        pipe = FlowPipeline.from_pretrained(left["flow"])
    pipe.set_progress_bar_config(disable=True)
    prompts = [f"a large {colour} {shape} in the centre" for colour in COLOURS for shape in SHAPES]
    draw = torch.Generator().manual_seed(1)
    images = pipe(prompts, 10, generator=draw, output_type="pt", schedule="uniform").images
    right = sum(dominant_colour(2 * x - 1) == p.split()[2] for x, p in zip(images, prompts, strict=True)) / len(prompts)
    print(f"trained in {seconds:.0f} s: autoencoder {psnr:.1f} dB, cos {cos:.3f}, asked colour {right:.0%}")
    return int(cos < COS or psnr < PSNR or right < RIGHT)


if __name__ == "__main__":
    sys.exit(main())
