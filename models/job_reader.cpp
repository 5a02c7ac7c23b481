#include "models/job_reader.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/json_fields.h"
#include "models/model_file.h"
#include "models/model_reader.h"

namespace tidemark {
namespace {

constexpr Range<std::int64_t> kLayers{0, std::int64_t{1} << 20};
constexpr Range<std::int64_t> kElementBytes{1, 8};
constexpr Range<std::int64_t> kMaxSplitMb{kSmallestMaxSplitMb, kLargestMaxSplitMb};
constexpr double kNoLimit = std::numeric_limits<double>::max();

const Names<Fork> kForks = {{Fork::kNone, "none"}, {Fork::kKwai, "kwai"}};
const Names<CrossEntropy> kCrossEntropies = {{CrossEntropy::kUnfused, "unfused"},
                                             {CrossEntropy::kNativeFused, "native"},
                                             {CrossEntropy::kTransformerEngine, "te"}};
const Names<LinearImpl> kLinears = {{LinearImpl::kDefault, "default"},
                                    {LinearImpl::kFluxKeepGather, "flux_keep_gather"}};
const Names<AttentionBackend> kAttentionBackends = {{AttentionBackend::kAuto, "auto"},
                                                    {AttentionBackend::kFlash, "flash"},
                                                    {AttentionBackend::kFused, "fused"},
                                                    {AttentionBackend::kUnfused, "unfused"}};
const Names<PipelineSchedule> kSchedules = {{PipelineSchedule::kOneForwardOneBackward, "1f1b"},
                                            {PipelineSchedule::kCombined1F1B, "combined-1f1b"},
                                            {PipelineSchedule::kZbH1, "zb-h1"},
                                            {PipelineSchedule::kZbH2, "zb-h2"},
                                            {PipelineSchedule::kZbV, "zb-v"},
                                            {PipelineSchedule::kVHalf, "v-half"},
                                            {PipelineSchedule::kVMin, "v-min"},
                                            {PipelineSchedule::kDualPipe, "dualpipe"},
                                            {PipelineSchedule::kDualPipeV, "dualpipe-v"}};
const Names<SlotOrder> kSlotOrders = {{SlotOrder::kMegatron, "megatron"},
                                      {SlotOrder::kShortest, "shortest"}};
const Names<MoeDispatcher> kDispatchers = {{MoeDispatcher::kAllToAll, "alltoall"},
                                           {MoeDispatcher::kHybridEp, "hybridep"}};
const Names<bool SelectiveRecompute::*> kRecomputeModules = {
    {&SelectiveRecompute::core_attn, "core_attn"},
    {&SelectiveRecompute::mla_up_proj, "mla_up_proj"},
    {&SelectiveRecompute::layernorm, "layernorm"},
    {&SelectiveRecompute::mlp, "mlp"},
    {&SelectiveRecompute::moe, "moe"},
    {&SelectiveRecompute::moe_act, "moe_act"},
    {&SelectiveRecompute::shared_experts, "shared_experts"}};
const Names<ContextParallelComm> kContextComms = {{ContextParallelComm::kPointToPoint, "p2p"},
                                                  {ContextParallelComm::kAllToAll, "a2a"}};

void read_version(JsonReader& in, std::string_view key, Version& out) {
  const std::string text = in.string(key);
  if (const auto version = parse_version(text)) {
    out = *version;
  } else if (in.has(key)) {
    in.violate(key, "\"" + text + "\"", "a version such as \"0.13\"");
  }
}

// The model itself, or where it is: a file beside the job, or a name in the zoo.
void read_model_or_file(JsonReader& in, Job& job, std::vector<Violation>& violations) {
  const nlohmann::json& node = in.raw("model");
  if (!node.is_string()) {
    in.object("model", [&](JsonReader& r) { read_model(r, job.model); });
    return;
  }
  const auto name = node.get<std::string>();
  const auto path = find_model_file(name, std::filesystem::path(job.source).parent_path());
  if (!path) {
    std::string allowed = "an object, the path of a model's file from here, or one of";
    for (const std::string& known : zoo_models()) allowed += " " + known;
    in.violate("model", "\"" + name + "\"", allowed);
    return;
  }
  try {
    ModelFile file = read_model_file(*path);
    job.model = std::move(file.model);
    job.model_source = path->string();
    job.warnings = std::move(file.warnings);
  } catch (const InputError& error) {
    violations.insert(violations.end(), error.violations().begin(), error.violations().end());
  }
}

void read_frameworks(JsonReader& in, FrameworkVersions& versions) {
  read_version(in, "megatron_core", versions.megatron_core);
  read_version(in, "transformer_engine", versions.transformer_engine);
  if (in.has("dtk")) {
    read_version(in, "dtk", versions.dtk.emplace());
  } else {
    in.optional_string("dtk");  // makes the key known
  }
  read_choice(in, "fork", kForks, versions.fork);
}

// A Megatron layout string. Megatron takes the number of virtual stages from it.
void read_pipeline_layout(JsonReader& in, ParallelLayout& l) {
  constexpr const char* kKey = "pipeline_model_parallel_layout";
  const std::optional<std::string> text = in.optional_string(kKey);
  if (!text) return;
  const std::optional<PipelineLayout> layout = parse_pipeline_layout(*text);
  if (!layout || std::ranges::max(layout->mtp_layers) > 0) {
    in.violate(kKey, "\"" + *text + "\"",
               "a layout such as \"Et*3|(tt|)*2tL\", without multi-token prediction (m)");
    return;
  }
  l.listed_layers = layout->decoder_layers;
  const std::int64_t stages = std::ssize(l.listed_layers);
  if (!in.has("virtual_pipeline_model_parallel_size") && stages % l.pipeline == 0) {
    l.virtual_pipeline = stages / l.pipeline;
  }
}

void read_parallel(JsonReader& in, ParallelLayout& l) {
  l.cards = in.integer("world_size", kDegree);
  read_size(in, "tensor_model_parallel_size", kDegree, l.tensor);
  read_switch(in, "sequence_parallel", l.sequence_parallel);
  read_size(in, "context_parallel_size", kDegree, l.context);
  read_size(in, "pipeline_model_parallel_size", kDegree, l.pipeline);
  read_size(in, "virtual_pipeline_model_parallel_size", kDegree, l.virtual_pipeline);
  read_choice(in, "pipeline_schedule", kSchedules, l.schedule);
  read_size(in, "microbatch_group_size_per_vp_stage", kDegree, l.microbatch_group);
  read_size(in, "expert_model_parallel_size", kDegree, l.expert);
  read_size(in, "expert_tensor_parallel_size", kDegree, l.expert_tensor);
  read_size(in, "decoder_first_pipeline_num_layers", kLayers, l.first_stage_layers);
  read_size(in, "decoder_last_pipeline_num_layers", kLayers, l.last_stage_layers);
  read_switch(in, "account_for_embedding_in_pipeline_split", l.account_for_embedding);
  read_switch(in, "account_for_loss_in_pipeline_split", l.account_for_loss);
  read_pipeline_layout(in, l);
}

void read_batch(JsonReader& in, Batch& b) {
  b.micro_batch_size = in.integer("micro_batch_size", kPositive);
  b.global_batch_size = in.integer("global_batch_size", kPositive);
  b.seq_length = in.integer("seq_length", kPositive);
}

// The array of recompute_modules; without it Megatron takes core_attn.
SelectiveRecompute read_recompute_modules(JsonReader& in) {
  SelectiveRecompute out;
  if (!in.has("recompute_modules")) {
    out.core_attn = true;
    return out;
  }
  std::string allowed = "an array of";
  for (const auto& [module, name] : kRecomputeModules) allowed += " " + name;
  const nlohmann::json& modules = in.raw("recompute_modules");
  if (!modules.is_array()) {
    in.violate("recompute_modules", modules.dump(), allowed);
    return out;
  }
  for (const nlohmann::json& item : modules) {
    const auto known = std::ranges::find_if(
        kRecomputeModules, [&](const auto& module) { return item == module.second; });
    if (known == kRecomputeModules.end()) {
      in.violate("recompute_modules", item.dump(), allowed);
    } else {
      out.*known->first = true;
    }
  }
  return out;
}

// Full recomputation needs method and number of layers, selective recomputation takes modules.
void read_recompute(JsonReader& in, TrainingOptions& o) {
  constexpr const char* kGranularity = "recompute_granularity";
  const std::string granularity = in.has(kGranularity)
                                      ? in.choice(kGranularity, {"full", "selective"})
                                      : in.optional_string(kGranularity).value_or("");
  const auto only_beside = [&](std::string_view key, const std::string& owner) {
    const nlohmann::json& value = in.raw(key);
    if (in.has(key)) in.violate(key, value.dump(), "recompute_granularity " + owner + " beside it");
  };
  if (granularity == "full") {
    FullRecompute& full = o.full_recompute.emplace();
    const std::string method = in.choice("recompute_method", {"uniform", "block"});
    full.method = method == "block" ? RecomputeMethod::kBlock : RecomputeMethod::kUniform;
    full.num_layers = in.integer("recompute_num_layers", kPositive);
  } else {
    only_beside("recompute_method", "full");
    only_beside("recompute_num_layers", "full");
  }
  if (granularity == "selective") {
    o.recompute = read_recompute_modules(in);
  } else {
    only_beside("recompute_modules", "selective");
  }
}

void read_offload(JsonReader& in, FineGrainedOffload& offload) {
  std::string allowed = "an array of";
  for (const OffloadModule module : kOffloadModules) allowed += std::string(" ") + name_of(module);
  const nlohmann::json& modules = in.raw("offload_modules");
  if (!modules.is_null() && !modules.is_array()) {
    in.violate("offload_modules", modules.dump(), allowed);
  }
  for (const nlohmann::json& item : modules.is_array() ? modules : nlohmann::json::array()) {
    const auto known = std::ranges::find_if(
        kOffloadModules, [&](OffloadModule module) { return item == name_of(module); });
    if (known == std::end(kOffloadModules)) {
      in.violate("offload_modules", item.dump(), allowed);
    } else {
      offload.modules.push_back(*known);
    }
  }
  read_size(in, "min_offloaded_tensor_size", kSize, offload.min_tensor_elements);
  offload.fraction =
      in.optional_number("activation_offload_fraction", {0, 1}).value_or(offload.fraction);
  offload.max_inflight =
      in.optional_integer("fine_grained_offloading_max_inflight_offloads", kLayers);
}

void read_allocator(JsonReader& in, AllocatorOptions& allocator) {
  allocator.max_split_size_mb = in.optional_integer("allocator_max_split_size_mb", kMaxSplitMb);
  const std::string threshold = "allocator_garbage_collection_threshold";
  if (const auto share = in.optional_number(threshold)) {
    allocator.garbage_collection_threshold = *share;
    if (*share <= 0 || *share >= 1) {
      in.violate(threshold, in.raw(threshold).dump(), "a number between 0 and 1, both excluded");
    }
  }
  const std::string divisions = "allocator_roundup_power2_divisions";
  if (const auto count = in.optional_integer(divisions)) {
    allocator.roundup_power2_divisions = *count;
    if (!is_power2_divisions(*count)) {
      in.violate(divisions, std::to_string(*count), "0 or a power of two up to 64");
    }
  }
  read_switch(in, "allocator_expandable_segments", allocator.expandable_segments);
}

void read_options(JsonReader& in, TrainingOptions& o) {
  read_switch(in, "use_distributed_optimizer", o.optimizer.distributed);
  read_size(in, "main_grad_bytes", kElementBytes, o.optimizer.main_grad_bytes);
  read_size(in, "main_param_bytes", kElementBytes, o.optimizer.main_param_bytes);
  read_size(in, "exp_avg_bytes", kElementBytes, o.optimizer.exp_avg_bytes);
  read_size(in, "exp_avg_sq_bytes", kElementBytes, o.optimizer.exp_avg_sq_bytes);
  read_switch(in, "fp32_grad_copies", o.optimizer.fp32_grad_copies);
  read_switch(in, "gradient_accumulation_fusion", o.gradient_accumulation_fusion);
  read_switch(in, "overlap_grad_reduce", o.overlap_grad_reduce);
  read_switch(in, "overlap_param_gather", o.overlap_param_gather);
  read_switch(in, "overlap_p2p_comm", o.overlap_p2p_comm);
  o.ddp_bucket_size = in.optional_integer("ddp_bucket_size", kPositive);
  read_switch(in, "check_for_nan_in_loss_and_grad", o.check_for_nan_in_loss_and_grad);
  read_choice(in, "cross_entropy", kCrossEntropies, o.cross_entropy);
  read_choice(in, "parallel_linear_impl", kLinears, o.linear_impl);
  read_choice(in, "attention_backend", kAttentionBackends, o.attention_backend);
  read_choice(in, "cp_comm_type", kContextComms, o.cp_comm);
  read_switch(in, "apply_rope_fusion", o.apply_rope_fusion);
  read_switch(in, "create_attention_mask_in_dataloader", o.create_attention_mask_in_dataloader);
  o.hidden_dropout = in.optional_number("hidden_dropout", {0, 1}).value_or(o.hidden_dropout);
  read_recompute(in, o);
  read_offload(in, o.offload);
  read_switch(in, "quantize_activations", o.quantize_activations);
  read_choice(in, "moe_token_dispatcher_type", kDispatchers, o.moe_dispatcher);
  read_switch(in, "overlap_moe_expert_parallel_comm", o.overlap_moe_expert_parallel_comm);
  read_switch(in, "delay_wgrad_compute", o.delay_wgrad_compute);
  read_switch(in, "ep_overlap_early_attn_memory_release", o.ep_overlap_early_attn_memory_release);
  read_choice(in, "combined_slot_order", kSlotOrders, o.combined_slot_order);
  read_switch(in, "moe_permute_fusion", o.moe_permute_fusion);
  read_switch(in, "moe_router_fusion", o.moe_router_fusion);
  read_switch(in, "moe_router_fp32", o.moe_router_fp32);
  read_switch(in, "moe_aux_loss", o.moe_aux_loss);
  o.moe_expert_capacity_factor = in.optional_number("moe_expert_capacity_factor", {0, kNoLimit});
  read_switch(in, "moe_pad_expert_input_to_capacity", o.moe_pad_expert_input_to_capacity);
  read_switch(in, "moe_shared_expert_overlap", o.moe_shared_expert_overlap);
  read_switch(in, "moe_router_force_load_balancing", o.moe_router_force_load_balancing);
  o.quantize_comm_bits = in.optional_integer("quant_comm_bits", {8, 8});
  read_switch(in, "recompute_activation_function", o.recompute.activation_function);
  read_switch(in, "kaimm_recompute_norm", o.recompute.layernorm);
  read_switch(in, "kaimm_recompute_mlp_activation_func", o.recompute.mlp_act);
  o.offload_ratio =
      in.optional_number("kaimm_offload_activation_ratio", {0, 1}).value_or(o.offload_ratio);
  read_allocator(in, o.allocator);
}

// The rules name Megatron's arguments; in a job file each of them lies in a section.
std::string section_of(const std::string& key) {
  static const std::set<std::string> kParallel = {"world_size",
                                                  "tensor_model_parallel_size",
                                                  "sequence_parallel",
                                                  "context_parallel_size",
                                                  "pipeline_model_parallel_size",
                                                  "virtual_pipeline_model_parallel_size",
                                                  "pipeline_schedule",
                                                  "microbatch_group_size_per_vp_stage",
                                                  "pipeline_model_parallel_layout",
                                                  "account_for_embedding_in_pipeline_split",
                                                  "account_for_loss_in_pipeline_split",
                                                  "expert_model_parallel_size",
                                                  "expert_tensor_parallel_size",
                                                  "decoder_first_pipeline_num_layers",
                                                  "decoder_last_pipeline_num_layers"};
  static const std::set<std::string> kBatch = {"micro_batch_size", "global_batch_size",
                                               "seq_length"};
  static const std::set<std::string> kOptions = {"moe_pad_expert_input_to_capacity",
                                                 "moe_expert_capacity_factor",
                                                 "overlap_param_gather",
                                                 "overlap_p2p_comm",
                                                 "overlap_moe_expert_parallel_comm",
                                                 "delay_wgrad_compute",
                                                 "ep_overlap_early_attn_memory_release",
                                                 "combined_slot_order",
                                                 "moe_shared_expert_overlap",
                                                 "recompute_granularity",
                                                 "recompute_modules",
                                                 "offload_modules",
                                                 "activation_offload_fraction",
                                                 "attention_backend",
                                                 "recompute_num_layers",
                                                 "recompute_activation_function",
                                                 "kaimm_recompute_mlp_activation_func",
                                                 "kaimm_offload_activation_ratio"};
  if (key == "fork") return "/frameworks/";
  if (kParallel.contains(key)) return "/parallel/";
  if (kBatch.contains(key)) return "/batch/";
  return kOptions.contains(key) ? "/options/" : "/model/";
}

nlohmann::ordered_json parallel_to_json(const ParallelLayout& l) {
  nlohmann::ordered_json j;
  j["world_size"] = l.cards;
  j["tensor_model_parallel_size"] = l.tensor;
  j["sequence_parallel"] = l.sequence_parallel;
  j["context_parallel_size"] = l.context;
  j["pipeline_model_parallel_size"] = l.pipeline;
  j["virtual_pipeline_model_parallel_size"] = l.virtual_pipeline;
  if (!l.is_megatrons()) j["pipeline_schedule"] = name_of(kSchedules, l.schedule);
  if (l.microbatch_group > 0) j["microbatch_group_size_per_vp_stage"] = l.microbatch_group;
  j["expert_model_parallel_size"] = l.expert;
  j["expert_tensor_parallel_size"] = l.expert_tensor;
  j["decoder_first_pipeline_num_layers"] = l.first_stage_layers;
  j["decoder_last_pipeline_num_layers"] = l.last_stage_layers;
  j["account_for_embedding_in_pipeline_split"] = l.account_for_embedding;
  j["account_for_loss_in_pipeline_split"] = l.account_for_loss;
  if (!l.listed_layers.empty()) {
    j["pipeline_model_parallel_layout"] = pipeline_layout_text(l.listed_layers);
  }
  return j;
}

void write_recompute(const TrainingOptions& o, nlohmann::ordered_json& j) {
  if (o.full_recompute) {
    j["recompute_granularity"] = "full";
    j["recompute_method"] =
        o.full_recompute->method == RecomputeMethod::kBlock ? "block" : "uniform";
    j["recompute_num_layers"] = o.full_recompute->num_layers;
  }
  SelectiveRecompute modules = o.recompute;
  modules.activation_function = false;
  if (modules == SelectiveRecompute{}) return;
  j["recompute_granularity"] = "selective";
  for (const auto& [module, name] : kRecomputeModules) {
    if (o.recompute.*module) j["recompute_modules"].push_back(name);
  }
}

void write_offload(const FineGrainedOffload& offload, nlohmann::ordered_json& j) {
  if (offload.modules.empty()) return;
  for (const OffloadModule module : offload.modules) {
    j["offload_modules"].push_back(name_of(module));
  }
  j["min_offloaded_tensor_size"] = offload.min_tensor_elements;
  j["activation_offload_fraction"] = offload.fraction;
  if (offload.max_inflight) {
    j["fine_grained_offloading_max_inflight_offloads"] = *offload.max_inflight;
  }
}

// Only what differs from PyTorch's defaults.
void write_allocator(const AllocatorOptions& a, nlohmann::ordered_json& j) {
  if (a.max_split_size_mb) j["allocator_max_split_size_mb"] = *a.max_split_size_mb;
  if (a.garbage_collection_threshold > 0) {
    j["allocator_garbage_collection_threshold"] = a.garbage_collection_threshold;
  }
  if (a.roundup_power2_divisions > 0) {
    j["allocator_roundup_power2_divisions"] = a.roundup_power2_divisions;
  }
  if (a.expandable_segments) j["allocator_expandable_segments"] = true;
}

nlohmann::ordered_json options_to_json(const TrainingOptions& o) {
  nlohmann::ordered_json j;
  j["use_distributed_optimizer"] = o.optimizer.distributed;
  j["main_grad_bytes"] = o.optimizer.main_grad_bytes;
  j["main_param_bytes"] = o.optimizer.main_param_bytes;
  j["exp_avg_bytes"] = o.optimizer.exp_avg_bytes;
  j["exp_avg_sq_bytes"] = o.optimizer.exp_avg_sq_bytes;
  if (o.optimizer.fp32_grad_copies) j["fp32_grad_copies"] = true;
  j["gradient_accumulation_fusion"] = o.gradient_accumulation_fusion;
  j["overlap_grad_reduce"] = o.overlap_grad_reduce;
  j["overlap_param_gather"] = o.overlap_param_gather;
  j["overlap_p2p_comm"] = o.overlap_p2p_comm;
  if (o.ddp_bucket_size) j["ddp_bucket_size"] = *o.ddp_bucket_size;
  j["check_for_nan_in_loss_and_grad"] = o.check_for_nan_in_loss_and_grad;
  j["cross_entropy"] = name_of(kCrossEntropies, o.cross_entropy);
  j["parallel_linear_impl"] = name_of(kLinears, o.linear_impl);
  j["attention_backend"] = name_of(kAttentionBackends, o.attention_backend);
  j["cp_comm_type"] = name_of(kContextComms, o.cp_comm);
  j["apply_rope_fusion"] = o.apply_rope_fusion;
  j["create_attention_mask_in_dataloader"] = o.create_attention_mask_in_dataloader;
  j["hidden_dropout"] = o.hidden_dropout;
  write_recompute(o, j);
  write_offload(o.offload, j);
  if (o.quantize_activations) j["quantize_activations"] = true;
  j["moe_token_dispatcher_type"] = name_of(kDispatchers, o.moe_dispatcher);
  j["overlap_moe_expert_parallel_comm"] = o.overlap_moe_expert_parallel_comm;
  if (o.delay_wgrad_compute) j["delay_wgrad_compute"] = true;
  if (o.ep_overlap_early_attn_memory_release) j["ep_overlap_early_attn_memory_release"] = true;
  if (o.combined_slot_order != SlotOrder::kMegatron) {
    j["combined_slot_order"] = name_of(kSlotOrders, o.combined_slot_order);
  }
  j["moe_permute_fusion"] = o.moe_permute_fusion;
  j["moe_router_fusion"] = o.moe_router_fusion;
  j["moe_router_fp32"] = o.moe_router_fp32;
  j["moe_aux_loss"] = o.moe_aux_loss;
  if (o.moe_expert_capacity_factor) j["moe_expert_capacity_factor"] = *o.moe_expert_capacity_factor;
  j["moe_pad_expert_input_to_capacity"] = o.moe_pad_expert_input_to_capacity;
  j["moe_shared_expert_overlap"] = o.moe_shared_expert_overlap;
  j["moe_router_force_load_balancing"] = o.moe_router_force_load_balancing;
  if (o.quantize_comm_bits) j["quant_comm_bits"] = *o.quantize_comm_bits;
  if (o.recompute.activation_function) j["recompute_activation_function"] = true;
  if (o.recompute.layernorm) j["kaimm_recompute_norm"] = true;
  if (o.recompute.mlp_act) j["kaimm_recompute_mlp_activation_func"] = true;
  if (o.offload_ratio > 0) j["kaimm_offload_activation_ratio"] = o.offload_ratio;
  write_allocator(o.allocator, j);
  return j;
}

void read_run(JsonReader& in, RunSpec& run) {
  run.iterations = in.integer("iterations", {1, 10'000'000});
  if (in.has("checkpoint_interval") || in.has("restart_seconds")) {
    run.checkpoint_interval = in.integer("checkpoint_interval", {1, 10'000'000});
    run.restart_seconds = in.number("restart_seconds", {0, 1e6});
  }
  run.repeats_routing = in.optional_boolean("repeats_routing").value_or(run.repeats_routing);
}

nlohmann::ordered_json run_to_json(const RunSpec& run) {
  nlohmann::ordered_json j;
  j["iterations"] = run.iterations;
  if (run.checkpoint_interval) {
    j["checkpoint_interval"] = *run.checkpoint_interval;
    j["restart_seconds"] = run.restart_seconds;
  }
  j["repeats_routing"] = run.repeats_routing;
  return j;
}

}  // namespace

const std::vector<std::pair<bool SelectiveRecompute::*, std::string>>& recompute_modules() {
  return kRecomputeModules;
}

const std::vector<std::pair<PipelineSchedule, std::string>>& pipeline_schedules() {
  return kSchedules;
}

const std::vector<std::pair<SlotOrder, std::string>>& slot_order_names() { return kSlotOrders; }

std::optional<Version> parse_version(std::string_view text) {
  Version version;
  const char* end = text.data() + text.size();
  const auto major = std::from_chars(text.data(), end, version.major);
  if (major.ec != std::errc{} || major.ptr == end || *major.ptr != '.') return std::nullopt;
  const auto minor = std::from_chars(major.ptr + 1, end, version.minor);
  if (minor.ec != std::errc{} || version.major < 0 || version.minor < 0) return std::nullopt;
  return version;
}

Job read_job(const std::filesystem::path& path) {
  return job_from_json(load_json(path), path.string());
}

Job job_from_json(const nlohmann::json& json, const std::string& file) {
  std::vector<Violation> violations;
  JsonReader in(json, file, "", violations);
  Job job;
  job.source = file;
  in.integer("schema_version", {1, 1});
  job.name = in.string("name");
  job.hardware = in.string("hardware");
  in.object("frameworks", [&](JsonReader& r) { read_frameworks(r, job.versions); });
  read_model_or_file(in, job, violations);
  in.object("parallel", [&](JsonReader& r) { read_parallel(r, job.layout); });
  in.object("batch", [&](JsonReader& r) { read_batch(r, job.batch); });
  in.optional_object("options", [&](JsonReader& r) { read_options(r, job.options); });
  if (const nlohmann::json& routing = in.raw("routing"); !routing.is_null()) {
    job.routing = routing.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  in.optional_object("run", [&](JsonReader& r) { read_run(r, job.run); });
  in.finish();
  throw_if_any(violations);
  if (job.options.offload_ratio > 0) {
    job.warnings.push_back(
        "kaimm_offload_activation_ratio: copies to and from the host take no time here");
  }

  try {
    validate(job, "");
  } catch (const InputError& error) {
    std::vector<Violation> placed = error.violations();
    for (Violation& v : placed) v.place = section_of(v.place) + v.place;
    throw InputError(std::move(placed));
  }
  return job;
}

nlohmann::ordered_json to_json(const Job& job) {
  nlohmann::ordered_json j;
  j["schema_version"] = 1;
  j["name"] = job.name;
  j["hardware"] = job.hardware;
  j["frameworks"] = {{"megatron_core", job.versions.megatron_core.text()},
                     {"transformer_engine", job.versions.transformer_engine.text()}};
  if (job.versions.dtk) j["frameworks"]["dtk"] = job.versions.dtk->year_month();
  if (job.versions.fork != Fork::kNone) {
    j["frameworks"]["fork"] = name_of(kForks, job.versions.fork);
  }
  j["model"] = to_json(job.model);
  j["parallel"] = parallel_to_json(job.layout);
  j["batch"] = {{"micro_batch_size", job.batch.micro_batch_size},
                {"global_batch_size", job.batch.global_batch_size},
                {"seq_length", job.batch.seq_length}};
  j["options"] = options_to_json(job.options);
  if (!job.routing.empty()) j["routing"] = nlohmann::ordered_json::parse(job.routing);
  if (job.run.iterations > 1 || job.run.checkpoint_interval) j["run"] = run_to_json(job.run);
  return j;
}

}  // namespace tidemark
