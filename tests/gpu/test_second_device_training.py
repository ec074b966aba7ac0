"""Training on the second device: which steps wait for it, and how a step that is not finite is found afterwards."""

import copy
import json
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import second_device
from support.language_models import save_language_model
from support.teachers import save_teacher
from support.tiny_models import tiny_clip

from fmpipe.pipeline import FlowPipeline
from fmpipe.train import batches, checkpoint, loop, settings
from fmpipe.train.alarms import StoppedError
from fmpipe.train.config import Every
from fmpipe.train.presets import shapes_tiny
from fmpipe.train.run import run
from fmpipe.train.short_runs import ablate, overfit

STEPS = 7


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A config of seconds whose autoencoder is trained."""
    second_device.load()
    root = tmp_path_factory.mktemp("train")
    torch.manual_seed(0)
    tiny_clip().save_pretrained(root / "clip")
    config = shapes_tiny()
    config.out, config.data.cache, config.data.count = str(root / "first"), str(root / "cache"), 64
    config.flow.encoder, config.every = str(root / "clip"), Every(log=3, validate=0, save=100, sample=0)
    for optim in (config.vae.optim, config.flow.optim, config.flow.head_optim, config.diffusion.optim):
        optim.steps, optim.batch = STEPS, 8
    config.diffusion.net, config.stages = config.flow.net, ["vae"]
    config.vae.path = str(run(config)["vae"])
    return config


def changed(tiny, out, *overrides):
    return settings.with_overrides(copy.deepcopy(tiny), [f"out={out}", "stages=[flow]", *overrides])


def counted(config, monkeypatch):
    """Train on the device; the synchronizations of every step, by stage and whether the step logs."""
    found, step = {}, loop.Trainer.train_step

    def counting(trainer):
        last = trainer.step + 1 == trainer.stage.optim.steps
        with second_device.synchronizations() as waited:
            figures = step(trainer)
        kind = "logs" if figures else "reads" if last else "plain"
        found.setdefault((trainer.stage.name, kind), []).append(waited)
        return figures

    monkeypatch.setattr(loop.Trainer, "train_step", counting)
    run(config, device="second")
    return found


RECIPES = {
    "stages": ["stages=[vae, head, flow]", "vae.path=null", "vae.augment=true"],
    "diffusion": ["stages=[diffusion]", "diffusion.time_weight=true"],
    "every loss": [
        "flow.losses.contrastive=0.1", "flow.losses.dino=0.1", "flow.losses.norm=0.1", "flow.losses.null=0.3",
        "flow.losses.detach=false", "flow.losses.others=4", "flow.token_dropout=0.2",
    ],
    "pcgrad": ["flow.losses.contrastive=0.1", "flow.losses.weighting=pcgrad", "flow.losses.edge_weight=0.5"],
    "share, micro-batches": [
        "flow.losses.contrastive=0.1", "flow.losses.weighting=share", "flow.optim.accumulate=2", "precision=bf16",
    ],
    "muon, checkpointing": ["flow.optim.optimizer=muon", "checkpointing=[text_head, velocity_net]"],
    "teacher": ["flow.losses.teacher=TEACHER", "flow.losses.dino=0.1", "flow.losses.repa=0.1"],
    "teacher on pixels": [
        "flow.losses.teacher=TEACHER", "flow.losses.dino=0.1", "flow.losses.repa=0.1", "flow.losses.null=0.5",
        "flow.losses.teacher_on=pixels",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_only_steps_that_log_wait_for_the_device(name, tiny, tmp_path, monkeypatch):
    teacher = save_teacher("dinov2", tmp_path / "teacher") if "teacher" in name else ""
    config = changed(tiny, tmp_path / "run", *(x.replace("TEACHER", str(teacher)) for x in RECIPES[name]))
    found = counted(config, monkeypatch)
    assert {stage for stage, _ in found} == set(config.stages)
    for (stage, kind), steps in found.items():
        most = {"plain": 0, "reads": 1, "logs": 4}[kind]  # the flag; metrics, the statistics of flow and head
        for waited in steps:
            assert len(waited) <= most, (stage, kind, waited)


def test_learned_queries_wait_in_the_mask_of_transformers_only(tiny, tmp_path, monkeypatch):
    model = save_language_model("llama", tmp_path / "llama")
    encoder = f"flow.encoder={{kind: meta_query, num_queries: 4, model: {model}, lora: {{r: 2}}}}"
    head = "flow.head={hidden: 32, std_range: [0.3, 0.4]}"
    found = counted(changed(tiny, tmp_path / "run", encoder, head, "flow.losses.others=0"), monkeypatch)
    waited = {wait.where.split(":")[0] for step in found["flow", "plain"] for wait in step}
    assert all(path.endswith("masking_utils.py") for path in waited)
    assert all(len(step) <= 2 for step in found["flow", "plain"])


def test_overfit_and_ablate_run_on_the_device(tiny, tmp_path):
    config = changed(tiny, tmp_path / "run", "every.validate=2", "data.val=0.2", *RECIPES["every loss"])
    names = [finding.name for finding in overfit(config, samples=16, device="second")]
    names += [finding.name for finding in ablate(config, steps=4, device="second")]
    ablations = ["only_flow", "kl_off", "condition_shuffled", "dino_shuffled"]
    assert names == ["overfit", *(f"ablation_{name}" for name in ablations)]


def test_evaluate_gives_the_cpus_figures(monkeypatch):
    """With random images instead of the font's, and three prompts of each kind."""
    from fmpipe import evaluate

    second_device.load()
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(256, (len(evaluate.table()), 3, 64, 64), dtype=torch.uint8, generator=draw)
    items = [SimpleNamespace(image=image, key=str(k), captions=["a cat"]) for k, image in enumerate(images)]
    monkeypatch.setattr(evaluate, "source_of", lambda data: items)
    monkeypatch.setattr(evaluate, "SEEDS", 2)
    for name in ("training_captions", "new_templates", "prompts"):
        all_of = getattr(evaluate, name)
        monkeypatch.setattr(evaluate, name, lambda *args, all_of=all_of, **more: all_of(*args, **more)[:3])
    pipe = FlowPipeline.from_pretrained("default")
    pipe.set_progress_bar_config(disable=True)
    (here, rows), (there, other) = (evaluate.evaluate(pipe.to(device), steps=2) for device in ("cpu", "second"))
    for a, b in zip(rows, other, strict=True):
        assert b == {key: pytest.approx(x, abs=1e-3) if isinstance(x, float) else x for key, x in a.items()}
    for a, b in zip(here, there, strict=True):
        assert a.name == b.name
        timed_or_native = a.name.endswith(", s") or a.name.startswith("eager backend")
        assert timed_or_native or b.value == pytest.approx(a.value, abs=1e-3), a.name


