"""Sources of captioned pictures, their splits, and the caches of what frozen parts make of them."""

import io
import json
import os
import tarfile
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from support.tiny_models import tiny_clip, tiny_vae

from fmpipe.data import Folder, Shapes, Shards, cache, cache_latents, cache_states, dominant_colour, split, to_pixels
from fmpipe.data.folder import CAPTION_BYTES
from fmpipe.data.shapes import COLOURS, PLACES, SHAPES, SIZES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]  # slow to import diffusers and transformers

ALL = len(SHAPES) * len(COLOURS) * len(SIZES) * len(PLACES)


def encoded(image, kind="PNG", **options):
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def plain(colour="red", size=(8, 8), mode="RGB", kind="PNG", **options):
    return encoded(Image.new(mode, size, colour), kind, **options)


def filled(folder, files):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder


def tar(path, files):
    with tarfile.open(path, "w") as shard:
        for name, data in files.items():
            data = data if isinstance(data, bytes) else data.encode()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            shard.addfile(info, io.BytesIO(data))
    return path


# The split


def test_a_split_is_of_the_keys_alone():
    keys = [f"item {i}" for i in range(2000)]
    train, val = split(keys, 0.2)
    assert sorted(train + val) == list(range(2000))
    assert 340 < len(val) < 460
    more = [*(f"new {i}" for i in range(500)), *keys]
    assert {more[i] for i in split(more, 0.2)[1]} & set(keys) == {keys[i] for i in val}
    assert set(val) <= set(split(keys, 0.5)[1])
    assert split(keys, 0.2, seed=1)[1] != val


@pytest.mark.parametrize(("val", "sides"), [(0.0, (50, 0)), (0, (50, 0)), (1.0, (0, 50))])
def test_ends_of_a_split(val, sides):
    assert tuple(map(len, split([str(i) for i in range(50)], val))) == sides


def test_the_split_never_changes():
    assert split([f"{i}" for i in range(12)], 0.5, seed=7)[1] == [0, 2, 3, 5, 7]


