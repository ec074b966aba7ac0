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

from faults.world import World, healthy, trained
from fmkernels.flow import Sample, Trace, sample, uniform
from fmpipe.diagnose import checks
from fmpipe.diagnose.engine import judge
from fmpipe.diagnose.figures import Figures
from fmpipe.diagnose.read import read
from fmpipe.diagnose.rule import Finding
from fmpipe.diagnose.run_checks import run_checks
from fmpipe.diagnose.thresholds import limits
from fmpipe.pipeline import FlowPipeline
from fmpipe.train import objective as training
from fmpipe.train import settings
from fmpipe.train.batches import drawn
from fmpipe.train.config import Losses

TRACED = 100  # steps of the sampling trace that is left in the folder
_noting = partial(Trace, nonfinite="continue")


@dataclass
class Evidence:
    """What a run leaves to be examined.

    folder: of the run, for :func:`fmpipe.diagnose.read.read`. pair, reparameterize: training's own. z1: latents as
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
    """name, and in a sentence what it does. own: the rules, one of which must rank first.

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
def figures_of(evidence: Evidence) -> Figures:
    """Return the figures of the evidence: its log and sampling trace, and what :func:`run_checks` measures.

    Checks of parts of a loop are measured on the parts of the evidence instead of on those of the pipeline. The
    sampling trace is written to the folder of the run first.
    """
    e, world = evidence, evidence.world
    seed, vae = world.config.seed, world.autoencoder
    mu, logvar = e.pipe.encode(world.captions)
    draw = drawn(seed, 8)
    eps, t = torch.randn(mu.shape, generator=draw), torch.rand(len(mu), generator=draw)
    z0 = e.reparameterize(mu, logvar, eps=eps)[0]
    e.loop(e.velocity or e.pipe.velocity, z0, TRACED).trace.to_jsonl(world.run / "trace.jsonl")
    prompts = world.captions[::3]
    figures = run_checks(e.pipe, world.images, world.captions, read(e.folder), prompts=prompts, seed=seed).figures
    figures.measured |= {
        "latent_is_sample": checks.latent_is_sample.measure(
            e.z1, vae.encode_moments(world.images), vae.config.scaling_factor, limit=limits()
        ),
        "gradient_path": checks.gradient_path.measure(
            lambda x0, x1: e.pair(t, x0, x1)[1], e.z1, z0, eps=eps, logvar=logvar,
            kl=lambda eps: e.reparameterize(mu, logvar, eps=eps)[1].sum(),
        ),
        "teacher_euler": checks.teacher_euler.measure(z0, e.z1, integrate=lambda v, x, n: e.loop(v, x, n).x),
    }  # fmt: skip
    if e.velocity:
        ends = (e.velocity, z0, e.z1)
        figures.measured |= {"endpoint": checks.endpoint.measure(*ends), "shooting": checks.shooting.measure(*ends)}
    if "ent/teacher" in figures.metrics:
        figures.measured["dino"] = _dino(figures, world.config.flow.losses)
    return figures


def _dino(figures: Figures, losses: Losses) -> dict[str, object]:
    """Return what the check of DINO measures; its series are those of the log."""
    teacher, student, own, total = (
        figures.metrics[name].values for name in ("ent/teacher", "ent/student", "grad/dino", "grad/total")
    )
    share = float(own.sum() / total.sum())
    numbers = checks.dino.measure(teacher, student, losses.dino_classes, share, losses.temperatures)
    return {name: x for name, x in numbers.items() if name != "history"}


def suspects(evidence: Evidence) -> list[Finding]:
    """Return the findings that fail or warn, in the order of the engine: root causes first."""
    return [finding for finding in judge(figures_of(evidence)) if finding.status in ("fail", "warn")]
