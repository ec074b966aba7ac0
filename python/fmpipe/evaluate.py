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
from fmpipe.data.emoji import NEW_TEMPLATES, Emoji, say, table
from fmpipe.train.batches import drawn
from fmpipe.train.inputs import held_out_captions, source_of
from fmpipe.train.presets import PRESETS

DATA = PRESETS["emoji-64"]().data  # determines what training held out
THUMBNAIL = 32  # side in pixels at which images are compared
PROMPTS = 200  # captions, and as many new templates
DEMO = ("a cat", "a car", "a red apple", "a dog", "a pizza", "a house", "the sun", "a blue heart")


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
    """A prompt, and the row of the image that it should give."""

    prompt: str
    row: int


def training_captions(count: int = PROMPTS, seed: int = 0) -> list[Question]:
    """Return one training caption of each of ``count`` images."""
    rows = torch.randperm(len(table()), generator=drawn(seed, 1))[:count].tolist()
    source, draw, out = source_of(DATA), drawn(seed, 2), []
    for row in rows:
        item = source[row]
        captions, _ = held_out_captions({"captions": item.captions}, DATA)
        out.append(Question(captions[int(torch.randint(len(captions), (), generator=draw))], row))
    return out


def new_templates(count: int = PROMPTS, seed: int = 0) -> list[Question]:
    """Return the names of ``count`` images in sentences that training did not contain."""
    rows = torch.randperm(len(table()), generator=drawn(seed, 3))[:count].tolist()
    return [Question(say(NEW_TEMPLATES[k % len(NEW_TEMPLATES)], table()[row].name), row) for k, row in enumerate(rows)]


def paraphrases(path: str | Path | None = None) -> list[Question]:
    """Return the phrases of a file with ``phrase<TAB>name of the image`` per line; None: the hundred of the package.

    Raises ValueError, naming the line, if it does not have two fields or no image has that name.
    """
    file = files("fmpipe.data").joinpath("emoji_paraphrases.tsv") if path is None else Path(path)
    rows = {entry.name: row for row, entry in enumerate(table())} | {e.char: row for row, e in enumerate(table())}
    out = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        phrase, tab, name = line.partition("\t")
        if not tab or name not in rows:
            raise ValueError(f"{file.name}, line {number}: expected 'phrase<TAB>name of a picture', got {line!r}")
        out.append(Question(phrase, rows[name]))
    return out


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
    shown: Callable[[str, int, int], None] = lambda *_: None,
) -> tuple[list[Figure], list[dict]]:
    """Return the figures, and the answer to every prompt. more: a file with further paraphrases.

    An image is right if, of all training images, the one of its caption is nearest by the MSE of thumbnails. shown: is
    called with (name, done, total).
    """
    source = source_of(DATA) if font is None else Emoji(DATA.size, font)
    items = [source[i] for i in range(len(source))]
    truth = to_pixels(torch.stack([item.image for item in items])).to(pipe.device)
    figures = _autoencoder(pipe.vae, truth, [item.key for item in items])
    thumbnails = _thumbnails(truth / 2 + 0.5)
    rows = []

    def asked(name: str, questions: list[Question]) -> tuple[list[dict], float]:
        found, psnr = [], []
        for images in drawn_pictures(pipe, [q.prompt for q in questions], steps, seed):
            part = questions[len(found) : len(found) + len(images)]
            nearest = torch.cdist(_thumbnails(images), thumbnails).argmin(1).tolist()
            wanted = truth[[q.row for q in part]] / 2 + 0.5
            psnr += (-10 * (images - wanted).square().flatten(1).mean(1).clamp_min(1e-10).log10()).tolist()
            found += [
                {"asked": name, "prompt": q.prompt, "wanted": table()[q.row].name, "nearest": table()[row].name}
                | {"right": row == q.row, "same subgroup": table()[row].subgroup == table()[q.row].subgroup}
                for q, row in zip(part, nearest, strict=True)
            ]
            shown(name, len(found), len(questions))
        rows.extend(found)
        return found, sum(psnr) / len(psnr)

    found, psnr = asked("training captions", training_captions(seed=seed))
    figures += [Figure("training captions: right", _share(found, "right"), 0.97), Figure("their PSNR, dB", psnr, 22.0)]
    found, _ = asked("new templates", new_templates(seed=seed))
    figures.append(Figure("new templates: right", _share(found, "right"), 0.85))
    for name, path in {"paraphrases": None, **({"more paraphrases": more} if more else {})}.items():
        found, _ = asked(name, paraphrases(path))
        figures.append(Figure(f"{name}: right", _share(found, "right")))
        figures.append(Figure(f"{name}: right or same subgroup", _share(found, "same subgroup"), 0.65))
    return figures + _running(pipe, steps, seed), rows


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
