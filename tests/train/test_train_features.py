"""Features of a training: groups, accumulation, optimizers, schedules, switches, times, weights, trackers."""

import math
import os

import pytest
import torch
from support.commands import run as command
from support.forked import fork, together
from support.training import CutError, apart, changed, same, states, steps_of, stop_at
from torch import nn
from transformers import get_scheduler

from fmpipe.models import DiMR, LinearHead, TextHead
from fmpipe.requirements import installed
from fmpipe.run_log import read_log
from fmpipe.train import loss_weights, settings, times, trackers
from fmpipe.train.config import Group, Losses, LossSchedule, Optim
from fmpipe.train.gradients import Gradients
from fmpipe.train.optim import Joined, make_optimizer, schedule
from fmpipe.train.run import run
from fmpipe.train.settings import SettingsError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
QUICK = ("every.validate=0", "every.sample=0", "every.save=0")


def numbers(line):
    return {k: v for k, v in line.items() if isinstance(v, (int, float)) and k != "time"}


def check_logs(a, b, rel):
    """The lines of two runs have the same figures, but for rounding."""
    for one, other in zip(steps_of(a), steps_of(b), strict=True):
        one, other = numbers(one), numbers(other)
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert other[name] == pytest.approx(value, rel=rel, abs=rel), (one["step"], name)


def check_resumed(config, tmp_path, at=4):
    """A run that is cut after a step, and resumed, ends with the bits of the uncut one."""
    whole, cut = (settings.with_overrides(config, [f"out={tmp_path / name}"]) for name in ("whole", "cut"))
    run(whole)
    with pytest.raises(CutError):
        run(cut, on_log=stop_at(at))
    run(cut, resume="latest")
    a, b = states(whole), states(cut)
    for part in ("model", "ema", "optimizer", "weights", "rng"):
        assert same(a[part], b[part]), part
    return whole


def joint(tensors):
    """One vector of all tensors but the null token.

    The norm behind that takes its one value away: its gradient is rounding, and Adam steps on it.
    """
    return torch.cat([x.flatten() for name, x in tensors.items() if not str(name).endswith("tensor_false")]).double()


def distance(a, b):
    return float((a - b).norm() / a.norm())


# --- groups


def test_groups_train_modules_at_their_own_rates(tiny, tmp_path):
    groups = "{text_head: {lr: 0.0}, velocity_net.stages.0: {lr: 1e-6, weight_decay: 0}}"
    config = changed(tiny, tmp_path, *QUICK, "every.save=6", "flow.losses.detach=false", f"flow.optim.groups={groups}")
    run(config)
    groups = {group["name"]: group for group in states(config)["optimizer"]["param_groups"]}
    assert {name.removesuffix("/nodecay") for name in groups} == {"all", "text_head", "velocity_net.stages.0"}
    assert steps_of(config)[-1]["lr"] == groups["all"]["lr"]
    rates = {name: group["lr"] / groups["all"]["lr"] for name, group in groups.items()}
    assert rates["text_head"] == 0
    assert rates["velocity_net.stages.0"] == pytest.approx(1e-6 / config.flow.optim.lr)
    assert groups["velocity_net.stages.0"]["weight_decay"] == 0 < groups["all"]["weight_decay"]
    log = steps_of(config)[-1]
    assert log["step/z_head_update_ratio"] == 0 < log["step/flow_head_update_ratio"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["flow.optim.groups={text_haed: {lr: 1}}"], r"config.flow.optim.groups.text_haed: is not .* 'text_head'"),
        (["vae.optim.groups={vae.decodr: {lr: 1}}"], "config.vae.optim.groups.vae.decodr: is not a part"),
        (["flow.optim.groups={text_head: {rl: 1}}"], "config.flow.optim.groups.text_head.rl: unknown key"),
        (["flow.optim.scales={text_head: 1}"], "config.flow.optim.scales: unknown key"),
        (["flow.optim.schedule=cosin"], "config.flow.optim.schedule: expected one of 'cosine'"),
        (["flow.optim.schedule_args={cycles: 2}"], "config.flow.optim.schedule_args: of cosine: .*'cycles'"),
        (["flow.optim.schedule=constant", "flow.optim.schedule_args={x: 2}"], "schedule_args: of constant: .*none"),
        (["flow.optim.accumulate=3"], r"config.flow.optim: batch must be a multiple of accumulate \(3\), got 8"),
        (["flow.losses.schedules={dion: {end: 0}}"], "config.flow.losses: schedules has 'dion'; the losses are flow"),
        (["flow.losses.schedules={kl: {begin: 0.6, until: 0.5}}"], "schedules.kl: 0 <= begin <= until <= 1"),
        (["flow.losses.schedules={kl: {}}", "flow.losses.weighting=share"], "'share' would undo schedules"),
        (["flow.losses.t_std=0"], "t_std must be a positive number, got 0.0"),
        (["flow.losses.t_mode_scale=2"], r"t_mode_scale must be in \[-1, 1.75\], got 2.0"),
        (["checkpointing=[vae]"], r"config.checkpointing\[0\]: expected one of 'text_encoder'"),
        (["report_to=[tensorbord]"], r"config.report_to\[0\]: expected one of 'jsonl', 'tensorboard', 'wandb'"),
    ],
)  # fmt: skip
def test_errors_come_before_the_first_stage_and_name_the_key(tiny, tmp_path, overrides, said):
    with pytest.raises(SettingsError, match=said):
        run(changed(tiny, tmp_path / "run", "vae.path=null", "stages=[vae, flow]", *overrides))
    assert not (tmp_path / "run" / "vae").exists()


