"""Precomputed latents as trainers store them: read, checked against the autoencoder, and scaled exactly once."""

import io
import json
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file
from support.sources import written
from support.tiny_models import tiny_vae

from fmpipe.data import LatentFiles, Shapes, load_latents

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

C, SIDE = 4, 8  # of tiny_vae at 16 px


@pytest.fixture(scope="module")
def vae():
    return tiny_vae()


def stored(kind, x):
    """The file that trainers write."""
    data = io.BytesIO()
    if kind == "npy":
        np.save(data, x.numpy())
    elif kind == "pt":
        torch.save(x, data)
    elif kind == "pt dict":
        torch.save({"latents": x, "step": 3}, data)
    else:
        return save({"latent": x, "other": torch.zeros(2)} if kind == "named" else {"x": x})
    return data.getvalue()


SUFFIXES = {"npy": "npy", "pt": "pt", "pt dict": "pt", "safetensors": "safetensors", "named": "safetensors"}


def latent_files(folder, latents, kind="npy", tar=True, captions="txt"):
    """As the file of a tar by webdataset, or as OpenUni's folder, where a.jpg.pt belongs to the image a.jpg."""
    texts = [f"caption {k}" for k in range(len(latents))]
    if tar:
        told = [{"caption": text} if captions == "json" else text for text in texts]
        return written(
            folder,
            [{"__key__": f"k{k}", SUFFIXES[kind]: stored(kind, x), captions: told[k]} for k, x in enumerate(latents)],
        )
    for k, (x, text) in enumerate(zip(latents, texts)):
        (folder / "sub").mkdir(exist_ok=True, parents=True)
        (folder / f"sub/k{k}.jpg.{SUFFIXES[kind]}").write_bytes(stored(kind, x))
        (folder / f"sub/k{k}.{captions}").write_text(json.dumps({"prompt": text}) if captions == "json" else text)
    return folder


@pytest.mark.parametrize("captions", ["txt", "json"])
@pytest.mark.parametrize("tar", [True, False], ids=["tar", "folder"])
@pytest.mark.parametrize("kind", SUFFIXES)
def test_latents_are_read(tmp_path, vae, kind, tar, captions):
    x = torch.randn(5, 2 * C, SIDE, SIDE)
    source = LatentFiles(latent_files(tmp_path, x, kind, tar, captions))
    assert source.captions == [(f"caption {k}",) for k in range(5)]
    latents = load_latents(source, vae, 2 * SIDE)
    assert torch.equal(latents.moments, x)
    assert [item["key"] for item in latents.items] == source.keys
    assert [item["captions"] for item in latents.items] == [[f"caption {k}"] for k in range(5)]
    assert len(set(source.keys)) == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("batch", [False, True], ids=["C h w", "1 C h w"])
def test_moments_are_those_of_the_encoder(tmp_path, vae, dtype, batch):
    """z1 is then drawn as it would be from pixels."""
    pixels = torch.stack([item.image for item in Shapes(3, 16)]).float() / 127.5 - 1
    moments = vae.encode_moments(pixels).to(dtype)
    kind = "npy" if dtype in (torch.float32, torch.float64) else "pt"
    source = LatentFiles(latent_files(tmp_path, moments[:, None] if batch else moments, kind))
    got = load_latents(source, vae, 16).moments
    assert got.dtype == torch.float32
    assert torch.equal(got, moments.float())
    draws = [vae.sample(x, torch.Generator().manual_seed(0)) for x in (got, moments.float())]
    assert torch.equal(*draws)


@pytest.mark.parametrize("mean", [None, [0.5, -1.0, 2.0, 0.1]])
@pytest.mark.parametrize("scaled", [False, True])
def test_samples_are_scaled_exactly_once(tmp_path, scaled, mean):
    vae = tiny_vae()
    vae.register_to_config(latents_mean=mean)
    pixels = torch.stack([item.image for item in Shapes(3, 16)]).float() / 127.5 - 1
    mode = vae.encode_moments(pixels).chunk(2, 1)[0] * 100
    z = (mode - (torch.tensor(mean).view(-1, 1, 1) if mean else 0)) * 0.2301
    source = LatentFiles(latent_files(tmp_path, z if scaled else mode), scaled=scaled)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        moments = load_latents(source, vae, 16).moments
    one, two = (vae.sample(moments, torch.Generator().manual_seed(k)) for k in (0, 1))
    assert torch.equal(one, two)  # no noise
    assert torch.equal(one, vae.mode(moments))
    torch.testing.assert_close(one, z, rtol=1e-6, atol=1e-6 * z.abs().max().item())
    if not scaled:
        assert torch.equal(moments[:, :C], mode)


