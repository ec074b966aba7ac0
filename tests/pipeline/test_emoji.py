"""The emoji and their captions, the questions of fmpipe evaluate, and the default model itself."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fmpipe import evaluate
from fmpipe.cli import app
from fmpipe.data.emoji import FONT, NEW_TEMPLATES, PER_PHRASE, TEMPLATES, Emoji, captions, say, table, with_article

needs_font = pytest.mark.skipif(not Path(FONT).is_file(), reason="needs the font: apt install fonts-noto-color-emoji")


def test_one_phrase_names_one_picture():
    assert 700 <= len(table()) <= 1100
    for what in ("char", "name"):
        assert len({getattr(entry, what) for entry in table()}) == len(table())
    phrases = Counter(phrase for entry in table() for phrase in (entry.name, *entry.others))
    assert [phrase for phrase, count in phrases.items() if count > 1] == []
    told = Counter(caption for entry in table() for caption in set(captions(entry)))
    assert [caption for caption, count in told.items() if count > 1] == []


@pytest.mark.parametrize("entry", [table()[0], table()[-1]], ids=lambda entry: entry.name)
def test_captions_are_the_name_in_every_template_and_the_other_phrases_in_some(entry):
    made = captions(entry)
    assert made[0] == entry.name
    assert {say(template, entry.name) for template in TEMPLATES} <= set(made)
    for phrase in entry.others:
        assert 2 <= sum(say(template, phrase) in made for template in TEMPLATES) <= PER_PHRASE + 2
    assert len(TEMPLATES) >= 20


@pytest.mark.parametrize(
    ("phrase", "told"),
    [
        ("cat", "a cat"),
        ("apple", "an apple"),
        ("unicorn", "a unicorn"),
        ("hourglass", "a hourglass"),
        ("the sun", "the sun"),
        ("glasses", "glasses"),
        ("octopus", "an octopus"),
        ("a yellow face", "a yellow face"),
    ],
)
def test_articles(phrase, told):
    assert with_article(phrase) == told


def test_what_is_asked_was_never_trained_on():
    trained = {caption.lower() for entry in table() for caption in captions(entry)}
    assert not set(NEW_TEMPLATES) & set(TEMPLATES)
    assert not trained & {question.prompt.lower() for question in evaluate.new_templates()}
    asked = evaluate.paraphrases()
    assert len({question.prompt for question in asked}) == 100
    assert not trained & {question.prompt.lower() for question in asked}


@pytest.mark.parametrize(
    ("text", "said"),
    [("a pet that meows cat\n", "line 1: expected"), ("a pet\tcat\nman's best friend\tdoggo\n", "line 2: .*doggo")],
)
def test_a_wrong_list_of_paraphrases_is_named(text, said, tmp_path):
    (tmp_path / "more.tsv").write_text(text)
    with pytest.raises(ValueError, match=rf"more\.tsv, {said}"):
        evaluate.paraphrases(tmp_path / "more.tsv")


def test_paraphrases_may_name_a_picture_by_itself(tmp_path):
    (tmp_path / "more.tsv").write_text(f"somebody happy\t{table()[0].char}\n", encoding="utf-8")
    assert evaluate.paraphrases(tmp_path / "more.tsv") == [("somebody happy", 0)]


def test_emoji_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no font at .*\.ttf; run: apt install fonts-noto-color-emoji"):
        Emoji(font=tmp_path / "none.ttf")
    with pytest.raises(ValueError, match="size must be a whole number of at least 16, got 8"):
        Emoji(8)


@needs_font
def test_pictures_are_drawn_on_white_and_told_apart():
    source = Emoji(32)
    images = torch.stack([source[i].image for i in range(0, len(source), 8)])
    assert images.shape[1:] == (3, 32, 32)
    assert (images[:, :, 0, 0] > 250).float().mean() > 0.9  # a few scenes fill their square
    assert torch.pdist(images.float().flatten(1)).min() > 100
    assert Emoji(32).digest == source.digest != Emoji(48).digest


@pytest.fixture(scope="module")
def default():
    from fmpipe import FlowPipeline

    pipe = FlowPipeline.from_pretrained("default")
    pipe.set_progress_bar_config(disable=True)
    return pipe


COLOURS = {"a red heart": (1, 0, 0), "a blue heart": (0, 0, 1), "a green heart": (0, 1, 0), "a red apple": (1, 0, 0)}


def test_the_default_model_draws_what_it_is_asked(default):
    noise = [torch.Generator().manual_seed(k) for k in range(len(COLOURS))]
    images = default(list(COLOURS), 10, generator=noise, output_type="pt").images
    for image, (prompt, colour) in zip(images, COLOURS.items(), strict=True):
        shown = image[:, image.amin(0) < 0.8].mean(1)  # what is not white
        assert shown.argmax() == colour.index(1), f"{prompt}: {shown}"
        assert image[:, :2].mean() > 0.9  # on white


def test_the_default_model_is_small(default):
    folder = Path(evaluate.__file__).parent / "assets"
    assert sum(file.stat().st_size for file in folder.rglob("*")) < 25e6
    assert {file.suffix for file in folder.rglob("*") if file.is_file()} == {".json", ".safetensors"}
    assert {part.dtype for part in (default.text_head, default.velocity_net, default.vae)} == {torch.float32}


@needs_font
@pytest.mark.slow
def test_check_finds_a_doubled_scale(default, tmp_path):
    """On pictures that it was trained on, and the saved copy knows. (That the default passes: make evaluate.)"""
    default.save_pretrained(tmp_path / "copy")
    config = tmp_path / "copy" / "vae" / "config.json"
    values = json.loads(config.read_text())
    config.write_text(json.dumps(values | {"scaling_factor": 2 * values["scaling_factor"]}))
    result = CliRunner().invoke(app, ["check", str(tmp_path / "copy"), "--n", "4", "--out", str(tmp_path / "out")])
    findings = json.loads((tmp_path / "out" / "check.json").read_text())["findings"]
    assert sum(f["status"] != "skipped" for f in findings) == 18
    assert result.exit_code == 1, result.output
    assert (findings[0]["name"], findings[0]["causes"]) == ("latent_scale", [])
    assert re.search(r"Divide scaling_factor by (1\.[6-9]|2)", findings[0]["advice"])
    assert all(f["causes"] for f in findings[1:] if f["status"] == "fail")
    said = " ".join(result.output.split())
    assert f"Begin with: {findings[0]['title']}. It would explain: " in said


@needs_font
@pytest.mark.slow
def test_evaluate_tells_right_from_wrong(default, monkeypatch, tmp_path):
    """A few questions only: the floors are fmpipe evaluate's to ask for."""
    monkeypatch.setattr(evaluate, "training_captions", lambda **_: [evaluate.Question("a cat", 0)])
    rows = {entry.name: row for row, entry in enumerate(table())}
    monkeypatch.setattr(evaluate, "new_templates", lambda **_: [evaluate.Question("a red heart", rows["red heart"])])
    monkeypatch.setattr(evaluate, "paraphrases", lambda path: [evaluate.Question("a blue heart", rows["red heart"])])
    result = CliRunner().invoke(app, ["evaluate", "--steps", "8", "--out", str(tmp_path / "e.json")])
    assert result.exit_code == 1, result.output
    report = json.loads((tmp_path / "e.json").read_text())
    found = {figure["name"]: figure["value"] for figure in report["figures"]}
    assert found["training captions: right"] == 0
    assert found["new templates: right"] == 1
    assert (found["paraphrases: right"], found["paraphrases: right or same subgroup"]) == (0, 1)
    assert [answer["right"] for answer in report["answers"]] == [False, True, False]
