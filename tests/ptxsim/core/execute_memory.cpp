// Loads and stores: addressing, bounds, alignment, undefined bytes, race checks and traffic counts.
#include <algorithm>

#include "execute.h"
#include "lanes.h"

namespace ptxsim {
namespace {

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

const char* name_of_space(Space space) {
  switch (space) {
    case Space::kShared:
      return "shared memory";
    case Space::kLocal:
      return "local memory";
    case Space::kParam:
      return "the parameters";
    case Space::kConst:
      return "constant memory";
    default:
      return "global memory";
  }
}

bool is_strong(const Instruction& in) { return in.mod.semantics != Semantics::kWeak; }

}  // namespace

void Executor::addresses(Warp& warp, const Operand& operand, uint64_t* out) {
  if (!operand.has_register) {
    for (int lane = 0; lane < kLanes; ++lane) out[lane] = operand.value;
    return;
  }
  if (is_wide(operand.register_type)) {
    const uint64_t* base = warp.lanes64(operand.slot);
    for (int lane = 0; lane < kLanes; ++lane) out[lane] = base[lane] + operand.value;
  } else {
    const uint32_t* base = warp.lanes32(operand.slot);
    for (int lane = 0; lane < kLanes; ++lane) out[lane] = static_cast<uint32_t>(base[lane] + operand.value);
  }
}

Executor::Place Executor::locate(Warp& warp, const Instruction& in, Space space, uint64_t address, uint32_t bytes,
                                 uint32_t align, int lane, bool write) {
  Place place;
  place.space = space;
  place.offset = address;
  if (space == Space::kGeneric) {
    const uint64_t window = address >> kWindowBits;
    const Space named = window == kSharedWindow  ? Space::kShared
                        : window == kLocalWindow ? Space::kLocal
                        : window == kParamWindow ? Space::kParam
                                                 : Space::kGlobal;
    place.space = named;
    if (named != Space::kGlobal) place.offset = address & (kWindowSize - 1);
  }
  if (place.space == Space::kConst) place.space = Space::kGlobal;
  uint8_t* base = nullptr;
  uint64_t size = 0;
  std::string name;
  switch (place.space) {
    case Space::kShared:
      base = block_->shared.bytes.data();
      size = block_->shared.bytes.size();
      break;
    case Space::kLocal:
      base = warp.local + static_cast<uint64_t>(lane) * kernel_.local_bytes;
      size = kernel_.local_bytes;
      break;
    case Space::kParam:
      base = launch_.parameters.data();
      size = launch_.parameters.size();
      if (write) abort(Finding::kReadOnlyWrite, warp, in, lane, "a store to the kernel's parameters");
      break;
    default: {
      Buffer* buffer = launch_.memory.find(address);
      if (buffer == nullptr) {
        abort(Finding::kOutOfBounds, warp, in, lane, "address " + hex(address) + " belongs to no buffer");
      }
      place.buffer = buffer;
      if (launch_.options.dependent && (warp.waited >> lane & 1) == 0 && (write || !buffer->settled)) {
        find(Finding::kDependency, warp, in, lane,
             std::string(write ? "a store to" : "a load of") + " buffer `" + buffer->name +
                 "` before griddepcontrol.wait: an earlier launch may not have ended");
      }
      place.offset = address - buffer->base;
      base = buffer->host;
      size = buffer->size;
    }
  }
  // `offset > size - bytes` also covers addresses before the start, which wrap around.
  if (bytes > size || place.offset > size - bytes) {
    const std::string target =
        place.buffer != nullptr ? "buffer `" + place.buffer->name + "`" : name_of_space(place.space);
    abort(Finding::kOutOfBounds, warp, in, lane,
          std::string(write ? "store" : "load") + " of " + std::to_string(bytes) + " bytes at offset " +
              std::to_string(static_cast<int64_t>(place.offset)) + " of " + target + ", which has " +
              std::to_string(size) + " bytes");
  }
  if (address % align != 0) {
    abort(Finding::kMisaligned, warp, in, lane,
          "an access of " + std::to_string(bytes) + " bytes at " + hex(address) + " is not aligned to " +
              std::to_string(align));
  }
  if (write && place.buffer != nullptr && place.buffer->read_only) {
    abort(Finding::kReadOnlyWrite, warp, in, lane, "a store to read-only buffer `" + place.buffer->name + "`");
  }
  place.host = base + place.offset;
  return place;
}

void Executor::check_initialised(Warp& warp, const Instruction& in, const Place& place, uint32_t bytes, int lane) {
  const uint8_t* written = nullptr;
  if (place.space == Space::kShared) {
    written = block_->shared.written.data() + place.offset;
  } else if (place.buffer != nullptr && place.buffer->track_reads) {
    written = place.buffer->written.data() + place.offset;
  } else {
    return;
  }
  for (uint32_t b = 0; b < bytes; ++b) {
    if (written[b]) continue;
    const std::string target = place.buffer != nullptr ? "buffer `" + place.buffer->name + "`" : "shared memory";
    find(Finding::kUninitialisedRead, warp, in, lane,
         "a read of byte " + std::to_string(place.offset + b) + " of " + target + ", which was never written");
    return;
  }
}

void Executor::mark_written(const Place& place, uint32_t bytes) {
  if (place.space == Space::kShared) {
    std::memset(block_->shared.written.data() + place.offset, 1, bytes);
  } else if (place.buffer != nullptr && place.buffer->track_reads) {
    std::memset(place.buffer->written.data() + place.offset, 1, bytes);
  }
}

void Executor::count_access(const Instruction& in, const uint64_t* addresses, const Place* places, uint32_t mask,
                            uint32_t bytes, bool write) {
  InstructionCounters& counters = counters_.instructions[static_cast<size_t>(index_of(in))];
  // Lanes of one access may go to different buffers, or by generic addresses to different spaces.
  while (mask != 0) {
    const Place& first = places[__builtin_ctz(mask)];
    uint32_t together = 0;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
      const int lane = __builtin_ctz(left);
      const bool same = places[lane].space == first.space && places[lane].buffer == first.buffer;
      together |= static_cast<uint32_t>(same) << lane;
    }
    mask &= ~together;
    if (first.space == Space::kShared) {
      uint32_t offsets[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) offsets[lane] = static_cast<uint32_t>(addresses[lane]);
      const TrafficCount count = count_wavefronts(offsets, together, static_cast<int>(bytes));
      counters.wavefronts += count.units;
      counters.ideal_wavefronts += count.ideal;
    } else if (first.space == Space::kGlobal) {
      const TrafficCount count = count_sectors(addresses, together, static_cast<int>(bytes));
      const uint64_t total = uint64_t{bytes} * static_cast<uint64_t>(__builtin_popcount(together));
      counters.global_bytes += total;
      counters.sectors += count.units;
      counters.ideal_sectors += count.ideal;
      BufferCounters& buffer = counters_.buffers[first.buffer->index];
      (write ? buffer.store_bytes : buffer.load_bytes) += total;
      (write ? buffer.store_sectors : buffer.load_sectors) += count.units;
    }
  }
}

