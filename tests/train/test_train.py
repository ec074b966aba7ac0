"""Training on tiny shapes with a tiny random text encoder: what a run leaves, how it is cut, resumed and ended."""

import contextlib
import json
import math
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from accelerate import Accelerator
from support.commands import run as command
from support.forked import fork
from support.training import STEPS, CutError, changed, same, states, steps_of, stop_at

from fmpipe.cli.train import _trained
from fmpipe.diagnose.checks import ablation_kl_off
from fmpipe.diagnose.engine import judge
from fmpipe.diagnose.read import read
from fmpipe.models import DiMR
from fmpipe.pipeline import FlowPipeline
from fmpipe.run_log import history_of, read_log
from fmpipe.train import checkpoint, losses, settings, short_runs
from fmpipe.train.config import Config, Losses
from fmpipe.train.inputs import StageInputs
from fmpipe.train.interrupt import StoppedError
from fmpipe.train.lock import LockedRunError, locked
from fmpipe.train.objective import FlowObjective
from fmpipe.train.presets import PRESETS
from fmpipe.train.run import run
from fmpipe.train.stages import STAGES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def test_a_run_leaves_a_log_checkpoints_pictures_and_a_pipeline(tiny):
    root = Path(tiny.out)
    assert settings.load(Config, root / "config.yaml").flow.optim.steps == STEPS
    log = read_log(root / "flow")
    assert [line["step"] for line in log] == list(range(STEPS + 1))
    names = "loss/total loss/flow loss/kl w/kl flow/cos flow/nmse mu/rms std/mean lr grad/flow grad/total "
    names += "step/z_head_update_ratio step/flow_head_update_ratio stat/x_t/std stat/v_pred/dtype"
    assert set(names.split()) <= log[1].keys()
    assert {"val/loss/flow", "val/flow/cos", "flow/endpt_rmse@8", "flow/cond_gain_cos"} <= log[3].keys()
    assert (root / "flow" / "samples" / "00000006.png").is_file()
    assert len(list((root / "flow" / "checkpoints").glob("step-*"))) == tiny.keep
    assert states(tiny)["meta"]["config"]["flow"]["optim"]["steps"] == STEPS
    pipe = FlowPipeline.from_pretrained(root / "pipeline")
    pipe.set_progress_bar_config(disable=True)
    assert pipe("red circle", 2, output_type="pt").images.shape == (1, 3, 16, 16)
    assert pipe.vae.config.latents_std is not None


@pytest.mark.parametrize("at", [4])
def test_a_run_cut_and_resumed_equals_the_uncut_one(tiny, tmp_path, at):
    whole, cut = (changed(tiny, tmp_path / name) for name in ("whole", "cut"))
    run(whole)
    with pytest.raises(CutError):
        run(cut, on_log=stop_at(at + 1))
    assert states(cut)["meta"]["step"] == at
    run(cut, resume="latest")
    a, b = states(whole), states(cut)
    for part in ("model", "ema", "optimizer", "weights", "rng"):
        assert same(a[part], b[part]), part


