"""docs/diffusers.md's recipe: Sana conditioned on learned queries of a language model, trained and sampled."""

import re
from pathlib import Path

import pytest
import torch
from support.language_models import save_language_model
from support.tiny_models import tiny_dc_vae

diffusers = pytest.importorskip("diffusers")

PAGE = Path(__file__).parents[2] / "docs" / "diffusers.md"


def recipe() -> list[str]:
    """The two blocks of the page's section."""
    section = PAGE.read_text(encoding="utf-8").split("## OpenUni's generator")[1]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


@pytest.mark.slow
def test_the_recipe_trains_the_queries_and_draws(tmp_path, capsys):
    folder = save_language_model("llama", tmp_path / "llm", max_position_embeddings=512, initializer_range=0.5)
    torch.manual_seed(0)
    sana = diffusers.SanaTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_attention_heads=2,
        attention_head_dim=16,
        num_cross_attention_heads=2,
        cross_attention_head_dim=16,
        cross_attention_dim=32,
        caption_channels=32,
        sample_size=16,
    )
    images = torch.tensor([1.0, -1.0]).view(2, 1, 1, 1).expand(2, 4, 16, 16)
    names = {"folder": folder, "queries": 4, "sana": sana, "lr": 5e-3, "side": 32}
    names |= {"batches": [(["red", "blue"] * 4, images.repeat(4, 1, 1, 1))] * 150}
    names["vae"] = tiny_dc_vae()
    training, drawing = recipe()
    exec(compile(training, str(PAGE), "exec"), names)
    losses = [float(x) for x in re.findall(r"loss ([\d.]+)", capsys.readouterr().out)]
    assert sum(losses[-20:]) < 0.8 * sum(losses[:20])
    untrained = type(names["text"]).from_pretrained(folder, num_queries=4)
    assert not torch.equal(names["text"].queries, untrained.queries)
    assert all(not p.requires_grad for p in names["text"].model.parameters())

    exec(compile(drawing, str(PAGE), "exec"), names)
    assert names["image"].size == (32, 32)
    assert len(re.findall(r"^step\d+: \|x\|=", capsys.readouterr().out, re.MULTILINE)) == 20

    def end(prompt):
        """The end latents, from the same noise for every prompt."""
        with torch.no_grad():
            states, mask = names["text"]([prompt])
        given = {"prompt_embeds": states, "prompt_attention_mask": mask.float(), "output_type": "latent"}
        size = {"height": 32, "width": 32, "use_resolution_binning": False}
        generator = torch.Generator().manual_seed(0)
        return names["pipe"](**given, **size, guidance_scale=1.0, generator=generator).images

    red, blue = end("red"), end("blue")
    assert red.shape == (1, 4, 16, 16)
    assert torch.nn.functional.mse_loss(red, blue) > 0.1
    assert torch.nn.functional.mse_loss(red, images[:1]) < torch.nn.functional.mse_loss(red, images[1:])
    assert torch.nn.functional.mse_loss(blue, images[1:]) < torch.nn.functional.mse_loss(blue, images[:1])
