"""Logs of every format and with every oddity are read into the same numbers, with a remark; the command report."""

import json
import math
import os

import numpy as np
import pytest
import torch
from support.commands import run
from support.logs import STEPS, failed, healthy

from fmkernels.flow import Trace, sample, uniform
from fmpipe.cli import report as command
from fmpipe.diagnose.checks.base import skip
from fmpipe.diagnose.engine import RULES, judge
from fmpipe.diagnose.read import UnknownLogError, read, tables
from fmpipe.diagnose.texts import zh
from fmpipe.run_log import RunLog

ROWS = [{"step": k, "time": 100.0 + k, "loss/flow": 2.0 / (k + 1), "lr": 1e-3} for k in range(30)]


def lines(rows):
    return [json.dumps(row) for row in rows]


def written(path, rows):
    path.write_text("\n".join(rows) + "\n")
    return path


def keys(figures):
    return {said.key for said in figures.remarks}


def checked(**measured):
    """Return what ``fmpipe check`` writes: the numbers of its checks, by name."""
    return json.dumps({"measured": measured, "findings": []})


def test_a_plain_log(tmp_path):
    figures = read(written(tmp_path / "log.jsonl", lines(ROWS)))
    loss = figures.metrics["loss/flow"]
    assert (figures.lines, figures.losses, figures.seconds, figures.remarks) == (30, 30, 29.0, [])
    assert figures.metrics.keys() == {"loss/flow", "lr"}
    assert loss.steps.tolist() == list(range(30))
    assert (loss.first10, loss.last10) == pytest.approx(
        (np.mean([2 / (k + 1) for k in range(10)]), np.mean([2 / (k + 1) for k in range(20, 30)]))
    )
    assert (loss.min, loss.max, loss.count, loss.nonfinite, loss.first_nonfinite) == (2 / 30, 2.0, 30, 0, None)
    assert loss.steps is figures.metrics["lr"].steps  # kept once


FIRST = float(np.mean([2 / (k + 1) for k in range(10)]))
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
    ("null", [*lines(ROWS), '{"step": 30, "loss/flow": null}'], "remark/nulls", {"count": 30}),
    ("null without a space", [*lines(ROWS), '{"step":30,"loss/flow":null}'], "remark/nulls", {"count": 30}),
    ("counter starts again", lines(ROWS * 2), "remark/restarted", {"count": 60, "first10": FIRST, "last": 2 / 30}),
    ("nested", [*lines(ROWS), '{"step": 30, "loss": {"flow": 0.5}}'], "remark/mixed", {"count": 31, "last": 0.5}),
    ("empty lines", [line for row in lines(ROWS) for line in (row, "")], None, {"count": 30}),
]


@pytest.mark.parametrize("block", [300, 16 << 20], ids=["many blocks", "one block"])
@pytest.mark.parametrize(("rows", "remark", "due"), [row[1:] for row in ODD], ids=[row[0] for row in ODD])
def test_odd_logs_are_read_and_said(tmp_path, monkeypatch, block, rows, remark, due):
    monkeypatch.setattr(tables, "BLOCK", block)
    figures = read(written(tmp_path / "log.jsonl", rows))
    loss = figures.metrics["loss/flow"]
    assert {name: getattr(loss, name) for name in due} == pytest.approx(due)
    assert (loss.steps[1:] > loss.steps[:-1]).all()
    if remark:
        assert remark in keys(figures)
    else:
        assert figures.remarks == []


def test_the_parts_of_a_counter_that_starts_again_are_joined_end_to_end(tmp_path):
    """A resumed run whose counter starts at 0 again: no value of the first part is lost."""
    again = [{**row, "loss/flow": row["loss/flow"] / 100} for row in ROWS]
    figures = read(written(tmp_path / "log.jsonl", lines(ROWS + again)))
    loss = figures.metrics["loss/flow"]
    assert loss.values.tolist() == [row["loss/flow"] for row in ROWS + again]
    assert loss.steps.tolist() == list(range(60))
    assert figures.remarks == ["The step counter of log.jsonl starts again 1 times; the parts are joined end to end."]


def test_a_torn_last_line_is_called_one(tmp_path):
    (tmp_path / "log.jsonl").write_text("\n".join(lines(ROWS)) + '\n{"step": 30, "lo')
    (said,) = read(tmp_path).remarks
    assert "1 lines of log.jsonl are torn" in said
    assert "cut off while it was written" in said
    assert "写到一半" in said.into("zh")


def test_what_runlog_writes(tmp_path):
    with RunLog(tmp_path) as log:
        log.write(0, {"const/betas": [1e-4, 0.02], "stat/x_0/dtype": "bfloat16"})
        for k in range(1, 5):
            log.write(k, {"loss/flow": math.nan if k == 3 else 1.0 / k, "stat/x_0/dtype": "float32"})
    figures = read(tmp_path)
    assert figures.constants == {"const/betas": [1e-4, 0.02]}
    assert figures.texts == {"stat/x_0/dtype": "float32"}
    assert figures.metrics["loss/flow"].first_nonfinite == 3
    assert failed(judge(figures)) == ["loss_numerics"]


def test_a_rotated_log_is_one(tmp_path):
    for name, rows in (("log.jsonl.2", ROWS[:10]), ("log.jsonl.1", ROWS[10:20]), ("log.jsonl", ROWS[20:])):
        written(tmp_path / name, lines(rows))
    figures = read(tmp_path)
    assert figures.metrics["loss/flow"].values.tolist() == [row["loss/flow"] for row in ROWS]
    assert figures.lines == 30
    assert "log.jsonl.2, log.jsonl.1, log.jsonl" in figures.remarks[0]


def staged(folder, vae, flow):
    """Write a run with two stages, each with these losses."""
    for stage, name, values in (("vae", "loss/mse", vae), ("flow", "loss/flow", flow)):
        (folder / stage).mkdir()
        written(folder / stage / "log.jsonl", lines([{"step": k, name: x} for k, x in enumerate(values)]))


