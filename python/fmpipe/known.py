"""The captions that a model was trained on, as sentence embeddings: which of them is nearest to a prompt."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fmpipe.data.emoji import phrases

FILE = "captions.safetensors"
BATCH = 256
# Cosine to the nearest training caption below which a prompt is reported as unknown. Of the default model's captions,
# 1 % are below it; of its captions in new templates, 2 %.
FAR = 0.58


class KnownCaptions:
    """Captions and their embeddings (N, D), int8: unit vectors times 127."""

    def __init__(self, captions: Sequence[str], embeddings: Tensor):
        if len(captions) != len(embeddings):
            raise ValueError(f"KnownCaptions: got {len(embeddings)} embeddings for {len(captions)} captions")
        self.captions, self.embeddings = captions, embeddings

    @classmethod
    def embed(cls, encoder, captions: Sequence[str]) -> "KnownCaptions":
        """Embed captions with a text encoder of :mod:`fmpipe.text`."""
        parts = [captions[i : i + BATCH] for i in range(0, len(captions), BATCH)]
        rows = torch.cat([pooled(*encoder(list(part))) for part in parts])
        return cls(captions, (rows * 127).round().to(torch.int8))

    @classmethod
    def load(cls, folder: Path) -> "KnownCaptions":
        """Load the embeddings of the emoji data set's phrases from the folder of a bundled pipeline."""
        return cls(phrases(), load_file(folder / FILE)["embeddings"])

    def save(self, folder: Path) -> None:
        save_file({"embeddings": self.embeddings}, Path(folder) / FILE)

    def nearest(self, states: Tensor, mask: Tensor) -> list[tuple[str, float]]:
        """Return the nearest caption and its cosine similarity, for text states (B, L, D) and their mask (B, L)."""
        cosines = pooled(states, mask).cpu() @ self.embeddings.float().T / 127
        best, rows = cosines.max(1)
        return [(self.captions[row], cosine) for row, cosine in zip(rows.tolist(), best.tolist(), strict=True)]


def pooled(states: Tensor, mask: Tensor) -> Tensor:
    """Return unit vectors (B, D): the mean of the states where the mask is True, as sentence-transformers pools."""
    weights = mask.to(states.device, torch.float32)[..., None]
    mean = (states.float() * weights).sum(1) / weights.sum(1).clamp_min(1)
    return torch.nn.functional.normalize(mean, dim=-1)


def prompt_warnings(
    prompts: Sequence[str], states: Tensor, mask: Tensor, known: KnownCaptions | None, encoder
) -> list[str]:
    """Return messages about prompts that are empty, longer than the encoder reads, or unlike every training caption.

    states, mask: what the encoder returned for the prompts.
    """
    nearest = known.nearest(states, mask) if known else [(None, 1.0)] * len(prompts)
    cut = getattr(encoder, "cut", lambda prompt: None)
    messages = []
    for prompt, (caption, cosine) in zip(prompts, nearest, strict=True):
        if not prompt.strip():
            messages.append("the prompt is empty: the image shows nothing in particular")
        elif rest := cut(prompt):
            rest = f"{rest[:57]}..." if len(rest) > 60 else rest
            messages.append(f"the prompt is too long for the text encoder, which ignores everything from {rest!r} on")
        elif cosine < FAR:
            messages.append(
                f"{prompt!r} is unlike everything this model was trained on; drawn from: {caption!r} "
                f"(cosine similarity {cosine:.2f}). The model knows English names of things that have an emoji"
            )
    return list(dict.fromkeys(messages))
