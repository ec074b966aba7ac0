"""The public functions: one module per family, with the same stems as csrc, eager, tests and benchmarks."""

from fmkernels.ops.depthwise import depthwise
from fmkernels.ops.fp8 import linear_fp8, quantize_rows_fp8
from fmkernels.ops.gate import gate_mul, gated_add, gelu_mul
from fmkernels.ops.head import HeadStats, reparameterize
from fmkernels.ops.int8 import (
    int8_kernel,
    linear_int8,
    pack_int8,
    quantize_rows,
    quantize_weight,
    td_layer_norm_int8,
    td_rms_norm_int8,
    unpack_int8,
)
from fmkernels.ops.linear import linear
from fmkernels.ops.norm import norm_modulate, td_layer_norm, td_rms_norm
from fmkernels.ops.path import Dt_psi, VelocityStats, flow_loss, flow_pair, psi, velocity_stats
from fmkernels.ops.rope import qk_norm_rope
from fmkernels.ops.step import euler_step_, multistep_step_
from fmkernels.ops.tdp import TdpGroup, exported_tdp, tdp, tdp_group

__all__ = [
    "Dt_psi",
    "HeadStats",
    "TdpGroup",
    "VelocityStats",
    "depthwise",
    "euler_step_",
    "exported_tdp",
    "flow_loss",
    "flow_pair",
    "gate_mul",
    "gated_add",
    "gelu_mul",
    "int8_kernel",
    "linear",
    "linear_fp8",
    "linear_int8",
    "multistep_step_",
    "norm_modulate",
    "pack_int8",
    "psi",
    "qk_norm_rope",
    "quantize_rows",
    "quantize_rows_fp8",
    "quantize_weight",
    "reparameterize",
    "td_layer_norm",
    "td_layer_norm_int8",
    "td_rms_norm",
    "td_rms_norm_int8",
    "tdp",
    "tdp_group",
    "unpack_int8",
    "velocity_stats",
]
