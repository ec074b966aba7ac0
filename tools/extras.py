"""Print the requirements of extras of pyproject.toml, one per line: python tools/extras.py EXTRA..."""

import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

with open(Path(__file__).parent.parent / "pyproject.toml", "rb") as file:
    extras = tomllib.load(file)["project"]["optional-dependencies"]
print(*(requirement for name in sys.argv[1:] for requirement in extras[name]), sep="\n")
