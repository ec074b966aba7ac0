"""What steers a training: towers, weights of losses, times, parameter groups, the moving average."""

import copy
import math

import pytest
import torch
from torch import nn

from fmpipe.train import embeddings, loss_weights, losses, optim, times
from fmpipe.train.config import Group
from fmpipe.train.ema import EMA

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# --- towers


@pytest.mark.parametrize(("channels", "size"), [(4, (8, 8)), (3, (5, 7)), (1, (1, 1))])
def test_an_image_tower_takes_any_latent(channels, size):
    net = embeddings.ImageTower(channels, dim=16)
    z = torch.randn(3, channels, *size, requires_grad=True)
    out = net(z)
    assert out.shape == (3, 16)
    torch.testing.assert_close(out[:1], net(z[:1]))  # a sample does not see its batch
    out.square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in net.parameters())


def test_an_image_tower_knows_where_a_thing_is():
    z = torch.zeros(2, 1, 32, 32)  # far from the border, whose padding would tell, and apart by whole strides
    z[0, :, 8:11, 8:11] = z[1, :, 16:19, 16:19] = 1
    left, right = embeddings.ImageTower(1, dim=16)(z)
    assert (left - right).norm() > 1e-3 * left.norm()


def test_a_projection_is_blind_to_the_scale():
    net, z0 = embeddings.Projection(4 * 8 * 8, 16), torch.randn(3, 4, 8, 8)
    assert net(z0).shape == (3, 16)
    torch.testing.assert_close(net(1000 * z0), net(z0), rtol=1e-3, atol=1e-4)


def test_prototypes_are_cosines():
    net, x = embeddings.Prototypes(5, 7), torch.randn(3, 5)
    with torch.no_grad():
        net.weight *= 3
    torch.testing.assert_close(net(x), torch.cosine_similarity(x[:, None], net.weight[None], dim=-1))


def test_a_teacher_follows():
    student = nn.BatchNorm1d(3)  # for its buffers
    teacher = copy.deepcopy(student)
    with torch.no_grad():
        student.weight.fill_(2.0)
    student(torch.randn(4, 3))
    embeddings.ema_update(teacher, student, 0.75)
    torch.testing.assert_close(teacher.weight.detach(), torch.full((3,), 1.25))
    assert torch.equal(teacher.running_mean, student.running_mean)


# --- schedules of weights

SCHEDULES = [
    (loss_weights.warm_up, (0, 100), 0.0),
    (loss_weights.warm_up, (5, 100), 0.5),
    (loss_weights.warm_up, (10, 100), 1.0),
    (loss_weights.warm_up, (99, 100), 1.0),
    (loss_weights.warm_up, (25, 100, 0.5), 0.5),
    (loss_weights.warm_up, (0, 100, 0.0), 1.0),
    (loss_weights.cosine, (0, 100, 2.0, 1.0), 2.0),
    (loss_weights.cosine, (25, 100, 2.0, 1.0), 1.5 + math.sqrt(2) / 4),
    (loss_weights.cosine, (50, 100, 2.0, 1.0), 1.5),
    (loss_weights.cosine, (100, 100, 2.0, 1.0), 1.0),
    (loss_weights.cosine, (300, 100, 2.0, 1.0), 1.0),
    (loss_weights.beta, (0, 100, "constant"), 1.0),
    (loss_weights.beta, (30, 100, "linear"), 0.3),
    (loss_weights.beta, (50, 100, "cosine"), 0.5),
    (loss_weights.beta, (100, 100, "cosine"), 1.0),
    (loss_weights.beta, (0, 80, "cyclic"), 0.0),
    (loss_weights.beta, (5, 80, "cyclic"), 0.5),
    (loss_weights.beta, (15, 80, "cyclic"), 1.0),
    (loss_weights.beta, (20, 80, "cyclic"), 0.0),
    (loss_weights.beta, (65, 80, "cyclic"), 0.5),
    (loss_weights.beta, (80, 80, "cyclic"), 1.0),
]


@pytest.mark.parametrize(("schedule", "arguments", "value"), SCHEDULES)
def test_schedules(schedule, arguments, value):
    assert schedule(*arguments) == pytest.approx(value, abs=1e-12)


def test_beta_refuses_another_kind():
    with pytest.raises(ValueError, match=r"beta: kind must be one of constant, .*, got 'cosin'"):
        loss_weights.beta(0, 1, "cosin")


# --- weights by gradients: norms[k] = sizes[k] · weight[k]

SIZES = {"flow": 2.0, "kl": 500.0, "dino": 0.01}


