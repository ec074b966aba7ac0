// CUDA kernels on the CPU, for tests: g++ finds this where nvcc finds the CUDA runtime, and compiles csrc/cuda
// unchanged. A launch runs the blocks one after another, a fiber a thread; every load, store, barrier and
// shuffle passes through here and is checked:
//   an access outside every tensor, or at an address its width does not allow; a read-only load (__ldg) of what
//   the launch itself has written;
//   shared memory read before it was written, or touched by two threads with no barrier between;
//   a barrier that some threads do not reach, or reach at another line; a shuffle that names a lane which has
//   ended or does not come;
//   an atomic counter moved while a thread of the block has stores behind it that no fence and barrier follow;
//   a launch outside torch's stream or without its device guard, or with more shared memory than 48 KB or what the
//   kernel asked for (of 99 KB).
// Blocks and threads run in order, or in one drawn from a seed. What this cannot show: speed, races between
// blocks, how a device rounds.
#pragma once
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <ucontext.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x, y = 1, z = 1;
  dim3(unsigned x_ = 1) : x(x_) {}
};
inline dim3 gridDim, blockDim, blockIdx, threadIdx;

namespace cuda_on_host {

constexpr int kWarp = 32;

// ---- memory: the blocks of torch's allocator, which the test gives it (run.cpp) ----
struct Region {
  size_t bytes = 0;
  std::vector<uint8_t> reads, writes;  // of each byte, while counting
  std::vector<int64_t> writer;         // of each byte: the launch that wrote it last
};
// Runs a launch instead of the fibers: bytes of the arguments are where `arguments` say. Returns what went wrong, or null.
using Interpret = const char* (*)(const void* kernel, unsigned grid, unsigned threads, size_t shared_bytes, uint64_t seed,
                                  const void* const* arguments, const size_t* sizes, int count);
struct State {
  Interpret interpret = nullptr;
  std::mutex running;
  std::mutex allocating;
  std::map<uintptr_t, Region> regions;
  uintptr_t last_begin = 0;
  Region* last = nullptr;
  bool counting = false;
  uint64_t seed = 0;         // of the order of blocks and threads; 0 is theirs
  unsigned most_blocks = 0;  // a launch gets no more of them: kernels go on in strides of the grid; 0 is no limit
  std::atomic<int64_t> launches{0}, memsets{0};
  std::atomic<int> guards{0};  // of the device, now open
  int stream;                  // its address is torch's current stream
};
State& state();

[[noreturn]] void fail(const std::string& what);

void stored();  // by the current thread

inline void touch(const void* at, size_t bytes, bool writes, bool constant = false) {
  State& s = state();
  const auto address = reinterpret_cast<uintptr_t>(at);
  const char* const verb = writes ? "writes " : "reads ";
  if (address % bytes) fail(std::string("misaligned: ") + verb + std::to_string(bytes) + " bytes at once");
  if (!s.last || address < s.last_begin || address + bytes > s.last_begin + s.last->bytes) {
    auto found = s.regions.upper_bound(address);
    const bool inside = found != s.regions.begin() &&
                        (--found, address + bytes <= found->first + found->second.bytes);
    if (!inside) fail(std::string("out of bounds: ") + verb + std::to_string(bytes) + " bytes outside every tensor");
    s.last_begin = found->first;
    s.last = &found->second;
  }
  const size_t first = address - s.last_begin;
  auto& writer = s.last->writer;
  if (writes) {
    writer.resize(s.last->bytes);
    std::fill_n(writer.begin() + int64_t(first), bytes, s.launches);
    stored();
  } else if (constant && !writer.empty() && std::count(writer.begin() + int64_t(first), writer.begin() + int64_t(first + bytes), s.launches)) {
    fail("a read-only load of what this launch has written");
  }
  if (!s.counting) return;
  auto& counts = writes ? s.last->writes : s.last->reads;
  counts.resize(s.last->bytes);
  for (size_t i = 0; i < bytes; i++) {
    uint8_t& count = counts[address - s.last_begin + i];
    if (count < 255) count++;
  }
}
template <class T>
T get(const T* at, bool constant) {
  touch(at, sizeof(T), false, constant);
  return *at;
}
template <class T>
void put(T* at, T x) {
  touch(at, sizeof(T), true);
  *at = x;
}

// ---- threads ----
enum class Waits { no, barrier, warp, ended };
struct Fiber {
  ucontext_t begin;
  jmp_buf at;
  bool started;
  Waits waits;
  int line;
  bool unfenced;    // stores since the last fence
  uint32_t fenced;  // the barriers passed at the last fence behind stores
  uint32_t mask;
  uint64_t given, got[kWarp];  // to a shuffle or vote, and by every lane of it
};
struct Block {
  std::vector<Fiber> threads;
  std::vector<std::vector<char>> stacks;
  jmp_buf scheduler;
  int current;
  uint32_t epoch;  // barriers passed
  std::function<void()> kernel;
  std::string error;
  size_t shared_bytes;  // dynamic, and static as arrays are met
  size_t shared_limit;
};
Block& block();

inline void wait(Waits what, int line) {
  Fiber& me = block().threads[block().current];
  me.waits = what;
  me.line = line;
  if (!_setjmp(me.at)) _longjmp(block().scheduler, 1);
}

inline int lane() { return block().current % kWarp; }

template <class T>
uint64_t bits_of(T x) {
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof(T));
  return bits;
}
// What every lane of the mask gave.
inline const uint64_t* exchange(int line, uint32_t mask, uint64_t given) {
  Fiber& me = block().threads[block().current];
  if (!(mask >> lane() & 1)) fail("a lane calls a shuffle whose mask does not name it");
  me.mask = mask;
  me.given = given;
  wait(Waits::warp, line);
  return me.got;
}
template <class T>
T shuffle(int line, uint32_t mask, T x, int from) {
  const uint64_t* const all = exchange(line, mask, bits_of(x));
  if (from < 0 || from >= kWarp) return x;
  if (!(mask >> from & 1)) fail("a shuffle reads a lane its mask does not name");
  T out;
  std::memcpy(&out, &all[from], sizeof(T));
  return out;
}
inline uint32_t ballot(int line, uint32_t mask, bool x) {
  const uint64_t* const all = exchange(line, mask, x);
  uint32_t votes = 0;
  for (int i = 0; i < kWarp; i++) votes |= uint32_t((mask >> i & 1) && all[i]) << i;
  return votes;
}

