"""Images of users in a folder, and how an image and its captions are read from files."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from reprlib import repr  # shortened: a value of a damaged file may be long
from typing import BinaryIO

import torch
from PIL import Image, ImageOps
from torch import Tensor

from fmpipe.data.source import Item, digest_of, file_digests
from fmpipe.untrusted import check_regular, parse_json

VERSION = 1  # increase with every change of how an image is read, so that older caches are not used
IMAGES = (".png", ".jpg", ".jpeg", ".webp")
FORMATS = ("PNG", "JPEG", "WEBP")
CAPTION_BYTES = 1 << 20  # of one image
IMAGE_BYTES = 1 << 30


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
        self.path, self.size = Path(path), checked_size("Folder", size)
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
            self.captions = read_captions(Path(captions), self.keys)

    def _caption_file(self) -> Path | None:
        """Return the file in the folder that has all captions; not one that belongs to an image of the same name."""
        stems = {Path(key).stem for key in self.keys}
        found = (self.path / name for name in CAPTIONS if not (name.endswith(".txt") and Path(name).stem in stems))
        return next((file for file in found if file.is_file()), None)

    @classmethod
    def has_captions(cls, path: str | Path) -> bool:
        """Tell whether a folder has its own captions."""
        return any((Path(path) / name).is_file() for name in CAPTIONS) or any(Path(path).rglob("*.txt"))

    @cached_property
    def digest(self) -> str:
        """Digest of every file."""
        files = file_digests(self.path / key for key in self.keys)
        return digest_of("Folder", VERSION, self.size, self.keys, files, self.captions)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, i: int) -> Item:
        key = self.keys[i]
        check_regular(self.path / key, IMAGE_BYTES)
        with (self.path / key).open("rb") as file:
            return Item(picture(file, self.size, str(self.path / key)), self.captions[i], key)


def checked_size(where: str, size: int) -> int:
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"{where}: size must be a positive whole number, got {size!r}")
    return size


def picture(file: BinaryIO, size: int, name: str, formats: Sequence[str] = FORMATS) -> Tensor:
    """Return the central square of an image, upright and on white, as uint8 (3, size, size)."""
    try:
        image = ImageOps.exif_transpose(Image.open(file, formats=formats))
        if image.mode.startswith("I;16"):  # Pillow would clip it at 255
            image = image.point(lambda value: value / 256).convert("L")
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
        image = ImageOps.fit(image, (size, size), Image.Resampling.LANCZOS)
    except Exception as error:  # Pillow raises many types for damaged files
        raise ValueError(f"{name} cannot be read as an image: {error}") from error
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.view(size, size, 3).permute(2, 0, 1).contiguous()


def read_captions(file: Path, keys: list[str], named: Callable[[str], str] = str) -> list[tuple[str, ...]]:
    """Return the captions of every key from a .jsonl, .csv or .txt file; see :class:`Folder`.

    named: maps a file name of the file to a key. ValueError names the file and line, or the key, that is wrong.
    """
    read = {".jsonl": _from_jsonl, ".csv": _from_csv, ".txt": _from_txt}.get(file.suffix)
    if read is None:
        raise ValueError(f"Folder: captions must be a .jsonl, .csv or .txt file, got {str(file)!r}")
    return read(file, keys, named)


def caption_lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.split("\n") if line.strip())


def caption_json(data: str | bytes) -> tuple[str, ...]:
    """Return the captions of a JSON object, empty if it has none."""
    row = parse_json(data, CAPTION_BYTES)
    if not isinstance(row, Mapping):
        raise ValueError(f"expected a JSON object, got {type(row).__name__}")
    value = next((row[name] for name in ("caption", "text", "captions", "prompt") if row.get(name) is not None), None)
    return () if value is None else caption_texts(value)


def caption_texts(value: object) -> tuple[str, ...]:
    """Return the captions of a str or a list of str; raise ValueError for other or empty values."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t.strip() for t in texts):
        raise ValueError(f"expected a caption or a list of captions, got {repr(value)}")
    if (longest := max(map(len, texts))) > CAPTION_BYTES:
        raise ValueError(f"a caption has {longest} characters, more than {CAPTION_BYTES}")
    return tuple(text.strip() for text in texts)


