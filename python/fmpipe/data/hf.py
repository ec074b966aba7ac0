"""Datasets of Hugging Face on disk, and parquet files: a column of images and one of captions."""

import io
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import NamedTuple

from fmpipe.data.folder import FORMATS, IMAGE_BYTES, checked_size, picture
from fmpipe.data.source import Item, digest_of, file_digests
from fmpipe.requirements import optional
from fmpipe.untrusted import read_bytes

VERSION = 1  # increase with every change of how an image is read, so that older caches are not used
IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "photo")
CAPTION_COLUMNS = ("caption", "captions", "text", "texts", "prompt", "prompts", "txt")
ENCODED = (*FORMATS, "TIFF", "BMP", "GIF")  # datasets stores palette and CMYK images as TIFF


class Chunk(NamedTuple):
    """Rows of a file that are read at once. path: the file, or the dataset's folder; first: the row in it."""

    path: Path
    first: int
    rows: int
    read: Callable  # a column's name to its values
    whole: Collection[str]  # columns of bytes that are known to have no missing value


class HF:
    """The rows of a dataset that ``datasets`` wrote with ``save_to_disk``, or of parquet files, at size × size.

    Args:
        path: the folder of a ``Dataset``; of a ``DatasetDict``, whose ``train`` split is read (``folder/test`` is
            another); a parquet file, a glob of them, or a folder that has some, where those with ``train`` in their
            names are read if there are any.
        captions: the column of captions, strings or lists of strings; None looks for one of ``CAPTION_COLUMNS``. False
            reads none.
        image_column: the column of images: encoded bytes, ``{bytes, path}`` as ``datasets`` has them, or paths
            relative to the file's folder. None looks for one of ``IMAGE_COLUMNS``, or takes the only one that fits.

    Rows without an image or without a caption are left out, with a warning. Keys are ``<file's stem>/<row>``, or the
    row of a dataset. Parquet is read by row groups where it lies: ``datasets`` would first copy it into its cache.
    ImportError, with the command, without ``datasets`` or ``pyarrow``. FileNotFoundError or ValueError name the file
    and row that is wrong; an image that cannot be read is found when it is asked for.
    """

    def __init__(
        self, path: str | Path, captions: str | bool | None = None, size: int = 64, image_column: str | None = None
    ):
        self.path, self.size = Path(path), checked_size("HF", size)
        self.files, self._chunks, schemas = _on_disk(self.path) if is_dataset(self.path) else _parquet(self.path)
        where, schema = schemas[0]
        self.image_column = image_column or _image_column(where, schema)
        self.caption_column = None if captions is False else captions or _caption_column(where, schema)
        for where, schema in schemas:
            _check_column(where, schema, self.image_column, _is_image, "images: bytes, {bytes, path} or paths")
            if self.caption_column:
                _check_column(where, schema, self.caption_column, _is_text, "strings or lists of strings")
        self.keys, self.captions, self._rows, self.external = [], [], [], []
        self._index()
        self._last = (-1, None)

    def _index(self) -> None:
        names = [path.stem for path in dict.fromkeys(chunk.path for chunk in self._chunks)]
        unique, empty = len(set(names)) == len(names), []
        for number, chunk in enumerate(self._chunks):
            present = self._present(chunk)
            texts = [("",)] * chunk.rows
            if self.caption_column:
                with _reading(chunk.path):
                    texts = [_captions(value) for value in chunk.read(self.caption_column).to_pylist()]
            prefix = "" if chunk.path.is_dir() else f"{chunk.path.stem if unique else chunk.path.with_suffix('')}/"
            for row in range(chunk.rows):
                if not present[row] or not texts[row]:
                    empty.append((chunk.path, chunk.first + row))
                    continue
                self.keys.append(f"{prefix}{chunk.first + row}")
                self.captions.append(texts[row] if self.caption_column else ())
                self._rows.append((number, row))
        if not self.keys:
            raise ValueError(f"HF: {self.path} has no row with an image{' and a caption' * bool(self.caption_column)}")
        if empty:
            path, row = empty[0]
            what = "no image or no caption" if self.caption_column else "no image"
            warnings.warn(
                f"{self.path}: {len(empty)} of {len(empty) + len(self.keys)} rows have {what} and are left out; "
                f"the first is row {row} of {path.name}",
                stacklevel=3,
            )

    def _present(self, chunk: Chunk) -> list[bool]:
        """Return which rows have an image; remember those in files of their own, which the digest reads too."""
        if self.image_column in chunk.whole:
            return [True] * chunk.rows
        import pyarrow as pa
        import pyarrow.compute as pc

        with _reading(chunk.path):
            values = chunk.read(self.image_column)
            stored = paths = pa.nulls(len(values))
            if pa.types.is_struct(values.type):
                stored = pc.struct_field(values, "bytes")
                paths = pc.struct_field(values, "path") if "path" in {field.name for field in values.type} else paths
            elif _is_string(values.type):
                paths = values
            else:
                stored = values
            inside = pc.is_valid(stored).to_pylist()
            paths = paths.to_pylist() if not all(inside) else [None] * len(inside)
        self.external += [_beside(chunk.path, path) for here, path in zip(inside, paths) if path and not here]
        return [here or bool(path) for here, path in zip(inside, paths)]

    @cached_property
    def digest(self) -> str:
        """Digest of every file."""
        names, columns = [file.name for file in self.files], [self.image_column, self.caption_column]
        external = file_digests(path for path in self.external if path.is_file())
        parts = file_digests(self.files), external, self.captions
        return digest_of("HF", VERSION, self.size, names, columns, *parts)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, i: int) -> Item:
        number, row = self._rows[i]
        chunk = self._chunks[number]
        if self._last[0] != number:
            with _reading(chunk.path):
                self._last = number, chunk.read(self.image_column)
        name, value = f"{chunk.path}, row {chunk.first + row}", self._last[1][row].as_py()
        data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, value)
        if not isinstance(data, bytes):
            try:
                data = read_bytes(_beside(chunk.path, path), IMAGE_BYTES)
            except (OSError, ValueError) as error:
                raise ValueError(f"HF: {name} cannot be read as an image: {error}") from None
        return Item(picture(io.BytesIO(data), self.size, f"HF: {name}", ENCODED), self.captions[i], self.keys[i])