# --- accumulation

COUPLED = ("flow.losses.contrastive=0.5", "flow.losses.dino=0.5", "flow.losses.detach=false")
ACCUMULATED = {
    "others": (),
    "match": ("flow.losses.others=0", "flow.losses.null=0.3"),
    "coupled": COUPLED,
    "pcgrad": ("flow.losses.weighting=pcgrad", *COUPLED),
    "gradnorm": ("flow.losses.weighting=gradnorm", "flow.losses.kl_warmup=0", "flow.losses.norm=0.1"),
    "vae": ("stages=[vae]", "vae.path=null"),
    "head": ("stages=[head]", "flow.losses.others=0", "flow.head_optim.steps=3", "flow.head_optim.batch=8"),
    "diffusion": ("stages=[diffusion]",),
}


@pytest.mark.parametrize("name", ACCUMULATED)
def test_micro_batches_equal_the_large_batch(tiny, tmp_path, name):
    """Every figure of the log, and the weights, to 1e-5: also of losses that compare all samples of a batch."""
    quick = (*QUICK, "every.save=6", "flow.optim.steps=3", "vae.optim.steps=3", "diffusion.optim.steps=3")
    large = changed(tiny, tmp_path / "large", *quick, *ACCUMULATED[name])
    (stage,) = large.stages
    large.stages = [stage]
    optim = {"vae": "vae.optim", "head": "flow.head_optim", "flow": "flow.optim", "diffusion": "diffusion.optim"}[stage]
    small = settings.with_overrides(large, [f"out={tmp_path / 'small'}", f"{optim}.accumulate=4"])
    run(large)
    run(small)
    one, other = (read_log(f"{config.out}/{stage}") for config in (large, small))
    assert len(one) == len(other) >= 3
    for a, b in zip(one, other, strict=True):
        a, b = numbers(a), numbers(b)
        assert a.keys() == b.keys()
        for key, value in a.items():
            rel = 1e-5 if key.startswith("loss/") else 1e-3
            assert b[key] == pytest.approx(value, rel=rel, abs=1e-5), (a["step"], key)
    a, b = (states(config, stage) for config in (large, small))
    assert distance(*(joint(x["model"]) for x in (a, b))) < 1e-5
    moments = [{k: row["exp_avg"] for k, row in x["optimizer"]["state"].items()} for x in (a, b)]
    assert distance(*map(joint, moments)) < 1e-5  # of the gradients
    far = {k: distance(x, moments[1][k]) for k, x in moments[0].items() if x.norm() > 1e-6 * joint(moments[0]).norm()}
    assert {k: x for k, x in far.items() if x > 1e-3} == {}  # of each parameter alone, also of small ones


