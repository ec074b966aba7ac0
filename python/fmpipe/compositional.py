"""How well images follow prompts with several objects: GenEval's six kinds, judged by fitting the drawn shapes.

GenEval (Ghosh et al. 2023) asks a detector what an image shows. The scenes of :mod:`fmpipe.data.scenes` need none:
:func:`find` fits the shapes that they are drawn with, :func:`judged` compares what is found with a prompt, and
:func:`columns` counts. Each kind of prompt is a column with two shares:

- ``right``: everything that the prompt asks for is there. As in GenEval, further objects are wrong for ``counting``
  only.
- ``own``: the part that the column is about, of the images that allow a judgment. It shows why prompts are wrong: an
  image without one of two objects is neither right nor wrong about their relation.

| kind | prompt | own |
|---|---|---|
| single object | a circle | a circle is there |
| two objects | a circle and a ring | both shapes are there |
| counting | three circles | the number of objects, of whatever shape |
| colours | a red circle | an object has the colour, whatever its shape |
| colour binding | a red circle and a blue ring | if both shapes and both colours are there: on the right objects |
| position | a circle above a ring | if both shapes are there: they are in this relation |
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fmpipe.data.scenes import KINDS, RADIUS, RELATIONS, SHAPES, Prompt, evaluation_prompts
from fmpipe.data.shapes import COLOURS
from fmpipe.evaluate import drawn_pictures
from fmpipe.image_grid import image_grid, to_image
from fmpipe.train.batches import drawn

EACH = 48  # images of each kind
MOST = 8  # objects in an image; further ones are not looked for
STRENGTH = 0.6  # smallest share of its colour that an object has over its whole area
BLURS = (0.0, 0.016, 0.025, 0.035, 0.047)  # sigma; the image's side is 1
FIT = 0.6  # smallest share of the ink around an object that its shape explains
APART = 0.1  # smallest distance of two objects in a relation, along its direction; the image's side is 1


class Found(NamedTuple):
    """An object in an image: its shape and colour, and its centre, x to the right and y down, in [0, 1]."""

    shape: str
    colour: str
    x: float
    y: float


class Column(NamedTuple):
    """One kind of prompt. own: share of the ``judged`` images; right: share of all ``asked`` prompts."""

    name: str
    own: float | None
    judged: int
    asked: int
    right: float


@torch.no_grad()
def find(images: Tensor, batch: int = 64) -> list[list[Found]]:
    """Return the objects in images (B, 3, S, S) in [0, 1], of each image the one with most ink first.

    Ink is ``1 - pixel``. The shape T with the largest ``‖⟨T, ink⟩‖² / ‖T‖²``, over all shapes, places, sizes and blurs,
    explains most of it (least squares, with a free colour). Its colour c = ``⟨T, ink⟩ / ‖T‖²`` is named by its
    direction, as blur and coverage change only its length. Then its place is erased, and the next one is looked for.

    Not found are objects with less than ``STRENGTH`` of their colour, such as those of an average of several images;
    objects of which the best shape explains less than ``FIT`` have the shape ``unknown``. Raises ValueError for another
    shape of images.
    """
    if images.dim() != 4 or images.shape[1] != 3 or images.shape[2] != images.shape[3]:
        raise ValueError(f"find: images must be (B, 3, S, S), got {tuple(images.shape)}")
    return [found for part in images.float().cpu().split(batch) for found in _find(1 - part.clamp(0, 1))]


def _find(ink: Tensor) -> list[list[Found]]:
    bank, side = _bank(ink.shape[-1]), ink.shape[-1]
    palette = 1 - torch.tensor(list(COLOURS.values())) / 255
    ink, found, rows = F.pad(ink, (bank.reach,) * 4), [[] for _ in ink], torch.arange(len(ink))
    for _ in range(MOST):
        # Coarsely: the pixel with the highest score. A convolution of each channel.
        scores = F.conv2d(ink[rows].flatten(0, 1)[:, None], bank.coarse).unflatten(0, (-1, 3))
        best = (
            (scores.square().sum(1) / bank.coarse.square().sum((1, 2, 3))[:, None, None]).amax(1).flatten(1).argmax(1)
        )
        y, x = best // side, best % side
        across = torch.arange(bank.width)
        place = (rows[:, None, None], slice(None), (y[:, None] + across)[:, :, None], (x[:, None] + across)[:, None])
        window = ink[place].permute(0, 3, 1, 2).flatten(2)
        # Finely: all shapes, sizes, blurs, and places up to 1.5 pixels from there.
        fits = window @ bank.fine.T / bank.norms
        chosen = fits.square().sum(1).argmax(1)
        explained = fits.square().sum(1).amax(1) / (window.square().sum(1) * bank.near[chosen]).sum(1).clamp_min(1e-9)
        colour = fits[torch.arange(len(rows)), :, chosen] / bank.norms[chosen, None]
        named = (colour @ F.normalize(palette).T).argmax(1)
        strength = (colour * palette[named]).sum(1) / palette[named].square().sum(1)
        ink[place] = (window * (1 - bank.touched[chosen])[:, None]).unflatten(2, (bank.width,) * 2).permute(0, 2, 3, 1)
        for k, row in enumerate(rows.tolist()):
            if strength[k] >= STRENGTH:
                shape, right, down = bank.about[chosen[k]]
                shape = shape if explained[k] >= FIT else "unknown"
                at = ((x[k].item() + right + 0.5) / side, (y[k].item() + down + 0.5) / side)
                found[row].append(Found(shape, list(COLOURS)[named[k]], *at))
        rows = rows[strength >= STRENGTH]
        if not len(rows):
            break
    return found


class _Bank(NamedTuple):
    """Drawn shapes, each in a window of ``width = 2 reach + 1`` pixels, for images of one size.

    coarse: (K, 1, width, width). fine: (M, width²), with their norms (M), the discs around them (near) and all pixels
    that they touch (touched), and what they are: shape, and the distance from the window's centre in pixels.
    """

    reach: int
    width: int
    coarse: Tensor
    fine: Tensor
    norms: Tensor
    near: Tensor
    touched: Tensor
    about: list[tuple[str, float, float]]


@cache
def _bank(side: int) -> _Bank:
    reach = int(1.25 * RADIUS * side + 0.999) + 2
    width, at = 2 * reach + 1, torch.arange(-reach, reach + 1.0)
    shifts = torch.arange(-4, 5) / 4 if side < 32 else torch.arange(-2, 3) / 2
    dx, dy = (d.flatten()[:, None, None] for d in torch.meshgrid(shifts, shifts, indexing="xy"))
    x, y = torch.broadcast_tensors(at - dx, at[:, None] - dy)
    coarse, fine, near, about = [], [], [], []
    for shape, distance in SHAPES.items():
        for factor in (0.8, 0.9, 1.0, 1.1, 1.2):
            radius = factor * RADIUS * side
            cover = (0.5 - distance(x, y, radius)).clamp(0, 1)
            disc = ((x * x + y * y).sqrt() <= 1.3 * radius + 1).float()
            for sigma in BLURS:
                drawn = _blurred(cover, sigma * side)
                fine.append(drawn), near.append(disc)
                about += [(shape, *d) for d in zip(dx.flatten().tolist(), dy.flatten().tolist(), strict=True)]
                if sigma == BLURS[1] and factor in (0.8, 1.0):
                    coarse.append(drawn[len(drawn) // 2])
    fine, near = torch.cat(fine), torch.cat(near)
    touched = F.max_pool2d((fine > 0.05).float(), 3, 1, 1)
    flat = fine.flatten(1)
    return _Bank(
        reach, width, torch.stack(coarse)[:, None], flat, flat.norm(dim=1), near.flatten(1), touched.flatten(1), about
    )


def _blurred(images: Tensor, sigma: float) -> Tensor:
    """Return images (N, H, W) with a Gaussian blur of sigma pixels."""
    if not sigma:
        return images
    reach = torch.arange(-4, 5.0)
    kernel = torch.exp(-reach.square() / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).view(1, 1, 1, -1)
    return F.conv2d(F.conv2d(images[:, None], kernel, padding=(0, 4)), kernel.mT, padding=(4, 0))[:, 0]


def judged(prompt: Prompt, found: Sequence[Found]) -> dict:
    """Return the answer to a prompt: the prompt, its kind, what was found, ``own`` (or None) and ``right``."""
    (shape, colour), (other, other_colour) = prompt.wanted[0], prompt.wanted[-1]
    shapes, colours = {f.shape for f in found}, {f.colour for f in found}
    pairs = {(f.shape, f.colour) for f in found}
    both = {shape, other} <= shapes
    if prompt.kind in ("single object", "two objects"):
        own = right = both
    elif prompt.kind == "counting":
        own = len(found) == len(prompt.wanted)
        right = own and shapes == {shape}
    elif prompt.kind == "colours":
        own, right = colour in colours, (shape, colour) in pairs
    elif prompt.kind == "colour binding":
        right = set(prompt.wanted) <= pairs
        own = right if both and {colour, other_colour} <= colours else None
    else:
        right = both and any(
            _related(a, b, prompt.relation) for a in found for b in found if (a.shape, b.shape) == (shape, other)
        )
        own = right if both else None
    answer = {"kind": prompt.kind, "prompt": prompt.text, "own": own, "right": right}
    return answer | {"found": [f._asdict() for f in found]}


def _related(a: Found, b: Found, relation: str) -> bool:
    """Tell whether a is in this direction from b: by at least ``APART``, and more than in the other direction."""
    dx, dy = RELATIONS[relation]
    along, across = dx * (a.x - b.x) + dy * (a.y - b.y), dy * (a.x - b.x) + dx * (a.y - b.y)
    return along >= max(APART, abs(across))


def columns(answers: Sequence[dict]) -> list[Column]:
    """Return a column for each kind among the answers of :func:`judged`, in the order of ``KINDS``."""
    made = []
    for kind in KINDS:
        mine = [answer for answer in answers if answer["kind"] == kind]
        own = [answer["own"] for answer in mine if answer["own"] is not None]
        if mine:
            share = sum(own) / len(own) if own else None
            made.append(Column(kind, share, len(own), len(mine), sum(a["right"] for a in mine) / len(mine)))
    return made


def evaluate(
    pipe,
    *,
    each: int = EACH,
    steps: int | None = None,
    seed: int = 0,
    sheet: str | Path | None = None,
    shown: Callable[[str, int, int], None] = lambda *_: None,
) -> tuple[list[Column], list[dict]]:
    """Return the columns of a pipeline, and its answers: ``each`` images of every kind.

    The prompts of a kind take turns, in an order that depends on the seed. Those for ``colour binding`` are the pairs
    that the data hold out, so that they were never seen in training.

    Args:
        sheet: file for a sheet with up to 12 wrong and 4 right images of each kind.
        shown: called with (kind, done, total).
    """
    answers, pictures = [], []
    for number, kind in enumerate(KINDS):
        some = evaluation_prompts(kind)
        order = torch.randperm(len(some), generator=drawn(seed, 11, number)).tolist()
        asked, done = [some[order[k % len(some)]] for k in range(each)], 0
        for images in drawn_pictures(pipe, [prompt.text for prompt in asked], steps, seed * len(KINDS) + number):
            part = asked[done : done + len(images)]
            answers += [judged(*pair) for pair in zip(part, find(images), strict=True)]
            pictures += [images[k].cpu() for k in range(len(images))]
            done += len(images)
            shown(kind, done, each)
    if sheet is not None:
        _sheet(answers, pictures, Path(sheet))
    return columns(answers), answers


def _sheet(answers: list[dict], pictures: list[Tensor], path: Path) -> None:
    chosen = []
    for kind in KINDS:
        mine = [k for k, answer in enumerate(answers) if answer["kind"] == kind]
        wrong = [k for k in mine if not answers[k]["right"]][:12]
        chosen += wrong + [k for k in mine if answers[k]["right"]][: 16 - len(wrong)]
    captions = [
        f"{answers[k]['prompt']}\n{'right' if answers[k]['right'] else 'WRONG'}: "
        + (", ".join(f"{f['colour']} {f['shape']}" for f in answers[k]["found"]) or "nothing found")
        for k in chosen
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    image_grid([to_image(2 * pictures[k] - 1) for k in chosen], captions).save(path)
