"""What two runs must have in common to be compared: VAE, resolution, latent size and scale."""

import hashlib
import json
from pathlib import Path

import numpy as np

from fmpipe.untrusted import read_json

FACTS = ("vae_digest", "resolution", "latent_size", "scale")


def facts_of(folder: Path, config: dict) -> dict[str, object]:
    """Return the :data:`FACTS` of a run from its config.yaml and its autoencoder."""
    facts: dict[str, object] = {}
    data, own = (x if isinstance(x := config.get(key), dict) else {} for key in ("data", "vae"))
    if size := data.get("size"):
        facts["resolution"] = size
    given = own.get("path")
    places = [Path(given)] if given else [folder / "pipeline" / "vae", folder / "vae" / "result"]
    place = next((p for p in places if (p / "config.json").is_file()), None)
    if place is None:
        return facts
    vae = read_json(place / "config.json")
    scale = {k: vae[k] for k in ("scaling_factor", "shift_factor", "latents_mean", "latents_std") if vae.get(k)}
    facts["scale"] = json.dumps({k: np.round(x, 6).tolist() for k, x in scale.items()})
    net = vae.get("vae_config") or vae  # a LatentVAE's, or diffusers' own
    if size and net.get("latent_channels") and net.get("block_out_channels"):
        side = size // 2 ** (len(net["block_out_channels"]) - 1)
        facts["latent_size"] = f"{net['latent_channels']}×{side}×{side}"
    digest = hashlib.sha256()
    for file in sorted(place.glob("*.safetensors")):
        with file.open("rb") as data:
            while part := data.read(1 << 20):
                digest.update(part)
        facts["vae_digest"] = digest.hexdigest()[:16]
    return facts
