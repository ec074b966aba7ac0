// The state of a launch, and how an instruction reaches the registers of a warp.
#pragma once
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace ptx {

constexpr int kLanes = 32, kMost = 8;
constexpr uint32_t kAll = 0xffffffffu;

// What encode.py made of an instruction (RECORD there). Operands are registers.
struct Record {
  int32_t op, guard, negated, target, join, dsts, srcs;
  int32_t dst[kMost], src[kMost];
  int32_t space, bytes, count, is_signed, kind;
  int64_t offset;
};  // kind: of a shuffle, encode.py's SHUFFLES
enum Space { kGeneric, kGlobal, kShared, kParam };

struct Failure : std::runtime_error {
  int lane;
  explicit Failure(const std::string& what, int lane_ = -1) : std::runtime_error(what), lane(lane_) {}
};

struct Region {
  uint64_t begin = 0, bytes = 0;
  uint64_t* traffic = nullptr;  // bytes read, bytes written
};
using Find = int (*)(uint64_t address, uint64_t* begin, uint64_t* bytes);

// Everything that warps share.
struct Machine {
  Find find = nullptr;  // the tensor at an address
  Region region;        // the one that was used last
  std::unordered_map<uint64_t, std::pair<uint64_t, uint64_t>> traffic;  // by the begin of a region
  std::vector<uint8_t> params;
  std::vector<uint8_t> shared;        // of the current block
  std::vector<uint8_t> shared_state;  // of each byte: 0 no variable, 1 not written, 2 written
  uint64_t perturbation = 0;          // seed; 0: approximate instructions give the correctly rounded result
};
Machine& machine();

struct Split {  // lanes of a warp at one place, and where they meet the others (-1: at the end)
  int pc;
  uint32_t mask;
  int join;
};

struct Warp {
  uint8_t* file;
  const int32_t* width;   // of each register: bytes of a lane, 0 for a predicate
  const int64_t* offset;  // of each register in the file
  std::vector<uint32_t> defined;  // of each register: the lanes that have written it
  std::vector<Split> splits;
  uint32_t initial, live;

  template <class T>
  T* lanes(int reg) const {
    return reinterpret_cast<T*>(file + offset[reg]);
  }
  uint32_t& predicate(int reg) const { return *lanes<uint32_t>(reg); }
  // A lane's value, zero-extended, whatever the register's width.
  uint64_t get(int reg, int lane) const {
    switch (width[reg]) {
      case 8: return lanes<uint64_t>(reg)[lane];
      case 4: return lanes<uint32_t>(reg)[lane];
      case 2: return lanes<uint16_t>(reg)[lane];
      case 1: return lanes<uint8_t>(reg)[lane];
      default: return predicate(reg) >> lane & 1;
    }
  }
  void set(int reg, int lane, uint64_t bits) const {
    switch (width[reg]) {
      case 8: lanes<uint64_t>(reg)[lane] = bits; break;
      case 4: lanes<uint32_t>(reg)[lane] = uint32_t(bits); break;
      case 2: lanes<uint16_t>(reg)[lane] = uint16_t(bits); break;
      case 1: lanes<uint8_t>(reg)[lane] = uint8_t(bits); break;
      default: predicate(reg) = (predicate(reg) & ~(1u << lane)) | uint32_t(bits & 1) << lane;
    }
  }
};

// f(lane) for every lane of the mask.
template <class F>
void each(uint32_t on, const F& f) {
  for (; on; on &= on - 1) f(__builtin_ctz(on));
}

using Run = void (*)(const Warp&, const Record&, uint32_t on);
struct Op {
  Run run;
  int dst_bytes;  // that the first result must have; -1: any
};
const std::unordered_map<std::string, Op>& ops();  // ops.cpp
// The lanes that a shuffle gives the value of a lane that is set in `given`.
uint32_t shuffled_mask(const Warp& w, const Record& i, uint32_t given, uint32_t on);

}  // namespace ptx
