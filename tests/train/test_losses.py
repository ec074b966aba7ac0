"""Every training loss against its plain formula in double precision, and two processes against one."""

import datetime
import math
import time

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from fmkernels.ops import reparameterize
from fmpipe.train import losses
from fmpipe.train.embeddings import Prototypes
from fmpipe.train.losses import Centre, Diffusion

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def drawn(*shape, scale=1.0, grad=True):
    return (scale * torch.randn(*shape, dtype=torch.float64)).requires_grad_(grad)


def plain_flow(velocities, targets, weight):
    per_sample = [(v - x).square().flatten(1).mean(1) for v, x in zip(velocities, targets, strict=True)]
    return sum((row * (1 if weight is None else weight)).mean() for row in per_sample)


@pytest.mark.parametrize("channels", [2, 4])
def test_turned_is_a_rotation_of_channel_pairs(channels):
    z = drawn(3, channels, 5, 5, grad=False)
    assert losses.turned(z, 0.0) is z
    torch.testing.assert_close(losses.turned(z, 90.0)[:, :2], torch.stack([-z[:, 1], z[:, 0]], 1))
    torch.testing.assert_close(losses.turned(losses.turned(z, 30.0), 60.0), losses.turned(z, 90.0))
    cosine = F.cosine_similarity(losses.turned(z, 45.0).flatten(1), z.flatten(1))
    torch.testing.assert_close(cosine, torch.full_like(cosine, math.cos(math.radians(45))))


@pytest.mark.parametrize("temperature", [0.1, 2.0])
def test_match_is_the_cross_entropy_of_distances(temperature):
    mu, z1 = drawn(5, 2, 4), drawn(5, 2, 4)
    apart = ((mu[:, None] - z1[None]) ** 2).mean((2, 3))
    expected = -(-apart / temperature).log_softmax(1).diagonal().mean()
    loss = losses.match(mu, z1, temperature)
    torch.testing.assert_close(loss, expected.detach())
    loss.backward()
    assert mu.grad.abs().min() > 0
    assert z1.grad is None  # pictures do not move
    assert losses.match(z1, z1, 0.01) < 1e-3


@pytest.mark.parametrize("weight", [None, torch.tensor([0.5, 2.0, 0.0], dtype=torch.float64)])
@pytest.mark.parametrize("sizes", [[5], [4, 8], [2, 4, 8]])
def test_flow_sums_the_scales(sizes, weight):
    velocities = [drawn(3, 2, n, n) for n in sizes]
    targets = [drawn(3, 2, n, n) for n in sizes]
    t = torch.tensor([0.1, 0.5, 0.95], dtype=torch.float64)
    loss, stats = losses.flow(velocities, targets[-1], targets, t, weight)
    torch.testing.assert_close(loss, plain_flow(velocities, targets, weight))
    torch.testing.assert_close(stats.nmse, (velocities[-1] - targets[-1]).square().sum() / targets[-1].square().sum())
    assert [k for k, n in enumerate(stats.by_t()["count"].tolist()) if n] == [0, 4, 9]
    loss.backward()
    assert all(x.grad is None for x in targets)
    assert torch.autograd.gradcheck(lambda *v: losses.flow(v, targets[-1].detach(), targets, t, weight)[0], velocities)


def test_flow_refuses_targets_that_do_not_pair():
    v = [drawn(2, 1, 2, 2), drawn(2, 1, 4, 4)]
    with pytest.raises(ValueError, match="2 velocities need as many targets"):
        losses.flow(v, v[1], [v[1]], torch.rand(2))
    with pytest.raises(ValueError, match=r"the last of target's shape \(2, 1, 4, 4\)"):
        losses.flow(v, v[1], v[::-1], torch.rand(2))


LOGVARS = [-7.0, -6.0, -5.0, 0.0, 0.5, 5.0, 6.0, 8.0]


@pytest.mark.parametrize("clamp", [(-6.0, 6.0), (-4.0, 0.2)])
@pytest.mark.parametrize("kind", ["standard", "crossflow"])
def test_kl_is_the_mean_over_elements(kind, clamp):
    mu, logvar = drawn(2, len(LOGVARS), scale=4), torch.tensor([LOGVARS] * 2, dtype=torch.float64, requires_grad=True)
    _, kl, _ = reparameterize(mu, logvar, clamp=clamp)
    loss = losses.kl_standard(mu, logvar, kl) if kind == "standard" else losses.kl_crossflow(mu, logvar, clamp)
    size = mu.square() if kind == "standard" else (0.3 * mu).pow(6)
    held = logvar.clamp(*clamp)
    torch.testing.assert_close(loss, 0.5 * (size + held.exp() - 1 - held).mean())
    to_mu, to_logvar = torch.autograd.grad(loss, (mu, logvar))
    torch.testing.assert_close(to_mu, torch.autograd.grad((0.5 * size).mean(), mu)[0])
    # outside the clamp the gradient leads back: here always, as the KL's least is at logvar 0, inside of it
    torch.testing.assert_close(to_logvar, 0.5 * (held.exp() - 1).detach() / mu.numel())


