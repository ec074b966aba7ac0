"""Every op in plain PyTorch: the oracle of the tests and the last fallback.

Forward functions are differentiable by autograd; the ``*_backward`` functions are the same gradients
written out, for calls of ``torch.ops.fmkernels`` on a device without kernels, and as the reference for
writing one.
"""

from fmkernels.eager.depthwise import depthwise, depthwise_backward
from fmkernels.eager.gate import (
    ACTIVATIONS,
    gate_mul,
    gate_mul_backward,
    gated_add,
    gated_add_,
    gated_add_backward,
)
from fmkernels.eager.head import inward_clamp, reparameterize, reparameterize_backward
from fmkernels.eager.int8 import linear_int8, pack_int8, quantize_rows, td_norm_int8, unpack_int8
from fmkernels.eager.linear import linear
from fmkernels.eager.norm import td_norm, td_norm_backward, td_norm_out
from fmkernels.eager.path import (
    dt_psi,
    flow_loss,
    flow_loss_backward,
    flow_pair,
    psi,
    psi_backward,
    velocity_stats,
    velocity_summary,
)
from fmkernels.eager.rope import qk_norm_rope, qk_norm_rope_, qk_norm_rope_backward
from fmkernels.eager.step import step_
from fmkernels.eager.tdp import tdp, tdp_backward, tdp_group, tdp_group_backward, tdp_group_out, tdp_out

__all__ = [
    "ACTIVATIONS",
    "depthwise",
    "depthwise_backward",
    "dt_psi",
    "flow_loss",
    "flow_loss_backward",
    "flow_pair",
    "gate_mul",
    "gate_mul_backward",
    "gated_add",
    "gated_add_",
    "gated_add_backward",
    "inward_clamp",
    "linear",
    "linear_int8",
    "pack_int8",
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
    "unpack_int8",
    "velocity_stats",
    "velocity_summary",
]
