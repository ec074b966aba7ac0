// The RMS norm of queries and keys and their rotary embedding, forward and backward: the ops on any device.
#pragma once
#include "tensors.h"

namespace fmk {

// Rows of D elements in a tensor of (B, S, H, D) or (B, H, S, D): the distances between samples, tokens and heads.
struct RopeStrides {
  int64_t sample, token, head;
  RopeStrides() = default;
  RopeStrides(const Tensor& x, int64_t sequence_dim)
      : sample(x.stride(0)), token(x.stride(sequence_dim)), head(x.stride(3 - sequence_dim)) {}
};

// q or k: x, whose rows are contiguous, and what is computed of it.
struct RopeSide {
  Tensor x, out;  // out may be x; in the backward, it is the gradient to x
  OptTensor weight, grad, to_weight;
  RopeStrides x_at, out_at, grad_at;
  int64_t heads;
  bool together;  // one norm over all heads of a token

  // Rows that are normalized, and their width in heads.
  int64_t heads_of_row() const { return together ? std::max<int64_t>(heads, 1) : 1; }
};

struct RopeCall {
  Tensor cos, sin;  // dense
  int64_t samples, tokens, width, rotated, table_stride;  // table_stride: between the tables of two samples
  double eps;
  bool norm, interleaved, heads_first, in_double;
  std::vector<RopeSide> sides;

