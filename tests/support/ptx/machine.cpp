// Runs a launch: blocks one after another, the warps of a block from barrier to barrier, 32 lanes of a warp at once.
// Lanes that a branch separates run one way after the other, and meet again at its immediate post-dominator.
#include "machine.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace ptx {

Machine& machine() {
  static Machine one;
  return one;
}

namespace {

struct Code {
  std::vector<Record> records;
  std::vector<Run> run;
  std::vector<int> control;  // of each instruction: what moves the program counter
  std::vector<int32_t> width;
  std::vector<int64_t> offset;
  int64_t file_bytes = 0;
  std::vector<std::pair<int, uint64_t>> constants;
  std::vector<std::pair<int, int>> specials;
  std::vector<uint8_t> shared_state;  // of a fresh block, static variables only
  std::vector<uint32_t> defined;      // constants and specials
  uint64_t *issued, *lanes;           // of each instruction: by how many warps, for how many active lanes
};
enum Control { kNext, kSelect, kShuffle, kAccess, kBranch, kExit, kBarrier };

enum class Stop { barrier, end };

int first_lane(uint32_t mask) { return __builtin_ctz(mask); }

Control control_of(const std::string& op) {
  if (op == "bra") return kBranch;
  if (op == "exit") return kExit;
  if (op == "bar") return kBarrier;
  if (op.rfind("selp.", 0) == 0) return kSelect;
  if (op.rfind("shfl.", 0) == 0) return kShuffle;
  for (const char* access : {"ld", "st", "atom."})
    if (op.rfind(access, 0) == 0) return kAccess;
  return kNext;
}

// An operand that some active lane has not written.
void require_defined(const Warp& w, int reg, uint32_t on) {
  if (const uint32_t missing = on & ~w.defined[reg])
    throw Failure("an undefined value is used: a register is read before it is written", first_lane(missing));
}

// The lanes whose result is defined. Compilers compute with undefined values where nothing depends on the result, as in
// the idle lanes of a reduction; what must be defined are addresses, stored values and conditions of branches.
uint32_t known(const Code& code, const Warp& w, int pc, uint32_t on) {
  const Record& i = code.records[pc];
  if (code.control[pc] == kAccess) {
    for (int k = 0; k < i.srcs; k++) require_defined(w, i.src[k], on);
    return on;
  }
  if (code.control[pc] == kSelect) {
    const uint32_t p = w.predicate(i.src[2]);
    return on & w.defined[i.src[2]] & ((w.defined[i.src[0]] & p) | (w.defined[i.src[1]] & ~p));
  }
  if (code.control[pc] == kShuffle) {
    for (int k = 1; k < i.srcs; k++) require_defined(w, i.src[k], on);
    return on & shuffled_mask(w, i, w.defined[i.src[0]], on);
  }
  for (int k = 0; k < i.srcs; k++) on &= w.defined[i.src[k]];
  return on;
}

// Lanes that end leave every split.
void end_lanes(Warp& w, uint32_t on) {
  w.live &= ~on;
  for (Split& split : w.splits) split.mask &= ~on;
  while (!w.splits.empty() && w.splits.back().mask == 0) w.splits.pop_back();
}

// Runs a warp to its next barrier or its end; `pc` says where it is.
Stop run(const Code& code, Warp& w, int& pc) {
  while (!w.splits.empty()) {
    Split& top = w.splits.back();
    pc = top.pc;
    if (pc == top.join || top.mask == 0) {
      w.splits.pop_back();
      continue;
    }
    const Record& i = code.records.at(pc);
    uint32_t on = top.mask;
    code.issued[pc]++;
    if (i.guard >= 0) {
      require_defined(w, i.guard, on);
      on &= i.negated ? ~w.predicate(i.guard) : w.predicate(i.guard);
    }
    code.lanes[pc] += __builtin_popcount(on);
    switch (code.control[pc]) {
      case kBranch: {
        const uint32_t stay = top.mask & ~on;
        if (!on) {
          top.pc++;
        } else if (!stay) {
          top.pc = i.target;
        } else {
          const int join = i.join < 0 ? top.join : i.join, next = pc + 1;
          if (i.join < 0)
            w.splits.pop_back();
          else
            top.pc = join;
          if (next != join) w.splits.push_back({next, stay, join});
          if (i.target != join) w.splits.push_back({i.target, on, join});
        }
        break;
      }
      case kExit:
        top.pc++;
        end_lanes(w, on);
        break;
      case kBarrier:
        if (on != w.live) throw Failure("divergent barrier: some lanes of the warp are elsewhere", first_lane(w.live & ~on));
        top.pc++;
        return Stop::barrier;
      default:
        if (on) {
          const uint32_t defined = known(code, w, pc, on);
          code.run[pc](w, i, on);
          for (int k = 0; k < i.dsts; k++) w.defined[i.dst[k]] = (w.defined[i.dst[k]] & ~on) | defined;
        }
        top.pc++;
    }
  }
  return Stop::end;
}

template <class T>
void fill(const Warp& w, int reg, T value) {
  std::fill_n(w.lanes<T>(reg), kLanes, value);
}
void fill_constant(const Warp& w, int reg, uint64_t bits) {
  switch (w.width[reg]) {
    case 8: return fill<uint64_t>(w, reg, bits);
    case 4: return fill<uint32_t>(w, reg, uint32_t(bits));
    case 2: return fill<uint16_t>(w, reg, uint16_t(bits));
    case 1: return fill<uint8_t>(w, reg, uint8_t(bits));
    default: w.predicate(reg) = uint32_t(bits);
  }
}

struct Launch {
  int32_t grid[3], threads, shared_bytes, dynamic_at;
  uint64_t seed;  // of the order of blocks and warps; 0: theirs
};
// Where a launch failed: the instruction, block and thread.
struct Where {
  int32_t pc = -1, block = -1, thread = -1;
  char what[256] = "";
};

std::vector<int> order_of(int count, uint64_t seed, std::mt19937_64& random) {
  std::vector<int> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  if (seed) std::shuffle(order.begin(), order.end(), random);
  return order;
}

// The specials of encode.py, in its order.
uint32_t special(int which, int lane, int warp, const int (&block)[3], const Launch& launch) {
  const int thread = warp * kLanes + lane;
  const uint32_t values[] = {uint32_t(thread), 0, 0, uint32_t(launch.threads), 1, 1,
                             uint32_t(block[0]), uint32_t(block[1]), uint32_t(block[2]),
                             uint32_t(launch.grid[0]), uint32_t(launch.grid[1]), uint32_t(launch.grid[2]),
                             uint32_t(lane), uint32_t(warp)};
  return values[which];
}

void run_block(const Code& code, std::vector<Warp>& warps, int index, const Launch& launch, std::mt19937_64& random,
               Where& where) {
  Machine& m = machine();
  where.block = index;
  const int block[3] = {index % launch.grid[0], index / launch.grid[0] % launch.grid[1],
                        index / launch.grid[0] / launch.grid[1]};
  m.shared_state = code.shared_state;
  if (launch.dynamic_at >= 0) m.shared_state.resize(size_t(launch.dynamic_at) + launch.shared_bytes, 1);
  m.shared.assign(m.shared_state.size(), 0xff);
  for (size_t n = 0; n < warps.size(); n++) {
    Warp& w = warps[n];
    const int lanes = std::min<int>(kLanes, launch.threads - int(n) * kLanes);
    w.initial = w.live = lanes == kLanes ? kAll : (1u << lanes) - 1;
    w.defined = code.defined;
    w.splits.assign(1, {0, w.live, -1});
    for (const auto& [reg, which] : code.specials)
      for (int l = 0; l < kLanes; l++) w.lanes<uint32_t>(reg)[l] = special(which, l, int(n), block, launch);
  }
  const auto order = order_of(int(warps.size()), launch.seed, random);
  std::vector<int> at(warps.size());
  while (true) {
    int waiting = -1, ended = -1;
    for (const int n : order) {
      Warp& w = warps[n];
      where.thread = n * kLanes;
      const Stop stop = run(code, w, where.pc);
      at[n] = where.pc;
      if (stop == Stop::barrier) {
        if (waiting >= 0 && at[waiting] != at[n])
          throw Failure("divergent barriers: another warp waits at a different one");
        waiting = n;
      }
      if (w.live != w.initial) ended = n * kLanes + first_lane(w.initial & ~w.live);
    }
    if (waiting < 0) return;
    where.pc = at[waiting];
    if (ended >= 0) throw Failure("a barrier is missed by thread " + std::to_string(ended) + ", which has ended");
  }
}

}  // namespace
}  // namespace ptx