@pytest.mark.parametrize("val", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(val):
    with pytest.raises(ValueError, match="val must be in"):
        split(["a"], val)


# Shapes


def test_shapes_go_through_all_combinations_before_the_next_round():
    source = Shapes(2 * ALL, size=16)
    items = list(source)
    assert len(items) == 2 * ALL
    for half in (items[:ALL], items[ALL:]):
        assert len({tuple(item.labels.values()) for item in half}) == ALL
    assert items[0].labels == items[ALL].labels
    assert not torch.equal(items[0].image, items[ALL].image)
    assert len({item.key for item in items}) == 2 * ALL
    assert Counter(item.labels["colour"] for item in items[:100]).keys() == COLOURS.keys()


def test_an_item_of_shapes_is_of_seed_index_and_size():
    source = Shapes(50, seed=3)
    item, again = source[20], Shapes(21, seed=3)[20]
    assert torch.equal(item.image, again.image)
    assert item[1:] == again[1:]
    assert torch.equal(source[-1].image, source[49].image)
    assert not torch.equal(item.image, Shapes(50, seed=4)[20].image)
    assert Shapes(50, size=48, seed=3)[20].image.shape == (3, 48, 48)
    with pytest.raises(IndexError):
        source[50]


@pytest.mark.parametrize("other", [{"count": 51}, {"size": 16}, {"seed": 1}])
def test_the_digest_of_shapes(other):
    assert Shapes(50).digest == Shapes(50, 32, 0).digest
    assert Shapes(**{"count": 50, **other}).digest != Shapes(50).digest


def test_shapes_are_where_and_as_large_as_said():
    for item in Shapes(ALL):
        ink = 255 - item.image.min(0).values.double()
        assert ink[0].sum() == ink[-1].sum() == ink[:, 0].sum() == ink[:, -1].sum() == 0
        at = (torch.arange(32) + 0.5) / 32
        x, y = ((ink.sum(dim) * at).sum() / ink.sum() for dim in (0, 1))
        assert (x.item(), y.item()) == pytest.approx(PLACES[item.labels["place"]], abs=0.06)
        width = (ink.sum(0) > 128).sum().item()
        assert (5 <= width <= 8) if item.labels["size"] == "small" else (9 <= width <= 14)


def test_captions_of_shapes():
    for item in Shapes(ALL):
        labels = item.labels
        said = item.captions
        assert all(word in said[0] for word in labels.values())
        assert len(set(said)) == len(said) >= 4
        assert all(labels["colour"] in text and labels["shape"] in text for text in said)
        assert not any("a orange" in text for text in said)


@pytest.mark.parametrize(("argument", "value"), [("count", 0), ("count", 1.5), ("size", 8)])
def test_bad_arguments_of_shapes(argument, value):
    with pytest.raises(ValueError, match=argument):
        Shapes(**{"count": 1, argument: value})


@pytest.mark.parametrize(
    ("count", "size", "blur", "noise", "share"),
    [
        (ALL, 32, 1, 0, 1),
        (200, 16, 1, 0, 1),
        (200, 64, 1, 0, 1),
        (200, 32, 1, 0.1, 1),
        (200, 32, 3, 0, 1),
        (200, 32, 3, 0.1, 1),
        (200, 32, 3, 0.2, 0.98),
    ],
)
def test_dominant_colour_finds_the_labels(count, size, blur, noise, share):
    right = 0
    for item in Shapes(count, size=size):
        x = to_pixels(item.image)
        x = F.avg_pool2d(F.pad(x[None], [blur // 2] * 4, value=1.0), blur, 1)[0] + noise * torch.randn_like(x)
        found = {dominant_colour(x)} | ({dominant_colour(item.image)} if not noise else set())
        right += found == {item.labels["colour"]}
    assert right >= share * count


def test_dominant_colour_of_two_and_of_none():
    image = torch.full((3, 8, 8), 255, dtype=torch.uint8)
    assert dominant_colour(image) == "white"
    assert dominant_colour(to_pixels(image) + 0.02 * torch.randn(3, 8, 8)) == "white"
    image[:, :4] = torch.tensor(COLOURS["blue"])[:, None, None]
    image[:, 4:6] = torch.tensor(COLOURS["red"])[:, None, None]
    assert dominant_colour(image) == "blue"
    with pytest.raises(ValueError, match="image must be"):
        dominant_colour(image[0])


# A folder

TWO = {"b.png": plain("red"), "sub/a.JPG": plain("blue", kind="JPEG")}


@pytest.mark.parametrize(
    ("captions", "files", "expected"),
    [
        (None, {"b.txt": "a red one\r\nred\r\n\r\n", "sub/a.txt": "blué"}, [("a red one", "red"), ("blué",)]),
        ("c.txt", {"c.txt": "one\ntwo\n"}, [("one",), ("two",)]),
        (
            "c.jsonl",
            {"c.jsonl": '{"file_name": "sub/a.JPG", "text": ["x", "y"]}\n\n{"file_name": "b.png", "text": " z "}\n'},
            [("z",), ("x", "y")],
        ),
        (
            "c.jsonl",
            {"c.jsonl": "\ufeff" + "".join(f'{{"file_name": "{k}", "text": "{t}"}}\n' for t in "xy" for k in TWO)},
            [("x", "y")] * 2,
        ),
    ],
    ids=["beside", "txt", "jsonl", "jsonl of several lines an image"],
)
def test_a_folder_and_its_captions(tmp_path, captions, files, expected):
    filled(tmp_path, {**TWO, **files, "._b.png": "a Mac's", "notes.md": "no image"})
    source = Folder(tmp_path, captions and tmp_path / captions, size=16)
    assert [(item.key, item.captions) for item in source] == list(zip(TWO, expected))
    red, blue = (item.image for item in source)
    assert red.dtype == torch.uint8
    assert red.shape == (3, 16, 16)
    assert red.is_contiguous()
    assert red[:, 3, 3].tolist() == [255, 0, 0]
    assert blue[2].min() > 240


@pytest.mark.parametrize(
    ("captions", "files", "message"),
    [
        (None, {"b.txt": "x"}, r"a\.JPG has no caption.*missing"),
        (None, {"b.txt": "x", "sub/a.txt": " \n"}, r"a\.JPG has no caption.*empty"),
        ("c.txt", {"c.txt": "one\n"}, "1 lines for 2 images"),
        ("c.txt", {"c.txt": "one\n two\nthree\n"}, "3 lines for 2 images"),
        ("c.txt", {"c.txt": "\ntwo\n"}, r"b\.png has no caption: line 1"),
        ("c.txt", {"c.txt": b"\xff\xfe\ntwo\n"}, r"c\.txt is not UTF-8"),
        ("c.jsonl", {"c.jsonl": '{"file_name": "b.png", "text": "x"}\n'}, r"sub/a\.JPG has no caption"),
        ("c.jsonl", {"c.jsonl": '{"file_name": "b.png", "text": "x"}\n{"file_na'}, r"c\.jsonl, line 2"),
        ("c.jsonl", {"c.jsonl": '\n{"file_name": "z.png", "text": "x"}'}, r"line 2: no image 'z\.png'"),
        ("c.jsonl", {"c.jsonl": '{"file_name": "b.png", "text": []}'}, "line 1: expected a caption"),
        ("c.jsonl", {"c.jsonl": '{"file_name": "b.png", "text": 3}'}, "line 1: expected a caption"),
        ("c.jsonl", {"c.jsonl": '{"file_name": "b.png"}'}, 'line 1: expected "file_name" and "text"'),
        ("c.jsonl", {"c.jsonl": "[1]"}, 'line 1: expected "file_name"'),
        ("c.jsonl", {"c.jsonl": '{"file_name": ["b.png"], "text": "x"}'}, "line 1"),
        ("c.xml", {"c.xml": ""}, r"captions must be a \.jsonl, \.csv or \.txt"),
    ],
)
def test_bad_captions_are_named(tmp_path, captions, files, message):
    filled(tmp_path, TWO | files)
    with pytest.raises(ValueError, match=message):
        Folder(tmp_path, captions and tmp_path / captions)


def test_a_folder_without_images(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(FileNotFoundError, match="has no images"):
            Folder(path)
    with pytest.raises(ValueError, match="size"):
        Folder(tmp_path, size=0)


@pytest.mark.parametrize("data", [b"", b"no image", plain(size=(64, 64))[:-40], plain("red", kind="GIF")])
def test_an_unreadable_image_is_named(tmp_path, data):
    source = Folder(filled(tmp_path, {"b.png": data, "b.txt": "x"}))
    with pytest.raises(ValueError, match=r"b\.png cannot be read as an image"):
        source[0]


def wide():
    """Red, green and blue side by side."""
    image = Image.new("RGB", (24, 8), "red")
    image.paste("lime", (8, 0, 16, 8))
    image.paste("blue", (16, 0, 24, 8))
    return image


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (encoded(wide()), (0, 255, 0)),
        (encoded(wide().rotate(90, expand=True)), (0, 255, 0)),
        (plain((255, 0, 0, 0), mode="RGBA"), (255, 255, 255)),
        (plain((0, 0, 0, 128), mode="RGBA"), (127, 127, 127)),
        (plain((100, 0), mode="LA"), (255, 255, 255)),
        (plain(0x4000, mode="I;16"), (64, 64, 64)),
        (plain(1, mode="1"), (255, 255, 255)),
        (plain("red", kind="WEBP", lossless=True), (255, 0, 0)),
        (plain((0, 0, 0, 255), mode="CMYK", kind="JPEG"), (0, 0, 0)),
    ],
    ids=["wide", "tall", "clear", "half clear", "grey and clear", "16 bit", "1 bit", "webp", "cmyk"],
)
def test_every_kind_of_image_is_cropped_and_on_white(tmp_path, data, expected):
    image = Folder(filled(tmp_path, {"b.png": data, "b.txt": "x"}), size=8)[0].image
    assert (image.double().mean((1, 2)) - torch.tensor(expected)).abs().max() < 1


def test_an_image_is_turned_upright(tmp_path):
    image = Image.new("RGB", (8, 8), "red")
    image.paste("blue", (0, 0, 8, 4))
    exif = image.getexif()
    exif[0x0112] = 3  # upside down
    source = Folder(filled(tmp_path, {"b.png": encoded(image, exif=exif), "b.txt": "x"}), size=8)
    assert source[0].image[:, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    "change", [{"b.png": plain("lime")}, {"b.txt": "other"}, {"c.png": plain("red"), "c.txt": "x"}, {"size": 32}]
)
def test_the_digest_of_a_folder(tmp_path, change):
    files = {"b.png": plain("red"), "b.txt": "x"}
    first = Folder(filled(tmp_path / "one", files)).digest
    assert Folder(filled(tmp_path / "two", files)).digest == first
    size = change.get("size", 64)
    changed = {k: v for k, v in change.items() if k != "size"}
    assert Folder(filled(tmp_path / "two", changed), size=size).digest != first


# Shards


def test_shards(tmp_path):
    tar(
        tmp_path / "s-0.tar",
        {
            "0.jpg": plain("red", kind="JPEG"),
            "0.txt": "one\ntwo",
            "0.json": '{"caption": "not this"}',
            "0.cls": "3",
            "d.x/1.json": '{"text": ["x", "y"]}',
            "d.x/1.png": plain("blue"),
            "2.json": '{"width": 8}',
            "2.txt": "three",
            "2.webp": plain("lime", kind="WEBP"),
        },
    )
    tar(tmp_path / "s-1.tar", {"0.png": plain("black"), "0.txt": "four"})
    source = Shards(tmp_path / "s-*.tar", size=16)
    assert [source[i].key for i in (3, 0, -1)] == ["s-1/0", "s-0/0", "s-1/0"]
    expected = {"s-0/0": ("one", "two"), "s-0/d.x/1": ("x", "y"), "s-0/2": ("three",), "s-1/0": ("four",)}
    assert {item.key: item.captions for item in source} == expected
    assert [dominant_colour(item.image) for item in source] == ["red", "blue", "green", "black"]
    digest = source.digest
    assert Shards(tmp_path / "s-*.tar", size=32).digest != digest
    tar(tmp_path / "s-1.tar", {"0.png": plain("black"), "0.txt": "five"})
    assert Shards(tmp_path / "s-*.tar", size=16).digest != digest


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.png": plain()}, r"a\.png has no caption"),
        ({"a.png": plain(), "a.txt": "\n"}, r"a\.png has no caption"),
        ({"a.png": plain(), "a.json": "{}"}, r"a\.png has no caption"),
        ({"a.png": plain(), "a.json": "{"}, r"s\.tar, member 'a\.json'"),
        ({"a.png": plain(), "a.json": "[]"}, r"'a\.json': expected a JSON object"),
        ({"a.png": plain(), "a.json": '{"caption": 3}'}, r"'a\.json': expected a caption"),
        ({"a.png": plain(), "a.txt": b"\xff"}, r"s\.tar, member 'a\.txt'"),
        ({"a.png": plain(), "a.jpg": plain(), "a.txt": "x"}, r"'a\.jpg': 'a\.png' has the same key"),
        ({"../a.png": plain(), "../a.txt": "x"}, r"'\.\./a\.png': it goes outside"),
        ({"/a.png": plain(), "/a.txt": "x"}, r"'/a\.png': it goes outside"),
    ],
)
def test_bad_members_are_named(tmp_path, files, message):
    with pytest.raises(ValueError, match=message):
        Shards(tar(tmp_path / "s.tar", files))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    with tarfile.open(tmp_path / "s.tar", "w") as shard:
        info = tarfile.TarInfo("a.png")
        info.type, info.linkname = kind, "b.png"
        shard.addfile(info)
    with pytest.raises(ValueError, match=r"'a\.png': it is a link, a device"):
        Shards(tmp_path / "s.tar")


def test_shards_that_are_not_or_are_cut(tmp_path):
    with pytest.raises(FileNotFoundError, match="matches no file"):
        Shards(tmp_path / "*.tar")
    tar(tmp_path / "s.tar", {"a.txt": "x"})
    with pytest.raises(FileNotFoundError, match="no images"):
        Shards(tmp_path / "s.tar")
    whole = tar(tmp_path / "s.tar", {"a.txt": "x", "a.png": os.urandom(5000)}).read_bytes()
    with pytest.raises(ValueError, match=r"s\.tar: a\.png cannot be read as an image"):
        Shards(tmp_path / "s.tar")[0]
    (tmp_path / "s.tar").write_bytes(whole[:4000])
    with pytest.raises(ValueError, match=r"s\.tar, member 'a\.png'"):
        Shards(tmp_path / "s.tar")
    with tarfile.open(tmp_path / "s.tar", "w:gz") as shard:
        shard.add(__file__, "a.txt")
    with pytest.raises(ValueError, match=r"s\.tar"):
        Shards(tmp_path / "s.tar")


# The caches


@pytest.fixture(scope="module")
def vae():
    return tiny_vae()


@pytest.fixture(scope="module")
def clip():
    return tiny_clip()


class Counted(Shapes):
    """Shapes of 16 pixels that act at an item."""

    def __init__(self, count, at=None, act=None):
        super().__init__(count, size=16)
        self.at, self.act = at, act

    def __getitem__(self, i):
        if i == self.at:
            self.act()
        return super().__getitem__(i)


def never(*_):
    raise AssertionError("encoded again")


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_latents_are_encoded_once(tmp_path, vae, monkeypatch):
    source = Shapes(11, size=16)
    made = cache_latents(source, vae, tmp_path / "new", batch=3, shard=4)
    pixels = torch.stack([item.image for item in source]).float() / 127.5 - 1
    torch.testing.assert_close(made.moments, vae.encode_moments(pixels), atol=1e-5, rtol=1e-5)
    assert made.moments.dtype == torch.float32
    assert not made.moments.requires_grad
    assert made.items[5] == {"key": source[5].key, "captions": list(source[5].captions), "labels": source[5].labels}
    assert made.path == tmp_path / "new" / f"latents-{made.digest}"
    assert names(made.path) == ["00000.safetensors", "00001.safetensors", "00002.safetensors", "done.json"]
    done = json.loads((made.path / "done.json").read_text())
    assert done["counts"] == [4, 4, 3]
    assert done["source"] == source.digest
    with monkeypatch.context() as patch:
        patch.setattr(vae, "encode_moments", never)
        again = cache_latents(source, vae, tmp_path / "new")
    assert torch.equal(again.moments, made.moments)
    assert again.items == made.items


def test_the_digest_of_latents(tmp_path, vae):
    source = Counted(2)
    first = cache_latents(source, vae, tmp_path).digest
    other = tiny_vae()
    assert cache_latents(source, other, tmp_path).digest == first
    other.vae.encoder.conv_in.bias.data[0] += 1e-3
    others = {cache_latents(source, other, tmp_path).digest, cache_latents(Counted(3), vae, tmp_path).digest}
    assert len(others | {first}) == len(names(tmp_path)) == 3


def test_encoding_builds_no_graph(tmp_path, vae):
    seen = []
    cache_latents(Counted(2, 1, lambda: seen.append(torch.is_grad_enabled())), vae, tmp_path)
    assert seen == [False]


def test_a_failed_cache_leaves_nothing(tmp_path, vae):
    def fail():
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        cache_latents(Counted(8, 5, fail), vae, tmp_path, batch=2, shard=2)
    assert names(tmp_path) == []
    assert len(cache_latents(Counted(8), vae, tmp_path).moments) == 8


def test_a_killed_process_leaves_nothing_that_is_taken(tmp_path, vae):
    if not (child := os.fork()):
        try:
            cache_latents(Counted(8, 5, lambda: os.kill(os.getpid(), 9)), vae, tmp_path, batch=2, shard=2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    (left,) = names(tmp_path)
    assert left.startswith(".latents-")
    assert names(tmp_path / left) == ["00000.safetensors", "00001.safetensors"]
    assert len(cache_latents(Counted(8), vae, tmp_path).moments) == 8


def test_the_first_of_two_at_once_is_kept(tmp_path, vae):
    firsts = []
    source = Counted(4, 3, lambda: firsts.append(cache_latents(Counted(4), vae, tmp_path)))
    second = cache_latents(source, vae, tmp_path, batch=2)
    assert torch.equal(second.moments, firsts[0].moments)
    assert names(tmp_path) == [second.path.name]


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("00001.safetensors", lambda f: f.write_bytes(f.read_bytes()[:-8])),
        ("00001.safetensors", lambda f: f.write_bytes(b"")),
        ("00001.safetensors", lambda f: f.unlink()),
        ("00001.safetensors", lambda f: save_file({"moments": torch.zeros(1, 8, 8, 8)}, f)),
        ("00001.safetensors", lambda f: save_file({"other": torch.zeros(2)}, f)),
        ("done.json", lambda f: f.write_bytes(f.read_bytes()[:-8])),
        ("done.json", lambda f: f.unlink()),
        ("done.json", lambda f: f.write_text('{"counts": [2, 2], "items": []}')),
    ],
    ids=["cut", "empty", "missing", "too few", "another", "json cut", "json missing", "json wrong"],
)
def test_a_damaged_cache_is_named(tmp_path, vae, file, damage):
    path = cache_latents(Counted(4), vae, tmp_path, shard=2).path
    damage(path / file)
    with pytest.raises(ValueError, match=f"{file} is damaged.*delete the folder .*{path.name}"):
        cache_latents(Counted(4), vae, tmp_path)


