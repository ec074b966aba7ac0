"""Write the table of settings into docs/training.md, from the help texts in fmpipe.train.config.

python tools/config_table.py          # rewrite the table
python tools/config_table.py --check  # exit code 1 if it is not up to date
"""

import dataclasses
import re
import sys
from pathlib import Path

from fmpipe.train.config import Config, Optim
from fmpipe.train.settings import _flow_style, to_dict

DOCUMENT = Path(__file__).parent.parent / "docs" / "training.md"
BETWEEN = re.compile(r"(?<=<!-- settings -->\n).*?(?=<!-- end of settings -->)", re.DOTALL)


def rows(config, prefix: str = ""):
    """Yield (key, default, help) of every setting; those of an optimizer once."""
    for field in dataclasses.fields(config):
        value, key = getattr(config, field.name), f"{prefix}{field.name}"
        if isinstance(value, Optim):
            yield f"{key}.*", "", f"{field.metadata['help']}: see below"
        elif dataclasses.is_dataclass(value):
            yield from rows(value, f"{key}.")
        else:
            yield key, f"`{_flow_style(to_dict(value))}`", field.metadata["help"]


def table() -> str:
    every = [*rows(Config()), *rows(Optim(), "*.optim.")]
    lines = [f"| `{key}` | {default} | {text.replace('|', chr(92) + '|')} |" for key, default, text in every]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *lines, ""])


if __name__ == "__main__":
    text = DOCUMENT.read_text(encoding="utf-8")
    written = BETWEEN.sub(lambda _: table(), text)
    if "--check" in sys.argv:
        sys.exit(written != text)
    DOCUMENT.write_text(written, encoding="utf-8")
