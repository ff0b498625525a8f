// The driver's part of a plan's tensor maps (plan/tensor_map.h).
#pragma once
#include <string>

#include "plan/launch.h"

namespace dflash::cuda {

// Makes the plan's tensor maps and writes them into `params`, a copy of its parameters that need not be aligned. Makes
// `device` current. Returns what went wrong, or nothing.
std::string put_tensor_maps(const LaunchPlan& plan, int device, unsigned char* params);

}  // namespace dflash::cuda
