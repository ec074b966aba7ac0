"""The ops as Triton kernels, for AMD GPUs and for NVIDIA GPUs without nvcc: one module per family.

Importing this module imports triton; the backend does so at the first call that uses these kernels. There are no fp64
kernels: calls with float64 tensors use the eager ops, except for the dt of a step.
"""

from fmkernels.triton.gate import gate_mul, gate_mul_backward, gated_add, gated_add_, gated_add_backward
from fmkernels.triton.head import reparameterize, reparameterize_backward
from fmkernels.triton.int8 import linear_int8, quantize_rows, td_norm_int8
from fmkernels.triton.norm import td_norm, td_norm_backward, td_norm_out
from fmkernels.triton.path import (
    dt_psi,
    flow_loss,
    flow_loss_backward,
    flow_pair,
    psi,
    psi_backward,
    velocity_stats,
    velocity_summary,
)
from fmkernels.triton.rope import qk_norm_rope, qk_norm_rope_, qk_norm_rope_backward
from fmkernels.triton.step import step_
from fmkernels.triton.tdp import tdp, tdp_backward, tdp_group, tdp_group_backward, tdp_group_out, tdp_out

# Maximum number of launches per op on dense tensors. The second one adds up partial sums; in the backward of a wide
# norm, it reads grad and s again; in linear_int8, the first one quantizes the rows, and in td_norm_int8, a second one
# quantizes a wide norm. q and k have their own launches.
LAUNCHES = {
    "tdp": 1,
    "tdp_out": 1,
    "tdp_backward": 2,
    "tdp_group": 1,
    "tdp_group_out": 1,
    "tdp_group_backward": 2,
    "td_norm": 1,
    "td_norm_out": 1,
    "td_norm_backward": 2,
    "gate_mul": 1,
    "gate_mul_backward": 1,
    "gated_add": 1,
    "gated_add_": 1,
    "gated_add_backward": 2,
    "qk_norm_rope": 2,
    "qk_norm_rope_": 2,
    "qk_norm_rope_backward": 4,
    "psi": 1,
    "dt_psi": 1,
    "flow_pair": 1,
    "psi_backward": 1,
    "velocity_stats": 2,
    "velocity_summary": 1,
    "flow_loss": 2,
    "flow_loss_backward": 1,
    "step_": 2,
    "reparameterize": 2,
    "reparameterize_backward": 1,
    "quantize_rows": 1,
    "linear_int8": 2,
    "td_norm_int8": 2,
}

__all__ = [
    "LAUNCHES",
    "dt_psi",
    "flow_loss",
    "flow_loss_backward",
    "flow_pair",
    "gate_mul",
    "gate_mul_backward",
    "gated_add",
    "gated_add_",
    "gated_add_backward",
    "linear_int8",
    "psi",
    "psi_backward",
    "qk_norm_rope",
    "qk_norm_rope_",
    "qk_norm_rope_backward",
    "quantize_rows",
    "reparameterize",
    "reparameterize_backward",
    "step_",
    "td_norm",
    "td_norm_backward",
    "td_norm_int8",
    "td_norm_out",
    "tdp",
    "tdp_backward",
    "tdp_group",
    "tdp_group_backward",
    "tdp_group_out",
    "tdp_out",
    "velocity_stats",
    "velocity_summary",
]
