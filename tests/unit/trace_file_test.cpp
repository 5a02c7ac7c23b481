#include "traces/trace_file.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/input_error.h"

namespace tidemark::trace_file_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// 2 units, 2 microbatches, 3 layers, 8 experts on 4 ranks, top-2 of 16 tokens.
constexpr RoutingShape kShape{2, 2, 3, 8, 2, 16, 4};

Workload dirichlet() {
  Workload w;
  w.kind = WorkloadKind::kDirichlet;
  return w;
}

fs::path write_bytes(const std::string& name, const std::string& bytes) {
  const fs::path path = fs::path(testing::TempDir()) / name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

// Five iterations of the Dirichlet workload.
std::string trace_bytes(const RoutingShape& shape = kShape) {
  std::ostringstream out;
  TraceInfo info;
  info.shape = shape;
  info.origin = {{"seed", 3}};
  TraceWriter writer(out, info);
  const auto source = make_routing(shape, dirichlet(), 3);
  RoutingCounts counts;
  for (std::int64_t i = 0; i < 5 * shape.units; ++i) {
    source->counts(i / shape.units, i % shape.units, counts);
    writer.write(counts);
  }
  EXPECT_EQ(writer.finish().iterations, 5);
  return out.str();
}

std::string error_of(const fs::path& path) {
  try {
    const TraceFile file(path);
    RoutingCounts counts;
    for (std::int64_t i = 0; i < file.info().iterations; ++i) {
      for (std::int64_t u = 0; u < file.info().shape.units; ++u) file.read(i, u, counts);
    }
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TraceFile, GivesBackWhatWasWrittenInAnyOrderFromAnyThread) {
  const TraceFile file(write_bytes("order.trace", trace_bytes()));
  EXPECT_EQ(file.info().shape, kShape);
  EXPECT_EQ(file.info().iterations, 5);
  EXPECT_EQ(file.info().origin.at("seed"), 3);
  const auto source = make_routing(kShape, dirichlet(), 3);
  const auto check = [&](std::int64_t begin, std::int64_t step) {
    RoutingCounts expected;
    RoutingCounts found;
    for (std::int64_t i = begin; i >= 0; i -= step) {
      source->counts(i / 2, i % 2, expected);
      file.read(i / 2, i % 2, found);
      EXPECT_EQ(found.counts, expected.counts);
    }
  };
  std::jthread other([&] { check(8, 2); });
  check(9, 2);
}

TEST(TraceFile, TakesTwoBytesACountWhileTheyAreEnough) {
  RoutingShape shape = kShape;
  const auto body = [&] {
    const std::string bytes = trace_bytes(shape);
    return bytes.size() - bytes.find('\n') - 1;
  };
  EXPECT_EQ(body(), 5U * 2 * 2 * 3 * 8 * 2);
  shape.tokens = 65535;
  EXPECT_EQ(body(), 5U * 2 * 2 * 3 * 8 * 2);
  shape.tokens = 65536;
  EXPECT_EQ(body(), 5U * 2 * 2 * 3 * 8 * 4);
}

TEST(TraceFile, RefusesATruncatedBodyWithTheByte) {
  const std::string whole = trace_bytes();
  const std::string cut = whole.substr(0, whole.size() - 1);
  EXPECT_THAT(error_of(write_bytes("cut.trace", cut)),
              AllOf(HasSubstr("byte " + std::to_string(cut.size())), HasSubstr("truncated"),
                    HasSubstr(std::to_string(whole.size()) + " bytes")));
  EXPECT_THAT(error_of(write_bytes("long.trace", whole + "x")),
              HasSubstr("byte " + std::to_string(whole.size()) + ": bytes after the last count"));
}

TEST(TraceFile, RefusesCountsThatDoNotAddUpWithTheByte) {
  std::string bytes = trace_bytes();
  const std::size_t row = bytes.find('\n') + 1 + 2 * 8 * 2;  // the third row of 8 two-byte counts
  bytes[row] = static_cast<char>(bytes[row] ^ 1);
  EXPECT_THAT(error_of(write_bytes("sum.trace", bytes)),
              AllOf(HasSubstr("byte " + std::to_string(row) + ": counts that add up to 3"),
                    HasSubstr("tokens * topk = 32")));
}

TEST(TraceFile, RefusesACountAboveTheTokens) {
  std::string bytes = trace_bytes();
  const std::size_t row = bytes.find('\n') + 1;
  bytes[row] = 17;  // 16 tokens
  EXPECT_THAT(error_of(write_bytes("above.trace", bytes)),
              HasSubstr("byte " + std::to_string(row) + ": a count of 17, expected 0 to 16"));
}

TEST(TraceFile, RefusesWhatIsNoTrace) {
  EXPECT_THAT(error_of("/nonexistent/a.trace"), HasSubstr("cannot be opened"));
  EXPECT_THAT(error_of(write_bytes("empty.trace", "")), HasSubstr("byte 0: no end of the header"));
  EXPECT_THAT(error_of(write_bytes("text.trace", "hello\nworld\n")), HasSubstr("byte 1: not JSON"));
  EXPECT_THAT(error_of(write_bytes("keys.trace", "{\"schema_version\": 2, \"expert\": 1}\n")),
              AllOf(HasSubstr("/schema_version: 2"), HasSubstr("/experts: missing"),
                    HasSubstr("/expert: unknown key")));
}

TEST(TraceWriter, RefusesCountsThatDoNotAddUp) {
  std::ostringstream out;
  TraceInfo info;
  info.shape = {1, 1, 1, 4, 2, 16, 1};
  TraceWriter writer(out, info);
  RoutingCounts counts;
  resize(counts, info.shape);
  counts.counts = {8, 8, 8, 7};
  try {
    writer.write(counts);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("iteration 0, unit 0, microbatch 0, MoE layer 0"),
                                    HasSubstr("counts that add up to 31")));
  }
}

