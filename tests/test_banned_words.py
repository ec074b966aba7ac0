"""``make lint`` rejects the words that readers stumbled over."""

import subprocess
import sys
from pathlib import Path

import pytest
from banned_words import INSTEAD, found

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("The command that mends it.", ["mends"]),
        ("Recommend amendments.", []),
        ("# a sum that knows\n# no threads", ["knows\n# no"]),
        ('"Whoever " "calls; costs "\n    "one warning"', ["Whoever", 'costs "\n    "one warning']),
        ("It stands on the CPU.", ["stands"]),
        ("`x` stands for a tensor, and y stands in for one.", []),
        ("in a process of its own", ["a process of its own"]),
        ("with parameters of its own.", ["of its own"]),
        ("the latent of its own image", []),
    ],
)
def test_a_phrase_is_found_across_lines_and_not_within_words(text, phrases):
    assert [phrase for _, phrase, _ in found(text)] == phrases


@pytest.mark.parametrize("number", range(len(INSTEAD)))
def test_every_suggestion_is_free_of_banned_words(number):
    assert list(found(list(INSTEAD.values())[number])) == []


def test_the_command_names_file_and_line(tmp_path):
    (tmp_path / "page.md").write_text("fine\ncomputed anew\n")
    command = [sys.executable, ROOT / "tools" / "banned_words.py", tmp_path / "page.md"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stdout == f"{tmp_path / 'page.md'}:2: 'anew': write again, from scratch\n"


def test_no_tracked_file_has_a_banned_word():
    result = subprocess.run([sys.executable, "tools/banned_words.py"], cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, ""), result.stdout
