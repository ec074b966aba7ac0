"""The latent autoencoder: CrossFlow's numbers, one scale applied once, files of every layout, what is refused."""

import json
from itertools import islice

import pytest
import torch
from diffusers import AutoencoderKL, AutoencoderTiny, DiffusionPipeline
from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint
from safetensors.torch import save_file
from support.tiny_models import write

from fmpipe.models import CheckpointError
from fmpipe.vae import CROSSFLOW_SCALE, LatentVAE, _ldm_name

pytestmark = pytest.mark.slow

MEAN, STD = [0.5, -1.0, 0.0, 2.0], [1.0, 0.5, 2.0, 3.0]
PREFIX = "first_stage_model."


def kl(**config):
    """Factor 2, 4 latent channels."""
    down, up = ("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2
    config = {"down_block_types": down, "up_block_types": up} | config
    return AutoencoderKL(block_out_channels=(8, 16), norm_num_groups=8, **config).eval()


def tiny(**config):
    """Factor 4, 4 latent channels."""
    config = {"encoder_block_out_channels": (8,) * 3, "decoder_block_out_channels": (8,) * 3} | config
    return AutoencoderTiny(num_encoder_blocks=(1, 1, 1), num_decoder_blocks=(1, 1, 1), **config).eval()


def own_latent(model, pixels):
    encoded = model.encode(pixels)
    return encoded.latent_dist.mode() if isinstance(model, AutoencoderKL) else encoded.latents


@pytest.fixture(autouse=True)
def one_thread():
    """Models this small wait for each other's threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def pixels():
    return torch.rand(2, 3, 16, 32) * 2 - 1


@pytest.fixture
def ldm(golden):
    """The golden autoencoder's state in the LDM layout."""
    return {k.removeprefix("state."): v for k, v in golden("ldm_vae_tiny").items() if k.startswith("state.")}


LAYOUTS = {  # file name, what is written there for a state
    "plain.safetensors": lambda state: state,
    "prefixed.safetensors": lambda state: {PREFIX + k: v for k, v in state.items()} | {"model.x": torch.ones(1)},
    "autoencoder_kl.pth": lambda state: state | {"loss.logvar": torch.ones(1)},
    "nested.ckpt": lambda state: {"state_dict": state, "global_step": 7},
    "whole.ckpt": lambda state: {
        "state_dict": {PREFIX + k: v for k, v in state.items()} | {"decoder.x": torch.ones(1)}
    },
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_golden_from_every_layout(name, golden, ldm, tmp_path):
    before = torch.get_rng_state()
    vae = LatentVAE.from_ldm(write(LAYOUTS[name](ldm), tmp_path / name))
    assert torch.equal(torch.get_rng_state(), before)
    expected = golden("ldm_vae_tiny")
    assert (vae.config.scaling_factor, vae.channels, vae.factor, vae.dtype) == (0.23010, 4, 2, torch.float32)
    torch.testing.assert_close(vae.encode_moments(expected["pixels"]), expected["moments"], atol=1e-5, rtol=0)
    torch.testing.assert_close(vae.decode(expected["z"]), expected["decoded"], atol=1e-5, rtol=0)
    torch.testing.assert_close(
        vae.decode(expected["z"], clamp=True), expected["decoded"].clamp(-1, 1), atol=1e-5, rtol=0
    )


def test_a_loaded_file_may_be_overwritten(ldm, golden, tmp_path):
    path = write(ldm, tmp_path / "vae.safetensors")
    vae = LatentVAE.from_ldm(path)
    path.write_bytes(bytes(path.stat().st_size))
    pixels, moments = golden("ldm_vae_tiny")["pixels"], golden("ldm_vae_tiny")["moments"]
    torch.testing.assert_close(vae.encode_moments(pixels), moments, atol=1e-5, rtol=0)


ATTENTION = {"down_block_types": ("DownEncoderBlock2D", "AttnDownEncoderBlock2D")}
ATTENTION["up_block_types"] = ("AttnUpDecoderBlock2D", "UpDecoderBlock2D")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"layers_per_block": 2, "latent_channels": 16, "in_channels": 1, "out_channels": 2},
        {"use_quant_conv": False, "use_post_quant_conv": False},
        {"mid_block_add_attention": False},
        ATTENTION,
    ],
    ids=["plain", "sizes", "no quant_conv", "no attention", "attention outside the middle"],
)
def test_the_architecture_is_read_off_the_shapes(config, tmp_path):
    model = AutoencoderKL(
        **{"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2} | config,
        block_out_channels=(32, 64),
    )
    state = {_ldm_name(key, levels=2): value for key, value in model.state_dict().items()}
    for key in state:
        if ".attn" in key and state[key].dim() == 2:
            state[key] = state[key][:, :, None, None]
    vae = LatentVAE.from_ldm(write(state, tmp_path / "vae.pth"), 0.5, latents_mean=[1] * model.config.latent_channels)
    again = vae.vae.state_dict()
    assert again.keys() == model.state_dict().keys()
    assert all(torch.equal(again[k], v) for k, v in model.state_dict().items())
    keys = ("in_channels", "out_channels", "latent_channels", "layers_per_block", "down_block_types", "up_block_types")
    assert [vae.vae.config[k] for k in keys] == [model.config[k] for k in keys]
    if config is not ATTENTION:  # diffusers' converter knows the middle's only
        converted = convert_ldm_vae_checkpoint(state, model.config)
        assert {k: v.shape for k, v in converted.items()} == {k: v.shape for k, v in model.state_dict().items()}
        assert all(torch.equal(converted[k], again[k]) for k in again)


@pytest.mark.parametrize("make", [kl, tiny])
@pytest.mark.parametrize("scale", [None, 0.23010, 3.0])
def test_scaled_once_and_back(make, scale, pixels):
    model = make(scaling_factor=0.7)
    vae = LatentVAE.from_diffusers(model, scale)
    latent = own_latent(model, pixels)
    z = vae.encode(pixels, sample=False)
    torch.testing.assert_close(z, latent * (scale or 0.7))
    torch.testing.assert_close(vae.decode(z), model.decode(latent).sample, atol=1e-5, rtol=1e-4)
    assert vae.vae.config.scaling_factor == 1
    assert model.config.scaling_factor == 0.7
    again = LatentVAE.from_diffusers(vae.vae)
    assert again.config.scaling_factor == 1


@pytest.mark.parametrize("make", [kl, tiny])
def test_a_second_scaling_is_seen(make, pixels):
    model = make()
    vae = LatentVAE.from_diffusers(model, CROSSFLOW_SCALE)
    expected = model.decode(own_latent(model, pixels)).sample

    def error(z):
        return (vae.decode(z) - expected).abs().max().item()

    z = vae.encode(pixels, sample=False)
    assert 1000 * error(z) < min(error(z * CROSSFLOW_SCALE), error(z / CROSSFLOW_SCALE))


@pytest.mark.parametrize(
    ("config", "shift", "scale"),
    [
        ({"latents_mean": MEAN, "latents_std": STD, "scaling_factor": 0.5}, MEAN, [0.5 / s for s in STD]),
        ({"latents_mean": MEAN}, MEAN, [0.18215] * 4),
        ({"latents_std": STD}, [0.0] * 4, [0.18215 / s for s in STD]),
        ({"shift_factor": 0.1159, "scaling_factor": 0.3611}, [0.1159] * 4, [0.3611] * 4),
    ],
)
def test_shift_and_scale_a_channel(config, shift, scale, pixels):
    model = kl(**config)
    shift, scale = (torch.tensor(x).view(4, 1, 1) for x in (shift, scale))
    latent = own_latent(model, pixels)
    for vae in (LatentVAE.from_diffusers(model), LatentVAE(vae_config=dict(kl().config), **config)):
        vae.vae.load_state_dict(model.state_dict())
        z = vae.encode(pixels, sample=False)
        torch.testing.assert_close(z, (latent - shift) * scale)
        torch.testing.assert_close(vae.decode(z), model.decode(latent).sample, atol=1e-5, rtol=1e-4)
        assert not any(vae.vae.config[k] for k in ("shift_factor", "latents_mean", "latents_std"))


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-6), (torch.float32, 1e-6), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)],
)
def test_sample(dtype, tolerance):
    vae = LatentVAE(scaling_factor=2.0, latents_mean=MEAN)
    mean, logvar = torch.randn(3, 4, 5, 7), torch.randn(3, 4, 5, 7) * 4
    logvar[0] = -1e4 if dtype != torch.float16 else -6e4
    logvar[1, 0, 0, 0] = 100.0
    moments = torch.cat([mean, logvar], dim=1).to(dtype)
    z = vae.sample(moments, torch.Generator().manual_seed(3))
    assert (z.dtype, z.shape) == (dtype, mean.shape)
    eps_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    eps = torch.randn(mean.shape, generator=torch.Generator().manual_seed(3), dtype=eps_dtype).double()
    mean, logvar = moments.double().chunk(2, dim=1)
    expected = (mean + torch.exp(logvar.clamp(-30, 20) / 2) * eps - torch.tensor(MEAN).view(4, 1, 1)) * 2
    torch.testing.assert_close(z.double(), expected, atol=tolerance * 10, rtol=tolerance)


