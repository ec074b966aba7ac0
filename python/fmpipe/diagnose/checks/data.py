"""Checks of what goes in: the text's way to z0, captions and their images, pixels, the time embedding."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fmpipe.diagnose.checks.autoencoder import CHECKLIST, check_floating, check_images, described, rms_of, verdict_of
from fmpipe.diagnose.verdict import Overrides, Verdict, limits, skipped


def judge_text_path(
    cosines: Mapping[str | tuple[str, str], float],
    same: float | None = None,
    *,
    noise: float = 0.0,
    overrides: Overrides = None,
) -> Verdict:
    """Judge the cosines of z_text of different prompts, keyed ``"a | b"`` or ``("a", "b")``.

    same: the control, the mean cosine of two z_text of the same prompt: 1 for means, less for samples. noise: the
    standard deviation of the cosine of unrelated z_text. Fails with a mean of ``text/cos * same`` or more, warns with a
    single pair of that. If two z_text of one prompt are as far apart as those of two prompts, the cosines prove nothing
    and the check is skipped. Raises ValueError without a pair.
    """
    limit = limits(overrides)["text/cos"]
    pairs = {key if isinstance(key, str) else " | ".join(key): float(value) for key, value in cosines.items()}
    if not pairs:
        raise ValueError("judge_text_path: cosines must have at least one pair of prompts, got none")
    mean, nearest = sum(pairs.values()) / len(pairs), max(pairs, key=pairs.get)
    values = {"mean": mean, "max": pairs[nearest], "cosines": pairs}
    if same is not None:
        values["same"] = same
        if same < limit and same - mean <= max((1 - limit) * same, 4 * noise):
            return skipped(
                "text_path",
                f"needs the means of z_text: two samples of the same prompt have a cosine of {same:.3f}, samples of "
                f"different prompts {mean:.3f}, so samples cannot tell whether the text is used",
            )
        limit *= min(same, 1.0)
    if not mean < limit:
        found = (
            "fail",
            f"The mean cosine of different prompts is {mean:.3f}: the text hardly reaches z_text.",
            "Check that the prompt's tokens and mask reach the encoder, and that a constant (queries, a bias, padding) "
            "does not drown the head.",
        )
    elif pairs[nearest] >= limit:
        found = (
            "warn",
            f"The mean cosine is {mean:.3f}, but that of {nearest} is {pairs[nearest]:.3f}: hardly told apart.",
            "Look at the tokens of both prompts: unless they mean the same, one of them is cut off or padded away.",
        )
    else:
        found = ("pass", f"The mean cosine of different prompts is {mean:.3f}, the largest {pairs[nearest]:.3f}.", "")
    return verdict_of(
        "text_path",
        values,
        f"mean pairwise cosine of z_text below {limit:g}, or it fails; a single pair of {limit:g} or more warns",
        found,
        "In the debugging notes, a cat, a car and an apple had cosines 0.098, 0.114 and 0.108, and the search went on "
        "to the velocity. "
        "They were cosines of samples, without a control: two samples of one prompt may be as far apart.",
    )


@torch.no_grad()
def text_path(embed: Callable[[list[str]], Tensor], prompts: Sequence[str], *, overrides: Overrides = None) -> Verdict:
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
    pairs = {(prompts[i], prompts[j]): cosine[i, j].item() for i, j in combinations(range(len(prompts)), 2)}
    return judge_text_path(pairs, same, noise=units[0].shape[1] ** -0.5, overrides=overrides)


def judge_pairing(true: float, shuffled: float, error: float, *, overrides: Overrides = None) -> Verdict:
    """true, shuffled: mean score of pairs as they are, and of shuffled ones; error: standard error of the difference.

    Fails unless the difference is above ``data/pairing`` by ``data/pairing_fail`` errors, warns below
    ``data/pairing_warn`` of them.
    """
    limit = limits(overrides)
    bound, least, enough = limit["data/pairing"], limit["data/pairing_fail"], limit["data/pairing_warn"]
    gain = true - shuffled
    numbers = f"True pairs score {true:.4g}, shuffled ones {shuffled:.4g}: a gain of {gain:.3g} +- {error:.2g}"
    if not gain > bound + least * error:
        found = (
            "fail",
            f"{numbers}, no more than chance.",
            "Print ten captions beside their images. If they belong together, the score does not see the text: train "
            "it, or take another.",
        )
    elif not gain > bound + enough * error:
        found = (
            "warn",
            f"{numbers}, which is weak.",
            "Take more pairs, and look for captions that are partly misplaced.",
        )
    else:
        found = ("pass", f"{numbers}.", "")
    return verdict_of(
        "pairing",
        {"true": float(true), "shuffled": float(shuffled), "gain": float(gain), "error": float(error)},
        f"score(true) - score(shuffled) above {bound:g} by {least:g} errors, else fails; by {enough:g}, else warns",
        found,
        CHECKLIST,
    )


@torch.no_grad()
def pairing(
    score: Callable[[Tensor, Sequence | Tensor], Tensor],
    images: Tensor,
    captions: Sequence | Tensor,
    *,
    shuffles: int = 4,
    generator: Generator | None = None,
    overrides: Overrides = None,
) -> Verdict:
    """``score(images, captions)``, (B,), higher for better pairs, against that of captions moved to other images.

    score: a text-image cosine, or a negative flow loss (with the same t and noise in each call). captions: a list, or a
    tensor (B, ...). The shuffles are rotations of one random order, so none leaves a caption at its place. The error is
    that of the mean over images of ``true - mean of shuffled``. ValueError for fewer than 4 pairs or one caption only.
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
            raise ValueError(f"pairing: score must give ({size},), one number a pair, got {tuple(result.shape)}")
        return result

    order = torch.randperm(size, generator=generator, device=generator.device if generator else None).cpu()
    true, shuffled = scores(torch.arange(size)), torch.zeros(size, dtype=torch.float64)
    turns = range(1, min(shuffles, size - 1) + 1)
    for turn in turns:
        other = torch.empty_like(order)
        other[order] = order.roll(turn)
        shuffled += scores(other) / len(turns)
    error = ((true - shuffled).std() / sqrt(size)).item()
    return judge_pairing(true.mean().item(), shuffled.mean().item(), error, overrides=overrides)


