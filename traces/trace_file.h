// The file of a routing trace: one line of JSON, then the counts.
//
//   {"schema_version": 1, "kind": "routing_trace", "iterations": ..., "units": ..., "microbatches":
//    ..., "moe_layers": ..., "experts": ..., "topk": ..., "tokens": ..., "ranks": ...,
//    "count_of": "expert", "totals": "exact", "count_bytes": 2, "origin": {...}}
//
//   Then counts[iteration][unit][microbatch][layer][expert], little endian, unsigned, `count_bytes`
//   each. `tokens` are those of a microbatch of a unit; a microbatch and layer adds up to tokens *
//   topk, or, with totals "at_most" (tokens were dropped, or sequences vary), to less. With
//   count_of "rank" the recorder knew no experts: `experts` and `ranks` are the number of ranks,
//   topk is 1. `origin` says where the counts come from: an importer with its inputs, or a workload
//   and seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <memory>

#include <nlohmann/json.hpp>

#include "traces/routing.h"
#include "traces/routing_shape.h"
#include "traces/routing_source.h"

namespace tidemark {

enum class CountOf { kExpert, kRank };

struct TraceInfo {
  RoutingShape shape;
  std::int64_t iterations = 0;
  CountOf count_of = CountOf::kExpert;
  bool exact_totals = true;
  nlohmann::ordered_json origin = nlohmann::ordered_json::object();

  std::int64_t count_bytes() const { return shape.tokens > UINT16_MAX ? 4 : 2; }
};

// Writes a trace into a stream, one unit of one iteration at a time, in order.
class TraceWriter {
 public:
  // `info.iterations` may be set later, by `finish`.
  TraceWriter(std::ostream& out, TraceInfo info);
  // Throws: InputError, with iteration, unit, microbatch and layer, when counts do not add up.
  void write(const RoutingCounts& counts);
  // Completes the header. Returns: what was written. Throws: InputError when an iteration lacks
  // units. Requires: a stream that can seek.
  TraceInfo finish();

 private:
  std::ostream& out_;
  TraceInfo info_;
  std::int64_t written_ = 0;  // units of iterations
  std::string buffer_;
};

// Reads from any thread, in any order, without holding more than it is asked for.
class TraceFile {
 public:
  // Throws: InputError, with the byte offset, when the header is wrong or the body is not as long
  // as it says.
  explicit TraceFile(std::filesystem::path path);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  const TraceInfo& info() const { return info_; }
  const std::filesystem::path& path() const { return path_; }
  // Throws: InputError, with the byte offset, when counts do not add up.
  void read(std::int64_t iteration, std::int64_t unit, RoutingCounts& out) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t body_ = 0;  // its offset
  TraceInfo info_;
};

// The trace's counts as routing of this shape. Counts of ranks are spread over each rank's experts
// evenly, the first ones a row more. Throws: InputError when the shapes differ; the source throws
// it for an iteration or unit that the trace lacks.
std::unique_ptr<RoutingSource> trace_routing(const std::filesystem::path& path,
                                             const RoutingShape& shape);

}  // namespace tidemark
