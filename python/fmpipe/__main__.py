"""The command ``fmpipe``, also as ``python -m fmpipe`` for torchrun."""

import sys

from fmpipe.requirements import install_line


def main() -> None:
    """Run the command line; if a package that it needs is missing, print the command that installs it."""
    try:
        from fmpipe.cli import app
    except ImportError as error:
        line = install_line(error)
        if line is None:
            raise
        sys.exit(f"fmpipe: {line}")
    app(prog_name="fmpipe")


if __name__ == "__main__":
    main()
