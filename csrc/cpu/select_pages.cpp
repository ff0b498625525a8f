#include "cpu/select_pages.h"

#include <algorithm>
#include <atomic>
#include <functional>

#include "cpu/parallel.h"
#include "cpu/scratch.h"
#include "cpu/select_pages_scratch.h"
#include "plan/select_pages.h"

namespace dflash::cpu {
namespace {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t align(int64_t bytes) { return ceil_div(bytes, 64) * 64; }

int32_t page_of(uint64_t key) { return static_cast<int32_t>(~key & 0xffffffffu); }

int64_t context_len_of(const SelectPagesParams& params, int64_t request) {
  return params.context_lens[request * params.context_lens_stride];
}

// `keys`: of `count` candidates, all that may be chosen; not read where none is scored.
void write_selection(const SelectPagesParams& params, int64_t request, int64_t head, uint64_t* keys, int64_t count) {
  const PageDivision division = plan::divide_pages(params, context_len_of(params, request));
  int32_t* selected = params.selected + request * params.selected_batch_stride + head * params.selected_head_stride;
  int64_t written = 0;
  for (int64_t page = 0; page < division.sinks; ++page) selected[written++] = static_cast<int32_t>(page);
  const int64_t first_chosen = written;
  if (division.scored) {
    std::nth_element(keys, keys + division.chosen - 1, keys + count, std::greater<uint64_t>());
    for (int64_t i = 0; i < division.chosen; ++i) selected[written++] = page_of(keys[i]);
    std::sort(selected + first_chosen, selected + written);
  } else {
    for (int64_t i = 0; i < division.chosen; ++i) selected[written++] = static_cast<int32_t>(division.sinks + i);
  }
  for (int64_t page = division.local_begin; page < division.pages; ++page) {
    selected[written++] = static_cast<int32_t>(page);
  }
  params.counts[request * params.counts_batch_stride + head * params.counts_head_stride] =
      static_cast<int32_t>(written);
  std::fill(selected + written, selected + params.width, -1);
}

int64_t rows_of(const SelectPagesParams& params, int64_t request) {
  const int64_t tokens = plan::block_begin(params, request + 1) - plan::block_begin(params, request);
  return tokens * (params.q_heads / params.kv_heads);
}

// Branch and bound over groups of pages, for one head: no key of a group's pages is above the key of the group's own
// bounds. The score of wider bounds is not below that of narrower ones, rounding included, since the same operations in
// the same order are monotonic in them; only an infinite one says nothing, as it may stand over a NaN. So pages of the
// best groups are scored, then those of every group that could still have one of the greatest keys.
class GroupSearch {
 public:
  static int64_t scratch_bytes(const SelectPagesParams& params) {
    return align(4 * params.max_pages) * 2 + align(8 * ceil_div(params.max_pages, params.group_pages));
  }

  GroupSearch(const SelectPagesParams& params, int64_t request, int64_t head, uint64_t* keys, char* scratch)
      : params_(params),
        division_(plan::divide_pages(params, context_len_of(params, request))),
        request_(request),
        head_(head),
        first_group_(division_.sinks / params.group_pages),
        groups_(ceil_div(division_.local_begin, params.group_pages) - first_group_),
        keys_(keys),
        pages_(reinterpret_cast<int32_t*>(scratch)),
        indices_(reinterpret_cast<int32_t*>(scratch + align(4 * params.max_pages))),
        group_keys_(reinterpret_cast<uint64_t*>(scratch + 2 * align(4 * params.max_pages))),
        score_scratch_(scratch + scratch_bytes(params)) {}

  // Leaves the keys of some pages, those of the chosen ones among them, and returns their number.
  int64_t run() {
    score_groups();
    const int64_t best = std::min(groups_, 2 * ceil_div(division_.chosen, params_.group_pages));
    std::nth_element(group_keys_, group_keys_ + best - 1, group_keys_ + groups_, std::greater<uint64_t>());
    for (int64_t i = 0; i < best; ++i) add_pages(group_keys_[i]);
    score_added();
    uint64_t least = 0;  // of the greatest keys so far
    if (scored_ >= division_.chosen) {
      std::nth_element(keys_, keys_ + division_.chosen - 1, keys_ + scored_, std::greater<uint64_t>());
      least = keys_[division_.chosen - 1];
    }
    for (int64_t i = best; i < groups_; ++i) {
      if (bound_of(group_keys_[i]) > least) add_pages(group_keys_[i]);
    }
    score_added();
    return scored_;
  }

 private:
  static uint64_t bound_of(uint64_t group_key) {
    constexpr uint64_t kInfinity = 0xff800000u;  // as a score is ordered
    const uint64_t score = group_key >> 32;
    return (score >= kInfinity ? ~uint64_t{0} : score << 32) | 0xffffffffu;
  }

  PageScoreTask task(int64_t count, uint64_t* keys) const {
    return {head_, 1, plan::block_begin(params_, request_), rows_of(params_, request_), pages_, indices_, 0, count,
            keys,  0};
  }

