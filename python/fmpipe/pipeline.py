"""Text to image in one diffusers pipeline: prompts, z0, flow, VAE."""

import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from diffusers import DiffusionPipeline
from diffusers.image_processor import VaeImageProcessor
from torch import Tensor

import fmpipe.text.encoders  # (diffusers finds the classes of a pipeline's parts only in imported modules)
import fmpipe.text.meta_query  # noqa: F401
from fmkernels import flow_pair, reparameterize, velocity_stats
from fmkernels.flow import Sample, Schedule, make_schedule, sample
from fmpipe.bundled import BUNDLED, check_index, find_pipeline, parts, tensors_of
from fmpipe.known import KnownCaptions, prompt_warnings
from fmpipe.models import DiMR, DiT, MixtureHead, VariationalHead, load_checkpoint
from fmpipe.pipeline_output import FlowPipelineOutput, Probe
from fmpipe.precision import precision_of, set_precision, wanted_dtype
from fmpipe.sampling import STORED, Precision, SamplingOptions, check_setting
from fmpipe.vae import LatentVAE


class FlowPipeline(DiffusionPipeline):
    """prompt -> text states -> (mu, logvar) -> z0 -> flow -> z1 -> picture.

    text_encoder: an encoder of :mod:`fmpipe.text`. text_head: computes mu and logvar from its states. velocity_net: a
    :class:`fmpipe.models.DiMR` or DiT. vae: a :class:`fmpipe.vae.LatentVAE`.

    The other arguments are stored in ``model_index.json`` and travel with the pipeline:

    Args:
        fm_gain, guidance_scale, schedule, solver, num_inference_steps: the values that :meth:`__call__` uses where its
            arguments are omitted. A ``guidance_scale`` of None or 1 turns guidance off.
        max_guidance: the largest guidance scale that gives usable images; a larger one raises a warning. 1.0 means that
            the network was trained without the null indicator, so that guidance has no meaning.
        source: the data set it was trained on, ``emoji``, ``shapes`` or ``scenes``, if it can be rebuilt; ``fmpipe
            check`` then measures on it.
        known: the embedded training captions, to warn about prompts that are far from all of them. Not saved.
        graph: whether :meth:`__call__` captures a solver step in a CUDA graph; see :func:`fmkernels.flow.sample`. Not
            saved.
        velocity_precision: ``"int8"``, ``"bf16"`` or ``"fp8"`` convert the velocity network's linear layers, in place
            (:func:`fmkernels.quantize`; the report is ``pipe.quantization``). ``"auto"`` takes the fastest that this
            machine has instructions for, ``"fp32"`` the weights as they are. The solver's state is always in fp32.
            ``save_pretrained`` saves the converted weights: about a quarter of the bytes in int8.
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
        velocity_precision: str = "fp32",
    ):
        super().__init__()
        own = SamplingOptions(num_inference_steps, guidance_scale, schedule, solver, fm_gain, graph=graph)
        check_setting("max_guidance", max_guidance, "max_guidance")
        if fm_gain is None:
            raise ValueError("fm_gain must be a finite number, got None")
        _check_parts(text_encoder, text_head, velocity_net, vae)
        self.register_modules(text_encoder=text_encoder, text_head=text_head, velocity_net=velocity_net, vae=vae)
        settings = {name: getattr(own, name) for name in STORED}
        check_setting("velocity_precision", velocity_precision, "velocity_precision")
        self.register_to_config(**settings, max_guidance=max_guidance, source=source)
        self.set_velocity_precision(velocity_precision)
        self.known, self.graph = known, graph
        self.image_processor = VaeImageProcessor(vae_scale_factor=vae.factor)

    @classmethod
    def from_pretrained(cls, name: str | Path, **options) -> "FlowPipeline":
        """Load a pipeline from its folder, from the folder of a training run, or by its name (``"default"``).

        options: as in diffusers' ``from_pretrained``. Only safetensors are read, and no Python code of the pipeline is
        run. Raises FileNotFoundError if there is no pipeline, OSError naming the part and file that is damaged or lacks
        tensors, ValueError naming an invalid entry of ``model_index.json``.
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
        stored = {}
        if Path(name).is_dir():
            check_index(Path(name), options)
            stored = tensors_of(Path(name))
        pipe = super().from_pretrained(str(name), **{"use_safetensors": True, **options, "trust_remote_code": False})
        for part, names in stored.items():
            if part not in options and (missing := sorted(pipe.components[part].state_dict().keys() - names)):
                raise OSError(f"{part} of {name} has {len(missing)} missing keys, first {missing[0]}")
        return pipe

    @classmethod
    def from_released(
        cls, text_encoder, checkpoint: str | Path, vae: str | Path, *, preset: str | None = None, **options
    ):
        """Load a pipeline from released files: the folder of a CLIP or T5, a ``.pth`` of both networks, an LDM VAE.

        text_encoder: also an encoder of :mod:`fmpipe.text`. preset: that of the checkpoint; the default is its file
        name. options: those of the constructor.
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

    def set_velocity_precision(self, precision: Precision) -> None:
        """Convert the velocity network, in place, as the constructor's ``velocity_precision``; original weights are
        freed."""
        check_setting("velocity_precision", precision, "velocity_precision")
        self.quantization = set_precision(self.velocity_net, precision)
        self.register_to_config(velocity_precision=precision)

    # Text to z0

    @torch.no_grad()
    def encode(
        self,
        prompt: str | Sequence[str],
        prompt_embeds: Tensor | None = None,
        *,
        count: int = 1,
        uniform: Tensor | None = None,
        diversity: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Return mu and logvar, (B · count, C, H, W), of prompts or of the text states ``prompt_embeds`` (B, L, D).

        If the text head is a mixture, they are those of its most likely component, or, with ``uniform`` (B · count,),
        random numbers in [0, 1), those of a random one. diversity: see :meth:`__call__`.
        """
        mask = None
        if prompt_embeds is None:
            if self.text_encoder is None:
                raise ValueError("prompt needs a text_encoder, and this pipeline has none: give prompt_embeds")
            prompts = [prompt] if isinstance(prompt, str) else list(prompt)
            prompt_embeds, mask = self.text_encoder(prompts)
            for message in prompt_warnings(prompts, prompt_embeds, mask, self.known, self.text_encoder):
                warnings.warn(message, stacklevel=3)
        head = self.text_head
        states, mask = prompt_embeds.to(head.device, head.dtype), None if mask is None else mask.to(head.device)
        if uniform is None:
            mu, logvar = head(states, mask)
            return mu.repeat_interleave(count, 0), logvar.repeat_interleave(count, 0)
        states, mask = (None if x is None else x.repeat_interleave(count, 0) for x in (states, mask))
        return head(states, mask, uniform, diversity)

    def prepare_latents(
        self,
        mu: Tensor,
        logvar: Tensor,
        z0_mode: str = "sample",
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        align_variance: bool | float = False,
    ) -> Tensor:
        """Return z0 in fp32: a sample of N(mu, exp(logvar)), or mu. align_variance: set each std to 1, or to this."""
        mu, logvar = mu.float(), logvar.float()
        z0 = mu
        if z0_mode == "sample":
            z0 = reparameterize(mu, logvar, eps=_noise(mu, generator))[0]
        return _aligned(z0, align_variance)

    # Prompt to image

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
        diversity: float = 1.0,
        fm_gain: float | None = None,
        dt_scale: float = 1.0,
        time_dir: str = "0->1",
        align_variance: bool | float = False,
        velocity_dtype: torch.dtype | str | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end: Callable | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("latents",),
        graph: bool | str | None = None,
        probes: bool = False,
    ) -> FlowPipelineOutput | tuple:
        """Generate ``num_images_per_prompt`` images for each prompt.

        Exactly one of ``prompt``, ``prompt_embeds`` (its text states) and ``latents`` (z0 itself) must be given.

        Args:
            num_inference_steps, guidance_scale, schedule, solver, fm_gain: None selects the pipeline's own value, from
                its config. Guidance is ``v = v_null + guidance_scale (v - v_null)``, computed in one batched forward;
                a scale of 1 turns it off.
            z0_mode: ``"sample"`` draws z0 from N(mu, exp(logvar)), ``"mean"`` uses mu. Of a mixture, ``"sample"`` draws
                a component first, and ``"mean"`` is the mean of the most likely one.
            diversity: temperature of the weights of a mixture (:class:`fmpipe.models.MixtureHead`). 0 selects the most
                likely component, larger values draw unlikely ones more often. Other text heads have no weights.
            dt_scale: a factor for every step.
            time_dir: ``"1->0"`` reverses t and dt.
            align_variance: set the standard deviation of every z0 to 1 (True) or to this value.
            velocity_dtype: dtype of the velocity network's forward; None is its own. ``"auto"`` is bf16 if a forward in
                it is faster on this machine, which is timed once.
            output_type: ``"pil"``, ``"np"``, ``"pt"`` or ``"latent"``.
            callback_on_step_end: as in diffusers, called with (pipeline, step, t, {"latents": x}). Latents in the dict
                that it returns replace the state. Not supported with the adaptive solver 'dopri5'.
            callback_on_step_end_tensor_inputs: also ``"stats"``, the step's row of the trace, (B, 5), on the device.
            graph: whether to capture a solver step in a CUDA graph (True, False or ``"auto"``); None is the pipeline's.
            probes: whether to measure the output's ``probes``, which decodes z0 too.
        """
        options = SamplingOptions(
            num_inference_steps, guidance_scale, schedule, solver, fm_gain, dt_scale, time_dir, align_variance,
            velocity_dtype, z0_mode, num_images_per_prompt, output_type, graph, diversity,
        ).completed(self.config)  # fmt: skip
        self.check_inputs(
            prompt, prompt_embeds, latents, generator, callback_on_step_end, callback_on_step_end_tensor_inputs, options
        )
        self._warn_about_guidance(options.solver_arguments["guidance"])

        # 1. prompts to mu and logvar, 2. to z0
        mu = logvar = None
        if latents is None:
            given = [prompt] if isinstance(prompt, str) else prompt if prompt_embeds is None else prompt_embeds
            random = z0_mode == "sample" and isinstance(self.text_head, MixtureHead)
            uniform = _uniform(len(given) * num_images_per_prompt, generator) if random else None
            mu, logvar = self.encode(
                prompt, prompt_embeds, count=num_images_per_prompt, uniform=uniform, diversity=options.diversity
            )
            z0 = self.prepare_latents(mu, logvar, z0_mode, generator, align_variance)
        else:
            z0 = _aligned(latents.float(), align_variance)
        z0 = z0.to(self._execution_device)

        # 3. the flow
        z1, trace = self.flow(
            z0, make_schedule(options.schedule, options.num_inference_steps), dtype=velocity_dtype,
            callback=callback_on_step_end, callback_inputs=callback_on_step_end_tensor_inputs,
            graph=self.graph if graph is None else graph, **options.solver_arguments,
        )  # fmt: skip

        # 4. images
        decoded = self._decoded(z1) if probes or output_type != "latent" else None
        measured = None
        if probes:
            before, after = Probe.of((self._decoded(z0), z0), (decoded, z1))
            measured = {"A": before, "B": trace.values[0, :, 2].mean().item(), "C": after}
        images = z1 if output_type == "latent" else self.image_processor.postprocess(decoded, output_type=output_type)
        self.maybe_free_model_hooks()
        if not return_dict:
            return (images, trace)
        return FlowPipelineOutput(images, trace, measured, mu, logvar, z0, z1)

    def _decoded(self, z: Tensor) -> Tensor:
        """Return pixels in fp32; raise FloatingPointError if any is not finite, as a picture would not show it."""
        pixels = self.vae.decode(z.to(self.vae.dtype)).float()
        if not pixels.isfinite().all():
            raise FloatingPointError(
                f"vae: {(~pixels.isfinite()).sum()} of {pixels.numel()} decoded values are infinite or NaN, from "
                f"latents of up to {z.abs().max():.3g}: its weights are damaged, or {self.vae.dtype} is too narrow"
            )
        return pixels

    def velocity(self, x: Tensor, t: Tensor, null: Tensor | None = None) -> Tensor:
        """Return the velocity of x, in the network's dtype. null: (B,) bool, the null indicator; all False if None."""
        net = self.velocity_net
        null = torch.zeros(len(x), dtype=torch.bool, device=x.device) if null is None else null
        return net.velocity(x.to(net.dtype), t, null=null)

    def flow(
        self,
        z0: Tensor,
        plan: Schedule,
        *,
        dtype: torch.dtype | str | None = None,
        callback: Callable | None = None,
        callback_inputs: Sequence[str] = ("latents",),
        **options,
    ) -> Sample:
        """Return (z1, trace) of moving z0 along the velocity. dtype: that of the forward; None is the network's own.

        ``trace.precision`` names the precision of the network's products.

        callback, callback_inputs: ``callback_on_step_end`` and the tensors that it gets. options: those of
        :func:`fmkernels.flow.sample`.
        """
        bar = self.progress_bar(total=len(plan))
        times = (plan.reversed() if options.get("time_dir") == "1->0" else plan).t.tolist()

        def step_end(step, x, stats):
            bar.update()
            if callback is None:
                return None
            tensors = {"latents": x, "stats": stats}
            inputs = {name: tensors[name] for name in callback_inputs or ()}
            return (callback(self, step, times[step], inputs) or {}).get("latents")

        net = self.velocity_net
        if dtype == "auto":
            dtype = wanted_dtype(net, z0 if options.get("guidance") is None else torch.cat([z0, z0]))
        with bar, _computing_in(net, dtype):
            adaptive = options.get("solver") == "dopri5"
            watched = callback is not None and "latents" in (callback_inputs or ())
            step_end = None if adaptive else step_end
            out = sample(self.velocity, z0, plan, step_end=step_end, copy_state=watched, **options)
        quantized = precision_of(net)
        out.trace.precision = quantized if quantized != "fp32" else _SHORT.get(dtype or net.dtype, str(dtype))
        return out

    # Latents from several prompts

    @torch.no_grad()
    def interpolate(
        self, a: str, b: str, n: int = 8, *, generator: torch.Generator | None = None, **options
    ) -> FlowPipelineOutput:
        """Generate n images along the straight line between the means of prompts a and b in the latent space.

        If the text head is a mixture, the latents between are drawn toward its components, which keeps images sharp.
        With a generator, the same noise, at the scale of the interpolated sigma, is added to all of them. options: of
        :meth:`__call__`.
        """
        if not isinstance(n, int) or n < 2:
            raise ValueError(f"interpolate: n must be at least 2, got {n!r}")
        mu, logvar = (x.float() for x in self.encode([a, b]))
        way = torch.linspace(0, 1, n, device=mu.device).view(-1, 1, 1, 1)
        z = torch.lerp(mu[:1], mu[1:], way)
        if (settled := self.text_head.settled(z)) is not None:
            z = settled
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

        If the text head is a mixture, the sum is drawn toward its components instead of being restandardized. With a
        generator, noise at the scale of the first prompt's sigma is added. options: of :meth:`__call__`.
        """
        add, subtract = ([texts] if isinstance(texts, str) else list(texts) for texts in (add, subtract))
        if not add:
            raise ValueError("arithmetic: add must have at least one prompt")
        mu, logvar = (x.float() for x in self.encode([*add, *subtract]))
        signs = torch.tensor([1.0] * len(add) + [-1.0] * len(subtract), device=mu.device)
        z = torch.einsum("b,bchw->chw", signs, mu)[None]
        if not z.std() > 1e-6 * mu.std():
            raise ValueError("arithmetic: nothing is left of add once subtract is taken away")
        settled = self.text_head.settled(z)
        z = z if settled is None else settled
        if generator is not None:
            z = z + logvar[:1].mul(0.5).exp() * _noise(z, generator)
        return self(latents=(z - z.mean()) / z.std() if settled is None else z, **options)

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
            raise ValueError(f"calibrate_gain: prompts must be a list of {len(images)}, one per image, got {prompts!r}")
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
        self, prompt, prompt_embeds, latents, generator, callback, callback_inputs, options: SamplingOptions
    ) -> None:
        """Raise ValueError or TypeError, naming the argument, for inputs that do not fit the pipeline or each other."""
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
        count = options.num_images_per_prompt
        if latents is not None and count > 1:
            raise ValueError(f"num_images_per_prompt must be 1 with latents, got {count}: repeat the latents")
        images = count * (1 if isinstance(prompt, str) else len(inputs[given[0]]))
        generators = generator if isinstance(generator, (list, tuple)) else [generator]
        if generators is generator and len(generator) != images:
            raise ValueError(f"generator must be one, or one for each of {images} images, got {len(generator)}")
        if not all(g is None or isinstance(g, torch.Generator) for g in generators):
            raise TypeError(f"generator must be a torch.Generator or a list of them, got {generator!r}")
        if callback is not None and not callable(callback):
            raise TypeError(f"callback_on_step_end must be callable, got {type(callback).__name__}")
        if callback is not None and options.solver == "dopri5":
            raise ValueError("callback_on_step_end is not supported with the adaptive solver 'dopri5'")
        if unknown := set(callback_inputs or ()) - set(self._callback_tensor_inputs):
            known = ", ".join(self._callback_tensor_inputs)
            raise ValueError(f"callback_on_step_end_tensor_inputs: there is no {unknown.pop()!r}; choose from {known}")

    def _warn_about_guidance(self, guidance: float | None) -> None:
        most = self.config.max_guidance
        if guidance is not None and most is not None and not 0 <= guidance <= most:
            why = "it was trained without guidance" if most <= 1 else "expect distorted images"
            warnings.warn(
                f"guidance_scale {guidance:g} is outside 0 to {most:g}, which this model tolerates: {why}", stacklevel=4
            )


_SHORT = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def _check_parts(text_encoder, text_head: VariationalHead, velocity_net: DiMR | DiT, vae: LatentVAE) -> None:
    """Raise ValueError if the output of a part does not fit the input of the next one."""
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
    """Return z0 with the std of every sample set to 1 (True) or to a number, or as it is (False)."""
    if to is False:
        return z0
    return z0 * (float(to) / z0.flatten(1).std(1).clamp_min(1e-8).view(-1, *[1] * (z0.dim() - 1)))


@contextmanager
def _computing_in(net: torch.nn.Module, dtype: torch.dtype | str | None):
    """Run the network's forward in another dtype: convert its weights to a wider one, or autocast to a narrower one."""
    own = net.dtype
    dtype = own if dtype is None else getattr(torch, str(dtype).removeprefix("torch."))  # also a name: "float32"
    if dtype == own:
        yield
    elif torch.promote_types(dtype, own) != dtype:
        with torch.autocast(net.device.type, dtype=dtype):
            yield
    else:
        net.to(dtype)
        try:
            yield
        finally:
            net.to(own)  # restores the same bits


def _noise(like: Tensor, generator: torch.Generator | Sequence[torch.Generator] | None) -> Tensor:
    """Return N(0, 1) noise like ``like``, drawn on the generator's device; several generators: one for each sample."""
    if isinstance(generator, Sequence):
        return torch.cat([_noise(x[None], g) for x, g in zip(like, generator, strict=True)])
    device = "cpu" if generator is None else generator.device
    return torch.randn(like.shape, generator=generator, device=device, dtype=torch.float32).to(like.device)


def _uniform(count: int, generator: torch.Generator | Sequence[torch.Generator] | None) -> Tensor:
    """Return random numbers (count,) in [0, 1), drawn on the generator's device; several generators: one for each."""
    if isinstance(generator, Sequence):
        return torch.cat([_uniform(1, g).cpu() for g in generator])
    return torch.rand(count, generator=generator, device="cpu" if generator is None else generator.device)
