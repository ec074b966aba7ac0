"""A text head whose z0 is a mixture of Gaussians: a vague text has several sharp meanings, not their average."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, prod

import torch
import torch.nn.functional as F
from diffusers import ModelMixin  # noqa: F401 (diffusers looks for it in the module of the class that it loads)
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from fmkernels import Linear
from fmpipe.models.layers import check_positive
from fmpipe.models.text_head import VariationalHead

LLOYD = 20  # iterations of k-means at most
SETTLE = 0.1  # mean squared difference by which a component must be nearer to count e times as much
FLOOR = 1e-9  # smallest weight of the memory
FIRST_STD = 0.5  # sigma before training, without std_range


@dataclass(frozen=True)
class Mixture:
    """``q(z0 | text) = Σ_m w_m N(mu_m, σ_m²)`` of B texts, with M components of n elements.

    log_weights: (B, M). values: (M, n); offset: (B, n), what the text adds to all of them, or None. logvars: (M, n).
    shape: that of a latent, (C, H, W). mu_rms: every mean is rescaled to this rms, unless it is None.
    """

    log_weights: Tensor
    values: Tensor
    offset: Tensor | None
    logvars: Tensor
    shape: tuple[int, int, int]
    mu_rms: float | None = None

    def component(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu and logvar, (B, C, H, W), of one component for each text. chosen: (B,)."""
        mu = self.values[chosen] if self.offset is None else self.values[chosen] + self.offset
        if self.mu_rms is not None:
            mu = mu * (self.mu_rms / mu.square().mean(1, keepdim=True).sqrt().clamp_min(1e-6))
        return mu.unflatten(1, self.shape), self.logvars[chosen].unflatten(1, self.shape)

    def most_likely(self) -> Tensor:
        return self.log_weights.argmax(1)

    def drawn(self, uniform: Tensor, diversity: float = 1.0, focus: float = 0.0) -> Tensor:
        """Return a component for each text, (B,), by the inverse of the cumulative weights. uniform: (B,) in [0, 1).

        diversity: temperature of the weights; 0 selects the most likely component. focus: components with a weight, at
        this temperature, below ``min(1, focus · largest) · largest`` are left out. A text with a confident weight then
        always gets its component, and a vague text, whose largest weight is small, any of those that fit.
        """
        if diversity == 0:
            return self.most_likely()
        weights = (self.log_weights.double() / diversity).softmax(1)
        largest = weights.amax(1, keepdim=True)
        weights = weights * (weights >= (focus * largest).clamp_max(1) * largest)
        sums = weights.cumsum(1)
        return torch.searchsorted(sums, uniform.to(sums)[:, None] * sums[:, -1:], right=True)[:, 0].clamp_max(
            weights.shape[1] - 1
        )

    def distances(self, z: Tensor) -> Tensor:
        """Return ``mean((mu_m - z)²)`` over the elements, (B, M). z: (B, C, H, W)."""
        z = z.flatten(1).to(self.values.dtype)
        if self.mu_rms is None:
            return torch.cdist(z if self.offset is None else z - self.offset, self.values).square() / z.shape[1]
        means = self.values[None] if self.offset is None else self.values + self.offset[:, None]
        means = means * (self.mu_rms / means.square().mean(2, keepdim=True).sqrt().clamp_min(1e-6))
        return (means - z[:, None]).square().mean(2)

    def statistics(self, chosen: Tensor) -> dict[str, Tensor]:
        """Return the numbers for the log. chosen: (B,), the components that fit the images of the texts.

        ``mix/entropy``: mean entropy of the weights, in nats. ``mix/used``: exp of the entropy of the mean weights, the
        number of components in use. ``mix/agree``: share of the texts whose most likely component is the chosen one.
        ``mix/kl_upper``, ``mix/kl_lower``: bounds of KL(q(z0 | text) ‖ N(0, I)), per element.
        """
        weights = self.log_weights.exp()
        entropy = -(weights * self.log_weights).sum(1)
        mean = weights.mean(0)
        upper = self.kl_upper()
        return {
            "mix/entropy": entropy.mean(),
            "mix/used": (-(mean * mean.clamp_min(1e-30).log()).sum()).exp(),
            "mix/agree": (self.most_likely() == chosen).float().mean(),
            "mix/kl_upper": upper.mean(),
            "mix/kl_lower": (upper - entropy / self.values.shape[1]).clamp_min(0).mean(),
        }

    def kl_upper(self) -> Tensor:
        """Return ``Σ_m w_m KL(N(mu_m, σ_m²) ‖ N(0, I))`` per element, (B,), at least the KL of the mixture (convexity).

        The KL of the mixture is smaller by the mutual information of z0 and the component, which is at most the entropy
        of the weights and close to it if the components hardly overlap.
        """
        squares = self.distances(torch.zeros(len(self.log_weights), *self.shape, device=self.values.device))
        spread = 0.5 * (self.logvars.exp() - 1 - self.logvars).mean(1)
        return (self.log_weights.exp() * (0.5 * squares + spread)).sum(1)


