"""Pixels to latents and back; the one place where a latent's shift and scale are applied and undone."""

import re
import sys
from collections.abc import Mapping, Sequence
from functools import reduce
from inspect import signature
from itertools import count
from numbers import Real
from pathlib import Path
from reprlib import repr  # shortened: a value of a damaged file may be long

import torch
from diffusers import AutoencoderKL, AutoencoderTiny, ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from diffusers.utils.accelerate_utils import apply_forward_hook
from diffusers.utils.torch_utils import randn_tensor
from torch import Generator, Tensor

from fmpipe.models.checkpoint import read_state
from fmpipe.models.networks import CheckpointError, Fit, compare
from fmpipe.untrusted import check_weights, read_json

SD_SCALE = 0.18215  # Stable Diffusion 1 and 2
CROSSFLOW_SCALE = 0.23010  # CrossFlow, DiMR, U-ViT: of the same autoencoder
LOGVAR_RANGE = (-30.0, 20.0)

_KINDS = {"AutoencoderKL": AutoencoderKL, "AutoencoderTiny": AutoencoderTiny}
# What the wrapped model's own config says of its latents once its values have moved here: nothing to apply.
_NEUTRAL = {"scaling_factor": 1.0, "shift_factor": None, "latents_mean": None, "latents_std": None}
_ROOTS = ("encoder.", "decoder.", "quant_conv.", "post_quant_conv.")  # of an LDM autoencoder's keys
_PREFIX = "first_stage_model."  # of the same inside a whole latent diffusion model
_LDM_NAMES = (  # diffusers' name -> LDM's
    (r"\.down_blocks\.(\d+)\.resnets\.", r".down.\1.block."),
    (r"\.down_blocks\.(\d+)\.attentions\.", r".down.\1.attn."),
    (r"\.down_blocks\.(\d+)\.downsamplers\.0\.", r".down.\1.downsample."),
    (r"\.up_blocks\.(\d+)\.resnets\.", r".up.\1.block."),
    (r"\.up_blocks\.(\d+)\.attentions\.", r".up.\1.attn."),
    (r"\.up_blocks\.(\d+)\.upsamplers\.0\.", r".up.\1.upsample."),
    (r"\.mid_block\.resnets\.0\.", ".mid.block_1."),
    (r"\.mid_block\.resnets\.1\.", ".mid.block_2."),
    (r"\.mid_block\.attentions\.0\.", ".mid.attn_1."),
    (r"\.group_norm\.", ".norm."),
    (r"\.to_([qkv])\.", r".\1."),
    (r"\.to_out\.0\.", ".proj_out."),
    (r"\.conv_norm_out\.", ".norm_out."),
    (r"\.conv_shortcut\.", ".nin_shortcut."),
)


