// The norms on the CPU: one row at a time, tile by tile.
#include "common.h"

#include "../shared/norm.h"
#include "quantize.h"

namespace fmk {
namespace {

template <class C>
FMK_CLONES void add_tile(const C* __restrict a, const C* __restrict b, C* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

template <class C>
FMK_CLONES void add_gated_tile(const C* __restrict a, const C* __restrict gate, const C* __restrict b,
                               C* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = a[i] * gate[i] + b[i];
}

// Two sums that are computed in one pass.
template <class C>
struct Sums {
  C first, second;
};

// The sum of x - center, and the sum of its squares.
template <class C>
FMK_CLONES Sums<C> centered_tile(const C* __restrict x, C center, int64_t n) {
  C a = 0, b = 0, a2 = 0, b2 = 0;
  const int64_t h = n / 2;
#pragma omp simd reduction(+ : a, b, a2, b2)
  for (int64_t i = 0; i < h; i++) {
    const C u = x[i] - center, v = x[i + h] - center;
    a += u;
    b += v;
    a2 += u * u;
    b2 += v * v;
  }
  for (int64_t i = 2 * h; i < n; i++) {
    const C u = x[i] - center;
    a += u;
    a2 += u * u;
  }
  return {a + b, a2 + b2};
}

// A row is normalized to (s - mean) * rstd.
template <class C>
struct MeanRstd {
  C mean, rstd;
};

// kCenter: the mean is subtracted; kOffset: there is an offset.
template <bool kCenter, bool kOffset, class C>
FMK_CLONES void normalize_tile(const C* __restrict s, C mean, C rstd, const C* __restrict scale,
                               const C* __restrict offset, C* __restrict y, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const C scaled = (kCenter ? s[i] - mean : s[i]) * rstd * scale[i];
    y[i] = kOffset ? scaled + offset[i] : scaled;
  }
}

// With h = (s - mean) * rstd and g = grad * scale: returns the sums of g and g * h, and adds to the gradients of the
// parameters.
template <class C>
FMK_CLONES Sums<C> moments_tile(const C* __restrict grad, const C* __restrict s, C mean, C rstd,
                                const C* __restrict scale, C* __restrict to_scale, C* __restrict to_offset,
                                int64_t n) {
  C sum_g = 0, sum_gh = 0;
#pragma omp simd reduction(+ : sum_g, sum_gh)
  for (int64_t i = 0; i < n; i++) {
    const C h = (s[i] - mean) * rstd;
    const C g = grad[i] * scale[i];
    sum_g += g;
    sum_gh += g * h;
    to_scale[i] += grad[i] * h;
    to_offset[i] += grad[i];
  }
  return {sum_g, sum_gh};
}

// The gradient to s: rstd * (g - mean_g - h * mean_gh), plus `more` if given.
template <class C>
FMK_CLONES void gradient_tile(const C* __restrict grad, const C* __restrict s, C mean, C rstd,
                              const C* __restrict scale, C mean_g, C mean_gh, const C* __restrict more,
                              C* __restrict out, int64_t n) {
  if (more)
    for (int64_t i = 0; i < n; i++)
      out[i] = rstd * (grad[i] * scale[i] - mean_g - (s[i] - mean) * rstd * mean_gh) + more[i];
  else
    for (int64_t i = 0; i < n; i++)
      out[i] = rstd * (grad[i] * scale[i] - mean_g - (s[i] - mean) * rstd * mean_gh);
}

// Rows of the concatenation of a list of tensors along their last dimension.
template <class C>
struct Rows {
  std::vector<Source<C>> parts;
  std::vector<int64_t> widths;
  int64_t width = 0;

  explicit Rows(const std::vector<Tensor>& list) {
    for (const Tensor& x : list) {
      parts.emplace_back(x);
      widths.push_back(x.size(x.dim() - 1));
      width += widths.back();
    }
  }
  bool one_tile() const { return parts.size() == 1 && width <= kTile; }
  // Calls body(tile, column, n) for the tiles of a row, in order.
  template <class F>
  void each(int64_t row, C* buffer, const F& body) const {
    int64_t column = 0;
    for (size_t p = 0; p < parts.size(); p++)
      for (int64_t i = 0; i < widths[p];) {
        const int64_t n = std::min(kTile, widths[p] - i);
        body(parts[p].at(row * widths[p] + i, n, buffer), column, n);
        i += n;
        column += n;
      }
  }
};

// Mean and rstd of a row. Tiles are combined in double (Chan's update). Each tile is first centered by its rounded
// mean, so the remaining sums are small and rows far from zero lose no precision.
template <class C>
struct RowMoments {
  bool center, inside;
  double count = 0, mean = 0, squares = 0;

