"""The presets shapes-tiny and shapes-queries learn what they are for: some minutes on two idle cores."""

import pytest
import torch
from safetensors.torch import load_file
from shapes_tiny import FLOORS, PROMPTS, figures, right, trained

from fmpipe.run_log import read_log
from fmpipe.text import load_text_encoder
from fmpipe.train.presets import PRESETS

pytestmark = pytest.mark.slow
STEPS = 900  # of 1200


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shapes")
    trained("shapes-tiny", folder)
    return folder / "shapes-tiny"


@pytest.fixture(scope="module")
def queries(tiny):
    """The whole system, in three quarters of its steps, with the autoencoder of shapes-tiny, which is the same."""
    trained("shapes-queries", tiny.parent, f"vae.path={tiny / 'vae' / 'result'}", "keep=1", f"flow.optim.steps={STEPS}")
    return tiny.parent / "shapes-queries"


def test_it_draws_the_colours_it_is_asked_for(tiny):
    found = figures(tiny)
    assert {name: found[name] for name, floor in FLOORS.items() if found[name] < floor} == {}, found


def test_learned_queries_draw_the_colours_they_are_asked_for(queries):
    assert right(queries) >= 0.9
    assert right(queries, PROMPTS[7:] + PROMPTS[:7]) < 0.3  # the colour comes from the prompt


def test_learned_queries_move(queries):
    saved = load_file(queries / "pipeline" / "text_encoder" / "meta_queries.safetensors")["queries"]
    (model,) = (queries.parent / "cache").glob("lm-*")
    torch.manual_seed(0)
    first = load_text_encoder(PRESETS["shapes-queries"]().flow.encoder.spec() | {"model": str(model)}, tokens=16)
    assert ((saved - first.queries.detach()).norm(dim=1) / first.queries.norm(dim=1)).min() > 0.1
    ratios = [line.get("step/queries_update_ratio") for line in read_log(queries / "flow")]
    assert min(ratio for ratio in ratios if ratio is not None) > 1e-5


def test_learned_queries_have_a_lower_loss_than_frozen_random_ones(queries):
    """The language model is the same and frozen; nothing of the text encoder is trained in the second run."""
    frozen = queries.parent / "frozen"
    trained(
        "shapes-queries",
        queries.parent,
        f"out={frozen}",
        f"vae.path={queries.parent / 'shapes-tiny' / 'vae' / 'result'}",
        "flow.encoder.train_queries=false",
        "flow.encoder.lora=null",
        "flow.optim.groups={}",
        f"flow.optim.steps={STEPS}",
    )
    learned, control = (read_log(run / "flow")[-1] for run in (queries, frozen))
    assert learned["step"] == control["step"] == STEPS
    for name in ("val/loss/anchor", "val/loss/match"):
        assert learned[name] < 0.9 * control[name], name
