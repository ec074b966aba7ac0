// The norms on the CPU: a row at a time, tile by tile.
#include "common.h"

#include "../shared/norm.h"

namespace fmk {
namespace {

template <class C>
FMK_CLONES void add_tile(const C* __restrict a, const C* __restrict b, C* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

template <bool kSquare, class C>
FMK_FN C power_of(C x) {
  return kSquare ? x * x : x;
}

// The sum of x, or of its squares. Four quarters side by side: one running sum would wait for the adder.
template <bool kSquare, class C>
FMK_CLONES C sum_tile(const C* __restrict x, int64_t n) {
  C a = 0, b = 0, c = 0, d = 0;
  const int64_t q = n / 4;
#pragma omp simd reduction(+ : a, b, c, d)
  for (int64_t i = 0; i < q; i++) {
    a += power_of<kSquare>(x[i]);
    b += power_of<kSquare>(x[i + q]);
    c += power_of<kSquare>(x[i + 2 * q]);
    d += power_of<kSquare>(x[i + 3 * q]);
  }
  for (int64_t i = 4 * q; i < n; i++) a += power_of<kSquare>(x[i]);
  return (a + b) + (c + d);
}

// Two sums of one pass.
template <class C>
struct Sums {
  C first, second;
};

// Of x - center: the sum and the sum of squares.
template <class C>
FMK_CLONES Sums<C> centred_tile(const C* __restrict x, C center, int64_t n) {
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

// kCenter: the mean is subtracted; kOffset: there is an offset.
template <bool kCenter, bool kOffset, class C>
FMK_CLONES void normalize_tile(const C* __restrict s, C mean, C rstd, const C* __restrict scale,
                               const C* __restrict offset, C* __restrict y, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const C scaled = (kCenter ? s[i] - mean : s[i]) * rstd * scale[i];
    y[i] = kOffset ? scaled + offset[i] : scaled;
  }
}

// With h = (s - mean) * rstd and g = grad * scale: sums of g and g*h, and the parameters' gradients.
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

// Rows given as a list of tensors side by side, of one width in all; a single x is a list of one.
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
  // Asks for a row while the one before is being written, for rows that come from memory.
  void prefetch(int64_t row) const {
    const int64_t bytes = size_of(parts[0].dtype);
    const char* at = static_cast<const char*>(parts[0].data) + row * widths[0] * bytes;
    for (int64_t i = 0; i < std::min(kTile, widths[0]) * bytes; i += 64) __builtin_prefetch(at + i);
  }
  bool one_tile() const { return parts.size() == 1 && width <= kTile; }
  // body(tile, column, n) over the row's tiles in order.
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

// Mean and rstd of a row, tile by tile, put together in double (Chan's update). A tile is centred by its
// rounded mean first: what is left sums up small, so rows far from zero lose nothing.
template <class C>
struct RowMoments {
  bool center;
  double count = 0, mean = 0, squares = 0;

  void add(const C* tile, int64_t n) {
    if (!center) {
      squares += sum_tile<true>(tile, n);
      return;
    }
    const double size = double(n);
    const C near = C(sum_tile<false>(tile, n) / C(n));
    const auto rest = centred_tile(tile, near, n);
    const double shift = double(rest.first) / size, tile_mean = double(near) + shift;
    const double total = count + size, delta = tile_mean - mean;
    squares += double(rest.second) - shift * shift * size + delta * delta * count * size / total;
    mean += delta * size / total;
    count = total;
  }
  double rstd(int64_t width, double eps) const {
    const double power = std::max(squares, 0.0) / double(width);
    return center ? 1 / std::sqrt(power + eps) : 1 / (std::sqrt(power) + eps);
  }
};

// The rows of a scale or offset, (D,) or (T, D), as C: where they are, if each is dense and C already. The values of
// a group are columns of one tensor, so their rows are far apart.
template <class C>
class ParameterRows {
  std::optional<Values<C>> own_;
  const C* data_;
  int64_t stride_;

 public:
  explicit ParameterRows(const Tensor& x) : stride_(x.size(x.dim() - 1)) {
    const Source<C> source(x);
    if (x.dim() == 2 && source.dtype == compute_dtype<C> && (x.stride(1) == 1 || stride_ <= 1)) {
      data_ = static_cast<const C*>(source.data);
      stride_ = x.stride(0);
    } else {
      data_ = own_.emplace(x).data();
    }
  }
  const C* row(int64_t i) const { return data_ + i * stride_; }
};

// Rows a task works on. In the backward each task has partial sums of its own, so the cut is by size.
int64_t rows_per_task(const NormRows& shape) {
  return std::max<int64_t>(1, kGrain * kTile / std::max<int64_t>(shape.width, 1));
}

}  // namespace

void run_norm(const Device&, const NormRows& shape, const Tensor& scale, const OptTensor& offset,
              const OptTensor& residual, double eps, bool center, const Tensor& y, const OptTensor& sum,
              const OptTensor& stat) {
  const OptTensor res = dense(residual);
  const bool in_double = is_double(y);
  with_compute_type(in_double, [&](auto zero) {
    using C = decltype(zero);
    const Rows<C> rows(shape.x);
    const ParameterRows<C> scales(scale), offsets(offset ? *offset : scale);
    const Source<C> more(res);
    const Sink<C> y_out(y), sum_out = sum ? Sink<C>(*sum) : Sink<C>();
    C* const stats = stat ? stat->mutable_data_ptr<C>() : nullptr;
    parallel(shape.count, rows_per_task(shape), [&](int64_t begin, int64_t last) {
      Tile<C> a, b, s_tile, y_tile;
      for (int64_t row = begin; row < last; row++) {
        const int64_t base = row * shape.width;
        // x + residual, unrounded: the first pass leaves it in the output where that has its dtype,
        // the second makes it again where it has not.
        const bool kept = more.data && sum_out.dtype == compute_dtype<C>;
        const auto summed = [&](const C* part, int64_t column, int64_t n, bool again) -> const C* {
          if (!more.data) return part;
          C* s = sum_out.at(base + column, s_tile);
          if (!again || !kept) add_tile(part, more.at(base + column, n, b), s, n);
          if (!again) sum_out.put(base + column, s, n);
          return s;
        };
        RowMoments<C> moments{center};
        const C* first = nullptr;
        rows.each(row, a, [&](const C* part, int64_t column, int64_t n) {
          first = summed(part, column, n, false);
          moments.add(first, n);
        });
        if (row + 1 < last) rows.prefetch(row + 1);
        const C mean = C(moments.mean), rstd = C(moments.rstd(shape.width, eps));
        if (stats) {
          stats[2 * row] = mean;
          stats[2 * row + 1] = rstd;
        }
        const int64_t parameter_row = row / shape.rows_per_scale();
        const auto normalize = [&](const C* s, int64_t column, int64_t n) {
          const int64_t at = base + column;
          C* out = y_out.at(at, y_tile);
          const C* row_scale = scales.row(parameter_row) + column;
          const C* row_offset = offsets.row(parameter_row) + column;
          if (center)
            normalize_tile<true, true>(s, mean, rstd, row_scale, row_offset, out, n);
          else if (offset)
            normalize_tile<false, true>(s, mean, rstd, row_scale, row_offset, out, n);
          else
            normalize_tile<false, false>(s, mean, rstd, row_scale, row_offset, out, n);
          y_out.put(at, out, n);
        };
        if (rows.one_tile())
          normalize(first, 0, shape.width);
        else
          rows.each(row, a, [&](const C* part, int64_t column, int64_t n) {
            normalize(summed(part, column, n, true), column, n);
          });
      }
    });
  });
}

void run_norm_backward(const Device&, const NormRows& shape, const Tensor& grad_y, const OptTensor& grad_sum,
                       const Tensor& scale, const Tensor& stat, double eps, bool center, const Tensor& grad_s,
                       const Tensor& grad_scale, const Tensor& grad_offset) {
  const Tensor gy = dense(grad_y), stats_in = dense(stat);
  const OptTensor gs = dense(grad_sum);
  with_compute_type(is_double(grad_scale), [&](auto zero) {
    using C = decltype(zero);
    const Rows<C> rows(shape.x);
    const ParameterRows<C> scales(scale);
    const Values<C> stats(stats_in);
    const Source<C> grad(gy), more(gs);
    const Sink<C> out(grad_s);
    const bool rounded = size_of(dtype_of(grad_s)) == 2;
    // A task is a run of rows under one row of scale; its partial sums are added up in task order.
    const int64_t group = shape.rows_per_scale(), width = shape.width;
    const int64_t run = std::max(rows_per_task(shape), (group + 15) / 16);
    const int64_t runs = (group + run - 1) / run;
    const int64_t tasks = shape.count == 0 ? 0 : shape.scale_rows * runs;
    std::vector<C> partial(size_t(2 * tasks * width), C(0));
    // Short runs, of samples with a row of scale each, are not worth a thread one by one.
    const int64_t grain = std::max<int64_t>(1, rows_per_task(shape) / std::max<int64_t>(1, std::min(run, group)));
    parallel(tasks, grain, [&](int64_t first, int64_t last) {
      Tile<C> a, b, c, result;
      for (int64_t task = first; task < last; task++) {
        const C* scale_row = scales.row(task / runs);
        C* to_scale = partial.data() + 2 * task * width;
        C* to_offset = to_scale + width;
        const int64_t begin = task / runs * group + task % runs * run;
        const int64_t end = std::min(begin + run, (task / runs + 1) * group);
        for (int64_t row = begin; row < end; row++) {
          C mean = stats[2 * row], rstd = stats[2 * row + 1];
          if (rounded) {
            RowMoments<C> moments{center};
            rows.each(row, a, [&](const C* part, int64_t, int64_t n) { moments.add(part, n); });
            mean = C(moments.mean);
            rstd = C(moments.rstd(width, eps));
          }
          double sum_g = 0, sum_gh = 0;
          rows.each(row, a, [&](const C* part, int64_t column, int64_t n) {
            const auto sums = moments_tile(grad.at(row * width + column, n, b), part, mean, rstd,
                                           scale_row + column, to_scale + column, to_offset + column, n);
            sum_g += sums.first;
            sum_gh += sums.second;
          });
          // d rms / d s = s / (D rms), and rms * rstd = 1 - eps * rstd: zero for a row of zeros.
          const double share = center ? 1.0 : 1.0 - eps * double(rstd);
          const C mean_g = center ? C(sum_g / double(width)) : C(0);
          const C mean_gh = share > 0 ? C(sum_gh / (double(width) * share)) : C(0);
          rows.each(row, a, [&](const C* part, int64_t column, int64_t n) {
            const int64_t at = row * width + column;
            C* tile = out.at(at, result);
            gradient_tile(grad.at(at, n, b), part, mean, rstd, scale_row + column, mean_g, mean_gh,
                          more.data ? more.at(at, n, c) : nullptr, tile, n);
            out.put(at, tile, n);
          });
        }
      }
    });
    const Sink<C> scale_out(grad_scale), offset_out(grad_offset);
    for_tiles(scale.numel() == 0 ? 0 : shape.scale_rows, width, [&](int64_t row, int64_t column, int64_t n, int64_t) {
      Tile<C> sum;
      for (int which = 0; which < 2; which++) {
        std::fill_n(sum.data, n, C(0));
        for (int64_t r = 0; r < (tasks ? runs : 0); r++)
          for (int64_t i = 0; i < n; i++)
            sum[i] += partial[(2 * (row * runs + r) + which) * width + column + i];
        (which ? offset_out : scale_out).write(row * width + column, sum.data, n);
      }
    });
  });
}

}  // namespace fmk
