"""The training loop: one for every stage, one process or several, cut and resumed without a trace."""

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fmpipe import metrics
from fmpipe.train import checkpoint
from fmpipe.train.accumulate import LossGradients, detached, joined
from fmpipe.train.batches import ALL, drawn
from fmpipe.train.config import Config, Optim
from fmpipe.train.interrupt import SIGNALS, InterruptedRunError, Signals
from fmpipe.train.losses import Centre
from fmpipe.train.objective import STATISTICS, Outcome
from fmpipe.train.optim import EMA, make_optimizer, schedule
from fmpipe.train.sharding import full, like, load_model, load_optimizer, shard
from fmpipe.train.switches import enable_checkpointing, enable_compile
from fmpipe.train.trackers import Logs
from fmpipe.train.weights import Weigher, pcgrad

AGREE = 10  # steps between two questions whether a process was interrupted
READ = 50  # most steps on a device before the host reads whether all losses and gradients were finite

pytree.register_dataclass(Outcome)  # older torches look for the outputs of a sharded model in pytrees alone


class StoppedError(RuntimeError):
    """A run that ended itself; the last good state is saved. figures: those of the step that triggered the alarm."""

    def __init__(self, why: str, figures: dict[str, object] | None = None):
        super().__init__(why)
        self.figures = figures or {}


@dataclass
class Stage:
    """What the loop needs to know of a stage.

    batches: ``batches(step, rows) -> arguments of the objective``. weights: of its losses. heads: dotted names for the
    update ratios. validate: figures of the averaged weights; draw: a picture of them, saved in a folder. alarm: the
    scale at which to stop, times E|z1|.
    """

    name: str
    objective: nn.Module
    batches: Callable[..., dict[str, Tensor]]
    optim: Optim
    weights: Weigher
    heads: dict[str, str]
    validate: Callable[[nn.Module], dict[str, float]]
    draw: Callable[[nn.Module, Path], None]
    alarm: float = 0.0
    constants: dict[str, object] | None = None


