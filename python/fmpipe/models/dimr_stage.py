"""A stage of DiMR: one resolution, made of transformer or ConvNeXt blocks.

What lies between the matrix products is fused: a sum that is still to be computed is passed on as (x, branch) until a
norm computes it in its own pass, and skips are never concatenated.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fmkernels import DepthwiseConv, Linear, TDLayerNorm, gelu_mul
from fmkernels.nn import time_dependent
from fmpipe.models.buffers import BufferPool, Skips, norm_of_concatenated
from fmpipe.models.layers import NORMS, AxialRoPE, QKNorm, add_norm, check_positive, inner


@dataclass(frozen=True)
class StageConfig:
    """The arguments of one resolution. Raises ValueError for arguments with which no stage can be built."""

    kind: Literal["transformer", "convnext"]
    dim: int  # width of the blocks
    hidden: int  # width of their MLPs
    blocks: int  # rounded to an odd number, n // 2 * 2 + 1
    grid: tuple[int, int]  # largest number of rows and columns, for which there are positions; or one number for both
    patch: int  # kernel and stride of the input convolution
    image_ratio: int = 1  # size of the windows over which a mean is taken before that convolution
    heads: int = 8  # of transformers
    kernel: int = 7  # of the depthwise convolutions of ConvNeXt
    final_kernel: int = 3  # of the output convolution

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
        """Size of one of this stage's pixels in pixels of the latent."""
        return self.patch * self.image_ratio


class Patches(nn.Conv2d):
    """A convolution with kernel = stride as one matrix product: (B, C, H, W) to (B, H / patch, W / patch, dim)."""

    def __init__(self, channels: int, dim: int, patch: int):
        super().__init__(channels, dim, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        r = self.kernel_size[0]
        x = x.unflatten(3, (-1, r)).unflatten(2, (-1, r)).permute(0, 2, 4, 1, 3, 5)  # (B, h, w, C, r, r)
        return F.linear(x.flatten(3), self.weight.flatten(1), self.bias)


class Positions(nn.Module):
    """Adds a learned vector to every cell of the grid (B, H, W, D); a smaller grid uses the first rows and columns."""

    def __init__(self, grid: tuple[int, int], dim: int):
        super().__init__()
        self.grid = grid
        self.position_embeddings = nn.Embedding(grid[0] * grid[1], dim)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[1:3]
        return x + self.position_embeddings.weight.view(*self.grid, -1)[:height, :width]


class Attention(nn.Module):
    """q, k, v → attention → dense on normed tokens (B, N, D); with RoPE, q and k are normed and rotated first.

    The block calls the norm, which computes the sum in the same pass.
    """

    def __init__(self, config: StageConfig, norm: str, rope: bool):
        super().__init__()
        self.heads = config.heads
        self.norm = NORMS[norm](config.dim)
        self.query_key_value = inner(Linear(config.dim, 3 * config.dim, bias=False))
        self.dense = inner(Linear(config.dim, config.dim))
        self.pos_emb = AxialRoPE(config.heads, config.dim // config.heads) if rope else None
        self.qk_norm = QKNorm(config.heads) if rope else None

    def forward(self, y: Tensor, grid: tuple[int, int]) -> Tensor:
        q, k, v = self.query_key_value(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.pos_emb is not None:
            rotation = self.pos_emb.rotation(*grid)
            q, k = (self.pos_emb.rotate(self.qk_norm(z), rotation).to(v.dtype) for z in (q, k))
        return self.dense(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class GatedMLP(nn.Module):
    """``w2 (gelu(w0 y) · w1 y)`` on normed y; the block calls the norm."""

    def __init__(self, config: StageConfig, norm: str):
        super().__init__()
        self.norm = NORMS[norm](config.dim)
        self.w0 = inner(Linear(config.dim, config.hidden))
        self.w1 = inner(Linear(config.dim, config.hidden))
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
        inner(self.block2.w2)  # a norm or a sum in fp32 reads it

    def forward(self, x: Tensor, branch: Tensor | None, grid: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        attention, mlp = self.block1, self.block2
        y, entered = add_norm(attention.norm, x, branch, attention.query_key_value)
        y, x = add_norm(mlp.norm, entered, attention(y, grid), mlp.w0, mlp.w1)
        return entered, x, mlp(y)


class ConvNeXtBlock(nn.Module):
    """x += depthwise convolution(x); x += mlp(x) on a grid (B, H, W, D).

    Returns its input and its output as (x, branch), as TransformerBlock does; its input must be a single tensor.
    """

    def __init__(self, config: StageConfig, norm: str, rope: bool):
        super().__init__()
        self.block1 = nn.Sequential(nn.Identity(), DepthwiseConv(config.dim, config.kernel))
        self.block2 = GatedMLP(config, norm)

    def forward(self, x: Tensor, branch: None, grid: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        mlp = self.block2
        y, summed = add_norm(mlp.norm, x, self.block1(x), mlp.w0, mlp.w1)
        return x, summed, mlp(y)


class SkipDense(Linear):
    """``weight · [x, skip] + bias`` as the sum of two products, without concatenating."""

    def __init__(self, dim: int):
        super().__init__(2 * dim, dim)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.product((x, skip)).to(x.dtype)


class Upsample(nn.Module):
    """The norm of the coarser stage's concatenated skips, projected to dim * r² and spread over r × r cells."""

    def __init__(self, width: int, dim: int, ratio: int):
        super().__init__()
        self.ratio = ratio
        self.kernel = Linear(width, dim * ratio**2)

    def spread(self, y: Tensor, x: Tensor) -> Tensor:
        """Return x (B, H, W, dim) plus y (B, N, r², dim), without the tokens of y in front of the grid."""
        r, (batch, height, width, dim) = self.ratio, x.shape
        h, w = height // r, width // r
        y = y[:, -h * w :].reshape(batch, h, w, r, r, dim).transpose(2, 3)  # (B, h, r, w, r, dim), the order of x
        return (x.reshape(y.shape) + y).view(x.shape)


class DiMRStage(nn.Module):
    """One resolution: its input, the skips of the coarser stage, its blocks, its velocity.

    The next stage overwrites the skips that it returns: a hook must clone those that it keeps.
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
        self, x: Tensor, below: list[Tensor] | None, null: Tensor | None, pool: BufferPool
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the velocity (B, C, H, W) at this resolution, and the skips for the next stage.

        The skips are the input and the output of every block, (B, N, D), with the null token in front if there is one.
        """
        x = self.input_layer(x)
        if below is not None:
            norm, up, norm_after = self.upsample
            normed = norm_of_concatenated(norm, below, pool, up.kernel.reads)
            y = torch.cat([up.kernel(rows) for rows in normed])
            below.clear()  # their buffers are reused by this stage
            y = norm_after(y.unflatten(-1, (up.ratio**2, -1)))  # over channels, so it can come before spreading
            x = up.spread(y, x)
        grid = x.shape[1:3]
        if self.is_transformer:
            x = self.tokens(x, null)
        blocks, half, branch = list(self.blocks), len(self.skip_denses), None
        skips = Skips(pool, x, len(blocks) + 1)
        for block in blocks[: half + 1]:
            if self.is_transformer:  # its first norm computes the sum
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
        """Return the grid row by row; if null is given, with a token in front that marks null samples."""
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
            # By then, the model may have been seeded for another forward.
            for module, value in values:
                module.curr_weight = value
            return block(*inputs)

        return self._gradient_checkpointing_func(again, *inputs)
