// What the variational head asks of its arguments, on any device.
#pragma once
#include "tensors.h"

namespace fmk {

inline void check_head(const Tensor& mu, const Tensor& logvar, const Tensor& eps) {
  check_tensor(mu, "mu");
  FMK_CHECK(mu.dim() >= 1, "mu needs a batch dimension");
  check_like(logvar, mu, "logvar");
  check_like(eps, mu, "eps");
}

inline void check_head(const Tensor& mu, const Tensor& logvar, const Tensor& eps, const OptTensor& grad_z,
                       const OptTensor& grad_kl) {
  check_head(mu, logvar, eps);
  check_like(grad_z, mu, "grad_z");
  check_tensor(grad_kl, "grad_kl");
  FMK_CHECK(!grad_kl || grad_kl->numel() == mu.size(0), "grad_kl must be (B,)");
}

}  // namespace fmk