@pytest.mark.forks
def test_micro_batches_of_two_processes_equal_the_large_batch(tiny, tmp_path):
    """Two processes of two micro-batches each; gradients are exchanged once per step."""
    large = changed(tiny, tmp_path / "large", *QUICK, "every.save=6", *COUPLED, "flow.optim.steps=3")
    run(large)
    small = settings.with_overrides(large, [f"out={tmp_path / 'small'}", "flow.optim.accumulate=2"])
    sharded = settings.with_overrides(small, [f"out={tmp_path / 'sharded'}", "parallel=fsdp2"])

    def both():
        real, seen = torch.nn.parallel.DistributedDataParallel.forward, []

        def spied(self, *args, **options):
            seen.append(self.require_backward_grad_sync)
            return real(self, *args, **options)

        torch.nn.parallel.DistributedDataParallel.forward = spied
        run(small)
        assert seen == [False, True] * 3
        run(sharded)

    together(2, both)
    for config in (small, sharded):
        for a, b in zip(steps_of(large), steps_of(config), strict=True):
            for name in (name for name in a if name.startswith("loss/")):
                assert b[name] == pytest.approx(a[name], rel=1e-5, abs=1e-6), (a["step"], name)
        assert apart(states(large)["model"], states(config)["model"], 1e-3) == []


def test_micro_batches_are_resumed(tiny, tmp_path):
    """With dropout in the head, which must be the same in both passes of a coupled loss."""
    check_resumed(
        changed(tiny, tmp_path, "every.validate=0", *COUPLED, "flow.optim.accumulate=2", "flow.head.dropout=0.5"),
        tmp_path,
    )


