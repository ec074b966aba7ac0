"""Data as users have them: datasets on disk, parquet and webdataset shards, written by the real libraries."""

import io
import re
import subprocess
import sys
import tarfile
import warnings

import datasets
import pyarrow as pa
import pytest
import torch
import webdataset as wds
from PIL import Image
from support.sources import STRUCT, parquet, picture, png, structs, written

from fmpipe.data import HF, Mixture, Shapes, Shards
from fmpipe.data.sources import kind_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
datasets.disable_progress_bars()

COLOURS = {"red": (255, 0, 0), "lime": (0, 255, 0), "blue": (0, 0, 255)}


def near(image, colour):
    return (image.double().mean((1, 2)) - torch.tensor(COLOURS[colour])).abs().max() < 3


# Datasets of Hugging Face and parquet


def saved(folder, splits=None, **columns):
    """A dataset written by save_to_disk; splits: the names in a DatasetDict."""
    kinds = {Image.Image: datasets.Image(), list: datasets.List(datasets.Value("string"))}
    features = {
        name: next((kinds[kind] for kind in kinds if isinstance(values[0], kind)), datasets.Value("string"))
        for name, values in columns.items()
    }
    data = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    whole = datasets.DatasetDict({name: data if name == "train" else data.select([0]) for name in splits or ()})
    (whole if splits else data).save_to_disk(folder)
    return folder


@pytest.mark.parametrize("caption", ["caption", "text", "prompt", "captions", "Caption"])
@pytest.mark.parametrize("image", ["image", "img", "jpg", "webp", "Picture of it"])
def test_columns_are_found_by_their_usual_names(tmp_path, image, caption):
    file = parquet(tmp_path / "a.parquet", url=["u", "v"], **{image: structs("red", "blue"), caption: ["one", "two"]})
    source = HF(file, size=8)
    assert [item.captions for item in source] == [("one",), ("two",)]
    assert near(source[0].image, "red")
    assert near(source[1].image, "blue")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_every_kind_of_image_in_a_dataset(tmp_path, mode):
    made = Image.new("I;16", (8, 8), 0xFFFF) if mode == "I;16" else picture("white", mode)
    source = HF(saved(tmp_path / "d", image=[made], text=["white"]), size=4)
    assert source[0].image.shape == (3, 4, 4)
    assert source[0].image.dtype == torch.uint8
    assert source[0].image.min() > 250


@pytest.mark.parametrize(
    ("splits", "path", "count"),
    [(None, "", 3), (["train"], "", 3), (["test", "train"], "", 3), (["test", "train"], "test", 1), (["test"], "", 1)],
    ids=["dataset", "dict", "dict with a train split", "a split by its path", "the only split"],
)
def test_a_dataset_on_disk_and_its_splits(tmp_path, splits, path, count):
    columns = {"image": [picture(c) for c in COLOURS], "captions": [["a", " b "], ["c"], ["d", ""]]}
    source = HF(saved(tmp_path / "d", splits, **columns) / path, size=8)
    assert len(source) == count
    assert source.captions == [("a", "b"), ("c",), ("d",)][:count]
    assert [near(source[i].image, c) for i, c in zip(range(count), COLOURS)] == [True] * count
    assert HF(tmp_path / "d" / path, size=8).digest == source.digest
    assert HF(tmp_path / "d" / path, size=16).digest != source.digest
    with pytest.raises(IndexError):
        source[count]


def test_a_dataset_of_several_splits_needs_one(tmp_path):
    saved(tmp_path / "d", ["test", "dev"], image=[picture()], text=["x"])
    with pytest.raises(ValueError, match=r"d has the splits dev, test and no train: .*path=\S*d/dev"):
        HF(tmp_path / "d")


