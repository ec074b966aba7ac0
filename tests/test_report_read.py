"""Logs of every kind, and of every oddity, read into the same numbers; each oddity is said. And the command."""

import json
import math

import numpy as np
import pytest
from test_cli import run
from test_report import STEPS, healthy

from fmkernels.flow import sample, uniform
from fmpipe.cli import report as command
from fmpipe.diagnose import report
from fmpipe.diagnose.log import RunLog
from fmpipe.diagnose.report import read as reading
from fmpipe.diagnose.verdict import Verdict

ROWS = [{"step": k, "time": 100.0 + k, "loss/flow": 2.0 / (k + 1), "lr": 1e-3} for k in range(30)]


def lines(rows):
    return [json.dumps(row) for row in rows]


def written(path, rows):
    path.write_text("\n".join(rows) + "\n")
    return path


def keys(stats):
    return {said.key for said in stats.remarks}


def test_a_plain_log(tmp_path):
    stats = report.read(written(tmp_path / "log.jsonl", lines(ROWS)))
    loss = stats.metrics["loss/flow"]
    assert (stats.lines, stats.losses, stats.seconds, stats.remarks) == (30, 30, 29.0, [])
    assert stats.metrics.keys() == {"loss/flow", "lr"}
    assert loss.steps.tolist() == list(range(30))
    assert (loss.first10, loss.last10) == pytest.approx(
        (np.mean([2 / (k + 1) for k in range(10)]), np.mean([2 / (k + 1) for k in range(20, 30)]))
    )
    assert (loss.min, loss.max, loss.count, loss.nonfinite, loss.first_nonfinite) == (2 / 30, 2.0, 30, 0, None)
    assert loss.steps is stats.metrics["lr"].steps  # kept once


NAN = json.dumps({"step": 30, "loss/flow": "NaN"})
ODD = [  # name, lines, remark, what the loss must be like
    ("torn last line", [*lines(ROWS), '{"step": 30, "loss/fl'], "remark/torn", {"count": 30}),
    ("not JSON between", [*lines(ROWS[:9]), "Traceback:", "17", *lines(ROWS[9:])], "remark/torn", {"count": 30}),
    ("NaN as text", [*lines(ROWS), NAN], "remark/words", {"nonfinite": 1, "first_nonfinite": 30}),
    ("bare NaN", [*lines(ROWS), '{"step": 30, "loss/flow": NaN}'], "remark/words", {"nonfinite": 1, "count": 31}),
    ("-Infinity", [*lines(ROWS), '{"step":30,"loss/flow":-Infinity}'], "remark/words", {"first_nonfinite": 30}),
    ("text among numbers", [*lines(ROWS), '{"step": 30, "loss/flow": "none"}'], "remark/typed", {"count": 30}),
    ("out of order", lines(ROWS[15:] + ROWS[:15]), "remark/order", {"count": 30, "last": 2 / 30}),
    ("resumed", lines(ROWS[:20] + ROWS[10:]), "remark/twice", {"count": 30, "last": 2 / 30}),
    ("mixed", [*lines(ROWS), '{"step": 30, "val/loss/flow": 1.0}'], "remark/mixed", {"count": 30}),
    ("integers first", ['{"step": 0, "loss/flow": 2}', *lines(ROWS[1:])], "remark/mixed", {"count": 30, "max": 2.0}),
    ("no steps", lines([{"loss/flow": 1.5}] * 4), "remark/no_steps", {"count": 4, "mean": 1.5}),
    ("step as float", [f'{{"step": {k}.0, "loss/flow": 1.0}}' for k in range(5)], None, {"count": 5}),
    ("null", [*lines(ROWS), '{"step": 30, "loss/flow": null}'], None, {"count": 30}),
    ("nested", [*lines(ROWS), '{"step": 30, "loss": {"flow": 0.5}}'], "remark/mixed", {"count": 31, "last": 0.5}),
    ("empty lines", [line for row in lines(ROWS) for line in (row, "")], None, {"count": 30}),
]


