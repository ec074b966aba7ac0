"""Training checks: a tiny text -> (mu, logvar) -> z0 -> flow run, healthy, and broken in one way at a time."""

import functools
import json
import math

import pytest
import torch
from torch import nn

from fmkernels import Dt_psi, flow_loss, flow_pair, reparameterize, sample, velocity_stats
from fmkernels.flow import make_schedule
from fmpipe.diagnose import checks
from fmpipe.diagnose.engine import judged

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

SEEDS = [101, 202]  # the constants of the run and the thresholds were chosen with 0, 1, 2
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
        """grad/flow, ... of each weighted loss backpropagated alone, and of their sum, over five batches."""
        out = {}
        for _ in range(5):
            parts = {n: self.weights[n] * (factor or {}).get(n, 1) * x for n, x in self.losses()[0].items()}
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
    return checks.dino(r.history["ent/teacher"], r.history["ent/student"], CLASSES, share, (r.o["T_t"], r.o["T_s"]))


def losses_of(r):
    names = {"loss/flow": r.weights["flow"], "loss/kl": r.weights["kl"]}
    return checks.loss_magnitudes({name: r.history[name] for name in names}, names)


OF_HISTORY = [
    # check, options of the run, status, words of the evidence that decides, after its key
    ("kl", {}, "pass", "[kl/trend] std/mean goes"),
    ("kl", {"w_kl": 0.0}, "fail", "[kl/trend] std/mean goes"),
    ("kl", {"kl_of": "z"}, "fail", "[kl/trend] std/mean goes"),
    ("kl", {"w_kl": 1e-4}, "fail", "[kl/trend] logvar/mean goes"),
    ("kl", {"w_kl": 0.0, "logvar": -9.0, **SHORT}, "fail", "posterior collapse"),
    ("kl", {"lr": 1e30, **SHORT}, "fail", "not finite"),
    ("update_ratios", {}, "pass", "the heads move"),
    ("update_ratios", {"frozen": "z_head", **SHORT}, "fail", "step/z_head_update_ratio is 0"),
    ("update_ratios", {"frozen": "flow_head", **SHORT}, "fail", "step/flow_head_update_ratio is 0"),
    ("update_ratios", {"lr": 1e-8, **SHORT}, "fail", "hardly moves"),
    ("update_ratios", {"lr": 0.3, **SHORT}, "warn", "jumps"),
    ("overfit", OVERFIT, "pass", "[trial/learns] flow/nmse goes"),
    ("overfit", {"frozen": "flow_head"}, "fail", "flow/nmse goes"),
    ("overfit", {"lr": 1e-6, "steps": 20}, "fail", "flow/cos goes"),
    ("overfit", {"lr": 1e30, **SHORT}, "fail", "not finite"),
    ("ablation_only_flow", {"w_kl": 0.0}, "pass", "[trial/alone] flow/cos goes"),
    ("ablation_only_flow", {"w_kl": 0.0, "sign": -1.0}, "fail", "flow/endpt_rmse@8 goes"),
    ("ablation_only_flow", {"w_kl": 0.0, "lr": 1e-6, "steps": 20}, "fail", "flow/cos goes"),
]


def told(finding, check, status, word):
    """Check that the finding is the expected one, is complete and can be written to a log.

    word: a part of the evidence that decides (all of it if the check passes), each piece after its key in brackets.
    """
    assert (finding.name, finding.status) == (check, status), str(finding)
    shown = finding.bad or finding.evidence
    text = " ".join(f"[{evidence.message.key}] {evidence.into()}" for evidence in shown)
    assert word.lower() in text.lower(), text
    assert all(evidence.into() in finding.meaning for evidence in shown)
    assert finding.threshold
    assert finding.experience
    assert bool(finding.advice) == (status != "pass")
    json.dumps(finding.as_dict())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("check", "options", "status", "word"), OF_HISTORY)
def test_history(check, options, status, word, seed):
    told(checks.CHECKS[check](run(seed, **options).history), check, status, word)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("on", "status"), [({}, "pass"), ({"w_kl": 0.0}, "fail"), ({"w_kl": 1e-4}, "fail"), ({"kl_of": "z"}, "warn")]
)
def test_kl_against_a_run_without(on, status, seed):
    on, off = run(seed, **on).history, run(seed, w_kl=0.0).history
    finding = checks.ablation_kl_off(on, off)
    told(finding, "ablation_kl_off", status, "nearer to the prior with the KL")
    assert ("not what moves" in finding.advice) == (status != "pass")
    assert checks.kl(on, off).status == ("pass" if status == "pass" else "fail")


@pytest.mark.parametrize("seed", SEEDS)
def test_kl_that_something_else_moves(seed):
    """The trend is right, but the run without the KL has it as well."""
    healthy = run(seed).history
    assert checks.kl(healthy).status == "pass"
    finding = checks.kl(healthy, healthy)
    told(finding, "kl", "fail", "[kl/without] mu/abs_mean comes")
    assert finding.title == "The KL is not what moves the head"
    assert {evidence.message.key for evidence in finding.bad} == {"kl/without"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("options", "status"), [(OVERFIT, "pass"), ({**OVERFIT, "shuffled": True}, "fail")])
