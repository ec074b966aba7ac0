"""The command ``fmpipe``. Nothing heavy is imported before a command runs: ``--help`` answers at once."""

# Each module registers its commands, and --help lists them in this order.
# isort: off
from fmpipe.cli import generate, sweep, latents, playground
from fmpipe.cli import train
from fmpipe.cli import check, evaluate, report
from fmpipe.cli.base import app

__all__ = ["app", "check", "evaluate", "generate", "latents", "playground", "report", "sweep", "train"]