def test_encode_samples_with_its_generator(pixels):
    vae = LatentVAE.from_diffusers(kl())
    z = vae.encode(pixels, torch.Generator().manual_seed(1))
    assert torch.equal(z, vae.sample(vae.encode_moments(pixels), torch.Generator().manual_seed(1)))
    assert not torch.equal(z, vae.encode(pixels, torch.Generator().manual_seed(2)))
    each = [torch.Generator().manual_seed(k) for k in (5, 1)]
    assert torch.equal(
        vae.encode(pixels, each)[1:], vae.sample(vae.encode_moments(pixels)[1:], torch.Generator().manual_seed(1))
    )


def test_tiny_has_no_variance(pixels):
    model = tiny()
    vae = LatentVAE.from_diffusers(model)
    moments = vae.encode_moments(pixels)
    assert (vae.config.scaling_factor, vae.factor, moments.shape) == (1, 4, (2, 8, 4, 8))
    assert torch.equal(moments[:, :4], model.encode(pixels).latents)
    assert moments[:, 4:].eq(-30).all()
    torch.testing.assert_close(vae.encode(pixels), vae.encode(pixels, sample=False), atol=3e-6, rtol=0)


@pytest.mark.parametrize("make", [kl, tiny])
def test_saved_and_loaded_bit_by_bit(make, pixels, tmp_path):
    vae = LatentVAE.from_diffusers(make(), 0.23010)
    vae.save_pretrained(tmp_path)
    assert [p.suffix for p in sorted(tmp_path.iterdir())] == [".json", ".safetensors"]
    again = LatentVAE.from_pretrained(tmp_path)
    assert again.config.scaling_factor == 0.23010
    assert not again.training
    assert not any(p.requires_grad for p in again.parameters())
    z = vae.encode(pixels, sample=False)
    assert torch.equal(again.encode(pixels, sample=False), z)
    assert torch.equal(again.decode(z), vae.decode(z))
    half = LatentVAE.from_pretrained(tmp_path, torch_dtype=torch.bfloat16)
    assert half.decode(z).dtype == half.encode(pixels).dtype == torch.bfloat16
    torch.testing.assert_close(half.decode(z).float(), vae.decode(z), atol=0.1, rtol=0.1)