def test_condition_shuffled(options, status, seed):
    r = run(seed, **options)
    finding = checks.ablation_condition_shuffled(r.cos(False), r.cos(True))
    told(finding, "ablation_condition_shuffled", status, "shuffling")


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
    finding = dino(run(seed, **{**DINO, **options}))
    told(finding, "dino", status, "log K")
    assert advice in finding.advice


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["kl", "dino"])
def test_gradient_shares_and_its_own_remedy(name, seed):
    r = run(seed, **DINO)
    narrow = {"share/kl_low": 0.2, "share/kl_high": 0.2, "share/dino_low": 0.35, "share/dino_high": 0.35}
    factor = checks.gradient_shares(r.gradients(), overrides=narrow).values["weight_factor"]
    told(checks.gradient_shares(r.gradients(factor)), "gradient_shares", "pass", "has its share")
    factor[name] *= 1e-3
    finding = checks.gradient_shares(r.gradients(factor))
    told(finding, "gradient_shares", "fail", f"grad/{name} is")
    remedy = finding.values["weight_factor"]
    assert remedy.keys() == {name}
    factor[name] *= remedy[name]
    told(checks.gradient_shares(r.gradients(factor)), "gradient_shares", "pass", "has its share")


@pytest.mark.parametrize("seed", SEEDS)
def test_flow_drowned(seed):
    finding = checks.gradient_shares(run(seed, w_kl=0.5, w_flow=1e-4, **SHORT).gradients())
    told(finding, "gradient_shares", "fail", "grad/flow is")
    assert finding.values["weight_factor"].keys() == {"kl"}
    assert "weight of kl by" in finding.advice


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
    # the loss with its prediction held fixed, or the target itself; whether it carries a gradient
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
    finding = checks.gradient_path(made(x0, x1) if as_tensor else made, x1, x0, logvar=logvar)
    told(finding, "gradient_path", "fail" if moves else "pass", "d_target/d_x0")
    assert x1.grad is None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("make", "status"), [(kl_of_moments, "pass"), (kl_of_sample, "fail")])
def test_gradient_path_of_the_kl(make, status, seed):
    r = run(seed)
    eps = torch.randn(BATCH, *SHAPE)
    kl = make(*r.net.head(torch.arange(BATCH)))
    finding = checks.gradient_path(lambda x1: flow_loss(x1.detach(), x1, x1), r.x1, kl=kl, eps=eps)
    told(finding, "gradient_path", status, "d_kl/d_eps")


