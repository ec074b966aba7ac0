"""Models that are not pipelines: load one by name, adapt OpenUni-like classes, and hand the checks what they call.

A model is any object with ``velocity(x, t)`` and as many of the other methods and attributes as it has:

- ``velocity(x, t)``: the velocity at x (B, C, H, W) and t (B,) in [0, 1], in x's shape
- ``embed(prompts)``: mu, or (mu, logvar), of z0, each (B, C, H, W), without noise
- ``sample_z0(prompts)``: z0 as sampling starts from it; without it, z0 is drawn from ``embed``
- ``encode(images)``: the latents z1 of images (B, 3, H, W) in [-1, 1]
- ``decode(latents)``: the images of latents, in [-1, 1]
- ``loss(batch)``: one loss, or a dict of weighted losses (``flow``, ``kl``), of the dict ``images``, ``captions``
- ``device``, ``dtype``: those of the inputs; default: those of the parameters, or CPU and float32
- ``image_size``: side of the images; default 256 on the command line
- ``path``: a :class:`fmkernels.flow.Path`; default ``PATHS["psi"]``
- ``scale_factor``, ``vae``: the autoencoder's scale factor, and the autoencoder as a module
"""

import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor, nn

from fmkernels import reparameterize
from fmkernels.flow import PATHS, Path, PsiPath, Sample, midpoint, sample

STEPS = 50  # of a model that does not come with a number of steps
OPEN_UNI = (
    *("tokenizer", "meta_queries", "num_queries", "prepare_forward_input", "llm", "text_ve_encoder"),
    *("pixels_to_latents", "latents_to_pixels", "fm_transformers", "sigma_min", "sigma_max"),
)


class ModelError(ValueError):
    """An object, or its name, that does not follow the protocol."""