@pytest.mark.parametrize("block", [300, 16 << 20], ids=["many blocks", "one block"])
@pytest.mark.parametrize(("rows", "remark", "due"), [row[1:] for row in ODD], ids=[row[0] for row in ODD])
def test_odd_logs_are_read_and_said(tmp_path, monkeypatch, block, rows, remark, due):
    monkeypatch.setattr(reading_module(), "BLOCK", block)
    stats = report.read(written(tmp_path / "log.jsonl", rows))
    loss = stats.metrics["loss/flow"]
    assert {name: getattr(loss, name) for name in due} == pytest.approx(due)
    assert (loss.steps[1:] > loss.steps[:-1]).all()
    if remark:
        assert remark in keys(stats)
    else:
        assert stats.remarks == []


def reading_module():
    import sys

    return sys.modules[reading.__module__]


def test_a_torn_last_line_is_called_one(tmp_path):
    (tmp_path / "log.jsonl").write_text("\n".join(lines(ROWS)) + '\n{"step": 30, "lo')
    (said,) = report.read(tmp_path).remarks
    assert "1 lines of log.jsonl are torn" in said
    assert "cut off while it was written" in said
    assert "写到一半" in said.into("zh")


def test_what_runlog_writes(tmp_path):
    with RunLog(tmp_path) as log:
        log.write(0, {"const/betas": [1e-4, 0.02], "stat/x_0/dtype": "bfloat16"})
        for k in range(1, 5):
            log.write(k, {"loss/flow": math.nan if k == 3 else 1.0 / k, "stat/x_0/dtype": "float32"})
    stats = report.read(tmp_path)
    assert stats.constants == {"const/betas": [1e-4, 0.02]}
    assert stats.texts == {"stat/x_0/dtype": "float32"}
    assert stats.metrics["loss/flow"].first_nonfinite == 3
    assert {h.letter for h in report.judge(stats) if h} == {"E"}


def test_a_rotated_log_is_one(tmp_path):
    for name, rows in (("log.jsonl.2", ROWS[:10]), ("log.jsonl.1", ROWS[10:20]), ("log.jsonl", ROWS[20:])):
        written(tmp_path / name, lines(rows))
    stats = report.read(tmp_path)
    assert stats.metrics["loss/flow"].values.tolist() == [row["loss/flow"] for row in ROWS]
    assert stats.lines == 30
    assert "log.jsonl.2, log.jsonl.1, log.jsonl" in stats.remarks[0]


def test_a_run_with_stages_its_config_and_its_checks(tmp_path):
    for stage, loss in (("vae", "loss/mse"), ("flow", "loss/flow")):
        (tmp_path / stage).mkdir()
        written(
            tmp_path / stage / "log.jsonl", lines([{"step": k, loss: 1.0 + k * (stage == "vae")} for k in range(30)])
        )
    (tmp_path / "config.yaml").write_text("data: {size: 32}\nflow: {losses: {t: early}}\n")
    verdict = Verdict("leak", "fail", {"cos": 0.95}, "rule", "It leaks.", "Judge by generation.")
    (tmp_path / "check.json").write_text(json.dumps([verdict.as_dict()]))
    stats = report.read(tmp_path)
    assert (stats.stage, list(stats.stages), stats.facts) == ("flow", ["vae"], {"resolution": 32})
    assert stats.setting("flow/losses/t") == "early"
    assert stats.setting("flow/nothing/t", 1) == 1
    found = {h.name: h for h in report.judge(stats) if h}
    assert found.keys() == {"leak", "loss_numerics", "loss_trend"}  # the flow loss is flat
    assert any(said.startswith("vae: loss/mse goes from") for said in found["loss_numerics"].evidence)