def test_a_full_disk_and_a_damaged_state(tiny, tmp_path):
    """The run ends with what it could not write; the state before serves, and where that is damaged, the one before."""
    config, limits = changed(tiny, tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(stage, step, steps, figures):
        if step == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, limits[1]))  # more than the log, less than the weights

    try:
        with pytest.raises(OSError, match=r"the checkpoint of step 4 needs [\d,]+ bytes .* was not written"):
            run(config, on_log=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    newest = checkpoint.latest(tmp_path / "flow" / "checkpoints")
    assert newest.name == "step-00000003"
    os.truncate(newest / "ema.safetensors", 99)
    with pytest.warns(UserWarning, match="step-00000003 is skipped: .*ema.safetensors is damaged"):
        run(config, resume="latest")
    for part in ("model", "ema", "optimizer", "weights", "rng"):
        assert same(states(tiny)[part], states(config)[part]), part


def test_a_run_is_not_begun_over_another(tiny):
    with pytest.raises(FileExistsError, match="resume it with --resume latest"):
        run(changed(tiny, tiny.out))


def test_a_resumed_run_refuses_settings_that_its_checkpoint_contradicts(tiny, tmp_path):
    """Nothing is written, also if --override continues with shapes that do not fit."""
    config = changed(tiny, tmp_path / "run", "flow.optim.steps=2", "every.validate=0", "every.sample=0")
    run(config)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    refused = {
        "seed=1": "seed 0 → 1",
        "data.val=0.3": "data.val 0.2 → 0.3",
        "flow.losses.kl=0.5": "flow.losses.kl 0.001 → 0.5",
        "flow.optim.batch=4": "flow.optim.batch 8 → 4",
        "flow.head.hidden=32": "flow.head.hidden 512 → 32",
        "flow.optim.optimizer=muon": "flow.optim.optimizer adamw → muon",
    }
    for override, said in refused.items():
        with pytest.raises(ValueError, match=f"^resume: .* other settings: {said}. Restore .* --override$"):
            run(settings.with_overrides(config, [override, "flow.optim.lr=0.5"]), resume="latest")
    with pytest.raises(checkpoint.InvalidCheckpointError, match=r"step-00000002 does not fit this config: .*size mism"):
        run(settings.with_overrides(config, ["flow.head.hidden=32"]), resume="latest", override=True)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def test_a_resumed_run_applies_and_reports_what_may_change(tiny, tmp_path):
    config = changed(tiny, tmp_path / "run", "flow.optim.steps=2", "every.validate=0", "every.sample=0")
    run(config)
    said = []
    free = ["flow.optim.steps=3", "flow.optim.lr=5e-3", "flow.optim.schedule=constant", "flow.optim.warmup=0", "keep=1"]
    more = settings.with_overrides(config, [*free, "flow.optim.weight_decay=0.25"])
    run(more, resume="latest", on_message=said.append)
    (line,) = [text for text in said if "settings" in text]
    lr = config.flow.optim.lr
    for change in ("steps 2 → 3", f"lr {lr} → 0.005", "schedule cosine → constant", "weight_decay 0.01 → 0.25"):
        assert f"flow.optim.{change}" in line
    assert steps_of(more)[-1]["lr"] == pytest.approx(0.005)
    assert {group["weight_decay"] for group in states(more)["optimizer"]["param_groups"]} == {0.0, 0.25}
    assert settings.load(Config, tmp_path / "run" / "config.yaml") == more
    other = settings.with_overrides(more, ["flow.losses.flow=3", "flow.optim.steps=4"])
    run(other, resume="latest", override=True)
    assert steps_of(other)[-1]["w/flow"] == 3
    assert settings.load(Config, tmp_path / "run" / "config.yaml") == other


def test_two_runs_never_write_to_one_folder(tiny, tmp_path):
    """The second run is told the host and process of the first, and changes no file."""
    config, seen = changed(tiny, tmp_path / "run", "every.validate=0", "every.sample=0"), []

    def second(stage, step, steps, figures):
        if step == 3:
            for resume in (None, "latest"):
                with pytest.raises(LockedRunError) as error:
                    run(settings.with_overrides(config, ["keep=1"]), resume=resume)
                seen.append(str(error.value))

    run(config, on_log=second)
    who = f"process {os.getpid()} on {socket.gethostname()}, since 20"
    assert all(f"another run writes to {config.out}: {who}" in said for said in seen)
    assert len(seen) == 2
    assert [line["step"] for line in steps_of(config)] == list(range(1, STEPS + 1))
    assert settings.load(Config, tmp_path / "run" / "config.yaml") == config
    assert not (tmp_path / "run" / "run.lock").exists()


def test_the_lock_of_a_killed_run_is_taken_over(tmp_path):
    folder = tmp_path / "run"

    def hold():
        with locked(folder):
            os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(fork(hold), 0)
    assert json.loads((folder / "run.lock").read_text())["process"] != os.getpid()
    with locked(folder):
        assert json.loads((folder / "run.lock").read_text())["process"] == os.getpid()
        (folder / "config.yaml").write_text("")
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]
    (folder / "run.lock").write_text('{"hos')  # killed while it wrote
    with locked(folder):
        pass


def test_the_lock_of_another_host_is_named_with_how_to_remove_it(tmp_path):
    (tmp_path / "run.lock").write_text('{"host": "node-7", "process": 41, "since": "2026-01-01 10:00:00"}')
    said = (
        rf"process 41 on node-7, since 2026-01-01 10:00:00. If that process no longer runs, remove {tmp_path}/run.lock"
    )
    with pytest.raises(LockedRunError, match=said), locked(tmp_path):
        pass
    (tmp_path / "run.lock").unlink()
    with locked(tmp_path):
        pass


