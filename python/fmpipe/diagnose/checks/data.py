"""Checks of the inputs: the path of the text to z0, captions and their images, pixels, the time embedding."""

from collections.abc import Callable, Sequence
from itertools import combinations
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fmpipe.diagnose.checks.base import check, check_floating, check_images, described, rms_of
from fmpipe.diagnose.thresholds import Limits


@check
@torch.no_grad()
def text_path(embed: Callable[[list[str]], Tensor], prompts: Sequence[str]) -> dict:
    """Compare all pairs of ``embed(prompts)``, (B, ...), one z_text (its mu, not a sample) per prompt, flattened.

    embed is called twice: the cosine of the two results of one prompt is the control, which shows whether they are
    means or samples. Repeated prompts count once; ValueError if fewer than two are left. A z_text of 0 has no cosine
    and fails.
    """
    if isinstance(prompts, str) or len(prompts := list(dict.fromkeys(prompts))) < 2:
        raise ValueError(f"text_path: prompts must be a list of at least two different ones, got {prompts!r}")
    units = []
    for z in (embed(prompts), embed(prompts)):
        check_floating("text_path", "embed(prompts)", z)
        if len(z) != len(prompts):
            raise ValueError(f"text_path: embed(prompts) must have {len(prompts)} rows, got {tuple(z.shape)}")
        z = z.flatten(1).double()
        units.append(z / z.norm(dim=1, keepdim=True))
    cosine, same = units[0] @ units[0].T, (units[0] * units[1]).sum(1).mean().item()
    pairs = {f"{prompts[i]} | {prompts[j]}": cosine[i, j].item() for i, j in combinations(range(len(prompts)), 2)}
    return {"cosines": pairs, "same": same, "noise": units[0].shape[1] ** -0.5}


@check
@torch.no_grad()
def pairing(
    score: Callable[[Tensor, Sequence | Tensor], Tensor],
    images: Tensor,
    captions: Sequence | Tensor,
    *,
    shuffles: int = 4,
    generator: Generator | None = None,
) -> dict[str, float]:
    """Compare ``score(images, captions)``, (B,), of the true pairs with that of captions moved to other images.

    score: higher for better pairs: a text-image cosine, or a negative flow loss (with the same t and noise in each
    call). captions: a list, or a tensor (B, ...). The shuffles are rotations of one random order, so every caption
    moves. The error is the standard error of the mean over images of ``true - mean of shuffled``. ValueError for fewer
    than 4 pairs, or if all captions are the same.
    """
    size = len(images)
    if size != len(captions):
        raise ValueError(f"pairing: captions must have one caption for each of {size} images, got {len(captions)}")
    if size < 4:
        raise ValueError(f"pairing: images must be at least 4, got {size}")
    if not isinstance(captions, Tensor) and all(caption == captions[0] for caption in captions):
        raise ValueError("pairing: captions are all the same, so that shuffling them changes nothing")
    if shuffles < 1:
        raise ValueError(f"pairing: shuffles must be at least 1, got {shuffles}")

    def scores(order: Tensor) -> Tensor:
        moved = (
            captions[order.to(captions.device)]
            if isinstance(captions, Tensor)
            else [captions[i] for i in order.tolist()]
        )
        result = torch.as_tensor(score(images, moved)).double().cpu()
        if result.shape != (size,):
            raise ValueError(f"pairing: score must give ({size},), one number per pair, got {tuple(result.shape)}")
        return result

    order = torch.randperm(size, generator=generator, device=generator.device if generator else None).cpu()
    true, shuffled = scores(torch.arange(size)), torch.zeros(size, dtype=torch.float64)
    turns = range(1, min(shuffles, size - 1) + 1)
    for turn in turns:
        other = torch.empty_like(order)
        other[order] = order.roll(turn)
        shuffled += scores(other) / len(turns)
    error = ((true - shuffled).std() / sqrt(size)).item()
    return {"true": true.mean().item(), "shuffled": shuffled.mean().item(), "error": error}


