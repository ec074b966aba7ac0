// The pybind11 module: what this CPU is and how the objects were built. Knows nothing of torch.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cpu/int8_kernel.h"
#include "shared/limits.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace {

struct Cpuid {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

uint32_t highest_leaf() {
#if defined(__x86_64__)
  return __get_cpuid_max(0, nullptr);
#else
  return 0;
#endif
}

Cpuid cpuid(uint32_t leaf, uint32_t subleaf) {
  Cpuid out;
#if defined(__x86_64__)
  if (leaf <= highest_leaf()) __cpuid_count(leaf, subleaf, out.eax, out.ebx, out.ecx, out.edx);
#endif
  return out;
}

constexpr uint32_t kAmxTile = 1u << 24;  // CPUID.7.0:EDX

// AMX is advertised, but the leaf that describes the tiles (0x1D: how many palettes) is missing or
// empty, as some hypervisors leave it: oneDNN then configures no tiles and its first bf16 product
// dies with SIGILL. A pure function of the three numbers, so that it can be tested on any machine.
bool amx_hidden_from(uint32_t highest, uint32_t leaf7_edx, uint32_t leaf1d_eax) {
  if (!(leaf7_edx & kAmxTile)) return false;
  return highest < 0x1D || leaf1d_eax == 0;
}

bool amx_advertised() { return cpuid(7, 0).edx & kAmxTile; }
bool amx_hidden() { return amx_hidden_from(highest_leaf(), cpuid(7, 0).edx, cpuid(0x1D, 0).eax); }

// The instruction set the compiled kernels choose here, by the same test the compiler's resolver makes.
std::string kernel_isa() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return "x86-64-v4";
  if (__builtin_cpu_supports("x86-64-v3")) return "x86-64-v3";
#endif
  return "default";
}

// The instructions of bf16 products.
std::string bf16_kernel() {
  constexpr uint32_t kAmxBf16 = 1u << 22;   // CPUID.7.0:EDX
  constexpr uint32_t kAvx512Bf16 = 1u << 5;  // CPUID.7.1:EAX
  if (cpuid(7, 0).edx & kAmxBf16 && !amx_hidden()) return "amx_bf16";
  return kernel_isa() == "x86-64-v4" && cpuid(7, 1).eax & kAvx512Bf16 ? "avx512_bf16" : "";
}

std::map<std::string, std::string> build_facts() {
  return {{"compiler", __VERSION__},
#if defined(__clang__)
          {"compiler_family", "clang"},
#else
          {"compiler_family", "gcc"},
#endif
          {"cxx_standard", std::to_string(__cplusplus)},
          {"schema", FMK_SCHEMA},  // a digest of fmkernels/schema.py, by which a stale build is known
          {"large_product", std::to_string(fmk::kLargeProduct)},
#define FMK_TEXT(size) #size " "
          {"depthwise_kernels", FMK_DEPTHWISE_KERNELS(FMK_TEXT)},
          {"torch_target_version", FMK_TORCH_TARGET},
          {"built_with_torch", FMK_BUILT_WITH_TORCH}};
}

}  // namespace

PYBIND11_MODULE(_host, m) {
  m.doc() = "CPU features, the AMX check and build facts of fmkernels.";
  m.def("amx_advertised", &amx_advertised, "CPUID says the CPU has AMX tiles.");
  m.def("amx_hidden", &amx_hidden, "AMX is advertised but its tile description is missing: bf16 products may die.");
  m.def("amx_hidden_from", &amx_hidden_from, pybind11::arg("highest_leaf"), pybind11::arg("leaf7_edx"),
        pybind11::arg("leaf1d_eax"), "The rule behind amx_hidden, on given CPUID values.");
  m.def("kernel_isa", &kernel_isa, "The instruction set the kernels run with on this CPU.");
  m.def("int8_kernel", [] { return fmk::kInt8Kernels[int(fmk::int8_kernel())]; },
        "The inner loop that the int8 products run with on this CPU.");
  m.def("bf16_kernel", &bf16_kernel, "The instructions of bf16 products on this CPU, or an empty string.");
  m.def("build_facts", &build_facts, "How the compiled objects were built.");
}
