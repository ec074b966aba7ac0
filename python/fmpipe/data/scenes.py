"""Scenes of up to four objects on white with exact labels, as GenEval's prompts ask for them: nothing to download.

A prompt belongs to one of six kinds (``KINDS``). It determines its scene up to a small variation of places, sizes and
colours, so that a small model can learn it: objects without a colour are black, and of two objects without a relation,
the first is on the left.
"""

import hashlib
import random
from functools import cache
from itertools import permutations, product
from typing import NamedTuple

import torch
from torch import Tensor

from fmpipe.data.shapes import COLOURS
from fmpipe.data.shapes import SHAPES as ALL_SHAPES
from fmpipe.data.source import Item, digest_of

VERSION = 1  # increase with every change of images or captions, so that older caches are not used

# At 16 pixels, a blurred diamond is a blurred cross.
SHAPES = {name: distance for name, distance in ALL_SHAPES.items() if name != "diamond"}
KINDS = ("single object", "two objects", "counting", "colours", "colour binding", "position")
COUNTS = {2: "two", 3: "three", 4: "four"}
RELATIONS = {"left of": (-1, 0), "right of": (1, 0), "above": (0, -1), "below": (0, 1)}  # of the first, x and y
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
RADIUS = 0.15  # the image's side is 1
NEAR, FAR = 0.27, 0.73  # coordinates of objects beside others
PLACES = {  # by the number of equal objects
    1: ((0.5, 0.5),),
    2: ((NEAR, 0.5), (FAR, 0.5)),
    3: ((0.5, NEAR), (NEAR, FAR), (FAR, FAR)),
    4: ((NEAR, NEAR), (FAR, NEAR), (NEAR, FAR), (FAR, FAR)),
}
HELD_OUT = 8  # every eighth pair of coloured objects is never in the data
# More scenes of the kinds with more prompts.
ORDER = ("single object", "two objects", "counting", "colours", "position", *["colour binding"] * 4, "position")


class Thing(NamedTuple):
    """One object of a scene; x to the right and y down, in units of the image's side."""

    shape: str
    colour: str
    x: float
    y: float
    radius: float = RADIUS


class Prompt(NamedTuple):
    """What a prompt asks for: a shape and a colour, or None for any, per object, and the first one's relation."""

    kind: str
    text: str
    wanted: tuple[tuple[str, str | None], ...]
    relation: str | None = None


@cache
def prompts(kind: str) -> list[Prompt]:
    """Return all prompts of a kind, always in the same order. Raises KeyError for an unknown kind."""
    pairs, coloured = list(permutations(SHAPES, 2)), list(product(SHAPES, COLOURS))
    made = {
        "single object": lambda: [((shape, None),) for shape in SHAPES],
        "two objects": lambda: [((a, None), (b, None)) for a, b in pairs],
        "counting": lambda: [((shape, None),) * n for shape, n in product(SHAPES, COUNTS)],
        "colours": lambda: [(one,) for one in coloured],
        "colour binding": lambda: [(a, b) for a, b in permutations(coloured, 2) if a[0] != b[0] and a[1] != b[1]],
    }
    if kind == "position":
        asked = [(((a, None), (b, None)), relation) for (a, b), relation in product(pairs, RELATIONS)]
    else:
        asked = [(wanted, None) for wanted in made[kind]()]
    return [Prompt(kind, text_of(wanted, relation), wanted, relation) for wanted, relation in asked]


def held_out(prompt: Prompt) -> bool:
    """Tell whether the data never contain this pair of coloured objects, in either order."""
    if prompt.kind != "colour binding":
        return False
    digest = hashlib.sha256(repr(sorted(prompt.wanted)).encode()).digest()
    return digest[0] % HELD_OUT == 0


def evaluation_prompts(kind: str) -> list[Prompt]:
    """Return the prompts to evaluate a model with: all of a kind, for ``colour binding`` those that are held out."""
    return [prompt for prompt in prompts(kind) if kind != "colour binding" or held_out(prompt)]


