"""``fmpipe generate``, ``sweep``, ``interpolate``, ``arith``: images of prompts."""

import math
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from fmpipe.cli.base import (
    IMAGES,
    DeviceOption,
    DtypeOption,
    GuidanceOption,
    PipelineOption,
    Refused,
    ScheduleOption,
    SeedOption,
    SolverOption,
    StepsOption,
    check_device,
    check_file,
    check_options,
    check_place,
    command,
    enlarged,
    image_place,
    is_image,
    load_pipeline,
    locate,
    out,
    out_option,
    save_gif,
    save_image,
    side_of,
    slug,
    write,
)
from fmpipe.cli.progress import Bars, LatestReading
from fmpipe.page import Run, page
from fmpipe.ranks import OtherRankError, Ranks
from fmpipe.sampling import Dtype, TimeDirection
from fmpipe.sheet import sheet, to_image

OUT, GIF = Path("out"), (".gif",)
DEBUG = {"rich_help_panel": "Debugging"}
ScaleOption = Annotated[
    int, typer.Option(min=1, max=64, help="Enlarge every image this many times; each pixel becomes a square.")
]


def noise_of(prompt: str, seed: int, index: int = 0):
    """Return the generator of one image; it depends on its prompt, the seed and its number, not on the batch."""
    import hashlib

    import torch

    digest = hashlib.sha256(f"{seed}\n{index}\n{prompt}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


@dataclass
class Sampling:
    """The sampling settings of a command, checked before anything heavy is imported. None is the pipeline's own."""

    pipeline: str
    device: str
    steps: int | None
    solver: str | None
    schedule: str | None
    guidance: float | None
    more: dict[str, object] = field(default_factory=dict)  # further arguments of the pipeline

    def __post_init__(self):
        check_options(num_inference_steps=self.steps, **self.options)
        locate(self.pipeline)
        check_device(self.device)

    @property
    def options(self) -> dict[str, object]:
        given = {"solver": self.solver, "schedule": self.schedule, "guidance_scale": self.guidance}
        return {**given, **self.more}

    def info(self, pipe, prompt: str, seed: int | None) -> dict[str, object]:
        """Return what an image was made with, for its metadata."""
        own = {"steps": "num_inference_steps", "solver": "solver", "schedule": "schedule", "guidance": "guidance_scale"}
        used = {k: pipe.config[name] if getattr(self, k) is None else getattr(self, k) for k, name in own.items()}
        used["guidance"] = 1.0 if used["guidance"] is None else used["guidance"]  # 1 is no guidance
        return {"prompt": prompt, "seed": "none" if seed is None else seed, **used, "pipeline": self.pipeline}

    def run(
        self, pipe, call, bars: Bars, title: str = "flow", *, each_step=None, frames: list | None = None, **options
    ):
        """Return ``call(**options)`` with its progress shown. Refuse what the pipeline refuses.

        frames: receives the state after every step.
        """
        total, latest = self.steps or pipe.config.num_inference_steps, LatestReading()

        def step_end(pipe, step, t, tensors):
            if each_step is not None:
                each_step()
            if frames is not None:
                frames.append(tensors["latents"])
            state = ""
            if bars.shown:
                x, v = latest(tensors["stats"][:, :2].mean(0)) or (math.nan, math.nan)
                state = f"t={t:.2f} |x|={x:.4f} |v|={v:.4f}"
            bars.update(title, step + 1, total, state)

        watched = {
            "callback_on_step_end": step_end,
            "callback_on_step_end_tensor_inputs": ["stats"] if frames is None else ["stats", "latents"],
        }
        if (self.solver or pipe.config.solver) == "dopri5":
            watched = {}
        try:
            return call(num_inference_steps=self.steps, **watched, **self.options, **options)
        except (ValueError, TypeError, FloatingPointError) as error:
            raise Refused(error) from None


def _texts(prompts: list[str] | None, file: Path | None) -> list[str]:
    """Return the prompts given, then those of the file, one per line."""
    texts = list(prompts or [])
    if file is not None:
        if not file.is_file():
            raise Refused(f"--prompts: there is no file {file}")
        try:
            texts += [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        except UnicodeDecodeError:
            raise Refused(f"--prompts: {file} is not UTF-8 text") from None
    if not texts:
        raise Refused('no prompt given: fmpipe generate "a red cat", or --prompts FILE')
    return texts


def _names(texts: list[str], n: int, seed: int) -> list[str]:
    """Return a file name for each image: its prompt, the seed if that is not 0, and a number if it is needed."""
    names: dict[str, None] = {}
    for text in texts:
        for _ in range(n):
            base = slug(text) + (f"-seed{seed}" if seed else "")
            number = next(k for k in range(1, len(names) + 2) if (base if k == 1 else f"{base}-{k}") not in names)
            names[base if number == 1 else f"{base}-{number}"] = None
    return list(names)


def _animated(pipe, states: list, captions: list[str], scale: int) -> list:
    """Decode the states of a trajectory; one frame shows all images of the batch."""
    decoded = (pipe.vae.decode(state.to(pipe.vae.device, pipe.vae.dtype)).float() for state in states)
    return [sheet([to_image(x) for x in images], captions, columns=4, side=128 * scale) for images in decoded]


@command("Generate")
def generate(
    prompt: Annotated[
        list[str] | None,
        typer.Argument(
            help="One or more prompts, each in quotes. The default model reads English.", show_default=False
        ),
    ] = None,
    pipeline: PipelineOption = "default",
    prompts: Annotated[Path | None, typer.Option(help="Text file with more prompts, one per line.")] = None,
    steps: StepsOption = None,
    solver: SolverOption = None,
    schedule: ScheduleOption = None,
    guidance: GuidanceOption = None,
    seed: SeedOption = 0,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Number of images for each prompt.")] = 1,
    place: out_option(
        "Folder for the images, named after their prompts. For a single image also a file ending in .png, .jpg, .jpeg."
    ) = OUT,
    scale: ScaleOption = 1,
    grid: Annotated[
        Path | None, typer.Option(help="Also write all images as one labelled sheet to this .png or .jpg file.")
    ] = None,
    gif: Annotated[
        Path | None,
        typer.Option(
            help="Also write the path from z0 to the images of the first batch, decoded at every step, as .gif."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Also write one HTML page with the images, the trace, the probes and all settings."),
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print |x|, |v| and dt of every step.")] = False,
    batch: Annotated[
        int, typer.Option(min=1, help="Images per forward pass; those of a finished batch are on disk.")
    ] = 8,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "float32",
    velocity_dtype: Annotated[
        Dtype | None,
        typer.Option(
            help="Data type of the velocity network's forward only, for example float32 with --dtype bfloat16.",
            **DEBUG,
        ),
    ] = None,
    fm_gain: Annotated[
        float | None,
        typer.Option(
            help="Factor for the velocity, to correct a network that predicts it too small. Measure it with the check "
            "one_step before you change it.",
            show_default="the pipeline's own; usually 1",
            **DEBUG,
        ),
    ] = None,
    dt_scale: Annotated[float, typer.Option(help="Factor for every step size.", **DEBUG)] = 1.0,
    time_dir: Annotated[
        TimeDirection, typer.Option(help="Direction of time; '1->0' reverses t and dt.", **DEBUG)
    ] = "0->1",
    align_variance: Annotated[
        bool, typer.Option("--align-variance", help="Rescale every z0 to a standard deviation of 1.", **DEBUG)
    ] = False,
) -> None:
    """Generate images from prompts.

    [b]fmpipe generate "a cat" "a blue heart" --grid grid.png[/b]

    Settings that are omitted are the pipeline's own. Images store their settings in the PNG metadata. Under torchrun,
    the prompts are shared among the processes: [b]torchrun --nproc-per-node 2 -m fmpipe generate --prompts FILE[/b]
    """
    texts = _texts(prompt, prompts)
    debug = {"fm_gain": fm_gain, "dt_scale": dt_scale, "time_dir": time_dir, "align_variance": align_variance}
    sampling = Sampling(pipeline, device, steps, solver, schedule, guidance, debug)
    work = [(text, i) for text in texts for i in range(n)]
    single = is_image("--out", place)
    if single and len(work) > 1:
        raise Refused(f"--out: {place} is one file, but {len(work)} images are asked for; name a folder, or use --grid")
    names = [place] if single else [place / f"{name}.png" for name in _names(texts, n, seed)]
    check_place("--out", place, folder=not single)
    for option, path, suffixes in (("--html", html, (".html", ".htm")), ("--grid", grid, IMAGES), ("--gif", gif, GIF)):
        if path is not None:
            check_file(option, path, suffixes)
    if gif is not None and solver == "dopri5":
        raise Refused("--gif needs a solver with fixed steps: use --solver euler, ab2 or heun instead of dopri5")
    runs, animation = [], []
    try:
        with Ranks() as ranks:
            pipe, mine = load_pipeline(pipeline, dtype, device), ranks.share(list(enumerate(work)))
            if gif is not None and (solver or pipe.config.solver) == "dopri5":
                raise Refused(
                    "--gif needs a solver with fixed steps, and this pipeline's own is dopri5: use --solver ab2"
                )
            if velocity_dtype is not None:
                import torch

                debug["velocity_dtype"] = getattr(torch, velocity_dtype)
            batches = [mine[begin : begin + batch] for begin in range(0, len(mine), batch)]
            with Bars(quiet=ranks.rank > 0) as bars:
                for b, part in enumerate(batches, 1):
                    ranks.check()
                    captions = [text for _, (text, _) in part]
                    draws = [noise_of(text, seed, i) for _, (text, i) in part]
                    frames = None if gif is None or animation else []
                    result = sampling.run(
                        pipe, pipe, bars, f"batch {b}/{len(batches)}", each_step=ranks.check, frames=frames,
                        prompt=captions, generator=draws,
                    )  # fmt: skip
                    for (k, (text, i)), image in zip(part, result.images, strict=True):
                        info = sampling.info(pipe, text, seed) | {"number": i, "dtype": dtype, **_changed(debug)}
                        save_image(image, names[k], info, scale)
                    if trace:
                        out.print("\n".join(result.trace.lines()), highlight=False)
                    if frames is not None:
                        animation = _animated(pipe, [result.z0, *frames], captions, scale)
                    if html is not None or grid is not None:
                        runs.append(Run(result.images, captions, result.trace, result.probes))
            everybody = ranks.gather(runs) if html is not None or grid is not None else None
    except OtherRankError as error:
        raise Refused(error, 1) from None
    info = sampling.info(pipe, "; ".join(texts), seed)
    if animation and ranks.rank == 0:
        save_gif(animation, gif, info)
    if everybody is None:
        return
    runs = [run for runs in everybody for run in runs]
    if html is not None:
        write(html, page(runs, {**info, "dtype": dtype, "device": pipe.device, **_changed(debug)}).encode())
    if grid is not None:
        images, captions = ([x for run in runs for x in run[k]] for k in (0, 1))
        save_image(sheet(images, captions, columns=4, side=max(128, images[0].width) * scale), grid, info)


def _changed(options: dict) -> dict[str, object]:
    """Return the debugging options that are not at their defaults."""
    plain = {"fm_gain": None, "dt_scale": 1.0, "time_dir": "0->1", "align_variance": False, "velocity_dtype": None}
    return {name: options[name] for name, value in plain.items() if options.get(name, value) != value}


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
    place: out_option("File (.png, .jpg) for the sheet, or a folder.") = OUT,
) -> None:
    """Draw one z0 with several step sizes and gains, in both directions of time, on one labelled sheet.

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
            far = None if target is None else (made.z1 - target.to(made.z1)).square().mean().item()
            scores.append(sharpness(made.images[0]) if far is None else far)
    top = max(scores) if target is None else min(scores)
    tied = [k for k, score in enumerate(scores) if abs(score - top) <= 1e-3 * abs(top)]
    best = min(tied, key=lambda k: abs(cells[k][0] - 1) + abs(cells[k][2] - 1))  # half the step at twice the gain ties
    settings, name = [f"dt x {s:g}, {way}, gain {g:g}" for s, way, g in cells], "sharp" if target is None else "MSE"
    labels = [f"{text}\n{'best: ' * (k == best)}{name} {scores[k]:.3g}" for k, text in enumerate(settings)]
    grid = sheet(images, labels, columns=len(gains), side=128 * scale, mark=best)
    save_image(grid, file, {**sampling.info(pipe, prompt, seed), "best": settings[best]})
    s, way, g = cells[best]
    options = f"--dt-scale {s:g} --time-dir '{way}' --fm-gain {g:g}"
    out.print(
        f"best: {options} ({'sharpness' if target is None else name} {scores[best]:.3g})",
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


SeedOfNoise = Annotated[
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
    seed: SeedOfNoise = None,
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
    seed: SeedOfNoise = None,
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
