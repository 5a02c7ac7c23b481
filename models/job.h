// A training job: model, framework versions, parallel layout, batch, and the options of Megatron-LM
// that change memory or time. Read from our job file (models/job_reader.h) or from Megatron-LM
// arguments in any of their forms (models/megatron_job.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/allocator_options.h"
#include "models/model_spec.h"
#include "models/parallel_layout.h"
#include "models/units.h"

namespace tidemark {

// A released version, as far as rules depend on it.
struct Version {
  int major = 0;
  int minor = 0;
  friend constexpr auto operator<=>(Version, Version) = default;
  std::string text() const { return std::to_string(major) + "." + std::to_string(minor); }
  // DTK counts years and months: "25.04".
  std::string year_month() const {
    return std::to_string(major) + (minor < 10 ? ".0" : ".") + std::to_string(minor);
  }
};

// A fork of Megatron-LM whose layers and schedule are its own.
enum class Fork {
  kNone,
  kKwai,  // Kuaishou's, of before Megatron core's layers: models/kwai_operators.h
};

// Which sources decide what is kept. Rules ask for versions, never for a run.
struct FrameworkVersions {
  Version megatron_core{0, 14};
  Version transformer_engine{2, 10};
  std::optional<Version> dtk;  // Hygon's stack; empty elsewhere
  Fork fork = Fork::kNone;
};

// Megatron's cross-entropy paths: they differ in the copies of the logits they make.
enum class CrossEntropy { kUnfused, kNativeFused, kTransformerEngine };

// How the tensor-parallel linears communicate.
enum class LinearImpl {
  kDefault,         // separate collectives
  kFluxKeepGather,  // vendor's fused gather-GEMM; the gathered input is saved for backward
};

// Which kernels Transformer Engine runs. kAuto is what it picks on the platform, see
// sim/simulation.h; flash-attn wants [batch, sequence, ..] and so copies when a microbatch has more
// than one sequence, cuDNN's fused attention takes Megatron's [sequence, batch, ..] as it is;
// unfused attention materializes the scores.
enum class AttentionBackend { kAuto, kFlash, kFused, kUnfused };

enum class ContextParallelComm { kPointToPoint, kAllToAll };

struct OptimizerOptions {
  bool distributed = true;
  std::int64_t main_grad_bytes = 4;   // gradient buffer, per parameter
  std::int64_t main_param_bytes = 4;  // kept by the optimizer, per parameter
  std::int64_t exp_avg_bytes = 4;
  std::int64_t exp_avg_sq_bytes = 4;
  // The step makes fp32 copies of the gradients it owns, which live until the next iteration
  // (distrib_optimizer.py _copy_model_grads_to_main_grads: where the buffer is not fp32 and
  // FusedAdam does not read it as it is).
  bool fp32_grad_copies = false;
};

// Activation recomputation (--recompute-granularity and its companions).
enum class RecomputeMethod { kUniform, kBlock };
struct FullRecompute {
  RecomputeMethod method = RecomputeMethod::kUniform;
  // Uniform: layers of one checkpoint. Block: layers of each chunk that are checkpointed, one by
  // one.
  std::int64_t num_layers = 1;
};
// Modules of --recompute-modules. core_attn, mlp, moe and shared_experts keep their inputs; the
// others discard their outputs too (core/tensor_parallel/random.py CheckpointWithoutOutput).
struct SelectiveRecompute {
  bool core_attn = false;
  bool mla_up_proj = false;
  bool layernorm = false;
  bool mlp = false;  // of dense layers
  bool moe = false;
  bool moe_act = false;
  bool shared_experts = false;
  bool mlp_act = false;              // of dense layers, inside the second linear (Kwai)
  bool activation_function = false;  // of dense layers, output discarded (Hygon)
  friend constexpr bool operator==(const SelectiveRecompute&, const SelectiveRecompute&) = default;
};

// Modules of --offload-modules, in the order of a layer.
enum class OffloadModule {
  kAttnNorm,
  kQkvLinear,
  kCoreAttn,
  kAttnProj,
  kMlpNorm,
  kExpertFc1,
  kMoeAct,
};
const char* name_of(OffloadModule module);  // Megatron's
constexpr OffloadModule kOffloadModules[] = {OffloadModule::kAttnNorm, OffloadModule::kQkvLinear,
                                             OffloadModule::kCoreAttn, OffloadModule::kAttnProj,
                                             OffloadModule::kMlpNorm,  OffloadModule::kExpertFc1,
                                             OffloadModule::kMoeAct};
// --fine-grained-activation-offloading: what these modules save for backward goes to the host.
struct FineGrainedOffload {
  std::vector<OffloadModule> modules;
  std::int64_t min_tensor_elements = 1 << 20;  // --min-offloaded-tensor-size
  double fraction = 1;                         // of a chunk's groups, the earlier ones
  // --fine-grained-offloading-max-inflight-offloads: copies of one module that compute may be ahead
  // of; empty: any number.
  std::optional<std::int64_t> max_inflight;

