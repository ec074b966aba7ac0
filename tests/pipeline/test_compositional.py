"""The compositional score: the renderer is right in every column, and each confusion lowers its own column alone."""

import random
from collections import Counter
from itertools import islice, product

import pytest
import torch
import torch.nn.functional as F

from fmpipe.compositional import columns, find, judged
from fmpipe.data import Scenes
from fmpipe.data.scenes import KINDS, SHAPES, captions_of, draw, evaluation_prompts, held_out, prompts, scene, text_of
from fmpipe.data.shapes import COLOURS

pytestmark = pytest.mark.usefixtures("one_thread")
EVERY = [prompt for kind in KINDS for prompt in prompts(kind)]
SOME = [prompt for kind in KINDS for prompt in random.Random(0).sample(prompts(kind), min(24, len(prompts(kind))))]
LATER = {name: list(values)[(k + 1) % len(values)] for values in (SHAPES, COLOURS) for k, name in enumerate(values)}


def score(asked, scenes, size=32, spoil=lambda images: images, shades=True):
    """The columns of scenes, drawn as an answer to prompts."""
    vary = random.Random(1)
    images = torch.stack([draw(things, size, vary if shades else None) for things in scenes]) / 255
    found = find(spoil(images))
    answers = [judged(prompt, some) for prompt, some in zip(asked, found, strict=True)]
    return columns(answers), answers


def coloured(prompt, vary):
    """A scene of the prompt, in which objects without a colour have any, all different where there are two."""
    things, colours = scene(prompt, vary), list(COLOURS)
    vary.shuffle(colours)
    free = [colour is None for _, colour in prompt.wanted]
    return [t._replace(colour=colours[k]) if free[k] else t for k, t in enumerate(things)]


@pytest.mark.parametrize("size", [32, 24, 16])
def test_the_renderer_is_right_in_every_column(size):
    asked = EVERY if size == 32 else SOME
    vary = random.Random(size)
    table, answers = score(asked, [coloured(prompt, vary) for prompt in asked], size)
    wrong = [answer for answer in answers if not answer["right"]]
    assert not wrong, wrong[:3]
    assert [(column.name, column.own, column.judged, column.right) for column in table] == [
        (kind, 1.0, count, 1.0) for kind, count in Counter(prompt.kind for prompt in asked).items()
    ]


# What a model may confuse, in every scene where it can: the scene with the confusion, None where it does not apply.


def swapped_colours(things, vary):
    if len({t.colour for t in things}) == len(things) == 2:
        return [things[0]._replace(colour=things[1].colour), things[1]._replace(colour=things[0].colour)]
    return None


def one_too_many(things, vary):
    if len(things) == 4:  # no place is free: the five of a die
        corners = [t._replace(x=0.2 + 0.6 * (t.x > 0.5), y=0.2 + 0.6 * (t.y > 0.5), radius=0.12) for t in things]
        return [*corners, corners[0]._replace(x=0.5, y=0.5)]
    free = product((0.14, 0.5, 0.86), repeat=2)
    x, y = max(free, key=lambda at: min((t.x - at[0]) ** 2 + (t.y - at[1]) ** 2 for t in things))
    return [*things, things[-1]._replace(x=x, y=y, radius=0.12)]


def one_too_few(things, vary):
    return things[1:] if len({t.shape for t in things}) == 1 < len(things) else None


def mirrored(things, vary):
    return [t._replace(x=1 - t.x, y=1 - t.y) for t in things]


def missing_object(things, vary):
    return [vary.choice(things)] if len({t.shape for t in things}) == 2 else None


def wrong_shape(things, vary):
    alike = len({t.shape for t in things}) == 1
    return [t._replace(shape=LATER[t.shape]) for t in things] if alike else None


def wrong_shape_of_one(things, vary):
    other = next(shape for shape in SHAPES if shape not in {t.shape for t in things})
    return [things[0]._replace(shape=other), things[1]] if len({t.shape for t in things}) == 2 else None


def wrong_colour(things, vary):
    others = [colour for colour in COLOURS if colour not in {t.colour for t in things}]
    return [t._replace(colour=colour) for t, colour in zip(things, vary.sample(others, len(things)), strict=True)]


@pytest.mark.parametrize(
    ("confused", "lowered"),
    [
        (swapped_colours, "colour binding"),
        (one_too_few, "counting"),
        (one_too_many, "counting"),
        (mirrored, "position"),
        (missing_object, "two objects"),
        (wrong_shape, "single object"),
        (wrong_shape_of_one, "two objects"),
        (wrong_colour, "colours"),
    ],
)
@pytest.mark.parametrize("size", [32, 20])
def test_a_confusion_lowers_its_own_column_alone(confused, lowered, size):
    """Planted in every scene of every kind: the column falls to 0, and no other is below 1 where it is judged."""
    vary = random.Random(2)
    right = [coloured(prompt, vary) for prompt in SOME]
    table, _ = score(SOME, [confused(things, vary) or things for things in right], size)
    assert {column.name: column.own for column in table if column.own not in (1, None)} == {lowered: 0.0}
    assert next(column for column in table if column.name == lowered).right == 0