TEST(TraceWriter, RefusesAnIterationWithoutAllUnits) {
  std::ostringstream out;
  TraceInfo info;
  info.shape = kShape;
  TraceWriter writer(out, info);
  RoutingCounts counts;
  make_routing(kShape, Workload{}, 1)->counts(0, 0, counts);
  writer.write(counts);
  EXPECT_THROW(writer.finish(), InputError);
}

std::string refusal(const RoutingShape& shape) {
  try {
    trace_routing(write_bytes("shape.trace", trace_bytes()), shape);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(TraceRouting, RefusesAnotherShapeThanTheJobs) {
  EXPECT_EQ(refusal(kShape), "");
  RoutingShape other = kShape;
  other.experts = 16;
  other.moe_layers = 4;
  other.topk = 4;
  other.tokens = 32;
  EXPECT_THAT(refusal(other),
              AllOf(HasSubstr("/experts: 8, expected 16, as the job has"),
                    HasSubstr("/moe_layers: 3, expected 4"), HasSubstr("/topk: 2, expected 4"),
                    HasSubstr("/tokens: 16, expected 32")));
  other = kShape;
  other.units = 3;
  EXPECT_THAT(refusal(other), HasSubstr("/units: 2, expected 3"));
  other.units = 1;  // a part of the trace
  EXPECT_EQ(refusal(other), "");
}

TEST(TraceRouting, RefusesAnIterationThatTheTraceLacks) {
  const auto source = trace_routing(write_bytes("end.trace", trace_bytes()), kShape);
  RoutingCounts counts;
  EXPECT_NO_THROW(source->counts(4, 1, counts));
  EXPECT_THROW(source->counts(5, 0, counts), InputError);
}

TEST(TraceRouting, SpreadsARanksRowsOverItsExperts) {
  std::ostringstream out;
  TraceInfo info;
  info.shape = {1, 1, 1, 2, 1, 32, 2};  // two ranks
  info.count_of = CountOf::kRank;
  TraceWriter writer(out, info);
  RoutingCounts counts;
  resize(counts, info.shape);
  counts.counts = {21, 11};
  writer.write(counts);
  writer.finish();
  const auto source =
      trace_routing(write_bytes("ranks.trace", out.str()), RoutingShape{1, 1, 1, 8, 2, 16, 2});
  source->counts(0, 0, counts);
  EXPECT_THAT(counts.counts, ElementsAre(6, 5, 5, 5, 3, 3, 3, 2));
}

}  // namespace
}  // namespace tidemark::trace_file_test
