"""FlowPipeline on tiny random parts: the contract of its arguments and outputs, not what it draws."""

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from support.tiny_models import ldm_vae, tiny_clip, tiny_vae

import fmpipe
from fmkernels.flow import crossflow, sample
from fmpipe.known import KnownCaptions
from fmpipe.models import build
from fmpipe.pipeline import FlowPipeline
from fmpipe.text import CLIPText
from fmpipe.vae import LatentVAE

pytestmark = pytest.mark.slow
STEPS = 3


@pytest.fixture(scope="module")
def pipe():
    torch.manual_seed(0)
    networks, encoder = build("small_dimr").eval(), tiny_clip()
    with torch.no_grad():
        for p in networks.parameters():
            p.add_(0.05 * torch.randn_like(p))  # so that the text shows
    made = FlowPipeline(encoder, networks.text_head, networks.velocity_net, tiny_vae())
    made.set_progress_bar_config(disable=True)
    return made


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def run(pipe, prompt="a cat", **options):
    options = {"num_inference_steps": STEPS, "generator": seeded(), "output_type": "pt"} | options
    return pipe(prompt, **options)


def test_the_whole_way_is_its_parts(pipe):
    out = run(pipe, guidance_scale=2.0, probes=True)
    mu, logvar = pipe.encode("a cat")
    torch.testing.assert_close(out.mu, mu)
    z0 = pipe.prepare_latents(mu, logvar, generator=seeded())
    torch.testing.assert_close(out.z0, z0)
    z1, _ = sample(pipe.velocity_net.velocity, z0, crossflow(STEPS), guidance=2.0)
    torch.testing.assert_close(out.z1, z1)
    torch.testing.assert_close(out.images, (pipe.vae.decode(z1) / 2 + 0.5).clamp(0, 1))
    assert len(out.trace) == STEPS
    assert out.probes["A"].rms == pytest.approx(z0.square().mean().sqrt().item(), rel=1e-5)
    assert out.probes["C"].rms == pytest.approx(z1.square().mean().sqrt().item(), rel=1e-5)
    assert out.probes["C"].low < out.probes["C"].high
    assert out.probes["B"] > 0


@pytest.mark.parametrize(
    ("output_type", "check"),
    [
        ("pil", lambda x: x[0].size == (16, 16)),
        ("np", lambda x: isinstance(x, np.ndarray) and x.shape == (1, 16, 16, 3)),
        ("pt", lambda x: x.shape == (1, 3, 16, 16) and 0 <= x.min() <= x.max() <= 1),
        ("latent", lambda x: x.shape == (1, 4, 8, 8)),
    ],
)
def test_every_output_type(pipe, output_type, check):
    assert check(run(pipe, output_type=output_type).images)


def test_a_tuple_on_request(pipe):
    images, trace = run(pipe, return_dict=False)
    assert images.shape == (1, 3, 16, 16)
    assert len(trace) == STEPS


