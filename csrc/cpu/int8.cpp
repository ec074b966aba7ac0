// linear_int8 on the CPU: blocks of rows of x are quantized into a reused buffer and multiplied with all panels of the
// weight; the epilogue writes each tile of the result once. Sums are integers: no split changes the result.
#include <cstdlib>
#include <memory>

#include "common.h"

#include "../shared/int8.h"
#include "int8_product.h"
#include "quantize.h"

namespace fmk {
namespace {

constexpr int64_t kBlock = 1 << 19;      // bytes of quantized x at once: they should stay in L2
constexpr int64_t kDeepest = 1024;       // groups, up to which a row is not split
constexpr int64_t kSlab = 256;           // groups of a slab of longer rows
constexpr int64_t kPanelsAtOnce = 64;    // of longer rows, whose sums are kept from slab to slab
constexpr int64_t kWork = 1 << 20;       // multiplications that a thread should have before a second one is woken
constexpr int64_t kConverted = 1 << 16;  // the same for elements to quantize

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A buffer that is kept from call to call: fresh pages would take as long as the product.
template <class T>
class Reused {
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  std::unique_ptr<T, Free> data_;
  int64_t size_ = 0;

 public:
  T* get(int64_t size) {
    if (size > size_) {
      size_ = 0;
      const int64_t bytes = ceil_div(size * int64_t(sizeof(T)), 64) * 64;
      data_.reset(static_cast<T*>(std::aligned_alloc(64, size_t(bytes))));
      FMK_CHECK(data_, "out of memory");
      size_ = size;
    }
    return data_.get();
  }
};

void pack_panel(const int8_t* weight, int64_t columns, int64_t width, int8_t* panel) {
  const int64_t depth = ceil_div(width, kDepth);
  int32_t start[kPanel] = {};
  if (columns < kPanel || width % kDepth) std::fill_n(panel, depth * kGroup, int8_t(0));
  for (int64_t c = 0; c < columns; c++) {
    uint32_t sum = 0;
    for (int64_t i = 0; i < width; i++) sum += uint32_t(int32_t(weight[c * width + i]));
    start[c] = int32_t(sum * uint32_t(-128));
    for (int64_t k = 0; k < depth; k++)
      std::memcpy(panel + k * kGroup + c * kDepth, weight + c * width + k * kDepth,
                  size_t(std::min(kDepth, width - k * kDepth)));
  }
  std::memcpy(panel + depth * kGroup, start, sizeof(start));
}

// weight: dense.
Tensor packed(const Tensor& weight) {
  const int64_t columns = weight.size(0), width = weight.size(1);
  const int64_t panels = ceil_div(columns, kPanel), bytes = (ceil_div(width, kDepth) + 1) * kGroup;
  const std::array<int64_t, 3> sizes{panels, ceil_div(width, kDepth) + 1, kGroup};
  Tensor out = fresh_int8(Sizes(sizes.data(), sizes.size()));
  const int8_t* from = static_cast<const int8_t*>(weight.const_data_ptr());
  int8_t* to = static_cast<int8_t*>(out.mutable_data_ptr());
  parallel(panels, std::max<int64_t>(1, kConverted / bytes), [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; p++)
      pack_panel(from + p * kPanel * width, std::min(kPanel, columns - p * kPanel), width, to + p * bytes);
  });
  return out;
}

// Rounded once; the product is not fused with the addition, so that every machine computes the same.
template <bool kWhole, bool kBias, class S>
FMK_CLONES FMK_SEPARATE void finish_tile(const int32_t* sums, int64_t rows, int64_t columns, const float* x_scale,
                                         const float* scale, const float* bias, S* out, int64_t stride) {
  for (int64_t r = 0; r < rows; r++) {
    const int32_t* __restrict from = sums + r * kPanel;
    S* __restrict to = out + r * stride;
    const float by = x_scale[r];
    for (int64_t c = 0; c < (kWhole ? kPanel : columns); c++) {
      const float y = float(from[c]) * (by * scale[c]);
      narrow(kBias ? y + bias[c] : y, to[c]);
    }
  }
}

// int8 as int8 + 128.
template <class T>
FMK_CLONES void shift_tile(const T* __restrict x, T* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = x[i] ^ 0x80;
}

// The scale of a row, and the row as floats if it is a single tile.
struct Measured {
  RowScale by;
  const float* whole;
};
Measured measured(const Source<float>& x, int64_t at, int64_t width, float* tile) {
  int32_t largest = 0;
  const float* whole = nullptr;
  for (int64_t i = 0; i < width; i += kTile) {
    const int64_t n = std::min(kTile, width - i);
    whole = x.at(at + i, n, tile);
    largest = std::max(largest, largest_tile(whole, n));
  }
  return {row_scale(largest), width <= kTile ? whole : nullptr};
}

// A product whose rows are split into blocks of `height`, and each block, if the rows are long, into slabs.
class Int8Product {
  const LinearInt8& call_;
  const Tensor weight_;
  const int64_t depth_ = ceil_div(call_.width, kDepth), panels_ = ceil_div(call_.columns, kPanel);
  const bool split_ = depth_ > kDeepest;
  const int64_t slab_ = split_ ? kSlab : std::max<int64_t>(depth_, 1);
  const int64_t panels_at_once_ = split_ ? kPanelsAtOnce : panels_;
  const int64_t most_ = std::max(kRows, kBlock / (pieces(slab_) * kPiece));
  const int64_t height_ = ceil_div(ceil_div(call_.rows, ceil_div(call_.rows, most_)), kRows) * kRows;
  const int8_t* const packed_ = static_cast<const int8_t*>(weight_.const_data_ptr());
  const Product product_ = product_of(int8_kernel());
  // Int8 rows and their scales, or null: x is floats.
  const float* const int8_scale_ = call_.x_scale ? floats(*call_.x_scale) : nullptr;
  const uint8_t* const int8_x_ = int8_scale_ ? static_cast<const uint8_t*>(call_.x.const_data_ptr()) : nullptr;
  const Source<float> x_ = int8_scale_ ? Source<float>() : Source<float>(call_.x);
  const float *const scale_ = floats(call_.scale), *const bias_;
  std::vector<RowScale> scales_ = std::vector<RowScale>(size_t(height_));
  std::vector<float> x_scales_ = std::vector<float>(size_t(height_));
  uint8_t* block_;
  int32_t* sums_;

