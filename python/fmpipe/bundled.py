"""Find and read pipelines: by folder, by the folder of the training run that made them, or by a bundled name."""

import sys
from collections.abc import Container
from importlib.resources import files
from pathlib import Path
from reprlib import repr

from fmpipe.sampling import STORED, check_setting
from fmpipe.untrusted import check_weights, read_json

BUNDLED = {"default": "emoji-64", "emoji-64": "emoji-64"}  # name: folder under assets/
INDEX = "model_index.json"
PARTS = ("text_encoder", "text_head", "velocity_net", "vae")


def find_pipeline(name: str | Path) -> str | Path:
    """Return the name of a bundled pipeline, or the folder that holds the pipeline ``name`` refers to.

    ``name`` is a bundled name, a folder with a ``model_index.json``, or the folder of a training run, whose pipeline is
    in its subfolder ``pipeline``. Raises FileNotFoundError if there is no pipeline.
    """
    folder = Path(name)
    for place in (folder, folder / "pipeline"):
        if (place / INDEX).is_file():
            return place
    if str(name) in BUNDLED:
        return str(name)
    if (folder / "config.yaml").is_file():
        raise FileNotFoundError(
            f"{folder} is a training run without a finished pipeline; "
            f"finish it with: fmpipe train --config {folder / 'config.yaml'} --resume latest"
        )
    raise FileNotFoundError(
        f"no pipeline in {str(name)!r}: expected a folder with a {INDEX}, the folder of a finished training run, "
        f"or one of {', '.join(BUNDLED)}"
    )


def check_index(folder: Path, given: Container[str] = ()) -> None:
    """Raise ValueError, naming the entry, unless the index of a pipeline has valid settings and names fmpipe's classes.

    given: entries that are not read, because the caller passes their values. The modules of all classes must have been
    imported.
    """
    index, where = read_json(folder / INDEX), f"{INDEX} in {str(folder)!r}"
    for name, value in index.items():
        if name in (*STORED, "max_guidance", "velocity_precision") and name not in given:
            try:
                check_setting(name, value, name)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
    named = {name for name, value in index.items() if isinstance(value, list)} | set(PARTS)
    for name in sorted(named - {part for part in PARTS if part in given}):
        if name == "text_encoder" and index.get(name) == [None, None]:
            continue
        if name not in PARTS or not _is_ours(index.get(name)):
            raise ValueError(
                f"{where}: {name} must be a class of fmpipe, got {repr(index.get(name))}; pass parts of other classes "
                "to FlowPipeline.from_pretrained"
            )


def _is_ours(entry: object) -> bool:
    if not isinstance(entry, list) or len(entry) != 2 or not all(isinstance(x, str) for x in entry):
        return False
    module, name = entry
    found = getattr(sys.modules.get(module), name, None) if module.startswith("fmpipe.") else None
    return isinstance(found, type) and found.__module__ == module


def parts(name: str) -> dict:
    """Return the constructor arguments of the bundled pipeline ``name``, in fp32 (the files are fp16).

    The text encoder is MiniLM from its own package; the error says how to install it if it is missing.
    """
    import torch

    from fmpipe import models
    from fmpipe.known import KnownCaptions
    from fmpipe.text import MiniLMText
    from fmpipe.vae import LatentVAE

    folder = Path(str(files("fmpipe") / "assets" / BUNDLED[name]))
    settings = {k: v for k, v in read_json(folder / INDEX).items() if k[0] != "_" and type(v) is not list}
    head = getattr(models, read_json(folder / "text_head" / "config.json")["_class_name"])
    classes = {"text_head": head, "velocity_net": models.DiMR, "vae": LatentVAE}
    made = {part: cls.from_pretrained(folder / part, torch_dtype=torch.float32) for part, cls in classes.items()}
    encoder = MiniLMText.from_pretrained(tokens=made["text_head"].config.tokens)
    return {"text_encoder": encoder, **made, **settings, "known": KnownCaptions.load(folder)}


def tensors_of(folder: Path) -> dict[str, set[str]]:
    """Return part -> the names of its tensors on disk. diffusers leaves missing ones at random values.

    Raises OSError if a file is damaged or no regular file.
    """
    from safetensors import SafetensorError, safe_open

    check_weights(folder)
    names = {}
    for part in (p for p in PARTS[1:] if (folder / p).is_dir()):
        names[part] = set()
        for file in (folder / part).glob("*.safetensors"):
            try:
                with safe_open(file, "pt") as tensors:
                    names[part] |= set(tensors.keys())
            except SafetensorError as error:
                size = file.stat().st_size
                raise OSError(f"{part}/{file.name} of {folder} ({size} bytes) cannot be read: {error}") from None
    return names
