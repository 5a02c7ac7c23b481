// Recorded routing in the formats of others, as routing traces.
//
// Every importer streams its input (twice: what there is, then the counts) and throws InputError,
// with the line or byte, when experts, tokens or iterations do not add up.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "traces/trace_file.h"

namespace tidemark {

struct ImportReport {
  TraceInfo info;
  std::vector<std::string> notes;  // what was left out, and what the input cannot tell
};

// BaGuaLu-2's telemetry in a training log (bgl2/adapter/moe_imbalance.py):
//
//   moe_token_event: event_id=E, step=S, iteration=I, microbatch=M, phase=forward, event=alloc,
//     layer=L, rank=R, received_tokens=N                                         (one line)
//   step: S, layer: L, rank: R, received_tokens: N
//   step: S, layer: L, average_received_tokens: A, max_received_tokens: X, imbalance_ratio: X.XX
//
//   Counts are taken from alloc events, or, in logs without events, from the lines of ranks;
//   averages are only compared. Any prefix is allowed, with `|` or without, and several records on
//   one line. The cards that report a layer, in the order of their ranks, are units of `ranks`
//   each. Where the microbatch is unknown, a rank's records of a layer are counted from 0 in each
//   step. A record that was cut off is worked out where its group's total tells it.
// Returns: a trace of ranks, not of experts.
ImportReport import_telemetry(const std::filesystem::path& log, std::int64_t ranks,
                              std::ostream& out);

// Megatron-LM's --moe-routing-trace-path: a JSON object a line with step, stage, block, layer,
// rank, num_tokens, topk and top_indices[token][topk]. Layers are counted in the order of (stage,
// block, layer), a rank's lines of a layer and step are its microbatches, and neighbouring ranks
// send into one unit.
struct RoutingLogShape {
  std::int64_t experts = 0;
  std::int64_t ranks = 1;    // expert-parallel
  std::int64_t senders = 1;  // ranks that write, of a unit
};
ImportReport import_routing_log(const std::filesystem::path& jsonl, const RoutingLogShape& shape,
                                std::ostream& out);

// A CSV table with a row for each layer: columns `layer` and `counts` (experts' counts separated by
// spaces), `top_k`, and, if they differ, `iteration`, `unit`, `microbatch`; `tokens` is checked.
// `where`: columns that must have a value, for tables that hold several traces. The table is held
// whole.
ImportReport import_count_table(const std::filesystem::path& csv, std::int64_t ranks,
                                const std::map<std::string, std::string>& where, std::ostream& out);

// Expert ids[layer][token][slot] as little endian integers, described by a JSON file beside it of
// the same name: {"dtype": "uint8", "shape": [layers, tokens, topk]} (that of ESFT's router dumps).
// Tokens are cut into microbatches in their order; what remains is left out.
struct TokenIdShape {
  std::int64_t experts = 0;
  std::int64_t ranks = 1;
  std::int64_t microbatch_tokens = 0;  // 0: all
  std::int64_t microbatches = 0;       // of an iteration; 0: all
};
ImportReport import_token_ids(const std::filesystem::path& ids, const TokenIdShape& shape,
                              std::ostream& out);

}  // namespace tidemark
