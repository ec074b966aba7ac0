"""The checks of the parts: each passes on a small real system and fails on one that is broken in exactly one way.

The autoencoder is linear: principal components of 4 x 4 patches, fitted to other images than those of the tests.
"""

import json
from collections import Counter
from math import inf, nan

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fmpipe.diagnose.checks import (
    image_range,
    latent_is_sample,
    pairing,
    same_augmentation,
    scale_contract,
    text_path,
    time_embedding,
    vae_eval,
    vae_round_trip,
)
from fmpipe.diagnose.engine import judged
from fmpipe.vae import LatentVAE

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

SEEDS = (101, 202)  # the thresholds were set on others
COLORS = {"red": (1, -1, -1), "green": (-1, 1, -1), "blue": (-1, -1, 1), "white": (1, 1, 1)}
PLACES = {"left": (0.5, 0.2), "right": (0.5, 0.8), "top": (0.2, 0.5), "bottom": (0.8, 0.5)}
PROMPTS = [f"a {color} ball at the {place}" for color in COLORS for place in PLACES]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def drawn(captions, generator, size=32):
    """Soft balls of the caption's color near its place on wavy grounds, (B, 3, size, size) in [-1, 1]."""
    y, x = torch.meshgrid(*[torch.linspace(0, 1, size)] * 2, indexing="ij")
    images = []
    for caption in captions:
        _, color, *_, place = caption.split()
        cy, cx = torch.tensor(PLACES[place]) + 0.06 * torch.randn(2, generator=generator)
        a, b, c = torch.rand(3, generator=generator) * 6
        ground = 0.6 * torch.sin(4 * (a * x + b * y + c))
        ball = torch.exp(-((y - cy) ** 2 + (x - cx) ** 2) / 0.03)
        images.append(ground * (1 - ball) + 0.95 * torch.tensor(COLORS[color]).view(3, 1, 1) * ball)
    return torch.stack(images)


def pairs(seed, size=48):
    generator = seeded(seed)
    captions = [PROMPTS[i] for i in torch.randint(len(PROMPTS), (size,), generator=generator)]
    return drawn(captions, generator), captions


class Linear:
    """z = (patches @ basis / unit + std eps) scale, (B, C, 8, 8); unit makes the scale Stable Diffusion's."""

    def __init__(self, components=12, std=0.1, seed=1000):
        images, _ = pairs(seed, 64)
        self.basis = torch.linalg.svd(self.patches(images).reshape(-1, 48), full_matrices=False).Vh[:components].T
        self.scale, self.std, self.unit = 0.18215, std / 0.18215, 1.0
        self.unit = self.mean(images).std().item() * self.scale
        self.generator = seeded(seed)

    def patches(self, images):
        return F.unfold(images, 4, stride=4).mT

    def mean(self, images):
        return (self.patches(images) @ self.basis / self.unit).mT.unflatten(2, (8, 8))

    def moments(self, images):
        mean = self.mean(images)
        return torch.cat([mean, torch.full_like(mean, self.std).log() * 2], 1)

    def raw_sample(self, images):
        mean = self.mean(images)
        return mean + self.std * torch.randn(mean.shape, generator=self.generator)

    def encode(self, images):
        return self.raw_sample(images) * self.scale

    def raw_decode(self, latent):
        patches = latent.flatten(2).mT @ self.basis.T * self.unit
        return F.fold(patches.mT, (32, 32), 4, stride=4)

    def decode(self, z):
        return self.raw_decode(z / self.scale)


@pytest.fixture(scope="module")
def vae():
    return Linear()


def stated(finding, status, *words):
    """Check that a finding is complete: what it says depends on its status, and it can be written to a log."""
    assert finding.status == status, str(finding)
    assert bool(finding) == (status != "fail")
    assert finding.threshold
    assert finding.meaning
    assert finding.experience
    assert bool(finding.advice) == (status != "pass"), str(finding)
    for word in words:
        assert word in finding.meaning, str(finding)
    assert json.dumps(finding.as_dict())
    return finding


