#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "models/input_error.h"
#include "models/parse_number.h"
#include "traces/trace_import.h"

namespace tidemark {
namespace {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// One row of the table.
struct Row {
  std::int64_t line = 0;
  std::int64_t topk = 0;
  std::vector<std::int64_t> counts;
  std::int64_t sum() const {
    std::int64_t total = 0;
    for (const std::int64_t count : counts) total += count;
    return total;
  }
};

using Place = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

// The rows that `where` selects, by (iteration, unit, microbatch, layer).
std::map<Place, Row> read_rows(const std::filesystem::path& csv,
                               const std::map<std::string, std::string>& where) {
  const std::string file = csv.string();
  std::ifstream in(csv, std::ios::binary);
  std::string text;
  if (!in || !std::getline(in, text)) {
    throw InputError(file, "", "cannot be read", "a CSV table with a line of titles");
  }
  if (text.ends_with('\r')) text.pop_back();
  const std::vector<std::string> titles = split(text, ',');
  const auto column = [&](const std::string& title) -> std::optional<std::size_t> {
    const auto it = std::find(titles.begin(), titles.end(), title);
    if (it == titles.end()) return std::nullopt;
    return static_cast<std::size_t>(it - titles.begin());
  };
  for (const std::string required : {"layer", "counts", "top_k"}) {
    if (!column(required)) throw InputError(file, "line 1", "no column " + required, "one");
  }
  for (const auto& [title, value] : where) {
    if (!column(title)) throw InputError(file, "line 1", "no column " + title, "one of " + text);
  }
  std::map<Place, Row> rows;
  for (std::int64_t line = 2; std::getline(in, text); ++line) {
    if (text.ends_with('\r')) text.pop_back();
    if (text.empty()) continue;
    const auto refuse = [&](const std::string& found, const std::string& allowed) {
      throw InputError(file, "line " + std::to_string(line), found, allowed);
    };
    const std::vector<std::string> cells = split(text, ',');
    if (cells.size() != titles.size()) {
      refuse(std::to_string(cells.size()) + " columns", std::to_string(titles.size()));
    }
    if (std::any_of(where.begin(), where.end(),
                    [&](const auto& w) { return cells[*column(w.first)] != w.second; })) {
      continue;
    }
    const auto integer = [&](const std::string& title, std::int64_t otherwise) {
      if (!column(title)) return otherwise;
      const std::string& cell = cells[*column(title)];
      const auto value = parse_number<std::int64_t>(cell);
      if (!value || *value < 0) refuse(title + " \"" + cell + "\"", "an integer >= 0");
      return *value;
    };
    Row row;
    row.line = line;
    row.topk = integer("top_k", 0);
    for (const std::string& cell : split(cells[*column("counts")], ' ')) {
      const auto value = parse_number<std::int64_t>(cell);
      if (!value || *value < 0) refuse("count \"" + cell + "\"", "an integer >= 0");
      row.counts.push_back(*value);
    }
    const std::int64_t tokens = integer("tokens", -1);
    if (tokens >= 0 && row.sum() != tokens * row.topk) {
      refuse("counts that add up to " + std::to_string(row.sum()),
             "tokens * top_k = " + std::to_string(tokens * row.topk));
    }
    const Place place = {integer("iteration", 0), integer("unit", 0), integer("microbatch", 0),
                         integer("layer", 0)};
    const auto [it, is_new] = rows.emplace(place, std::move(row));
    if (!is_new) {
      refuse("the layer of line " + std::to_string(it->second.line) + " again",
             "each once (choose among several traces with --where)");
    }
  }
  if (rows.empty()) throw InputError(file, "", "no rows are selected", "at least one");
  return rows;
}

}  // namespace

ImportReport import_count_table(const std::filesystem::path& csv, std::int64_t ranks,
                                const std::map<std::string, std::string>& where,
                                std::ostream& out) {
  const std::string file = csv.string();
  const std::map<Place, Row> rows = read_rows(csv, where);
  // Numbers of each part of the place, in order.
  std::map<std::int64_t, std::int64_t> iterations, units, microbatches, layers;
  for (const auto& [place, row] : rows) {
    iterations[std::get<0>(place)];
    units[std::get<1>(place)];
    microbatches[std::get<2>(place)];
    layers[std::get<3>(place)];
  }
  for (auto* numbers : {&iterations, &units, &microbatches, &layers}) {
    std::int64_t next = 0;
    for (auto& [number, index] : *numbers) index = next++;
  }
  if (iterations.rbegin()->first - iterations.begin()->first != std::ssize(iterations) - 1) {
    throw InputError(file, "iteration", "numbers with gaps", "iterations without gaps");
  }
  const Row& first = rows.begin()->second;
  ImportReport report;
  TraceInfo& info = report.info;
  info.shape = {std::ssize(units),
                std::ssize(microbatches),
                std::ssize(layers),
                std::ssize(first.counts),
                first.topk,
                0,
                ranks};
  const auto refuse = [&](const Row& row, const std::string& found, const std::string& allowed) {
    throw InputError(file, "line " + std::to_string(row.line), found, allowed);
  };
  if (first.topk < 1 || first.topk > info.shape.experts || first.sum() % first.topk != 0) {
    refuse(first, "top_k " + std::to_string(first.topk),
           "a divisor of the counts' sum, at most the number of experts");
  }
  info.shape.tokens = first.sum() / first.topk;
  if (info.shape.experts % ranks != 0) {
    throw InputError(file, "experts", std::to_string(info.shape.experts),
                     "a multiple of the " + std::to_string(ranks) + " ranks");
  }
  info.origin = {{"importer", "count_table"}, {"file", csv.filename().string()}};
  for (const auto& [title, value] : where) info.origin["where"][title] = value;

  TraceWriter writer(out, info);
  RoutingCounts counts;
  for (const auto& [iteration, iteration_index] : iterations) {
    for (const auto& [unit, unit_index] : units) {
      resize(counts, info.shape);
      for (const auto& [mb, mb_index] : microbatches) {
        for (const auto& [layer, layer_index] : layers) {
          const auto it = rows.find({iteration, unit, mb, layer});
          if (it == rows.end()) {
            throw InputError(file, "",
                             "no row of iteration " + std::to_string(iteration) + ", unit " +
                                 std::to_string(unit) + ", microbatch " + std::to_string(mb) +
                                 ", layer " + std::to_string(layer),
                             "one for each");
          }
          const Row& row = it->second;
          if (row.counts.size() != first.counts.size() || row.topk != first.topk ||
              row.sum() != first.sum()) {
            refuse(row,
                   std::to_string(row.counts.size()) + " experts, top-" + std::to_string(row.topk) +
                       ", " + std::to_string(row.sum()) + " rows",
                   "what line " + std::to_string(first.line) +
                       " has: " + std::to_string(first.counts.size()) + " experts, top-" +
                       std::to_string(first.topk) + ", " + std::to_string(first.sum()) + " rows");
          }
          std::copy(row.counts.begin(), row.counts.end(),
                    counts.row(mb_index, layer_index).begin());
        }
      }
      writer.write(counts);
    }
  }
  info = writer.finish();
  return report;
}

}  // namespace tidemark
