"""FD, KID, precision, recall and CLIP score against closed forms, sums over all pairs, and transformers' logits."""

import json
import math
import sys

import pytest
import torch
import transformers
from PIL import Image
from support.commands import run
from support.teachers import MLP, TEXT, save_teacher
from support.tiny_models import VOCAB, save_tiny_pipeline, tokenizer

from fmpipe.data import Shapes
from fmpipe.feature_metrics import CLIPScore, Manifolds, frechet_distance, kernel_distance, precision_recall

pytestmark = pytest.mark.usefixtures("one_thread")


def gaussian(n, mean, cov, seed):
    """n points whose mean and covariance (of n - 1) are exactly these, up to rounding."""
    x = torch.randn(n, len(mean), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = x - x.mean(0)
    x = x @ torch.linalg.inv(torch.linalg.cholesky(x.T @ x / (n - 1))).T
    return x @ torch.linalg.cholesky(cov).T + mean


def test_fd_of_gaussians_is_the_closed_form():
    """Of commuting covariances: |mean - mean'|² + Σ (σ - σ')²; of one with itself: 0."""
    axes, _ = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    a, b = torch.linspace(0.5, 3, 6).double(), torch.linspace(2, 0.1, 6).double()
    mean, other = torch.full((6,), 50.0).double(), torch.arange(6.0).double() + 48
    x = gaussian(100, mean, axes @ a.square().diag() @ axes.T, 1)
    y = gaussian(200, other, axes @ b.square().diag() @ axes.T, 2)
    want = ((mean - other).square().sum() + (a - b).square().sum()).item()
    assert frechet_distance(x, y) == pytest.approx(want, rel=1e-9)
    assert frechet_distance(x, x) == pytest.approx(0, abs=1e-6)


def test_fd_of_fewer_images_than_features():
    """tr √(S S') is the nuclear norm of X Y', centred: the singular covariances need no square root for it."""
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, 96, generator=draw) @ torch.randn(96, 96, generator=draw) + 3 for n in (40, 55))
    a, b = ((z.double() - z.double().mean(0)) / math.sqrt(len(z) - 1) for z in (x, y))
    want = (x.double().mean(0) - y.double().mean(0)).square().sum() + a.square().sum() + b.square().sum()
    want -= 2 * torch.linalg.svdvals(a @ b.T).sum()
    assert frechet_distance(x, y) == pytest.approx(want.item(), rel=1e-6)


def kid(x, y):
    """The unbiased squared MMD with the kernel (x·y / D + 1)³, one pair after the other."""

    def k(a, b):
        return (sum(p * q for p, q in zip(a, b, strict=True)) / len(a) + 1) ** 3

    x, y = x.tolist(), y.tolist()
    own = sum(k(a[i], a[j]) for a in (x, y) for i in range(len(a)) for j in range(len(a)) if i != j)
    return own / len(x) / (len(x) - 1) - 2 * sum(k(a, b) for a in x for b in y) / len(x) ** 2


def test_kid_is_the_sum_over_all_pairs():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 5, generator=draw), torch.randn(30, 5, generator=draw) * 1.5 + 0.5
    mean, std = kernel_distance(x, y)
    assert mean == pytest.approx(kid(x.double(), y.double()), rel=1e-9)
    assert std == 0  # every subset is everything