class LatentVAE(ModelMixin, ConfigMixin):
    """A diffusers autoencoder whose latents are shifted and scaled here, and nowhere else.

    ``z = (latent - shift) scale`` in :meth:`sample` and :meth:`encode`, ``z / scale + shift`` in :meth:`decode`. scale:
    scaling_factor (0.18215 Stable Diffusion, 0.23010 CrossFlow), divided by latents_std if there is one; shift:
    latents_mean, or shift_factor. What is left out comes from vae_config; the wrapped model's own config then holds
    neutral values, so that nobody can apply them again.

    kind: ``AutoencoderKL`` or ``AutoencoderTiny``; vae_config: its arguments. Pixels are (B, 3, H, W) in [-1, 1]. The
    model is always in eval mode, its parameters without gradients; those to pixels and z flow. Inputs are brought to
    the parameters' dtype; shift, scale and noise are computed in fp32 at least.
    """

    @register_to_config
    def __init__(
        self,
        kind: str = "AutoencoderKL",
        vae_config: Mapping | None = None,
        scaling_factor: float | None = None,
        shift_factor: float | None = None,
        latents_mean: Sequence[float] | None = None,
        latents_std: Sequence[float] | None = None,
    ):
        super().__init__()
        self._constants = None, None
        if kind not in _KINDS:
            raise ValueError(f"LatentVAE: unknown kind {kind!r}; choose one of {', '.join(_KINDS)}")
        arguments = signature(_KINDS[kind].__init__).parameters
        own = {key: value for key, value in dict(vae_config or {}).items() if key in arguments}
        given = (scaling_factor, shift_factor, latents_mean, latents_std)
        latents = {key: own.get(key) if value is None else value for key, value in zip(_NEUTRAL, given)}
        if latents["scaling_factor"] is None:
            latents["scaling_factor"] = arguments["scaling_factor"].default
        own |= {key: value for key, value in _NEUTRAL.items() if key in arguments}
        self.vae = _KINDS[kind](**own)
        _check_latents(latents, self.vae.config.latent_channels)
        self.register_to_config(vae_config=own, **latents)
        levels, factor = _factor(self.vae)
        if levels != factor:
            raise ValueError(f"LatentVAE: vae_config shrinks pixels {levels} times and enlarges latents {factor} times")
        self.requires_grad_(False)
        self.eval()

    @property
    def channels(self) -> int:
        """C of a latent."""
        return self.vae.config.latent_channels

    @property
    def factor(self) -> int:
        """Pixels to a latent's side; 8 for Stable Diffusion's."""
        return _factor(self.vae)[0]

    def latent_shape(self, height: int, width: int) -> tuple[int, int, int]:
        """(C, h, w) of an image's latent. ValueError if a side is no multiple of ``factor``."""
        for name, side in (("height", height), ("width", width)):
            if not isinstance(side, int) or side <= 0 or side % self.factor:
                raise ValueError(f"LatentVAE: {name} must be a positive multiple of {self.factor}, got {side!r}")
        return self.channels, height // self.factor, width // self.factor

    @apply_forward_hook
    def encode_moments(self, pixels: Tensor) -> Tensor:
        """(B, 2C, h, w): mean, then logvar, as LDM's ``quant_conv`` leaves them; neither shifted, scaled nor clamped.

        AutoencoderTiny has no variance: its logvar is -30, and sampling moves its latents by about 3e-7.
        """
        _check_images("pixels", pixels, self.vae.config.in_channels)
        if not pixels.shape[2] or not pixels.shape[3] or pixels.shape[2] % self.factor or pixels.shape[3] % self.factor:
            raise ValueError(
                f"LatentVAE: pixels must have sides that are positive multiples of {self.factor}, "
                f"got {pixels.shape[2]} × {pixels.shape[3]}"
            )
        encoded = self.vae.encode(pixels.to(self.dtype))
        if isinstance(self.vae, AutoencoderKL):
            return encoded.latent_dist.parameters
        mean = encoded.latents.to(self.dtype)  # of tiles in fp32 always
        return torch.cat([mean, torch.full_like(mean, LOGVAR_RANGE[0])], dim=1)

    def sample(self, moments: Tensor, generator: Generator | list[Generator] | None = None) -> Tensor:
        """``z = (mean + exp(clamp(logvar, -30, 20) / 2) eps - shift) scale``, in the moments' dtype.

        moments: (B, 2C, h, w), z: (B, C, h, w). eps is drawn in fp32 (fp64 for fp64), so that moments kept in half
        precision get the same. A logvar of -inf has no noise: the mean is a latent that was sampled before. generator:
        one, or a list with one a sample.
        """
        mean, logvar = self._split(moments)
        if isinstance(generator, list) and len(generator) != len(moments):
            raise ValueError(f"LatentVAE: generator must be one or {len(moments)}, got {len(generator)}")
        eps = randn_tensor(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
        std = torch.exp(0.5 * logvar.clamp(*LOGVAR_RANGE)).masked_fill(logvar == -torch.inf, 0.0)
        return self._scaled(mean + std * eps).to(moments.dtype)

    def encode(
        self, pixels: Tensor, generator: Generator | list[Generator] | None = None, sample: bool = True
    ) -> Tensor:
        """The scaled latent z, (B, C, h, w): a sample, or, with ``sample=False``, the mode."""
        moments = self.encode_moments(pixels)
        return self.sample(moments, generator) if sample else self.mode(moments)

    def mode(self, moments: Tensor) -> Tensor:
        """``z = (mean - shift) scale``: :meth:`sample` without its noise."""
        return self._scaled(self._split(moments)[0]).to(moments.dtype)

    @apply_forward_hook  # a pipeline's offloading waits for forward, which nobody calls here
    def decode(self, z: Tensor, clamp: bool = False) -> Tensor:
        """Pixels of a scaled latent, (B, C, h, w) to (B, 3, H, W), in [-1, 1] up to what the decoder overshoots.

        clamp: cut that off.
        """
        _check_images("z", z, self.channels)
        shift, scale = self.shift_scale(z := z.to(torch.promote_types(z.dtype, torch.float32)))
        pixels = self.vae.decode((z / scale + shift).to(self.dtype)).sample.to(self.dtype)
        return pixels.clamp(-1, 1) if clamp else pixels

    def enable_tiling(self, tile: int | None = None) -> None:
        """Encode and decode in overlapping tiles, blended; tile: their side in pixels, the model's own if left out."""
        config = self.vae.config
        if isinstance(self.vae, AutoencoderTiny):
            if (config.latent_channels, config.out_channels) != (4, 3):  # diffusers' tiles have these always
                raise NotImplementedError(
                    f"AutoencoderTiny has tiles for 4 latent and 3 pixel channels only, "
                    f"not for {config.latent_channels} and {config.out_channels}"
                )
            self.vae.spatial_scale_factor = self.factor  # diffusers' is right for 8 only
            tile = tile or self.vae.tile_sample_min_size
        if tile is not None:
            step = 16 * self.factor  # overlaps of both kinds are then whole latents, and more than one
            if tile <= 0 or tile % step:
                raise ValueError(f"LatentVAE: tile must be a positive multiple of {step}, got {tile}")
            self.vae.tile_sample_min_size, self.vae.tile_latent_min_size = tile, tile // self.factor
        self.vae.enable_tiling()

    def disable_tiling(self) -> None:
        """The reverse."""
        self.vae.disable_tiling()

    def enable_slicing(self) -> None:
        """One image at a time."""
        self.vae.enable_slicing()

    def disable_slicing(self) -> None:
        """The reverse."""
        self.vae.disable_slicing()

    def train(self, mode: bool = True) -> "LatentVAE":
        """Stays in eval mode whatever mode is."""
        return super().train(False)

    @classmethod
    def from_folder(cls, folder: str | Path) -> "LatentVAE":
        """Load a folder of :meth:`save_pretrained`, or one that :meth:`from_diffusers` reads."""
        check_weights(folder)
        config = Path(folder) / "config.json"
        own = read_json(config).get("_class_name") == cls.__name__
        return cls.from_pretrained(folder) if own else cls.from_diffusers(folder)

    @classmethod
    def from_diffusers(
        cls,
        folder_or_model: str | Path | AutoencoderKL | AutoencoderTiny,
        scaling_factor: float | None = None,
        **kwargs,
    ) -> "LatentVAE":
        """From a local folder of either kind, or of a pipeline that has one under ``vae``, or from a model.

        scaling_factor: the model's own if left out (TAESD's is 1, its latents being Stable Diffusion's scaled ones; for
        CrossFlow's give 0.23010 / 0.18215). kwargs go to diffusers' ``from_pretrained``: ``torch_dtype``, ``variant``.
        A model shares its tensors and is otherwise left as it was. CheckpointError lists all keys that do not fit.
        """
        model = folder_or_model
        if isinstance(folder_or_model, (str, Path)):
            model = _read_folder(Path(folder_or_model).expanduser(), kwargs)
        elif kwargs:
            raise ValueError(f"from_diffusers: {', '.join(kwargs)}: of a folder only")
        kind = next((name for name, wrapped in _KINDS.items() if isinstance(model, wrapped)), None)
        if kind is None:
            raise TypeError(
                f"from_diffusers: folder_or_model must be a folder, {' or '.join(_KINDS)}, got {type(model).__name__}"
            )
        return cls._around(model.state_dict(), kind=kind, vae_config=dict(model.config), scaling_factor=scaling_factor)

    @classmethod
    def from_ldm(
        cls,
        path: str | Path,
        scaling_factor: float = CROSSFLOW_SCALE,
        *,
        latents_mean: Sequence[float] | None = None,
        latents_std: Sequence[float] | None = None,
        dtype: torch.dtype | None = None,
    ) -> "LatentVAE":
        """From an LDM checkpoint: ``.safetensors``, or ``.pth`` or ``.ckpt`` whose code is never run.

        Keys are ``encoder.* decoder.* quant_conv.* post_quant_conv.*``, under ``first_stage_model.`` or not, the dict
        under ``state_dict`` or not; others (``loss.*``, a U-Net's) are ignored. The shapes give the architecture.
        dtype: the widest of the file if left out. CheckpointError lists all keys that do not fit.
        """
        name = Path(path).name
        state = _ldm_state(path)
        config = _ldm_config(name, state)
        try:
            with torch.device("meta"):
                model = AutoencoderKL(**config)
        except ValueError as error:
            raise ValueError(f"{name}: no AutoencoderKL has these shapes: {error}") from error
        expected = model.state_dict()
        names = {key: _ldm_name(key, len(config["block_out_channels"])) for key in expected}
        for key in expected:  # LDM's projections are convolutions
            value = state.get(names[key])
            if value is not None and expected[key].dim() == 2 and value.shape[2:] == (1, 1):
                state[names[key]] = value[:, :, 0, 0]
        if not (fit := compare(state, {names[key]: value for key, value in expected.items()})):
            raise CheckpointError(f"{name} does not fit the autoencoder that its shapes describe:", fit)
        if broken := [key for key, value in state.items() if not value.isfinite().all()]:
            raise ValueError(f"{name}: infinite or NaN values in {', '.join(broken[:5])}")
        dtype = dtype or reduce(torch.promote_types, [value.dtype for value in state.values()])
        tensors = {key: state[names[key]].to(dtype, copy=True).contiguous() for key in expected}
        latents = {"scaling_factor": scaling_factor, "latents_mean": latents_mean, "latents_std": latents_std}
        return cls._around(tensors, vae_config=config, **latents)

    @classmethod
    def _around(cls, tensors: dict[str, Tensor], **config) -> "LatentVAE":
        """Built without memory or random numbers, then given the wrapped model's tensors, not copies."""
        with torch.device("meta"):
            self = cls(**config)
        self.vae.load_state_dict(tensors, assign=True)
        return self.requires_grad_(False)

    def _split(self, moments: Tensor) -> tuple[Tensor, Tensor]:
        _check_images("moments", moments, 2 * self.channels)
        mean, logvar = moments.to(torch.promote_types(moments.dtype, torch.float32)).chunk(2, dim=1)
        return mean, logvar

    def shift_scale(self, like: Tensor) -> tuple[float | Tensor, float | Tensor]:
        """Shift, scale: numbers, or (C, 1, 1) of like's dtype and device. No buffers: bf16 would round them."""
        config = self.config
        scale, shift, mean, std = (getattr(config, name) for name in _NEUTRAL)
        key = like.device, like.dtype, type(like), shift, scale, tuple(mean or ()), tuple(std or ())
        if self._constants[0] != key:  # a GPU gets them once, not at every call
            with torch.inference_mode(False):  # also for calls with gradients
                shift = shift or 0.0 if mean is None else like.new_tensor(mean).view(-1, 1, 1)
                scale = scale if std is None else scale / like.new_tensor(std).view(-1, 1, 1)
            self._constants = key, (shift, scale)
        return self._constants[1]

    def _scaled(self, latent: Tensor) -> Tensor:
        shift, scale = self.shift_scale(latent)
        return (latent - shift) * scale


def _factor(vae: AutoencoderKL | AutoencoderTiny) -> tuple[int, int]:
    """How many times smaller the encoder makes a side, and how many times larger the decoder."""
    config = vae.config
    if isinstance(vae, AutoencoderKL):
        factor = 2 ** (len(config.block_out_channels) - 1)
        return factor, factor
    up = config.upsampling_scaling_factor ** (len(config.num_decoder_blocks) - 1)
    return 2 ** (len(config.num_encoder_blocks) - 1), up


def _check_images(name: str, images: Tensor, channels: int) -> None:
    if not isinstance(images, Tensor) or not images.is_floating_point():
        got = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise TypeError(f"LatentVAE: {name} must be a floating point tensor, got {got}")
    if images.dim() != 4 or images.shape[1] != channels:
        raise ValueError(f"LatentVAE: {name} must be (B, {channels}, height, width), got {tuple(images.shape)}")


def _is_finite(value: object) -> bool:
    """Tell whether a value is a number that is finite as a float; a whole number in JSON may have any size."""
    return isinstance(value, (Real, Tensor)) and abs(value) <= sys.float_info.max


def _check_latents(latents: dict, channels: int) -> None:
    scale, shift, mean, std = (latents[key] for key in _NEUTRAL)
    if not _is_finite(scale) or scale <= 0:
        raise ValueError(f"LatentVAE: scaling_factor must be a positive number, got {repr(scale)}")
    if shift is not None and not _is_finite(shift):
        raise ValueError(f"LatentVAE: shift_factor must be a number, got {repr(shift)}")
    if shift and mean is not None:
        raise ValueError(f"LatentVAE: shift_factor {shift} and latents_mean are two shifts; give one")
    for name, values, positive in (("latents_mean", mean, False), ("latents_std", std, True)):
        if values is None:
            continue
        listed = list(values) if isinstance(values, (Sequence, Tensor)) else []
        if len(listed) != channels or not all(_is_finite(v) and (v > 0 or not positive) for v in listed):
            kind = "positive numbers" if positive else "numbers"
            raise ValueError(f"LatentVAE: {name} must be {channels} {kind}, got {repr(values)}")
        latents[name] = [float(v) for v in listed]


def _read_folder(folder: Path, kwargs: dict) -> ModelMixin:
    """The autoencoder of a local folder; never asks the network, and leaves no parameter at its initial value."""
    if not (folder / "config.json").is_file() and (folder / "vae" / "config.json").is_file():
        folder = folder / "vae"
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"no diffusers model at {folder}: it must be a local folder with config.json")
    check_weights(folder)
    kind = read_json(folder / "config.json").get("_class_name")
    if kind not in _KINDS:
        hint = "; load it with LatentVAE.from_pretrained" if kind == "LatentVAE" else ""
        raise ValueError(f"{folder}: expected {' or '.join(_KINDS)}, got {kind}{hint}")
    try:
        model, info = _KINDS[kind].from_pretrained(folder, local_files_only=True, output_loading_info=True, **kwargs)
    except Exception as error:
        raise RuntimeError(f"{folder} cannot be read: {error}") from error
    if not (fit := Fit(missing=list(info["missing_keys"]), unexpected=list(info["unexpected_keys"]))):
        raise CheckpointError(f"{folder} does not fit its config.json:", fit)
    return model