def load_model(name: str) -> object:
    """Import ``package.module:factory``, call the factory without arguments and return its object, :func:`adapted`.

    The current directory is searched first. Raises ModelError if the name has another form, the module or the factory
    does not exist, the factory needs arguments, or its object has no ``velocity``. Errors inside the module and the
    factory are raised as they are.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ModelError(f"the name of a model must have the form package.module:factory, got {name!r}")
    if sys.path[:1] != [os.getcwd()]:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # an import inside the module
        raise ModelError(
            f"there is no module {error.name!r} in {os.getcwd()} or among the installed packages; run the "
            "command in the folder that contains it"
        ) from None
    factory = getattr(found, attribute, None)
    if not callable(factory):
        state = f"is a {type(factory).__name__}" if hasattr(found, attribute) else "does not exist"
        raise ModelError(f"{attribute!r} of {module} must be a function or class, but it {state}")
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise ModelError(f"{name} must be callable without arguments: {error}") from None
    return adapted(factory())


def adapted(model: object) -> object:
    """Return model if it has ``velocity``, an :class:`OpenUniAdapter` if it is OpenUni-like; otherwise ModelError."""
    if callable(getattr(model, "velocity", None)):
        return model
    missing = [name for name in OPEN_UNI if not hasattr(model, name)]
    if missing:
        raise ModelError(
            f"the model must have a method velocity(x, t), or be an OpenUni-like class, but {type(model).__name__} has "
            f"no velocity and lacks {', '.join(missing)}"
        )
    return OpenUniAdapter(model)


class OpenUniAdapter:
    """Gives an OpenUni- or CrossUni-like model, with the attributes :data:`OPEN_UNI`, the methods of the protocol.

    Prompts go one at a time, without padding, through ``llm.model`` with the meta-queries appended, and the last
    ``num_queries`` states through ``text_ve_encoder``, which returns z together with mu and logvar in either order:
    the order under which z is a sample of N(mu, exp(logvar)) is used. If none is, there is no ``embed``. The velocity
    is the last output of ``fm_transformers(x, log_snr=4 - 8t, null_indicator=False)``. Inputs are cast to the model's
    dtype; what comes back is left as it is, and the checks keep their state in fp32.

    Args:
        unit_pixels: ``latents_to_pixels`` returns [0, 1] instead of [-1, 1].
    """

    def __init__(self, model: object, *, unit_pixels: bool = False):
        self.model, self.unit_pixels, self.vae = model, unit_pixels, getattr(model, "vae", None)
        self.device, self.dtype = home(model)
        self.path = PsiPath(float(model.sigma_min), float(model.sigma_max))
        with torch.no_grad(), seeded(0), evaluating(model):
            latent = self.encode(torch.zeros(1, 3, 64, 64))
            z, *others = self._head(["a"])
        channels, side = latent.shape[1], math.isqrt(z.shape[1] // latent.shape[1])
        if channels * side * side != z.shape[1]:
            raise ModelError(
                f"OpenUniAdapter: text_ve_encoder returns {z.shape[1]} elements per prompt, which are not a square "
                f"latent with the {channels} channels of pixels_to_latents"
            )
        self.shape, self.image_size = (channels, side, side), side * 64 // latent.shape[-1]
        self.order = next((k for k in ((0, 1), (1, 0)) if len(others) == 2 and _is_sample(z, *_pick(others, k))), None)
        if self.order is None:
            self.embed = None

    def _head(self, prompts: Sequence[str]) -> list[Tensor]:
        """Return z and the other outputs of the same size, each (B, n) in fp32."""
        m, rows = self.model, []
        for prompt in prompts:
            ids = m.tokenizer(prompt, return_tensors="pt").input_ids.to(self.device)
            queries = m.meta_queries[None].to(self.device, self.dtype)
            inputs = m.prepare_forward_input(x=queries, input_ids=ids, attention_mask=torch.ones_like(ids))
            states = m.llm.model(**inputs, return_dict=True).last_hidden_state[:, -m.num_queries :]
            mask = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
            z, *others = m.text_ve_encoder(states, mask)
            others = [x for x in others if isinstance(x, Tensor) and x.numel() == z.numel()]
            rows.append([x.float().flatten(1) for x in (z, *others)])
        return [torch.cat(column) for column in zip(*rows, strict=True)]

    def embed(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        mu, logvar = _pick(self._head(prompts)[1:], self.order)
        return mu.unflatten(1, self.shape), logvar.unflatten(1, self.shape)

    def sample_z0(self, prompts: Sequence[str]) -> Tensor:
        return self._head(prompts)[0].unflatten(1, self.shape)

    def encode(self, images: Tensor) -> Tensor:
        return self.model.pixels_to_latents(images.to(self.device, self.dtype))

    def decode(self, latents: Tensor) -> Tensor:
        images = self.model.latents_to_pixels(latents.to(self.device, self.dtype))
        return images * 2 - 1 if self.unit_pixels else images

    def velocity(self, x: Tensor, t: Tensor) -> Tensor:
        null = torch.zeros(len(x), dtype=torch.bool, device=self.device)
        x, log_snr = x.to(self.device, self.dtype), (4 - 8 * t).to(self.device, self.dtype)
        v = self.model.fm_transformers(x, log_snr=log_snr, null_indicator=null)
        return v if isinstance(v, Tensor) else v[-1]


def _pick(tensors: Sequence[Tensor], order: tuple[int, int]) -> tuple[Tensor, Tensor]:
    return tensors[order[0]], tensors[order[1]]


def _is_sample(z: Tensor, mu: Tensor, logvar: Tensor) -> bool:
    """Tell whether (z - mu) / std has at most the variance of a sample's noise; 0 if sampling is turned off."""
    return ((z - mu) / (logvar / 2).exp()).square().mean().item() < 1.5