// ---- shared memory: poisoned for every block; each element knows who touched it since the last barrier ----
struct Shadow {
  int writer = -1, reader = -1;
  uint32_t written = 0, read = 0;
};
template <class T>
struct Element {
  T* at;
  Shadow* shadow;

  operator T() const {
    const int me = block().current;
    if (shadow->writer < 0) fail("shared memory is read before it is written");
    if (shadow->writer != me && shadow->written == block().epoch) fail("shared memory: a barrier is missing before a read");
    shadow->reader = shadow->read == block().epoch && shadow->reader >= 0 && shadow->reader != me ? 1 << 30 : me;
    shadow->read = block().epoch;
    return *at;
  }
  const Element& operator=(T x) const {
    const int me = block().current;
    const bool others_wrote = shadow->writer >= 0 && shadow->writer != me && shadow->written == block().epoch;
    const bool others_read = shadow->reader >= 0 && shadow->reader != me && shadow->read == block().epoch;
    if (others_wrote || others_read) fail("shared memory: a barrier is missing before a write");
    shadow->writer = me;
    shadow->written = block().epoch;
    *at = x;
    return *this;
  }
  const Element& operator=(const Element& other) const { return *this = T(other); }
  const Element& operator+=(T x) const { return *this = T(*this) + x; }
};
struct Poisoned {
  std::vector<unsigned char> bytes;
  std::vector<Shadow> shadows;
  void poison() {
    std::fill(bytes.begin(), bytes.end(), 0xff);
    std::fill(shadows.begin(), shadows.end(), Shadow());
  }
};
std::vector<Poisoned*>& all_shared();
Poisoned& dynamic_shared();

template <class T>
struct Pointer {
  Poisoned* memory;
  int64_t base;
  Element<T> operator[](int64_t i) const {
    const int64_t at = base + i;
    if (at < 0 || size_t(at + 1) * sizeof(T) > memory->bytes.size()) fail("out of bounds: shared memory");
    return {reinterpret_cast<T*>(memory->bytes.data()) + at, &memory->shadows[at]};
  }
  Pointer operator+(int64_t i) const { return {memory, base + i}; }
};
template <class T>
struct Shared : Poisoned {
  explicit Shared(size_t count) {
    bytes.resize(count * sizeof(T));
    shadows.resize(count);
    poison();
    all_shared().push_back(this);
  }
  // A block has 48 KB, of fixed and given size together, unless its kernel asked for more.
  Pointer<T> met() {
    if (launch != state().launches) {
      launch = state().launches;
      block().shared_bytes += bytes.size();
      if (block().shared_bytes > block().shared_limit)
        fail("more than " + std::to_string(block().shared_limit >> 10) + " KB of shared memory");
    }
    return {this, 0};
  }

 private:
  int64_t launch = 0;  // the last that met it
};

constexpr int kMostShared = 99 << 10;  // of a block that asks: as much as the smallest of the devices has
std::map<const void*, size_t>& asked_shared();  // kernel -> bytes of the size given with the launch

void run(const std::function<void()>& kernel, unsigned grid, unsigned threads, size_t shared_bytes,
         size_t shared_limit);
void interpret(const void* kernel, unsigned grid, unsigned threads, size_t shared_bytes, const void* const* arguments,
               const size_t* sizes, int count);

}  // namespace cuda_on_host

