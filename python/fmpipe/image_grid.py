"""Several images in one grid, each above its caption."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fmpipe.labels import draw_label

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

BEST = "#e0218a"  # of the frame around a marked image; rare in photographs and emoji
LABEL = 18  # pixels of a caption's line
TEXT = 13  # pixels of its characters


def image_grid(
    images: "Sequence[Image]", captions: Sequence[str], columns: int = 8, side: int = 128, mark: int | None = None
) -> "Image":
    """Return rows of ``columns`` images, at least ``side`` pixels wide, each above its caption.

    Captions may have several lines, all of them equally many; long lines end in an ellipsis. mark: the number of the
    image that gets a frame.
    """
    from PIL import Image, ImageDraw

    side = max(side, images[0].width)
    columns, rows = min(columns, len(images)), -(-len(images) // columns)
    height = side + LABEL * len(captions[0].split("\n"))
    made = Image.new("RGB", (columns * side, rows * height), "white")
    for k, (image, caption) in enumerate(zip(images, captions, strict=True)):
        x, y = k % columns * side, k // columns * height
        made.paste(image.resize((side, side), Image.Resampling.NEAREST), (x, y))
        for i, line in enumerate(caption.split("\n")):
            draw_label(made, (x + 2, y + side + 1 + i * LABEL), line, side - 4, TEXT)
        if k == mark:
            ImageDraw.Draw(made).rectangle((x, y, x + side - 1, y + side - 1), outline=BEST, width=4)
    return made


def to_image(pixels: "Tensor") -> "Image":
    """Return (3, H, W) in [-1, 1] as an image; values outside are clipped."""
    from PIL import Image

    return Image.fromarray(((pixels.clamp(-1, 1) + 1) * 127.5).round().byte().permute(1, 2, 0).cpu().numpy())