class Trainer:
    """Runs a stage to its last step in ``folder``: ``log.jsonl``, ``checkpoints/``, ``samples/``.

    The numbers of a step depend on the seed and the step alone, so that a resumed run goes on as the uncut one would.
    """

    def __init__(self, stage: Stage, config: Config, folder: Path, accelerator: Accelerator):
        self.stage, self.config, self.folder, self.accelerator = stage, config, folder, accelerator
        optim = stage.optim
        self.world, self.step, self.whole, self.saved = accelerator.num_processes, 0, None, "latest"
        sharded = config.parallel == "fsdp2" and self.world > 1
        if sharded:
            self.whole = copy.deepcopy(stage.objective).cpu()  # for the averaged weights, and what the stage leaves
        enable_checkpointing(stage.objective, config.checkpointing)
        if config.compile:
            enable_compile(stage.objective)
        stage.objective.train()
        self.model = accelerator.prepare_model(stage.objective, evaluation_mode=sharded)  # autocast; DDP if not sharded
        if sharded:
            shard(self.model, accelerator.device)
        optimizer = make_optimizer(optim, stage.objective)
        self.rates, self.factor = [group["lr"] for group in optimizer.param_groups], schedule(optim)
        self.optimizer = accelerator.prepare_optimizer(optimizer)
        self.objective = accelerator.unwrap_model(self.model)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.ema = EMA(self.objective, optim.ema)
        self.metrics = metrics.Metrics(config.every.log) if config.every.log else None
        self.ratios = metrics.UpdateRatios(self.objective, self.optimizer.optimizer, stage.heads)
        self.parts = optim.accumulate
        for centre in (module for module in self.objective.modules() if isinstance(module, Centre)):
            centre.parts = self.parts
        # Reading CPU memory needs no synchronization. On a device, the flag is read at some steps only; if it is set
        # then, the steps since the newest checkpoint are repeated with every step read.
        self.exact = accelerator.device.type == "cpu"
        self.bad = torch.zeros((), dtype=torch.bool, device=accelerator.device)
        if optim.batch % (self.world * self.parts):
            raise ValueError(
                f"stage {stage.name}: optim.batch must be a multiple of {self.world} processes times {self.parts} "
                f"micro-batches, got {optim.batch}"
            )

    # The loop

    def run(self, resume: str | None = None, shown: Callable[[int, dict], None] | None = None) -> nn.Module:
        """All steps that are left; the objective with its averaged weights. shown: called at every step that logs."""
        if resume is not None:
            self.restore(checkpoint.find(self.folder / "checkpoints", resume))
        every, main = self.config.every, self.accelerator.is_main_process
        log = Logs(self.folder, self.config) if main else contextlib.nullcontext()
        with log as lines, self._reasons(lines), Signals() as signals:
            if not self.exact and resume is None:
                self.save()  # to repeat the first steps from
            if self.step == 0:
                figures = {
                    **(self.stage.constants or {}),
                    **(self.averaged(self.stage.validate) if every.validate else {}),
                }
                if main and figures:
                    log.write(0, figures)
            while self.step < self.stage.optim.steps:
                figures = self.train_step()
                done = self.step
                if _due(every.validate, done) or done == self.stage.optim.steps:
                    figures |= self.averaged(self.stage.validate)
                if main and figures:
                    log.write(done, figures)
                if shown is not None and figures:
                    shown(done, figures)
                if _due(every.sample, done):
                    picture = self.folder / "samples" / f"{done:08d}.png"
                    self.averaged(partial(self.stage.draw, path=picture) if main else lambda objective: None)
                    if main:
                        log.picture(done, picture)
                if _due(every.save, done) or done == self.stage.optim.steps:
                    if main:  # a run that is killed and resumed from here must not lack these lines
                        log.lines.flush()
                    self.save()
                # Processes must agree on the step to stop at, which costs a message: not at every step.
                asked = self.world == 1 or done % AGREE == 0 or done == self.stage.optim.steps
                if asked and self._any(bool(signals.received)):
                    if self._any(bool(self.bad)):  # not read yet: a bad state must not be saved
                        self._repeat(done)
                    signum = signals.received or SIGNALS[0]
                    raise InterruptedRunError(self.stage.name, done, self.save(), signum)
        if self.whole is not None:
            return self._gathered().eval()
        self.ema.copy_to(self.objective)
        return self.objective.eval()

    def train_step(self) -> dict[str, object]:
        """One step; the figures for the log if it is one that logs, else nothing."""
        step, logs = self.step, self.metrics is not None and self.metrics.should(self.step)
        factor, weights = self.factor(step), self.stage.weights(step)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        outcomes, total, norms = self._gradients(self._batches(step), weights, logs)
        if self.exact and self._any(not torch.isfinite(total)):
            self._stop(_not_finite(step, outcomes(), weights), _losses(outcomes(), total))
        clipped = full(self.accelerator.clip_grad_norm_(self.parameters, self.stage.optim.clip))
        checked = total if self.accelerator.scaler else total + clipped  # a scaler skips steps by itself
        if self.exact and not torch.isfinite(checked):
            names = (name for name, p in self.objective.named_parameters() if not _finite(full(p.grad)))
            why = f"step {step}: the gradient of {next(names, 'a parameter')} is not finite, the losses are"
            self._stop(why, {**_losses(outcomes(), total), "grad/total": clipped.item()})
        if not self.exact:
            self.bad |= ~torch.isfinite(checked)
            if self._reads(step) and self._any(bool(self.bad)):
                return self._repeat(step + 1)
        if logs and len(weights) == 1:
            norms = dict.fromkeys((f"grad/{next(iter(weights))}", "grad/total"), clipped)
        with self.ratios.step() if logs else contextlib.nullcontext() as ratios:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.objective.after_step()
        self.ema.update(self.objective)
        self.step += 1
        if not logs:
            return {}
        more = {**norms, **full(ratios), "lr": self.stage.optim.lr * factor}  # groups may have their own
        figures = self._figures(outcomes(), weights, total, more)
        self._alarm(figures)
        if "grad/total" in figures:  # every process its own batch, but one set of weights
            norms = self._mean({name: figures[f"grad/{name}"] for name in weights})
            self.stage.weights.adjust(step, norms, {name: figures[f"loss/{name}"] for name in weights})
        return figures

    def _reads(self, step: int) -> bool:
        """Whether a step on a device ends with reading the flag: the next thing that happens reads the device too."""
        every, done = self.config.every, step + 1
        due = (_due(n, done) for n in (every.validate, every.save, every.sample, READ))
        return any(due) or done == self.stage.optim.steps or (self.metrics is not None and self.metrics.should(step))

    def _repeat(self, until: int) -> dict[str, object]:
        """Repeat the steps from the newest checkpoint to ``until``, reading each: the first bad one stops the run.

        Returns the figures of the last step, with a warning, if no step is bad this time: a device may compute sums in
        another order.
        """
        self.optimizer.zero_grad(set_to_none=True)
        self.restore(checkpoint.find(self.folder / "checkpoints", self.saved))
        first, self.exact = self.step, True
        while self.step < until:
            figures = self.train_step()
        self.exact = False
        self.bad.zero_()
        warnings.warn(
            f"{self.stage.name}: a loss or gradient of the steps {first} to {until - 1} was not finite, but was when "
            "the steps were repeated: training continues",
            stacklevel=2,
        )
        return figures

    def averaged(self, call: Callable[[nn.Module], object]):
        """``call(objective)`` with the averaged weights, in eval mode, without gradients. In every process."""
        if self.whole is not None:
            with torch.no_grad():
                found = call(self._gathered().eval())
            self.whole.cpu()
            return found
        with torch.no_grad(), self.ema.applied(self.objective):
            self.objective.eval()
            try:
                return call(self.objective)
            finally:
                self.objective.train()

    def _gathered(self) -> nn.Module:
        """The whole objective, in no process's hands alone, with the averaged weights."""
        self.whole.load_state_dict(full(self.objective.state_dict()))  # what is not averaged
        self.ema.copy_to(self.whole.to(self.accelerator.device))
        return self.whole

    def _batches(self, step: int) -> list[dict[str, Tensor]]:
        """The micro-batches of this process."""
        size, rank = self.stage.optim.batch // (self.world * self.parts), self.accelerator.process_index
        if self.world * self.parts == 1:
            rows = [ALL]
        else:
            rows = [slice(first := (rank * self.parts + k) * size, first + size) for k in range(self.parts)]
        return [_uploaded(self.stage.batches(step, part), self.accelerator.device) for part in rows]

    def _gradients(
        self, batches: list[dict[str, Tensor]], weights: dict[str, float], logs: bool
    ) -> tuple[Callable[[], Outcome], Tensor, dict[str, Tensor]]:
        """Gradients in place; how to get the outcome of all micro-batches, their mean loss, and norms for the log."""
        found, totals, norms, kept = [], [], {}, LossGradients()
        states = self._couple(batches) if self.parts > 1 and getattr(self.objective, "couples", False) else []
        for k, batch in enumerate(batches):
            if states:
                _set_random_state(states[k], self.accelerator.device)
            last = k == self.parts - 1
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.model):
                outcome = self.model(**batch)
                total = sum(weight * outcome.losses[name] for name, weight in weights.items())
                norms = self._backward(outcome.losses, weights, total, logs, kept)
            found.append(detached(outcome))
            totals.append(total.detach())
        if logs and kept.sums:
            norms = kept.norms(self.parameters)  # with pcgrad, those before the projection
        if self.stage.weights.kind == "pcgrad":
            grads = [[None if g is None else self.accelerator.reduce(g, "mean") for g in x] for x in kept.sums.values()]
            for p, grad in zip(self.parameters, pcgrad(grads, drawn(self.config.seed, 4, self.step)), strict=True):
                p.grad = grad if grad is None else like(grad, p)
        eps = [batch.get("eps") for batch in batches]
        return lambda: joined(found, eps), torch.stack(totals).mean(0), norms

    def _couple(self, batches: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Give every micro-batch the pairs of the whole batch, for losses that compare all samples with each other.

        This takes a first pass without gradients through all but the velocity network. Returns the states of the random
        generator before each micro-batch: dropout must be the same in the second pass.
        """
        states, own, device = [], [], self.accelerator.device
        for batch in batches:
            states.append(_random_state(device))
            with torch.no_grad():
                own.append(self.objective(**batch, pairs=True).made["pairs"])
        pairs, size = self.accelerator.gather(torch.cat(own)), len(own[0])
        for k, batch in enumerate(batches):
            batch |= {"pairs": pairs, "at": (self.accelerator.process_index * self.parts + k) * size}
        return states

    def _backward(
        self, losses: dict[str, Tensor], weights: dict[str, float], total: Tensor, logs: bool, kept: LossGradients
    ) -> dict[str, Tensor]:
        """Gradients in place, or in ``kept``, loss by loss; their norms, if asked for and of a batch in one part."""
        parts, projects = {name: losses[name] for name in weights}, self.stage.weights.kind == "pcgrad"
        if not projects and (not logs or len(parts) < 2):
            self.accelerator.backward(total / self.parts)
            return {}
        # Those of this graph: where parameters are sharded, the gathered ones.
        parameters, norms = [p for p in self.model.parameters() if p.requires_grad], {}
        if projects or self.parts > 1:
            kept.add({name: weight * losses[name] / self.parts for name, weight in weights.items()}, parameters)
        elif self.world == 1 and self.accelerator.scaler is None:
            return metrics.backward(parts, parameters, weights)
        else:
            norms = metrics.gradient_norms(parts, parameters, weights)
        if not projects:
            self.accelerator.backward(total / self.parts)
        return norms

    def _figures(self, outcome: Outcome, weights: dict[str, float], total: Tensor, more: dict) -> dict[str, object]:
        kept = self.metrics.add(*outcome.stats, outcome.figures, more)
        kept.add({"loss/total": total})
        if self.accelerator.scaler is not None:
            kept.add({"scaler/scale": self.accelerator.scaler.get_scale()})
        kept.add({f"loss/{name}": loss for name, loss in outcome.losses.items()})
        kept.add({f"w/{name}": weight for name, weight in weights.items()})
        for name in STATISTICS:
            if name in outcome.made:
                kept.tensor(name, outcome.made[name])
        figures = kept.collect()
        # The losses are all processes', the other figures the first one's.
        return figures | self._mean({name: x for name, x in figures.items() if name.startswith("loss/")})

    def _mean(self, figures: dict[str, float]) -> dict[str, float]:
        """The mean of every figure over all processes."""
        if self.world == 1:
            return figures
        mine = torch.tensor(list(figures.values()), device=self.accelerator.device)
        return dict(zip(figures, self.accelerator.reduce(mine, "mean").tolist(), strict=True))

    # What ends a run

    def _alarm(self, figures: dict[str, object]) -> None:
        """z0 that runs away takes the targets with it, and every figure of the flow reads well."""
        if not self.stage.alarm or "scale/z1" not in figures:
            return
        for name in ("z0", "v*"):
            ratio = figures[f"scale/{name}"] / figures["scale/z1"]
            if self._any(not ratio <= self.stage.alarm):
                self._stop(
                    f"step {self.step}: E|{name}| is {ratio:.3g} times E|z1| (alarm at {self.stage.alarm:g}): z0 runs "
                    f"away. Raise flow.losses.kl, set mu_rms in flow.head, or lower flow.optim.lr",
                    figures,
                )

    def _any(self, here: bool) -> bool:
        """In any process: all must stop at the same step, or those left wait for the others."""
        if self.world == 1:
            return here
        return bool(self.accelerator.reduce(torch.tensor(float(here), device=self.accelerator.device), "sum") > 0)

    @contextlib.contextmanager
    def _reasons(self, log: Logs | None) -> Iterator[None]:
        """Write why a run ended itself, and the figures of that step, as the last line of its log."""
        try:
            yield
        except StoppedError as error:
            if log is not None:
                log.write(self.step, {**error.figures, "stop/reason": str(error)})
            raise

    def _stop(self, why: str, figures: dict[str, object]) -> None:
        path = self.save()
        raise StoppedError(f"{self.stage.name}: {why}. The state before it is saved: {path}", figures)

    # States

    def save(self) -> Path:
        """The state after ``self.step`` steps, of all processes, written by the first."""
        random = gather_object([_random_state(self.accelerator.device)])
        parts = {"model": self.objective, "ema": self.ema, "optimizer": self.optimizer}
        tensors = {name: full(part.state_dict()) for name, part in parts.items()}
        path = self.folder / "checkpoints"
        if self.accelerator.is_main_process:
            state = {
                **tensors,
                "scaler": self.accelerator.scaler.state_dict() if self.accelerator.scaler else {},
                "weights": self.stage.weights.state_dict(),
                "rng": {f"{rank}{kind}": x for rank, states in enumerate(random) for kind, x in states.items()},
                "meta": {"stage": self.stage.name, "step": self.step, "config": asdict(self.config)},
            }
            path = checkpoint.save(path, self.step, state, keep=self.config.keep)
        self.accelerator.wait_for_everyone()
        self.saved = str(self.step)
        return path

    def restore(self, path: Path) -> None:
        state = checkpoint.load(path)
        load_model(self.objective, state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        self.ema.load_state_dict(state["ema"])
        if self.accelerator.scaler:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.stage.weights.load_state_dict(state["weights"])
        rank, device = self.accelerator.process_index, self.accelerator.device
        kinds = {kind: f"{rank}{kind}" for kind in _random_state(device)}
        _set_random_state({kind: state["rng"][name] for kind, name in kinds.items() if name in state["rng"]}, device)
        self.step, self.saved = state["meta"]["step"], str(path)


def _random_state(device: torch.device) -> dict[str, Tensor]:
    """The states of the generators that dropout uses: the CPU's under "", the device's under its type."""
    states = {"": torch.get_rng_state()}
    if device.type != "cpu":
        states[f"/{device.type}"] = torch.get_device_module(device).get_rng_state(device)
    return states


def _set_random_state(states: dict[str, Tensor], device: torch.device) -> None:
    for kind, state in states.items():
        if kind:
            torch.get_device_module(device).set_rng_state(state, device)
        else:
            torch.set_rng_state(state)


def _uploaded(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The batch on a device. From pinned memory, the copy does not make the host wait: it prepares the next step."""
    if device.type == "cpu":
        return batch
    return {name: x.pin_memory().to(device, non_blocking=True) for name, x in batch.items()}


def _due(every: int, done: int) -> bool:
    return every > 0 and done % every == 0


def _finite(x: Tensor | None) -> bool:
    return x is None or bool(torch.isfinite(x).all())


def _losses(outcome: Outcome, total: Tensor) -> dict[str, float]:
    """Return the losses of a step as the log names them."""
    return {"loss/total": total.item(), **{f"loss/{name}": loss.item() for name, loss in outcome.losses.items()}}


def _not_finite(step: int, outcome: Outcome, weights: dict[str, float]) -> str:
    """Which loss, and which of the step's tensors was the first."""
    parts = [name for name in weights if not _finite(outcome.losses[name])]
    first = next((name for name, x in outcome.made.items() if not _finite(x)), None)
    where = f"the first tensor that is not is {first}" if first else "every tensor that went into it is finite"
    return f"step {step}: the loss {', '.join(parts) or 'total'} is not finite; {where}"
