"""One line of text in any script on a PIL image: every character in the first installed font that has it."""

import warnings
from functools import cache, lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

# Tried in this order, in the system's font folders; after them, every other font that is installed.
FONTS = (
    "DejaVuSans.ttf",
    "NotoSansCJK-Regular.ttc",
    "wqy-zenhei.ttc",
    "PingFang.ttc",
    "msyh.ttc",
    "NotoColorEmoji.ttf",
)
STRIKE = 109  # the one size of a bitmap emoji font
INVISIBLE = "\ufe0e\ufe0f\u200d"  # variation selectors and joiners: without shaping they would be drawn as boxes


def draw_label(image: "Image", at: tuple[int, int], text: str, width: int, size: int) -> None:
    """Draw text in black at (x, y), ``size`` pixels high; an ellipsis replaces what is wider than ``width`` pixels."""
    text = "".join(c for c in " ".join(text.split()) if c not in INVISIBLE)
    text = text[: width // 2]  # no character is narrower than two pixels
    if _width(text, size) > width:
        low, high = 0, len(text)
        while low < high - 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _width(f"{text[:middle].rstrip()}…", size) <= width else (low, middle)
        text = f"{text[:low].rstrip()}…"
    x, y = at
    for run in _runs(text, size):
        image.paste(run, (x, y), run)
        x += run.width


def _runs(text: str, size: int) -> list["Image"]:
    """Return the text as transparent images, one for each stretch of characters in the same font."""
    return [_drawn("".join(part), font, size) for font, part in groupby(text, _font_for)]


def _width(text: str, size: int) -> int:
    return sum(run.width for run in _runs(text, size))


@lru_cache(maxsize=512)
def _drawn(text: str, name: str, size: int) -> "Image":
    from PIL import Image, ImageDraw

    font = _font(name, size)
    if font is None:  # bitmaps of one size: draw them there, then shrink
        font = _font(name, STRIKE)
        box = Image.new("RGBA", (max(1, round(font.getlength(text))), round(STRIKE * 1.2)), (0, 0, 0, 0))
        ImageDraw.Draw(box).text((0, 0), text, font=font, embedded_color=True)
        return box.resize((max(1, box.width * size // box.height), size), Image.Resampling.LANCZOS)
    # One baseline for all fonts: anchor "ls" is the left end of it.
    box = Image.new("RGBA", (max(1, round(font.getlength(text))), round(size * 1.2)), (0, 0, 0, 0))
    ImageDraw.Draw(box).text((0, round(size * 0.9)), text, font=font, fill="black", anchor="ls")
    return box


@cache
def _font(name: str, size: int) -> "FreeTypeFont | None":
    """Return the font in that size, None if there is no such font or it has only bitmaps of another size."""
    from PIL import ImageFont

    try:
        return ImageFont.truetype(name, size) if name else ImageFont.load_default(size)
    except OSError:
        return None


@cache
def _font_for(char: str) -> str:
    """Return the file of the first font that has the character; "" for Pillow's own font, also if there is none."""
    if char.isspace() or _has("", char):
        return ""
    for name in FONTS:
        if _has(name, char):
            return name
    try:
        from matplotlib.font_manager import findSystemFonts

        others = sorted(findSystemFonts())
    except ImportError:
        others = []
    for name in others:
        if _has(name, char):
            return name
    warnings.warn(
        "no installed font has some of the characters in the labels, which show boxes instead; on Debian, run: "
        "apt install fonts-noto-cjk fonts-noto-core fonts-noto-color-emoji",
        stacklevel=2,
    )
    return ""


def _has(name: str, char: str) -> bool:
    """Tell whether a font has a glyph for the character: it then differs from that of an unassigned code point."""
    font = _font(name, 16) or _font(name, STRIKE)
    if font is None:
        return False
    glyph, missing = (font.getmask(c) for c in (char, "\U0010fffe"))
    return bool(glyph.getbbox()) and (glyph.size != missing.size or bytes(glyph) != bytes(missing))
