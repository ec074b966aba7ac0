"""A user's own pictures: a folder of them, or webdataset's tar shards."""

import csv
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from functools import cached_property
from glob import glob
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

import torch
from PIL import Image, ImageOps
from torch import Tensor

from fmpipe.data.source import Item, digest_of, file_digests

VERSION = 1  # raise with every change of how a picture is read: caches of the old are then not taken
IMAGES = (".png", ".jpg", ".jpeg", ".webp")
FORMATS = ("PNG", "JPEG", "WEBP")


CAPTIONS = (
    "metadata.jsonl",
    "captions.jsonl",
    "metadata.csv",
    "captions.csv",
    "captions.txt",
)  # looked for in a folder
FILE_KEYS, TEXT_KEYS = ("file_name", "file", "image"), ("text", "caption", "captions", "prompt")


class Folder:
    """The png, jpg and webp files under path, sorted by name, at size × size.

    Args:
        captions: a ``.jsonl`` or ``.csv`` file with the keys or columns ``file_name`` and ``text`` (in JSON, ``text``
            may be a list; lines of one image add up); a ``.txt`` file with one line per image, ``file<TAB>caption`` or
            captions alone in the order of the images. None looks for one of ``CAPTIONS`` in the folder, otherwise
            for ``<stem>.txt`` beside each image, one caption per line. False reads none.

    Keys are paths relative to path. ValueError or FileNotFoundError name the file and line, or the image, that is
    wrong; an image that cannot be read is found when it is asked for.
    """

    def __init__(self, path: str | Path, captions: str | Path | bool | None = None, size: int = 64):
        self.path, self.size = Path(path), _checked_size("Folder", size)
        found = (p for p in self.path.rglob("*") if p.suffix.lower() in IMAGES and not p.name.startswith("."))
        self.keys = sorted(p.relative_to(self.path).as_posix() for p in found)
        if not self.keys:
            raise FileNotFoundError(f"Folder: path {str(path)!r} has no images ({' '.join(IMAGES)})")
        captions = self._caption_file() if captions is None else captions
        if captions is False:
            self.captions = [()] * len(self.keys)
        elif captions is None:
            self.captions = [_beside(self.path / key) for key in self.keys]
        else:
            read = {".jsonl": _from_jsonl, ".csv": _from_csv, ".txt": _from_txt}.get(Path(captions).suffix)
            if read is None:
                raise ValueError(f"Folder: captions must be a .jsonl, .csv or .txt file, got {str(captions)!r}")
            self.captions = read(Path(captions), self.keys)

    def _caption_file(self) -> Path | None:
        """Return the file in the folder that has all captions; not one that belongs to an image of the same name."""
        stems = {Path(key).stem for key in self.keys}
        found = (self.path / name for name in CAPTIONS if not (name.endswith(".txt") and Path(name).stem in stems))
        return next((file for file in found if file.is_file()), None)

    @classmethod
    def has_captions(cls, path: str | Path) -> bool:
        """Tell whether a folder has captions of its own."""
        return any((Path(path) / name).is_file() for name in CAPTIONS) or any(Path(path).rglob("*.txt"))

    @cached_property
    def digest(self) -> str:
        """Reads every file."""
        files = file_digests(self.path / key for key in self.keys)
        return digest_of("Folder", VERSION, self.size, self.keys, files, self.captions)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, i: int) -> Item:
        key = self.keys[i]
        with (self.path / key).open("rb") as file:
            return Item(_picture(file, self.size, str(self.path / key)), self.captions[i], key)


class _Member(NamedTuple):
    shard: Path
    offset: int
    bytes: int
    name: str


