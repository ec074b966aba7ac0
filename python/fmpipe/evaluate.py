"""How well a pipeline draws the emoji that it was trained on: the figures of ``fmpipe evaluate``."""

import time
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import fmkernels
from fmpipe.data import split, to_pixels
from fmpipe.data.emoji import NEW_TEMPLATES, Emoji, own_captions, rows_of, say, table
from fmpipe.image_grid import image_grid, to_image
from fmpipe.train.batches import drawn
from fmpipe.train.inputs import held_out_captions, source_of
from fmpipe.train.presets import PRESETS

DATA = PRESETS["emoji-64"]().data  # determines what training held out
THUMBNAIL = 32  # side in pixels at which images are compared
PROMPTS = 200  # captions, and as many new templates
SEEDS = 8  # images of each general word
BLURRED = 18.0  # dB: an image with a lower PSNR to the nearest of all training images is blurred
SHOWN = 12  # best, and as many worst, images of each group on the sheet
DEMO = ("a cat", "a car", "a red apple", "a dog", "a pizza", "a house", "the sun", "a blue heart")
WAYS = (
    ("a red heart", "a blue heart"),
    ("a cat", "a dog"),
    ("a car", "a train"),
    ("a red apple", "a banana"),
    ("the sun", "a crescent moon"),
    ("a rose", "a sunflower"),
)  # to interpolate between
SUMS = (
    (("a dog", "a blue heart"), ("a red heart",)),
    (("a red apple", "a green heart"), ("a red heart",)),
    (("a cat", "a lion"), ("a dog",)),
    (("a car", "a train"), ("a bus",)),
)  # (added, subtracted)


class Figure(NamedTuple):
    """One row of the table. floor: the target, None if there is none; a lower bound, or with ``most`` an upper one."""

    name: str
    value: float
    floor: float | None = None
    most: bool = False

    @property
    def reached(self) -> bool:
        return self.floor is None or (self.value <= self.floor if self.most else self.value >= self.floor)


class Question(NamedTuple):
    """A prompt, and the rows of the images that it may give. half: ``tune`` if choices were made with it."""

    prompt: str
    rows: frozenset[int]
    half: str = ""


class Group(NamedTuple):
    """A group of prompts and its targets: the least share of right answers, of right subgroups, the most blurred."""

    name: str
    questions: list[Question]
    right: float | None = None
    subgroup: float | None = None
    blurred: float | None = None
    seeds: int = 1
    distinct: float | None = None


def training_captions(count: int = PROMPTS, seed: int = 0) -> list[Question]:
    """Return one of its own training captions of each of ``count`` images."""
    rows, draw, out = _some_rows(count, seed, 1), drawn(seed, 2), []
    for row in rows:
        captions, _ = held_out_captions({"captions": own_captions(table()[row])}, DATA)
        out.append(Question(captions[int(torch.randint(len(captions), (), generator=draw))], frozenset([row])))
    return out


def new_templates(count: int = PROMPTS, seed: int = 0) -> list[Question]:
    """Return the names of ``count`` images in sentences that training did not contain."""
    rows = _some_rows(count, seed, 3)
    asked = (say(NEW_TEMPLATES[k % len(NEW_TEMPLATES)], table()[row].name) for k, row in enumerate(rows))
    return [Question(prompt, frozenset([row])) for prompt, row in zip(asked, rows, strict=True)]


def _some_rows(count: int, seed: int, stream: int) -> list[int]:
    return torch.randperm(len(table()), generator=drawn(seed, stream))[:count].tolist()


def prompts(group: str) -> list[Question]:
    """Return the package's prompts of a group: ``paraphrase``, ``general``, ``none`` or ``combination``.

    ``none`` are words without an emoji, which have no acceptable image, but must give a sharp one.
    """
    lines = files("fmpipe.data").joinpath("emoji_prompts.tsv").read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines)
    return [Question(prompt, _accepted(names), half) for name, half, prompt, names in rows if name == group]


def own_prompts(path: str | Path) -> list[Question]:
    """Return the prompts of a file. A line is a prompt, a tab, and the acceptable images, separated by commas.

    An image is given by its name or as the emoji itself, a whole subgroup as ``@animal-bird``. Without any, only the
    sharpness counts. Raises ValueError, naming the line, if no image has such a name.
    """
    out = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        prompt, _, names = line.partition("\t")
        if not line.strip():
            continue
        try:
            out.append(Question(prompt, _accepted(names)))
        except KeyError as error:
            raise ValueError(
                f"{Path(path).name}, line {number}: expected 'prompt<TAB>names of acceptable images, separated by "
                f"commas'; there is no image {error}"
            ) from None
    if not out:
        raise ValueError(f"{Path(path).name} contains no prompts")
    return out


