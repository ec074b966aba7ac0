"""Which optional packages are missing, and the command that installs them. Itself imports nothing optional."""

import re
import shlex
from importlib import import_module, metadata
from types import ModuleType

EXTRA = "pipe"
MODULES = {"PIL": "pillow", "yaml": "pyyaml"}  # modules whose distribution has another name


def requirements() -> dict[str, str]:
    """Return the requirements of the extra ``pipe`` by the names of their distributions."""
    found = {}
    for line in metadata.requires("fmkernels") or ():
        requirement, _, marker = line.partition(";")
        if re.search(rf"extra == ['\"]{EXTRA}['\"]", marker):
            found[re.match(r"[\w.-]+", requirement).group()] = requirement.strip()
    return found


def installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def optional(module: str, what: str) -> ModuleType:
    """Import a module that only some settings need; ImportError, with the command that installs it, if it is missing.

    what: the beginning of the error, what needs it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ImportError(f"{what} needs the package {package}; run: pip install {package}") from None


def install_line(error: ImportError) -> str | None:
    """Return one line with the command that installs what is missing; None if the error has another cause."""
    if "pip install" in str(error):
        return " ".join(str(error).split())
    needed, module = requirements(), (error.name or "").partition(".")[0]
    name = MODULES.get(module, module)
    if name not in needed:
        return None
    if not installed(name):
        lacking = [requirement for other, requirement in needed.items() if not installed(other)]
        return f"{module} is not installed; run: pip install {shlex.join(lacking)}"
    if isinstance(error, ModuleNotFoundError):
        return f"{module} is installed but cannot be imported; run: pip install --force-reinstall {name}"
    return f"{module} does not fit: {error}; run: pip install --upgrade {shlex.quote(needed[name])}"
