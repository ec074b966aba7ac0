"""Variational text heads: token states (B, L, D) and a mask to mu and logvar of z0, (B, C, H, W) each."""

from collections.abc import Sequence
from math import log, prod

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from fmkernels import Linear
from fmpipe.models.layers import check_positive, reset

DROPOUT = 0.1
LARGEST_LINEAR = 8192  # moments; more come from the adaptor
SIDE = 64  # of the adaptor's square map


class StdNorm(nn.Module):
    """``g (x - mean) / (std + 1e-5) + b`` with the unbiased standard deviation and eps outside the square root."""

    def __init__(self, dim: int):
        super().__init__()
        self.g, self.b = nn.Parameter(torch.empty(dim)), nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.g)
        nn.init.zeros_(self.b)

    def forward(self, x: Tensor) -> Tensor:
        std, mean = torch.std_mean(x, dim=-1, keepdim=True)
        return self.g * (x - mean) / (std + 1e-5) + self.b


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.W_Q, self.W_K, self.W_V, self.W_O = (Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor, keep: Tensor | None) -> Tensor:
        """Return the attention. If no token is kept, all scores are equal and values are averaged, as in CrossFlow."""
        q, k, v = (w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.W_Q, self.W_K, self.W_V))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, None], max(-1e9, torch.finfo(scores.dtype).min))
        weights = F.dropout(scores.softmax(dim=-1), self.dropout, self.training)
        return self.W_O((weights @ v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int, dropout: float):
        super().__init__()
        self.dropout = dropout
        self.ffn_1, self.ffn_2 = Linear(dim, hidden), Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.ffn_2(F.dropout(F.relu(self.ffn_1(x)), self.dropout, self.training))


class EncoderLayer(nn.Module):
    """Post-norm: a = norm1(x + attention), y = norm2(a + ffn(a)); with ``reduce`` a linear layer to dim / 2 follows."""

    def __init__(self, dim: int, hidden: int, heads: int, dropout: float, reduce: bool = False):
        super().__init__()
        self.dropout = dropout
        self.attn, self.feed_forward = Attention(dim, heads, dropout), FeedForward(dim, hidden, dropout)
        self.norm1, self.norm2 = StdNorm(dim), StdNorm(dim)
        self.reduction = Linear(dim, dim // 2) if reduce else None

    def forward(self, x: Tensor, keep: Tensor | None) -> Tensor:
        x = self.norm1(x + F.dropout(self.attn(x, keep), self.dropout, self.training))
        x = self.norm2(x + F.dropout(self.feed_forward(x), self.dropout, self.training))
        return x if self.reduction is None else self.reduction(x)


class Compressor(nn.Module):
    """fc2(relu(norm(fc1))): wide text states to the width of the encoder."""

    def __init__(self, width: int, dim: int):
        super().__init__()
        self.fc1, self.ln_fc1, self.fc2 = Linear(width, dim), nn.LayerNorm(dim), Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.ln_fc1(self.fc1(x))))


class Adaptor(nn.Module):
    """Two linear layers to a 64 × 64 map, three convolutions to ``channels`` of them."""

    def __init__(self, width: int, channels: int):
        super().__init__()
        area = SIDE**2
        self.fc1, self.ln_fc1 = Linear(width, area), nn.LayerNorm(area)
        self.fc2, self.ln_fc2 = Linear(area, area), nn.LayerNorm(area)
        self.conv1, self.ln_conv1 = nn.Conv2d(1, 32, 3, padding=1), nn.LayerNorm([32, SIDE, SIDE])
        self.conv2, self.ln_conv2 = nn.Conv2d(32, 64, 3, padding=1), nn.LayerNorm([64, SIDE, SIDE])
        self.conv3 = nn.Conv2d(64, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.ln_fc1(self.fc1(x)))
        x = F.relu(self.ln_fc2(self.fc2(x))).view(-1, 1, SIDE, SIDE)
        x = F.relu(self.ln_conv1(self.conv1(x)))
        x = F.relu(self.ln_conv2(self.conv2(x)))
        return self.conv3(x).flatten(1)