def caption_file(file: Path, limit: int = IMAGE_BYTES) -> str:
    """Return the text of a regular file of at most ``limit`` bytes.

    A link out of its folder may lead to any file of the user, so it is refused.
    """
    if not (target := file.resolve()).is_relative_to(file.parent.resolve()):
        raise ValueError(f"Folder: {file} is a symbolic link out of its folder, to {target}; copy the file there")
    check_regular(file, limit)
    try:
        return file.read_text(encoding="utf-8-sig")  # with or without a byte order mark
    except UnicodeDecodeError as error:
        raise ValueError(f"Folder: {file} is not UTF-8: {error}") from None


def _beside(image: Path) -> tuple[str, ...]:
    file = image.with_suffix(".txt")
    captions = caption_lines(caption_file(file, CAPTION_BYTES)) if file.is_file() else ()
    if not captions:
        state = "empty" if file.is_file() else "missing"
        raise ValueError(f"Folder: {image} has no caption: {file.name} beside it is {state}")
    return captions


def _from_txt(file: Path, keys: list[str], named: Callable) -> list[tuple[str, ...]]:
    lines = caption_file(file).rstrip().split("\n")
    rows = [line.split("\t", 1) if line.strip() else None for line in lines]
    given = [row for row in rows if row]
    if given and all(len(row) == 2 for row in given) and any(row[0].strip().lower().endswith(IMAGES) for row in given):
        return _gathered(file, keys, named, (row and {"file_name": row[0].strip(), "text": row[1]} for row in rows))
    if len(lines) != len(keys):
        raise ValueError(f"Folder: {file} has {len(lines)} lines for {len(keys)} images; it must have one each")
    for number, (line, key) in enumerate(zip(lines, keys), 1):
        if not line.strip():
            raise ValueError(f"Folder: {key} has no caption: line {number} of {file} is empty")
    return [caption_texts(line) for line in lines]


def _from_csv(file: Path, keys: list[str], named: Callable) -> list[tuple[str, ...]]:
    return _gathered(file, keys, named, csv.DictReader(io.StringIO(caption_file(file), newline="")), first=2)


def _from_jsonl(file: Path, keys: list[str], named: Callable) -> list[tuple[str, ...]]:
    rows = (parse_json(line, CAPTION_BYTES) if line.strip() else None for line in caption_file(file).split("\n"))
    return _gathered(file, keys, named, rows)


def _gathered(file: Path, keys: list[str], named: Callable, rows: Iterable, first: int = 1) -> list[tuple[str, ...]]:
    """Return the captions of all images from rows with a file name and a text; first: the line of the first row."""
    captions: dict[str, tuple[str, ...]] = dict.fromkeys(keys, ())
    rows, number = iter(rows), first
    while True:
        try:
            row = next(rows)
            if row is not None:
                _add(captions, row, named)
        except StopIteration:
            break
        except (ValueError, TypeError, csv.Error) as error:
            raise ValueError(f"Folder: {file}, line {number}: {error}") from None
        number += 1
    if missing := [key for key, texts in captions.items() if not texts]:
        raise ValueError(f"Folder: {missing[0]} has no caption in {file} ({len(missing)} of {len(keys)} images)")
    return list(captions.values())


def _add(captions: dict[str, tuple[str, ...]], row: object, named: Callable) -> None:
    names = row if isinstance(row, Mapping) else {}
    name, text = (next((key for key in known if key in names), None) for known in (FILE_KEYS, TEXT_KEYS))
    if name is None or text is None:
        raise ValueError('expected "file_name" and "text"')
    if (key := named(row[name])) not in captions:
        raise ValueError(f"no image {repr(row[name])} in the folder")
    captions[key] += caption_texts(row[text])
