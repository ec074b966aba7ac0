"""The contents of a log's file: bounded, as UTF-8 whatever it was written in, and without what parsers cannot bear."""

import codecs
import io
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fmpipe.untrusted import LEVELS, check_depth, check_regular

BYTES = 256 << 20  # of a file that is read at once: text, CSV, JSON documents
STREAMED = 64 << 30  # of JSON lines and event files, which are read in blocks
LINE = 64 << 20  # bytes of one line of JSON
PRINTED = 1 << 13  # characters of one printed line; the patterns take quadratic time
COLUMNS = 10_000  # metrics of a log
HEAD = 1 << 16
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def encoding_of(head: bytes) -> str:
    """Return the encoding that the beginning of a file shows: by its mark, or by the zeros of UTF-16 without one."""
    found = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    if found is None and len(head) >= 16:
        zeros = [head[k : k + 256 : 2].count(0) * 2 / len(head[:256]) for k in (0, 1)]
        if max(zeros) > 0.9 and min(zeros) < 0.1:
            found = "utf-16-be" if zeros[0] > zeros[1] else "utf-16-le"
    return found or "utf-8"


def head_of(path: Path) -> bytes:
    """Return the first 64 KiB as UTF-8. OSError for what is not a regular file."""
    check_regular(path, STREAMED)
    with path.open("rb") as file:
        head = file.read(HEAD)
    encoding = encoding_of(head)
    return head if encoding == "utf-8" else head.decode(encoding, "replace").encode()


def text_of(path: Path) -> str:
    """Return the whole text. ValueError for more than ``BYTES``."""
    check_regular(path, BYTES)
    data = path.read_bytes()
    return data.decode(encoding_of(data[:HEAD]), "replace").replace("\r\n", "\n")


def open_lines(path: Path) -> BinaryIO:
    """Return the file, opened behind its mark; one that is not UTF-8 is converted."""
    check_regular(path, STREAMED)
    file = path.open("rb")
    encoding = encoding_of(file.read(HEAD))
    if encoding in ("utf-8", "utf-8-sig"):
        file.seek(len(codecs.BOM_UTF8) if encoding == "utf-8-sig" else 0)
        return file
    file.close()
    return io.BytesIO(text_of(path).encode())


def check_lines(block: bytes) -> None:
    """Raise ValueError for a line of JSON that is nested too deep: parsers take minutes or overflow the stack."""
    data = np.frombuffer(block, np.uint8)
    opened = np.flatnonzero((data == ord("{")) | (data == ord("[")))
    if len(opened) <= LEVELS:
        return
    ends = np.append(np.flatnonzero(data == ord("\n")), len(data))
    counts = np.diff(np.searchsorted(opened, ends), prepend=0)
    for at in np.flatnonzero(counts > LEVELS).tolist():
        check_depth(block[ends[at - 1] + 1 if at else 0 : ends[at]].decode("utf-8", "replace"))