def test_parquet_shards_are_read_in_order_and_split_by_stable_keys(tmp_path):
    first = parquet(tmp_path / "data/train-1.parquet", image=structs("red", "lime", "blue"), text=["a", "b", "c"])
    parquet(tmp_path / "data/train-2.parquet", image=structs("blue"), text=["d"])
    parquet(tmp_path / "data/test-1.parquet", image=structs("lime"), text=["e"])
    whole, one = HF(tmp_path, size=8), HF(first, size=8)
    assert whole.captions == [("a",), ("b",), ("c",), ("d",)]
    assert whole.keys[:3] == one.keys
    assert len(set(whole.keys)) == 4
    assert [near(whole[i].image, c) for i, c in ((3, "blue"), (1, "lime"), (0, "red"), (2, "blue"), (-1, "blue"))]
    assert HF(str(tmp_path / "data/*.parquet"), size=8).captions[0] == ("e",)
    digest = whole.digest
    parquet(tmp_path / "data/train-2.parquet", image=structs("blue"), text=["other"])
    assert HF(tmp_path, size=8).digest != digest


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("binary", {"jpg": [png("red", "JPEG"), png("blue", "JPEG")]}),
        ("large binary", {"jpg": pa.array([png("red"), png("blue")], pa.large_binary())}),
        ("paths", {"image": ["red.png", "blue.png"]}),
        (
            "paths in structs",
            {"image": pa.array([{"bytes": None, "path": f"{c}.png"} for c in ("red", "blue")], STRUCT)},
        ),
    ],
)
def test_how_parquet_files_store_images(tmp_path, kind, columns):
    for colour in ("red", "blue"):
        (tmp_path / f"{colour}.png").write_bytes(png(colour))
    source = HF(parquet(tmp_path / "a.parquet", text=["x", "y"], **columns), size=8)
    assert near(source[0].image, "red")
    assert near(source[1].image, "blue")
    digest = source.digest
    (tmp_path / "red.png").write_bytes(png("lime"))
    assert (HF(tmp_path / "a.parquet", size=8).digest != digest) == kind.startswith("paths")


def test_rows_without_a_caption_or_an_image_are_left_out_and_told(tmp_path):
    texts = pa.array([["a"], None, [], [None, " "], ["b", None], ["c"]], pa.list_(pa.string()))
    images = structs("red", "red", "red", "red", None, "blue")
    with pytest.warns(UserWarning, match=r"a\.parquet: 4 of 6 rows .* no image or no caption .* row 1"):
        source = HF(parquet(tmp_path / "a.parquet", image=images, caption=texts), size=8)
    assert source.captions == [("a",), ("c",)]
    assert near(source[1].image, "blue")
    with pytest.warns(UserWarning, match=r"1 of 6 rows have no image and"):  # captions are not asked for
        assert len(HF(tmp_path / "a.parquet", False, size=8)) == 5


def test_columns_can_be_chosen(tmp_path):
    file = parquet(
        tmp_path / "a.parquet", image=structs("red"), mask=structs("blue"), text=["short"], long=[["a", "b"]]
    )
    assert HF(file, size=8).captions == [("short",)]
    source = HF(file, "long", size=8, image_column="mask")
    assert source.captions == [("a", "b")]
    assert near(source[0].image, "blue")
    assert source.digest != HF(file, size=8).digest


@pytest.mark.parametrize(
    ("columns", "arguments", "message"),
    [
        ({"a": [1]}, {}, r"a\.parquet has no image column: .* 'a' \(int64\).*image_column"),
        ({"a": structs("red"), "b": structs("red")}, {}, r"no image column: .*'a' .*'b'"),
        ({"image": [1.0], "text": ["x"]}, {}, r"column 'image' is double, expected"),
        ({"image": structs("red"), "label": [1]}, {}, r"no caption column: .*'label' \(int64\).*captions"),
        ({"image": structs("red"), "text": [1]}, {}, r"column 'text' is int64, expected strings"),
        ({"image": structs("red"), "text": ["x"]}, {"captions": "txet"}, r"no column 'txet'.*'image'.*'text'"),
        ({"image": structs("red"), "text": ["x"]}, {"image_column": "no"}, r"no column 'no'"),
        ({"image": structs(None), "text": ["x"]}, {}, r"no row with an image and a caption"),
    ],
)
def test_columns_that_do_not_fit_are_named(tmp_path, columns, arguments, message):
    with warnings.catch_warnings(), pytest.raises(ValueError, match=message):
        warnings.simplefilter("ignore")
        HF(parquet(tmp_path / "a.parquet", **columns), **arguments)