void Executor::check_race(Warp& warp, const Instruction& in, const Place& place, uint32_t bytes, int lane, bool write,
                          const uint8_t* after, const Actor* actor) {
  const bool shared = place.space == Space::kShared;
  if (!launch_.options.races || (!shared && place.space != Space::kGlobal)) return;
  if (!shared && place.buffer->read_only) return;
  Access access;
  access.clock = &warp.clock;
  access.write = write;
  access.site = site_of(static_cast<uint32_t>(index_of(in)), is_strong(in), lane);
  access.epoch = uint64_t{warp.clock.agent()} << 32 | warp.clock.time();
  if (actor != nullptr) {
    access.async = true;
    access.proxy = actor->proxy;
    access.epoch = uint64_t{warp.clock.block * warp.clock.agents + actor->index} << 32 | actor->time;
  }
  Shadow& shadow = shared ? block_->shadow : *launch_.shadows[place.buffer->index];
  const auto report = [&](const Conflict& conflict, uint64_t first) {
    if (conflict.same_warp && !launch_.options.warp_races) return;
    const uint64_t from = first + conflict.offset - place.offset - (shared ? 0 : place.buffer->base % 256);
    const bool same_value =
        conflict.there_writes && after != nullptr && std::memcmp(place.host + from, after + from, conflict.size) == 0;
    if (same_value) return;
    const auto there = static_cast<int32_t>(conflict.there >> 6);
    const Finding kind = conflict.unfenced    ? Finding::kMissingProxyFence
                         : conflict.same_warp ? Finding::kWarpRace
                                              : Finding::kRace;
    if (launch_.findings.known(kind, index_of(in), there)) return;
    const std::string target = shared ? "shared memory" : "buffer `" + place.buffer->name + "`";
    launch_.findings.add(
        kind, index_of(in), there,
        std::string(actor != nullptr ? "an asynchronous " : "a ") + (write ? "write" : "read") + " of byte " +
            std::to_string(place.offset + from) + " of " + target + " by " + where(warp, lane) +
            (conflict.unfenced ? " is not behind a fence.proxy.async after the " : " is not ordered after the ") +
            (conflict.there_writes ? "write" : "read") + " by " + name_of_agent(warp.clock, conflict.there_agent) +
            " lane " + std::to_string(conflict.there & 31u) + " (`" + kernel_.code[static_cast<size_t>(there)].text +
            "`)");
  };
  // Shadow words lie where aligned accesses do, also in a buffer whose base is not aligned. Only copies cross pages.
  uint64_t shadowed = place.offset + (shared ? 0 : place.buffer->base % 256);
  while (bytes > 0) {
    ShadowPage& page = shadow.page(shadowed);
    const auto offset = static_cast<uint32_t>(shadowed % ShadowPage::kBytes);
    const auto here = std::min<uint32_t>(bytes, static_cast<uint32_t>(ShadowPage::kBytes) - offset);
    const uint64_t first = shadowed - offset;
    const auto report_here = [&](const Conflict& conflict) { report(conflict, first); };
    if (!shared && launch_.options.threads > 1) {
      const std::lock_guard<SpinLock> guard(page.lock);
      page.access(offset, here, access, report_here);
    } else {
      page.access(offset, here, access, report_here);
    }
    shadowed += here;
    bytes -= here;
  }
}

