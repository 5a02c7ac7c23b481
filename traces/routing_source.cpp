#include "traces/routing_source.h"

#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "traces/capacity.h"
#include "traces/synthetic_routing.h"
#include "traces/trace_file.h"

namespace tidemark {
namespace {

// The same counts always.
class FixedRouting : public RoutingSource {
 public:
  explicit FixedRouting(RoutingCounts counts) : counts_(std::move(counts)) {}
  void counts(std::int64_t, std::int64_t, RoutingCounts& out) const override { out = counts_; }

 private:
  RoutingCounts counts_;
};

// What is left of another's counts once experts are full.
class CappedRouting : public RoutingSource {
 public:
  CappedRouting(std::unique_ptr<RoutingSource> routed, const RoutingShape& shape,
                const Capacity& capacity)
      : routed_(std::move(routed)), shape_(shape), capacity_(capacity) {}
  void counts(std::int64_t iteration, std::int64_t unit, RoutingCounts& out) const override {
    routed_->counts(iteration, unit, out);
    apply_capacity(shape_, capacity_, out);
  }

 private:
  std::unique_ptr<RoutingSource> routed_;
  RoutingShape shape_;
  Capacity capacity_;
};

RoutingCounts balanced_counts(const RoutingShape& shape) {
  RoutingCounts out;
  resize(out, shape);
  for (std::size_t i = 0; i < out.counts.size(); ++i) {
    out.counts[i] =
        even_share(shape.rows(), shape.experts, static_cast<std::int64_t>(i) % shape.experts);
  }
  return out;
}

}  // namespace

RoutingInput read_routing_input(JsonReader& in, const std::filesystem::path& folder) {
  if (!in.has("file")) return {read_workload(in), {}};
  return {{}, folder / in.string("file")};
}

RoutingInput routing_input(const Job& job) {
  if (job.routing.empty()) return {};
  const auto json = nlohmann::json::parse(job.routing);
  std::vector<Violation> violations;
  JsonReader in(json, job.source, "/routing", violations);
  RoutingInput input = read_routing_input(in, std::filesystem::path(job.source).parent_path());
  in.finish();
  throw_if_any(violations);
  return input;
}

std::unique_ptr<RoutingSource> make_routing(const RoutingShape& shape, const Workload& workload,
                                            std::uint64_t seed) {
  throw_if_any(validate(workload, shape, "", ""));
  if (workload.kind == WorkloadKind::kBalanced || shape.moe_layers == 0) {
    return std::make_unique<FixedRouting>(balanced_counts(shape));
  }
  return synthetic_routing(shape, workload, seed);
}

std::unique_ptr<RoutingSource> make_routing(const Job& job, const Workload& workload,
                                            std::uint64_t seed) {
  return make_routing(job, RoutingInput{workload, {}}, seed);
}

std::unique_ptr<RoutingSource> make_routing(const Job& job, const RoutingInput& input,
                                            std::uint64_t seed) {
  const RoutingShape shape = routing_shape(job);
  const std::optional<Capacity> capacity = capacity_of(job);
  // Padded experts compute on their whole capacity whatever is routed.
  if (shape.moe_layers == 0 || (capacity && capacity->pad)) {
    return std::make_unique<FixedRouting>(balanced_routing(job));
  }
  std::unique_ptr<RoutingSource> routed;
  if (input.file.empty()) {
    throw_if_any(validate(input.workload, shape, job.source, "/routing"));
    routed = make_routing(shape, input.workload, seed);
  } else {
    routed = trace_routing(input.file, shape);
  }
  if (!capacity) return routed;
  return std::make_unique<CappedRouting>(std::move(routed), shape, *capacity);
}

}  // namespace tidemark
