// The norm and rotation of queries and keys on the CPU: a row at a time, which is kept between the passes.
#include <optional>

#include "common.h"

#include "../shared/rope.h"

namespace fmk {
namespace {

template <class C>
FMK_CLONES void scale_tile(C* __restrict x, C by, const C* __restrict weight, int64_t n) {
  if (weight)
    for (int64_t i = 0; i < n; i++) x[i] = x[i] * by * weight[i];
  else
    for (int64_t i = 0; i < n; i++) x[i] *= by;
}

// y = x * cos + turned(x) * sin, or the transposed of that; turned takes each pair (a, b) to (-b, a).
template <bool kInterleaved, bool kTransposed, class C>
FMK_CLONES void rotate_tile(const C* __restrict x, const C* __restrict cos, const C* __restrict sin, C* __restrict y,
                            int64_t n) {
  const int64_t half = n / 2, step = kInterleaved ? 2 : 1, distance = kInterleaved ? 1 : half;
  for (int64_t i = 0; i < half; i++) {
    const int64_t first = i * step, second = first + distance;
    const C a = x[first], b = x[second];
    y[first] = kTransposed ? a * cos[first] + b * sin[second] : a * cos[first] - b * sin[first];
    y[second] = kTransposed ? b * cos[second] - a * sin[first] : b * cos[second] + a * sin[second];
  }
}

// The sum of g * weight * h. Adds g * h to to_weight, and makes g * weight of g.
template <class C>
FMK_CLONES C weighted_tile(C* __restrict g, const C* __restrict h, const C* __restrict weight, C* __restrict to_weight,
                           int64_t n) {
  C sum = 0;
  if (weight) {
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
      to_weight[i] += g[i] * h[i];
      g[i] *= weight[i];
      sum += g[i] * h[i];
    }
  } else {
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += g[i] * h[i];
  }
  return sum;
}

template <class C>
FMK_CLONES void gradient_tile(C* __restrict g, const C* __restrict h, C rstd, C mean, int64_t n) {
  for (int64_t i = 0; i < n; i++) g[i] = rstd * (g[i] - h[i] * mean);
}

// body(tile, n) sums a tile of a row.
template <class F>
double over_tiles(int64_t width, const F& body) {
  double sum = 0;
  for (int64_t i = 0; i < width; i += kTile) sum += double(body(i, std::min(kTile, width - i)));
  return sum;
}

template <class C>
class Rope {
  const RopeCall& call;
  const RopeSide& side;
  const Source<C> x{side.x}, grad{side.grad}, cos{call.cos}, sin{call.sin};
  const Sink<C> out{side.out};
  const std::optional<Values<C>> weights = side.weight ? std::optional<Values<C>>(*side.weight) : std::nullopt;
  const C* const weight = weights ? weights->data() : nullptr;
  const int64_t heads = side.heads_of_row(), rows_of_token = side.heads / heads;
  const int64_t width = heads * call.width;

