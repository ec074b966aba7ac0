"""Sources that need no data from users: drawn shapes, scenes with several of them, and the emoji of a free font."""

from fmpipe.data.scenes import Scenes
from fmpipe.data.shapes import Shapes
from fmpipe.data.source import Source

REBUILT = ("shapes", "scenes", "emoji")


def rebuilt(source: str, size: int, *, count: int = 2048, seed: int = 0, font: str | None = None) -> Source:
    """Return a source of :data:`REBUILT`. FileNotFoundError, with the command, if the emoji font is missing."""
    if source in ("shapes", "scenes"):
        return {"shapes": Shapes, "scenes": Scenes}[source](count, size, seed)
    from fmpipe.data.emoji import FONT, Emoji

    return Emoji(size, font or FONT)
