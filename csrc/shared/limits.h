// Limits that the kernels and Python share: fmkernels reads them from build_facts() of csrc/host.cpp.
#pragma once
#include <cstdint>

namespace fmk {

// Multiplications from which on a product of linear may use oneDNN instead of torch's default library.
constexpr int64_t kLargeProduct = 1 << 24;

// The packed int8 weight of csrc/cpu/int8_product.h: columns of a panel, elements of a group, bytes of a panel's groups.
constexpr int64_t kPanel = 32, kDepth = 4, kGroup = kPanel * kDepth;

// The kernel sizes that depthwise is compiled for.
#define FMK_DEPTHWISE_KERNELS(use) use(3) use(5) use(7)

}  // namespace fmk