def test_one_of_many_processes_gets_the_lock(tmp_path):
    """Each of eight takes it 50 times; what it protects is never seen half done."""

    def work():
        done = 0
        while done < 50:
            with contextlib.suppress(LockedRunError), locked(tmp_path / "run"):
                (tmp_path / "inside").mkdir()
                (tmp_path / "inside").rmdir()
                done += 1

    assert [os.waitpid(pid, 0)[1] for pid in [fork(work) for _ in range(8)]] == [0] * 8


def test_a_run_goes_on_from_a_pipeline(tiny, tmp_path):
    ended = read_log(f"{tiny.out}/flow")[-1]
    config = changed(tiny, tmp_path / "on", f"start={tiny.out}/pipeline", "vae.path=null", "flow.optim.steps=1")
    run(config)
    assert read_log(tmp_path / "on" / "flow")[0]["val/loss/flow"] == pytest.approx(ended["val/loss/flow"], rel=1e-5)
    vae = changed(tiny, tmp_path / "vae", f"start={tiny.out}/pipeline", "vae.path=null", "vae.optim.steps=1")
    vae.stages = ["vae"]
    run(vae)
    ended = read_log(f"{tiny.out}/vae")[-1]
    assert read_log(tmp_path / "vae" / "vae")[0]["val/vae/psnr"] == pytest.approx(ended["val/vae/psnr"], rel=1e-5)
    other = changed(tiny, tmp_path / "other", f"start={tiny.out}/pipeline", "flow.head.hidden=32")
    with pytest.raises(ValueError, match=r"start: text_head of .* has other shapes than this run's: layers\.0\.bias"):
        run(other)


def test_a_head_trained_alone_is_kept_by_the_flow(tiny, tmp_path):
    config = changed(tiny, tmp_path, "stages=[head, flow]", "flow.losses.others=24", "flow.head.dropout=0.5")
    config.flow.head_optim = config.flow.optim
    left = run(config)
    log = read_log(tmp_path / "head")
    assert log[-1]["val/loss/anchor"] < log[0]["val/loss/anchor"]
    assert {"loss/anchor", "loss/match", "loss/kl", "val/nearest", "step/z_head_update_ratio"} <= log[-1].keys()
    assert (tmp_path / "head" / "samples" / "00000006.png").is_file()
    head, kept = (checkpoint.load(checkpoint.latest(tmp_path / name / "checkpoints")) for name in ("head", "flow"))
    names = [name for name in kept["model"] if name.startswith("text_head.")]
    assert names
    assert all(torch.equal(kept["model"][name], head["ema"][name]) for name in names)
    log = steps_of(config)
    assert {name for name in log[-1] if name.startswith("loss/")} == {"loss/total", "loss/flow"}
    assert log[-1]["grad/flow"] == log[-1]["grad/total"] > 0
    stage = STAGES["flow"](config, StageInputs(config))
    assert stage.objective.train().velocity_net.training
    assert not stage.objective.text_head.training
    with pytest.raises(ValueError, match=r"has std_range .* unlike flow.head"):
        STAGES["flow"](changed(config, tmp_path, "flow.head.std_range=[0.1, 0.2]"), StageInputs(config))
    assert FlowPipeline.from_pretrained(left["flow"]).config.source == "shapes"
    with pytest.raises(FileNotFoundError, match="start: no pipeline in 'nowhere'"):
        run(changed(tiny, tmp_path / "nowhere", "start=nowhere"))
    with pytest.raises(ValueError, match="stage head has no loss to train with"):
        run(changed(tiny, tmp_path / "none", "stages=[head]", "flow.losses.anchor=0", "flow.losses.match=0"))


@pytest.mark.parametrize(
    "losses",
    [
        {"contrastive": 0.5},
        {"contrastive": 0.5, "dino": 0.5, "norm": 0.1, "kl_kind": "crossflow", "null": 0.2, "edge_weight": 0.5},
        {"weighting": "share", "kl_warmup": 0.0},
        {"weighting": "gradnorm", "kl_warmup": 0.0, "contrastive": 0.1},
        {"weighting": "pcgrad"},
        {"t": "mixed", "multi_scale": False, "detach": False, "kl_beta": "cyclic"},
    ],
    ids=lambda x: "-".join(x),
)
def test_every_control_trains(tiny, tmp_path, losses):
    config = changed(tiny, tmp_path, *(f"flow.losses.{k}={v}" for k, v in losses.items()))
    run(config)
    first, last = read_log(tmp_path / "flow")[1], read_log(tmp_path / "flow")[-1]
    assert last["loss/flow"] < first["loss/flow"]
    for name in ("contrastive", "dino", "norm"):
        assert (f"loss/{name}" in last) is bool(losses.get(name))
    assert last["grad/total"] > 0 < last["grad/flow"]
    if "dino" in losses:
        assert 0 < last["ent/teacher"] <= torch.tensor(256.0).log()
    if losses.get("weighting") in ("share", "gradnorm"):
        assert last["w/kl"] != first["w/kl"]


