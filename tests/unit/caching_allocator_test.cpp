#include "sim/caching_allocator.h"

#include <gtest/gtest.h>

#include "tests/support/naive_allocator.h"
#include "tests/support/random_jobs.h"

namespace tidemark::caching_allocator_test {
namespace {

constexpr std::int64_t kMi = 1 << 20;

TEST(CachingAllocator, RoundsRequestsUpTo512Bytes) {
  CachingAllocator a;
  a.allocate(1);
  EXPECT_EQ(a.allocated(), Bytes(512));
  a.allocate(513);
  EXPECT_EQ(a.allocated(), Bytes(512 + 1024));
}

TEST(CachingAllocator, SmallRequestsShareSegmentsOfTwoMiB) {
  CachingAllocator a;
  a.allocate(kMi);  // the largest small request
  a.allocate(kMi);
  EXPECT_EQ(a.reserved(), Bytes(2 * kMi));
  a.allocate(512);
  EXPECT_EQ(a.reserved(), Bytes(4 * kMi));
}

TEST(CachingAllocator, MiddleRequestsShareSegmentsOfTwentyMiB) {
  CachingAllocator a;
  a.allocate(kMi + 1);
  EXPECT_EQ(a.reserved(), Bytes(20 * kMi));
  a.allocate(10 * kMi - 512);  // below 10 MiB: from the rest of the segment
  EXPECT_EQ(a.reserved(), Bytes(20 * kMi));
}

TEST(CachingAllocator, LargeRequestsGetSegmentsRoundedToTwoMiB) {
  CachingAllocator a;
  a.allocate(10 * kMi);
  EXPECT_EQ(a.reserved(), Bytes(10 * kMi));
  a.allocate(11 * kMi);
  EXPECT_EQ(a.reserved(), Bytes((10 + 12) * kMi));
}

TEST(CachingAllocator, ARestOfOneMiBStaysWithTheRequestAndCountsAsAllocated) {
  CachingAllocator a;
  a.allocate(125 * kMi);  // from a segment of 126 MiB
  EXPECT_EQ(a.allocated(), Bytes(126 * kMi));
}

TEST(CachingAllocator, ARestOverOneMiBBecomesAFreeBlock) {
  CachingAllocator a;
  a.allocate(125 * kMi - 512);  // leaves 1 MiB + 512
  EXPECT_EQ(a.allocated(), Bytes(125 * kMi - 512));
  a.allocate(kMi + 512);
  EXPECT_EQ(a.reserved(), Bytes(126 * kMi));
}

TEST(CachingAllocator, TakesTheSmallestBlockThatFits) {
  CachingAllocator a;
  const auto large = a.allocate(40 * kMi);
  a.allocate(512 * 1024);  // another pool: nothing between changes
  const auto small = a.allocate(20 * kMi);
  a.release(large);
  a.release(small);
  a.allocate(18 * kMi);  // out of the 20 MiB, not of the 40
  a.allocate(40 * kMi);
  EXPECT_EQ(a.reserved(), Bytes((40 + 20 + 2) * kMi));
}

TEST(CachingAllocator, FreedNeighboursMerge) {
  CachingAllocator a;
  const auto x = a.allocate(6 * kMi);
  const auto y = a.allocate(6 * kMi);
  const auto z = a.allocate(6 * kMi);
  a.release(x);
  a.release(z);
  a.release(y);  // joins both sides, and the rest of the segment
  EXPECT_EQ(a.allocated(), Bytes(0));
  a.allocate(20 * kMi);
  EXPECT_EQ(a.reserved(), Bytes(20 * kMi));
}

TEST(CachingAllocator, SegmentsDoNotMerge) {
  CachingAllocator a;
  const auto x = a.allocate(10 * kMi);
  const auto y = a.allocate(10 * kMi);
  a.release(x);
  a.release(y);
  a.allocate(20 * kMi);
  EXPECT_EQ(a.reserved(), Bytes(40 * kMi));
}

TEST(CachingAllocator, StreamsHavePoolsOfTheirOwn) {
  CachingAllocator a;
  a.release(a.allocate(10 * kMi, 0));
  a.allocate(10 * kMi, 1);
  EXPECT_EQ(a.reserved(), Bytes(20 * kMi));
}

TEST(CachingAllocator, ARetiredBlockCountsAsFreeButCannotBeReused) {
  CachingAllocator a;
  const auto x = a.allocate(10 * kMi);
  a.retire(x);
  EXPECT_EQ(a.allocated(), Bytes(0));
  const auto y = a.allocate(10 * kMi);
  EXPECT_EQ(a.reserved(), Bytes(20 * kMi));
  a.reuse(x);
  a.allocate(10 * kMi);
  EXPECT_EQ(a.reserved(), Bytes(20 * kMi));
  EXPECT_NE(x, y);
}

TEST(CachingAllocator, GivesCachedSegmentsBackBeforeItRefuses) {
  CachingAllocator a(Bytes(20 * kMi));
  a.release(a.allocate(12 * kMi));
  EXPECT_NE(a.allocate(14 * kMi), CachingAllocator::kOutOfMemory);
  EXPECT_EQ(a.reserved(), Bytes(14 * kMi));
  EXPECT_EQ(a.peak_reserved(), Bytes(14 * kMi));
}

TEST(CachingAllocator, RefusesWhatDoesNotFitByOneSegmentUnit) {
  CachingAllocator fits(Bytes(20 * kMi));
  EXPECT_NE(fits.allocate(20 * kMi), CachingAllocator::kOutOfMemory);
  CachingAllocator refuses(Bytes(20 * kMi - 1));
  EXPECT_EQ(refuses.allocate(20 * kMi), CachingAllocator::kOutOfMemory);
  EXPECT_EQ(refuses.allocated(), Bytes(0));
}

// max_split_size_mb:32. Free blocks of 32 MiB and more are "oversize".
CachingAllocator::Handle oversize_block(CachingAllocator& a, std::int64_t mib) {
  const CachingAllocator::Handle handle = a.allocate(mib * kMi);
  a.release(handle);
  return handle;
}

TEST(CachingAllocatorWithMaxSplitSize, KeepsOversizeBlocksFromSmallerRequests) {
  CachingAllocator a(CachingAllocator::kNoLimit, {.max_split_size_mb = 32});
  oversize_block(a, 32);
  a.allocate(32 * kMi - 512);  // below the limit: a segment of its own, of 32 MiB too
  EXPECT_EQ(a.reserved(), Bytes((32 + 32) * kMi));
}

TEST(CachingAllocatorWithMaxSplitSize, GivesSmallerBlocksToSmallerRequestsAndSplitsThem) {
  CachingAllocator a(CachingAllocator::kNoLimit, {.max_split_size_mb = 32});
  oversize_block(a, 30);
  a.allocate(12 * kMi);
  EXPECT_EQ(a.reserved(), Bytes(30 * kMi));
  EXPECT_EQ(a.allocated(), Bytes(12 * kMi));
}

TEST(CachingAllocatorWithMaxSplitSize, GivesOversizeBlocksWholeWhenLessThan20MiBLarger) {
  CachingAllocator a(CachingAllocator::kNoLimit, {.max_split_size_mb = 32});
  oversize_block(a, 60);
  const CachingAllocator::Handle loose = a.allocate(40 * kMi);  // 20 MiB smaller: not this one
  EXPECT_EQ(a.reserved(), Bytes((60 + 40) * kMi));
  a.allocate(40 * kMi + 512);
  EXPECT_EQ(a.reserved(), Bytes((60 + 40) * kMi));
  EXPECT_EQ(a.allocated(), Bytes((60 + 40) * kMi));
  a.release(loose);
  EXPECT_EQ(a.allocated(), Bytes(60 * kMi));
}

TEST(CachingAllocatorWithMaxSplitSize, DoesNotSplitANewOversizeSegment) {
  CachingAllocator a(CachingAllocator::kNoLimit, {.max_split_size_mb = 32});
  a.allocate(33 * kMi - 512);  // segment of 34 MiB, of which 1 MiB + 512 would be left
  EXPECT_EQ(a.allocated(), Bytes(34 * kMi));
}

// release_available_cached_blocks: one block that suffices, else from the largest down, and no
// more.
TEST(CachingAllocatorWithMaxSplitSize, GivesBackTheSmallestOversizeBlockThatSuffices) {
  CachingAllocator a(Bytes(150 * kMi), {.max_split_size_mb = 32});
  for (const std::int64_t mib : {40, 60, 50}) {
    EXPECT_NE(a.allocate(mib * kMi), CachingAllocator::kOutOfMemory);
  }
  for (CachingAllocator::Handle h = 0; h < 3; ++h) a.release(h);
  a.allocate(30 * kMi);  // takes none of them, and one of at least 32 MiB makes room
  EXPECT_EQ(a.reserved(), Bytes((60 + 50 + 30) * kMi));
}

TEST(CachingAllocatorWithMaxSplitSize, GivesBackOversizeBlocksFromTheLargestUntilTheySuffice) {
  CachingAllocator a(Bytes(150 * kMi), {.max_split_size_mb = 32});
  for (const std::int64_t mib : {40, 60, 50}) a.allocate(mib * kMi);
  for (CachingAllocator::Handle h = 0; h < 3; ++h) a.release(h);
  a.allocate(100 * kMi);  // 60 + 50 suffice
  EXPECT_EQ(a.reserved(), Bytes((40 + 100) * kMi));
}

// roundup_power2_next_division: "if we need to round-up 1200 and number of divisions is 4, ... the
// values are 1024, 1280, 1536, and 1792 ... return 1280".
TEST(CachingAllocatorWithPower2Divisions, RoundsUpToTheNextOfFourSizesBetweenPowersOfTwo) {
  CachingAllocator a(CachingAllocator::kNoLimit, {.roundup_power2_divisions = 4});
  a.allocate(1200 * 1024);
  EXPECT_EQ(a.allocated(), Bytes(1280 * 1024));
  a.allocate(2 * kMi);  // a power of two stays
  EXPECT_EQ(a.allocated(), Bytes(1280 * 1024 + 2 * kMi));
}

// round_size: only above 512 bytes times the divisions.
TEST(CachingAllocatorWithPower2Divisions, RoundsSmallRequestsToMultiplesOf512Bytes) {
  CachingAllocator a(CachingAllocator::kNoLimit, {.roundup_power2_divisions = 4});
  a.allocate(4 * 512 - 1);
  EXPECT_EQ(a.allocated(), Bytes(4 * 512));
  a.allocate(4 * 512 + 1);  // of 2048, 2560, ...
  EXPECT_EQ(a.allocated(), Bytes(4 * 512 + 5 * 512));
}

// Segments of 10, 20 and 40 MiB, of which the first two have been free for 3 and 2 requests, and
// the third is in use, when a request needs a segment of 50 MiB.
std::int64_t reserved_mib_after_collection(double threshold_mib) {
  CachingAllocator a(CachingAllocator::kNoLimit, {.garbage_collection_threshold = 0.5},
                     Bytes(static_cast<std::int64_t>(2 * threshold_mib) * kMi));
  const auto first = a.allocate(10 * kMi);
  const auto second = a.allocate(20 * kMi);
  const auto third = a.allocate(40 * kMi);
  a.release(first);
  a.release(third);
  a.allocate(12 * kMi);  // from the third
  a.release(second);
  a.allocate(22 * kMi);  // from the third
  a.allocate(50 * kMi);
  return a.reserved().value / kMi;
}

// garbage_collect_cached_blocks: "Free blocks of > avg age", again "until we reach reclaim > target
// size".
TEST(CachingAllocatorWithGarbageCollection, GivesBackWhatWaitedLongerThanTheMeanUntilBelow) {
  // They waited 2.5 requests on average: the first goes, which leaves 60 MiB.
  EXPECT_EQ(reserved_mib_after_collection(65), 20 + 40 + 50);
  // Not enough: of the second alone the mean is its own wait.
  EXPECT_EQ(reserved_mib_after_collection(55), 40 + 50);
  EXPECT_EQ(reserved_mib_after_collection(75), 10 + 20 + 40 + 50);
}

// Reserved is compared before the new segment, not with it.
TEST(CachingAllocatorWithGarbageCollection, KeepsSegmentsAtTheThreshold) {
  CachingAllocator a(CachingAllocator::kNoLimit, {.garbage_collection_threshold = 0.5},
                     Bytes(60 * kMi));
  a.release(a.allocate(30 * kMi));
  a.allocate(40 * kMi);
  EXPECT_EQ(a.reserved(), Bytes(70 * kMi));
}

// Note [Expandable Segments]: "2MiB pages for our small pool and 20MiB pages for our large pool".
TEST(CachingAllocatorWithExpandableSegments, GrowsByPages) {
  CachingAllocator a(CachingAllocator::kNoLimit, {.expandable_segments = true});
  a.allocate(512);
  EXPECT_EQ(a.reserved(), Bytes(2 * kMi));
  a.allocate(13 * kMi);
  EXPECT_EQ(a.reserved(), Bytes((2 + 20) * kMi));
  a.allocate(13 * kMi);  // 7 MiB of it from the first page
  EXPECT_EQ(a.reserved(), Bytes((2 + 40) * kMi));
}

// should_split: 512 bytes suffice in the large pool too.
TEST(CachingAllocatorWithExpandableSegments, LeavesNoTails) {
  CachingAllocator a(CachingAllocator::kNoLimit, {.expandable_segments = true});
  a.allocate(20 * kMi - 512);
  EXPECT_EQ(a.allocated(), Bytes(20 * kMi - 512));
}

// "When the N + 1 case runs, the allocations will tile nicely into the one large segment."
TEST(CachingAllocatorWithExpandableSegments, LargerRequestsGrowIntoFreedOnes) {
  CachingAllocator fixed;
  CachingAllocator grows(CachingAllocator::kNoLimit, {.expandable_segments = true});
  for (CachingAllocator* a : {&fixed, &grows}) {
    a->release(a->allocate(40 * kMi));
    a->release(a->allocate(60 * kMi));
  }
  EXPECT_EQ(fixed.reserved(), Bytes((40 + 60) * kMi));
  EXPECT_EQ(grows.reserved(), Bytes(60 * kMi));
}

// get_free_block: "we consider its size to be the size it can expand to".
TEST(CachingAllocatorWithExpandableSegments, PrefersBlocksThatCannotGrow) {
  CachingAllocator a(CachingAllocator::kNoLimit, {.expandable_segments = true});
  const auto hole = a.allocate(20 * kMi);
  a.allocate(10 * kMi);  // leaves 10 MiB at the end
  a.release(hole);
  a.allocate(8 * kMi);   // not of the 10 MiB at the end, but of the hole of 20 MiB
  a.allocate(30 * kMi);  // 10 MiB at the end and one page
  EXPECT_EQ(a.reserved(), Bytes(60 * kMi));
}

// unmap_block: only pages that are free as a whole; later requests fill the gap first.
TEST(CachingAllocatorWithExpandableSegments, UnmapsFreePagesBeforeItRefuses) {
  CachingAllocator a(Bytes(64 * kMi), {.expandable_segments = true});
  const auto x = a.allocate(30 * kMi);
  a.allocate(10 * kMi);
  a.release(x);  // its first page is free, the second is in use
  a.allocate(512);
  a.allocate(40 * kMi);  // 2 + 40 + 40 would be too much; without that page 62 are enough
  EXPECT_EQ(a.reserved(), Bytes(62 * kMi));
  EXPECT_EQ(a.allocate(11 * kMi), CachingAllocator::kOutOfMemory);
}

TEST(CachingAllocator, ListsItsSegments) {
  CachingAllocator a;
  a.allocate(512);
  const auto x = a.allocate(12 * kMi, 1);
  a.allocate(30 * kMi, 1);
  a.release(x);
  const auto y = a.allocate(5 * kMi, 1);
  const std::vector<CachingAllocator::Segment> segments = a.segments();
  ASSERT_EQ(segments.size(), 3U);
  EXPECT_TRUE(segments[0].small);
  EXPECT_EQ(segments[0].blocks.size(), 2U);
  EXPECT_EQ(segments[1].stream, 1);
  ASSERT_EQ(segments[1].blocks.size(), 2U);
  EXPECT_EQ(segments[1].blocks[0].handle, y);
  EXPECT_EQ(segments[1].blocks[1].size, 7 * kMi);
  EXPECT_TRUE(segments[1].blocks[1].free);
  EXPECT_FALSE(segments[2].blocks[0].free);
}

// --- random traces ---------------------------------------------------------------------------

struct Setting {
  AllocatorOptions options;
  Bytes limit = CachingAllocator::kNoLimit;
  Bytes capacity = Bytes(400 * kMi);

