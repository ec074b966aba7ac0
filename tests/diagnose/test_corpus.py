"""Logs of other trainers, written independently of the code that reads them (tests/corpus)."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fmpipe.diagnose.engine import RULES
from fmpipe.diagnose.read import UnknownLogError, read
from fmpipe.diagnose.read.line_shapes import LineShapes
from fmpipe.diagnose.read.lines import parse
from fmpipe.diagnose.read.names import canonical
from fmpipe.diagnose.read.text import read_text
from fmpipe.diagnose.texts import en

CORPUS = Path(__file__).parents[1] / "corpus"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpus")
    subprocess.run([sys.executable, str(CORPUS / "make.py"), str(place)], check=True, capture_output=True)
    return place


@pytest.mark.slow
def test_every_log_is_read_and_something_in_it_is_recognized(corpus):
    """The half that names and formats were tuned on; the other half is run by tests/corpus/score.py."""
    cases = json.loads((corpus / "tune" / "manifest.json").read_text())
    assert len(cases) > 80
    for case in cases:
        figures = read(corpus / "tune" / case["path"])
        assert any(map(canonical, figures.metrics)) or figures.traces or figures.measured, case["id"]


@pytest.mark.slow
def test_the_right_cause_stays_first_on_the_logs_that_were_tuned_on(corpus, monkeypatch):
    """All authors but one, whose formats are odd on purpose; docs/diagnosis.md has the scores at first sight."""
    monkeypatch.syspath_prepend(str(CORPUS))
    import score

    parts = ["tune", "held", "second/fresh", "c/a", "c/b", "d/a", "d/b", "f/a", "g/g", "h", "i", "j", "k", "l/a", "l/b"]
    right, faulty, false, healthy = (sum(column) for column in zip(*(score.score(corpus / half) for half in parts)))
    assert (faulty, healthy) == (638, 374)
    assert right >= 624
    assert false <= 3


@pytest.mark.slow
@pytest.mark.parametrize("half", ["tune", "d/b"])
def test_lines_of_a_known_shape_are_read_as_if_each_were_parsed(corpus, monkeypatch, half):
    cases = [corpus / half / case["path"] for case in json.loads((corpus / half / "manifest.json").read_text())]
    files = [path for path in cases if path.suffix in (".log", ".txt", ".out")]
    assert len(files) > 15
    quick = [read_text(path.read_text(), "") for path in files]
    monkeypatch.setattr(LineShapes, "learn", lambda self, line, row: None)
    for path, found in zip(files, quick, strict=True):
        slow = read_text(path.read_text(), "")
        assert found.metrics.keys() == slow.metrics.keys(), path
        for name, series in slow.metrics.items():
            np.testing.assert_array_equal(found.metrics[name].steps, series.steps, str(path))
            np.testing.assert_array_equal(found.metrics[name].values, series.values, str(path))
        assert found.measured == slow.measured


def test_the_score_maps_rules_and_evidence_that_exist(monkeypatch):
    monkeypatch.syspath_prepend(str(CORPUS))
    import score

    assert set(score.RULES) <= set(RULES)
    assert set(score.EVIDENCE) <= set(en.TEXTS)


@pytest.mark.parametrize(
    ("line", "step", "values"),
    [
        ("(step=0003500) Train Loss: 1.0242, Train Steps/Sec: 2.59", 3500, {"loss/total": 1.0242}),
        ("step 0: train loss 2.02, val loss 2.04", 0, {"loss/total": 2.02, "val/loss/total": 2.04}),
        ("{'loss': 0.42, 'grad_norm': nan, 'learning_rate': 2e-06, 'epoch': 0.01}", None, {"loss/total": 0.42}),
        ("Iter(train) [  50/26000]  lr: 5e-06  eta: 4:02:12  loss_kl: 0.0021", 50, {"lr": 5e-06, "loss/kl": 0.0021}),
        ("Steps:   2%|▎   | 36/1500 [00:49<33:25, 1.37s/it, loss=0.33, lr=0.0001]", 36, {"loss/total": 0.33}),
        (
            "[rank2]: step    225 | loss_flow 1.5650 | lr 4.52e-05 | 1.87 s/it",
            225,
            {"loss/flow": 1.565, "lr": 4.52e-05},
        ),
        ("iter 100/26000 | loss_flow: 2.5", 100, {"loss/flow": 2.5}),
        (
            "2025-01-12 08:01:00,000 | INFO | global_step=7 v_cos=-0.5 z0_norm=151",
            7,
            {"flow/cos": -0.5, "scale/z0": 151},
        ),
        ("INFO:vae:roundtrip psnr 11.49 dB", None, {"vae/psnr": 11.49}),
        ("eval@500 [ema] fid10k=338.5 valmse=1.93", None, {"quality/ema_fid": 338.5, "val/ema/loss_mse": 1.93}),
        ("12:00 | rank 8 | VAL upd 400 rf_loss 0.65", 400, {"val/loss/flow": 0.65}),
        ("val@20: true 0.87  rolled 0.88", None, {"val/loss/total": 0.87, "val/loss/shuffled": 0.88}),
        ("100 loss 1.8 || dw/w  flow_head 4e-05  z_head 2e-08 ||", 100, {"step/z_head_update_ratio": 2e-08}),
        ("step 25 t(mean/std/min/max) 0.26/0.14/0.01/0.49", 25, {"stat/t/mean": 0.26, "stat/t/max": 0.49}),
    ],
)
def test_printed_lines(line, step, values):
    row = parse(line)
    assert row.step == step
    found = {canonical(name): value for name, value in row.values.items()}
    assert values.items() <= found.items()


@pytest.mark.parametrize(
    "line", ["the loss was lower in 2023", "Saving checkpoint at 2000 iterations", "", "loss: n/a"]
)
def test_lines_without_metrics(line):
    assert parse(line) is None


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("probe/cosine_v_v*", "flow/cos"),
        ("val/velocity_cosine_similarity", "val/flow/cos"),
        ("cos_pred_x1", None),  # not the velocity
        ("corr_out_x1_x0", "corr/velocity"),
        ("cos_v_noise", "corr/noise"),
        ("norm_pred_over_target", "flow/speed_ratio"),
        ("text_mu_cos_pairwise", "text/cos"),
        ("same_prompt_mu_cos", "text/same"),
        ("train/diag/z_init/mean", "z_init/mean"),
        ("batch/x_0/mean", "stat/x_0/mean"),
        ("train/diag/step/z_head_update_ratio", "step/z_head_update_ratio"),
        ("mu_mean", None),  # with its sign, it says nothing about collapse
        ("log_sigma", None),
        ("H(teacher)", "ent/teacher"),
        ("val_loss(ema)", "val/ema/loss_total"),
        ("val_loss_t0.05", "val/flow/nmse_t0"),
        ("g_dino", "grad/dino"),
        ("g_loss", "loss/disc"),
        ("grad_share/dino", "share/dino"),
        ("mse_shuffled_caption", "loss/shuffled"),
        ("beta_kl", "w/kl"),
    ],
)
def test_names_are_put_together_from_words(theirs, ours):
    assert canonical(theirs) == ours


def test_unknown_names_are_listed_and_can_be_mapped(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(
        "".join(json.dumps({"global_step": k, "wibble": 1.0, "train/fm_loss": 2.0}) + "\n" for k in range(5))
    )
    figures = read(log)
    assert figures.unknown == ["wibble"]
    assert figures.names == {"train/fm_loss": "loss/flow"}
    assert figures.metrics["loss/flow"].steps.tolist() == list(range(5))
    figures = read(log, {"wibble": "loss/kl"})
    assert figures.unknown == []
    assert figures.metrics["loss/kl"].last == 1.0
    log.write_text('{"step": 1, "wibble": 1.0}\n')
    with pytest.raises(UnknownLogError, match="its names are wibble: map them with --alias"):
        read(log)
