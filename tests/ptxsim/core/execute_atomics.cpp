// Atomics on global and shared memory, fences, and the order they create.
#include <algorithm>

#include "alu.h"
#include "execute.h"
#include "lanes.h"

namespace ptxsim {
namespace {

uint64_t packed_sum(Type type, uint64_t a, uint64_t b) {
  const bool bf16 = type == Type::kBF16 || type == Type::kBF16x2;
  const auto add = [bf16](uint32_t x, uint32_t y) -> uint32_t {
    if (bf16) return bf16_from(fma_round_to_odd(bf16_to_float(x), 1.0, bf16_to_float(y)));
    return f16_from(fma_round_to_odd(f16_to_float(x), 1.0, f16_to_float(y)));
  };
  const auto x = static_cast<uint32_t>(a);
  const auto y = static_cast<uint32_t>(b);
  const uint32_t low = add(x & 0xffffu, y & 0xffffu);
  return size_of(type) == 2 ? low : low | add(x >> 16, y >> 16) << 16;
}

template <typename T>
uint64_t integer_result(AtomicOp op, uint64_t old, uint64_t operand) {
  const auto a = static_cast<T>(old);
  const auto b = static_cast<T>(operand);
  T result = a;
  switch (op) {
    case AtomicOp::kAdd:
      result = static_cast<T>(a + b);
      break;
    case AtomicOp::kMin:
      result = std::min(a, b);
      break;
    case AtomicOp::kMax:
      result = std::max(a, b);
      break;
    case AtomicOp::kInc:
      result = a >= b ? T{0} : static_cast<T>(a + 1);
      break;
    case AtomicOp::kDec:
      result = a == 0 || a > b ? b : static_cast<T>(a - 1);
      break;
    case AtomicOp::kAnd:
      result = a & b;
      break;
    case AtomicOp::kOr:
      result = a | b;
      break;
    case AtomicOp::kXor:
      result = a ^ b;
      break;
    default:
      result = b;
  }
  return static_cast<uint64_t>(result);
}

bool acquires(Semantics s) { return s == Semantics::kAcquire || s == Semantics::kAcqRel || s == Semantics::kSeqCst; }
bool releases(Semantics s) { return s == Semantics::kRelease || s == Semantics::kAcqRel || s == Semantics::kSeqCst; }

}  // namespace

uint64_t atomic_result(Type type, AtomicOp op, uint64_t old, uint64_t operand) {
  switch (type) {
    case Type::kF32: {
      const float sum = float_of(static_cast<uint32_t>(old)) + float_of(static_cast<uint32_t>(operand));
      return sum != sum ? kNanF32 : bits_of(sum);
    }
    case Type::kF64:
      return bits_of(double_of(old) + double_of(operand));
    case Type::kF16:
    case Type::kBF16:
    case Type::kF16x2:
    case Type::kBF16x2:
      return packed_sum(type, old, operand);
    case Type::kS32:
      return integer_result<int32_t>(op, old, operand);
    case Type::kS64:
      return integer_result<int64_t>(op, old, operand);
    case Type::kB64:
    case Type::kU64:
      return integer_result<uint64_t>(op, old, operand);
    case Type::kB16:
    case Type::kU16:
      return integer_result<uint16_t>(op, old, operand);
    default:
      return integer_result<uint32_t>(op, old, operand);
  }
}

void Executor::atomic(Warp& warp, const Instruction& in, uint32_t mask) {
  const bool exchange = in.mod.atomic == AtomicOp::kExch;
  const bool compare = in.mod.atomic == AtomicOp::kCas;
  const auto bytes = static_cast<uint32_t>(size_of(in.type));
  uint64_t address[kLanes];
  addresses(warp, in.src[0], address);
  Place places[kLanes];
  uint64_t before[kLanes] = {};
  std::unique_lock<SpinLock> guard;
  if (launch_.options.threads > 1) guard = std::unique_lock<SpinLock>(launch_.atomics);
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    Place& place = places[lane];
    place = locate(warp, in, in.mod.space, address[lane], bytes, bytes, lane, true);
    check_initialised(warp, in, place, bytes, lane);
    check_race(warp, in, place, bytes, lane, true, nullptr);
    std::memcpy(&before[lane], place.host, bytes);
    const uint64_t operand = read_lane(warp, in.src[1], lane);
    uint64_t after = operand;
    if (compare) {
      const uint64_t limit = bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * bytes)) - 1;
      after = before[lane] == (operand & limit) ? read_lane(warp, in.src[2], lane) : before[lane];
    } else if (!exchange) {
      after = atomic_result(in.type, in.mod.atomic, before[lane], operand);
    }
    // After the old value was read and before the new one can be: see load() and store().
    strong_access(warp, in, place, true, true);
    std::memcpy(place.host, &after, bytes);
    mark_written(place, bytes);
  }
  if (guard.owns_lock()) guard.unlock();
  count_access(in, address, places, mask, bytes, true);
  if (in.opcode == Opcode::kRed || in.dst[0].kind == OperandKind::kSink) return;
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    if (is_wide(in.dst[0].register_type)) {
      warp.lanes64(in.dst[0].slot)[lane] = before[lane];
    } else {
      warp.lanes32(in.dst[0].slot)[lane] = static_cast<uint32_t>(before[lane]);
    }
  }
}

// A strong access publishes what the warp knew at its last fence, or all it knows when it is itself a release, and
// takes over what was published at its address: at once when it is an acquire, otherwise at the next fence.
void Executor::strong_access(Warp& warp, const Instruction& in, const Place& place, bool reads, bool writes) {
  if (!launch_.options.races) return;
  const bool shared = place.space == Space::kShared;
  if (!shared && place.space != Space::kGlobal) return;
  // In global memory, order that holds in the own block only is taken for none.
  if (!shared && in.mod.scope == Scope::kCta) return;
  SyncTable& table = shared ? block_->sync : launch_.sync;
  const uint64_t address = shared ? place.offset : place.buffer->base + place.offset;
  WarpClock& clock = warp.clock;
  if (reads) table.acquire(address, acquires(in.mod.semantics) ? clock.now : clock.unacquired, clock);
  if (!writes) return;
  if (releases(in.mod.semantics)) {
    table.publish(address, clock, clock.now);
    clock.tick();
  } else {
    table.publish(address, clock, shared ? clock.fenced_block : clock.fenced);
  }
}

void Executor::memory_fence(Warp& warp, const Instruction& in) {
  if (!launch_.options.races) return;
  if (in.opcode == Opcode::kMembar) warp.clock.fence(in.mod.scope == Scope::kGpu || in.mod.scope == Scope::kSys);
  if (in.mod.async_proxy) warp.clock.proxy_fence();
}

}  // namespace ptxsim
