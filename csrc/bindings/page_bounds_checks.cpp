#include "bindings/page_bounds_checks.h"

namespace dflash::bindings {

UpdatePageBoundsParams check_page_bounds(const char* op, const TensorList& k_caches, const TensorList& k_bounds,
                                         const Tensor& slot_mapping, const int32_t* row_count) {
  if (k_caches.empty()) raise(op, "k_caches", "at least one cache", "none");
  const auto layers = static_cast<int64_t>(k_caches.size());
  if (layers > kMaxContextLayers) {
    raise(op, "k_caches", "at most " + std::to_string(kMaxContextLayers) + " layers", std::to_string(layers));
  }
  if (k_bounds.size() != k_caches.size()) {
    raise(op, "k_bounds", "one tensor for each of " + std::to_string(layers) + " layers",
          std::to_string(k_bounds.size()));
  }
  TensorCheck(op, "k_caches[0]", k_caches[0]).floating().dim(4);
  UpdatePageBoundsParams params{};
  params.dtype = dtype_of(k_caches[0]);
  params.layer_count = layers;
  params.pages = k_caches[0].size(0);
  params.page_size = k_caches[0].size(1);
  params.kv_heads = k_caches[0].size(2);
  params.head_dim = k_caches[0].size(3);
  const bool power_of_two = params.page_size > 0 && (params.page_size & (params.page_size - 1)) == 0;
  TensorCheck(op, "k_caches[0]", k_caches[0])
      .expect(power_of_two && params.page_size <= 256, "a page size that is a power of two from 1 to 256",
              to_string(k_caches[0]));
  TensorCheck(op, "slot_mapping", slot_mapping).same_device(k_caches[0]).dtype(ScalarType::Long).dim(1);
  params.slot_mapping = static_cast<const int64_t*>(slot_mapping.data_ptr());
  params.slot_mapping_stride = slot_mapping.stride(0);
  params.rows = slot_mapping.size(0);
  params.row_count = row_count;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string index = "[" + std::to_string(layer) + "]";
    const Tensor &k = k_caches[layer], &bounds = k_bounds[layer];
    TensorCheck(op, "k_caches" + index, k)
        .same_device(k_caches[0])
        .same_dtype(k_caches[0])
        .shape({params.pages, params.page_size, params.kv_heads, params.head_dim})
        .last_contiguous();
    TensorCheck(op, "k_bounds" + index, bounds)
        .same_device(k_caches[0])
        .same_dtype(k_caches[0])
        .shape({params.pages, params.kv_heads, 2, params.head_dim})
        .last_contiguous()
        .writable();
    params.layers[layer] = {k.data_ptr(),      k.stride(0),      k.stride(1),      k.stride(2),
                            bounds.data_ptr(), bounds.stride(0), bounds.stride(1), bounds.stride(2)};
  }
  return params;
}

}  // namespace dflash::bindings
