"""Text encoders: prompts to token states. Light to import: transformers comes with the first encoder asked for."""

from importlib import import_module
from typing import TYPE_CHECKING

from fmpipe.text.protocol import TextEncoder, check_prompts

if TYPE_CHECKING:
    from fmpipe.text.encoders import CLIPText, FrozenText, MetaQueryText, MiniLMText, T5Text, load_text_encoder

__all__ = [
    "CLIPText",
    "FrozenText",
    "MetaQueryText",
    "MiniLMText",
    "T5Text",
    "TextEncoder",
    "check_prompts",
    "load_text_encoder",
]


def __getattr__(name: str):
    """One name brings all classes: diffusers loads a pipeline's components only from modules already imported."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("fmpipe.text.encoders"), name)


def __dir__() -> list[str]:
    return __all__