class Pipeline(DiffusionPipeline):
    def __init__(self, vae: LatentVAE):
        super().__init__()
        self.register_modules(vae=vae)


def test_a_component_of_a_pipeline(pixels, tmp_path):
    vae = LatentVAE.from_diffusers(kl(latents_mean=MEAN), 0.5)
    Pipeline(vae).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "model_index.json").read_text())["vae"] == ["fmpipe.vae", "LatentVAE"]
    again = Pipeline.from_pretrained(tmp_path).vae
    assert torch.equal(again.encode(pixels, sample=False), vae.encode(pixels, sample=False))


@pytest.mark.parametrize("make", [kl, tiny])
def test_from_a_folder_of_diffusers(make, pixels, tmp_path):
    model = make(scaling_factor=0.3)
    model.save_pretrained(tmp_path / "vae")
    expected = own_latent(model, pixels)
    for folder in (tmp_path / "vae", str(tmp_path)):  # itself, and a pipeline's
        torch.testing.assert_close(LatentVAE.from_diffusers(folder).encode(pixels, sample=False), expected * 0.3)
    vae = LatentVAE.from_diffusers(tmp_path, 2.0, torch_dtype=torch.bfloat16)
    assert (vae.dtype, vae.config.scaling_factor) == (torch.bfloat16, 2.0)


