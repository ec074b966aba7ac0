"""Text to image in one object: prompts, z0, flow, VAE. A diffusers pipeline."""

import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from diffusers import DiffusionPipeline
from diffusers.image_processor import VaeImageProcessor
from diffusers.utils import BaseOutput
from safetensors import SafetensorError, safe_open
from torch import Tensor

import fmpipe.text.encoders  # (diffusers finds a pipeline's parts only in modules that are imported)
import fmpipe.text.meta_query  # noqa: F401
from fmkernels import flow_pair, reparameterize, velocity_stats
from fmkernels.flow import Sample, Schedule, Trace, make_schedule, sample
from fmpipe.bundled import BUNDLED, find_pipeline, parts
from fmpipe.known import KnownCaptions
from fmpipe.models import DiMR, DiT, VariationalHead, load_checkpoint
from fmpipe.sampling import check_sampling
from fmpipe.vae import LatentVAE

# Cosine to the nearest training caption below which a prompt is reported as unknown. Of the default model's captions,
# 1 % are below it; of its captions in new templates, 2 %.
FAR = 0.58


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
    """images: as ``output_type`` says. trace: of all steps. z0, z1: the latents before and after the flow.

    probes: ``A`` decode(z0), ``B`` the rms of the first step's change, ``C`` decode(z1), as in the debugging notes.
    mu, logvar: of the text head (None if latents were given).
    """

    images: object
    trace: Trace
    probes: dict[str, Probe | float]
    mu: Tensor | None
    logvar: Tensor | None
    z0: Tensor
    z1: Tensor = field(repr=False)