@pytest.mark.parametrize(
    ("shape", "scaled", "message"),
    [
        ((C, SIDE, SIDE), None, r"latents_scaled is missing: .* std 1\.\d+, true .* 1\.\d+, false .* 0\.2\d+"),
        ((2 * C, SIDE, SIDE), True, r"k0\.npy has moments, .* data\.latents_scaled"),
        ((3, SIDE, SIDE), True, r"k0\.npy has the shape \(3, 8, 8\); .*\(4, 8, 8\).*\(8, 8, 8\)"),
        ((C, SIDE, 2 * SIDE), True, r"k0\.npy has the shape \(4, 8, 16\)"),
        ((C, 2 * SIDE, 2 * SIDE), True, r"k0\.npy .* data\.size 16"),
        ((2, C, SIDE, SIDE), True, r"k0\.npy has the shape \(2, 4, 8, 8\)"),
        ((SIDE, SIDE), True, r"k0\.npy has the shape \(8, 8\)"),
    ],
)
def test_latents_that_do_not_fit_the_autoencoder_are_named(tmp_path, vae, shape, scaled, message):
    torch.manual_seed(0)
    source = LatentFiles(latent_files(tmp_path, torch.randn(2, *shape)), scaled=scaled)
    with pytest.raises(ValueError, match=message):
        load_latents(source, vae, 2 * SIDE)


def test_one_latent_that_differs_is_named(tmp_path, vae):
    x = torch.randn(3, 2 * C, SIDE, SIDE)
    for change, message in (
        (x[2, :C], r"k2\.npy has the shape \(4, 8, 8\).*but .*k0\.npy"),
        (x[2] * float("nan"), r"k2\.npy is not finite"),
        (x[2].int(), r"k2\.npy is torch\.int32"),
    ):
        source = LatentFiles(latent_files(tmp_path, [*x[:2], change]))
        with pytest.raises(ValueError, match=message):
            load_latents(source, vae, 16)


@pytest.mark.parametrize("tar", [True, False], ids=["tar", "folder"])
def test_code_in_latents_is_never_run(tmp_path, vae, tar):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    data = io.BytesIO()
    torch.save({"latent": torch.zeros(2), "x": Evil()}, data)
    pickled = io.BytesIO()
    np.save(pickled, np.array([Evil()], dtype=object), allow_pickle=True)
    for suffix, content in (("pt", data.getvalue()), ("npy", pickled.getvalue()), ("npy", b""), ("safetensors", b"no")):
        folder = tmp_path / f"{suffix}{len(content)}"
        folder.mkdir()
        if tar:
            written(folder, [{"__key__": "k", suffix: content, "txt": "x"}])
        else:
            (folder / f"k.{suffix}").write_bytes(content)
            (folder / "k.txt").write_text("x")
        with pytest.raises(ValueError, match=rf"k\.{suffix} cannot be read as a latent"):
            load_latents(LatentFiles(folder), vae, 16)
    assert not (tmp_path / "ran").exists()


def test_captions_of_latents_in_another_place(tmp_path):
    """As OpenUni's: latents in one folder, captions in another, or one file."""
    folder = latent_files(tmp_path / "latents", torch.randn(2, C, SIDE, SIDE), "pt", tar=False)
    for file in folder.rglob("*.txt"):
        file.unlink()
    with pytest.raises(ValueError, match=r"k0\.jpg\.pt has no caption"):
        LatentFiles(folder)
    (tmp_path / "raw/sub").mkdir(parents=True)
    for k in range(2):
        (tmp_path / f"raw/sub/k{k}.json").write_text(json.dumps({"caption": f"raw {k}"}))
    assert LatentFiles(folder, tmp_path / "raw").captions == [("raw 0",), ("raw 1",)]
    rows = [json.dumps({"image": f"sub/k{k}.jpg", "caption": f"row {k}"}) for k in range(2)]
    (tmp_path / "c.jsonl").write_text("\n".join(rows))
    assert LatentFiles(folder, tmp_path / "c.jsonl").captions == [("row 0",), ("row 1",)]
    with pytest.raises(FileNotFoundError, match="no latents"):
        LatentFiles(tmp_path / "raw")


def test_several_tensors_in_a_file_need_a_name(tmp_path, vae):
    save_file({"a": torch.zeros(C, SIDE, SIDE), "b": torch.zeros(C, SIDE, SIDE)}, tmp_path / "k.safetensors")
    (tmp_path / "k.txt").write_text("x")
    with pytest.raises(ValueError, match=r"k\.safetensors .* a, b; .* latents"):
        load_latents(LatentFiles(tmp_path), vae, 16)


def test_an_unlikely_scale_is_told(tmp_path, vae):
    x = torch.randn(4, C, SIDE, SIDE)
    with pytest.warns(UserWarning, match=r"z1 has a std of 0\.2\d+ .* data\.latents_scaled"):
        load_latents(LatentFiles(latent_files(tmp_path, x), scaled=False), vae, 16)
