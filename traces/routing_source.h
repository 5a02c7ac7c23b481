// Where a simulation takes its routing from: a named workload or a recorded trace.
//
// In a job file: {"routing": {"workload": "dirichlet", "alpha": 16, ...}} or {"routing": {"file":
// "run.trace"}}, the path from the job's folder. Without it, routing is balanced.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "models/job.h"
#include "models/json_reader.h"
#include "traces/routing.h"
#include "traces/routing_shape.h"
#include "traces/workload.h"

namespace tidemark {

class RoutingSource {
 public:
  virtual ~RoutingSource() = default;
  // A pure function: the same counts in any order and from any thread. Reuses `out`'s memory.
  // Requires: iteration >= 0, unit >= 0. Throws: InputError when a trace lacks them.
  virtual void counts(std::int64_t iteration, std::int64_t unit, RoutingCounts& out) const = 0;
};

// What a `routing` object says.
struct RoutingInput {
  Workload workload;
  std::filesystem::path file;  // empty: the workload

  friend bool operator==(const RoutingInput&, const RoutingInput&) = default;
};
RoutingInput read_routing_input(JsonReader& in, const std::filesystem::path& folder);
// The job's, or balanced. Throws: InputError with every violation of it.
RoutingInput routing_input(const Job& job);

// Throws: InputError when the workload or the trace does not suit the job's shape.
std::unique_ptr<RoutingSource> make_routing(const Job& job, const Workload& workload,
                                            std::uint64_t seed);
std::unique_ptr<RoutingSource> make_routing(const Job& job, const RoutingInput& input,
                                            std::uint64_t seed);
// Without a job: before any capacity.
std::unique_ptr<RoutingSource> make_routing(const RoutingShape& shape, const Workload& workload,
                                            std::uint64_t seed);

}  // namespace tidemark