def test_seeds_reproduce_and_differ(pipe):
    first, again, other = (run(pipe, generator=seeded(s)).z1 for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_a_batch_agrees_with_prompts_one_by_one(pipe):
    prompts = ["a cat", "a red dog on the moon", "house"]
    together = run(pipe, prompts, generator=[seeded(i) for i in range(3)])
    for i, prompt in enumerate(prompts):
        alone = run(pipe, prompt, generator=[seeded(i)])
        torch.testing.assert_close(together.z1[i : i + 1], alone.z1, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(together.mu[0], together.mu[1])


def test_several_images_of_a_prompt(pipe):
    out = run(pipe, ["a cat", "house"], num_images_per_prompt=2, generator=[seeded(i) for i in range(4)])
    assert out.images.shape == (4, 3, 16, 16)
    assert torch.equal(out.mu[0], out.mu[1])
    assert not torch.allclose(out.z0[0], out.z0[1])


def test_guidance_by_one_batched_forward_equals_two(pipe):
    z0 = torch.randn(2, 4, 8, 8)
    out = run(pipe, None, latents=z0, guidance_scale=3.0)
    net, x = pipe.velocity_net, z0.clone()
    for t, dt in crossflow(STEPS):
        at = torch.full((2,), t)
        v, v_null = (net.velocity(x, at, null=torch.full((2,), null)) for null in (False, True))
        x = x + dt * (v_null + 3.0 * (v - v_null))
    torch.testing.assert_close(out.z1, x, atol=1e-4, rtol=1e-4)
    assert out.mu is None


@pytest.mark.parametrize(
    "knob",
    [
        {"fm_gain": 1.5},
        {"dt_scale": 0.5},
        {"time_dir": "1->0"},
        {"align_variance": True},
        {"z0_mode": "mean"},
        {"guidance_scale": 4.0},
        {"solver": "heun", "schedule": "uniform"},
        {"schedule": "logit_normal"},
        {"velocity_dtype": torch.bfloat16},
    ],
    ids=lambda k: "-".join(k),
)
def test_every_knob_turns_something(pipe, knob):
    before = {k: v.clone() for k, v in pipe.velocity_net.state_dict().items()}
    plain, turned = run(pipe), run(pipe, **knob)
    assert not torch.allclose(plain.z1, turned.z1, atol=1e-7)
    assert all(torch.equal(v, before[k]) for k, v in pipe.velocity_net.state_dict().items())
    if "velocity_dtype" in knob:
        torch.testing.assert_close(turned.z1, plain.z1, atol=0.05, rtol=0.05)


def test_an_fp32_forward_of_a_bf16_network(pipe):
    """Widened for the while and put back: closer to the fp32 network than its own bf16 forward."""
    net, z0 = pipe.velocity_net, torch.randn(2, 4, 8, 8)
    exact = run(pipe, None, latents=z0).z1
    try:
        net.to(torch.bfloat16)
        rounded = run(pipe, None, latents=z0, velocity_dtype=torch.float32)
        own = run(pipe, None, latents=z0)
        assert net.dtype == torch.bfloat16
    finally:
        net.to(torch.float32)
    assert rounded.z1.dtype == own.z1.dtype == torch.float32
    assert (rounded.z1 - exact).abs().mean() < (own.z1 - exact).abs().mean()


def test_aligned_variance(pipe):
    assert run(pipe, align_variance=True).z0.std().item() == pytest.approx(1, abs=1e-4)
    assert run(pipe, align_variance=0.5).z0.std().item() == pytest.approx(0.5, abs=1e-4)
    given = run(pipe, None, latents=3 * torch.randn(2, 4, 8, 8), align_variance=True)
    torch.testing.assert_close(given.z0.flatten(1).std(1), torch.ones(2))


def test_callbacks_see_and_may_replace_the_latents(pipe):
    seen = []

    def replace(pipeline, step, t, tensors):
        assert pipeline is pipe
        seen.append((step, t, tensors["latents"].clone()))
        return {"latents": torch.zeros_like(tensors["latents"])} if step == STEPS - 1 else {}

    out = run(pipe, callback_on_step_end=replace)
    assert [step for step, *_ in seen] == list(range(STEPS))
    assert [t for _, t, _ in seen] == crossflow(STEPS).t.tolist()
    assert out.z1.eq(0).all()


def test_callbacks_get_the_trace_row_and_the_time_of_their_direction(pipe):
    seen = []
    out = run(
        pipe,
        time_dir="1->0",
        callback_on_step_end=lambda pipe, step, t, tensors: seen.append((t, tensors["stats"])),
        callback_on_step_end_tensor_inputs=["stats"],
    )
    assert [t for t, _ in seen] == crossflow(STEPS).t.tolist()[::-1]
    assert torch.equal(torch.stack([stats for _, stats in seen]), out.trace.values)


def test_prompt_embeds_stand_for_the_prompt(pipe):
    states, mask = pipe.text_encoder(["a cat"])
    assert mask.shape == states.shape[:2]
    out = run(pipe, None, prompt_embeds=states)
    expected = pipe.text_head(states)[0]
    torch.testing.assert_close(out.mu, expected)


def test_interpolation_has_the_prompts_at_its_ends(pipe):
    out = pipe.interpolate("a cat", "house", 3, num_inference_steps=STEPS, output_type="latent")
    ends = pipe.encode(["a cat", "house"])[0]
    torch.testing.assert_close(out.z0[[0, 2]], ends)
    torch.testing.assert_close(out.z0[1], ends.mean(0))


def test_arithmetic_is_restandardised(pipe):
    out = pipe.arithmetic(["a cat", "house"], ["a dog"], num_inference_steps=STEPS, output_type="latent")
    a, b, c = pipe.encode(["a cat", "house", "a dog"])[0]
    z = a + b - c
    torch.testing.assert_close(out.z0[0], (z - z.mean()) / z.std())


def test_arithmetic_takes_one_prompt_as_one_and_refuses_what_leaves_nothing(pipe):
    options = {"num_inference_steps": 1, "output_type": "latent"}
    assert torch.equal(
        pipe.arithmetic("a cat", "house", **options).z0, pipe.arithmetic(["a cat"], ["house"], **options).z0
    )
    with pytest.raises(ValueError, match="nothing is left of add"):
        pipe.arithmetic(["a cat"], ["a cat"], **options)


@pytest.mark.parametrize(
    ("images", "prompts", "message"),
    [
        (torch.zeros(2, 3, 16, 16, dtype=torch.uint8), ["a", "b"], "images must be floating point"),
        (torch.zeros(2, 3, 8, 8), ["a", "b"], r"\(B, 3, 16, 16\), got torch.float32 \(2, 3, 8, 8\)"),
        (torch.full((2, 3, 16, 16), 255.0), ["a", "b"], r"images must be in \[-1, 1\]"),
        (torch.full((2, 3, 16, 16), float("nan")), ["a", "b"], r"images must be in \[-1, 1\]"),
        ([1, 2], ["a", "b"], "images must be floating point .*, got list"),
        (torch.zeros(2, 3, 16, 16), "ab", "prompts must be a list of 2"),
    ],
)
def test_calibration_checks_what_it_gets(pipe, images, prompts, message):
    with pytest.raises(ValueError, match=message):
        pipe.calibrate_gain(images, prompts, save=True)
    assert pipe.config.fm_gain == 1.0


def test_calibration_finds_the_gain_and_keeps_it(pipe, monkeypatch):
    """A network that predicts the right direction at a quarter of the speed has gain 4."""
    images, prompts = torch.rand(4, 3, 16, 16) * 2 - 1, ["a", "b", "c", "d"]
    targets = []
    real = pipe.vae.encode

    def encode(*args, **kwargs):
        targets.append(real(*args, **kwargs))
        return targets[-1]

    def velocity(x, t, **_):
        t = t.view(-1, 1, 1, 1)
        z1 = targets[-1]
        return 0.25 * (z1 - x) / (1 - t * (1 - 1e-5))

    monkeypatch.setattr(pipe.vae, "encode", encode)
    monkeypatch.setattr(pipe.velocity_net, "velocity", velocity)
    assert pipe.calibrate_gain(images, prompts) == pytest.approx(4, rel=0.01)
    assert pipe.config.fm_gain == 1.0
    pipe.calibrate_gain(images, prompts, save=True)
    assert pipe.config.fm_gain == pytest.approx(4, rel=0.01)
    pipe.register_to_config(fm_gain=1.0)


def test_saved_and_loaded_it_has_the_same_bits_and_draws_the_same(pipe, tmp_path):
    pipe.save_pretrained(tmp_path)
    names = {path.suffix for path in tmp_path.rglob("*") if path.is_file()}
    assert ".safetensors" in names
    assert not names & {".bin", ".pth", ".pt"}
    assert json.loads((tmp_path / "model_index.json").read_text())["_class_name"] == "FlowPipeline"
    again = FlowPipeline.from_pretrained(tmp_path)
    again.set_progress_bar_config(disable=True)
    for name, part in pipe.components.items():
        state = again.components[name].state_dict()
        assert state.keys() == part.state_dict().keys()
        assert all(torch.equal(state[key], value) for key, value in part.state_dict().items()), name
    assert again.config.fm_gain == pipe.config.fm_gain
    # Products of the same numbers at other addresses may differ in the last bit.
    torch.testing.assert_close(run(again).images, run(pipe).images, atol=1e-6, rtol=0)


def test_the_package_has_the_names_and_brings_them_late():
    assert fmpipe.FlowPipeline is FlowPipeline
    assert fmpipe.vae.LatentVAE is fmpipe.LatentVAE is LatentVAE
    assert fmpipe.text.CLIPText is CLIPText
    assert fmpipe.FlowEulerScheduler.__name__ == "FlowEulerScheduler"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fmpipe.nothing
    code = "import sys, fmpipe; print({'torch', 'diffusers', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_to_moves_every_part_and_draws_the_same(pipe, tmp_path):
    pipe.save_pretrained(tmp_path)
    wide = FlowPipeline.from_pretrained(tmp_path).to(torch.float64)
    assert {part.dtype for part in wide.components.values()} == {torch.float64}
    torch.testing.assert_close(run(wide).z1, run(pipe).z1, atol=1e-3, rtol=1e-3)
    loaded = FlowPipeline.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {part.dtype for part in loaded.components.values()} == {torch.bfloat16}
    assert run(loaded).z1.dtype == torch.float32  # the state, whatever the network's


def test_a_text_encoder_may_be_any_module(pipe):
    class Letters(torch.nn.Module):
        tokens, dim = pipe.text_encoder.tokens, pipe.text_encoder.dim

        def forward(self, prompts):
            return pipe.text_encoder(prompts)

    parts = {name: part for name, part in pipe.components.items() if name != "text_encoder"}
    drawn = run(FlowPipeline(Letters(), **parts)).z1
    assert torch.equal(drawn, run(pipe).z1)


def test_the_progress_bar_can_be_shut_off(pipe, capsys):
    for disable in (False, True):
        pipe.set_progress_bar_config(disable=disable)
        run(pipe)
        assert (f"{STEPS}/{STEPS}" in capsys.readouterr().err) is not disable


def test_parts_that_do_not_fit_are_refused(pipe):
    parts = dict(pipe.components)
    with pytest.raises(ValueError, match="text_encoder gives 7 states of 64, text_head takes 16 of 64"):
        FlowPipeline(**{**parts, "text_encoder": tiny_clip(tokens=7)})
    without = FlowPipeline(**{**parts, "text_encoder": None})
    with pytest.raises(ValueError, match="this pipeline has none: give prompt_embeds"):
        run(without)
    without.set_progress_bar_config(disable=True)
    states = pipe.text_encoder(["a cat"])[0]
    assert run(without, None, prompt_embeds=states).images.shape == (1, 3, 16, 16)


WRONG = {
    "nothing": ({"prompt": None}, "give one of prompt"),
    "two": ({"latents": torch.zeros(1, 4, 8, 8)}, "prompt and latents"),
    "prompt": ({"prompt": []}, "prompt must be"),
    "prompt of numbers": ({"prompt": [1]}, "prompt must be"),
    "latents": ({"prompt": None, "latents": torch.zeros(1, 4, 4, 4)}, r"latents must be \(B, 4, 8, 8\)"),
    "steps": ({"num_inference_steps": 0}, "num_inference_steps must be"),
    "schedule": ({"schedule": "linear"}, "unknown schedule 'linear'; choose one of"),
    "solver": ({"solver": "rk4"}, "unknown solver 'rk4'"),
    "output_type": ({"output_type": "png"}, "unknown output_type 'png'"),
    "z0_mode": ({"z0_mode": "mode"}, "unknown z0_mode"),
    "count": ({"num_images_per_prompt": 0}, "num_images_per_prompt must be"),
    "generators": ({"generator": [torch.Generator()] * 2}, "one for each of 1 images, got 2"),
    "callback": ({"callback_on_step_end": 3}, "callback_on_step_end must be callable"),
    "generator": ({"generator": 5}, "generator must be a torch.Generator"),
    "callback inputs": ({"callback_on_step_end_tensor_inputs": ["noise"]}, "there is no 'noise'"),
    "time_dir": ({"time_dir": "up"}, "unknown time_dir 'up'"),
    "guidance": ({"guidance_scale": "3"}, "guidance_scale must be a finite number"),
    "gain": ({"fm_gain": float("nan")}, "fm_gain must be a finite number"),
    "dt_scale": ({"dt_scale": None}, "dt_scale must be a finite number"),
    "variance": ({"align_variance": -1.0}, "align_variance must be"),
    "velocity_dtype": ({"velocity_dtype": torch.int8}, "velocity_dtype must be"),
    "count of latents": (
        {"prompt": None, "latents": torch.zeros(1, 4, 8, 8), "num_images_per_prompt": 2},
        "num_images_per_prompt must be 1 with latents",
    ),
    "embeds": ({"prompt": None, "prompt_embeds": torch.zeros(1, 3, 64)}, r"prompt_embeds must be \(B, 16, 64\)"),
    "adaptive callback": (
        {"solver": "dopri5", "callback_on_step_end": print},
        "not supported with the adaptive solver 'dopri5'",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_calls_name_the_argument(pipe, what):
    options, message = WRONG[what]
    with pytest.raises((ValueError, TypeError), match=message):
        run(pipe, **{"prompt": "a cat", **options})


def test_released_parts_load_with_one_call(tmp_path):
    """A text encoder's folder, a .pth of both networks, an LDM autoencoder's file."""
    torch.manual_seed(0)
    networks, encoder = build("tiny_dimr"), tiny_clip(tokens=7)
    encoder.model.save_pretrained(tmp_path / "clip")  # transformers' own layout, as CLIP's is published
    encoder.tokenizer.save_pretrained(tmp_path / "clip")
    torch.save(networks.state_dict(), tmp_path / "tiny_dimr.pth")
    torch.save(ldm_vae(), tmp_path / "autoencoder_kl.pth")
    pipe = FlowPipeline.from_released(tmp_path / "clip", tmp_path / "tiny_dimr.pth", tmp_path / "autoencoder_kl.pth")
    pipe.set_progress_bar_config(disable=True)
    assert pipe.vae.config.scaling_factor == 0.23010
    out = pipe("a cat", num_inference_steps=1, output_type="pt")
    assert out.images.shape == (1, 3, 64, 64)
    torch.testing.assert_close(out.mu, networks.eval().text_head(*encoder(["a cat"]))[0])
    with pytest.raises(ValueError, match="unknown preset 'other'"):
        FlowPipeline.from_released(encoder, tmp_path / "tiny_dimr.pth", tmp_path / "autoencoder_kl.pth", preset="other")


def test_omitted_settings_are_the_pipelines_own(pipe, tmp_path):
    """From its config, which save_pretrained keeps; arguments come first."""
    parts = {name: getattr(pipe, name) for name in ("text_encoder", "text_head", "velocity_net", "vae")}
    own = {"schedule": "uniform", "solver": "ab2", "num_inference_steps": 3, "guidance_scale": 2.0, "fm_gain": 1.5}
    FlowPipeline(**parts, **own, max_guidance=4.0).save_pretrained(tmp_path)
    mine = FlowPipeline.from_pretrained(tmp_path)
    assert {name: mine.config[name] for name in own} == own
    z0 = torch.randn(1, *pipe.text_head.config.latent_shape)
    given = run(pipe, None, latents=z0, **{**own, "num_inference_steps": 3}).z1
    assert torch.equal(run(mine, None, latents=z0).z1, given)
    assert not torch.equal(run(mine, None, latents=z0, solver="euler").z1, given)
    with pytest.raises(ValueError, match="unknown solver 'rk4'"):
        FlowPipeline(**parts, solver="rk4")


def test_guidance_of_one_costs_one_forward(pipe, monkeypatch):
    sizes, velocity = [], pipe.velocity_net.velocity
    monkeypatch.setattr(pipe.velocity_net, "velocity", lambda x, *a, **o: sizes.append(len(x)) or velocity(x, *a, **o))
    for guidance in (None, 1, 1.0, 2.0):
        run(pipe, num_inference_steps=1, guidance_scale=guidance)
    assert sizes == [1, 1, 1, 2]


def test_guidance_beyond_what_the_model_tolerates_warns(pipe):
    parts = {name: getattr(pipe, name) for name in ("text_encoder", "text_head", "velocity_net", "vae")}
    for most, words in ((2.0, "expect distorted images"), (1.0, "trained without guidance")):
        limited = FlowPipeline(**parts, max_guidance=most, num_inference_steps=1)
        with pytest.warns(UserWarning, match=rf"guidance_scale 3 is outside 0 to {most:g}.*{words}"):
            run(limited, guidance_scale=3.0)
        with pytest.warns(UserWarning, match="guidance_scale -20 is outside"):
            run(limited, guidance_scale=-20)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(limited, guidance_scale=most)


def test_prompts_that_are_empty_or_too_long_warn(pipe):
    with pytest.warns(UserWarning, match="the prompt is empty"):
        run(pipe, "  ", num_inference_steps=1)
    with pytest.warns(UserWarning, match="which ignores everything from 'the moon the' on"):
        run(pipe, "a cat " * 7 + "the moon the", num_inference_steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(pipe, "a cat", num_inference_steps=1)


def test_a_prompt_unlike_every_caption_names_the_nearest(pipe):
    known = KnownCaptions.embed(pipe.text_encoder, ["a cat", "the moon"])
    states, mask = pipe.text_encoder(["the moon", "a cat"])
    assert [caption for caption, _ in known.nearest(states, mask)] == ["the moon", "a cat"]
    assert all(cosine > 0.99 for _, cosine in known.nearest(states, mask))
    opposite = KnownCaptions(["a cat"], -KnownCaptions.embed(pipe.text_encoder, ["a dog"]).embeddings)
    parts = {name: getattr(pipe, name) for name in ("text_encoder", "text_head", "velocity_net", "vae")}
    with pytest.warns(UserWarning, match=r"'a dog' is unlike everything .*drawn from: 'a cat'"):
        run(FlowPipeline(**parts, known=opposite, num_inference_steps=1), "a dog")


def test_noise_in_interpolation_and_arithmetic_is_the_generators(pipe):
    for call in (lambda **o: pipe.interpolate("a", "b", 3, **o), lambda **o: pipe.arithmetic(["a", "b"], **o)):
        made = [call(num_inference_steps=1, output_type="latent", generator=g) for g in (None, seeded(1), seeded(1))]
        assert torch.equal(made[1].z0, made[2].z0)
        assert not torch.equal(made[0].z0, made[1].z0)


@pytest.fixture(scope="module")
def mixed(pipe):
    """A pipeline with a mixture of three components, two of which fit every prompt."""
    from fmpipe.models import MixtureHead

    given = pipe.text_head.config
    head = MixtureHead(given.width, given.tokens, given.latent_shape, components=3, focus=0.5).eval()
    with torch.no_grad():
        head.gate.bias.copy_(torch.tensor([1.0, 0.9, -3.0]))
    made = FlowPipeline(pipe.text_encoder, head, pipe.velocity_net, pipe.vae)
    made.set_progress_bar_config(disable=True)
    return made


def chosen(pipe, out):
    """The components of the images."""
    return torch.cdist(out.mu.flatten(1), pipe.text_head.nodecay_values).argmin(1).tolist()


def test_a_mixture_draws_its_components_and_the_same_ones_again(mixed):
    first, again = (run(mixed, num_images_per_prompt=12, generator=[seeded(i) for i in range(12)]) for _ in range(2))
    assert torch.equal(first.z1, again.z1)
    assert set(chosen(mixed, first)) == {0, 1}
    alone = run(mixed, generator=[seeded(5)])
    assert chosen(mixed, alone)[0] == chosen(mixed, first)[5]
    torch.testing.assert_close(alone.z1, first.z1[5:6], atol=1e-4, rtol=1e-4)
    one = run(mixed, num_images_per_prompt=12, generator=seeded())
    assert set(chosen(mixed, one)) == {0, 1}


def test_diversity_and_the_mean_select_the_most_likely_component(mixed):
    options = {"num_images_per_prompt": 12, "generator": [seeded(i) for i in range(12)]}
    assert set(chosen(mixed, run(mixed, diversity=0, **options))) == {0}
    assert set(chosen(mixed, run(mixed, diversity=100, **options))) == {0, 1, 2}
    mean = run(mixed, z0_mode="mean")
    assert torch.equal(mean.z0[0].flatten(), mixed.text_head.nodecay_values[0])
    with pytest.raises(ValueError, match="diversity must be 0 or more, got -1"):
        run(mixed, diversity=-1)


def test_a_saved_mixture_draws_the_same(mixed, tmp_path):
    mixed.save_pretrained(tmp_path)
    loaded = FlowPipeline.from_pretrained(tmp_path)
    loaded.set_progress_bar_config(disable=True)
    assert torch.equal(run(loaded, generator=seeded(3)).z1, run(mixed, generator=seeded(3)).z1)


def test_interpolation_and_sums_of_a_mixture_stay_near_its_components(mixed):
    head = mixed.text_head
    a, b = "a cat", "a red dog on the moon"
    with torch.no_grad():
        head.gate.weight[:2] = head.pooled(*mixed.text_encoder([a, b]))
    ends = mixed.encode([a, b])[0]
    assert not torch.equal(ends[0], ends[1])
    between = mixed.interpolate(a, b, 6, num_inference_steps=STEPS, output_type="pt").z0
    torch.testing.assert_close(between[[0, -1]], ends, atol=1e-4, rtol=1e-4)
    straight = torch.lerp(ends[:1], ends[1:], torch.linspace(0, 1, 6).view(-1, 1, 1, 1))
    nearest = [torch.cdist(z.flatten(1), head.nodecay_values).amin(1) for z in (between, straight)]
    assert (nearest[0][1:-1] < 0.5 * nearest[1][1:-1]).all()
    total = mixed.arithmetic([a, b], a, num_inference_steps=STEPS, output_type="pt").z0
    torch.testing.assert_close(total, ends[1:], atol=1e-4, rtol=1e-4)