def test_a_log_named_alone_knows_its_run(tmp_path):
    place = tmp_path / "flow"
    place.mkdir()
    written(place / "log.jsonl", [*lines(ROWS), '{"step": 30, "run/vae_digest": "abc"}'])
    written(place / "log.jsonl.1", lines([{"step": -1, "loss/flow": 9.0}]))
    (tmp_path / "config.yaml").write_text("data: {size: 64}\n")
    stats = report.read(place / "log.jsonl")
    assert (stats.stage, stats.losses) == ("flow", 31)
    assert stats.facts == {"resolution": 64, "vae_digest": "abc"}


@pytest.mark.parametrize(
    ("name", "text"),
    [("config.yaml", "a: [1"), ("config.yaml", "- 1\n- 2"), ("check.json", "[{"), ("check.json", '[{"a": 1}]')],
)
def test_what_cannot_be_read_beside_a_log_is_said(tmp_path, name, text):
    written(tmp_path / "log.jsonl", lines(ROWS))
    (tmp_path / name).write_text(text)
    stats = report.read(tmp_path)
    assert stats.losses == 30
    assert stats.remarks[0].startswith(f"{name} is left out: ")


def test_a_check_that_was_not_finite_is_read(tmp_path):
    values = {"growth": "Infinity", "steps": [5, 100], "error": ["NaN", 1.0]}
    verdict = Verdict("teacher_euler", "fail", values, "rule", "Not finite.", "Run in fp32.")
    (tmp_path / "check").mkdir()
    (tmp_path / "check" / "check.json").write_text(json.dumps([verdict.as_dict()]))
    (found,) = [h for h in report.judge(report.read(tmp_path)) if h]
    assert (found.name, found.evidence) == ("integration", ["Check teacher_euler: Not finite."])


def test_facts_of_the_autoencoder(tmp_path):
    place = tmp_path / "vae" / "result"
    place.mkdir(parents=True)
    written(tmp_path / "vae" / "log.jsonl", lines(ROWS))
    (tmp_path / "config.yaml").write_text("data: {size: 64}\n")
    net = {"latent_channels": 4, "block_out_channels": [8, 16, 32]}
    (place / "config.json").write_text(
        json.dumps({"scaling_factor": 0.5, "latents_std": [1.0, 2.0], "vae_config": net})
    )
    (place / "model.safetensors").write_bytes(b"weights")
    facts = report.read(tmp_path).facts
    assert (facts["resolution"], facts["latent_size"]) == (64, "4×16×16")
    assert json.loads(facts["scale"]) == {"scaling_factor": 0.5, "latents_std": [1.0, 2.0]}
    (place / "model.safetensors").write_bytes(b"others")
    assert report.read(tmp_path).facts["vae_digest"] != facts["vae_digest"]


def test_csv(tmp_path):
    rows = ["Step,loss/flow,note", *(f"{row['step']},{row['loss/flow']},x" for row in ROWS), "30,NaN,", "31,"]
    stats = report.read(written(tmp_path / "log.csv", rows))
    assert stats.metrics["loss/flow"].count == 31
    assert stats.metrics["loss/flow"].nonfinite == 1
    assert stats.texts == {"note": "x"}
    exported = ["Wall time,Step,Value", "100.0,1,0.5", "160.0,2,0.25"]
    stats = report.read(written(tmp_path / "loss.csv", exported))
    assert (stats.metrics["loss/total"].values.tolist(), stats.seconds) == ([0.5, 0.25], 60.0)


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    with RunLog(tmp_path, ["tensorboard"]) as log:
        log.write(0, {"const/betas": [1e-4, 0.02], "stat/x_0/dtype": "bfloat16"})
        for k in range(5):
            log.write(k, {"loss/flow": math.nan if k == 3 else 1.0})
    stats = report.read(tmp_path)
    assert stats.metrics["loss/flow"].count == 5
    assert stats.metrics["loss/flow"].first_nonfinite == 3
    assert stats.constants == {"const/betas": pytest.approx([1e-4, 0.02])}
    assert stats.texts == {"stat/x_0/dtype": "bfloat16"}