@check
@torch.no_grad()
def same_augmentation(first: Tensor, second: Tensor, *, limit: Limits) -> dict:
    """Do two paths (contrastive or DINO, and VAE) get the same images? first, second: (B, C, H, W).

    Each image that differs is named by what brings the two to a correlation of ``data/alike``, whatever each channel's
    scale and offset: nothing (then only the normalization differs), a mirror, a shift. A second of another size is
    resized to first's before. ValueError if B or C differ.
    """
    name = "same_augmentation"
    for label, x in (("first", first), ("second", second)):
        check_images(name, label, x)
    if first.shape[:2] != second.shape[:2]:
        raise ValueError(
            f"{name}: second must have first's B and C, {tuple(first.shape[:2])}, got {tuple(second.shape)}"
        )
    first, second = first.double(), second.double()
    aligned = "normalized"
    if first.shape != second.shape:
        aligned = "resized"
        second = F.interpolate(second, first.shape[2:], mode="bilinear", antialias=True)
    std = first.std(correction=0).clamp_min(1e-6)  # images of one color have none
    difference = (first - second).square().flatten(1).mean(1).sqrt() / std
    kinds: dict[str, int] = {}
    for a, b, apart in zip(first, second, difference.tolist()):
        kind = "same" if apart <= limit["data/same"] else _kind(a, b, limit["data/alike"], aligned)
        kinds[kind] = kinds.get(kind, 0) + 1
    return {"difference": difference.max().item(), "kinds": kinds}


@check
@torch.no_grad()
def image_range(images: Tensor) -> dict:
    """Measure the range of a batch as the autoencoder gets it, of any shape and dtype. ValueError if it is empty."""
    if not isinstance(images, Tensor) or not images.numel():
        raise ValueError(f"image_range: images must be a tensor with pixels, got {described(images)}")
    finite = images[images.isfinite()]
    nonfinite = images.numel() - finite.numel()
    low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (0.0, 0.0)
    return {"low": low, "high": high, "nonfinite": nonfinite}


@check
@torch.no_grad()
def time_embedding(embedding: Tensor, features: Tensor) -> dict[str, float]:
    """Measure the rms of the time embedding, and of the features before it is added to them; any shapes."""
    for label, x in (("embedding", embedding), ("features", features)):
        check_floating("time_embedding", label, x)
    return {"embedding_rms": rms_of(embedding.double()), "features_rms": rms_of(features.double())}


def _correlation(a: Tensor, b: Tensor) -> float:
    """Return the correlation of two (C, H, W), each channel normalized to mean 0 and rms 1; 0 if one is constant."""
    a, b = (x - x.mean((1, 2), keepdim=True) for x in (a, b))
    a, b = (x / x.square().mean((1, 2), keepdim=True).sqrt().clamp_min(1e-12) for x in (a, b))
    return ((a * b).sum() / (a.square().sum() * b.square().sum()).sqrt().clamp_min(1e-12)).item()


def _kind(a: Tensor, b: Tensor, alike: float, aligned: str) -> str:
    """Return which change turns a into b, both (C, H, W), as named in the texts; ``aligned`` if none is needed."""
    for kind, other in ((aligned, a), ("mirrored", a.flip(-1)), ("upside down", a.flip(-2))):
        if _correlation(other, b) >= alike:
            return kind
    return "shifted" if _shifted(a, b, alike) else "other"


def _shifted(a: Tensor, b: Tensor, alike: float) -> bool:
    """Tell whether b is a shifted by the (dy, dx) at the peak of their phase correlation, where they overlap."""
    height, width = a.shape[1:]
    window = torch.outer(*(torch.hann_window(n, dtype=a.dtype, device=a.device) for n in (height, width)))
    # without it the edges, which do not move, have a peak of their own
    left, right = (torch.fft.fft2((x - x.mean((1, 2), keepdim=True)) * window) for x in (a, b))
    spectrum = (left.conj() * right).sum(0)
    size = spectrum.abs()
    phase = torch.fft.ifft2(spectrum / (size + 1e-3 * size.max().clamp_min(1e-12))).real
    if not phase.isfinite().all():
        return False
    y, x = divmod(phase.argmax().item(), width)
    dy, dx = (y if y <= height // 2 else y - height), (x if x <= width // 2 else x - width)
    overlap = a[:, max(-dy, 0) : height - max(dy, 0), max(-dx, 0) : width - max(dx, 0)]
    moved = b[:, max(dy, 0) : height + min(dy, 0), max(dx, 0) : width + min(dx, 0)]
    return _correlation(overlap, moved) >= alike
