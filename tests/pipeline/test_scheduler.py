"""The scheduler beside diffusers' own: the same schedule and numbers in fp32, better ones in half precision."""

import copy
import inspect
import json
import pickle

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

from fmpipe.scheduler import FlowEulerScheduler

pytestmark = pytest.mark.usefixtures("one_thread")

BOTH = (FlowEulerScheduler, FlowMatchEulerDiscreteScheduler)
# name: configuration, arguments of set_timesteps, begin index
RUNS = {
    "shift 1": ({}, {"num_inference_steps": 20}, None),
    "shift 3": ({"shift": 3.0}, {"num_inference_steps": 50}, None),
    "one step": ({}, {"num_inference_steps": 1}, None),
    "dynamic": ({"use_dynamic_shifting": True}, {"num_inference_steps": 20, "mu": 0.8}, None),
    "linear": (
        {"use_dynamic_shifting": True, "time_shift_type": "linear"},
        {"num_inference_steps": 7, "mu": 1.3},
        None,
    ),
    "karras": ({"use_karras_sigmas": True}, {"num_inference_steps": 20}, None),
    "exponential": ({"use_exponential_sigmas": True}, {"num_inference_steps": 20}, None),
    "beta": ({"use_beta_sigmas": True}, {"num_inference_steps": 20}, None),
    "terminal": ({"shift_terminal": 0.1, "shift": 3.0}, {"num_inference_steps": 11}, None),
    "inverted": ({"invert_sigmas": True}, {"num_inference_steps": 11}, None),
    "sigmas": ({"shift": 3.0}, {"sigmas": [1.0, 0.9, 0.55, 0.5, 0.1]}, None),
    "timesteps": ({}, {"sigmas": [1.0, 0.7, 0.2], "timesteps": [1000.0, 650.0, 300.0]}, None),
    "begin index": ({"shift": 3.0}, {"num_inference_steps": 20}, 13),
    "begin index 0": ({}, {"num_inference_steps": 20, "device": "cpu"}, 0),
}


def noise(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*(shape or (2, 3, 5, 7)), generator=torch.Generator().manual_seed(seed)).to(dtype)


def velocity(x, t):
    """A field with curvature, rounded to x's dtype as a network's output is."""
    return ((2 * x.float()).sin() + 0.7 * x.float() * t / 1000 - 0.5).to(x.dtype)


def begun(cls, config=None, arguments=None, begin=None):
    scheduler = cls(**(config or {}))
    scheduler.set_timesteps(**(arguments or {"num_inference_steps": 6}))
    if begin is not None:
        scheduler.set_begin_index(begin)
    return scheduler


def loop(scheduler, x, change=lambda k, x: x):
    """As a pipeline does it; change gets what step k returned."""
    for k, t in enumerate(scheduler.timesteps[scheduler.begin_index or 0 :]):
        x = change(k, scheduler.step(velocity(x, t), t, x, return_dict=False)[0])
    return x


def rms(x):
    return x.double().square().mean().sqrt().item()


@pytest.mark.parametrize(("config", "arguments", "begin"), RUNS.values(), ids=RUNS)
def test_a_run_is_diffusers_own(config, arguments, begin):
    ours, theirs = (begun(c, config, arguments, begin) for c in BOTH)
    assert torch.equal(ours.sigmas, theirs.sigmas)
    assert torch.equal(ours.timesteps, theirs.timesteps)
    assert len(ours) == len(theirs) == 1000
    last = theirs.timesteps[-1]
    assert ours.index_for_timestep(last) == theirs.index_for_timestep(last)
    image, t = noise(seed=1), theirs.timesteps[begin or 0].repeat(2)
    x = theirs.scale_noise(image, t, noise())
    assert torch.equal(ours.scale_noise(image, t, noise()), x)
    torch.testing.assert_close(loop(ours, x), loop(theirs, x), atol=1e-6, rtol=1e-6)
    assert ours.step_index == theirs.step_index


