// The C functions of _cuda.so that _ops.so finds by name (csrc/bindings/cuda_backend.cpp). Each of the first two
// returns null or a sentence that says what went wrong, valid until the thread's next call.
#pragma once
#include "plan/device.h"
#include "plan/launch.h"

extern "C" {
using DflashCudaDevice = const char*(int device, const dflash::DeviceProperties** properties);
using DflashCudaLaunch = const char*(const dflash::LaunchPlan* plan, int device);
// Comma-separated names of the ops with kernels in this library.
using DflashCudaOps = const char*();
}
