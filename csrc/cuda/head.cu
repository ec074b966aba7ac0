// The variational head's ops on a GPU: launches.
#include "head.cuh"

#include "launch.h"

#include "../shared/head.h"

namespace fmk {

void run_head(const Device& device, const Tensor& mu, const Tensor& logvar, const Tensor& eps, double low, double high,
              const Tensor& z, const Tensor& kl, const Tensor& stats) {
  const Batch batch(mu);
  Head head{};
  head.mu = source(mu);
  head.logvar = source(logvar);
  head.eps = source(eps);
  head.low = low;
  head.high = high;
  head.samples = batch.samples;
  head.n = batch.n;
  head.blocks = (batch.n + kHeadColumnsOfBlock - 1) / kHeadColumnsOfBlock;
  head.z = sink(z);
  head.kl = sink(kl);
  head.stats = sink(stats);
  Tensor memory;
  head.partials = device.partials(head.blocks * (head.samples + kHeadParts + kColumnParts), memory);
  head.kl_parts = head.partials.rows;
  head.parts = head.kl_parts + head.blocks * head.samples;
  head.column_parts = head.parts + head.blocks * kHeadParts;
  with_compute_type(is_double(z), [&](auto zero) {
    using C = decltype(zero);
    device.launch(head_kernel<C>, std::max<int64_t>(1, head.blocks), kHeadWarps * kWarp, 0, head);
  });
}

void run_head_backward(const Device& device, const OptTensor& grad_z, const OptTensor& grad_kl, const Tensor& mu,
                       const Tensor& logvar, const Tensor& eps, double low, double high, const Tensor& to_mu,
                       const Tensor& to_logvar) {
  const Batch batch(mu);
  const Tiles tiles = Tiles::of_elements(batch.samples, batch.n);
  with_compute_type(is_double(mu) || is_double(logvar) || is_double(grad_z), [&](auto zero) {
    using C = decltype(zero);
    device.launch(head_backward_kernel<C>, tiles.count(), tiles.threads, 0, tiles, source(grad_z), source(grad_kl),
                  source(mu), source(logvar), source(eps), low, high, sink(to_mu), sink(to_logvar));
  });
}

}  // namespace fmk
