"""Text to image in one object: prompts, z0, flow, VAE. A diffusers pipeline."""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
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
from fmkernels.flow import SCHEDULES, SOLVERS, Sample, Schedule, Trace, make_schedule, sample
from fmpipe.bundled import BUNDLED, parts
from fmpipe.models import DiMR, DiT, VariationalHead, load_checkpoint
from fmpipe.vae import LatentVAE

OUTPUT_TYPES = ("pil", "np", "pt", "latent")


@dataclass
class Probe:
    """A decoded latent as numbers: its range, its contrast (std over pixels), and the latent's rms."""

    low: float
    high: float
    contrast: float
    rms: float

    @classmethod
    def of(cls, image: Tensor, latent: Tensor) -> "Probe":
        return cls(image.min().item(), image.max().item(), image.std().item(), latent.square().mean().sqrt().item())


@dataclass
class FlowPipelineOutput(BaseOutput):
    """images: as ``output_type`` says. trace: of all steps. z0, z1: the latents before and after the flow.

    probes: ``A`` decode(z0), ``B`` the rms of the first step's change, ``C`` decode(z1): the diary's three looks.
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
    :class:`fmpipe.models.DiMR` or DiT. vae: a :class:`fmpipe.vae.LatentVAE`. fm_gain: the default gain of the velocity,
    as :meth:`calibrate_gain` measures it. guidance_scale: the default guidance (None: off). source: what it was trained
    on, if anyone can rebuild it: ``emoji`` or ``shapes``, on which ``fmpipe check`` then measures.
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
    ):
        super().__init__()
        if not isinstance(fm_gain, (int, float)) or not isfinite(fm_gain):
            raise ValueError(f"fm_gain must be a finite number, got {fm_gain!r}")
        _check_parts(text_encoder, text_head, velocity_net, vae)
        self.register_modules(text_encoder=text_encoder, text_head=text_head, velocity_net=velocity_net, vae=vae)
        self.register_to_config(fm_gain=fm_gain, guidance_scale=guidance_scale, source=source)
        self.image_processor = VaeImageProcessor(vae_scale_factor=vae.factor)

    @classmethod
    def from_pretrained(cls, name: str | Path, **options) -> "FlowPipeline":
        """diffusers' own, of a folder; or a pipeline that comes with the package, by its name (``"default"``).

        Only safetensors are read. OSError naming the part and the file that is damaged or lacks tensors.
        """
        if str(name) in BUNDLED and not Path(name).is_dir():
            dtype = options.pop("dtype", None) or options.pop("torch_dtype", None)
            modules = {part: torch.nn.Module.to(module, dtype) for part, module in parts(str(name)).items()}
            return cls(**{"source": "emoji", **modules, **options})
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

    # Text to z0

    @torch.no_grad()
    def encode(self, prompt: str | Sequence[str], prompt_embeds: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """mu and logvar, (B, C, H, W): of prompts, or of the text states ``prompt_embeds`` (B, L, D)."""
        mask = None
        if prompt_embeds is None:
            if self.text_encoder is None:
                raise ValueError("prompt needs a text_encoder, and this pipeline has none: give prompt_embeds")
            prompt_embeds, mask = self.text_encoder([prompt] if isinstance(prompt, str) else list(prompt))
        head = self.text_head
        return head(prompt_embeds.to(head.device, head.dtype), None if mask is None else mask.to(head.device))

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
        num_inference_steps: int = 50,
        guidance_scale: float | None = None,
        schedule: str = "crossflow",
        solver: str = "euler",
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
    ) -> FlowPipelineOutput | tuple:
        """One picture, or ``num_images_per_prompt``, for each prompt.

        Give ``prompt``, or its text states ``prompt_embeds``, or z0 itself as ``latents``. guidance_scale: None is the
        pipeline's own; ``v = v_null + guidance (v - v_null)`` by one batched forward. schedule, solver: of
        :mod:`fmkernels.flow`. z0_mode: ``"sample"`` or ``"mean"``. fm_gain: None is the pipeline's own. dt_scale,
        time_dir, align_variance, velocity_dtype (of the velocity network's forward): the diary's knobs. output_type:
        ``"pil"``, ``"np"``, ``"pt"`` or ``"latent"``. callback_on_step_end: diffusers', called with (pipeline, step, t,
        {"latents": x}); a dict with other latents that it returns replaces them. callback_on_step_end_tensor_inputs:
        also ``"stats"``, the step's row of the trace, (B, 5) on the device.
        """
        plan = self.check_inputs(
            prompt, prompt_embeds, latents, num_inference_steps, guidance_scale, schedule, solver,
            num_images_per_prompt, generator, z0_mode, fm_gain, dt_scale, time_dir, align_variance, velocity_dtype,
            output_type, callback_on_step_end, callback_on_step_end_tensor_inputs,
        )  # fmt: skip
        guidance = self.config.guidance_scale if guidance_scale is None else guidance_scale
        gain = self.config.fm_gain if fm_gain is None else fm_gain

        # 1. prompts to mu and logvar, 2. to z0
        mu = logvar = None
        if latents is None:
            mu, logvar = (x.repeat_interleave(num_images_per_prompt, 0) for x in self.encode(prompt, prompt_embeds))
            z0 = self.prepare_latents(mu, logvar, z0_mode, generator, align_variance)
        else:
            z0 = _aligned(latents.float(), align_variance)
        z0 = z0.to(self.velocity_net.device)

        # 3. the flow
        z1, trace = self.flow(
            z0, plan, solver=solver, guidance=guidance, gain=gain, dt_scale=dt_scale, time_dir=time_dir,
            dtype=velocity_dtype, callback=callback_on_step_end, seen=callback_on_step_end_tensor_inputs,
        )  # fmt: skip

        # 4. pictures, and the three looks
        decoded = self.vae.decode(z1.to(self.vae.dtype)).float()
        first = self.vae.decode(z0.to(self.vae.dtype)).float()
        probes = {"A": Probe.of(first, z0), "B": trace.values[0, :, 2].mean().item(), "C": Probe.of(decoded, z1)}
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
    def interpolate(self, a: str, b: str, n: int = 8, **options) -> FlowPipelineOutput:
        """n pictures from prompt a to prompt b, along the straight line between their means in the latent."""
        if not isinstance(n, int) or n < 2:
            raise ValueError(f"interpolate: n must be at least 2, got {n!r}")
        mu, _ = self.encode([a, b])
        way = torch.linspace(0, 1, n, device=mu.device).view(-1, 1, 1, 1)
        return self(latents=torch.lerp(mu[:1].float(), mu[1:].float(), way), **options)

    @torch.no_grad()
    def arithmetic(self, add: str | Sequence[str], subtract: str | Sequence[str] = (), **options) -> FlowPipelineOutput:
        """The picture of the sum of some prompts' means less others', brought back to mean 0 and std 1."""
        add, subtract = ([texts] if isinstance(texts, str) else list(texts) for texts in (add, subtract))
        if not add:
            raise ValueError("arithmetic: add must have at least one prompt")
        mu, _ = self.encode([*add, *subtract])
        signs = torch.tensor([1.0] * len(add) + [-1.0] * len(subtract), device=mu.device)
        z = torch.einsum("b,bchw->chw", signs, mu.float())[None]
        if not z.std() > 1e-6 * mu.float().std():
            raise ValueError("arithmetic: nothing is left of add once subtract is taken away")
        return self(latents=(z - z.mean()) / z.std(), **options)

    @torch.no_grad()
    def calibrate_gain(self, images: Tensor, prompts: Sequence[str], *, save: bool = False, seed: int = 0) -> float:
        """median(|v_target| / |v_pred|) over the pairs at random t, in [-1, 1] pixels: 1 for a network that is not shy.

        images: (B, 3, H, W) of the pipeline's size. save: into the pipeline's config, where it becomes the default
        ``fm_gain`` (and goes with save_pretrained). ValueError, and nothing saved, for a gain that is no number.
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
        z0 = self.prepare_latents(mu, logvar, generator=draw).to(self.velocity_net.device)
        z1 = self.vae.encode(images.to(self.vae.device, self.vae.dtype), generator=draw).to(z0)
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
        for name, value, known in (
            ("schedule", schedule, SCHEDULES), ("solver", solver, SOLVERS), ("output_type", output_type, OUTPUT_TYPES),
            ("z0_mode", z0_mode, ("sample", "mean")), ("time_dir", time_dir, ("0->1", "1->0")),
        ):  # fmt: skip
            if value not in known:
                raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(known)}")
        for name, value in (("num_images_per_prompt", count), ("num_inference_steps", steps)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name, value, empty in (
            ("guidance_scale", guidance_scale, None), ("fm_gain", fm_gain, None), ("dt_scale", dt_scale, 1.0),
            ("align_variance", align_variance, False),
        ):  # fmt: skip
            if value is not empty and (not isinstance(value, (int, float)) or not isfinite(value)):
                raise ValueError(f"{name} must be a finite number, got {value!r}")
        if align_variance is not False and align_variance <= 0:
            raise ValueError(f"align_variance must be True, False or a standard deviation, got {align_variance!r}")
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
            raise ValueError("callback_on_step_end has no place in solver='dopri5', whose steps are its own")
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
