"""How near generated images are to real ones, on the features of an image encoder, and to their captions, by CLIP.

FD and KID are those of torchmetrics, whose classes take features of any network; they need neither torchvision nor
torch-fidelity. Precision and recall are written out here, because torchmetrics does not have them, and so is the CLIP
score: torchmetrics' class loads models from the Hub by their names, and expects of transformers what versions below 5
returned.

All figures depend on the number of images. Each has a reference for the same encoder: for FD, KID, precision and recall
two halves of the real images, for the CLIP score the real images with the same captions.
"""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fmpipe.data import Source, to_pixels
from fmpipe.evaluate import drawn_pictures
from fmpipe.requirements import optional
from fmpipe.train.batches import drawn
from fmpipe.train.teacher import Teacher
from fmpipe.untrusted import load_pretrained

NEIGHBOURS = 3  # whose distance is the radius of an image, as in the paper
SUBSET, SUBSETS = 1000, 100  # images of a subset for KID, and their number
BATCH = 50


class Figure(NamedTuple):
    """One row of the table. reference: the same figure of real images; better: ``lower`` or ``higher``."""

    name: str
    value: float
    reference: float
    better: str


class _Features(nn.Module):
    """Stands for the network of a torchmetrics class that gets features instead of images."""

    def __init__(self, dim: int):
        super().__init__()
        self.num_features = dim

    def forward(self, features: Tensor) -> Tensor:
        return features


def frechet_distance(real: Tensor, generated: Tensor) -> float:
    """Return ``|m - m'|² + tr(S + S' - 2 (S S')^½)`` of the means and covariances of features (N, D), in fp64.

    With Inception features this is FID. With fewer than D images, it is much larger than that of many images.
    """
    _check(real, generated)
    fid = optional("torchmetrics.image.fid", "--features").FrechetInceptionDistance(_Features(real.shape[1]))
    # The distance does not depend on a common shift, but a large mean costs digits of the covariances.
    middle = real.double().mean(0)
    fid.update(real.double() - middle, real=True)
    fid.update(generated.double() - middle, real=False)
    return fid.compute().item()


def kernel_distance(
    real: Tensor, generated: Tensor, *, subset: int = SUBSET, subsets: int = SUBSETS, seed: int = 0
) -> tuple[float, float]:
    """Return the mean and std over subsets of the unbiased squared MMD with the kernel ``(x·y / D + 1)³``, in fp64.

    real, generated: (N, D) and (M, D). A subset has ``subset`` images of both, fewer if N or M is smaller.
    """
    _check(real, generated)
    size = min(len(real), len(generated), subset)
    if size == len(real) == len(generated):
        subsets = 1  # all are the same
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it stores all features
        torch.manual_seed(seed)
        kid = optional("torchmetrics.image.kid", "--features").KernelInceptionDistance(
            _Features(real.shape[1]), subsets=subsets, subset_size=size
        )
        kid.update(real.double(), real=True)
        kid.update(generated.double(), real=False)
        mean, std = kid.compute()
    return mean.item(), std.item()


def precision_recall(real: Tensor, generated: Tensor, neighbours: int = NEIGHBOURS) -> tuple[float, float]:
    """Return the precision and recall of Kynkäänniemi et al. (2019) of features (N, D) and (M, D).

    Around every image there is a ball that reaches to its k-th nearest neighbour among the images of its set.
    Precision: the share of generated images in a ball of a real one. Recall: the share of real images in a ball of a
    generated one.
    """
    _check(real, generated)

    def distances(a: Tensor, b: Tensor) -> Tensor:
        return torch.cdist(a.double(), b.double(), compute_mode="donot_use_mm_for_euclid_dist")

    def radii(points: Tensor) -> Tensor:
        k = min(neighbours, len(points) - 1) + 1  # the first is the image itself
        return torch.cat([distances(part, points).kthvalue(k).values for part in points.split(512)])

    inside = ([], [])
    limits, own = radii(real), radii(generated)
    reached = torch.zeros(len(real), dtype=torch.bool)
    for first in range(0, len(generated), 512):
        apart = distances(generated[first : first + 512], real)
        inside[0].append((apart <= limits).any(1))
        reached |= (apart <= own[first : first + 512, None]).any(0)
    return torch.cat(inside[0]).double().mean().item(), reached.double().mean().item()


def _check(real: Tensor, generated: Tensor) -> None:
    if min(len(real), len(generated)) < 2:
        raise ValueError(f"at least 2 images of each are needed, got {len(real)} real and {len(generated)} generated")


class Manifolds(NamedTuple):
    """Features of real and generated images, (N, D) and (M, D)."""

    real: Tensor
    generated: Tensor

    def figures(self, seed: int = 0) -> list[Figure]:
        """Return FD, KID, precision and recall, each with that of two halves of the real images."""
        order = torch.randperm(len(self.real), generator=drawn(seed, 9))
        halves = self.real[order[::2]], self.real[order[1::2]]
        rows = []
        for real, other in ((self.real, self.generated), halves):
            fd, (kid, _) = frechet_distance(real, other), kernel_distance(real, other, seed=seed)
            rows.append((fd, kid, *precision_recall(real, other)))
        names = ("FD", "lower"), ("KID", "lower"), ("precision", "higher"), ("recall", "higher")
        return [Figure(name, value, other, better) for (name, better), value, other in zip(names, *rows, strict=True)]