  int64_t rows(const RopeSide& side) const { return samples * tokens * (side.heads / side.heads_of_row()); }
};
void run_rope(const Device& device, const RopeCall& call);
// to_weight has the compute type.
void run_rope_backward(const Device& device, const RopeCall& call);

// The rows of x are contiguous, as those of x itself or of a copy.
inline Tensor with_dense_rows(const Tensor& x) { return x.stride(3) == 1 || x.size(3) <= 1 ? x : dense(x); }

inline RopeCall check_rope(const Tensor& q, const OptTensor& k, const OptTensor& q_weight, const OptTensor& k_weight,
                           const Tensor& cos, const Tensor& sin, double eps, bool norm, bool interleaved,
                           int64_t sequence_dim) {
  check_tensor(q, "q");
  check_tensor(cos, "cos");
  check_finite(eps, "eps");
  FMK_CHECK(q.dim() == 4, "q must have four dimensions");
  FMK_CHECK(sequence_dim == 1 || sequence_dim == 2, "sequence_dim must be 1 or 2");
  RopeCall call{};
  call.samples = q.size(0);
  call.tokens = q.size(sequence_dim);
  call.width = q.size(3);
  const bool by_sample = cos.dim() == 3;
  FMK_CHECK(by_sample || cos.dim() == 2, "cos must have two or three dimensions");
  call.rotated = cos.size(cos.dim() - 1);
  FMK_CHECK(cos.size(cos.dim() - 2) == call.tokens && (!by_sample || cos.size(0) == call.samples) &&
                call.rotated <= call.width && call.rotated % 2 == 0,
            "cos must be (S, R) or (B, S, R) with an even R of at most D");
  check_like(sin, cos, "sin");
  call.cos = dense(cos);
  call.sin = dense(sin);
  call.table_stride = by_sample ? call.tokens * call.rotated : 0;
  call.eps = eps;
  call.norm = norm;
  call.interleaved = interleaved;
  call.heads_first = sequence_dim == 2;
  call.in_double = is_double(q) || is_double(k);
  FMK_CHECK(k || !k_weight, "k_weight goes with k");
  for (const auto& [x, weight] : {std::pair(&q, &q_weight), std::pair(pointer_to(k), &k_weight)}) {
    if (!x) continue;
    check_tensor(*x, "k");
    FMK_CHECK(x->dim() == 4 && x->size(0) == call.samples && x->size(sequence_dim) == call.tokens &&
                  x->size(3) == call.width,
              "k must have q's shape, but for the number of heads");
    RopeSide side{};
    side.heads = x->size(3 - sequence_dim);
    if (*weight) {
      check_tensor(**weight, "weight");
      FMK_CHECK(norm, "weights go with norm");
      const int64_t size = (*weight)->numel();
      FMK_CHECK((*weight)->dim() == 1 && (size == call.width || size == side.heads * call.width),
                "weights must be (D,) or (H * D,)");
      side.together = size != call.width;
      side.weight = dense(**weight);
    }
    side.x = with_dense_rows(*x);
    side.x_at = RopeStrides(side.x, sequence_dim);
    call.sides.push_back(std::move(side));
  }
  return call;
}

inline std::tuple<Tensor, Tensor> qk_norm_rope(Tensor q, OptTensor k, OptTensor q_weight, OptTensor k_weight,
                                               Tensor cos, Tensor sin, double eps, bool norm, bool interleaved,
                                               int64_t sequence_dim) {
  const Device device(q, "q");
  RopeCall call = check_rope(q, k, q_weight, k_weight, cos, sin, eps, norm, interleaved, sequence_dim);
  for (RopeSide& side : call.sides) {
    side.out = fresh_like(side.x);
    side.out_at = RopeStrides(side.out, sequence_dim);
  }
  run_rope(device, call);
  return {call.sides[0].out, k ? call.sides[1].out : nothing()};
}

inline void qk_norm_rope_in_place(Tensor q, OptTensor k, OptTensor q_weight, OptTensor k_weight, Tensor cos, Tensor sin,
                                  double eps, bool norm, bool interleaved, int64_t sequence_dim) {
  const Device device(q, "q");
  RopeCall call = check_rope(q, k, q_weight, k_weight, cos, sin, eps, norm, interleaved, sequence_dim);
  const std::vector<const Tensor*> read{pointer_to(q_weight), pointer_to(k_weight), &cos, &sin};
  check_writable(q, "q", read);
  if (k) check_writable(*k, "k", read);
  for (RopeSide& side : call.sides) {
    side.out = side.x;
    side.out_at = side.x_at;
  }
  run_rope(device, call);
  if (call.sides[0].out.get() != q.get()) torch::stable::copy_(q, call.sides[0].out);
  if (k && call.sides[1].out.get() != k->get()) torch::stable::copy_(*k, call.sides[1].out);
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor> qk_norm_rope_backward(
    OptTensor grad_q, OptTensor grad_k, Tensor q, OptTensor k, OptTensor q_weight, OptTensor k_weight, Tensor cos,
    Tensor sin, double eps, bool norm, bool interleaved, int64_t sequence_dim) {
  const Device device(q, "q");
  RopeCall call = check_rope(q, k, q_weight, k_weight, cos, sin, eps, norm, interleaved, sequence_dim);
  FMK_CHECK(k || !grad_k, "grad_k goes with k");
  call.in_double = call.in_double || is_double(grad_q) || is_double(grad_k);
  Tensor results[4] = {nothing(), nothing(), nothing(), nothing()};
  std::vector<RopeSide> sides;
  for (size_t i = 0; i < call.sides.size(); i++) {
    const OptTensor& grad = i == 0 ? grad_q : grad_k;
    if (!grad) continue;
    RopeSide side = call.sides[i];
    check_like(*grad, side.x, "grad");
    side.grad = with_dense_rows(*grad);
    side.grad_at = RopeStrides(*side.grad, sequence_dim);
    side.out = results[i] = fresh_like(side.x);
    side.out_at = RopeStrides(side.out, sequence_dim);
    if (side.weight) side.to_weight = results[2 + i] = fresh_like(*side.weight, wide_dtype(call.in_double));
    sides.push_back(std::move(side));
  }
  call.sides = std::move(sides);
  run_rope_backward(device, call);
  return {results[0], results[1], results[2], results[3]};
}

STABLE_TORCH_LIBRARY_IMPL(fmkernels, FMK_KEY, m) {
  m.impl("qk_norm_rope", TORCH_BOX(&qk_norm_rope));
  m.impl("qk_norm_rope_", TORCH_BOX(&qk_norm_rope_in_place));
  m.impl("qk_norm_rope_backward", TORCH_BOX(&qk_norm_rope_backward));
}

}  // namespace fmk
