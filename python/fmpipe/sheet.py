"""Several images on one sheet, each above its caption."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fmpipe.labels import draw_label

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

LABEL = 18  # pixels of a caption's line
TEXT = 13  # pixels of its characters


def sheet(images: "Sequence[Image]", captions: Sequence[str], columns: int = 8, side: int = 128) -> "Image":
    """Return rows of ``columns`` images, at least ``side`` pixels wide; long captions end in an ellipsis."""
    from PIL import Image

    side = max(side, images[0].width)
    columns, rows = min(columns, len(images)), -(-len(images) // columns)
    made = Image.new("RGB", (columns * side, rows * (side + LABEL)), "white")
    for k, (image, caption) in enumerate(zip(images, captions, strict=True)):
        x, y = k % columns * side, k // columns * (side + LABEL)
        made.paste(image.resize((side, side), Image.Resampling.NEAREST), (x, y))
        draw_label(made, (x + 2, y + side + 1), caption, side - 4, TEXT)
    return made


def to_image(pixels: "Tensor") -> "Image":
    """Return (3, H, W) in [-1, 1] as an image; values outside are clipped."""
    from PIL import Image

    return Image.fromarray(((pixels.clamp(-1, 1) + 1) * 127.5).round().byte().permute(1, 2, 0).cpu().numpy())