class MixtureHead(VariationalHead):
    """Attention of a text over M learned values, which are the components of a mixture.

    ``mu_m = values_m + offset(x)``, where x is the mean of the tokens, scaled to length √width. The weights combine
    learned ones with an attention over remembered training texts::

        log w = (1 - recall) log softmax(gate(x)) + recall log r,  up to a constant
        r_m = Σ_k softmax(cos(x, key_k) / temperature)_k · share of component m in the images of text k

    The gate is better for texts that are like the training texts, the memory for others. ``forward`` returns the most
    likely component or a random one, and ``fitted`` the one that fits an image best, with which the flow is trained.

    Args:
        components: M. :meth:`start_from` sets the values before training: to the latents of the images, or to M means
            of groups of them, if there are more.
        recall, temperature: of the memory, which :meth:`remember` fills. It does not take part in training.
        remembered, links: numbers of texts in the memory and of their images, set by :meth:`remember`.
        hidden: width of two hidden layers that compute the text's own offset, for data sets with more images than
            components. None: no offset, all that a text does is to select a component.
        focus: of :meth:`Mixture.drawn`: the larger, the less often an unlikely component is drawn.
        dropout: of the pooled text, and after both GELUs of the offset.
    """

    @register_to_config
    def __init__(
        self,
        width: int = 768,
        tokens: int = 77,
        latent_shape: Sequence[int] = (4, 32, 32),
        components: int = 256,
        hidden: int | None = None,
        recall: float = 0.4,
        temperature: float = 0.05,
        focus: float = 2.0,
        mu_rms: float | None = None,
        std_range: Sequence[float] | None = None,
        dropout: float = 0.0,
        remembered: int = 0,
        links: int = 0,
    ):
        super().__init__()
        check_positive("MixtureHead", width=width, tokens=tokens, components=components)
        if not 0 <= dropout < 1:
            raise ValueError(f"MixtureHead: dropout must be in [0, 1), got {dropout!r}")
        if not 0 <= recall <= 1:
            raise ValueError(f"MixtureHead: recall must be in [0, 1], got {recall!r}")
        if not focus >= 0:
            raise ValueError(f"MixtureHead: focus must be 0 or more, got {focus!r}")
        if not temperature > 0:
            raise ValueError(f"MixtureHead: temperature must be positive, got {temperature!r}")
        size = prod(latent_shape)
        self.gate = Linear(width, components)
        self.nodecay_values = nn.Parameter(torch.empty(components, size))
        self.nodecay_sigma = nn.Parameter(torch.empty(components, 1))
        self.offset = None
        if hidden:
            layers = Linear(width, hidden), nn.GELU(), nn.Dropout(dropout), Linear(hidden, hidden), nn.GELU()
            self.offset = nn.Sequential(*layers, nn.Dropout(dropout), Linear(hidden, size))
        self.register_buffer("memory_keys", torch.zeros(remembered, width))
        self.register_buffer("memory_pairs", torch.zeros(links, 2, dtype=torch.int32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set random values, a gate without preference, no offset, and sigma in the middle of its range."""
        super().reset_parameters()
        nn.init.normal_(self.nodecay_values)
        nn.init.constant_(self.nodecay_sigma, 0.0 if self.config.std_range else 2 * log(FIRST_STD))
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)
        if self.offset is not None:
            nn.init.zeros_(self.offset[-1].weight)
            nn.init.zeros_(self.offset[-1].bias)

    @torch.no_grad()
    def start_from(self, latents: Tensor) -> None:
        """Set the values to the latents (N, C, H, W) of the training images, or to M means of groups of them (k-means).

        Raises ValueError if there are fewer images than components.
        """
        x, count = latents.flatten(1).to(self.nodecay_values), len(self.nodecay_values)
        if len(x) < count:
            raise ValueError(
                f"MixtureHead: components must be at most the number of training images, {len(x)}, got {count}"
            )
        first = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:count].sort().values
        centres, group = x[first.to(x.device)].clone(), None
        for _ in range(LLOYD if len(x) > count else 0):
            nearest = torch.cdist(x, centres).argmin(1)
            if group is not None and torch.equal(nearest, group):
                break
            group = nearest
            sizes = torch.bincount(group, minlength=count)[:, None]
            sums = torch.zeros_like(centres).index_add_(0, group, x)
            centres = torch.where(sizes > 0, sums / sizes.clamp_min(1), centres)
        self.nodecay_values.copy_(centres)

    @torch.no_grad()
    def remember(self, states: Tensor, mask: Tensor | None, images: Sequence[Sequence[int]], latents: Tensor) -> None:
        """Fill the memory. states, mask: of N texts. images: for each text, the rows of its images in latents.

        latents: (I, C, H, W), which select the component of each image. Call :meth:`start_from` before.
        """
        if len(states) != len(images):
            raise ValueError(f"MixtureHead: remember got {len(states)} texts and the images of {len(images)}")
        component = torch.cdist(latents.flatten(1).to(self.nodecay_values), self.nodecay_values).argmin(1).tolist()
        owners = [sorted({component[row] for row in rows}) for rows in images]
        pairs = [(k, m) for k, found in enumerate(owners) for m in found]
        self.memory_keys = F.normalize(self.pooled(states, mask), dim=-1).to(self.memory_keys)
        self.memory_pairs = torch.tensor(pairs).to(self.memory_pairs)
        self.register_to_config(remembered=len(self.memory_keys), links=len(self.memory_pairs))

    def pooled(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """Return the means of the tokens, scaled to length √width, (B, width)."""
        keep = self.checked_mask(states, mask)
        x = states if keep is None else states.masked_fill(~keep[..., None], 0)
        return F.normalize(x.sum(1), dim=-1) * self.config.width**0.5

    def recalled(self, x: Tensor) -> Tensor:
        """Return the logarithms of the memory's weights, (B, M). x: (B, width), of :meth:`pooled`."""
        cosines = F.normalize(x.float(), dim=-1) @ self.memory_keys.float().T
        attention = (cosines / self.config.temperature).softmax(1)
        key, component = self.memory_pairs.long().unbind(1)
        shares = 1 / torch.bincount(key, minlength=len(self.memory_keys))[key]
        weights = torch.zeros(len(x), self.config.components, device=x.device)
        return weights.index_add_(1, component, attention[:, key] * shares).clamp_min(FLOOR).log()

    def mixture(self, states: Tensor, mask: Tensor | None = None, *, recall: bool = True) -> Mixture:
        """Return the mixtures of texts. states: (B, tokens, width). mask: (B, tokens), zero for padding.

        recall: whether to use the memory.
        """
        x = self.pooled(states, mask)
        offset = None if self.offset is None else self.offset(x).float()
        scores = self.gate(F.dropout(x, self.config.dropout, self.training)).float()
        if recall and len(self.memory_keys):
            scores = torch.lerp(scores.log_softmax(1), self.recalled(x), self.config.recall)
        logvars = self.nodecay_sigma.float().expand_as(self.nodecay_values)
        if self.config.std_range is not None:
            logvars = self.within_range(logvars)
        shape = tuple(self.config.latent_shape)
        values = self.nodecay_values.float()
        return Mixture(scores.log_softmax(1), values, offset, logvars, shape, self.config.mu_rms)

    def forward(
        self, states: Tensor, mask: Tensor | None = None, uniform: Tensor | None = None, diversity: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Return mu and logvar, (B, C, H, W) each, of the most likely component, or with uniform of a random one.

        states, mask: as in :meth:`mixture`. uniform, diversity: as in :meth:`Mixture.drawn`.
        """
        mixture = self.mixture(states, mask)
        if uniform is None:
            return mixture.component(mixture.most_likely())
        return mixture.component(mixture.drawn(uniform.to(mixture.values.device), diversity, self.config.focus))

    def settled(self, z: Tensor) -> Tensor | None:
        """Return ``Σ_m r_m values_m`` with ``r = softmax(-mean((values_m - z)²) / SETTLE)``, a step of mean shift.

        Between two components, all but the middle is then near one of them, where the flow knows the way. None if
        texts have offsets: what lies between components is then known to the flow too.
        """
        if self.offset is not None:
            return None
        values, x = self.nodecay_values.float(), z.float().flatten(1)
        apart = torch.cdist(x, values).square() / x.shape[1]
        return ((-apart / SETTLE).softmax(1) @ values).view_as(z)

    def fitted(self, states: Tensor, mask: Tensor | None, targets: Tensor, temperature: float) -> tuple:
        """Return mu and logvar of the components that fit the images, the loss, and the statistics.

        The component of a text is ``argmax_m log w_m - d_m / temperature`` with ``d_m = mean((mu_m - target)²)``, the
        posterior's most likely one. The loss is ``-log Σ_m w_m exp(-d_m / temperature)``: a text learns the weights of
        all images that it occurs with. targets: (B, C, H, W).
        """
        mixture = self.mixture(states, mask, recall=False)
        scores = mixture.log_weights - mixture.distances(targets.detach()) / temperature
        chosen = scores.detach().argmax(1)
        with torch.no_grad():
            statistics = mixture.statistics(chosen)
        return *mixture.component(chosen), -scores.logsumexp(1).mean(), statistics