  NaiveAllocator::Options naive() const {
    NaiveAllocator::Options out;
    out.limit = limit.value;
    if (options.max_split_size_mb) out.max_split = *options.max_split_size_mb * kMi;
    if (options.garbage_collection_threshold > 0) {
      out.collect_above = static_cast<std::int64_t>(options.garbage_collection_threshold *
                                                    static_cast<double>(capacity.value));
    }
    out.divisions = options.roundup_power2_divisions;
    out.expandable = options.expandable_segments;
    return out;
  }
};

Setting random_setting(Rng& random) {
  Setting s;
  if (random.coin()) s.options.max_split_size_mb = random.pick({21, 32, 50});
  if (random.coin()) s.options.garbage_collection_threshold = random.pick({0.2, 0.5, 0.8});
  s.options.roundup_power2_divisions = random.pick({0, 1, 2, 8});
  s.options.expandable_segments = random.coin();
  if (random.coin()) s.limit = Bytes(random.between(100, 400) * kMi);
  return s;
}

TEST(CachingAllocator, AgreesWithListsOnRandomTraces) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng random(seed);
    const Setting setting = random_setting(random);
    CachingAllocator fast(setting.limit, setting.options, setting.capacity);
    NaiveAllocator naive(setting.naive());
    struct Live {
      CachingAllocator::Handle fast = -1;
      int naive = -1;
      bool retired = false;
    };
    std::vector<Live> live;
    for (int step = 0; step < 400; ++step) {
      if (live.empty() || random.below(100) < 55) {
        // Sizes of all pools: 2^9 .. 2^26 bytes with a random part.
        const std::int64_t power = std::int64_t{512} << random.below(18);
        const std::int64_t bytes = power + random.below(power);
        const int stream = random.below(4) == 0 ? 1 : 0;
        const Live made{fast.allocate(bytes, stream), naive.allocate(bytes, stream)};
        ASSERT_EQ(made.fast == CachingAllocator::kOutOfMemory, made.naive < 0) << "step " << step;
        if (made.naive >= 0) live.push_back(made);
      } else {
        Live& block = live[static_cast<std::size_t>(random.below(std::ssize(live)))];
        const bool retires = !block.retired;
        if (retires) {
          fast.retire(block.fast);
          naive.retire(block.naive);
        }
        block.retired = true;
        if (!retires || random.below(4) > 0) {
          fast.reuse(block.fast);
          naive.reuse(block.naive);
          block = live.back();
          live.pop_back();
        }
      }
      ASSERT_EQ(fast.allocated().value, naive.allocated()) << "step " << step;
      ASSERT_EQ(fast.reserved().value, naive.reserved()) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace tidemark::caching_allocator_test
