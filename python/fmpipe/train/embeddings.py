"""Small networks that embed images and texts for the contrastive and DINO losses."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ImageTower(nn.Module):
    """Latents (B, channels, H, W) to (B, dim), with about 0.2 M parameters, for any H and W.

    The coordinates are two more channels: otherwise, the mean over all positions would lose where objects are.
    """

    def __init__(self, channels: int, dim: int = 128, width: int = 64):
        super().__init__()
        layers = [nn.Conv2d(channels + 2, width, 3, padding=1)]
        for before, after in ((width, 2 * width), (2 * width, 2 * width)):
            layers += [nn.GroupNorm(8, before), nn.GELU(), nn.Conv2d(before, after, 3, stride=2, padding=1)]
        self.layers = nn.Sequential(*layers, nn.GroupNorm(8, 2 * width), nn.GELU())
        self.out = nn.Linear(2 * width, dim)

    def forward(self, z: Tensor) -> Tensor:
        rows, columns = (torch.linspace(-1, 1, n, device=z.device, dtype=z.dtype) for n in z.shape[2:])
        places = torch.stack(torch.meshgrid(rows, columns, indexing="ij")).expand(len(z), -1, -1, -1)
        return self.out(self.layers(torch.cat([z, places], dim=1)).mean((2, 3)))


class Projection(nn.Sequential):
    """z0 (B, ...) with ``inputs`` elements per sample to (B, outputs), two linear layers.

    The norm in front removes the scale of z0, so a larger z0 cannot reduce a loss.
    """

    def __init__(self, inputs: int, outputs: int, hidden: int = 256):
        super().__init__(
            nn.Flatten(),
            nn.LayerNorm(inputs, elementwise_affine=False),
            nn.Linear(inputs, hidden),
            nn.GELU(),
            nn.Linear(hidden, outputs),
        )


class Prototypes(nn.Module):
    """DINO logits (B, K): the cosines of x (B, dim) with K learned directions."""

    def __init__(self, dim: int, prototypes: int = 256):
        super().__init__()
        self.weight = nn.Parameter(F.normalize(torch.randn(prototypes, dim), dim=1))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x, dim=-1), F.normalize(self.weight, dim=-1))


@torch.no_grad()
def ema_update(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    """Update ``teacher ← momentum · teacher + (1 - momentum) · student`` for every parameter; copy buffers."""
    torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 1 - momentum)
    for mine, other in zip(teacher.buffers(), student.buffers(), strict=True):
        mine.copy_(other)
