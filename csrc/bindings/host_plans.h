// The CUDA launch plans and what they are made from, for dflash_ops._host: tests and the kernel sheet make plans
// without a GPU.
#pragma once
#include <pybind11/pybind11.h>

namespace dflash::bindings {

void bind_cuda_plans(pybind11::module_& module);  // all of them
void bind_tensor_maps(pybind11::module_& module);
void bind_block_attention(pybind11::module_& module);  // and sparse_block_attention
void bind_masked_block_attention(pybind11::module_& module);
void bind_masked_block_attention_backward(pybind11::module_& module);
void bind_select_pages(pybind11::module_& module);
void bind_stream_plans(pybind11::module_& module);  // of the products with few rows

}  // namespace dflash::bindings