  // Of one thread: the row's elements, its gradient, a head of the result, the tables of a token.
  struct Buffers {
    std::vector<C> x, grad, head, cos_row, sin_row;
    const C *cos = nullptr, *sin = nullptr;
    int64_t token = -1;
    Buffers(int64_t width, int64_t head_width, int64_t rotated)
        : x(size_t(width)), grad(size_t(width)), head(size_t(head_width)), cos_row(size_t(rotated)),
          sin_row(size_t(rotated)) {}
  };
  // Which sample, token and first head a row is.
  struct Row {
    int64_t sample, token, head;
  };
  Row place(int64_t row) const {
    if (!call.heads_first) {
      const int64_t at = row / rows_of_token;
      return {at / call.tokens, at % call.tokens, row % rows_of_token * heads};
    }
    const int64_t at = row / call.tokens;
    return {at / rows_of_token, row % call.tokens, at % rows_of_token * heads};
  }
  static int64_t offset(const RopeStrides& at, const Row& row, int64_t head) {
    return row.sample * at.sample + row.token * at.token + (row.head + head) * at.head;
  }
  void read(const Source<C>& from, const RopeStrides& at, const Row& row, C* to) const {
    for (int64_t h = 0; h < heads; h++, to += call.width) {
      const C* const values = from.at(offset(at, row, h), call.width, to);
      if (values != to) std::copy_n(values, call.width, to);
    }
  }
  void read_tables(const Row& row, Buffers& buffers) const {
    const int64_t token = row.sample * call.tokens + row.token;
    if (buffers.token == token) return;
    buffers.token = token;
    const int64_t at = row.sample * call.table_stride + row.token * call.rotated;
    buffers.cos = cos.at(at, call.rotated, buffers.cos_row.data());
    buffers.sin = sin.at(at, call.rotated, buffers.sin_row.data());
  }
  C rstd_of(const C* row) const {
    const double squares = over_tiles(width, [&](int64_t i, int64_t n) { return sum_tile<true>(row + i, n); });
    return C(1 / std::sqrt(squares / double(width) + call.eps));
  }
  template <bool kTransposed>
  void rotate(const C* from, const Buffers& buffers, C* to) const {
    const auto by = call.interleaved ? rotate_tile<true, kTransposed, C> : rotate_tile<false, kTransposed, C>;
    by(from, buffers.cos, buffers.sin, to, call.rotated);
    std::copy(from + call.rotated, from + call.width, to + call.rotated);
  }
  Buffers buffers() const { return {width, call.width, call.rotated}; }

 public:
  Rope(const RopeCall& call_, const RopeSide& side_) : call(call_), side(side_) {}

  void forward() const {
    parallel(call.rows(side), rows_per_task(width), [&](int64_t begin, int64_t end) {
      Buffers memory = buffers();
      for (int64_t i = begin; i < end; i++) {
        const Row row = place(i);
        C* const values = memory.x.data();
        read(x, side.x_at, row, values);
        read_tables(row, memory);
        if (call.norm) scale_tile(values, rstd_of(values), weight, width);
        for (int64_t h = 0; h < heads; h++) {
          const int64_t at = offset(side.out_at, row, h);
          C* const result = out.at(at, memory.head.data());
          rotate<false>(values + h * call.width, memory, result);
          out.put(at, result, call.width);
        }
      }
    });
  }

  void backward() const {
    RunSums<C> sums(call.rows(side), width, 1, weight ? 1 : 0);
    sums.each([&](int64_t, int64_t begin, int64_t end, C* to_weight) {
      Buffers memory = buffers();
      for (int64_t i = begin; i < end; i++) {
        const Row row = place(i);
        C *const h = memory.x.data(), *const g = memory.grad.data();
        read(grad, side.grad_at, row, h);
        read_tables(row, memory);
        for (int64_t head = 0; head < heads; head++)
          rotate<true>(h + head * call.width, memory, g + head * call.width);
        if (call.norm) {
          read(x, side.x_at, row, h);
          const C rstd = rstd_of(h);
          scale_tile<C>(h, rstd, nullptr, width);
          const double sum = over_tiles(width, [&](int64_t at, int64_t n) {
            return weighted_tile(g + at, h + at, weight ? weight + at : nullptr, to_weight + at, n);
          });
          gradient_tile(g, h, rstd, C(sum / double(width)), width);
        }
        for (int64_t head = 0; head < heads; head++)
          out.write(offset(side.out_at, row, head), g + head * call.width, call.width);
      }
    });
    if (weight) sums.write(0, *side.to_weight);
  }
};

}  // namespace

void run_rope(const Device&, const RopeCall& call) {
  with_compute_type(call.in_double, [&](auto zero) {
    for (const RopeSide& side : call.sides) Rope<decltype(zero)>(call, side).forward();
  });
}

void run_rope_backward(const Device&, const RopeCall& call) {
  with_compute_type(call.in_double, [&](auto zero) {
    for (const RopeSide& side : call.sides) Rope<decltype(zero)>(call, side).backward();
  });
}

}  // namespace fmk
