"""The mixture head: its weights, its components, how it is trained, and what it draws."""

import math

import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal, kl_divergence

from fmpipe.models import Mixture, MixtureHead

SHAPE = (2, 3, 3)


def head(**options) -> MixtureHead:
    torch.manual_seed(0)
    return MixtureHead(**{"width": 6, "tokens": 4, "latent_shape": SHAPE, "components": 5, **options})


def mixture(weights, means, sigma=0.5) -> Mixture:
    values = torch.tensor(means, dtype=torch.float32).repeat_interleave(18, 1)
    return Mixture(torch.tensor(weights).log(), values, None, torch.full_like(values, 2 * math.log(sigma)), SHAPE)


TEXT = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("options", [{}, {"hidden": 8}, {"mu_rms": 1.0}, {"std_range": (0.3, 0.4), "hidden": 8}])
def test_forward_returns_the_most_likely_component(options):
    one = head(**options)
    one.start_from(IMAGES)
    torch.nn.init.normal_(one.gate.weight)
    mu, logvar = one(TEXT)
    mix = one.mixture(TEXT)
    best = mix.log_weights.argmax(1)
    assert mu.shape == logvar.shape == (3, *SHAPE)
    assert torch.equal(mu, mix.component(best)[0])
    distances = mix.distances(mu)
    assert torch.allclose(distances[range(3), best], torch.zeros(3), atol=1e-6)
    direct = torch.stack([(mix.component(torch.full((3,), m))[0] - mu).square().flatten(1).mean(1) for m in range(5)])
    assert torch.allclose(distances, direct.T, atol=1e-5)
    if "std_range" in options:
        assert (logvar / 2).exp().sub(0.35).abs().max() < 0.05


def test_padding_does_not_change_the_mixture():
    one, mask = head(hidden=8), torch.tensor([[1, 1, 0, 0]])
    other = TEXT[:1].clone()
    other[:, 2:] = 7.0
    torch.nn.init.normal_(one.gate.weight)
    assert torch.equal(one.mixture(TEXT[:1], mask).log_weights, one.mixture(other, mask).log_weights)
    assert not torch.equal(one.mixture(TEXT[:1]).log_weights, one.mixture(other).log_weights)


def test_the_drawn_components_have_the_weights_of_the_text():
    weights = [0.5, 0.3, 0.15, 0.05]
    mix = mixture([weights] * 2000, [[0.0]] * 4)
    uniform = torch.rand(2000, generator=torch.Generator().manual_seed(0))
    share = torch.bincount(mix.drawn(uniform), minlength=4) / 2000
    assert torch.allclose(share, torch.tensor(weights), atol=0.03)
    assert (torch.bincount(mix.drawn(uniform, focus=1.0), minlength=4) > 0).tolist() == [True, True, False, False]
    assert mix.drawn(uniform, focus=2.0).max() == 0
    vague = mixture([[0.26, 0.25, 0.25, 0.24]] * 2000, [[0.0]] * 4)
    assert torch.bincount(vague.drawn(uniform, focus=2.0), minlength=4).min() > 400
    flat, sharp = (mix.drawn(uniform, d).bincount(minlength=4)[0] for d in (4.0, 0.25))
    assert flat < share[0] * 2000 < sharp
    assert torch.equal(mix.drawn(uniform, 0), torch.zeros(2000, dtype=torch.long))
    assert torch.equal(mix.drawn(torch.ones(2000)), torch.full((2000,), 3))  # rounding of a uniform number


def test_the_kl_of_the_mixture_is_between_the_bounds():
    mix = mixture([[0.7, 0.3], [0.5, 0.5]], [[0.4], [-0.2]])
    for k in range(2):
        parts = Independent(Normal(mix.values, (mix.logvars / 2).exp()), 1)
        density = MixtureSameFamily(Categorical(logits=mix.log_weights[k]), parts)
        torch.manual_seed(0)
        z = density.sample((40_000,))
        kl = (density.log_prob(z) - Normal(0, 1).log_prob(z).sum(1)).mean() / 18
        single = torch.stack([kl_divergence(Normal(v, 0.5), Normal(0, 1)).mean() for v in mix.values])
        upper = mix.kl_upper()[k]
        assert upper == pytest.approx((mix.log_weights[k].exp() * single).sum().item(), rel=1e-5)
        entropy = -(mix.log_weights[k].exp() * mix.log_weights[k]).sum() / 18
        assert upper - entropy - 0.002 < kl < upper + 0.002


