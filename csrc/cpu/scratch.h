#pragma once
#include <cstddef>

namespace dflash::cpu {

// 64-byte aligned memory of the calling thread, at least `bytes`, contents undefined. It is grown when a larger piece
// is asked for and then kept, so the steady state allocates nothing. One piece per thread: a nested call would reuse
// it.
void* thread_scratch(size_t bytes);

}  // namespace dflash::cpu
