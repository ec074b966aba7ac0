"""A fault planted in a tiny run, and the evidence it leaves: a run's folder, a pipeline, and the parts of its loops."""

import copy
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from fmkernels.flow import Sample, Trace, sample, uniform
from fmpipe.diagnose import checks
from fmpipe.diagnose.examine import examine, history_of
from fmpipe.diagnose.faults.world import World, healthy, trained
from fmpipe.diagnose.log import read_log
from fmpipe.diagnose.verdict import Verdict
from fmpipe.pipeline import FlowPipeline
from fmpipe.train import objective as training
from fmpipe.train import settings
from fmpipe.train.batches import drawn

TRACED = 100  # steps of the sampling trace that is left in the folder
_noting = partial(Trace, nonfinite="continue")


@dataclass
class Evidence:
    """What a run leaves to be examined.

    folder: of the run, for ``fmpipe.diagnose.report.read``. pair, reparameterize: training's own. z1: latents as
    training takes them. velocity: what sampling integrates, if it is not the network's. loop: sampling's,
    ``loop(velocity, z0, steps) -> (x, trace)``.
    """

    folder: Path
    world: World
    pipe: FlowPipeline
    pair: Callable
    reparameterize: Callable
    z1: Tensor
    velocity: Callable[..., Tensor] | None = None
    loop: Callable[..., Sample] = lambda velocity, z0, steps: sample(velocity, z0, uniform(steps), trace=_noting())


@dataclass(frozen=True)
class Fault:
    """name, and in a sentence what it does. own: the checks, or letters of hypotheses, that are to rank first.

    settings: overrides of the healthy run's. training: ``training(world)``, a context in which the run is trained.
    sampling: ``sampling(evidence)`` changes what the run left.
    """

    name: str
    what: str
    own: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    training: Callable[[World], AbstractContextManager] | None = None
    sampling: Callable[[Evidence], None] | None = None

    def plant(self, folder: str | Path, seed: int) -> Evidence:
        """Trains a tiny run with the fault in ``folder``, which must not be there; everything depends on the seed."""
        folder = Path(folder)
        world = World(settings.with_overrides(healthy(folder, seed), self.settings))
        with self.training(world) if self.training else nullcontext():
            if self.training or self.settings:
                objective = trained(world)
            else:
                objective = copy.deepcopy(_healthy(seed)[0])
                shutil.copytree(_healthy(seed)[1].name, folder)
            if world.run.name != "flow":  # of a diffusion's run the log is all; the pipeline is a healthy one
                objective = copy.deepcopy(_healthy(seed)[0])
            moments = world.autoencoder.encode_moments(world.images)
            evidence = Evidence(
                folder,
                world,
                FlowPipeline(world.encoder, objective.text_head, objective.velocity_net, world.autoencoder),
                training.flow_pair,
                training.reparameterize,
                world.autoencoder.sample(moments, drawn(seed, 7)),
            )
        evidence.pipe.set_progress_bar_config(disable=True)
        if self.sampling:
            self.sampling(evidence)
        return evidence


HEALTHY = (
    Fault("none", "a healthy run"),
    Fault(
        "none, with DINO",
        "a healthy run with a contrastive and a DINO loss",
        settings=("flow.losses.contrastive=0.2", "flow.losses.dino=1.4"),
    ),
    Fault("none, diffusion", "a healthy run of the plain diffusion objective", settings=("stages=[diffusion]",)),
)


@cache
def _healthy(seed: int) -> tuple[nn.Module, TemporaryDirectory]:
    """The healthy run of a seed, trained once: faults of sampling share it."""
    folder = TemporaryDirectory(prefix="healthy-")
    return trained(World(healthy(Path(folder.name), seed))), folder


@torch.no_grad()
def verdicts(evidence: Evidence) -> list[Verdict]:
    """Every check that the evidence allows; :func:`examine`, and those that ask for parts of a loop on those parts.

    A sampling trace is left in the run's folder on the way.
    """
    e, world = evidence, evidence.world
    seed, history = world.config.seed, history_of(read_log(world.run))
    found = examine(e.pipe, world.images, world.captions, history, prompts=world.captions[::3], seed=seed).verdicts
    moments = world.autoencoder.encode_moments(world.images)
    mu, logvar = e.pipe.encode(world.captions)
    draw = drawn(seed, 8)
    eps, t = torch.randn(mu.shape, generator=draw), torch.rand(len(mu), generator=draw)
    z0 = e.reparameterize(mu, logvar, eps=eps)[0]
    e.loop(e.velocity or e.pipe.velocity, z0, TRACED).trace.to_jsonl(world.run / "trace.jsonl")
    own = [
        checks.latent_is_sample(e.z1, moments, world.autoencoder.config.scaling_factor),
        checks.gradient_path(
            lambda x0, x1: e.pair(t, x0, x1)[1], e.z1, z0, eps=eps, logvar=logvar,
            kl=lambda eps: e.reparameterize(mu, logvar, eps=eps)[1].sum(),
        ),
        checks.teacher_euler(z0, e.z1, integrate=lambda v, x, n: e.loop(v, x, n).x),
    ]  # fmt: skip
    if e.velocity:
        own += [checks.endpoint(e.velocity, z0, e.z1), checks.shooting(e.velocity, z0, e.z1)]
    if "ent/teacher" in history:
        losses = world.config.flow.losses
        share = sum(history["grad/dino"]) / sum(history["grad/total"])
        entropies = history["ent/teacher"], history["ent/student"]
        own.append(checks.dino(*entropies, losses.dino_classes, share, losses.temperatures))
    mine = {verdict.name: verdict for verdict in own}
    return [mine.get(verdict.name, verdict) for verdict in found]
