"""The pipeline on top of fmkernels: text, z0, flow, image. Light to import: each name brings what it needs."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fmpipe import text, vae
    from fmpipe.pipeline import FlowPipeline
    from fmpipe.scheduler import FlowEulerScheduler
    from fmpipe.vae import LatentVAE

_HOMES = {"FlowPipeline": "pipeline", "FlowEulerScheduler": "scheduler", "LatentVAE": "vae"}
__all__ = ["FlowEulerScheduler", "FlowPipeline", "LatentVAE", "text", "vae"]


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(import_module(f"fmpipe.{_HOMES[name]}"), name)
    if name in __all__:
        return import_module(f"fmpipe.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
