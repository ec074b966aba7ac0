"""Batches as functions of the step: the numbers do not depend on the process or on when the run was started.

Every process draws the random numbers of the whole batch and uses its own rows, so two processes get what one would.
"""

import hashlib
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fmpipe.data.cache import Latents, Prompts, States
from fmpipe.data.mixture import Mixture
from fmpipe.data.source import Source, to_pixels
from fmpipe.train.config import Flow
from fmpipe.train.times import null_mask, sample_t
from fmpipe.vae import LatentVAE

Rows = slice
ALL = slice(None)


def drawn(seed: int, *parts: int) -> torch.Generator:
    """Return a generator for (seed, parts); the streams of different arguments are independent."""
    digest = hashlib.sha256(repr((seed, *parts)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


class Order:
    """The items of each step: random orders of all items, one after another, divided into batches."""

    def __init__(self, items: Sequence[int], batch: int, seed: int, *stream: int):
        if not len(items):
            raise ValueError("Order: there are no items to train on")
        self.items, self.batch, self.seed, self.stream = torch.tensor(items), batch, seed, stream
        self._epoch, self._order = -1, self.items

    def __call__(self, step: int) -> Tensor:
        return self.between(step * self.batch, (step + 1) * self.batch)

    def between(self, start: int, end: int) -> Tensor:
        """Return the items of the draws start … end - 1."""
        if start == end:
            return self.items[:0]
        at, parts = torch.arange(start, end), []
        for epoch in range(int(at[0]) // len(self.items), int(at[-1]) // len(self.items) + 1):
            if epoch != self._epoch:
                self._epoch = epoch
                draw = drawn(self.seed, 1, epoch, *self.stream)
                self._order = self.items[torch.randperm(len(self.items), generator=draw)]
            mine = at[(at // len(self.items)) == epoch] % len(self.items)
            parts.append(self._order[mine])
        return torch.cat(parts)

    def others(self, chosen: Tensor, count: int, draw: torch.Generator) -> Tensor:
        """Return up to count different items that are not among the chosen."""
        rest = self.items[~torch.isin(self.items, chosen)]
        return rest[torch.randperm(len(rest), generator=draw)[:count]]


class MixedOrder:
    """The items of each step, from several groups with weights; each group has its own :class:`Order`.

    Of the first n draws, a group has its share of n, rounded by d'Hondt's method. So every batch has the shares of the
    weights to within one or two items, all items of a group are drawn equally often, and the position in a group after
    n draws needs no state.
    """

    def __init__(self, groups: Sequence[Sequence[int]], weights: Sequence[float], batch: int, seed: int):
        kept = [(items, weight) for items, weight in zip(groups, weights, strict=True) if len(items)]
        self.orders = [Order(items, batch, seed, k) for k, (items, _) in enumerate(kept)]
        self.shares = [weight / sum(weight for _, weight in kept) for _, weight in kept]
        self.items, self.batch, self.seed = torch.cat([order.items for order in self.orders]), batch, seed
        rates = [torch.full((len(o.items),), s / len(o.items)) for o, s in zip(self.orders, self.shares, strict=True)]
        self._rates = torch.cat(rates)

    def counts(self, draws: int) -> list[int]:
        """Return how many of the first draws each group has."""
        # No group has less than its share rounded down; one less is safe from rounding errors.
        counts = [max(0, math.floor(draws * share) - 1) for share in self.shares]
        while sum(counts) < draws:
            k = min(range(len(counts)), key=lambda k: ((counts[k] + 1) / self.shares[k], k))
            counts[k] += 1
        return counts

    def __call__(self, step: int) -> Tensor:
        ends = self.counts(step * self.batch), self.counts((step + 1) * self.batch)
        chosen = torch.cat([order.between(*at) for order, *at in zip(self.orders, *ends, strict=True)])
        return chosen[torch.randperm(self.batch, generator=drawn(self.seed, 7, step))]

    def others(self, chosen: Tensor, count: int, draw: torch.Generator) -> Tensor:
        """Return up to count different items that are not among the chosen, drawn by their weights."""
        left = ~torch.isin(self.items, chosen)
        if not (count := min(count, int(left.sum()))):
            return self.items[:0]
        return self.items[left][torch.multinomial(self._rates[left], count, generator=draw)]


def order_of(items: Sequence[int], batch: int, seed: int, source: Source | None = None) -> Order | MixedOrder:
    """Return the order of a source's items, by its weights if it is a :class:`fmpipe.data.Mixture`."""
    if not isinstance(source, Mixture) or not len(items):
        return Order(items, batch, seed)
    return MixedOrder([[i for i in items if i in part] for part in source.parts], source.weights, batch, seed)


class FlowBatches:
    """z1, sampled from the cached moments, the states of one of its captions, eps, t and the null indicator.

    captions: those to draw from, a list for each item; all if None. source: its weights are used if it is a mixture.
    teacher_inputs: called with the items of z1 and of ends; returns what a teacher needs of them.

    In a batch, ``ends`` is the end of the flow: z1, and for null samples that of another null sample. ``candidates``
    are the batch's latents and ``losses.others`` more; states and mask are those of the candidates then.
    """

    def __init__(
        self,
        latents: Latents,
        states: States | Prompts,
        vae: LatentVAE,
        items: Sequence[int],
        settings: Flow,
        seed: int,
        *,
        batch: int | None = None,
        captions: Sequence[Sequence[str]] | None = None,
        source: Source | None = None,
        teacher_inputs: Callable[[Tensor, Tensor], dict[str, Tensor]] | None = None,
    ):
        self.teacher_inputs = teacher_inputs
        self.latents, self.states, self.vae, self.settings, self.seed = latents, states, vae, settings, seed
        self.order, self.shape = (
            order_of(items, batch or settings.optim.batch, seed, source),
            latents.moments[:1, : vae.channels].shape[1:],
        )
        self.texts = [item["captions"] for item in latents.items] if captions is None else captions

    def captions(self, step: int) -> list[str]:
        return self._pick_captions(self.order(step), drawn(self.seed, 2, step))

    def _pick_captions(self, items: Tensor, draw: torch.Generator) -> list[str]:
        pick = torch.rand(len(items), generator=draw).tolist()
        return [self.texts[i][int(p * len(self.texts[i]))] for i, p in zip(items.tolist(), pick, strict=True)]

    def __call__(self, step: int, rows: Rows = ALL) -> dict[str, Tensor]:
        draw, chosen, losses = drawn(self.seed, 3, step), self.order(step), self.settings.losses
        z1 = self.vae.sample(self.latents.moments[chosen], draw)
        eps = torch.randn(len(chosen), *self.shape, generator=draw)
        t = sample_t(
            losses.t,
            len(chosen),
            draw,
            mean=losses.t_mean,
            std=losses.t_std,
            mode_scale=losses.t_mode_scale,
            shift=losses.t_shift,
        )
        null = null_mask(len(chosen), losses.null, draw)
        ends = z1.clone()
        ends[null] = z1[null].roll(1, 0)
        made = {name: x[rows] for name, x in (("z1", z1), ("ends", ends), ("eps", eps), ("t", t), ("null", null))}
        if self.teacher_inputs is not None:
            reached = chosen.clone()
            reached[null] = chosen[null].roll(1)
            made |= self.teacher_inputs(chosen[rows], reached[rows])
        captions = self.captions(step)
        if losses.others:  # every process has all of them
            others = self.order.others(chosen, losses.others, draw)
            captions += self._pick_captions(others, draw)
            made["candidates"] = torch.cat([z1, self.vae.sample(self.latents.moments[others], draw)])
            made["rows"] = torch.arange(len(z1))[rows]
            rows = ALL
        elif losses.match and rows != ALL:  # a part of the batch is compared with all of its latents
            made["candidates"], made["own"] = z1, torch.arange(len(z1))[rows]
        texts = self.states.rows(captions[rows])
        if self.settings.token_dropout:
            lost = torch.rand(len(captions), texts["mask"].shape[1], generator=draw) < self.settings.token_dropout
            lost[:, 0] = False  # at least one is left: padding is on the right
            texts["mask"] = texts["mask"] & ~lost[rows]
        return made | texts


class PixelBatches:
    """Images in [-1, 1], all kept in memory as bytes, and the noise of their latents.

    augment: rotate each by a multiple of 90°, mirror half of them, and shift by up to ``SHIFT`` pixels, cyclically.
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
        self.rows = {item: row for row, item in enumerate(items)}
        self.order, self.latent, self.seed, self.augment = order_of(items, batch, seed, source), latent, seed, augment

    def __call__(self, step: int, rows: Rows = ALL) -> dict[str, Tensor]:
        draw, chosen = drawn(self.seed, 3, step), self.order(step)
        eps = torch.randn(len(chosen), *self.latent, generator=draw)
        images = self.images[[self.rows[item] for item in chosen.tolist()]]
        if self.augment:
            turns = torch.randint(8, (len(chosen),), generator=draw).tolist()
            shifts = torch.randint(-self.SHIFT, self.SHIFT + 1, (len(chosen), 2), generator=draw).tolist()
            images = torch.stack([_moved(*args) for args in zip(images, turns, shifts, strict=True)])
        return {"pixels": to_pixels(images[rows]), "eps": eps[rows]}


class DiffusionBatches:
    """z1, sampled from the cached moments, noise eps, and integer time steps, uniform in 0 … T - 1."""

    def __init__(
        self,
        latents: Latents,
        vae: LatentVAE,
        items: Sequence[int],
        batch: int,
        seed: int,
        T: int = 1000,  # noqa: N803
        source: Source | None = None,
    ):
        self.latents, self.vae, self.seed, self.T = latents, vae, seed, T
        self.order = order_of(items, batch, seed, source)

    def __call__(self, step: int, rows: Rows = ALL) -> dict[str, Tensor]:
        draw, chosen = drawn(self.seed, 3, step), self.order(step)
        z1 = self.vae.sample(self.latents.moments[chosen], draw)
        eps = torch.randn(z1.shape, generator=draw)
        return {"z1": z1[rows], "eps": eps[rows], "steps": torch.randint(self.T, (len(z1),), generator=draw)[rows]}


def _moved(image: Tensor, turn: int, shift: Sequence[int]) -> Tensor:
    image = image.rot90(turn % 4, (1, 2))
    return (image.flip(2) if turn >= 4 else image).roll(shift, (1, 2))