def test_damaged_files_and_rows_are_named(tmp_path):
    images = pa.array([{"bytes": b, "path": None} for b in (png(), png()[:30], b"no")], STRUCT)
    parquet(tmp_path / "a.parquet", image=structs("red"), text=["x"])
    file = parquet(tmp_path / "b.parquet", image=images, text=["x", "y", "z"])
    source = HF(tmp_path, size=8)
    assert near(source[1].image, "red")
    for i, row in ((2, 1), (3, 2)):
        with pytest.raises(ValueError, match=rf"b\.parquet, row {row} cannot be read as an image"):
            source[i]
    parquet(file, image=structs("red"), caption=["x"])
    with pytest.raises(ValueError, match=r"b\.parquet has no column 'text'"):
        HF(tmp_path)
    whole = parquet(file, image=structs("red", "lime", "blue"), text=["x", "y", "z"]).read_bytes()
    for damaged in (b"", whole[: len(whole) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"b\.parquet cannot be read"):
            HF(tmp_path)
    file.write_bytes(whole[:4] + bytes(400) + whole[404:])  # its pages
    with pytest.raises(ValueError, match=r"b\.parquet cannot be read"):
        [*HF(tmp_path)]
    parquet(file, image=["none.png"], text=["x"])
    with pytest.raises(ValueError, match=r"b\.parquet, row 0 cannot be read as an image.*none\.png"):
        HF(file)[0]


@pytest.mark.parametrize("path", ["nothing", "nothing/*.parquet", "empty"])
def test_nothing_to_read(tmp_path, path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"path .* parquet"):
        HF(tmp_path / path)


def test_a_damaged_dataset_on_disk_is_named(tmp_path):
    saved(tmp_path / "d", image=[picture()], text=["x"])
    next((tmp_path / "d").glob("*.arrow")).write_bytes(b"no")
    with pytest.raises(ValueError, match=r"\bd cannot be read"):
        HF(tmp_path / "d")


# Webdataset


def test_shards_are_what_the_library_reads(tmp_path):
    samples = [
        {"__key__": "a", "png": picture("red"), "txt": "one"},
        {"__key__": "d.x/b", "JPG": png("lime", "JPEG"), "json": {"caption": "two", "key": 3}},
        {"__key__": "c", "webp": png("blue", "WEBP"), "json": {"prompt": "three"}, "cls": 4},
    ]
    written(tmp_path, samples, encoder=True)
    for pattern in ("s-*.tar", "s-{000..001}.tar", ""):
        source = Shards(tmp_path / pattern if pattern else tmp_path, size=8)
        assert [near(item.image, c) for item, c in zip(source, COLOURS, strict=True)] == [True] * 3
        assert source.captions == [("one",), ("two",), ("three",)]
    stream = wds.WebDataset(str(tmp_path / "s-{000..001}.tar"), shardshuffle=False, empty_check=False)
    theirs = [(s["__url__"], s["__key__"], next(s[k] for k in ("png", "jpg", "webp") if k in s)) for s in stream]
    ours = [(str(m.shard), m.name.partition(".")[0], m.read()) for m in source.members.values()]
    assert [(url, data) for url, _, data in theirs] == [(url, data) for url, _, data in ours]
    assert [f"s-{k // 2:03d}/{key}" for k, (_, key, _) in enumerate(theirs)] == source.keys


def test_files_of_a_sample_need_not_be_neighbours(tmp_path):
    """As in a tar file of a folder; the library makes two samples of each."""
    with tarfile.open(tmp_path / "s.tar", "w") as shard:
        for suffix in ("png", "txt"):
            for key in COLOURS:
                data = png(key) if suffix == "png" else key.encode()
                info = tarfile.TarInfo(f"{key}.{suffix}")
                info.size = len(data)
                shard.addfile(info, io.BytesIO(data))
    assert Shards(tmp_path / "s.tar", size=8).captions == [(key,) for key in COLOURS]
    stream = wds.WebDataset(str(tmp_path / "s.tar"), shardshuffle=False, empty_check=False)
    assert len([*stream]) == 2 * len(COLOURS)


def test_a_missing_shard_is_named(tmp_path):
    written(tmp_path, [{"__key__": "a", "png": png(), "txt": "x"}])
    with pytest.raises(FileNotFoundError, match=r"s-001\.tar"):
        Shards(tmp_path / "s-{000..001}.tar")


def test_a_compressed_shard_is_named(tmp_path):
    written(tmp_path, [{"__key__": "a", "png": png(), "txt": "x"}], compress=True)
    with pytest.raises(ValueError, match=r"s-000\.tar.*uncompressed"):
        Shards(tmp_path / "*.tar")


# Several sources


class Counted:
    def __init__(self, name, count):
        self.keys = [f"{name}{k}" for k in range(count)]
        self.captions = [(key,) for key in self.keys]
        self.digest = name

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, i):
        return Shapes(len(self), 16)[i]._replace(key=self.keys[i], captions=self.captions[i])


