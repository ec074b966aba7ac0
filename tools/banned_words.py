"""Reject words that readers stumbled over, in the tracked docs, docstrings, comments and messages.

python tools/banned_words.py [FILE ...]    # by default every tracked text file; exit code 1 if one is found

A phrase is also found across a line break, behind the comment sign of the next line, and between quotes.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

INSTEAD = {  # regular expression: what to write instead
    "mend(?:s|ed|ing)?": "fix, repair",
    "anew": "again, from scratch",
    "whoever": "anyone who, the caller",
    "somebody": "a user, a caller, someone",
    "knows? no": "does not depend on, does not have",
    "is no family": "is not an op family",
    "costs? one warning": "gives one warning",
    "an output a parameter": "one output per parameter",
    "goes on where it was cut": "resumes",
    "who serves a call": "which backend is used",
    "stands(?! for| in for)": "is",
    "an? [\\w-]+ of its own": "its own, a separate",
    "of its own(?=[.,;:)])": "its own, separate",
}
BETWEEN = r"[\s#/*\"'>|]+"
PATTERN = re.compile("|".join(rf"(\b{phrase.replace(' ', BETWEEN)}(?!\w))" for phrase in INSTEAD), re.I)
SUFFIXES = {".cpp", ".cu", ".cuh", ".h", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml", ".ipynb", ".cff", ""}
LEFT_OUT = ("tests/corpus/", "benchmarks/results/", "tools/banned_words.py", "tests/test_banned_words.py")


def found(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the phrase, and what to write instead."""
    for match in PATTERN.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match.group(), list(INSTEAD.values())[match.lastindex - 1]


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout.split("\0")
    return [
        name
        for name in listed
        if Path(name).suffix in SUFFIXES and not name.startswith(LEFT_OUT) and Path(name).is_file()
    ]


def main() -> None:
    lines = [
        f"{name}:{line}: {' '.join(phrase.split())!r}: write {instead}"
        for name in sys.argv[1:] or tracked()
        for line, phrase, instead in found(Path(name).read_text(encoding="utf-8"))
    ]
    print(*lines, sep="\n", end="\n" if lines else "")
    raise SystemExit(bool(lines))


if __name__ == "__main__":
    main()
