"""Training checks: a tiny text -> (mu, logvar) -> z0 -> flow run, healthy, and broken in one way at a time."""

import functools
import json
import math

import pytest
import torch
from torch import nn

from fmkernels import Dt_psi, flow_loss, flow_pair, reparameterize, sample, velocity_stats
from fmkernels.flow import make_schedule
from fmpipe.diagnose.checks import ablation, training

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

SEEDS = [101, 202]  # the run's constants and the thresholds were settled on 0, 1, 2
SHAPE, N, CLASSES, BATCH = (4, 4, 4), 64, 16, 16
HEALTHY = {"steps": 80, "lr": 1e-2, "w_flow": 1.0, "w_kl": 0.3, "w_dino": 0.0, "T_t": 1.0, "T_s": 1.0, "logvar": -1.5}


class Tiny(nn.Module):
    """Ids as text; the head starts at mu ~ 1, std ~ 0.47, away from the prior."""

    def __init__(self, logvar):
        super().__init__()
        self.text = nn.Embedding(BATCH, 8)
        self.z_head = nn.Linear(8, 2 * N)
        self.flow_head = nn.Sequential(nn.Linear(N + 2, 128), nn.SiLU(), nn.Linear(128, N))
        self.dino = nn.Linear(N, CLASSES)
        self.z_head.bias.data[N:] = logvar

    def head(self, ids):
        mu, logvar = self.z_head(self.text(ids)).view(len(ids), 2, *SHAPE).unbind(1)
        return 2 * mu, logvar

    def velocity(self, x, t):
        t = t[:, None]
        return self.flow_head(torch.cat([x.flatten(1), t, t * t], 1)).view_as(x)


class Run:
    """A training run on 16 fixed pairs: options of HEALTHY, and the faults.

    frozen: a part that is not in the optimizer. kl_of: ``"z"`` takes the KL from the sample. sign: -1 flips the target.
    shuffled: every batch has its conditions at random.
    """

    def __init__(self, seed, *, frozen=None, kl_of="moments", sign=1.0, shuffled=False, **options):
        torch.manual_seed(seed)
        self.o = {**HEALTHY, **options}
        self.kl_of, self.sign, self.shuffled, self.history = kl_of, sign, shuffled, {}
        self.net, self.x1, self.teacher = (
            Tiny(self.o["logvar"]),
            torch.randn(BATCH, *SHAPE),
            torch.randn(BATCH, CLASSES),
        )
        self.weights = {name: self.o[f"w_{name}"] for name in ("flow", "kl", "dino")}
        self.heads = {name: list(getattr(self.net, name).parameters()) for name in ("z_head", "flow_head")}
        free = [p for name, part in self.net.named_children() if name != frozen for p in part.parameters()]
        optimizer = torch.optim.Adam(free, self.o["lr"], fused=True)
        for step in range(self.o["steps"]):
            self.step(step, optimizer)

    def losses(self):
        """The losses of one batch, unweighted, and the log."""
        ids = torch.randperm(BATCH) if self.shuffled else torch.arange(BATCH)
        mu, logvar = self.net.head(ids)
        z0, kl, head = reparameterize(mu, logvar)
        t = torch.rand(BATCH)
        v = self.net.velocity(flow_pair(t, z0, self.x1)[0], t)
        target = self.sign * Dt_psi(t, z0, self.x1).detach()
        flow, stats = flow_loss(v, v_target=target, return_stats=True)
        log = {**stats.as_dict(), **head.as_dict(), "loss/flow": flow.item(), "loss/kl": kl.mean().item() / N}
        parts = {"flow": flow, "kl": (0.5 * z0.square() * N if self.kl_of == "z" else kl).mean() / N}
        if not self.weights["dino"]:
            return parts, log
        soft = torch.softmax(self.teacher / self.o["T_t"], 1)
        student = torch.log_softmax(self.net.dino(mu.flatten(1)) / self.o["T_s"], 1)
        log["ent/teacher"] = torch.special.entr(soft).sum(1).mean().item()
        log["ent/student"] = torch.special.entr(student.exp()).sum(1).mean().item()
        return {**parts, "dino": -(soft * student).sum(1).mean()}, log

    def step(self, step, optimizer):
        parts, log = self.losses()
        if step % 10 == 0:
            z0 = reparameterize(*self.net.head(torch.arange(BATCH)))[0].detach()
            z1 = sample(self.net.velocity, z0, make_schedule("uniform", 8), trace=False).x
            log["flow/endpt_rmse@8"] = (z1 - self.x1).square().mean().sqrt().item()
        optimizer.zero_grad()
        sum(self.weights[name] * x for name, x in parts.items()).backward()
        before = {name: [p.detach().clone() for p in ps] for name, ps in self.heads.items()}
        optimizer.step()
        for name, ps in self.heads.items():
            change = norm(p.detach() - b for p, b in zip(ps, before[name]))
            log[f"step/{name}_update_ratio"] = change / norm(before[name])
        for name, x in log.items():
            self.history.setdefault(name, []).append(x)

    def gradients(self, factor=None):
        """grad/flow, ... of each weighted loss back-propagated alone, and of their sum, over five batches."""
        out = {}
        for _ in range(5):
            parts = {n: self.weights[n] * (factor or {}).get(f"grad/{n}", 1) * x for n, x in self.losses()[0].items()}
            parts = {name: x for name, x in parts.items() if self.weights[name]}
            for name, x in {**parts, "total": sum(parts.values())}.items():
                grads = torch.autograd.grad(x, list(self.net.parameters()), retain_graph=True, allow_unused=True)
                out.setdefault(f"grad/{name}", []).append(norm(g for g in grads if g is not None))
        return out

    @torch.no_grad()
    def cos(self, shuffled):
        """flow/cos of 60 batches, each pair with its own z0 or with another's."""
        out = []
        for _ in range(60):
            ids = (torch.arange(BATCH) + (1 + torch.randint(BATCH - 1, ()) if shuffled else 0)) % BATCH
            z0, t = reparameterize(*self.net.head(ids))[0], torch.rand(BATCH)
            v = self.net.velocity(flow_pair(t, z0, self.x1)[0], t)
            out.append(velocity_stats(v, z0, self.x1).cos.item())
        return out


