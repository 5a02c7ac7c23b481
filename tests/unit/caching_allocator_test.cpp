#include "sim/caching_allocator.h"

#include <map>
#include <random>

#include <gtest/gtest.h>

namespace tidemark {
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

// The same rules over plain lists, searched from end to end.
class NaiveAllocator {
 public:
  int allocate(std::int64_t bytes) {
    const std::int64_t size = (bytes + 511) / 512 * 512;
    const bool small = size <= kMi;
    Block* best = nullptr;
    Segment* home = nullptr;
    for (Segment& s : segments_) {
      if (s.small != small) continue;
      for (Block& b : s.blocks) {
        if (b.id >= 0 || b.size < size || (best != nullptr && b.size >= best->size)) continue;
        best = &b;
        home = &s;
      }
    }
    if (best == nullptr) {
      std::int64_t segment = 2 * kMi;
      if (!small) segment = size < 10 * kMi ? 20 * kMi : (size + 2 * kMi - 1) / (2 * kMi) * 2 * kMi;
      segments_.push_back({small, {{-1, segment}}});
      reserved += segment;
      home = &segments_.back();
      best = &home->blocks.front();
    }
    const std::int64_t rest = best->size - size;
    const int id = next_++;
    if (small ? rest >= 512 : rest > kMi) {
      const auto at = best - home->blocks.data();
      best->size = size;
      best->id = id;
      home->blocks.insert(home->blocks.begin() + at + 1, {-1, rest});
      allocated += size;
    } else {
      best->id = id;
      allocated += best->size;
    }
    return id;
  }

  void release(int id) {
    for (Segment& s : segments_) {
      for (std::size_t i = 0; i < s.blocks.size(); ++i) {
        if (s.blocks[i].id != id) continue;
        allocated -= s.blocks[i].size;
        s.blocks[i].id = -1;
      }
      for (std::size_t i = 0; i + 1 < s.blocks.size();) {
        if (s.blocks[i].id >= 0 || s.blocks[i + 1].id >= 0) {
          ++i;
          continue;
        }
        s.blocks[i].size += s.blocks[i + 1].size;
        s.blocks.erase(s.blocks.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
  }

  std::int64_t allocated = 0;
  std::int64_t reserved = 0;

 private:
  struct Block {
    int id = -1;  // -1: free
    std::int64_t size = 0;
  };
  struct Segment {
    bool small = false;
    std::vector<Block> blocks;
  };
  std::vector<Segment> segments_;
  int next_ = 0;
};

// max_split_size_mb:32. Free blocks of 32 MiB and more are "oversize".
CachingAllocator::Handle oversize_block(CachingAllocator& a, std::int64_t mib) {
  const CachingAllocator::Handle handle = a.allocate(mib * kMi);
  a.release(handle);
  return handle;
}

TEST(CachingAllocatorWithMaxSplitSize, KeepsOversizeBlocksFromSmallerRequests) {
  CachingAllocator a(CachingAllocator::kNoLimit, Bytes(32 * kMi));
  oversize_block(a, 32);
  a.allocate(32 * kMi - 512);  // below the limit: a segment of its own, of 32 MiB too
  EXPECT_EQ(a.reserved(), Bytes((32 + 32) * kMi));
}

TEST(CachingAllocatorWithMaxSplitSize, GivesSmallerBlocksToSmallerRequestsAndSplitsThem) {
  CachingAllocator a(CachingAllocator::kNoLimit, Bytes(32 * kMi));
  oversize_block(a, 30);
  a.allocate(12 * kMi);
  EXPECT_EQ(a.reserved(), Bytes(30 * kMi));
  EXPECT_EQ(a.allocated(), Bytes(12 * kMi));
}

TEST(CachingAllocatorWithMaxSplitSize, GivesOversizeBlocksWholeWhenLessThan20MiBLarger) {
  CachingAllocator a(CachingAllocator::kNoLimit, Bytes(32 * kMi));
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
  CachingAllocator a(CachingAllocator::kNoLimit, Bytes(32 * kMi));
  a.allocate(33 * kMi - 512);  // segment of 34 MiB, of which 1 MiB + 512 would be left
  EXPECT_EQ(a.allocated(), Bytes(34 * kMi));
}

TEST(CachingAllocator, AgreesWithListsOnRandomTraces) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    CachingAllocator fast;
    NaiveAllocator naive;
    std::vector<std::pair<CachingAllocator::Handle, int>> live;
    for (int step = 0; step < 400; ++step) {
      if (live.empty() || random() % 100 < 55) {
        // Sizes of all pools: 2^9 .. 2^26 bytes with a random part.
        const std::int64_t bits = static_cast<std::int64_t>(random() % 18);
        const std::int64_t size =
            (std::int64_t{512} << bits) + static_cast<std::int64_t>(random() % (512ULL << bits));
        live.emplace_back(fast.allocate(size), naive.allocate(size));
      } else {
        const std::size_t at = random() % live.size();
        fast.release(live[at].first);
        naive.release(live[at].second);
        live[at] = live.back();
        live.pop_back();
      }
      ASSERT_EQ(fast.allocated().value, naive.allocated) << "step " << step;
      ASSERT_EQ(fast.reserved().value, naive.reserved) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace tidemark
