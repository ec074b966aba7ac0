"""Captioned pictures to train on, and what the frozen parts make of them, kept on disk.

A source has a length, items and a digest: :class:`Shapes` draws its own, :class:`Folder` and :class:`Shards` read a
user's. :func:`split` parts train from validation. :func:`cache_latents` and :func:`cache_states` run the autoencoder
and the text encoder once.
"""

from fmpipe.data.cache import Latents, States, cache_latents, cache_states
from fmpipe.data.folder import Folder, Shards
from fmpipe.data.shapes import Shapes, dominant_colour
from fmpipe.data.source import Item, Source, split, to_pixels

__all__ = [
    "Folder",
    "Item",
    "Latents",
    "Shapes",
    "Shards",
    "Source",
    "States",
    "cache_latents",
    "cache_states",
    "dominant_colour",
    "split",
    "to_pixels",
]
