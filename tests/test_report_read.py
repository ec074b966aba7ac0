"""Logs of every format and with every oddity are read into the same numbers, with a remark; the command report."""

import json
import math

import numpy as np
import pytest
from test_cli import run
from test_report import STEPS, failed, healthy

from fmkernels.flow import sample, uniform
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
    with pytest.raises(UnknownLogError, match="no metric found that is recognised"):
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
     (["TEXT"], "no metric found that is recognised"), (["UNKNOWN"], "its names are wibble: map them with --alias"),
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
