// The rows of a masked_block_attention tile and the keys they see. Included by `*.isa.cpp` files only (see isa.h).
//
// A tile's keys come in two segments: the context its rows see together, then the blocks its rows belong to. Within a
// segment every row sees one interval.
#pragma once
#include "cpu/block_attention_tile.h"
#include "cpu/masked_block_attention.h"
#include "cpu/masked_block_attention_scratch.h"

namespace dflash {
namespace DFLASH_ISA {

struct KeyInterval {
  int32_t begin, end;
};

template <typename T>
class MaskedRows {
 public:
  static constexpr int kSegments = 2;
  static constexpr int64_t kMaxRows = plan::kMaskedBlockAttentionRows + cpu::kMaskedBlockAttentionMaxPanel;

  // `ranges` and `places` are parts of the scratch memory.
  MaskedRows(const MaskedBlockAttentionParams& params, const cpu::MaskedBlockAttentionTask& task,
             const plan::MaskedBlockAttentionTile& tile, int32_t* ranges, int32_t* places)
      : params_(params), task_(task), tile_(tile), ranges_(ranges), queries_(places), heads_(places + kMaxRows) {
    const int64_t group = params.q_heads / params.kv_heads, block_size = params.block_size;
    int64_t ordered = tile.first_row / group, head = tile.first_row % group;
    int64_t block = 0, block_row = 0;  // ordered block within the tile, row within the block
    if (task.order != nullptr) {
      first_block_ = ordered / block_size;
      block_row = ordered % block_size;
    }
    for (int64_t row = 0; row < tile.rows; ++row) {
      const int64_t query = task.order == nullptr ? ordered : task.order[first_block_ + block] * block_size + block_row;
      queries_[row] = static_cast<int32_t>(query);
      heads_[row] = static_cast<int32_t>(task.kv_head * group + head);
      if (row == 0 || head == 0) {
        const VisibleKeys keys = visible_keys(params, tile.document_begin, tile.document_end, query);
        // Blocks follow one another in the order of the rows, not where they lie.
        const int64_t lies_at = context_tokens(params) + query - block_row;
        set_range(0, row, keys.context_begin - tile.context_begin, keys.context_end - tile.context_begin);
        set_range(1, row, keys.block_begin - lies_at + block * block_size,
                  keys.block_end - lies_at + block * block_size);
      } else {  // another head of the same query
        for (int i = 0; i < 2 * kSegments; ++i) ranges_[i * kMaxRows + row] = ranges_[i * kMaxRows + row - 1];
      }
      if (++head == group) {
        head = 0;
        ++ordered;
        if (task.order != nullptr && ++block_row == block_size) {
          block_row = 0;
          ++block;
        }
      }
    }
    for (int64_t row = tile.rows; row < (tile.rows + kLanes - 1) / kLanes * kLanes; ++row) {
      for (int segment = 0; segment < kSegments; ++segment) set_range(segment, row, 0, 0);
    }
    key_counts_[0] = static_cast<int32_t>(tile.context_end - tile.context_begin);
    key_counts_[1] = 0;
    if (task.order != nullptr) {
      key_counts_[1] = static_cast<int32_t>((block + (block_row + head > 0 ? 1 : 0)) * block_size);
    }
  }

  int64_t count() const { return tile_.rows; }
  const int32_t* begins(int segment) const { return ranges_ + 2 * segment * kMaxRows; }
  const int32_t* ends(int segment) const { return ranges_ + (2 * segment + 1) * kMaxRows; }

  // A row of q, out, grad_out, grad_q ... ([queries, q_heads, ...]).
  template <typename Element>
  Element* row_of(const HeadRows& tensor, int64_t row) const {
    return static_cast<Element*>(tensor.data) + queries_[row] * tensor.row_stride + heads_[row] * tensor.head_stride;
  }

  // Packs the keys and values of each segment, a tile at a time, and calls function(segment, first, count) with each.
  template <typename Function>
  void for_each_key_tile(float* keys, float* values, int64_t stride, Function&& function) const {
    constexpr int kKeys = cpu::kMaskedBlockAttentionKeys;
    for (int segment = 0; segment < kSegments; ++segment) {
      for (int32_t first = 0; first < key_counts_[segment]; first += kKeys) {
        const int count = key_counts_[segment] - first < kKeys ? key_counts_[segment] - first : kKeys;
        pack_keys(params_.k, segment, first, count, keys, stride);
        pack_keys(params_.v, segment, first, count, values, stride);
        function(segment, first, count);
      }
    }
  }

