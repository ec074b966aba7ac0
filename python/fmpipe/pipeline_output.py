"""What ``FlowPipeline`` returns."""

from dataclasses import dataclass, field

import torch
from diffusers.utils import BaseOutput
from torch import Tensor

from fmkernels.flow import Trace


@dataclass
class Probe:
    """A decoded latent as numbers: its range, its contrast (std over pixels), and the latent's rms."""

    low: float
    high: float
    contrast: float
    rms: float

    @classmethod
    def of(cls, *pairs: tuple[Tensor, Tensor]) -> "list[Probe]":
        """Return the probes of pairs (image, latent). The device is read once."""
        rows = [torch.stack([x.min(), x.max(), x.std(), z.square().mean().sqrt()]) for x, z in pairs]
        return [cls(*row) for row in torch.stack(rows).tolist()]


@dataclass
class FlowPipelineOutput(BaseOutput):
    """images: as ``output_type`` selects. trace: of all steps. z0, z1: the latents before and after the flow.

    probes: with ``probes=True``, ``A`` of z0 decoded, ``B`` the rms of the first step's change, ``C`` of z1 decoded, as
    in the debugging notes; otherwise None. mu, logvar: of the text head (None if latents were given).
    """

    images: object
    trace: Trace
    probes: dict[str, Probe | float] | None
    mu: Tensor | None
    logvar: Tensor | None
    z0: Tensor
    z1: Tensor = field(repr=False)
