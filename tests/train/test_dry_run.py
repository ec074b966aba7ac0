"""The dry run's figures: against formulas, and against a real step's tensors."""

import pytest
import torch
from support.teachers import save_teacher
from typer.testing import CliRunner

from fmpipe.cli.base import app
from fmpipe.train import settings
from fmpipe.train.dry_run import _flow, estimate
from fmpipe.train.presets import PRESETS

SMALL = ("flow.optim.batch=4", "flow.losses.others=0")


def config_of(preset, *overrides):
    return settings.with_overrides(PRESETS[preset](), [*SMALL, *overrides])


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_an_estimate_without_its_files(preset):
    config = config_of(preset, "vae.optim.batch=2", "flow.head_optim.batch=2")
    for stage in config.stages:
        found = estimate(config, stage)
        assert found.memory > found.weights > 0
        assert found.backward > found.forward > 0


def test_operations_and_memory_grow_with_the_batch():
    one, two = (estimate(config_of("shapes-queries", f"flow.optim.batch={n}"), "flow") for n in (4, 8))
    assert two.forward == pytest.approx(2 * one.forward, rel=0.05)
    assert two.activations == pytest.approx(2 * one.activations, rel=0.1)
    assert (two.weights, two.gradients, two.optimizer) == (one.weights, one.gradients, one.optimizer)


@pytest.mark.slow
def test_checkpointing_saves_activations_and_changes_no_operation():
    plain, saving = (
        estimate(config_of("crossuni-256", f"checkpointing=[{name}]"), "flow") for name in ("", "text_encoder")
    )
    assert saving.activations < 0.8 * plain.activations
    assert saving.forward == plain.forward
    assert saving.backward > plain.backward  # the forward pass of the language model, once more


def test_micro_batches_save_activations_and_keep_the_operations():
    whole, parts = (estimate(config_of("shapes-queries", f"flow.optim.accumulate={n}"), "flow") for n in (1, 4))
    assert parts.activations == pytest.approx(whole.activations / 4, rel=0.1)
    assert parts.forward == pytest.approx(whole.forward, rel=0.05)


@pytest.mark.parametrize("module", ["text_head", "velocity_net"])
def test_checkpointing_of_our_networks_counts(module):
    plain, saving = (estimate(config_of("shapes-queries", f"checkpointing=[{x}]"), "flow") for x in ("", module))
    assert saving.activations < plain.activations
    assert saving.forward == plain.forward


def test_a_network_in_fp32_keeps_its_activations():
    half, full = (
        estimate(config_of("shapes-queries", "precision=bf16", f"flow.fp32_net={x}"), "flow") for x in ("false", "true")
    )
    assert half.activations < full.activations < estimate(config_of("shapes-queries"), "flow").activations


@pytest.mark.parametrize("losses", [{"dino": 0.5, "contrastive": 0}, {"repa": 0.5}])
def test_a_teacher_is_counted_in(losses, tmp_path):
    folder = save_teacher("dinov2", tmp_path)
    overrides = [f"flow.losses.{name}={value}" for name, value in losses.items()]
    config = config_of("shapes-queries", f"flow.losses.teacher={folder}", *overrides)
    assert estimate(config, "flow").memory > 0
    with pytest.raises(settings.SettingsError, match=r"flow\.losses\.teacher: .* is not a folder"):
        estimate(config_of("shapes-queries", "flow.losses.teacher=none", *overrides), "flow")


@pytest.mark.slow
def test_frozen_weights_have_neither_gradients_nor_averages():
    found = estimate(config_of("crossuni-256"), "flow")
    total, trained = found.parameters["text_encoder"]
    assert trained < 0.2 * total
    temperature = 1  # of the contrastive loss, in none of the networks
    assert found.gradients == 4 * (temperature + sum(trained for _, trained in found.parameters.values()))
    assert (found.optimizer, found.ema) == (2 * found.gradients, found.gradients)


def test_activations_are_those_of_a_real_step():
    config = config_of("shapes-queries", "flow.encoder=minilm")
    objective, batch = _flow(config, 4)
    batch = {name: torch.ones_like(x) if x.dtype == torch.bool else torch.rand(x.shape) for name, x in batch.items()}
    kept, own = {}, {p.data_ptr() for p in objective.parameters()}

    def keep(x):
        if x.data_ptr() not in own:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        held = objective.train()(**batch)
    assert held.losses
    assert estimate(config, "flow").activations == pytest.approx(sum(kept.values()), rel=0.5)


def test_the_command_prints_memory_and_operations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["train", "--config", "shapes-tiny", "--dry-run"])
    assert result.exit_code == 0
    assert "GiB: weights" in result.stdout
    assert "FLOPs per step" in result.stdout
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_named():
    config = config_of("crossuni-256", "flow.encoder.architecture=null")
    with pytest.raises(settings.SettingsError, match=r"flow\.encoder\.model: there is no folder 'internvl3-1b'"):
        estimate(config, "flow")
