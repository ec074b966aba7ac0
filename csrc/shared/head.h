// The variational head's end: z = mu + exp(logvar / 2) * eps with logvar clamped, the KL to N(0, I) of each sample,
// and the statistics of the debugging notes (columns.h): the ops on any device.
#pragma once
#include "tensors.h"

namespace fmk {

inline void check_head(const Tensor& mu, const Tensor& logvar, const Tensor& eps) {
  check_tensor(mu, "mu");
  FMK_CHECK(mu.dim() >= 1, "mu needs a batch dimension");
  check_like(logvar, mu, "logvar");
  check_like(eps, mu, "eps");
}

// z, kl and stats are dense; so are all arguments of both.
void run_head(const Device& device, const Tensor& mu, const Tensor& logvar, const Tensor& eps, double low, double high,
              const Tensor& z, const Tensor& kl, const Tensor& stats);
// The gradient to logvar is held back outside the clamp unless it leads back inside.
void run_head_backward(const Device& device, const OptTensor& grad_z, const OptTensor& grad_kl, const Tensor& mu,
                       const Tensor& logvar, const Tensor& eps, double low, double high, const Tensor& to_mu,
                       const Tensor& to_logvar);

inline std::tuple<Tensor, Tensor, Tensor> reparameterize(Tensor mu, Tensor logvar, Tensor eps, double low,
                                                         double high) {
  const Device device(mu, "mu");
  check_head(mu, logvar, eps);
  FMK_CHECK(low <= high, "clamp must be (low, high)");
  Tensor z = fresh_like(mu, promote(dtype_of(mu), dtype_of(logvar)));
  const Dtype wide = wide_dtype(is_double(z));
  Tensor kl = fresh({mu.size(0)}, wide), stats = fresh({kHeadColumns}, wide);
  run_head(device, dense(mu), dense(logvar), dense(eps), low, high, z, kl, stats);
  return {z, kl, stats};
}

inline std::tuple<Tensor, Tensor> reparameterize_backward(OptTensor grad_z, OptTensor grad_kl, Tensor mu,
                                                          Tensor logvar, Tensor eps, double low, double high) {
  const Device device(mu, "mu");
  check_head(mu, logvar, eps);
  check_like(grad_z, mu, "grad_z");
  check_tensor(grad_kl, "grad_kl");
  FMK_CHECK(!grad_kl || grad_kl->numel() == mu.size(0), "grad_kl must be (B,)");
  Tensor to_mu = fresh_like(mu), to_logvar = fresh_like(logvar);
  run_head_backward(device, dense(grad_z), dense(grad_kl), dense(mu), dense(logvar), dense(eps), low, high, to_mu,
                    to_logvar);
  return {to_mu, to_logvar};
}

STABLE_TORCH_LIBRARY_IMPL(fmkernels, FMK_KEY, m) {
  m.impl("reparameterize", TORCH_BOX(&reparameterize));
  m.impl("reparameterize_backward", TORCH_BOX(&reparameterize_backward));
}

}  // namespace fmk
