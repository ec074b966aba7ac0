"""The schema of every op, one line each: the table of contents of the kernels.

The ops exist whatever was built. ``csrc/cpu``, ``csrc/cuda`` and ``fmkernels.triton`` register implementations for
their devices; ``fmkernels.eager`` handles every other device, and meta tensors. An op with gradients has a
``*_backward``, which is an op too.
"""

import torch

# Rows: tdp, norm, gate, rope, path, step, head. Every backend implements them.
SHARED = """
tdp(Tensor param0, Tensor param1, Tensor weight, Tensor bias, Tensor times, float weight_offset) -> Tensor
tdp_out(Tensor param0, Tensor param1, Tensor weight, Tensor bias, Tensor times, float weight_offset, Tensor(a!) out) -> ()
tdp_backward(Tensor grad, Tensor param0, Tensor param1, Tensor weight, Tensor bias, Tensor times, float weight_offset) -> (Tensor, Tensor, Tensor, Tensor, Tensor)
tdp_group(Tensor[] param0, Tensor[] param1, Tensor[] weight, Tensor[] bias, Tensor times, float weight_offset) -> Tensor
tdp_group_out(Tensor[] param0, Tensor[] param1, Tensor[] weight, Tensor[] bias, Tensor times, float weight_offset, Tensor(a!) out) -> ()
tdp_group_backward(Tensor grad, Tensor[] param0, Tensor[] param1, Tensor[] weight, Tensor[] bias, Tensor times, float weight_offset) -> (Tensor, Tensor)

td_norm(Tensor[] x, Tensor scale, Tensor? offset, Tensor? residual, Tensor? gate, float eps, bool center, bool inside) -> (Tensor, Tensor, Tensor)
td_norm_out(Tensor[] x, Tensor scale, Tensor? offset, Tensor? residual, Tensor? gate, float eps, bool center, bool inside, Tensor(a!) y, Tensor(b!)? sum) -> ()
td_norm_backward(Tensor grad_y, Tensor? grad_sum, Tensor[] s, Tensor scale, Tensor stat, float eps, bool center, bool inside) -> (Tensor, Tensor, Tensor)

gate_mul(Tensor a, Tensor? b, int act, bool gate_first) -> Tensor
gate_mul_backward(Tensor grad, Tensor a, Tensor? b, int act, bool gate_first) -> (Tensor, Tensor)
gated_add(Tensor x, Tensor gate, Tensor y) -> Tensor
gated_add_(Tensor(a!) x, Tensor gate, Tensor y) -> ()
gated_add_backward(Tensor grad, Tensor gate, Tensor y) -> (Tensor, Tensor)

qk_norm_rope(Tensor q, Tensor? k, Tensor? q_weight, Tensor? k_weight, Tensor cos, Tensor sin, float eps, bool norm, bool interleaved, int sequence_dim) -> (Tensor, Tensor)
qk_norm_rope_(Tensor(a!) q, Tensor(b!)? k, Tensor? q_weight, Tensor? k_weight, Tensor cos, Tensor sin, float eps, bool norm, bool interleaved, int sequence_dim) -> ()
qk_norm_rope_backward(Tensor? grad_q, Tensor? grad_k, Tensor q, Tensor? k, Tensor? q_weight, Tensor? k_weight, Tensor cos, Tensor sin, float eps, bool norm, bool interleaved, int sequence_dim) -> (Tensor, Tensor, Tensor, Tensor)

psi(Tensor t, Tensor x0, Tensor x1, float sigma_min, float sigma_max) -> Tensor
dt_psi(Tensor x0, Tensor x1, float sigma_min, float sigma_max) -> Tensor
flow_pair(Tensor t, Tensor x0, Tensor x1, float sigma_min, float sigma_max, ScalarType? dtype) -> (Tensor, Tensor)
psi_backward(Tensor grad, Tensor t, Tensor x0, Tensor x1, float sigma_min, float sigma_max) -> (Tensor, Tensor)
velocity_stats(Tensor v_pred, Tensor? x0, Tensor? x1, Tensor? v_target, float sigma_min, float sigma_max) -> Tensor
velocity_summary(Tensor sums, Tensor? t, SymInt n, int bins) -> Tensor
flow_loss(Tensor v_pred, Tensor? x0, Tensor? x1, Tensor? v_target, Tensor? weight, float sigma_min, float sigma_max) -> (Tensor, Tensor)
flow_loss_backward(Tensor grad, Tensor v_pred, Tensor? x0, Tensor? x1, Tensor? v_target, Tensor? weight, float sigma_min, float sigma_max) -> Tensor

step_(Tensor(a!) x, Tensor v, Tensor? v_prev, Tensor? v_uncond, float dt, Tensor? dt_tensor, float a, float b, float guidance, float gain, Tensor(b!)? low, Tensor(c!)? stats) -> ()

reparameterize(Tensor mu, Tensor logvar, Tensor eps, float low, float high) -> (Tensor, Tensor, Tensor)
reparameterize_backward(Tensor? grad_z, Tensor? grad_kl, Tensor mu, Tensor logvar, Tensor eps, float low, float high) -> (Tensor, Tensor)
"""  # noqa: E501

# The packed weight of linear_int8, handles to parameters, and torch's convolution made faster.
CPU_ONLY = """
pack_int8(Tensor weight) -> Tensor
tdp_pin(Tensor[] params) -> int
tdp_unpin(int id) -> ()
tdp_pinned(int id, Tensor times, float weight_offset, Tensor(a!) out) -> ()
depthwise(Tensor x, Tensor weight, Tensor? bias) -> Tensor
depthwise_backward(Tensor grad, Tensor x, Tensor weight, bool to_x, bool to_weight) -> (Tensor, Tensor, Tensor)
"""

# Implemented by csrc/autograd: a product in one node of the graph, and tdp_group with one output per parameter.
IN_AUTOGRAD = """
linear(Tensor[] x, Tensor weight, Tensor? bias) -> Tensor
tdp_group_parts(Tensor[] params, Tensor times, float weight_offset) -> Tensor[]
"""

# Linear layers in int8, without gradients. On GPUs, Triton has the kernels.
INT8 = """
quantize_rows(Tensor x) -> (Tensor, Tensor)
linear_int8(Tensor x, Tensor? x_scale, Tensor weight, Tensor scale, Tensor? bias, ScalarType dtype) -> Tensor
td_norm_int8(Tensor[] x, Tensor scale, Tensor? offset, Tensor? residual, float eps, bool center) -> (Tensor, Tensor, Tensor)
"""  # noqa: E501

library = torch.library.Library("fmkernels", "DEF")


def _defined(lines: str) -> tuple[str, ...]:
    return tuple(library.define(line, tags=(torch.Tag.pt2_compliant_tag,)) for line in lines.split("\n") if line)


_shared = _defined(SHARED)
_int8 = _defined(INT8)
# What each compiled object, and Triton, has to implement.
KERNELS = {
    "cpp": _shared + _int8 + _defined(CPU_ONLY),
    "cuda": _shared,
    "triton": _shared + _int8,
    "autograd": _defined(IN_AUTOGRAD),
}
