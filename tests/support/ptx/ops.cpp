// What each opcode does to the registers of a warp. An opcode with modifiers that is not listed is an error.
#include <algorithm>
#include <cmath>
#include <limits>

#include "machine.h"

namespace ptx {
namespace {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using f16 = _Float16;
using f32 = float;
using f64 = double;

// ---- lane by lane: all 32 at once where all are active, which the compiler vectorises ----
template <class D, class S, auto F>
void unary(const Warp& w, const Record& i, uint32_t on) {
  D* d = w.lanes<D>(i.dst[0]);
  const S* a = w.lanes<S>(i.src[0]);
  if (on == kAll) {
#pragma GCC ivdep
    for (int l = 0; l < kLanes; l++) d[l] = F(a[l]);
  } else {
    each(on, [&](int l) { d[l] = F(a[l]); });
  }
}
template <class D, class S, class N, auto F>
void binary(const Warp& w, const Record& i, uint32_t on) {
  D* d = w.lanes<D>(i.dst[0]);
  const S* a = w.lanes<S>(i.src[0]);
  const N* b = w.lanes<N>(i.src[1]);
  if (on == kAll) {
#pragma GCC ivdep
    for (int l = 0; l < kLanes; l++) d[l] = F(a[l], b[l]);
  } else {
    each(on, [&](int l) { d[l] = F(a[l], b[l]); });
  }
}
template <class D, class S, auto F>
void ternary(const Warp& w, const Record& i, uint32_t on) {
  D* d = w.lanes<D>(i.dst[0]);
  const S *a = w.lanes<S>(i.src[0]), *b = w.lanes<S>(i.src[1]);
  const D* c = w.lanes<D>(i.src[2]);
  if (on == kAll) {
#pragma GCC ivdep
    for (int l = 0; l < kLanes; l++) d[l] = F(a[l], b[l], c[l]);
  } else {
    each(on, [&](int l) { d[l] = F(a[l], b[l], c[l]); });
  }
}

// ---- predicates: a bit a lane ----
inline void assign(const Warp& w, int reg, uint32_t bits, uint32_t on) {
  uint32_t& p = w.predicate(reg);
  p = (p & ~on) | (bits & on);
}
template <class T, auto F>
void compare(const Warp& w, const Record& i, uint32_t on) {
  const T *a = w.lanes<T>(i.src[0]), *b = w.lanes<T>(i.src[1]);
  uint32_t bits = 0;
  for (int l = 0; l < kLanes; l++) bits |= uint32_t(F(a[l], b[l])) << l;
  assign(w, i.dst[0], bits, on);
  if (i.dsts > 1) assign(w, i.dst[1], ~bits, on);
}
template <auto F>
void logic(const Warp& w, const Record& i, uint32_t on) {
  assign(w, i.dst[0], F(w.predicate(i.src[0]), i.srcs > 1 ? w.predicate(i.src[1]) : 0), on);
}
template <class T>
void select(const Warp& w, const Record& i, uint32_t on) {
  T* d = w.lanes<T>(i.dst[0]);
  const T *a = w.lanes<T>(i.src[0]), *b = w.lanes<T>(i.src[1]);
  const uint32_t p = w.predicate(i.src[2]);
  if (on == kAll) {
#pragma GCC ivdep
    for (int l = 0; l < kLanes; l++) d[l] = p >> l & 1 ? a[l] : b[l];
  } else {
    each(on, [&](int l) { d[l] = p >> l & 1 ? a[l] : b[l]; });
  }
}
// Both halves of a register are compared: the results are two predicates.
template <auto F>
void compare_halves(const Warp& w, const Record& i, uint32_t on) {
  const u32 *a = w.lanes<u32>(i.src[0]), *b = w.lanes<u32>(i.src[1]);
  for (int half = 0; half < i.dsts; half++) {
    uint32_t bits = 0;
    for (int l = 0; l < kLanes; l++) {
      bits |= uint32_t(F(u16(a[l] >> 16 * half), u16(b[l] >> 16 * half))) << l;
    }
    assign(w, i.dst[half], bits, on);
  }
}

// ---- scalar functions ----
template <class To, class From>
To as(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To out;
  std::memcpy(&out, &x, sizeof(out));
  return out;
}
template <class T>
T least(T a, T b) {
  return std::fmin(a, b);
}
template <class T>
T most(T a, T b) {
  return std::fmax(a, b);
}
// Shifts by the width or more give zeros or signs.
template <class T>
T left(T a, u32 n) {
  return n >= 8 * sizeof(T) ? T(0) : T(a << n);
}
template <class T>
T right(T a, u32 n) {
  const u32 most = 8 * sizeof(T) - 1;
  return n > most ? (std::is_signed_v<T> ? T(a >> most) : T(0)) : T(a >> n);
}
// By zero: all bits, as the device gives it.
template <class T>
T quotient(T a, T b) {
  if (b == 0) return T(-1);
  return std::is_signed_v<T> && b == T(-1) ? T(0 - std::make_unsigned_t<T>(a)) : T(a / b);
}
template <class T>
T remainder(T a, T b) {
  return b == 0 ? a : std::is_signed_v<T> && b == T(-1) ? T(0) : T(a % b);
}
template <class T>
T extract(T a, u32 from, u32 count) {  // bfe
  from &= 255, count &= 255;
  const u32 bits = 8 * sizeof(T);
  if (count == 0) return 0;
  using U = std::make_unsigned_t<T>;
  U out = from >= bits ? U(0) : U(U(a) >> from);
  if (std::is_signed_v<T> && from >= bits) out = a < 0 ? U(-1) : U(0);
  if (from + count < bits || (!std::is_signed_v<T> && count < bits)) {
    out &= count >= bits ? U(-1) : (U(1) << count) - 1;
    if (std::is_signed_v<T> && (out >> (count - 1) & 1)) out |= ~((U(1) << count) - 1);
  } else if (std::is_signed_v<T> && a < 0 && from) {
    out |= ~(U(-1) >> (from >= bits ? bits - 1 : from));
  }
  return T(out);
}
u16 to_bf16(f32 x) {
  const u32 bits = as<u32>(x);
  if (std::isnan(x)) return 0x7fff;  // the device's NaN
  return u16((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
f32 from_bf16(u16 x) { return as<f32>(u32(x) << 16); }
u16 to_f16(f32 x) { return std::isnan(x) ? u16(0x7fff) : as<u16>(f16(x)); }

// ---- approximate instructions ----
f32 flushed(f32 x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
// One ulp down, as it is, or one ulp up: a function of the seed and the operand, as on a device, where the same
// operand always gives the same result.
f32 perturbed(f32 result, u32 operand) {
  const u64 seed = machine().perturbation;
  if (!seed || !std::isfinite(result) || result == 0) return result;
  u64 h = (seed ^ operand) * 0x9e3779b97f4a7c15u;
  h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
  return as<f32>(as<s32>(result) + s32((h >> 40) % 3) - 1);
}
template <auto F>
f32 approximate(f32 x) {
  return perturbed(f32(F(f64(x))), as<u32>(x));
}
template <auto F>
f32 approximate_flushing(f32 x) {
  return flushed(perturbed(f32(F(f64(flushed(x)))), as<u32>(x)));
}
f64 inverse(f64 x) { return 1 / x; }
f64 inverse_root(f64 x) { return 1 / std::sqrt(x); }
f64 root(f64 x) { return std::sqrt(x); }
f64 power_of_two(f64 x) { return std::exp2(x); }
f64 logarithm(f64 x) { return std::log2(x); }
f64 hyperbolic_tangent(f64 x) { return std::tanh(x); }
f64 sine(f64 x) { return std::sin(x); }
f64 cosine(f64 x) { return std::cos(x); }
// The upper word alone, with 20 bits of the mantissa.
f64 rough_inverse(f64 x) {
  const f64 flushed = std::fabs(x) < 0x1p-1022 ? std::copysign(0.0, x) : x;
  u64 bits = as<u64>(1 / flushed);
  const u64 seed = machine().perturbation;
  if (seed && std::isfinite(as<f64>(bits)) && as<f64>(bits) != 0) {
    const u64 h = (seed ^ as<u64>(x)) * 0x9e3779b97f4a7c15u;
    bits += ((h >> 40) % 3 - 1) << 32;
  }
  return as<f64>(bits & 0xffffffff00000000u);
}
f32 full_quotient(f32 a, f32 b) { return perturbed(a / b, as<u32>(a) * 31 + as<u32>(b)); }

// ---- moves ----
template <class T>
T same(T x) {
  return x;
}
void pack(const Warp& w, const Record& i, uint32_t on) {
  each(on, [&](int l) {
    uint64_t bits = 0;
    for (int k = 0; k < i.srcs; k++) bits |= w.get(i.src[k], l) << (8 * i.bytes * k);
    w.set(i.dst[0], l, bits);
  });
}
void unpack(const Warp& w, const Record& i, uint32_t on) {
  each(on, [&](int l) {
    const uint64_t bits = w.get(i.src[0], l);
    for (int k = 0; k < i.dsts; k++) w.set(i.dst[k], l, bits >> (8 * i.bytes * k));
  });
}
void insert_bits(const Warp& w, const Record& i, uint32_t on) {  // bfi d, a, b, from, count: a into b
  const int bits = 8 * w.width[i.dst[0]];
  each(on, [&](int l) {
    const uint64_t from = w.get(i.src[2], l) & 255, count = w.get(i.src[3], l) & 255;
    uint64_t mask = count >= 64 ? ~0ull : (1ull << count) - 1;
    mask = from >= uint64_t(bits) ? 0 : mask << from;
    const uint64_t a = from >= 64 ? 0 : w.get(i.src[0], l) << from;
    w.set(i.dst[0], l, (w.get(i.src[1], l) & ~mask) | (a & mask));
  });
}
template <class T>
void extract_bits(const Warp& w, const Record& i, uint32_t on) {
  each(on, [&](int l) {
    w.lanes<T>(i.dst[0])[l] =
        extract<T>(w.lanes<T>(i.src[0])[l], w.lanes<u32>(i.src[1])[l], w.lanes<u32>(i.src[2])[l]);
  });
}
void permute_bytes(const Warp& w, const Record& i, uint32_t on) {
  each(on, [&](int l) {
    const uint64_t bytes = w.get(i.src[0], l) | w.get(i.src[1], l) << 32, choice = w.get(i.src[2], l);
    uint32_t out = 0;
    for (int k = 0; k < 4; k++) {
      const uint32_t which = uint32_t(choice >> 4 * k) & 15;
      uint32_t byte = uint32_t(bytes >> 8 * (which & 7)) & 255;
      if (which & 8) byte = byte & 128 ? 255 : 0;
      out |= byte << 8 * k;
    }
    w.set(i.dst[0], l, out);
  });
}
void to_bf16x2(const Warp& w, const Record& i, uint32_t on) {  // d, upper, lower
  const f32 *a = w.lanes<f32>(i.src[0]), *b = w.lanes<f32>(i.src[1]);
  u32* d = w.lanes<u32>(i.dst[0]);
  each(on, [&](int l) { d[l] = u32(to_bf16(a[l])) << 16 | to_bf16(b[l]); });
}
void to_f16x2(const Warp& w, const Record& i, uint32_t on) {
  const f32 *a = w.lanes<f32>(i.src[0]), *b = w.lanes<f32>(i.src[1]);
  u32* d = w.lanes<u32>(i.dst[0]);
  each(on, [&](int l) { d[l] = u32(to_f16(a[l])) << 16 | to_f16(b[l]); });
}
// Arithmetic on bf16 and pairs of them, each result rounded once.
template <int kElements, auto F>
void on_bf16(const Warp& w, const Record& i, uint32_t on) {
  each(on, [&](int l) {
    uint64_t out = 0;
    for (int k = 0; k < kElements; k++) {
      f32 x[3] = {};
      for (int n = 0; n < i.srcs; n++) x[n] = from_bf16(u16(w.get(i.src[n], l) >> 16 * k));
      out |= uint64_t(to_bf16(F(x[0], x[1], x[2]))) << 16 * k;
    }
    w.set(i.dst[0], l, out);
  });
}

// ---- between lanes ----
// The lane that each active lane reads, and whether it is inside its segment.
struct Sources {
  int from[kLanes];
  uint32_t inside;
};
Sources sources(const Warp& w, const Record& i, uint32_t on) {
  Sources out{{}, 0};
  each(on, [&](int l) {
    const int b = w.lanes<u32>(i.src[1])[l] & 31, c = w.lanes<u32>(i.src[2])[l];
    const u32 mask = w.lanes<u32>(i.src[3])[l];
    if (!(mask >> l & 1)) throw Failure("a lane calls a shuffle whose mask does not name it", l);
    if (const u32 absent = mask & ~on)
      throw Failure("a shuffle names lane " + std::to_string(__builtin_ctz(absent)) + ", which is not there", l);
    const int segment = c >> 8 & 31, bound = c & 31, last = (l & segment) | (bound & ~segment);
    int from = l ^ b;  // bfly, 3
    if (i.kind == 0) from = l - b;  // up
    if (i.kind == 1) from = l + b;  // down
    if (i.kind == 2) from = (l & segment) | (b & ~segment);  // idx
    const bool valid = i.kind == 0 ? from >= last : from <= last;
    out.from[l] = valid ? from : l;
    out.inside |= uint32_t(valid) << l;
    if (!(mask >> out.from[l] & 1))
      throw Failure("a shuffle reads lane " + std::to_string(from) + ", which its mask does not name", l);
  });
  return out;
}
void shuffle(const Warp& w, const Record& i, uint32_t on) {
  const Sources of = sources(w, i, on);
  u32 given[kLanes];
  std::memcpy(given, w.lanes<u32>(i.src[0]), sizeof(given));
  each(on, [&](int l) { w.lanes<u32>(i.dst[0])[l] = given[of.from[l]]; });
  if (i.dsts > 1) assign(w, i.dst[1], of.inside, on);
}

// redux.sync: the largest of the active lanes' numbers, for each of them. All lanes of the mask must be active.
void largest(const Warp& w, const Record& i, uint32_t on) {
  const u32* const mask = w.lanes<u32>(i.src[1]);
  each(on, [&](int l) {
    if (mask[l] & ~on) throw Failure("redux.sync waits for a lane that is not active", l);
  });
  s32 out = std::numeric_limits<s32>::min();
  each(on, [&](int l) { out = std::max(out, w.lanes<s32>(i.src[0])[l]); });
  each(on, [&](int l) { w.lanes<s32>(i.dst[0])[l] = out; });
}

// ---- memory ----
std::string amount(const char* verb, uint64_t bytes) { return std::string(verb) + " " + std::to_string(bytes) + " bytes"; }

// Where `bytes` bytes at an address of a space are, checked.
uint8_t* place(int space, uint64_t address, uint64_t bytes, bool writes, int lane) {
  Machine& m = machine();
  const char* verb = writes ? "writes" : "reads";
  if (address % bytes) throw Failure("misaligned: " + amount(verb, bytes) + " at an address that is not a multiple", lane);
  if (space == kParam) {
    if (address + bytes > m.params.size()) throw Failure("out of bounds: " + amount(verb, bytes) + " beyond the parameters", lane);
    return m.params.data() + address;
  }
  if (space == kShared) {
    if (address + bytes > m.shared.size()) throw Failure("out of bounds: " + amount(verb, bytes) + " of shared memory", lane);
    for (uint64_t k = address; k < address + bytes; k++) {
      if (m.shared_state[k] == 0) throw Failure("out of bounds: " + amount(verb, bytes) + " of shared memory", lane);
      if (!writes && m.shared_state[k] == 1) throw Failure("shared memory is read before it is written", lane);
      if (writes) m.shared_state[k] = 2;
    }
    return m.shared.data() + address;
  }
  Region& r = m.region;
  if (address < r.begin || address + bytes > r.begin + r.bytes) {
    const bool known = m.find(address, &r.begin, &r.bytes);
    if (!known || address + bytes > r.begin + r.bytes) {
      r = {};
      throw Failure("out of bounds: " + amount(verb, bytes) + " outside every tensor", lane);
    }
    auto& pair = m.traffic[r.begin];
    r.traffic = &pair.first;
  }
  r.traffic[writes] += bytes;
  return reinterpret_cast<uint8_t*>(address);
}
uint64_t address_of(const Warp& w, const Record& i, int lane) { return w.get(i.src[0], lane) + uint64_t(i.offset); }

void load(const Warp& w, const Record& i, uint32_t on) {
  each(on, [&](int l) {
    const uint8_t* at = place(i.space, address_of(w, i, l), uint64_t(i.bytes) * i.count, false, l);
    for (int k = 0; k < i.count; k++, at += i.bytes) {
      uint64_t bits = 0;
      std::memcpy(&bits, at, i.bytes);
      if (i.is_signed) bits = uint64_t(int64_t(bits << (64 - 8 * i.bytes)) >> (64 - 8 * i.bytes));
      w.set(i.dst[k], l, bits);
    }
  });
}
void store(const Warp& w, const Record& i, uint32_t on) {
  each(on, [&](int l) {
    uint8_t* at = place(i.space, address_of(w, i, l), uint64_t(i.bytes) * i.count, true, l);
    for (int k = 0; k < i.count; k++, at += i.bytes) {
      const uint64_t bits = w.get(i.src[1 + k], l);
      std::memcpy(at, &bits, i.bytes);
    }
  });
}
template <class T>
void atomic_add(const Warp& w, const Record& i, uint32_t on) {
  each(on, [&](int l) {
    const uint64_t address = address_of(w, i, l);
    place(i.space, address, sizeof(T), false, l);
    uint8_t* at = place(i.space, address, sizeof(T), true, l);
    T old;
    std::memcpy(&old, at, sizeof(T));
    const T sum = T(old + w.lanes<T>(i.src[1])[l]);
    std::memcpy(at, &sum, sizeof(T));
    w.lanes<T>(i.dst[0])[l] = old;
  });
}
// 8 × 8 matrices of 16-bit elements between shared memory and a warp: lane 8 m + r has the address of row r of matrix m;
// a lane holds elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4, or of that column if transposed.
template <bool kLoad, bool kTransposed>
void matrices(const Warp& w, const Record& i, uint32_t on) {
  if (on != kAll) throw Failure("a matrix is moved by a part of a warp");
  for (int m = 0; m < i.count; m++) {
    u16* row[8];
    for (int r = 0; r < 8; r++) {
      const int l = 8 * m + r;
      row[r] = reinterpret_cast<u16*>(place(i.space, address_of(w, i, l), 16, !kLoad, l));
    }
    for (int l = 0; l < kLanes; l++) {
      const int reg = kLoad ? i.dst[m] : i.src[1 + m];
      u32& word = w.lanes<u32>(reg)[l];
      u32 loaded = 0;
      for (int k = 0; k < 2; k++) {
        const int r = kTransposed ? 2 * (l % 4) + k : l / 4, c = kTransposed ? l / 4 : 2 * (l % 4) + k;
        if (kLoad)
          loaded |= u32(row[r][c]) << 16 * k;
        else
          row[r][c] = u16(word >> 16 * k);
      }
      if (kLoad) word = loaded;
    }
  }
}

void no_policy(const Warp& w, const Record& i, uint32_t on) {
  each(on, [&](int l) { w.set(i.dst[0], l, 0); });
}
void nothing(const Warp&, const Record&, uint32_t) {}

// ---- the table ----
using Table = std::unordered_map<std::string, Op>;

template <class D, class S = D, auto F>
Op one() {
  return {unary<D, S, F>, sizeof(D)};
}
template <class D, class S, auto F>
Op two() {
  return {binary<D, S, S, F>, sizeof(D)};
}
template <class T, auto F>
Op three() {
  return {ternary<T, T, F>, sizeof(T)};
}

template <class T>
void integers(Table& t, const std::string& type) {
  using U = std::make_unsigned_t<T>;
  t["add." + type] = two<T, T, [](T a, T b) { return T(U(a) + U(b)); }>();
  t["sub." + type] = two<T, T, [](T a, T b) { return T(U(a) - U(b)); }>();
  t["mul.lo." + type] = two<T, T, [](T a, T b) { return T(u64(a) * u64(b)); }>();
  t["mad.lo." + type] = three<T, [](T a, T b, T c) { return T(u64(a) * u64(b) + u64(c)); }>();
  t["div." + type] = two<T, T, quotient<T>>();
  t["rem." + type] = two<T, T, remainder<T>>();
  t["min." + type] = two<T, T, [](T a, T b) { return b < a ? b : a; }>();
  t["max." + type] = two<T, T, [](T a, T b) { return a < b ? b : a; }>();
  t["shr." + type] = {binary<T, T, u32, right<T>>, sizeof(T)};
  if (std::is_signed_v<T>) {
    t["neg." + type] = one<T, T, [](T a) { return T(0 - U(a)); }>();
    t["abs." + type] = one<T, T, [](T a) { return T(a < 0 ? 0 - U(a) : U(a)); }>();
  }
}
template <class T, class Twice>
void products(Table& t, const std::string& type) {
  t["mul.hi." + type] = two<T, T, [](T a, T b) { return T(Twice(a) * Twice(b) >> 8 * sizeof(T)); }>();
}
template <class T, class Twice>
void wide_products(Table& t, const std::string& type) {
  products<T, Twice>(t, type);
  t["mul.wide." + type] = two<Twice, T, [](T a, T b) { return Twice(Twice(a) * Twice(b)); }>();
  t["mad.wide." + type] = {ternary<Twice, T, [](T a, T b, Twice c) { return Twice(u64(a * Twice(b)) + u64(c)); }>,
                           sizeof(Twice)};
}
template <class T>
void bits(Table& t, const std::string& type) {
  t["and." + type] = two<T, T, [](T a, T b) { return T(a & b); }>();
  t["or." + type] = two<T, T, [](T a, T b) { return T(a | b); }>();
  t["xor." + type] = two<T, T, [](T a, T b) { return T(a ^ b); }>();
  t["not." + type] = one<T, T, [](T a) { return T(~a); }>();
  t["shl." + type] = {binary<T, T, u32, left<T>>, sizeof(T)};
  t["shr." + type] = {binary<T, T, u32, right<T>>, sizeof(T)};
  t["mov." + type] = one<T, T, same<T>>();
}
template <class T>
void selects(Table& t, const std::string& type) {
  t["selp." + type] = {select<T>, sizeof(T)};
}
// What a comparison sees of its operands: subnormal floats as zeros with .ftz, else all as they are.
template <class T, bool kFlush>
T seen(T x) {
  if constexpr (kFlush) return flushed(x);
  return x;
}
template <class T, bool kFlush>
bool before(T a, T b) {
  return seen<T, kFlush>(a) < seen<T, kFlush>(b);
}
template <class T, bool kFlush>
bool not_after(T a, T b) {
  return seen<T, kFlush>(a) <= seen<T, kFlush>(b);
}
template <class T, bool kFlush = false>
void comparisons(Table& t, const std::string& type) {
  t["setp.eq." + type] = {compare<T, [](T a, T b) { return seen<T, kFlush>(a) == seen<T, kFlush>(b); }>, 0};
  t["setp.ne." + type] = {compare<T, [](T a, T b) { return before<T, kFlush>(a, b) || before<T, kFlush>(b, a); }>, 0};
  if (type[0] == 'b') return;
  t["setp.lt." + type] = {compare<T, before<T, kFlush>>, 0};
  t["setp.le." + type] = {compare<T, not_after<T, kFlush>>, 0};
  t["setp.gt." + type] = {compare<T, [](T a, T b) { return before<T, kFlush>(b, a); }>, 0};
  t["setp.ge." + type] = {compare<T, [](T a, T b) { return not_after<T, kFlush>(b, a); }>, 0};
  if (std::is_integral_v<T>) return;
  t["setp.equ." + type] = {compare<T, [](T a, T b) { return !before<T, kFlush>(a, b) && !before<T, kFlush>(b, a); }>, 0};
  t["setp.neu." + type] = {compare<T, [](T a, T b) { return !(seen<T, kFlush>(a) == seen<T, kFlush>(b)); }>, 0};
  t["setp.ltu." + type] = {compare<T, [](T a, T b) { return !not_after<T, kFlush>(b, a); }>, 0};
  t["setp.leu." + type] = {compare<T, [](T a, T b) { return !before<T, kFlush>(b, a); }>, 0};
  t["setp.gtu." + type] = {compare<T, [](T a, T b) { return !not_after<T, kFlush>(a, b); }>, 0};
  t["setp.geu." + type] = {compare<T, [](T a, T b) { return !before<T, kFlush>(a, b); }>, 0};
  t["setp.num." + type] = {compare<T, [](T a, T b) { return a == a && b == b; }>, 0};
  t["setp.nan." + type] = {compare<T, [](T a, T b) { return !(a == a && b == b); }>, 0};
}
template <class T>
void reals(Table& t, const std::string& type) {
  for (const std::string rounding : {".", ".rn."}) {
    t["add" + rounding + type] = two<T, T, [](T a, T b) { return a + b; }>();
    t["sub" + rounding + type] = two<T, T, [](T a, T b) { return a - b; }>();
    t["mul" + rounding + type] = two<T, T, [](T a, T b) { return a * b; }>();
  }
  t["fma.rn." + type] = three<T, [](T a, T b, T c) { return std::fma(a, b, c); }>();
  t["div.rn." + type] = two<T, T, [](T a, T b) { return a / b; }>();
  t["rcp.rn." + type] = one<T, T, [](T a) { return T(1) / a; }>();
  t["sqrt.rn." + type] = one<T, T, [](T a) { return std::sqrt(a); }>();
  t["min." + type] = two<T, T, least<T>>();
  t["max." + type] = two<T, T, most<T>>();
  t["neg." + type] = one<T, T, [](T a) { return -a; }>();
  t["abs." + type] = one<T, T, [](T a) { return std::fabs(a); }>();
  t["copysign." + type] = two<T, T, [](T a, T b) { return std::copysign(b, a); }>();
}
// Floats whose subnormal operands and results become zeros.
void flushing_reals(Table& t) {
  for (const std::string tail : {".ftz.f32", ".rn.ftz.f32"}) {
    t["add" + tail] = two<f32, f32, [](f32 a, f32 b) { return flushed(flushed(a) + flushed(b)); }>();
    t["sub" + tail] = two<f32, f32, [](f32 a, f32 b) { return flushed(flushed(a) - flushed(b)); }>();
    t["mul" + tail] = two<f32, f32, [](f32 a, f32 b) { return flushed(flushed(a) * flushed(b)); }>();
  }
  t["fma.rn.ftz.f32"] =
      three<f32, [](f32 a, f32 b, f32 c) { return flushed(std::fma(flushed(a), flushed(b), flushed(c))); }>();
  t["abs.ftz.f32"] = one<f32, f32, [](f32 a) { return std::fabs(flushed(a)); }>();
  t["neg.ftz.f32"] = one<f32, f32, [](f32 a) { return -flushed(a); }>();
  t["min.ftz.f32"] = two<f32, f32, [](f32 a, f32 b) { return least(flushed(a), flushed(b)); }>();
  t["max.ftz.f32"] = two<f32, f32, [](f32 a, f32 b) { return most(flushed(a), flushed(b)); }>();
  t["sqrt.rn.ftz.f32"] = one<f32, f32, [](f32 a) { return flushed(std::sqrt(flushed(a))); }>();
  t["div.full.ftz.f32"] = two<f32, f32, [](f32 a, f32 b) { return flushed(full_quotient(flushed(a), flushed(b))); }>();
  comparisons<f32, true>(t, "ftz.f32");
}
template <int kElements>
void on_bf16s(Table& t, const std::string& type) {
  const int bytes = 2 * kElements;
  for (const std::string rounding : {".", ".rn."}) {
    t["add" + rounding + type] = {on_bf16<kElements, [](f32 a, f32 b, f32) { return a + b; }>, bytes};
    t["sub" + rounding + type] = {on_bf16<kElements, [](f32 a, f32 b, f32) { return a - b; }>, bytes};
    t["mul" + rounding + type] = {on_bf16<kElements, [](f32 a, f32 b, f32) { return a * b; }>, bytes};
  }
  t["fma.rn." + type] = {on_bf16<kElements, [](f32 a, f32 b, f32 c) { return f32(f64(a) * b + c); }>, bytes};
}
template <class D, class S>
void conversion(Table& t, const std::string& to, const std::string& from) {
  const bool rounds = to[0] == 'f' && (from[0] != 'f' || sizeof(D) < sizeof(S));
  t["cvt." + std::string(rounds ? "rn." : "") + to + "." + from] = one<D, S, [](S x) { return D(x); }>();
}
template <class S>
void conversions(Table& t, const std::string& from) {
  conversion<u16, S>(t, "u16", from);
  conversion<s16, S>(t, "s16", from);
  conversion<u32, S>(t, "u32", from);
  conversion<s32, S>(t, "s32", from);
  conversion<u64, S>(t, "u64", from);
  conversion<s64, S>(t, "s64", from);
  conversion<f32, S>(t, "f32", from);
  conversion<f64, S>(t, "f64", from);
}

Table table() {
  Table t;
  integers<u16>(t, "u16");
  integers<s16>(t, "s16");
  integers<u32>(t, "u32");
  integers<s32>(t, "s32");
  integers<u64>(t, "u64");
  integers<s64>(t, "s64");
  wide_products<u16, u32>(t, "u16");
  wide_products<s16, s32>(t, "s16");
  wide_products<u32, u64>(t, "u32");
  wide_products<s32, s64>(t, "s32");
  products<u64, unsigned __int128>(t, "u64");
  products<s64, __int128>(t, "s64");
  bits<u16>(t, "b16");
  bits<u32>(t, "b32");
  bits<u64>(t, "b64");
  t["mov.b8"] = one<u8, u8, same<u8>>();
  for (const std::string type : {"b16", "u16", "s16", "f16"}) selects<u16>(t, type);
  for (const std::string type : {"b32", "u32", "s32", "f32"}) selects<u32>(t, type);
  for (const std::string type : {"b64", "u64", "s64", "f64"}) selects<u64>(t, type);
  comparisons<u16>(t, "b16");
  comparisons<u16>(t, "u16");
  comparisons<s16>(t, "s16");
  comparisons<u32>(t, "b32");
  comparisons<u32>(t, "u32");
  comparisons<s32>(t, "s32");
  comparisons<u64>(t, "b64");
  comparisons<u64>(t, "u64");
  comparisons<s64>(t, "s64");
  comparisons<f16>(t, "f16");
  comparisons<f32>(t, "f32");
  comparisons<f64>(t, "f64");
  t["setp.lt.f16x2"] = {compare_halves<[](u16 a, u16 b) { return as<f16>(a) < as<f16>(b); }>, 0};
  t["setp.gt.f16x2"] = {compare_halves<[](u16 a, u16 b) { return as<f16>(b) < as<f16>(a); }>, 0};
  t["setp.lt.bf16x2"] = {compare_halves<[](u16 a, u16 b) { return from_bf16(a) < from_bf16(b); }>, 0};
  t["setp.gt.bf16x2"] = {compare_halves<[](u16 a, u16 b) { return from_bf16(b) < from_bf16(a); }>, 0};
  reals<f32>(t, "f32");
  reals<f64>(t, "f64");
  t["and.pred"] = {logic<[](u32 a, u32 b) { return a & b; }>, 0};
  t["or.pred"] = {logic<[](u32 a, u32 b) { return a | b; }>, 0};
  t["xor.pred"] = {logic<[](u32 a, u32 b) { return a ^ b; }>, 0};
  t["not.pred"] = {logic<[](u32 a, u32) { return ~a; }>, 0};
  t["mov.pred"] = {logic<[](u32 a, u32) { return a; }>, 0};

  conversions<u16>(t, "u16");
  conversions<s16>(t, "s16");
  conversions<u32>(t, "u32");
  conversions<s32>(t, "s32");
  conversions<u64>(t, "u64");
  conversions<s64>(t, "s64");
  conversion<f64, f32>(t, "f64", "f32");
  conversion<f32, f64>(t, "f32", "f64");
  t["cvt.s64.s32 of b64"] = one<s64, s64, [](s64 x) { return s64(int32_t(x)); }>();  // of a wider register's low bytes
  t["cvt.s16.s8 of b16"] = one<s16, s16, [](s16 x) { return s16(int8_t(x)); }>();
  t["cvt.f32.f16"] = one<f32, f16, [](f16 x) { return f32(x); }>();
  t["cvt.rn.f16.f32"] = one<u16, f32, to_f16>();
  t["cvt.f32.bf16"] = one<f32, u16, from_bf16>();
  t["cvt.rn.bf16.f32"] = one<u16, f32, to_bf16>();
  t["cvt.rn.bf16x2.f32"] = {to_bf16x2, 4};
  t["cvt.rn.f16x2.f32"] = {to_f16x2, 4};
  t["cvta.to.global.u64"] = one<u64, u64, same<u64>>();
  t["cvta.global.u64"] = one<u64, u64, same<u64>>();

  t["rcp.approx.ftz.f32"] = one<f32, f32, approximate_flushing<inverse>>();
  t["rcp.approx.f32"] = one<f32, f32, approximate<inverse>>();
  t["rcp.approx.ftz.f64"] = one<f64, f64, rough_inverse>();
  t["rsqrt.approx.ftz.f32"] = one<f32, f32, approximate_flushing<inverse_root>>();
  t["rsqrt.approx.f32"] = one<f32, f32, approximate<inverse_root>>();
  t["sqrt.approx.ftz.f32"] = one<f32, f32, approximate_flushing<root>>();
  t["sqrt.approx.f32"] = one<f32, f32, approximate<root>>();
  t["ex2.approx.ftz.f32"] = one<f32, f32, approximate_flushing<power_of_two>>();
  t["ex2.approx.f32"] = one<f32, f32, approximate<power_of_two>>();
  t["lg2.approx.ftz.f32"] = one<f32, f32, approximate_flushing<logarithm>>();
  t["lg2.approx.f32"] = one<f32, f32, approximate<logarithm>>();
  t["tanh.approx.f32"] = one<f32, f32, approximate<hyperbolic_tangent>>();
  t["sin.approx.f32"] = one<f32, f32, approximate<sine>>();
  t["cos.approx.f32"] = one<f32, f32, approximate<cosine>>();
  t["div.full.f32"] = two<f32, f32, full_quotient>();
  t["div.approx.f32"] = two<f32, f32, full_quotient>();
  flushing_reals(t);
  on_bf16s<1>(t, "bf16");
  on_bf16s<2>(t, "bf16x2");

  t["pack"] = {pack, -1};
  t["unpack"] = {unpack, -1};
  t["bfi.b32"] = {insert_bits, 4};
  t["bfi.b64"] = {insert_bits, 8};
  t["bfe.u32"] = {extract_bits<u32>, 4};
  t["bfe.s32"] = {extract_bits<s32>, 4};
  t["bfe.u64"] = {extract_bits<u64>, 8};
  t["bfe.s64"] = {extract_bits<s64>, 8};
  t["prmt.b32"] = {permute_bytes, 4};
  for (const char* kind : {"up", "down", "idx", "bfly"}) t[std::string("shfl.sync.") + kind + ".b32"] = {shuffle, 4};
  t["redux.sync.max.s32"] = {largest, 4};
  t["createpolicy"] = {no_policy, 8};
  t["ld"] = {load, -1};
  t["st"] = {store, -1};
  t["atom.global.add.u32"] = {atomic_add<u32>, 4};
  for (const char* count : {"x1", "x2", "x4"}) {
    const std::string tail = std::string(".sync.aligned.m8n8.") + count;
    t["ldmatrix" + tail + ".shared.b16"] = {matrices<true, false>, 4};
    t["ldmatrix" + tail + ".trans.shared.b16"] = {matrices<true, true>, 4};
    t["stmatrix" + tail + ".shared.b16"] = {matrices<false, false>, -1};
    t["stmatrix" + tail + ".trans.shared.b16"] = {matrices<false, true>, -1};
  }
  for (const char* control : {"bra", "exit", "bar", "fence"}) t[control] = {nothing, -1};
  return t;
}

}  // namespace

uint32_t shuffled_mask(const Warp& w, const Record& i, uint32_t given, uint32_t on) {
  const Sources of = sources(w, i, on);
  uint32_t out = 0;
  each(on, [&](int l) { out |= (given >> of.from[l] & 1) << l; });
  return out;
}

const Table& ops() {
  static const Table all = table();
  return all;
}

}  // namespace ptx
