"""Bytes of hostile files, built from the formats' descriptions without the libraries that fmpipe reads them with."""

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

DEEP = 100_000  # levels


class Row(NamedTuple):
    """A hostile file.

    expect: "read", "refuse", or "any" for a file that may be read or refused with one line.
    data: the contents, or a function that writes to the path.
    """

    reader: str
    name: str
    expect: str
    data: bytes | str | Callable[[Path], object]


class Bomb:
    """Creates a folder where it is unpickled."""

    def __init__(self, call: Callable = os.mkdir, argument: str = "executed"):
        self.call, self.argument = call, argument

    def __reduce__(self):
        return self.call, (self.argument,)


def pickled(protocol: int = 2) -> bytes:
    return pickle.dumps(Bomb(), protocol)


def lines(count: int = 20, **more: object) -> str:
    """A good log of JSON lines; more: further keys of each."""
    return "".join(json.dumps({"step": k, "loss/flow": 1.0 / (k + 1), **more}) + "\n" for k in range(count))


def table(separator: str = ",", count: int = 20) -> str:
    """A good log of comma separated values."""
    rows = [("step", "loss/flow", "lr"), *((k, 1.0 / (k + 1), 1e-3) for k in range(count))]
    return "".join(separator.join(map(str, row)) + "\n" for row in rows)


def printed(count: int = 20) -> str:
    """A good log of printed lines."""
    return "".join(f"step {k} loss_flow: {1.0 / (k + 1):.4f}\n" for k in range(count))


def nested(levels: int, inner: str = "1") -> str:
    return '{"a":' * levels + inner + "}" * levels


def zipped(name: str = "a.txt", data: bytes = b"hello") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(name, data)
    return out.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int = 4, height: int = 4, data: bytes | None = None, extra: bytes = b"", depth: int = 8) -> bytes:
    """An RGB picture, or what claims to be one."""
    rows = (b"\0" + b"\x80" * (width * 3 * depth // 8)) * height if data is None else data
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def tar(*members: tuple, form: int = tarfile.USTAR_FORMAT, end: bool = True) -> bytes:
    """A tar file of (name, data) or (name, data, changes of the TarInfo)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as file:
        for name, data, *changes in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for key, value in (changes[0] if changes else {}).items():
                setattr(info, key, value)
            file.addfile(info, io.BytesIO(data))
    found = out.getvalue()
    return found if end else found.rstrip(b"\0")


def header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    """One block of a tar file, with any size field and a right checksum."""
    block = bytearray(512)
    for at, field in ((0, name), (100, b"0000644\0"), (108, b"0000000\0"), (116, b"0000000\0"), (124, size)):
        block[at : at + len(field)] = field
    block[136:148], block[148:156], block[156:157], block[257:265] = b"0" * 11 + b"\0", b" " * 8, kind, b"ustar\x0000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def safetensors(head: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def npy(head: str, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    text = head.encode() + b"\n"
    size = struct.pack("<H" if version == b"\1\0" else "<I", len(text))
    return b"\x93NUMPY" + version + size + text + data


def _crc(data: bytes) -> int:
    """The masked CRC-32C of TFRecord."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def record(data: bytes) -> bytes:
    size = struct.pack("<Q", len(data))
    return size + struct.pack("<I", _crc(size)) + data + struct.pack("<I", _crc(data))


def event(step: int, tag: bytes, value: float | None = 0.5, tensor: bytes = b"") -> bytes:
    """A record of an event file: a simple value, or an encoded TensorProto."""
    inside = _field(1, tag) + (_field(8, tensor) if tensor else b"\x15" + struct.pack("<f", value))
    summary = _field(5, _field(1, inside))
    return record(b"\x09" + struct.pack("<d", 1.7e9 + step) + b"\x10" + _varint(step % 2**64) + summary)


def events(count: int = 20) -> bytes:
    version = record(b"\x09" + struct.pack("<d", 1.7e9) + _field(3, b"brain.Event:2"))
    return version + b"".join(event(k, b"loss/flow", 1.0 / (k + 1)) for k in range(count))


def tensor(kind: int, *sides: int, content: bytes = b"") -> bytes:
    """An encoded TensorProto with any shape."""
    shape = b"".join(_field(2, b"\x08" + _varint(side % 2**64)) for side in sides)
    return b"\x08" + _varint(kind) + _field(2, shape) + _field(4, content)


def sparse(size: int) -> Callable[[Path], None]:
    """A file of zeros that takes no space."""

    def write(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(size)

    return write


def link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def folder(path: Path) -> None:
    path.mkdir()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def files(**contents: bytes | str | Callable) -> Callable[[Path], None]:
    """A folder with these files; "__" in a keyword is "/", "_dot_" a dot."""

    def write(path: Path) -> None:
        for name, data in contents.items():
            put(path / name.replace("__", "/").replace("_dot_", "."), data)

    return write


def put(path: Path, data: bytes | str | Callable) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if callable(data):
        data(path)
    else:
        path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))


def gz(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)