def test_always_in_eval_mode_without_gradients(pixels):
    model = kl().train()
    vae = LatentVAE.from_diffusers(model)
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    assert next(vae.parameters()).data_ptr() == next(model.parameters()).data_ptr()
    assert vae.train() is vae
    assert not any(m.training for m in vae.modules())
    assert not any(p.requires_grad for p in vae.parameters())
    z = torch.randn(1, 4, 4, 4, requires_grad=True)
    vae.decode(z).square().mean().backward()  # to z, as guidance by pixels wants
    assert z.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("model", "tile"), [(lambda: kl(mid_block_add_attention=False), 128), (tiny, 64)], ids=["kl", "tiny"]
)
def test_tiles_and_slices(model, tile):
    vae = LatentVAE.from_diffusers(model())
    pixels = torch.rand(2, 3, 3 * tile // 2, tile) * 2 - 1  # the same statistics in every tile
    z = vae.encode(pixels, sample=False)
    whole = vae.decode(z)
    vae.enable_slicing()
    torch.testing.assert_close(vae.decode(z), whole, atol=1e-5, rtol=1e-4)
    vae.enable_tiling(tile)
    tiled = vae.encode(pixels, sample=False)
    assert tiled.shape == z.shape
    assert 0 < (tiled - z).abs().mean() < 0.1 * z.std()
    assert 0 < (vae.decode(z) - whole).abs().mean() < 0.1 * whole.std()
    assert vae.bfloat16().decode(z[:1, :, :8, :8]).dtype == torch.bfloat16
    vae.float().disable_tiling()
    vae.disable_slicing()
    assert torch.isfinite(vae.decode(z[:, :, :8, :8])).all()
    with pytest.raises(ValueError, match="tile must be a positive multiple of"):
        vae.enable_tiling(40)


def test_tiles_that_diffusers_cannot_make():
    with pytest.raises(NotImplementedError, match="not for 16 and 3"):
        LatentVAE.from_diffusers(tiny(latent_channels=16)).enable_tiling()


def test_offloading_is_told_before_each_use(pixels):
    class Hook:
        calls = 0

        def pre_forward(self, module):
            self.calls += 1

    vae = LatentVAE.from_diffusers(kl())
    vae._hf_hook = Hook()
    vae.decode(vae.encode(pixels))
    assert vae._hf_hook.calls == 2


def test_latent_shape():
    assert LatentVAE(vae_config={"down_block_types": ("DownEncoderBlock2D",)}).latent_shape(5, 7) == (4, 5, 7)
    assert LatentVAE.from_diffusers(kl()).latent_shape(32, 48) == (4, 16, 24)
    assert LatentVAE.from_diffusers(tiny()).latent_shape(32, 48) == (4, 8, 12)


BAD_CALLS = {
    "whole numbers": (TypeError, r"pixels must be a floating point tensor, got torch.uint8", "encode", "uint8"),
    "no tensor": (TypeError, r"pixels must be a floating point tensor, got list", "encode", [0.0]),
    "no batch": (ValueError, r"pixels must be \(B, 3, height, width\), got \(3, 8, 8\)", "encode", (3, 8, 8)),
    "channels": (ValueError, r"pixels must be \(B, 3, height, width\), got \(1, 4, 8, 8\)", "encode", (1, 4, 8, 8)),
    "odd side": (ValueError, r"pixels must have sides .* multiples of 2, got 8 × 7", "encode_moments", (1, 3, 8, 7)),
    "no side": (ValueError, r"pixels must have sides .* multiples of 2, got 0 × 8", "encode_moments", (1, 3, 0, 8)),
    "z of moments": (ValueError, r"z must be \(B, 4, height, width\), got \(1, 8, 4, 4\)", "decode", (1, 8, 4, 4)),
    "z": (TypeError, r"z must be a floating point tensor", "decode", "uint8"),
    "moments": (ValueError, r"moments must be \(B, 8, height, width\), got \(1, 4, 4, 4\)", "sample", (1, 4, 4, 4)),
    "height": (ValueError, r"height must be a positive multiple of 2, got 5", "latent_shape", None),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls(name):
    error, match, method, given = BAD_CALLS[name]
    if given == "uint8":
        given = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    elif isinstance(given, tuple):
        given = torch.zeros(given)
    vae = LatentVAE.from_diffusers(kl())
    with pytest.raises(error, match=match):
        getattr(vae, method)(*((5, 8) if given is None else (given,)))


def test_generators_of_another_number():
    vae = LatentVAE()
    with pytest.raises(ValueError, match="generator must be one or 2, got 3"):
        vae.sample(torch.zeros(2, 8, 1, 1), [torch.Generator() for _ in range(3)])


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"kind": "VQModel"}, "unknown kind 'VQModel'; choose one of AutoencoderKL, AutoencoderTiny"),
        ({"scaling_factor": 0.0}, "scaling_factor must be a positive number, got 0.0"),
        ({"scaling_factor": float("nan")}, "scaling_factor must be a positive number, got nan"),
        ({"scaling_factor": "0.2"}, "scaling_factor must be a positive number, got '0.2'"),
        ({"shift_factor": float("inf")}, "shift_factor must be a number, got inf"),
        ({"latents_mean": [1.0]}, r"latents_mean must be 4 numbers, got \[1.0\]"),
        ({"latents_std": 2.0}, "latents_std must be 4 positive numbers, got 2.0"),
        ({"latents_std": [1.0, 1.0, 0.0, 1.0]}, "latents_std must be 4 positive numbers"),
        ({"latents_mean": MEAN, "shift_factor": 0.1}, "shift_factor 0.1 and latents_mean are two shifts"),
        (
            {"kind": "AutoencoderTiny", "vae_config": {"upsampling_scaling_factor": 1}},
            "vae_config shrinks pixels 8 times and enlarges latents 1 times",
        ),
    ],
)
def test_bad_configurations(config, match):
    with pytest.raises(ValueError, match=match):
        LatentVAE(**config)