def _ldm_state(path: str | Path) -> dict[str, Tensor]:
    """An LDM autoencoder's tensors, without prefix, and nothing else of the file."""
    try:
        state = read_state(path)
    except ValueError:  # not tensors alone, but read safely: a trainer's state beside or around them
        state = torch.load(Path(path).expanduser(), map_location="cpu", weights_only=True)
        state = state.get("state_dict", state) if isinstance(state, dict) else {}
    keys = {k: v for k, v in state.items() if isinstance(k, str)} if isinstance(state, Mapping) else {}
    if any(key.startswith(_PREFIX) for key in keys):
        keys = {k.removeprefix(_PREFIX): v for k, v in keys.items() if k.startswith(_PREFIX)}
    found = {k: v for k, v in keys.items() if k.startswith(_ROOTS) and isinstance(v, Tensor)}
    if not found:
        begins = ", ".join(list(dict.fromkeys(f"{key.split('.')[0]}.*" for key in keys))[:8]) or "no keys"
        raise ValueError(
            f"{Path(path).name}: expected an LDM autoencoder's {' '.join(f'{r}*' for r in _ROOTS)}, got {begins}"
        )
    return found


def _ldm_config(name: str, state: dict[str, Tensor]) -> dict:
    """AutoencoderKL's arguments, from an LDM state's shapes."""

    def size(key: str, dim: int) -> int:
        if key not in state or state[key].dim() != 4 or not state[key].shape[dim]:
            got = f"of shape {list(state[key].shape)}" if key in state else "missing"
            raise ValueError(f"{name}: {key} is {got}; it must be a convolution's weight")
        return state[key].shape[dim]

    def number(pattern: str) -> int:
        return next(i for i in count() if pattern.format(i) not in state)

    def blocks(pattern: str, plain: str, attention: str) -> tuple[str, ...]:
        return tuple(attention if pattern.format(i) in state else plain for i in range(levels))

    size("encoder.down.0.block.0.conv1.weight", 0)
    levels = number("encoder.down.{}.block.0.conv1.weight")
    up = blocks("decoder.up.{}.attn.0.q.weight", "UpDecoderBlock2D", "AttnUpDecoderBlock2D")
    return {
        "in_channels": size("encoder.conv_in.weight", 1),
        "out_channels": size("decoder.conv_out.weight", 0),
        "latent_channels": size("decoder.conv_in.weight", 1),
        "block_out_channels": tuple(size(f"encoder.down.{i}.block.0.conv1.weight", 0) for i in range(levels)),
        "layers_per_block": number("encoder.down.0.block.{}.conv1.weight"),
        "down_block_types": blocks("encoder.down.{}.attn.0.q.weight", "DownEncoderBlock2D", "AttnDownEncoderBlock2D"),
        "up_block_types": up[::-1],  # LDM counts them from the pixels
        "mid_block_add_attention": any(f"{half}.mid.attn_1.q.weight" in state for half in ("encoder", "decoder")),
        "use_quant_conv": "quant_conv.weight" in state,
        "use_post_quant_conv": "post_quant_conv.weight" in state,
        "sample_size": 512,  # of a tile; diffusers' 32 would be all seams
    }


def _ldm_name(key: str, levels: int) -> str:
    """LDM's name of a key of diffusers' AutoencoderKL."""
    key = re.sub(r"\.up_blocks\.(\d+)\.", lambda m: f".up_blocks.{levels - 1 - int(m[1])}.", key)
    for pattern, name in _LDM_NAMES:
        key = re.sub(pattern, name, key)
    return key
