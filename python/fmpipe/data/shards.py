"""Tar shards as webdataset writes them, read in place.

The library streams shards without random access, and it splits a sample whose files are not adjacent, which happens
with ``tar -cf``. So ``tarfile`` finds the members; names and patterns follow the library's rules.
"""

import io
import tarfile
from collections.abc import Callable
from functools import cached_property
from glob import glob
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from fmpipe.data.folder import CAPTION_BYTES, IMAGES, VERSION, caption_json, caption_lines, checked_size, picture
from fmpipe.data.source import Item, digest_of, file_digests
from fmpipe.requirements import optional
from fmpipe.untrusted import check_regular

SHARD_BYTES = 1 << 50


class Member(NamedTuple):
    """A file in a shard; key: its name up to the first dot after the last slash."""

    shard: Path
    offset: int
    bytes: int
    name: str
    key: str

    def __str__(self) -> str:
        return f"{self.shard}: {self.name}"

    def read(self) -> bytes:
        with self.shard.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.bytes)


class Shards:
    """The images of uncompressed tar files in webdataset's format: ``<key>.jpg|png|webp`` and ``<key>.txt|json``.

    pattern: one file, a folder of shards, a glob, or webdataset's braces, as ``train-{000..099}.tar``. Captions: a line
    each of the txt, else the json's ``caption``, ``text``, ``captions`` or ``prompt``, a str or list; other members are
    passed over. Keys are ``<shard's stem>/<key>``. Members are found once, then read where they lie; nothing is
    extracted to disk. FileNotFoundError without shards, ValueError naming the shard and member for one that is a link,
    a device or outside, lacks its caption, or cannot be read.
    """

    def __init__(self, pattern: str | Path, size: int = 64):
        self.size, self.shards = checked_size("Shards", size), find_shards(pattern)
        self.members, self.captions = index_shards(self.shards, lambda kind: kind in IMAGES)
        if not self.members:
            raise FileNotFoundError(f"Shards: pattern {str(pattern)!r} has no images ({' '.join(IMAGES)})")
        for member, captions in zip(self.members.values(), self.captions, strict=True):
            if not captions:
                raise ValueError(f"Shards: {member} has no caption ({member.key}.txt or {member.key}.json)")
        self.keys = list(self.members)

    @cached_property
    def digest(self) -> str:
        """Digest of every shard."""
        names = [shard.name for shard in self.shards]
        return digest_of("Shards", VERSION, self.size, names, file_digests(self.shards))

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, i: int) -> Item:
        member = self.members[self.keys[i]]
        return Item(picture(io.BytesIO(member.read()), self.size, str(member)), self.captions[i], self.keys[i])


def find_shards(pattern: str | Path) -> list[Path]:
    """Return the tar files of a pattern: a file, a folder, a glob or braces, sorted. FileNotFoundError if none is."""
    text = str(pattern)
    if Path(pattern).is_dir():
        shards = sorted(Path(pattern).glob("*.tar"))
    elif "{" in text and not Path(pattern).exists():
        expand = optional("webdataset.shardlists", f"the pattern {text!r}").expand_urls
        shards = [Path(path) for part in expand(text) for path in sorted(glob(part, recursive=True)) or [part]]
        if missing := [shard for shard in shards if not shard.is_file()]:
            raise FileNotFoundError(f"Shards: there is no {missing[0]}, which pattern {text!r} names")
    else:
        shards = sorted(map(Path, glob(text, recursive=True)))
    if not shards:
        raise FileNotFoundError(f"Shards: pattern {text!r} matches no file")
    return shards


def index_shards(shards: list[Path], wanted: Callable[[str], bool]) -> tuple[dict[str, Member], list[tuple[str, ...]]]:
    """Return the members whose suffix is wanted, by ``<shard's stem>/<key>``, and the captions of each, maybe none."""
    members: dict[str, Member] = {}
    captions = []
    for shard in shards:
        found, texts = _indexed(shard, wanted)
        for key, member in found.items():
            if (long := f"{shard.stem}/{key}") in members:
                raise ValueError(f"Shards: {shard} and {members[long].shard} both have {long}")
            members[long] = member
            captions.append(texts.get(key, ()))
    return members, captions


class _Headers(io.BufferedReader):
    """Reads headers and captions. tarfile reads a long name in one piece, of whatever size its header claims."""

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= 2 * CAPTION_BYTES:
            raise ValueError(f"a header claims {size} bytes")
        return super().read(size)


def _check_plain(member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError("it goes outside")
    if not member.isdir() and (not member.isreg() or member.issparse()):
        raise ValueError("it is a link, a device or sparse; only plain files are read")


def _indexed(shard: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, Member], dict[str, tuple[str, ...]]]:
    """Where the wanted members lie, and the captions; both by key."""
    found: dict[str, Member] = {}
    texts: dict[str, tuple[str, ...]] = {}
    name = ""
    try:
        check_regular(shard, SHARD_BYTES)
        with (
            _Headers(io.FileIO(shard)) as file,
            tarfile.open(fileobj=file, mode="r:") as tar,
        ):  # no compression: offsets
            for member in tar:
                name = member.name
                _check_plain(member)
                base, _, kind = PurePosixPath(name).name.partition(".")
                kind = f".{kind.lower()}"
                if not base or member.isdir():
                    continue
                key = PurePosixPath(name).with_name(base).as_posix()
                if kind in (".txt", ".json") and member.size > CAPTION_BYTES and not wanted(kind):
                    raise ValueError(f"it has {member.size} bytes, more than the {CAPTION_BYTES} of a caption")
                if wanted(kind):
                    if key in found:
                        raise ValueError(f"{found[key].name!r} has the same key")
                    found[key] = Member(shard, member.offset_data, member.size, name, key)
                elif kind == ".txt":
                    texts[key] = caption_lines(tar.extractfile(member).read().decode("utf-8-sig"))
                elif kind == ".json" and key not in texts:
                    texts[key] = caption_json(tar.extractfile(member).read())
    except (tarfile.TarError, ValueError, OverflowError) as error:
        hint = "" if name else " (it must be an uncompressed tar file)"
        raise ValueError(f"Shards: {shard}, member {name!r}: {error}{hint}") from error
    return found, texts
