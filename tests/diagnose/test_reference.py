"""The band of reference runs: membership, the first exit, single runs, other lengths and densities, and errors."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from support.commands import run

from fmpipe.diagnose import reference
from fmpipe.diagnose.figures import Figures, Series
from fmpipe.diagnose.reference import Reference, UnknownReferenceError, load, names, place
from fmpipe.diagnose.render.html import html
from fmpipe.diagnose.render.markdown import markdown
from fmpipe.diagnose.texts import en, zh
from fmpipe.train.presets import PRESETS
from fmpipe.train.presets import load as load_config
from fmpipe.train.settings import dump, to_dict

STEPS = np.arange(1, 41) * 25
SHIPPED = len(list(reference.FOLDER.glob("shapes-tiny-seed*.jsonl")))
CONFIG = {"flow": {"optim": {"steps": 1000}}}


def flow_run(seed, steps=STEPS, total=1000, **changed):
    """A healthy run: a loss that falls from 2.3 to 0.8, a cosine that rises to 0.8, a gradient norm."""
    draw, share = np.random.default_rng(seed), steps / total
    done = 1 - np.exp(-5 * share)
    level = 1 + 0.02 * draw.standard_normal()  # seeds differ by 2 %
    curves = {
        "loss/flow": level * (2.3 - 1.5 * done) * np.exp(0.03 * draw.standard_normal(len(steps))),
        "flow/cos": level * 0.8 * done + 0.01 * draw.standard_normal(len(steps)),
        "grad/total": (3 - 2 * done) * np.exp(0.2 * draw.standard_normal(len(steps))),
    }
    curves |= {name: change(curves[name], steps) for name, change in changed.items()}
    return Figures(
        {name.replace("__", "/"): Series(steps, y) for name, y in curves.items()},
        stage="flow",
        source=f"run {seed}",
        config={"flow": {"optim": {"steps": total}}},
    )


SEEDS = Reference("five seeds", [flow_run(k) for k in range(5)])
ONE = Reference("one seed", [flow_run(0)])


def changed(name, change, seed=99, **options):
    out = flow_run(seed, **options)
    x = out.metrics[name]
    out.metrics[name] = Series(x.steps, change(x.values.copy(), x.steps))
    return out


def times(factor, start, end=np.inf):
    return lambda y, steps: np.where((steps >= start) & (steps < end), factor * y, y)


@pytest.mark.parametrize("seed", range(10, 30))
def test_a_fresh_seed_stays_inside(seed):
    found = place(flow_run(seed), SEEDS)
    assert found.first is None
    assert [line.key for line in found.lines] == ["reference/band", "reference/inside"]
    assert [p.name for p in found.places] == ["flow/cos", "grad/total", "loss/flow"]
    assert all(((p.low < p.high) & (p.low > -0.2)).all() for p in found.places)
    assert {p.status for p in found.places} <= {"normal", "just_above", "just_below"}


def test_the_band_contains_all_of_its_runs():
    for own in SEEDS.runs:
        for p in place(own, SEEDS).places:
            assert ((p.values >= p.low) & (p.values <= p.high)).all()


@pytest.mark.parametrize(
    ("name", "change", "step", "side"),
    [
        ("loss/flow", times(1.6, 500), 500, "above"),
        ("loss/flow", times(0.5, 300), 300, "below"),
        ("flow/cos", times(0.5, 0), 25, "below"),
        ("grad/total", times(9.0, 700), 700, "above"),
        ("loss/flow", times(np.nan, 600), 600, "nonfinite"),
        ("loss/flow", times(np.inf, 600, 610), 600, "nonfinite"),
    ],
)
def test_the_first_exit_is_named(name, change, step, side):
    found = place(changed(name, change), SEEDS)
    assert found.first.name == name
    at = found.first.at(found.first.left)
    assert abs(at["step"] - step) <= (100 if name == "flow/cos" else 25)  # near 0 every cosine is normal
    line = next(line for line in found.lines if line.key.startswith("reference/first"))
    assert line.key == f"reference/first_{side}"
    assert f"flow {name}" in line
    assert str(at["step"]) in line


def test_of_several_exits_the_earliest_is_first_and_the_others_are_listed():
    own = changed("loss/flow", times(1.6, 700))
    own.metrics["grad/total"] = changed("grad/total", times(30.0, 400)).metrics["grad/total"]
    found = place(own, SEEDS)
    assert (found.first.name, abs(found.first.at(found.first.left)["step"] - 400) <= 25) == ("grad/total", True)
    assert any(line.key == "reference/later" and "loss/flow (7" in line for line in found.lines)


def test_a_stage_that_is_trained_earlier_is_named_first():
    own, others = flow_run(99), [flow_run(k) for k in range(5)]
    own.metrics["loss/flow"] = changed("loss/flow", times(3.0, 100)).metrics["loss/flow"]
    for figures, factor in ((own, times(3.0, 900)), *((other, times(1.0, 0)) for other in others)):
        x = Series(STEPS, factor(np.full(40, 0.5), STEPS))
        figures.stages = {"vae": Figures({"loss/mse": x}, stage="vae", config={"vae": {"optim": {"steps": 1000}}})}
    found = place(own, Reference("two stages", others))
    assert (found.first.stage, found.first.name) == ("vae", "loss/mse")


@pytest.mark.parametrize("points", [1, 2])
def test_a_short_excursion_does_not_count(points):
    """The running median removes one point; two are fewer than the three that count."""
    found = place(changed("loss/flow", times(3.0, 500, 500 + 25 * points)), SEEDS)
    assert found.first is None
    assert place(changed("loss/flow", times(3.0, 500, 500 + 25 * 4)), SEEDS).first is not None


def test_the_margin_is_a_threshold():
    own = changed("loss/flow", times(1.6, 500))
    assert place(own, SEEDS, {"reference/widen": 50.0}).first is None
    assert place(own, SEEDS, {"reference/points": 60.0}).first is None


def test_the_band_of_a_single_run_has_a_stated_tolerance():
    found = place(flow_run(99), ONE)
    assert found.first is None
    assert found.lines[0].key == "reference/single"
    assert "within a factor of 2 (cosines: ± 40% of their range)" in found.lines[0]
    p = next(p for p in found.places if p.name == "loss/flow")
    np.testing.assert_allclose(p.high / p.low, 4.0)
    p = next(p for p in found.places if p.name == "flow/cos")
    np.testing.assert_allclose(p.high - p.low, (p.high - p.low)[0])
    assert place(changed("loss/flow", times(2.6, 500)), ONE).first.name == "loss/flow"
    assert place(changed("loss/flow", times(2.6, 500)), ONE, {"reference/single": 3.0}).first is None


def test_runs_of_different_lengths_are_compared_by_their_share_of_progress():
    long = flow_run(99, steps=STEPS * 3, total=3000)
    assert place(long, SEEDS).first is None
    long.config = {}  # its length is unknown: by step, up to the last one of the reference
    found = place(long, SEEDS)
    assert found.first is not None
    assert found.places[0].steps[-1] <= 1012


def test_a_run_that_is_not_finished_is_judged_as_far_as_it_is():
    own = flow_run(99)
    own.metrics = {name: Series(x.steps[:12], x.values[:12]) for name, x in own.metrics.items()}
    found = place(own, SEEDS)
    assert found.first is None
    assert "step 300" in found.lines[-1]


def test_a_log_of_every_step_is_reduced_and_one_of_few_steps_is_interpolated():
    every = np.arange(1, 1001)
    found = place(flow_run(99, steps=every), SEEDS)
    assert found.first is None
    assert found.places[0].steps.tolist() == STEPS.tolist()
    found = place(changed("loss/flow", times(1.6, 500), steps=every), SEEDS)
    assert abs(found.first.at(found.first.left)["step"] - 500) <= 50
    found = place(changed("loss/flow", times(np.nan, 510, 511), steps=every), SEEDS)  # between two points
    assert (found.first.name, found.first.at(found.first.left)["step"]) == ("loss/flow", 525)
    few = np.array([250, 500, 750, 1000])
    assert place(flow_run(99, steps=few), SEEDS).first is None
    assert place(changed("loss/flow", times(1.6, 700), steps=few), SEEDS).first.at(2)["step"] == 750


def test_settings_that_differ_are_listed_without_seeds_and_folders():
    theirs, own = [flow_run(k) for k in range(2)], flow_run(99)
    theirs[0].config = {"seed": 0, "out": "a", **CONFIG, "data": {"source": "shapes"}}
    own.config = {"seed": 1, "out": "b", **CONFIG, "data": {"source": "folder"}, "new": 1}
    found = place(own, Reference("two", theirs))
    assert found.differing == {"data.source": ("shapes", "folder")}
    assert any("data.source = folder (shapes)" in line for line in found.lines)


def test_a_log_without_overlap_says_so():
    other = Figures({"loss/dino": Series(STEPS, STEPS * 1.0)}, stage="flow")
    found = place(other, SEEDS)
    assert (found.places, found.first) == ([], None)
    (line,) = found.lines
    assert "no metric in common" in line
    assert "loss/dino" in line
    assert "loss/flow" in line
    late = flow_run(99, steps=STEPS + 10_000)
    late.config = {}
    assert "no metric in common at the same steps" in place(late, SEEDS).lines[0]


def test_unknown_references_list_the_choices(tmp_path):
    own = flow_run(0)
    with pytest.raises(UnknownReferenceError, match=r"names the preset.*shapes-tiny"):
        load(own)
    own.config = {"base": "crossflow-256"}
    with pytest.raises(UnknownReferenceError, match=r"crossflow-256 .*has no reference runs; choose one of .*shapes-t"):
        load(own)
    assert reference.of_preset(own) is None
    with pytest.raises(UnknownReferenceError, match=r"'nope', and no such file.*shapes-tiny"):
        load(own, ["nope"])


# The shipped runs


def test_the_shipped_logs_are_small_and_have_both_stages():
    files = sorted(reference.FOLDER.glob("shapes-tiny-seed*.jsonl"))
    assert len(files) == SHIPPED >= 2
    assert sum(path.stat().st_size for path in files) < 300 * 1024
    runs = [reference.shipped(path) for path in files]
    assert len({run.setting("seed") for run in runs}) == len(files)
    due = {"loss/flow", "flow/cos", "flow/nmse", "grad/total", "val/loss/flow", "val/flow/cos", "std/mean"}
    for own in runs:
        assert own.setting("base") == "shapes-tiny"
        assert due <= own.metrics.keys()
        assert {"loss/mse", "vae/psnr", "val/vae/psnr", "grad/total"} <= own.stages["vae"].metrics.keys()
        vae = own.stages["vae"].metrics
        assert (own.metrics["val/loss/flow"].steps[-1], vae["val/vae/psnr"].steps[-1]) == (520, 900)
        assert own.metrics["loss/flow"].steps[-1] > 500


def test_shipped_seeds_are_inside_the_band_of_the_others():
    """All but seed 4, whose endpoint error ends above those of the other four (docs/diagnosis.md)."""
    runs = load(Figures(config={"base": "shapes-tiny"})).runs
    left = {}
    for k, own in enumerate(runs):
        others = Reference("others", [*runs[:k], *runs[k + 1 :]])
        if (first := place(own, others).first) is not None:
            left[own.setting("seed")] = first.name
    assert left.keys() <= {4}, left


@pytest.fixture
def folder(tmp_path):
    """The folder of a run based on shapes-tiny, whose losses are those of seed 0 until its flow breaks."""
    out = tmp_path / "mine"
    header, *lines = map(json.loads, (reference.FOLDER / "shapes-tiny-seed0.jsonl").read_text().splitlines())
    for line in lines:
        stage = out / line.pop("stage")
        stage.mkdir(parents=True, exist_ok=True)
        if stage.name == "flow" and line["step"] > 200 and "loss/flow" in line:
            line["loss/flow"] *= 10
        with (stage / "log.jsonl").open("a") as file:
            file.write(json.dumps({"time": 0.0, **line}) + "\n")
    (out / "config.yaml").write_text(yaml.safe_dump(header["config"]))
    return out


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_command_reports_the_first_exit_and_draws_the_bands(folder, tmp_path, lang):
    result = run("report", folder, "--reference", "--lang", lang, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    words = {"en": en, "zh": zh}[lang]
    first = words.TEXTS["reference/first_above"].split("{")[0]
    assert first in result.stdout or lang == "en"
    assert "flow loss/flow" in result.stdout
    data = json.loads((tmp_path / "out" / "report.json").read_text())["reference"]
    assert (data["name"], len(data["runs"])) == ("shapes-tiny", SHIPPED)
    assert (data["first"]["stage"], data["first"]["name"]) == ("flow", "loss/flow")
    assert 200 < data["first"]["step"] < 260
    (loss,) = (m for m in data["metrics"] if (m["stage"], m["name"]) == ("flow", "loss/flow"))
    assert loss["status"] == "above"
    assert loss["value"] > loss["high"] > loss["low"] > 0
    text = (tmp_path / "out" / "report.md").read_text()
    section = text.split(f"## {words.WORDS['reference']}\n")[1].split("\n## ")[0]
    assert section.count("\n- ") > 30
    assert "vae loss/mse" in section
    page = (tmp_path / "out" / "report.html").read_text()
    charts = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])["charts"]
    banded = [chart for chart in charts if any("low" in line for line in chart)]
    assert len(banded) > 10
    for line, band in banded:
        assert len(line["x"]) == len(line["y"]) == len(band["x"]) == len(band["y"]) == len(band["low"])
        assert all(low <= high for low, high in zip(band["low"], band["y"], strict=True))
    (marked,) = [line for line, _ in banded if "mark" in line]
    assert (marked["name"], marked["mark"]) == ("flow loss/flow", data["first"]["step"])
    assert words.WORDS["reference"] in page


def test_the_option_takes_no_value_names_and_files(folder, tmp_path):
    healthy = [tmp_path / f"seed{k}.jsonl" for k in range(2)]
    for source, path in zip(sorted(reference.FOLDER.glob("shapes-tiny-*")), healthy):
        shutil.copy(source, path)
    for values, runs in ((["shapes-tiny"], SHIPPED), (healthy, 2), ([healthy[0]], 1), ([folder], 1)):
        result = run("report", folder, "--reference", *values, "-o", tmp_path / "out")
        assert result.exit_code == 0, result.output
        assert len(json.loads((tmp_path / "out" / "report.json").read_text())["reference"]["runs"]) == runs
    assert run("report", folder, f"--reference={folder}", "-o", tmp_path / "out").exit_code == 0
    for values in ([folder], ["shapes-tiny", folder]):
        assert run("report", "--reference", *values, "-o", tmp_path / "out").exit_code == 0
    (folder / "config.yaml").unlink()
    for values in ([], ["nope"]):
        result = run("report", folder, "--reference", *values, "-o", tmp_path / "out")
        assert result.exit_code == 2
        assert f"choose one of {', '.join(names())}" in " ".join(result.stderr.split())
    result = run("report", folder, "-o", tmp_path / "plain")
    assert "reference" not in json.loads((tmp_path / "plain" / "report.json").read_text())


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_line_exists_in_both_languages(lang):
    """No English sentence in a Chinese report, whatever the outcome."""
    runs = [changed("loss/flow", times(factor, 500)) for factor in (1.0, 1.6, 0.5, np.nan)]
    runs += [changed("loss/flow", times(1.6, 400, 700)), changed("loss/flow", times(1.6, 975))]
    seen = set()
    for own in runs:
        for band in (SEEDS, ONE):
            found = place(own, band)
            seen |= {line.key for line in [*found.lines, *found.ends()]}
            text = markdown(own, [], lang, placement=found) + html(own, [], lang, placement=found)
            for line in found.lines:
                assert str(line.into(lang)) in text
            english = re.findall(
                r"[a-z]{3,} [a-z]{3,} [a-z]{3,}", "".join(map(str, (x.into(lang) for x in found.lines)))
            )
            assert not (english and lang == "zh")
    kinds = ("normal", "above", "below", "nonfinite", "returned", "just_above", "first_above", "inside")
    assert {f"reference/{kind}" for kind in kinds} <= seen


# The preset in the config of a run


@pytest.mark.parametrize("name", PRESETS)
def test_a_run_knows_its_preset(name, tmp_path):
    config = PRESETS[name]()
    assert config.base == name
    dump(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config
    (tmp_path / "mine.yaml").write_text(f"base: {name}\nseed: 3\n")
    assert load_config(tmp_path / "mine.yaml").base == name
    (tmp_path / "alone.yaml").write_text("seed: 3\n")
    assert load_config(tmp_path / "alone.yaml").base == ""
    assert next(iter(to_dict(config))) == "base"
    assert run("init", name).stdout.count("\nbase: ") == 1


def test_tool_keeps_judged_metrics(folder, tmp_path):
    import reference_log

    header, *lines = reference_log.thinned(folder, points=10)
    assert header["config"]["base"] == "shapes-tiny"
    assert {line["stage"] for line in lines} == {"vae", "flow"}
    last = [line for line in lines if line["stage"] == "flow"][-1]
    assert last["step"] == 520
    assert "lr" not in last
    assert 8 <= sum(line["stage"] == "flow" and "loss/flow" in line for line in lines) <= 13
    path = tmp_path / "one.jsonl"
    path.write_text("\n".join(map(json.dumps, [header, *lines])))
    assert reference.shipped(path).metrics["val/loss/flow"].steps[-1] == 520
    assert isinstance(path, Path)
