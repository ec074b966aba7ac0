"""Caches on disk of what frozen networks compute from a source.

``<what>-<digest>/`` contains safetensors shards 00000, 00001, … and ``done.json``. It is written under a hidden
temporary name and renamed when complete; a process that is killed leaves the hidden folder behind. Several processes
may write the same cache at the same time: the first one to finish keeps the name.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fmpipe.data.source import Source, digest_of, to_pixels
from fmpipe.text import TextEncoder, check_prompts
from fmpipe.untrusted import parse_json, read_bytes

if TYPE_CHECKING:
    from fmpipe.text import MetaQueryText
    from fmpipe.vae import LatentVAE

FORMAT = 1
PREFIX_BYTES = 4 << 30  # keys and values of prompts that are kept in memory
INDEX_BYTES = 4 << 30  # of done.json, with the captions of every item
BAR_AFTER = 2.0  # seconds


@dataclass(frozen=True)
class Latents:
    """moments (N, 2C, h, w), fp32, of ``encode_moments``, not scaled. items: ``key captions labels`` of each."""

    moments: Tensor
    items: list[dict]
    path: Path
    digest: str


@dataclass(frozen=True)
class States:
    """states (M, L, D) fp16 and mask (M, L) bool of M distinct captions; index: the row of each caption."""

    index: dict[str, int]
    states: Tensor
    mask: Tensor
    path: Path
    digest: str

    def rows(self, captions: Sequence[str]) -> dict[str, Tensor]:
        """Return ``states`` (B, L, D) fp32 and ``mask`` (B, L) of B captions; KeyError names one not encoded."""
        if unknown := [caption for caption in captions if caption not in self.index]:
            raise KeyError(f"States: caption {unknown[0]!r} is not in {self.path}")
        rows = [self.index[caption] for caption in captions]
        return {"states": self.states[rows].float(), "mask": self.mask[rows]}


@dataclass(frozen=True)
class Prompts:
    """Prompts for an encoder that is trained and therefore runs in every step.

    index, prefixes: the row of each caption in the keys and values (M, 2 * layers, heads, P, head_dim) of the prompts,
    padded on the left; None if they are not reused.
    """

    encoder: "MetaQueryText"
    index: dict[str, int] | None = None
    prefixes: Tensor | None = None

    def rows(self, captions: Sequence[str]) -> dict[str, Tensor]:
        """Return ``ids`` and ``mask`` (B, P) of B captions, and ``prefix`` if their keys and values are reused."""
        rows = self.encoder.tokenize(captions)
        if self.prefixes is not None:
            longest, total = rows["ids"].shape[1], self.prefixes.shape[3]
            rows["prefix"] = self.prefixes[[self.index[caption] for caption in captions], :, :, total - longest :]
        return rows


@dataclass(frozen=True)
class Features:
    """pooled (N, D) fp32 and, if asked for, patches (N, D, h, w) fp16 of a teacher."""

    pooled: Tensor
    patches: Tensor | None
    path: Path
    digest: str


def cache_latents(
    source: Source, vae: "LatentVAE", folder: str | Path, *, batch: int = 32, shard: int = 4096
) -> Latents:
    """Return the moments of every image of a source, from ``folder/latents-<digest>``, which is written if missing.

    The digest is that of the source's digest, the autoencoder's weights and wrapped config (without its scale), and the
    format. Raises ValueError for a damaged cache.
    """
    about = {"source": source.digest, "vae": weights_sha256(vae), "config": dict(vae.config.vae_config)}
    digest = digest_of("latents", FORMAT, about)
    items: list[dict] = []

    def encode(rows: range) -> dict[str, Tensor]:
        found = [source[i] for i in rows]
        items.extend({"key": item.key, "captions": item.captions, "labels": item.labels} for item in found)
        pixels = to_pixels(torch.stack([item.image for item in found]))
        return {"moments": vae.encode_moments(pixels.to(vae.device)).float().cpu()}

    path = Path(folder) / f"latents-{digest}"
    if not path.is_dir():
        _write(path, {**about, "items": items}, encode, len(source), batch, shard)
    tensors, done = _load(path, "moments", "items")
    return Latents(tensors["moments"], done["items"], path, digest)


def cache_states(
    captions: Sequence[str], encoder: TextEncoder, folder: str | Path, *, batch: int = 64, shard: int = 4096
) -> States:
    """Return the token states of every distinct caption, from ``folder/states-<digest>``, which is written if missing.

    The digest is that of the captions, the encoder's weights, class and tokens, and the format. Short captions come
    first, so batches have little padding. Raises ValueError for a damaged cache, and for states outside fp16's range.
    """
    texts = sorted(set(check_prompts("cache_states", captions)), key=lambda text: (len(text), text))
    about = {"encoder": type(encoder).__name__, "weights": weights_sha256(encoder), "tokens": encoder.tokens}
    digest = digest_of("states", FORMAT, about, texts)

    def encode(rows: range) -> dict[str, Tensor]:
        states, mask = encoder(texts[rows.start : rows.stop])
        half = states.half().cpu()
        if bad := [texts[i] for i, one in zip(rows, half) if not one.isfinite().all()]:
            raise ValueError(f"cache_states: the states of {bad[0]!r} are not finite in fp16")
        return {"states": half, "mask": mask.cpu()}

    path = Path(folder) / f"states-{digest}"
    if not path.is_dir():
        _write(path, {**about, "captions": texts}, encode, len(texts), batch, shard)
    tensors, done = _load(path, "states", "captions")
    index = {caption: row for row, caption in enumerate(done["captions"])}
    return States(index, tensors["states"], tensors["mask"], path, digest)


def cache_prefixes(
    captions: Sequence[str], encoder: "MetaQueryText", folder: str | Path, *, batch: int = 16, shard: int = 1024
) -> Prompts:
    """Return prompts whose keys and values come from ``folder/prefixes-<digest>``, or are computed into it.

    They are not reused where the result would differ by more than rounding (a bidirectional model, LoRA), or where
    they would take more than ``PREFIX_BYTES``.
    """
    texts = sorted(set(check_prompts("cache_prefixes", captions)), key=lambda text: (len(text), text))
    tolerance = 1e-4 if encoder.model.dtype == torch.float32 else 2e-2
    if not encoder.reuse_error([texts[0], texts[-1]]) <= tolerance:
        return Prompts(encoder)
    tokens = encoder.tokenize(texts)
    one = encoder.prefixes(tokens["ids"][:1].to(encoder.device), tokens["mask"][:1].to(encoder.device))
    if len(texts) * one.nbytes > PREFIX_BYTES:
        return Prompts(encoder)
    about = {"weights": weights_sha256(encoder.model), "captions": texts, "ids": tokens["ids"].tolist()}
    digest = digest_of("prefixes", FORMAT, about)

    def encode(rows: range) -> dict[str, Tensor]:
        part = {name: x[rows.start : rows.stop].to(encoder.device) for name, x in tokens.items()}
        return {"prefixes": encoder.prefixes(**part).cpu()}

    path = Path(folder) / f"prefixes-{digest}"
    if not path.is_dir():
        _write(path, about, encode, len(texts), batch, shard)
    tensors, done = _load(path, "prefixes", "captions")
    return Prompts(encoder, {caption: row for row, caption in enumerate(done["captions"])}, tensors["prefixes"])


def cache_features(
    source: Source, teacher: Any, folder: str | Path, *, patches: bool, batch: int = 32, shard: int = 4096
) -> Features:
    """Return a teacher's features of every image, from ``folder/features-<digest>``, which is written if missing.

    teacher: a :class:`fmpipe.train.teacher.Teacher`. The digest is that of the source's digest, the teacher's weights
    and preprocessing, ``patches`` and the format. Raises ValueError for a damaged cache, and for patches outside fp16's
    range.
    """
    about = {"source": source.digest, "teacher": weights_sha256(teacher.model), **teacher.about, "patches": patches}
    digest = digest_of("features", FORMAT, about)
    keys: list[str] = []

    def encode(rows: range) -> dict[str, Tensor]:
        found = [source[i] for i in rows]
        keys.extend(item.key for item in found)
        pixels = to_pixels(torch.stack([item.image for item in found]))
        pooled, of_patches = (x.cpu() for x in teacher(pixels.to(teacher.device)))
        half = of_patches.half() if patches else None
        if patches and not half.isfinite().all():
            raise ValueError(f"cache_features: patches of an image in {keys[rows.start]} ... are not finite in fp16")
        return {"pooled": pooled.contiguous()} | ({"patches": half.contiguous()} if patches else {})

    path = Path(folder) / f"features-{digest}"
    if not path.is_dir():
        _write(path, {**about, "keys": keys}, encode, len(source), batch, shard)
    tensors, _ = _load(path, "pooled", "keys")
    return Features(tensors["pooled"], tensors.get("patches"), path, digest)


def weights_sha256(model: nn.Module) -> str:
    """Return the digest of the names, dtypes, shapes and bytes of a model's state, in the order of the names."""
    sha = hashlib.sha256()
    for key, value in sorted(model.state_dict().items()):
        sha.update(f"{key} {value.dtype} {tuple(value.shape)}\n".encode())
        sha.update(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return sha.hexdigest()


@torch.no_grad()
def _write(
    path: Path, about: dict, encode: Callable[[range], dict[str, Tensor]], count: int, batch: int, shard: int
) -> None:
    """Write encode's rows as shards, then ``about`` as done.json; encode may add to it."""
    for name, value in (("the number of items", count), ("batch", batch), ("shard", shard)):
        if value < 1:
            raise ValueError(f"{path.name}: {name} must be at least 1, got {value}")
    starts = range(0, count, shard)
    with new_folder(path) as temporary, _bar(path.name, count) as advance:
        for number, start in enumerate(starts):
            stop, parts = min(start + shard, count), []
            for first in range(start, stop, batch):
                parts.append(encode(rows := range(first, min(first + batch, stop))))
                advance(len(rows))
            whole = {name: torch.cat([part[name] for part in parts]).contiguous() for name in parts[0]}
            save_file(whole, _shard(temporary, number))
        done = {"format": FORMAT, "counts": [min(shard, count - start) for start in starts], **about}
        (temporary / "done.json").write_text(json.dumps(done), encoding="utf-8")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to ``path`` at the end, unless another process has made that before."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _load(path: Path, first: str, rows: str) -> tuple[dict[str, Tensor], dict]:
    """Return the tensors of all shards, and done.json. Tensor ``first`` and list ``rows`` must have the same length."""
    file = path / "done.json"
    try:
        done = parse_json(read_bytes(file, INDEX_BYTES), INDEX_BYTES)
        if len(done[rows]) != sum(done["counts"]):
            raise ValueError(f"{len(done[rows])} {rows} for {sum(done['counts'])} rows")
        shards = []
        for number, count in enumerate(done["counts"]):
            shards.append(load_file(file := _shard(path, number)))
            if len(shards[-1][first]) != count:
                raise ValueError(f"{len(shards[-1][first])} rows instead of {count}")
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ValueError(f"{file} is damaged ({error}); delete the folder {path}; it will be rebuilt") from error
    return {name: torch.cat([shard[name] for shard in shards]) for name in shards[0]}, done


def _shard(path: Path, number: int) -> Path:
    return path / f"{number:05d}.safetensors"


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances a progress bar by some rows; the bar is shown on a terminal after a while."""
    from rich.console import Console
    from rich.progress import Progress

    console, began = Console(stderr=True), time.monotonic()
    progress = Progress(console=console, transient=True)
    task = progress.add_task(title, total=total)

    def advance(rows: int) -> None:
        progress.advance(task, rows)
        if console.is_terminal and time.monotonic() - began > BAR_AFTER:
            progress.start()

    try:
        yield advance
    finally:
        if progress.live.is_started:  # stop alone prints an empty line
            progress.stop()
