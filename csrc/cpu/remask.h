#pragma once
#include "params/remask.h"

namespace dflash::cpu {

void remask(const RemaskParams& params);

}  // namespace dflash::cpu
