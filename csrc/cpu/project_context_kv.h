#pragma once
#include "params/project_context_kv.h"

namespace dflash::cpu {

void project_context_kv(const ProjectContextKvParams& params);

}  // namespace dflash::cpu
