#include "tools/slot_path.h"

#include <algorithm>
#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include "tools/quantity_text.h"
#include "tools/text_table.h"

namespace tidemark {
namespace {

constexpr std::size_t kLongest = 12;  // pieces of the path that the text lists

constexpr const char* kClassNames[kNumTimeClasses] = {
    "GEMM",          "grouped GEMM",    "attention",        "elementwise",
    "loss",          "tensor parallel", "context parallel", "expert communication",
    "data parallel", "host copies"};

// Neighbours on the path of one stream, pass, layer and class.
struct Piece {
  TimeClass time_class = TimeClass::kGemm;
  bool backward = false;
  std::int32_t layer = -1;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::string first;  // operator
};

std::vector<Piece> pieces_of(const Program& program, std::size_t stage, const ExplainedSlot& e) {
  const OperatorGraph& graph = program.stages[stage].graph;
  std::vector<Piece> out;
  for (const PathOperator& p : e.path) {
    const ProgramOp& op = e.slot->ops[static_cast<std::size_t>(p.op)];
    const SlotRun::Span& span = e.run.spans[static_cast<std::size_t>(p.op)];
    const Operator& source = graph.at(static_cast<std::size_t>(op.operator_index));
    if (!out.empty() && out.back().time_class == op.time_class &&
        out.back().backward == op.beside && out.back().layer == source.layer &&
        out.back().end_ns == span.start_ns) {
      out.back().end_ns = span.end_ns;
      continue;
    }
    out.push_back(
        {op.time_class, op.beside, source.layer, span.start_ns, span.end_ns, source.name});
  }
  return out;
}

using ByClass = std::array<std::int64_t, kNumTimeClasses>;

ByClass on_path(const ExplainedSlot& e) {
  ByClass out{};
  for (const PathOperator& p : e.path) {
    const SlotRun::Span& span = e.run.spans[static_cast<std::size_t>(p.op)];
    const ProgramOp& op = e.slot->ops[static_cast<std::size_t>(p.op)];
    out[static_cast<std::size_t>(op.time_class)] += span.end_ns - span.start_ns;
  }
  return out;
}

ByClass in_all(const ExplainedSlot& e) {
  ByClass out{};
  for (std::size_t op = 0; op < e.slot->ops.size(); ++op) {
    out[static_cast<std::size_t>(e.slot->ops[op].time_class)] +=
        e.run.spans[op].end_ns - e.run.spans[op].start_ns;
  }
  return out;
}

std::int64_t busiest_stream_ns(const ExplainedSlot& e) {
  std::array<std::int64_t, kNumStreams> busy{};
  for (std::size_t op = 0; op < e.slot->ops.size(); ++op) {
    busy[static_cast<std::size_t>(e.slot->ops[op].stream)] +=
        e.run.spans[op].end_ns - e.run.spans[op].start_ns;
  }
  return *std::ranges::max_element(busy);
}

std::int64_t waits_ns(const ExplainedSlot& e) {
  std::int64_t sum = e.run.ns;
  for (const std::int64_t ns : on_path(e)) sum -= ns;
  return sum;
}

}  // namespace

std::vector<PathOperator> critical_path(const SlotProgram& slot, const SlotRun& run) {
  using After = PathOperator::After;
  std::vector<PathOperator> path;
  const auto begins_after = [&](std::int32_t at, std::int32_t other) {
    return run.spans[static_cast<std::size_t>(other)].end_ns ==
           run.spans[static_cast<std::size_t>(at)].start_ns;
  };
  std::int32_t at = 0;
  for (std::size_t op = 0; op < run.spans.size(); ++op) {
    if (run.spans[op].end_ns == run.ns) at = static_cast<std::int32_t>(op);
  }
  while (at >= 0) {
    const ProgramOp& op = slot.ops[static_cast<std::size_t>(at)];
    std::int32_t before = -1;
    After after = After::kHost;
    for (std::int32_t d = op.dep_begin; d < op.dep_end; ++d) {
      const std::int32_t from = slot.deps[static_cast<std::size_t>(d)];
      if (begins_after(at, from)) std::tie(before, after) = std::pair(from, After::kDependency);
    }
    std::int32_t gate = -1;
    std::int32_t last = -1;  // on its stream
    for (std::int32_t i = at - 1; i >= 0; --i) {
      const ProgramOp& other = slot.ops[static_cast<std::size_t>(i)];
      if (last < 0 && other.stream == op.stream) last = i;
      if (gate < 0 && other.host_waits) gate = i;
    }
    if (last >= 0 && begins_after(at, last)) {
      std::tie(before, after) = std::pair(last, After::kStream);
    }
    path.push_back({at, after});
    at = before >= 0 ? before : gate;
  }
  std::ranges::reverse(path);
  return path;
}

ExplainedSlot explain_slot(const Program& program, std::size_t stage, const LaneRows& rows) {
  ExplainedSlot out;
  for (const auto& [key, slot] : program.stages[stage].fused) {
    if (key.first || key.last) continue;
    out.slot = &slot;
    break;
  }
  if (out.slot == nullptr) return out;
  out.run = run_alone(program, *out.slot, rows);
  out.path = critical_path(*out.slot, out.run);
  return out;
}

std::string slot_text(const Program& program, std::size_t stage, const ExplainedSlot& e) {
  const auto text = [](std::int64_t ns) { return duration_text(SimDuration(ns)); };
  std::string out = "A combined slot of stage " + std::to_string(stage) +
                    " by itself, balanced: " + text(e.run.ns) + "; its busiest stream works " +
                    text(busiest_stream_ns(e)) +
                    " of that, which no order shortens.\n\nWhat its length is made of:\n\n";
  TextTable shares(
      {{"", TextTable::Align::kLeft}, {"on the critical path"}, {"in all"}, {"hidden"}});
  const ByClass path = on_path(e);
  const ByClass all = in_all(e);
  for (std::size_t c = 0; c < all.size(); ++c) {
    if (all[c] == 0) continue;
    shares.add_row(
        {kClassNames[c], text(path[c]), text(all[c]),
         share_text(static_cast<double>(all[c] - path[c]), static_cast<double>(all[c]))});
  }
  shares.add_row({"waiting for the host", text(waits_ns(e)), "", ""});
  out += shares.text() +
         "\nThe longest pieces of the path; what makes one of them shorter, or "
         "moves it beside another stream's work, shortens the slot:\n\n";
  std::vector<Piece> pieces = pieces_of(program, stage, e);
  std::ranges::stable_sort(pieces, [](const Piece& a, const Piece& b) {
    return a.end_ns - a.start_ns > b.end_ns - b.start_ns;
  });
  pieces.resize(std::min(pieces.size(), kLongest));
  TextTable longest({{"what", TextTable::Align::kLeft},
                     {"pass", TextTable::Align::kLeft},
                     {"layer"},
                     {"from"},
                     {"takes"},
                     {"begins with", TextTable::Align::kLeft}});
  for (const Piece& p : pieces) {
    longest.add_row({kClassNames[static_cast<std::size_t>(p.time_class)],
                     p.backward ? "backward" : "forward",
                     p.layer < 0 ? "-" : std::to_string(p.layer), text(p.start_ns),
                     text(p.end_ns - p.start_ns), p.first});
  }
  return out + longest.text();
}

nlohmann::ordered_json slot_json(const Program& program, std::size_t stage,
                                 const ExplainedSlot& e) {
  nlohmann::ordered_json out = {{"stage", stage},
                                {"time_ns", e.run.ns},
                                {"busiest_stream_ns", busiest_stream_ns(e)},
                                {"waiting_for_host_ns", waits_ns(e)}};
  for (const Piece& p : pieces_of(program, stage, e)) {
    out["critical_path"].push_back({{"what", kClassNames[static_cast<std::size_t>(p.time_class)]},
                                    {"pass", p.backward ? "backward" : "forward"},
                                    {"layer", p.layer},
                                    {"start_ns", p.start_ns},
                                    {"end_ns", p.end_ns},
                                    {"first_operator", p.first}});
  }
  return out;
}

}  // namespace tidemark
