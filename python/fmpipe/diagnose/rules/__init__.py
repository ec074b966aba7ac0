"""Every rule, by topic. Importing this package registers them; :data:`fmpipe.diagnose.engine.CAUSES` orders them."""

from fmpipe.diagnose.rules import autoencoder, course, data, field, sampling, training

__all__ = ["autoencoder", "course", "data", "field", "sampling", "training"]