std::string Executor::name_of_agent(const WarpClock& clock, uint32_t agent) const {
  static const char* const kNames[] = {"", "cp.async of ", "a bulk copy of ", "a bulk copy of ", "wgmma of "};
  const std::string block = "block " + std::to_string(agent / clock.agents);
  const uint32_t index = agent % clock.agents;
  if (index >= kEngines * clock.warps) return "a bulk copy into shared memory of " + block;
  return kNames[index / clock.warps] + block + " warp " + std::to_string(index % clock.warps);
}

void Executor::load(Warp& warp, const Instruction& in, uint32_t mask) {
  const auto element = static_cast<uint32_t>(size_of(in.type));
  const uint32_t bytes = element * in.mod.vector;
  uint64_t address[kLanes];
  addresses(warp, in.src[0], address);
  Place places[kLanes];
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    Place& place = places[lane];
    place = locate(warp, in, in.mod.space, address[lane], bytes, bytes, lane, false);
    check_initialised(warp, in, place, bytes, lane);
    check_race(warp, in, place, bytes, lane, false, nullptr);
  }
  const int shift = 64 - static_cast<int>(8 * element);
  for (size_t v = 0; v < in.dst.size(); ++v) {
    const Operand& d = in.dst[v];
    if (d.kind == OperandKind::kSink) continue;
    const bool wide = is_wide(d.register_type);
    for (uint32_t left = mask; left != 0; left &= left - 1) {
      const int lane = __builtin_ctz(left);
      uint64_t value = 0;
      std::memcpy(&value, places[lane].host + v * element, element);
      if (is_signed(in.type)) value = static_cast<uint64_t>(static_cast<int64_t>(value << shift) >> shift);
      if (wide) {
        warp.lanes64(d.slot)[lane] = value;
      } else {
        // A signed byte fills its register, and a 16-bit register holds 16 bits.
        const bool sixteen = size_of(d.register_type) == 2;
        warp.lanes32(d.slot)[lane] = static_cast<uint32_t>(sixteen ? value & 0xffffu : value);
      }
    }
  }
  if (is_strong(in)) {
    // After the value was read: whoever wrote it has published before.
    for (uint32_t left = mask; left != 0; left &= left - 1)
      strong_access(warp, in, places[__builtin_ctz(left)], true, false);
  }
  count_access(in, address, places, mask, bytes, false);
}

