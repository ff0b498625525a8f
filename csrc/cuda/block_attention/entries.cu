#include "cuda/common/entries.h"
#include "plan/cuda/block_attention.h"
