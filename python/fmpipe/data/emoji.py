"""Noto Color Emoji on white with captions: 887 pictures anyone can rebuild from a free font.

``emoji.tsv`` is the list: the emoji, its subgroup in Unicode, its name, and other words for it. Names and most of the
other words are the ``emoji`` package's and CLDR's, the rest written for this set; no phrase names two pictures.

``emoji_categories.tsv`` has words that many pictures share, such as "something to eat": the phrases of a category, and
its pictures, by name or, with ``@``, by subgroup; ``-`` leaves one out.
"""

import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import torch

from fmpipe.data.source import Item, digest_of, file_digests

VERSION = 2  # increase with every change of images or captions, so that older caches are not used
FONT = "/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"
INSTALL = "apt install fonts-noto-color-emoji"
STRIKE = 109  # the one size its bitmaps have
SIDE = 136  # their width and height
PER_PHRASE = 4  # templates of a phrase that is not the name; the name has all
PER_GENERAL = 3  # templates of a phrase that many pictures share

# {a}: the phrase with its article; {}: without.
TEMPLATES = (
    "{}",
    "{a}",
    "a picture of {a}",
    "an emoji of {a}",
    "a drawing of {a}",
    "{} emoji",
    "an image of {a}",
    "a small picture of {a}",
    "an icon of {a}",
    "{a} on white",
    "{a} on a white background",
    "a cartoon of {a}",
    "draw {a}",
    "show me {a}",
    "this is {a}",
    "a photo of {a}",
    "clip art of {a}",
    "a simple drawing of {a}",
    "one {}",
    "the {}",
    "a cute {}",
    "an illustration of {a}",
    "{a}, emoji style",
    "i want {a}",
    "a sticker of {a}",
    "a colourful icon of {a}",
)
# Never trained on: what fmpipe evaluate asks with.
NEW_TEMPLATES = (
    "please paint {a} for me",
    "{a} as a symbol",
    "here you can see {a}",
    "a tiny sketch showing {a}",
    "could you make {a}?",
    "my favourite thing is {a}",
    "we are looking at {a}",
    "a logo with {a}",
)


class Entry(NamedTuple):
    char: str
    subgroup: str
    name: str
    others: tuple[str, ...]


@cache
def table() -> tuple[Entry, ...]:
    """The list, in its order."""
    lines = files("fmpipe.data").joinpath("emoji.tsv").read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines)
    return tuple(Entry(*row, tuple(filter(None, others.split("; ")))) for *row, others in rows)


@cache
def phrases() -> tuple[str, ...]:
    """Return the name of every picture, each followed by its other phrases, and then the phrases of the categories."""
    own = (phrase for entry in table() for phrase in (entry.name, *entry.others))
    return (*own, *(phrase for words, _ in categories() for phrase in words))


@cache
def categories() -> tuple[tuple[tuple[str, ...], frozenset[int]], ...]:
    """Return the phrases of each category, and the rows of its pictures in :func:`table`."""
    lines = files("fmpipe.data").joinpath("emoji_categories.tsv").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("\t") for line in lines)
    return tuple((tuple(words.split("; ")), rows_of(members.split("; "))) for words, members in pairs)


def rows_of(names: Iterable[str]) -> frozenset[int]:
    """Return the rows of pictures given by name, by the emoji, or as ``@subgroup``; ``-`` before one leaves it out.

    Raises KeyError for a name that no picture or subgroup has.
    """
    found, left_out = set(), set()
    for name in names:
        (left_out if name.startswith("-") else found).update(_rows()[name.removeprefix("-")])
    return frozenset(found - left_out)


@cache
def _rows() -> dict[str, list[int]]:
    known: dict[str, list[int]] = {}
    for row, entry in enumerate(table()):
        known[entry.name] = known[entry.char] = [row]
        known.setdefault(f"@{entry.subgroup}", []).append(row)
    return known


