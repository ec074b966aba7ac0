"""The command ``fmpipe``. Nothing heavy is imported before a command runs: ``--help`` answers at once."""

from fmpipe.cli import check, draw, evaluate, report, train  # noqa: F401 (each registers its commands)
from fmpipe.cli.base import app

__all__ = ["app"]
