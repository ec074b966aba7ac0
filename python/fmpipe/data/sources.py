"""Open a source by its kind, as named in ``data.source``."""

from pathlib import Path

from fmpipe.data.folder import Folder
from fmpipe.data.hf import HF, find_parquet, is_dataset
from fmpipe.data.latents import LatentFiles
from fmpipe.data.shards import Shards
from fmpipe.data.source import Source


def open_source(
    kind: str,
    path: str | Path,
    captions: str | Path | bool | None = None,
    size: int = 64,
    *,
    image_column: str | None = None,
    latents_scaled: bool | None = None,
) -> Source:
    """Return the source of a user's files. kind: ``folder``, ``hf``, ``shards`` or ``latents``."""
    if kind == "folder":
        return Folder(path, captions, size)
    if kind == "hf":
        return HF(path, captions, size, image_column)
    return Shards(path, size) if kind == "shards" else LatentFiles(path, captions, latents_scaled)


def kind_of(path: str | Path) -> str:
    """Return ``hf``, ``shards`` or ``folder``, by the files at path."""
    path = Path(path)
    if path.suffix == ".parquet" or is_dataset(path):
        return "hf"
    if path.suffix == ".tar" or (path.is_dir() and any(path.glob("*.tar"))):
        return "shards"
    return "hf" if path.is_dir() and find_parquet(path) else "folder"