@pytest.mark.parametrize("shares", [{"kl": 0.2}, {"kl": 0.2, "dino": 0.4}, {"flow": 1.0, "dino": 0.5}])
def test_gradient_shares_are_reached(shares):
    w = {"flow": 1.0, "kl": 1.0, "dino": 1.0}
    for _ in range(120):
        before = w
        w = loss_weights.by_gradient_share({k: SIZES[k] * w[k] for k in w}, shares, w)
        assert all(1 / 1.5 <= w[k] / before[k] <= 1.5 for k in w)
    for name in SIZES:
        wanted = shares[name] * SIZES["flow"] / SIZES[name] if name in shares and name != "flow" else 1.0
        assert w[name] == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("norm", [0.0, math.inf, math.nan])
def test_a_gradient_that_is_none_moves_no_weight(norm):
    w = {"flow": 1.0, "kl": 0.1}
    assert loss_weights.by_gradient_share({"flow": 1.0, "kl": norm}, {"kl": 0.5}, w) == w
    assert loss_weights.by_gradient_share({"flow": norm, "kl": 1.0}, {"kl": 0.5}, w) == w
    balance = loss_weights.GradNorm(["flow", "kl"])
    assert balance.update({"flow": 1.0, "kl": norm}, {"flow": 1.0, "kl": 1.0}) == {"flow": 1.0, "kl": 1.0}


@pytest.mark.parametrize(("norms", "w"), [({"flow": 1.0}, {"flow": 1.0, "kl": 1.0}), ({"flow": 1, "kl": 1}, {})])
def test_a_share_needs_a_norm_and_a_weight(norms, w):
    with pytest.raises(ValueError, match=r"no norm or weight of \['kl'\]"):
        loss_weights.by_gradient_share(norms, {"kl": 0.5}, w)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.5])
def test_gradnorm_balances(alpha):
    """The norms end in the proportions r^alpha; the losses have fallen to 1, 1/2 and 1/4 of what they were."""
    balance, fallen = loss_weights.GradNorm(SIZES, alpha), {"flow": 1.0, "kl": 0.5, "dino": 0.25}
    balance.update(dict.fromkeys(SIZES, 1.0), {"flow": 3.0, "kl": 8.0, "dino": 1.0})
    now = {k: fallen[k] * first for k, first in balance.first.items()}
    for _ in range(300):
        w = balance.update({k: SIZES[k] * balance.weights[k] for k in SIZES}, now)
        assert sum(w.values()) == pytest.approx(3)
        assert min(w.values()) > 0
    norms = {k: SIZES[k] * w[k] for k in SIZES}
    for name in SIZES:
        assert norms[name] / norms["flow"] == pytest.approx(fallen[name] ** alpha, rel=1e-3)


def test_gradnorm_goes_on_from_its_state():
    balance, other = loss_weights.GradNorm(SIZES), loss_weights.GradNorm(SIZES)
    balance.update(SIZES, {"flow": 3.0, "kl": 8.0, "dino": 1.0})
    other.load_state_dict(balance.state_dict())
    later = {"flow": 1.0, "kl": 7.0, "dino": 0.5}
    assert other.update(SIZES, later) == balance.update(SIZES, later)


def plain_pcgrad(rows, orders):
    total = torch.zeros_like(rows[0])
    for i, order in enumerate(orders):
        g = rows[i].clone()
        for j in order:
            if j != i and g @ rows[j] < 0:
                g -= (g @ rows[j]) / (rows[j] @ rows[j]) * rows[j]
        total += g
    return total


@pytest.mark.parametrize("seed", range(4))
def test_pcgrad_is_the_papers_loop(seed):
    rows = torch.randn(3, 7, dtype=torch.float64, generator=generator(seed))
    rows -= rows.mean(0)  # they sum to 0: there are conflicts
    grads = [[row[:4].view(2, 2), row[4:]] for row in rows]
    draw = generator(seed)
    orders = [torch.randperm(3, generator=draw).tolist() for _ in range(3)]
    out = loss_weights.pcgrad(grads, generator(seed))
    torch.testing.assert_close(torch.cat([x.flatten() for x in out]), plain_pcgrad(rows, orders))
    assert all(torch.equal(a, b) for a, b in zip(out, loss_weights.pcgrad(grads, generator(seed)), strict=True))


TWO = [
    ([1.0, 0.0], [-1.0, 1.0], [0.5, 1.5]),  # each freed of its part against the other
    ([1.0, 0.0], [1.0, 1.0], [2.0, 1.0]),  # no conflict: the sum
    ([1.0, 2.0], [0.0, 0.0], [1.0, 2.0]),
    ([1.0, 2.0], None, [1.0, 2.0]),
]


