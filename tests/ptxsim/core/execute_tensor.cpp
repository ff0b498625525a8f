// ldmatrix, stmatrix, movmatrix and mma.sync on a warp: checks, memory accesses, and the pure functions of tensor.h.
#include "execute.h"
#include "lanes.h"
#include "tensor.h"

namespace ptxsim {

Executor::Next Executor::tensor(Warp& warp, const Instruction& in, uint32_t mask) {
  if (mask != kFullMask && mask == warp.active && warp.live == kFullMask) {
    if (!rendezvous(warp, in, kFullMask)) return Next::kBlocked;
    mask = kFullMask;
  }
  if (mask != kFullMask) {
    abort(Finding::kDivergentCollective, warp, in, __builtin_ctz(mask),
          "a tensor instruction needs all 32 lanes of its warp");
  }
  switch (in.opcode) {
    case Opcode::kLdmatrix:
      load_matrix(warp, in);
      break;
    case Opcode::kStmatrix:
      store_matrix(warp, in);
      break;
    case Opcode::kMovmatrix: {
      uint16_t matrix[8][8];
      fragment_to_matrix(warp.lanes32(in.src[0].slot), false, matrix);
      const uint8_t* rows[8];
      for (int row = 0; row < 8; ++row) rows[row] = reinterpret_cast<const uint8_t*>(matrix[row]);
      matrix_to_fragment(rows, true, warp.lanes32(in.dst[0].slot));
      break;
    }
    default:
      multiply(warp, in);
  }
  return Next::kAdvance;
}

void Executor::load_matrix(Warp& warp, const Instruction& in) {
  uint64_t address[kLanes];
  addresses(warp, in.src[0], address);
  const int matrices = in.mod.vector;
  Place places[kLanes];
  for (int lane = 0; lane < 8 * matrices; ++lane) {
    Place& place = places[lane];
    place = locate(warp, in, Space::kShared, address[lane], 16, 16, lane, false);
    check_initialised(warp, in, place, 16, lane);
    // The hardware moves the rows for the whole warp: within it the load is ordered like a read of its own lane.
    check_race(warp, in, place, 16, lane, false, nullptr);
  }
  for (int m = 0; m < matrices; ++m) {
    const uint8_t* rows[8];
    for (int row = 0; row < 8; ++row) rows[row] = places[8 * m + row].host;
    matrix_to_fragment(rows, in.mod.trans, warp.lanes32(in.dst[static_cast<size_t>(m)].slot));
  }
  const uint32_t mask = matrices == 4 ? kFullMask : (1u << (8 * matrices)) - 1;
  count_access(in, address, places, mask, 16, false);
}

void Executor::store_matrix(Warp& warp, const Instruction& in) {
  uint64_t address[kLanes];
  addresses(warp, in.src[0], address);
  const int matrices = in.mod.vector;
  Place places[kLanes];
  for (int m = 0; m < matrices; ++m) {
    uint16_t matrix[8][8];
    fragment_to_matrix(warp.lanes32(in.src[static_cast<size_t>(1 + m)].slot), in.mod.trans, matrix);
    for (int row = 0; row < 8; ++row) {
      const int lane = 8 * m + row;
      Place& place = places[lane];
      place = locate(warp, in, Space::kShared, address[lane], 16, 16, lane, true);
      check_race(warp, in, place, 16, lane, true, reinterpret_cast<const uint8_t*>(matrix[row]));
      std::memcpy(place.host, matrix[row], 16);
      mark_written(place, 16);
    }
  }
  const uint32_t mask = matrices == 4 ? kFullMask : (1u << (8 * matrices)) - 1;
  count_access(in, address, places, mask, 16, true);
}

void Executor::multiply(Warp& warp, const Instruction& in) {
  MmaFragments f{};
  size_t source = 0;
  const auto bits = [](Type type) { return 8 * size_of(type); };
  const int registers_b = in.mod.k * bits(in.source_type) / 128;
  for (int r = 0; r < 2 * registers_b; ++r) f.a[r] = warp.lanes32(in.src[source++].slot);
  for (int r = 0; r < registers_b; ++r) f.b[r] = warp.lanes32(in.src[source++].slot);
  for (size_t r = 0; source < in.src.size(); ++r) f.c[r] = warp.lanes32(in.src[source++].slot);
  for (size_t r = 0; r < in.dst.size(); ++r) f.d[r] = warp.lanes32(in.dst[r].slot);
  multiply_accumulate(in, f);
}

}  // namespace ptxsim