class FlowPipeline(DiffusionPipeline):
    """prompt -> text states -> (mu, logvar) -> z0 -> flow -> z1 -> picture.

    text_encoder: an encoder of :mod:`fmpipe.text`. text_head: makes mu and logvar of its states. velocity_net: a
    :class:`fmpipe.models.DiMR` or DiT. vae: a :class:`fmpipe.vae.LatentVAE`.

    The other arguments are stored in ``model_index.json`` and travel with the pipeline:

    Args:
        fm_gain, guidance_scale, schedule, solver, num_inference_steps: the values that :meth:`__call__` uses where its
            arguments are omitted. A ``guidance_scale`` of None or 1 turns guidance off.
        max_guidance: the largest guidance scale that gives usable images; a larger one raises a warning. 1.0 means that
            the network was trained without the null indicator, so that guidance has no meaning.
        source: the data set it was trained on, ``emoji`` or ``shapes``, if it can be rebuilt; ``fmpipe check`` then
            measures on it.
        known: the embedded training captions, to warn about prompts that are far from all of them. Not saved.
        graph: whether :meth:`__call__` captures the velocity in a CUDA graph; see :func:`fmkernels.flow.sample`. Not
            saved.
    """

    model_cpu_offload_seq = "text_encoder->text_head->velocity_net->vae"
    _callback_tensor_inputs = ["latents", "stats"]  # noqa: RUF012 (diffusers' name and type)
    _optional_components = ["text_encoder"]  # noqa: RUF012 (prompt_embeds stand for it)

    def __init__(
        self,
        text_encoder,
        text_head: VariationalHead,
        velocity_net: DiMR | DiT,
        vae: LatentVAE,
        fm_gain: float = 1.0,
        guidance_scale: float | None = None,
        source: str | None = None,
        schedule: str = "crossflow",
        solver: str = "euler",
        num_inference_steps: int = 50,
        max_guidance: float | None = None,
        known: KnownCaptions | None = None,
        graph: bool | str = "auto",
    ):
        super().__init__()
        settings = {
            "fm_gain": fm_gain, "guidance_scale": guidance_scale, "schedule": schedule, "solver": solver,
            "num_inference_steps": num_inference_steps, "max_guidance": max_guidance,
        }  # fmt: skip
        check_sampling(**settings)
        if fm_gain is None:
            raise ValueError("fm_gain must be a finite number, got None")
        _check_parts(text_encoder, text_head, velocity_net, vae)
        self.register_modules(text_encoder=text_encoder, text_head=text_head, velocity_net=velocity_net, vae=vae)
        self.register_to_config(**settings, source=source)
        self.known, self.graph = known, graph
        self.image_processor = VaeImageProcessor(vae_scale_factor=vae.factor)

    @classmethod
    def from_pretrained(cls, name: str | Path, **options) -> "FlowPipeline":
        """Load a pipeline from its folder, from the folder of a training run, or by its name (``"default"``).

        options: as in diffusers' ``from_pretrained``. Only safetensors are read. Raises FileNotFoundError if there is
        no pipeline, OSError naming the part and file that is damaged or lacks tensors.
        """
        try:
            name = find_pipeline(name)
        except FileNotFoundError:
            if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)) or Path(name).exists():
                raise  # not a name on the Hub, which diffusers looks up in its cache first
        if name in BUNDLED:
            dtype = options.pop("dtype", None) or options.pop("torch_dtype", None)
            made = parts(name)
            for part in made.values():
                if isinstance(part, torch.nn.Module):
                    torch.nn.Module.to(part, dtype)  # diffusers' own would warn about the fp16 files
            return cls(**{**made, **options})
        stored = _stored(Path(name)) if Path(name).is_dir() else {}
        pipe = super().from_pretrained(str(name), **{"use_safetensors": True, **options})
        for part, names in stored.items():
            if part not in options and (missing := sorted(pipe.components[part].state_dict().keys() - names)):
                raise OSError(f"{part} of {name} has {len(missing)} missing keys, first {missing[0]}")
        return pipe

    @classmethod
    def from_released(
        cls, text_encoder, checkpoint: str | Path, vae: str | Path, *, preset: str | None = None, **options
    ):
        """The pipeline of released parts: the folder of a CLIP or T5, a ``.pth`` of both networks, an LDM VAE file.

        text_encoder: also one of :mod:`fmpipe.text`. preset: of the checkpoint; its file name if left out. options: of
        the constructor.
        """
        from fmpipe.text import load_text_encoder

        name = preset or Path(checkpoint).stem
        networks = load_checkpoint(checkpoint, name)
        if isinstance(text_encoder, (str, Path)):
            text_encoder = load_text_encoder(text_encoder, tokens=networks.text_head.config.tokens)
        return cls(text_encoder, networks.text_head, networks.velocity_net, LatentVAE.from_ldm(vae), **options)

    @property
    def device(self) -> torch.device:
        """The device of the velocity network; diffusers asks the text encoder, which may be any module."""
        return self.velocity_net.device

    # Text to z0

    @torch.no_grad()
    def encode(self, prompt: str | Sequence[str], prompt_embeds: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """mu and logvar, (B, C, H, W): of prompts, or of the text states ``prompt_embeds`` (B, L, D)."""
        mask = None
        if prompt_embeds is None:
            if self.text_encoder is None:
                raise ValueError("prompt needs a text_encoder, and this pipeline has none: give prompt_embeds")
            prompts = [prompt] if isinstance(prompt, str) else list(prompt)
            prompt_embeds, mask = self.text_encoder(prompts)
            self._warn_about(prompts, prompt_embeds, mask)
        head = self.text_head
        return head(prompt_embeds.to(head.device, head.dtype), None if mask is None else mask.to(head.device))

    def _warn_about(self, prompts: Sequence[str], states: Tensor, mask: Tensor) -> None:
        """Warn about prompts that are empty, longer than the encoder reads, or unlike every training caption."""
        nearest = self.known.nearest(states, mask) if self.known else [(None, 1.0)] * len(prompts)
        cut = getattr(self.text_encoder, "cut", lambda prompt: None)
        said = []
        for prompt, (caption, cosine) in zip(prompts, nearest, strict=True):
            if not prompt.strip():
                said.append("the prompt is empty: the image shows nothing in particular")
            elif rest := cut(prompt):
                rest = f"{rest[:57]}..." if len(rest) > 60 else rest
                said.append(f"the prompt is too long for the text encoder, which ignores everything from {rest!r} on")
            elif cosine < FAR:
                said.append(
                    f"{prompt!r} is unlike everything this model was trained on; drawn from: {caption!r} "
                    f"(cosine similarity {cosine:.2f}). The model knows English names of things that have an emoji"
                )
        for message in dict.fromkeys(said):
            warnings.warn(message, stacklevel=4)

    def prepare_latents(
        self,
        mu: Tensor,
        logvar: Tensor,
        z0_mode: str = "sample",
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        align_variance: bool | float = False,
    ) -> Tensor:
        """z0 in fp32: a sample of N(mu, exp(logvar)), or mu. align_variance: every sample gets std 1, or this one."""
        mu, logvar = mu.float(), logvar.float()
        z0 = mu
        if z0_mode == "sample":
            z0 = reparameterize(mu, logvar, eps=_noise(mu, generator))[0]
        return _aligned(z0, align_variance)

    # The whole way

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        num_inference_steps: int | None = None,
        guidance_scale: float | None = None,
        schedule: str | None = None,
        solver: str | None = None,
        num_images_per_prompt: int = 1,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        latents: Tensor | None = None,
        prompt_embeds: Tensor | None = None,
        z0_mode: str = "sample",
        fm_gain: float | None = None,
        dt_scale: float = 1.0,
        time_dir: str = "0->1",
        align_variance: bool | float = False,
        velocity_dtype: torch.dtype | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end: Callable | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("latents",),
        graph: bool | str | None = None,
    ) -> FlowPipelineOutput | tuple:
        """Generate ``num_images_per_prompt`` images for each prompt.

        Exactly one of ``prompt``, ``prompt_embeds`` (its text states) and ``latents`` (z0 itself) must be given.

        Args:
            num_inference_steps, guidance_scale, schedule, solver, fm_gain: None selects the pipeline's own value, from
                its config. Guidance is ``v = v_null + guidance_scale (v - v_null)``, computed in one batched forward;
                a scale of 1 turns it off.
            z0_mode: ``"sample"`` draws z0 from N(mu, exp(logvar)), ``"mean"`` uses mu.
            dt_scale: a factor for every step.
            time_dir: ``"1->0"`` reverses t and dt.
            align_variance: set the standard deviation of every z0 to 1 (True) or to this value.
            velocity_dtype: dtype of the velocity network's forward; None is its own.
            output_type: ``"pil"``, ``"np"``, ``"pt"`` or ``"latent"``.
            callback_on_step_end: as in diffusers, called with (pipeline, step, t, {"latents": x}). Latents in the dict
                that it returns replace the state. Not supported with the adaptive solver 'dopri5'.
            callback_on_step_end_tensor_inputs: also ``"stats"``, the step's row of the trace, (B, 5), on the device.
            graph: whether to capture the velocity in a CUDA graph (True, False or ``"auto"``); None is the pipeline's.
        """
        own = self.config
        num_inference_steps = own.num_inference_steps if num_inference_steps is None else num_inference_steps
        guidance = own.guidance_scale if guidance_scale is None else guidance_scale
        guidance = None if guidance == 1 else guidance  # the same velocity, at half the cost
        gain = own.fm_gain if fm_gain is None else fm_gain
        schedule, solver = schedule or own.schedule, solver or own.solver
        plan = self.check_inputs(
            prompt, prompt_embeds, latents, num_inference_steps, guidance_scale, schedule, solver,
            num_images_per_prompt, generator, z0_mode, fm_gain, dt_scale, time_dir, align_variance, velocity_dtype,
            output_type, callback_on_step_end, callback_on_step_end_tensor_inputs,
        )  # fmt: skip
        if guidance is not None and own.max_guidance is not None and not 0 <= guidance <= own.max_guidance:
            why = "it was trained without guidance" if own.max_guidance <= 1 else "expect distorted images"
            warnings.warn(
                f"guidance_scale {guidance:g} is outside 0 to {own.max_guidance:g}, which this model tolerates: {why}",
                stacklevel=3,
            )

        # 1. prompts to mu and logvar, 2. to z0
        mu = logvar = None
        if latents is None:
            mu, logvar = (x.repeat_interleave(num_images_per_prompt, 0) for x in self.encode(prompt, prompt_embeds))
            z0 = self.prepare_latents(mu, logvar, z0_mode, generator, align_variance)
        else:
            z0 = _aligned(latents.float(), align_variance)
        z0 = z0.to(self._execution_device)

        # 3. the flow
        z1, trace = self.flow(
            z0, plan, solver=solver, guidance=guidance, gain=gain, dt_scale=dt_scale, time_dir=time_dir,
            dtype=velocity_dtype, callback=callback_on_step_end, seen=callback_on_step_end_tensor_inputs,
            graph=self.graph if graph is None else graph,
        )  # fmt: skip

        # 4. pictures, and the three looks
        decoded = self.vae.decode(z1.to(self.vae.dtype)).float()
        first = self.vae.decode(z0.to(self.vae.dtype)).float()
        before, after = Probe.of((first, z0), (decoded, z1))
        probes = {"A": before, "B": trace.values[0, :, 2].mean().item(), "C": after}
        images = z1 if output_type == "latent" else self.image_processor.postprocess(decoded, output_type=output_type)
        self.maybe_free_model_hooks()
        if not return_dict:
            return (images, trace)
        return FlowPipelineOutput(images, trace, probes, mu, logvar, z0, z1)

    def velocity(self, x: Tensor, t: Tensor, null: Tensor | None = None) -> Tensor:
        """The network's velocity of x in its own dtype. null: (B,) bool; left out, nothing is null, as in training."""
        net = self.velocity_net
        null = torch.zeros(len(x), dtype=torch.bool, device=x.device) if null is None else null
        return net.velocity(x.to(net.dtype), t, null=null)

    def flow(
        self,
        z0: Tensor,
        plan: Schedule,
        *,
        dtype: torch.dtype | None = None,
        callback: Callable | None = None,
        seen: Sequence[str] = ("latents",),
        **options,
    ) -> Sample:
        """(z1, trace): z0 carried along the velocity. dtype: of the network's forward, its own if None.

        callback, seen: ``callback_on_step_end`` and what it gets. options: of :func:`fmkernels.flow.sample`.
        """
        bar = self.progress_bar(total=len(plan))
        times = (plan.reversed() if options.get("time_dir") == "1->0" else plan).t.tolist()

        def step_end(step, x, stats):
            bar.update()
            if callback is None:
                return None
            tensors = {"latents": x, "stats": stats}
            asked = {name: tensors[name] for name in seen or ()}
            return (callback(self, step, times[step], asked) or {}).get("latents")

        with bar, _computing_in(self.velocity_net, dtype):
            adaptive = options.get("solver") == "dopri5"
            return sample(self.velocity, z0, plan, step_end=None if adaptive else step_end, **options)

    # Latents as they are

    @torch.no_grad()
    def interpolate(
        self, a: str, b: str, n: int = 8, *, generator: torch.Generator | None = None, **options
    ) -> FlowPipelineOutput:
        """Generate n images along the straight line between the means of prompts a and b in the latent space.

        With a generator, the same noise, at the scale of the interpolated sigma, is added to all of them. options: of
        :meth:`__call__`.
        """
        if not isinstance(n, int) or n < 2:
            raise ValueError(f"interpolate: n must be at least 2, got {n!r}")
        mu, logvar = (x.float() for x in self.encode([a, b]))
        way = torch.linspace(0, 1, n, device=mu.device).view(-1, 1, 1, 1)
        z = torch.lerp(mu[:1], mu[1:], way)
        if generator is not None:
            z = z + torch.lerp(logvar[:1], logvar[1:], way).mul(0.5).exp() * _noise(mu[:1], generator)
        return self(latents=z, **options)

    @torch.no_grad()
    def arithmetic(
        self,
        add: str | Sequence[str],
        subtract: str | Sequence[str] = (),
        *,
        generator: torch.Generator | None = None,
        **options,
    ) -> FlowPipelineOutput:
        """Generate the image of the sum of the means of some prompts minus others, restandardized to mean 0, std 1.

        With a generator, noise at the scale of the first prompt's sigma is added before that. options: of
        :meth:`__call__`.
        """
        add, subtract = ([texts] if isinstance(texts, str) else list(texts) for texts in (add, subtract))
        if not add:
            raise ValueError("arithmetic: add must have at least one prompt")
        mu, logvar = (x.float() for x in self.encode([*add, *subtract]))
        signs = torch.tensor([1.0] * len(add) + [-1.0] * len(subtract), device=mu.device)
        z = torch.einsum("b,bchw->chw", signs, mu)[None]
        if not z.std() > 1e-6 * mu.std():
            raise ValueError("arithmetic: nothing is left of add once subtract is taken away")
        if generator is not None:
            z = z + logvar[:1].mul(0.5).exp() * _noise(z, generator)
        return self(latents=(z - z.mean()) / z.std(), **options)

    @torch.no_grad()
    def calibrate_gain(self, images: Tensor, prompts: Sequence[str], *, save: bool = False, seed: int = 0) -> float:
        """Return median(|v_target| / |v_pred|) over the pairs at random t: 1.0 if the predicted speed is unbiased.

        images: (B, 3, H, W) in [-1, 1], of the pipeline's size. save: store it in the pipeline's config, where it
        becomes the default ``fm_gain`` and goes with save_pretrained. Raises ValueError, and saves nothing, if the gain
        is not finite.
        """
        shape = (3, *(side * self.vae.factor for side in self.text_head.config.latent_shape[1:]))
        if not isinstance(images, Tensor) or not images.is_floating_point() or tuple(images.shape[1:]) != shape:
            got = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
            raise ValueError(
                f"calibrate_gain: images must be floating point (B, {', '.join(map(str, shape))}), got {got}"
            )
        if not images.abs().max() <= 1.01:
            raise ValueError(f"calibrate_gain: images must be in [-1, 1], got {images.min():.3g} to {images.max():.3g}")
        if isinstance(prompts, str) or len(images) != len(prompts):
            raise ValueError(f"calibrate_gain: prompts must be a list of {len(images)}, one an image, got {prompts!r}")
        draw = torch.Generator().manual_seed(seed)
        mu, logvar = self.encode(prompts)
        z0 = self.prepare_latents(mu, logvar, generator=draw).to(self._execution_device)
        z1 = self.vae.encode(images.to(self._execution_device, self.vae.dtype), generator=draw).to(z0)
        t = torch.rand(len(z0), generator=draw).to(z0)
        x_t, target = flow_pair(t, z0, z1)
        gain = velocity_stats(self.velocity(x_t, t).float(), v_target=target).gain.item()
        if not gain < 1e4:
            raise ValueError(f"calibrate_gain: the network's velocity is nearly 0 or not finite: a gain of {gain:.3g}")
        if save:
            self.register_to_config(fm_gain=gain)
        return gain

    def check_inputs(
        self, prompt, prompt_embeds, latents, steps, guidance_scale, schedule, solver, count, generator, z0_mode,
        fm_gain, dt_scale, time_dir, align_variance, velocity_dtype, output_type, callback, seen,
    ) -> Schedule:  # fmt: skip
        """The schedule, once all arguments are what they must be; errors name the one that is not."""
        inputs = {"prompt": prompt, "prompt_embeds": prompt_embeds, "latents": latents}
        given = [name for name, x in inputs.items() if x is not None]
        if len(given) != 1:
            raise ValueError(f"give one of prompt, prompt_embeds and latents, got {' and '.join(given) or 'none'}")
        if prompt is not None:
            listed = isinstance(prompt, (list, tuple)) and len(prompt) and all(isinstance(p, str) for p in prompt)
            if not isinstance(prompt, str) and not listed:
                raise ValueError(f"prompt must be a string or a list of at least one, got {prompt!r}")
        head = self.text_head.config
        for name, shape in (("latents", tuple(head.latent_shape)), ("prompt_embeds", (head.tokens, head.width))):
            x = inputs[name]
            if x is not None and (not isinstance(x, Tensor) or not len(x) or tuple(x.shape[1:]) != shape):
                got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
                raise ValueError(f"{name} must be (B, {', '.join(map(str, shape))}), got {got}")
        check_sampling(
            num_inference_steps=steps, num_images_per_prompt=count, guidance_scale=guidance_scale, fm_gain=fm_gain,
            dt_scale=dt_scale, schedule=schedule, solver=solver, output_type=output_type, z0_mode=z0_mode,
            time_dir=time_dir, align_variance=align_variance,
        )  # fmt: skip
        if velocity_dtype not in (None, torch.float64, torch.float32, torch.float16, torch.bfloat16):
            raise ValueError(f"velocity_dtype must be a floating point dtype or None, got {velocity_dtype!r}")
        if latents is not None and count > 1:
            raise ValueError(f"num_images_per_prompt must be 1 with latents, got {count}: repeat the latents")
        pictures = count * (1 if isinstance(prompt, str) else len(inputs[given[0]]))
        if isinstance(generator, (list, tuple)) and len(generator) != pictures:
            raise ValueError(f"generator must be one, or one for each of {pictures} images, got {len(generator)}")
        generators = generator if isinstance(generator, (list, tuple)) else [generator]
        if not all(g is None or isinstance(g, torch.Generator) for g in generators):
            raise TypeError(f"generator must be a torch.Generator or a list of them, got {generator!r}")
        if callback is not None and not callable(callback):
            raise TypeError(f"callback_on_step_end must be callable, got {type(callback).__name__}")
        if callback is not None and solver == "dopri5":
            raise ValueError("callback_on_step_end is not supported with the adaptive solver 'dopri5'")
        if unknown := set(seen or ()) - set(self._callback_tensor_inputs):
            known = ", ".join(self._callback_tensor_inputs)
            raise ValueError(f"callback_on_step_end_tensor_inputs: there is no {unknown.pop()!r}; choose from {known}")
        return make_schedule(schedule, steps)


