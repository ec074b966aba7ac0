"""What the stages of a run have in common."""

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor, nn

from fmpipe.image_grid import image_grid, to_image
from fmpipe.train.config import Config, Optim
from fmpipe.train.inputs import StageInputs
from fmpipe.train.loss_weights import LossWeights

VALIDATION_BATCHES = 4
IMAGES = 8  # of a sheet


class Stage:
    """A part of a run: what it trains, how it is validated, and what it leaves."""

    name: str
    objective: nn.Module  # its forward takes a batch and returns an Outcome
    batches: Callable[..., dict[str, Tensor]]  # batches(step, rows) are the arguments of the objective
    held_out: Callable[..., dict[str, Tensor]]
    val: Sequence[int]  # the items that held_out draws from
    optim: Optim
    weights: LossWeights
    heads: dict[str, str]  # name in the log -> dotted name of the layer whose update ratio is logged
    alarm = 0.0  # the run stops if E|z0| or E|v*| exceeds this multiple of E|z1|; 0 is no limit

    def __init__(self, config: Config, inputs: StageInputs):
        self.config, self.inputs = config, inputs
        self.constants: dict[str, object] = {}  # logged once, before the first step

    def validate(self, objective: nn.Module) -> dict[str, float]:
        """Return the losses and statistics on held-out data under ``val/``, means over a few fixed batches."""
        rows = []
        for k in range(min(VALIDATION_BATCHES, max(1, len(self.val) // self.held_out.order.batch))):
            outcome = objective(**on_device_of(objective, self.held_out(k)))
            row = {f"loss/{name}": loss.item() for name, loss in outcome.losses.items()}
            row |= {name: x.item() for name, x in outcome.metrics.items() if not name.startswith("scale/")}
            if outcome.stats:
                row |= {k: v for k, v in outcome.stats[0].as_dict().items() if "_t" not in k}
            rows.append(row)
        return {f"val/{name}": sum(row[name] for row in rows) / len(rows) for name in rows[0]}

    def draw(self, objective: nn.Module, path: Path) -> None:
        """Save a sheet of sample images."""
        raise NotImplementedError

    def finish(self, objective: nn.Module) -> Path:
        """Save what the stage has trained, and return the folder."""
        raise NotImplementedError

    @property
    def result(self) -> Path:
        """The folder of the trained network."""
        return self.inputs.folder / self.name / "result"


def on_device_of(objective: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a batch on the device of the objective."""
    device = next(objective.parameters()).device
    return {name: x.to(device) for name, x in batch.items()}


def save_sheet(pixels: Tensor, captions: Sequence[str], path: Path, columns: int = IMAGES) -> None:
    """Save a sheet of images (N, 3, H, W) in [-1, 1] with their captions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image_grid([to_image(x) for x in pixels], captions, columns).save(path)