  bool offloads(OffloadModule module) const {
    return std::find(modules.begin(), modules.end(), module) != modules.end();
  }
};

// How tokens reach their experts. HybridEP permutes within its exchange and takes no copies of its
// own from PyTorch.
enum class MoeDispatcher { kAllToAll, kHybridEp };

// In which order the host issues the operators of slots that combine a forward and a backward.
enum class SlotOrder {
  kMegatron,  // models/combined_order.h
  kShortest,  // that planner/slot_interleaving.h finds, for the balanced load
};

// Switches that change memory or time, under Megatron's names.
struct TrainingOptions {
  OptimizerOptions optimizer;
  bool gradient_accumulation_fusion = true;
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  bool overlap_p2p_comm = true;  // of virtual stages; transfers are blocking otherwise
  std::optional<std::int64_t> ddp_bucket_size;  // parameters; Megatron's default when empty
  bool check_for_nan_in_loss_and_grad = true;
  CrossEntropy cross_entropy = CrossEntropy::kUnfused;
  LinearImpl linear_impl = LinearImpl::kDefault;
  AttentionBackend attention_backend = AttentionBackend::kAuto;
  ContextParallelComm cp_comm = ContextParallelComm::kPointToPoint;
  bool apply_rope_fusion = true;
  bool create_attention_mask_in_dataloader = true;
  double hidden_dropout = 0;
  std::optional<FullRecompute> full_recompute;
  SelectiveRecompute recompute;
  FineGrainedOffload offload;
  double offload_ratio = 0;           // of what a chunk's microbatch keeps, to the host (Kwai)
  bool quantize_activations = false;  // policies may keep 8 bits of them: changes the training
  AllocatorOptions allocator;
  // MoE
  MoeDispatcher moe_dispatcher = MoeDispatcher::kAllToAll;
  bool overlap_moe_expert_parallel_comm = false;  // with virtual stages: models/combined_order.h
  bool delay_wgrad_compute = false;
  bool ep_overlap_early_attn_memory_release = false;
  SlotOrder combined_slot_order = SlotOrder::kMegatron;
  bool moe_permute_fusion = false;
  bool moe_router_fusion = false;
  bool moe_router_fp32 = false;  // moe_router_dtype
  bool moe_aux_loss = false;
  std::optional<double> moe_expert_capacity_factor;  // empty: dropless
  bool moe_pad_expert_input_to_capacity = false;
  bool moe_shared_expert_overlap = false;
  bool moe_router_force_load_balancing = false;
  // Vendor: 8-bit all-to-all, quantized before and dequantized after.
  std::optional<std::int64_t> quantize_comm_bits;
};

// A run of many iterations (the job's `run`).
struct RunSpec {
  std::int64_t iterations = 1;
  // Iterations between checkpoints, and what a restart costs; without, the first iteration that
  // runs out of memory ends the run.
  std::optional<std::int64_t> checkpoint_interval;
  double restart_seconds = 0;
  // After a restart an iteration sees the routing it died of again, as it always does in a recorded
  // trace; otherwise it is drawn anew.
  bool repeats_routing = false;
};

struct Job {
  std::string name;
  std::string source;        // the file it was read from
  std::string model_source;  // the model's file, if that is another
  ModelSpec model;
  FrameworkVersions versions;
  ParallelLayout layout;
  Batch batch;
  TrainingOptions options;
  std::string hardware;  // name of a profile in hw_profiles/data, or a path
  std::string routing;   // JSON of traces/routing_source.h; empty: balanced
  RunSpec run;
  std::vector<std::string> warnings;  // what the reader could not settle, for the result

  // Whether a forward and a backward run as one slot.
  bool combines_slots() const {
    return layout.fuses_slots() ||
           (options.overlap_moe_expert_parallel_comm && layout.virtual_pipeline > 1);
  }
  std::int64_t tokens_per_iteration() const { return batch.global_batch_size * batch.seq_length; }
  // Sequence of one context-parallel rank.
  std::int64_t rank_sequence() const { return batch.seq_length / layout.context; }
  // Rows of the activations between tensor-parallel regions, on one card.
  std::int64_t sharded_tokens() const {
    return rank_sequence() * batch.micro_batch_size /
           (layout.splits_sequence() ? layout.tensor : 1);
  }
};

// All rules of model, layout, batch and options together. `pointer` prefixes every place.
// Throws: InputError with every violation.
void validate(const Job& job, const std::string& pointer);

}  // namespace tidemark