_DIFFERENCES = {
    "normalised": ("the same pixels under another normalisation", "Normalise once, before the paths part."),
    "mirrored": ("mirrored left to right", "Draw the flip once a sample and give both paths its result."),
    "upside down": ("mirrored top to bottom", "Draw the flip once a sample and give both paths its result."),
    "shifted": ("shifted, as by another crop", "Draw the crop once a sample and give both paths its result."),
    "resized": ("the same crop in another size", "Resize once, before the paths part, or compare before they resize."),
    "other": (
        "another crop in another size, another colour, or another image",
        "Draw every augmentation once a sample, and check that both loaders have one order.",
    ),
}


def judge_same_augmentation(
    difference: float, kinds: Mapping[str, int] | None = None, *, overrides: Overrides = None
) -> Verdict:
    """difference: largest over images of rms(first - second) / std(first); kinds: how many images differ in which way.

    Fails above ``data/same``. kinds has names of ``same normalised mirrored upside down shifted resized other``.
    """
    limit = limits(overrides)["data/same"]
    kinds = dict(kinds or {})
    if unknown := kinds.keys() - _DIFFERENCES.keys() - {"same"}:
        raise ValueError(
            f"judge_same_augmentation: unknown kinds {sorted(unknown)}; choose of same, {', '.join(_DIFFERENCES)}"
        )
    if difference <= limit:
        found = ("pass", f"Both paths get the same images: they differ by {difference:.2g} of their std at most.", "")
    else:
        differing = [kind for kind in _DIFFERENCES if kinds.get(kind)]
        what = "; ".join(f"{kinds[kind]} of {sum(kinds.values())} {_DIFFERENCES[kind][0]}" for kind in differing)
        found = (
            "fail",
            f"The two paths' images differ by {difference:.3g} of their std{': ' if what else ''}{what}.",
            " ".join(dict.fromkeys(_DIFFERENCES[kind][1] for kind in differing or ["other"])),
        )
    values = {"difference": float(difference), "kinds": kinds}
    rule = f"rms of the difference at most {limit:g} of the images' std, for every image"
    return verdict_of("same_augmentation", values, rule, found, CHECKLIST)


@torch.no_grad()
def same_augmentation(first: Tensor, second: Tensor, *, overrides: Overrides = None) -> Verdict:
    """Do two paths (contrastive or DINO, and VAE) get the same images? first, second: (B, C, H, W).

    Each image that differs is named by what brings the two to a correlation of ``data/alike``, whatever each channel's
    scale and offset: nothing (then only the normalisation differs), a mirror, a shift. A second of another size is
    resized to first's before. ValueError if B or C differ.
    """
    name = "same_augmentation"
    for label, x in (("first", first), ("second", second)):
        check_images(name, label, x)
    if first.shape[:2] != second.shape[:2]:
        raise ValueError(
            f"{name}: second must have first's B and C, {tuple(first.shape[:2])}, got {tuple(second.shape)}"
        )
    limit = limits(overrides)
    first, second = first.double(), second.double()
    aligned = "normalised"
    if first.shape != second.shape:
        aligned = "resized"
        second = F.interpolate(second, first.shape[2:], mode="bilinear", antialias=True)
    std = first.std(correction=0).clamp_min(1e-6)  # images of one colour have none
    difference = (first - second).square().flatten(1).mean(1).sqrt() / std
    kinds: dict[str, int] = {}
    for a, b, apart in zip(first, second, difference.tolist()):
        kind = "same" if apart <= limit["data/same"] else _kind(a, b, limit["data/alike"], aligned)
        kinds[kind] = kinds.get(kind, 0) + 1
    return judge_same_augmentation(difference.max().item(), kinds, overrides=overrides)


