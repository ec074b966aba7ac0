"""What the playground computes, and that it stays on this computer. ``make page-check`` uses it in a browser."""

import json
import re
import urllib.request

import pytest
import torch
from support.tiny_models import save_tiny_pipeline

from fmpipe.cli.run_sampling import noise_of
from fmpipe.pipeline import FlowPipeline

gr = pytest.importorskip("gradio", reason="the extra 'ui' is not installed")
from fmpipe.app import COUNT, PLOTTED, VARIED, Playground, build, serve  # noqa: E402


@pytest.fixture(scope="module")
def pipe(tmp_path_factory):
    made = FlowPipeline.from_pretrained(save_tiny_pipeline(tmp_path_factory.mktemp("tiny")))
    made.set_progress_bar_config(disable=True)
    return made


@pytest.fixture
def play(pipe, tmp_path):
    return Playground(pipe, tmp_path)


FEW = {"steps": 3}


def test_seeds_side_by_side_are_those_of_generate(play, pipe):
    *_, images = play.row("a cat", 7, "seed", "", FEW)
    assert [label for _, label in images] == [f"seed {7 + k}" for k in range(COUNT)]
    expected = pipe("a cat", 3, generator=noise_of("a cat", 8)).images[0]
    assert images[1][0].resize(expected.size, 0).tobytes() == expected.tobytes()


@pytest.mark.parametrize("varied", [name for name in VARIED if name != "seed"])
def test_every_control_can_be_compared(play, varied):
    values = VARIED[varied].replace(", 50", "").replace("dopri5", "heun").replace(", float16", "")
    rows = list(play.row("a cat", 0, varied, values, FEW))
    assert [len(row) for row in rows] == [*range(1, len(values.split(",")) + 1)]  # shown as they are made
    assert [label for _, label in rows[-1]] == [f"{varied} {value.strip()}" for value in values.split(",")]
    if varied != "precision":
        assert rows[-1][0][0].tobytes() != rows[-1][-1][0].tobytes()


@pytest.mark.parametrize(
    ("varied", "values", "message"),
    [
        ("steps", "0", "steps must be"),
        ("steps", "two", "steps must be a number, got 'two'"),
        ("guidance", "nan", "guidance must be"),
        ("solver", "rk4", "unknown solver 'rk4'"),
        ("gain", " , ", "separated by commas"),
        ("precision", "int3", "int3"),
    ],
)
def test_bad_values_are_errors_on_the_page(play, varied, values, message):
    with pytest.raises(gr.Error, match=re.escape(message)):
        list(play.row("a cat", 0, varied, values, FEW))


def test_no_prompt_is_an_error_on_the_page(play):
    with pytest.raises(gr.Error, match="prompt"):
        list(play.row(" ", 0, "seed", "", FEW))


def test_steps_show_the_state_its_endpoint_and_the_trace(play, pipe):
    seen = list(play.steps("a cat", 0, {"steps": 4, "solver": "euler", "schedule": "uniform"}))
    assert [text for *_, text in seen[:4]] == [f"step {k}" for k in range(1, 5)]
    assert "anomaly" in seen[-1][-1].lower()
    result = pipe("a cat", 4, solver="euler", schedule="uniform", generator=noise_of("a cat", 0))
    state, endpoint, curves, _ = seen[-1]
    picture = result.images[0]
    assert state.resize(picture.size, 0).tobytes() == picture.tobytes() == endpoint.resize(picture.size, 0).tobytes()
    for k, (name, curve) in enumerate(zip(PLOTTED, curves, strict=True)):
        assert set(curve.quantity) == {name}
        column = result.trace.values[:, 0, (0, 1, 4)[k]]
        torch.testing.assert_close(torch.tensor(curve.value.values), column.double())


def test_the_first_anomaly_is_named(play, pipe, monkeypatch):
    monkeypatch.setattr(pipe, "velocity", lambda x, t, null=None: x * 60)
    *_, (_, _, _, text) = play.steps("a cat", 0, {"steps": 6, "solver": "euler"})
    assert text.startswith("First anomaly: step ")


def test_the_predicted_endpoint_of_a_straight_path_is_its_end(play, pipe, monkeypatch):
    monkeypatch.setattr(pipe, "velocity", lambda x, t, null=None: torch.full_like(x, 0.5))
    *seen, last = play.steps("a cat", 0, {"steps": 4, "solver": "euler", "schedule": "uniform"})
    assert seen[0][1] is None  # one state gives no velocity
    assert all(endpoint.tobytes() == last[0].tobytes() for _, endpoint, _, _ in seen[1:])


def test_interpolation_ends_at_both_prompts(play):
    images = play.between("a red cat", "a blue cat", 3, FEW)
    assert [label for _, label in images] == ["a red cat", "", "a blue cat"]
    with pytest.raises(gr.Error, match="two prompts"):
        play.between("a cat", "", 3, FEW)


def test_runs_are_found_and_diagnosed(play, tmp_path):
    assert "fmpipe train" in play.report(None)
    assert play.found_runs() == []
    (tmp_path / "broken" / "flow").mkdir(parents=True)
    lines = [json.dumps({"step": k, "loss": 1.0 / (1 + k) if k < 30 else 50.0 * k}) for k in range(60)]
    (tmp_path / "broken" / "flow" / "log.jsonl").write_text("\n".join(lines))
    (run,) = play.found_runs()
    assert run == "broken"
    report = play.report(run)
    assert report.count("<iframe") == 1
    assert "&lt;svg" in report or "data-k" in report
    assert "<script" not in report  # everything of the log is inside the frame, escaped
    assert "band of healthy runs" not in report
    (tmp_path / "broken" / "config.yaml").write_text("base: shapes-tiny\n")
    assert "band of healthy runs" in play.report(run)


def test_the_page_is_on_this_computer_and_loads_nothing_from_elsewhere(pipe, tmp_path):
    page = build(pipe, tmp_path)
    address = serve(page)
    try:
        assert address.startswith("http://127.0.0.1:")
        text = urllib.request.urlopen(address, timeout=20).read().decode()
        assert page.analytics_enabled is False
        assert "googleapis" not in text
    finally:
        page.close()