  void add(const C* tile, int64_t n) {
    if (!center) {
      squares += sum_tile<true>(tile, n);
      return;
    }
    const double size = double(n);
    const C near = C(sum_tile<false>(tile, n) / C(n));
    const auto rest = centered_tile(tile, near, n);
    const double shift = double(rest.first) / size, tile_mean = double(near) + shift;
    const double total = count + size, delta = tile_mean - mean;
    squares += double(rest.second) - shift * shift * size + delta * delta * count * size / total;
    mean += delta * size / total;
    count = total;
  }
  MeanRstd<C> result(int64_t width, double eps) const {
    const double power = std::max(squares, 0.0) / double(width);
    return {C(mean), C(inside ? 1 / std::sqrt(power + eps) : 1 / (std::sqrt(power) + eps))};
  }
};

template <class C>
struct Forward {
  const NormCall& call;
  const OptTensor dense_residual = dense(call.residual);
  const Rows<C> rows{call.rows.x};
  const ParameterRows<C> scales{call.scale}, offsets{call.offset ? *call.offset : call.scale};
  const ParameterRows<C> gates{call.gate ? *call.gate : call.scale};
  const Source<C> residual{dense_residual};
  const Sink<C> y{call.y}, sum = call.sum ? Sink<C>(*call.sum) : Sink<C>();
  int8_t* const int8_rows = call.row_scale ? static_cast<int8_t*>(call.y.mutable_data_ptr()) : nullptr;
  float* const row_scales = call.row_scale ? call.row_scale->mutable_data_ptr<float>() : nullptr;
  C* const stats = call.stat ? call.stat->mutable_data_ptr<C>() : nullptr;
  // Whether the first pass leaves gate * x + residual unrounded for the second: in the output, or in a separate row.
  const bool in_output = residual.data && sum.dtype == compute_dtype<C>;
  const bool in_row = residual.data && !in_output && rows.width > kTile && rows.width <= kKeptWidth;
  static constexpr int64_t kKeptWidth = 16 * kTile;

  struct Tiles {
    Tile<C> x, residual, sum, y;
    std::vector<Tile<C>> row;  // gate * x + residual, if it is kept
    std::vector<C> normed;     // if it is to be quantized
  };

  void run(int64_t begin, int64_t end) const {
    Tiles tiles;
    if (in_row) tiles.row.resize(size_t(tiles_of(rows.width)));
    if (row_scales) tiles.normed.resize(size_t(rows.width));
    for (int64_t row = begin; row < end; row++) {
      RowMoments<C> moments{call.center, call.inside};
      const C* s = nullptr;
      rows.each(row, tiles.x, [&](const C* x, int64_t column, int64_t n) {
        s = add_residual(x, row, column, n, true, tiles);
        moments.add(s, n);
      });
      const MeanRstd<C> by = moments.result(rows.width, call.eps);
      if (stats) {
        stats[2 * row] = by.mean;
        stats[2 * row + 1] = by.rstd;
      }
      if (rows.one_tile())
        normalize(s, by, row, 0, rows.width, tiles);
      else if (in_output || in_row)
        for (int64_t column = 0; column < rows.width; column += kTile)
          normalize(sum_at(row, column, tiles), by, row, column, std::min(kTile, rows.width - column), tiles);
      else
        rows.each(row, tiles.x, [&](const C* x, int64_t column, int64_t n) {
          normalize(add_residual(x, row, column, n, false, tiles), by, row, column, n, tiles);
        });
      if (row_scales) row_scales[row] = quantize_row(tiles.normed.data(), rows.width, int8_rows + row * rows.width);
    }
  }
  // Of the next row, while this one is written.
  static void prefetch(const Source<C>& from, int64_t at, int64_t n) {
    const int64_t bytes = size_of(from.dtype);
    const char* begin = static_cast<const char*>(from.data) + at * bytes;
    for (int64_t i = 0; i < n * bytes; i += 64) __builtin_prefetch(begin + i);
  }
  C* sum_at(int64_t row, int64_t column, Tiles& tiles) const {
    return in_row ? tiles.row[size_t(column / kTile)].data : sum.at(row * rows.width + column, tiles.sum);
  }
  // gate * x + residual, unrounded.
  const C* add_residual(const C* x, int64_t row, int64_t column, int64_t n, bool first_pass, Tiles& tiles) const {
    if (!residual.data) return x;
    const int64_t at = row * rows.width + column;
    C* s = sum_at(row, column, tiles);
    const C* more = residual.at(at, n, tiles.residual);
    if (call.gate)
      add_gated_tile(x, gates.row(row / call.rows.rows_per_scale()) + column, more, s, n);
    else
      add_tile(x, more, s, n);
    if (first_pass) sum.put(at, s, n);
    return s;
  }
  void normalize(const C* s, MeanRstd<C> by, int64_t row, int64_t column, int64_t n, Tiles& tiles) const {
    if (row + 1 < call.rows.count) {
      prefetch(rows.parts[0], (row + 1) * rows.widths[0] + column, std::min(n, rows.widths[0] - column));
      if (residual.data) prefetch(residual, (row + 1) * rows.width + column, n);
    }
    const int64_t at = row * rows.width + column, parameter_row = row / call.rows.rows_per_scale();
    const C *scale = scales.row(parameter_row) + column, *offset = offsets.row(parameter_row) + column;
    C* out = row_scales ? tiles.normed.data() + column : y.at(at, tiles.y);
    if (call.center && call.offset)
      normalize_tile<true, true>(s, by.mean, by.rstd, scale, offset, out, n);
    else if (call.center)
      normalize_tile<true, false>(s, by.mean, by.rstd, scale, offset, out, n);
    else if (call.offset)
      normalize_tile<false, true>(s, by.mean, by.rstd, scale, offset, out, n);
    else
      normalize_tile<false, false>(s, by.mean, by.rstd, scale, offset, out, n);
    if (!row_scales) y.put(at, out, n);
  }
};

template <class C>
struct Backward {
  const NormBackwardCall& call;
  const Tensor dense_grad = dense(call.grad_y);
  const OptTensor dense_more = dense(call.grad_sum);
  const Rows<C> rows{call.rows.x};
  const ParameterRows<C> scales{call.scale};
  const Values<C> stats{call.stat};
  const Source<C> grad{dense_grad}, more{dense_more};
  const Sink<C> grad_s{call.grad_s};
  const bool rounded = size_of(dtype_of(call.grad_s)) == 2;
  const int64_t width = rows.width;