class VariationalHead(ModelMixin, ConfigMixin):
    """The base of all heads: a subclass computes ``moments``, and ``forward`` turns them into mu and logvar.

    mu_rms: mu of every sample is rescaled to this rms, so it cannot diverge. std_range: sigma stays between the two
    values (logvar is a sigmoid between their logarithms), so z0 cannot become so sharp that x_t reveals z1, or so large
    that it dominates v*. With None, as in CrossFlow, mu and sigma are free.
    """

    def moments(self, states: Tensor, keep: Tensor | None) -> Tensor:
        """Return (B, 2 C H W), all of mu, then all of logvar. states: (B, L, D), keep: (B, L) bool or None."""
        raise NotImplementedError

    def forward(self, states: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return mu and logvar, (B, C, H, W) each. states: (B, tokens, width). mask: (B, tokens), zero for padding."""
        moments = self.moments(states, self.checked_mask(states, mask))
        mu, logvar = moments.view(-1, 2, *self.config.latent_shape).unbind(1)
        if self.config.mu_rms is not None:
            rms = mu.float().square().mean((1, 2, 3), keepdim=True).sqrt().clamp_min(1e-6)
            mu = (mu * (self.config.mu_rms / rms)).to(logvar.dtype)
        return mu, logvar if self.config.std_range is None else self.within_range(logvar)

    def checked_mask(self, states: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the mask as bool, or None; raise ValueError if states or mask have another shape than expected."""
        expected = (self.config.tokens, self.config.width)
        if states.dim() != 3 or states.shape[1:] != expected:
            raise ValueError(
                f"{type(self).__name__}: states must be (B, {expected[0]}, {expected[1]}), got {tuple(states.shape)}"
            )
        if mask is not None and (not isinstance(mask, Tensor) or mask.shape != states.shape[:2]):
            got = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(f"{type(self).__name__}: mask must be a tensor of {tuple(states.shape[:2])}, got {got}")
        return None if mask is None else mask != 0

    def within_range(self, logvar: Tensor) -> Tensor:
        """Return logvars between those of ``std_range``, from numbers without bounds."""
        low, high = (2 * log(std) for std in self.config.std_range)
        return low + (high - low) * logvar.sigmoid()

    def settled(self, z: Tensor) -> Tensor | None:
        """Return latents (B, C, H, W) drawn toward the components of a mixture; None if there are none to draw to."""
        return None

    def fitted(self, states: Tensor, mask: Tensor | None, targets: Tensor, temperature: float) -> tuple:
        """Return mu and logvar for training with known images, a loss or None, and numbers for the log.

        Only mixtures use targets (B, C, H, W), what mu should be, and temperature.
        """
        return *self(states, mask), None, {}

    def reset_parameters(self) -> None:
        """Set CrossFlow's initial values (:func:`fmpipe.models.layers.reset`): z0 starts near N(0, I)."""
        reset(self)


def _check_dropout(head: str, dropout: float) -> None:
    if not 0 <= dropout < 1:
        raise ValueError(f"{head}: dropout must be in [0, 1), got {dropout!r}")


class TextHead(VariationalHead):
    """CrossFlow's head: a post-norm transformer encoder, layers that halve the channels, and one linear layer.

    width: of the text states; compressed: the width to which they are projected first (CrossFlow: 1024 for 4096).
    blocks, hidden, heads, dropout: of the encoder. tokens: L. latent_shape: (C, H, W) of z0. last_norm: a norm over the
    moments.
    """

    _supports_gradient_checkpointing = True
    _no_split_modules = ["EncoderLayer"]  # noqa: RUF012 (diffusers' name and type)

    @register_to_config
    def __init__(
        self,
        width: int = 768,
        tokens: int = 77,
        latent_shape: Sequence[int] = (4, 32, 32),
        blocks: int = 11,
        hidden: int = 1024,
        heads: int = 8,
        reductions: int = 3,
        compressed: int | None = None,
        last_norm: bool = False,
        mu_rms: float | None = None,
        std_range: Sequence[float] | None = None,
        dropout: float = DROPOUT,
    ):
        super().__init__()
        _check_dropout("TextHead", dropout)
        check_positive("TextHead", width=width, tokens=tokens, blocks=blocks, hidden=hidden, heads=heads)
        if not isinstance(reductions, int) or reductions < 0:
            raise ValueError(f"TextHead: reductions must be 0 or more, got {reductions!r}")
        dim, moments = compressed or width, 2 * prod(latent_shape)
        if dim % 2**reductions or any((dim >> i) % heads for i in range(max(reductions, 1))):
            raise ValueError(
                f"TextHead: width {dim} must be divisible by 2^{reductions}, and by {heads} heads after each halving"
            )
        if compressed:
            self.compressor = Compressor(width, compressed)
        self.layers = nn.ModuleList([EncoderLayer(dim, hidden, heads, dropout) for _ in range(blocks)])
        self.reduction_layers = nn.ModuleList(
            [EncoderLayer(dim >> i, hidden, heads, dropout, reduce=True) for i in range(reductions)]
        )
        flat = tokens * (dim >> reductions)
        self.gradient_checkpointing, self.adaptor, self.norm = False, None, None
        if moments <= LARGEST_LINEAR:
            self.linear = Linear(flat, moments)
            self.norm = StdNorm(moments) if last_norm else None
        elif moments % SIDE**2 or last_norm:
            raise ValueError(
                f"TextHead: latent_shape {tuple(latent_shape)} needs the adaptor, whose moments are a multiple of "
                f"{SIDE}² and have no last_norm"
            )
        else:
            self.adaptor = Adaptor(flat, moments // SIDE**2)
        self.reset_parameters()

    def moments(self, states: Tensor, keep: Tensor | None) -> Tensor:
        x = self.compressor(states) if self.config.compressed else states
        for layer in (*self.layers, *self.reduction_layers):
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x = self._gradient_checkpointing_func(layer, x, keep)
            else:
                x = layer(x, keep)
        x = x.flatten(1)
        if self.adaptor is not None:
            return self.adaptor(x)
        return self.linear(x) if self.norm is None else self.norm(self.linear(x))


class LinearHead(VariationalHead):
    """Three linear layers on the concatenated tokens, as in the debugging notes; masked tokens are zeros.

    pooled: use the mean of the tokens, scaled to length √width, instead. MiniLM was trained for this: paraphrases are
    close to each other, whatever the position of a word. dropout: after both GELUs.
    """

    _supports_gradient_checkpointing = True

    @register_to_config
    def __init__(
        self,
        width: int = 768,
        tokens: int = 77,
        latent_shape: Sequence[int] = (4, 32, 32),
        hidden: int = 1024,
        mu_rms: float | None = None,
        std_range: Sequence[float] | None = None,
        pooled: bool = False,
        dropout: float = 0.0,
    ):
        super().__init__()
        _check_dropout("LinearHead", dropout)
        self.layers = nn.Sequential(
            Linear(width if pooled else tokens * width, hidden),
            nn.GELU(),
            Linear(hidden, hidden),
            nn.GELU(),
            Linear(hidden, 2 * prod(latent_shape)),
        )
        self.gradient_checkpointing = False
        self.reset_parameters()

    def moments(self, states: Tensor, keep: Tensor | None) -> Tensor:
        if self.gradient_checkpointing and torch.is_grad_enabled():
            return self._gradient_checkpointing_func(self._moments, states, keep)
        return self._moments(states, keep)

    def _moments(self, states: Tensor, keep: Tensor | None) -> Tensor:
        x = states if keep is None else states.masked_fill(~keep[..., None], 0)
        # The length is normalized, so the sum gives the same as the mean.
        x = F.normalize(x.sum(1), dim=-1) * self.config.width**0.5 if self.config.pooled else x.flatten(1)
        for layer in self.layers:
            x = layer(x)
            if isinstance(layer, nn.GELU):
                x = F.dropout(x, self.config.dropout, self.training)
        return x