def test_a_part_of_the_confusions_lowers_a_column_by_as_much():
    asked = evaluation_prompts("colour binding")[:20]
    scenes = [scene(prompt) for prompt in asked]
    scenes[:5] = [swapped_colours(things, None) for things in scenes[:5]]
    table, answers = score(asked, scenes)
    assert [(column.own, column.judged, column.right) for column in table] == [(0.75, 20, 0.75)]
    assert [answer["right"] for answer in answers] == [False] * 5 + [True] * 15


def test_what_cannot_be_judged_is_not_wrong_but_the_prompt_is():
    asked = prompts("position")[:4]
    table, _ = score(asked, [scene(prompt)[:1] for prompt in asked])
    assert [(column.own, column.judged, column.asked, column.right) for column in table] == [(None, 0, 4, 0.0)]


def blurred(images, sigma, noise, seed=0):
    reach = torch.arange(-4, 5.0)
    kernel = torch.exp(-reach.square() / 2 / sigma**2)
    kernel = (kernel / kernel.sum()).expand(3, 1, 1, -1)
    images = F.conv2d(F.pad(images, (4,) * 4, value=1.0), kernel, groups=3)
    images = F.conv2d(images, kernel.mT, groups=3)
    draws = torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
    return (images + noise * draws).clamp(0, 1)


@pytest.mark.parametrize(("size", "sigma"), [(32, 1.2), (24, 0.9), (16, 0.6)])
def test_blur_and_noise_of_a_decoded_image_change_nothing(size, sigma):
    vary = random.Random(3)
    scenes = [coloured(prompt, vary) for prompt in SOME]
    table, _ = score(SOME, scenes, size, lambda images: blurred(images, sigma, noise=0.05))
    assert {column.name: column.right for column in table if column.right < 1} == {}
    table, _ = score(SOME, [mirrored(things, vary) for things in scenes], size, lambda x: blurred(x, sigma, noise=0.05))
    assert {column.name: column.right for column in table if column.right < 1} == {"position": 0}


def test_an_average_of_images_and_an_empty_one_show_nothing():
    """What a model draws that does not choose: every object at half its strength."""
    beside, above = (p for p in prompts("position") if p.text in ("a circle left of a ring", "a circle above a ring"))
    one, two = draw(scene(beside), 32) / 255, draw(scene(above), 32) / 255
    assert find(torch.stack([(one + 2) / 3, torch.ones_like(one), (one + two) / 2])) == [[], [], []]


def test_what_is_found_is_where_it_was_drawn():
    prompt = next(p for p in prompts("colour binding") if p.text == "a red circle and a blue ring")
    things = scene(prompt)
    (found,) = find(draw(things, 32)[None] / 255)
    assert sorted((f.shape, f.colour) for f in found) == [("circle", "red"), ("ring", "blue")]
    for thing, some in zip(things, sorted(found, key=lambda f: f.x), strict=True):
        assert abs(thing.x - some.x) + abs(thing.y - some.y) < 0.03


@pytest.mark.parametrize("images", [torch.zeros(3, 32, 32), torch.zeros(1, 1, 32, 32), torch.zeros(1, 3, 32, 16)])
def test_images_of_another_shape_are_refused(images):
    with pytest.raises(ValueError, match=r"images must be \(B, 3, S, S\)"):
        find(images)


def test_prompts_are_grammatical_and_unique():
    texts = [prompt.text for prompt in EVERY]
    assert len(set(texts)) == len(texts) == 5 + 20 + 15 + 40 + 1120 + 80
    assert {"an orange ring", "four crosses", "a circle left of a square"} <= set(texts)
    assert text_of((("ring", "orange"), ("cross", "cyan"))) == "an orange ring and a cyan cross"


def test_held_out_pairs_are_never_in_the_data():
    """In either order, and in no caption; every other prompt can be drawn, and evaluation asks for all that are."""
    source = Scenes(4000, 16)
    some = [source.prompt(i) for i in range(len(source))]
    assert not any(map(held_out, some))
    out = {frozenset(prompt.wanted) for prompt in EVERY if held_out(prompt)}
    assert 0.08 < len(out) / 560 < 0.17
    assert not {frozenset(prompt.wanted) for prompt in some if prompt.kind == "colour binding"} & out
    drawn = {prompt.text for prompt in some}
    assert drawn == {prompt.text for prompt in EVERY if not held_out(prompt)}
    assert {frozenset(prompt.wanted) for prompt in evaluation_prompts("colour binding")} == out


def test_an_item_depends_on_its_number_and_the_seed_alone():
    few, many, other = Scenes(8, 16), Scenes(400, 16), Scenes(8, 16, seed=1)
    for a, b in islice(zip(few, many, strict=False), 8):
        assert torch.equal(a.image, b.image)
        assert a[1:] == b[1:]
    assert not torch.equal(few[4].image, other[4].image)
    assert len({few.digest, many.digest, other.digest}) == 3
    assert "two objects" in {many[i].labels["kind"] for i in range(10)}
    with pytest.raises(ValueError, match="size must be a whole number of at least 16, got 8"):
        Scenes(1, 8)


def test_all_captions_of_a_scene_are_true():
    """Also of the kinds with other captions than their prompt, as far as these are prompts themselves."""
    known = {prompt.text: prompt for prompt in EVERY}
    said = [(known[text], scene(p)) for p in SOME for text in captions_of(p) if text in known and text != p.text]
    assert {asked.kind for asked, _ in said} == {"position"}
    assert all(answer["right"] for answer in score(*zip(*said, strict=True))[1])
