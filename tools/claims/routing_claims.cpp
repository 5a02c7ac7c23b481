#include <algorithm>
#include <cmath>
#include <utility>

#include "models/json_fields.h"
#include "tools/claims/claim_kinds.h"
#include "tools/claims/recorded_routers.h"
#include "tools/quantity_text.h"
#include "traces/imbalance.h"
#include "traces/routing_source.h"

namespace tidemark::claims {
namespace {

// Ratios of a column of the table, printed and recomputed.
struct Column {
  std::int64_t ranks = 0;
  std::int64_t ratios = 0;
  std::int64_t equal = 0;
};

}  // namespace

ClaimCheck recorded_ratios(JsonReader& claim, const std::filesystem::path& root) {
  struct Case {
    std::filesystem::path table;
    std::string task;
  };
  double tolerance = 0;
  claim.object("tolerance", [&](JsonReader& in) { tolerance = in.number("absolute", {0, 1}); });
  std::vector<Case> cases;
  claim.objects("cases", [&](JsonReader& in) {
    cases.push_back({root / in.string("table"), in.string("task")});
  });
  return [=] {
    std::vector<ClaimLine> lines;
    for (const Case& c : cases) {
      std::vector<Column> columns = {{8}, {16}, {64}};
      read_recorded_routers(c.table, [&](const RecordedLayer& layer, const CsvRow& row) {
        if (layer.task != c.task) return;
        for (Column& column : columns) {
          if (std::ssize(layer.counts) % column.ranks != 0) {
            row.violate("counts", "a multiple of " + std::to_string(column.ranks) + " counts");
            continue;
          }
          const double printed = layer.printed_max_over_mean.at(column.ranks);
          ++column.ratios;
          column.equal += std::abs(rank_ratio(layer.counts, column.ranks) - printed) <= tolerance;
        }
      });
      for (const Column& column : columns) {
        lines.push_back({c.task + ", EP" + std::to_string(column.ranks),
                         std::to_string(column.ratios) + " ratios",
                         std::to_string(column.equal) + " equal", std::nullopt,
                         column.ratios > 0 && column.equal == column.ratios});
      }
    }
    return lines;
  };
}

ClaimCheck workload_ratios(JsonReader& claim, const std::filesystem::path&) {
  struct RatioTolerance {
    double share_percent = 0;
    double least_maximum = 0;
  };
  RatioTolerance tolerance;
  claim.object("tolerance", [&](JsonReader& in) {
    tolerance = {in.number("share_percent", {0, 100}), in.number("least_maximum", {1, 100})};
  });
  Workload workload;
  claim.object("routing", [&](JsonReader& in) { workload = read_workload(in); });
  RoutingShape shape;
  std::int64_t iterations = 0;
  std::vector<std::int64_t> ranks;
  double share_percent = 0;
  double bound = 0;
  double maximum = 0;
  claim.object("shape", [&](JsonReader& in) {
    shape.microbatches = in.integer("microbatches", kDegree);
    shape.moe_layers = in.integer("moe_layers", kDegree);
    shape.experts = in.integer("experts", kDegree);
    shape.topk = in.integer("topk", kDegree);
    shape.tokens = in.integer("tokens", kDegree);
    iterations = in.integer("iterations", kDegree);
  });
  claim.object("published", [&](JsonReader& in) {
    share_percent = in.number("share_percent", {0, 100});
    bound = in.number("below", {1, 100});
    maximum = in.number("maximum", {1, 100});
  });
  claim.objects("cases", [&](JsonReader& in) { ranks.push_back(in.integer("ranks", kDegree)); });
  return [=] {
    std::vector<ClaimLine> lines;
    for (const std::int64_t number : ranks) {
      RoutingShape with_ranks = shape;
      with_ranks.ranks = number;
      const auto source = make_routing(with_ranks, workload, 1);
      RoutingCounts counts;
      std::int64_t below = 0;
      double largest = 0;
      for (std::int64_t i = 0; i < iterations; ++i) {
        source->counts(i, 0, counts);
        const double ratio = iteration_ratio(counts, number, workload.ratio_of);
        below += ratio < bound;
        largest = std::max(largest, ratio);
      }
      const double share = 100 * static_cast<double>(below) / static_cast<double>(iterations);
      const std::string name = "EP" + std::to_string(number);
      lines.push_back({name + ": % of iterations below " + fixed_text(bound, 1) + "x",
                       share_percent, share, std::nullopt,
                       std::abs(share - share_percent) <= tolerance.share_percent});
      lines.push_back({name + ": largest ratio, at most", maximum, largest, std::nullopt,
                       largest <= maximum && largest >= tolerance.least_maximum});
    }
    return lines;
  };
}

}  // namespace tidemark::claims
