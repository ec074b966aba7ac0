"""Several pictures on one sheet, each over its caption."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

LABEL = 16  # pixels of a caption's line


def sheet(images: "Sequence[Image]", captions: Sequence[str], columns: int = 8, side: int = 128) -> "Image":
    """Rows of ``columns`` pictures, side pixels wide at least; captions are cut where their picture ends."""
    from PIL import Image, ImageDraw

    side = max(side, images[0].width)
    columns, rows = min(columns, len(images)), -(-len(images) // columns)
    made = Image.new("RGB", (columns * side, rows * (side + LABEL)), "white")
    write = ImageDraw.Draw(made)
    for k, (image, caption) in enumerate(zip(images, captions, strict=True)):
        x, y = k % columns * side, k // columns * (side + LABEL)
        made.paste(image.resize((side, side), Image.Resampling.NEAREST), (x, y))
        while caption and write.textlength(caption) > side - 4:
            caption = caption[:-1]
        write.text((x + 2, y + side + 1), caption, fill="black")
    return made


def to_image(pixels: "Tensor") -> "Image":
    """A picture of (3, H, W) in [-1, 1]; what lies outside is cut off."""
    from PIL import Image

    return Image.fromarray(((pixels.clamp(-1, 1) + 1) * 127.5).round().byte().permute(1, 2, 0).cpu().numpy())