def test_kl_crossflow_does_not_push_further_out():
    logvar = torch.tensor([[-3.0, 0.5, 3.0]], dtype=torch.float64, requires_grad=True)
    losses.kl_crossflow(torch.zeros_like(logvar), logvar, (0.1, 1.0)).backward()
    assert logvar.grad[0, 0] == 0
    assert logvar.grad[0, 1] > 0
    assert logvar.grad[0, 2] > 0


@pytest.mark.parametrize("log_temperature", [0.0, math.log(1 / 0.07), 4.5, 6.0])
def test_contrastive(log_temperature):
    text, image = drawn(5, 3), drawn(5, 3)
    temperature = torch.tensor(log_temperature, dtype=torch.float64, requires_grad=True)
    scale = min(math.exp(log_temperature), 100.0)
    cosines = F.cosine_similarity(text[:, None], image[None], dim=-1) * scale
    rows = sum(cosines.logsumexp(d) - cosines.diagonal() for d in (0, 1)) / 2
    torch.testing.assert_close(losses.contrastive(text, image, temperature), rows.mean())
    if log_temperature < math.log(100):
        assert torch.autograd.gradcheck(losses.contrastive, (text, image, temperature))


@pytest.mark.parametrize("aligned", [True, False])
def test_a_temperature_at_its_bound_can_only_fall(aligned):
    text = 1 + 0.1 * drawn(4, 4)  # all near each other: the sharper, the better for true pairs
    temperature = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
    losses.contrastive(text, text if aligned else text.roll(1, 0), temperature).backward()
    assert temperature.grad == 0 if aligned else temperature.grad > 0


def test_contrastive_under_autocast_is_fp32():
    text, image, temperature = torch.randn(8, 16), torch.randn(8, 16), torch.tensor(4.6)
    with torch.autocast("cpu", torch.bfloat16):
        loss = losses.contrastive(text, image, temperature)
    torch.testing.assert_close(loss, losses.contrastive(text, image, temperature), rtol=1e-6, atol=0)


def test_contrastive_refuses_what_does_not_pair():
    with pytest.raises(ValueError, match=r"text and image must be \(B, D\) alike, got \(4, 3\), \(5, 3\)"):
        losses.contrastive(torch.randn(4, 3), torch.randn(5, 3), torch.tensor(0.0))


@pytest.mark.parametrize(("t_student", "t_teacher"), [(0.1, 0.04), (1.0, 0.5)])
def test_dino(t_student, t_teacher):
    student, teacher, centre = drawn(4, 7), drawn(4, 7), drawn(7, grad=False)
    loss, p = losses.dino(student, teacher, centre, t_student, t_teacher)
    weights = ((teacher - centre) / t_teacher).exp()
    q = (student / t_student).exp()
    wanted = weights / weights.sum(1, keepdim=True)
    torch.testing.assert_close(p, wanted)
    torch.testing.assert_close(loss, -(wanted * (q / q.sum(1, keepdim=True)).log()).sum(1).mean())
    assert not p.requires_grad
    loss.backward()
    assert teacher.grad is None
    assert torch.autograd.gradcheck(lambda x: losses.dino(x, teacher, centre, t_student, t_teacher)[0], student)


def test_centre_is_a_moving_mean_in_the_state():
    centre, value = Centre(3, momentum=0.8), torch.zeros(3)
    for _ in range(3):
        logits = torch.randn(5, 3)
        centre.update(logits)
        value = 0.8 * value + 0.2 * logits.mean(0)
    torch.testing.assert_close(centre.value, value)
    assert list(centre.state_dict()) == ["value"]


def test_norm_alignment_is_never_above_the_flow_loss():
    v, target = drawn(3, 2, 4, 4), drawn(3, 2, 4, 4, scale=3)
    loss = losses.norm_alignment(v, target)
    rows = [(v[b].square().sum().sqrt() - target[b].square().sum().sqrt()) ** 2 / 32 for b in range(3)]
    torch.testing.assert_close(loss, sum(rows) / 3)
    assert 0 < loss < plain_flow([v], [target], None)
    torch.testing.assert_close(losses.norm_alignment(3 * target, target), plain_flow([3 * target], [target], None))
    loss.backward()
    assert target.grad is None
    assert torch.autograd.gradcheck(lambda x: losses.norm_alignment(x, target), v)
    at_rest = torch.zeros(2, 5, requires_grad=True)
    losses.norm_alignment(at_rest, torch.ones(2, 5)).backward()
    assert torch.equal(at_rest.grad, torch.zeros(2, 5))


DIARY = [("betas", 1e-4, 0.02), ("alphas_cumprod", 0.9999, 4.04e-5), ("sqrt_alphas_cumprod", 0.99995, 0.0064)]


