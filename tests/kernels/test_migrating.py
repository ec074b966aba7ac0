"""docs/migrating.md: every "before" runs on a third-party model, and every "after" gives the same numbers."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import third_party_model
import torch
from torch import nn

DOC = Path(__file__).parents[2] / "docs" / "migrating.md"
PAIR = re.compile(r"```python\n# before\n(.*?)```\n+```python\n# after\n(.*?)```", re.DOTALL)
PAIRS = [
    pytest.param(section.splitlines()[0], *pair, id=f"{section.splitlines()[0]}-{i}")
    for section in DOC.read_text().split("\n## ")[1:]
    for i, pair in enumerate(PAIR.findall(section))
]
RESULTS = {"out", "loss", "prediction", "z", "y", "z0", "kl", "x", "x_t", "target"}


@pytest.fixture
def my_project(monkeypatch):
    """The user's modules: the third-party model, and CrossFlow's path functions written out."""
    utils = ModuleType("my_project.fm_utils")
    utils.psi = lambda t, x0, x1: (t * (1e-5 - 1) + 1)[:, None, None, None] * x0 + t[:, None, None, None] * x1
    utils.Dt_psi = lambda t, x0, x1: (1e-5 - 1) * x0 + x1
    monkeypatch.setattr(
        third_party_model, "build_model", lambda: third_party_model.randomized(third_party_model.tiny()), raising=False
    )
    for name, module in {"my_project": ModuleType("my_project"), "my_project.model": third_party_model}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "my_project.fm_utils", utils)


def names(section):
    """The variables that a snippet of this section expects."""
    torch.manual_seed(0)
    latent = {"x0": torch.randn(2, 4, 32, 32), "x1": torch.randn(2, 4, 32, 32), "t": torch.tensor([0.2, 0.7])}
    model = third_party_model.tiny()
    for p in model.parameters():
        nn.init.normal_(p, 0.0 if p.dim() > 1 else 0.5, 0.05)
    given = {"torch": torch, "model": model, "steps": 4, "log_snr": torch.tensor([1.5, -2.0])}
    if section == "A plain flow-matching loop":
        given |= {k: v if k == "t" else v.flatten(1)[:, :6] for k, v in latent.items()}
        return given | {"net": lambda x, t: torch.sin(x) * (1 + t[:, None])}
    if section == "OpenUni-style models":
        given |= {"mu": torch.randn(2, 4096), "logvar": 5 * torch.randn(2, 4096), "eps": torch.randn(2, 4096)}
        return given | {"z0": torch.randn(2, 4096), "fm_gain": 3.5, "dt_scale": 0.5}
    scale = third_party_model.randomized(third_party_model.TDRMSNorm(64))
    given |= {"z0": latent["x0"], "tokens": torch.randn(2, 5, 64), "checkpoint": scale.state_dict()}
    return given | latent | {"x": latent["x0"], "null_indicator": torch.tensor([True, False])}


@pytest.mark.usefixtures("my_project")
@pytest.mark.parametrize(("section", "before", "after"), PAIRS)
def test_after_gives_what_before_gave(section, before, after, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    results = []
    for code in (before, after):
        space = names(section)
        given = dict(space)
        exec(compile(code, f"migrating.md: {section}", "exec"), space)
        made = {name: space[name] for name in RESULTS & space.keys() if space[name] is not given.get(name)}
        if "loss" in made:
            made |= {name: p.grad for name, p in space["model"].named_parameters() if p.grad is not None}
        made["lines"] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step0: |x|=")]
        results.append(made)
    assert results[0].keys() == results[1].keys() != {"lines"}
    lines = [made.pop("lines") for made in results]
    assert lines[0] == (lines[1] if lines[0] else [])
    for name, expected in results[0].items():
        torch.testing.assert_close(results[1][name], expected, atol=5e-5, rtol=2e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_every_block_belongs_to_a_pair():
    assert DOC.read_text().count("```python") == 2 * len(PAIRS)
    assert len(PAIRS) >= 9
