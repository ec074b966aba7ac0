"""Latents that another program has computed: tar shards of them, or a folder."""

import io
import warnings
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fmpipe.data.cache import Latents, cache_latents
from fmpipe.data.folder import CAPTION_BYTES, IMAGES, caption_file, caption_json, caption_lines, read_captions
from fmpipe.data.mixture import Mixture
from fmpipe.data.shards import Member, find_shards, index_shards
from fmpipe.data.source import Item, Source, digest_of, file_digests
from fmpipe.untrusted import read_bytes

if TYPE_CHECKING:
    from fmpipe.vae import LatentVAE

SUFFIXES = (".npy", ".pt", ".pth", ".safetensors")
NAMES = ("moments", "latents", "latent", "image_latents", "z")  # of a tensor among several
LATENT_BYTES = 1 << 30
LIKELY_STD = (1 / 3, 3.0)  # of z1


class LatentFiles:
    """Latents (C, h, w), or moments (2C, h, w), stored as ``<key>.npy|pt|safetensors`` with captions.

    Args:
        path: a folder, searched recursively, or tar shards: a file, a folder of them, a glob or webdataset's braces.
            ``<key>.jpg.pt`` and ``<key>.latent.npy`` belong to the key, too. A file with several tensors must have one
            of ``NAMES``. Pickled code is never run.
        captions: None reads ``<key>.txt``, one caption per line, or ``<key>.json`` beside the latent; a folder reads
            them there; a ``.jsonl`` or ``.csv`` file is as :class:`fmpipe.data.Folder`'s.
        scaled: whether latents (C channels) are stored with the autoencoder's shift and scale applied, as most
            trainers do. Moments never are.

    FileNotFoundError if there is nothing to read; ValueError names the file that is wrong.
    """

    def __init__(self, path: str | Path, captions: str | Path | None = None, scaled: bool | None = None):
        self.path, self.scaled, root = Path(path), scaled, Path(path)
        files = [file for file in root.rglob("*") if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")]
        if files:
            found = {file.relative_to(root).as_posix(): file for file in sorted(files)}
            self.entries: list[Path | Member] = list(found.values())
            self.files, short = self.entries, [_key(name) for name in found]
            self.keys, texts = short, [()] * len(short)
        else:
            try:
                self.files = find_shards(path)
            except FileNotFoundError:
                kinds = " ".join(SUFFIXES)
                raise FileNotFoundError(f"LatentFiles: path {str(path)!r} has no latents ({kinds} or .tar)") from None
            members, texts = index_shards(self.files, lambda kind: _key(f"x{kind}") == "x" and kind.endswith(SUFFIXES))
            self.keys, self.entries = list(members), list(members.values())
            short = [member.key for member in self.entries]
        if not self.entries:
            raise FileNotFoundError(f"LatentFiles: path {str(path)!r} has no latents ({' '.join(SUFFIXES)})")
        if len(set(self.keys)) < len(self.keys):
            double = next(key for key in self.keys if self.keys.count(key) > 1)
            raise ValueError(f"LatentFiles: {path} has several latents of {double}")
        if captions is not None and Path(captions).is_file():
            texts = read_captions(Path(captions), short, _key)
        elif captions is not None or files:
            texts = [_beside(Path(captions or root) / key) for key in short]
        for entry, found in zip(self.entries, texts, strict=True):
            if not found:
                raise ValueError(f"LatentFiles: {entry} has no caption (a .txt or .json of the same name)")
        self.captions = texts

    @cached_property
    def digest(self) -> str:
        """Digest of every file."""
        return digest_of("LatentFiles", self.scaled, self.keys, file_digests(self.files), self.captions)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, i: int) -> Item:
        raise ValueError(f"LatentFiles: {self.entries[i]} is a latent; what needs pixels cannot use it")

    def latent(self, i: int) -> Tensor:
        """Return latent i as it is stored, (channels, h, w); ValueError names a file that cannot be read."""
        entry = self.entries[i]
        name = entry.name if isinstance(entry, Member) else str(entry)
        try:
            x = _decoded(
                entry.read() if isinstance(entry, Member) else read_bytes(entry, LATENT_BYTES),
                Path(name).suffix.lower(),
            )
        except Exception as error:  # whatever the libraries make of a damaged file
            said = (str(error) or type(error).__name__).splitlines()[0]
            raise ValueError(f"{entry} cannot be read as a latent: {said}") from error
        if not x.is_floating_point() or not x.isfinite().all():
            got = "is not finite" if x.is_floating_point() else f"is {x.dtype}, not floating point"
            raise ValueError(f"{entry} {got}")
        return x[0] if x.dim() == 4 and len(x) == 1 else x

    def check(self, vae: "LatentVAE", size: int) -> bool:
        """Tell whether these are moments. ValueError if the first latent does not fit the autoencoder or ``scaled``."""
        first, side = self.latent(0), size // vae.factor
        shapes = [(channels, side, side) for channels in (vae.channels, 2 * vae.channels)]
        if tuple(first.shape) not in shapes:
            raise ValueError(
                f"{self.entries[0]} has the shape {tuple(first.shape)}; with this autoencoder and data.size {size}, "
                f"latents are {shapes[0]} and moments {shapes[1]}"
            )
        moments = tuple(first.shape) == shapes[1]
        if moments and self.scaled:
            raise ValueError(f"{self.entries[0]} has moments, which are not scaled: remove data.latents_scaled")
        if not moments and self.scaled is None:
            stored = torch.stack([self.latent(i).double() for i in range(min(len(self), 64))])
            scaled = vae.mode(torch.cat([stored, stored], 1))
            raise ValueError(
                f"data.latents_scaled is missing: are the latents in {self.path} stored with the autoencoder's scale "
                f"applied? They have std {stored.std():.3g}, true keeps {stored.std():.3g}, false makes it "
                f"{scaled.std():.3g}; it should be about 1"
            )
        return moments