SCALES = {"no factor anywhere": "probably missing", "the factor twice": "probably applied twice"}
BLURRED = {  # encode and decode, made of those of a healthy autoencoder
    "healthy": (lambda v: (v.encode, v.decode), "pass", ""),
    "blurred decode": (lambda v: (v.encode, lambda z: F.avg_pool2d(v.decode(z), 9, 1, 4)), "fail", "loses the picture"),
    "decode divides twice": (lambda v: (v.encode, lambda z: v.decode(z / v.scale)), "fail", "loses the picture"),
    "decode in [0, 1]": (lambda v: (v.encode, lambda z: v.decode(z) / 2 + 0.5), "fail", "loses the picture"),
    "an offset in decode": (lambda v: (v.encode, lambda z: v.decode(z) + 0.13), "warn", "poor"),
    "no factor anywhere": (lambda v: (v.raw_sample, v.raw_decode), "warn", "The latents have std"),
    "the factor twice": (
        lambda v: (lambda x: v.encode(x) * v.scale, lambda z: v.decode(z / v.scale)),
        "warn",
        "The latents have std",
    ),
    "NaN in decode": (lambda v: (v.encode, lambda z: v.decode(z) * nan), "fail", "Not finite: psnr"),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", BLURRED)
def test_round_trip(vae, case, seed):
    make, status, words = BLURRED[case]
    finding = stated(vae_round_trip(*make(vae), pairs(seed)[0]), status, words)
    assert SCALES.get(case, "") in finding.advice
    if case == "healthy":
        assert 25 < finding.values["psnr"] < 60
        assert finding.values["var"] == pytest.approx(1, rel=0.3)
        assert finding.values["low"] < finding.values["mean"] < finding.values["high"]


def test_psnr_is_the_mean_over_images_with_peak_two():
    images = torch.zeros(2, 1, 2, 2)
    off = torch.tensor([0.2, 0.02]).view(2, 1, 1, 1)  # MSE 4e-2, 4e-4: 20 and 40 dB
    finding = vae_round_trip(lambda x: x, lambda z: z + off, images)
    assert finding.values["psnr"] == pytest.approx(30, abs=1e-4)
    assert vae_round_trip(lambda x: x, lambda z: z, images).values["psnr"] == pytest.approx(126.0, abs=0.1)


@pytest.mark.parametrize(
    ("numbers", "status"),
    [
        ({"psnr": 29.08, "mean": -0.014, "var": 1.414, "low": -4.5, "high": 5.562}, "pass"),  # of the debugging notes
        ({"psnr": 25.0}, "pass"),
        ({"psnr": 24.99}, "warn"),
        ({"psnr": 20.0}, "warn"),
        ({"psnr": 19.99}, "fail"),
        ({"psnr": 29.0, "var": 30.0}, "warn"),  # Stable Diffusion's, unscaled
        ({"psnr": 29.0, "var": 0.033}, "warn"),  # the same, scaled twice
        ({"psnr": 19.0, "var": 30.0}, "fail"),
        ({"psnr": nan}, "fail"),
        ({"psnr": inf}, "fail"),
        ({"psnr": 29.0, "mean": nan}, "fail"),
        ({"psnr": 29.0, "var": inf}, "fail"),
        ({"psnr": 19.99, "overrides": {"vae/psnr_fail": 15.0}}, "warn"),
    ],
)
def test_judge_round_trip(numbers, status):
    stated(judged("vae_round_trip", **numbers), status)


CONTRACTS = {
    "healthy": (lambda v: (v.encode, v.decode), "pass", "once each"),
    "decode divides twice": (lambda v: (v.encode, lambda z: v.decode(z / v.scale)), "fail", "decode divides twice"),
    "encode does not multiply": (lambda v: (v.raw_sample, v.decode), "fail", "encode does not multiply"),
    "encode multiplies twice": (
        lambda v: (lambda x: v.encode(x) * v.scale, v.decode),
        "fail",
        "encode multiplies twice",
    ),
    "decode does not divide": (lambda v: (v.encode, v.raw_decode), "fail", "decode does not divide"),
    "decode ignores z": (lambda v: (v.encode, lambda z: torch.zeros(len(z), 3, 32, 32)), "warn", "too close"),
    "NaN in decode": (lambda v: (v.encode, lambda z: v.decode(z) * nan), "fail", "Not finite: plain"),
    "overflow at wrong scales": (
        lambda v: (v.encode, lambda z: v.decode(z).where(z.std() < 1.2, inf)),
        "pass",
        "once each",
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", CONTRACTS)
def test_scale_contract(vae, case, seed):
    make, status, words = CONTRACTS[case]
    stated(scale_contract(*make(vae), pairs(seed)[0], vae.scale), status, words)


def test_scale_one_has_no_contract(vae):
    assert scale_contract(vae.encode, vae.decode, pairs(1)[0], 1.0).status == "skipped"


@pytest.mark.parametrize(
    ("numbers", "status", "words"),
    [
        ((29.0, 14.0, 3.0), "pass", "once each"),
        ((29.0, 28.5, 3.0), "warn", "too close"),
        ((14.0, 29.0, 3.0), "fail", "lacks a factor"),
        ((14.0, 3.0, 29.0), "fail", "a factor too many"),
        ((14.0, 20.0, 29.0), "fail", "a factor too many"),
        ((nan, 20.0, 29.0), "fail", "Not finite"),
        ((29.0, nan, 3.0), "fail", "Not finite"),
        ((29.0, 3.0, nan), "fail", "Not finite"),
    ],
)
def test_judge_scale_contract(numbers, status, words):
    numbers = dict(zip(("plain", "multiplied", "divided"), numbers, strict=True))
    stated(judged("scale_contract", **numbers), status, words)


LATENTS = {  # z1 of a posterior with std 0.1 of the latents', and its status
    "sample": (lambda v, x: v.encode(x), "pass", "is a scaled sample"),
    "sample in bf16": (lambda v, x: v.encode(x).bfloat16(), "pass", "is a scaled sample"),
    "mean": (lambda v, x: v.mean(x) * v.scale, "warn", "without noise"),
    "raw moments": (lambda v, x: v.moments(x), "fail", "raw moments"),
    "raw mean": (lambda v, x: v.mean(x), "fail", "neither sampled nor scaled"),
    "raw sample": (lambda v, x: v.raw_sample(x), "fail", "without the scale factor"),
    "twice scaled": (lambda v, x: v.encode(x) * v.scale, "fail", "applied twice"),
    "twice scaled mean": (lambda v, x: v.mean(x) * v.scale**2, "fail", "applied twice"),
    "of other images": (lambda v, x: v.encode(x).roll(1, 0), "fail", "neither a sample"),
    "half the noise": (lambda v, x: (v.encode(x) + v.mean(x) * v.scale) / 2, "fail", "shrunk"),
    "logvar for std": (lambda v, x: (v.mean(x) + 2 * (v.raw_sample(x) - v.mean(x))) * v.scale, "fail", "neither"),
    "NaN": (lambda v, x: v.encode(x) * nan, "fail", "Not finite"),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", LATENTS)
def test_latent_is_sample(vae, case, seed):
    images = pairs(seed)[0]
    z1, status, words = LATENTS[case][0](vae, images), *LATENTS[case][1:]
    stated(latent_is_sample(z1, vae.moments(images), vae.scale), status, words)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scale", [0.18215, 0.2301, 1.0])
@pytest.mark.parametrize("std", [1e-5, 1e-2, 1.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_sample_is_one_whatever_its_noise_and_dtype(dtype, std, scale, seed):
    """With noise below what the dtype resolves, mean and sample are one, and pass; a lost factor still fails."""
    mean = 5 * torch.randn(4, 4, 8, 8, generator=seeded(seed))
    moments = torch.cat([mean, torch.full_like(mean, std).square().log()], 1).to(dtype)
    sample = mean + std * torch.randn(mean.shape, generator=seeded(seed + 100))
    stated(latent_is_sample((sample * scale).to(dtype), moments, scale), "pass")
    expected = "pass" if std < 5e-3 or (std == 1e-2 and dtype == torch.bfloat16) else "warn"
    stated(latent_is_sample((mean * scale).to(dtype), moments, scale), expected)
    if scale != 1:
        for wrong in (sample, mean, sample * scale**2):
            stated(latent_is_sample(wrong.to(dtype), moments, scale), "fail", "z1 is")


@pytest.mark.parametrize("seed", SEEDS)
def test_shift_and_scale_by_channel(seed):
    scale, shift = (torch.rand(4, 1, 1, generator=seeded(seed)) + 0.2 for _ in "ab")
    moments = torch.randn(4, 8, 5, 5, generator=seeded(seed))
    mean, logvar = moments.chunk(2, 1)
    sample = mean + torch.exp(logvar / 2) * torch.randn(mean.shape, generator=seeded(seed + 1))
    stated(latent_is_sample((sample - shift) * scale, moments, scale, shift), "pass")
    stated(latent_is_sample(sample, moments, scale, shift), "fail", "without the scale")
    stated(latent_is_sample((sample - 0.4) * 1.0, moments, 1.0, 0.4), "pass")
    stated(latent_is_sample(sample, moments, 1.0, 0.4), "fail")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_pipelines_own_autoencoder_samples(tiny, seed):
    images, generator = pairs(seed, 8)[0], seeded(seed)
    moments = tiny.encode_moments(images)
    scale = tiny.config.scaling_factor
    stated(latent_is_sample(tiny.sample(moments, generator), moments, scale), "pass", "is a scaled sample")
    stated(latent_is_sample(tiny.encode(images, generator), moments, scale), "pass")
    stated(latent_is_sample(tiny.encode(images, sample=False), moments, scale), "warn", "without noise")
    stated(latent_is_sample(moments, moments, scale), "fail", "raw moments")
    stated(latent_is_sample(moments.chunk(2, 1)[0], moments, scale), "fail", "neither sampled nor scaled")
    stated(latent_is_sample(tiny.sample(moments, generator) / scale, moments, scale), "fail", "without the scale")
    stated(latent_is_sample(tiny.sample(moments, generator) * scale, moments, scale), "fail", "twice")


@pytest.fixture(scope="module")
def tiny():
    config = {"block_out_channels": [8, 8], "layers_per_block": 1, "norm_num_groups": 4, "latent_channels": 4}
    config |= {"down_block_types": ["DownEncoderBlock2D"] * 2, "up_block_types": ["UpDecoderBlock2D"] * 2}
    torch.manual_seed(0)
    return LatentVAE(vae_config=config, scaling_factor=0.2301)


class Bag(nn.Module):
    """A z_text of a sentence: the mean of one random vector per word, through a random layer with a bias."""

    def __init__(self, seed, text=1.0, bias=0.1):
        super().__init__()
        torch.manual_seed(seed)
        words = sorted({word for prompt in PROMPTS for word in prompt.split()})
        self.index = {word: i for i, word in enumerate(words)}
        self.words, self.text, self.bias = nn.Embedding(len(words), 64), text, bias
        self.head, self.queries = nn.Linear(64, 4 * 8 * 8, bias=False), torch.randn(4 * 8 * 8)

    def forward(self, prompts):
        mean = torch.stack([self.words(torch.tensor([self.index[w] for w in p.split()])).mean(0) for p in prompts])
        return (self.text * self.head(mean) + self.bias * self.queries).unflatten(1, (4, 8, 8))


APART = ["a red ball", "the green left", "at top", "white bottom"]
EMBEDS = {
    "healthy": ({}, APART, "pass", "mean cosine"),
    "bf16": ({}, APART, "pass", "mean cosine"),
    "text drowned by queries": ({"bias": 10.0}, APART, "fail", "hardly reaches"),
    "text ignored": ({"text": 0.0}, APART, "fail", "hardly reaches"),
    "zero": ({"text": 0.0, "bias": 0.0}, APART, "fail", "Not finite"),
    "two prompts alike": ({}, [*APART, "red a ball"], "warn", "a red ball | red a ball"),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", EMBEDS)
def test_text_path(case, seed):
    options, prompts, status, words = EMBEDS[case]
    embed = Bag(seed, **options)
    embed = embed.bfloat16() if case == "bf16" else embed
    finding = stated(text_path(embed, prompts), status, words)
    assert len(finding.values["cosines"]) == len(prompts) * (len(prompts) - 1) // 2
    assert len(text_path(embed, prompts * 2).values["cosines"]) == len(finding.values["cosines"])


@pytest.mark.parametrize(
    ("cosines", "status"),
    [
        ({"cat | car": 0.098, "cat | apple": 0.114, "car | apple": 0.108}, "pass"),  # of the debugging notes
        ({"cat | car": 0.098}, "pass"),
        ({"cat | car": 0.9}, "fail"),
        ({"cat | car": 0.95, "cat | apple": 0.1}, "warn"),
        ({"cat | car": 0.999, "cat | apple": 0.998}, "fail"),
        ({"cat | car": nan, "cat | apple": 0.1}, "fail"),
    ],
)
def test_judge_text_path(cosines, status):
    stated(judged("text_path", cosines=cosines), status)


@pytest.fixture(scope="module")
def score():
    """Cosine with the image that least squares expects of the caption's words, both without the mean image."""
    images, captions = pairs(2000, 256)
    bag = Bag(0)

    def counts(captions):
        return torch.stack([torch.tensor([float(w in c.split()) for w in bag.index]) for c in captions])

    weight = torch.linalg.lstsq(counts(captions), images.flatten(1), driver="gelsd").solution
    mean = images.flatten(1).mean(0)
    return lambda images, captions: F.cosine_similarity(images.flatten(1) - mean, counts(captions) @ weight - mean)


def misplaced(captions, share):
    moved = int(len(captions) * share)
    return captions[1:moved] + captions[:1] + captions[moved:]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("share", "status"), [(0.0, "pass"), (0.2, "pass"), (1.0, "fail")])
def test_pairing(score, share, status, seed):
    images, captions = pairs(seed)
    captions = misplaced(captions, share) if share else captions
    stated(pairing(score, images, captions, generator=seeded(seed)), status, "True pairs score")


@pytest.mark.parametrize("seed", SEEDS)
def test_pairing_of_a_score_that_ignores_the_text(seed):
    images, captions = pairs(seed)
    stated(pairing(lambda images, captions: images.mean((1, 2, 3)), images, captions), "fail")
    noise = seeded(seed)
    stated(pairing(lambda images, captions: torch.randn(len(images), generator=noise), images, captions), "fail")
    stated(pairing(lambda images, captions: images.mean((1, 2, 3)) * nan, images, captions), "fail", "Not finite")


@pytest.mark.parametrize("size", [4, 5, 7])
def test_no_shuffle_leaves_a_caption_at_its_place(size):
    seen = []

    def score(images, captions):
        seen.append(captions)
        return torch.zeros(size)

    pairing(score, torch.zeros(size, 1), torch.arange(size), shuffles=9)
    true, *shuffled = seen
    assert true.tolist() == list(range(size))
    assert len(shuffled) == size - 1
    for other in shuffled:
        assert sorted(other.tolist()) == true.tolist()
        assert (other != true).all()
    assert len({tuple(other.tolist()) for other in shuffled}) == size - 1


@pytest.mark.parametrize(
    ("numbers", "status"),
    [
        ((1.0, 0.0, 0.1), "pass"),
        ((1.0, 0.0, 0.0), "pass"),
        ((1.0, 0.0, 0.3), "warn"),
        ((1.0, 0.0, 0.5), "fail"),
        ((0.0, 0.0, 0.0), "fail"),
        ((0.0, 1.0, 0.1), "fail"),
        ((nan, 0.0, 0.1), "fail"),
        ((1.0, 0.0, nan), "fail"),
    ],
)
def test_judge_pairing(numbers, status):
    stated(judged("pairing", **dict(zip(("true", "shuffled", "error"), numbers, strict=True))), status)


MEAN, STD = (torch.tensor(x).view(3, 1, 1) for x in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
AUGMENTED = {  # from an image of 40 x 40, both paths' 32 x 32
    "same": (lambda x: x, "pass", {"same": 8}),
    "bf16": (lambda x: x.bfloat16(), "pass", {"same": 8}),
    "mirrored": (lambda x: x.flip(-1), "fail", {"mirrored": 8}),
    "some mirrored": (lambda x: torch.cat([x[:3].flip(-1), x[3:]]), "fail", {"mirrored": 3, "same": 5}),
    "upside down": (lambda x: x.flip(-2), "fail", {"upside down": 8}),
    "another normalization": (lambda x: (x / 2 + 0.5 - MEAN) / STD, "fail", {"normalized": 8}),
    "[0, 1]": (lambda x: x / 2 + 0.5, "fail", {"normalized": 8}),
    "mirrored in [0, 1]": (lambda x: x.flip(-1) / 2 + 0.5, "fail", {"mirrored": 8}),
    "smaller": (lambda x: F.interpolate(x, (24, 24), mode="bilinear", antialias=True), "fail", {"resized": 8}),
    "other images": (lambda x: x.roll(1, 0), "fail", {"other": 8}),
    "NaN": (lambda x: x * nan, "fail", {"other": 8}),
}


def textured(seed):
    """Balls with a little noise, smoothed: a mirror and a shift show, as in a photograph."""
    generator = seeded(seed)
    images = drawn(["a red ball at the left", "a white ball at the top"] * 4, generator, 40)
    return images + 0.5 * F.avg_pool2d(torch.randn(8, 3, 42, 42, generator=generator), 3, 1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", AUGMENTED)
def test_same_augmentation(case, seed):
    change, status, kinds = AUGMENTED[case]
    first = textured(seed)[:, :, 4:36, 4:36]
    finding = stated(same_augmentation(first, change(first)), status)
    assert finding.values["kinds"] == kinds


@pytest.mark.parametrize("seed", [*SEEDS, 1, 3])  # 1 and 3: an edge wins unless it is faded out
@pytest.mark.parametrize("to", [(0, 4), (4, 0), (7, 5), (1, 8)])
def test_another_crop_is_a_shift(to, seed):
    images = textured(seed)
    y, x = to
    finding = same_augmentation(images[:, :, 4:36, 4:36], images[:, :, y : y + 32, x : x + 32])
    stated(finding, "fail", "8 of 8 shifted")


@pytest.mark.parametrize(
    ("difference", "kinds", "status"),
    [
        (0.0, {"same": 4}, "pass"),
        (0.01, {"same": 4}, "pass"),
        (0.02, {"other": 4}, "fail"),
        (1.0, {"same": 2, "mirrored": 2}, "fail"),
        (nan, {"other": 4}, "fail"),
    ],
)
def test_judge_same_augmentation(difference, kinds, status):
    stated(judged("same_augmentation", difference=difference, kinds=kinds), status)


RANGES = {
    "[-1, 1]": (lambda x: x, "pass", "in ["),
    "[0, 1]": (lambda x: x / 2 + 0.5, "fail", "not mapped to [-1, 1]"),
    "[0, 255]": (lambda x: (x + 1) * 127.5, "fail", "0 to 255"),
    "uint8": (lambda x: ((x + 1) * 127.5).to(torch.uint8), "fail", "0 to 255"),
    "[-1, 0]": (lambda x: x / 2 - 0.5, "fail", "half of [-1, 1]"),
    "ImageNet's": (lambda x: (x / 2 + 0.5 - MEAN) / STD, "fail", "beyond [-1, 1]"),
    "NaN": (lambda x: x.where(x < 0.9, nan), "fail", "NaN or infinite"),
    "all NaN": (lambda x: x * nan, "fail", "NaN or infinite"),
    "infinite": (lambda x: x.where(x < 0.9, inf), "fail", "NaN or infinite"),
    "constant": (lambda x: x * 0 + 0.3, "warn", "All pixels"),
    "black": (lambda x: x * 0 - 1, "warn", "All pixels"),
    "bf16": (lambda x: x.bfloat16(), "pass", "in ["),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", RANGES)
def test_image_range(case, seed):
    change, status, words = RANGES[case]
    stated(image_range(change(pairs(seed, 16)[0])), status, words)


@pytest.mark.parametrize(
    ("low", "high", "status"),
    [
        (-1.0, 1.0, "pass"),
        (-1.01, 1.01, "pass"),
        (-1.0, 1.02, "fail"),
        (0.0, 0.992, "fail"),
        (nan, 1.0, "fail"),
        (-1.0, nan, "fail"),
    ],
)
def test_judge_image_range(low, high, status):
    stated(judged("image_range", low=low, high=high, nonfinite=0), status)


def autoencoder():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.1), nn.Conv2d(4, 3, 3))


def mixed(module):
    module.eval()[2].train()
    return module


@pytest.mark.parametrize(
    ("prepare", "status", "words"),
    [
        (lambda m: m.eval().requires_grad_(False), "pass", "frozen"),
        (
            lambda m: m.train().requires_grad_(False),
            "fail",
            "5 modules of the autoencoder are in training mode: 1 (Batch",
        ),
        (
            lambda m: mixed(m).requires_grad_(False),
            "fail",
            "1 modules of the autoencoder are in training mode: 2 (Drop",
        ),
        (lambda m: m.eval(), "warn", "6 parameters"),
        (lambda m: mixed(m), "fail", "training mode"),
    ],
)
def test_vae_eval(prepare, status, words):
    stated(vae_eval(prepare(autoencoder())), status, words)


def test_the_pipelines_own_autoencoder_is_in_eval_mode(tiny):
    stated(vae_eval(tiny.train()), "pass")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("gain", "status"), [(0.5, "pass"), (2.5, "pass"), (4.0, "warn"), (nan, "fail")])
def test_time_embedding(gain, status, seed):
    """A sinusoidal embedding through a layer, against normalized features."""
    generator = seeded(seed)
    t = torch.rand(16, 1, generator=generator)
    angles = 1000 * t * torch.exp(-torch.arange(32) / 4)
    embedding = gain * 2**0.5 * torch.cat([angles.cos(), angles.sin()], 1)
    features = F.layer_norm(torch.randn(16, 10, 64, generator=generator), (64,))
    finding = stated(time_embedding(embedding, features), status)
    if gain == 4.0:
        assert finding.values["ratio"] == pytest.approx(4, rel=1e-3)
        stated(time_embedding(embedding, features, overrides={"time/rms": 5.0}), "pass")


@pytest.mark.parametrize(
    ("numbers", "status"),
    [((3.0, 1.0), "pass"), ((3.1, 1.0), "warn"), ((0.0, 1.0), "pass"), ((1.0, 0.0), "fail"), ((nan, 1.0), "fail")],
)
def test_judge_time_embedding(numbers, status):
    stated(judged("time_embedding", **dict(zip(("embedding_rms", "features_rms"), numbers, strict=True))), status)


X = torch.zeros(4, 3, 8, 8)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: vae_round_trip(lambda x: x, lambda z: z[:, :1], X), ValueError, r"decode\(z\) must be \(4, 3, 8, 8\)"),
        (lambda: vae_round_trip(lambda x: (x, x), lambda z: z, X), TypeError, r"encode\(images\) .* got tuple"),
        (lambda: vae_round_trip(lambda x: x, lambda z: z, X[0]), ValueError, "images must be"),
        (lambda: vae_round_trip(lambda x: x, lambda z: z, X.byte()), TypeError, "images .*uint8"),
        (lambda: vae_round_trip(lambda x: x, lambda z: z, X[:0]), ValueError, "images must not be empty"),
        (lambda: vae_round_trip(lambda x: x, lambda z: z, X, overrides={"vae/psnr": 1.0}), KeyError, "vae/psnr_"),
        (lambda: scale_contract(lambda x: x, lambda z: z, X, 0.0), ValueError, "scale must be"),
        (lambda: scale_contract(lambda x: x, lambda z: z, X, nan), ValueError, "scale must be"),
        (lambda: latent_is_sample(X, X[:, :2]), ValueError, r"z1 must be \(4, 1, 8, 8\)"),
        (lambda: latent_is_sample(X, X), ValueError, "moments must be"),
        (lambda: text_path(lambda p: X, "a cat"), ValueError, "prompts must be"),
        (lambda: text_path(lambda p: X, ["a cat", "a cat"]), ValueError, "two different"),
        (lambda: text_path(lambda p: X, ["a cat", "a dog"]), ValueError, "2 rows"),
        (lambda: text_path(lambda p: [1, 2], ["a cat", "a dog"]), TypeError, r"embed\(prompts\)"),
        (lambda: pairing(lambda x, c: x, X, ["a", "b"]), ValueError, "captions must have"),
        (lambda: pairing(lambda x, c: x, X, ["a"] * 4), ValueError, "all the same"),
        (lambda: pairing(lambda x, c: x, X[:3], list("abc")), ValueError, "at least 4"),
        (lambda: pairing(lambda x, c: x, X, list("abcd")), ValueError, r"score must give \(4,\)"),
        (lambda: pairing(lambda x, c: x, X, list("abcd"), shuffles=0), ValueError, "shuffles"),
        (lambda: same_augmentation(X, X[:2]), ValueError, "second must have"),
        (lambda: image_range(X[:0]), ValueError, "images must be"),
        (lambda: image_range([1]), ValueError, "images must be .* list"),
        (lambda: vae_eval(lambda x: x), TypeError, "module must be"),
        (lambda: time_embedding(X.long(), X), TypeError, "embedding"),
        (lambda: time_embedding(X, None), TypeError, "features"),
    ],
)
def test_a_wrong_call_names_its_argument(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_no_check_asks_for_gradients(vae):
    """Callables with parameters are run without a graph."""
    seen = Counter()

    def encode(x):
        seen[torch.is_grad_enabled()] += 1
        return vae.encode(x)

    images = pairs(1, 4)[0]
    vae_round_trip(encode, vae.decode, images)
    scale_contract(encode, vae.decode, images, vae.scale)
    text_path(lambda p: encode(images)[: len(p)], ["a", "b"])
    pairing(lambda x, c: encode(x).flatten(1).mean(1), images, list("abcd"))
    assert set(seen) == {False}


def test_judge_vae_eval_names_five():
    finding = stated(
        judged("vae_eval", training=[f"m{i}" for i in range(7)], trainable=0), "fail", "7 modules", "m4, …"
    )
    assert "m5" not in finding.meaning
