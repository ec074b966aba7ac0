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
from fmpipe.data.emoji import (
    FONT,
    NEW_TEMPLATES,
    PER_PHRASE,
    TEMPLATES,
    Emoji,
    captions,
    categories,
    general_captions,
    own_captions,
    rows_of,
    say,
    table,
    with_article,
)

needs_font = pytest.mark.skipif(not Path(FONT).is_file(), reason="needs the font: apt install fonts-noto-color-emoji")


def test_one_phrase_names_one_picture():
    assert 700 <= len(table()) <= 1100
    for what in ("char", "name"):
        assert len({getattr(entry, what) for entry in table()}) == len(table())
    phrases = Counter(phrase for entry in table() for phrase in (entry.name, *entry.others))
    assert [phrase for phrase, count in phrases.items() if count > 1] == []
    told = Counter(caption for entry in table() for caption in set(own_captions(entry)))
    assert [caption for caption, count in told.items() if count > 1] == []
    assert not told.keys() & {caption for entry in table() for caption in general_captions(entry)}


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
    asked = [question for group in ("paraphrase", "combination", "none") for question in evaluate.prompts(group)]
    assert len({question.prompt for question in asked}) == len(asked) > 300
    known = trained & {question.prompt.lower() for question in asked}
    assert not known, known
    assert {question.half for question in asked} == {"tune", "unseen"}
    assert [question.prompt for question in asked if not question.rows] == [q.prompt for q in evaluate.prompts("none")]


def test_categories_have_many_pictures_and_share_no_phrase_with_one():
    own = {phrase for entry in table() for phrase in (entry.name, *entry.others)}
    shared = [phrase for words, _ in categories() for phrase in words]
    assert len(set(shared)) == len(shared)
    assert not own & set(shared)
    assert min(len(rows) for _, rows in categories()) > 1
    rows = dict(zip(shared, (rows for words, rows in categories() for _ in words), strict=True))
    cat, car = (next(k for k, e in enumerate(table()) if e.name == name) for name in ("cat", "car"))
    assert cat in rows["animal"]
    assert car not in rows["animal"]
    assert "an animal" in general_captions(table()[cat])


def test_rows_are_given_by_name_emoji_or_subgroup():
    name, char = table()[0].name, table()[1].char
    subgroup = rows_of(["@cat-face"])
    assert rows_of([name, char]) == {0, 1}
    assert len(subgroup) == 6
    assert rows_of(["@cat-face", f"-{table()[min(subgroup)].name}"]) == subgroup - {min(subgroup)}
    with pytest.raises(KeyError, match="doggo"):
        rows_of(["doggo"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a pet that meows\tcat\nman's best friend\tdog, doggo\n", "line 2: .*no image 'doggo'"),
        ("a bird\t@bird\n", "line 1: .*'@bird'"),
    ],
)
def test_a_wrong_list_of_prompts_is_named(text, said, tmp_path):
    (tmp_path / "more.tsv").write_text(text)
    with pytest.raises(ValueError, match=rf"more\.tsv, {said}"):
        evaluate.own_prompts(tmp_path / "more.tsv")


def test_own_prompts_accept_several_pictures_or_none(tmp_path):
    (tmp_path / "more.tsv").write_text(f"someone happy\t{table()[0].char}, {table()[1].name}\n\nx\n", encoding="utf-8")
    assert evaluate.own_prompts(tmp_path / "more.tsv") == [("someone happy", {0, 1}, ""), ("x", frozenset(), "")]
    (tmp_path / "none.tsv").write_text("\n")
    with pytest.raises(ValueError, match=r"none\.tsv contains no prompts"):
        evaluate.own_prompts(tmp_path / "none.tsv")


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
    assert {file.suffix for file in folder.rglob("*") if file.is_file()} == {".json", ".jsonl", ".md", ".safetensors"}
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
    assert sum(f["status"] != "skipped" for f in findings) == 19
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
    rows = {entry.name: frozenset([row]) for row, entry in enumerate(table())}
    red = evaluate.Question("a blue heart", rows["red heart"])
    monkeypatch.setattr(evaluate, "training_captions", lambda **_: [evaluate.Question("a cat", frozenset([0]))])
    monkeypatch.setattr(evaluate, "new_templates", lambda **_: [evaluate.Question("a red heart", rows["red heart"])])
    monkeypatch.setattr(evaluate, "prompts", lambda group: [red] if group == "paraphrase" else [red, red])
    monkeypatch.setattr(evaluate, "WAYS", (("a red heart", "a red heart"),))
    (tmp_path / "own.tsv").write_text("a blue heart\tblue heart, red heart\n")
    options = ["--paraphrases", str(tmp_path / "own.tsv"), "--sheet", str(tmp_path / "sheet.png")]
    result = CliRunner().invoke(app, ["evaluate", "--steps", "8", "--out", str(tmp_path / "e.json"), *options])
    assert result.exit_code == 1, result.output
    report = json.loads((tmp_path / "e.json").read_text())
    found = {figure["name"]: figure["value"] for figure in report["figures"]}
    assert found["training captions: right"] == 0
    assert found["new templates: right"] == 1
    assert (found["paraphrases: right"], found["paraphrases: right or same subgroup"]) == (0, 1)
    assert found["your prompts: right"] == 1
    assert found["general words: different pictures from 8 seeds"] == 1
    assert found["interpolation: blurred of 8 pictures, mean over pairs"] == 0
    assert len(report["answers"]) == 3 + 2 * 8 + 2 + 2 + 1
    assert (tmp_path / "sheet.png").stat().st_size > 10_000


@needs_font
def test_a_mixture_of_two_pictures_is_blurred():
    source = Emoji()
    truth = torch.stack([source[k].image for k in range(0, 600, 100)]) / 127.5 - 1
    judge = evaluate.Judge(truth)
    pictures = truth / 2 + 0.5
    question = evaluate.Question("", frozenset([2]))
    (sharp,) = judge((pictures[2:3] + 0.01).clamp(0, 1), [question])
    (mixed,) = judge((pictures[2:3] + pictures[4:5]) / 2, [question])
    assert (sharp["blurred"], mixed["blurred"]) == (False, True)
