"""Find a pipeline by its folder, by the folder of the training run that made it, or by the name of a bundled one."""

import json
from importlib.resources import files
from pathlib import Path

BUNDLED = {"default": "emoji-64", "emoji-64": "emoji-64"}  # name: folder under assets/
INDEX = "model_index.json"


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


def parts(name: str) -> dict:
    """Return the constructor arguments of the bundled pipeline ``name``, in fp32 (the files are fp16).

    The text encoder is MiniLM from its own package; the error says how to install it if it is missing.
    """
    import torch

    from fmpipe.known import KnownCaptions
    from fmpipe.models import DiMR, LinearHead
    from fmpipe.text import MiniLMText
    from fmpipe.vae import LatentVAE

    folder = Path(str(files("fmpipe") / "assets" / BUNDLED[name]))
    settings = {
        k: v for k, v in json.loads((folder / INDEX).read_text()).items() if k[0] != "_" and type(v) is not list
    }
    classes = {"text_head": LinearHead, "velocity_net": DiMR, "vae": LatentVAE}
    made = {part: cls.from_pretrained(folder / part, torch_dtype=torch.float32) for part, cls in classes.items()}
    encoder = MiniLMText.from_pretrained(tokens=made["text_head"].config.tokens)
    return {"text_encoder": encoder, **made, **settings, "known": KnownCaptions.load(folder)}
