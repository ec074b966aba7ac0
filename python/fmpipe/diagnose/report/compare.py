"""Two runs side by side: whether they may be compared at all, and which is better in what."""

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fmpipe.diagnose.report.judge import judge
from fmpipe.diagnose.report.said import Said
from fmpipe.diagnose.report.stats import RunStats, Series
from fmpipe.diagnose.verdict import Overrides

FACTS = ("vae_digest", "resolution", "latent_size", "scale")
LOWER = ("val/loss/flow", "val/loss/diffusion", "val/loss/mse", "val/flow/nmse", "loss/flow", "loss/diffusion")
HIGHER = ("val/flow/cos", "flow/cond_gain_cos", "val/vae/psnr")
COUNTS = 0.02  # of the larger, the least difference that does


@dataclass(frozen=True)
class Comparison:
    """comparable: whether nothing known forbids it. lines: what differs, or who is better in what.

    better: figure -> "A", "B" or "" where neither is; empty if they are not comparable.
    """

    comparable: bool
    lines: list[str]
    better: dict[str, str]


def compare(a: RunStats, b: RunStats, overrides: Overrides = None) -> Comparison:
    """A against B. Where VAE, resolution, latent size or scale are known to differ, only that is said."""
    known = [name for name in FACTS if name in a.facts and name in b.facts]
    differ = [name for name in known if a.facts[name] != b.facts[name]]
    if differ:
        lines = [Said("compare/differ", what=name, a=a.facts[name], b=b.facts[name]) for name in differ]
        return Comparison(False, [*lines, Said("compare/refused")], {})
    lines, better = [], {}
    if unknown := [name for name in FACTS if name not in known]:
        lines.append(Said("compare/unknown", names=", ".join(unknown)))
    ends = sorted(n for n in a.metrics.keys() & b.metrics.keys() if n.startswith("flow/endpt_rmse@"))
    for name in (*LOWER, *HIGHER, *ends):
        x, y = a.first_of(name), b.first_of(name)
        if x is None or y is None:
            continue
        apart = y.late - x.late if name not in HIGHER else x.late - y.late
        counts = abs(apart) > max(COUNTS * max(abs(x.late), abs(y.late)), 2 * (_error(x) + _error(y)))
        better[name] = ("A" if apart > 0 else "B") if counts else ""
        key = "compare/better" if counts else "compare/equal"
        lines.append(Said(key, name=name, better=better[name], a=x.late, b=y.late))
    if not better:
        lines.append(Said("compare/nothing"))
    wrong = [", ".join(h.letter for h in judge(s, overrides) if h) or "-" for s in (a, b)]
    lines.append(Said("compare/confirmed", a=wrong[0], b=wrong[1]))
    return Comparison(True, lines, better)


def _error(x: Series) -> float:
    """The standard error of where a series has come to."""
    tail = x.finite[-max(1, len(x.finite) // 4) :]
    return float(np.std(tail)) / math.sqrt(len(tail))


def facts_of(folder: Path, config: dict) -> dict[str, object]:
    """What a run's folder tells of :data:`FACTS`: of its config.yaml, and of the autoencoder it left or was given."""
    facts: dict[str, object] = {}
    if size := (config.get("data") or {}).get("size"):
        facts["resolution"] = size
    given = (config.get("vae") or {}).get("path")
    places = [Path(given)] if given else [folder / "pipeline" / "vae", folder / "vae" / "result"]
    place = next((p for p in places if (p / "config.json").is_file()), None)
    if place is None:
        return facts
    vae = json.loads((place / "config.json").read_text(encoding="utf-8"))
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