@dataclass(frozen=True)
class Parts:
    """What the checks call, of a pipeline or of any other model; None for what the model does not have.

    All tensors that go in and come out are fp32, and those that come out are on ``device``.

    Args:
        velocity: ``velocity(x, t) -> v``.
        flow: ``flow(z0, steps) -> (z1, trace)``; steps None is the model's own number.
        embed: ``embed(prompts) -> (mu, logvar)``; logvar may be None.
        draw: ``draw(prompts, seed) -> z0``.
        encode: ``encode(images, seed) -> z1``.
        decode: ``decode(z) -> images``.
        loss: ``loss(batch)`` of the protocol.
        module: the whole model, set to eval mode while it is measured.
        pipeline: True for a pipeline, whose loss is fmpipe's.
    """

    velocity: Callable[[Tensor, Tensor], Tensor]
    flow: Callable[[Tensor, int | None], Sample]
    embed: Callable[[Sequence[str]], tuple[Tensor, Tensor | None]] | None = None
    draw: Callable[[Sequence[str], int], Tensor] | None = None
    encode: Callable[[Tensor, int], Tensor] | None = None
    decode: Callable[[Tensor], Tensor] | None = None
    loss: Callable[[Mapping], Tensor | Mapping[str, Tensor]] | None = None
    device: torch.device | str = "cpu"
    path: Path = PATHS["psi"]
    scale_factor: float | None = None
    vae: nn.Module | None = None
    module: nn.Module | None = None
    image_size: int | None = None
    pipeline: bool = False


def parts_of(model: object) -> Parts:
    """Return the :class:`Parts` of a model that follows the protocol, or of an OpenUni-like one."""
    model = adapted(model)
    (device, dtype), calls = home(model), count()

    def method(name: str, function: Callable) -> Callable | None:
        return function if callable(getattr(model, name, None)) else None

    def floating(name: str, x: object) -> Tensor:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            got = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"{type(model).__name__}.{name} must return a floating point tensor, got {got}")
        return x.to(device, torch.float32)

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        return floating("velocity", model.velocity(x.to(device, dtype), t.to(device)))

    def embed(prompts: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        with seeded(next(calls)):  # another seed at every call, so that samples in place of means are noticed
            made = model.embed(list(prompts))
        mu, logvar = made if isinstance(made, (tuple, list)) else (made, None)
        return floating("embed", mu), None if logvar is None else floating("embed", logvar)

    def draw(prompts: Sequence[str], seed: int) -> Tensor:
        with seeded(seed):
            return floating("sample_z0", model.sample_z0(list(prompts)))

    def encode(images: Tensor, seed: int) -> Tensor:
        with seeded(seed):
            return floating("encode", model.encode(images.to(device, dtype)))

    embed = method("embed", embed)
    return Parts(
        velocity,
        lambda z0, steps: sample(velocity, z0, midpoint(steps or STEPS)),
        embed,
        method("sample_z0", draw) or (embed and drawing(embed)),
        method("encode", encode),
        method("decode", lambda z: floating("decode", model.decode(z.to(device, dtype)))),
        getattr(model, "loss", None),
        device,
        getattr(model, "path", None) or PATHS["psi"],
        getattr(model, "scale_factor", None),
        next((x for x in (getattr(model, "vae", None),) if isinstance(x, nn.Module)), None),
        _module(model),
        getattr(model, "image_size", None),
    )


def drawing(embed: Callable) -> Callable[[Sequence[str], int], Tensor]:
    """Return ``draw(prompts, seed)``: z0 = mu + exp(logvar / 2) eps, or mu if embed gives no logvar."""

    def draw(prompts: Sequence[str], seed: int) -> Tensor:
        mu, logvar = embed(prompts)
        if logvar is None:
            return mu
        eps = torch.randn(mu.shape, generator=torch.Generator().manual_seed(seed))
        return reparameterize(mu, logvar, eps=eps.to(mu))[0]

    return draw


def _module(model: object) -> nn.Module | None:
    return next((x for x in (model, getattr(model, "model", None)) if isinstance(x, nn.Module)), None)


def home(model: object) -> tuple[torch.device, torch.dtype]:
    """Return the device and the dtype of the model's inputs: its attributes, those of its parameters, or the CPU's."""
    module = _module(model)
    like = next((p for p in module.parameters() if p.is_floating_point()), None) if module else None
    like = torch.empty(0) if like is None else like
    dtype = getattr(model, "dtype", None)
    return torch.device(getattr(model, "device", None) or like.device), dtype or like.dtype


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generators inside the block and restore them after it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@contextmanager
def evaluating(module: object) -> Iterator[None]:
    """Set every submodule to eval mode inside the block and restore their modes after it."""
    modes = {m: m.training for m in module.modules()} if isinstance(module, nn.Module) else {}
    try:
        for m in modes:
            m.training = False
        yield
    finally:
        for m, mode in modes.items():
            m.training = mode