void Executor::store(Warp& warp, const Instruction& in, uint32_t mask) {
  const auto element = static_cast<uint32_t>(size_of(in.type));
  const uint32_t bytes = element * in.mod.vector;
  uint64_t address[kLanes];
  addresses(warp, in.src[0], address);
  Place places[kLanes];
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    Place& place = places[lane];
    place = locate(warp, in, in.mod.space, address[lane], bytes, bytes, lane, true);
    uint8_t value[64];
    for (size_t v = 0; v < in.mod.vector; ++v) {
      const uint64_t bits = read_lane(warp, in.src[1 + v], lane);
      std::memcpy(value + v * element, &bits, element);
    }
    check_race(warp, in, place, bytes, lane, true, value);
    // Published before the value can be read by a block on another thread.
    if (is_strong(in)) strong_access(warp, in, place, false, true);
    std::memcpy(place.host, value, bytes);
    mark_written(place, bytes);
  }
  count_access(in, address, places, mask, bytes, true);
}

// cvta between a space's own addresses and generic ones. Global and constant addresses are generic already.
void Executor::convert_address(Warp& warp, const Instruction& in, uint32_t mask) {
  uint64_t values[kLanes];
  read64(warp, in.src[0], values);
  const Space space = in.mod.space;
  const uint64_t window = space == Space::kShared  ? kSharedWindow
                          : space == Space::kLocal ? kLocalWindow
                          : space == Space::kParam ? kParamWindow
                                                   : 0;
  if (window != 0) {
    for (uint64_t& value : values) value = in.mod.to ? value & (kWindowSize - 1) : value | window_base(window);
  }
  if (is_wide(in.dst[0].register_type)) {
    write64(warp, in.dst[0], mask, values);
  } else {
    uint32_t narrow[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) narrow[lane] = static_cast<uint32_t>(values[lane]);
    write32(warp, in.dst[0], mask, narrow);
  }
}

// Every block is a cluster of its own, so an address of its block 0 is the address itself.
void Executor::map_address(Warp& warp, const Instruction& in, uint32_t mask) {
  uint64_t values[kLanes], ranks[kLanes];
  read64(warp, in.src[0], values);
  read64(warp, in.src[1], ranks);
  for (uint32_t left = mask; left != 0; left &= left - 1) {
    const int lane = __builtin_ctz(left);
    if (ranks[lane] != 0) {
      abort(Finding::kInvalidOperand, warp, in, lane,
            "block " + std::to_string(ranks[lane]) + " of a cluster that has one block");
    }
  }
  if (is_wide(in.dst[0].register_type)) return write64(warp, in.dst[0], mask, values);
  uint32_t narrow[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) narrow[lane] = static_cast<uint32_t>(values[lane]);
  write32(warp, in.dst[0], mask, narrow);
}

void Executor::is_space(Warp& warp, const Instruction& in, uint32_t mask) {
  uint64_t values[kLanes];
  read64(warp, in.src[0], values);
  uint32_t result = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint64_t window = values[lane] >> kWindowBits;
    const Space space = window == kSharedWindow  ? Space::kShared
                        : window == kLocalWindow ? Space::kLocal
                        : window == kParamWindow ? Space::kParam
                                                 : Space::kGlobal;
    result |= static_cast<uint32_t>(space == in.mod.space) << lane;
  }
  write_predicate(warp, in.dst[0], mask, result);
}

}  // namespace ptxsim
