#include "cpu/commit_block.h"

#include <algorithm>

#include "params/flags.h"

namespace dflash::cpu {
namespace {

bool is_stop_token(const CommitBlockParams& params, int64_t token) {
  const int64_t* end = params.stop_token_ids + params.stop_tokens;
  return std::find(params.stop_token_ids, end, token) != end;
}

}  // namespace

void commit_block(const CommitBlockParams& params) {
  for (int64_t request = 0; request < params.batch; ++request) {
    const int64_t* tokens = params.tokens + request * params.tokens_stride;
    const int64_t* slots = params.slot_mapping + request * params.slot_mapping_stride;
    int64_t* context_slots = params.context_slots + request * params.context_slots_stride;
    int32_t& output_len = params.output_lens[request * params.output_lens_stride];
    const int64_t flag = request * params.finished_stride;
    bool finished = flag_at(params.finished, flag);
    int64_t count = 0;
    if (!finished && tokens[0] >= 0) {  // a request whose first token is -1 sat this round out
      int64_t limit = params.capacity;
      if (params.max_output_lens != nullptr) {
        limit = std::min<int64_t>(limit, params.max_output_lens[request * params.max_output_lens_stride]);
      }
      const int64_t emitted = params.accepted[request * params.accepted_stride] + 1;
      const int64_t room = std::max<int64_t>(limit - output_len, 0);
      int64_t* output = params.output_ids + request * params.output_ids_stride + output_len;
      while (count < std::min(emitted, room) && !finished) {
        output[count] = tokens[count];
        finished = is_stop_token(params, tokens[count]);
        ++count;
      }
      finished = finished || count == room;
      params.finished[flag] = finished;
      output_len += static_cast<int32_t>(count);
      params.context_lens[request * params.context_lens_stride] += static_cast<int32_t>(count);
      if (count > 0) params.next_token[request * params.next_token_stride] = tokens[count - 1];
    }
    params.committed[request * params.committed_stride] = static_cast<int32_t>(count);
    for (int64_t i = 0; i < params.block; ++i) context_slots[i] = i < count ? slots[i] : -1;
  }
}

}  // namespace dflash::cpu
