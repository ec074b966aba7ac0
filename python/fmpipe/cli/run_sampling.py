"""What ``generate``, ``sweep``, ``interpolate`` and ``arith`` share: their options, and a call with its progress."""

import math
from pathlib import Path
from typing import Annotated

import typer

from fmpipe.cli.base import Refused, check_device, check_options, locate
from fmpipe.cli.progress import Bars, LatestReading

OUT, GIF = Path("out"), (".gif",)
ScaleOption = Annotated[
    int, typer.Option(min=1, max=64, help="Enlarge every image this many times; each pixel becomes a square.")
]


def noise_of(prompt: str, seed: int, index: int = 0):
    """Return the generator of one image; it depends on its prompt, the seed and its number, not on the batch."""
    import hashlib

    import torch

    digest = hashlib.sha256(f"{seed}\n{index}\n{prompt}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


class Sampling:
    """The sampling settings of a command, validated before anything heavy is imported. None is the pipeline's own.

    debug: further arguments of the pipeline; afterwards, those of them that are not at their defaults.
    """

    def __init__(self, pipeline: str, device: str, steps, solver, schedule, guidance, **debug):
        common = {"num_inference_steps": steps, "solver": solver, "schedule": schedule, "guidance_scale": guidance}
        self.options, self.pipeline = check_options(**common, **debug), pipeline
        self.debug = {name: value for name, value in self.options.changed.items() if name in debug}
        locate(pipeline)
        check_device(device)

    def info(self, pipe, prompt: str, seed: int | None) -> dict[str, object]:
        """Return the settings of an image, for its metadata."""
        own = self.options.completed(pipe.config)
        used = {"steps": own.num_inference_steps, "solver": own.solver, "schedule": own.schedule}
        used["guidance"] = 1.0 if own.guidance_scale is None else own.guidance_scale  # 1 is no guidance
        return {"prompt": prompt, "seed": "none" if seed is None else seed, **used, "pipeline": self.pipeline}

    def run(
        self, pipe, call, bars: Bars, title: str = "flow", *, each_step=None, frames: list | None = None, **options
    ):
        """Return ``call(**options)`` with its progress shown. Refuse what the pipeline refuses.

        options: of the pipeline, besides those of the command. frames: receives the state after every step.
        """
        options = self.options.changed | options
        used, latest = self.options.completed(pipe.config), LatestReading()

        def step_end(pipe, step, t, tensors):
            if each_step is not None:
                each_step()
            if frames is not None:
                frames.append(tensors["latents"])
            state = ""
            if bars.shown:
                x, v = latest(tensors["stats"][:, :2].mean(0)) or (math.nan, math.nan)
                state = f"t={t:.2f} |x|={x:.4f} |v|={v:.4f}"
            bars.update(title, step + 1, used.num_inference_steps, state)

        if used.solver != "dopri5":
            options["callback_on_step_end"] = step_end
            options["callback_on_step_end_tensor_inputs"] = ["stats"] if frames is None else ["stats", "latents"]
        try:
            return call(**options)
        except (ValueError, TypeError, FloatingPointError) as error:
            raise Refused(error) from None
