"""Hostile files: every reader refuses them with one line or reads them, in bounded time, and runs nothing."""

import pytest
import torch
from hostile import first, held
from hostile.readers import tried
from support.tiny_models import save_tiny_pipeline

from fmpipe.train import checkpoint

pytestmark = pytest.mark.slow
ROWS = [*first.ROWS, *held.ROWS]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folders around a hostile file."""
    place = tmp_path_factory.mktemp("whole")
    save_tiny_pipeline(place / "pipeline")
    parts = {"model": {"w": torch.ones(3)}, "optimizer": {"m": torch.ones(3)}, "rng": {"r": [1]}, "weights": {"a": 1.0}}
    meta = {"stage": "flow", "step": 1, "config": {"seed": 0}}
    saved = checkpoint.save(place / "checkpoints", 1, {**parts, "meta": meta})
    return {"pipeline": place / "pipeline", "checkpoint": saved}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.reader}-{row.name}")
def test_hostile_file(row, whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    got, said, seconds = tried(row, tmp_path, whole)
    assert seconds < 10
    assert row.expect in (got, "any"), f"{got}: {said}"
    if got == "refuse":
        assert said
        assert len(said) < 3000, "the error repeats the file"
        assert "\x1b" not in said
    assert "Traceback" not in said
