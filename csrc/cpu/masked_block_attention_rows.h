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

  MaskedRows(const MaskedBlockAttentionParams& params, const cpu::MaskedBlockAttentionTask& task,
             const plan::MaskedBlockAttentionTile& tile, int32_t* ranges)
      : params_(params), task_(task), tile_(tile), group_(params.q_heads / params.kv_heads), ranges_(ranges) {
    key_counts_[0] = static_cast<int32_t>(tile.context_end - tile.context_begin);
    key_counts_[1] = 0;
    if (task.order != nullptr) {
      const int64_t block_rows = params.block_size * group_;
      first_block_ = tile.first_row / block_rows;
      const int64_t end_block = (tile.first_row + tile.rows + block_rows - 1) / block_rows;
      key_counts_[1] = static_cast<int32_t>((end_block - first_block_) * params.block_size);
    }
    for (int64_t row = 0; row < tile.rows; ++row) {
      if (row > 0 && (tile.first_row + row) % group_ != 0) {  // another head of the same query
        for (int i = 0; i < 2 * kSegments; ++i) ranges_[i * kMaxRows + row] = ranges_[i * kMaxRows + row - 1];
        continue;
      }
      const VisibleKeys keys = visible_keys(params, tile.document_begin, tile.document_end, query(row));
      // Blocks follow one another in the order of the rows, not where they lie.
      const int64_t block_shift =
          task.order == nullptr
              ? 0
              : ((tile.first_row + row) / group_ / params.block_size - first_block_) * params.block_size -
                    (context_tokens(params) + query(row) / params.block_size * params.block_size);
      set_range(0, row, keys.context_begin, keys.context_end, -tile.context_begin);
      set_range(1, row, keys.block_begin, keys.block_end, block_shift);
    }
    for (int64_t row = tile.rows; row < (tile.rows + kLanes - 1) / kLanes * kLanes; ++row) {
      for (int segment = 0; segment < kSegments; ++segment) set_range(segment, row, 0, 0, 0);
    }
  }

  int64_t count() const { return tile_.rows; }
  int32_t key_count(int segment) const { return key_counts_[segment]; }
  const int32_t* begins(int segment) const { return ranges_ + 2 * segment * kMaxRows; }
  const int32_t* ends(int segment) const { return ranges_ + (2 * segment + 1) * kMaxRows; }

  // A row of q, out, grad_out, grad_q ... ([queries, q_heads, ...]).
  template <typename Element>
  Element* row_of(const HeadRows& tensor, int64_t row) const {
    const int64_t head = task_.kv_head * group_ + (tile_.first_row + row) % group_;
    return static_cast<Element*>(tensor.data) + query(row) * tensor.row_stride + head * tensor.head_stride;
  }

  // Converts keys first .. first+count of a segment from `tensor` (k or v) to rows of floats.
  void pack_keys(const HeadRows& tensor, int segment, int32_t first, int count, float* target, int64_t stride) const {
    const T* head = static_cast<const T*>(tensor.data) + task_.kv_head * tensor.head_stride;
    for (int i = 0; i < count; ++i) {
      int64_t key = tile_.context_begin + first + i;
      if (segment == 1) {
        const int64_t block = task_.order[first_block_ + (first + i) / params_.block_size];
        key = context_tokens(params_) + block * params_.block_size + (first + i) % params_.block_size;
      }
      pack_row(head + key * tensor.row_stride, target + i * stride);
    }
  }

  void pack_row(const T* source, float* target) const {
    int64_t d = 0;
    for (; d + kLanes <= params_.head_dim; d += kLanes) store(target + d, load(source + d));
    for (; d < params_.head_dim; ++d) target[d] = to_float(source[d]);
  }

  // Stores `head_dim` floats that lie `stride` apart.
  void unpack_row(const float* source, int64_t stride, float factor, T* target) const {
    for (int64_t d = 0; d < params_.head_dim; ++d) store_one(target + d, source[d * stride] * factor);
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
  int64_t query(int64_t row) const {
    const int64_t ordered = (tile_.first_row + row) / group_;
    if (task_.order == nullptr) return ordered;
    return task_.order[ordered / params_.block_size] * params_.block_size + ordered % params_.block_size;
  }

  void set_range(int segment, int64_t row, int64_t begin, int64_t end, int64_t shift) {
    const bool empty = begin >= end;
    ranges_[2 * segment * kMaxRows + row] = empty ? 0 : static_cast<int32_t>(begin + shift);
    ranges_[(2 * segment + 1) * kMaxRows + row] = empty ? 0 : static_cast<int32_t>(end + shift);
  }

  const MaskedBlockAttentionParams& params_;
  const cpu::MaskedBlockAttentionTask& task_;
  const plan::MaskedBlockAttentionTile& tile_;
  const int64_t group_;
  int32_t* ranges_;
  int32_t key_counts_[kSegments];
  int64_t first_block_ = 0;
};

}  // namespace DFLASH_ISA
}  // namespace dflash
