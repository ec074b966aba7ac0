// Coverage counters for libFuzzer, from the callback that gcc's -fsanitize-coverage=trace-pc inserts into every block.
#include <stdint.h>

#define SIZE (1 << 16)

uint8_t fmk_counters[SIZE];
const unsigned fmk_size = SIZE;

void __sanitizer_cov_trace_pc(void) {
  uintptr_t pc = (uintptr_t)__builtin_return_address(0);
  fmk_counters[(pc ^ pc >> 16) & (SIZE - 1)]++;
}
