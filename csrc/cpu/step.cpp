// The sampler's step on the CPU.
#include "common.h"

#include "../shared/step.h"

namespace fmk {
namespace {

// The inputs of one tile; prev and uncond are read only if the template arguments say so. (A null pointer that is
// tested inside the loop becomes masked loads from address 0, which take a hundred cycles on some CPUs.)
template <class C>
struct Inputs {
  const C *v, *prev, *uncond;
  C guidance, ca, cb;
};

// sums: |x| before, |v|, delta^2, non-finite elements after.
template <bool kPrev, bool kGuided, class C>
FMK_CLONES void step_tile(C* __restrict x, const Inputs<C>& in, int64_t n, double* __restrict sums) {
  const C *__restrict v = in.v, *__restrict prev = in.prev, *__restrict uncond = in.uncond;
  const C guidance = in.guidance, ca = in.ca, cb = in.cb;
  C abs_x = 0, abs_v = 0, squares = 0;
  decltype(magnitude(C(0))) largest = 0;
#pragma omp simd reduction(+ : abs_x, abs_v, squares) reduction(max : largest)
  for (int64_t i = 0; i < n; i++) {
    const C before = x[i];
    const C velocity = kGuided ? uncond[i] + guidance * (v[i] - uncond[i]) : v[i];
    const C delta = kPrev ? ca * velocity + cb * prev[i] : ca * velocity;
    const C after = before + delta;
    abs_x += absolute(before);
    abs_v += absolute(velocity);
    squares += delta * delta;
    largest = std::max(largest, magnitude(after));
    x[i] = after;
  }
  const C columns[] = {abs_x, abs_v, squares, 0};
  for (int c = 0; c < 4; c++) sums[c] = double(columns[c]);
  if (!finite(bit_cast<C>(largest)))
    for (int64_t i = 0; i < n; i++) sums[3] += finite(x[i]) ? 0 : 1;
}

}  // namespace

void run_step(const Device&, const StepArguments& step) {
  const auto [samples, n] = Batch(step.x);
  const double dt = step.dt_tensor ? Values<double>(*step.dt_tensor)[0] : step.dt;
  check_finite(dt, "dt");
  const int64_t per_sample = tiles_of(n);
  std::vector<double> sums(size_t(samples * per_sample * 4));
  with_compute_type(is_double(step.x), [&, samples = samples, n = n](auto zero) {
    using C = decltype(zero);
    C* master = step.x.mutable_data_ptr<C>();
    const Source<C> v_in(step.v), uncond_in(step.v_uncond), prev_in(step.v_prev);
    const Sink<C> low_out = step.low ? Sink<C>(*step.low) : Sink<C>();
    for_tiles(samples, n, [&](int64_t sample, int64_t i, int64_t count, int64_t tile) {
      Tile<C> at, bt, ct;
      const int64_t begin = sample * n + i;
      Inputs<C> in{v_in.at(begin, count, at), nullptr, nullptr, C(step.guidance), C(step.gain * dt * step.a), C(step.gain * dt * step.b)};
      in.prev = prev_in.data ? prev_in.at(begin, count, bt) : in.v;
      in.uncond = uncond_in.data ? uncond_in.at(begin, count, ct) : in.v;
      double* out = &sums[4 * tile];
      if (prev_in.data)
        uncond_in.data ? step_tile<true, true>(master + begin, in, count, out)
                       : step_tile<true, false>(master + begin, in, count, out);
      else
        uncond_in.data ? step_tile<false, true>(master + begin, in, count, out)
                       : step_tile<false, false>(master + begin, in, count, out);
      if (low_out.data) low_out.write(begin, master + begin, count);
    });
  });
  if (!step.stats) return;
  const Tensor& stats = *step.stats;
  float* rows = stats.mutable_data_ptr<float>();
  for (int64_t sample = 0; sample < samples; sample++) {
    double total[4] = {0, 0, 0, 0};
    for (int64_t k = sample * per_sample; k < (sample + 1) * per_sample; k++)
      for (int c = 0; c < 4; c++) total[c] += sums[4 * k + c];
    const double row[kStepColumns] = {total[0] / double(n), total[1] / double(n),
                                      std::sqrt(total[2] / double(n)), total[3], dt};
    for (int c = 0; c < kStepColumns; c++)
      rows[sample * stats.stride(0) + c * stats.stride(1)] = float(row[c]);
  }
}

}  // namespace fmk