def _stored(folder: Path) -> dict[str, set[str]]:
    """The names of the tensors of every part that diffusers loads: it would leave missing ones at random values."""
    names = {}
    for part in (p for p in ("text_head", "velocity_net", "vae") if (folder / p).is_dir()):
        names[part] = set()
        for file in (folder / part).glob("*.safetensors"):
            try:
                with safe_open(file, "pt") as tensors:
                    names[part] |= set(tensors.keys())
            except SafetensorError as error:
                size = file.stat().st_size
                raise OSError(f"{part}/{file.name} of {folder} ({size} bytes) cannot be read: {error}") from None
    return names


def _check_parts(text_encoder, text_head: VariationalHead, velocity_net: DiMR | DiT, vae: LatentVAE) -> None:
    """ValueError where one part's output is not the next one's input: it would be a riddle later."""
    head = text_head.config
    if text_encoder is not None and (text_encoder.tokens, text_encoder.dim) != (head.tokens, head.width):
        raise ValueError(
            f"text_encoder gives {text_encoder.tokens} states of {text_encoder.dim}, "
            f"text_head takes {head.tokens} of {head.width}"
        )
    for name, channels in (("velocity_net", velocity_net.config.channels), ("vae", vae.channels)):
        if channels != head.latent_shape[0]:
            raise ValueError(
                f"text_head makes latents of {tuple(head.latent_shape)}, {name}'s have {channels} channels"
            )