def norm(xs):
    return torch.cat([x.flatten() for x in xs]).norm().item()


run = functools.cache(Run)
OVERFIT = {"w_kl": 0.05, "steps": 120}
SHORT = {"steps": 8}  # for a fault that is there from the first step
DINO = {"w_dino": 4.0, "steps": 20}


def dino(r):
    grads = r.gradients()
    share = min(1.0, grads["grad/dino"][0] / grads["grad/total"][0])
    return training.dino(r.history["ent/teacher"], r.history["ent/student"], CLASSES, share, (r.o["T_t"], r.o["T_s"]))


def losses_of(r):
    names = {"loss/flow": r.weights["flow"], "loss/kl": r.weights["kl"]}
    return training.loss_magnitudes({name: r.history[name] for name in names}, names)


OF_HISTORY = [
    # check, options of the run, status, a word of the meaning
    ("kl", {}, "pass", "N(0, I)"),
    ("kl", {"w_kl": 0.0}, "fail", "std/mean goes"),
    ("kl", {"kl_of": "z"}, "fail", "std/mean goes"),
    ("kl", {"w_kl": 1e-4}, "fail", "logvar/mean goes"),
    ("kl", {"w_kl": 0.0, "logvar": -9.0, **SHORT}, "fail", "posterior collapse"),
    ("kl", {"lr": 1e30, **SHORT}, "fail", "not finite"),
    ("update_ratios", {}, "pass", "the heads move"),
    ("update_ratios", {"frozen": "z_head", **SHORT}, "fail", "step/z_head_update_ratio is 0"),
    ("update_ratios", {"frozen": "flow_head", **SHORT}, "fail", "step/flow_head_update_ratio is 0"),
    ("update_ratios", {"lr": 1e-8, **SHORT}, "fail", "hardly moves"),
    ("update_ratios", {"lr": 0.3, **SHORT}, "warn", "jumps"),
    ("overfit", OVERFIT, "pass", "learnt"),
    ("overfit", {"frozen": "flow_head"}, "fail", "flow/nmse goes"),
    ("overfit", {"lr": 1e-6, "steps": 20}, "fail", "flow/cos goes"),
    ("overfit", {"lr": 1e30, **SHORT}, "fail", "not finite"),
    ("ablation_only_flow", {"w_kl": 0.0}, "pass", "learns alone"),
    ("ablation_only_flow", {"w_kl": 0.0, "sign": -1.0}, "fail", "flow/endpt_rmse@8 goes"),
    ("ablation_only_flow", {"w_kl": 0.0, "lr": 1e-6, "steps": 20}, "fail", "flow/cos goes"),
]


def of(check):
    return getattr(training, check, None) or getattr(ablation, check)


