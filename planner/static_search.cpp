#include "planner/static_search.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "models/input_error.h"
#include "models/job_reader.h"
#include "sim/lane_engine.h"
#include "sim/parallel.h"
#include "sim/simulation.h"
#include "traces/routing.h"

namespace tidemark {
namespace {

struct Setting {
  StaticPolicy policy;
  std::vector<std::string> modules;  // or layers, sorted
  std::int64_t iteration_ns = 0;
  std::optional<bool> fits{};  // under the bound; empty: not simulated
  bool hopeless = false;       // allocates more than the card has
};

void add(const Job& job, const std::string& policy, std::vector<std::string> modules,
         std::vector<Setting>& out) {
  try {
    std::ranges::sort(modules);
    out.push_back({static_policy(job, policy), std::move(modules), 0});
  } catch (const InputError&) {
    // Settings that contradict the model or each other.
  }
}

// Every set of modules as a policy: "selective:core_attn+moe_act". Smaller sets come first.
void add_subsets(const Job& job, const std::string& form, std::span<const std::string> modules,
                 std::vector<Setting>& out) {
  std::vector<Setting> found;
  for (std::uint32_t mask = 1; mask < 1U << modules.size(); ++mask) {
    std::vector<std::string> chosen;
    std::string text = form;
    for (std::size_t m = 0; m < modules.size(); ++m) {
      if ((mask >> m & 1U) == 0) continue;
      text += (chosen.empty() ? ":" : "+") + modules[m];
      chosen.push_back(modules[m]);
    }
    add(job, text, std::move(chosen), found);
  }
  std::ranges::stable_sort(found, {}, [](const Setting& s) { return s.modules.size(); });
  std::ranges::move(found, std::back_inserter(out));
}

std::int64_t most_layers_of_a_chunk(const Job& job) {
  std::int64_t most = 0;
  for (std::int64_t v = 0; v < job.layout.virtual_stages(); ++v) {
    most = std::max(most, job.layout.chunk_layers(v, job.model.num_layers).size());
  }
  return most;
}

std::vector<Setting> settings_of(const Job& job) {
  std::vector<Setting> out;
  add(job, "keep-everything", {}, out);
  std::vector<std::string> layers;
  for (std::int64_t n = 1; n < most_layers_of_a_chunk(job); ++n) {
    layers.push_back(std::to_string(n));
    add(job, "block-recompute:" + layers.back(), layers, out);
  }
  add(job, "full-recompute", {}, out);
  std::vector<std::string> recomputed;
  for (const auto& [module, name] : recompute_modules()) {
    if (name != "mlp" || job.model.has_dense_layers()) recomputed.push_back(name);
  }
  add_subsets(job, "selective", recomputed, out);
  std::vector<std::string> offloaded;
  for (const OffloadModule module : kOffloadModules) offloaded.emplace_back(name_of(module));
  add_subsets(job, "offload", offloaded, out);
  return out;
}

std::string kind_of(const Setting& s) { return s.policy.name.substr(0, s.policy.name.find(':')); }

class Search {
 public:
  Search(const HardwareProfile& profile, double rows_bound, std::vector<Setting> settings)
      : profile_(profile), rows_bound_(rows_bound), settings_(std::move(settings)) {}

  StaticSearch run() {
    StaticSearch out;
    out.settings = std::ssize(settings_);
    const Setting* best = find();
    if (best != nullptr) {
      out.best = best->policy;
      out.iteration_ns = best->iteration_ns;
    }
    out.simulated = simulated_;
    return out;
  }

 private:
  // The first setting keeps everything, which nothing is faster than.
  const Setting* find() {
    take_time(settings_[0]);
    if (fits(settings_[0])) return settings_.data();
    parallel_for(settings_.size(), [&](std::size_t i) { take_time(settings_[i]); });
    std::ranges::stable_sort(settings_, {}, &Setting::iteration_ns);
    try_largest_sets();
    for (Setting& setting : settings_) {
      if (!setting.fits && holds_more_than_too_much(setting)) continue;
      if (fits(setting)) return &setting;
    }
    return nullptr;
  }

  void take_time(Setting& setting) const {
    const Job job = on_platform(setting.policy.job, profile_);
    const LaneRows balanced = LaneRows::alike(job);
    setting.iteration_ns = run_units(build_program(job, profile_), {&balanced, 1}).iteration_ns;
  }

  bool fits(Setting& setting) {
    if (!setting.fits) {
      const Job& job = setting.policy.job;
      const RoutingCounts counts = scaled(balanced_routing(job), rows_bound_);
      const SimulationResult result = simulate(job, profile_, counts).result;
      setting.fits = result.fits();
      setting.hopeless = std::ranges::any_of(result.stages, [&](const StageResult& stage) {
        return stage.peak_allocated() > result.limit();
      });
      ++simulated_;
    }
    return *setting.fits;
  }

  // Those with all modules but at most one: where they allocate too much, so do all without that
  // module. What is reserved beyond that need not shrink with every module.
  void try_largest_sets() {
    for (Setting& setting : settings_) {
      const auto size = [&](const Setting& s) {
        return kind_of(s) == kind_of(setting) ? s.modules.size() : 0;
      };
      const std::size_t most = size(*std::ranges::max_element(settings_, {}, size));
      if (!setting.modules.empty() && setting.modules.size() + 1 >= most) fits(setting);
    }
  }

  bool holds_more_than_too_much(const Setting& setting) const {
    return !setting.modules.empty() && std::ranges::any_of(settings_, [&](const Setting& other) {
      return other.hopeless && kind_of(other) == kind_of(setting) &&
             std::ranges::includes(other.modules, setting.modules);
    });
  }

  const HardwareProfile& profile_;
  const double rows_bound_;
  std::vector<Setting> settings_;  // the fastest first, once times are taken
  std::int64_t simulated_ = 0;
};

}  // namespace

StaticSearch best_static_policy(const Job& job, const HardwareProfile& profile, double rows_bound) {
  return Search(profile, rows_bound, settings_of(job)).run();
}

std::string megatron_memory_flags(const TrainingOptions& options) {
  std::string out;
  if (const auto& full = options.full_recompute) {
    out += " --recompute-granularity full --recompute-method ";
    out += full->method == RecomputeMethod::kUniform ? "uniform" : "block";
    out += " --recompute-num-layers " + std::to_string(full->num_layers);
  }
  std::string recomputed;
  for (const auto& [module, name] : recompute_modules()) {
    if (options.recompute.*module) recomputed += " " + name;
  }
  if (!recomputed.empty()) {
    out += " --recompute-granularity selective --recompute-modules" + recomputed;
  }
  if (!options.offload.modules.empty()) {
    out += " --fine-grained-activation-offloading --offload-modules";
  }
  for (const OffloadModule module : options.offload.modules) {
    out += std::string(" ") + name_of(module);
  }
  return out.empty() ? out : out.substr(1);
}

}  // namespace tidemark