@pytest.mark.parametrize(("config", "arguments", "begin"), RUNS.values(), ids=RUNS)
def test_the_trace_has_every_step(config, arguments, begin):
    scheduler = begun(FlowEulerScheduler, config, arguments, begin)
    seen = [x := noise()]
    loop(scheduler, x, lambda k, x: seen.append(x) or x)
    first, trace = begin or 0, scheduler.trace
    assert trace.steps == list(range(first, len(scheduler.timesteps)))
    assert trace.times == scheduler.sigmas[first:-1].tolist()
    torch.testing.assert_close(trace.column("dt"), scheduler.sigmas.diff()[first:, None].expand(-1, 2))
    torch.testing.assert_close(trace.column("mean_abs_x"), torch.stack(seen[:-1]).abs().mean((2, 3, 4)))
    v = velocity(seen[0], scheduler.timesteps[first])
    dt = scheduler.sigmas.diff()[first]
    assert trace.lines()[0] == f"step{first}: |x|={seen[0].abs().mean():.4f}, |v|={v.abs().mean():.4f}, dt={dt:.4f}"
    trace.check()


# An error of diffusers' own over ours that is surely kept; measured: bf16 20, 72, 45, 133, fp16 8, 21, 13, 31.
@pytest.mark.parametrize(
    ("dtype", "shift", "steps", "factor"),
    [
        (torch.bfloat16, 1.0, 50, 10),
        (torch.bfloat16, 1.0, 100, 30),
        (torch.bfloat16, 3.0, 50, 20),
        (torch.bfloat16, 3.0, 100, 60),
        (torch.float16, 1.0, 50, 4),
        (torch.float16, 1.0, 100, 10),
        (torch.float16, 3.0, 50, 6),
        (torch.float16, 3.0, 100, 15),
    ],
)
def test_half_precision_is_nearer_to_fp32(dtype, shift, steps, factor):
    x = noise(2, 4, 32, 32, dtype=dtype)
    run = ({"shift": shift}, {"num_inference_steps": steps})
    expected = loop(begun(FlowMatchEulerDiscreteScheduler, *run), x.float())
    ours, theirs = (loop(begun(c, *run), x) for c in BOTH)
    assert ours.dtype == theirs.dtype == dtype
    ours, theirs = rms(ours - expected), rms(theirs - expected)
    print(f"{dtype} shift {shift} {steps} steps: rms error ours {ours:.2e}, diffusers {theirs:.2e}")
    assert ours * factor < theirs
    assert ours < 1.3 * rms(expected.to(dtype) - expected)  # little more than the last rounding


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (lambda x: x, True),
        (lambda x: x.clone(), True),
        (lambda x: x.detach(), True),
        (lambda x: x.float(), True),
        (lambda x: x.to(memory_format=torch.channels_last), True),
        (lambda x: x + 1, False),
        (lambda x: x.add_(1), False),
        (lambda x: x.view(-1)[:].add_(1).view_as(x), False),
        (lambda x: x.mul_(2).clone(), False),
        (lambda x: x[:1] + 1, False),
        (lambda x: torch.full_like(x, torch.nan), False),
    ],
    ids=["same", "clone", "detach", "float", "layout", "add", "add_", "view", "mul_clone", "batch", "nan"],
)
def test_the_state_goes_on_unless_the_sample_changed(change, kept, mode):
    """A step that bf16 cannot show, then one of nothing that returns the state in fp32."""
    with mode():
        scheduler = begun(FlowEulerScheduler)
        x = torch.full((2, 3, 4, 4), 4.0, dtype=torch.bfloat16)
        v = torch.full_like(x, 2**-5)  # times dt, about -1/5: less than half the spacing below 4, which is 2**-6
        x = change(scheduler.step(v, scheduler.timesteps[0], x).prev_sample)
        took = x.float().clone()
        out = scheduler.step(torch.zeros_like(x, dtype=torch.float32), scheduler.timesteps[1], x).prev_sample
    exact = 4.0 + scheduler.sigmas.diff()[0] * 2**-5
    expected = exact.expand_as(took) if kept else took
    assert not (kept and torch.equal(expected, took))
    torch.testing.assert_close(out, expected, atol=0, rtol=1e-7, equal_nan=True)


