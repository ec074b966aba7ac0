"""Batches as functions of the step: whatever process asks, whenever it was started, the same numbers come.

Every process draws for the whole batch and takes its rows, so that two processes see what one would.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from fmpipe.data.cache import Latents, States
from fmpipe.data.source import Source, to_pixels
from fmpipe.train.config import Flow
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
    """z1 sampled anew from the cached moments, one of its captions' states, eps, t and the null indicator.

    captions: those to draw from, a list for each item; all of them if left out. ``ends`` is what the flow goes to: z1,
    but where null is set, another null sample's. ``candidates`` are the batch's latents and ``losses.others`` more, and
    states and mask theirs.
    """

    def __init__(
        self,
        latents: Latents,
        states: States,
        vae: LatentVAE,
        items: Sequence[int],
        settings: Flow,
        seed: int,
        *,
        batch: int | None = None,
        captions: Sequence[Sequence[str]] | None = None,
    ):
        self.latents, self.states, self.vae, self.settings, self.seed = latents, states, vae, settings, seed
        self.order, self.shape = (
            Order(items, batch or settings.optim.batch, seed),
            latents.moments[:1, : vae.channels].shape[1:],
        )
        self.texts = [item["captions"] for item in latents.items] if captions is None else captions

    def captions(self, step: int) -> list[str]:
        return self._told(self.order(step), drawn(self.seed, 2, step))

    def _told(self, items: Tensor, draw: torch.Generator) -> list[str]:
        pick = torch.rand(len(items), generator=draw).tolist()
        return [self.texts[i][int(p * len(self.texts[i]))] for i, p in zip(items.tolist(), pick, strict=True)]

    def __call__(self, step: int, rows: Rows = ALL) -> dict[str, Tensor]:
        draw, chosen, losses = drawn(self.seed, 3, step), self.order(step), self.settings.losses
        z1 = self.vae.sample(self.latents.moments[chosen], draw)
        eps = torch.randn(len(chosen), *self.shape, generator=draw)
        t = sample_t(losses.t, len(chosen), draw)
        null = null_mask(len(chosen), losses.null, draw)
        ends = z1.clone()
        ends[null] = z1[null].roll(1, 0)
        made = {name: x[rows] for name, x in (("z1", z1), ("ends", ends), ("eps", eps), ("t", t), ("null", null))}
        captions = self.captions(step)
        if losses.others:  # every process has all of them
            others = self.order.items[~torch.isin(self.order.items, chosen)]
            others = others[torch.randperm(len(others), generator=draw)[: losses.others]]
            captions += self._told(others, draw)
            made["candidates"] = torch.cat([z1, self.vae.sample(self.latents.moments[others], draw)])
            made["rows"] = torch.arange(len(z1))[rows]
            rows = ALL
        states, mask = self.states.rows(captions[rows])
        if self.settings.token_dropout:
            lost = torch.rand(len(captions), mask.shape[1], generator=draw) < self.settings.token_dropout
            lost[:, 0] = False  # at least one is left: padding is on the right
            mask = mask & ~lost[rows]
        return made | {"states": states, "mask": mask}


class PixelBatches:
    """Pictures in [-1, 1], all of them in memory as bytes, and the noise of their latents.

    augment: each turned by a multiple of 90°, mirrored or not, and shifted by up to ``SHIFT`` pixels around the edge.
    """

    SHIFT = 3

    def __init__(
        self,
        source: Source,
        items: Sequence[int],
        batch: int,
        latent: tuple[int, int, int],
        seed: int,
        augment: bool = False,
    ):
        self.images = torch.stack([source[i].image for i in items])
        self.order, self.latent, self.seed, self.augment = Order(range(len(items)), batch, seed), latent, seed, augment

    def __call__(self, step: int, rows: Rows = ALL) -> dict[str, Tensor]:
        draw, chosen = drawn(self.seed, 3, step), self.order(step)
        eps = torch.randn(len(chosen), *self.latent, generator=draw)
        images = self.images[chosen]
        if self.augment:
            turns = torch.randint(8, (len(chosen),), generator=draw).tolist()
            shifts = torch.randint(-self.SHIFT, self.SHIFT + 1, (len(chosen), 2), generator=draw).tolist()
            images = torch.stack([_moved(*args) for args in zip(images, turns, shifts, strict=True)])
        return {"pixels": to_pixels(images[rows]), "eps": eps[rows]}


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


def _moved(image: Tensor, turn: int, shift: Sequence[int]) -> Tensor:
    image = image.rot90(turn % 4, (1, 2))
    return (image.flip(2) if turn >= 4 else image).roll(shift, (1, 2))
