"""Flow matching on the ops: paths, step schedules, the sampling loop, and the trace of what it did."""

from fmkernels.flow.path import PATHS, Path, PsiPath
from fmkernels.flow.schedule import (
    SCHEDULES,
    Schedule,
    crossflow,
    logit_normal,
    make_schedule,
    midpoint,
    shifted,
    uniform,
)
from fmkernels.flow.solver import SOLVERS, Sample, sample
from fmkernels.flow.trace import Anomaly, NonFiniteError, Trace

__all__ = [
    "PATHS",
    "SCHEDULES",
    "SOLVERS",
    "Anomaly",
    "NonFiniteError",
    "Path",
    "PsiPath",
    "Sample",
    "Schedule",
    "Trace",
    "crossflow",
    "logit_normal",
    "make_schedule",
    "midpoint",
    "sample",
    "shifted",
    "uniform",
]
