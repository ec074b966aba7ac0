"""Every rule, by topic. Importing this package registers them; :data:`fmpipe.diagnose.engine.CAUSES` orders them."""

from fmpipe.diagnose.rules import autoencoder, data, field, loss_curve, sampling, training

__all__ = ["autoencoder", "data", "field", "loss_curve", "sampling", "training"]