def test_a_replaced_sample_is_honoured_over_a_whole_run():
    def replace(k, x):
        return noise(dtype=x.dtype, seed=9) if k == 2 else x

    ours, theirs = (loop(begun(cls), noise(), replace) for cls in BOTH)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    low = loop(begun(FlowEulerScheduler), noise(dtype=torch.bfloat16), replace)
    rest = loop(begun(FlowEulerScheduler, begin=3), noise(dtype=torch.bfloat16, seed=9))
    assert torch.equal(low, rest)


def test_inpainting_keeps_the_state_of_the_painted_half():
    """The unpainted half is replaced at every step; the other must not lose its steps to rounding for it."""
    mask = (torch.arange(7) < 3).to(torch.bfloat16)

    def run(cls, dtype):
        scheduler, image, x = begun(cls, {}, {"num_inference_steps": 100}), noise(seed=1), noise(dtype=torch.bfloat16)

        def change(k, x):
            known = scheduler.sigmas[k + 1] * noise() + (1 - scheduler.sigmas[k + 1]) * image
            return (1 - mask.to(dtype)) * known.to(dtype) + mask.to(dtype) * x

        return loop(scheduler, x.to(dtype), change).float()

    expected = run(FlowMatchEulerDiscreteScheduler, torch.float32)
    ours, theirs = (rms(run(c, torch.bfloat16) - expected) for c in BOTH)
    assert ours * 10 < theirs


def test_set_timesteps_starts_afresh():
    scheduler, x = begun(FlowEulerScheduler, {}, {"num_inference_steps": 30}), noise(dtype=torch.bfloat16)
    first = loop(scheduler, x)
    trace = scheduler.trace
    scheduler.set_timesteps(30)
    assert len(scheduler.trace) == 0
    assert torch.equal(loop(scheduler, x), first)
    assert scheduler.trace is not trace
    assert torch.equal(scheduler.trace.values, trace.values)
    scheduler.set_timesteps(30)
    middle = scheduler.step(x, scheduler.timesteps[0], x).prev_sample  # and stops in the middle
    scheduler.set_timesteps(3)
    zero = torch.zeros_like(x, dtype=torch.float32)
    assert torch.equal(scheduler.step(zero, scheduler.timesteps[0], middle).prev_sample, middle.float())
    assert len(scheduler.trace) == 1


def test_a_step_tried_twice_starts_from_the_sample():
    """Some pipelines turn ``_step_index`` back to take a step again."""
    scheduler, x, t = begun(FlowEulerScheduler), torch.full((2, 3), 4.0, dtype=torch.bfloat16), 1000.0
    v = torch.full_like(x, 2**-5)
    assert torch.equal(scheduler.step(v, t, x).prev_sample, x)
    scheduler._step_index -= 1
    once = x.float() + scheduler.sigmas.diff()[0] * v.float()
    assert torch.equal(scheduler.step(v.float(), t, x).prev_sample, once)


def test_what_was_returned_is_the_caller_s_own():
    scheduler, kept = begun(FlowEulerScheduler), []
    loop(scheduler, noise(), lambda k, x: kept.append((x, x.clone())) or x)
    assert all(torch.equal(x, then) for x, then in kept)
    assert scheduler._state is None  # no memory is held after the last step


