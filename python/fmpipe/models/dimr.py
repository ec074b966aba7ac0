"""DiMR, the multi-resolution velocity network: transformer and ConvNeXt stages, coarse to fine.

State-dict keys and results are CrossFlow's. What stands between the products is fused: a sum that is left to
be made travels as (x, branch) until a norm makes it in its own pass, and skips are never concatenated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from torch import Tensor, nn

from fmkernels import DepthwiseConv, Linear, TDLayerNorm, gelu_mul, linear
from fmkernels.nn import seed_time, time_dependent
from fmpipe.models.layers import (
    NORMS,
    AxialRoPE,
    QKNorm,
    add_norm,
    check_dtype,
    check_layer,
    check_positive,
    check_time_and_null,
    reset,
)
from fmpipe.models.room import Room, Skips, side_by_side


@dataclass(frozen=True)
class StageConfig:
    """One resolution, ``dim`` wide, with ``hidden`` channels in the MLPs of its blocks.

    ``grid``: the most rows and columns its learned positions have room for, one number if they are equal. ``patch``:
    kernel and stride of the input convolution; ``image_ratio``: a mean over windows of this size goes first. ``blocks``
    is rounded to an odd number (n // 2 * 2 + 1). ``heads`` is for transformers, ``kernel``, of the depthwise
    convolution, for ConvNeXt; ``final_kernel``: of the output convolution. Raises ValueError on what cannot be built.
    """

    kind: Literal["transformer", "convnext"]
    dim: int
    hidden: int
    blocks: int
    grid: tuple[int, int]
    patch: int
    image_ratio: int = 1
    heads: int = 8
    kernel: int = 7
    final_kernel: int = 3

    def __post_init__(self):
        grid = tuple(self.grid) if isinstance(self.grid, (list, tuple)) else (self.grid, self.grid)
        object.__setattr__(self, "grid", grid)
        if self.kind not in ("transformer", "convnext"):
            raise ValueError(f"StageConfig: kind must be 'transformer' or 'convnext', got {self.kind!r}")
        names = ("dim", "hidden", "blocks", "patch", "image_ratio", "heads", "kernel", "final_kernel")
        check_positive("StageConfig", **{name: getattr(self, name) for name in names})
        if len(grid) != 2 or not all(isinstance(n, int) and n > 0 for n in grid):
            raise ValueError(f"StageConfig: grid must be one or two positive integers, got {self.grid!r}")
        if self.kind == "transformer" and self.dim % self.heads:
            raise ValueError(f"StageConfig: dim must be a multiple of heads, got {self.dim} and {self.heads}")
        for name in ("kernel", "final_kernel"):
            if getattr(self, name) % 2 == 0:
                raise ValueError(f"StageConfig: {name} must be odd, got {getattr(self, name)}")

    @property
    def ratio(self) -> int:
        """Pixels of the latent in one of this stage's, along an axis."""
        return self.patch * self.image_ratio


class Patches(nn.Conv2d):
    """A convolution whose kernel is its stride, as one product: (B, C, H, W) to (B, H / patch, W / patch, dim)."""

    def __init__(self, channels: int, dim: int, patch: int):
        super().__init__(channels, dim, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        r = self.kernel_size[0]
        x = x.unflatten(3, (-1, r)).unflatten(2, (-1, r)).permute(0, 2, 4, 1, 3, 5)  # (B, h, w, C, r, r)
        return F.linear(x.flatten(3), self.weight.flatten(1), self.bias)


class Positions(nn.Module):
    """Adds a learned vector to every place of the grid (B, H, W, D); a smaller grid uses its own rows and columns."""

    def __init__(self, grid: tuple[int, int], dim: int):
        super().__init__()
        self.grid = grid
        self.position_embeddings = nn.Embedding(grid[0] * grid[1], dim)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[1:3]
        return x + self.position_embeddings.weight.view(*self.grid, -1)[:height, :width]


class Attention(nn.Module):
    """q, k, v → attention → dense on normed tokens (B, N, D); with RoPE, q and k are normed and turned first.

    The norm is the block's to call: it makes a sum on the way."""

    def __init__(self, config: StageConfig, norm: str, rope: bool):
        super().__init__()
        self.heads = config.heads
        self.norm = NORMS[norm](config.dim)
        self.query_key_value = Linear(config.dim, 3 * config.dim, bias=False)
        self.dense = Linear(config.dim, config.dim)
        self.pos_emb = AxialRoPE(config.heads, config.dim // config.heads) if rope else None
        self.qk_norm = QKNorm(config.heads) if rope else None

    def forward(self, y: Tensor, grid: tuple[int, int]) -> Tensor:
        q, k, v = self.query_key_value(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.pos_emb is not None:
            rotation = self.pos_emb.rotation(*grid)
            q, k = (self.pos_emb.rotate(self.qk_norm(z), rotation) for z in (q, k))
        return self.dense(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class GatedMLP(nn.Module):
    """``w2 (gelu(w0 y) · w1 y)`` on normed y; the norm is the block's to call."""

    def __init__(self, config: StageConfig, norm: str):
        super().__init__()
        self.norm = NORMS[norm](config.dim)
        self.w0 = Linear(config.dim, config.hidden)
        self.w1 = Linear(config.dim, config.hidden)
        self.w2 = Linear(config.hidden, config.dim)

    def forward(self, y: Tensor) -> Tensor:
        return self.w2(gelu_mul(self.w0(y), self.w1(y)))


class TransformerBlock(nn.Module):
    """x += attention(x); x += mlp(x) on tokens (B, N, D).

    Takes its input as the sum x + branch (or x), returns it summed, and its output as (x, branch).
    """

    def __init__(self, config: StageConfig, norm: str, rope: bool):
        super().__init__()
        self.block1 = Attention(config, norm, rope)
        self.block2 = GatedMLP(config, norm)

    def forward(self, x: Tensor, branch: Tensor | None, grid: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        y, entered = add_norm(self.block1.norm, x, branch)
        y, x = add_norm(self.block2.norm, entered, self.block1(y, grid))
        return entered, x, self.block2(y)


class ConvNeXtBlock(nn.Module):
    """x += depthwise convolution(x); x += mlp(x) on a grid (B, H, W, D).

    Returns its input and its output as (x, branch), as TransformerBlock does; its input must be summed before."""

    def __init__(self, config: StageConfig, norm: str, rope: bool):
        super().__init__()
        self.block1 = nn.Sequential(nn.Identity(), DepthwiseConv(config.dim, config.kernel))
        self.block2 = GatedMLP(config, norm)

    def forward(self, x: Tensor, branch: None, grid: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        y, summed = self.block2.norm(x, self.block1(x))
        return x, summed, self.block2(y)


class SkipDense(nn.Linear):
    """``weight · [x, skip] + bias`` as two products into one sum: nothing is concatenated."""

    def __init__(self, dim: int):
        super().__init__(2 * dim, dim)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return linear((x, skip), self.weight, self.bias).to(x.dtype)


class Upsample(nn.Module):
    """The skips of the stage below, normed as if side by side, brought to dim * r² and spread over r × r places."""

    def __init__(self, width: int, dim: int, ratio: int):
        super().__init__()
        self.ratio = ratio
        self.kernel = Linear(width, dim * ratio**2)

    def spread(self, y: Tensor, x: Tensor) -> Tensor:
        """x (B, H, W, dim) plus y (B, N, r², dim); tokens of y in front of the grid are left out."""
        r, (batch, height, width, dim) = self.ratio, x.shape
        h, w = height // r, width // r
        y = y[:, -h * w :].reshape(batch, h, w, r, r, dim).transpose(2, 3)  # (B, h, r, w, r, dim), as x's rows lie
        return (x.reshape(y.shape) + y).view(x.shape)


class Stage(nn.Module):
    """One resolution: its input, what comes from the stage below, its blocks, its velocity.

    The skips it returns are the next stage's to use up: a hook that wants to keep them clones them.
    """

    def __init__(self, config: StageConfig, below: StageConfig | None, channels: int, norm: str, rope: bool):
        super().__init__()
        self.gradient_checkpointing = False
        dim, half, self.is_transformer = config.dim, config.blocks // 2, config.kind == "transformer"
        down = nn.AvgPool2d(config.image_ratio) if config.image_ratio > 1 else nn.Identity()
        patches = Patches(channels, dim, config.patch)
        self.input_layer = nn.Sequential(down, patches, nn.Identity(), Positions(config.grid, dim))
        if below:
            width = below.dim * (below.blocks // 2 * 2 + 2)
            up = Upsample(width, dim, below.ratio // config.ratio)
            self.upsample = nn.Sequential(TDLayerNorm(width), up, TDLayerNorm(dim))
        if self.is_transformer:
            self.tensor_true, self.tensor_false = nn.Parameter(torch.empty(1)), nn.Parameter(torch.empty(1))
            self.reset_parameters()
        block = TransformerBlock if self.is_transformer else ConvNeXtBlock
        self.blocks = nn.ModuleList([block(config, norm, rope) for _ in range(2 * half + 1)])
        self.skip_denses = nn.ModuleList([SkipDense(dim) for _ in range(half)])
        velocity = nn.Conv2d(dim, channels, config.final_kernel, padding=config.final_kernel // 2)
        self.output_layer = nn.Sequential(TDLayerNorm(dim), nn.Identity(), velocity)

    def forward(
        self, x: Tensor, below: list[Tensor] | None, null: Tensor | None, room: Room
    ) -> tuple[Tensor, list[Tensor]]:
        """The velocity (B, C, H, W) at this resolution, and the skips for the stage above: the input and every
        block's output, (B, N, D), maybe with the null token in front."""
        x = self.input_layer(x)
        if below is not None:
            norm, up, norm_after = self.upsample
            y = torch.cat([up.kernel(normed) for normed in side_by_side(norm, below, room)])
            below.clear()  # from here on their room is this stage's
            y = norm_after(y.unflatten(-1, (up.ratio**2, -1)))  # over channels: it may come before the spreading
            x = up.spread(y, x)
        grid = x.shape[1:3]
        if self.is_transformer:
            x = self.tokens(x, null)
        blocks, half, branch = list(self.blocks), len(self.skip_denses), None
        skips = Skips(room, x, len(blocks) + 1)
        for block in blocks[: half + 1]:
            if self.is_transformer:  # its first norm makes the sum
                entered, x, branch = self.run(block, x, branch, grid)
                skips.add(entered)
            else:
                _, x, branch = self.run(block, skips.add(x, branch), None, grid)
        for block, dense, skip in zip(blocks[half + 1 :], self.skip_denses, skips[:0:-1], strict=True):
            _, x, branch = self.run(block, dense(skips.add(x, branch), skip), None, grid)
        norm, _, velocity = self.output_layer
        y, x = norm(x, branch)
        skips.add(x)
        if self.is_transformer:
            y = y[:, -grid.numel() :].unflatten(1, grid)
        return velocity(y.movedim(-1, 1)).contiguous(), [skip.flatten(1, -2) for skip in skips]

    def reset_parameters(self) -> None:
        if self.is_transformer:
            nn.init.constant_(self.tensor_true, -1.0)
            nn.init.constant_(self.tensor_false, 1.0)

    def tokens(self, x: Tensor, null: Tensor | None) -> Tensor:
        """The grid row by row; in front, if null is given, a token that says which samples are null."""
        x = x.flatten(1, 2)
        if null is None:
            return x
        flag = torch.where(null, self.tensor_true, self.tensor_false).to(x.dtype)
        return torch.cat([flag[:, None, None].expand(-1, 1, x.shape[-1]), x], dim=1)

    def run(self, block: nn.Module, *inputs) -> tuple[Tensor, Tensor, Tensor]:
        if not self.gradient_checkpointing or not torch.is_grad_enabled():
            return block(*inputs)
        values = [(module, module.curr_weight) for module in time_dependent(block)]

        def again(*inputs):
            # By the time of the backward the model may have been seeded for another forward.
            for module, value in values:
                module.curr_weight = value
            return block(*inputs)

        return self._gradient_checkpointing_func(again, *inputs)


class DiMR(ModelMixin, ConfigMixin):
    """CrossFlow's multi-resolution velocity network: keys and results are the same.

    Called with log_snr, as CrossFlow's is; ``velocity`` and ``velocities`` take t in [0, 1].
    stage_configs: coarse to fine, each a :class:`StageConfig` or its fields as a dict. norm_type: of the blocks.
    positions: ``APE``, learned, or ``Axial_RoPE``, which transformer stages have in addition.
    """

    _supports_gradient_checkpointing = True
    _no_split_modules = ["TransformerBlock", "ConvNeXtBlock"]  # noqa: RUF012 (diffusers' name and type)

    def __init__(
        self,
        stage_configs: Sequence[StageConfig | Mapping],
        channels: int = 4,
        norm_type: Literal["LN", "RMSN", "TDRMSN", "ADARMSN"] = "TDRMSN",
        positions: Literal["APE", "Axial_RoPE"] = "APE",
    ):
        super().__init__()
        configs = [stage if isinstance(stage, StageConfig) else StageConfig(**stage) for stage in stage_configs]
        check_positive("DiMR", channels=channels)
        _check(configs, norm_type, positions)
        self.register_to_config(
            stage_configs=[asdict(config) for config in configs],
            channels=channels,
            norm_type=norm_type,
            positions=positions,
        )
        rope = positions == "Axial_RoPE"
        self.ratios = [config.ratio for config in configs]
        below = [None, *configs[:-1]]
        self.stages = nn.ModuleList(
            [Stage(config, b, channels, norm_type, rope) for config, b in zip(configs, below, strict=True)]
        )
        self.room = Room()
        self.reset_parameters()

    @property
    def hidden_widths(self) -> list[int]:
        """The width of the output of every block, over all stages, coarse to fine."""
        return [stage["dim"] for stage in self.config.stage_configs for _ in range(stage["blocks"] // 2 * 2 + 1)]

    def forward(
        self, x: Tensor, log_snr: Tensor, null_indicator: Tensor | None = None, *, hidden: int | None = None
    ) -> list[Tensor] | tuple[list[Tensor], Tensor]:
        """A velocity for each stage, coarse to fine, (B, C, H / ratio, W / ratio).

        x: (B, C, H, W). log_snr: (B,), or one element for all. null_indicator: (B,) bool, True where the sample is
        unconditional; left out, there is no indicator token at all. hidden: index of a block over all stages, coarse to
        fine; its output is returned too, (velocities, (B, H / ratio, W / ratio, D)), ratio and D those of its stage.
        """
        channels, ratio = self.config.channels, max(self.ratios)
        if x.dim() != 4 or x.shape[1] != channels or x.shape[2] % ratio or x.shape[3] % ratio:
            raise ValueError(
                f"DiMR: x must be (B, {channels}, H, W) with H and W multiples of {ratio}, got {tuple(x.shape)}"
            )
        check_time_and_null("DiMR", len(x), log_snr=log_snr, null_indicator=null_indicator)
        for i, (r, config) in enumerate(zip(self.ratios, self.config.stage_configs, strict=True)):
            if x.shape[2] // r > config["grid"][0] or x.shape[3] // r > config["grid"][1]:
                raise ValueError(
                    f"DiMR: x of {tuple(x.shape[2:])} is too large for the positions of stage {i}, a grid of "
                    f"{tuple(config['grid'])} at 1/{r} of its size"
                )
        weight = self.stages[0].input_layer[1].weight
        check_dtype("DiMR", x, weight)
        if weight.is_meta and not x.is_meta:
            raise RuntimeError(
                "DiMR: its parameters are not on a device (sequential offload?): all of them are evaluated before the "
                "first layer runs; use enable_model_cpu_offload() instead"
            )
        if hidden is not None:
            check_layer("DiMR", hidden, len(self.hidden_widths))
        seed_time(self, log_snr)
        velocities, skips, taken, left = [], None, None, hidden
        for stage, r in zip(self.stages, self.ratios, strict=True):
            velocity, skips = stage(x, skips, null_indicator, self.room)
            velocities.append(velocity)
            if left is not None and 0 <= left < len(stage.blocks):
                grid = x.shape[2] // r, x.shape[3] // r
                taken = skips[left + 1][:, -grid[0] * grid[1] :].unflatten(1, grid)  # the first is the stage's input
                if self.room.buffers:  # the next stage reuses its memory
                    taken = taken.clone()
            left = None if left is None else left - len(stage.blocks)
        return velocities if hidden is None else (velocities, taken)

    def velocities(
        self, x: Tensor, t: Tensor, *, null: Tensor | None = None, hidden: int | None = None
    ) -> list[Tensor] | tuple[list[Tensor], Tensor]:
        """A velocity for each stage at t, (B,) or one element, in [0, 1]; what they are to be is ``targets``.

        hidden: as in ``forward``.
        """
        check_time_and_null("DiMR", len(x), t=t, null=null)
        return self(x, 4 - 8 * t, null) if hidden is None else self(x, 4 - 8 * t, null, hidden=hidden)

    def velocity(self, x: Tensor, t: Tensor, *, null: Tensor | None = None, cond: None = None) -> Tensor:
        """The finest stage's velocity at t in [0, 1]: what ``fmkernels.sample`` calls. The text is in x: no cond."""
        if cond is not None:
            raise ValueError("DiMR.velocity: cond must be None: this network gets the text through z0")
        return self.velocities(x, t, null=null)[-1]

    def targets(self, v: Tensor) -> list[Tensor]:
        """What each stage's velocity is to be: v (B, C, H, W) summed over ratio² windows, divided by the ratio."""
        return [v if r == 1 else F.avg_pool2d(v, r) * r for r in self.ratios]

    def _apply(self, *args, **kwargs):
        self.room.buffers.clear()  # of the dtype and device it had
        return super()._apply(*args, **kwargs)

    def reset_parameters(self) -> None:
        """CrossFlow's initial values (:func:`fmpipe.models.layers.reset`), kept because they train best.

        Measured on a 1.2 M network of 9 + 5 blocks, 300 steps on a synthetic flow: a normalised error of 0.137, against
        0.147 with the outputs zeroed, and 0.31 with fan-in scaled weights and every branch zeroed.
        """
        reset(self)


def _check(configs: list[StageConfig], norm_type: str, positions: str) -> None:
    if not configs:
        raise ValueError("DiMR: stage_configs must have at least one stage")
    if norm_type not in NORMS:
        raise ValueError(f"DiMR: norm_type must be one of {', '.join(NORMS)}, got {norm_type!r}")
    if positions not in ("APE", "Axial_RoPE"):
        raise ValueError(f"DiMR: positions must be 'APE' or 'Axial_RoPE', got {positions!r}")
    for below, stage in pairwise(configs):
        if below.ratio % stage.ratio:
            raise ValueError(
                f"DiMR: stages must go from coarse to fine by whole factors, got ratios {below.ratio} and {stage.ratio}"
            )
    for stage in configs:
        if positions == "Axial_RoPE" and stage.kind == "transformer" and stage.dim // stage.heads % 4:
            raise ValueError(
                f"DiMR: Axial_RoPE needs dim / heads to be a multiple of 4, got {stage.dim} / {stage.heads}"
            )