@cache
def _general() -> dict[int, list[str]]:
    """Return, for each row, the phrases that its picture shares with others."""
    shared: dict[int, list[str]] = {}
    for words, rows in categories():
        for row in rows:
            shared.setdefault(row, []).extend(words)
    return shared


def say(template: str, phrase: str) -> str:
    """The template with the phrase in it."""
    return template.format(phrase, a=with_article(phrase))


def with_article(phrase: str) -> str:
    """``a cat``, ``an apple``; plurals and names of places have none, "the" stays."""
    first, last = phrase.split()[0].lower(), phrase.split()[-1].lower()
    if first in ("a", "an", "the", "two", "some") or (last.endswith("s") and not last.endswith(("ss", "us", "is"))):
        return phrase
    return f"{'an' if first[0] in 'aeiou' and not first.startswith(('uni', 'eu', 'one')) else 'a'} {phrase}"


class Emoji:
    """The pictures (3, size, size), uint8, in the order of :func:`table`. labels: ``name subgroup``.

    font: path of NotoColorEmoji.ttf. FileNotFoundError says how to get it; ValueError for a size below 16.
    """

    def __init__(self, size: int = 64, font: str | Path = FONT):
        from PIL import ImageFont

        if not isinstance(size, int) or size < 16:
            raise ValueError(f"Emoji: size must be a whole number of at least 16, got {size!r}")
        if not Path(font).is_file():
            raise FileNotFoundError(f"Emoji: no font at {font}; run: {INSTALL}")
        self.size, self.font = size, ImageFont.truetype(str(font), STRIKE)
        told = hashlib.sha256(repr([captions(entry) for entry in table()]).encode()).hexdigest()
        self.digest = digest_of("Emoji", VERSION, size, file_digests([Path(font)]), told)

    def __len__(self) -> int:
        return len(table())

    def __getitem__(self, i: int) -> Item:
        entry = table()[i]
        labels = {"name": entry.name, "subgroup": entry.subgroup}
        return Item(self._drawn(entry.char), captions(entry), f"emoji-{entry.name}", labels)

    def _drawn(self, char: str) -> torch.Tensor:
        import numpy as np
        from PIL import Image, ImageDraw

        image = Image.new("RGB", (SIDE, SIDE), "white")
        draw = ImageDraw.Draw(image)
        left, top, right, bottom = draw.textbbox((0, 0), char, font=self.font, embedded_color=True)
        at = ((SIDE - left - right) / 2, (SIDE - top - bottom) / 2)
        draw.text(at, char, font=self.font, embedded_color=True)
        pixels = np.asarray(image.resize((self.size, self.size), Image.Resampling.LANCZOS))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).contiguous()


def captions(entry: Entry) -> tuple[str, ...]:
    """The captions of one picture: its own, then those that it shares with the others of its categories."""
    return tuple(dict.fromkeys((*own_captions(entry), *general_captions(entry))))


def own_captions(entry: Entry) -> tuple[str, ...]:
    """The name in every template, then each other phrase in the plain ones and some of the rest, by its hash."""
    found = [say(template, entry.name) for template in TEMPLATES]
    for phrase in entry.others:
        found += _said(phrase, PER_PHRASE)
    return tuple(dict.fromkeys(found))


def general_captions(entry: Entry) -> tuple[str, ...]:
    """The phrases of the categories of a picture, each in the plain templates and some of the rest, by its hash."""
    (row,) = _rows()[entry.char]
    return tuple(dict.fromkeys(text for phrase in _general().get(row, ()) for text in _said(phrase, PER_GENERAL)))


@cache
def _said(phrase: str, count: int) -> list[str]:
    """Return a phrase in ``count`` templates: the two plain ones, and some of the rest, by its hash."""
    rest = sorted(TEMPLATES[2:], key=lambda t: hashlib.sha256(f"{phrase}\n{t}".encode()).digest())
    return [say(template, phrase) for template in (*TEMPLATES[:2], *rest[: count - 2])]
