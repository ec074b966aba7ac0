"""Read files that somebody else may have made: text of bounded size and depth, and models without their Python code."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LEVELS = 64  # of nesting; what the libraries write has at most ten
CHARACTERS = 64 << 20  # of a JSON file; the largest, the tokenizer of a language model, has 20 million
CONFIGS = ("config.json", "tokenizer_config.json", "preprocessor_config.json", "processor_config.json")
# A string, closed or not, or a bracket. Every alternative matches in one way, so that the time is linear.
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)


def parse_json(data: str | bytes, characters: int = CHARACTERS) -> object:
    """``json.loads`` for text of at most ``characters`` in ``LEVELS`` levels; ValueError for more, and for damage."""
    if len(data) > characters:
        raise ValueError(f"it has {len(data)} characters, more than {characters}")
    text = data if isinstance(data, str) else data.decode(json.detect_encoding(data), "surrogatepass")
    if text.count("[") + text.count("{") > LEVELS:
        level = 0
        for token in _TOKEN.finditer(text):
            level += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
            if level > LEVELS:
                raise ValueError(f"it is nested more than {LEVELS} levels deep")
    return json.loads(text)


def read_json(file: Path) -> dict:
    """Return the object in a file, {} if there is no such file. ValueError names a file without one."""
    try:
        found = parse_json(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{file.name} in {str(file.parent)!r} is not JSON that can be read: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file.name} in {str(file.parent)!r} must be an object, got {type(found).__name__}")
    return found


def load_pretrained(cls: type, folder: Path, **options) -> "PreTrainedModel":
    """``from_pretrained`` of a class of transformers, on a local folder, never with code from it or from the network.

    transformers asks on standard input whether to run such code, unless it is told not to. Raises ValueError for a
    folder whose configs refer to Python files in it, also where transformers has a class of its own and would ignore
    them, and for a config that is not bounded JSON.
    """
    code = sorted(Path(folder).glob("*.py"))
    for name in CONFIGS:
        if "auto_map" in read_json(Path(folder) / name) and code:
            raise ValueError(f"{name} refers to Python code ({code[0].name}), which is never run; remove its auto_map")
    return cls.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)
