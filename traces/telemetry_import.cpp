#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "models/parse_number.h"
#include "traces/iteration_assembler.h"
#include "traces/trace_import.h"

namespace tidemark {
namespace {

constexpr std::int64_t kUnknown = -1;
// More lines that look like telemetry and cannot be read than this are a format of their own.
constexpr double kMostSkipped = 0.1;
constexpr std::int64_t kFewSkipped = 3;

enum class Form { kEvent, kRank, kSummary };

struct Record {
  Form form = Form::kEvent;
  std::int64_t line = 0;
  std::int64_t event_id = kUnknown;
  std::int64_t iteration = kUnknown;
  std::int64_t microbatch = kUnknown;
  bool alloc = true;  // or free
  std::int64_t layer = kUnknown;
  std::int64_t rank = 0;
  std::int64_t tokens = 0;
  double ratio = 0;  // of a summary
};

// Takes text from the front of a line.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  Scanner& skip(std::string_view expected) {
    good_ = good_ && text_.starts_with(expected);
    if (good_) text_.remove_prefix(expected.size());
    return *this;
  }
  Scanner& integer(std::int64_t& out) {
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), out);
    good_ = good_ && error == std::errc{} && out >= 0;
    if (good_) text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return *this;
  }
  // BaGuaLu-2 prints "unknown" for a field that it does not have.
  Scanner& integer_or_unknown(std::int64_t& out) {
    if (!text_.starts_with("unknown")) return integer(out);
    out = kUnknown;
    return skip("unknown");
  }
  Scanner& word(std::string_view& out) {
    out = text_.substr(0, text_.find_first_of(", \t"));
    text_.remove_prefix(out.size());
    good_ = good_ && !out.empty();
    return *this;
  }
  Scanner& number(double& out) {
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), out);
    good_ = good_ && error == std::errc{};
    if (good_) text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return *this;
  }
  explicit operator bool() const { return good_; }
  std::string_view rest() const { return text_; }

 private:
  std::string_view text_;
  bool good_ = true;
};

constexpr std::string_view kEvent = "moe_token_event: ";
constexpr std::string_view kStep = "step: ";

// One record at the front of `text`, which begins with a marker. Returns: what follows it.
std::optional<std::string_view> parse(std::string_view text, Record& r) {
  if (text.starts_with(kEvent)) {
    r.form = Form::kEvent;
    std::int64_t step = kUnknown;
    std::string_view phase;
    std::string_view event;
    Scanner in(text);
    in.skip(kEvent).skip("event_id=").integer(r.event_id);
    in.skip(", step=").integer_or_unknown(step);
    in.skip(", iteration=").integer_or_unknown(r.iteration);
    in.skip(", microbatch=").integer_or_unknown(r.microbatch);
    in.skip(", phase=").word(phase).skip(", event=").word(event);
    in.skip(", layer=").integer_or_unknown(r.layer);
    in.skip(", rank=").integer(r.rank).skip(", received_tokens=").integer(r.tokens);
    if (!in || (event != "alloc" && event != "free")) return std::nullopt;
    r.alloc = event == "alloc";
    if (r.iteration == kUnknown) r.iteration = step;
    return in.rest();
  }
  Scanner head(text);
  head.skip(kStep).integer(r.iteration).skip(", layer: ").integer(r.layer);
  if (!head) return std::nullopt;
  Scanner rank(head.rest());
  rank.skip(", rank: ").integer(r.rank).skip(", received_tokens: ").integer(r.tokens);
  if (rank) {
    r.form = Form::kRank;
    return rank.rest();
  }
  Scanner summary(head.rest());
  double average = 0;
  summary.skip(", average_received_tokens: ").number(average);
  summary.skip(", max_received_tokens: ").integer(r.tokens);
  summary.skip(", imbalance_ratio: ").number(r.ratio);
  if (!summary) return std::nullopt;
  r.form = Form::kSummary;
  return summary.rest();
}

// What a pass over the log saw beside its records.
struct Skipped {
  std::int64_t records = 0;
  std::int64_t first_line = 0;
  std::int64_t not_exported = 0;  // lines in which a rank says that it could not export
};