def test_the_diffusion_stage(tiny, tmp_path):
    config = changed(tiny, tmp_path, "stages=[diffusion]", "diffusion.time_weight=true")
    run(config)
    log = read_log(tmp_path / "diffusion")
    assert log[0]["const/alphas_cumprod"] == pytest.approx([0.9999, 4.04e-5], rel=1e-2)
    assert 0 <= log[1]["stat/t/min"] <= log[1]["stat/t/max"] <= 999
    assert log[-1]["loss/diffusion"] > 0


@pytest.mark.parametrize("stage", ["diffusion", "flow"])
def test_every_trained_parameter_has_a_gradient(tiny, tmp_path, stage):
    """DDP would wait for those that have none."""
    config = changed(tiny, tmp_path, "flow.losses.multi_scale=false")
    made = STAGES[stage](config, StageInputs(config))
    sum(made.objective(**made.batches(0)).losses.values()).backward()
    assert [name for name, p in made.objective.named_parameters() if p.requires_grad and p.grad is None] == []


def test_a_loss_that_is_not_finite_ends_the_run_and_is_named(tiny, tmp_path, monkeypatch):
    from fmpipe.train import batches

    real = batches.FlowBatches.__call__

    def broken(self, step, *rows):
        batch = real(self, step, *rows)
        if step == 3:
            for name in ("z1", "ends", "candidates"):
                batch[name][0, 0, 0, 0] = float("nan")
        return batch

    monkeypatch.setattr(batches.FlowBatches, "__call__", broken)
    config = changed(tiny, tmp_path, "every.validate=0")
    with pytest.raises(StoppedError, match=r"step 3: the loss flow, anchor, match is not finite; the first .* is x_0"):
        run(config)
    assert states(config)["meta"]["step"] == 3
    assert all(x.isfinite().all() for x in states(config)["model"].values())
    *_, line = read_log(Path(config.out) / "flow")  # the step that triggered it is logged before the run stops
    assert math.isnan(line["loss/flow"])
    assert "is not finite" in line["stop/reason"]
    first = judge(read(config.out))[0]
    assert (first.name, first.status) == ("loss_numerics", "fail")


BAD = "is not finite after step 4, so this state is not saved; the last good checkpoint is "


@pytest.mark.parametrize(
    ("overrides", "sent", "said", "left"),
    [
        (["every.save=1", "every.validate=0"], False, f"^flow: velocity_net.* {BAD}.*step-00000003$", 3),
        (["every.save=3", "every.validate=4"], False, f"^flow: velocity_net.* {BAD}.*step-00000003$", 3),
        (["every.save=3", "every.validate=0"], False, f"^flow: step 4: the loss .* {BAD}.*step-00000003$", 3),
        (["every.save=0", "every.validate=0"], True, f"^flow: velocity_net.* {BAD}none$", None),
    ],
    ids=["saved", "validated", "next step", "interrupted"],
)
def test_weights_that_became_non_finite_are_never_saved(tiny, tmp_path, monkeypatch, overrides, sent, said, left):
    done = []

    def after_step(objective):
        done.append(1)
        if len(done) == 4:
            list(objective.velocity_net.parameters())[-1].data.fill_(math.inf)
            if sent:
                signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(FlowObjective, "after_step", after_step)
    config = changed(tiny, tmp_path, "every.sample=0", *overrides)
    with pytest.raises(StoppedError, match=said):
        run(config)
    newest = checkpoint.latest(tmp_path / "flow" / "checkpoints")
    assert left is None if newest is None else checkpoint.read_index(newest)["step"] == left
    lines = [line for line in read_log(tmp_path / "flow") if line["step"] == 4]
    assert BAD in lines[-1]["stop/reason"]
    assert "loss/flow" in lines[0]