@pytest.mark.parametrize(
    ("outside", "status"), [(0, "pass"), (1, "warn"), (BATCH * N // 2 + 1, "fail"), (BATCH * N, "fail")]
)
@pytest.mark.parametrize("value", [-6.0, 7.0])
def test_gradient_path_of_the_clamp(outside, status, value):
    logvar = torch.randn(BATCH * N).clamp(-5, 5)
    logvar[:outside] = value
    finding = checks.gradient_path(lambda x1: x1.detach(), torch.randn(2, 3), logvar=logvar)
    told(finding, "gradient_path", status, "logvar")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("gain", "init_scale", "status"),
    [(1.0, 2.0**10, "pass"), (1.0, 2.0**22, "warn"), (1e30, 2.0**10, "fail")],
)
def test_overflow(gain, init_scale, status, seed):
    """fp16 with a scaler: a good first scale, one that is too high and is corrected, a loss infinite at any scale."""
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
    finding = checks.overflow(scales)
    told(finding, "overflow", status, "its number format" if status == "pass" else "skipped")


@pytest.mark.parametrize(
    ("call", "status"),
    [
        (lambda: checks.overflow(), "skipped"),
        (lambda: checks.overflow(skipped=5, steps=100), "pass"),
        (lambda: checks.overflow(skipped=6, steps=100), "fail"),
        (lambda: checks.overflow(skipped=6, steps=100, overrides={"overflow/skipped": 0.1}), "pass"),
        (lambda: checks.overflow(nonfinite=1), "fail"),
        (lambda: checks.overflow([1024.0] * 50, nonfinite=1), "fail"),
        (lambda: checks.overflow([2.0] * 100 + [0.5] * 100), "fail"),
        (lambda: checks.dino(1.0, 0.01, 16), "warn"),
        (lambda: checks.dino(1.0, 0.01, 16, 0.2), "pass"),
        (lambda: checks.dino(math.nan, 1.0, 16), "fail"),
        (lambda: checks.gradient_shares({"grad/total": 1.0}), "skipped"),
        (lambda: checks.gradient_shares({"grad/flow": 1.0, "grad/total": 1.0}), "pass"),
        (lambda: checks.gradient_shares({"grad/flow": 1.0, "grad/kl": 0.0, "grad/total": 1.0}), "fail"),
        (lambda: checks.gradient_shares({"grad/flow": 0.0, "grad/total": 0.0}), "fail"),
        (lambda: checks.gradient_shares({"grad/flow": math.nan, "grad/total": 1.0}), "fail"),
        (lambda: checks.gradient_shares({"grad/flow": 1.0, "grad/kl": 0.4, "grad/total": 1.1}), "warn"),
        (lambda: checks.gradient_shares({"grad/flow": 1.0, "grad/norm": 0.07, "grad/total": 1.0}), "warn"),
        (lambda: checks.loss_magnitudes({"loss/flow": 1.0}), "skipped"),
        (lambda: checks.loss_magnitudes({"loss/flow": 1.0, "loss/kl": 0.0}), "warn"),
        (lambda: checks.loss_magnitudes({"loss/flow": 1.0, "loss/kl": 9.0, "loss/total": 1e9}), "pass"),
        (lambda: checks.loss_magnitudes({"flow": 1.0, "kl": 1e9, "dino": 1.0}, {"kl": 0}), "pass"),
        (lambda: checks.loss_magnitudes({"flow": [1.0, math.inf]}), "fail"),
        (lambda: checks.update_ratios({}), "skipped"),
        (lambda: checks.update_ratios({"step/z_head_update_ratio": [1e-3, math.nan, 1e-3, 1e-3]}), "fail"),
        (lambda: judged("gradient_path"), "skipped"),
        (lambda: judged("gradient_path", **{"d_target/d_x1": 0.0, "d_target/d_x0": math.nan}), "fail"),
        (lambda: judged("gradient_path", **{"d_target/d_x1": 0.0, "d_target/d_x0": 1e-3}), "fail"),
        (
            lambda: judged(
                "gradient_path", {"gradient_path/leak": 1e-2}, **{"d_target/d_x1": 0.0, "d_target/d_x0": 1e-3}
            ),
            "pass",
        ),
        (lambda: checks.kl({"loss/flow": [1.0, 2.0]}), "skipped"),
        (lambda: checks.kl({"loss/flow": [1.0, 2.0]}, {}), "skipped"),
        (lambda: checks.kl({"std/mean": [1.0, 1.0]}), "pass"),
        (lambda: checks.kl({"std/mean": [1.0, 1.0]}, {}), "warn"),
        (lambda: checks.kl({"std/mean": [1.0, 1.0]}, clamped=0.6), "fail"),
        (lambda: checks.kl({"std/mean": [1.0, 1.0], "z_init/var": [1.0, 2.5]}), "warn"),
        (lambda: checks.kl({"mu/abs_mean": [1.0, math.inf, 0.0]}), "fail"),
        (lambda: checks.overfit({}), "skipped"),
        (lambda: checks.overfit({"loss/flow": [1.0, 0.1]}), "pass"),
        (lambda: checks.overfit({"loss/flow": [1.0, 0.1], "loss/kl": [9.0, 1.0, 1.1]}), "pass"),
        (lambda: checks.overfit({"loss/flow": [1.0, 0.1], "loss/kl": [1.0, 1.0, 9.0]}), "fail"),
        (lambda: checks.overfit({"loss/flow": [1.0, 0.1], "loss/kl": [9.0, 9.0, 1.0]}), "warn"),
        (lambda: checks.ablation_only_flow({}), "skipped"),
        (lambda: checks.ablation_kl_off({}, {}), "skipped"),
        (lambda: checks.ablation_condition_shuffled(0.5, 0.47), "warn"),
        (lambda: checks.ablation_condition_shuffled(0.5, math.nan), "fail"),
    ],
)
def test_numbers(call, status):
    assert call().status == status, str(call())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: checks.gradient_path(lambda x1: x1, torch.ones(2), eps=torch.ones(2)), ValueError, "kl and eps"),
        (lambda: checks.gradient_path(torch.ones(2), torch.ones(2)), ValueError, "must require gradients"),
        (lambda: checks.gradient_path(lambda x1: 0.0, torch.ones(2)), TypeError, "target must be"),
        (lambda: checks.dino(1.0, 1.0, 1), ValueError, "classes must be"),
        (lambda: checks.dino(4.0, 1.0, 16), ValueError, "in nats"),
        (lambda: checks.dino([], 1.0, 16), ValueError, "teacher_entropy: there are no values"),
        (lambda: checks.gradient_shares({"grad/flow": 1.0}), ValueError, "grad/total"),
        (lambda: checks.update_ratios({"step/z_head_update_ratio": []}), ValueError, "update_ratio: there are no"),
        (lambda: checks.loss_magnitudes({"flow": 1.0}, {"flw": 1.0}), ValueError, "flw"),
        (lambda: checks.overflow([1.0]), ValueError, "scaler_scales"),
        (lambda: checks.overflow(skipped=3), ValueError, "steps"),
        (lambda: checks.overflow(skipped=3, steps=2), ValueError, "skipped=3"),
        (lambda: checks.kl({"std/mean": [1.0]}), ValueError, "std/mean"),
        (lambda: checks.overfit({"flow/nmse": [1, 0]}, overrides={"overfit/los": 1}), KeyError, "overfit/loss"),
    ],
)
def test_wrong_calls(call, error, words):
    with pytest.raises(error, match=words):
        call()
