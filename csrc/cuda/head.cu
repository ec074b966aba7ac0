// The variational head's ops for CUDA tensors: checks, launch, registration.
#include "head.cuh"

#include "launch.h"

#include "../shared/head.h"

namespace fmk {
namespace {

std::tuple<Tensor, Tensor, Tensor> reparameterize(Tensor mu, Tensor logvar, Tensor eps, double low, double high) {
  const OnDevice device(mu, "mu");
  check_head(mu, logvar, eps);
  FMK_CHECK(low <= high, "clamp must be (low, high)");
  const int64_t samples = mu.size(0), n = samples == 0 ? 0 : mu.numel() / samples;
  const int64_t blocks = (n + kHeadColumnsOfBlock - 1) / kHeadColumnsOfBlock;
  Tensor z = fresh_like(mu, promote(dtype_of(mu), dtype_of(logvar)));
  const Dtype dtype = is_double(z) ? Dtype::f64 : Dtype::f32;
  Tensor kl = fresh({samples}, dtype), stats = fresh({kHeadColumns}, dtype);
  const Tensor mu_d = dense(mu), logvar_d = dense(logvar), eps_d = dense(eps);
  const Tensor parts = fresh({blocks * (samples + kHeadParts + kColumnParts)}, Dtype::f64);
  double* const room = static_cast<double*>(parts.mutable_data_ptr());
  const Head head{source(mu_d),
                  source(logvar_d),
                  source(eps_d),
                  low,
                  high,
                  samples,
                  n,
                  blocks,
                  room,
                  room + blocks * samples,
                  room + blocks * (samples + kHeadParts),
                  sink(z),
                  sink(kl),
                  sink(stats)};
  with_compute_type(is_double(z), [&](auto zero) {
    using C = decltype(zero);
    device.launch(head_kernel<C>, std::max<int64_t>(1, blocks), kHeadWarps * kWarp, 0, head, next_ticket());
  });
  return {z, kl, stats};
}

std::tuple<Tensor, Tensor> reparameterize_backward(OptTensor grad_z, OptTensor grad_kl, Tensor mu, Tensor logvar,
                                                   Tensor eps, double low, double high) {
  const OnDevice device(mu, "mu");
  check_head(mu, logvar, eps, grad_z, grad_kl);
  const int64_t samples = mu.size(0), n = samples == 0 ? 0 : mu.numel() / samples;
  const Tensor mu_d = dense(mu), logvar_d = dense(logvar), eps_d = dense(eps);
  const OptTensor gz = dense(grad_z), gkl = dense(grad_kl);
  Tensor to_mu = fresh_like(mu), to_logvar = fresh_like(logvar);
  const Tiles tiles(samples, n);
  with_compute_type(is_double(mu) || is_double(logvar) || is_double(grad_z), [&](auto zero) {
    using C = decltype(zero);
    device.launch(head_backward_kernel<C>, tiles.count(), tiles.threads, 0, tiles, source(gz), source(gkl),
                  source(mu_d), source(logvar_d), source(eps_d), low, high, sink(to_mu), sink(to_logvar));
  });
  return {to_mu, to_logvar};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fmkernels, CUDA, m) {
  m.impl("reparameterize", TORCH_BOX(&reparameterize));
  m.impl("reparameterize_backward", TORCH_BOX(&reparameterize_backward));
}

}  // namespace fmk
