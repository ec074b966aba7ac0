"""Files that the commands write: names, checks before the work, images and animations."""

import io
import json
import os
import re
import unicodedata
from collections.abc import Collection
from importlib.metadata import version
from pathlib import Path

from fmpipe.cli.base import Refused, out
from fmpipe.page import write_whole

COMMENT = 60_000  # most bytes of a JPEG's or GIF's comment
IMAGES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}


def slug(*texts: str, limit: int = 60) -> str:
    """Return a file name made from texts: letters and digits of any script, everything else a hyphen."""
    spelled = ("".join(_spelled(c) for c in text.lower()) for text in texts)
    name = "-".join(re.sub(r"-+", "-", text).strip("-") for text in spelled)[: 2 * limit]
    while len(name.encode()) > limit:
        name = name[:-1]
    return name.strip("-") or "image"


def _spelled(char: str) -> str:
    """Return a character for a file name: a letter, mark or digit itself, an emoji's name, otherwise a hyphen."""
    kind = unicodedata.category(char)
    if kind[0] in "LMN":
        return char
    return f"-{unicodedata.name(char, '').lower().replace(' ', '-')}-" if kind == "So" else "-"


def is_image(option: str, path: Path, suffixes: Collection[str] = IMAGES) -> bool:
    """Tell whether path names an image file; otherwise it names a folder. Refuse the suffix of another kind of file."""
    if path.is_dir():
        return False
    if re.fullmatch(r"\.[a-z][a-z0-9]{0,4}", path.suffix.lower()) and path.suffix.lower() not in suffixes:
        known = ", ".join(suffixes)
        raise Refused(f"{option}: {path} has the unknown suffix {path.suffix!r}; use {known}, or the name of a folder")
    return path.suffix.lower() in suffixes


def image_place(option: str, path: Path, name: str) -> Path:
    """Return the file for one image: ``path`` if it has an image suffix, otherwise ``name``.png in the folder path."""
    file = path if is_image(option, path) else path / f"{name}.png"
    check_place(option, file)
    return file


def check_file(option: str, path: Path, suffixes: Collection[str]) -> None:
    """Refuse, before the work, a file with another suffix, or in a place that cannot be written."""
    check_place(option, path)
    if path.suffix.lower() not in suffixes:
        raise Refused(f"{option}: {path} must end in {' or '.join(suffixes)}")


def check_place(option: str, path: Path, folder: bool = False) -> None:
    """Refuse, before the work, a place that cannot be written."""
    if path.exists() and path.is_dir() != folder:
        raise Refused(f"{option}: {path} is a {'folder' if path.is_dir() else 'file'}")
    above = next(p for p in path.absolute().parents if p.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise Refused(f"{option}: {path} cannot be written: {above} is not a writable folder")


def write(path: Path, data: bytes) -> None:
    try:
        write_whole(path, data)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}", 1) from None
    out.print(f"written: {path}", highlight=False, soft_wrap=True)


def save_image(image, path: Path, info: dict[str, object] | None = None, scale: int = 1) -> None:
    """Write a PNG or JPEG, enlarged ``scale`` times, with info as PNG text or as a JPEG comment."""
    from PIL.PngImagePlugin import PngInfo

    kind, data = IMAGES[path.suffix.lower()], io.BytesIO()
    info, image = {**(info or {}), "version": f"fmpipe {version('fmkernels')}"}, enlarged(image, scale)
    if kind == "PNG":
        texts = PngInfo()
        for name, value in info.items():
            texts.add_itxt(name, str(value))
        image.save(data, format=kind, pnginfo=texts)
    else:
        comment = json.dumps(info, ensure_ascii=False).encode()[:COMMENT]
        image.save(data, format=kind, quality=95, comment=comment)
    write(path, data.getvalue())


def enlarged(image, scale: int):
    """Return the image with every pixel as a square of ``scale`` × ``scale``."""
    from PIL import Image

    return image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST) if scale > 1 else image


def save_gif(frames, path: Path, info: dict[str, object] | None = None, pauses: Collection[int] = ()) -> None:
    """Write an animation of frames, 8 per second; those of ``pauses``, else the last one, stay for a second."""
    data = io.BytesIO()
    durations = [1000 if k in (pauses or (len(frames) - 1,)) else 125 for k in range(len(frames))]
    comment = json.dumps(info or {}, ensure_ascii=False).encode()[:COMMENT]
    frames[0].save(
        data, format="GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0, comment=comment
    )
    write(path, data.getvalue())
