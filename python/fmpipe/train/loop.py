"""The training loop, the same for every stage, for one process or several, new or resumed."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fmpipe.train.alarms import Alarms
from fmpipe.train.batches import ALL
from fmpipe.train.config import Config
from fmpipe.train.ema import EMA, AveragedObjective
from fmpipe.train.gradients import Gradients
from fmpipe.train.interrupt import SIGNALS, InterruptedRunError, Signals
from fmpipe.train.objective import Outcome
from fmpipe.train.optim import make_optimizer, schedule
from fmpipe.train.processes import in_any_process, mean_over_processes
from fmpipe.train.run_state import RunState
from fmpipe.train.sharding import full, shard
from fmpipe.train.stages import Stage
from fmpipe.train.step_metrics import StepMetrics
from fmpipe.train.switches import enable_checkpointing, enable_compile
from fmpipe.train.trackers import Logs

AGREE = 10  # steps between two messages in which processes tell each other that they were interrupted
READ = 50  # most steps on a device before the host reads whether all losses and gradients were finite

pytree.register_dataclass(Outcome)  # older versions of torch find the outputs of a sharded model only in pytrees


class Trainer:
    """Trains a stage in ``folder``, which gets ``log.jsonl``, ``checkpoints/`` and ``samples/``.

    The numbers of a step depend only on the seed and the step, so a resumed run equals one that was not interrupted.
    """

    def __init__(self, stage: Stage, config: Config, folder: Path, accelerator: Accelerator):
        self.stage, self.config, self.folder, self.accelerator = stage, config, folder, accelerator
        self.step, self.resumed, optim, self.objective = 0, False, stage.optim, stage.objective
        sharded = config.parallel == "fsdp2" and accelerator.num_processes > 1
        whole = copy.deepcopy(stage.objective).cpu() if sharded else None
        enable_checkpointing(self.objective, config.checkpointing)
        if config.compile:
            enable_compile(self.objective)
        self.objective.train()
        self.model = accelerator.prepare_model(self.objective, evaluation_mode=sharded)  # autocast; DDP if not sharded
        if sharded:
            shard(self.model, accelerator.device)
        optimizer = make_optimizer(optim, self.objective)
        self.rates, self.factor = [group["lr"] for group in optimizer.param_groups], schedule(optim)
        self.optimizer = accelerator.prepare_optimizer(optimizer)
        self.objective = accelerator.unwrap_model(self.model)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.ema = EMA(self.objective, optim.ema)
        self.averaged = AveragedObjective(self.objective, self.ema, accelerator.device, whole)
        self.gradients = Gradients(
            self.model, self.objective, accelerator, stage.weights, optim.accumulate, config.seed
        )
        self.metrics = StepMetrics(config.every.log, accelerator, self.objective, self.optimizer.optimizer, stage.heads)
        self.state = RunState(
            folder / "checkpoints", stage.name, config, accelerator,
            self.objective, self.ema, self.optimizer, stage.weights,
        )  # fmt: skip
        self.alarms = Alarms(stage.name, stage.alarm, accelerator, self.objective, self.state)

    def restore(self, which: str) -> None:
        """Continue from a checkpoint: "latest", a step or a path."""
        self.step, self.resumed = self.state.restore(which), True

    def run(self, on_log: Callable[[int, dict], None] | None = None) -> nn.Module:
        """Run the remaining steps; return the objective with averaged weights. on_log: called at every logged step."""
        every, stage, main = self.config.every, self.stage, self.accelerator.is_main_process
        with Logs(self.folder, self.config, active=main) as log, Signals() as signals:
            self.state.before_save = log.flush  # a run that is killed and resumed from there must not lack these lines
            if not self.resumed and not self.alarms.every_step:
                self.state.save(self.step)  # to repeat the first steps from
            if self.step == 0:
                log.write(0, stage.constants | (self.averaged.call(stage.validate) if every.validate else {}))
            while self.step < stage.optim.steps:
                metrics = self.train_step()
                last = self.step == stage.optim.steps
                validates = last or _due(every.validate, self.step)
                if validates or _due(every.sample, self.step):
                    self.state.check(self.step, metrics)
                if validates:
                    metrics |= self.averaged.call(stage.validate)
                log.write(self.step, metrics)
                if on_log is not None and metrics:
                    on_log(self.step, metrics)
                if _due(every.sample, self.step):
                    picture = self.folder / "samples" / f"{self.step:08d}.png"
                    self.averaged.call(partial(stage.draw, path=picture) if main else lambda objective: None)
                    log.picture(self.step, picture)
                if last or _due(every.save, self.step):
                    self.state.save(self.step)
                self._end_if_interrupted(signals, last)
        return self.averaged.result()

    def train_step(self) -> dict[str, object]:
        """Run one step; return its metrics if it is a step that is logged, otherwise {}."""
        step, stage, logged = self.step, self.stage, self.metrics.due(self.step)
        weights, factor = stage.weights(step), self.factor(step)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        result = self.gradients.compute(step, self._batches(), weights, norms_wanted=logged)
        self.alarms.check_loss(step, result, weights)
        norm = full(self.accelerator.clip_grad_norm_(self.parameters, stage.optim.clip))
        self.alarms.check_gradients(step, result, norm)
        if not self.alarms.every_step and self._reads() and self.alarms.any_bad():
            return self._repeat(step + 1)
        with self.metrics.update_ratios(logged) as ratios:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.objective.after_step()
        self.ema.update(self.objective)
        self.step += 1
        if not logged:
            return {}
        metrics = self.metrics.collect(result, weights, norm, ratios, lr=stage.optim.lr * factor)
        self.alarms.check_scale(self.step, metrics)
        if "grad/total" in metrics:  # every process has its own batch, but the weights must be the same
            norms = mean_over_processes(self.accelerator, {name: metrics[f"grad/{name}"] for name in weights})
            stage.weights.adjust(step, norms, {name: metrics[f"loss/{name}"] for name in weights})
        return metrics

    def _batches(self) -> list[dict[str, Tensor]]:
        """Return the micro-batches of this process."""
        parts, rank = self.stage.optim.accumulate, self.accelerator.process_index
        size, rows = self.stage.optim.batch // (self.accelerator.num_processes * parts), [ALL]
        if self.accelerator.num_processes * parts > 1:
            rows = [slice(first := (rank * parts + k) * size, first + size) for k in range(parts)]
        return [_uploaded(self.stage.batches(self.step, part), self.accelerator.device) for part in rows]

    def _reads(self) -> bool:
        """Tell whether the alarms are read after a step on a device: the next action reads the device too."""
        every, done = self.config.every, self.step + 1
        due = any(_due(n, done) for n in (every.validate, every.save, every.sample, READ))
        return due or done == self.stage.optim.steps or self.metrics.due(self.step)

    def _repeat(self, until: int) -> dict[str, object]:
        """Repeat the steps from the newest checkpoint to ``until``, checking each: the first bad one stops the run.

        Returns the metrics of the last step, with a warning, if no step is bad this time: a device may compute sums in
        another order.
        """
        self.optimizer.zero_grad(set_to_none=True)
        first = self.step = self.state.restore(self.state.newest)
        self.alarms.every_step = True
        while self.step < until:
            metrics = self.train_step()
        self.alarms.every_step = False
        self.alarms.bad.zero_()
        warnings.warn(
            f"{self.stage.name}: a loss or gradient of the steps {first} to {until - 1} was not finite, but was when "
            "the steps were repeated: training continues",
            stacklevel=2,
        )
        return metrics

    def _end_if_interrupted(self, signals: Signals, last: bool) -> None:
        """Save the state and raise InterruptedRunError if any process received a signal."""
        if self.accelerator.num_processes > 1 and self.step % AGREE and not last:
            return  # agreeing on the step to stop at takes a message
        if in_any_process(self.accelerator, signals.received):
            if self.alarms.any_bad():  # not read yet: a bad state must not be saved
                self._repeat(self.step)
            path = self.state.save(self.step)
            raise InterruptedRunError(self.stage.name, self.step, path, signals.received or SIGNALS[0])


def _uploaded(batch: dict[str, Tensor], device) -> dict[str, Tensor]:
    """Return the batch on a device. Copies from pinned memory do not make the host wait: it prepares the next step."""
    if device.type == "cpu":
        return batch
    return {name: x.pin_memory().to(device, non_blocking=True) for name, x in batch.items()}


def _due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0
