// Kernels with one mistake each, for tests/gpu/test_cuda.py to see caught; and the same without it.
#include <cuda_runtime.h>

namespace {

constexpr unsigned kAll = 0xffffffffu;
alignas(16) float memory[64];

void reads_beyond(int beyond) { __stwb(memory, __ldg(memory + 63 + beyond)); }

void reads_vector(int off) { __ldg(reinterpret_cast<const uint4*>(memory + off)); }

void reads_what_another_wrote(int barrier) {
  FMK_SHARED(float, 1, shared);
  if (threadIdx.x == 0) shared[0] = 1;
  if (barrier) __syncthreads();
  __stwb(memory + threadIdx.x, float(shared[0]));
}

void overwrites(int barrier) {
  FMK_SHARED(float, 32, shared);
  shared[threadIdx.x] = 1;
  __syncthreads();
  const float other = shared[(threadIdx.x + 1) % 32];
  if (barrier) __syncthreads();
  shared[threadIdx.x] = other;
}

void reads_unwritten(int written) {
  FMK_DYNAMIC_SHARED(float, shared);
  if (written) shared[threadIdx.x] = 1;
  __stwb(memory + threadIdx.x, float(shared[threadIdx.x]));
}

void leaves_before_barrier(int stay) {
  if (!stay && threadIdx.x == 7) return;
  __syncthreads();
}

void two_barriers(int same) {
  if (same || threadIdx.x < 16)
    __syncthreads();
  else
    __syncthreads();
}

void shuffles_after_exit(int stay) {
  if (!stay && threadIdx.x == 31) return;
  __shfl_down_sync(kAll, threadIdx.x, 1);
}

void shuffles_in_branch(int all) {
  if (all || threadIdx.x < 16) __shfl_xor_sync(kAll, threadIdx.x, 1);
  __syncthreads();
}

void shuffles_unnamed(int named) { __shfl_xor_sync(named ? kAll : kAll >> 1, threadIdx.x, 1); }


void fills_shared_memory(int little) {
  if (little) return;
  FMK_SHARED(float, 12288, shared);  // beside the 128 bytes of the launch
  shared[threadIdx.x] = 0;
}

void reads_its_own_through_the_read_only_path(int not_its_own) {
  __stwb(memory + threadIdx.x, 1.0f);
  __ldg(memory + threadIdx.x + (not_its_own ? 32 : 0));
}

void counts_without_fence(int fence) {
  __stcg(memory + 1 + threadIdx.x, 1.0f);
  if (fence) __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(reinterpret_cast<unsigned*>(memory), 1u);
}

void counts_without_barrier(int barrier) {
  __stcg(memory + 1 + threadIdx.x, 1.0f);
  __threadfence();
  if (barrier) __syncthreads();
  if (threadIdx.x == 31) atomicAdd(reinterpret_cast<unsigned*>(memory), 1u);
}

// Votes, shuffles and an atomic that mean what they mean, or are said to mean something else.
void votes(int right) {
  const unsigned all = __ballot_sync(kAll, threadIdx.x % 2);
  const bool good = all == 0xaaaaaaaau && __any_sync(kAll, threadIdx.x == 3) && !__all_sync(kAll, threadIdx.x > 0) &&
                    __shfl_down_sync(kAll, threadIdx.x, 1) == (threadIdx.x == 31 ? 31 : threadIdx.x + 1) &&
                    __shfl_xor_sync(kAll, 2.5 * threadIdx.x, 3) == 2.5 * (threadIdx.x ^ 3);
  if (threadIdx.x == 0) __stwb(reinterpret_cast<unsigned*>(memory), 0u);
  __threadfence();
  __syncthreads();
  const unsigned before = atomicAdd(reinterpret_cast<unsigned*>(memory), 2u);
  if (good != bool(right) || before % 2 || before > 62) cuda_on_host::fail("votes");
}

struct Case {
  const char* name;
  void (*kernel)(int);
};
const Case cases[] = {{"out of bounds", reads_beyond},
                      {"misaligned", reads_vector},
                      {"missing barrier before a read", reads_what_another_wrote},
                      {"missing barrier before a write", overwrites},
                      {"unwritten shared memory", reads_unwritten},
                      {"missed barrier", leaves_before_barrier},
                      {"divergent barriers", two_barriers},
                      {"exited lane", shuffles_after_exit},
                      {"lanes elsewhere", shuffles_in_branch},
                      {"unnamed lane", shuffles_unnamed},
                      {"too much shared memory", fills_shared_memory},
                      {"read-only load", reads_its_own_through_the_read_only_path},
                      {"no fence", counts_without_fence},
                      {"no barrier behind the fence", counts_without_barrier},
                      {"votes", votes}};

}  // namespace

// What is said of a kernel by that name; with "fixed " before the name, of the kernel without its mistake.
extern "C" const char* cuda_on_host_broken(const char* asked) {
  static std::string said;
  const std::string fixed = "fixed ", name = asked;
  const bool good = name.rfind(fixed, 0) == 0;
  for (const Case& one : cases) {
    if (one.name != (good ? name.substr(fixed.size()) : name)) continue;
    const bool address = one.kernel == reads_beyond || one.kernel == reads_vector;  // these take a distance
    cuda_on_host::state().regions[reinterpret_cast<uintptr_t>(memory)].bytes = sizeof(memory);
    cudaLaunchConfig_t config;
    config.stream = &cuda_on_host::state().stream;
    cuda_on_host::state().guards++;
    config.gridDim = 2;
    config.blockDim = 32;
    config.dynamicSmemBytes = 32 * sizeof(float);
    said.clear();
    try {
      cudaLaunchKernelEx(&config, one.kernel, address ? !good : good);
    } catch (const std::runtime_error& error) {
      said = error.what();
    }
    cuda_on_host::state().guards--;
    cuda_on_host::state().last = nullptr;
    cuda_on_host::state().regions.erase(reinterpret_cast<uintptr_t>(memory));
    return said.c_str();
  }
  return "no such kernel";
}