class Harm:
    def __reduce__(self):
        return print, ("code in a checkpoint was run",)


def test_code_in_a_pickle_is_not_run(ldm, tmp_path, capsys):
    for name, state in {"a.pth": ldm | {"x": Harm()}, "b.ckpt": {"state_dict": ldm, "callbacks": Harm()}}.items():
        with pytest.raises(RuntimeError, match=name) as error:
            LatentVAE.from_ldm(write(state, tmp_path / name))
        assert "its code is never run" in str(error.value)
    assert "was run" not in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".pth", ".ckpt", ".safetensors"])
@pytest.mark.parametrize("spoil", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\xff" * 99 + b[99:]])
def test_truncated_and_corrupted_files(suffix, spoil, ldm, tmp_path):
    path = write(ldm, tmp_path / f"vae{suffix}")
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(RuntimeError, match=rf"vae{suffix} \({path.stat().st_size} bytes\) cannot be read"):
        LatentVAE.from_ldm(path)


def test_every_key_that_does_not_fit_is_reported(ldm, tmp_path):
    del ldm["encoder.mid.block_2.norm1.bias"], ldm["decoder.up.1.upsample.conv.weight"]
    ldm["decoder.up.7.block.0.norm1.bias"] = torch.ones(1)
    ldm["decoder.mid.attn_1.q.weight"] = torch.ones(64, 32, 1, 1)
    with pytest.raises(CheckpointError, match=r"vae\.pth does not fit") as error:
        LatentVAE.from_ldm(write(ldm, tmp_path / "vae.pth"))
    fit = error.value.fit
    assert set(fit.missing) == {"encoder.mid.block_2.norm1.bias", "decoder.up.1.upsample.conv.weight"}
    assert fit.unexpected == ["decoder.up.7.block.0.norm1.bias"]
    assert fit.misshapen == {"decoder.mid.attn_1.q.weight": ((64, 32), (64, 64))}


BAD_STATES = {
    "nothing": (lambda s: {}, "got no keys"),
    "a list": (lambda s: [torch.ones(1)], "got no keys"),
    "another model": (lambda s: {"model.x": torch.ones(1), "head.w": torch.ones(1)}, r"got model\.\*, head\.\*"),
    "state_dict of a number": (lambda s: {"state_dict": 3}, "got no keys"),
    "no conv_in": (lambda s: dict(islice(s.items(), 1)), "encoder.down.0.block.0.conv1.weight is missing"),
    "flat": (lambda s: s | {"encoder.conv_in.weight": torch.ones(3)}, r"encoder.conv_in.weight is of shape \[3\]"),
    "empty": (lambda s: s | {"decoder.conv_in.weight": torch.ones(64, 0, 3, 3)}, r"of shape \[64, 0, 3, 3\]"),
    "groups": (lambda s: s | {"encoder.down.0.block.0.conv1.weight": torch.ones(9, 9, 3, 3)}, "has these shapes"),
    "NaN": (
        lambda s: s | {"quant_conv.bias": torch.full((8,), torch.nan)},
        "infinite or NaN values in quant_conv.bias",
    ),
}


@pytest.mark.parametrize("name", BAD_STATES)
def test_what_is_no_autoencoder(name, ldm, tmp_path):
    spoil, match = BAD_STATES[name]
    with pytest.raises(ValueError, match=rf"vae\.pth: .*{match}"):
        LatentVAE.from_ldm(write(spoil(ldm), tmp_path / "vae.pth"))


def test_where_there_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        LatentVAE.from_ldm(tmp_path / "vae.pth")
    with pytest.raises(FileNotFoundError, match="no diffusers model at stabilityai/sd-vae-ft-mse: it must be a local"):
        LatentVAE.from_diffusers("stabilityai/sd-vae-ft-mse")
    with pytest.raises(TypeError, match="folder_or_model must be a folder, AutoencoderKL or AutoencoderTiny, got int"):
        LatentVAE.from_diffusers(3)
    with pytest.raises(ValueError, match="torch_dtype: of a folder only"):
        LatentVAE.from_diffusers(kl(), torch_dtype=torch.float16)


def test_bad_folders(tmp_path):
    weights = tmp_path / "diffusion_pytorch_model.safetensors"
    model = kl()
    model.save_pretrained(tmp_path)
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    with pytest.raises(RuntimeError, match=f"{tmp_path} cannot be read"):
        LatentVAE.from_diffusers(tmp_path)
    state = {k: v for k, v in model.state_dict().items() if k != "decoder.conv_in.bias"}
    save_file(state, weights, {"format": "pt"})
    with pytest.raises((CheckpointError, RuntimeError), match=r"decoder\.conv_in\.bias"):
        LatentVAE.from_diffusers(tmp_path)
    save_file(state | {"decoder.conv_in.bias": torch.ones(3)}, weights, {"format": "pt"})
    with pytest.raises(RuntimeError, match=r"decoder\.conv_in\.bias"):
        LatentVAE.from_diffusers(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json .* is not JSON"):
        LatentVAE.from_diffusers(tmp_path)
    LatentVAE().save_pretrained(tmp_path / "ours")
    with pytest.raises(ValueError, match=r"got LatentVAE; load it with LatentVAE\.from_pretrained"):
        LatentVAE.from_diffusers(tmp_path / "ours")