  static const float* floats(const Tensor& x) { return static_cast<const float*>(x.const_data_ptr()); }
  static int64_t pieces(int64_t depth) { return ceil_div(depth, kPieceDepth); }
  const int8_t* panel(int64_t p) const { return packed_ + p * (depth_ + 1) * kGroup; }

  // Row r of a block that begins at `row`: its scale; returns the row as floats if it is a single tile.
  const float* measure(int64_t row, int64_t r, float* tile) {
    if (int8_scale_) {
      x_scales_[size_t(r)] = int8_scale_[row + r];
      return nullptr;
    }
    const Measured found = measured(x_, (row + r) * call_.width, call_.width, tile);
    scales_[size_t(r)] = found.by;
    x_scales_[size_t(r)] = found.by.scale;
    return found.whole;
  }
  // Elements of row r as int8 + 128. at: the first one's place in x; whole: see measure.
  void quantize(int64_t r, int64_t at, int64_t n, const float* whole, float* wide, uint8_t* to) const {
    const RowScale& by = scales_[size_t(r)];
    if (int8_scale_)
      shift_tile(int8_x_ + at, to, n);
    else if (by.finite)
      quantize_tile<true>(whole ? whole : x_.at(at, n, wide), by.inverse, reinterpret_cast<int8_t*>(to), n);
    else
      std::fill_n(to, n, uint8_t(128));
  }
  // Groups [begin, begin + depth) of the rows of a block into pieces, as the product takes them.
  void fill(int64_t row, int64_t rows, int64_t begin, int64_t depth) {
    const int64_t first_element = begin * kDepth, end = std::min((begin + depth) * kDepth, call_.width);
    parallel(rows, kConverted / std::max(kDepth, depth * kDepth) + 1, [&](int64_t first, int64_t last) {
      Tile<float> wide;
      alignas(64) uint8_t tile[kTile + kPiece];
      for (int64_t r = first; r < last; r++) {
        const float* whole = begin == 0 ? measure(row, r, wide) : nullptr;
        const int64_t run = r / kRows * kRows, height = std::min(kRows, rows - run);
        uint8_t* to = block_ + run * pieces(depth) * kPiece + (r - run) * kPiece;
        for (int64_t i = first_element; i < end; i += kTile) {
          const int64_t n = std::min(kTile, end - i);
          quantize(r, (row + r) * call_.width + i, n, whole, wide, tile);
          std::fill_n(tile + n, n % kPiece ? kPiece : 0, uint8_t(128));
          for (int64_t k = 0; k < n; k += kPiece, to += height * kPiece) std::memcpy(to, tile + k, kPiece);
        }
      }
    });
  }
  // The products of the block with panels [first_panel, first_panel + panels), over a slab.
  void multiply(int64_t row, int64_t rows, int64_t begin, int64_t depth, int64_t first_panel, int64_t panels,
                const Sink<float>& out) {
    const int64_t runs = ceil_div(rows, kRows), tasks = panels * runs;
    const bool begins = begin == 0, ends = begin + depth == depth_;
    parallel(tasks, std::max<int64_t>(1, kWork / (kRows * kPanel * std::max<int64_t>(1, depth * kDepth))),
             [&](int64_t first, int64_t last) {
               alignas(64) int32_t tile[kRows * kPanel];
               for (int64_t task = first; task < last; task++) {
                 const int64_t p = first_panel + task / runs, run = task % runs * kRows;
                 const int64_t height = std::min(kRows, rows - run);
                 int32_t* sums = split_ ? sums_ + (task / runs * height_ + run) * kPanel : tile;
                 const int32_t* start = reinterpret_cast<const int32_t*>(panel(p) + depth_ * kGroup);
                 product_({block_ + run * pieces(depth) * kPiece, panel(p) + begin * kGroup, depth, height,
                           begins ? start : sums, begins, sums});
                 if (ends) finish(sums, row + run, run, height, p, out);
               }
             });
  }
  void finish(const int32_t* sums, int64_t row, int64_t r, int64_t height, int64_t p, const Sink<float>& out) const {
    const int64_t column = p * kPanel, columns = std::min(kPanel, call_.columns - column);
    const float *scale = scale_ + column, *bias = bias_ ? bias_ + column : nullptr;
    with_storage(out.dtype, [&](auto stored) {
      using S = typename decltype(stored)::type;
      S* to = static_cast<S*>(out.data) + row * call_.columns + column;
      if constexpr (!std::is_same_v<S, double>) {
        const auto finish = columns < kPanel ? (bias ? finish_tile<false, true, S> : finish_tile<false, false, S>)
                                             : (bias ? finish_tile<true, true, S> : finish_tile<true, false, S>);
        finish(sums, height, columns, x_scales_.data() + r, scale, bias, to, call_.columns);
      }
    });
  }