def told(verdict, check, status, word):
    """The verdict is the one expected, complete, and can be written to a log."""
    assert (verdict.name, verdict.status) == (check, status), str(verdict)
    assert word.lower() in verdict.meaning.lower()
    assert verdict.threshold
    assert verdict.experience
    assert bool(verdict.advice) == (status != "pass")
    json.dumps(verdict.as_dict())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("check", "options", "status", "word"), OF_HISTORY)
def test_history(check, options, status, word, seed):
    told(of(check)(run(seed, **options).history), check, status, word)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("on", "status"), [({}, "pass"), ({"w_kl": 0.0}, "fail"), ({"w_kl": 1e-4}, "fail"), ({"kl_of": "z"}, "warn")]
)
def test_kl_against_a_run_without(on, status, seed):
    on, off = run(seed, **on).history, run(seed, w_kl=0.0).history
    word = "is gone" if status == "pass" else "not what moves"
    told(ablation.ablation_kl_off(on, off), "ablation_kl_off", status, word)
    assert ablation.kl(on, off).status == ("pass" if status == "pass" else "fail")


@pytest.mark.parametrize("seed", SEEDS)
def test_kl_that_something_else_moves(seed):
    """The trend is right, but it is there without the KL as well."""
    healthy = run(seed).history
    assert ablation.kl(healthy).status == "pass"
    told(ablation.kl(healthy, healthy), "kl", "fail", "not what moves the head")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("options", "status"), [(OVERFIT, "pass"), ({**OVERFIT, "shuffled": True}, "fail")])
def test_condition_shuffled(options, status, seed):
    r = run(seed, **options)
    verdict = ablation.ablation_condition_shuffled(r.cos(False), r.cos(True))
    told(verdict, "ablation_condition_shuffled", status, "shuffling")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("options", "status", "advice"),
    [
        ({}, "pass", ""),
        ({"T_t": 1e-3}, "fail", "Raise T_t (now 0.001)"),
        ({"T_s": 1e-3, "w_dino": 1e-7}, "fail", "Raise T_s (now 0.001)"),
    ],
)
def test_dino(options, status, advice, seed):
    verdict = dino(run(seed, **{**DINO, **options}))
    told(verdict, "dino", status, "log K")
    assert advice in verdict.advice


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["grad/kl", "grad/dino"])
def test_gradient_shares_and_its_own_remedy(name, seed):
    r = run(seed, **DINO)
    narrow = {"share/kl_low": 0.2, "share/kl_high": 0.2, "share/dino_low": 0.35, "share/dino_high": 0.35}
    factor = training.gradient_shares(r.gradients(), overrides=narrow).values["weight_factor"]
    told(training.gradient_shares(r.gradients(factor)), "gradient_shares", "pass", "its share")
    factor[name] *= 1e-3
    verdict = training.gradient_shares(r.gradients(factor))
    told(verdict, "gradient_shares", "fail", f"{name} is")
    remedy = verdict.values["weight_factor"]
    assert remedy.keys() == {name}
    factor[name] *= remedy[name]
    told(training.gradient_shares(r.gradients(factor)), "gradient_shares", "pass", "its share")


@pytest.mark.parametrize("seed", SEEDS)
def test_flow_drowned(seed):
    verdict = training.gradient_shares(run(seed, w_kl=0.5, w_flow=1e-4, **SHORT).gradients())
    told(verdict, "gradient_shares", "fail", "grad/flow is")
    assert verdict.values["weight_factor"].keys() == {"grad/kl"}
    assert "weight of kl by" in verdict.advice


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("options", "status"), [({}, "pass"), ({"w_kl": 1e-4}, "warn"), ({"lr": 1e30, **SHORT}, "fail")]
)
def test_loss_magnitudes(options, status, seed):
    told(losses_of(run(seed, **options)), "loss_magnitudes", status, "loss/kl")


def kl_of_moments(mu, logvar):
    return lambda eps: reparameterize(mu, logvar, eps=eps)[1].mean()


def kl_of_sample(mu, logvar):
    return lambda eps: 0.5 * reparameterized(mu, logvar, eps).square().mean()


def reparameterized(mu, logvar, eps):
    return mu + torch.exp(logvar / 2) * eps