def _accepted(names: str) -> frozenset[int]:
    return rows_of(name.strip() for name in names.split(",") if name.strip())


def drawn_pictures(pipe, prompts: Sequence[str], steps: int | None, seed: int, batch: int = 50) -> Iterable[Tensor]:
    """Yield images in [0, 1], (B, 3, H, W), by batches; the noise of an image depends on its number."""
    for first in range(0, len(prompts), batch):
        some = list(prompts[first : first + batch])
        noise = [drawn(seed, 4, first + k) for k in range(len(some))]
        yield pipe(some, steps, generator=noise, output_type="pt").images


def evaluate(
    pipe,
    *,
    steps: int | None = None,
    seed: int = 0,
    more: str | Path | None = None,
    font: str | Path | None = None,
    sheet: str | Path | None = None,
    shown: Callable[[str, int, int], None] = lambda *_: None,
) -> tuple[list[Figure], list[dict]]:
    """Return the figures, and the answer to every prompt.

    An image is right if, of all training images, the nearest one by the MSE of thumbnails is acceptable. It is blurred
    if its PSNR to the nearest one by PSNR is below ``BLURRED``.

    Args:
        more: file with prompts of the user, see :func:`own_prompts`.
        sheet: file for a sheet with the blurriest wrong and the sharpest right images of each group.
        shown: called with (name, done, total).
    """
    own = own_prompts(more) if more else []
    source = source_of(DATA) if font is None else Emoji(DATA.size, font)
    items = [source[i] for i in range(len(source))]
    truth = to_pixels(torch.stack([item.image for item in items])).to(pipe.device)
    figures, judge = _autoencoder(pipe.vae, truth, [item.key for item in items]), Judge(truth)
    groups = [
        Group("training captions", training_captions(seed=seed), right=0.97, blurred=0.02),
        Group("new templates", new_templates(seed=seed), right=0.88),
        Group("paraphrases", prompts("paraphrase"), right=0.85, subgroup=0.90, blurred=0.04),
        Group("general words", prompts("general"), right=0.80, blurred=0.06, seeds=SEEDS, distinct=4),
        Group("words without an emoji", prompts("none"), blurred=0.10),
        Group("combinations", prompts("combination")),
    ]
    if own:
        groups.append(Group("your prompts", own))
    rows, pictures = [], []
    for group in groups:
        work = [question for question in group.questions for _ in range(group.seeds)]
        found: list[dict] = []
        for images in drawn_pictures(pipe, [q.prompt for q in work], steps, seed):
            part = work[len(found) : len(found) + len(images)]
            answers = judge(images, part)
            found += [{"group": group.name, **answer} for answer in answers]
            shown(group.name, len(found), len(work))
            pictures += [images[k].mul(255).round().byte().cpu() for k in range(len(images))]
        figures += _figures(group, found)
        rows += found
    if sheet is not None:
        _sheet(rows, pictures, Path(sheet))
    return figures + _latents(pipe, judge, steps, seed) + _running(pipe, steps, seed), rows


class Judge:
    """Finds the training images nearest to an image. truth: all of them, (N, 3, H, W) in [-1, 1]."""

    def __init__(self, truth: Tensor):
        self.truth = (truth / 2 + 0.5).flatten(1)
        self.thumbnails = _thumbnails(truth / 2 + 0.5)

    def sharpness(self, images: Tensor) -> list[float]:
        """Return the PSNR in dB of each image (B, 3, H, W), in [0, 1], to the nearest training image."""
        mse = torch.cdist(images.flatten(1), self.truth).amin(1).square() / self.truth.shape[1]
        return (-10 * mse.clamp_min(1e-10).log10()).tolist()

    def __call__(self, images: Tensor, questions: Sequence[Question]) -> list[dict]:
        """Return what each image shows, and whether it answers its question."""
        nearest = torch.cdist(_thumbnails(images), self.thumbnails).argmin(1).tolist()
        answers = []
        for q, row, sharp, image in zip(questions, nearest, self.sharpness(images), images, strict=True):
            subgroups = {table()[wanted].subgroup for wanted in q.rows}
            answer = {"prompt": q.prompt, "half": q.half, "nearest": table()[row].name, "right": row in q.rows}
            answer |= {"same subgroup": row in q.rows or table()[row].subgroup in subgroups}
            answer |= {"sharpness": sharp, "blurred": sharp < BLURRED}
            if len(q.rows) == 1:
                (wanted,) = q.rows
                mse = (image.flatten() - self.truth[wanted]).square().mean().clamp_min(1e-10)
                answer["psnr"] = -10 * mse.log10().item()
            answers.append(answer)
        return answers


