#include "models/bagualu2_activations.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tidemark {
namespace {

using OperatorNames = std::set<std::string>;

constexpr std::int64_t kComputeBytes = 2;
constexpr std::int64_t kFp8Bytes = 1;
constexpr std::int64_t kFp32Bytes = 4;
constexpr std::int64_t kInt32Bytes = 4;
constexpr std::int64_t kInt64Bytes = 8;

// Which tensors a module of --recompute-modules drops. "moe_act" drops the residual sum after the
// experts instead of their activation, and "mlp" nothing: so it is in their list.
const std::map<std::string, OperatorNames> kRecomputed = {
    {"core_attn", {"core_attention"}},
    {"moe_act", {"mlp_bda"}},
    {"layernorm", {"input_layernorm", "pre_mlp_norm"}},
    {"mla_up_proj", {"mla_q_up_proj", "mla_kv_up_proj", "rotary_pos_emb"}},
    {"moe", {"moe_fc1"}},
    {"experts", {"moe_fc1"}},
    {"router", {"moe_router"}},
};

bool uses_flash(const Job& job, const BaGuaLu2Options& options) {
  if (options.unfused_attention) return false;
  return job.options.attention_backend != AttentionBackend::kAuto ||
         job.model.attention.query_dim() < options.flash_attention_kv_threshold;
}

bool belongs_to(const BaGuaLu2Tensor& tensor, const OperatorNames& names) {
  return names.contains(tensor.name) ||
         std::any_of(tensor.groups.begin(), tensor.groups.end(),
                     [&](const std::string& group) { return names.contains(group); });
}

// The product runs from left to right in doubles, as theirs does: with fractions, another order
// could end one byte away.
Bytes resident_bytes(const BaGuaLu2Tensor& tensor, const BaGuaLu2Options& options) {
  double ratio = 0;
  for (const BaGuaLu2Offload& offload : options.offload) {
    if (belongs_to(tensor, {offload.group})) ratio = offload.ratio;
  }
  double elements = 1;
  for (const double extent : tensor.shape) elements *= extent;
  return Bytes(static_cast<std::int64_t>(elements * static_cast<double>(tensor.element_bytes) *
                                         (1.0 - ratio)));
}

// Shapes and types alone.
std::vector<BaGuaLu2Tensor> list_tensors(const Job& job, const BaGuaLu2Options& options) {
  const ModelSpec& m = job.model;
  const AttentionSpec& a = m.attention;
  const auto real = [](std::int64_t v) { return static_cast<double>(v); };
  const double b = real(job.batch.micro_batch_size);
  const double s = real(job.batch.seq_length);  // of the whole sequence: CP is not in their list
  const double h = real(m.hidden_size);
  const double tp = real(job.layout.tensor);
  const double etp = real(job.layout.expert_tensor);
  const double k = real(m.moe->topk);
  const double experts = real(m.moe->num_experts);
  const double ffn = real(m.moe->ffn_hidden_size);
  const double rows = options.dispatched_tokens.value_or((1.0 + options.max_vio) * b * s * k);
  const double heads = real(a.num_heads);
  const bool mla = a.kind == AttentionKind::kMultiLatent;
  const double groups = mla ? heads : real(a.num_query_groups);
  const double query = real(a.query_dim());
  const double value = real(a.value_dim());

  const std::int64_t compute = kComputeBytes;
  const std::int64_t quantized = options.fp8 ? kFp8Bytes : kComputeBytes;
  const std::int64_t act_input =
      options.fp8 && options.activation_func_fp8_input_store ? kFp8Bytes : kComputeBytes;
  const std::int64_t scores = job.options.moe_router_fp32 ? kFp32Bytes : kComputeBytes;
  const std::int64_t sorted = job.options.moe_permute_fusion ? kInt32Bytes : kInt64Bytes;

  std::vector<BaGuaLu2Tensor> out;
  const auto add = [&](int id, const char* name, std::vector<double> shape,
                       std::int64_t element_bytes, OperatorNames of = {}) {
    out.push_back({id, name, std::move(shape), element_bytes, std::move(of), Bytes()});
  };
  add(1, "input_layernorm", {b, s, h / tp}, quantized, {"LayerNormLinear"});
  if (mla) {
    const OperatorNames up = {a.qk_layernorm ? "LayerNormLinear" : "Linear"};
    const double kv_down = real(a.kv_lora_rank + a.qk_pos_emb_head_dim);
    const double kv_up = heads * real(a.qk_head_dim + a.v_head_dim);
    if (a.q_lora_rank > 0) {
      add(2, "mla_q_down_proj", {b, s, real(a.q_lora_rank) / tp}, compute, {"Linear"});
    }
    add(2, "mla_kv_down_proj", {b, s, kv_down / tp}, compute, {"Linear"});
    add(2, "mla_q_up_proj", {b, s, heads * query / tp}, compute, up);
    add(2, "mla_kv_up_proj", {b, s, kv_up / tp}, compute, up);
  } else {
    add(2, "linear_qkv", {b, s, (heads + 2 * groups) * query / tp}, compute, {"LayerNormLinear"});
  }
  add(3, "rotary_pos_emb", {b, s, heads / tp, query}, compute);
  add(3, "rotary_pos_emb", {b, s, groups / tp, query}, compute);
  if (uses_flash(job, options)) {
    add(4, "core_attention", {b, s, heads / tp, value}, compute, {"core_attn"});
    add(4, "flash_attn", {b, s, heads / tp, query}, compute, {"core_attn"});
    add(4, "core_attention", {b, s, heads / tp}, kFp32Bytes, {"core_attn"});
  } else {
    add(3, "pre_core_attn", {b, s, groups / tp, value}, compute, {"core_attn"});
    add(4, "core_attention", {b, s, s, heads / tp}, compute, {"core_attn"});
    add(5, "attn_proj", {b, s, heads / tp, value}, compute, {"core_attn"});
  }
  add(5, "attn_proj", {b, s, h / tp}, quantized, {"Linear"});
  add(6, "self_attn", {b, s, h / tp}, compute);
  add(7, "pre_mlp_norm", {b, s, h / tp}, compute, {"LayerNormLinear"});
  add(8, "moe_router", {b, s, k}, scores);
  add(8, "moe_router", {b, s, k}, kInt64Bytes);
  add(8, "moe_router", {b, s, experts}, scores);
  add(8, "moe_router", {b, s, experts}, sorted);
  add(9, "moe_fc1", {rows, etp / tp, h}, quantized, {"GroupedLinear", "permutation"});
  if (m.gated()) {
    add(10, "moe_fc1", {rows / tp, 2 * ffn}, act_input, {"swiglu"});
    add(11, "moe_fc1", {rows / tp, ffn}, quantized, {"swiglu", "GroupedLinear"});
  } else {
    add(10, "moe_fc1", {rows / tp, ffn}, compute);
    add(11, "moe_fc1", {rows / tp, ffn}, quantized, {"GroupedLinear"});
  }
  add(12, "mlp_bda", {b, s / tp, h}, compute);
  return out;
}

}  // namespace