// ---- what kernels call ----
#define FMK_SHARED(type, count, name)                             \
  static cuda_on_host::Shared<type> name##_of_all_blocks(count); \
  const cuda_on_host::Pointer<type> name = name##_of_all_blocks.met()
#define FMK_DYNAMIC_SHARED(type, name) const cuda_on_host::Pointer<type> name{&cuda_on_host::dynamic_shared(), 0}
#define __syncthreads() cuda_on_host::wait(cuda_on_host::Waits::barrier, __LINE__)
#define __shfl_xor_sync(mask, value, distance) \
  cuda_on_host::shuffle(__LINE__, mask, value, cuda_on_host::lane() ^ (distance))
#define __shfl_sync(mask, value, from) cuda_on_host::shuffle(__LINE__, mask, value, from)
#define __shfl_down_sync(mask, value, distance) \
  cuda_on_host::shuffle(__LINE__, mask, value, cuda_on_host::lane() + (distance))
#define __ballot_sync(mask, vote) cuda_on_host::ballot(__LINE__, mask, vote)
#define __any_sync(mask, vote) (__ballot_sync(mask, vote) != 0)
#define __all_sync(mask, vote) (__ballot_sync(mask, !(vote)) == 0)
inline void __threadfence() {
  auto& me = cuda_on_host::block().threads[cuda_on_host::block().current];
  if (me.unfenced) me.fenced = cuda_on_host::block().epoch;
  me.unfenced = false;
}

template <class T>
T __ldg(const T* at) {
  return cuda_on_host::get(at, true);
}
template <class T>
T __ldcg(const T* at) {
  return cuda_on_host::get(at, false);
}
template <class T>
void __stwb(T* at, T x) {
  cuda_on_host::put(at, x);
}
template <class T>
void __stcg(T* at, T x) {
  cuda_on_host::put(at, x);
}
inline unsigned atomicAdd(unsigned* at, unsigned x) {
  const auto& block = cuda_on_host::block();
  for (size_t i = 0; i < block.threads.size(); i++) {
    if (block.threads[i].unfenced) cuda_on_host::fail("a counter moves before a fence behind a thread's stores");
    if (int(i) != block.current && block.threads[i].fenced == block.epoch)
      cuda_on_host::fail("a counter moves before a barrier behind a thread's fence");
  }
  cuda_on_host::touch(at, sizeof(unsigned), true);
  cuda_on_host::block().threads[block.current].unfenced = false;  // the atomic itself
  return (*at += x) - x;
}

// ---- what the host calls ----
using cudaStream_t = void*;
enum cudaError_t { cudaSuccess, cudaErrorInvalidConfiguration, cudaErrorNoKernelImageForDevice };
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t stream) {
  if (stream != &cuda_on_host::state().stream) return cudaErrorInvalidConfiguration;
  cuda_on_host::state().memsets++;
  std::memset(at, value, bytes);
  return cudaSuccess;
}
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
inline cudaError_t cudaDeviceGetAttribute(int* out, cudaDeviceAttr, int) {
  *out = cuda_on_host::kMostShared;
  return cudaSuccess;
}
template <class... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute, int bytes) {
  if (bytes > cuda_on_host::kMostShared) return cudaErrorInvalidConfiguration;
  cuda_on_host::asked_shared()[reinterpret_cast<const void*>(kernel)] = size_t(bytes);
  return cudaSuccess;
}
inline const char* cudaGetErrorString(cudaError_t) { return "invalid configuration, stream or device"; }
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};
template <class... Parameters>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const std::common_type_t<Parameters>&... arguments) {
  static_assert((0 + ... + sizeof(Parameters)) <= 32764, "a launch carries 32,764 bytes of arguments");
  const auto& asked = cuda_on_host::asked_shared();
  const auto found = asked.find(reinterpret_cast<const void*>(kernel));
  const size_t asked_bytes = std::max<size_t>(found == asked.end() ? 0 : found->second, 48 << 10);
  if (config->gridDim.x == 0 || config->blockDim.x == 0 || config->blockDim.x > 1024 ||
      config->dynamicSmemBytes > asked_bytes || config->stream != &cuda_on_host::state().stream ||
      cuda_on_host::state().guards == 0)
    return cudaErrorInvalidConfiguration;
  if (cuda_on_host::state().interpret) {
    const void* const at[] = {&arguments...};
    const size_t sizes[] = {sizeof(Parameters)...};
    cuda_on_host::interpret(reinterpret_cast<const void*>(kernel), config->gridDim.x, config->blockDim.x,
                            config->dynamicSmemBytes, at, sizes, int(sizeof...(Parameters)));
    return cudaSuccess;
  }
  cuda_on_host::run([&] { kernel(arguments...); }, config->gridDim.x, config->blockDim.x, config->dynamicSmemBytes,
                    found == asked.end() ? 48 << 10 : cuda_on_host::kMostShared);
  return cudaSuccess;
}
