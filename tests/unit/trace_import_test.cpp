#include "traces/trace_import.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "models/input_error.h"

namespace tidemark::trace_import_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Tests run side by side, and some write the same names.
fs::path write(const std::string& name, const std::string& content) {
  const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
  const fs::path path = fs::path(testing::TempDir()) / (test + "_" + name);
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

struct Imported {
  ImportReport report;
  std::vector<std::vector<std::int64_t>> counts;  // [iteration * units + unit]
};

template <class Import>
Imported imported(const Import& import) {
  std::ostringstream out;
  Imported result{import(out), {}};
  const TraceFile file(write("imported.trace", out.str()));
  EXPECT_EQ(file.info().shape, result.report.info.shape);
  RoutingCounts counts;
  for (std::int64_t i = 0; i < file.info().iterations * file.info().shape.units; ++i) {
    file.read(i / file.info().shape.units, i % file.info().shape.units, counts);
    result.counts.emplace_back(counts.counts.begin(), counts.counts.end());
  }
  return result;
}

template <class Import>
std::string refusal(const Import& import) {
  try {
    std::ostringstream out;
    import(out);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

// --- BaGuaLu-2 ----------------------------------------------------------------------------------

// Lines as bgl2/adapter/moe_imbalance.py formats them.
std::string event(int id, int iteration, const std::string& microbatch, bool alloc, int layer,
                  int rank, int tokens) {
  return "moe_token_event: event_id=" + std::to_string(id) + ", step=" + std::to_string(iteration) +
         ", iteration=" + std::to_string(iteration) + ", microbatch=" + microbatch +
         ", phase=" + (alloc ? "forward" : "backward") + ", event=" + (alloc ? "alloc" : "free") +
         ", layer=" + std::to_string(layer) + ", rank=" + std::to_string(rank) +
         ", received_tokens=" + std::to_string(tokens);
}
std::string rank_line(int step, int layer, int rank, int tokens) {
  return "step: " + std::to_string(step) + ", layer: " + std::to_string(layer) +
         ", rank: " + std::to_string(rank) + ", received_tokens: " + std::to_string(tokens);
}
std::string average_line(int step, int layer, const std::string& average, int most,
                         const std::string& ratio) {
  return "step: " + std::to_string(step) + ", layer: " + std::to_string(layer) +
         ", average_received_tokens: " + average +
         ", max_received_tokens: " + std::to_string(most) + ", imbalance_ratio: " + ratio;
}

// Rows of a rank: two ranks share 100.
int tokens_of(int iteration, int microbatch, int layer, int rank) {
  const int first = 40 + iteration * 8 + microbatch * 4 + layer;
  return rank % 2 == 0 ? first : 100 - first;
}

// Two iterations from `first` on, two microbatches, layers 3 and 5, `ranks` ranks in units of two.
std::string events(int first, int ranks, bool numbered, bool with_frees = true) {
  std::string text;
  for (int i = first; i < first + 2; ++i) {
    for (int mb = 0; mb < 2; ++mb) {
      for (int layer : {3, 5}) {
        for (int rank = 0; rank < ranks; ++rank) {
          const int id = (i - first) * 4 + mb * 2 + layer / 4;
          const std::string number = numbered ? std::to_string(mb) : "unknown";
          text += event(id, i, number, true, layer, rank, tokens_of(i - first, mb, layer, rank));
          text += '\n';
          if (!with_frees) continue;
          text += event(id, i, number, false, layer, rank, tokens_of(i - first, mb, layer, rank));
          text += '\n';
        }
      }
    }
  }
  return text;
}

// [microbatch][layer][rank] of an iteration.
std::vector<std::int64_t> expected(int iteration) {
  std::vector<std::int64_t> out;
  for (int mb = 0; mb < 2; ++mb) {
    for (int layer : {3, 5}) {
      for (int rank = 0; rank < 2; ++rank) out.push_back(tokens_of(iteration, mb, layer, rank));
    }
  }
  return out;
}

Imported telemetry(const std::string& text, std::int64_t ranks = 2) {
  const fs::path log = write("telemetry.log", text);
  return imported([&](std::ostream& out) { return import_telemetry(log, ranks, out); });
}
std::string telemetry_refusal(const std::string& text, std::int64_t ranks = 2) {
  const fs::path log = write("telemetry.log", text);
  return refusal([&](std::ostream& out) { return import_telemetry(log, ranks, out); });
}

TEST(Telemetry, ReadsEventsBack) {
  const Imported found = telemetry(events(7, 2, true));
  EXPECT_EQ(found.report.info.shape, (RoutingShape{1, 2, 2, 2, 1, 100, 2}));
  EXPECT_EQ(found.report.info.count_of, CountOf::kRank);
  EXPECT_EQ(found.report.info.origin.at("first_iteration"), 7);
  EXPECT_EQ(found.report.info.origin.at("layers"), (nlohmann::ordered_json{3, 5}));
  EXPECT_THAT(found.counts, ElementsAre(expected(0), expected(1)));
  EXPECT_THAT(found.report.notes, ElementsAre(HasSubstr("is not told")));
}

TEST(Telemetry, CutsRanksIntoUnits) {
  const Imported found = telemetry(events(0, 4, true));
  EXPECT_EQ(found.report.info.shape.units, 2);
  EXPECT_THAT(found.counts, ElementsAre(expected(0), expected(0), expected(1), expected(1)));
}

TEST(Telemetry, CountsMicrobatchesThatAreUnknown) {
  const Imported found = telemetry(events(0, 2, false));
  EXPECT_THAT(found.counts, ElementsAre(expected(0), expected(1)));
  EXPECT_THAT(found.report.notes, Contains(HasSubstr("16 events of an unknown microbatch")));
}

std::string legacy_lines(const std::string& prefix) {
  std::string text;
  for (int i = 0; i < 2; ++i) {
    for (int mb = 0; mb < 2; ++mb) {
      for (int layer : {3, 5}) {
        for (int rank = 0; rank < 2; ++rank) {
          text += prefix + rank_line(i, layer, rank, tokens_of(i, mb, layer, rank)) + "\n";
        }
        text += prefix + average_line(i, layer, "50.0", 60, "1.20") + "\n";
      }
    }
  }
  return text;
}

TEST(Telemetry, ReadsLinesOfRanksWithAndWithoutTheBar) {
  // bgl2/data/moe_token_pressure.py silently skips those without.
  for (const char* prefix : {"", "[rank 1] | ", "| "}) {
    const Imported found = telemetry(legacy_lines(prefix));
    EXPECT_THAT(found.counts, ElementsAre(expected(0), expected(1)));
    EXPECT_THAT(found.report.notes,
                AllOf(Contains(HasSubstr("no events")),
                      Contains("8 lines of averages; their largest ratio is 1.2"),
                      Not(Contains(HasSubstr("skipped")))));
  }
}

TEST(Telemetry, TakesEventsWhereBothAreThere) {
  const Imported found = telemetry(legacy_lines("") + events(0, 2, true));
  EXPECT_THAT(found.counts, ElementsAre(expected(0), expected(1)));
  EXPECT_THAT(found.report.notes, Contains("16 lines of ranks, which say the same as the events"));
}

TEST(Telemetry, RefusesAveragesAlone) {
  EXPECT_THAT(telemetry_refusal(average_line(0, 3, "50.0", 60, "1.20") + "\n"),
              HasSubstr("1 lines of averages, which do not tell what each rank received"));
  EXPECT_THAT(telemetry_refusal(average_line(0, 3, "0.0", 0, "inf") + "\n"), HasSubstr("averages"));
  EXPECT_THAT(telemetry_refusal("iteration 1\n"), HasSubstr("no telemetry"));
}

TEST(Telemetry, FindsSeveralRecordsOnALine) {
  // Ranks that print at once: no line feed between, or a torn record before a whole one.
  std::string text = events(0, 2, true, false);
  const std::size_t feed = text.find('\n');
  text.erase(feed, 1);
  text.insert(0, "moe_token_event: event_id=3, st");
  const Imported found = telemetry(text);
  EXPECT_THAT(found.counts, ElementsAre(expected(0), expected(1)));
  EXPECT_THAT(found.report.notes, Contains("1 records cut off and skipped, the first on line 1"));
}

TEST(Telemetry, AcceptsRanksInAnyOrder) {
  // Rank 1's records all after those of rank 0.
  std::string rank0;
  std::string rank1;
  std::istringstream lines(events(0, 2, true));
  for (std::string line; std::getline(lines, line);) {
    (line.find("rank=0") != std::string::npos ? rank0 : rank1) += line + "\n";
  }
  EXPECT_THAT(telemetry(rank0 + rank1).counts, ElementsAre(expected(0), expected(1)));
}

TEST(Telemetry, WorksOutARecordThatWasCutOff) {
  std::string text = events(0, 2, true, false);
  const std::size_t cut = text.find(", received_tokens", text.size() / 4);
  text.erase(cut, text.find('\n', cut) - cut);
  const Imported found = telemetry(text);
  EXPECT_THAT(found.counts, ElementsAre(expected(0), expected(1)));
  EXPECT_THAT(found.report.notes, AllOf(Contains(HasSubstr("1 records cut off and skipped")),
                                        Contains("1 of them worked out from their group's total")));
}

TEST(Telemetry, DoesNotTrustANumberAtTheEndOfACutFile) {
  // "received_tokens=53" may have been 530; the group's total gives it back.
  std::string text = events(0, 2, true, false);
  text.pop_back();
  const Imported found = telemetry(text);
  EXPECT_THAT(found.report.notes, Contains(HasSubstr("1 records cut off")));
  EXPECT_THAT(found.counts, ElementsAre(expected(0), expected(1)));
}

TEST(Telemetry, LeavesAnIncompleteLastIterationOut) {
  const std::string text = events(0, 2, true);
  const Imported found = telemetry(text.substr(0, text.rfind(", microbatch=0")));
  EXPECT_EQ(found.report.info.iterations, 1);
  EXPECT_THAT(found.counts, ElementsAre(expected(0)));
  EXPECT_THAT(found.report.notes, Contains("the last iteration is incomplete and left out"));
}

TEST(Telemetry, TakesARecomputedForwardOnce) {
  const std::string twice = event(99, 0, "0", true, 3, 0, tokens_of(0, 0, 3, 0)) + "\n";
  const Imported found = telemetry(twice + events(0, 2, true));
  EXPECT_THAT(found.counts, ElementsAre(expected(0), expected(1)));
  EXPECT_THAT(found.report.notes,
              AllOf(Contains("1 records again with the same number (recomputation)"),
                    Contains("1 events: alloc_without_free")));
}

TEST(Telemetry, RefusesTwoNumbersForOneRecord) {
  const std::string other = event(99, 0, "0", true, 3, 0, tokens_of(0, 0, 3, 0) + 1) + "\n";
  EXPECT_THAT(telemetry_refusal(events(0, 2, true) + other), HasSubstr("line 33: "));
}

TEST(Telemetry, ReportsLifecyclesThatDoNotClose) {
  // Of a rank with ids of its own.
  std::string text = events(0, 2, true);
  text += event(100, 1, "1", false, 5, 0, 10) + "\n";
  text += event(101, 1, "1", true, 5, 0, tokens_of(1, 1, 5, 0)) + "\n";
  text += event(101, 1, "1", false, 5, 0, 7) + "\n";
  EXPECT_THAT(telemetry(text).report.notes, AllOf(Contains("1 events: free_without_alloc"),
                                                  Contains("1 events: token_mismatch")));
  // Two allocs of one id, one free of both's tokens.
  text = events(0, 2, true);
  text += event(102, 1, "1", true, 5, 0, tokens_of(1, 1, 5, 0)) + "\n";
  text += event(102, 1, "1", true, 5, 0, tokens_of(1, 1, 5, 0)) + "\n";
  text += event(102, 1, "1", false, 5, 0, 2 * tokens_of(1, 1, 5, 0)) + "\n";
  EXPECT_THAT(telemetry(text).report.notes, Contains("1 events: count_mismatch"));
}

TEST(Telemetry, EventIdsCountWithinAProcess) {
  // Both ranks use the same ids in `events`: no complaint.
  EXPECT_THAT(telemetry(events(0, 2, true)).report.notes, Not(Contains(HasSubstr("events:"))));
}

TEST(Telemetry, LeavesUnknownLayersOut) {
  std::string line = event(50, 0, "0", true, 3, 0, 1);
  line.replace(line.find("layer=3"), 7, "layer=unknown");
  EXPECT_THAT(telemetry(line + "\n" + events(0, 2, true)).report.notes,
              Contains("1 records of an unknown layer or iteration, left out"));
}

TEST(Telemetry, SaysWhereRanksCouldNotExport) {
  const std::string failed =
      "[Rank 3] MoE imbalance stats skipped: split count 4 != EP world size 8\n"
      "[Rank 4] Failed to export MoE token dispatch stats: no group\n";
  EXPECT_THAT(telemetry(failed + events(0, 2, true)).report.notes,
              Contains("2 lines in which a rank says that it could not export"));
}

TEST(Telemetry, RefusesAnIterationGap) {
  EXPECT_THAT(telemetry_refusal(events(0, 2, true) + events(3, 2, true)),
              HasSubstr("iteration 2: missing, though 3 is there"));
}

TEST(Telemetry, RefusesTokensThatDoNotAddUp) {
  std::string text = events(0, 2, true, false);
  const std::size_t last = text.rfind("received_tokens=") + 16;
  text.replace(last, 2, "10");
  EXPECT_THAT(telemetry_refusal(text),
              AllOf(HasSubstr("iteration 1, unit 0, microbatch 1, MoE layer 1"),
                    HasSubstr("counts that add up to")));
}

TEST(Telemetry, RefusesAnAbsurdRateOfCutRecords) {
  std::string text = events(0, 2, true, false);  // 16 records
  EXPECT_EQ(telemetry_refusal(text + "moe_token_event: event_id=1,\n"), "");
  for (int i = 0; i < 4; ++i) text += "moe_token_event: event_id=1,\n";
  EXPECT_THAT(telemetry_refusal(text),
              HasSubstr("line 17: 4 of 20 telemetry records cannot be read"));
}

TEST(Telemetry, RefusesRanksThatMakeNoUnits) {
  EXPECT_THAT(
      telemetry_refusal(events(0, 2, true), 4),
      HasSubstr("layer 3: 2 ranks report it, expected a multiple of the 4 expert-parallel"));
}

// --- Megatron's routing log ---------------------------------------------------------------------

std::string routing_line(int step, int layer, int rank, const std::string& indices) {
  return "{\"step\": " + std::to_string(step) +
         ", \"stage\": 0, \"block\": \"decoder\", \"layer\": " + std::to_string(layer) +
         ", \"rank\": " + std::to_string(rank) +
         ", \"num_tokens\": 3, \"topk\": 2, \"top_indices\": " + indices + "}\n";
}
constexpr RoutingLogShape kLogShape{4, 2, 2};

std::string routing_refusal(const std::string& text) {
  const fs::path path = write("routing.jsonl", text);
  return refusal([&](std::ostream& out) { return import_routing_log(path, kLogShape, out); });
}

TEST(RoutingLog, AddsTheTokensOfAUnitsSenders) {
  const std::string one = "[[0, 1], [0, 2], [0, 3]]";
  const std::string two = "[[3, 1], [3, 2], [3, 0]]";
  const fs::path path =
      write("routing.jsonl", routing_line(4, 2, 0, one) + routing_line(4, 2, 1, two) +
                                 routing_line(4, 2, 1, two) + routing_line(4, 2, 0, two) +
                                 routing_line(5, 2, 0, one));  // not all of it
  const Imported found =
      imported([&](std::ostream& out) { return import_routing_log(path, kLogShape, out); });
  EXPECT_EQ(found.report.info.shape, (RoutingShape{1, 2, 1, 4, 2, 6, 2}));
  // First microbatch: 3,1,1,1 and 1,1,1,3; second: twice 1,1,1,3.
  EXPECT_THAT(found.counts, ElementsAre(ElementsAre(4, 2, 2, 4, 2, 2, 2, 6)));
  EXPECT_THAT(found.report.notes, Contains("the last iteration is incomplete and left out"));
}

TEST(RoutingLog, RefusesWhatDoesNotAddUp) {
  EXPECT_THAT(routing_refusal(routing_line(0, 0, 0, "[[0, 1], [0, 2]]")),
              AllOf(HasSubstr("line 1"), HasSubstr("2 tokens, expected num_tokens = 3")));
  EXPECT_THAT(routing_refusal(routing_line(0, 0, 0, "[[0, 1], [0, 2], [0, 4]]") +
                              routing_line(0, 0, 1, "[[0, 1], [0, 2], [0, 3]]")),
              HasSubstr("line 1: expert 4, expected 0 to 3"));
  EXPECT_THAT(routing_refusal(routing_line(0, 0, 0, "[[0, 1], [0, 2], [0, 0]]") +
                              routing_line(0, 0, 1, "[[0, 1], [0, 2], [0, 3]]")),
              HasSubstr("expert 0 twice"));
  EXPECT_THAT(routing_refusal(routing_line(0, 0, 0, "[[0, 1], [0, 2], [0, 3]]")),
              HasSubstr("1 ranks report it, expected a multiple of the 2 senders"));
  EXPECT_THAT(routing_refusal("{\"step\": 0}\n"), HasSubstr("/num_tokens: missing"));
  EXPECT_THAT(routing_refusal("{\"step\": \n{}\n"), HasSubstr("line 1: not JSON"));
}

// --- tables and ids -----------------------------------------------------------------------------

std::string table_refusal(const std::string& text) {
  const fs::path path = write("table.csv", text);
  return refusal([&](std::ostream& out) { return import_count_table(path, 2, {}, out); });
}

TEST(CountTable, SelectsRowsAndReadsCounts) {
  const fs::path path = write("table.csv",
                              "task,layer,tokens,top_k,counts\n"
                              "law,1,4,2,1 2 3 2\n"
                              "law,2,4,2,2 2 2 2\n"
                              "code,1,4,2,4 0 4 0\n");
  const Imported found = imported([&](std::ostream& out) {
    return import_count_table(path, 2, {{"task", "law"}}, out);
  });
  EXPECT_EQ(found.report.info.shape, (RoutingShape{1, 1, 2, 4, 2, 4, 2}));
  EXPECT_THAT(found.counts, ElementsAre(ElementsAre(1, 2, 3, 2, 2, 2, 2, 2)));
}

TEST(CountTable, RefusesWhatDoesNotAddUp) {
  EXPECT_THAT(table_refusal("layer,tokens,top_k,counts\n1,4,2,1 2 3 3\n"),
              HasSubstr("line 2: counts that add up to 9, expected tokens * top_k = 8"));
  EXPECT_THAT(table_refusal("layer,top_k,counts\n1,2,4 4\n2,2,4 3\n"),
              HasSubstr("line 3: 2 experts"));
  EXPECT_THAT(table_refusal("layer,top_k,counts\n1,2,4 4\n2,2,4 4 0\n"),
              HasSubstr("line 3: 3 experts"));
  EXPECT_THAT(table_refusal("layer,top_k,counts\n1,2,4 4\n1,2,4 4\n"),
              HasSubstr("line 3: the layer of line 2 again"));
  EXPECT_THAT(table_refusal("layer,top_k,counts,iteration\n1,2,4 4,0\n1,2,4 4,2\n"),
              HasSubstr("gaps"));
  EXPECT_THAT(table_refusal("layer,counts\n"), HasSubstr("no column top_k"));
  EXPECT_THAT(table_refusal("layer,top_k,counts\n1,2,4 x\n"), HasSubstr("line 2: count \"x\""));
  EXPECT_THAT(table_refusal("layer,top_k,counts\n1,2,4 4 4\n"),
              HasSubstr("experts: 3, expected a multiple of the 2 ranks"));
}

// Two layers of five tokens to two of four experts each.
fs::path write_ids(const std::string& bytes) {
  write("ids.json", R"({"dtype": "uint8", "shape": [2, 5, 2], "model": "m"})");
  return write("ids.bin", bytes);
}
const std::string kIds(
    "\0\1\0\1\0\2\0\3\1\2"
    "\2\3\2\3\2\3\2\3\2\3",
    20);

TEST(TokenIds, CutsTokensIntoMicrobatchesAndIterations) {
  const fs::path path = write_ids(kIds);
  const Imported found = imported([&](std::ostream& out) {
    return import_token_ids(path, {4, 2, 2, 1}, out);
  });
  EXPECT_EQ(found.report.info.shape, (RoutingShape{1, 1, 2, 4, 2, 2, 2}));
  EXPECT_THAT(found.counts, ElementsAre(ElementsAre(2, 2, 0, 0, 0, 0, 2, 2),
                                        ElementsAre(2, 0, 1, 1, 0, 0, 2, 2)));
  EXPECT_THAT(found.report.notes, ElementsAre("1 of 5 tokens are left over"));
}

TEST(TokenIds, RefusesWhatDoesNotFit) {
  const auto refused = [&](const std::string& bytes, const TokenIdShape& shape) {
    const fs::path path = write_ids(bytes);
    return refusal([&](std::ostream& out) { return import_token_ids(path, shape, out); });
  };
  EXPECT_THAT(refused(kIds, {3, 1, 0, 0}), HasSubstr("byte 7: expert 3, expected 0 to 2"));
  EXPECT_THAT(refused(kIds.substr(1), {4, 1, 0, 0}), HasSubstr("byte 19: 19 bytes, expected 20"));
  EXPECT_THAT(refused("\x1f\x8b", {4, 1, 0, 0}), HasSubstr("gunzip"));
  EXPECT_THAT(refused(kIds, {4, 3, 0, 0}), HasSubstr("a multiple of the 3 ranks"));
  EXPECT_THAT(refused(kIds, {4, 1, 6, 0}), HasSubstr("5 tokens"));
}

}  // namespace
}  // namespace tidemark::trace_import_test