class CLIPScore:
    """``max(100 cos(image, text), 0)`` of the embeddings of a CLIP or SigLIP model."""

    def __init__(self, model: nn.Module, tokenizer: object, processor: object):
        self.model, self.tokenizer, self.processor = model.eval().requires_grad_(False), tokenizer, processor

    @classmethod
    def from_folder(cls, folder: str | Path) -> "CLIPScore":
        """Load model, tokenizer and image processor of a folder. FileNotFoundError or ValueError name what is wrong."""
        from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

        if not (Path(folder) / "config.json").is_file():
            raise FileNotFoundError(f"--clip: {str(folder)!r} is not a folder with a model of transformers")
        try:
            model = load_pretrained(AutoModel, folder, dtype=torch.float32)
            if not hasattr(model, "get_text_features"):
                raise ValueError(f"{type(model).__name__} does not embed texts and images; use a CLIP or SigLIP model")
            return cls(model, *(load_pretrained(auto, folder) for auto in (AutoTokenizer, AutoImageProcessor)))
        except (OSError, ValueError) as error:
            raise ValueError(f"--clip: {folder}: {error}") from None

    @torch.no_grad()
    def __call__(self, images: Tensor, texts: Sequence[str]) -> Tensor:
        """Return the scores (B). images: uint8 (B, 3, H, W), prepared by the folder's own processor."""
        pixels = self.processor(list(images.cpu()), return_tensors="pt").pixel_values
        config = self.model.config
        options = {"truncation": True, "max_length": config.text_config.max_position_embeddings}
        # SigLIP was trained on padded texts.
        padding = "max_length" if config.model_type.startswith("siglip") else True
        words = self.tokenizer(list(texts), return_tensors="pt", padding=padding, **options)
        words = {name: words[name] for name in ("input_ids", "attention_mask") if name in words}
        out = self.model(
            pixel_values=pixels.to(self.model.device), **{k: v.to(self.model.device) for k, v in words.items()}
        )
        return 100 * torch.cosine_similarity(out.image_embeds, out.text_embeds).clamp_min(0).cpu()


def evaluate(
    pipe,
    source: Source,
    *,
    features: str | Path | None = None,
    clip: str | Path | None = None,
    count: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    shown: Callable[[str, int, int], None] = lambda *_: None,
) -> dict:
    """Return the figures of images that a pipeline generates from the captions of a source, and what they are based on.

    All real images are used, at the pipeline's resolution.

    Args:
        features: folder of an image encoder of transformers, for FD, KID, precision and recall. An image's features are
            the CLS token, or the mean of the patches without one.
        clip: folder of a CLIP model, for the CLIP score.
        count: number of generated images, by default as many as there are real ones. Each has one of the captions of a
            real image; the images take turns.
        shown: called with (name, done, total).
    """
    # Before the images, so that a wrong folder or a missing package is refused at once.
    if features:
        optional("torchmetrics", "--features")
    encoder = Teacher.from_folder(features, "--features").to(pipe.device) if features else None
    scorer = CLIPScore.from_folder(clip) if clip else None
    if scorer:
        scorer.model.to(pipe.device)
    total, draw = count or len(source), drawn(seed, 10)
    order = torch.cat([torch.randperm(len(source), generator=draw) for _ in range(-(-total // len(source)))])[:total]
    texts = [_one(source, i, draw) for i in order.tolist()]
    real, score_real, row = [], {}, {}
    for k, i in enumerate(order.tolist()):
        row.setdefault(i, k)  # the caption with which a real image is scored
    for first in range(0, len(source), BATCH):
        some = range(first, min(first + BATCH, len(source)))
        images = torch.stack([source[i].image for i in some])
        if encoder:
            real.append(encoder(to_pixels(images).to(pipe.device))[0].cpu())
        if scorer and (asked := [i for i in some if i in row]):
            scores = scorer(images[[i - first for i in asked]], [texts[row[i]] for i in asked])
            score_real.update(zip(asked, scores.tolist(), strict=True))
        shown("real images", some.stop, len(source))
    generated, scores = [], []
    for images in drawn_pictures(pipe, texts, steps, seed, BATCH):
        pixels = images.mul(255).round().to(torch.uint8)
        done = sum(map(len, scores or generated))
        if encoder:
            generated.append(encoder(to_pixels(pixels))[0].cpu())
        if scorer:
            scores.append(scorer(pixels, texts[done : done + len(images)]))
        shown("generated images", done + len(images), total)
    figures = Manifolds(torch.cat(real), torch.cat(generated)).figures(seed) if encoder else []
    if scorer:
        mean = sum(score_real.values()) / len(score_real)
        figures.append(Figure("CLIP score", torch.cat(scores).mean().item(), mean, "higher"))
    return {
        "figures": [figure._asdict() for figure in figures],
        "real": len(source),
        "generated": total,
        "dimensions": encoder.dim if encoder else None,
        "prompts": texts,
    }


def _one(source: Source, i: int, draw: torch.Generator) -> str:
    """Return one of the captions of an item, drawn at random."""
    captions = getattr(source, "captions", None)
    captions = captions[i] if captions is not None else source[i].captions
    return captions[int(torch.randint(len(captions), (), generator=draw))]
