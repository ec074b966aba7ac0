"""Every figure of the log against the same figure written plainly."""

import copy
import itertools
import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fmkernels.ops import flow_loss, flow_pair, reparameterize
from fmpipe import metrics
from fmpipe.metrics import Metrics, UpdateRatios
from fmpipe.models import build
from fmpipe.models.networks import Networks
from fmpipe.models.presets import PRESETS
from fmpipe.models.text_head import LinearHead

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def networks():
    torch.manual_seed(0)
    return build("small_dimr").eval()  # no dropout: two forwards give one gradient


def small_losses(networks, dtype=torch.float32):
    """A training step's forward, as the loop does it."""
    draw = {"generator": torch.Generator().manual_seed(0), "dtype": dtype}
    x1, states, t = torch.randn(4, 4, 8, 8, **draw), torch.randn(4, 16, 64, **draw), torch.rand(4, **draw)
    mu, logvar = networks.text_head(states)
    z0, kl, head = reparameterize(mu, logvar, generator=draw["generator"])
    x_t, v_target = flow_pair(t, z0, x1)
    loss, stats = flow_loss(networks.velocity_net.velocity(x_t, t), v_target=v_target, t=t, return_stats=True)
    student = mu.flatten(1)[:, :32]
    dino = F.kl_div(student.log_softmax(-1), x1.flatten(1)[:, :32].softmax(-1), reduction="batchmean")
    return {"flow": loss, "kl": kl.mean(), "dino": dino}, stats, head, x_t


def total_norm(grads):
    return math.sqrt(sum(g.double().square().sum().item() for g in grads if g is not None))


WEIGHTS = [
    (None, 1.0, False, torch.float64, 1e-12),
    ({"kl": 1e-3}, 1024.0, True, torch.float64, 1e-12),
    ({"flow": 2.0, "kl": torch.tensor(0.5), "dino": 0.0}, torch.tensor(8.0), False, torch.float64, 1e-12),
    ({"kl": 1e-3, "dino": 0.1}, 1.0, True, torch.float32, 1e-6),
]


@pytest.mark.parametrize(("weights", "scale", "accumulated", "dtype", "tolerance"), WEIGHTS)
def test_backward_is_the_plain_one_of_the_weighted_sum(networks, weights, scale, accumulated, dtype, tolerance):
    networks = copy.deepcopy(networks).to(dtype)
    parameters = list(networks.parameters())
    weight = {"flow": 1.0, "kl": 1.0, "dino": 1.0} | (weights or {})
    for p in parameters:
        p.grad = torch.full_like(p, 0.01) if accumulated else None
    held = [p.grad for p in parameters]
    losses, *_ = small_losses(networks, dtype)
    alone = {}
    for name, loss in losses.items():
        alone[name] = torch.autograd.grad(weight[name] * loss, parameters, retain_graph=True, allow_unused=True)
    whole = sum(weight[name] * loss for name, loss in losses.items())
    total = torch.autograd.grad(whole, parameters, retain_graph=True, allow_unused=True)
    norms = metrics.backward(losses, parameters, weights, scale=scale)
    for p, grad in zip(parameters, total, strict=True):
        assert (p.grad is None) == (grad is None and not accumulated)
        if p.grad is not None:
            expected = torch.full_like(p, 0.01 if accumulated else 0.0) + (0.0 if grad is None else grad * scale)
            assert (p.grad - expected).norm() <= tolerance * max(expected.norm(), 1e-3)
    assert all(p.grad is old for p, old in zip(parameters, held, strict=True) if accumulated)
    for name, grads in {**alone, "total": total}.items():
        assert norms[f"grad/{name}"].item() == pytest.approx(total_norm(grads), rel=max(tolerance, 1e-7))
    with pytest.raises(RuntimeError, match="second time"):  # the graph is freed
        whole.backward()


def test_gradient_norms_leave_everything_as_it_was(networks):
    parameters = list(networks.parameters())
    networks.zero_grad()
    losses, *_ = small_losses(networks)
    weights = {"flow": 1.0, "kl": 0.1, "dino": 0.5}
    norms = metrics.gradient_norms(losses, iter(parameters), weights)
    assert all(p.grad is None for p in parameters)
    again = metrics.backward(losses, parameters, weights)  # the graph is still there
    assert norms.keys() == again.keys() == {"grad/flow", "grad/kl", "grad/dino", "grad/total"}
    for name in norms:
        torch.testing.assert_close(norms[name], again[name], rtol=1e-5, atol=0)
    assert 0 < norms["grad/kl"] < norms["grad/flow"] + norms["grad/dino"] + norms["grad/kl"]
    networks.zero_grad()


