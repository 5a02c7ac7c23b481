#include "planner/remedies.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "models/input_error.h"
#include "planner/slot_interleaving.h"
#include "traces/routing.h"

namespace tidemark {
namespace {

// A change of the job.
struct Change {
  const char* words;
  std::string (*apply)(Job&);  // Returns: Megatron's flags; "" when there is nothing to change
};

bool lower(std::int64_t& value, std::int64_t to) {
  if (value <= to) return false;
  value = to;
  return true;
}

std::string flags_if(bool changed, const char* flags) { return changed ? flags : ""; }

std::string twice(std::int64_t& degree, const char* flag) {
  degree *= 2;
  return std::string(flag) + " " + std::to_string(degree);
}

const Change kChanges[] = {
    {"shard the optimizer over the data-parallel cards",
     [](Job& j) {
       const bool was = std::exchange(j.options.optimizer.distributed, true);
       return flags_if(!was, "--use-distributed-optimizer");
     }},
    {"split the sequence between tensor-parallel regions",
     [](Job& j) {
       const bool was = std::exchange(j.layout.sequence_parallel, true);
       return flags_if(!was && j.layout.tensor > 1, "--sequence-parallel");
     }},
    {"16-bit moments and main parameters (changes the numerics)",
     [](Job& j) {
       OptimizerOptions& o = j.options.optimizer;
       bool changed = false;
       for (std::int64_t* bytes : {&o.main_param_bytes, &o.exp_avg_bytes, &o.exp_avg_sq_bytes}) {
         changed |= lower(*bytes, 2);
       }
       return flags_if(changed && o.distributed,
                       "--use-precision-aware-optimizer --exp-avg-dtype bf16 "
                       "--exp-avg-sq-dtype bf16");
     }},
    {"the loss in place on the logits",
     [](Job& j) {
       const CrossEntropy in_place = CrossEntropy::kTransformerEngine;
       const CrossEntropy was = std::exchange(j.options.cross_entropy, in_place);
       return flags_if(was != in_place,
                       "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te");
     }},
    {"no attention mask from the data loader",
     [](Job& j) {
       const bool was = std::exchange(j.options.create_attention_mask_in_dataloader, false);
       return flags_if(was, "--no-create-attention-mask-in-dataloader");
     }},
    {"one sequence a microbatch",
     [](Job& j) { return flags_if(lower(j.batch.micro_batch_size, 1), "--micro-batch-size 1"); }},
    {"no spare capacity of experts (drops more tokens)",
     [](Job& j) {
       std::optional<double>& factor = j.options.moe_expert_capacity_factor;
       const bool spare = factor.value_or(1.0) > 1.0;
       if (spare) factor = 1.0;
       return flags_if(spare, "--moe-expert-capacity-factor 1.0");
     }},
    {"twice the tensor parallelism",
     [](Job& j) {
       j.layout.sequence_parallel = true;
       return twice(j.layout.tensor, "--sequence-parallel --tensor-model-parallel-size");
     }},
    {"twice the context parallelism",
     [](Job& j) { return twice(j.layout.context, "--context-parallel-size"); }},
    {"twice the pipeline stages",
     [](Job& j) { return twice(j.layout.pipeline, "--pipeline-model-parallel-size"); }},
    {"twice the expert parallelism",
     [](Job& j) { return twice(j.layout.expert, "--expert-model-parallel-size"); }},
};

// What selective recompute of a module makes again, so that it need not be kept.
// Source: Megatron-LM core/transformer/{transformer_layer,attention,multi_latent_attention}.py,
// moe/{moe_layer,experts,shared_experts}.py; the module's own input stays.
struct Recompute {
  const char* words;
  std::string flags;
  bool (*drops)(const LiveStorage&);
};

bool has_prefix(const LiveStorage& s, std::initializer_list<std::string_view> prefixes) {
  return s.layer >= 0 && std::any_of(prefixes.begin(), prefixes.end(), [&](std::string_view p) {
           return std::string_view(s.name).starts_with(p);
         });
}

const std::string kSelective = "--recompute-granularity selective --recompute-modules ";

const Recompute kRecomputes[] = {
    {"recompute the experts' activation function", kSelective + "moe_act",
     [](const LiveStorage& s) { return has_prefix(s, {"experts.activation.output"}); }},
    {"recompute the layer norms that are modules of their own", kSelective + "layernorm",
     [](const LiveStorage& s) {
       return has_prefix(s, {"input_layernorm.output", "pre_mlp_layernorm.output"});
     }},
    {"recompute MLA's up-projections and rotary embedding", kSelective + "mla_up_proj",
     [](const LiveStorage& s) {
       return has_prefix(s, {"linear_q_up_proj.", "linear_kv_up_proj.", "rotary."}) ||
              (has_prefix(s, {"query", "key", "value"}) && s.name.find('.') == std::string::npos);
     }},
    {"recompute dense MLPs", kSelective + "mlp",
     [](const LiveStorage& s) {
       return has_prefix(s, {"linear_fc1.", "activation.", "linear_fc2."});
     }},
    {"recompute the shared experts", kSelective + "shared_experts",
     [](const LiveStorage& s) { return has_prefix(s, {"shared_experts."}); }},
    {"recompute whole MoE modules, all-to-all included", kSelective + "moe",
     [](const LiveStorage& s) {
       return has_prefix(s, {"router.", "permute.", "dispatch.", "experts.", "combine.",
                             "unpermute.", "shared_experts.", "moe."});
     }},
    {"recompute every layer from its input",
     "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
     [](const LiveStorage& s) { return s.layer >= 0 && s.name != "mlp_bda.output"; }},
};

bool is_possible(const Job& job) {
  try {
    validate(job, "");
    return true;
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace

std::vector<Remedy> find_remedies(const Job& job, const HardwareProfile& profile,
                                  const Simulation& simulation, std::int64_t stage) {
  const StageResult& s = simulation.result.stages[static_cast<std::size_t>(stage)];
  std::vector<Remedy> out;
  const std::int64_t event = s.memory.lanes[static_cast<std::size_t>(s.hottest_lane)].event;
  const std::vector<LiveStorage> live =
      live_storages(job, simulation.program.stages[static_cast<std::size_t>(stage)].graph,
                    s.sequence, simulation.rows, s.hottest_lane, event);
  for (const Recompute& recompute : kRecomputes) {
    if (job.versions.fork != Fork::kNone) break;  // has layers and flags of its own
    Bytes freed;
    for (const LiveStorage& storage : live) {
      if (recompute.drops(storage)) freed += storage.bytes;
    }
    out.push_back({recompute.words, recompute.flags, freed, std::nullopt});
  }
  for (const Change& change : kChanges) {
    Job changed = job;
    const std::string flags = change.apply(changed);
    if (flags.empty() || !is_possible(changed)) continue;
    const SimulationResult result =
        simulate(changed, profile, balanced_routing(changed), ordered_program(changed, profile))
            .result;
    Bytes peak;
    for (const StageResult& other : result.stages) peak = std::max(peak, other.peak_allocated());
    const std::int64_t time_change = result.iteration.time_ns - simulation.result.iteration.time_ns;
    out.push_back({change.words, flags, s.peak_allocated() - peak,
                   Remedy::Simulated{time_change, result.fits()}});
  }
  std::erase_if(out, [](const Remedy& r) { return r.freed <= Bytes(0); });
  std::stable_sort(out.begin(), out.end(),
                   [](const Remedy& a, const Remedy& b) { return a.freed > b.freed; });
  return out;
}

}  // namespace tidemark
