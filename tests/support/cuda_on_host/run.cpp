// The scheduler behind cuda_runtime.h, torch's CPU memory as the checked global memory, and what Python asks.
#include <cuda_runtime.h>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstdlib>

namespace cuda_on_host {

State& state() {
  static State* const one = new State;  // never destroyed: tensors outlive everything
  return *one;
}
Block& block() {
  static Block* const one = new Block;
  return *one;
}
std::vector<Poisoned*>& all_shared() {
  static auto* const all = new std::vector<Poisoned*>;
  return *all;
}
std::map<const void*, size_t>& asked_shared() {
  static auto* const all = new std::map<const void*, size_t>;
  return *all;
}
Poisoned& dynamic_shared() {
  static Poisoned* const one = new Poisoned;
  return *one;
}

void stored() { block().threads[block().current].unfenced = true; }

void fail(const std::string& what) {
  Block& b = block();
  b.error = what + " (block " + std::to_string(blockIdx.x) + ", thread " + std::to_string(b.current) + ")";
  _longjmp(b.scheduler, 2);
}

namespace {

void body() {
  block().kernel();
  block().threads[block().current].waits = Waits::ended;
  _longjmp(block().scheduler, 1);
}

// Runs one thread until it waits or ends.
void resume(int thread) {
  Block& b = block();
  b.current = thread;
  threadIdx.x = unsigned(thread);
  Fiber& fiber = b.threads[thread];
  fiber.waits = Waits::no;
  if (_setjmp(b.scheduler)) return;
  if (fiber.started) _longjmp(fiber.at, 1);
  fiber.started = true;
  setcontext(&fiber.begin);
}

std::string name_of(int thread) { return "thread " + std::to_string(thread); }

// Lets go every shuffle all of whose lanes have come; true if there was one.
bool release_warps() {
  auto& threads = block().threads;
  bool any = false;
  for (size_t first = 0; first < threads.size(); first += kWarp) {
    const size_t lanes = std::min<size_t>(kWarp, threads.size() - first);
    for (size_t lane = 0; lane < lanes; lane++) {
      Fiber& fiber = threads[first + lane];
      if (fiber.waits != Waits::warp) continue;
      bool all = true;
      for (int other = 0; other < kWarp; other++) {
        if (!(fiber.mask >> other & 1)) continue;
        const Fiber* const peer = size_t(other) < lanes ? &threads[first + other] : nullptr;
        if (!peer || peer->waits == Waits::ended) {
          block().error = "a shuffle of " + name_of(int(first + lane)) + " names lane " + std::to_string(other) +
                          ", which has ended";
          return false;
        }
        all &= peer->waits == Waits::warp && peer->line == fiber.line && peer->mask == fiber.mask;
      }
      if (!all) continue;
      uint64_t given[kWarp] = {};
      const uint32_t mask = fiber.mask;
      for (int other = 0; other < kWarp; other++)
        if (mask >> other & 1) given[other] = threads[first + other].given;
      for (int other = 0; other < kWarp; other++)
        if (mask >> other & 1) {
          std::memcpy(threads[first + other].got, given, sizeof(given));
          threads[first + other].waits = Waits::no;
        }
      any = true;
    }
  }
  return any;
}

// Nothing runs: all wait at one barrier, or something is wrong.
void release_barrier() {
  Block& b = block();
  const Fiber* first = nullptr;
  for (size_t i = 0; i < b.threads.size(); i++) {
    const Fiber& fiber = b.threads[i];
    if (fiber.waits == Waits::warp) {
      b.error = "a shuffle of " + name_of(int(i)) + " waits for lanes that are elsewhere";
      return;
    }
    if (fiber.waits == Waits::barrier && !first) first = &fiber;
  }
  for (size_t i = 0; i < b.threads.size(); i++) {
    const Fiber& fiber = b.threads[i];
    if (fiber.waits == Waits::ended)
      b.error = "a barrier is missed by " + name_of(int(i)) + ", which has ended";
    else if (fiber.line != first->line)
      b.error = "divergent barriers: at lines " + std::to_string(first->line) + " and " + std::to_string(fiber.line);
    if (!b.error.empty()) return;
  }
  b.epoch++;
  for (Fiber& fiber : b.threads) fiber.waits = Waits::no;
}

std::vector<int> order_of(int count, std::mt19937_64& random) {
  std::vector<int> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  if (state().seed) std::shuffle(order.begin(), order.end(), random);
  return order;
}

void run_block(std::mt19937_64& random) {
  Block& b = block();
  const int count = int(b.threads.size());
  for (Poisoned* memory : all_shared()) memory->poison();
  dynamic_shared().poison();
  b.epoch = 1;
  for (int i = 0; i < count; i++) {
    Fiber& fiber = b.threads[i];
    fiber.started = fiber.unfenced = false;
    fiber.fenced = 0;
    fiber.waits = Waits::no;
    getcontext(&fiber.begin);
    fiber.begin.uc_stack.ss_sp = b.stacks[i].data();
    fiber.begin.uc_stack.ss_size = b.stacks[i].size();
    makecontext(&fiber.begin, body, 0);
  }
  const auto order = order_of(count, random);
  while (b.error.empty()) {
    bool ran = false, waiting = false;
    for (const int i : order) {
      if (b.threads[i].waits == Waits::no) {
        resume(i);
        ran = true;
        if (!b.error.empty()) return;
      }
      waiting |= b.threads[i].waits != Waits::ended;
    }
    if (!waiting) return;
    if (!release_warps() && b.error.empty() && !ran) release_barrier();
  }
}

}  // namespace

void run(const std::function<void()>& kernel, unsigned grid, unsigned threads, size_t shared_bytes,
         size_t shared_limit) {
  const std::lock_guard<std::mutex> one_at_a_time(state().running);
  const std::lock_guard<std::mutex> nothing_moves(state().allocating);
  Block& b = block();
  state().launches++;
  b.kernel = kernel;
  b.error.clear();
  b.threads.resize(threads);
  while (b.stacks.size() < threads) b.stacks.emplace_back(256 << 10);
  dynamic_shared().bytes.resize(shared_bytes);
  dynamic_shared().shadows.resize(shared_bytes);
  if (state().most_blocks) grid = std::min(grid, state().most_blocks);
  gridDim = dim3(grid);
  blockDim = dim3(threads);
  b.shared_bytes = shared_bytes;
  b.shared_limit = shared_limit;
  std::mt19937_64 random(state().seed);
  for (const int index : order_of(int(grid), random)) {
    blockIdx = dim3(unsigned(index));
    run_block(random);
    if (!b.error.empty()) throw std::runtime_error("cuda_on_host: " + b.error);
  }
}

void interpret(const void* kernel, unsigned grid, unsigned threads, size_t shared_bytes, const void* const* arguments,
               const size_t* sizes, int count) {
  state().launches++;
  if (state().most_blocks) grid = std::min(grid, state().most_blocks);
  const char* const error =
      state().interpret(kernel, grid, threads, shared_bytes, state().seed, arguments, sizes, count);
  if (error) throw std::runtime_error(error);
}

// ---- global memory ----
namespace {

void release(void* at) {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.allocating);
  s.regions.erase(reinterpret_cast<uintptr_t>(at));
  s.last = nullptr;
  std::free(at);
}

// Every block of torch's from now on: known, and full of NaN.
struct KnownMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* const at = bytes ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr;
    if (at) {
      std::memset(at, 0xff, bytes);
      State& s = state();
      const std::lock_guard<std::mutex> lock(s.allocating);
      s.regions[reinterpret_cast<uintptr_t>(at)].bytes = bytes;
      s.last = nullptr;
    }
    return {at, at, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

}  // namespace
}  // namespace cuda_on_host

