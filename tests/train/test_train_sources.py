"""Training on every kind of source: what a step draws of a mixture, and runs that end with the same weights."""

import os
import re
import subprocess
import sys
from collections import Counter

import datasets
import numpy as np
import pytest
import torch
import webdataset as wds
from PIL import Image
from support.commands import run as command
from support.sources import parquet, png, structs
from support.training import CutError, changed, same, states, steps_of, stop_at

from fmpipe.data import Folder, cache_latents
from fmpipe.pipeline import FlowPipeline
from fmpipe.train import settings
from fmpipe.train.batches import MixedOrder, Order, order_of
from fmpipe.train.inputs import StageInputs
from fmpipe.train.run import run
from fmpipe.vae import LatentVAE

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
datasets.disable_progress_bars()


# What a step draws


@pytest.mark.parametrize(
    ("sizes", "weights", "batch"),
    [
        ([5, 50], [1, 1], 4),
        ([3, 7, 11], [1, 2, 4], 1),
        ([40, 2], [0.1, 0.9], 7),
        ([1, 1000], [1, 999], 16),
        ([4] * 9, [3, 1, 4, 1, 5, 9, 2, 6, 5], 5),
        ([6], [2.5], 3),
    ],
)
def test_items_are_drawn_by_their_sources_weight(sizes, weights, batch):
    """Every share to within two draws at all times, every item of a source as often as its others."""
    ends = np.cumsum(sizes)
    groups = [range(end - size, end) for end, size in zip(ends.tolist(), sizes)]
    order = MixedOrder(groups, weights, batch, 0)
    seen, steps = Counter(), 3000 // batch
    for step in range(steps):
        chosen = order(step).tolist()
        assert len(chosen) == batch
        seen.update(chosen)
        for group, weight in zip(groups, weights):
            share = (step + 1) * batch * weight / sum(weights)
            assert abs(sum(seen[i] for i in group) - share) < 1 + len(sizes) / 2
            counts = [seen[i] for i in group]
            assert max(counts) - min(counts) <= 1
    for group, weight in zip(groups, weights):
        rate = weight / sum(weights) / len(group)
        assert all(abs(seen[i] / (steps * batch) - rate) < 0.01 for i in group)


@pytest.mark.parametrize("step", [0, 1, 17, 10**6])
def test_a_draw_depends_on_the_seed_and_the_step_alone(step):
    make = lambda seed: MixedOrder([range(8), range(8, 400)], [1, 2], 12, seed)  # noqa: E731
    used, fresh = make(0), make(0)
    for k in (3, 0, 9):
        used(k)
    assert torch.equal(used(step), fresh(step))
    assert not torch.equal(make(1)(step), fresh(step))
    assert len(set(fresh(step).tolist())) == 12  # no picture is its own negative


def test_counts_never_fall():
    for weights in ([1, 1], [1, 3], [0.1, 0.2, 0.7], [1e-3, 1], [7, 5, 3, 2, 1, 1]):
        order = MixedOrder([[k] for k in range(len(weights))], weights, 1, 0)
        before = order.counts(0)
        for draws in range(1, 2000):
            now = order.counts(draws)
            assert sum(now) == draws
            assert sorted(b - a for a, b in zip(before, now)) == [0] * (len(weights) - 1) + [1]
            before = now


def test_others_are_drawn_by_weight_and_never_twice():
    order, draw, seen = MixedOrder([range(4), range(4, 40)], [3, 1], 2, 0), torch.Generator().manual_seed(0), Counter()
    for step in range(400):
        chosen = order(step)
        others = order.others(chosen, 1, draw)
        assert not torch.isin(others, chosen).any()
        seen.update((others < 4).tolist())
    assert 0.6 < seen[True] / seen.total() < 0.8
    every = order.others(order(0), 1000, draw)
    assert sorted([*every.tolist(), *order(0).tolist()]) == list(range(40))


def test_one_source_is_ordered_as_before():
    assert type(order_of(range(5), 2, 0)) is Order
    epoch = torch.cat([Order(range(6), 3, 0)(k) for k in range(2)])
    assert sorted(epoch.tolist()) == list(range(6))


