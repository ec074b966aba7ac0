// The depthwise convolution of a ConvNeXt block, on grids with channels last, float32. torch's own takes 40 us to begin,
// and seven to ten forwards for the gradient of the weight: fmkernels/ops/depthwise.py.
#include <cstring>

#include "../shared/limits.h"
#include "common.h"

namespace fmk {
namespace {

constexpr int64_t kLanes = 16;  // channels of a block: images are taken apart into blocks, with zeros around
constexpr int64_t kColumns = 4;  // of the output made at once
constexpr int64_t kImages = 4;   // whose shares of a gradient are summed in place
constexpr int64_t kWork = 1 << 18;  // products a thread should have before a second one is woken

struct alignas(kLanes * sizeof(float)) Cell {
  float lane[kLanes];
};
using Block = std::vector<Cell>;
// A cell as a vector; aligned by name, because a plain one is aligned otherwise in each of a kernel's clones.
typedef float Lanes __attribute__((vector_size(sizeof(Cell)), aligned(sizeof(Cell)), may_alias));
inline const Lanes* vectors(const Cell* cell) { return reinterpret_cast<const Lanes*>(cell); }
inline Lanes* vectors(Cell* cell) { return reinterpret_cast<Lanes*>(cell); }

struct Grid {
  int64_t images, height, width, channels, kernel, blocks, row;  // row: of a padded block
  Grid(const Tensor& x, int64_t k)
      : images(x.size(0)), height(x.size(1)), width(x.size(2)), channels(x.size(3)), kernel(k),
        blocks((channels + kLanes - 1) / kLanes),
        row((width + kColumns - 1) / kColumns * kColumns + kernel - 1) {}
  int64_t lanes(int64_t block) const { return std::min(kLanes, channels - block * kLanes); }
  int64_t at(int64_t image, int64_t block) const { return image * height * width * channels + block * kLanes; }
  int64_t grain(int64_t images_each) const {
    return std::max<int64_t>(1, kWork / std::max<int64_t>(1, images_each * height * width * kernel * kernel * kLanes));
  }
  Block padded() const { return Block(size_t((height + kernel - 1) * row)); }
};

inline void copy(const void* from, void* to, int64_t lanes) {
  if (lanes == kLanes)
    std::memcpy(to, from, sizeof(Cell));  // one move: nearly all of them are whole
  else
    std::memcpy(to, from, size_t(lanes) * sizeof(float));
}

// Channels of one image into a block; `out` begins at the first pixel's place, and what is around stays.
void take(const float* x, const Grid& grid, int64_t lanes, Cell* out, int64_t row) {
  for (int64_t h = 0; h < grid.height; h++)
    for (int64_t w = 0; w < grid.width; w++)
      copy(x + (h * grid.width + w) * grid.channels, &out[h * row + w], lanes);
}

// weight (C, 1, K, K) as blocks of K² lanes.
Block filters_of(const float* weight, const Grid& grid, bool turned) {
  const int64_t area = grid.kernel * grid.kernel;
  Block out(size_t(grid.blocks * area));
  for (int64_t c = 0; c < grid.channels; c++)
    for (int64_t i = 0; i < area; i++)
      out[size_t(c / kLanes * area + i)].lane[c % kLanes] = weight[c * area + (turned ? area - 1 - i : i)];
  return out;
}

template <int K>
FMK_CLONES void convolve(const Lanes* padded, const Lanes* filter, const Lanes* bias, const Grid& grid, int64_t lanes,
                         float* out) {
  for (int64_t h = 0; h < grid.height; h++)
    for (int64_t w = 0; w < grid.width; w += kColumns) {
      Lanes sums[kColumns];
      for (Lanes& sum : sums) sum = *bias;
      for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < K; j++) {
          const Lanes* x = padded + (h + i) * grid.row + w + j;
          const Lanes f = filter[i * K + j];
          for (int64_t k = 0; k < kColumns; k++) sums[k] += x[k] * f;
        }
      for (int64_t k = 0; k < std::min(kColumns, grid.width - w); k++)
        copy(&sums[k], out + (h * grid.width + w + k) * grid.channels, lanes);
    }
}

// Adds one image's share to the gradient of its filter: K² lanes, and one more for the bias.
template <int K>
FMK_CLONES void correlate(const Lanes* padded, const Lanes* grad, const Grid& grid, Lanes* sums) {
  for (int64_t i = 0; i < K; i++) {
    Lanes row[K];
    for (int64_t j = 0; j < K; j++) row[j] = sums[i * K + j];
    for (int64_t h = 0; h < grid.height; h++)
      for (int64_t w = 0; w < grid.width; w++) {
        const Lanes* x = padded + (h + i) * grid.row + w;
        const Lanes g = grad[h * grid.width + w];
        for (int64_t j = 0; j < K; j++) row[j] += x[j] * g;
      }
    for (int64_t j = 0; j < K; j++) sums[i * K + j] = row[j];
  }
  for (int64_t p = 0; p < grid.height * grid.width; p++) sums[K * K] += grad[p];
}

template <class F>
void with_kernel(int64_t kernel, F&& f) {
#define FMK_CASE(size) \
  case size: return f(std::integral_constant<int, size>{});
  switch (kernel) {
    FMK_DEPTHWISE_KERNELS(FMK_CASE)
    default: FMK_CHECK(false, "no depthwise kernel of this size");
  }
#undef FMK_CASE
}

// turned: the weight by half a circle, for the gradient.
Tensor convolved(const Tensor& x, const Tensor& weight, const OptTensor& bias, bool turned) {
  check_tensor(x, "x");
  check_tensor(weight, "weight");
  FMK_CHECK(dtype_of(x) == Dtype::f32 && x.dim() == 4, "x must be (B, H, W, C), float32");
  const int64_t kernel = weight.dim() ? weight.size(-1) : 0;
  FMK_CHECK(dtype_of(weight) == Dtype::f32 && has_sizes(weight, {x.size(3), 1, kernel, kernel}),
            "weight must be (C, 1, K, K), float32");
  FMK_CHECK(!bias || (is_here(*bias) && dtype_of(*bias) == Dtype::f32 && has_sizes(*bias, {x.size(3)})),
            "bias must be (C,), float32");
  const Tensor in = dense(x), w = dense(weight), y = fresh(in.sizes(), Dtype::f32);
  const Grid grid(in, kernel);
  const Block filters = filters_of(static_cast<const float*>(w.const_data_ptr()), grid, turned);
  Block biases(size_t(grid.blocks));
  if (bias) std::memcpy(biases.data(), dense(*bias).const_data_ptr(), size_t(grid.channels) * sizeof(float));
  const float* from = static_cast<const float*>(in.const_data_ptr());
  float* to = static_cast<float*>(y.mutable_data_ptr());
  with_kernel(kernel, [&](auto size) {
    constexpr int K = decltype(size)::value;
    parallel(grid.images * grid.blocks, grid.grain(1), [&](int64_t first, int64_t last) {
      Block padded = grid.padded();
      for (int64_t item = first; item < last; item++) {
        const int64_t block = item % grid.blocks, at = grid.at(item / grid.blocks, block), lanes = grid.lanes(block);
        take(from + at, grid, lanes, &padded[size_t(K / 2 * grid.row + K / 2)], grid.row);
        convolve<K>(vectors(padded.data()), vectors(&filters[size_t(block * K * K)]), vectors(&biases[size_t(block)]),
                    grid, lanes, to + at);
      }
    });
  });
  return y;
}

std::tuple<Tensor, Tensor> gradients_of_weight_and_bias(const Tensor& grad, const Tensor& x, int64_t kernel) {
  const Tensor in = dense(x), g = dense(grad);
  const Grid grid(in, kernel);
  const int64_t area = kernel * kernel, runs = (grid.images + kImages - 1) / kImages;
  Block shares(size_t(runs * grid.blocks * (area + 1)));  // one share per run: summed in a fixed order, independent of the thread count
  const float *from = static_cast<const float*>(in.const_data_ptr()), *of = static_cast<const float*>(g.const_data_ptr());
  with_kernel(kernel, [&](auto size) {
    constexpr int K = decltype(size)::value;
    parallel(runs * grid.blocks, grid.grain(kImages), [&](int64_t first, int64_t last) {
      Block padded = grid.padded(), grads(size_t(grid.height * grid.width));
      for (int64_t item = first; item < last; item++) {
        const int64_t block = item % grid.blocks, begin = item / grid.blocks * kImages;
        for (int64_t image = begin; image < std::min(begin + kImages, grid.images); image++) {
          const int64_t at = grid.at(image, block), lanes = grid.lanes(block);
          take(from + at, grid, lanes, &padded[size_t(K / 2 * grid.row + K / 2)], grid.row);
          take(of + at, grid, lanes, grads.data(), grid.width);
          correlate<K>(vectors(padded.data()), vectors(grads.data()), grid, vectors(&shares[size_t(item * (area + 1))]));
        }
      }
    });
  });
  Tensor to_weight = fresh({grid.channels, 1, kernel, kernel}, Dtype::f32), to_bias = fresh({grid.channels}, Dtype::f32);
  float *weight = static_cast<float*>(to_weight.mutable_data_ptr()), *bias = static_cast<float*>(to_bias.mutable_data_ptr());
  for (int64_t c = 0; c < grid.channels; c++)
    for (int64_t i = 0; i <= area; i++) {
      float sum = 0;
      for (int64_t run = 0; run < runs; run++)
        sum += shares[size_t((run * grid.blocks + c / kLanes) * (area + 1) + i)].lane[c % kLanes];
      (i < area ? weight[c * area + i] : bias[c]) = sum;
    }
  return {to_weight, to_bias};
}

Tensor depthwise(Tensor x, Tensor weight, OptTensor bias) { return convolved(x, weight, bias, false); }

// What is not asked for is empty.
std::tuple<Tensor, Tensor, Tensor> depthwise_backward(Tensor grad, Tensor x, Tensor weight, bool to_x, bool to_weight) {
  check_tensor(x, "x");
  check_tensor(weight, "weight");
  check_like(grad, x, "grad");
  FMK_CHECK(dtype_of(x) == Dtype::f32 && dtype_of(grad) == Dtype::f32 && x.dim() == 4 && weight.dim() == 4,
            "grad and x must be (B, H, W, C), float32, and weight (C, 1, K, K)");
  const Tensor grad_x = to_x ? convolved(grad, weight, std::nullopt, true) : fresh({0}, Dtype::f32);
  if (!to_weight) return {grad_x, fresh({0}, Dtype::f32), fresh({0}, Dtype::f32)};
  const auto [grad_weight, grad_bias] = gradients_of_weight_and_bias(grad, x, weight.size(-1));
  return {grad_x, grad_weight, grad_bias};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(fmkernels, CPU, m) {
  m.impl("depthwise", TORCH_BOX(&depthwise));
  m.impl("depthwise_backward", TORCH_BOX(&depthwise_backward));
}

}  // namespace fmk