// ---- what Python asks, through ctypes ----
extern "C" {

void cuda_on_host_know_memory() {
  static auto* const known = new cuda_on_host::KnownMemory;
  c10::SetCPUAllocator(known, 100);
}
void cuda_on_host_order(uint64_t seed, unsigned most_blocks) {
  cuda_on_host::state().seed = seed;
  cuda_on_host::state().most_blocks = most_blocks;
}
void cuda_on_host_interpret(cuda_on_host::Interpret interpret) { cuda_on_host::state().interpret = interpret; }
// The tensor that an address belongs to.
int cuda_on_host_find(uint64_t address, uint64_t* begin, uint64_t* bytes) {
  cuda_on_host::State& s = cuda_on_host::state();
  const std::lock_guard<std::mutex> lock(s.allocating);
  auto found = s.regions.upper_bound(address);
  if (found == s.regions.begin()) return 0;
  --found;
  *begin = found->first;
  *bytes = found->second.bytes;
  return address < *begin + *bytes;
}
int64_t cuda_on_host_launches() { return cuda_on_host::state().launches; }
int64_t cuda_on_host_memsets() { return cuda_on_host::state().memsets; }

void cuda_on_host_count(int on) {
  cuda_on_host::state().counting = on;
  if (on)
    for (auto& [at, region] : cuda_on_host::state().regions) region.reads.clear(), region.writes.clear();
}
// The fewest and most times a byte of [at, at + bytes) was read, and written.
void cuda_on_host_traffic(const void* at, int64_t bytes, int64_t* out) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  const auto found = --cuda_on_host::state().regions.upper_bound(address);
  int64_t* to = out;
  for (auto* counts : {&found->second.reads, &found->second.writes}) {
    counts->resize(found->second.bytes);
    const auto begin = counts->begin() + int64_t(address - found->first);
    const auto [least, most] = std::minmax_element(begin, begin + bytes);
    *to++ = *least;
    *to++ = *most;
  }
}
}