# Runs


SHOWN = ["red", "lime", "blue", "black", "yellow", "cyan"]


def folder_of(place, colours=SHOWN):
    place.mkdir(parents=True)
    for k, colour in enumerate(colours):
        Image.new("RGB", (16, 16), colour).save(place / f"{k}.png")
        (place / f"{k}.txt").write_text(f"{colour} square")
    return place


def dataset_of(place):
    data = {"image": [Image.new("RGB", (16, 16), c) for c in SHOWN], "text": [f"{c} square" for c in SHOWN]}
    kinds = datasets.Features({"image": datasets.Image(), "text": datasets.Value("string")})
    datasets.Dataset.from_dict(data, features=kinds).save_to_disk(place)
    return place


def parquet_of(place):
    return parquet(place / "train-0.parquet", image=structs(*SHOWN), text=[f"{c} square" for c in SHOWN])


def shards_of(place):
    place.mkdir()
    with wds.TarWriter(str(place / "s.tar")) as sink:
        for k, colour in enumerate(SHOWN):
            sink.write({"__key__": str(k), "png": png(colour), "txt": f"{colour} square"})
    return place / "*.tar"


def latents_of(place, vae, images, sample=False):
    """Moments, or samples as they are, of a folder of images, as a trainer would store them."""
    place.mkdir()
    moments = cache_latents(Folder(images, size=16), vae, place / "cache").moments
    with wds.TarWriter(str(place / "s.tar")) as sink:
        for k, colour in enumerate(SHOWN):
            x = moments[k].chunk(2)[0] if sample else moments[k]
            sink.write({"__key__": str(k), "npy": x.numpy(), "json": {"caption": f"{colour} square"}})
    return place / "s.tar"


def on(tiny, out, source, path, *more):
    given = [f"data.source={source}", f"data.path={path}", "data.val=0"]
    return changed(tiny, out, *given, *more)


@pytest.mark.parametrize("kind", ["hf", "parquet", "shards", "latents"])
def test_the_same_images_train_the_same_weights_wherever_they_are(tiny, tmp_path, kind):
    """Bit by bit as from a folder of images, to a pipeline that draws."""
    images = folder_of(tmp_path / "images")
    plain = on(tiny, tmp_path / "plain", "folder", images)
    run(plain)
    if kind == "latents":
        path = latents_of(tmp_path / kind, LatentVAE.from_pretrained(tiny.vae.path), images)
    else:
        path = {"hf": dataset_of, "parquet": parquet_of, "shards": shards_of}[kind](tmp_path / kind)
    other = on(tiny, tmp_path / "other", "hf" if kind == "parquet" else kind, path)
    left = run(other)
    assert same(states(plain)["model"], states(other)["model"])
    pipe = FlowPipeline.from_pretrained(left["flow"])
    assert pipe("red square", 2, output_type="pt").images.shape == (1, 3, 16, 16)
    assert pipe.config.source is None


def mixed(tiny, tmp_path, name, *more):
    """Drawn shapes, a dataset, and sampled latents, by weight."""
    if not (tmp_path / "images").exists():
        folder_of(tmp_path / "images")
        dataset_of(tmp_path / "set")
        latents_of(tmp_path / "tar", LatentVAE.from_pretrained(tiny.vae.path), tmp_path / "images", sample=True)
    sources = (
        f"data.sources=[{{source: shapes}}, {{source: hf, path: {tmp_path}/set, weight: 2}}, "
        f"{{source: latents, path: {tmp_path}/tar/s.tar, weight: 0.5, latents_scaled: false}}]"
    )
    return changed(tiny, tmp_path / name, sources, "flow.losses.others=4", *more)


