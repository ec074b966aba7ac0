"""What logging costs: training of the small DiMR with every figure every 50 steps, against the same training without.

python benchmarks/bench_logging.py          # 3 minutes; writes results/logging.json
python benchmarks/bench_logging.py --seconds 20 --json /tmp/logging.json

Both trainings run in turn in one process, each on its own copy of the networks, 50 steps at a time, of which one logs.
What is logged is compared with the same figures written plainly, and both trainings' losses with each other.
"""

import argparse
import copy
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import harness
import torch
import torch.nn.functional as F

from fmkernels.ops import flow_loss, flow_pair, reparameterize
from fmpipe import metrics
from fmpipe.models import build
from fmpipe.run_log import RunLog, read_log

BATCH, EVERY, LIMIT = 32, 50, 1.03
WEIGHTS = {"flow": 1.0, "kl": 1e-4, "dino": 0.1}
BETAS = torch.linspace(1e-4, 0.02, 1000)
CLASSES, TEMPERATURES = 64, {"teacher": 0.04, "student": 0.1}


class Training:
    """Text head, reparameterisation, flow, KL and DINO losses, Adam: one object for each contestant."""

    def __init__(self, networks, log: RunLog | None):
        self.networks, self.log, self.step, self.losses = networks, log, 0, []
        self.parameters = list(networks.parameters())
        self.optimizer = torch.optim.Adam(self.parameters, lr=1e-4)
        self.metrics = metrics.Metrics(EVERY)
        self.ratios = metrics.UpdateRatios(networks, self.optimizer)
        g = torch.Generator().manual_seed(1)
        self.x1, self.states = torch.randn(256, 4, 8, 8, generator=g), torch.randn(256, 16, 64, generator=g)
        self.teacher = torch.randn(256, CLASSES, generator=g)
        self.generator = torch.Generator().manual_seed(2)

    def forward(self) -> dict:
        rows = torch.randint(len(self.x1), (BATCH,), generator=self.generator)
        x1, t, teacher = self.x1[rows], torch.rand(BATCH, generator=self.generator), self.teacher[rows]
        mu, logvar = self.networks.text_head(self.states[rows])
        z0, kl, head_stats = reparameterize(mu, logvar, generator=self.generator)
        x_t, target = flow_pair(t, z0, x1)
        v = self.networks.velocity_net.velocity(x_t, t)
        flow, stats = flow_loss(v, v_target=target, t=t, return_stats=True)
        student = mu.flatten(1)[:, :CLASSES]
        soft = (teacher / TEMPERATURES["teacher"]).softmax(-1)
        dino = F.cross_entropy(student / TEMPERATURES["student"], soft)
        losses = {"flow": flow, "kl": kl.mean(), "dino": dino}
        tensors = {"x_0": x1, "t": t, "noise": z0, "x_t": x_t, "x_0_target": target, "v_pred": v}
        logits = {"teacher": teacher, "student": student}
        return {"losses": losses, "stats": [stats, head_stats], "tensors": tensors, "logits": logits, "mu": mu}

    def train(self) -> dict | None:
        """One step; the forward's parts and the parameters before, of a step that logged, for the comparison."""
        made = self.forward()
        self.optimizer.zero_grad(set_to_none=True)
        if self.log is None or not self.metrics.should(self.step):
            loss = sum(WEIGHTS[name] * part for name, part in made["losses"].items())
            loss.backward()
            self.optimizer.step()
        else:
            self.metrics.add(metrics.backward(made["losses"], self.parameters, WEIGHTS))
            with self.ratios.step() as ratios:
                self.optimizer.step()
            self.write(made, ratios)
        self.step += 1
        return made

    def write(self, made: dict, ratios: dict) -> None:
        losses = {name: part.detach() for name, part in made["losses"].items()}
        total = sum(WEIGHTS[name] * part for name, part in losses.items())
        kept = self.metrics.add(
            ratios, *made["stats"], {"lr": self.optimizer.param_groups[0]["lr"], "loss/total": total}
        )
        kept.add({f"loss/{name}": part for name, part in losses.items()})
        kept.add({f"w/{name}": weight for name, weight in WEIGHTS.items()})
        kept.add({f"ent/{who}": metrics.entropy(x, TEMPERATURES[who]) for who, x in made["logits"].items()})
        for name, x in made["tensors"].items():
            kept.tensor(name, x)
        kept.add(metrics.constants(BETAS))
        self.log.write(self.step, kept.collect())