@pytest.mark.parametrize(("at", "said"), [(None, "nothing was saved yet"), (4, "resume with: .* --resume latest")])
def test_sigterm_at_any_time_ends_a_run_as_ctrl_c_does(tiny, tmp_path, monkeypatch, capfd, at, said):
    """Before the first step; and twice in one step: the second signal acts at once, and no line of the log is lost."""
    config = changed(tiny, tmp_path, "every.save=3", "every.validate=0", "every.sample=0")

    def end(*_):
        signal.raise_signal(signal.SIGTERM)

    def train(on_log):
        def listen(stage, step, steps, figures):
            if step == at:
                end()
                end()

        return run(config, on_log=listen)

    def command_line():
        try:
            _trained(train, config.out)
        except typer.Exit as error:
            os._exit(error.exit_code)

    if at is None:
        monkeypatch.setattr("fmpipe.train.preflight.check", end)
    status = os.waitpid(fork(command_line), 0)[1]
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGTERM
    assert re.search(f"fmpipe: interrupted; {said}", capfd.readouterr().err)
    assert not (tmp_path / "run.lock").exists()
    if at:
        assert [line["step"] for line in read_log(tmp_path / "flow")] == list(range(at + 1))


def test_the_log_has_every_line_before_a_checkpoint_at_kill_9(tiny, tmp_path, monkeypatch):
    """Also of the checkpoint that an interrupted run saves."""
    config = changed(tiny, tmp_path, "every.save=0", "every.validate=0", "every.sample=0")
    save = checkpoint.save

    def killed(*args, **options):
        save(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    def interrupted(stage, step, steps, figures):
        if step == 4:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(checkpoint, "save", killed)
    os.waitpid(fork(lambda: run(config, on_log=interrupted)), 0)
    assert checkpoint.read_index(checkpoint.latest(tmp_path / "flow" / "checkpoints"))["step"] == 4
    assert [line["step"] for line in read_log(tmp_path / "flow")] == list(range(5))


def test_the_scale_alarm_ends_the_run(tiny, tmp_path):
    config = changed(tiny, tmp_path, "flow.losses.alarm=0.1")
    with pytest.raises(StoppedError, match=r"E\|z0\| is .* times E\|z1\| \(alarm at 0.1\)"):
        run(config)
    *_, line = read_log(Path(config.out) / "flow")
    assert line["scale/z0"] > 0.1 * line["scale/z1"]
    assert line["scale/x_t"] < line["scale/z0"] + line["scale/z1"]
    stopped = next(f for f in judge(read(config.out)) if f.name == "self_stopped")
    assert stopped.status == "fail"
    assert "alarm at 0.1" in stopped.meaning


def test_bf16(tiny, tmp_path, monkeypatch):
    """Products in bf16; x_t in fp32, with digits that bf16 has not; resumed bit by bit."""
    whole, cut = (changed(tiny, tmp_path / name, "precision=bf16", "every.validate=0") for name in ("whole", "cut"))
    seen, real = [], DiMR.velocities

    def spied(self, x, t, **options):
        out = real(self, x, t, **options)
        if self.training:  # generation, in validation, is not under autocast
            seen.append((x.dtype, bool((x != x.bfloat16()).any()), out[-1].dtype))
        return out

    monkeypatch.setattr(DiMR, "velocities", spied)
    run(whole)
    assert set(seen) == {(torch.float32, True, torch.bfloat16)}
    check_losses(tiny, whole, 2e-2)
    assert {x.dtype for x in states(whole)["model"].values()} == {torch.float32}
    with pytest.raises(CutError):
        run(cut, on_log=stop_at(4))
    run(cut, resume="latest")
    assert same(states(whole)["model"], states(cut)["model"])


def check_losses(plain, other, rel):
    """Step by step the plain run's to ``rel``, but not the same."""
    a, b = ([line["loss/total"] for line in steps_of(config)] for config in (plain, other))
    assert b == pytest.approx(a, rel=rel)
    assert all(x != y for x, y in zip(a, b, strict=True))


def test_fp16_wants_a_gpu(tiny, tmp_path):
    with pytest.raises(ValueError, match="precision 'fp16' needs a GPU"):
        run(changed(tiny, tmp_path, "precision=fp16"))


class Half(Accelerator):
    """fp16 on a CPU: accelerate leaves it out there, torch has the autocast and the scaler."""

    first = 2.0**10

    def __init__(self, **options):
        super().__init__(**options)
        self.state._mixed_precision, self.native_amp = "fp16", True
        self.scaler = torch.amp.GradScaler("cpu", self.first, backoff_factor=2.0**-10, growth_interval=4)


def test_fp16_scales_the_loss_and_is_resumed(tiny, tmp_path, monkeypatch):
    """Gradients are unscaled before they are clipped; the scale is part of the state. Steps 0 to 3 grow it."""
    monkeypatch.setattr("fmpipe.train.run.Accelerator", Half)
    whole, cut = (changed(tiny, tmp_path / name, "every.validate=0") for name in ("whole", "cut"))
    run(whole)
    check_losses(tiny, whole, 1e-2)
    log = steps_of(whole)
    assert [line["scaler/scale"] for line in log] == [2.0**10] * 3 + [2.0**11] * 3
    assert {line["stat/x_t/dtype"] for line in log} == {"float32"}
    with pytest.raises(CutError):
        run(cut, on_log=stop_at(3))  # two good steps: the scaler's count is part of its state
    run(cut, resume="latest")
    for part in ("model", "optimizer", "scaler"):
        assert same(states(whole)[part], states(cut)[part]), part


def test_steps_that_overflow_are_left_out(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("fmpipe.train.run.Accelerator", Half)
    monkeypatch.setattr(Half, "first", 2.0**30)
    config = changed(tiny, tmp_path, "every.validate=0")
    run(config)
    first, *_, last = steps_of(config)
    assert (first["scaler/scale"], first["step/flow_head_update_ratio"]) == (2.0**20, 0)
    assert last["scaler/scale"] <= 2.0**20
    assert last["step/flow_head_update_ratio"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dino": 1.0}, "dino needs contrastive"),
        ({"weighting": "share", "kl_beta": "cyclic"}, "would undo kl_beta"),
    ],
)
def test_losses_that_contradict_each_other_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Losses(**arguments)


@pytest.mark.filterwarnings("ignore:start")
@pytest.mark.parametrize("reached", [True, False])
def test_the_kl_is_seen_to_move_the_head(tiny, tmp_path, monkeypatch, reached):
    """Of shapes-tiny, whose anchor and std_range hold what the KL would move; and not of a KL that has no gradient."""
    if not reached:
        plain = losses.kl_standard
        monkeypatch.setattr(losses, "kl_standard", lambda *args: plain(*(x.detach() for x in args)))
    quickly = ["every.validate=0", "every.save=0", "every.sample=0", "flow.optim.steps=40"]
    left, histories = run(changed(tiny, tmp_path / "anchored", *quickly)), []
    for trial in short_runs.kl_trials(changed(tiny, tmp_path), 40, str(left["flow"])):
        run(settings.with_overrides(trial, quickly))
        histories.append(history_of(read_log(f"{trial.out}/flow")))
    assert ablation_kl_off(*histories).status == ("pass" if reached else "fail")


def test_two_processes_have_the_losses_of_one(tiny, tmp_path):
    """The same batch in halves: losses to 1e-5, of the autoencoder and of the flow with negatives gathered."""
    config = changed(tiny, tmp_path / "one", "flow.losses.contrastive=0.5", "every.validate=0", "every.sample=0")
    run(config)
    two = settings.with_overrides(config, [f"out={tmp_path / 'two'}"])
    settings.dump(two, tmp_path / "two.yaml")
    arguments = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "fmpipe", "train"]
    done = subprocess.run(
        [sys.executable, *arguments, "--config", str(tmp_path / "two.yaml")],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    one, other = steps_of(config), steps_of(two)
    assert [line["step"] for line in one] == [line["step"] for line in other]
    for a, b in zip(one, other, strict=True):
        for name in ("loss/total", "loss/flow", "loss/kl", "loss/contrastive", "loss/anchor"):
            assert b[name] == pytest.approx(a[name], rel=1e-5, abs=1e-6), (a["step"], name)
    assert set(states(two)["rng"]) == {"0", "1"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--config", "nothing"],
            "presets are shapes-tiny, shapes-queries, shapes-scenes, emoji-64, crossflow-256, crossuni-256",
        ),
        (["--config", "shapes-tiny", "flow.optm.lr=1"], "unknown key; the nearest known is 'optim'"),
        (["--config", "shapes-tiny", "flow.optim.lr=fast"], "flow.optim.lr: expected float"),
        (["--config", "crossflow-256"], "data/*.tar"),
    ],
)
def test_bad_input_is_one_line(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = command("train", *arguments)
    assert result.exit_code in (1, 2)
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_presets_are_whole():
    for make in PRESETS.values():
        config = make()
        assert settings.from_dict(Config, settings.to_dict(config)) == config
