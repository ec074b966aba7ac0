"""Several sources as one, mixed by weight."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate

from fmpipe.data.source import Item, Source, digest_of, keys_of


class Mixture:
    """The items of several sources, one source after the other; keys are ``<name>/<key>``.

    parts: the indices of each source's items. weights: the share of each source in training, in proportion; an item's
    is its source's weight divided by the number of the source's items. ValueError for weights that are not positive.
    """

    def __init__(self, sources: Mapping[str, Source], weights: Sequence[float]):
        if len(weights) != len(sources) or not all(math.isfinite(w) and w > 0 for w in weights):
            raise ValueError(f"Mixture: expected {len(sources)} positive weights, got {list(weights)}")
        self.sources, self.weights = list(sources.values()), list(weights)
        self._ends = list(accumulate(map(len, self.sources)))
        self.parts = [range(end - len(source), end) for source, end in zip(self.sources, self._ends, strict=True)]
        self.keys = [f"{name}/{key}" for name, source in sources.items() for key in keys_of(source)]

    @cached_property
    def digest(self) -> str:
        """Of the sources' digests and names, not of the weights: those change no item."""
        return digest_of("Mixture", self.keys, [source.digest for source in self.sources])

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, i: int) -> Item:
        i = range(len(self))[i]
        part = bisect_right(self._ends, i)
        return self.sources[part][i - self.parts[part].start]._replace(key=self.keys[i])
