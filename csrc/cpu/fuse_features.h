#pragma once
#include "params/fuse_features.h"

namespace dflash::cpu {

void fuse_features(const FuseFeaturesParams& params);

}  // namespace dflash::cpu