def test_a_run_with_stages_its_config_and_its_checks(tmp_path):
    staged(tmp_path, ["NaN"] * 30, [1.0] * 30)
    (tmp_path / "config.yaml").write_text("data: {size: 32}\nflow: {losses: {t: early}}\n")
    (tmp_path / "check.json").write_text(checked(leak={"cos": 0.95, "relative_shooting": 0.9}))
    figures = read(tmp_path)
    assert (figures.stage, list(figures.stages), figures.facts) == ("flow", ["vae"], {"resolution": 32})
    assert figures.setting("flow/losses/t") == "early"
    assert figures.setting("flow/nothing/t", 1) == 1
    found = {f.name: f for f in judge(figures) if f.status == "fail"}
    assert found.keys() == {"leak", "loss_numerics", "loss_trend"}  # the flow loss is flat
    assert [e.into() for e in found["loss_numerics"].bad] == [
        "vae: 30 losses are NaN or infinite (first step: 0): loss/mse."
    ]
    assert {e.stage for name in ("leak", "loss_trend") for e in found[name].bad} == {"flow"}


def test_the_loss_of_every_stage_is_judged(tmp_path):
    """The loss of the autoencoder rises to 30 times its beginning."""
    staged(tmp_path, [1.0 + k for k in range(30)], [2.0 / (k + 1) for k in range(30)])
    bad = [e for f in judge(read(tmp_path)) if f.status == "fail" for e in f.bad]
    assert {e.stage for e in bad} == {"vae"}


def test_a_log_named_alone_knows_its_run(tmp_path):
    place = tmp_path / "flow"
    place.mkdir()
    written(place / "log.jsonl", [*lines(ROWS), '{"step": 30, "run/vae_digest": "abc"}'])
    written(place / "log.jsonl.1", lines([{"step": -1, "loss/flow": 9.0}]))
    (tmp_path / "config.yaml").write_text("data: {size: 64}\n")
    figures = read(place / "log.jsonl")
    assert (figures.stage, figures.losses) == ("flow", 31)
    assert figures.facts == {"resolution": 64, "vae_digest": "abc"}


@pytest.mark.parametrize(
    ("name", "text"),
    [("config.yaml", "a: [1"), ("config.yaml", "- 1\n- 2"), ("check.json", "[{"), ("check.json", '[{"a": 1}]'),
     ("check.json", '{"findings": []}')],
)  # fmt: skip
def test_what_cannot_be_read_beside_a_log_is_said(tmp_path, name, text):
    written(tmp_path / "log.jsonl", lines(ROWS))
    (tmp_path / name).write_text(text)
    figures = read(tmp_path)
    assert figures.losses == 30
    assert figures.remarks[0].startswith(f"{name} is left out: ")


def test_a_check_that_was_not_finite_is_read(tmp_path):
    (tmp_path / "check").mkdir()
    measured = {"teacher_euler": {"steps": [5, 100], "error": ["NaN", 1.0], "start": "Infinity"}}
    (tmp_path / "check" / "check.json").write_text(checked(**measured))
    (found,) = [f for f in judge(read(tmp_path)) if f.status == "fail"]
    assert (found.name, found.meaning) == ("teacher_euler", "Not finite: error, start.")


def test_a_check_that_was_skipped_is_read(tmp_path):
    written(tmp_path / "log.jsonl", lines(ROWS))
    (tmp_path / "check.json").write_text(checked(scale_contract=skip("contract/one")))
    found = next(f for f in judge(read(tmp_path)) if f.name == "scale_contract")
    assert (found.status, found.meaning) == ("skipped", "")  # what was not measured is not read


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
    facts = read(tmp_path).facts
    assert (facts["resolution"], facts["latent_size"]) == (64, "4×16×16")
    assert json.loads(facts["scale"]) == {"scaling_factor": 0.5, "latents_std": [1.0, 2.0]}
    (place / "model.safetensors").write_bytes(b"others")
    assert read(tmp_path).facts["vae_digest"] != facts["vae_digest"]


def test_csv(tmp_path):
    rows = ["Step,loss/flow,note", *(f"{row['step']},{row['loss/flow']},x" for row in ROWS), "30,NaN,", "31,"]
    figures = read(written(tmp_path / "log.csv", rows))
    assert figures.metrics["loss/flow"].count == 31
    assert figures.metrics["loss/flow"].nonfinite == 1
    assert figures.texts == {"note": "x"}
    exported = ["Wall time,Step,Value", "100.0,1,0.5", "160.0,2,0.25"]
    figures = read(written(tmp_path / "loss.csv", exported))
    assert (figures.metrics["loss/total"].values.tolist(), figures.seconds) == ([0.5, 0.25], 60.0)


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    with RunLog(tmp_path, ["tensorboard"]) as log:
        log.write(0, {"const/betas": [1e-4, 0.02], "stat/x_0/dtype": "bfloat16"})
        for k in range(5):
            log.write(k, {"loss/flow": math.nan if k == 3 else 1.0})
    figures = read(tmp_path)
    assert figures.metrics["loss/flow"].count == 5
    assert figures.metrics["loss/flow"].first_nonfinite == 3
    assert figures.constants == {"const/betas": pytest.approx([1e-4, 0.02])}
    assert figures.texts == {"stat/x_0/dtype": "bfloat16"}


def test_traces_of_a_text_and_of_ours(tmp_path):

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
    figures = read(written(tmp_path / "out.txt", text))
    assert [(len(t), t.label) for t in figures.traces] == [(5, "first"), (5, "first")]
    (tmp_path / "run").mkdir()
    written(tmp_path / "run" / "log.jsonl", lines(ROWS))
    trace.to_jsonl(tmp_path / "run" / "trace.jsonl")
    trace.to_csv(tmp_path / "run" / "trace_2.csv")
    figures = read(tmp_path / "run")
    assert "mean_abs_x" not in figures.metrics
    for ours, theirs in zip(figures.traces, read(tmp_path / "out.txt").traces, strict=True):
        assert ours.x == pytest.approx(theirs.x, abs=1e-4)
        assert ours.dt.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("text", ["", "the loss went down\n", "N=20 3 runs\n"])
def test_nothing_to_read_is_refused(tmp_path, text):
    (tmp_path / "x.log").write_text(text)
    with pytest.raises(UnknownLogError, match="no metric found that is recognized"):
        read(tmp_path / "x.log")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read(tmp_path / "nowhere")


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