  struct Tiles {
    Tile<C> s, grad, more, result;
  };

  void run() {
    RunSums<C> sums(call.rows.count, width, call.rows.scale_rows, 2);
    sums.each([&](int64_t scale_row, int64_t begin, int64_t end, C* to_scale) {
      Tiles tiles;
      for (int64_t row = begin; row < end; row++)
        run_row(row, scales.row(scale_row), to_scale, to_scale + width, tiles);
    });
    sums.write(0, call.grad_scale);
    sums.write(1, call.grad_offset);
  }
  void run_row(int64_t row, const C* scale, C* to_scale, C* to_offset, Tiles& tiles) const {
    const MeanRstd<C> by = normalized_by(row, tiles);
    double sum_g = 0, sum_gh = 0;
    rows.each(row, tiles.s, [&](const C* s, int64_t column, int64_t n) {
      const auto sums = moments_tile(grad.at(row * width + column, n, tiles.grad), s, by.mean, by.rstd, scale + column,
                                     to_scale + column, to_offset + column, n);
      sum_g += sums.first;
      sum_gh += sums.second;
    });
    // d rms / d s = s / (D rms), and rms * rstd = 1 - eps * rstd, which is zero for a row of zeros.
    const double share = call.inside ? 1.0 : 1.0 - call.eps * double(by.rstd);
    const C mean_g = call.center ? C(sum_g / double(width)) : C(0);
    const C mean_gh = share > 0 ? C(sum_gh / (double(width) * share)) : C(0);
    rows.each(row, tiles.s, [&](const C* s, int64_t column, int64_t n) {
      const int64_t at = row * width + column;
      C* out = grad_s.at(at, tiles.result);
      gradient_tile(grad.at(at, n, tiles.grad), s, by.mean, by.rstd, scale + column, mean_g, mean_gh,
                    more.data ? more.at(at, n, tiles.more) : nullptr, out, n);
      grad_s.put(at, out, n);
    });
  }
  // The saved values belong to the unrounded s.
  MeanRstd<C> normalized_by(int64_t row, Tiles& tiles) const {
    if (!rounded) return {stats[2 * row], stats[2 * row + 1]};
    RowMoments<C> moments{call.center, call.inside};
    rows.each(row, tiles.s, [&](const C* s, int64_t, int64_t n) { moments.add(s, n); });
    return moments.result(width, call.eps);
  }
};

}  // namespace

void run_norm(const Device&, const NormCall& call) {
  with_compute_type(is_double(call.y), [&](auto zero) {
    const Forward<decltype(zero)> forward{call};
    parallel(call.rows.count, rows_per_task(call.rows.width),
             [&](int64_t begin, int64_t end) { forward.run(begin, end); });
  });
}

void run_norm_backward(const Device&, const NormBackwardCall& call) {
  with_compute_type(is_double(call.grad_scale), [&](auto zero) { Backward<decltype(zero)>{call}.run(); });
}

STABLE_TORCH_LIBRARY_IMPL(fmkernels, CPU, m) { m.impl("td_norm_int8", TORCH_BOX(&td_norm_int8)); }

}  // namespace fmk
