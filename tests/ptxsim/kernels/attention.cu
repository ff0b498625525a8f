// The interpreter's own test kernel: attention over 64-row tiles with mma.sync, ldmatrix and double-buffered cp.async.
// BUG_* macros plant the faults tests/ptxsim/test_attention.py expects the interpreter to find.
#include <cuda_bf16.h>

#include <cstdint>

namespace {

constexpr int kTile = 64;
constexpr int kHeadDim = 64;
constexpr int kTileBytes = kTile * kHeadDim * 2;

__device__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16-byte chunk of a row of 128 bytes, exclusive-or swizzled so that eight rows of a column lie in eight bank groups.
__device__ int swizzled(int row, int chunk) {
#ifdef BUG_NO_SWIZZLE
  return row * 128 + chunk * 16;
#else
  return row * 128 + ((chunk ^ (row & 7)) << 4);
#endif
}

__device__ void copy_16(uint32_t destination, const void* source, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(bytes) : "memory");
}

__device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kLeft>
__device__ void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

template <bool kTransposed>
__device__ void load_fragments(uint32_t (&r)[4], uint32_t address) {
  if (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  }
}

__device__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ uint32_t packed(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ void load_tile(unsigned char* tile, const __nv_bfloat16* rows, int first, int count) {
  for (int i = threadIdx.x; i < kTile * 8; i += blockDim.x) {
    const int row = i / 8;
    const int chunk = i % 8;
    const bool valid = first + row < count;
    copy_16(shared_address(tile + swizzled(row, chunk)), rows + (valid ? (first + row) * kHeadDim + chunk * 8 : 0),
            valid);
  }
}

}  // namespace

// out, q [heads, q_len, 64]; k, v [heads, kv_len, 64]; one block a head and 64 query rows, 128 threads, no mask.
extern "C" __global__ void __launch_bounds__(128)
    attention(const __nv_bfloat16* q, const __nv_bfloat16* k, const __nv_bfloat16* v, float* out, int q_len, int kv_len,
              float scale_log2) {
  extern __shared__ __align__(128) unsigned char shared[];
  unsigned char* const q_tile = shared;
  unsigned char* const k_tiles = shared + kTileBytes;
  unsigned char* const v_tiles = shared + 3 * kTileBytes;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int first_row = blockIdx.x * kTile;
  q += static_cast<int64_t>(blockIdx.y) * q_len * kHeadDim;
  k += static_cast<int64_t>(blockIdx.y) * kv_len * kHeadDim;
  v += static_cast<int64_t>(blockIdx.y) * kv_len * kHeadDim;
  out += static_cast<int64_t>(blockIdx.y) * q_len * kHeadDim;
  load_tile(q_tile, q, first_row, q_len);
  load_tile(k_tiles, k, 0, kv_len);
  load_tile(v_tiles, v, 0, kv_len);
  commit();
  float result[8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};
  uint32_t q_fragments[4][4];
  const int tiles = (kv_len + kTile - 1) / kTile;
  for (int tile = 0; tile < tiles; ++tile) {
    const int stage = tile % 2;
    if (tile + 1 < tiles) {
#ifdef BUG_WRONG_STAGE
      const int next = stage;
#else
      const int next = stage ^ 1;
#endif
      load_tile(k_tiles + next * kTileBytes, k, (tile + 1) * kTile, kv_len);
      load_tile(v_tiles + next * kTileBytes, v, (tile + 1) * kTile, kv_len);
      commit();
      wait<1>();
    } else {
#ifndef BUG_NO_WAIT
      wait<0>();
#endif
    }
#ifndef BUG_NO_FIRST_BARRIER
    __syncthreads();
#endif
    if (tile == 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        load_fragments<false>(q_fragments[i],
                              shared_address(q_tile + swizzled(warp * 16 + lane % 16, 2 * i + lane / 16)));
      }
    }
    float scores[8][4] = {};
    const unsigned char* const k_tile = k_tiles + stage * kTileBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t r[4];
        const int row = j * 16 + lane % 8 + (lane / 16) * 8;
        load_fragments<false>(r, shared_address(k_tile + swizzled(row, 2 * i + (lane / 8) % 2)));
        multiply(scores[2 * j], q_fragments[i], r[0], r[1]);
        multiply(scores[2 * j + 1], q_fragments[i], r[2], r[3]);
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = tile * kTile + j * 8 + (lane % 4) * 2 + e % 2;
        scores[j][e] = key < kv_len ? scores[j][e] * scale_log2 : -INFINITY;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = largest[half];
#pragma unroll
      for (int j = 0; j < 8; ++j) top = fmaxf(top, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float rescale = exp2f(largest[half] - top);
      largest[half] = top;
      float total = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        scores[j][2 * half] = exp2f(scores[j][2 * half] - top);
        scores[j][2 * half + 1] = exp2f(scores[j][2 * half + 1] - top);
        total += scores[j][2 * half] + scores[j][2 * half + 1];
        result[j][2 * half] *= rescale;
        result[j][2 * half + 1] *= rescale;
      }
      sum[half] = sum[half] * rescale + total;
    }
    const unsigned char* const v_tile = v_tiles + stage * kTileBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t weights[4] = {
          packed(scores[2 * i][0], scores[2 * i][1]), packed(scores[2 * i][2], scores[2 * i][3]),
          packed(scores[2 * i + 1][0], scores[2 * i + 1][1]), packed(scores[2 * i + 1][2], scores[2 * i + 1][3])};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t r[4];
        load_fragments<true>(r, shared_address(v_tile + swizzled(i * 16 + lane % 16, 2 * j + lane / 16)));
        multiply(result[2 * j], weights, r[0], r[1]);
        multiply(result[2 * j + 1], weights, r[2], r[3]);
      }
    }
#ifndef BUG_NO_LAST_BARRIER
    __syncthreads();
#endif
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
    const int row = first_row + warp * 16 + lane / 4 + half * 8;
#ifndef BUG_NO_ROW_GUARD
    if (row >= q_len) continue;
#endif
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float2* const to = reinterpret_cast<float2*>(out + static_cast<int64_t>(row) * kHeadDim + j * 8 + (lane % 4) * 2);
      *to = make_float2(result[j][2 * half] / sum[half], result[j][2 * half + 1] / sum[half]);
    }
  }
}