def test_kid_of_subsets_is_near_and_depends_on_the_seed_alone():
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(300, 5, generator=draw), torch.randn(200, 5, generator=draw) + 0.5
    state = torch.random.get_rng_state()
    mean, std = kernel_distance(x, y, subset=100)
    assert abs(mean - kid(x[:200].double(), y.double())) < 0.3 * mean
    assert 0 < std < mean
    assert kernel_distance(x, y, subset=100) == (mean, std) != kernel_distance(x, y, subset=100, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    with pytest.raises(ValueError, match="at least 2 images"):
        kernel_distance(x[:1], y)


def brute_force(real, fake, k):
    def radius(points, i):
        return sorted(math.dist(points[i], p) for j, p in enumerate(points) if j != i)[k - 1]

    def share(points, others):
        radii = [radius(others, i) for i in range(len(others))]
        return sum(any(math.dist(p, o) <= r for o, r in zip(others, radii, strict=True)) for p in points) / len(points)

    return share(fake, real), share(real, fake)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("shift", [0.0, 1.0, 30.0])
def test_precision_and_recall_are_those_of_every_pair(k, shift):
    draw = torch.Generator().manual_seed(int(shift) + k)
    real, fake = torch.randn(60, 3, generator=draw), 0.4 * torch.randn(45, 3, generator=draw) + shift
    assert precision_recall(real, fake, k) == pytest.approx(
        brute_force(real.double().tolist(), fake.double().tolist(), k)
    )


def test_precision_and_recall_see_what_is_lost():
    """A model that draws one of two clusters well: precise, and half of the images are out of its reach."""
    draw = torch.Generator().manual_seed(0)
    near, far = torch.randn(50, 4, generator=draw), torch.randn(50, 4, generator=draw) + 100
    fake = torch.randn(50, 4, generator=draw)
    precision, recall = precision_recall(torch.cat([near, far]), fake)
    assert precision > 0.8
    assert 0.4 < recall <= 0.5
    assert precision_recall(near, near) == (1, 1)


def test_features_are_compared_in_halves_of_the_real_images_too():
    draw = torch.Generator().manual_seed(0)
    real, fake = torch.randn(64, 4, generator=draw), torch.randn(64, 4, generator=draw) + 2
    figures = {figure.name: figure for figure in Manifolds(real, fake).figures(seed=0)}
    assert figures["FD"].value > 10 * figures["FD"].reference > 0
    assert figures["KID"].value > figures["KID"].reference
    assert figures["precision"].value < 0.5 < figures["precision"].reference
    assert figures["FD"].value == frechet_distance(real, fake)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """A tiny CLIP with its tokenizer and image processor, in a folder."""
    folder = tmp_path_factory.mktemp("clip")
    torch.manual_seed(0)
    text = {**TEXT, "vocab_size": len(VOCAB), "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.CLIPConfig(vision_config=MLP, text_config=text, projection_dim=8)
    model = transformers.CLIPModel(config)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4 if p.dim() > 1 else 1)
    model.save_pretrained(folder)
    tokenizer("[BOS] $A [EOS]").save_pretrained(folder)
    size = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    transformers.CLIPImageProcessorPil(**size).save_pretrained(folder)
    return folder


def test_clip_score_is_the_logits_of_transformers(clip):
    texts = ["a red cat", "a blue house under the moon", "the dog", "a " + "red " * 30 + "cat"]
    images = torch.stack([Shapes(count=4, size=32)[i].image for i in range(4)])
    processor = transformers.AutoImageProcessor.from_pretrained(clip)
    words = transformers.AutoTokenizer.from_pretrained(clip)
    inputs = words(texts, return_tensors="pt", padding=True, truncation=True, max_length=16)
    pictures = [Image.fromarray(x.permute(1, 2, 0).numpy()) for x in images]
    model = transformers.CLIPModel.from_pretrained(clip).eval()
    with torch.no_grad():
        out = model(**inputs, **processor(pictures, return_tensors="pt"))
    want = 100 * (out.logits_per_image.diag() / model.logit_scale.exp()).clamp_min(0)
    scores = CLIPScore.from_folder(clip)(images, texts)
    torch.testing.assert_close(scores, want, rtol=1e-4, atol=1e-3)
    assert scores.std() > 0.1  # they differ at all


def test_a_folder_without_a_clip_model_is_refused(tmp_path):
    save_teacher("vit", tmp_path)
    with pytest.raises(ValueError, match=r"--clip: .*ViTModel does not embed texts and images"):
        CLIPScore.from_folder(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"--clip: .*nowhere' is not a folder with a model of transformers"):
        CLIPScore.from_folder(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A random pipeline, and images with captions."""
    root = tmp_path_factory.mktemp("work")
    save_tiny_pipeline(root / "pipe")
    (root / "images").mkdir()
    source = Shapes(count=12, size=24)
    for i in range(12):
        Image.fromarray(source[i].image.permute(1, 2, 0).numpy()).save(root / "images" / f"{i:02}.png")
        (root / "images" / f"{i:02}.txt").write_text("a red cat\nthe moon\n")
    save_teacher("dinov2", root / "dinov2")
    return root


def test_the_command_writes_figures_next_to_their_references(work, clip):
    place = work / "out.json"
    options = ["--images", work / "images", "--features", work / "dinov2", "--clip", clip, "--steps", 2, "--count", 10]
    result = run("evaluate", work / "pipe", *options, "--out", place)
    assert result.exit_code == 0, result.output
    report = json.loads(place.read_text())
    figures = {figure["name"]: figure for figure in report["figures"]}
    assert list(figures) == ["FD", "KID", "precision", "recall", "CLIP score"]
    assert all(math.isfinite(figure["value"]) for figure in figures.values())
    assert figures["FD"]["value"] > figures["FD"]["reference"]  # a random model
    assert (report["real"], report["generated"], report["steps"], report["dimensions"]) == (12, 10, 2, 32)
    assert "fewer than features" in " ".join(result.output.split())
    assert len(report["prompts"]) == 10
    assert set(report["prompts"]) == {"a red cat", "the moon"}
    again = run("evaluate", work / "pipe", *options, "--out", work / "again.json")
    assert again.exit_code == 0
    assert json.loads((work / "again.json").read_text()) == report
    assert not {"torchvision", "torch_fidelity"} & set(sys.modules)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--images", "images"], "--images: give --features or --clip as well"),
        (["--features", "dinov2"], "--features needs --images"),
        (["--scenes", "--images", "images"], "--scenes and --images exclude each other"),
        (["--images", "nowhere", "--features", "dinov2"], "--images: there is no folder or file nowhere"),
        (
            ["--images", "images", "--features", "nowhere"],
            "--features: 'nowhere' is not a folder with an image encoder",
        ),
        (["--images", "images", "--clip", "nowhere"], "--clip: 'nowhere' is not a folder with a model"),
        (["--images", "images", "--clip", "dinov2"], "--clip: .*does not embed texts and images"),
        (["--images", "images", "--captions", "none.csv", "--clip", "dinov2"], "--captions: there is no file none.csv"),
        (["--images", "images", "--features", "dinov2", "--font", "x.ttf"], "--font is for the emoji data only"),
        (["--images", "images", "--features", "dinov2", "--count", "1"], "--count must be at least 4, got 1"),
        (["--count", "9"], "--count needs --images or --scenes"),
    ],
)
def test_wrong_options_are_named(options, said, work, monkeypatch):
    monkeypatch.chdir(work)
    result = run("evaluate", "pipe", *options)
    assert result.exit_code == 2, result.output
    import re

    assert re.search(said, " ".join(result.output.split())), result.output
