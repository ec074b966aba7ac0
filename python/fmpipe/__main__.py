"""``python -m fmpipe``, for torchrun and where the command is not on PATH."""

from fmpipe.cli import app

app()
