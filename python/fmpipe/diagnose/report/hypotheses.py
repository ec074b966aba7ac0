"""All hypotheses in one table: letter, id, function, which of several root causes comes first, what its plot shows."""

from typing import NamedTuple

from fmpipe.diagnose.report import diffusion, flow, trends
from fmpipe.diagnose.report.finding import Function


class Entry(NamedTuple):
    letter: str
    name: str
    function: Function
    rank: int
    metrics: tuple[str, ...]


def _stat(*names: str) -> tuple[str, ...]:
    return tuple(f"stat/{name}" for name in names)


_ENDPOINTS = tuple(f"flow/endpt_rmse@{k}" for k in (8, 16, 32, 64))
HYPOTHESES = (
    Entry("A", "input_range", diffusion.input_range, 3, _stat("x_0/mean", "x_0/std", "x_0/min", "x_0/max")),
    Entry("B", "time_sampling", diffusion.time_sampling, 2, _stat("t/mean", "t/std")),
    Entry("C", "forward_process", diffusion.forward_process, 4, _stat("x_t/std", "noise/std", "x_0/std")),
    Entry("D", "model_output", diffusion.model_output, 12, _stat("predicted_x0/std", "x_0_target/std", "v_pred/std")),
    Entry("E", "loss_numerics", diffusion.loss_numerics, 11, (*diffusion.LOSSES, "val/loss/flow")),
    Entry("F", "schedule_constants", diffusion.schedule_constants, 1, ()),
    Entry("G", "gradients", flow.gradients, 6, ("grad/total", "grad/flow", "grad/kl", "grad/dino", "ent/teacher")),
    Entry("H", "condition_use", flow.condition_use, 9, ("flow/cond_gain_cos",)),
    Entry("I", "kl", flow.kl, 5, ("std/mean", "mu/rms", "logvar/mean", "loss/kl")),
    Entry("J", "integration", flow.integration, 7, ()),
    Entry("K", "scale_mismatch", flow.scale_mismatch, 0, ("scale/z0", "scale/z1", "scale/v*")),
    Entry("L", "train_inference", flow.train_inference, 10, ("val/flow/cos", "flow/speed_ratio", *_ENDPOINTS)),
    Entry("M", "leak", flow.leak, 8, ("val/flow/cos", "flow/cos", "std/mean")),
    Entry("N", "learning_rate", trends.learning_rate, 2, ("lr", *diffusion.LOSSES)),
    Entry("O", "loss_trend", trends.loss_trend, 14, diffusion.LOSSES),
    Entry("P", "generalization", trends.generalization, 13, ("val/loss/flow", "val/loss/total", *diffusion.LOSSES)),
    Entry("Q", "run", trends.run, 3, ("scaler/scale", *diffusion.LOSSES)),
    Entry("R", "time_slices", trends.time_slices, 11, tuple(f"flow/nmse_t{k}" for k in range(10))),
    Entry("S", "target", trends.target, 1, ("flow/cos", "scale/v*")),
)