@pytest.mark.parametrize("sample", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("output", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_dtype_and_form_of_the_result(sample, output):
    ours, theirs = begun(FlowEulerScheduler), begun(FlowMatchEulerDiscreteScheduler)
    x, v, t = noise(dtype=sample), noise(dtype=output, seed=1), ours.timesteps[0]
    (got,), expected = ours.step(v, t, x, return_dict=False), theirs.step(v, t, x)
    assert got.dtype == expected.prev_sample.dtype == output
    exact = x.double() + ours.sigmas.diff()[0].double() * v.double()
    eps = torch.finfo(output).eps if output.itemsize < 4 else 1e-6
    torch.testing.assert_close(got.double(), exact, atol=1e-7, rtol=eps)
    assert type(ours.step(v, ours.timesteps[1], got)) is type(expected)


def test_nothing_is_read_back_from_a_device():
    scheduler = begun(FlowEulerScheduler, begin=0)
    scheduler.sigmas = scheduler.sigmas.to("meta")  # has no values: reading one raises
    x = noise().to("meta")
    for k, t in enumerate(scheduler.timesteps):
        x = scheduler.step(torch.empty_like(x), t, x.clone() if k % 2 else x).prev_sample
    assert len(scheduler.trace) == 6


@pytest.mark.parametrize(
    ("config", "options"),
    [({"stochastic_sampling": True}, {}), ({}, {"per_token_timesteps": torch.linspace(200, 1000, 10).view(2, 5)})],
    ids=["stochastic", "per token"],
)
def test_what_is_left_to_diffusers(config, options):
    results = []
    for cls in BOTH:
        scheduler, x, generator = begun(cls, config), noise(2, 5, 3), torch.Generator().manual_seed(3)
        for t in scheduler.timesteps:
            x = scheduler.step(velocity(x, t), t, x, generator=generator, **options).prev_sample
        results.append(x)
    assert torch.equal(*results)


def test_gradients_are_left_to_diffusers():
    grads = []
    for cls in BOTH:
        x = noise().requires_grad_()
        loop(begun(cls), x).square().sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)


def test_another_batch_size_begins_another_trace():
    scheduler, x = begun(FlowEulerScheduler), noise()
    loop(scheduler, x, lambda k, x: x[:1] if k == 2 else x)
    assert scheduler.trace.steps == [3, 4, 5]
    assert scheduler.trace.values.shape == (3, 1, 5)


X = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("scheduler", "arguments", "error", "words"),
    [
        (FlowEulerScheduler(), (X, 1000.0, X), RuntimeError, r"no schedule yet; call set_timesteps"),
        (None, (X, 0, X), ValueError, r"timestep must be one of scheduler.timesteps.*got 0; is it an index"),
        (None, (X, torch.tensor(3), X), ValueError, r"timestep must be .*got tensor\(3\)"),
        (None, (None, 1000.0, X), TypeError, r"model_output must be a tensor, got NoneType"),
        (None, (X, 1000.0, [1.0]), TypeError, r"sample must be a tensor, got list"),
        (None, (X[:1], 1000.0, X), ValueError, r"model_output must have sample's shape \(2, 3\), got \(1, 3\)"),
        (None, (X.to("meta"), 1000.0, X), ValueError, r"model_output must have sample's device cpu, got meta"),
    ],
)
def test_wrong_calls(scheduler, arguments, error, words):
    with pytest.raises(error, match=rf"^FlowEulerScheduler\.step: .*{words}"):
        (scheduler or begun(FlowEulerScheduler)).step(*arguments)


def test_a_step_too_many():
    scheduler = begun(FlowEulerScheduler)
    x = loop(scheduler, X)
    with pytest.raises(IndexError, match=r"all 6 steps are done; call set_timesteps"):
        scheduler.step(x, scheduler.timesteps[-1], x)


def test_signatures_are_diffusers_own():
    """Pipelines look at them to find out what to pass."""
    for name in ("__init__", "set_timesteps", "step", "scale_noise"):
        ours, theirs = (inspect.signature(getattr(c, name)).parameters for c in BOTH)
        assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in theirs.values()]


