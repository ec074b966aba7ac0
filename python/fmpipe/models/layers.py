"""Parts of the velocity networks: norms by name, rotary positions, argument checks and initial values."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fmkernels import Linear, TDLayerNorm, TDRMSNorm, td_rms_norm
from fmkernels.nn import Int8Rows


def inner(layer: Linear) -> Linear:
    """Let the layer return bf16 when it is quantized; what reads its output accepts any dtype."""
    layer.inner = True
    return layer


class RMSNorm(nn.Module):
    """``x / (rms + 1e-8) * scale``: TDRMSNorm with a scale that does not depend on time."""

    def __init__(self, dim: int):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        return td_rms_norm(x, self.scale, residual=residual)


class AdaRMSNorm(nn.Module):
    """``x (1 + linear(c)) rsqrt(mean(x²) + 1e-6)`` with c = x[:, 0]: the first token, or the first row of a grid."""

    def __init__(self, dim: int):
        super().__init__()
        self.linear = Linear(dim, dim, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        x = x if residual is None else x + residual
        y = F.rms_norm(x, x.shape[-1:], eps=1e-6) * (1 + self.linear(x[:, :1]))
        return y if residual is None else (y, x)


NORMS = {"LN": TDLayerNorm, "RMSN": RMSNorm, "TDRMSN": TDRMSNorm, "ADARMSN": AdaRMSNorm}


def add_norm(norm: nn.Module, x: Tensor, branch: Tensor | None, *readers: Linear) -> tuple[Tensor | Int8Rows, Tensor]:
    """Return ``(norm(x + branch), x + branch)``, computed in one pass.

    readers: the layers that read the norm. If all are quantized, it has the form that they convert their input to.
    """
    reads = {reader.reads for reader in readers}
    if reads == {torch.int8} and (quantized := getattr(norm, "int8", None)):
        return (quantized(x), x) if branch is None else quantized(x, branch)
    y, x = (norm(x), x) if branch is None else norm(x, branch)
    return (y.bfloat16() if reads == {torch.bfloat16} else y), x


class QKNorm(nn.Module):
    """``q e^(min(scale, log 100)/2) d^(-1/4) rsqrt(mean(q²) + 1e-6)`` for each head; q: (B, heads, N, d)."""

    def __init__(self, heads: int):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, math.log(10.0))

    def forward(self, q: Tensor) -> Tensor:
        factor = torch.exp(self.scale.clamp(max=math.log(100.0)) / 2 - math.log(q.shape[-1]) / 4)
        return F.rms_norm(q, q.shape[-1:], eps=1e-6) * factor[:, None, None]


class AxialRoPE(nn.Module):
    """Rotates the pairs (even, odd) of each head by learned frequencies of the row, then of the column."""

    def __init__(self, heads: int, head_dim: int):
        super().__init__()
        self.freqs_h, self.freqs_w = (nn.Parameter(torch.empty(heads, head_dim // 4)) for _ in range(2))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for freqs in (self.freqs_h, self.freqs_w):
            freqs.copy_(torch.linspace(math.log(math.pi), math.log(5 * math.pi), freqs.shape[1]))

    def rotation(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin, (heads, height * width, head_dim / 2); positions are the centers of cells in [-1, 1]."""
        wide = torch.promote_types(self.freqs_h.dtype, torch.float32)
        rows, columns = (
            (torch.arange(n, device=self.freqs_h.device, dtype=torch.float32) + 0.5) * 2 / n - 1
            for n in (height, width)
        )
        row_angles = rows[:, None] * self.freqs_h.to(wide).exp()[:, None]  # (heads, height, head_dim / 4)
        column_angles = columns[:, None] * self.freqs_w.to(wide).exp()[:, None]
        angles = torch.cat([row_angles.repeat_interleave(width, dim=1), column_angles.repeat(1, height, 1)], dim=-1)
        return angles.cos(), angles.sin()

    @staticmethod
    def rotate(q: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Return (a cos - b sin, b cos + a sin) for each pair (a, b). Tokens in front of the grid are not rotated."""
        cos, sin = rotation
        extra, q = q.split([q.shape[2] - cos.shape[1], cos.shape[1]], dim=2)
        a, b = q.to(cos.dtype).unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2).to(q.dtype)
        return torch.cat([extra, turned], dim=2)


def check_time_and_null(model: str, batch: int, **arguments: Tensor | None) -> None:
    """Check two arguments by their names: a time, (B,) or (1,), and the null indicator, (B,) bool or None."""
    (time_name, time), (null_name, null) = arguments.items()
    if not isinstance(time, Tensor) or time.shape not in ((1,), (batch,)):
        got = tuple(time.shape) if isinstance(time, Tensor) else type(time).__name__
        raise ValueError(f"{model}: {time_name} must be a tensor of shape (1,) or ({batch},), got {got}")
    if null is None:
        return
    if not isinstance(null, Tensor) or null.shape != (batch,) or null.dtype != torch.bool:
        got = f"{null.dtype} {tuple(null.shape)}" if isinstance(null, Tensor) else type(null).__name__
        raise ValueError(f"{model}: {null_name} must be a bool tensor of shape ({batch},), got {got}")


def check_positive(model: str, **arguments: object) -> None:
    for name, value in arguments.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{model}: {name} must be a positive integer, got {value!r}")


def check_layer(model: str, layer: object, count: int) -> None:
    if not isinstance(layer, int) or not 0 <= layer < count:
        raise ValueError(f"{model}: hidden must be the index of a block, 0 to {count - 1}, got {layer!r}")


def check_dtype(model: str, x: Tensor, weight: Tensor) -> None:
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(
            f"{model}: x must be {weight.dtype}, as the weights are, got {x.dtype}; convert it or the model"
        )


@torch.no_grad()
def reset(model: nn.Module) -> None:
    """Set initial values: weights truncated normal 0.02, biases 0; other layers have their own."""
    for module in reversed(list(model.modules())):  # parts first: what contains them may change them afterwards
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.Embedding)):
            nn.init.trunc_normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)
        elif module is not model and hasattr(module, "reset_parameters"):
            module.reset_parameters()
