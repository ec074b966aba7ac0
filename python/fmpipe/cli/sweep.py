"""``fmpipe sweep``: one prompt with several step sizes, gains and directions of time."""

from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from fmpipe.cli.base import (
    DeviceOption,
    DtypeOption,
    GuidanceOption,
    PipelineOption,
    Refused,
    ScheduleOption,
    SeedOption,
    SolverOption,
    StepsOption,
    command,
    load_pipeline,
    out,
    out_option,
    side_of,
)
from fmpipe.cli.files import image_place, save_image, slug
from fmpipe.cli.progress import Bars
from fmpipe.cli.run_sampling import OUT, Sampling, ScaleOption, noise_of
from fmpipe.image_grid import image_grid


@command("Generate")
def sweep(
    prompt: Annotated[str, typer.Argument(help="The prompt, in quotes.", show_default=False)],
    pipeline: PipelineOption = "default",
    dt_scale: Annotated[str, typer.Option(help="Factors for the step size, separated by commas.")] = "0.5,1,2",
    gain: Annotated[str, typer.Option(help="Factors for the velocity (fm_gain), separated by commas.")] = "1,2,4",
    image: Annotated[
        Path | None,
        typer.Option(help="Image that the prompt describes, to score the cells by their distance to it."),
    ] = None,
    steps: StepsOption = None,
    solver: SolverOption = None,
    schedule: ScheduleOption = None,
    guidance: GuidanceOption = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    scale: ScaleOption = 1,
    place: out_option("File (.png, .jpg) for the grid of images, or a folder.") = OUT,
) -> None:
    """Draw one z0 with several step sizes and gains, in both directions of time, in one labeled grid.

    Every cell has a score, and the best cell a frame. The score is the mean squared error between the cell's latent
    and that of --image, or else the sharpness of the cell's image, which cannot tell detail from noise: give --image
    if you have one. If the best cell has a gain above 1, the network predicts the velocity too small; if it has time
    reversed, sampling and training disagree about the direction.
    """
    scales, gains = (_numbers(option, text) for option, text in (("--dt-scale", dt_scale), ("--gain", gain)))
    # Reversed in time, every solver is of first order: Euler keeps the two halves comparable.
    sampling = Sampling(pipeline, device, steps, solver or "euler", schedule, guidance)
    file = image_place("--out", place, f"sweep-{slug(prompt)}")
    if image is not None and not image.is_file():
        raise Refused(f"--image: there is no file {image}")
    pipe = load_pipeline(pipeline, dtype, device)
    target = None if image is None else _latent(pipe, image)
    cells = [(s, way, g) for way in ("0->1", "1->0") for s in scales for g in gains]
    images, scores = [], []
    with Bars() as bars:
        for k, (s, way, g) in enumerate(cells, 1):
            cell = {"generator": [noise_of(prompt, seed)], "dt_scale": s, "time_dir": way, "fm_gain": g}
            made = sampling.run(pipe, pipe, bars, f"cell {k}/{len(cells)}", prompt=prompt, **cell)
            images += made.images
            distance = None if target is None else (made.z1 - target.to(made.z1)).square().mean().item()
            scores.append(sharpness(made.images[0]) if distance is None else distance)
    top = max(scores) if target is None else min(scores)
    tied = [k for k, score in enumerate(scores) if abs(score - top) <= 1e-3 * abs(top)]
    best = min(tied, key=lambda k: abs(cells[k][0] - 1) + abs(cells[k][2] - 1))  # half the step at twice the gain ties
    settings, name = [f"dt x {s:g}, {way}, gain {g:g}" for s, way, g in cells], "sharp" if target is None else "MSE"
    labels = [f"{text}\n{'best: ' * (k == best)}{name} {scores[k]:.3g}" for k, text in enumerate(settings)]
    grid = image_grid(images, labels, columns=len(gains), side=128 * scale, mark=best)
    save_image(grid, file, {**sampling.info(pipe, prompt, seed), "best": settings[best]})
    s, way, g = cells[best]
    best_options = f"--dt-scale {s:g} --time-dir '{way}' --fm-gain {g:g}"
    out.print(
        f"best: {best_options} ({'sharpness' if target is None else name} {scores[best]:.3g})",
        highlight=False,
        soft_wrap=True,
    )


def _latent(pipe, file: Path):
    """Return the latent of an image file, cropped and resized to the pipeline's size."""
    import torch
    from PIL import Image, ImageOps

    side = side_of(pipe)
    try:
        picture = ImageOps.fit(ImageOps.exif_transpose(Image.open(file)).convert("RGB"), (side, side))
    except OSError as error:
        raise Refused(f"--image: {file} cannot be read as an image: {error}") from None
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(1, side, side, 3)
    with torch.no_grad():
        return pipe.vae.encode(
            (pixels.permute(0, 3, 1, 2) / 127.5 - 1).to(pipe.vae.device, pipe.vae.dtype), sample=False
        )


def sharpness(image) -> float:
    """Return the variance of the Laplacian of an image's brightness in [0, 1]."""
    import torch
    import torch.nn.functional as F

    grey = torch.frombuffer(bytearray(image.convert("L").tobytes()), dtype=torch.uint8) / 255
    kernel = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])
    return F.conv2d(grey.view(1, 1, image.height, image.width), kernel[None, None]).var().item()


def _numbers(option: str, text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise Refused(f"{option} must be numbers separated by commas, got {text!r}") from None
    if not all(map(isfinite, values)):
        raise Refused(f"{option} must be finite numbers separated by commas, got {text!r}")
    return values
