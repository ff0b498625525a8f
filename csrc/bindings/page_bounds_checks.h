// Checks that update_page_bounds and the ops that write context rows share.
#pragma once
#include "bindings/context_checks.h"
#include "params/update_page_bounds.h"

namespace dflash::bindings {

// `data` is the tensor whose device all others must share. slot_mapping's length and row_count are the caller's.
UpdatePageBoundsParams check_page_bounds(const char* op, const TensorList& k_caches, const TensorList& k_bounds,
                                         const Tensor& slot_mapping, const int32_t* row_count);

}  // namespace dflash::bindings