def test_dropout_is_the_same_in_both_passes(tiny, tmp_path, monkeypatch):
    """The embeddings that a micro-batch is compared with contain its own."""
    seen, real = [], Gradients.compute

    def spied(self, step, batches, weights, norms_wanted):
        found = real(self, step, batches, weights, norms_wanted)
        rows = len(batches[0]["z1"])
        for batch in batches:
            seen.append((batch["pairs"], batch["at"], rows))
        return found

    placed, own = [], []
    from fmpipe.train import losses

    plain = losses._Placed.forward

    def watched(ctx, x, pairs, at):
        own.append(x.detach().clone())
        placed.append(pairs[at : at + len(x)].clone())
        return plain(ctx, x, pairs, at)

    monkeypatch.setattr(Gradients, "compute", spied)
    monkeypatch.setattr(losses._Placed, "forward", staticmethod(watched))
    run(changed(tiny, tmp_path, *QUICK, *COUPLED, "flow.optim.accumulate=2", "flow.head.dropout=0.5",
                "flow.optim.steps=2"))  # fmt: skip
    assert [at for _, at, _ in seen] == [0, 4, 0, 4]
    assert len(own) == 4
    for a, b in zip(own, placed, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


# --- optimizers and schedules


def test_muon_has_the_matrices_and_adamw_the_rest():
    model = nn.ModuleDict({"a": nn.Linear(3, 4), "e": nn.Embedding(5, 3), "c": nn.Conv2d(1, 2, 3)})
    model.queries = nn.Parameter(torch.zeros(2, 3))
    optimizer = make_optimizer(Optim(optimizer="muon", groups={"a": Group(lr=0.5)}), model)
    assert isinstance(optimizer, Joined)
    adamw, muon = optimizer.parts
    assert (type(adamw), type(muon)) == (torch.optim.AdamW, torch.optim.Muon)
    assert [p for group in muon.param_groups for p in group["params"]] == [model["a"].weight]
    assert {group["name"]: group["lr"] for group in muon.param_groups} == {"a/muon": 0.5}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.param_groups[-1]["lr"] = 0.0  # what a schedule sets is what the parts use
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer.step()
    assert {name for name, p in model.named_parameters() if torch.equal(before[name], p)} == {"a.weight"}


@pytest.mark.parametrize(
    "overrides",
    [
        ("flow.optim.optimizer=muon",),
        ("flow.optim.schedule=linear", "flow.optim.warmup=0.5"),
        ("flow.losses.schedules={kl: {kind: cosine}, flow: {kind: linear, end: 2}}", "flow.losses.t=mode"),
        ("checkpointing=[text_head, velocity_net]", "flow.head.dropout=0.5"),
        ("precision=bf16", "flow.fp32_net=true"),
    ],
    ids=["muon", "linear", "losses", "checkpointing", "fp32_net"],
)
def test_a_feature_trains_and_is_resumed(tiny, tmp_path, overrides):
    whole = check_resumed(changed(tiny, tmp_path, "every.validate=0", *overrides), tmp_path)
    log = steps_of(whole)
    assert log[-1]["loss/flow"] < log[0]["loss/flow"]


@pytest.mark.forks
def test_muon_is_sharded(tiny, tmp_path):
    one = changed(tiny, tmp_path / "one", *QUICK, "every.save=6", "flow.optim.optimizer=muon", "flow.optim.steps=2")
    two = settings.with_overrides(one, [f"out={tmp_path / 'two'}", "parallel=fsdp2"])
    run(one)
    together(2, lambda: run(two))
    for a, b in zip(steps_of(one), steps_of(two), strict=True):
        assert b["loss/total"] == pytest.approx(a["loss/total"], rel=1e-3)


def test_adamw8bit_trains_or_is_refused_in_one_line(tiny, tmp_path):
    """Where bitsandbytes is not installed, with the command that installs it, before training starts."""
    config = changed(tiny, tmp_path / "run", "flow.optim.optimizer=adamw8bit", "every.validate=0")
    if installed("bitsandbytes"):
        check_resumed(config, tmp_path)
        return
    settings.dump(config, tmp_path / "run.yaml")
    result = command("train", "--config", str(tmp_path / "run.yaml"), "--device", "cpu")
    assert result.exit_code in (1, 2)
    assert "pip install bitsandbytes" in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    assert not (tmp_path / "run" / "flow").exists()


SCHEDULED = [
    ("cosine", {}, 55, 0.55),
    ("cosine", {}, 100, 0.1),
    ("linear", {}, 55, 0.55),
    ("linear", {}, 100, 0.1),
    ("constant", {}, 99, 1.0),
    ("cosine_with_restarts", {"num_cycles": 2}, 55, 1.0),
    ("polynomial", {"power": 2.0}, 55, 0.1 + 0.9 * 0.25),
    ("inverse_sqrt", {}, 40, 0.1 + 0.9 * 0.5),
    ("warmup_stable_decay", {}, 79, 1.0),
    ("warmup_stable_decay", {"num_decay_steps": 10}, 95, 0.55),
]


@pytest.mark.parametrize(("name", "arguments", "step", "value"), SCHEDULED)
def test_schedules_are_those_of_transformers(name, arguments, step, value):
    """A rise, then the library's curve above the floor; a function of the step alone."""
    factor = schedule(Optim(steps=100, warmup=0.1, floor=0.1, schedule=name, schedule_args=arguments))
    assert [factor(0), factor(4), factor(9)] == [0.1, 0.5, 1.0]
    assert factor(step) == pytest.approx(value, abs=1e-6)
    probe = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    more = {"num_decay_steps": 20} if name == "warmup_stable_decay" else {}
    library = get_scheduler(name, probe, 10, 100, {**more, **arguments})
    for k in range(100):
        if k >= 10:
            assert factor(k) == 0.1 + 0.9 * library.get_last_lr()[0]
        probe.step()
        library.step()


# --- switches


@pytest.mark.parametrize("head", ["linear", "transformer"])
def test_checkpointing_changes_no_bit(tiny, tmp_path, monkeypatch, head):
    """Activations are recomputed with the same dropout; every block runs a second time."""
    more = ["flow.head={hidden: 32, dropout: 0.5}"]
    if head == "transformer":
        more = ["flow.head_kind=transformer", "flow.head={blocks: 1, heads: 2, reductions: 1, hidden: 16}"]
    plain = changed(tiny, tmp_path / "plain", *QUICK, "every.save=6", "flow.optim.steps=2", *more)
    saving = settings.with_overrides(
        plain, [f"out={tmp_path / 'saving'}", "checkpointing=[text_encoder, text_head, velocity_net]"]
    )
    counts = {}
    for cls, method in ((LinearHead, "_moments"), (type(DiMR(**plain.flow.net).stages[0].blocks[0]), "forward")):
        real = getattr(cls, method)

        def counted(self, *args, real=real, cls=cls):
            counts[cls] = counts.get(cls, 0) + torch.is_grad_enabled()
            return real(self, *args)

        monkeypatch.setattr(cls, method, counted)
    run(plain)
    once, counts = dict(counts), {}
    run(saving)
    assert same(states(plain)["model"], states(saving)["model"])
    assert all(counts[cls] >= 2 * once[cls] for cls in once), (once, counts)
    assert TextHead._supports_gradient_checkpointing


@pytest.mark.forks
def test_compile_keeps_names_losses_and_the_resumed_bits(tiny, tmp_path):
    config = changed(tiny, tmp_path, "flow.optim.steps=4", "every.sample=0", "every.validate=2")
    for stage in config.flow.net["stage_configs"]:
        stage["blocks"] = 1
    plain = settings.with_overrides(config, [f"out={tmp_path / 'plain'}"])
    run(plain)

    def compiled():
        from torch._dynamo.utils import counters

        check_resumed(settings.with_overrides(config, ["compile=true"]), tmp_path, at=3)
        assert counters["stats"]["unique_graphs"] > 0

    # In a separate process: those that later tests fork would inherit the compiler's threads, and wait for them.
    assert os.waitpid(fork(compiled), 0)[1] == 0
    whole = settings.with_overrides(config, [f"out={tmp_path / 'whole'}"])
    assert states(plain)["model"].keys() == states(whole)["model"].keys()
    a, b = ([line["loss/total"] for line in steps_of(x)] for x in (plain, whole))
    assert b == pytest.approx(a, rel=1e-3)


def test_fp32_net_runs_the_network_in_fp32(tiny, tmp_path, monkeypatch):
    seen, real = set(), DiMR.velocities

    def spied(self, x, t, **options):
        out = real(self, x, t, **options)
        if self.training:
            seen.add((x.dtype, out[-1].dtype))
        return out

    monkeypatch.setattr(DiMR, "velocities", spied)
    heads, plain_head = set(), LinearHead._moments

    def watched(self, *args):
        out = plain_head(self, *args)
        if self.training:
            heads.add(out.dtype)
        return out

    monkeypatch.setattr(LinearHead, "_moments", watched)
    run(changed(tiny, tmp_path, *QUICK, "precision=bf16", "flow.fp32_net=true", "flow.optim.steps=1"))
    assert (seen, heads) == ({(torch.float32, torch.float32)}, {torch.bfloat16})


@pytest.mark.parametrize(("fp32_net", "dtype"), [("true", "float32"), ("false", "bfloat16")])
def test_the_log_has_the_precision_of_the_network_and_of_x_t(tiny, tmp_path, fp32_net, dtype):
    config = changed(tiny, tmp_path, *QUICK, "precision=bf16", f"flow.fp32_net={fp32_net}", "flow.optim.steps=1")
    run(config)
    (line,) = steps_of(config)
    assert (line["stat/v_pred/dtype"], line["stat/x_t/dtype"]) == (dtype, "float32")


# --- times and weights

N = 200_000
DENSITIES = [
    ("mode", {"mode_scale": 1.29}, "middle"),
    ("mode", {"mode_scale": -0.8}, "ends"),
    ("cosmap", {}, "middle"),
    ("logit_normal", {"mean": 1.0}, "image"),
    ("logit_normal", {"mean": -1.0}, "text"),
    ("logit_normal", {"std": 0.3}, "middle"),
    ("logit_normal", {"std": 4.0}, "ends"),
    ("uniform", {"shift": 3.0}, "text"),
    ("uniform", {"shift": 1 / 3}, "image"),
]


@pytest.mark.parametrize(("kind", "arguments", "dense"), DENSITIES)
def test_times_are_denser_where_the_documentation_says(kind, arguments, dense):
    draw = torch.Generator().manual_seed(0)
    t = times.sample_t(kind, N, draw, **arguments)
    assert 0 <= t.min() <= t.max() <= 1
    text, middle, image = (torch.histc(t, 3, 0, 1) / N).tolist()
    ends = {"middle": middle - max(text, image), "ends": min(text, image) - middle}
    ends |= {"text": text - max(middle, image), "image": image - max(middle, text)}
    assert ends[dense] > 0.05


@pytest.mark.parametrize(
    ("kind", "arguments", "cdf"),
    [
        ("cosmap", {}, lambda t: 2 / math.pi * torch.atan(t / (1 - t))),
        ("uniform", {"shift": 3.0}, lambda t: 3 * t / (1 + 2 * t)),
        ("logit_normal", {"mean": 0.5, "std": 2.0}, lambda t: torch.special.ndtr((torch.logit(t) - 0.5) / 2)),
    ],
)
def test_times_have_their_distribution(kind, arguments, cdf):
    t = times.sample_t(kind, N, torch.Generator().manual_seed(0), **arguments).double().sort()[0]
    apart = (cdf(t.clamp(1e-9, 1 - 1e-9)) - torch.arange(N) / N).abs().max()
    assert apart < 2 / math.sqrt(N)  # Kolmogorov's bound at about 1e-3


def test_the_settings_of_times_reach_the_batches(tiny, tmp_path):
    for name, overrides, low, high in (
        ("late", ["flow.losses.t=logit_normal", "flow.losses.t_mean=4"], 0.8, 1),
        ("early", ["flow.losses.t_shift=100"], 0, 0.3),
        ("sharp", ["flow.losses.t=logit_normal", "flow.losses.t_std=0.01"], 0.45, 0.55),
        ("ends", ["flow.losses.t=mode", "flow.losses.t_mode_scale=-1"], 0, 1),
    ):
        config = changed(tiny, tmp_path / name, *QUICK, "flow.optim.steps=1", *overrides)
        run(config)
        assert low <= steps_of(config)[0]["stat/t/mean"] <= high, name


FACTORS = [
    (LossSchedule(), [0, 50, 100], [1.0, 0.55, 0.1]),
    (LossSchedule("linear", 0.0, 2.0, 0.2, 0.6), [0, 20, 40, 60, 100], [0.0, 0.0, 1.0, 2.0, 2.0]),
    (LossSchedule("cosine", 1.0, 0.0, 0.5, 0.5), [49, 50], [1.0, 0.0]),
]


@pytest.mark.parametrize(("course", "at", "factors"), FACTORS)
def test_losses_are_weighted_by_their_schedules(course, at, factors):
    weights_at = loss_weights.LossWeights(
        {"flow": 1.0, "norm": 2.0}, 100, Losses(schedules={"norm": course, "kl": course})
    )
    for step, factor in zip(at, factors, strict=True):
        assert weights_at(step) == {"flow": 1.0, "norm": pytest.approx(2 * factor)}


def test_the_log_has_the_weights_of_the_schedule(tiny, tmp_path):
    config = changed(tiny, tmp_path, *QUICK, "flow.losses.schedules={anchor: {kind: linear, start: 1, end: 0}}")
    run(config)
    assert [line["w/anchor"] for line in steps_of(config)] == pytest.approx([1 - k / 6 for k in range(6)])


# --- trackers


@pytest.mark.parametrize("name", trackers.PACKAGES)
def test_trackers_have_the_figures_and_the_sheets(tiny, tmp_path, monkeypatch, name):
    """Those that are installed, without a network; the others are refused in one line before training starts."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = changed(tiny, tmp_path / "run", f"report_to=[{name}]", "flow.optim.steps=2", "every.sample=1")
    if not any(map(installed, trackers.PACKAGES[name])):
        settings.dump(config, tmp_path / "run.yaml")
        result = command("train", "--config", str(tmp_path / "run.yaml"), "--device", "cpu")
        assert result.exit_code in (1, 2)
        assert f"pip install {name}" in " ".join(result.stderr.split())
        assert "Traceback" not in result.output
        assert not (tmp_path / "run").exists()
        return
    run(config)
    last = steps_of(config)[-1]
    assert last["step"] == 2
    assert last["loss/flow"] in FOUND[name](tmp_path / "run")


def _tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "flow")).Reload()
    assert [x.step for x in events.Images("samples")] == [1, 2]
    assert events.Images("samples")[0].width > 16
    return [pytest.approx(x.value, rel=1e-6) for x in events.Scalars("loss/flow")]


def _wandb(folder):
    (file,) = (folder / "flow" / "wandb").glob("offline-run-*/*.wandb")
    assert len(list(file.parent.glob("files/media/images/samples*.png"))) == 2
    data = file.read_bytes()  # records of protobuf, with numbers as text
    assert b"loss/flow" in data
    return [x["loss/flow"] for x in read_log(folder / "flow")[1:] if str(x["loss/flow"]).encode() in data]


def _mlflow(folder):
    import mlflow

    client = mlflow.MlflowClient((folder / "mlruns").as_uri())
    (experiment,) = client.search_experiments(filter_string="name = 'fmpipe'")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.data.params["flow.optim.steps"] == "2"
    assert {x.path for x in client.list_artifacts(found.info.run_id, "samples")} == {
        "samples/00000001.png",
        "samples/00000002.png",
    }
    return [x.value for x in client.get_metric_history(found.info.run_id, "loss/flow")]


def _trackio(folder):
    from trackio.sqlite_storage import SQLiteStorage

    logs = SQLiteStorage.get_logs("fmpipe", "run-flow")
    assert sum("samples" in line for line in logs) == 2
    return [line["loss/flow"] for line in logs if "loss/flow" in line]


FOUND = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio}


def test_a_resumed_run_goes_on_in_its_trackers(tiny, tmp_path, monkeypatch):
    """In the same runs of all trackers that are installed; jsonl is written though it is not named."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    known, folder = [name for name, x in trackers.PACKAGES.items() if any(map(installed, x))], tmp_path / "run" / "flow"
    config = changed(tiny, tmp_path / "run", f"report_to={known}", "every.sample=2", "every.validate=0")
    with pytest.raises(CutError):
        run(config, on_log=stop_at(4))
    ids = folder / "trackers.json"
    before = ids.read_text() if ids.exists() else None
    run(config, resume="latest")
    assert (ids.read_text() if ids.exists() else None) == before
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    assert {x.step for x in events.Scalars("loss/flow")} == set(range(1, 7))
    assert {line["step"] for line in read_log(folder)} >= set(range(1, 7))
    if "mlflow" in known:
        import mlflow

        client = mlflow.MlflowClient((folder.parent / "mlruns").as_uri())
        (found,) = client.search_runs([x.experiment_id for x in client.search_experiments()])
        assert {x.step for x in client.get_metric_history(found.info.run_id, "loss/flow")} == set(range(1, 7))


# --- a mixture head

MIXTURE = ("flow.head_kind=mixture", "flow.head={components: 6, hidden: 16, std_range: [0.3, 0.4]}")


@pytest.mark.parametrize("stages", ["[flow]", "[head, flow]"])
def test_a_mixture_head_trains_and_a_cut_run_ends_with_the_same_bits(tiny, tmp_path, stages):
    more = [f"stages={stages}", "flow.head_optim.steps=4", "flow.head_optim.batch=8", "every.log=1"]
    whole = check_resumed(changed(tiny, tmp_path, *MIXTURE, *QUICK, "every.save=2", *more), tmp_path)
    stage = "head" if "head" in stages else "flow"
    log = [line for line in read_log(f"{whole.out}/{stage}") if line["step"]]
    assert {"mix/entropy", "mix/used", "mix/agree", "mix/kl_upper", "mix/kl_lower"} <= log[-1].keys()
    assert log[-1]["loss/match"] < log[0]["loss/match"]
    assert log[-1]["mix/kl_lower"] <= log[-1]["mix/kl_upper"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("flow.losses.match=0", "flow.head_kind 'mixture' learns its weights from the loss match"),
        ("flow.head={components: 5000}", "components must be at most the number of training images"),
    ],
)
def test_a_mixture_head_that_cannot_be_trained_is_refused(tiny, tmp_path, override, said):
    with pytest.raises(ValueError, match=said):
        run(changed(tiny, tmp_path, *MIXTURE, *QUICK, override))