template <class Visit>
Skipped scan_telemetry(const std::filesystem::path& log, const Visit& visit) {
  std::ifstream in(log, std::ios::binary);
  if (!in) throw InputError(log.string(), "", "cannot be opened", "a readable log");
  Skipped skipped;
  const auto skip = [&](std::int64_t line) {
    if (skipped.records++ == 0) skipped.first_line = line;
  };
  std::string text;
  for (std::int64_t line = 1; std::getline(in, text); ++line) {
    const bool cut = in.eof();  // no line feed: the last number may lack digits
    const bool metric =
        text.find("received_tokens") != std::string::npos || text.find(kEvent) != std::string::npos;
    if (!metric) {
      if (text.find("MoE imbalance stats skipped") != std::string::npos ||
          text.find("Failed to export MoE") != std::string::npos) {
        ++skipped.not_exported;
      }
      continue;
    }
    std::string_view rest = text;
    bool found = false;
    for (;;) {
      const std::size_t event = rest.find(kEvent);
      const std::size_t step = rest.find(kStep);
      const std::size_t at = std::min(event, step);
      if (at == std::string_view::npos) break;
      found = true;
      rest.remove_prefix(at);
      Record record;
      record.line = line;
      const auto after = parse(rest, record);
      if (!after) {
        skip(line);
        rest.remove_prefix(1);
        continue;
      }
      rest = *after;
      if (cut && (rest.empty() || rest == "\r")) {
        skip(line);
      } else {
        visit(record);
      }
    }
    if (!found) skip(line);
  }
  return skipped;
}

// Numbers a rank's records of a layer in each step, where the microbatch is not told.
class RecordCounter {
 public:
  std::int64_t next(const Record& record) {
    auto& [iteration, count] = last_[{record.rank, record.layer}];
    if (iteration != record.iteration) count = 0;
    iteration = record.iteration;
    return count++;
  }

 private:
  std::map<std::pair<std::int64_t, std::int64_t>, std::pair<std::int64_t, std::int64_t>> last_;
};

// Allocs and frees of each (rank, event id): ids count within a process.
class Lifecycles {
 public:
  void add(const Record& r) {
    Events& events = open_[{r.rank, r.event_id}];
    (r.alloc ? events.allocs : events.frees) += 1;
    (r.alloc ? events.alloc_tokens : events.free_tokens) += r.tokens;
    if (events.allocs == 1 && events.frees == 1 && events.alloc_tokens == events.free_tokens) {
      open_.erase({r.rank, r.event_id});
    }
  }

  void add_notes(std::vector<std::string>& notes) const {
    std::map<std::string, std::int64_t> statuses;
    for (const auto& [key, e] : open_) {
      ++statuses[e.allocs == 0                     ? "free_without_alloc"
                 : e.frees == 0                    ? "alloc_without_free"
                 : e.alloc_tokens != e.free_tokens ? "token_mismatch"
                                                   : "count_mismatch"];
    }
    for (const auto& [status, count] : statuses) {
      notes.push_back(std::to_string(count) + " events: " + status);
    }
  }

 private:
  struct Events {
    std::int64_t allocs = 0, frees = 0, alloc_tokens = 0, free_tokens = 0;
  };
  std::map<std::pair<std::int64_t, std::int64_t>, Events> open_;
};

// What there is: the first pass.
struct Survey {
  std::int64_t events = 0;
  std::int64_t rank_lines = 0;
  std::int64_t summaries = 0;
  double largest_ratio = 0;
  std::int64_t unknown_layers = 0;
  std::int64_t unknown_microbatches = 0;
  std::set<std::int64_t> iterations;
  std::map<std::int64_t, std::set<std::int64_t>> ranks_of_layer;
  std::set<std::int64_t> microbatches;
  // Tokens by rank of each (iteration, layer, microbatch) seen first, until one is complete.
  std::map<std::int64_t, std::map<std::int64_t, std::int64_t>> first_tokens;  // [microbatch][rank]
  std::int64_t first_layer = kUnknown;
};

}  // namespace