TARGETS = {
    # The loss with its prediction held fixed, or the target itself: does it carry a gradient?
    "flow_loss": (lambda v, t: lambda x0, x1: flow_loss(v, x0, x1), False),
    "flow_pair": (lambda v, t: lambda x0, x1: flow_pair(t, x0, x1)[1], False),
    "python, detached": (lambda v, t: lambda x0, x1: (v - (x1 - x0).detach()).square().mean(), False),
    "python, moving": (lambda v, t: lambda x0, x1: (v - (x1 - x0)).square().mean(), True),
    "python, moving by x0": (lambda v, t: lambda x0, x1: (v - (x1.detach() - x0)).square().mean(), True),
    "velocity, moving": (lambda v, t: lambda x0, x1: Dt_psi(t, x0, x1), True),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_gradient_path_of_the_target(target, as_tensor, seed):
    r = run(seed)
    mu, logvar = r.net.head(torch.arange(BATCH))
    x0, x1, t = reparameterize(mu, logvar)[0], r.x1.clone().requires_grad_(), torch.rand(BATCH)
    v = r.net.velocity(flow_pair(t, x0, x1)[0], t).detach()
    make, moves = TARGETS[target]
    made = make(v, t)
    verdict = training.gradient_path(made(x0, x1) if as_tensor else made, x1, x0, logvar=logvar)
    told(verdict, "gradient_path", "fail" if moves else "pass", "d_target/d_x0")
    assert x1.grad is None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("make", "status"), [(kl_of_moments, "pass"), (kl_of_sample, "fail")])
def test_gradient_path_of_the_kl(make, status, seed):
    r = run(seed)
    eps = torch.randn(BATCH, *SHAPE)
    kl = make(*r.net.head(torch.arange(BATCH)))
    verdict = training.gradient_path(lambda x1: flow_loss(x1.detach(), x1, x1), r.x1, kl=kl, eps=eps)
    told(verdict, "gradient_path", status, "d_kl/d_eps")


