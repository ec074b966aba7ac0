"""Sources of captioned images, and how they are split."""

import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from torch import Tensor

from fmpipe.untrusted import check_regular


class Item(NamedTuple):
    """One image with captions."""

    image: Tensor  # uint8 (3, H, W)
    captions: tuple[str, ...]  # at least one; the first is the simplest
    key: str  # stable, unique in the source
    labels: dict[str, str] = {}  # noqa: RUF012 (never written to)


class Source(Protocol):
    """A sequence of items. digest: 16 hex digits of everything that determines them."""

    digest: str

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> Item: ...


def keys_of(source: Source) -> list[str]:
    """Return the keys of all items, without making the items where the source has a list ``keys``."""
    keys = getattr(source, "keys", None)
    return [source[i].key for i in range(len(source))] if keys is None else keys


def captions_of(source: Source) -> list[str]:
    """Return all captions, without making the items where the source has a list ``captions``."""
    captions = getattr(source, "captions", None) or (source[i].captions for i in range(len(source)))
    return [caption for texts in captions for caption in texts]


def split(keys: Sequence[str], val: float, seed: int = 0) -> tuple[list[int], list[int]]:
    """Return (train, val) indices: val if u < val, where u in [0, 1) is the first 64 bits of ``sha256(seed, key)``.

    A new key never moves the others. val is the expected share, in [0, 1].
    """
    if not 0 <= val <= 1:
        raise ValueError(f"split: val must be in [0, 1], got {val!r}")
    sides: tuple[list[int], list[int]] = ([], [])
    for i, key in enumerate(keys):
        drawn = int.from_bytes(hashlib.sha256(f"{seed}\n{key}".encode()).digest()[:8], "big") / 2**64
        sides[drawn < val].append(i)
    return sides


def to_pixels(images: Tensor) -> Tensor:
    """Convert uint8 in 0…255 to fp32 in [-1, 1], any shape."""
    return images.float() / 127.5 - 1


def digest_of(*parts: object) -> str:
    """Return 16 hex digits of the sha256 of the parts as JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def file_digests(files: Iterable[Path]) -> list[tuple[int, str]]:
    """Return (size, sha256) of each file; OSError for one that is not a regular file, which might never end."""
    digests = []
    for file in files:
        check_regular(file, sys.maxsize)
        sha = hashlib.sha256()
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                sha.update(chunk)
            digests.append((stream.tell(), sha.hexdigest()))
    return digests
