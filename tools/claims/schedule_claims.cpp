#include <utility>

#include <nlohmann/json.hpp>

#include "sim/lane_engine.h"
#include "tools/claims/claim_cases.h"
#include "tools/claims/claim_kinds.h"
#include "tools/claims/claim_lines.h"
#include "traces/routing.h"

namespace tidemark::claims {

// In-flight microbatches (of chunks) of each stage, and the makespan of slots without
// communication. Durations are of all chunks of a stage together.
ClaimCheck schedule(JsonReader& claim, const fs::path&) {
  struct Case {
    std::int64_t stages = 1;
    std::int64_t chunks = 1;
    std::int64_t microbatches = 1;
    std::int64_t forward_ns = 1;
    std::int64_t backward_ns = 1;
    std::int64_t makespan_ns = 0;
    std::vector<std::int64_t> in_flight;
  };
  require_equality(claim);
  auto cases = read_cases<Case>(claim, [&](JsonReader& in) {
    Case c{in.integer("stages", kCount),
           in.optional_integer("virtual_stages", kCount).value_or(1),
           in.integer("microbatches", kCount),
           in.integer("forward_ns", kCount),
           in.integer("backward_ns", kCount),
           in.integer("makespan_ns"),
           {}};
    for (const nlohmann::json& count : in.raw("in_flight")) {
      if (count.is_number_integer()) c.in_flight.push_back(count.get<std::int64_t>());
    }
    if (std::ssize(c.in_flight) != c.stages) {
      in.violate("in_flight", std::to_string(c.in_flight.size()) + " integers",
                 "one for each of the " + std::to_string(c.stages) + " stages");
    }
    for (const auto& [key, ns] :
         {std::pair{"forward_ns", c.forward_ns}, std::pair{"backward_ns", c.backward_ns}}) {
      if (ns % c.chunks != 0) {
        in.violate(key, std::to_string(ns), "a multiple of " + std::to_string(c.chunks));
      }
    }
    return c;
  });
  return [cases = std::move(cases)] {
    std::vector<ClaimLine> lines;
    for (const Case& c : cases) {
      const auto slot = [&](std::int64_t ns) {
        SlotProgram program;
        program.ops.emplace_back().cost.fixed_ns = ns / c.chunks;
        return program;
      };
      ChunkProgram chunk;
      chunk.forward = chunk.first_forward = slot(c.forward_ns);
      chunk.backward = chunk.last_backward = slot(c.backward_ns);
      StageProgram stage;
      stage.chunks.assign(static_cast<std::size_t>(c.chunks), chunk);
      const auto stages = static_cast<std::int32_t>(c.stages);
      const auto microbatches = static_cast<std::int32_t>(c.microbatches);
      Program program;
      program.schedule = c.chunks == 1 ? build_1f1b(stages, microbatches)
                                       : build_interleaved_1f1b(
                                             stages, microbatches,
                                             {static_cast<std::int32_t>(c.chunks), stages, true});
      program.stages.assign(static_cast<std::size_t>(c.stages), stage);
      std::string name = std::to_string(c.stages) + " stages, ";
      if (c.chunks > 1) name += std::to_string(c.chunks) + " chunks each, ";
      name += std::to_string(c.microbatches) + " microbatches";
      const LaneRows no_routing(Job{}, RoutingCounts{});
      lines.push_back(equal_line(name + ": makespan", c.makespan_ns,
                                 run_units(program, {&no_routing, 1}).iteration_ns));
      for (std::int64_t r = 0; r < c.stages; ++r) {
        lines.push_back(equal_line(name + ": in flight on stage " + std::to_string(r),
                                   c.in_flight[static_cast<std::size_t>(r)],
                                   peak_in_flight(program.schedule, static_cast<std::int32_t>(r))));
      }
    }
    return lines;
  };
}

}  // namespace tidemark::claims
