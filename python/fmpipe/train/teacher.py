"""A frozen image encoder of transformers as a teacher: soft targets for ``dino``, patch features for ``repa``.

DINO's teacher is an average of the student behind the same head. An external teacher has no such head (released DINOv2
weights come without it), so its features get one that is fixed: standardised, projected to the width of the student's
embedding and compared with random prototypes. Nothing there is trained, so nothing can collapse; the target of an image
changes only with the centre. Standardising is necessary: the features of a pretrained encoder share a large mean, next
to which the differences between images are small, and their targets would all be alike. The projection makes the
entropy of the targets independent of the teacher's width: cosines of random directions have a std of 1 / sqrt(dim).
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fmpipe.data.cache import cache_features
from fmpipe.data.source import Source, to_pixels
from fmpipe.train.config import Losses
from fmpipe.train.switches import without_autocast
from fmpipe.untrusted import load_pretrained

TeacherInputs = Callable[[Tensor, Tensor], dict[str, Tensor]]
SAMPLE = 512  # images whose features are standardised by their mean and std, without a cache
MODES = {0: "nearest-exact", 2: "bilinear", 3: "bicubic"}  # PIL's numbers; others (Lanczos, box) are taken as bicubic


class Teacher:
    """An image encoder of transformers, frozen, with the preprocessing of its folder.

    It is not a module, so it is not in state dicts, optimizers or changes to training mode, and copies of an objective
    share it. ``size``: (height, width) of its input. ``dim``: of its features. ``grid``: (rows, columns) of patches.
    """

    def __init__(self, model: nn.Module, processor: object, argument: str = "teacher"):
        self.argument = argument
        self.model = model.eval().requires_grad_(False).float()
        self.size = _size(processor, argument)
        self.mode = MODES.get(processor.resample, "bicubic")
        factor = processor.rescale_factor if processor.do_rescale else 1.0
        mean, std = (processor.image_mean, processor.image_std) if processor.do_normalize else ([0.0] * 3, [1.0] * 3)
        # x = (255 (pixels + 1) / 2 * factor - mean) / std, as one product and sum
        self.scale = torch.tensor([127.5 * factor / s for s in std]).view(3, 1, 1)
        self.shift = torch.tensor([(127.5 * factor - m) / s for m, s in zip(mean, std, strict=True)]).view(3, 1, 1)
        self.dim, self.grid, self.prefix = self._layout()

    @classmethod
    def from_folder(cls, folder: str | Path, argument: str = "teacher") -> "Teacher":
        """Load the encoder of a folder with its weights and the config of its image processor.

        Of a model of images and texts (CLIP, SigLIP), the vision model is used. argument: the name of the folder in
        errors. Raises ValueError for another kind of model, FileNotFoundError if the folder or the config of the image
        processor is missing.
        """
        from transformers import AutoImageProcessor, AutoModel

        if not (Path(folder) / "config.json").is_file():
            raise FileNotFoundError(
                f"{argument}: {str(folder)!r} is not a folder with an image encoder of transformers"
            )
        names = ("preprocessor_config.json", "processor_config.json")
        if not any((Path(folder) / name).is_file() for name in names):
            raise FileNotFoundError(
                f"{argument}: {str(folder)!r} has no {names[0]}, which says how to prepare images; copy it from the "
                "model's repository, or save the image processor there"
            )
        model = load_pretrained(AutoModel, folder, dtype=torch.float32)
        model = getattr(model, "vision_model", model)
        return cls(model, load_pretrained(AutoImageProcessor, folder), argument)

    @property
    def device(self) -> torch.device:
        return self.scale.device

    def to(self, device: torch.device) -> "Teacher":
        """Move the encoder and the constants of its preprocessing."""
        self.model.to(device)
        self.scale, self.shift = self.scale.to(device), self.shift.to(device)
        return self

    @property
    def about(self) -> dict[str, object]:
        """What determines the features besides the weights, for the digest of a cache."""
        numbers = [x.flatten().tolist() for x in (self.scale, self.shift)]
        return {"model": type(self.model).__name__, "size": list(self.size), "mode": self.mode, "numbers": numbers}

    def prepared(self, pixels: Tensor) -> Tensor:
        """Return pixels (B, 3, H, W) in [-1, 1] as input of the encoder, fp32.

        The whole image is resized, not cropped, so that the patches match the positions in the latent.
        """
        x = pixels.float()
        if tuple(x.shape[2:]) != self.size:
            options = {} if self.mode == "nearest-exact" else {"antialias": True}
            x = F.interpolate(x, self.size, mode=self.mode, **options).clamp(-1, 1)
        return x * self.scale + self.shift

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (B, D), the CLS token or otherwise the mean of the patches, and the patches (B, D, h, w).

        pixels: (B, 3, H, W) in [-1, 1], on the teacher's device. Computed in fp32 without gradients or autocast.
        """
        with torch.no_grad(), without_autocast(pixels):
            states = self.model(pixel_values=self.prepared(pixels)).last_hidden_state
        if states.dim() == 4:  # a convolutional network
            return states.mean((2, 3)), states
        patches = states[:, self.prefix :]
        pooled = states[:, 0] if self.prefix else patches.mean(1)
        return pooled, patches.transpose(1, 2).unflatten(2, self.grid)

    def __deepcopy__(self, memo: dict) -> "Teacher":
        return self

    def _layout(self) -> tuple[int, tuple[int, int], int]:
        """Return the width, the grid, and the number of tokens before the patches (CLS, registers)."""
        name, x = type(self.model).__name__, torch.randn(1, 3, *self.size, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            try:
                states, again = (self.model(pixel_values=x).last_hidden_state for _ in range(2))
            except Exception as error:  # of any kind: the model may not take pixels
                raise ValueError(
                    f"{self.argument}: {name} does not encode images of {self.size} pixels: {error}"
                ) from None
        if states.shape != again.shape or not torch.equal(states, again):
            raise ValueError(
                f"{self.argument}: {name} is not deterministic (masked autoencoders are not); use another model"
            )
        if states.dim() == 4:
            return states.shape[1], tuple(states.shape[2:]), 0
        count, patch = states.shape[1], getattr(self.model.config, "patch_size", None) or 1
        rows, columns = (n // p for n, p in zip(self.size, patch if isinstance(patch, (list, tuple)) else [patch] * 2))
        if rows * columns > count:  # merged on the way (Swin)
            rows = columns = math.isqrt(count)
            if rows * columns != count:
                raise ValueError(
                    f"{self.argument}: {name} has {count} tokens for {self.size} pixels, which make no grid"
                )
        return states.shape[2], (rows, columns), count - rows * columns


def _size(processor: object, argument: str) -> tuple[int, int]:
    """Return the size of the encoder's input: that of the crop, or of the resized image."""
    given = processor.crop_size if getattr(processor, "do_center_crop", False) else processor.size
    given = {k: v for k, v in dict(given).items() if v} if not isinstance(given, int) else {"shortest_edge": given}
    if {"height", "width"} <= given.keys():
        return given["height"], given["width"]
    if "shortest_edge" not in given:
        raise ValueError(
            f"{argument}: its image processor's size must have height and width, or shortest_edge, got {given}"
        )
    return (given["shortest_edge"],) * 2


class SoftTargets(nn.Module):
    """DINO logits (B, classes) of a teacher's features (B, D): cosines with fixed random prototypes.

    ``cos(P (f - mean) / std, w_k)``, P (dim, D) and w_k normal draws. mean, std: of ``sample`` (N, D), per dimension.
    Everything is a buffer: it is saved with the run, so that a resumed one has the same targets.
    """

    def __init__(self, sample: Tensor, classes: int, dim: int):
        super().__init__()
        sample = sample.float()
        std = sample.std(0, unbiased=False)
        self.register_buffer("mean", sample.mean(0))
        # A dimension that is constant in the sample must not get a huge factor.
        self.register_buffer("std", std.clamp_min(0.01 * std.mean()).clamp_min(1e-12))
        self.register_buffer("projection", torch.randn(dim, sample.shape[1]) / math.sqrt(sample.shape[1]))
        self.register_buffer("prototypes", F.normalize(torch.randn(classes, dim), dim=1))

    def forward(self, features: Tensor) -> Tensor:
        with without_autocast(features):
            x = F.linear((features.float() - self.mean) / self.std, self.projection)
            return F.linear(F.normalize(x, dim=1), self.prototypes)


class Alignment(nn.Module):
    """REPA (Yu et al. 2024): ``1 - mean cos(mlp(hidden), patches)`` over samples and places.

    hidden: (B, h, w, width) of one block of the velocity network. patches: (B, D, h', w') of the teacher at the end of
    the flow, resized to (h, w). The gradient goes to hidden and the MLP (three linear layers with SiLU, as in REPA).
    ``1 -`` keeps the loss positive, which methods that balance losses by their size need.
    """

    def __init__(self, width: int, dim: int, layer: int):
        super().__init__()
        self.layer, inner = layer, 2 * max(width, dim)
        self.project = nn.Sequential(
            nn.Linear(width, inner), nn.SiLU(), nn.Linear(inner, inner), nn.SiLU(), nn.Linear(inner, dim)
        )

    def forward(self, hidden: Tensor, patches: Tensor) -> Tensor:
        patches = F.interpolate(patches.detach().float(), hidden.shape[1:3], mode="bilinear", antialias=True)
        return 1 - F.cosine_similarity(self.project(hidden).float(), patches.movedim(1, 3), dim=3).mean()


def repa_layer(net: nn.Module, layer: int | None) -> int:
    """Return the index of the block to align; by default, a third into the first stage (REPA: block 8 of 24 or 28)."""
    count = len(net.hidden_widths)
    if layer is None:
        first = len(net.stages[0].blocks) if hasattr(net, "stages") else count
        return max(first // 3 - 1, 0)
    if not 0 <= layer < count:
        raise ValueError(
            f"repa_layer must be the index of a block of the velocity network, 0 to {count - 1}, got {layer}"
        )
    return layer


def teacher_inputs(
    teacher: Teacher | None, losses: Losses, source: Source, train: Sequence[int], cache: str | Path
) -> tuple[Tensor | None, TeacherInputs | None]:
    """Return the teacher's features (N, D) of a sample of the training images, and a function for batches.

    The function takes the items of z1 and of ends. From the cache, it returns ``features`` of z1 and ``patches``
    of ends; with ``teacher_on: pixels``, the images: ``pixels`` and, for the samples ``end_rows`` where the two
    differ, ``end_pixels``. Without a teacher, both are None.
    """
    if teacher is None:
        return None, None
    if losses.teacher_on == "cache":
        kept = cache_features(source, teacher, cache, patches=bool(losses.repa))

        def cached(items: Tensor, ends: Tensor) -> dict[str, Tensor]:
            return {"features": kept.pooled[items]} | ({"patches": kept.patches[ends]} if losses.repa else {})

        return kept.pooled[list(train)], cached

    def pixels(items: Sequence[int]) -> Tensor:
        return to_pixels(torch.stack([source[i].image for i in items]))

    def images(items: Tensor, ends: Tensor) -> dict[str, Tensor]:
        made, rows = {"pixels": pixels(items.tolist())}, (items != ends).nonzero().flatten()
        if losses.repa and len(rows):
            made |= {"end_pixels": pixels(ends[rows].tolist()), "end_rows": rows}
        return made

    sample = list(train)[:SAMPLE]
    parts = (pixels(sample[i : i + 32]).to(teacher.device) for i in range(0, len(sample), 32))
    return torch.cat([teacher(part)[0].cpu() for part in parts]), images
