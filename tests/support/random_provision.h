// Random provisioning problems, each from one printed seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/provision.h"

namespace tidemark {

// Tiny numbers, so that ties and infeasibility are common: up to `max_classes` classes of one or
// two storages with two or three actions, up to three lanes, every kind of constraint.
ProvisionProblem random_small_problem(std::uint64_t seed, std::int64_t max_classes);

// One action of two or three for each of `classes` single storages; one or two lanes.
ProvisionProblem random_wide_problem(std::uint64_t seed, std::int64_t classes);

// Amounts as a real layer's, derived from a legal plan that it returns with the problem: the budget
// of every lane and moment is what the plan holds, times at most `headroom`.
struct PlantedProblem {
  ProvisionProblem problem;
  std::vector<std::int32_t> counts;  // [action]: the plan, the same on all lanes
};
PlantedProblem planted_problem(std::uint64_t seed, std::int64_t classes, std::int64_t lanes,
                               double headroom);

// What a failing test prints.
std::string describe(const ProvisionProblem& problem);

}  // namespace tidemark
