// Thin wrappers of single PTX instructions; inline assembly is otherwise in bulk_copy.cuh and warpgroup.cuh alone. Each
// names its section of the PTX ISA manual (9.0) by title, because the numbers move between versions.
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

// "Data Movement and Conversion Instructions: prmt", whose selectors with the top bit repeat a byte's sign: all ones
// for each half of the word that is negative, by its sign bit alone.
__device__ __forceinline__ uint32_t signs_of_halves(uint32_t word) {
  uint32_t result;
  asm("prmt.b32 %0, %1, %1, 0xbb99;" : "=r"(result) : "r"(word));
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

// "Floating Point Instructions: rcp", "lg2": relative errors of about 2^-23 and absolute ones of about 2^-22.
__device__ __forceinline__ float reciprocal_approximate(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ float log2_approximate(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// "Parallel Synchronization and Communication Instructions: griddepcontrol". A launch that may overlap with those
// before it (LaunchPlan::overlaps) waits here until they have ended and what they wrote can be read; every thread of
// every block has to, or the launch after it would not wait for them either. No effect elsewhere.
__device__ __forceinline__ void wait_for_earlier_launches() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The same: once every block has said so, or ended, the next launch may start, up to its own wait.
__device__ __forceinline__ void let_next_launch_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// "Data Movement and Conversion Instructions: prefetch". The line around the address on its way to the second-level
// cache.
__device__ __forceinline__ void prefetch_line(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" : : "l"(__cvta_generic_to_global(address)));
}

// "Data Movement and Conversion Instructions: cvta": an address as instructions on shared memory take it.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// "Data Movement and Conversion Instructions: st.shared".
__device__ __forceinline__ void store_16_bytes(uint32_t shared, const uint4& words) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(words.x), "r"(words.y), "r"(words.z),
               "r"(words.w)
               : "memory");
}

// "Data Movement and Conversion Instructions: cp.async". 16 aligned bytes on their way to shared memory, past L1;
// zeros, and nothing read, where `present` is false.
__device__ __forceinline__ void copy_16_bytes_async(uint32_t to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(__cvta_generic_to_global(from)), "r"(present ? 16 : 0)
               : "memory");
}
// "cp.async.commit_group": closes the group of this thread's copies since the last one.
__device__ __forceinline__ void close_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// "cp.async.wait_group": until at most the latest kLeft groups of this thread are under way.
template <int kLeft>
__device__ __forceinline__ void wait_for_copy_groups() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kLeft) : "memory");
}

// "Warp-Level Matrix Load Instruction: ldmatrix". Four 8 x 8 matrices of 16-bit values, their rows at the addresses of
// lanes 0-7, 8-15, 16-23 and 24-31; lane i gets values 2 * (i % 4) and the next of row i / 4, or of column i / 4.
__device__ __forceinline__ void load_matrices(uint32_t (&values)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&values)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
               : "r"(address)
               : "memory");
}

// "Multiply-and-Accumulate Instruction: mma", m16n8k16: sums += a (16 x 16) * b (16 x 8).
__device__ __forceinline__ void multiply_f16(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_bf16(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace dflash::cuda
