"""Batches as functions of the step: whatever process asks, whenever it was started, the same numbers come.

Every process draws for the whole batch and takes its rows, so that two processes see what one would.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from fmpipe.data.cache import Latents, States
from fmpipe.data.source import Source, to_pixels
from fmpipe.train.config import Losses
from fmpipe.train.times import null_mask, sample_t
from fmpipe.vae import LatentVAE

Rows = slice
ALL = slice(None)


def drawn(seed: int, *parts: int) -> torch.Generator:
    """A generator of its own for (seed, parts): neighbours share nothing."""
    digest = hashlib.sha256(repr((seed, *parts)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


class Order:
    """Which items a step has: one random order of all after the other, cut in batches, no item left out."""

    def __init__(self, items: Sequence[int], batch: int, seed: int):
        if not len(items):
            raise ValueError("Order: there are no items to train on")
        self.items, self.batch, self.seed = torch.tensor(items), batch, seed
        self._epoch, self._order = -1, self.items

    def __call__(self, step: int) -> Tensor:
        at = torch.arange(step * self.batch, (step + 1) * self.batch)
        parts = []
        for epoch in range(int(at[0]) // len(self.items), int(at[-1]) // len(self.items) + 1):
            if epoch != self._epoch:
                self._epoch = epoch
                self._order = self.items[torch.randperm(len(self.items), generator=drawn(self.seed, 1, epoch))]
            mine = at[(at // len(self.items)) == epoch] % len(self.items)
            parts.append(self._order[mine])
        return torch.cat(parts)


class FlowBatches:
    """z1 sampled anew from the cached moments, one of its captions' states, eps, t and the null indicator."""

    def __init__(
        self,
        latents: Latents,
        states: States,
        vae: LatentVAE,
        items: Sequence[int],
        batch: int,
        config: Losses,
        seed: int,
    ):
        self.latents, self.states, self.vae, self.config, self.seed = latents, states, vae, config, seed
        self.order, self.shape = Order(items, batch, seed), latents.moments[:1, : vae.channels].shape[1:]

    def captions(self, step: int) -> list[str]:
        rows = self.order(step)
        pick = torch.rand(len(rows), generator=drawn(self.seed, 2, step)).tolist()
        captions = [self.latents.items[i]["captions"] for i in rows.tolist()]
        return [texts[int(p * len(texts))] for texts, p in zip(captions, pick, strict=True)]

    def __call__(self, step: int, rows: Rows = ALL) -> dict[str, Tensor]:
        draw, chosen = drawn(self.seed, 3, step), self.order(step)
        z1 = self.vae.sample(self.latents.moments[chosen], draw)
        eps = torch.randn(len(chosen), *self.shape, generator=draw)
        t = sample_t(self.config.t, len(chosen), draw)
        null = null_mask(len(chosen), self.config.null, draw)
        states, mask = self.states.rows(self.captions(step)[rows])
        return {"z1": z1[rows], "states": states, "mask": mask, "eps": eps[rows], "t": t[rows], "null": null[rows]}


class PixelBatches:
    """Pictures in [-1, 1], all of them in memory as bytes, and the noise of their latents."""

    def __init__(self, source: Source, items: Sequence[int], batch: int, latent: tuple[int, int, int], seed: int):
        self.images = torch.stack([source[i].image for i in items])
        self.order, self.latent, self.seed = Order(range(len(items)), batch, seed), latent, seed

    def __call__(self, step: int, rows: Rows = ALL) -> dict[str, Tensor]:
        chosen = self.order(step)
        eps = torch.randn(len(chosen), *self.latent, generator=drawn(self.seed, 3, step))
        return {"pixels": to_pixels(self.images[chosen[rows]]), "eps": eps[rows]}


class DiffusionBatches:
    """z1 sampled anew, noise, and whole steps drawn evenly from 0 … T - 1."""

    def __init__(self, latents: Latents, vae: LatentVAE, items: Sequence[int], batch: int, seed: int, T: int = 1000):  # noqa: N803
        self.latents, self.vae, self.seed, self.T = latents, vae, seed, T
        self.order = Order(items, batch, seed)

    def __call__(self, step: int, rows: Rows = ALL) -> dict[str, Tensor]:
        draw, chosen = drawn(self.seed, 3, step), self.order(step)
        z1 = self.vae.sample(self.latents.moments[chosen], draw)
        noise = torch.randn(z1.shape, generator=draw)
        return {"z1": z1[rows], "noise": noise[rows], "steps": torch.randint(self.T, (len(z1),), generator=draw)[rows]}
