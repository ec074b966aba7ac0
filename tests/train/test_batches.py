"""What a step of the flow trains on: its rows, captions, tokens and ends, as functions of the step."""

from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL

from fmpipe.data.cache import Latents, States
from fmpipe.models import LinearHead
from fmpipe.train.batches import FlowBatches, PixelBatches
from fmpipe.train.config import Data, Flow, Losses, Optim
from fmpipe.train.inputs import held_out_captions
from fmpipe.vae import LatentVAE

ITEMS, TOKENS = 12, 5
CAPTIONS = [[f"{i} {word}" for word in ("one", "two", "three")] for i in range(ITEMS)]


@pytest.fixture(scope="module")
def data():
    torch.manual_seed(0)
    moments = torch.randn(ITEMS, 8, 2, 2)
    moments[:, 4:] = -30  # no noise: a latent tells whose it is
    items = [{"key": str(i), "captions": CAPTIONS[i], "labels": {}} for i in range(ITEMS)]
    index = {text: k for k, text in enumerate(text for texts in CAPTIONS for text in texts)}
    states = States(index, torch.randn(len(index), TOKENS, 3).half(), torch.ones(len(index), TOKENS).bool(), Path(), "")
    vae = LatentVAE.from_diffusers(AutoencoderKL(latent_channels=4, block_out_channels=[4], norm_num_groups=2))
    return Latents(moments, items, Path(), ""), states, vae


def batches(data, *, batch=8, captions=None, token_dropout=0.0, **losses):
    settings = Flow(optim=Optim(batch=batch), losses=Losses(**losses), token_dropout=token_dropout)
    return FlowBatches(*data, range(ITEMS), settings, 0, captions=captions)


def test_null_samples_go_to_another_null_samples_end(data):
    batch = batches(data, null=0.5)(3)
    null, z1, ends = batch["null"], batch["z1"], batch["ends"]
    assert 2 <= null.sum() < len(null)
    assert torch.equal(ends[~null], z1[~null])
    assert torch.equal(ends[null], z1[null].roll(1, 0))
    assert not any(torch.equal(a, b) for a, b in zip(ends[null], z1[null], strict=True))


def test_tokens_are_dropped_but_never_all(data):
    masks = torch.cat([batches(data, token_dropout=0.5)(k)["mask"] for k in range(20)])
    assert masks[:, 0].all()
    assert masks[:, 1:].float().mean().item() == pytest.approx(0.5, abs=0.06)
    assert batches(data)(0)["mask"].all()


@pytest.mark.parametrize("others", [0, 3])
def test_processes_take_rows_of_one_batch(data, others):
    made = batches(data, null=0.5, token_dropout=0.3, others=others)
    whole = made(2)
    shared = ("candidates", "states", "mask") if others else ()
    for rows in (slice(0, 4), slice(4, 8)):
        for name, x in made(2, rows).items():
            assert torch.equal(x, whole[name] if name in shared else whole[name][rows]), name


def test_candidates_are_the_batch_and_others_not_in_it(data):
    batch = batches(data, others=3)(0)
    assert len(batch["candidates"]) == len(batch["states"]) == len(batch["mask"]) == 11
    assert torch.equal(batch["candidates"][batch["rows"]], batch["z1"])
    assert torch.pdist(batch["candidates"].flatten(1)).min() > 0.1  # different pictures, none twice
    assert torch.equal(batch["states"][:8], batches(data)(0)["states"])
    assert len(batches(data, others=100)(0)["candidates"]) == ITEMS
    assert "candidates" not in batches(data)(0)


def test_only_the_captions_given_are_drawn(data):
    made = batches(data, captions=[texts[1:] for texts in CAPTIONS])
    drawn = {text for k in range(30) for text in made.captions(k)}
    assert drawn == {text for texts in CAPTIONS for text in texts[1:]}


def test_captions_are_held_out_by_their_hash_but_the_first():
    item = {"captions": ["plain", *(f"caption {k}" for k in range(400))]}
    train, val = held_out_captions(item, Data(val=0.2))
    assert train[0] == "plain"
    assert sorted(train + val) == sorted(item["captions"])
    assert len(val) == pytest.approx(80, abs=20)
    assert held_out_captions({"captions": ["plain"]}, Data(val=1.0)) == (["plain"], [])


def test_pictures_are_turned_and_shifted_only_where_asked():
    class Source:
        def __getitem__(self, i):
            from fmpipe.data import Item

            return Item(torch.arange(3 * 64).view(3, 8, 8).byte(), ("x",), str(i))

    plain, moved = (PixelBatches(Source(), range(4), 4, (4, 2, 2), 0, augment) for augment in (False, True))
    assert torch.equal(plain(0)["eps"], moved(0)["eps"])
    assert (plain(0)["pixels"] == plain(0)["pixels"][0]).all()
    pixels = torch.cat([moved(k)["pixels"] for k in range(4)])
    assert len({tuple(x.flatten().tolist()) for x in pixels}) > 10
    assert all(torch.equal(x.flatten().sort()[0], pixels[0].flatten().sort()[0]) for x in pixels)


def test_a_pooled_head_knows_neither_order_nor_number_of_tokens():
    torch.manual_seed(0)
    head = LinearHead(6, 4, (2, 2, 2), hidden=8, pooled=True, dropout=0.5).eval()
    states, mask = torch.randn(2, 4, 6), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    mu, _ = head(states, mask)
    turned = head(states[:, [2, 0, 1, 3]], mask[:, [2, 0, 1, 3]])[0]
    torch.testing.assert_close(turned, mu)
    twice = head(states[:1, [0, 1, 0, 1]], torch.ones(1, 4))[0]
    torch.testing.assert_close(twice, head(states[:1], torch.tensor([[1, 1, 0, 0]]))[0])
    assert not torch.equal(head.train()(states, mask)[0], mu)  # dropout
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\), got 1"):
        LinearHead(6, 4, (2, 2, 2), dropout=1)
