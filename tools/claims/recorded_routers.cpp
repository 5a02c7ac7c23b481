#include "tools/claims/recorded_routers.h"

#include <sstream>
#include <utility>

#include "models/parse_number.h"
#include "traces/routing_source.h"
#include "traces/trace_statistics.h"
#include "traces/workload_fit.h"

namespace tidemark::claims {
namespace {

constexpr std::int64_t kPrintedRanks[] = {8, 16, 64};

std::string ratio_column(std::int64_t ranks) {
  return "ep" + std::to_string(ranks) + "_rank_max_over_mean";
}

std::vector<std::int64_t> read_counts(const CsvRow& row) {
  std::vector<std::int64_t> counts;
  std::istringstream words(row.text("counts"));
  for (std::string word; words >> word;) {
    const auto count = parse_number<std::int64_t>(word);
    if (!count || *count < 0) row.violate("counts", "integers >= 0, separated by spaces");
    counts.push_back(count.value_or(0));
  }
  return counts;
}

class Recorded : public RoutingSource {
 public:
  explicit Recorded(RoutingCounts counts) : counts_(std::move(counts)) {}
  void counts(std::int64_t, std::int64_t, RoutingCounts& out) const override { out = counts_; }

 private:
  RoutingCounts counts_;
};

struct Task {
  RoutingShape shape;
  RoutingCounts counts;
};

}  // namespace

void read_recorded_routers(const std::filesystem::path& table,
                           const std::function<void(const RecordedLayer&, const CsvRow&)>& read) {
  std::vector<std::string> columns = {"task", "layer", "tokens", "top_k"};
  for (const std::int64_t ranks : kPrintedRanks) columns.push_back(ratio_column(ranks));
  columns.emplace_back("counts");
  read_csv(table, columns, [&](const CsvRow& row) {
    RecordedLayer layer{row.text("task"),
                        row.positive_integer("tokens"),
                        row.positive_integer("top_k"),
                        read_counts(row),
                        {}};
    for (const std::int64_t ranks : kPrintedRanks) {
      layer.printed_max_over_mean[ranks] = row.positive_number(ratio_column(ranks));
    }
    read(layer, row);
  });
}

std::vector<Workload> fit_recorded_routers(const std::filesystem::path& table) {
  std::map<std::string, Task> tasks;
  read_recorded_routers(table, [&](const RecordedLayer& layer, const CsvRow& row) {
    RoutingShape shape{.microbatches = 1,
                       .experts = std::ssize(layer.counts),
                       .topk = layer.topk,
                       .tokens = layer.tokens};
    Task& task = tasks[layer.task];
    shape.moe_layers = task.shape.moe_layers;
    if (shape.moe_layers > 0 && shape != task.shape) {
      row.violate("task", "layers alike in experts, tokens and top-k");
      return;
    }
    ++shape.moe_layers;
    task.shape = shape;
    auto& counts = task.counts.counts;
    counts.insert(counts.end(), layer.counts.begin(), layer.counts.end());
  });
  std::vector<Workload> fitted;
  for (auto& [name, task] : tasks) {
    task.counts.microbatches = 1;
    task.counts.moe_layers = task.shape.moe_layers;
    task.counts.experts = task.shape.experts;
    const Recorded source(std::move(task.counts));
    std::vector<std::string> notes;
    fitted.push_back(fit_workload(
        task.shape, describe_routing(source, task.shape, 0, 1, {1}, RatioOf::kMicrobatch), notes));
  }
  return fitted;
}

}  // namespace tidemark::claims