def is_dataset(path: Path) -> bool:
    """Tell whether a folder was written by ``save_to_disk``."""
    return any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))


def find_parquet(path: Path) -> list[Path]:
    """Return the parquet files of a path: a file, a glob or a folder; sorted, of a folder its train split."""
    if not path.is_dir():
        return sorted(file for file in map(Path, glob(str(path), recursive=True)) if file.is_file())
    files = sorted(file for file in path.rglob("*.parquet") if not file.name.startswith("."))
    names = [file.relative_to(path).as_posix().lower() for file in files]
    return [file for file, name in zip(files, names) if re.search("(?<![a-z])train(?![a-z])", name)] or files


def _on_disk(path: Path) -> tuple[list[Path], list[Chunk], list]:
    datasets = optional("datasets", f"{path}, a dataset of Hugging Face,")
    with _reading(path):
        data = datasets.load_from_disk(str(path))
        if isinstance(data, datasets.DatasetDict):
            splits = sorted(data)
            name = "train" if "train" in splits else splits[0]
            if name != "train" and len(splits) != 1:
                raise _NamedError(
                    f"HF: {path} has the splits {', '.join(splits)} and no train: choose one, for example "
                    f"data.path={path / name}"
                )
            data = data[name]
        table = data.with_format("arrow")[:]
    files = [Path(file["filename"]) for file in data.cache_files]
    chunk = Chunk(path, 0, len(table), table.column, ())
    return files, [chunk], [(path, table.schema)]