@pytest.mark.parametrize("argument", ["batch", "shard"])
def test_bad_arguments_of_a_cache(tmp_path, vae, argument):
    with pytest.raises(ValueError, match=f"{argument} must be at least 1"):
        cache_latents(Counted(2), vae, tmp_path, **{argument: 0})
    assert not names(tmp_path)


def test_states_are_of_distinct_captions_once(tmp_path, clip, monkeypatch):
    captions = ["a red cat", "moon", "the blue dog", "moon", "a cat", "house"]
    made = cache_states(captions, clip, tmp_path, batch=2, shard=3)
    assert made.states.shape == (5, 16, 64)
    assert made.states.dtype == torch.float16
    assert names(made.path) == ["00000.safetensors", "00001.safetensors", "done.json"]
    states, mask = made.rows(captions).values()
    expected, expected_mask = clip(captions)
    torch.testing.assert_close(states, expected, atol=4e-3, rtol=1e-3)
    assert states.dtype == torch.float32
    assert torch.equal(mask, expected_mask)
    monkeypatch.setattr(clip, "forward", never)
    again = cache_states(sorted(set(captions)), clip, tmp_path)
    assert torch.equal(again.states, made.states)
    assert torch.equal(again.mask, made.mask)
    assert again.index == made.index
    with pytest.raises(KeyError, match="'sun' is not in"):
        made.rows(["moon", "sun"])


