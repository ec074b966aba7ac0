"""``fmpipe interpolate`` and ``arith``: images between prompts, and of their sums."""

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
    SolverOption,
    StepsOption,
    command,
    load_pipeline,
    out_option,
)
from fmpipe.cli.files import check_file, enlarged, image_place, save_gif, save_image, slug
from fmpipe.cli.progress import Bars
from fmpipe.cli.run_sampling import GIF, OUT, Sampling, ScaleOption, noise_of

NoiseSeedOption = Annotated[
    int | None,
    typer.Option(
        "--seed",
        help="Random seed of the noise that is added to the latents. Without it, the means of the prompts are used.",
        show_default="no noise",
    ),
]


@command("Generate")
def interpolate(
    a: Annotated[str, typer.Argument(help="Prompt of the first image.", show_default=False)],
    b: Annotated[str, typer.Argument(help="Prompt of the last image.", show_default=False)],
    pipeline: PipelineOption = "default",
    n: Annotated[int, typer.Option("--n", "-n", min=2, help="Number of images, including both ends.")] = 8,
    steps: StepsOption = None,
    solver: SolverOption = None,
    schedule: ScheduleOption = None,
    guidance: GuidanceOption = None,
    seed: NoiseSeedOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    scale: ScaleOption = 1,
    place: out_option("File (.png, .jpg) for the row of images, or a folder.") = OUT,
    gif: Annotated[Path | None, typer.Option(help="Also write the images as an animation to this .gif file.")] = None,
) -> None:
    """Generate a row of images from one prompt to another, along the line between them in the latent space.

    [b]fmpipe interpolate "a red heart" "a blue heart" --gif hearts.gif[/b]
    """
    from PIL import Image

    sampling = Sampling(pipeline, device, steps, solver, schedule, guidance)
    file = image_place("--out", place, f"{slug(a)}-to-{slug(b)}")
    if gif is not None:
        check_file("--gif", gif, GIF)
    pipe = load_pipeline(pipeline, dtype, device)
    noise = None if seed is None else noise_of(f"{a}\n{b}", seed)
    with Bars() as bars:
        images = sampling.run(pipe, lambda **o: pipe.interpolate(a, b, n, generator=noise, **o), bars).images
    info = sampling.info(pipe, f"{a} -> {b}", seed)
    row = Image.new("RGB", (images[0].width * n, images[0].height))
    for i, image in enumerate(images):
        row.paste(image, (i * image.width, 0))
    save_image(row, file, info, scale)
    if gif is not None:
        frames = [enlarged(image, scale) for image in images]
        save_gif([*frames, *frames[-2:0:-1]], gif, info, pauses=(0, n - 1))


@command("Generate")
def arith(
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Prompts to add, each in quotes.", show_default=False)
    ] = None,
    add: Annotated[
        list[str] | None, typer.Option("--add", help="Another prompt to add. May be repeated.", show_default=False)
    ] = None,
    subtract: Annotated[
        list[str] | None,
        typer.Option("--subtract", help="Prompt to subtract. May be repeated.", show_default=False),
    ] = None,
    pipeline: PipelineOption = "default",
    steps: StepsOption = None,
    solver: SolverOption = None,
    schedule: ScheduleOption = None,
    guidance: GuidanceOption = None,
    seed: NoiseSeedOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    scale: ScaleOption = 1,
    place: out_option("File (.png, .jpg) for the image, or a folder.") = OUT,
) -> None:
    """Generate the image of a sum of prompts minus others, computed in the latent space.

    [b]fmpipe arith "a dog" "a blue heart" --subtract "a red heart"[/b]
    """
    add = [*(prompts or ()), *(add or ())]
    sampling = Sampling(pipeline, device, steps, solver, schedule, guidance)
    if not add:
        raise Refused('no prompt to add given: fmpipe arith "a dog" "a blue heart" --subtract "a red heart"')
    name = "-plus-".join(map(slug, add)) + "".join(f"-minus-{slug(text)}" for text in subtract or ())
    file = image_place("--out", place, slug(name))
    pipe = load_pipeline(pipeline, dtype, device)
    prompt = " + ".join(add) + "".join(f" - {text}" for text in subtract or ())
    noise = None if seed is None else noise_of(prompt, seed)
    with Bars() as bars:
        call = lambda **o: pipe.arithmetic(add, subtract or [], generator=noise, **o)  # noqa: E731
        image = sampling.run(pipe, call, bars).images[0]
    save_image(image, file, sampling.info(pipe, prompt, seed), scale)