def test_configurations_go_both_ways(tmp_path):
    theirs = FlowMatchEulerDiscreteScheduler(shift=3.0, use_karras_sigmas=True, num_train_timesteps=500)
    theirs.save_pretrained(tmp_path / "theirs")
    fields = {k: v for k, v in theirs.config.items() if not k.startswith("_")}
    for ours in (
        FlowEulerScheduler.from_config(theirs.config),
        FlowEulerScheduler.from_pretrained(tmp_path / "theirs"),
    ):
        assert {k: v for k, v in ours.config.items() if not k.startswith("_")} == fields
        ours.save_pretrained(tmp_path / "ours")
        saved = json.loads((tmp_path / "ours" / "scheduler_config.json").read_text())
        assert saved["_class_name"] == "FlowEulerScheduler"
        for back in (
            FlowEulerScheduler.from_pretrained(tmp_path / "ours"),
            FlowMatchEulerDiscreteScheduler.from_pretrained(tmp_path / "ours"),
            FlowMatchEulerDiscreteScheduler.from_config(ours.config),
        ):
            assert {k: v for k, v in back.config.items() if not k.startswith("_")} == fields
            assert torch.equal(back.sigmas, theirs.sigmas)
    assert FlowMatchEulerDiscreteScheduler in ours.compatibles
    assert FlowEulerScheduler.from_config(theirs.config, shift=1.0).config.shift == 1.0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))], ids=["deepcopy", "pickle"])
def test_a_copy_made_between_steps_goes_its_own_way(copied):
    scheduler, x = begun(FlowEulerScheduler), noise()
    x = scheduler.step(x, scheduler.timesteps[0], x).prev_sample
    other = copied(scheduler)
    ends = [[s.step(x, s.timesteps[1], x).prev_sample, len(s.trace)] for s in (scheduler, other)]
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1] == 2


WITHOUT = dict.fromkeys(("vae", "text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))


@pytest.fixture(scope="module")
def flux():
    """FLUX's own pipeline around a network of random weights, without text encoders and autoencoder."""
    torch.manual_seed(0)
    heads = {"attention_head_dim": 8, "num_attention_heads": 2, "axes_dims_rope": (2, 2, 4)}
    widths = {"in_channels": 16, "joint_attention_dim": 12, "pooled_projection_dim": 12}
    network = FluxTransformer2DModel(num_layers=1, num_single_layers=1, guidance_embeds=False, **heads, **widths)
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    pipe = FluxPipeline(scheduler=scheduler, transformer=network.eval(), **WITHOUT)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def flux_run(pipe, scheduler, dtype=torch.float32, **options):
    pipe.scheduler = scheduler
    pipe.transformer.to(dtype)
    text = {"prompt_embeds": noise(1, 3, 12, dtype=dtype), "pooled_prompt_embeds": noise(1, 12, dtype=dtype)}
    size = {"height": 64, "width": 64, "latents": noise(1, 16, 16, dtype=torch.bfloat16).to(dtype)}
    return pipe(**text, **size, output_type="latent", **{"num_inference_steps": 8, **options}).images


def test_in_a_pipeline_of_diffusers(flux, tmp_path):
    theirs = flux.scheduler
    ours = FlowEulerScheduler.from_config(theirs.config)
    expected = flux_run(flux, theirs)
    torch.testing.assert_close(flux_run(flux, ours), expected, atol=1e-6, rtol=1e-6)
    assert len(ours.trace.lines()) == 8
    replace = {"callback_on_step_end": lambda pipe, k, t, kw: {"latents": kw["latents"] * 0.5} if k == 3 else {}}
    expected = flux_run(flux, theirs, **replace)
    torch.testing.assert_close(flux_run(flux, ours, **replace), expected, atol=1e-6, rtol=1e-6)
    flux.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "model_index.json").read_text())["scheduler"][1] == "FlowEulerScheduler"
    assert type(FluxPipeline.from_pretrained(tmp_path, **WITHOUT).scheduler) is FlowEulerScheduler


def test_in_a_pipeline_in_bf16(flux):
    theirs = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    run = {"num_inference_steps": 50}
    expected = flux_run(flux, theirs, **run)
    schedulers = (FlowEulerScheduler.from_config(theirs.config), theirs)
    ours, theirs = (rms(flux_run(flux, s, torch.bfloat16, **run) - expected) for s in schedulers)
    print(f"FLUX, 50 steps: rms error ours {ours:.2e}, diffusers {theirs:.2e}")
    assert ours < theirs