def text_of(wanted: tuple[tuple[str, str | None], ...], relation: str | None = None) -> str:
    """Return the words for objects: "three circles", "a red circle and a blue square", "a circle above a ring"."""
    if len(wanted) > 1 and len(set(wanted)) == 1:
        shape, _ = wanted[0]
        return f"{COUNTS[len(wanted)]} {shape}{'es' if shape.endswith('ss') else 's'}"
    named = (f"{colour} {shape}" if colour else shape for shape, colour in wanted)
    return f" {relation or 'and'} ".join(f"{'an' if name[0] in 'aeiou' else 'a'} {name}" for name in named)


def scene(prompt: Prompt, vary: random.Random | None = None) -> list[Thing]:
    """Return the objects that a prompt asks for. vary: source of the small variation of places and radii."""
    places = PLACES[len(prompt.wanted)]
    if prompt.relation:
        places = [(0.5 + (FAR - 0.5) * s * dx, 0.5 + (FAR - 0.5) * s * dy)
                  for s in (1, -1) for dx, dy in [RELATIONS[prompt.relation]]]  # fmt: skip
    spread = vary.uniform if vary else lambda low, high: (low + high) / 2
    return [
        Thing(shape, colour or "black", x + spread(-0.02, 0.02), y + spread(-0.02, 0.02), RADIUS * spread(0.94, 1.06))
        for (shape, colour), (x, y) in zip(prompt.wanted, places, strict=True)
    ]


def draw(things: list[Thing], size: int, vary: random.Random | None = None) -> Tensor:
    """Return objects on white, uint8 (3, size, size). An edge is one pixel wide. vary: of the colours."""
    at, image = (torch.arange(size, dtype=torch.float64) + 0.5) / size, torch.full((3, size, size), 255.0).double()
    for shape, colour, x, y, radius in things:
        ink = torch.tensor([value + (vary.uniform(-8, 8) if vary else 0) for value in COLOURS[colour]]).double()
        distance = SHAPES[shape](*torch.broadcast_tensors(at - x, at[:, None] - y), radius)
        cover = (0.5 - distance * size).clamp(0, 1)
        image += cover * (ink.clamp(0, 255)[:, None, None] - image)
    return image.round().to(torch.uint8)


def captions_of(prompt: Prompt) -> tuple[str, ...]:
    """Return the prompt first, then other sentences that are true of its scene."""
    if len(prompt.wanted) != 2 or prompt.kind == "counting":
        return (prompt.text,)
    first, second = prompt.wanted
    relation = prompt.relation or "left of"
    said = text_of((first, second), relation), text_of((second, first), OPPOSITE[relation])
    return tuple(dict.fromkeys((prompt.text, *said)))


class Scenes:
    """``count`` scenes (3, size, size), uint8. Item i depends on (seed, i, size) alone.

    labels: ``kind``. Of the pairs of coloured objects, one of ``HELD_OUT`` never occurs (:func:`held_out`). Raises
    ValueError for a count below 1 or a size below 16.
    """

    def __init__(self, count: int, size: int = 32, seed: int = 0):
        for name, value, least in (("count", count, 1), ("size", size, 16)):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"Scenes: {name} must be a whole number of at least {least}, got {value!r}")
        self.count, self.size, self.seed = count, size, seed
        self.digest = digest_of("Scenes", VERSION, count, size, seed)
        # By hash: random.shuffle may change with Python.
        self.prompts = {
            kind: sorted(
                (prompt for prompt in prompts(kind) if not held_out(prompt)),
                key=lambda prompt: hashlib.sha256(f"{seed} {prompt.text}".encode()).digest(),
            )
            for kind in KINDS
        }

    def __len__(self) -> int:
        return self.count

    def prompt(self, i: int) -> Prompt:
        """Return what item i shows: the prompts of a kind take turns, in an order that depends on the seed."""
        turn, at = divmod(range(self.count)[i], len(ORDER))
        some, each = self.prompts[ORDER[at]], ORDER.count(ORDER[at])
        return some[(turn * each + ORDER[:at].count(ORDER[at])) % len(some)]

    def __getitem__(self, i: int) -> Item:
        prompt, vary = self.prompt(i), random.Random(f"{self.seed} {i}")
        image = draw(scene(prompt, vary), self.size, vary)
        return Item(image, captions_of(prompt), f"scenes-{self.seed}-{i}", {"kind": prompt.kind})
