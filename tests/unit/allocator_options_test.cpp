#include "models/allocator_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemark::allocator_options_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Parsed {
  AllocatorOptions options;
  std::vector<std::string> errors;
};

Parsed parse(const std::string& text) {
  std::vector<Violation> violations;
  Parsed out{parse_allocator_conf(text, "run.sh", "line 3", violations), {}};
  for (const Violation& v : violations) out.errors.push_back(v.text());
  return out;
}

TEST(ParseAllocatorConf, ReadsWhatDecidesReservedMemory) {
  const auto [options, errors] = parse(
      "max_split_size_mb:128, garbage_collection_threshold:0.8,roundup_power2_divisions:8,"
      "expandable_segments:True");
  EXPECT_THAT(errors, IsEmpty());
  EXPECT_EQ(options.max_split_size_mb, 128);
  EXPECT_EQ(options.garbage_collection_threshold, 0.8);
  EXPECT_EQ(options.roundup_power2_divisions, 8);
  EXPECT_TRUE(options.expandable_segments);
}

TEST(ParseAllocatorConf, SkipsWhatDoesNot) {
  const auto [options, errors] =
      parse("backend:native,release_lock_on_cudamalloc:True,pinned_num_register_threads:8");
  EXPECT_THAT(errors, IsEmpty());
  EXPECT_FALSE(options.max_split_size_mb.has_value());
  EXPECT_FALSE(options.expandable_segments);
}

// Limits of CUDAAllocatorConfig.cpp: above 20 MiB; between 0 and 1, both excluded; powers of two.
TEST(ParseAllocatorConf, ListsAllViolations) {
  EXPECT_THAT(parse("max_split_size_mb:21").errors, IsEmpty());
  EXPECT_THAT(
      parse("max_split_size_mb:20,garbage_collection_threshold:1,expandable_segments:yes,"
            "roundup_power2_divisions:3,backend:cudaMallocAsync,max_split:40")
          .errors,
      ElementsAre(HasSubstr("run.sh: line 3: max_split_size_mb:20, expected an integer "
                            "above 20"),
                  HasSubstr("garbage_collection_threshold:1"), HasSubstr("expandable_segments:yes"),
                  HasSubstr("roundup_power2_divisions:3"), HasSubstr("cudaMallocAsync"),
                  HasSubstr("max_split:40")));
}

TEST(ParseAllocatorConf, RefusesDivisionsBySizeAsAWhole) {
  EXPECT_THAT(parse("roundup_power2_divisions:[256:1,512:2,>:8],max_split_size_mb:64").errors,
              ElementsAre(HasSubstr("divisions by size are not modelled")));
}

}  // namespace
}  // namespace tidemark::allocator_options_test