def test_gradients_that_share_memory_are_not_added_twice():
    """d sum / d p is one expanded element, and p and q get the same tensor."""
    p, q, other = (nn.Parameter(torch.zeros(3)) for _ in range(3))
    losses = {"a": (p + q + other).sum(), "b": 2 * p.sum(), "c": (3 * q).sum()}
    norms = metrics.backward(losses, [p, q])
    assert [x.grad.tolist() for x in (p, q, other)] == [[3.0] * 3, [4.0] * 3, [1.0] * 3]
    assert norms["grad/total"].item() == pytest.approx(math.sqrt(3 * 9 + 3 * 16))
    metrics.backward({"a": (p + q).sum()}, [p, p, q])
    assert [x.grad.tolist() for x in (p, q)] == [[4.0] * 3, [5.0] * 3]


def test_half_precision_norms_are_not_rounded_to_it():
    p = nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))
    norms = metrics.gradient_norms({"a": p.float().sum()}, [p])
    assert norms["grad/a"].item() == pytest.approx(math.sqrt(1000), rel=1e-6)


def test_a_loss_without_a_gradient_has_none():
    p = nn.Parameter(torch.ones(2))
    losses = {"flow": p.sum(), "kl": torch.tensor(3.0)}
    for norms in (metrics.gradient_norms(losses, [p]), metrics.backward(losses, [p])):
        assert {name: norm.item() for name, norm in norms.items()} == pytest.approx(
            {"grad/flow": math.sqrt(2), "grad/kl": 0.0, "grad/total": math.sqrt(2)}
        )


def test_an_error_on_the_way_leaves_grad_as_it_was():
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.tensor([5.0, 6.0])
    first = p.square().sum()
    second = p.square().sum()
    second.backward()  # its graph is gone
    p.grad = torch.tensor([5.0, 6.0])
    with pytest.raises(RuntimeError, match="second time"):
        metrics.backward({"a": first, "b": second}, [p])
    assert p.grad.tolist() == [5.0, 6.0]


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.body(x).tanh())


OPTIMIZERS = [
    (torch.optim.Adam, {"lr": 1e-2}, False),
    (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.1, "amsgrad": True}, False),
    (torch.optim.Adam, {"lr": 1e-2, "maximize": True, "foreach": False}, False),
    (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.3}, False),
    (torch.optim.AdamW, {"lr": 1e-2, "fused": True}, True),
    (torch.optim.SGD, {"lr": 1e-2}, True),
    (torch.optim.SGD, {"lr": 1e-2, "weight_decay": 0.2, "maximize": True}, True),
    (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}, False),
    (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, True),
    (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "nesterov": True, "maximize": True}, True),
    (torch.optim.RMSprop, {"lr": 1e-2}, True),
]


@pytest.mark.parametrize(("kind", "options", "cloned"), OPTIMIZERS)
def test_update_ratios(kind, options, cloned):
    model = Tiny().double()
    optimizer = kind(model.parameters(), **options)
    ratios = UpdateRatios(model, optimizer, {"z_head": "head", "flow_head": "body.weight"})
    parts = {"z_head": list(model.head.parameters()), "flow_head": [model.body.weight]}
    group = optimizer.param_groups[0]
    assert metrics._leaves_its_change(optimizer, group, model.body.weight) != cloned
    for _ in range(4):
        before = {p: p.detach().clone() for p in model.parameters()}
        optimizer.zero_grad()
        model(torch.randn(8, 3).double()).square().mean().backward()
        with ratios.step() as out:
            optimizer.step()
        for head, parameters in parts.items():
            plain = [((p - before[p]).norm() / (before[p].norm() + 1e-12)).item() for p in parameters]
            assert out[f"step/{head}_update_ratio"].item() == pytest.approx(sum(plain) / len(plain), rel=1e-8)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_update_ratio_of_what_starts_at_zero(kind):
    """A zero bias's first change is so many times 1e-12: the long way's figure, though p + d is not quite 0."""
    model = nn.Linear(5, 400)
    nn.init.zeros_(model.bias)
    optimizer = kind(model.parameters(), lr=1e-3)
    model(torch.randn(8, 5)).square().sum().backward()
    with UpdateRatios(model, optimizer, {"z_head": "bias"}).step() as out:
        optimizer.step()
    assert out["step/z_head_update_ratio"].item() == pytest.approx(model.bias.norm().item() / 1e-12, rel=1e-5)


def test_update_ratio_of_a_step_left_out_and_of_a_part_that_does_not_learn():
    model = Tiny()
    model.body.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    ratios = UpdateRatios(model, optimizer, {"z_head": "head", "flow_head": "body"})
    model(torch.randn(8, 3)).sum().backward()
    with ratios.step() as out:
        optimizer.step()
    assert out["step/z_head_update_ratio"] > 1e-3
    assert out["step/flow_head_update_ratio"] == 0
    with ratios.step() as out:
        pass  # as a GradScaler that met an infinity
    assert out["step/z_head_update_ratio"] == 0


