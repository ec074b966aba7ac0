"""Read files from untrusted sources: text of bounded size and depth, and models without their Python code."""

import errno
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LEVELS = 64  # of nesting; what the libraries write has at most ten
BYTES = 64 << 20  # of a JSON file; the largest, the tokenizer of a language model, has 20 million
COUNT = 1000  # of layers, experts and so on; the largest models have a few hundred
_COUNTED = re.compile("layers?$|depths?$|experts$|num_labels|layers_")
ADAPTER = "adapter_config.json"
IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention")  # those of torch; flash attention may come from the Hub
CONFIGS = ("config.json", "tokenizer_config.json", "preprocessor_config.json", "processor_config.json")
# A string, closed or not, or a bracket. Every alternative matches in one way, so that the time is linear.
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)


def check_regular(file: Path, limit: int = BYTES) -> None:
    """Raise OSError for a pipe, a socket, a device or a folder, ValueError for more than ``limit`` bytes."""
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
        raise OSError(kind, f"{os.strerror(kind)}: it is not a regular file", str(file))
    if found.st_size > limit:
        raise ValueError(f"{file} has {found.st_size:,} bytes, more than {limit:,}")


def check_weights(folder: Path) -> None:
    """Raise OSError for weights in a folder, or in folders in it, that are no regular files: a pipe is never read."""
    for pattern in ("*.safetensors", "*/*.safetensors"):
        for file in Path(folder).glob(pattern):
            check_regular(file, sys.maxsize)


def read_bytes(file: Path, limit: int = BYTES) -> bytes:
    """Return the contents of a regular file of at most ``limit`` bytes; raises as ``check_regular``."""
    check_regular(file, limit)
    return file.read_bytes()


def check_depth(text: str) -> None:
    """Raise ValueError for JSON in more than ``LEVELS`` levels, also if it is damaged."""
    if text.count("[") + text.count("{") <= LEVELS:
        return
    level = 0
    for token in _TOKEN.finditer(text):
        level += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if level > LEVELS:
            raise ValueError(f"it is nested more than {LEVELS} levels deep")


def parse_json(data: str | bytes, characters: int = BYTES) -> object:
    """``json.loads`` for text of at most ``characters`` in ``LEVELS`` levels; ValueError for more, and for damage."""
    if len(data) > characters:
        raise ValueError(f"it has {len(data)} characters, more than {characters}")
    text = data if isinstance(data, str) else data.decode(json.detect_encoding(data), "surrogatepass")
    check_depth(text)
    return json.loads(text)


def read_json(file: Path) -> dict:
    """Return the object in a file, {} if there is no such file. ValueError names a file without one."""
    try:
        found = parse_json(read_bytes(file)) if file.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{file.name} in {str(file.parent)!r} is not JSON that can be read: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file.name} in {str(file.parent)!r} must be an object, got {type(found).__name__}")
    return found


def _implementations(value: object, named: bool = False) -> Iterator[object]:
    """Yield what the keys such as ``attn_implementation`` of a config name, at any level."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _implementations(part, named or bool(re.fullmatch(r"_?\w+_implementation(_internal)?", key)))
    elif isinstance(value, list):
        for part in value:
            yield from _implementations(part, named)
    elif named and value is not None:
        yield value


def _check_counts(value: object, name: str) -> None:
    """Raise ValueError for numbers of layers that no model has: building them would take hours and all memory."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        most = 100_000 if key == "num_labels" else COUNT
        if type(part) is int and part > most and _COUNTED.search(str(key)):
            raise ValueError(f"{name}: {key} is {part}, more than {most:,}")
        _check_counts(part, name)


def load_pretrained(cls: type, folder: Path, **options) -> "PreTrainedModel":
    """``from_pretrained`` of a class of transformers, on a local folder, never with code from it or from the network.

    transformers asks on standard input whether to run such code, unless it is told not to. Raises ValueError for a
    folder whose configs refer to Python files in it, also where transformers has its own class and would ignore
    them, for one that names an attention kernel, which transformers would fetch from the Hub and run, for an adapter
    of peft, which names another model to load, for a config that is not bounded JSON, and for more than COUNT layers;
    OSError for weights that are not a regular file.
    """
    check_weights(folder)
    if (Path(folder) / ADAPTER).exists():
        raise ValueError(f"{ADAPTER} in {str(folder)!r} names another model; merge the adapter into the model first")
    code = sorted(Path(folder).glob("*.py"))
    for name in CONFIGS:
        found = read_json(Path(folder) / name)
        _check_counts(found, name)
        if kernels := sorted(set(map(str, _implementations(found))) - set(IMPLEMENTATIONS)):
            raise ValueError(f"{name} names {kernels[0]!r} as an implementation; use {' or '.join(IMPLEMENTATIONS)}")
        if "auto_map" in found and code:
            raise ValueError(f"{name} refers to Python code ({code[0].name}), which is never run; remove its auto_map")
    return cls.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)
