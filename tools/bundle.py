"""Put a trained pipeline into the package: fp16, without the text encoder, with the embeddings of its captions.

python tools/bundle.py runs/emoji-64                    # the pipeline of a run
python tools/bundle.py runs/head --velocity-net runs/emoji-64   # its velocity network from another run
"""

import argparse
import json
import shutil
from pathlib import Path

import fmpipe
from fmpipe import FlowPipeline
from fmpipe.bundled import INDEX, PARTS
from fmpipe.data.emoji import phrases
from fmpipe.known import KnownCaptions

FOLDER = Path(fmpipe.__file__).parent / "assets" / "emoji-64"


def bundle(pipe: FlowPipeline, folder: Path) -> None:
    """Write the parts of a pipeline, except its text encoder, and its settings to a folder, which is replaced."""
    new = folder.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    for name in PARTS[1:]:
        part = getattr(pipe, name)
        part.half().save_pretrained(new / name)
        path = new / name / "config.json"
        config = json.loads(path.read_text())
        config.pop("_name_or_path", None)  # a path of this machine
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    index = {
        k: v for k, v in pipe.config.items() if k == "_class_name" or (k[0] != "_" and isinstance(v, (str, float, int)))
    }
    (new / INDEX).write_text(json.dumps(index | {"_class_name": type(pipe).__name__}, indent=2, sort_keys=True) + "\n")
    KnownCaptions.embed(pipe.text_encoder, phrases()).save(new)
    for kept in folder.glob("*.md"):
        shutil.copy(kept, new)
    shutil.rmtree(folder)
    new.rename(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pipeline")
    parser.add_argument("--velocity-net", help="pipeline whose velocity network to use instead")
    given = parser.parse_args()
    made = FlowPipeline.from_pretrained(given.pipeline)
    if given.velocity_net:
        made.velocity_net = FlowPipeline.from_pretrained(given.velocity_net).velocity_net
    bundle(made, FOLDER)