def test_update_ratio_shows_an_update_that_bf16_swallows():
    model = Tiny().bfloat16()
    nn.init.ones_(model.head.weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    ratios = UpdateRatios(model, optimizer, {"z_head": "head.weight"})
    model(torch.randn(8, 3).bfloat16()).sum().backward()
    with ratios.step() as out:
        optimizer.step()
    assert out["step/z_head_update_ratio"] == 0


@pytest.mark.parametrize("preset", PRESETS)
def test_default_heads_are_the_last_layers(preset):
    networks = build(preset, device="meta")
    heads = metrics.default_heads(networks)
    ratios = UpdateRatios(networks, torch.optim.Adam(networks.parameters()))
    assert ratios.heads.keys() == heads.keys() == {"z_head", "flow_head"}
    last = networks.get_submodule(heads["z_head"])
    assert last.weight.shape[0] in (2 * math.prod(networks.text_head.config.latent_shape), 8)
    assert (
        networks.get_submodule(heads["flow_head"])
        is [m for m in networks.velocity_net.modules() if isinstance(m, (nn.Conv2d, nn.Linear))][
            -1 if "dimr" in preset else -2
        ]
    )  # a DiT's modulation is registered behind it


def test_default_heads_of_a_linear_head(networks):
    other = Networks(networks.velocity_net, LinearHead(width=8, tokens=2, latent_shape=(4, 2, 2), hidden=8))
    assert metrics.default_heads(other)["z_head"] == "text_head.layers.4"


@pytest.mark.parametrize("temperature", [1.0, 0.04])
def test_entropy(temperature):
    logits = torch.randn(6, 10)
    logits[0, 3] = -math.inf
    expected = torch.distributions.Categorical(logits=logits[1:].double() / temperature).entropy()
    first = torch.distributions.Categorical(logits=logits[0][logits[0] > -9].double() / temperature).entropy()
    got = metrics.entropy(logits, temperature)
    assert got.item() == pytest.approx((expected.sum() + first).item() / 6, rel=1e-5)
    assert metrics.entropy(torch.zeros(3, 8).bfloat16()).item() == pytest.approx(math.log(8), rel=1e-6)


STATS = [
    (torch.randn(7, 13) * 3 + 1, 0),
    (torch.randn(64, 64).bfloat16(), 0),
    (torch.randint(0, 1000, (32,)), 0),
    (torch.randn(5, 5).double().t()[1:], 0),
    (torch.tensor([1.0, math.nan, -3.0, math.inf, -math.inf, 2.0]), 3),
    (torch.tensor(4.0), 0),
    (1e4 + torch.randn(1000), 0),
    (torch.tensor([True, False, True, True]), 0),
]


@pytest.mark.parametrize(("x", "nonfinite"), STATS)
def test_tensor_stats(x, nonfinite):
    kept = x.double()[x.double().isfinite()]
    got = metrics.tensor_stats("x_t", x)
    expected = {"min": kept.min(), "max": kept.max(), "mean": kept.mean(), "std": kept.std(correction=0)}
    for name, value in expected.items():
        assert got[f"stat/x_t/{name}"] == pytest.approx(value.item(), rel=1e-5, abs=1e-6)
    assert got["stat/x_t/nonfinite"] == nonfinite
    assert got["stat/x_t/dtype"] == str(x.dtype).split(".")[1]
    assert len(got) == 6


@pytest.mark.parametrize("x", [torch.empty(0), torch.full((3,), math.nan)])
def test_tensor_stats_of_nothing(x):
    got = metrics.tensor_stats("x", x)
    assert all(math.isnan(got[f"stat/x/{name}"]) for name in ("min", "max", "mean", "std"))
    assert got["stat/x/nonfinite"] == len(x)


def test_constants_are_those_of_the_debugging_notes():
    got = metrics.constants(torch.linspace(1e-4, 0.02, 1000))
    assert got["const/betas"] == pytest.approx([1e-4, 0.02])
    assert got["const/alphas_cumprod"] == pytest.approx([0.9999, 4.04e-5], rel=2e-3)
    assert got["const/sqrt_alphas_cumprod"] == pytest.approx([0.99995, math.sqrt(4.036e-5)], rel=1e-3)
    assert got["const/sqrt_one_minus_alphas_cumprod"] == pytest.approx([0.01, 0.99998], rel=1e-4)
    assert len(got) == 4


@pytest.mark.parametrize(("solver", "order"), [("euler", 1), ("heun", 2)])
def test_endpoint_rmse_falls_with_the_solvers_order(solver, order):
    """dx/dt = x leads from x0 to e x0."""
    x0 = torch.randn(4, 3, dtype=torch.float64)
    got = metrics.endpoint(lambda x, t: x, x0, math.e * x0, ks=(8, 16, 32, 64), solver=solver)
    assert list(got) == [f"flow/endpt_rmse@{k}" for k in (8, 16, 32, 64)]
    for coarse, fine in itertools.pairwise(got.values()):
        assert coarse / fine == pytest.approx(2**order, rel=0.1)


def test_endpoint_rmse_of_a_field_that_explodes_is_a_figure():
    got = metrics.endpoint(lambda x, t: x * math.inf, torch.ones(2, 3), torch.zeros(2, 3), ks=(8,))
    assert not math.isfinite(got["flow/endpt_rmse@8"])


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_condition_gain(seed):
    g = torch.Generator().manual_seed(seed)
    x0, x1, t = torch.randn(16, 8, generator=g), torch.randn(16, 8, generator=g), torch.rand(16, generator=g)
    uses = metrics.condition(lambda x, t, cond: cond, x0, x1, t, cond=x1 - x0, generator=g)
    deaf = metrics.condition(lambda x, t, cond: x1 - x0, x0, x1, t, cond=x1, generator=g)
    assert uses["flow/cond_gain_cos"] > 0.7
    assert deaf == {"flow/cond_gain_cos": 0.0}


def test_collect_gives_plain_numbers_of_all_that_was_added(networks):
    losses, stats, head, x_t = small_losses(networks)
    kept = Metrics()
    kept.add({"loss/flow": losses["flow"], "lr": 1e-3, "const/betas": [1e-4, 0.02]}, stats, head).tensor("x_t", x_t)
    kept.add(metrics.gradient_norms(losses, networks.parameters()))
    got = kept.collect()
    assert all(type(value) in (float, str, list) for value in got.values())
    assert got["loss/flow"] == losses["flow"].item()
    expected = stats.as_dict() | head.as_dict() | metrics.tensor_stats("x_t", x_t)
    assert {name: got[name] for name in expected} == expected
    assert got["lr"] == 1e-3
    assert got["grad/total"] > 0
    assert kept.collect() == {}


DUE = [
    (50, 1.0, [0, 50, 100, 150, 200, 250]),
    (50, 0.5, [0, 100, 200]),
    (10, 0.1, [0, 100, 200]),
    (100, 0.0, []),
    (1, 0.01, [0, 100, 200]),
]


@pytest.mark.parametrize(("every", "share", "steps"), DUE)
def test_steps_that_log(every, share, steps):
    kept = Metrics(every, share)
    assert [step for step in range(300) if kept.should_gradients(step)] == steps
    assert [step for step in range(300) if kept.should(step)] == list(range(0, 300, every))


P = nn.Parameter(torch.ones(2))
ADAM = torch.optim.Adam([P])
X = torch.zeros(2, 3)
WRONG = [
    (lambda: metrics.backward({"a": P * 2}, [P]), ValueError, "loss 'a' must be a tensor of one element, got (2,)"),
    (lambda: metrics.gradient_norms({"a": 0.5}, [P]), ValueError, "got float"),
    (lambda: metrics.backward({"total": P.sum()}, [P]), ValueError, "parts of the total"),
    (lambda: metrics.backward({}, [P]), ValueError, "at least one"),
    (lambda: metrics.backward({"a": P.sum()}, [P], {"b": 1.0}), ValueError, "weights has ['b']"),
    (lambda: metrics.backward({"a": torch.tensor(1.0)}, [P]), ValueError, "no loss of a has a gradient"),
    (lambda: metrics.backward({"a": P.sum()}, [X]), ValueError, "no parameter requires"),
    (lambda: UpdateRatios(Tiny(), ADAM, {"z_head": "haed"}), KeyError, "the nearest is 'head'"),
    (lambda: UpdateRatios(nn.Sequential(nn.GELU()), ADAM, {"z_head": "0"}), ValueError, "'0' has no parameters"),
    (lambda: metrics.entropy(X, 0.0), ValueError, "temperature"),
    (lambda: metrics.tensor_stats("x", X.to(torch.complex64)), TypeError, "real tensor, got complex64"),
    (lambda: metrics.constants(X), ValueError, "betas must be (T,), got (2, 3)"),
    (lambda: Metrics(0), ValueError, "every"),
    (lambda: Metrics(gradients=2), ValueError, "gradients"),
    (lambda: Metrics().add(3.0), TypeError, "got float"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG)
def test_wrong_calls(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call()
