#pragma once
#include <cstddef>

namespace dflash::cpu {

// 64-byte aligned memory of the calling thread, at least `bytes`, contents undefined. It is grown when a larger piece
// is asked for and then kept, so the steady state allocates nothing. One piece per thread: a nested call would reuse
// it.
void* thread_scratch(size_t bytes);

// The same for results that the threads of one op call share: the calling thread's own tasks use its thread_scratch.
void* calling_thread_workspace(size_t bytes);

}  // namespace dflash::cpu