def test_the_digest_of_states(tmp_path, clip):
    digests = [
        cache_states(["moon"], clip, tmp_path).digest,
        cache_states(["moon", "cat"], clip, tmp_path).digest,
        cache_states(["moon"], tiny_clip(tokens=8), tmp_path).digest,
    ]
    assert len(set(digests)) == 3
    changed = tiny_clip()
    changed.load_state_dict(clip.state_dict())
    assert cache_states(["moon"], changed, tmp_path).digest == digests[0]
    next(changed.parameters()).data += 1e-3
    assert cache_states(["moon"], changed, tmp_path).digest != digests[0]


def test_states_that_fp16_cannot_hold(tmp_path, clip, monkeypatch):
    forward = clip.forward
    monkeypatch.setattr(clip, "forward", lambda prompts: (forward(prompts)[0] * 1e6, forward(prompts)[1]))
    with pytest.raises(ValueError, match="'moon' are not finite in fp16"):
        cache_states(["moon"], clip, tmp_path)
    assert not names(tmp_path)
    with pytest.raises(ValueError, match="at least one"):
        cache_states([], clip, tmp_path)


@pytest.mark.parametrize(("terminal", "after", "shown"), [("1", -1.0, True), ("1", 2.0, False), ("0", -1.0, False)])
def test_a_bar_on_a_terminal_for_what_takes_long(tmp_path, vae, monkeypatch, capsys, terminal, after, shown):
    monkeypatch.setenv("TTY_COMPATIBLE", terminal)
    monkeypatch.setattr(cache, "BAR_AFTER", after)
    cache_latents(Counted(2), vae, tmp_path)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("latents-" in err) == shown
    assert bool(err) == shown