@pytest.mark.parametrize(("a", "b", "wanted"), TWO)
def test_pcgrad_takes_conflicts_out(a, b, wanted):
    a, b = (None if x is None else torch.tensor(x) for x in (a, b))
    (out, none) = loss_weights.pcgrad([[a, None], [b, None]], generator())
    torch.testing.assert_close(out, torch.tensor(wanted))
    assert none is None
    assert out @ a >= 0
    assert b is None or out @ b >= 0


# --- times

LOGIT_NORMAL = 0.2083  # √∫(sigmoid(x) - ½)² φ(x) dx
MOMENTS = [
    ("uniform", 0.5, math.sqrt(1 / 12)),
    ("logit_normal", 0.5, LOGIT_NORMAL),
    ("edge", 0.0, math.sqrt(1 / 12)),
    ("edge", 0.5, math.sqrt(7 / 60)),
    ("edge", 1.0, math.sqrt(9 / 60)),
    ("mixed", 0.5, math.sqrt((1 / 12 + LOGIT_NORMAL**2) / 2)),
]


@pytest.mark.parametrize(("kind", "edge", "std"), MOMENTS)
def test_times_have_their_moments(kind, edge, std):
    t = times.sample_t(kind, 200_000, generator(), edge=edge)
    assert t.dtype == torch.float32
    assert t.shape == (200_000,)
    assert t.min() >= 0
    assert t.max() <= 1
    assert t.mean().item() == pytest.approx(0.5, abs=0.003)
    assert t.std().item() == pytest.approx(std, abs=0.002)
    assert torch.equal(t[:0], times.sample_t(kind, 0, generator()))
    assert torch.equal(t, times.sample_t(kind, 200_000, generator(), edge=edge))


@pytest.mark.parametrize("strength", [0.0, 0.3, 1.0])
def test_edge_weights_average_1_and_are_the_density_drawn(strength):
    t = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    w = times.edge_weight(t, strength)
    assert w.mean().item() == pytest.approx(1, abs=1e-6)
    assert w.min() >= 0
    assert w[0].item() == pytest.approx(1 + 2 * strength, abs=1e-2)
    counts = torch.histc(times.sample_t("edge", 200_000, generator(), edge=strength), 10, 0, 1) / 20_000
    torch.testing.assert_close(counts.double(), w.view(10, -1).mean(1), rtol=0, atol=0.03)


@pytest.mark.parametrize("probability", [0.0, 0.1, 1.0])
def test_null_mask(probability):
    mask = times.null_mask(100_000, probability, generator())
    assert mask.dtype == torch.bool
    assert mask.double().mean().item() == pytest.approx(probability, abs=0.004)


