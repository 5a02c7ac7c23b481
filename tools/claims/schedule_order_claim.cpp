#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "tools/claims/claim_cases.h"
#include "tools/claims/claim_kinds.h"
#include "tools/claims/claim_lines.h"
#include "tools/quantity_text.h"

namespace tidemark::claims {
namespace {

struct MeasuredSchedule {
  std::string what;
  Job job;
  double memory_gb = 0;
  double tokens_per_s = 0;
};

// Neighbours in the measured order: whether the second is predicted to need more, too.
std::vector<ClaimLine> order_lines(std::vector<std::pair<double, std::size_t>> measured,
                                   const std::vector<double>& predicted,
                                   const std::vector<MeasuredSchedule>& cases,
                                   const std::string& relation,
                                   const std::vector<std::string>& excepted) {
  std::ranges::sort(measured);
  std::vector<ClaimLine> lines;
  for (std::size_t i = 1; i < measured.size(); ++i) {
    const auto [less, a] = measured[i - 1];
    const auto [more, b] = measured[i];
    const double ratio = predicted[b] / predicted[a];
    ClaimLine line{cases[b].what + relation + cases[a].what, fixed_text(more / less, 3),
                   fixed_text(ratio, 3), std::nullopt, ratio > 1};
    if (std::ranges::count(excepted, cases[a].what + " " + cases[b].what) != 0) {
      line.what += " (excepted)";
      line.pass = true;
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace

// Whether variants of one job have the measured order in memory, and in speed but for the pairs in
// `excepted` ("A B": A was measured faster).
ClaimCheck schedule_order(JsonReader& claim, const fs::path& root) {
  require_equality(claim);
  std::vector<std::string> excepted;
  for (const nlohmann::json& pair : claim.raw("excepted")) {
    if (pair.is_string()) excepted.push_back(pair.get<std::string>());
  }
  const JobVariants variants(claim, root);
  auto cases = read_cases<MeasuredSchedule>(claim, [&](JsonReader& in) {
    MeasuredSchedule c;
    c.what = in.string("what");
    c.job = variants.read(in);
    c.memory_gb = in.number("memory_gb", {.low = 0});
    c.tokens_per_s = in.number("tokens_per_s", {.low = 1});
    return c;
  });
  return [=, cases = std::move(cases)] {
    std::vector<double> bytes, times;
    std::vector<std::pair<double, std::size_t>> by_memory, by_time;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const SimulationResult result = simulate_balanced(cases[i].job).result;
      Bytes peak;
      for (const StageResult& s : result.stages) peak = std::max(peak, s.peak_allocated());
      bytes.push_back(static_cast<double>(peak.value));
      times.push_back(static_cast<double>(result.iteration.time_ns));
      by_memory.emplace_back(cases[i].memory_gb, i);
      by_time.emplace_back(1 / cases[i].tokens_per_s, i);
    }
    std::vector<ClaimLine> lines =
        order_lines(std::move(by_memory), bytes, cases, " allocates more than ", {});
    for (ClaimLine& line :
         order_lines(std::move(by_time), times, cases, " takes longer than ", excepted)) {
      lines.push_back(std::move(line));
    }
    return lines;
  };
}

}  // namespace tidemark::claims