def _aligned(z0: Tensor, to: bool | float) -> Tensor:
    """Every sample's std set to 1 (True) or to a number; False leaves them."""
    if to is False:
        return z0
    return z0 * (float(to) / z0.flatten(1).std(1).clamp_min(1e-8).view(-1, *[1] * (z0.dim() - 1)))


@contextmanager
def _computing_in(net: torch.nn.Module, dtype: torch.dtype | None):
    """The network's forward in another dtype: its weights widened for a while, or autocast to a narrower one."""
    own = net.dtype
    if dtype in (None, own):
        yield
    elif torch.promote_types(dtype, own) != dtype:
        with torch.autocast(net.device.type, dtype=dtype):
            yield
    else:
        net.to(dtype)
        try:
            yield
        finally:
            net.to(own)  # exactly what they were


def _noise(like: Tensor, generator: torch.Generator | Sequence[torch.Generator] | None) -> Tensor:
    """N(0, 1) as ``like``, drawn where the generator lives; of several generators one for each sample."""
    if isinstance(generator, Sequence):
        return torch.cat([_noise(x[None], g) for x, g in zip(like, generator, strict=True)])
    device = "cpu" if generator is None else generator.device
    return torch.randn(like.shape, generator=generator, device=device, dtype=torch.float32).to(like.device)