class Shards:
    """The pictures of uncompressed tar files, webdataset's way: ``<key>.jpg|png|webp`` and ``<key>.txt|json``.

    pattern: a glob of the shards, or one file. Captions: a line each of the txt, else the json's ``caption`` or
    ``text``, a str or list; other members are passed over. Keys are ``<shard's stem>/<key>``. Members are found once,
    then read where they lie; nothing is extracted to disk. FileNotFoundError without shards, ValueError naming the
    shard and member for one that is a link, a device or outside, lacks its caption, or cannot be read.
    """

    def __init__(self, pattern: str | Path, size: int = 64):
        self.size, self.shards = _checked_size("Shards", size), sorted(map(Path, glob(str(pattern), recursive=True)))
        if not self.shards:
            raise FileNotFoundError(f"Shards: pattern {str(pattern)!r} matches no file")
        self.members: dict[str, _Member] = {}
        self.captions: list[tuple[str, ...]] = []
        for shard in self.shards:
            images, texts = _indexed(shard)
            for key, member in images.items():
                if not texts.get(key):
                    raise ValueError(f"Shards: {shard}: {member.name} has no caption ({key}.txt or {key}.json)")
                if (key := f"{shard.stem}/{key}") in self.members:
                    raise ValueError(f"Shards: {shard} and {self.members[key].shard} both have {key}")
                self.members[key] = member
            self.captions += [texts[key] for key in images]
        if not self.members:
            raise FileNotFoundError(f"Shards: pattern {str(pattern)!r} has no images ({' '.join(IMAGES)})")
        self.keys = list(self.members)

    @cached_property
    def digest(self) -> str:
        """Reads every shard."""
        names = [shard.name for shard in self.shards]
        return digest_of("Shards", VERSION, self.size, names, file_digests(self.shards))

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, i: int) -> Item:
        member = self.members[self.keys[i]]
        with member.shard.open("rb") as file:
            file.seek(member.offset)
            data = file.read(member.bytes)
        image = _picture(io.BytesIO(data), self.size, f"{member.shard}: {member.name}")
        return Item(image, self.captions[i], self.keys[i])


def _checked_size(where: str, size: int) -> int:
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"{where}: size must be a positive whole number, got {size!r}")
    return size


def _picture(file: BinaryIO, size: int, name: str) -> Tensor:
    """uint8 (3, size, size): upright, on white, the middle square of it."""
    try:
        image = ImageOps.exif_transpose(Image.open(file, formats=FORMATS))
        if image.mode.startswith("I;16"):  # Pillow would cut it at 255
            image = image.point(lambda value: value / 256).convert("L")
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
        image = ImageOps.fit(image, (size, size), Image.Resampling.LANCZOS)
    except Exception as error:  # whatever Pillow makes of a damaged file
        raise ValueError(f"{name} cannot be read as an image: {error}") from error
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.view(size, size, 3).permute(2, 0, 1).contiguous()


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.split("\n") if line.strip())