def test_a_mixture_trains_and_is_resumed_bit_by_bit(tiny, tmp_path):
    whole, cut = mixed(tiny, tmp_path, "whole"), mixed(tiny, tmp_path, "cut")
    material = StageInputs(whole)
    assert {k for k, part in enumerate(material.source.parts) for i in material.train if i in part} == {0, 1, 2}
    run(whole)
    with pytest.raises(CutError):
        run(cut, on_log=stop_at(5))
    assert states(cut)["meta"]["step"] == 4
    run(cut, resume="latest")
    a, b = states(whole), states(cut)
    for part in ("model", "ema", "optimizer", "weights", "rng"):
        assert same(a[part], b[part]), part


def test_two_processes_agree_on_a_mixture(tiny, tmp_path):
    one = mixed(tiny, tmp_path, "one", "every.validate=0", "every.sample=0")
    run(one)
    two = settings.with_overrides(one, [f"out={tmp_path / 'two'}"])
    settings.dump(two, tmp_path / "two.yaml")
    arguments = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "fmpipe", "train"]
    done = subprocess.run(
        [sys.executable, *arguments, "--config", str(tmp_path / "two.yaml")],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    for a, b in zip(steps_of(one), steps_of(two), strict=True):
        assert b["loss/total"] == pytest.approx(a["loss/total"], rel=1e-5, abs=1e-6)


def test_a_mixture_trains_all_stages(tiny, tmp_path):
    folder_of(tmp_path / "images")
    sources = f"data.sources=[{{source: shapes}}, {{source: folder, path: {tmp_path}/images, weight: 3}}]"
    config = settings.with_overrides(
        tiny, [f"out={tmp_path}/run", "vae.path=null", "stages=[vae, flow, diffusion]", sources]
    )
    config.data.limit = 4
    material = StageInputs(config)
    assert [sum(i in part for i in material.train) for part in material.source.parts] == [2, 2]
    left = run(config)
    assert set(left) == {"vae", "flow", "diffusion"}
    assert FlowPipeline.from_pretrained(left["flow"]).config.source is None  # not shapes alone


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["data.source=hf"], r"data\.path is missing: data\.source 'hf' needs one"),
        (["data.sources=[{source: hf}]"], r"data\.sources\[0\]\.path is missing"),
        (
            ["data.sources=[{source: shapes, weight: 0}]"],
            r"config\.data\.sources\[0\]: weight must be a positive number",
        ),
        (["data.sources=[{source: shapes, wieght: 1}]"], r"config\.data\.sources\[0\]\.wieght: unknown key"),
        (["data.sources=[{source: shapes}, {source: shapes}]"], r"data\.sources\[1\]: shapes is given twice"),
        (["data.sources=[{source: shapes}]", "data.path=x"], r"config\.data: path and sources exclude each other"),
        (["vae.path=null", "stages=[vae, flow]"], r"config\.data: latents cannot train an autoencoder: .*vae\.path"),
        (["data.size=32"], r"config\.data: .*s\.tar: 0\.npy has the shape \(8, 8, 8\); .*data\.size 32"),
        (["data.latents_scaled=true"], r"config\.data: .*0\.npy has moments"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_stage(tiny, tmp_path, changes, said):
    images = folder_of(tmp_path / "images")
    path = latents_of(tmp_path / "tar", LatentVAE.from_pretrained(tiny.vae.path), images)
    base = [] if any("source" in c for c in changes) else ["data.source=latents", f"data.path={path}"]
    settings.dump(tiny, tmp_path / "c.yaml")
    result = command("train", "--config", tmp_path / "c.yaml", f"out={tmp_path}/run", *base, *changes)
    assert result.exit_code == 2, result.output
    assert re.search(said, result.stderr), result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", [dataset_of, parquet_of, lambda place: shards_of(place).parent])
def test_check_measures_on_every_kind_of_images(tiny, tmp_path, kind):
    path = kind(tmp_path / "data")
    result = command("check", tiny.out, "--images", path, "--out", tmp_path / "out", "--steps", 2)
    assert result.exit_code in (0, 1), result.output
    assert (tmp_path / "out/check.json").is_file()
    assert '"vae_round_trip"' in (tmp_path / "out/check.json").read_text()
    result = command("check", tiny.out, "--images", path, "--captions", __file__, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "--captions is for a folder of images" in result.stderr
