"""psi, Dt_psi, flow_pair, the loss and the statistics against the formulas of the debugging notes."""

import pytest
import torch
import torch.nn.functional as F
from support.cases import BACKENDS, assert_close

import fmkernels as fk


@pytest.fixture
def sample():
    torch.manual_seed(0)
    shape = (16, 4, 8, 8)
    return torch.rand(16), torch.randn(shape), torch.randn(shape), torch.randn(shape)


@pytest.mark.parametrize("t_shape", [(16,), (16, 1, 1, 1)])
def test_path(sample, t_shape):
    t, x0, x1, _ = sample
    wide = t.reshape(-1, 1, 1, 1)
    assert_close(fk.psi(t.reshape(t_shape), x0, x1), (wide * (1e-5 / 1.0 - 1) + 1) * x0 + wide * x1)
    assert_close(fk.Dt_psi(t, x0, x1, 0.2, 2.0), (0.2 / 2.0 - 1) * x0 + x1)
    x_t, v = fk.flow_pair(t, x0, x1)
    assert torch.equal(x_t, fk.psi(t, x0, x1))
    assert torch.equal(v, fk.Dt_psi(t, x0, x1))


def test_flow_pair_in_bf16_is_rounded_once(sample):
    t, x0, x1, _ = sample
    for half, full in zip(fk.flow_pair(t, x0, x1, dtype=torch.bfloat16), fk.flow_pair(t, x0, x1), strict=True):
        assert torch.equal(half, full.bfloat16())


def test_gradients_stop_where_they_must(sample):
    t, x0, x1, v = (x.requires_grad_() for x in sample)
    x_t, target = fk.flow_pair(t, x0, x1)
    assert x_t.requires_grad
    assert not target.requires_grad
    loss, stats = fk.flow_loss(v, x0, x1, t=t, weight=t, return_stats=True)
    assert not stats.sums.requires_grad
    loss.backward()
    assert x0.grad is None
    assert x1.grad is None
    assert t.grad is None
    assert_close(v.grad, 2 * t.detach().reshape(-1, 1, 1, 1) * (v - fk.Dt_psi(t, x0, x1)).detach() / v.numel())


def debugging_notes(v_pred, v_tgt, t):
    """The code of the debugging notes, with its reductions; t = 0 counted in the first slice."""
    ret, res, count = {}, v_pred - v_tgt, len(t)
    ret["flow/nmse"] = (res.pow(2).mean() / v_tgt.pow(2).mean().clamp_min(1e-12)).item()
    ret["flow/cos"] = F.cosine_similarity(v_pred.flatten(1), v_tgt.flatten(1), dim=1).mean().item()
    speed = v_pred.flatten(1).norm(dim=1) / (v_tgt.flatten(1).norm(dim=1) + 1e-12)
    ret["flow/speed_ratio"] = speed.mean().item()
    edges = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    idx = (torch.bucketize(t, edges) - 1).clamp_min(0)
    p, v, r = (x.reshape(count, -1) for x in (v_pred, v_tgt, res))
    for b in range(10):
        m = idx == b
        if m.any():
            ret[f"flow/nmse_t{b}"] = ((r[m] ** 2).mean() / (v[m] ** 2).mean().clamp_min(1e-12)).item()
            ret[f"flow/cos_t{b}"] = F.cosine_similarity(p[m], v[m], dim=1).mean().item()
    return ret


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "t", [torch.linspace(0, 1, 16), torch.arange(16) / 10 % 1.0, torch.full((16,), 0.3)], ids=["grid", "edges", "one"]
)
def test_statistics_are_those_of_the_debugging_notes(sample, t, backend):
    _, x0, x1, v = sample
    with fk.use_backend(backend):
        got = fk.velocity_stats(v, x0, x1, t=t, sigma_min=0.0).as_dict()
    expected = debugging_notes(v, x1 - x0, t)
    assert got.keys() == expected.keys()
    assert got == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_gain_nonfinite_and_properties(sample):
    t, x0, x1, v = sample
    target = fk.Dt_psi(t, x0, x1)
    stats = fk.velocity_stats(v, v_target=target)
    assert_close(stats.gain, (target.flatten(1).norm(dim=1) / v.flatten(1).norm(dim=1)).median())
    assert stats.as_dict() == pytest.approx(
        {"flow/cos": stats.cos.item(), "flow/nmse": stats.nmse.item(), "flow/speed_ratio": stats.speed_ratio.item()}
    )
    assert_close(stats.sums, fk.velocity_stats(v, x0, x1).sums, atol=1e-3)
    v[3, 0, 0, 0], v[5, 1, 1, 1] = torch.nan, -torch.inf
    assert fk.velocity_stats(v, x0, x1).nonfinite == 2
    target[7, 0, 0, 1] = torch.nan
    assert fk.velocity_stats(v, v_target=target).nonfinite == 3
    one_bad = fk.velocity_stats(v, x0, x1, t=torch.linspace(0.05, 0.95, 16)).by_t()
    assert (~one_bad["nmse"].isfinite()).sum() == 2  # a bad sample stays in its own slice


def test_perfect_and_flipped_predictions(sample):
    t, x0, x1, _ = sample
    target = fk.Dt_psi(t, x0, x1)
    perfect, flipped = fk.velocity_stats(target, x0, x1), fk.velocity_stats(-target, x0, x1)
    assert perfect.nmse < 1e-12
    assert_close(perfect.cos, torch.tensor(1.0))
    assert_close(flipped.cos, torch.tensor(-1.0))
    assert_close(flipped.nmse, torch.tensor(4.0))


def test_loss_reductions(sample):
    _, x0, x1, v = sample
    weight = torch.rand(16)
    each = ((v - fk.Dt_psi(weight, x0, x1)) ** 2).flatten(1).mean(1)
    assert_close(fk.flow_loss(v, x0, x1, reduction="none"), each)
    assert_close(fk.flow_loss(v, x0, x1), each.mean())
    assert_close(fk.flow_loss(v, x0, x1, weight=weight), (weight * each).mean())
