"""The stage ``diffusion``: trains a network with the plain diffusion objective."""

from pathlib import Path

from torch import nn

from fmpipe import metrics
from fmpipe.models import DiMR
from fmpipe.train.batches import DiffusionBatches
from fmpipe.train.config import Config
from fmpipe.train.inputs import StageInputs
from fmpipe.train.loss_weights import LossWeights
from fmpipe.train.objective import DiffusionObjective
from fmpipe.train.stages.base import IMAGES, Stage, on_device_of, save_sheet


class DiffusionStage(Stage):
    """Trains a network to predict z1 from a noisy z1; leaves it."""

    name = "diffusion"

    def __init__(self, config: Config, inputs: StageInputs):
        super().__init__(config, inputs)
        settings, self.vae, self.optim, self.val = config.diffusion, inputs.vae(), config.diffusion.optim, inputs.val
        latents, source, count = inputs.latents(self.vae), inputs.source, min(self.optim.batch, len(self.val))
        net = DiMR(**settings.net)
        self.objective = DiffusionObjective(net, settings.time_weight)
        data = latents, self.vae
        self.batches = DiffusionBatches(*data, inputs.train, self.optim.batch, config.seed, source=source)
        self.held_out = DiffusionBatches(*data, self.val, count, config.seed + 1, source=source)
        self.heads = {"flow_head": f"velocity_net.stages.{len(net.stages) - 1}.output_layer.2"}
        self.weights = LossWeights({"diffusion": 1.0}, self.optim.steps)
        self.constants = metrics.constants(self.objective.diffusion.betas)

    def draw(self, objective: nn.Module, path: Path) -> None:
        batch = on_device_of(objective, self.held_out(0))
        order = batch["steps"].argsort()[:: max(1, len(batch["steps"]) // IMAGES)][:IMAGES]
        pixels = self.vae.decode(objective(**batch).tensors["z1_pred"][order].to(self.vae.device))
        save_sheet(pixels, [f"from step {k}" for k in batch["steps"][order].tolist()], path)

    def finish(self, objective: nn.Module) -> Path:
        objective.velocity_net.save_pretrained(self.result)
        return self.result
