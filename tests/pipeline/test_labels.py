"""Labels of image grids in any script, and what happens to those that are too long or have no font."""

import pytest
from PIL import Image

from fmpipe import labels
from fmpipe.image_grid import LABEL, image_grid
from fmpipe.labels import draw_label


def drawn(text, width=200, size=13):
    image = Image.new("RGB", (240, 20), "white")
    draw_label(image, (0, 0), text, width, size)
    return image


def ink(image):
    """The right edge of what is drawn."""
    box = Image.eval(image.convert("L"), lambda v: 255 - v).getbbox()
    return box[2] if box else 0


def test_a_label_fits_its_width_and_ends_in_an_ellipsis():
    long = "a very long caption that goes on and on and on"
    assert 60 < ink(drawn(long, 100)) <= 102
    assert drawn("a cat", 100).tobytes() == drawn("a\n  cat", 100).tobytes()
    assert drawn(long, 100).tobytes() != drawn("a very long", 100).tobytes()
    assert ink(drawn("", 100)) == 0


def needs(char):
    """Skip where no installed font has the character."""
    found = any(labels._has(name, char) for name in labels.FONTS)
    return pytest.mark.skipif(not found, reason=f"no font with {char} is installed: apt install fonts-noto-cjk")


@pytest.mark.parametrize(
    ("text", "other"),
    [
        pytest.param("猫", "狗", marks=needs("猫")),
        pytest.param("Ж", "Я", marks=needs("Ж")),
        pytest.param("🐱", "🎉", marks=needs("🐱")),
    ],
)
def test_characters_of_any_script_differ(text, other):
    """A missing glyph would be the same box for both."""
    assert ink(drawn(text)) > 5
    assert drawn(text).tobytes() != drawn(other).tobytes()


def test_no_font_is_said_once_with_the_command(monkeypatch):
    monkeypatch.setattr(labels, "_has", lambda name, char: char.isascii())
    labels._font_for.cache_clear()
    with pytest.warns(UserWarning, match="apt install fonts-noto-cjk") as said:
        drawn("猫狗鸟")
    assert len({str(warning.message) for warning in said}) == 1
    labels._font_for.cache_clear()


def test_a_grid_has_a_line_for_every_caption():
    images = [Image.new("RGB", (64, 64), "red")] * 5
    made = image_grid(images, ["一", "two", "три", "4", "five"], columns=2)
    assert made.size == (256, 3 * (128 + LABEL))