@pytest.mark.parametrize("name", ["captions.txt", "captions.jsonl", "metadata.csv", "b.txt"])
def test_a_captions_file_that_links_out_of_its_folder_is_refused(tmp_path, name):
    folder = filled(tmp_path / "images", {**TWO, "sub/a.txt": "two", "elsewhere": "one"})
    (tmp_path / "secret").write_text("mine\nand only mine")
    (folder / name).symlink_to("../secret")
    with pytest.raises(ValueError, match="symbolic link out of its folder"):
        Folder(folder)
    (folder / name).unlink()
    (folder / "b.txt").symlink_to("elsewhere")
    assert Folder(folder).captions == [("one",), ("two",)]


DEEP = '{"text": ' + "[" * 100_000


@pytest.mark.parametrize(("name", "said"), [("a.json", "nested"), ("b.json", "bytes of a caption|more than")])
def test_the_json_of_shards_and_captions_is_bounded(tmp_path, name, said):
    text = DEEP if name == "a.json" else "[" * (CAPTION_BYTES + 1)
    with pytest.raises(ValueError, match=said):
        Shards(tar(tmp_path / "s.tar", {"a.png": plain("red"), name: text}))
    filled(tmp_path / "images", {**TWO, "captions.jsonl": text})
    with pytest.raises(ValueError, match=said):
        Folder(tmp_path / "images")
