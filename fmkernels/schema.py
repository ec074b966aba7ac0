"""Every op's schema, one line each: the table of contents of the kernels.

The ops exist whatever was built. ``csrc/cpu`` (and ``csrc/cuda``, ``fmkernels.triton``) register implementations
for their device; ``fmkernels.eager`` serves every device nothing else does, meta tensors included.
Rows: tdp, norm, path, step, head. An op with gradients has a ``*_backward``, itself an op. The last row is torch's own
work done faster where ``_cpu`` and ``_autograd`` are; elsewhere torch does it.
"""

import torch

SCHEMAS = """
tdp(Tensor param0, Tensor param1, Tensor weight, Tensor bias, Tensor times, float weight_offset) -> Tensor
tdp_out(Tensor param0, Tensor param1, Tensor weight, Tensor bias, Tensor times, float weight_offset, Tensor(a!) out) -> ()
tdp_backward(Tensor grad, Tensor param0, Tensor param1, Tensor weight, Tensor bias, Tensor times, float weight_offset) -> (Tensor, Tensor, Tensor, Tensor, Tensor)
tdp_group(Tensor[] param0, Tensor[] param1, Tensor[] weight, Tensor[] bias, Tensor times, float weight_offset) -> Tensor
tdp_group_out(Tensor[] param0, Tensor[] param1, Tensor[] weight, Tensor[] bias, Tensor times, float weight_offset, Tensor(a!) out) -> ()
tdp_group_backward(Tensor grad, Tensor[] param0, Tensor[] param1, Tensor[] weight, Tensor[] bias, Tensor times, float weight_offset) -> (Tensor, Tensor)
tdp_pin(Tensor[] params) -> int
tdp_unpin(int id) -> ()
tdp_pinned(int id, Tensor times, float weight_offset, Tensor(a!) out) -> ()

td_norm(Tensor[] x, Tensor scale, Tensor? offset, Tensor? residual, float eps, bool center) -> (Tensor, Tensor, Tensor)
td_norm_out(Tensor[] x, Tensor scale, Tensor? offset, Tensor? residual, float eps, bool center, Tensor(a!) y, Tensor(b!)? sum) -> ()
td_norm_backward(Tensor grad_y, Tensor? grad_sum, Tensor[] s, Tensor scale, Tensor stat, float eps, bool center) -> (Tensor, Tensor, Tensor)
gelu_mul(Tensor a, Tensor? b) -> Tensor
gelu_mul_backward(Tensor grad, Tensor a, Tensor? b) -> (Tensor, Tensor)

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

depthwise(Tensor x, Tensor weight, Tensor? bias, bool turned) -> Tensor
depthwise_weight(Tensor grad, Tensor x, int kernel) -> (Tensor, Tensor)
linear(Tensor[] x, Tensor weight, Tensor? bias) -> Tensor
tdp_group_parts(Tensor[] params, Tensor times, float weight_offset) -> Tensor[]
"""  # noqa: E501

library = torch.library.Library("fmkernels", "DEF")
NAMES = [library.define(line, tags=(torch.Tag.pt2_compliant_tag,)) for line in SCHEMAS.split("\n") if line]
