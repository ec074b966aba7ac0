"""Captioned images for training, and caches of what frozen networks compute from them.

A source has a length, items and a digest: :class:`Shapes` and :class:`Scenes` draw images, :class:`Folder`,
:class:`Shards` and :class:`HF` read those of users, :class:`LatentFiles` reads precomputed latents, and
:class:`Mixture` combines sources.
:func:`split` divides items into training and validation. :func:`cache_latents` and :func:`cache_states` run the
autoencoder and the text encoder once; :func:`load_latents` reads what another program has computed.
"""

from fmpipe.data.cache import Latents, States, cache_latents, cache_states
from fmpipe.data.folder import Folder
from fmpipe.data.hf import HF
from fmpipe.data.latents import LatentFiles, load_latents
from fmpipe.data.mixture import Mixture
from fmpipe.data.scenes import Scenes
from fmpipe.data.shapes import Shapes, dominant_colour
from fmpipe.data.shards import Shards
from fmpipe.data.source import Item, Source, split, to_pixels

__all__ = [
    "HF",
    "Folder",
    "Item",
    "LatentFiles",
    "Latents",
    "Mixture",
    "Scenes",
    "Shapes",
    "Shards",
    "Source",
    "States",
    "cache_latents",
    "cache_states",
    "dominant_colour",
    "load_latents",
    "split",
    "to_pixels",
]
