"""The networks of the model benchmarks: ours, and the plain structure (third_party_model.py) with the same weights."""

import third_party_model
import torch
from torch import Tensor, nn

import fmkernels as fk
from fmpipe.models import DiMR, build

GUIDANCE, DT = 7.0, 0.02


def plain_of(model: DiMR) -> nn.Module:
    """The plain structure holding the same tensors: no weight exists twice."""
    fields = ("kind", "dim", "hidden", "blocks", "patch", "heads", "kernel")
    stages = [{k: c[k] for k in fields} | {"grid": c["grid"][0]} for c in model.config.stage_configs]
    with torch.device("meta"):
        plain = third_party_model.DiMR(model.config.channels, stages)
    plain.load_state_dict(model.state_dict(), assign=True)
    return plain


def pair(preset: str) -> tuple[DiMR, nn.Module]:
    """(ours, plain) with random weights, made without initialising twice."""
    model = build(preset, "meta").velocity_net.to_empty(device="cpu").eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.uniform_(-0.03, 0.03, generator=generator)
            if name.endswith(("param0", "param1")):
                p.add_(1)
    return model, plain_of(model)


def plain_step(model: nn.Module, x: Tensor, t: Tensor, null: Tensor) -> Tensor:
    """As people write it: two forwards, guidance and Euler step in plain PyTorch."""
    log_snr = 4 - 8 * t[:1]
    cond, uncond = model(x, log_snr, null[:1])[-1], model(x, log_snr, null[1:])[-1]
    return x + DT * (uncond + GUIDANCE * (cond - uncond))


def step(model: DiMR, x: Tensor, t: Tensor, null: Tensor, stats: Tensor | None = None, velocity=None) -> Tensor:
    """Ours: both halves in one batch, guidance, step and statistics in one op, on a state that is written in place."""
    cond, uncond = (velocity or model.velocity)(torch.cat([x, x]), t, null=null).chunk(2)
    x = x.clone()
    fk.euler_step_(x, cond, DT, v_uncond=uncond, guidance=GUIDANCE, stats=stats)
    return x