def _figures(group: Group, found: list[dict]) -> list[Figure]:
    """Return the figures of a group of prompts."""
    out, name = [], group.name
    if any(question.rows for question in group.questions):
        out.append(Figure(f"{name}: right", _share(found, "right"), group.right))
    if name == "training captions":
        out.append(Figure("their PSNR, dB", _share(found, "psnr"), 22.0))
    if group.subgroup is not None:
        out.append(Figure(f"{name}: right or same subgroup", _share(found, "same subgroup"), group.subgroup))
    out.append(Figure(f"{name}: blurred", _share(found, "blurred"), group.blurred, most=True))
    if group.seeds > 1:
        some = [found[k : k + group.seeds] for k in range(0, len(found), group.seeds)]
        distinct = sum(len({row["nearest"] for row in part}) for part in some) / len(some)
        out.append(Figure(f"{name}: different pictures from {group.seeds} seeds", distinct, group.distinct))
    return out


def _latents(pipe, judge: Judge, steps: int | None, seed: int) -> list[Figure]:
    """Return how many images of interpolations and sums of latents are blurred."""
    ways = [
        sum(
            x < BLURRED
            for x in judge.sharpness(pipe.interpolate(a, b, num_inference_steps=steps, output_type="pt").images)
        )
        for a, b in WAYS
    ]
    options = {"num_inference_steps": steps, "output_type": "pt"}
    sums = torch.cat([pipe.arithmetic(*terms, generator=drawn(seed, 8), **options).images for terms in SUMS])
    blurred = sum(x < BLURRED for x in judge.sharpness(sums)) / len(SUMS)
    return [
        Figure("interpolation: blurred of 8 pictures, mean over pairs", sum(ways) / len(ways), 1.0, most=True),
        Figure("sums and differences: blurred", blurred, None, most=True),
    ]


def _sheet(rows: list[dict], pictures: list[Tensor], path: Path) -> None:
    """Save the worst images, wrong ones before blurred ones, and the best ones of each group."""
    images, captions = [], []
    for group in dict.fromkeys(row["group"] for row in rows):
        mine = [k for k, row in enumerate(rows) if row["group"] == group]
        mine.sort(key=lambda k: (rows[k]["right"] or not rows[k]["blurred"], rows[k]["right"], rows[k]["sharpness"]))
        for k in mine[:SHOWN] + mine[-SHOWN:]:
            images.append(to_image(pictures[k] / 127.5 - 1))
            captions.append(f"{rows[k]['prompt']}\n{rows[k]['nearest']}, {rows[k]['sharpness']:.1f} dB")
    path.parent.mkdir(parents=True, exist_ok=True)
    image_grid(images, captions, columns=SHOWN).save(path)


def _autoencoder(vae, truth: Tensor, keys: list[str]) -> list[Figure]:
    """Return the PSNR of the held-out images, and extremes of the mean and std of the channels of all latents."""
    _, held_out = split(keys, DATA.val, DATA.seed)
    with torch.no_grad():
        z = torch.cat([vae.encode(part.to(vae.dtype), sample=False).float() for part in truth.split(64)])
        made = vae.decode(z[held_out].to(vae.dtype)).float().clamp(-1, 1)
    psnr = 10 * (4 / (made - truth[held_out]).square().flatten(1).mean(1)).log10()
    mean, std = z.mean((0, 2, 3)), z.std((0, 2, 3))
    return [
        Figure("autoencoder: PSNR of held-out pictures, dB", psnr.mean().item(), 30.0),
        Figure("latents: largest |mean| of a channel", mean.abs().max().item(), 0.05, most=True),
        Figure("latents: smallest std of a channel", std.min().item(), 0.9),
        Figure("latents: largest std of a channel", std.max().item(), 1.1, most=True),
    ]


def _running(pipe, steps: int | None, seed: int) -> list[Figure]:
    """Return the time of the demo's images, and their largest difference from those of the eager backend."""

    def pictures() -> Tensor:
        return torch.cat(list(drawn_pictures(pipe, DEMO, steps, seed)))

    pictures()
    began = time.perf_counter()
    ours = pictures()
    seconds = time.perf_counter() - began
    with fmkernels.use_backend("eager"):
        apart = (pictures().mul(255).round() - ours.mul(255).round()).abs().max().item()
    return [
        Figure(f"{len(DEMO)} pictures of {steps or pipe.config.num_inference_steps} steps, s", seconds, 5.0, most=True),
        Figure("eager backend: largest difference, levels", apart, 1.0, most=True),
    ]


def _thumbnails(images: Tensor) -> Tensor:
    return F.interpolate(images, size=(THUMBNAIL, THUMBNAIL), mode="area").flatten(1)


def _share(rows: list[dict], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)
