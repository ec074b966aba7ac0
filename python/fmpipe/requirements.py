"""Which optional packages are missing, and the command that installs them. Imports nothing that is optional."""

import re
import shlex
from importlib import metadata

EXTRA = "pipe"


def missing() -> list[str]:
    """Return the requirements of the extra ``pipe`` that are not installed."""
    found = []
    for line in metadata.requires("fmkernels") or ():
        requirement, _, marker = line.partition(";")
        if not re.search(rf"extra == ['\"]{EXTRA}['\"]", marker):
            continue
        try:
            metadata.version(re.match(r"[\w.-]+", requirement).group())
        except metadata.PackageNotFoundError:
            found.append(requirement.strip())
    return found


def install_line(error: ImportError) -> str | None:
    """Return one line with the command that installs what is missing; None if the error has another cause."""
    if "pip install" in str(error):
        return " ".join(str(error).split())
    if lacking := missing():
        return f"{error.name or error} is not installed; run: pip install {shlex.join(lacking)}"
    return None
