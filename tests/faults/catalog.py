"""The faults: each a few lines around the real training or sampling code."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from faults.planting import Evidence, Fault
from faults.world import World
from fmkernels import Dt_psi, psi, reparameterize
from fmkernels.flow import Sample, Schedule, Trace, sample, uniform
from fmpipe.field import derangement
from fmpipe.train import batches, losses, objective
from fmpipe.train.alarms import Alarms
from fmpipe.train.run_state import RunState

GAIN = 0.29  # as measured in the debugging notes
NAN_AT = 60  # a step that is logged


def replaced(owner: object, name: str, value: object) -> Callable[[World], AbstractContextManager]:
    """Training with ``owner.name`` replaced."""
    return lambda world: mock.patch.object(owner, name, value)


def rescaled(factor: Callable[[float], float]) -> Callable[[World], AbstractContextManager]:
    """z = sample(moments) times a factor of the autoencoder's scale, in training and after it; decode is untouched."""

    def change(world: World) -> AbstractContextManager:
        vae, right = world.autoencoder, world.autoencoder.sample
        vae.sample = lambda *args: right(*args) * factor(vae.config.scaling_factor)
        return nullcontext()  # nothing to undo: the world is this fault's own

    return change


@contextmanager
def raw_moments(world: World) -> Iterator[None]:
    """z1 is the mean half of the moments, as it is, where training takes its latents."""
    vae = world.autoencoder
    with mock.patch.object(vae, "sample", lambda moments, generator=None: moments[:, : vae.channels]):
        yield


def wrong_pair(target: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[World], AbstractContextManager]:
    """Training against ``target(t, x0, x1)`` instead of the velocity."""
    return replaced(objective, "flow_pair", lambda t, x0, x1: (psi(t, x0, x1), target(t, x0, x1)))


@contextmanager
def moving_target(world: World) -> Iterator[None]:
    """The flow loss is a plain MSE against a target that carries gradients to z0."""
    right = losses.flow

    def flow(velocities, target, targets, t, weight=None):
        return (velocities[-1] - target).square().mean(), right(velocities, target, targets, t, weight)[1]

    with wrong_pair(Dt_psi)(world), mock.patch.object(losses, "flow", flow):
        yield


def kl_of_z(mu: Tensor, logvar: Tensor, *, eps: Tensor) -> tuple:
    z, stats = mu + (logvar / 2).exp() * eps, reparameterize(mu, logvar, eps=eps)[2]
    return z, 0.5 * z.square().flatten(1).sum(1), stats


def begins_with(logvar: float, **patched: Callable) -> Callable[[World], AbstractContextManager]:
    """The head's logvar begins far out; patched: functions of the objective's module replaced."""

    def change(world: World) -> AbstractContextManager:
        world.first_logvar = logvar
        return mock.patch.multiple(objective, **patched) if patched else nullcontext()

    return change


@contextmanager
def blind(world: World) -> Iterator[None]:
    world.encoder.blind.fill_(True)
    yield


@contextmanager
def shuffled(world: World) -> Iterator[None]:
    """Every picture has another's caption, always the same, in training; ``world.captions`` stay right."""
    order = derangement(len(world.captions), torch.Generator().manual_seed(world.config.seed))
    world.source.names = [world.captions[i] for i in order.tolist()]
    yield


@contextmanager
def nan_loss(world: World) -> Iterator[None]:
    """The flow loss is NaN once, at a step of training, and the loop continues."""
    right, steps = losses.flow, itertools.count()

    def flow(*args):
        loss, stats = right(*args)
        if torch.is_grad_enabled() and next(steps) == NAN_AT:
            loss = loss * float("nan")
        return loss, stats

    unchecked = mock.patch.object(RunState, "problem", return_value=None)
    with mock.patch.object(losses, "flow", flow), mock.patch.object(Alarms, "stop"), unchecked:
        yield


def early(kind: str, n: int, generator: torch.Generator, **_) -> Tensor:
    return torch.rand(n, generator=generator) ** 4


def bf16_loop(velocity: Callable[..., Tensor], z0: Tensor, steps: int) -> Sample:
    x, trace = z0.bfloat16(), Trace()
    for t, dt in uniform(steps):
        v = velocity(x.to(z0.dtype), z0.new_full((len(z0),), t)).bfloat16()
        trace.step(x, v, dt, t=t)
        x = x + v * dt
    return Sample(x.float(), trace)


def one_step_more(velocity: Callable[..., Tensor], z0: Tensor, steps: int) -> Sample:
    right = uniform(steps)
    plan = Schedule("off by one", torch.cat([right.t, torch.ones(1)]), torch.cat([right.dt, right.dt[-1:]]))
    return sample(velocity, z0, plan)


def slow(evidence: Evidence) -> None:
    right = evidence.pipe.velocity
    evidence.pipe.velocity = lambda *args, **options: GAIN * right(*args, **options)