 public:
  Int8Product(const LinearInt8& call, const OptTensor& bias)
      : call_(call), weight_(call.packed ? call.weight : packed(call.weight)), bias_(bias ? floats(*bias) : nullptr) {
    static thread_local Reused<uint8_t> block;
    static thread_local Reused<int32_t> sums;
    block_ = block.get(height_ * pieces(slab_) * kPiece);
    sums_ = split_ ? sums.get(height_ * kPanelsAtOnce * kPanel) : nullptr;
  }
  void run(const Sink<float>& out) {
    for (int64_t row = 0; row < call_.rows; row += height_) {
      const int64_t rows = std::min(height_, call_.rows - row);
      for (int64_t p = 0; p < panels_; p += panels_at_once_) {
        int64_t begin = 0;
        do {  // once for a width of 0
          const int64_t depth = std::min(slab_, depth_ - begin);
          fill(row, rows, begin, depth);
          multiply(row, rows, begin, depth, p, std::min(panels_at_once_, panels_ - p), out);
          begin += depth;
        } while (begin < depth_);
      }
    }
  }
};

Tensor pack_int8(Tensor weight) {
  check_int8(weight, "weight");
  FMK_CHECK(weight.dim() == 2, "weight must be (out, in)");
  return packed(dense(weight));
}

// As float32, for the epilogue.
OptTensor widened(const OptTensor& x) {
  if (!x || dtype_of(*x) == Dtype::f32) return x;
  Tensor out = fresh_like(*x, Dtype::f32);
  const Values<float> values(*x);
  std::copy_n(values.data(), values.size(), static_cast<float*>(out.mutable_data_ptr()));
  return out;
}

}  // namespace

void run_quantize_rows(const Device&, const Tensor& x, const Tensor& out, const Tensor& scale) {
  const int64_t width = x.size(x.dim() - 1), rows = scale.numel();
  const Source<float> source(x);
  int8_t* to = static_cast<int8_t*>(out.mutable_data_ptr());
  float* scales = static_cast<float*>(scale.mutable_data_ptr());
  parallel(rows, std::max<int64_t>(1, kConverted / std::max<int64_t>(1, width)), [&](int64_t first, int64_t last) {
    Tile<float> tile;
    for (int64_t r = first; r < last; r++) {
      const auto [by, whole] = measured(source, r * width, width, tile);
      scales[r] = by.scale;
      for (int64_t i = 0; i < width; i += kTile) {
        const int64_t at = r * width + i, n = std::min(kTile, width - i);
        if (by.finite)
          quantize_tile<false>(whole ? whole : source.at(at, n, tile), by.inverse, to + at, n);
        else
          std::fill_n(to + at, n, int8_t(0));
      }
    }
  });
}

void run_linear_int8(const Device&, const LinearInt8& call, const Tensor& out) {
  const OptTensor bias = widened(call.bias);
  Int8Product(call, bias).run(Sink<float>(out));
}

STABLE_TORCH_LIBRARY_IMPL(fmkernels, CPU, m) { m.impl("pack_int8", TORCH_BOX(&pack_int8)); }

}  // namespace fmk
