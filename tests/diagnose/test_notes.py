"""The table of docs/notes.md: its settings, commands, rules and metrics exist."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import typer.main

from fmpipe.cli import app
from fmpipe.diagnose.engine import RULES
from fmpipe.diagnose.read.names import CANONICAL
from fmpipe.train import settings
from fmpipe.train.presets import PRESETS

PAGE = Path(__file__).parents[2] / "docs" / "notes.md"
LINES = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| [^|]", line)]
ROWS = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in LINES]
ROWS = [row for row in ROWS if row[0] != "topic"]
COMMANDS = typer.main.get_command(app).commands


def config_of(words):
    """The config of ``--config PRESET KEY=VALUE …``, or of KEY=VALUE … for shapes-tiny."""
    preset, words = (words[1], words[2:]) if words[0] == "--config" else ("shapes-tiny", words)
    return settings.with_overrides(PRESETS[preset](), words)


def is_setting(span):
    return span.startswith("--config ") or re.match(r"'?[a-z][\w.]*=", span)


def check(span):
    """Raise if what a code span of the third column names does not exist."""
    words = shlex.split(span)
    if words[0] == "fmpipe":
        context = COMMANDS[words[1]].make_context(words[1], words[2:])
        if "config" in context.params:
            config_of(["--config", context.params["config"], *(context.params.get("overrides") or [])])
    elif is_setting(span):
        config_of(words)
    elif span.startswith("fmpipe."):
        module, name = span.partition("(")[0].rsplit(".", 1)
        assert callable(getattr(import_module(module), name))
    else:
        assert span in RULES or CANONICAL.fullmatch(span), "neither a rule nor a metric"


def test_the_table_is_whole():
    assert len(ROWS) > 60
    assert {len(row) for row in ROWS} == {4}
    assert sum(bool(is_setting(span)) for row in ROWS for span in re.findall(r"`([^`]+)`", row[2])) > 25


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1][:24]}")
def test_what_a_row_names_exists(row):
    spans = re.findall(r"`([^`]+)`", row[2])
    assert spans
    for span in spans:
        check(span)


@pytest.mark.parametrize(
    ("span", "said"),
    [
        ("flow.losses.kl_warm=0.1", "kl_warm"),
        ("flow.losses.t=edges", "expected one of"),
        ("--config shapes flow.losses.kl=1", "shapes"),
        ("fmpipe ablate --config shapes-tiny flow.kl=0", "config.flow.kl"),
        ("fmpipe check runs/first --gane 2", "No such option"),
        ("fmpipe.diagnose.checks.nothing(x)", "nothing"),
        ("one_stepp", "neither a rule nor a metric"),
    ],
)
def test_what_does_not_exist_is_found(span, said):
    with pytest.raises(Exception, match=said):
        check(span)