def plain(training: Training) -> dict[str, float]:
    """The figures of the training's next step, each written the long way; the step is made on the way."""
    made = training.forward()
    parameters, optimizer = training.parameters, training.optimizer
    out = {}

    def norm(loss):
        grads = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        return torch.cat([g.double().flatten() for g in grads if g is not None]).norm().item()

    parts = {name: WEIGHTS[name] * loss for name, loss in made["losses"].items()}
    for name, loss in {**parts, "total": sum(parts.values())}.items():
        out[f"grad/{name}"] = norm(loss)
        out[f"loss/{name}"] = loss.item() / WEIGHTS.get(name, 1.0)
    optimizer.zero_grad(set_to_none=True)
    sum(parts.values()).backward()
    before = {p: p.detach().clone() for p in parameters}
    optimizer.step()
    for head, name in metrics.default_heads(training.networks).items():
        changes = [
            ((p - before[p]).double().norm() / (before[p].double().norm() + 1e-12)).item()
            for p in training.networks.get_submodule(name).parameters()
        ]
        out[f"step/{head}_update_ratio"] = sum(changes) / len(changes)
    with torch.no_grad():
        for who, x in made["logits"].items():
            p = (x / TEMPERATURES[who]).softmax(-1)
            out[f"ent/{who}"] = -(p * p.clamp_min(1e-12).log()).sum(-1).mean().item()
        v, target, mu = made["tensors"]["v_pred"], made["tensors"]["x_0_target"], made["mu"]
        out["flow/nmse"] = ((v - target).square().sum() / target.square().sum()).item()
        out["flow/cos"] = F.cosine_similarity(v.flatten(1), target.flatten(1)).mean().item()
        out["mu/abs_mean"], out["mu/rms"] = mu.abs().mean().item(), mu.square().mean().sqrt().item()
        for name, x in made["tensors"].items():
            figures = {"min": x.min(), "max": x.max(), "mean": x.mean(), "std": x.std(correction=0)}
            out |= {f"stat/{name}/{which}": value.item() for which, value in figures.items()}
    training.step += 1
    return out


def agree(logged: dict, expected: dict[str, float]) -> list[str]:
    """The names whose logged figure is not the plain one."""
    return [
        f"{name}: logged {logged.get(name)}, plainly {value}"
        for name, value in expected.items()
        if name not in logged or not abs(logged[name] - value) <= 1e-4 * abs(value) + 1e-6
    ]


def compare(networks, report_to: list[str]) -> list[str]:
    """Three logged steps against the plain figures: the first, and two later, of trainings that go side by side."""
    with tempfile.TemporaryDirectory() as folder:
        with RunLog(folder, report_to) as log:
            ours, other = Training(copy.deepcopy(networks), log), Training(copy.deepcopy(networks), None)
            ours.metrics.every = 2
            expected = []
            for step in range(5):
                torch.manual_seed(step)  # dropout
                ours.train()
                torch.manual_seed(step)
                expected.append(plain(other))
        logged = read_log(folder)
    wrong = [line for k, row in enumerate(logged) for line in agree(row, expected[2 * k])]
    return wrong if len(logged) == 3 else [*wrong, f"{len(logged)} lines logged, expected 3"]


def block(training: Training) -> list[float]:
    """Seconds of each of the next 50 steps, the first of which logs; writing the file out is part of it."""
    times = []
    for _ in range(EVERY):
        start = time.perf_counter()
        logs = training.log is not None and training.metrics.should(training.step)
        training.train()
        if logs:
            training.log.flush()
        times.append(time.perf_counter() - start)
    return times


def summary(plain: list[list[float]], logged: list[list[float]]) -> dict[str, float]:
    """ratio: of 50 steps with one that logs to 50 without, from the medians of single steps, which a machine that is
    busy with other things disturbs least. ratio of blocks: the median of whole blocks that ran one after the other."""
    step = statistics.median(time for times in plain for time in times)
    logging = statistics.median(times[0] for times in logged)
    blocks = statistics.median(sum(b) / sum(a) for a, b in zip(plain, logged, strict=True))
    return {
        "plain step": step,
        "logging step": logging,
        "other steps of the logged": statistics.median(time for times in logged for time in times[1:]),
        "blocks": len(plain),
        "ratio": 1 + (logging - step) / (EVERY * step),
        "ratio of blocks": blocks,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=180.0, help="time to measure (default 180)")
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default 2)")
    parser.add_argument("--json", type=Path, default=harness.RESULTS / "logging.json", help="where to write the result")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    networks = build("small_dimr").train()
    report_to = ["jsonl"]
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        print("tensorboard is not installed: JSON lines only")
    else:
        report_to.append("tensorboard")
    facts = harness.header()
    for name, value in facts.items():
        print(f"{name}: {value}")
    wrong = compare(networks, report_to)
    print("\n".join(wrong) or "the logged figures are the plain ones", flush=True)
    with tempfile.TemporaryDirectory() as folder, RunLog(folder, report_to) as log:
        contestants = {
            "plain": Training(copy.deepcopy(networks), None),
            "logged": Training(copy.deepcopy(networks), log),
        }
        samples = {name: [] for name in contestants}
        for training in contestants.values():
            for _ in range(3):
                training.train()
            training.step = 0
        end, turn = time.perf_counter() + args.seconds, 0
        while time.perf_counter() < end or turn < 2:
            order = list(contestants.items())[:: 1 if turn % 2 else -1]  # neither always comes second
            for name, training in order:
                samples[name].append(block(training))
            turn += 1
    found = summary(samples["plain"], samples["logged"])
    result = {
        "header": facts,
        "model": f"small_dimr, {sum(p.numel() for p in networks.parameters()) / 1e6:.2f} M parameters, batch {BATCH}",
        "report_to": report_to,
        "every": EVERY,
        **found,
        "limit": LIMIT,
        "matched": not wrong,
    }
    print(json.dumps({k: v for k, v in result.items() if k != "header"}, indent=1))
    if found["ratio"] > LIMIT:
        print(f"above its limit: logging costs {found['ratio'] - 1:.1%}, promised {LIMIT - 1:.0%}")
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: {args.json}")
    if wrong:
        sys.exit("a logged figure did not match: see above")


if __name__ == "__main__":
    main()
