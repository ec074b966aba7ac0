"""Scenes of one object on white, drawn from an index: 864 combinations with exact labels, and nothing to download."""

import hashlib
import random
from itertools import product

import torch
from torch import Tensor

from fmpipe.data.source import Item, digest_of

VERSION = 1  # increase with every change of images or captions, so that older caches are not used

COLOURS = {
    "red": (225, 25, 30),
    "orange": (250, 140, 0),
    "yellow": (250, 220, 10),
    "green": (10, 155, 55),
    "cyan": (10, 195, 225),
    "blue": (25, 70, 220),
    "purple": (150, 35, 200),
    "black": (20, 20, 20),
}
SIZES = {"small": 0.11, "large": 0.18}  # radius; the picture's side is 1
PLACES = {
    "centre": (0.5, 0.5),
    "left": (0.25, 0.5),
    "right": (0.75, 0.5),
    "top": (0.5, 0.25),
    "bottom": (0.5, 0.75),
    "top left": (0.25, 0.25),
    "top right": (0.75, 0.25),
    "bottom left": (0.25, 0.75),
    "bottom right": (0.75, 0.75),
}
# Signed distance to the edge, negative inside, at x to the right and y down of the middle; r: the radius.
SHAPES = {
    "circle": lambda x, y, r: _length(x, y) - r,
    "square": lambda x, y, r: torch.maximum(x.abs(), y.abs()) - 0.9 * r,
    "triangle": lambda x, y, r: torch.maximum(y - 0.775 * r, 0.75**0.5 * x.abs() - y / 2 - 0.475 * r),
    "cross": lambda x, y, r: torch.minimum(_bar(x, y, r), _bar(y, x, r)),
    "ring": lambda x, y, r: (_length(x, y) - 0.8 * r).abs() - 0.2 * r,
    "diamond": lambda x, y, r: (x.abs() + y.abs() - r) * 0.5**0.5,
}


class Shapes:
    """``count`` scenes (3, size, size), uint8. Item i depends on (seed, i, size) alone.

    Every 864 items contain all combinations of shape, colour, size and place, in an order that depends on the seed;
    place, radius and colour vary a little per item. labels: ``shape colour size place``. Raises ValueError for a count
    below 1 or a size below 16.
    """

    def __init__(self, count: int, size: int = 32, seed: int = 0):
        for name, value, least in (("count", count, 1), ("size", size, 16)):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"Shapes: {name} must be a whole number of at least {least}, got {value!r}")
        self.count, self.size, self.seed = count, size, seed
        self.digest = digest_of("Shapes", VERSION, count, size, seed)
        # By hash: random.shuffle may change with Python.
        self.scenes = sorted(
            product(SHAPES, COLOURS, SIZES, PLACES),
            key=lambda scene: hashlib.sha256(f"{seed} {scene}".encode()).digest(),
        )

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Item:
        i = range(self.count)[i]
        shape, colour, size, place = self.scenes[i % len(self.scenes)]
        draw = random.Random(f"{self.seed} {i}").uniform
        cx, cy = (at + draw(-0.015, 0.015) for at in PLACES[place])
        radius = SIZES[size] * draw(0.94, 1.06)
        ink = torch.tensor([value + draw(-8, 8) for value in COLOURS[colour]], dtype=torch.float64).clamp(0, 255)
        at = (torch.arange(self.size, dtype=torch.float64) + 0.5) / self.size
        distance = SHAPES[shape](*torch.broadcast_tensors(at - cx, at[:, None] - cy), radius)
        cover = (0.5 - distance * self.size).clamp(0, 1)  # a pixel's share of the object: an edge is a pixel wide
        image = (255 + cover * (ink[:, None, None] - 255)).round().to(torch.uint8)
        labels = {"shape": shape, "colour": colour, "size": size, "place": place}
        return Item(image, _captions(**labels), f"shapes-{self.seed}-{i}", labels)


def dominant_colour(image: Tensor) -> str:
    """Return the name in ``COLOURS`` of most pixels that are not background, or ``"white"`` if all of them are.

    image: (3, H, W), uint8 or floating point in [-1, 1]. A pixel with coverage a is ``1 - a (1 - colour)``, so its
    colour is the direction of ``1 - pixel`` for any a, also at edges and with blur. Background: ``‖1 - pixel‖ < ¼``.
    """
    if image.dim() != 3 or image.shape[0] != 3:
        raise ValueError(f"dominant_colour: image must be (3, H, W), got {tuple(image.shape)}")
    rgb = image.float() / 255 if image.dtype == torch.uint8 else (image.float().clamp(-1, 1) + 1) / 2
    ink = 1 - rgb.flatten(1)
    ink = ink[:, ink.norm(dim=0) >= 0.25]
    if not ink.shape[1]:
        return "white"
    palette = 1 - torch.tensor(list(COLOURS.values()), device=ink.device) / 255
    votes = (torch.nn.functional.normalize(palette) @ ink).argmax(0)
    return list(COLOURS)[votes.bincount(minlength=len(COLOURS)).argmax()]


def _captions(shape: str, colour: str, size: str, place: str) -> tuple[str, ...]:
    """Return a full caption first, then shorter ones and other orders of words."""
    where = f"{'in' if place == 'centre' else 'at'} the {place}"
    a = "an" if colour == "orange" else "a"
    return (
        f"a {size} {colour} {shape} {where}",
        f"{colour} {shape}",
        f"a {size} {colour} {shape}",
        f"{a} {colour} {shape} {where}",
        f"{where} {a} {colour} {shape}, {size}",
    )


def _length(x: Tensor, y: Tensor) -> Tensor:
    return (x * x + y * y).sqrt()


def _bar(x: Tensor, y: Tensor, r: float) -> Tensor:
    return torch.maximum(x.abs() - r, y.abs() - 0.3 * r)