def test_start_from_takes_the_images_or_groups_of_them():
    one = head()
    one.start_from(IMAGES)
    assert torch.equal(one.nodecay_values.view(5, *SHAPE), IMAGES)
    many = (IMAGES[:, None] + 0.01 * torch.randn(5, 6, *SHAPE, generator=torch.Generator().manual_seed(3))).flatten(
        0, 1
    )
    one.start_from(many)
    assert torch.pdist(one.nodecay_values).min() > 0
    assert (
        torch.cdist(many.flatten(1), one.nodecay_values).amin(1).mean()
        < torch.cdist(many.flatten(1), many[:5].flatten(1)).amin(1).mean()
    )
    with pytest.raises(ValueError, match="components must be at most the number of training images, 4, got 5"):
        one.start_from(IMAGES[:4])


@pytest.mark.parametrize("hidden", [None, 16])
def test_a_text_of_two_images_gets_both_and_another_text_one(hidden):
    one = head(hidden=hidden)
    one.start_from(IMAGES)
    optimizer = torch.optim.Adam(one.parameters(), 0.05)
    draw = torch.Generator().manual_seed(4)
    for _ in range(300):
        rows = torch.tensor([0, 0, 1, 1])
        images = torch.stack(
            [IMAGES[torch.randint(2, (), generator=draw)], IMAGES[torch.randint(2, (), generator=draw)]]
        )
        targets = torch.cat([images, IMAGES[[4, 4]]])
        mu, _, loss, stats = one.fitted(TEXT[rows], None, targets, 0.1)
        optimizer.zero_grad()
        (loss + (mu - targets).square().mean()).backward()
        optimizer.step()
    weights = one.mixture(TEXT).log_weights.exp()
    assert weights[0, :2].min() > 0.3
    assert weights[1, 4] > 0.95
    assert (mu - targets).square().mean() < 0.01  # the component is the one of the image, not the likelier one
    assert 1 < stats["mix/used"] < 4
    assert 0.2 < stats["mix/entropy"] < 0.5


def test_a_saved_head_is_the_same(tmp_path):
    one = head(hidden=8, focus=0.3)
    torch.nn.init.normal_(one.gate.weight)
    one.remember(TEXT, None, [[0], [1, 2], [4]], IMAGES)
    one.save_pretrained(tmp_path)
    other = MixtureHead.from_pretrained(tmp_path, torch_dtype=torch.float32)
    assert (other.config.focus, other.config.remembered, other.config.links) == (0.3, 3, 4)
    assert other.memory_pairs.dtype == torch.int32
    assert torch.equal(other(TEXT)[0], one(TEXT)[0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"components": 0}, "components"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"recall": 2}, r"recall must be in \[0, 1\], got 2"),
        ({"temperature": 0}, "temperature must be positive, got 0"),
        ({"focus": -1}, "focus must be 0 or more, got -1"),
    ],
)
def test_wrong_arguments_are_named(options, said):
    with pytest.raises(ValueError, match=said):
        head(**options)


def test_the_memory_gives_a_text_the_images_of_similar_texts():
    one = head(recall=1.0, temperature=0.02)
    one.start_from(IMAGES)
    one.remember(TEXT, None, [[0], [1, 2], [4]], IMAGES)
    weights = one.mixture(TEXT).log_weights.exp()
    shared = torch.tensor([[1, 0, 0, 0, 0], [0, 0.5, 0.5, 0, 0], [0, 0, 0, 0, 1.0]])
    assert torch.allclose(weights, shared, atol=0.05)
    assert torch.allclose(one.mixture(TEXT, recall=False).log_weights.exp(), torch.full((3, 5), 0.2))
    half = MixtureHead(6, 4, SHAPE, components=5, recall=0.5, remembered=3, links=4)
    half.load_state_dict(one.state_dict())
    torch.nn.init.normal_(half.gate.weight)
    gate, both = half.mixture(TEXT, recall=False), half.mixture(TEXT)
    product = (0.5 * gate.log_weights + 0.5 * half.recalled(half.pooled(TEXT, None))).softmax(1)
    assert torch.allclose(both.log_weights.exp(), product, atol=1e-6)
    with pytest.raises(ValueError, match="remember got 3 texts and the images of 1"):
        one.remember(TEXT, None, [[0]], IMAGES)