BAD = [
    (lambda: times.sample_t("logitnormal", 1, generator()), "kind must be one of uniform, .*, got 'logitnormal'"),
    (lambda: times.sample_t("edge", 1, generator(), edge=1.5), r"sample_t: edge must be in \[0, 1\], got 1.5"),
    (lambda: times.edge_weight(torch.rand(1), -1), "edge_weight: strength"),
    (lambda: times.null_mask(1, 2, generator()), "null_mask: probability"),
    (lambda: EMA(nn.Linear(1, 1), decay=1.0), r"EMA: decay must be in \[0, 1\), got 1.0"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_numbers_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- parameter groups and the average


@pytest.fixture(scope="module")
def networks():
    from fmpipe.models import build  # takes seconds to import: its tests are the slow ones

    return build("small_dimr")


@pytest.mark.slow
def test_multi_scale_is_the_networks_own(networks):
    v = torch.randn(2, 4, 8, 8)
    for targets, wanted in (
        (losses.multi_scale(networks.velocity_net, v), networks.velocity_net.targets(v)),
        (losses.multi_scale(nn.Identity(), v), [v]),
    ):
        assert len(targets) == len(wanted)
        assert all(torch.equal(a, b) for a, b in zip(targets, wanted, strict=True))
    x_t, t = torch.randn(2, 4, 8, 8), torch.rand(2)
    velocities = networks.velocity_net.velocities(x_t, t)
    loss, _ = losses.flow(velocities, v, losses.multi_scale(networks.velocity_net, v), t)
    wanted = sum((a - b).square().mean() for a, b in zip(velocities, networks.velocity_net.targets(v), strict=True))
    torch.testing.assert_close(loss, wanted)


@pytest.mark.slow
def test_every_parameter_is_in_one_group(networks):
    own = {
        "text_head": Group(lr=2e-3),
        "text_head.layers.0": Group(weight_decay=0.5),
        "velocity_net.stages.1.output_layer.2.weight": Group(5e-3, 0.0),
    }
    groups = optim.parameter_groups(networks, 1e-3, 0.05, own)
    found = {p: group for group in groups for p in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(found) == len(list(networks.parameters()))
    wanted = {None: (1e-3, 0.05), "text_head": (2e-3, 0.05), "text_head.layers.0": (1e-3, 0.5)}
    seen = set()
    for name, p in networks.named_parameters():
        fits = [prefix for prefix in own if name == prefix or name.startswith(prefix + ".")]
        prefix = max(fits, key=len) if fits else None
        lr, decay = wanted.get(prefix, (5e-3, 0.0))
        decayed = p.dim() > 1 and "nodecay_" not in name
        assert (found[p]["lr"], found[p]["weight_decay"]) == (lr, decay if decayed else 0), name
        seen.add(prefix)
    assert seen == {None, *own}
    torch.optim.AdamW(groups)


def test_groups_leave_out_what_is_frozen_and_decay_no_nodecay_matrix():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "nodecay_b": nn.Linear(2, 2), "c": nn.Linear(2, 2)})
    model["c"].requires_grad_(False)
    groups = {group["name"]: group["params"] for group in optim.parameter_groups(model, 1.0, 0.1)}
    assert groups["all"] == [model["a"].weight]
    assert groups["all/nodecay"] == [model["a"].bias, *model["nodecay_b"].parameters()]


@pytest.mark.slow
@pytest.mark.parametrize(("prefix", "nearest"), [("text_haed", "text_head"), ("text_head.layer", "text_head.layers")])
def test_an_unknown_part_is_refused_with_the_nearest(networks, prefix, nearest):
    with pytest.raises(ValueError, match=f"groups.{prefix}: is not a part of the model; the nearest is '{nearest}'"):
        optim.parameter_groups(networks, 1e-3, 0.05, {prefix: Group(lr=2.0)})


def small_model(dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).to(dtype)
    model[2].bias.requires_grad_(False)
    return model


def trained(model, ema, steps):
    """The values of every trainable parameter at each step."""
    course = []
    for _ in range(steps):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
            model[1].running_mean += 1
        ema.update(model)
        course.append({name: p.detach().double() for name, p in model.named_parameters() if p.requires_grad})
    return course


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("decay", "warm"), [(0.9, False), (0.3, True), (0.999, True)])
def test_ema_is_a_plain_loop(decay, warm, dtype):
    model = small_model(dtype)
    average = {name: p.detach().double() for name, p in model.named_parameters() if p.requires_grad}
    ema = EMA(model, decay, warm)
    for n, now in enumerate(trained(model, ema, 7), 1):
        d = min(decay, (1 + n) / (10 + n)) if warm else decay
        average = {name: d * average[name] + (1 - d) * now[name] for name in average}
    assert set(ema.shadow) == set(average)
    assert "2.bias" not in average
    for name, x in ema.shadow.items():
        assert x.dtype == torch.float32
        torch.testing.assert_close(x.double(), average[name], rtol=1e-5, atol=1e-6)
    assert torch.equal(ema.buffers["1.running_mean"], model[1].running_mean)


def test_ema_is_applied_and_taken_back():
    model = small_model()
    ema = EMA(model)
    trained(model, ema, 3)
    own = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="inside"), ema.applied(model):
        assert torch.equal(model[0].weight, ema.shadow["0.weight"])
        assert not torch.equal(model[0].weight, own["0.weight"])
        assert torch.equal(model[2].bias, own["2.bias"])
        raise RuntimeError("inside")
    assert all(torch.equal(x, own[name]) for name, x in model.state_dict().items())
    ema.copy_to(model)
    assert torch.equal(model[0].weight, ema.shadow["0.weight"])


def test_ema_goes_on_from_its_state():
    model = small_model()
    ema = EMA(model)
    trained(model, ema, 3)
    state = {name: x.clone() for name, x in ema.state_dict().items()}
    other = EMA(small_model())
    other.load_state_dict(state)
    for both in (ema, other):
        both.update(model)
    assert other.updates == ema.updates == 4
    assert all(torch.equal(x, other.shadow[name]) for name, x in ema.shadow.items())
    with pytest.raises(ValueError, match=r"EMA.load_state_dict: missing or unexpected: 0.weight"):
        other.load_state_dict({name: x for name, x in state.items() if name != "0.weight"})
