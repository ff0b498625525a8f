// Every op's schema, in the order data flows through a round:
// tap -> fuse -> project -> cache -> attend -> head -> verify -> commit.
//
// All ops but masked_block_attention are out-variants: they write into caller-owned tensors and return
// nothing. No argument of theirs may be called `mode`: torch.compile's functionalization has one of that name.
// docs/ops/<op>.md and dflash_ops/reference/<op>.py define what each of them means.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(dflash_ops, m) {
  m.def(
      "fuse_features(Tensor[] hidden_states, Tensor weight, Tensor? norm_weight, float eps, "
      "Tensor? row_count, Tensor(a!) out, Tensor(b!) workspace) -> ()");
  m.def(
      "project_context_kv(Tensor features, Tensor kv_weight, Tensor? kv_bias, Tensor? k_norm_weight, "
      "Tensor? cos_sin, Tensor? positions, Tensor slot_mapping, Tensor? row_count, float eps, bool interleaved, "
      "Tensor(a!)[] k_caches, Tensor(b!)[] v_caches, Tensor(c!)[] k_bounds, Tensor(d!) workspace) -> ()");
  m.def(
      "write_context_kv(Tensor kv, Tensor? k_norm_weight, Tensor? cos_sin, Tensor? positions, "
      "Tensor slot_mapping, Tensor? row_count, float eps, bool interleaved, "
      "Tensor(a!)[] k_caches, Tensor(b!)[] v_caches, Tensor(c!)[] k_bounds) -> ()");
  m.def(
      "update_page_bounds(Tensor[] k_caches, Tensor slot_mapping, Tensor? row_count, Tensor? page_table, "
      "Tensor? context_lens, int group_pages, Tensor(a!)[] k_bounds, Tensor(b!)[] group_bounds) -> ()");
  m.def(
      "norm_rope_qkv(Tensor qkv, Tensor? q_norm_weight, Tensor? k_norm_weight, Tensor? cos_sin, "
      "Tensor? positions, float eps, bool interleaved, Tensor(a!) q, Tensor(b!) k, Tensor(c!) v) -> ()");
  m.def(
      "select_pages(Tensor q, Tensor k_bounds, Tensor page_table, Tensor context_lens, Tensor? cu_block_lens, "
      "Tensor? group_bounds, int group_pages, int page_size, int budget_tokens, int sink_tokens, int local_tokens, "
      "Tensor(a!) selected_pages, Tensor(b!) selected_counts, Tensor(c!) workspace) -> ()");
  m.def(
      "sparse_block_attention(Tensor q, Tensor k_block, Tensor v_block, Tensor k_cache, Tensor v_cache, "
      "Tensor page_table, Tensor context_lens, Tensor selected_pages, Tensor selected_counts, Tensor? cu_block_lens, "
      "float scale, bool causal, float softcap, Tensor? sinks, int num_splits, Tensor(a!) out, Tensor(b!)? lse, "
      "Tensor(c!) workspace) -> ()");
  m.def(
      "block_attention(Tensor q, Tensor k_block, Tensor v_block, Tensor k_cache, Tensor v_cache, "
      "Tensor page_table, Tensor context_lens, Tensor? cu_block_lens, float scale, bool causal, int window, "
      "float softcap, Tensor? sinks, int num_splits, Tensor(a!) out, Tensor(b!)? lse, Tensor(c!) workspace) -> ()");
  m.def(
      "masked_block_attention(Tensor q, Tensor k, Tensor v, str mask_mode, int block_size, Tensor? anchors, "
      "Tensor? cu_seqlens, bool causal, int window, float scale) -> (Tensor, Tensor)");
  m.def(
      "masked_block_attention_forward(Tensor q, Tensor k, Tensor v, str mask_mode, int block_size, "
      "Tensor? anchors, Tensor? cu_seqlens, bool causal, int window, float scale, "
      "Tensor(a!) out, Tensor(b!) lse) -> ()");
  m.def(
      "masked_block_attention_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, "
      "Tensor lse, str mask_mode, int block_size, Tensor? anchors, Tensor? cu_seqlens, bool causal, int window, "
      "float scale, Tensor(a!) grad_q, Tensor(b!) grad_k, Tensor(c!) grad_v) -> ()");
  m.def("row_argmax(Tensor logits, Tensor(a!) ids, Tensor(b!)? values, Tensor(c!)? workspace=None) -> ()");
  m.def(
      "lm_head_argmax(Tensor hidden, Tensor weight, int vocab_offset, float softcap, "
      "Tensor(a!) ids, Tensor(b!)? values, Tensor(c!) workspace) -> ()");
  m.def(
      "verify_greedy(Tensor draft_tokens, Tensor? draft_lens, Tensor? target_logits, Tensor? target_ids, "
      "Tensor(a!) accepted, Tensor(b!) tokens, Tensor(c!) next_token, Tensor(d!)? workspace=None) -> ()");
  m.def(
      "verify_sampled(Tensor draft_tokens, Tensor? draft_lens, Tensor target_logits, Tensor temperature, "
      "Tensor top_k, Tensor top_p, Tensor seed, Tensor(a!) offset, Tensor(b!) accepted, Tensor(c!) tokens, "
      "Tensor(d!) next_token, Tensor(e!)? workspace=None) -> ()");
  m.def(
      "begin_block(Tensor next_token, Tensor context_lens, Tensor page_table, int page_size, "
      "int mask_token_id, Tensor? finished, Tensor(a!) input_ids, Tensor(b!) positions, "
      "Tensor(c!) slot_mapping) -> ()");
  m.def(
      "commit_block(Tensor tokens, Tensor accepted, Tensor slot_mapping, Tensor? stop_token_ids, "
      "Tensor? max_output_lens, Tensor(a!) context_lens, Tensor(b!) next_token, Tensor(c!) output_ids, "
      "Tensor(d!) output_lens, Tensor(e!) finished, Tensor(f!) committed, Tensor(g!) context_slots) -> ()");
  m.def(
      "remask(Tensor logits, Tensor(a!) tokens, int mask_token_id, Tensor keep, Tensor(b!)? confidence, "
      "Tensor(c!)? workspace=None) -> ()");
}