def _texts(value: object) -> tuple[str, ...]:
    """Of a str or a list of str; ValueError for what is neither, or empty."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t.strip() for t in texts):
        raise ValueError(f"expected a caption or a list of captions, got {value!r}")
    return tuple(text.strip() for text in texts)


def _utf8(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")  # with the mark that Windows' editors set, or without
    except UnicodeDecodeError as error:
        raise ValueError(f"Folder: {file} is not UTF-8: {error}") from None


def _beside(image: Path) -> tuple[str, ...]:
    file = image.with_suffix(".txt")
    captions = _lines(_utf8(file)) if file.is_file() else ()
    if not captions:
        state = "empty" if file.is_file() else "missing"
        raise ValueError(f"Folder: {image} has no caption: {file.name} beside it is {state}")
    return captions


def _from_txt(file: Path, keys: list[str]) -> list[tuple[str, ...]]:
    lines = _utf8(file).rstrip().split("\n")
    rows = [line.split("\t", 1) if line.strip() else None for line in lines]
    named = [row for row in rows if row]
    if named and all(len(row) == 2 for row in named) and any(row[0].strip().lower().endswith(IMAGES) for row in named):
        return _gathered(file, keys, (row and {"file_name": row[0].strip(), "text": row[1]} for row in rows))
    if len(lines) != len(keys):
        raise ValueError(f"Folder: {file} has {len(lines)} lines for {len(keys)} images; it must have one each")
    for number, (line, key) in enumerate(zip(lines, keys), 1):
        if not line.strip():
            raise ValueError(f"Folder: {key} has no caption: line {number} of {file} is empty")
    return [(line.strip(),) for line in lines]


def _from_csv(file: Path, keys: list[str]) -> list[tuple[str, ...]]:
    return _gathered(file, keys, csv.DictReader(io.StringIO(_utf8(file), newline="")), first=2)


def _from_jsonl(file: Path, keys: list[str]) -> list[tuple[str, ...]]:
    return _gathered(file, keys, (json.loads(line) if line.strip() else None for line in _utf8(file).split("\n")))


def _gathered(file: Path, keys: list[str], rows: Iterable, first: int = 1) -> list[tuple[str, ...]]:
    """Return the captions of all images from rows with a file name and a text; first: the line of the first row."""
    captions: dict[str, tuple[str, ...]] = dict.fromkeys(keys, ())
    rows, number = iter(rows), first
    while True:
        try:
            row = next(rows)
            if row is not None:
                _add(captions, row)
        except StopIteration:
            break
        except (ValueError, TypeError, csv.Error) as error:
            raise ValueError(f"Folder: {file}, line {number}: {error}") from None
        number += 1
    if missing := [key for key, texts in captions.items() if not texts]:
        raise ValueError(f"Folder: {missing[0]} has no caption in {file} ({len(missing)} of {len(keys)} images)")
    return list(captions.values())


def _add(captions: dict[str, tuple[str, ...]], row: object) -> None:
    names = row if isinstance(row, Mapping) else {}
    name, text = (next((key for key in known if key in names), None) for known in (FILE_KEYS, TEXT_KEYS))
    if name is None or text is None:
        raise ValueError('expected "file_name" and "text"')
    if row[name] not in captions:
        raise ValueError(f"no image {row[name]!r} in the folder")
    captions[row[name]] += _texts(row[text])


def _check_plain(member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError("it goes outside")
    if not member.isdir() and (not member.isreg() or member.issparse()):
        raise ValueError("it is a link, a device or sparse; only plain files are read")


def _indexed(shard: Path) -> tuple[dict[str, _Member], dict[str, tuple[str, ...]]]:
    """Where the images lie, and the captions; both by key: the name up to the first dot after the last slash."""
    images: dict[str, _Member] = {}
    texts: dict[str, tuple[str, ...]] = {}
    name = ""
    try:
        with tarfile.open(shard, "r:") as tar:  # uncompressed alone: else no offsets
            for member in tar:
                name = member.name
                _check_plain(member)
                base, _, kind = PurePosixPath(name).name.partition(".")
                kind = f".{kind.lower()}"
                if not base or member.isdir():
                    continue
                key = PurePosixPath(name).with_name(base).as_posix()
                if kind in IMAGES:
                    if key in images:
                        raise ValueError(f"{images[key].name!r} has the same key")
                    images[key] = _Member(shard, member.offset_data, member.size, name)
                elif kind == ".txt":
                    texts[key] = _lines(tar.extractfile(member).read().decode("utf-8-sig"))
                elif kind == ".json" and key not in texts:
                    texts[key] = _from_json(tar.extractfile(member).read())
    except (tarfile.TarError, ValueError) as error:
        raise ValueError(f"Shards: {shard}, member {name!r}: {error}") from error
    return images, texts


def _from_json(data: bytes) -> tuple[str, ...]:
    """Empty where it says nothing of captions: a txt may."""
    row = json.loads(data)
    if not isinstance(row, Mapping):
        raise ValueError(f"expected a JSON object, got {type(row).__name__}")
    value = row.get("caption", row.get("text"))
    return () if value is None else _texts(value)