def other_scale(evidence: Evidence) -> None:
    """sample() and decode() agree, but not with the training."""
    vae = evidence.pipe.vae
    vae.register_to_config(scaling_factor=2 * vae.config.scaling_factor)
    evidence.z1 = 2 * evidence.z1


def wrong_slope(evidence: Evidence) -> None:
    """alpha = 1 - t, and alpha' / alpha = -1 / (1 - t) multiplied in where alpha' belongs."""
    right = evidence.pipe.velocity
    evidence.velocity = lambda x, t: right(x, t) / (1 - t + 1e-3)[:, None, None, None]


def with_loop(loop: Callable[..., Sample]) -> Callable[[Evidence], None]:
    return lambda evidence: setattr(evidence, "loop", loop)


JOINT = (
    "flow.losses.detach=false",
    "flow.optim.groups={text_head: {lr: 3e-3}}",
)  # the flow loss moves the head, and fast
CONSTANT = ("flow.losses.weighting=constant",)
NO_KL = ("flow.losses.kl=0", "flow.losses.detach=false", *CONSTANT)
FAULTS = (
    Fault(
        "VAE scale doubled", "the scale factor is applied twice", ("scale_contract",), training=rescaled(lambda s: s)
    ),
    Fault("VAE scale missing", "it is not applied", ("scale_contract",), training=rescaled(lambda s: 1 / s)),
    Fault(
        "VAE scale changed",
        "the factor in its config is doubled after training",
        ("latent_scale",),
        sampling=other_scale,
    ),
    Fault("raw moments", "z1 is the moments' mean, unscaled", ("latent_is_sample",), training=raw_moments),
    Fault(
        "epsilon target",
        "trained on x0, the noise",
        ("target_definition",),
        training=wrong_pair(lambda t, a, b: a.detach()),
    ),
    Fault(
        "flipped sign",
        "trained on x0 - x1",
        ("target_definition",),
        training=wrong_pair(lambda t, a, b: (a - b).detach()),
    ),
    Fault("target not detached", "the target carries gradients to z0", ("gradient_path",), JOINT, moving_target),
    Fault(
        "KL on z",
        "½ z² instead of the KL of mu and logvar",
        ("gradient_path",),
        training=replaced(objective, "reparameterize", kl_of_z),
    ),
    Fault(
        "no clamp",
        "logvar is not clamped, and begins at 7",
        ("kl",),
        training=begins_with(7.0, reparameterize=partial(reparameterize, clamp=(-30.0, 20.0))),
    ),
    Fault("collapsed posterior", "logvar begins at -8", ("kl",), training=begins_with(-8.0)),
    Fault(
        "bf16 state",
        "the sampling loop keeps x in bf16",
        ("teacher_euler", "sampler_state"),
        sampling=with_loop(bf16_loop),
    ),
    Fault("ignored text", "every token is masked out", ("text_path",), training=blind),
    Fault("velocity × 0.29", "sampling gets 0.29 of the network's velocity", ("one_step",), sampling=slow),
    Fault(
        "exploding LR", "a learning rate that grows to 3", ("gradients",), ("flow.optim.lr=3", "flow.optim.warmup=1")
    ),
    Fault(
        "NaN at a step",
        f"the loss is NaN at step {NAN_AT}, and training continues",
        ("loss_numerics",),
        training=nan_loss,
    ),
    Fault("skewed t", "t is drawn as u⁴", ("time_sampling",), training=replaced(batches, "sample_t", early)),
    Fault(
        "saturated teacher",
        "DINO's teacher at a temperature of 0.001",
        ("dino",),
        ("flow.losses.contrastive=0.2", "flow.losses.dino=1.4", "flow.losses.temperatures=[0.001, 0.1]"),
    ),
    Fault("wrong α′ in inference", "sampling divides the velocity by 1 - t", ("endpoint",), sampling=wrong_slope),
    Fault(
        "schedule off by one",
        "N + 1 steps of 1 / N",
        ("teacher_euler", "step_sizes"),
        sampling=with_loop(one_step_more),
    ),
    Fault("drowned loss", "the KL's weight is 1000", ("gradient_shares",), ("flow.losses.kl=1000", *CONSTANT, *JOINT)),
    Fault(
        "wrong betas",
        "a diffusion whose betas end at 0.2",
        ("schedule_constants",),
        ("stages=[diffusion]",),
        replaced(losses, "Diffusion", partial(losses.Diffusion, beta_end=0.2)),
    ),
    Fault("shuffled captions", "every picture has another's caption", ("pairing",), training=shuffled),
    Fault(
        "sigma collapse",
        "no KL, and the flow loss sharpens z0: a leak",
        ("leak",),
        (
            *NO_KL,
            "flow.head={hidden: 64, mu_rms: 1.2}",
            "flow.optim.groups={text_head: {lr: 3e-4}, text_head.layers.4.bias: {lr: 5e-2}}",
        ),
    ),
    Fault("runaway mu", "no KL, and the flow loss drives mu away", ("kl",), (*NO_KL, *JOINT)),
)
