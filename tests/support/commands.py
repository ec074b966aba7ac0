"""The command line in this process."""

from typer.testing import CliRunner

from fmpipe.cli import app


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])