def test_traces_of_a_text_and_of_ours(tmp_path):
    import torch

    trace = sample(lambda x, t, **_: -x, torch.randn(3, 4), uniform(5)).trace
    printed = trace.lines()
    text = [
        "# first:",
        *printed,
        "warning",
        "3it [00:42]" + printed[0],
        *printed[1:],
        'print(f"step{k}: |x|={x:.4f}, |v|={v}, dt={dt}")',
    ]
    stats = report.read(written(tmp_path / "out.txt", text))
    assert [(len(t), t.label) for t in stats.traces] == [(5, "first"), (5, "first")]
    (tmp_path / "run").mkdir()
    written(tmp_path / "run" / "log.jsonl", lines(ROWS))
    trace.to_jsonl(tmp_path / "run" / "trace.jsonl")
    trace.to_csv(tmp_path / "run" / "trace_2.csv")
    stats = report.read(tmp_path / "run")
    assert "mean_abs_x" not in stats.metrics
    for ours, theirs in zip(stats.traces, report.read(tmp_path / "out.txt").traces, strict=True):
        assert ours.x == pytest.approx(theirs.x, abs=1e-4)
        assert ours.dt.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("text", ["", "the loss went down\n", "N=20 3 runs\n"])
def test_nothing_to_read_is_refused(tmp_path, text):
    (tmp_path / "x.log").write_text(text)
    with pytest.raises(ValueError, match="no figure found"):
        report.read(tmp_path / "x.log")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        report.read(tmp_path / "nowhere")


# The command


@pytest.fixture
def log(tmp_path):
    """A healthy run's folder."""
    folder = tmp_path / "run" / "flow"
    folder.mkdir(parents=True)
    figures = healthy().metrics
    rows = [{"step": int(k), **{n: x.values[i] for n, x in figures.items()}} for i, k in enumerate(STEPS)]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run" / "config.yaml").write_text("data: {size: 16}\nflow: {losses: {t: uniform}}\n")
    return folder / "log.jsonl"


def test_the_command_writes_both_and_ends_well_whatever_it_finds(log, tmp_path):
    place = tmp_path / "out"
    result = run("report", log.parents[1], "--out", place)
    assert result.exit_code == 0, result.output
    assert "Nothing is wrong" in result.output
    result = run("report", log, log.parents[1], "--lang", "zh", "--set", "input/std_high=0.5", "--out", place)
    assert result.exit_code == 0, result.output
    assert "成立" in result.output
    assert "z0 与 z1 尺度不一致" in (place / "report.md").read_text()
    assert sorted(path.name for path in place.iterdir()) == ["report.html", "report.md"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["nowhere"], "no file or folder nowhere"), (["LOG", "--lang", "de"], "'de' is not one of 'en', 'zh'"),
     (["LOG", "--set", "leak/coss=1"], "leak/cos"), (["LOG", "--set", "leak/cos=nan"], "finite number"),
     (["TEXT"], "no figure found")],
)  # fmt: skip
def test_bad_input_is_one_line(log, tmp_path, arguments, says):
    (tmp_path / "text.txt").write_text("the loss went down\n")
    places = {"LOG": log, "TEXT": tmp_path / "text.txt"}
    result = run("report", *(places.get(a, a) for a in arguments), "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())


def test_follow_reads_again_when_the_log_has_grown(log, tmp_path, monkeypatch):
    naps = []

    def nap(seconds):
        naps.append(seconds)
        if len(naps) == 2:  # after the second look, which finds nothing new
            with log.open("a") as file:
                file.write(json.dumps({"step": 9999, "loss/flow": "NaN"}) + "\n")
        if len(naps) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", nap)
    result = run("report", log, "--follow", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert result.output.count("written:") == 4  # two reports of two files
    assert "the last report is complete" in result.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert 'http-equiv="refresh"' in page
    assert "NaN or infinite (first step: 9999)" in page
    assert run("report", log, "--follow", "--refreshes", 1, "--out", tmp_path / "out").exit_code == 0
