"""FSDP2 in two gloo processes: one process's losses, states that go to and fro, the same alarms."""

import pytest
from support.forked import together
from support.language_models import save_language_model
from support.training import STEPS, apart, changed, same, states
from torch.distributed.tensor import DTensor

from fmpipe.pipeline import FlowPipeline
from fmpipe.run_log import read_log
from fmpipe.train import checkpoint, loop, settings
from fmpipe.train.alarms import StoppedError
from fmpipe.train.run import run

pytestmark = [pytest.mark.slow, pytest.mark.forks, pytest.mark.usefixtures("one_thread")]
OTHERS = {
    "pcgrad": ("flow.losses.weighting=pcgrad",),
    "head": ("stages=[head, flow]", "flow.head_optim.steps=2", "flow.head_optim.batch=8"),
    "tower": ("flow.losses.contrastive=0.5", "flow.losses.dino=0.5"),
    "queries": ("flow.encoder={kind: meta_query, model: LLAMA, num_queries: 4, lora: {r: 2}, connector: {heads: 4}}",),
}
LOSSES = ("loss/total", "loss/flow", "loss/kl", "loss/anchor", "loss/norm")


def sharded(config, out, *overrides):
    return settings.with_overrides(config, [f"out={out}", "parallel=fsdp2", *overrides])


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory):
    """One process; two, sharded; and what each left resumed by the other, and by itself, from its third step."""
    root = tmp_path_factory.mktemp("sharded")
    one = changed(tiny, root / "one", "flow.losses.norm=0.1", "every.save=3", f"every.validate={STEPS}")
    for stage in one.flow.net["stage_configs"]:
        stage["blocks"] = 1
    run(one)
    two = sharded(one, root / "two")
    llama = save_language_model("llama", root / "llama")
    copies = {}
    for name, losses in OTHERS.items():
        losses = [text.replace("LLAMA", str(llama)) for text in losses]
        short = ("flow.optim.steps=2", "every.save=0", "every.validate=0", *losses)
        copies[f"one-{name}"] = changed(one, root / f"one-{name}", *short)
        copies[f"two-{name}"] = sharded(copies[f"one-{name}"], root / f"two-{name}")
        run(copies[f"one-{name}"])
    for name, config in (("one-two", two), ("two-two", two), ("two-one", one)):
        copies[name] = settings.with_overrides(config, [f"out={root / name}"])

    def resume(name):
        first = {"one": one, "two": two}[name[:3]]
        run(copies[name], resume=str(checkpoint.find(f"{first.out}/flow/checkpoints", 3)))

    def both():
        seen = []
        real = loop.Trainer.train_step

        def spied(self):
            seen.append(all(isinstance(p, DTensor) for p in (*self.parameters, *self.ema.shadow.values())))
            return real(self)

        loop.Trainer.train_step = spied
        run(two)
        assert seen == [True] * STEPS
        resume("one-two")
        resume("two-two")
        for name in OTHERS:
            run(copies[f"two-{name}"])

    together(2, both)
    resume("two-one")
    return {"one": one, "two": two, **copies}


def test_losses_are_those_of_one_process(runs):
    one, two = (read_log(f"{runs[name].out}/flow") for name in ("one", "two"))
    assert [line["step"] for line in one] == [line["step"] for line in two] == list(range(STEPS + 1))
    for a, b in zip(one[1:], two[1:], strict=True):
        for name in LOSSES:
            assert b[name] == pytest.approx(a[name], rel=1e-5, abs=1e-6), (a["step"], name)
        for name in ("step/z_head_update_ratio", "step/flow_head_update_ratio"):
            assert b[name] == pytest.approx(a[name], rel=1e-2), name
    for name in ("val/loss/flow", "val/flow/cos", "flow/endpt_rmse@8", "flow/cond_gain_cos"):
        assert two[-1][name] == pytest.approx(one[-1][name], rel=1e-3, abs=1e-4)
    assert all(line["grad/total"] > 0 for line in two[1:])


def test_states_have_one_format(runs):
    one, two = states(runs["one"]), states(runs["two"])
    for part in ("model", "ema", "optimizer"):
        assert apart(one[part], two[part], 1e-3, part) == []
    assert set(two["rng"]) == {"0", "1"}


@pytest.mark.parametrize("name", ["one-two", "two-one"])
def test_a_state_goes_on_with_another_number_of_processes(runs, name):
    uncut, resumed = states(runs["one"]), states(runs[name])
    assert resumed["meta"]["step"] == STEPS
    for part in ("model", "ema", "optimizer"):
        assert apart(uncut[part], resumed[part], 1e-3, part) == []


def test_a_sharded_run_resumed_equals_the_uncut_one(runs):
    uncut, resumed = states(runs["two"]), states(runs["two-two"])
    for part in ("model", "ema", "optimizer", "weights", "rng"):
        assert same(uncut[part], resumed[part]), part


def test_what_is_left_is_a_pipeline(runs):
    pipes = [FlowPipeline.from_pretrained(f"{runs[name].out}/pipeline") for name in ("one", "two")]
    a, b = (pipe.velocity_net.state_dict() for pipe in pipes)
    assert apart(dict(a), dict(b), 1e-3) == []


@pytest.mark.parametrize("name", OTHERS)
def test_gradients_are_projected_and_the_tower_taught_as_a_whole(runs, name):
    one, two = (states(runs[f"{count}-{name}"]) for count in ("one", "two"))
    assert apart(one["model"], two["model"], 1e-3) == []
    one, two = (read_log(f"{runs[f'{count}-{name}'].out}/flow")[-1] for count in ("one", "two"))
    for loss in (loss for loss in one if loss.startswith("loss/")):
        assert two[loss] == pytest.approx(one[loss], rel=1e-4, abs=1e-6), loss


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["flow.losses.alarm=0.1"], r"E\|z0\| is .* times E\|z1\|"),
        (["flow.optim.lr=1e30", "flow.optim.clip=1e30", "flow.losses.alarm=0"], "is not finite"),
    ],
)
def test_alarms_end_all_processes_and_save(runs, tmp_path, overrides, said):
    config = sharded(runs["two"], tmp_path, "every.validate=0", *overrides)

    def stopped():
        with pytest.raises(StoppedError, match=said):
            run(config)

    together(2, stopped)
    assert "model" in states(config)
