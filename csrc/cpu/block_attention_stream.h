// Brings keys and values from where they lie into packed tiles for block_attention.
// Included by `*.isa.cpp` files only (see isa.h).
#pragma once
#include "cpu/block_attention_scratch.h"
#include "cpu/block_attention_tile.h"
#include "plan/block_attention.h"

namespace dflash {
namespace DFLASH_ISA {

// The keys and values of one task, in tiles: every kv head of the item in turn, then the next keys. Heads take turns
// because their rows of a key share a memory page in most caches, and walking the page table for every head anew costs
// more than reading the data. While products run on one tile the rows of the next are prefetched: they lie far apart,
// so the machine's own prefetchers do not follow.
template <typename T, class Math>
class KeyStream {
  typedef typename Math::Element Element;
  static constexpr int kTile = plan::kBlockAttentionTile;
  static constexpr int kPadding = 12;  // the tallest register block; keys are padded with zeros to a multiple of it

 public:
  // Keys [begin, end); `work` is what advance() is told, in sum, over the products on one tile.
  KeyStream(const BlockAttentionParams& params, const plan::BlockAttentionItem& item,
            const cpu::BlockAttentionScratch& layout, char* scratch, int64_t begin, int64_t end, int64_t work)
      : params_(params),
        item_(item),
        row_stride_(layout.row_stride),
        page_shift_(__builtin_ctzll(params.page_size)),
        work_(work),
        keys_(reinterpret_cast<Element*>(scratch + layout.keys)),
        values_(reinterpret_cast<Element*>(scratch + layout.values)),
        end_(end),
        next_key_(begin) {
    locate();
  }

  // Packs the next tile; false after the last.
  bool next() {
    if (located_ == 0) return false;
    first_key_ = next_key_;
    head_ = next_head_;
    count_ = located_;
    pack();
    if (++next_head_ == item_.heads) {
      next_head_ = 0;
      next_key_ += count_;
    }
    locate();
    return true;
  }

  int64_t first_key() const { return first_key_; }
  int64_t head() const { return head_; }  // relative to the item's first
  int count() const { return count_; }
  const Element* keys() const { return keys_; }      // a row each
  const Element* values() const { return values_; }  // a row for every Math::kPerElement of them
  int64_t row_stride() const { return row_stride_; }

  // Prefetches the share of the next tile that `work` of the products on this one amounts to.
  void advance(int work) {
    progress_ += work * 2 * located_;
    for (; prefetched_ * work_ < progress_ && prefetched_ < 2 * located_; ++prefetched_) {
      const T* row = prefetched_ % 2 == 0 ? key_rows_[prefetched_ / 2] : value_rows_[prefetched_ / 2];
      const auto* bytes = reinterpret_cast<const char*>(row);
      const int64_t size = params_.head_dim * static_cast<int64_t>(sizeof(T));
      for (int64_t b = 0; b < size; b += 64) __builtin_prefetch(bytes + b, 0, 2);
    }
  }

 private:
  // Finds the rows of the next tile: the context's in the cache's pages, the block's in its own tensors.
  void locate() {
    const int64_t head = item_.kv_head + next_head_;
    const auto* k_block = static_cast<const T*>(params_.k_block) + head * params_.k_block_head_stride;
    const auto* v_block = static_cast<const T*>(params_.v_block) + head * params_.v_block_head_stride;
    const auto* k_cache = static_cast<const T*>(params_.k_cache) + head * params_.k_head_stride;
    const auto* v_cache = static_cast<const T*>(params_.v_cache) + head * params_.v_head_stride;
    located_ = static_cast<int>(end_ - next_key_ < kTile ? end_ - next_key_ : kTile);
    for (int i = 0; i < located_; ++i) {
      const int64_t key = next_key_ + i;
      if (key < item_.context_len) {
        const int64_t page = item_.pages[key >> page_shift_];
        const int64_t slot = key & (params_.page_size - 1);
        key_rows_[i] = k_cache + page * params_.k_page_stride + slot * params_.k_slot_stride;
        value_rows_[i] = v_cache + page * params_.v_page_stride + slot * params_.v_slot_stride;
      } else {
        const int64_t token = item_.first_token + key - item_.context_len;
        key_rows_[i] = k_block + token * params_.k_block_token_stride;
        value_rows_[i] = v_block + token * params_.v_block_token_stride;
      }
    }
    prefetched_ = 0;
    progress_ = 0;
  }

  void pack() {
    const int64_t head_dim = params_.head_dim;
    for (int i = 0; i < count_; ++i) {
      Element* target = keys_ + i * row_stride_;
      if constexpr (Math::kPerElement == 2) {
        std::memcpy(target, key_rows_[i], head_dim * 2);
      } else {
        convert_row(target, key_rows_[i], head_dim);
      }
    }
    for (int i = count_; i % kPadding != 0; ++i) {
      std::memset(keys_ + i * row_stride_, 0, head_dim / Math::kPerElement * 4);
    }
    if constexpr (Math::kPerElement == 2) {
      for (int i = 0; i < count_; i += 2) {
        interleave_rows(values_ + i / 2 * row_stride_, value_rows_[i], i + 1 < count_ ? value_rows_[i + 1] : nullptr,
                        head_dim);
      }
    } else {
      for (int i = 0; i < count_; ++i) convert_row(values_ + i * row_stride_, value_rows_[i], head_dim);
    }
  }

  static void convert_row(float* target, const T* source, int64_t head_dim) {
    int64_t d = 0;
#pragma GCC unroll 4
    for (; d + kLanes <= head_dim; d += kLanes) store(target + d, load(source + d));
    for (; d < head_dim; ++d) target[d] = to_float(source[d]);
  }

  // target[d] = (first[d], second[d]) as a pair; a missing second row counts as zeros.
  static void interleave_rows(uint32_t* target, const T* first, const T* second, int64_t head_dim) {
    if (second == nullptr) {
      for (int64_t d = 0; d < head_dim; ++d) target[d] = first[d].bits;
    } else {
      for (int64_t d = 0; d < head_dim; ++d) {
        target[d] = first[d].bits | static_cast<uint32_t>(second[d].bits) << 16;
      }
    }
  }

  const BlockAttentionParams& params_;
  const plan::BlockAttentionItem& item_;
  const int64_t row_stride_;
  const int page_shift_;
  const int64_t work_;
  Element* const keys_;  // [kTile][row_stride]
  Element* const values_;
  // The packed tile.
  int64_t first_key_ = 0, head_ = 0;
  int count_ = 0;
  // The tile after it.
  const int64_t end_;
  int64_t next_key_, next_head_ = 0;
  int located_ = 0;
  const T* key_rows_[kTile];
  const T* value_rows_[kTile];
  int prefetched_ = 0;  // rows, keys and values in turn
  int64_t progress_ = 0;
};

}  // namespace DFLASH_ISA
}  // namespace dflash