def _parquet(path: Path) -> tuple[list[Path], list[Chunk], list]:
    pq = optional("pyarrow.parquet", f"{path}, for parquet,")
    files, chunks, schemas = find_parquet(path), [], []
    for file in files:
        with _reading(file):
            opened = pq.ParquetFile(file)
            schemas.append((file, opened.schema_arrow))
            chunks += _row_groups(pq, file, opened.metadata, opened.schema_arrow)
            opened.close()
    if not files:
        raise FileNotFoundError(f"HF: path {str(path)!r} has no parquet files, and save_to_disk did not write it")
    return files, chunks, schemas


def _row_groups(pq, file: Path, metadata, schema) -> Iterator[Chunk]:
    first, paths = 0, {name for name in schema.names if _is_string(schema.field(name).type)}
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(k) for k in range(group.num_columns)]
        known = [column for column in columns if column.statistics and column.statistics.has_null_count]
        whole = {column.path_in_schema.removesuffix(".bytes") for column in known if not column.statistics.null_count}

        def read(column: str, number: int = number):
            with pq.ParquetFile(file) as opened:
                return opened.read_row_group(number, columns=[column]).column(column)

        yield Chunk(file, first, group.num_rows, read, whole - paths)
        first += group.num_rows


class _NamedError(ValueError):
    """An error that names the file already."""


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name the file in the errors of the libraries, of which there are many kinds."""
    try:
        yield
    except _NamedError:
        raise
    except Exception as error:
        raise ValueError(f"HF: {path} cannot be read: {str(error) or type(error).__name__}") from error


def _beside(file: Path, path: str) -> Path:
    return (file if file.is_dir() else file.parent) / path


def _captions(value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value or ()
    return tuple(text.strip() for text in texts if text and text.strip())


def _is_string(kind) -> bool:
    import pyarrow.types as types

    return types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind)


def _is_text(kind) -> bool:
    import pyarrow.types as types

    listed = types.is_list(kind) or types.is_large_list(kind) or types.is_dictionary(kind)
    return _is_string(kind.value_type if listed else kind)


def _is_image(kind, paths: bool = True) -> bool:
    import pyarrow.types as types

    if types.is_struct(kind):
        return "bytes" in {field.name for field in kind}
    return types.is_binary(kind) or types.is_large_binary(kind) or (paths and _is_string(kind))


def _told(schema) -> str:
    return ", ".join(f"{name!r} ({kind})" for name, kind in zip(schema.names, schema.types))


def _named(schema, names: Sequence[str], fits: Callable) -> str | None:
    """Return the first of names that is a column, whatever its case, preferably one that fits."""
    columns = {column.lower(): column for column in reversed(schema.names)}
    found = [columns[name] for name in names if name in columns]
    return next((name for name in found if fits(schema.field(name).type)), next(iter(found), None))


def _image_column(where: Path, schema) -> str:
    fitting = [name for name in schema.names if _is_image(schema.field(name).type, paths=False)]
    if name := _named(schema, IMAGE_COLUMNS, _is_image) or (fitting[0] if len(fitting) == 1 else None):
        return name
    raise ValueError(
        f"HF: {where} has no image column: its columns are {_told(schema)}; expected one of "
        f"{', '.join(IMAGE_COLUMNS)}, or data.image_column"
    )


def _caption_column(where: Path, schema) -> str:
    if name := _named(schema, CAPTION_COLUMNS, _is_text):
        return name
    raise ValueError(
        f"HF: {where} has no caption column: its columns are {_told(schema)}; expected one of "
        f"{', '.join(CAPTION_COLUMNS)}, or its name in data.captions"
    )


def _check_column(where: Path, schema, name: str, fits: Callable, expected: str) -> None:
    if name not in schema.names:
        raise ValueError(f"HF: {where} has no column {name!r}; its columns are {_told(schema)}")
    if not fits(kind := schema.field(name).type):
        raise ValueError(f"HF: {where}: column {name!r} is {kind}, expected {expected}")