ImportReport import_telemetry(const std::filesystem::path& log, std::int64_t ranks,
                              std::ostream& out) {
  const std::string file = log.string();
  bool has_events = false;
  scan_telemetry(log, [&](const Record& r) { has_events = has_events || r.form == Form::kEvent; });
  const auto counted = [&](const Record& r) {
    return has_events ? r.form == Form::kEvent && r.alloc : r.form == Form::kRank;
  };

  Survey survey;
  Lifecycles lifecycles;
  RecordCounter numbers;
  const Skipped skipped = scan_telemetry(log, [&](const Record& r) {
    if (r.form == Form::kEvent) lifecycles.add(r);
    survey.events += r.form == Form::kEvent;
    survey.rank_lines += r.form == Form::kRank;
    survey.summaries += r.form == Form::kSummary;
    if (r.form == Form::kSummary) survey.largest_ratio = std::max(survey.largest_ratio, r.ratio);
    if (!counted(r)) return;
    if (r.layer == kUnknown || r.iteration == kUnknown) {
      ++survey.unknown_layers;
      return;
    }
    survey.unknown_microbatches += has_events && r.microbatch == kUnknown;
    const std::int64_t mb = r.microbatch == kUnknown ? numbers.next(r) : r.microbatch;
    survey.iterations.insert(r.iteration);
    survey.ranks_of_layer[r.layer].insert(r.rank);
    survey.microbatches.insert(mb);
    if (survey.first_layer == kUnknown) survey.first_layer = r.layer;
    if (r.iteration == *survey.iterations.begin() && r.layer == survey.first_layer) {
      survey.first_tokens[mb].emplace(r.rank, r.tokens);
    }
  });
  const std::int64_t read = survey.events + survey.rank_lines + survey.summaries;
  if (skipped.records > kFewSkipped &&
      static_cast<double>(skipped.records) >
          kMostSkipped * static_cast<double>(skipped.records + read)) {
    throw InputError(file, "line " + std::to_string(skipped.first_line),
                     std::to_string(skipped.records) + " of " +
                         std::to_string(skipped.records + read) +
                         " telemetry records cannot be read, this is the first",
                     "BaGuaLu-2's lines, at most one in ten cut off");
  }
  if (survey.ranks_of_layer.empty()) {
    const std::string only =
        survey.summaries > 0 ? std::to_string(survey.summaries) +
                                   " lines of averages, which do not tell what each rank received"
                             : "no telemetry";
    throw InputError(file, "", only, "lines with moe_token_event: or rank: and received_tokens:");
  }

  ImportReport report;
  TraceInfo& info = report.info;
  info.count_of = CountOf::kRank;
  const std::size_t cards = survey.ranks_of_layer.begin()->second.size();
  std::map<std::int64_t, std::int64_t> layer_index;
  std::map<std::int64_t, std::map<std::int64_t, std::int64_t>> place;  // [layer][rank]
  for (const auto& [layer, layer_ranks] : survey.ranks_of_layer) {
    if (layer_ranks.size() != cards || cards % static_cast<std::size_t>(ranks) != 0) {
      throw InputError(file, "layer " + std::to_string(layer),
                       std::to_string(layer_ranks.size()) + " ranks report it",
                       "a multiple of the " + std::to_string(ranks) +
                           " expert-parallel ranks, the same for every layer");
    }
    const auto index = std::ssize(layer_index);
    layer_index[layer] = index;
    std::int64_t next = 0;
    for (const std::int64_t rank : layer_ranks) place[layer][rank] = next++;
  }
  const std::int64_t first = *survey.iterations.begin();
  std::int64_t expected = first;
  for (const std::int64_t iteration : survey.iterations) {
    if (iteration != expected) {
      throw InputError(file, "iteration " + std::to_string(expected),
                       "missing, though " + std::to_string(iteration) + " is there",
                       "iterations without gaps");
    }
    ++expected;
  }
  std::map<std::int64_t, std::int64_t> microbatch_index;
  for (const std::int64_t mb : survey.microbatches) {
    const auto index = std::ssize(microbatch_index);
    microbatch_index[mb] = index;
  }
  // The rows of a group: what a complete one adds up to.
  const auto& first_place = place.at(survey.first_layer);
  std::int64_t rows = kUnknown;
  for (const auto& [mb, tokens] : survey.first_tokens) {
    for (std::int64_t unit = 0; unit < static_cast<std::int64_t>(cards) / ranks; ++unit) {
      std::int64_t sum = 0;
      std::int64_t members = 0;
      for (const auto& [rank, count] : tokens) {
        if (first_place.at(rank) / ranks != unit) continue;
        sum += count;
        ++members;
      }
      if (members == ranks && rows == kUnknown) rows = sum;
    }
  }
  if (rows == kUnknown) {
    throw InputError(file, "layer " + std::to_string(survey.first_layer),
                     "no microbatch of the first iteration that all ranks report",
                     "a log from the start of an iteration on");
  }
  info.shape = {static_cast<std::int64_t>(cards) / ranks,
                std::ssize(microbatch_index),
                std::ssize(layer_index),
                ranks,
                1,
                rows,
                ranks};
  info.origin = {{"importer", "bagualu2_telemetry"},
                 {"file", log.filename().string()},
                 {"first_iteration", first}};
  for (const auto& [layer, index] : layer_index) info.origin["layers"].push_back(layer);

  std::int64_t mended = 0;
  std::int64_t repeated = 0;
  TraceWriter writer(out, info);
  IterationAssembler assembler(
      writer, info.shape, ranks, first, file,
      [&](std::span<std::int64_t> row, const std::vector<std::int64_t>& missing) {
        std::int64_t sum = 0;
        for (const std::int64_t count : row) sum += count;
        if (missing.size() != 1 || sum > rows) return false;
        row[static_cast<std::size_t>(missing.front())] = rows - sum;
        ++mended;
        return true;
      });
  numbers = {};
  scan_telemetry(log, [&](const Record& r) {
    if (!counted(r) || r.layer == kUnknown || r.iteration == kUnknown) return;
    const std::int64_t mb = r.microbatch == kUnknown ? numbers.next(r) : r.microbatch;
    const std::int64_t at = place.at(r.layer).at(r.rank);
    const auto record = assembler.record(r.iteration, at / ranks, microbatch_index.at(mb),
                                         layer_index.at(r.layer), at % ranks, r.line);
    std::int64_t& count = record.row[static_cast<std::size_t>(at % ranks)];
    if (record.again && count != r.tokens) {
      throw InputError(file, "line " + std::to_string(r.line),
                       "received_tokens " + std::to_string(r.tokens) + ", after " +
                           std::to_string(count) + " for the same microbatch, layer and rank",
                       "one number (cut the log where the job was restarted)");
    }
    repeated += record.again;
    count = r.tokens;
  });
  const bool incomplete = assembler.finish();
  info = writer.finish();

  report.notes.push_back(
      "counts are of ranks: how they spread over each rank's experts is not told");
  if (!has_events) {
    report.notes.push_back("no events: microbatches are taken in the order of each rank's lines");
  }
  const auto note = [&](std::int64_t count, const std::string& text) {
    if (count > 0) report.notes.push_back(std::to_string(count) + " " + text);
  };
  note(skipped.records,
       "records cut off and skipped, the first on line " + std::to_string(skipped.first_line));
  note(mended, "of them worked out from their group's total");
  note(repeated, "records again with the same number (recomputation)");
  note(survey.unknown_microbatches, "events of an unknown microbatch, taken in their order");
  note(survey.unknown_layers, "records of an unknown layer or iteration, left out");
  note(skipped.not_exported, "lines in which a rank says that it could not export");
  note(survey.summaries,
       "lines of averages; their largest ratio is " + nlohmann::json(survey.largest_ratio).dump());
  if (has_events) note(survey.rank_lines, "lines of ranks, which say the same as the events");
  if (incomplete) report.notes.emplace_back("the last iteration is incomplete and left out");
  lifecycles.add_notes(report.notes);
  return report;
}

}  // namespace tidemark
