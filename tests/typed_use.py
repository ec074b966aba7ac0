"""Uses the public API as a typed project does; ``make types`` checks it against the signatures that are installed."""

import torch
from torch import Tensor, nn
from typing_extensions import assert_type

import fmkernels as fk
from fmkernels import flow


def ops(x: Tensor, t: Tensor, group: fk.TdpGroup) -> None:
    assert_type(fk.tdp(x, x, x, x, t, weight_offset=1.0), Tensor)
    assert_type(fk.tdp_group(group, t), list[Tensor])
    assert_type(fk.td_rms_norm(x, t), Tensor)
    assert_type(fk.gelu_mul(x), Tensor)
    assert_type(fk.psi(t, x, x), Tensor)
    assert_type(fk.velocity_stats(x, x, x, t=t), fk.VelocityStats)
    assert_type(fk.velocity_stats(x, x, x).nmse, Tensor)
    fk.tdp(x, x, x, x)  # type: ignore[call-arg]
    fk.psi(0.5, x, x)  # type: ignore[arg-type]


def sampling(x: Tensor) -> None:
    schedule = flow.uniform(20)
    assert_type(schedule, fk.Schedule)
    out, trace = fk.sample(lambda x, t: -x, x, schedule, solver="ab2")
    assert_type(out, Tensor)
    assert_type(trace, fk.Trace)
    assert_type(trace.lines(), list[str])


def modules(model: nn.Module) -> None:
    fk.restore(model)
    with fk.use_backend("eager"):
        norm = fk.TDRMSNorm(64)
    assert_type(fk.explain(), str)
    assert_type(fk.bf16_safe(), bool)
    torch.save(norm.state_dict(), "norm.pt")