  void score_groups() {
    const int64_t size = dtype_size(params_.dtype);
    SelectPagesParams over_groups = params_;
    over_groups.bounds = static_cast<const char*>(params_.group_bounds) + request_ * params_.group_batch_stride * size;
    over_groups.bounds_page_stride = params_.group_stride;
    over_groups.bounds_head_stride = params_.group_head_stride;
    over_groups.bounds_part_stride = params_.group_part_stride;
    for (int64_t i = 0; i < groups_; ++i) pages_[i] = indices_[i] = static_cast<int32_t>(first_group_ + i);
    DFLASH_KERNEL(score_pages)(over_groups, task(groups_, group_keys_), score_scratch_);
  }

  void add_pages(uint64_t group_key) {
    const int64_t first = page_of(group_key) * params_.group_pages;
    const int32_t* table = params_.page_table + request_ * params_.page_table_stride;
    const int64_t end = std::min(first + params_.group_pages, division_.local_begin);
    for (int64_t page = std::max(first, division_.sinks); page < end; ++page) {
      pages_[added_] = table[page];
      indices_[added_++] = static_cast<int32_t>(page);
    }
  }

  void score_added() {
    if (added_ > 0) DFLASH_KERNEL(score_pages)(params_, task(added_, keys_ + scored_), score_scratch_);
    scored_ += added_;
    added_ = 0;
  }

  const SelectPagesParams& params_;
  const PageDivision division_;
  const int64_t request_, head_, first_group_, groups_;
  uint64_t* const keys_;
  int32_t *const pages_, *const indices_;
  uint64_t* const group_keys_;
  char* const score_scratch_;
  int64_t added_ = 0, scored_ = 0;
};

void select_by_groups(const SelectPagesParams& params, uint64_t* keys) {
  const int64_t scratch_bytes = GroupSearch::scratch_bytes(params) + score_pages_scratch(params.head_dim);
  parallel_tasks(params.batch * params.kv_heads, 1, [&](int64_t list) {
    const int64_t request = list / params.kv_heads, head = list % params.kv_heads;
    uint64_t* own_keys = keys + list * params.max_pages;
    int64_t count = 0;
    if (plan::divide_pages(params, context_len_of(params, request)).scored) {
      auto* scratch = static_cast<char*>(thread_scratch(scratch_bytes));
      count = GroupSearch(params, request, head, own_keys, scratch).run();
    }
    write_selection(params, request, head, own_keys, count);
  });
}

}  // namespace

int64_t score_pages_scratch(int64_t head_dim) { return page_score_scratch_layout(head_dim).bytes; }

void select_pages(const SelectPagesParams& params, int64_t threads) {
  const int64_t lists = params.batch * params.kv_heads;
  if (lists == 0) return;
  auto* keys = static_cast<uint64_t*>(params.workspace);
  if (params.group_bounds != nullptr) return select_by_groups(params, keys);
  const plan::PageScoreTasks tasks = plan::page_score_tasks(params, threads);
  const int64_t request_tasks = tasks.groups * tasks.stretches;
  const auto score = DFLASH_KERNEL(score_pages);
  const int64_t scratch_bytes = score_pages_scratch(params.head_dim);
  // Contexts differ, so threads draw tasks one by one instead of getting equal shares.
  std::atomic<int64_t> next{0};
  parallel_tasks(std::min(threads, params.batch * request_tasks), 1, [&](int64_t) {
    void* scratch = thread_scratch(scratch_bytes);
    for (int64_t task = next.fetch_add(1); task < params.batch * request_tasks; task = next.fetch_add(1)) {
      const int64_t request = task / request_tasks;
      const int64_t kv_head = task % request_tasks / tasks.stretches * tasks.heads;
      const PageDivision division = plan::divide_pages(params, context_len_of(params, request));
      const int64_t begin = division.sinks + task % tasks.stretches * tasks.pages;
      const int64_t end = std::min(begin + tasks.pages, division.local_begin);
      const int64_t heads = std::min(tasks.heads, params.kv_heads - kv_head);
      if (!division.scored || begin >= end || heads <= 0) continue;
      const int64_t token = plan::block_begin(params, request);
      const int64_t rows = rows_of(params, request);
      score(
          params,
          {kv_head, heads, token, rows, params.page_table + request * params.page_table_stride + begin, nullptr, begin,
           end - begin, keys + (request * params.kv_heads + kv_head) * params.max_pages + begin, params.max_pages},
          scratch);
    }
  });
  parallel_tasks(lists, 1, [&](int64_t list) {
    const int64_t request = list / params.kv_heads;
    const PageDivision division = plan::divide_pages(params, context_len_of(params, request));
    write_selection(params, request, list % params.kv_heads, keys + list * params.max_pages + division.sinks,
                    division.local_begin - division.sinks);
  });
}

}  // namespace dflash::cpu