  void pack_row(const T* source, float* target) const {
    int64_t d = 0;
    for (; d + kLanes <= params_.head_dim; d += kLanes) store(target + d, load(source + d));
    for (; d < params_.head_dim; ++d) target[d] = to_float(source[d]);
  }

  // target[d][lane] = sources[lane][d]; where a source is null, 0.
  template <int kVectors, typename Element>
  void transpose_in(const Element* const (&sources)[kVectors * kLanes], float* target) const {
    for (int v = 0; v < kVectors; ++v) {
      for (int64_t d = 0; d < params_.head_dim; d += kLanes) {
        const int width = static_cast<int>(params_.head_dim - d);
        Floats square[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          const Element* source = sources[v * kLanes + i];
          square[i] = source == nullptr ? Floats{}
                      : width >= kLanes ? load(source + d)
                                        : load_partial(source + d, width);
        }
        transpose(square);
        for (int i = 0; i < kLanes; ++i) store(target + ((d + i) * kVectors + v) * kLanes, square[i]);
      }
    }
  }

  // targets[lane][d] = source[d][lane] * factors[lane]; null targets are left out.
  template <int kVectors>
  void transpose_out(const float* source, const float (&factors)[kVectors * kLanes],
                     T* const (&targets)[kVectors * kLanes]) const {
    for (int v = 0; v < kVectors; ++v) {
      for (int64_t d = 0; d < params_.head_dim; d += kLanes) {
        const int width = static_cast<int>(params_.head_dim - d);
        Floats square[kLanes];
        for (int i = 0; i < kLanes; ++i) square[i] = load(source + ((d + i) * kVectors + v) * kLanes);
        transpose(square);
        for (int i = 0; i < kLanes; ++i) {
          T* target = targets[v * kLanes + i];
          if (target == nullptr) continue;
          const Floats row = square[i] * factors[v * kLanes + i];
          if (width >= kLanes) {
            store(target + d, row);
          } else {
            store_partial(target + d, row, width);
          }
        }
      }
    }
  }

  // What rows row .. row+rows of a segment see together, `seen`, and what each of them sees, `seen_by_all`.
  void panel_intervals(int segment, int64_t row, int rows, KeyInterval* seen, KeyInterval* seen_by_all) const {
    const int32_t* begin = begins(segment) + row;
    const int32_t* end = ends(segment) + row;
    *seen = {INT32_MAX, 0};
    *seen_by_all = {0, INT32_MAX};
    for (int r = 0; r < rows; ++r) {
      if (begin[r] < end[r]) {
        if (begin[r] < seen->begin) seen->begin = begin[r];
        if (end[r] > seen->end) seen->end = end[r];
      }
      if (begin[r] > seen_by_all->begin) seen_by_all->begin = begin[r];
      if (end[r] < seen_by_all->end) seen_by_all->end = end[r];
    }
  }

 private:
  // Converts keys first .. first+count of a segment from `tensor` (k or v) to rows of floats.
  void pack_keys(const HeadRows& tensor, int segment, int32_t first, int count, float* target, int64_t stride) const {
    const T* head = static_cast<const T*>(tensor.data) + task_.kv_head * tensor.head_stride;
    if (segment == 0) {
      for (int i = 0; i < count; ++i) {
        pack_row(head + (tile_.context_begin + first + i) * tensor.row_stride, target + i * stride);
      }
      return;
    }
    int64_t block = first / params_.block_size, row = first % params_.block_size;
    for (int i = 0; i < count; ++i) {
      const int64_t lies_at = context_tokens(params_) + task_.order[first_block_ + block] * params_.block_size;
      pack_row(head + (lies_at + row) * tensor.row_stride, target + i * stride);
      if (++row == params_.block_size) {
        row = 0;
        ++block;
      }
    }
  }

  void set_range(int segment, int64_t row, int64_t begin, int64_t end) {
    const bool empty = begin >= end;
    ranges_[2 * segment * kMaxRows + row] = empty ? 0 : static_cast<int32_t>(begin);
    ranges_[(2 * segment + 1) * kMaxRows + row] = empty ? 0 : static_cast<int32_t>(end);
  }

  const MaskedBlockAttentionParams& params_;
  const cpu::MaskedBlockAttentionTask& task_;
  const plan::MaskedBlockAttentionTile& tile_;
  int32_t* const ranges_;
  int32_t* const queries_;
  int32_t* const heads_;
  int32_t key_counts_[kSegments];
  int64_t first_block_ = 0;
};

}  // namespace DFLASH_ISA
}  // namespace dflash