def test_the_command_writes_three_files_and_ends_well_whatever_it_finds(log, tmp_path):
    place = tmp_path / "out"
    result = run("report", log.parents[1], "--out", place)
    assert result.exit_code == 0, result.output
    assert "Nothing is wrong" in result.output
    result = run("report", log, log.parents[1], "--lang", "zh", "--set", "input/std_high=0.5", "--out", place)
    assert result.exit_code == 0, result.output
    assert "成立" in result.output
    assert f"先处理：{zh.RULES['scale_factor'][0]}" in (place / "report.md").read_text()
    assert sorted(path.name for path in place.iterdir()) == ["report.html", "report.json", "report.md"]
    data = json.loads((place / "report.json").read_text())
    assert data["source"] == str(log)
    assert (data["findings"][0]["name"], data["findings"][0]["status"]) == ("scale_factor", "fail")
    assert {f["name"] for f in data["findings"]} == set(RULES)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["nowhere"], "no file or folder nowhere"), (["LOG", "--lang", "de"], "'de' is not one of 'en', 'zh'"),
     (["LOG", "--set", "leak/coss=1"], "leak/cos"), (["LOG", "--set", "leak/cos=nan"], "finite number"),
     (["TEXT"], "no metric found that is recognized"), (["UNKNOWN"], "its names are wibble: map them with --alias"),
     (["LOG", "--alias", "wibble"], "--alias must be theirs=ours")],
)  # fmt: skip
def test_bad_input_is_one_line(log, tmp_path, arguments, says):
    (tmp_path / "text.txt").write_text("the loss went down\n")
    (tmp_path / "unknown.jsonl").write_text('{"step": 1, "wibble": 1.0}\n')
    places = {"LOG": log, "TEXT": tmp_path / "text.txt", "UNKNOWN": tmp_path / "unknown.jsonl"}
    result = run("report", *(places.get(a, a) for a in arguments), "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


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
    assert result.output.count("written:") == 6  # two reports of three files
    assert "the last report is complete" in result.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert 'http-equiv="refresh"' in page
    assert "NaN or infinite (first step: 9999)" in page
    assert run("report", log, "--follow", "--refreshes", 1, "--out", tmp_path / "out").exit_code == 0


PRINTED = [f"step {k}: loss_flow: {2.0 / (k + 1):.4f}, lr: 1e-3" for k in range(30)]


@pytest.mark.parametrize(
    ("name", "rows", "more", "place"),
    [
        ("train.log", PRINTED, "step 30: loss_flow: nan", "report"),
        ("log.jsonl", lines(ROWS), NAN, "run/report"),  # its own report.json is no new log
    ],
)
def test_follow_looks_at_every_log_of_a_folder(tmp_path, monkeypatch, name, rows, more, place):
    (tmp_path / "run").mkdir()
    log, naps = written(tmp_path / "run" / name, rows), []

    def nap(seconds):
        naps.append(seconds)
        if len(naps) == 3:
            with log.open("a") as file:
                file.write(f"{more}\n")

    monkeypatch.setattr(command.time, "sleep", nap)
    result = run("report", tmp_path / "run", "--follow", "--refreshes", 6, "--out", tmp_path / place)
    assert result.exit_code == 0, result.output
    assert result.output.count("written:") == 6  # two reports of three files
    assert "first step: 30" in (tmp_path / place / "report.md").read_text()


@pytest.mark.parametrize("name", ["report", "check"])
def test_what_the_commands_wrote_is_not_taken_for_a_log(tmp_path, name):
    (tmp_path / "run").mkdir()
    log = written(tmp_path / "run" / "train.log", PRINTED)
    before = read(tmp_path / "run")
    assert run(name, log, "--out", tmp_path / "run" / name).exit_code in (0, 1)
    after = read(tmp_path / "run")
    assert before.metrics.keys() == after.metrics.keys() == {"loss/flow", "lr"}
    assert after.metrics["loss/flow"].values.tolist() == before.metrics["loss/flow"].values.tolist()


# What a review found


def test_foreign_settings_beside_a_log_are_left_alone(tmp_path):
    written(tmp_path / "log.jsonl", lines(ROWS))
    (tmp_path / "config.yaml").write_text("data: /datasets/x\nvae: some/vae\n")
    assert read(tmp_path).losses == 30


def test_files_with_the_same_names_are_kept_apart(tmp_path):
    for name, loss in (("train", 1.0), ("val", 5.0)):
        written(tmp_path / f"{name}.csv", ["step,loss", *(f"{k},{loss}" for k in range(30))])
    found = read(tmp_path).metrics
    assert (found["loss/total"].late, found["val/loss/total"].late) == (1.0, 5.0)


@pytest.mark.parametrize("head", ["step,loss, loss", '"Step","loss","run - loss"'])
def test_columns_with_one_name_are_read_once(tmp_path, head):
    stats = read(written(tmp_path / "log.csv", [head, *(f"{k},1.0,2.0" for k in range(30))]))
    assert stats.metrics["loss/total"].late == 1.0


def test_an_alias_names_a_metric_of_printed_lines(tmp_path):
    log = written(tmp_path / "x.log", [f"step {k} blurb: 0.5" for k in range(30)])
    assert read(log, {"blurb": "loss/flow"}).metrics["loss/flow"].count == 30
    result = run("report", log, "--alias", "blurb=loss_flow", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "did you mean loss/flow?" in " ".join(result.output.split())


def test_a_log_in_utf_16_is_read(tmp_path):
    (tmp_path / "x.log").write_text("\n".join(f"step {k} loss 0.5" for k in range(30)), encoding="utf-16")
    assert read(tmp_path / "x.log").metrics["loss/total"].count == 30


@pytest.mark.parametrize(("ema", "status"), [((45, 20), "pass"), ((45, 44), "fail")])
def test_averaged_weights_may_be_better_but_not_behind(tmp_path, ema, status):
    rows = [
        {"step": k, "fid_raw": 50 - 25 * k / 9, "fid_ema": ema[0] + (ema[1] - ema[0]) * k / 9, "loss": 1.0}
        for k in range(10)
    ]
    found = next(f for f in judge(read(written(tmp_path / "log.jsonl", lines(rows)))) if f.name == "ema")
    assert found.status == status


def test_a_counter_of_alarms_is_not_an_alarm(tmp_path):
    log = written(tmp_path / "x.log", [f"step {k} loss {1 / (k + 1):.4f} alarms=0" for k in range(40)])
    assert "stop/reason" not in read(log).texts


def test_a_trace_with_one_sample_that_is_not_finite_is_not_finite(tmp_path):
    """Trace.to_jsonl writes null; the mean over the other samples would hide it."""
    row = {"t": 0.0, "mean_abs_v": 0.5, "rms_dx": 0.1, "nonfinite": 0, "dt": 0.1}
    sizes = [[0.8 + 0.01 * k, None if k > 5 else 0.8] for k in range(10)]
    rows = [{"step": k, "sample": i, "mean_abs_x": x, **row} for k, xs in enumerate(sizes) for i, x in enumerate(xs)]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    figures = read(tmp_path / "trace.jsonl")
    assert np.isnan(figures.traces[0].x).tolist() == [False] * 6 + [True] * 4
    assert judge(figures)[0].name == "sampler_state"


# What other people print: tables of studies, cosines of prompts, slices of t, lines of training loops, MLflow folders


def table(head, row, errors=(1.13, 1.21, 1.31, 1.39, 1.46), at=(4, 8, 16, 32, 64)):
    """Return a header and rows: k, an error x, its square q, a second one y; errors of half and full precision b, f."""
    half = (3.1e-5, 9.3e-5, 3.4e-4, 2e-3, 8.9e-3)
    rows = [row.format(k=k, x=x, q=x * x, y=1.02 * x, b=b, f=8e-15) for k, x, b in zip(at, errors, half, strict=True)]
    return "\n".join([head, *rows])


def falling(head, row):
    return table(head, row, (1.05, 0.94, 0.88, 0.86, 0.84))


def pairs(head, row, cos=0.998):
    words = ("dog", "car", "church", "pizza")
    found = [(a, b, 1.0 if a == b else cos) for k, a in enumerate(words) for b in words[k:]]
    return "\n".join([head, *(row.format(a=a, b=b, x=x) for a, b, x in found)])


def matrix(head, cos=0.998, separator="  ", edge="", names=("dog", "car", "church", "pizza")):
    rows = [[f"{1.0 if a == b else cos:.3f}" for b in names] for a in names]
    names = names or [""] * 4
    return "\n".join([head, *(edge + separator.join([a, *row]) + edge for a, row in zip(names, rows, strict=True))])


EDGES = (1.31, 0.63, 0.43, 0.38, 0.36, 0.33, 0.36, 0.42, 0.74, 1.91)
EVEN = (0.6, 0.5, 0.43, 0.38, 0.36, 0.33, 0.36, 0.42, 0.5, 0.6)


def slices(head, row, nmse=EDGES):
    size = 1 / len(nmse)
    rows = [
        row.format(a=f"{k * size:.1f}", b=f"{(k + 1) * size:.1f}", m=f"{(k + 0.5) * size:.2f}", x=x)
        for k, x in enumerate(nmse)
    ]
    return "\n".join([head, *rows])


def by_t(head, row, gap=0.0003, v=-0.65, noise=0.93):
    """Return rows by t: losses a and b that differ by gap, cosines c and d as well, correlations v, its negative, n."""
    rows = [
        row.format(t=t, a=0.6 + t / 10, b=0.6 + t / 10 + gap, c=0.7, d=0.7 - gap, v=v, w=-v, n=noise)
        for t in (0.1, 0.3, 0.5, 0.7, 0.9)
    ]
    return "\n".join([head, *rows])


def norms(head, row, z0=9.0):
    return "\n".join([head, *(row.format(i=i, a=z0 + i / 10, b=62 + i / 10, v=math.hypot(z0, 62)) for i in range(6))])


def loop(row, head=""):
    """Return the lines of a training: a falling loss x, a flat one y, and what is wrong in the tests below."""
    rows = [
        row.format(
            s=10 * i + 10, x=2 * math.exp(-i / 40), y=2 + i % 3 / 100, scale=65536 / 2**i, bad=i * 9 // 10, of=i + 1,
            raw=212 * math.exp(-i / 15) + 13, kl=13 + 15 * i, mu=0.4 + 0.043 * i, var=1.1 + 0.14 * i,
            cos=min(0.97, 0.1 + i / 50),
        )
        for i in range(60)
    ]  # fmt: skip
    return "\n".join([head, *rows])


NUMPY = "[[1.    0.998 0.998]\n [0.998 1.    0.998]\n [0.998 0.998 1.   ]]"
TORCH = "tensor([[1.0000, 0.9980, 0.9980],\n        [0.9980, 1.0000, 0.9980],\n        [0.9980, 0.9980, 1.0000]])"
PROBE = "t  mse(true)  mse(shuf)  mse(null)  cos(v,v*)"
STUDIES = [  # the rule that fails first, None if nothing does; the text
    # endpoint errors by the number of steps
    ("endpoint", table("endpoint rmse over K, 512 val pairs\nK    euler   heun", "{k}   {x}   {y:.3f}")),
    (None, falling("endpoint rmse over K, 512 val pairs\nK=   euler   heun  fid5k", "{k}   {x}   {y:.3f}  30.1")),
    ("endpoint", table("## shooting, learned field\n| steps | RMSE(z_N, z1) |\n|---|---|", "| {k} | {x} |")),
    ("endpoint", table("rollout error by number of Euler steps\n#steps,rmse,sec", "{k},{x},0.3")),
    ("endpoint", table("endpoint error of the learned field:\nNFE ; RMSE", "{k} ; {x}")),
    ("endpoint", table("端点误差 (RMSE) 随步数变化\n步数   欧拉    Heun", "{k}    {x}   {y:.3f}")),
    ("endpoint", table("endpoint rmse vs K", "K={k}: {x}")),
    ("endpoint", table("endpoint rmse (learned field)", "  K = {k:3d} -> {x}")),
    ("endpoint", table("free integration of the learned field, endpoint MSE\n  N      mse", "  {k}   {q:.4f}")),
    (None, falling("free integration of the learned field, endpoint MSE\n  N  |  mse", "  {k} | {q:.4f}")),
    ("endpoint", table("shooting with n steps, rmse\nnum steps\teuler\tmidpoint", "{k}\t{x}\t{y:.3f}")),
    ("endpoint", table(table("endpoint rmse over K\nseed 0\nK  euler", "{k}  {x}") + "\nseed 1\nK  euler", "{k}  {x}")),
    (None, falling(table("endpoint rmse over K\nckpt 10k\nK  euler", "{k}  {x}") + "\nckpt 20k\nK  euler", "{k}  {x}")),
    ("endpoint", table("endpoint rmse\n+-----+-------+\n| K   | rmse  |\n+-----+-------+", "| {k} | {x} |")),
    ("endpoint", table("[shoot] rmse to z1", "[shoot] nfe={k} rmse={x}")),
    ("endpoint", table("endpoint rmse by K\n  #   K   rmse", "  0   {k}   {x}")),
    (
        "endpoint",
        table("Rollout RMSE vs. #steps\n steps |  Euler | sec/img\n-------+--------", " {k:5d} | {x:.3f} | 0.12"),
    ),
    ("endpoint", table("free-running sampler, rms per element at the endpoint", "K {k}   rms {x}")),
    ("endpoint", table("采样步数与端点 RMSE\n| 步数 K | 端点 RMSE |\n|---|---|", "| {k} | {x} |")),
    # errors of the exact field
    ("teacher_euler", table("# teacher field, MSE(x_N, x1)\npair, N, state=bf16, state=fp32", "0, {k}, {b:.1e}, {f}")),
    ("teacher_euler", table("teacher euler, MSE to x1\nN      bf16       fp32", "{k}   {b:.2e}   {f:.2e}")),
    ("teacher_euler", table("teacher euler, MSE to x1\nN      fp32       bf16", "{k}   {f:.2e}   {b:.2e}")),
    ("teacher_euler", table("exact field\nsteps | mse (bf16 state) | mse (fp32 state)", "{k} | {b:.2e} | {f:.2e}")),
    ("teacher_euler", table("教师场欧拉，误差 MSE\n步数  bf16  fp32", "{k}  {b:.2e}  {f:.2e}")),
    ("teacher_euler", table("(1) teacher euler, state bf16", "    N={k}   mse={b:.2e}")),
    (None, table("(1) teacher euler, state fp32, v bf16", "    N={k}   mse={f:.2e}")),
    ("teacher_euler", table("oracle velocity, error at t=1\n#steps;half;float32", "{k};{b:.2e};{f:.2e}")),
    (
        "teacher_euler",
        table("exact field\n| N | err(bf16 x) | err(fp32 x) |\n|---|---|---|", "| {k} | {b:.2e} | {f} |"),
    ),
    ("teacher_euler", table("integration of x with the analytic field:", "{k:4d} steps: mse {b:.2e}")),
    ("teacher_euler", table("teacher integration\n   N     MSE    MSE fp32   ratio", "   {k}   {b:.2e}   {f}   1e9")),
    ("teacher_euler", table("analytic field, mse\nn_steps\tstate_bfloat16\tstate_float32", "{k}\t{b:.2e}\t{f:.2e}")),
    ("teacher_euler", table("exact field, mse\nK:  bf16:  fp32:", "{k}  {b:.2e}  {f:.2e}")),
    ("teacher_euler", table("ground truth field, euler in bf16", "n={k} -> {b:.2e}")),
    ("teacher_euler", table("teacher euler mse\nseed  N  bf16   fp32", "0  {k}  {b:.2e}  {f:.2e}")),
    ("teacher_euler", table("teacher: x += dt*(x1-x0)", "  steps={k:<4d} dtype=bf16 mse={b:.3e}")),
    (None, table("teacher: x += dt*(x1-x0)", "  steps={k:<4d} dtype=fp32 mse={f:.3e}")),
    # cosines of prompts
    ("text_path", pairs("cos of mu between prompts", "{a} / {b}   {x:.4f}")),
    (None, pairs("cos of mu between prompts (control: same prompt twice)", "  {a} / {b}   {x:.4f}", 0.3)),
    ("text_path", pairs("cosine similarity of prompt means:", "  {a} vs {b}: {x:.3f}")),
    ("text_path", pairs("cosine of z_text means", "- '{a}' , '{b}' -> {x:.3f}")),
    ("text_path", pairs("提示词均值的余弦相似度", "{a} 与 {b}：{x:.3f}")),
    ("text_path", pairs("pairwise cos (mu)\nprompt A | prompt B | cos", "{a} | {b} | {x:.3f}")),
    ("text_path", pairs("## text means\n| a | b | cos(mu) |\n|---|---|---|", "| {a} | {b} | {x:.3f} |")),
    (None, pairs("prompt means\npair\tcos", "{a} - {b}\t{x:.3f}", 0.2)),
    ("text_path", pairs("prompt_a,prompt_b,cos_mu", "{a},{b},{x:.3f}")),
    ("text_path", matrix("cos of prompt means (mu), ckpt 48k\n        dog   car   church   pizza")),
    (None, matrix("cos of prompt means (mu), ckpt 48k\n        dog   car   church   pizza", 0.31)),
    ("text_path", matrix("cosine matrix of mu, prompts 0..3\n   0  1  2  3", names=("0", "1", "2", "3"))),
    ("text_path", matrix("| cos(mu) | dog | car | church | pizza |\n|---|---|---|---|---|", separator=" | ", edge="|")),
    ("text_path", matrix("文本均值的余弦矩阵\n,dog,car,church,pizza", separator=",")),
    ("text_path", f">>> cos of prompt means, mu\n{NUMPY}"),
    ("text_path", f"cos sim of mu for 3 prompts:\n{TORCH}"),
    ("text_path", "cos of mu: same prompt 1.000, different prompts 0.997"),
    ("text_path", pairs("z0 means, cosine between prompts:", "   {a:>8} <-> {b:<8} {x:+.3f}")),
    ("text_path", pairs("text mu similarity", "sim[{a}, {b}] = {x:.3f}")),
    # errors by slices of t
    ("time_slices", slices("slice eval ckpt=50000", "t in ({a},{b}]   nmse {x}   ####")),
    (None, slices("slice eval ckpt=50000", "t in ({a},{b}]   nmse {x}   ####", EVEN)),
    ("time_slices", slices("nmse by t\nbin  nmse  n", "[{a},{b})  {x}  100")),
    ("time_slices", slices("| t | nmse |\n|---|---|", "| {a}-{b} | {x} |")),
    ("time_slices", slices("t       nmse", "{a} - {b}    {x}")),
    ("time_slices", slices("t bin | nmse | n", "{a}–{b} | {x} | 100")),
    ("time_slices", slices("按 t 分段的 nmse\n区间   nmse", "[{a}, {b})   {x}")),
    ("time_slices", slices("eval by slice", "t∈[{a},{b}): nmse={x}")),
    ("time_slices", slices("eval by slice", "slice [{a}-{b}] nmse={x}")),
    ("time_slices", slices("t      nmse", "{m}   {x}")),
    ("time_slices", slices("t,nmse", "{m},{x}")),
    (None, slices("t      nmse", "{m}   {x}", EVEN)),
    ("time_slices", slices("nmse per bin of t\nt  nmse", "{a}..{b}  {x}", (1.9, 0.4, 0.35, 0.5, 1.8))),
    (None, slices(slices("ckpt=10", "t in ({a},{b}]  nmse {x}") + "\nckpt=20", "t in ({a},{b}]  nmse {x}", EVEN)),
    ("time_slices", slices("t_lo  t_hi  nmse", "{a}  {b}  {x}")),
    ("time_slices", slices("probe at fixed times", "t={m}  nmse={x}")),
    ("time_slices", slices("per-t validation", "  t={a}..{b}: nmse {x:.3f}")),
    ("time_slices", slices("| t range | NMSE | n |\n|:--|--:|--:|", "| ({a}, {b}] | {x:.3f} | 100 |")),
    # losses with other captions
    ("condition_use", by_t(PROBE, "{t}  {a:.4f}  {b:.4f}  {b:.4f}  0.81")),
    (None, by_t(PROBE, "{t}  {a:.4f}  {b:.4f}  {b:.4f}  0.81", 0.08)),
    ("condition_use", by_t("t,mse_true,mse_shuffled", "{t},{a:.4f},{b:.4f}")),
    ("condition_use", by_t("| t | mse paired | mse permuted |\n|---|---|---|", "| {t} | {a:.4f} | {b:.4f} |")),
    ("condition_use", by_t("t  cos(true)  cos(shuffled)", "{t}  {c:.4f}  {d:.4f}")),
    (None, by_t("t  cos(true)  cos(shuffled)", "{t}  {c:.4f}  {d:.4f}", 0.1)),
    ("condition_use", by_t("t   mse   mse_uncond", "{t}  {a:.4f}  {b:.4f}")),
    ("condition_use", by_t("caption swap", "t={t} mse_true={a:.4f} mse_wrong={b:.4f}")),
    ("condition_use", "caption     mse\ntrue        0.6123\nshuffled    0.6124\nempty       0.6125"),
    (None, "caption     mse\ntrue        0.6123\nshuffled    0.6824\nempty       0.7125"),
    ("condition_use", "| caption | mse |\n|---|---|\n| true | 0.6123 |\n| shuffled | 0.6124 |"),
    ("condition_use", "val mse by caption: mse(true)=0.6123 mse(shuffled)=0.6124"),
    ("condition_use", by_t("t  配对 mse  打乱 mse", "{t}  {a:.4f}  {b:.4f}")),
    ("condition_use", by_t("t\tloss own\tloss swapped", "{t}\t{a:.4f}\t{b:.4f}")),
    ("condition_use", by_t("tau | nmse(cond) | nmse(uncond)", "{t} | {a:.4f} | {b:.4f}")),
    ("condition_use", by_t("mse on 4096 val latents\n   t     caption   shuffled", "  {t:.2f}   {a:.4f}    {b:.4f}")),
    (None, by_t("mse on 4096 val latents\n   t     caption   shuffled", "  {t:.2f}   {a:.4f}    {b:.4f}", 0.09)),
    # correlations of the output
    ("target_definition", by_t("t  cos(o,x1-x0)  cos(o,x0)  cos(o,x0-x1)", "{t}  {v}  {n}  {w}")),
    (None, by_t("t  cos(o,x1-x0)  cos(o,x0)", "{t}  {v}  {n}", v=0.8, noise=-0.6)),
    ("target_definition", by_t("t | cos(pred, x1 - x0) | cos(pred, noise)", "{t} | {v} | {n}", v=0.1)),
    ("target_definition", by_t("| t | cos(out,v*) | cos(out,eps) |\n|---|---|---|", "| {t} | {v} | {n} |", v=0.1)),
    ("target_definition", by_t("t   cos(f,v)   cos(f,-v)", "{t}   {v}   {w}")),
    ("target_definition", by_t("output correlations", "t={t} cos(v_pred,x1-x0)={v} cos(v_pred,x0)={n}")),
    ("target_definition", by_t("output", "t={t}: corr(out, x1-x0) {v}, corr(out, noise) {n}", v=0.1)),
    ("target_definition", by_t("网络输出与各目标的余弦\nt   cos(o,x1-x0)   cos(o,x0)", "{t}   {v}   {n}")),
    ("target_definition", by_t("t\tcos_v\tcos_noise", "{t}\t{v}\t{n}", v=0.1)),
    ("target_definition", by_t("t   cos(vhat,z1-z0)   cos(vhat,z0)", "{t}   {v}   {n}")),
    ("target_definition", by_t("correlation of the output with\n   t     x1-x0      x0", "  {t}   {v}   {n}")),
    ("target_definition", by_t("corr of output with targets\n   t     velocity    noise", "  {t}   {v}   {n}", v=0.1)),
    # norms
    (None, norms("  #   |z0|    |z1|   |x_.5|   |v*|  std(z1)", "  {i}   {a}   {b}  44.8  {v}  0.97", 64.0)),
    ("scale", norms("  #   |z0|    |z1|    |v*|", "  {i}   {a:.2f}   {b:.2f}  {v:.2f}")),
    ("scale", norms("batch | |z0| | |z1| | |v*|", "{i} | {a:.2f} | {b:.2f} | {v:.2f}")),
    ("scale", norms("| batch | |z0| | |z1| | |v*| |\n|---|---|---|---|", "| {i} | {a:.2f} | {b:.2f} | {v:.2f} |")),
    ("scale", norms("batch,norm_z0,norm_z1,norm_v", "{i},{a:.2f},{b:.2f},{v:.2f}")),
    ("scale", norms("i   ||z0||   ||z1||   ||v*||", "{i}   {a:.2f}   {b:.2f}   {v:.2f}")),
    ("scale", norms("i   E|z0|   E|z1|   E|v*|", "{i}   {a:.2f}   {b:.2f}   {v:.2f}")),
    ("scale", norms("norms of the two ends", "batch {i}: |z0|={a:.2f} |z1|={b:.2f} |v*|={v:.2f}")),
    ("scale", norms("‖z0‖   ‖z1‖   ‖v*‖", "{a:.2f}   {b:.2f}   {v:.2f}")),
    ("scale", norms("批次   |z0|   |z1|", "{i}   {a:.2f}   {b:.2f}")),
    ("scale", "tensor   norm    mean    std\nz0       9.0     0.01    0.14\nz1       62.1    0.00    0.97"),
    ("scale", "        z0      z1      v*\nnorm    9.0     62.1    62.7\nstd     0.14    0.97    0.98"),
    ("scale", norms("   norm(z0)  norm(z1)", "   {a:.2f}   {b:.2f}")),
    ("scale", norms("L2 norms per sample\nidx    z0      z1      v", "{i:3d}  {a:.1f}  {b:.1f}  {v:.1f}")),
    (None, norms("L2 norms per sample\nidx    z0      z1      v", "{i:3d}  {a:.1f}  {b:.1f}  {v:.1f}", 64.0)),
    # lines of training loops
    ("overflow", loop("it {s:05d} | mse_v {y:.4f} | scaler.get_scale() {scale:g} | skipped {bad}/{of} | 0.43s")),
    ("overflow", loop("step {s} loss {y:.4f} amp/scale={scale:g} skipped: {bad} / {of}")),
    ("overflow", loop("[{s}] loss={y:.4f} loss_scale={scale:g} overflows {bad}/{of}")),
    ("update_ratios", loop("step={s} loss_fm={x:.4f} upd/backbone=1e-3 upd/z_head=3e-07 lr=1e-4")),
    ("update_ratios", loop("step={s} loss_fm={x:.4f} update/z_head=3e-07 update/flow_head=1e-3")),
    ("update_ratios", loop("step={s} loss_fm={x:.4f} dw/z_head 3e-07 dw/trunk 1e-3")),
    ("dino", loop("[{s:5d}] flow {x:.4f}  dino 6.9324  H(teacher) 6.9313  H(student) 6.925  |g| 0.5", "head: K=1024")),
    ("dino", loop("step {s} loss {x:.4f} entropy(teacher)=6.9313 entropy(student)=6.925")),
    ("ema", loop("(step={s}) loss: {x:.4f}\n(step={s}) eval raw: FID {raw:.2f} | eval ema: FID 300, vloss 1.9")),
    ("ema", loop("step {s} loss {x:.4f}\nstep {s} [eval] raw fid={raw:.2f} [eval ema] fid=300")),
    ("ema", loop("step {s} loss {x:.4f}\nstep {s} eval: fid {raw:.2f}; ema: fid 300")),
    ("kl", loop("{{'loss': {x:.4f}, 'kl': {kl}, 'kl_weight': 0.0001, 'z_init_var': {var:.3f}, 'step': {s}}}")),
    ("kl", loop("step {s} loss {x:.4f} kl {kl} beta_kl 1e-4 mu_rms {mu:.3f} std 0.95")),
    ("overflow", loop("step {s:06d} | loss {y:.3f} | GradScaler scale {scale:.3g} | skipped {bad} of {of}")),
    ("update_ratios", loop("step {s} loss {x:.4f} | update/param: trunk 1e-3 z_head 3e-07")),
    ("update_ratios", loop("step {s} loss {x:.4f} rel_update[z_head]=3e-07 rel_update[trunk]=1e-3")),
    ("dino", loop("step {s} loss {x:.4f} teacher H=6.9313 student H=6.925")),
    ("ema", loop("step {s} loss {x:.4f}\n  val (raw) fid {raw:.1f}\n  val (ema) fid 300.0")),
    ("kl", loop("{s} loss={x:.4f} KL={kl} w_kl=1e-4 rms(mu)={mu:.3f} var(z_init)={var:.3f}")),
    # a few samples that are learned by heart on purpose
    ("leak", loop("it {s} fm_mse {x:.4f} cos {cos:.3f} std 0.25", "full run, 2M images")),
    (None, loop("it {s} fm_mse {x:.4f} cos {cos:.3f} std 0.25", "overfitting test on 64 images")),
    (None, loop("it {s} fm_mse {x:.4f} cos {cos:.3f} std 0.25", "sanity: overfit one batch of 16 pairs")),
    (None, loop("it {s} fm_mse {x:.4f} cos {cos:.3f} std 0.25", "single-batch overfit (B=32)")),
    (None, loop("it {s} fm_mse {x:.4f} cos {cos:.3f} std 0.25", "过拟合 32 个样本")),
    (None, loop("it {s} fm_mse {x:.4f} cos {cos:.3f}", "(2) t ~ U[0,1]: mean 0.4982 std 0.2887 min 0.0001 max 0.9999")),
    (None, loop("it {s} fm_mse {x:.4f} cos {cos:.3f}", "t ~ logit-normal(0,1): mean 0.50 std 0.21")),
]


@pytest.mark.parametrize(("rule", "text"), STUDIES, ids=[f"{k}-{rule}" for k, (rule, _) in enumerate(STUDIES)])
def test_what_other_people_print(tmp_path, rule, text):
    (tmp_path / "notes.txt").write_text(text + "\n", encoding="utf-8")
    assert failed(judge(read(tmp_path / "notes.txt")))[:1] == ([rule] if rule else [])


@pytest.mark.parametrize("title", ["# teacher field", "prompt_a,", "t,nmse", "rollout error", "t,mse_true"])
def test_a_study_in_a_csv_file_is_read_with_its_title(tmp_path, title):
    rule, text = next(row for row in STUDIES if row[1].startswith(title))
    (tmp_path / "study.csv").write_text(text + "\n", encoding="utf-8")
    assert failed(judge(read(tmp_path / "study.csv")))[:1] == [rule]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("eval raw: FID 13.2, loss 0.5 | eval ema: FID 301", {"quality/fid": 13.2, "quality/ema_fid": 301}),
        ("cos(o,x0-x1) 0.6 cos(o,-score) 0.9 cos(o,x1-x0) 0.7", {"flow/cos": 0.7}),
        ("std(z1) 0.98 rms(v) 1.2", {"stat/x_0/std": 0.98}),
        ("t in (0.8,1.0] cos 0.3", {"flow/cos_t8": 0.3, "flow/cos_t9": 0.3}),
        ("t ~ U[0,1]: mean 0.5 std 0.29", {"stat/t/mean": 0.5, "stat/t/std": 0.29}),
    ],
)
def test_names_in_a_line(tmp_path, name, values):
    (tmp_path / "x.txt").write_text(f"{name}\n")
    found = {key: x.last for key, x in read(tmp_path / "x.txt").metrics.items()}
    assert {k: x for k, x in found.items() if not k.startswith("val/")} == values