def nan_at(step, monkeypatch, times=9):
    """Put a NaN into the latents of a step, the first times that its batch is made."""
    real, made = batches.FlowBatches.__call__, []

    def broken(self, at, *rows):
        batch = real(self, at, *rows)
        if at == step and len(made) < times:
            made.append(at)
            for name in {"z1", "ends", "candidates"} & batch.keys():
                batch[name][0, 0, 0, 0] = float("nan")
        return batch

    monkeypatch.setattr(batches.FlowBatches, "__call__", broken)


def saved(config, step):
    return checkpoint.load(checkpoint.find(Path(config.out) / "flow/checkpoints", step))


def assert_same(found, expected):
    assert found["meta"]["step"] == expected["meta"]["step"]
    for part in ("model", "ema"):
        for name, x in expected[part].items():
            assert torch.equal(found[part][name], x), name


@pytest.mark.parametrize(("bad", "every"), [(0, 100), (4, 100), (5, 2), (6, 3)])
def test_the_first_bad_step_is_named_and_the_state_before_it_kept(bad, every, tiny, tmp_path, monkeypatch):
    whole = changed(tiny, tmp_path / "whole", "every.save=1", "keep=20")
    run(whole, device="second")
    nan_at(bad, monkeypatch)
    config = changed(tiny, tmp_path / "bad", f"every.save={every}")
    with pytest.raises(StoppedError, match=rf"step {bad}: the loss flow, .* the first .* is x_0"):
        run(config, device="second")
    assert_same(saved(config, bad), saved(whole, bad))
    log = [json.loads(line) for line in (Path(config.out) / "flow/log.jsonl").read_text().splitlines()]
    assert "is not finite" in log[-1]["stop/reason"]


def test_what_is_finite_when_repeated_goes_on(tiny, tmp_path, monkeypatch):
    whole = changed(tiny, tmp_path / "whole")
    run(whole, device="second")
    nan_at(4, monkeypatch, times=1)
    config = changed(tiny, tmp_path / "once")
    with pytest.warns(UserWarning, match="steps 0 to 6 was not finite, but was when the steps were repeated"):
        run(config, device="second")
    assert_same(saved(config, STEPS), saved(whole, STEPS))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run(changed(tiny, tmp_path / "again"), device="second")


def test_a_resumed_run_repeats_from_its_checkpoint(tiny, tmp_path, monkeypatch):
    config = changed(tiny, tmp_path / "run", "flow.optim.steps=4")
    run(config, device="second")
    nan_at(5, monkeypatch)
    with pytest.raises(StoppedError, match="step 5: the loss flow"):
        run(changed(tiny, tmp_path / "run"), resume="latest", device="second")
    assert saved(config, 5)["meta"]["step"] == 5


def test_an_interrupted_run_does_not_save_a_bad_state(tiny, tmp_path, monkeypatch):
    """The signal arrives in a step whose loss is not finite, and which does not log."""
    nan_at(4, monkeypatch)
    broken, sent = batches.FlowBatches.__call__, []

    def interrupted(self, at, *rows):
        if at == 4 and not sent:
            sent.append(at)
            signal.raise_signal(signal.SIGTERM)
        return broken(self, at, *rows)

    monkeypatch.setattr(batches.FlowBatches, "__call__", interrupted)
    config = changed(tiny, tmp_path / "run")
    with pytest.raises(StoppedError, match="step 4: the loss flow"):
        run(config, device="second")
    assert all(x.isfinite().all() for x in saved(config, 4)["model"].values())
