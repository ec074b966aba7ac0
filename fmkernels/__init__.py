"""Fused kernels for flow-matching text-to-image models.

Every public op is in this namespace; ``help(fmkernels.tdp)`` shows its formula, shapes and dtypes.
``fmkernels.explain()`` shows which backend each op uses, and why; ``python -m fmkernels.env_report`` prints what
to paste into an issue.
"""

from fmkernels import amx, backend

amx.guard()
backend.load()

from fmkernels.amx import bf16_safe  # noqa: E402
from fmkernels.backend import explain, use_backend  # noqa: E402
from fmkernels.flow import Schedule, Trace, sample  # noqa: E402
from fmkernels.nn import DepthwiseConv, Linear, TDLayerNorm, TDRMSNorm, TimeDependentParameter, TimeTable  # noqa: E402
from fmkernels.ops import *  # noqa: E402, F403
from fmkernels.ops import __all__ as _ops  # noqa: E402
from fmkernels.patch import restore  # noqa: E402
from fmkernels.precision import Quantization, load_quantized, quantize  # noqa: E402
from fmkernels.swap import Optimization, optimize  # noqa: E402

accelerate = optimize  # the name of earlier versions
__version__ = "0.1.0"
__all__ = [
    *_ops,
    "DepthwiseConv",
    "Linear",
    "Optimization",
    "Quantization",
    "Schedule",
    "TDLayerNorm",
    "TDRMSNorm",
    "TimeDependentParameter",
    "TimeTable",
    "Trace",
    "accelerate",
    "bf16_safe",
    "explain",
    "load_quantized",
    "optimize",
    "quantize",
    "restore",
    "sample",
    "use_backend",
]
