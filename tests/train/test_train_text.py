"""A text encoder that is trained with the flow: what moves, what does not, resumed, in several processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.language_models import save_language_model
from support.training import changed, same, states, steps_of

from fmpipe.pipeline import FlowPipeline
from fmpipe.text import load_text_encoder
from fmpipe.train import checkpoint, settings
from fmpipe.train.run import run
from fmpipe.train.settings import SettingsError
from fmpipe.train.short_runs import ablate

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
KIND = "kind: meta_query, num_queries: 4, model: "
ALL = ", lora: {r: 2}, connector: {layers: 1, heads: 4}"
HEAD = "flow.head={hidden: 32, std_range: [0.3, 0.4]}"
QUIET = ("every.validate=0", "every.sample=0", "flow.losses.others=0", HEAD)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save_language_model("llama", tmp_path_factory.mktemp("models") / "llama")


def config_of(tiny, out, llama, more="", *overrides):
    return changed(tiny, out, *QUIET, f"flow.encoder={{{KIND}{llama}{more}}}", *overrides)


@pytest.mark.parametrize("more", ["", ALL], ids=["queries", "all"])
def test_what_is_trained_moves_and_the_language_model_does_not(tiny, tmp_path, llama, more):
    config = config_of(tiny, tmp_path / "run", llama, more, "every.validate=3", "every.sample=6")
    run(config)
    fresh = FlowPipeline.from_pretrained(tmp_path / "run").text_encoder
    torch.manual_seed(config.seed)
    before = load_text_encoder(config.flow.encoder.spec(), tokens=config.flow.tokens)
    moved = {
        n for (n, a), b in zip(before.named_parameters(), fresh.parameters(), strict=True) if not torch.equal(a, b)
    }
    assert moved == {name for name, p in before.named_parameters() if p.requires_grad}
    log = steps_of(config)
    assert all(line["step/queries_update_ratio"] > 1e-5 for line in log)
    names = states(config)["model"].keys()
    assert "text_encoder.queries" in names
    assert not [name for name in names if name.startswith("text_encoder.model") and "lora_" not in name]
    assert (tmp_path / "run" / "flow" / "samples" / "00000006.png").is_file()
    assert (tmp_path / "run" / "pipeline" / "text_encoder" / "lora").is_dir() == (more == ALL)


def test_reused_prefixes_and_checkpointing_give_the_same_losses(tiny, tmp_path, llama):
    rows = {
        "reused": ("",),
        "not-reused": (", reuse_prefix: false",),
        "checkpointed": ("", "checkpointing=[text_encoder]"),
    }
    logs = {}
    for name, more in rows.items():
        config = config_of(tiny, tmp_path / name, llama, *more, f"data.cache={tmp_path / name}-cache")
        run(config)
        logs[name] = [line["loss/total"] for line in steps_of(config)]
        kept = list(Path(config.data.cache).glob("prefixes-*"))
        assert len(kept) == (name == "reused")
    assert logs["not-reused"] == pytest.approx(logs["reused"], rel=1e-5)
    assert logs["checkpointed"] == pytest.approx(logs["reused"], rel=1e-5)


def command(config, path, *more):
    settings.dump(config, path)
    return [sys.executable, *more, "-m", "fmpipe", "train", "--config", str(path)]


def test_a_killed_run_is_resumed_bit_by_bit(tiny, tmp_path, llama):
    whole, cut = (
        config_of(tiny, tmp_path / name, llama, ALL.replace("r: 2", "r: 2, dropout: 0.1"), "flow.optim.steps=40")
        for name in ("whole", "cut")
    )
    run(whole)
    line = command(cut, tmp_path / "cut.yaml")
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # as here: sums depend on the number of threads
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=one_thread)
    folder = Path(cut.out) / "flow" / "checkpoints"
    while checkpoint.latest(folder) is None and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 1 <= states(cut)["meta"]["step"] < 40
    run(cut, resume="latest")
    assert {line["step"] for line in steps_of(cut)} == set(range(1, 41))  # the killed process lost no line
    a, b = states(whole), states(cut)
    for part in ("model", "ema", "optimizer", "weights", "rng"):
        assert same(a[part], b[part]), part


def test_two_processes_have_the_losses_of_one(tiny, tmp_path, llama):
    one = config_of(tiny, tmp_path / "one", llama, ALL, "flow.losses.contrastive=0.5", "flow.losses.dino=0.5")
    run(one)
    two = settings.with_overrides(one, [f"out={tmp_path / 'two'}"])
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    done = subprocess.run(
        command(two, tmp_path / "two.yaml", *launcher),
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    for a, b in zip(steps_of(one), steps_of(two), strict=True):
        for name in (name for name in a if name.startswith("loss/")):
            assert b[name] == pytest.approx(a[name], rel=1e-4, abs=1e-6), (a["step"], name)
    queries = [states(config)["model"]["text_encoder.queries"] for config in (one, two)]
    torch.testing.assert_close(*queries, rtol=1e-3, atol=1e-5)


def test_micro_batches_have_the_losses_of_the_large_batch(tiny, tmp_path, llama):
    losses = (
        "flow.losses.contrastive=0.5",
        "flow.losses.dino=0.5",
        "flow.losses.others=6",
        "flow.head_kind=transformer",
    )
    head = "flow.head={blocks: 1, hidden: 32, heads: 4, reductions: 0, std_range: [0.3, 0.4], dropout: 0}"
    large = config_of(tiny, tmp_path / "large", llama, ALL, *losses, head)
    run(large)
    small = settings.with_overrides(large, [f"out={tmp_path / 'small'}", "flow.optim.accumulate=4"])
    run(small)
    for a, b in zip(steps_of(large), steps_of(small), strict=True):
        for name in (name for name in a if name.startswith("loss/")):
            assert b[name] == pytest.approx(a[name], rel=1e-5, abs=1e-6), (a["step"], name)


def test_an_autoencoder_of_diffusers_is_used_with_its_weights(tiny, tmp_path, llama):
    own = FlowPipeline.from_pretrained(Path(tiny.out)).vae
    own.vae.register_to_config(scaling_factor=own.config.scaling_factor)
    own.vae.save_pretrained(tmp_path / "plain")
    config = config_of(tiny, tmp_path / "run", llama, "", f"vae.path={tmp_path / 'plain'}", "flow.optim.steps=1")
    run(config)
    used = FlowPipeline.from_pretrained(tmp_path / "run").vae
    assert all(torch.equal(x, used.vae.state_dict()[name]) for name, x in own.vae.state_dict().items())


def test_the_ablation_without_other_losses_reads_the_encoder_that_was_trained(tiny, tmp_path, llama, monkeypatch):
    trials = []

    def remember(config, **options):
        trials.append(config)
        return run(config, **options)

    monkeypatch.setattr("fmpipe.train.short_runs.run", remember)
    config = config_of(tiny, tmp_path / "run", llama, ALL, "flow.losses.kl=0.01", "every.validate=2")
    ablate(config, steps=2)
    whole, alone = trials[:2]
    assert alone.flow.encoder == f"{whole.out}/pipeline/text_encoder"
    one, two = (load_file(f"{c.out}/pipeline/text_encoder/meta_queries.safetensors") for c in (whole, alone))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_run_starts_from_the_encoder_of_a_pipeline(tiny, tmp_path, llama):
    first = config_of(tiny, tmp_path / "first", llama, ALL)
    run(first)
    second = config_of(tiny, tmp_path / "second", llama, ALL, f"start={tmp_path / 'first'}", "flow.optim.lr=0")
    run(second)
    one, two = (load_file(c.out + "/pipeline/text_encoder/meta_queries.safetensors") for c in (first, second))
    assert all(torch.equal(one[name], two[name]) for name in one)
    third = changed(
        tiny, tmp_path / "third", *QUIET, f"flow.encoder={tmp_path / 'first' / 'pipeline' / 'text_encoder'}"
    )
    run(third)  # a saved encoder, trained further
    assert not torch.equal(
        load_file(third.out + "/pipeline/text_encoder/meta_queries.safetensors")["queries"], one["queries"]
    )
    other = config_of(tiny, tmp_path / "other", llama, ALL.replace("r: 2", "r: 4"), f"start={tmp_path / 'first'}")
    with pytest.raises(SettingsError, match=r"config.start: text_encoder of .* has other shapes than this run's"):
        run(other)
    assert not (tmp_path / "other").exists()


def test_frozen_queries_are_cached(tiny, tmp_path, llama):
    config = config_of(tiny, tmp_path / "run", llama, ", train_queries: false", f"data.cache={tmp_path / 'cache'}")
    run(config)
    assert [path.name.split("-")[0] for path in (tmp_path / "cache").glob("states-*")] == ["states"]
    assert not [name for name in states(config)["model"] if name.startswith("text_encoder")]


@pytest.mark.parametrize(
    ("encoder", "overrides", "said"),
    [
        ("{kind: meta, model: MODEL}", (), r"flow.encoder.kind: expected one of 'meta_query'"),
        ("{kind: meta_query}", (), "flow.encoder: model is missing"),
        ("{kind: meta_query, model: MODEL, querys: 3}", (), "flow.encoder.querys: unknown key"),
        ("{kind: meta_query, model: no/such}", (), "flow.encoder: .*'no/such' is not a folder"),
        ("{kind: meta_query, model: MODEL, num_queries: 0}", (), "flow.encoder: .*num_queries must be a positive int"),
        ("{kind: meta_query, model: MODEL}", (), "flow.encoder: .*must be at most 96"),
        ("{kind: meta_query, model: MODEL, num_queries: 4, lora: {r: 0}}", (), "flow.encoder: lora: r must be"),
        ("{kind: meta_query, model: MODEL, num_queries: 4, prompt_template: x}", (), r"must contain \{prompt\} once"),
        (
            "{kind: meta_query, model: MODEL, num_queries: 4, prompt_tokens: 3, prompt_template: 'a a a a {prompt}'}",
            (),
            "flow.encoder: .*prompt_template alone has 4 tokens, prompt_tokens is 3",
        ),
        ("{kind: meta_query, model: MODEL, num_queries: 4, lora: {alpha: -1}}", (), "lora: alpha must be positive"),
        ("{kind: meta_query, model: MODEL, num_queries: 4, lora: {target_modules: '('}}", (), "lora: target_modules"),
        ("{kind: meta_query, model: MODEL, num_queries: 4, connector: {hidden: -3}}", (), "connector: hidden must be"),
        ("{kind: meta_query, model: MODEL, num_queries: 4, connector: {width: -8}}", (), "connector: width must be"),
        ("MODEL", (), "kind: meta_query"),
        ("{kind: meta_query, model: MODEL, num_queries: 4}", ("stages=[head, flow]",), "config.stages: the stage head"),
        (
            "{kind: meta_query, model: MODEL, num_queries: 4}",
            ("flow.token_dropout=0.1",),
            "flow.token_dropout: must be 0",
        ),
    ],
)
def test_wrong_settings_are_refused_before_the_first_stage(tiny, tmp_path, llama, encoder, overrides, said):
    text = f"flow.encoder={encoder.replace('MODEL', str(llama))}"
    with pytest.raises(SettingsError, match=said):
        run(changed(tiny, tmp_path / "run", *QUIET, text, *overrides))
    assert not (tmp_path / "run").exists()