def judge_image_range(low: float, high: float, *, nonfinite: int = 0, overrides: Overrides = None) -> Verdict:
    """low, high: least and greatest pixel; nonfinite: how many are NaN or infinite.

    In [-1, 1] up to ``data/range``, with both signs; a single value warns; all else fails.
    """
    slack = limits(overrides)["data/range"]
    numbers = f"Pixels are in [{low:.4g}, {high:.4g}]"
    if nonfinite:
        found = ("fail", f"{nonfinite} pixels are NaN or infinite.", "Look for a division by 0 in the preprocessing.")
    elif low >= -slack and high > 2:
        found = ("fail", f"{numbers}: 0 to 255, never divided.", "Use x / 127.5 - 1.")
    elif low < -1 - slack or high > 1 + slack:
        found = (
            "fail",
            f"{numbers}, beyond [-1, 1].",
            "Look for a normalisation by a dataset's mean and std, or applied twice, or a resize that overshoots.",
        )
    elif low == high:
        found = ("warn", f"All pixels are {low:.4g}.", "Look at the files: images of one colour teach nothing.")
    elif low >= 0:
        found = ("fail", f"{numbers}: [0, 1], not brought to [-1, 1].", "Use 2 x - 1 before the autoencoder.")
    elif high <= 0:
        found = ("fail", f"{numbers}: half of [-1, 1] is not used.", "Use 2 x - 1 on [0, 1], not x - 1.")
    else:
        found = ("pass", f"{numbers}.", "")
    return verdict_of(
        "image_range",
        {"low": float(low), "high": float(high), "nonfinite": int(nonfinite)},
        f"within [-1, 1] up to {slack:g}, both signs used, all finite; a single value warns",
        found,
        "The diary read the range of the pixels beside its PSNR, [0.000, 0.992] once brought back to [0, 1]: a wrong "
        "range would have shown there and nowhere else.",
    )


@torch.no_grad()
def image_range(images: Tensor, *, overrides: Overrides = None) -> Verdict:
    """Range of a batch as the autoencoder gets it; any shape and dtype. ValueError for no pixels."""
    if not isinstance(images, Tensor) or not images.numel():
        raise ValueError(f"image_range: images must be a tensor with pixels, got {described(images)}")
    finite = images[images.isfinite()]
    nonfinite = images.numel() - finite.numel()
    low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (0.0, 0.0)
    return judge_image_range(low, high, nonfinite=nonfinite, overrides=overrides)


def judge_time_embedding(embedding_rms: float, features_rms: float, *, overrides: Overrides = None) -> Verdict:
    """rms of the time embedding against that of the features it is added to; more than ``time/rms`` times warns."""
    limit = limits(overrides)["time/rms"]
    ratio = embedding_rms / features_rms if features_rms else float("inf")
    numbers = f"The time embedding has rms {embedding_rms:.3g}, the features {features_rms:.3g}"
    if ratio <= limit:
        found = ("pass", f"{numbers}: {ratio:.2g} times.", "")
    else:
        found = (
            "warn",
            f"{numbers}: {ratio:.3g} times, so the network sees little but the time.",
            "Put a LayerNorm after the embedding's MLP, or initialise its last layer small.",
        )
    return verdict_of(
        "time_embedding",
        {"embedding_rms": float(embedding_rms), "features_rms": float(features_rms), "ratio": float(ratio)},
        f"rms of the time embedding at most {limit:g} times the features'; more warns",
        found,
        "The diary warns of it: a sinusoidal embedding of t that is too large dominates the network; a LayerNorm or a "
        "small initialisation cures it.",
    )


@torch.no_grad()
def time_embedding(embedding: Tensor, features: Tensor, *, overrides: Overrides = None) -> Verdict:
    """rms of two tensors of any shapes: the time embedding, and the features before it is added to them."""
    for label, x in (("embedding", embedding), ("features", features)):
        check_floating("time_embedding", label, x)
    return judge_time_embedding(rms_of(embedding.double()), rms_of(features.double()), overrides=overrides)


def _correlation(a: Tensor, b: Tensor) -> float:
    """Of two (C, H, W), each channel brought to mean 0 and rms 1: neither scale nor offset counts; 0 if flat."""
    a, b = (x - x.mean((1, 2), keepdim=True) for x in (a, b))
    a, b = (x / x.square().mean((1, 2), keepdim=True).sqrt().clamp_min(1e-12) for x in (a, b))
    return ((a * b).sum() / (a.square().sum() * b.square().sum()).sqrt().clamp_min(1e-12)).item()


def _kind(a: Tensor, b: Tensor, alike: float, aligned: str) -> str:
    """What makes b, (C, H, W), of a: a key of _DIFFERENCES; aligned: that of images which lie on each other."""
    for kind, other in ((aligned, a), ("mirrored", a.flip(-1)), ("upside down", a.flip(-2))):
        if _correlation(other, b) >= alike:
            return kind
    return "shifted" if _shifted(a, b, alike) else "other"


def _shifted(a: Tensor, b: Tensor, alike: float) -> bool:
    """Is b[y + dy, x + dx] = a[y, x] where both are, for the (dy, dx) at the peak of their phase correlation?"""
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
