// Checks that the ops around the draft context share: RoPE tables, context caches, row counts.
#pragma once
#include <vector>

#include "bindings/checks.h"
#include "params/skinny_gemm.h"
#include "params/write_context_kv.h"

namespace dflash::bindings {

using TensorList = std::vector<Tensor>;

// `data` is the tensor whose rows rotate; its dtype is allowed for the table besides float32.
RopeTable check_rope(const char* op, const OptionalTensor& cos_sin, const OptionalTensor& positions, bool interleaved,
                     const Tensor& data, int64_t rows, int64_t head_dim);

ContextCaches check_caches(const char* op, const TensorList& k_caches, const TensorList& v_caches,
                           const Tensor& slot_mapping, const Tensor& data, int64_t rows, int64_t layers,
                           int64_t kv_heads, int64_t head_dim);

// Null when absent.
const int32_t* check_row_count(const char* op, const OptionalTensor& row_count, const Tensor& data);

// A weight of shape [sizes] in the dtype of `data`.
void check_weight(const char* op, const char* name, const Tensor& weight, const Tensor& data,
                  std::initializer_list<int64_t> sizes);

// Operands of a matrix product, from tensors that were checked.
GemmActivations single_piece(const Tensor& activations);  // [rows, columns]
GemmWeight single_layer_weight(const Tensor& weight);     // [columns, inner size]

// The checks below read data, which only the CPU can do before anything is written.
void check_row_count_value(const char* op, const int32_t* row_count, int64_t rows);
// A row's slot: -1, or below `slots`.
void check_slot(const char* op, int64_t slot, int64_t slots, int64_t row);
// Slots of the rows that are written, and their positions.
void check_slots_and_positions(const char* op, const ContextCaches& caches, const RopeTable& rope, int64_t rows);
void check_position(const char* op, const RopeTable& rope, int64_t row);

}  // namespace dflash::bindings