def load_latents(source: LatentFiles, vae: "LatentVAE", size: int) -> Latents:
    """Return the latents of a source as moments (N, 2C, h, w), fp32, for images of size × size.

    A latent that was sampled before is the mean, and its logvar is -inf: ``LatentVAE.sample`` then returns it without
    noise, scaled once. If it is stored scaled, that is undone here, in fp64. Raises as :meth:`LatentFiles.check`, for
    every file; warns if the std of z1 is far from 1.
    """
    moments = source.check(vae, size)
    channels, side = vae.channels, size // vae.factor
    made = torch.full((len(source), 2 * channels, side, side), -torch.inf)
    shape = (2 * channels if moments else channels, side, side)
    for i, row in enumerate(made):
        x = source.latent(i)
        if tuple(x.shape) != shape:
            raise ValueError(f"{source.entries[i]} has the shape {tuple(x.shape)}, but {source.entries[0]} {shape}")
        if source.scaled:
            shift, scale = vae.shift_scale(x := x.double())
            x = x / scale + shift
        row[: len(x)] = x
    std = vae.mode(made[:256]).std().item()
    if not moments and len(made) > 1 and not LIKELY_STD[0] < std < LIKELY_STD[1]:
        warnings.warn(
            f"{source.path}: z1 has a std of {std:.3g} instead of about 1: is data.latents_scaled="
            f"{str(bool(source.scaled)).lower()} right?",
            stacklevel=2,
        )
    items = [{"key": k, "captions": list(c), "labels": {}} for k, c in zip(source.keys, source.captions, strict=True)]
    return Latents(made, items, source.path, source.digest)


def all_latents(source: Source, vae: "LatentVAE", folder: str | Path, size: int) -> Latents:
    """Return the latents of a source: read if it has them, else of the cache in folder; of a mixture one by one."""
    if isinstance(source, LatentFiles):
        return load_latents(source, vae, size)
    if not isinstance(source, Mixture):
        return cache_latents(source, vae, folder)
    found = [all_latents(part, vae, folder, size) for part in source.sources]
    items = [item for part in found for item in part.items]
    items = [{**item, "key": key} for item, key in zip(items, source.keys, strict=True)]
    digest = digest_of([part.digest for part in found])
    return Latents(torch.cat([part.moments for part in found]), items, Path(folder), digest)


def _key(name: str) -> str:
    """Return the name without the suffix of a latent and, before it, of an image or of a latent's name."""
    name = name[: -len(suffix)] if (suffix := Path(name).suffix).lower() in SUFFIXES else name
    inner = Path(name).suffix
    return name[: -len(inner)] if inner.lower() in IMAGES or inner[1:].lower() in NAMES else name


def _decoded(data: bytes, suffix: str) -> Tensor:
    if suffix == ".npy":
        import numpy as np

        return torch.from_numpy(np.load(io.BytesIO(data), allow_pickle=False))
    if suffix == ".safetensors":
        from safetensors.torch import load

        found = load(data)
    else:
        found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if isinstance(found, Tensor):
        return found
    tensors = {k: found[k] for k in sorted(found) if isinstance(found[k], Tensor)} if isinstance(found, Mapping) else {}
    name = next((name for name in NAMES if name in tensors), next(iter(tensors)) if len(tensors) == 1 else None)
    if name is None:
        got = f"the tensors {', '.join(map(str, tensors))}" if tensors else type(found).__name__
        raise ValueError(f"it has {got}; expected one tensor, or one named {', '.join(NAMES)}")
    return tensors[name]


def _beside(stem: Path) -> tuple[str, ...]:
    """Return the captions in ``<stem>.txt`` or ``<stem>.json``, empty without either."""
    for suffix, read in ((".txt", caption_lines), (".json", caption_json)):
        file = stem.with_name(stem.name + suffix)
        if file.is_file():
            try:
                return read(caption_file(file, CAPTION_BYTES))
            except ValueError as error:
                raise ValueError(f"LatentFiles: {file}: {error}") from None
    return ()