@pytest.mark.parametrize(
    ("outside", "status"), [(0, "pass"), (1, "warn"), (BATCH * N // 2 + 1, "fail"), (BATCH * N, "fail")]
)
@pytest.mark.parametrize("value", [-6.0, 7.0])
def test_gradient_path_of_the_clamp(outside, status, value):
    logvar = torch.randn(BATCH * N).clamp(-5, 5)
    logvar[:outside] = value
    verdict = training.gradient_path(lambda x1: x1.detach(), torch.randn(2, 3), logvar=logvar)
    told(verdict, "gradient_path", status, "logvar")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("gain", "init_scale", "status"),
    [(1.0, 2.0**10, "pass"), (1.0, 2.0**22, "warn"), (1e30, 2.0**10, "fail")],
)
def test_overflow(gain, init_scale, status, seed):
    """fp16 with a scaler: a good start, a scale too high that it finds its way from, a loss infinite at any scale."""
    torch.manual_seed(seed)
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    scales = [scaler.get_scale()]
    for _ in range(60):
        v = nn.functional.linear(torch.randn(16, 8).half(), net.weight.half(), net.bias.half())
        loss = (v * gain).float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    verdict = training.overflow(scales)
    told(verdict, "overflow", status, "its number format" if status == "pass" else "skipped")


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (lambda: training.overflow(), "skipped"),
        (lambda: training.overflow(skipped=5, steps=100), "pass"),
        (lambda: training.overflow(skipped=6, steps=100), "fail"),
        (lambda: training.overflow(skipped=6, steps=100, overrides={"overflow/skipped": 0.1}), "pass"),
        (lambda: training.overflow(nonfinite=1), "fail"),
        (lambda: training.overflow([1024.0] * 50, nonfinite=1), "fail"),
        (lambda: training.overflow([2.0] * 100 + [0.5] * 100), "fail"),
        (lambda: training.dino(1.0, 0.01, 16), "warn"),
        (lambda: training.dino(1.0, 0.01, 16, 0.2), "pass"),
        (lambda: training.dino(math.nan, 1.0, 16), "fail"),
        (lambda: training.gradient_shares({"grad/total": 1.0}), "skipped"),
        (lambda: training.gradient_shares({"grad/flow": 1.0, "grad/total": 1.0}), "pass"),
        (lambda: training.gradient_shares({"grad/flow": 1.0, "grad/kl": 0.0, "grad/total": 1.0}), "fail"),
        (lambda: training.gradient_shares({"grad/flow": 0.0, "grad/total": 0.0}), "fail"),
        (lambda: training.gradient_shares({"grad/flow": math.nan, "grad/total": 1.0}), "fail"),
        (lambda: training.gradient_shares({"grad/flow": 1.0, "grad/kl": 0.4, "grad/total": 1.1}), "warn"),
        (lambda: training.gradient_shares({"grad/flow": 1.0, "grad/norm": 0.07, "grad/total": 1.0}), "warn"),
        (lambda: training.loss_magnitudes({"loss/flow": 1.0}), "skipped"),
        (lambda: training.loss_magnitudes({"loss/flow": 1.0, "loss/kl": 0.0}), "warn"),
        (lambda: training.loss_magnitudes({"loss/flow": 1.0, "loss/kl": 9.0, "loss/total": 1e9}), "pass"),
        (lambda: training.loss_magnitudes({"flow": 1.0, "kl": 1e9, "dino": 1.0}, {"kl": 0}), "pass"),
        (lambda: training.loss_magnitudes({"flow": [1.0, math.inf]}), "fail"),
        (lambda: training.update_ratios({}), "skipped"),
        (lambda: training.update_ratios({"step/z_head_update_ratio": [1e-3, math.nan, 1e-3, 1e-3]}), "fail"),
        (lambda: training.judge_gradient_path(), "skipped"),
        (lambda: training.judge_gradient_path(0.0, math.nan), "fail"),
        (lambda: training.judge_gradient_path(0.0, 1e-3, overrides={"gradient_path/leak": 1e-2}), "pass"),
        (lambda: ablation.kl({"loss/flow": [1.0, 2.0]}), "skipped"),
        (lambda: ablation.kl({"std/mean": [1.0, 1.0]}), "pass"),
        (lambda: ablation.kl({"std/mean": [1.0, 1.0]}, {}), "warn"),
        (lambda: ablation.kl({"std/mean": [1.0, 1.0]}, clamped=0.6), "fail"),
        (lambda: ablation.kl({"std/mean": [1.0, 1.0], "z_init/var": [1.0, 2.5]}), "warn"),
        (lambda: ablation.kl({"mu/abs_mean": [1.0, math.inf, 0.0]}), "fail"),
        (lambda: ablation.overfit({}), "skipped"),
        (lambda: ablation.overfit({"loss/flow": [1.0, 0.1]}), "pass"),
        (lambda: ablation.overfit({"loss/flow": [1.0, 0.1], "loss/kl": [9.0, 1.0, 1.1]}), "pass"),
        (lambda: ablation.overfit({"loss/flow": [1.0, 0.1], "loss/kl": [1.0, 1.0, 9.0]}), "fail"),
        (lambda: ablation.overfit({"loss/flow": [1.0, 0.1], "loss/kl": [9.0, 9.0, 1.0]}), "warn"),
        (lambda: ablation.ablation_only_flow({}), "skipped"),
        (lambda: ablation.ablation_kl_off({}, {}), "skipped"),
        (lambda: ablation.ablation_condition_shuffled(0.5, 0.47), "warn"),
        (lambda: ablation.ablation_condition_shuffled(0.5, math.nan), "fail"),
    ],
)
def test_numbers(call, status):
    assert call().status == status, str(call())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: training.gradient_path(lambda x1: x1, torch.ones(2), eps=torch.ones(2)), ValueError, "kl and eps"),
        (lambda: training.gradient_path(torch.ones(2), torch.ones(2)), ValueError, "must require gradients"),
        (lambda: training.gradient_path(lambda x1: 0.0, torch.ones(2)), TypeError, "target must be"),
        (lambda: training.dino(1.0, 1.0, 1), ValueError, "classes must be"),
        (lambda: training.dino(4.0, 1.0, 16), ValueError, "in nats"),
        (lambda: training.dino([], 1.0, 16), ValueError, "teacher_entropy: there are no values"),
        (lambda: training.gradient_shares({"grad/flow": 1.0}), ValueError, "grad/total"),
        (lambda: training.loss_magnitudes({"flow": 1.0}, {"flw": 1.0}), ValueError, "flw"),
        (lambda: training.overflow([1.0]), ValueError, "scaler_scales"),
        (lambda: training.overflow(skipped=3), ValueError, "steps"),
        (lambda: training.overflow(skipped=3, steps=2), ValueError, "skipped=3"),
        (lambda: ablation.kl({"std/mean": [1.0]}), ValueError, "std/mean"),
        (lambda: ablation.overfit({"flow/nmse": [1, 0]}, overrides={"overfit/los": 1}), KeyError, "overfit/loss"),
    ],
)
def test_wrong_calls(call, error, words):
    with pytest.raises(error, match=words):
        call()
