#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "models/json_fields.h"
#include "traces/iteration_assembler.h"
#include "traces/trace_import.h"

namespace tidemark {
namespace {

// (stage, block, layer), as JSON text or number.
using LayerKey = std::tuple<nlohmann::json, nlohmann::json, std::int64_t>;

struct Line {
  std::int64_t number = 0;
  std::int64_t step = 0;
  LayerKey layer;
  std::int64_t rank = 0;
  std::int64_t tokens = 0;
  std::int64_t topk = 0;
  nlohmann::json indices;
};

// The last line may be cut off, where the run was ended. Returns: whether it was.
template <class Visit>
bool scan_lines(const std::filesystem::path& path, const Visit& visit) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw InputError(path.string(), "", "cannot be opened", "a readable routing log");
  std::string text;
  for (std::int64_t number = 1; std::getline(in, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string place = "line " + std::to_string(number);
    nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
    if (json.is_discarded()) {
      if (in.eof()) return true;
      throw InputError(path.string(), place, "not JSON", "an object a line");
    }
    std::vector<Violation> violations;
    JsonReader reader(json, path.string(), place + " ", violations);
    Line line;
    line.number = number;
    line.step = reader.integer("step", {0, std::int64_t{1} << 40});
    line.layer = {reader.raw("stage"), reader.raw("block"), reader.integer("layer", kSize)};
    line.rank = reader.integer("rank", kSize);
    line.tokens = reader.integer("num_tokens", kSize);
    line.topk = reader.integer("topk", kDegree);
    line.indices = reader.raw("top_indices");
    reader.finish();
    if (!line.indices.is_array() || std::ssize(line.indices) != line.tokens) {
      reader.violate(
          "top_indices",
          line.indices.is_array() ? std::to_string(line.indices.size()) + " tokens" : "no array",
          "num_tokens = " + std::to_string(line.tokens) + " of them");
    }
    throw_if_any(violations);
    visit(std::move(line));
  }
  return false;
}

class LineCounter {
 public:
  std::int64_t next(const Line& line) {
    auto& [step, count] = last_[{line.rank, line.layer}];
    if (step != line.step) count = 0;
    step = line.step;
    return count++;
  }

 private:
  std::map<std::pair<std::int64_t, LayerKey>, std::pair<std::int64_t, std::int64_t>> last_;
};

void add_tokens(const std::string& file, const Line& line, std::span<std::int64_t> row) {
  const auto refuse = [&](const std::string& found, const std::string& allowed) {
    throw InputError(file, "line " + std::to_string(line.number), found, allowed);
  };
  std::set<std::int64_t> chosen;
  for (const nlohmann::json& token : line.indices) {
    if (!token.is_array() || std::ssize(token) != line.topk) {
      refuse("a token with other than top-k experts", std::to_string(line.topk) + " of them");
    }
    chosen.clear();
    for (const nlohmann::json& id : token) {
      const auto expert = id.is_number_integer() ? id.get<std::int64_t>() : -1;
      if (expert < 0 || expert >= std::ssize(row)) {
        refuse("expert " + id.dump(), "0 to " + std::to_string(std::ssize(row) - 1));
      }
      if (!chosen.insert(expert).second) {
        refuse("expert " + id.dump() + " twice for a token", "different ones");
      }
      ++row[static_cast<std::size_t>(expert)];
    }
  }
}

}  // namespace

ImportReport import_routing_log(const std::filesystem::path& jsonl, const RoutingLogShape& given,
                                std::ostream& out) {
  const std::string file = jsonl.string();
  std::map<LayerKey, std::map<std::int64_t, std::int64_t>> place;  // [layer][rank]
  std::set<std::int64_t> steps;
  std::optional<std::pair<std::int64_t, std::int64_t>> sizes;  // tokens, top-k
  std::int64_t microbatches = 0;
  LineCounter numbers;
  const bool cut = scan_lines(jsonl, [&](const Line& line) {
    place[line.layer][line.rank] = 0;
    steps.insert(line.step);
    microbatches = std::max(microbatches, numbers.next(line) + 1);
    if (!sizes) sizes = {line.tokens, line.topk};
    if (*sizes != std::pair{line.tokens, line.topk}) {
      throw InputError(file, "line " + std::to_string(line.number),
                       std::to_string(line.tokens) + " tokens, top-" + std::to_string(line.topk),
                       std::to_string(sizes->first) + " tokens, top-" +
                           std::to_string(sizes->second) + " as on the first line");
    }
  });
  if (place.empty()) throw InputError(file, "", "no lines", "a routing log");
  const std::size_t cards = place.begin()->second.size();
  std::map<LayerKey, std::int64_t> layer_index;
  for (auto& [layer, ranks] : place) {
    if (ranks.size() != cards || cards % static_cast<std::size_t>(given.senders) != 0) {
      throw InputError(file, "layer " + std::to_string(std::get<2>(layer)),
                       std::to_string(ranks.size()) + " ranks report it",
                       "a multiple of the " + std::to_string(given.senders) +
                           " senders of a unit, the same for every layer");
    }
    std::int64_t next = 0;
    for (auto& [rank, index] : ranks) index = next++;
    const auto index = std::ssize(layer_index);
    layer_index[layer] = index;
  }
  if (sizes->second > given.experts || given.experts % given.ranks != 0) {
    throw InputError(file, "experts", std::to_string(given.experts),
                     "a multiple of the " + std::to_string(given.ranks) +
                         " ranks, at least top-k " + std::to_string(sizes->second));
  }
  ImportReport report;
  TraceInfo& info = report.info;
  info.shape = {static_cast<std::int64_t>(cards) / given.senders,
                microbatches,
                std::ssize(layer_index),
                given.experts,
                sizes->second,
                sizes->first * given.senders,
                given.ranks};
  info.origin = {{"importer", "megatron_routing_log"},
                 {"file", jsonl.filename().string()},
                 {"first_iteration", *steps.begin()}};

  TraceWriter writer(out, info);
  IterationAssembler assembler(writer, info.shape, given.senders, *steps.begin(), file,
                               [](auto, const auto&) { return false; });
  numbers = {};
  scan_lines(jsonl, [&](const Line& line) {
    const std::int64_t mb = numbers.next(line);
    const std::int64_t at = place.at(line.layer).at(line.rank);
    const auto record =
        assembler.record(line.step, at / given.senders, mb, layer_index.at(line.layer),
                         at % given.senders, line.number);
    add_tokens(file, line, record.row);
  });
  const bool incomplete = assembler.finish();
  info = writer.finish();
  report.notes.emplace_back("microbatches are taken in the order of each rank's lines of a layer");
  if (cut) report.notes.emplace_back("the last line is cut off and left out");
  if (incomplete) report.notes.emplace_back("the last iteration is incomplete and left out");
  return report;
}

}  // namespace tidemark