@pytest.mark.parametrize(("name", "first", "last"), [*DIARY, ("sqrt_one_minus_alphas_cumprod", 0.01, 0.99998)])
def test_diffusion_constants_are_those_of_the_debugging_notes(name, first, last):
    row = getattr(Diffusion(), name)
    assert row.shape == (1000,)
    assert row.dtype == torch.float32
    assert row[0].item() == pytest.approx(first, rel=1e-5)
    assert row[-1].item() == pytest.approx(last, rel=1e-2)


def test_diffusion_adds_noise_in_fp32_whatever_comes():
    diffusion, t = Diffusion(), torch.tensor([0, 500, 999])
    x0, noise = (torch.randn(3, 2, 4, 4).bfloat16() for _ in range(2))
    kept = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64).neg().add(1).cumprod(0)[t].view(3, 1, 1, 1)
    x_t = diffusion.add_noise(x0, noise, t)
    assert x_t.dtype == torch.float32
    wanted = kept.sqrt() * x0.double() + (1 - kept).sqrt() * noise.double()
    torch.testing.assert_close(x_t.double(), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("time_weight", [True, False])
def test_diffusion_loss(time_weight, dtype):
    diffusion, t, x0 = Diffusion(), torch.tensor([0, 300, 999]), torch.randn(3, 2, 4, 4)
    predicted = torch.randn(3, 2, 4, 4).to(dtype).requires_grad_()
    kept = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64).neg().add(1).cumprod(0)
    weight = (kept / (1 - kept)).clamp(max=5)
    weight = (weight / weight.mean())[t] if time_weight else torch.ones(3, dtype=torch.float64)
    error = (predicted.double() - x0.double()).square().flatten(1).mean(1)
    loss = diffusion.loss(predicted, x0, t, time_weight)
    torch.testing.assert_close(loss.double(), (weight * error).mean(), rtol=1e-6, atol=0)
    loss.backward()
    assert predicted.grad.dtype == dtype
    assert predicted.grad.abs().sum() > 0


@pytest.mark.parametrize("arguments", [{"T": 0}, {"beta_start": 0.0}, {"beta_start": 0.1}, {"beta_end": 1.0}])
def test_diffusion_refuses_a_bad_schedule(arguments):
    with pytest.raises(ValueError, match="Diffusion: T must be at least 1"):
        Diffusion(**arguments)


class Pair(nn.Module):
    """Contrastive and DINO of two linear towers, as a step has them."""

    def __init__(self):
        super().__init__()
        self.text, self.image, self.prototypes = nn.Linear(6, 4), nn.Linear(5, 4), Prototypes(4, 8)
        self.log_temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, x, y, centre):
        text, image = self.text(x), self.image(y)
        teacher = self.prototypes(image).detach()
        dino, _ = losses.dino(self.prototypes(text), teacher, centre.value)
        centre.update(teacher)
        return losses.contrastive(text, image, self.log_temperature), dino


def two_steps(model, centre, x, y):
    """The losses of two steps, the gradients of the second and the centre."""
    optimizer, out = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(2):
        optimizer.zero_grad()
        parts = model(x, y, centre)
        sum(parts).backward()
        optimizer.step()
        out.append(torch.stack(parts).detach())
    return torch.stack(out), [p.grad for p in model.parameters()], centre.value


def made():
    torch.manual_seed(0)
    return Pair(), Centre(8), torch.randn(6, 6), torch.randn(6, 5)


def process(rank, folder):
    """One of two processes on its half of the batch."""
    torch.set_num_threads(1)
    minute = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=minute)
    try:
        pair, centre, x, y = made()
        model = nn.parallel.DistributedDataParallel(pair)
        own = slice(3 * rank, 3 * rank + 3)
        with torch.no_grad():
            alone = losses.contrastive(x[own, :5], y[own], torch.tensor(0.0))
        torch.save((alone, *two_steps(model, centre, x[own], y[own])), f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_are_one_with_the_doubled_batch(tmp_path):
    both = torch.multiprocessing.spawn(process, (str(tmp_path),), nprocs=2, join=False)
    deadline = time.monotonic() + 120
    while not both.join(timeout=5):  # raises what a process raised
        assert time.monotonic() < deadline, "the processes hang"
    parts, grads, centre = two_steps(*made())
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    close = {"rtol": 1e-5, "atol": 1e-6}
    _, _, x, y = made()
    for rank, (alone, its_parts, its_grads, its_centre) in enumerate(results):
        own = slice(3 * rank, 3 * rank + 3)
        torch.testing.assert_close(alone, losses.contrastive(x[own, :5], y[own], torch.tensor(0.0)), **close)
        torch.testing.assert_close(its_grads, grads, **close)
        torch.testing.assert_close(its_centre, centre, **close)
        torch.testing.assert_close(its_parts[:, 0], parts[:, 0], **close)  # contrastive: the whole batch's in each
    torch.testing.assert_close((results[0][1] + results[1][1]) / 2, parts, **close)