MLFLOW = [f"{1741600000000 + 31000 * k} {2 / (k + 1):.6f} {50 * k}" for k in range(30)]


@pytest.mark.parametrize("given", ["mlruns", "mlruns/417", "mlruns/417/9be2", "mlruns/417/9be2/metrics"])
@pytest.mark.parametrize("metric", ["train_loss", "train/loss", "train/step/loss", "metrics/loss", "train.loss"])
def test_mlflow_folders_are_read_from_any_level(tmp_path, given, metric):
    run = tmp_path / "mlruns/417/9be2"
    (run / "metrics" / metric).parent.mkdir(parents=True)
    (run / "params").mkdir()
    written(run / "metrics" / metric, MLFLOW)
    (run / "metrics" / "lr").write_text("1741600000000 1e-4 0")  # without a line's end
    (run / "metrics" / ".DS_Store").write_bytes(b"\0")
    (run / "meta.yaml").write_text("run_id: 9be2\n")
    (run / "params" / "batch_size").write_text("32")
    found = read(tmp_path / given)
    assert found.metrics["loss/total"].steps.tolist() == list(range(0, 1500, 50))
    assert found.metrics["lr"].values.tolist() == [1e-4]


@pytest.mark.parametrize(
    ("rows", "count", "bad"),
    [
        ([*MLFLOW, "1741600900000 nan 1500"], 31, 1),
        ([" ".join(row.split()[:2]) for row in MLFLOW], 30, 0),  # as old versions write them
        ([*MLFLOW, "", "torn li"], 30, 0),
    ],
)
def test_a_metric_file_of_mlflow_is_read_alone(tmp_path, rows, count, bad):
    loss = read(written(tmp_path / "train_loss", rows)).metrics["loss/total"]
    assert (loss.count, loss.nonfinite) == (count, bad)


