// Which inner loop the int8 product has on this CPU. Without torch: csrc/host.cpp reports it.
#pragma once
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 11)
#define FMK_INT8_X86
#endif

namespace fmk {

enum class Int8Kernel { plain, avx2, avx_vnni, avx512_vnni };
constexpr const char* kInt8Kernels[] = {"plain", "avx2", "avx_vnni", "avx512_vnni"};

inline bool supports(Int8Kernel kernel) {
#ifdef FMK_INT8_X86
  __builtin_cpu_init();
  switch (kernel) {
    case Int8Kernel::avx512_vnni: return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vnni");
    case Int8Kernel::avx_vnni: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avxvnni");
    case Int8Kernel::avx2: return __builtin_cpu_supports("avx2");
    default: return true;
  }
#else
  return kernel == Int8Kernel::plain;
#endif
}

// The best one that this CPU supports; FMKERNELS_INT8_KERNEL excludes those above the one it names.
inline Int8Kernel int8_kernel() {
  const char* limit = std::getenv("FMKERNELS_INT8_KERNEL");
  bool excluded = false;
  for (const char* name : kInt8Kernels) excluded |= limit && std::strcmp(limit, name) == 0;
  for (int i = 3; i > 0; i--) {
    excluded = excluded && std::strcmp(limit, kInt8Kernels[i]) != 0;
    if (!excluded && supports(Int8Kernel(i))) return Int8Kernel(i);
  }
  return Int8Kernel::plain;
}

}  // namespace fmk