def test_a_mixture_is_its_sources_one_after_the_other():
    mixture = Mixture({"a": Counted("a", 3), "b": Counted("b", 2)}, [1.0, 2.0])
    assert mixture.keys == ["a/a0", "a/a1", "a/a2", "b/b0", "b/b1"]
    assert [item.key for item in mixture] == mixture.keys
    assert mixture[-1].captions == ("b1",)
    with pytest.raises(IndexError):
        mixture[5]
    assert mixture.parts == [range(3), range(3, 5)]


@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_wrong_weights_are_refused(weights):
    with pytest.raises(ValueError, match="weight"):
        Mixture({"a": Counted("a", 3), "b": Counted("b", 2)}, weights)


def test_kinds_are_told_by_what_is_there(tmp_path):
    saved(tmp_path / "hf", image=[picture()], text=["x"])
    parquet(tmp_path / "pq/data/train.parquet", image=structs("red"), text=["x"])
    (tmp_path / "tar").mkdir()
    with wds.TarWriter(str(tmp_path / "tar/a.tar")) as sink:
        sink.write({"__key__": "a", "png": png(), "txt": "x"})
    (tmp_path / "plain").mkdir()
    picture().save(tmp_path / "plain/a.png")
    for path, kind in {
        "hf": "hf",
        "pq": "hf",
        "pq/data/train.parquet": "hf",
        "tar": "shards",
        "tar/a.tar": "shards",
        "plain": "folder",
    }.items():
        assert kind_of(tmp_path / path) == kind


@pytest.mark.parametrize(
    ("module", "path"), [("datasets", "hf"), ("pyarrow", "a.parquet"), ("webdataset", "s-{0..1}.tar")]
)
def test_a_missing_package_is_one_line(tmp_path, module, path):
    saved(tmp_path / "hf", image=[picture()], text=["x"])
    parquet(tmp_path / "a.parquet", image=structs("red"), text=["x"])
    source = "shards" if path.endswith("tar") else "hf"
    changes = [f"data.source={source}", f"data.path={tmp_path / path}", f"out={tmp_path}/run"]
    arguments = ["fmpipe", "train", "--config", "shapes-tiny", *changes]
    code = f"import sys; sys.modules[{module!r}] = None; sys.argv = {arguments}; "
    code += "from fmpipe.__main__ import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    lines = [line for line in result.stderr.splitlines() if not re.search("starting|importing", line)]
    assert result.returncode == 1
    assert len(lines) == 1, result.stderr
    assert re.search(rf"needs the package .*{module}.*pip install", lines[0])