Bytes BaGuaLu2Activations::total() const {
  Bytes sum;
  for (const BaGuaLu2Tensor& tensor : tensors) sum += tensor.bytes;
  return sum;
}

Bytes BaGuaLu2Activations::in_groups(const std::set<std::string>& groups) const {
  Bytes sum;
  for (const BaGuaLu2Tensor& tensor : tensors) {
    if (belongs_to(tensor, groups)) sum += tensor.bytes;
  }
  return sum;
}

const std::set<std::string>& bagualu2_default_offload_groups() {
  static const OperatorNames kGroups = {"GroupedLinear", "LayerNormLinear", "swiglu",
                                        "permutation"};
  return kGroups;
}

BaGuaLu2Activations bagualu2_activations(const Job& job, const BaGuaLu2Options& options) {
  OperatorNames recomputed;
  for (const std::string& module : options.recompute_modules) {
    if (const auto it = kRecomputed.find(module); it != kRecomputed.end()) {
      recomputed.insert(it->second.begin(), it->second.end());
    }
  }
  BaGuaLu2Activations out{list_tensors(job, options)};
  for (BaGuaLu2Tensor& tensor : out.tensors) {
    const bool dropped = options.recompute_full || recomputed.contains(tensor.name);
    tensor.bytes = dropped ? Bytes() : resident_bytes(tensor, options);
  }
  return out;
}

}  // namespace tidemark
