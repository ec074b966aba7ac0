"""FlowEulerScheduler, Trace and optimize in pipelines of diffusers: how close the bfloat16 end is to float32."""

import copy

import family_configs
import pytest
import torch
from support.tiny_models import tiny_dc_vae

import fmkernels

diffusers = pytest.importorskip("diffusers")
from fmpipe.scheduler import FlowEulerScheduler  # noqa: E402

STEPS = 20


def tiny(cls, name):
    """A transformer in float32 with random weights that keep its velocity near 1."""
    torch.manual_seed(0)
    config, _ = getattr(family_configs, name)()
    model = cls(**config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, max(parameter[:1].numel(), 1) ** -0.5)
    return model


def embeds(*shapes):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def autoencoder():
    return diffusers.AutoencoderKL(latent_channels=4, block_out_channels=(8,), norm_num_groups=4, sample_size=8)


def sd3(scheduler):
    transformer = tiny(diffusers.SD3Transformer2DModel, "sd3")
    parts = dict.fromkeys(
        ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2", "text_encoder_3", "tokenizer_3")
    )
    pipe = diffusers.StableDiffusion3Pipeline(transformer, scheduler, autoencoder(), **parts)
    text, pooled = embeds((1, 5, 24), (1, 16))
    return pipe, {"prompt_embeds": text, "pooled_prompt_embeds": pooled, "guidance_scale": 1.0, "height": 8, "width": 8}


def flux(scheduler):
    transformer = tiny(diffusers.FluxTransformer2DModel, "flux1")
    vae = diffusers.AutoencoderKL(latent_channels=2, block_out_channels=(8,), norm_num_groups=4, sample_size=8)
    parts = dict.fromkeys(("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))
    pipe = diffusers.FluxPipeline(scheduler, vae, transformer=transformer, **parts)
    text, pooled = embeds((1, 5, 24), (1, 8))
    return pipe, {"prompt_embeds": text, "pooled_prompt_embeds": pooled, "height": 8, "width": 8}


def sana(scheduler):
    transformer = tiny(diffusers.SanaTransformer2DModel, "sana")
    pipe = diffusers.SanaPipeline(None, None, tiny_dc_vae(), transformer, scheduler)
    (text,) = embeds((1, 5, 24))
    mask = torch.ones(1, 5)
    size = {"height": 32, "width": 32, "use_resolution_binning": False}
    return pipe, {"prompt_embeds": text, "prompt_attention_mask": mask, "guidance_scale": 1.0, **size}


def lumina2(scheduler):
    transformer = tiny(diffusers.Lumina2Transformer2DModel, "lumina2")
    pipe = diffusers.Lumina2Pipeline(transformer, scheduler, autoencoder(), None, None)
    (text,) = embeds((1, 5, 24))
    mask = torch.ones(1, 5, dtype=torch.bool)
    return pipe, {
        "prompt_embeds": text,
        "prompt_attention_mask": mask,
        "guidance_scale": 1.0,
        "height": 16,
        "width": 16,
    }


def end(make, scheduler, dtype, optimized=False):
    """The end latents, and the scheduler."""
    pipe, arguments = make(scheduler)
    pipe.set_progress_bar_config(disable=True)
    # Weights are rounded to bfloat16 in both, so that only the arithmetic differs.
    pipe.transformer.to(torch.bfloat16).to(dtype)
    if optimized:
        assert fmkernels.optimize(pipe.transformer).swapped
    cast = {k: v.to(torch.bfloat16).to(dtype) if torch.is_tensor(v) and v.is_floating_point() else v
            for k, v in arguments.items()}  # fmt: skip
    generator = torch.Generator().manual_seed(5)
    given = {"num_inference_steps": STEPS, "output_type": "latent", "generator": generator}
    return pipe(**cast, **given).images.float(), pipe.scheduler


@pytest.mark.parametrize("make", [sd3, flux, sana, lumina2])
def test_the_end_is_closer_to_float32(make):
    stock = diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0)
    ours = FlowEulerScheduler.from_config(stock.config)
    exact, _ = end(make, copy.deepcopy(stock), torch.float32)
    theirs, _ = end(make, copy.deepcopy(stock), torch.bfloat16)
    latents, scheduler = end(make, copy.deepcopy(ours), torch.bfloat16)
    optimized, _ = end(make, copy.deepcopy(ours), torch.bfloat16, optimized=True)
    errors = [float((x - exact).norm() / exact.norm()) for x in (theirs, latents, optimized)]
    print(make.__name__, *(f"{error:.2e}" for error in errors))
    if make is sana:  # this pipeline keeps its latents in float32, and so does diffusers' scheduler in it
        assert errors[1] == errors[0]
        assert errors[2] < 1.25 * errors[0]
    else:
        assert max(errors[1:]) < errors[0]
    lines = scheduler.trace.lines()
    assert len(lines) == STEPS
    assert lines[0].startswith("step0: |x|=")