using namespace ptx;

extern "C" {

void ptx_find(Find find) { machine().find = find; }
void ptx_perturb(uint64_t seed) { machine().perturbation = seed; }
void ptx_clear_traffic() { machine().traffic.clear(); }
void ptx_traffic(uint64_t begin, uint64_t* out) {
  const auto& [read, written] = machine().traffic[begin];
  out[0] = read, out[1] = written;
}
void ptx_all_traffic(uint64_t* out) {
  out[0] = out[1] = 0;
  for (const auto& [begin, pair] : machine().traffic) out[0] += pair.first, out[1] += pair.second;
}

// Whether an opcode is known, and the bytes of its result's register (-1: any).
int ptx_op(const char* name, int32_t* dst_bytes) {
  const auto found = ops().find(name);
  if (found == ops().end()) return 0;
  *dst_bytes = found->second.dst_bytes;
  return 1;
}
int ptx_ops(char* out, int room) {  // all names, one a line
  std::string all;
  for (const auto& [name, op] : ops()) all += name + "\n";
  if (int(all.size()) < room) std::memcpy(out, all.c_str(), all.size() + 1);
  return int(all.size());
}

void* ptx_code(int count, const Record* records, const char** names, int registers, const int32_t* width,
               const int64_t* offset, int64_t file_bytes, uint64_t* issued, uint64_t* lanes) {
  auto* code = new Code;
  code->records.assign(records, records + count);
  for (int i = 0; i < count; i++) {
    const std::string name = names[i];
    code->run.push_back(ops().at(name).run);
    code->control.push_back(control_of(name));
  }
  code->width.assign(width, width + registers);
  code->offset.assign(offset, offset + registers);
  code->file_bytes = file_bytes;
  code->defined.assign(registers, 0);
  code->issued = issued, code->lanes = lanes;
  return code;
}
void ptx_constant(void* to, int reg, uint64_t bits) {
  auto* code = static_cast<Code*>(to);
  code->constants.push_back({reg, bits});
  code->defined[reg] = kAll;
}
void ptx_special(void* to, int reg, int which) {
  auto* code = static_cast<Code*>(to);
  code->specials.push_back({reg, which});
  code->defined[reg] = kAll;
}
void ptx_shared(void* to, int begin, int bytes) {
  auto& state = static_cast<Code*>(to)->shared_state;
  state.resize(std::max(state.size(), size_t(begin + bytes)));
  std::fill_n(state.begin() + begin, bytes, 1);
}

// 0, or 1 with the place and reason of the failure.
int ptx_launch(const void* of, const Launch* launch, const uint8_t* params, int bytes, Where* where) {
  static std::vector<uint8_t> files;  // of the warps of a block
  const auto& code = *static_cast<const Code*>(of);
  Machine& m = machine();
  *where = Where();
  m.region = {};
  m.params.assign(params, params + bytes);
  std::vector<Warp> warps((launch->threads + kLanes - 1) / kLanes);
  files.resize(std::max(files.size(), warps.size() * size_t(code.file_bytes) + 64));
  auto* const begin = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(files.data()) + 63) / 64 * 64);
  for (size_t n = 0; n < warps.size(); n++) {
    warps[n].file = begin + n * code.file_bytes;
    warps[n].width = code.width.data();
    warps[n].offset = code.offset.data();
    for (const auto& [reg, bits] : code.constants) fill_constant(warps[n], reg, bits);
  }
  std::mt19937_64 random(launch->seed);
  try {
    for (const int index : order_of(launch->grid[0] * launch->grid[1] * launch->grid[2], launch->seed, random))
      run_block(code, warps, index, *launch, random, *where);
  } catch (const Failure& failure) {
    if (failure.lane >= 0) where->thread += failure.lane;
    std::strncpy(where->what, failure.what(), sizeof(where->what) - 1);
    return 1;
  }
  return 0;
}
}