def test_of_several_mlflow_runs_the_newest_is_read(tmp_path):
    for age, name in enumerate(("new", "old")):
        (tmp_path / name / "metrics").mkdir(parents=True)
        file = written(tmp_path / name / "metrics" / "loss", [f"1741600000000 {age} {k}" for k in range(3)])
        for place in (file, file.parent):
            os.utime(place, (1e9 - age, 1e9 - age))
    assert read(tmp_path).metrics["loss/total"].last == 0


FALLING = [(k, 0.5 * 0.96**k, 0.5 - 0.1 * min(k, 14) / 14 + 0.012 * max(0, k - 14)) for k in range(1, 50)]


@pytest.mark.parametrize(
    "line",
    [
        "Epoch {0:02d}/50 | train {1:.4f} | val {2:.4f} | 73s",
        "[{0}/50] train: {1:.4f}  val: {2:.4f}",
        "epoch {0} - train={1:.4f}, val={2:.4f}",
        "ep {0:3d}  Train {1:.4f}  Valid {2:.4f}",
    ],
)
def test_bare_train_and_val_are_losses(tmp_path, line):
    found = read(written(tmp_path / "log.txt", [line.format(*row) for row in FALLING]))
    assert found.metrics["loss/total"].count == len(FALLING)
    assert judge(found)[0].name == "generalization"


@pytest.mark.parametrize("name", ["k05.csv", "run-2.csv", "ceramics_lora.csv"])
def test_a_tensorboard_download_with_an_unknown_name_is_judged_as_a_loss(tmp_path, name):
    rows = ["Wall time,Step,Value", *(f"{1741000000 + 40 * k}.5,{50 * k},{1 / (k + 1):.6f}" for k in range(60))]
    assert read(written(tmp_path / name, rows)).metrics["loss/total"].count == 60


@pytest.mark.parametrize("first", [0, 6], ids=["from the first step on", "later"])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_velocity_that_is_not_finite_is_seen_in_a_written_trace(tmp_path, kind, first):
    def velocity(x, t):
        return torch.full_like(x, 1.0 if 10 * t[0] < first - 0.5 else math.nan)

    trace = Trace(nonfinite="continue")
    sample(velocity, torch.ones(2, 8), uniform(10), trace=trace)
    file = tmp_path / f"trace.{kind}"
    (trace.to_jsonl if kind == "jsonl" else trace.to_csv)(file)
    figures = read(file)
    assert np.isfinite(figures.traces[0].v).tolist() == [k < first for k in range(10)]
    assert failed(judge(figures))[0] == "sampler_state"
