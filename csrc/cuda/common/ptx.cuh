// Thin wrappers of single PTX instructions, the only place with inline assembly. Each names its section of the PTX ISA
// manual (9.0) by title, because the numbers move between versions.
#pragma once
#include <cstdint>

namespace dflash::cuda {

// "Data Movement and Conversion Instructions: ld.global.nc". 16 aligned bytes that no one writes during the kernel and
// that are read once; `absent` where `present` is false. Predicated, not branched over: a group of such loads is in
// flight together.
__device__ __forceinline__ uint4 load_16_bytes_once(const void* address, bool present, uint4 absent) {
  asm volatile(
      "{\n"
      ".reg .pred present;\n"
      "setp.ne.s32 present, %5, 0;\n"
      "@present ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      "}\n"
      : "+r"(absent.x), "+r"(absent.y), "+r"(absent.z), "+r"(absent.w)
      : "l"(__cvta_generic_to_global(address)), "r"(static_cast<int>(present)));
  return absent;
}

// "Floating Point Instructions: max", with .NaN: the result is NaN if either operand is.
__device__ __forceinline__ float max_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// "Half Precision Floating Point Instructions: max", two values in each operand.
__device__ __forceinline__ uint32_t max_nan_f16x2(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
__device__ __forceinline__ uint32_t max_nan_bf16x2(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

// "Data Movement and Conversion Instructions: cvt".
__device__ __forceinline__ float float_from_f16(uint16_t bits) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(bits));
  return result;
}

// "cvt" again, two floats rounded to nearest even and packed, `low` in the lower half. (PTX names the upper one first.)
__device__ __forceinline__ uint32_t f16x2_from_floats(float low, float high) {
  uint32_t result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}
__device__ __forceinline__ uint32_t bf16x2_from_floats(float low, float high) {
  uint32_t result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

// "Floating Point Instructions: ex2": 2^x with a relative error below 2^-22; 0 of minus infinity.
__device__ __forceinline__ float exp2_approximate(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// "Parallel Synchronization and Communication Instructions: atom", operation .inc: returns the old count; the counter
// goes on to old + 1, or back to 0 where old >= last. Acquire and release at device scope: what a block wrote before
// its arrival is seen by the block that finds itself last.
__device__ __forceinline__ uint32_t count_arrival(uint32_t* counter, uint32_t last) {
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(__cvta_generic_to_global(counter)), "r"(last)
               : "memory");
  return old;
}

}  // namespace dflash::cuda
