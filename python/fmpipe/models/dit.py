"""The adaLN-zero DiT as a velocity network; the null indicator is its class. Keys and results are CrossFlow's."""

import math

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from einops import rearrange
from torch import Tensor, nn

from fmkernels import Linear, td_layer_norm
from fmpipe.models.layers import check_dtype, check_layer, check_positive, check_time_and_null, inner
from fmpipe.precision import SavesQuantized

FREQUENCIES = 128  # of the time features


def modulated_norm(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """``layer_norm(x) (1 + scale) + shift`` without learned parameters; shift, scale: (B, D)."""
    return td_layer_norm(x, 1 + scale, shift, eps=1e-6)


class TimeEmbedding(nn.Module):
    """cos and sin of ``t 10000^(-i/128)``, t in [0, 1] as it is, through two linear layers."""

    def __init__(self, dim: int):
        super().__init__()
        self.mlp = nn.Sequential(Linear(2 * FREQUENCIES, dim), nn.SiLU(), Linear(dim, dim))

    def forward(self, t: Tensor) -> Tensor:
        frequencies = torch.exp(torch.arange(FREQUENCIES, device=t.device) * (-math.log(10000) / FREQUENCIES))
        angles = t.float()[:, None] * frequencies
        return self.mlp(torch.cat([angles.cos(), angles.sin()], dim=-1).to(self.mlp[0].bias.dtype))


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = inner(Linear(dim, 3 * dim)), Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.fc1, self.fc2 = inner(Linear(dim, 4 * dim)), Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class Block(nn.Module):
    """x += gate attention(norm(x)); x += gate mlp(norm(x)), each norm modulated by c = SiLU(condition)."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.attn, self.mlp = Attention(dim, heads), MLP(dim)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(dim, 6 * dim))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = self.adaLN_modulation[1](c).chunk(6, dim=-1)
        x = torch.addcmul(x, gate[:, None], self.attn(modulated_norm(x, shift, scale)))
        return torch.addcmul(x, gate_mlp[:, None], self.mlp(modulated_norm(x, shift_mlp, scale_mlp)))


class FinalLayer(nn.Module):
    def __init__(self, dim: int, width: int):
        super().__init__()
        self.linear = Linear(dim, width)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(dim, 2 * dim))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        return self.linear(modulated_norm(x, *self.adaLN_modulation[1](c).chunk(2, dim=-1)))


def sin_cos_positions(grid: int, dim: int) -> Tensor:
    """(1, grid², dim): for the column, then for the row, sines then cosines of dim / 4 frequencies."""
    frequencies = 10000.0 ** (-torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    angles = torch.arange(grid, dtype=torch.float64)[:, None] * frequencies
    axis = torch.cat([angles.sin(), angles.cos()], dim=-1)
    return torch.cat([axis.repeat(grid, 1), axis.repeat_interleave(grid, dim=0)], dim=-1)[None].float()


class DiT(SavesQuantized, ModelMixin, ConfigMixin):
    """The adaLN-zero DiT on latents (B, channels, size, size) cut in patches; dim, depth, heads: of its blocks.

    Called with t in [0, 1] itself, where DiMR is called with log_snr; ``velocity`` is the same for both.
    """

    _supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012 (diffusers' name and type)

    @register_to_config
    def __init__(
        self, size: int = 32, channels: int = 4, patch: int = 2, dim: int = 384, depth: int = 12, heads: int = 6
    ):
        super().__init__()
        check_positive("DiT", size=size, channels=channels, patch=patch, dim=dim, depth=depth, heads=heads)
        if size % patch:
            raise ValueError(f"DiT: size must be a multiple of patch, got {size} and {patch}")
        if dim % heads or dim % 4:
            raise ValueError(f"DiT: dim must be a multiple of heads and of 4, got {dim} and {heads} heads")
        self.gradient_checkpointing = False
        self.x_embedder = nn.ModuleDict({"proj": nn.Conv2d(channels, dim, patch, stride=patch)})
        self.t_embedder = TimeEmbedding(dim)
        self.y_embedder = nn.ModuleDict({"embedding_table": nn.Embedding(2, dim)})  # conditional, and null
        self.register_buffer("pos_embed", torch.empty(1, (size // patch) ** 2, dim))
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.final_layer = FinalLayer(dim, patch**2 * channels)
        self.reset_parameters()

    @property
    def hidden_widths(self) -> list[int]:
        """The width of the output of every block."""
        return [self.config.dim] * self.config.depth

    def forward(
        self, x: Tensor, t: Tensor, null_indicator: Tensor | None = None, *, hidden: int | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The velocity (B, C, size, size) at t (B,) in [0, 1]; null_indicator: (B,) bool, left out for none.

        hidden: index of a block. Its output is also returned, (velocity, (B, size / patch, size / patch, dim)).
        """
        channels, size, patch = self.config.channels, self.config.size, self.config.patch
        if x.shape[1:] != (channels, size, size):
            raise ValueError(f"DiT: x must be (B, {channels}, {size}, {size}), got {tuple(x.shape)}")
        check_dtype("DiT", x, self.x_embedder.proj.weight)
        check_time_and_null("DiT", len(x), t=t, null_indicator=null_indicator)
        if hidden is not None:
            check_layer("DiT", hidden, len(self.blocks))
        null = torch.zeros_like(t, dtype=torch.bool) if null_indicator is None else null_indicator
        y = rearrange(self.x_embedder.proj(x), "b c h w -> b (h w) c") + self.pos_embed
        c = F.silu(self.t_embedder(t) + self.y_embedder.embedding_table(null.long()))
        taken = None
        for k, block in enumerate(self.blocks):
            if self.gradient_checkpointing and torch.is_grad_enabled():
                y = self._gradient_checkpointing_func(block, y, c)
            else:
                y = block(y, c)
            if k == hidden:
                taken = y.unflatten(1, (size // patch, -1))
        velocity = rearrange(
            self.final_layer(y, c), "b (h w) (r s c) -> b c (h r) (w s)", h=size // patch, r=patch, s=patch
        ).contiguous()
        return velocity if hidden is None else (velocity, taken)

    def velocities(
        self, x: Tensor, t: Tensor, *, null: Tensor | None = None, hidden: int | None = None
    ) -> list[Tensor] | tuple[list[Tensor], Tensor]:
        """Return the velocity in a list, as DiMR does. hidden: as in ``forward``."""
        if hidden is None:
            return [self(x, t, null)]
        velocity, taken = self(x, t, null, hidden=hidden)
        return [velocity], taken

    def velocity(self, x: Tensor, t: Tensor, *, null: Tensor | None = None, cond: None = None) -> Tensor:
        """Return the velocity, as ``fmkernels.sample`` needs it; cond must be None."""
        if cond is not None:
            raise ValueError("DiT.velocity: cond must be None: this network gets the text through z0")
        return self(x, t, null)

    def targets(self, v: Tensor) -> list[Tensor]:
        """Return the targets of ``velocities``: v itself."""
        return [v]

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Xavier; embeddings normal 0.02; modulations and the output zero, so every block starts as the identity."""
        self.pos_embed.copy_(sin_cos_positions(self.config.size // self.config.patch, self.config.dim))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.xavier_uniform_(self.x_embedder.proj.weight.flatten(1))
        nn.init.zeros_(self.x_embedder.proj.bias)
        for weight in (self.y_embedder.embedding_table.weight, *(self.t_embedder.mlp[i].weight for i in (0, 2))):
            nn.init.normal_(weight, std=0.02)
        zero = [self.final_layer.linear, *(m.adaLN_modulation[1] for m in (*self.blocks, self.final_layer))]
        for linear in zero:
            nn.init.zeros_(linear.weight)
