#include "bindings/context_checks.h"

namespace dflash::bindings {

RopeTable check_rope(const char* op, const OptionalTensor& cos_sin, const OptionalTensor& positions, bool interleaved,
                     const Tensor& data, int64_t rows, int64_t head_dim) {
  RopeTable rope{};
  if (positions) {
    TensorCheck(op, "positions", *positions).same_device(data).dtype(ScalarType::Long).shape({rows});
  }
  if (!cos_sin) return rope;
  TensorCheck(op, "cos_sin", *cos_sin)
      .same_device(data)
      .dim(2)
      .expect(cos_sin->scalar_type() == ScalarType::Float || cos_sin->scalar_type() == data.scalar_type(),
              "float32 or the dtype of the data", to_string(*cos_sin))
      .expect(cos_sin->size(1) % 2 == 0 && cos_sin->size(1) <= head_dim,
              "an even number of columns, at most head_dim " + std::to_string(head_dim), to_string(*cos_sin))
      .last_contiguous();
  if (!positions) raise(op, "positions", "int64 [" + std::to_string(rows) + "] where cos_sin is given", "None");
  rope.cos_sin = cos_sin->data_ptr();
  rope.dtype = dtype_of(*cos_sin);
  rope.table_rows = cos_sin->size(0);
  rope.row_stride = cos_sin->stride(0);
  rope.rotary_dim = cos_sin->size(1);
  rope.interleaved = interleaved;
  rope.positions = static_cast<const int64_t*>(positions->data_ptr());
  rope.positions_stride = positions->stride(0);
  if (rope.rotary_dim == 0) rope.cos_sin = nullptr;
  return rope;
}

ContextCaches check_caches(const char* op, const TensorList& k_caches, const TensorList& v_caches,
                           const Tensor& slot_mapping, const Tensor& data, int64_t rows, int64_t layers,
                           int64_t kv_heads, int64_t head_dim) {
  const auto check_count = [&](const char* name, const TensorList& list) {
    if (static_cast<int64_t>(list.size()) != layers) {
      raise(op, name, "one cache for each of " + std::to_string(layers) + " layers", std::to_string(list.size()));
    }
  };
  check_count("k_caches", k_caches);
  check_count("v_caches", v_caches);
  if (layers > kMaxContextLayers) {
    raise(op, "k_caches", "at most " + std::to_string(kMaxContextLayers) + " layers", std::to_string(layers));
  }
  TensorCheck(op, "slot_mapping", slot_mapping).same_device(data).dtype(ScalarType::Long).shape({rows});

  ContextCaches caches{};
  caches.layer_count = layers;
  caches.kv_heads = kv_heads;
  caches.head_dim = head_dim;
  caches.slot_mapping = static_cast<const int64_t*>(slot_mapping.data_ptr());
  caches.slot_mapping_stride = slot_mapping.stride(0);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string index = "[" + std::to_string(layer) + "]";
    const Tensor& k = k_caches[layer];
    const Tensor& v = v_caches[layer];
    if (layer == 0) {
      TensorCheck(op, "k_caches[0]", k).floating().dim(4);
      caches.dtype = dtype_of(k);
      caches.pages = k.size(0);
      caches.page_size = k.size(1);
      const bool power_of_two = caches.page_size > 0 && (caches.page_size & (caches.page_size - 1)) == 0;
      TensorCheck(op, "k_caches[0]", k)
          .expect(power_of_two && caches.page_size <= 256, "a page size that is a power of two from 1 to 256",
                  to_string(k));
    }
    for (const auto& [name, cache] : {std::pair{"k_caches", &k}, std::pair{"v_caches", &v}}) {
      TensorCheck(op, name + index, *cache)
          .same_device(data)
          .same_dtype(k_caches[0])
          .shape({caches.pages, caches.page_size, kv_heads, head_dim})
          .last_contiguous()
          .writable();
    }
    caches.layers[layer] = {k.data_ptr(), k.stride(0), k.stride(1), k.stride(2),
                            v.data_ptr(), v.stride(0), v.stride(1), v.stride(2)};
  }
  return caches;
}

const int32_t* check_row_count(const char* op, const OptionalTensor& row_count, const Tensor& data) {
  if (!row_count) return nullptr;
  TensorCheck(op, "row_count", *row_count)
      .same_device(data)
      .dtype(ScalarType::Int)
      .expect(row_count->numel() == 1, "one element", to_string(*row_count));
  return static_cast<const int32_t*>(row_count->data_ptr());
}

void check_weight(const char* op, const char* name, const Tensor& weight, const Tensor& data,
                  std::initializer_list<int64_t> sizes) {
  TensorCheck(op, name, weight).same_device(data).same_dtype(data).shape(sizes).last_contiguous();
}

GemmActivations single_piece(const Tensor& activations) {
  GemmActivations result{};
  result.pieces[0] = activations.data_ptr();
  result.row_strides[0] = activations.stride(0);
  result.piece_count = 1;
  result.piece_columns = activations.size(1);
  result.rows = activations.size(0);
  return result;
}

GemmWeight single_layer_weight(const Tensor& weight) {
  GemmWeight result{};
  result.data = weight.data_ptr();
  result.row_stride = weight.stride(0);
  result.layer_columns = result.columns = weight.size(0);
  return result;
}

void check_row_count_value(const char* op, const int32_t* row_count, int64_t rows) {
  if (row_count != nullptr && (*row_count < 0 || *row_count > rows)) {
    raise(op, "row_count", "0 to " + std::to_string(rows) + " rows", std::to_string(*row_count));
  }
}

void check_position(const char* op, const RopeTable& rope, int64_t row) {
  const int64_t position = rope.positions[row * rope.positions_stride];
  if (position < 0 || position >= rope.table_rows) {
    raise(op, "positions[" + std::to_string(row) + "]",
          "0 to " + std::to_string(rope.table_rows - 1) + " (the rows of cos_sin)", std::to_string(position));
  }
}

void check_slot(const char* op, int64_t slot, int64_t slots, int64_t row) {
  if (slot < -1 || slot >= slots) {
    raise(op, "slot_mapping[" + std::to_string(row) + "]",
          "-1 (skip) or a slot below " + std::to_string(slots) + " (pages times page size)", std::to_string(slot));
  }
}

void check_slots_and_positions(const char* op, const ContextCaches& caches, const RopeTable& rope, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t slot = caches.slot_mapping[row * caches.slot_mapping_stride];
    check_slot(op, slot, caches.pages * caches.page_size, row);
    if (slot >= 0 && rope.cos_sin != nullptr) check_position(op, rope, row);
  }
}

}  // namespace dflash::bindings
