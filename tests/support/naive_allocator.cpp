#include "tests/support/naive_allocator.h"

#include <algorithm>
#include <tuple>

namespace tidemark {
namespace {

constexpr std::int64_t kMi = 1 << 20;
constexpr std::int64_t kEndless = std::int64_t{1} << 50;

std::int64_t up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

int NaiveAllocator::allocate(std::int64_t bytes, int stream) {
  const std::int64_t size = round(bytes);
  const bool small = size <= kMi;
  if (!small) {
    for (Segment& s : segments_) {
      for (Block& b : s.blocks) b.age += s.small ? 0 : 1;
    }
  }
  std::optional<Place> place = best_fit(size, stream, small);
  if (!place) {
    collect();
    place = new_segment(size, stream, small);
    if (!place && release_oversize(size, stream)) place = new_segment(size, stream, small);
    if (!place) {
      release_all();
      place = new_segment(size, stream, small);
    }
  }
  if (!place) return -1;
  Segment& segment = segments_[place->segment];
  const auto at = segment.blocks.begin() + static_cast<std::ptrdiff_t>(place->block);
  const std::int64_t rest = at->size - size;
  const bool split =
      small || options_.expandable ? rest >= 512 : rest > kMi && size < options_.max_split;
  at->state = State::kUsed;
  at->id = next_;
  if (split) {
    at->size = size;
    segment.blocks.insert(at + 1, {rest, State::kFree});
  }
  return next_++;
}

void NaiveAllocator::retire(int id) {
  for (Segment& s : segments_) {
    for (Block& b : s.blocks) {
      if (b.id == id) b.state = State::kRetired;
    }
  }
}

void NaiveAllocator::reuse(int id) {
  for (Segment& s : segments_) {
    for (Block& b : s.blocks) {
      if (b.id == id) b = {b.size, State::kFree};
    }
    merge(s);
  }
}

std::int64_t NaiveAllocator::allocated() const {
  std::int64_t sum = 0;
  for (const Segment& s : segments_) {
    for (const Block& b : s.blocks) sum += b.state == State::kUsed ? b.size : 0;
  }
  return sum;
}

std::int64_t NaiveAllocator::reserved() const {
  std::int64_t sum = 0;
  for (const Segment& s : segments_) {
    for (const Block& b : s.blocks) sum += b.state == State::kUnmapped ? 0 : b.size;
  }
  return sum;
}

// Neighbours of one state, free or unmapped, become one block; its age starts anew.
void NaiveAllocator::merge(Segment& segment) {
  std::vector<Block>& blocks = segment.blocks;
  for (std::size_t i = 0; i + 1 < blocks.size();) {
    const State state = blocks[i].state;
    const bool same = state == blocks[i + 1].state;
    if (!same || (state != State::kFree && state != State::kUnmapped)) {
      ++i;
      continue;
    }
    blocks[i] = {blocks[i].size + blocks[i + 1].size, state};
    blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  }
}

std::int64_t NaiveAllocator::round(std::int64_t bytes) const {
  if (options_.divisions < 2 || bytes <= 512 * options_.divisions) return up(bytes, 512);
  std::int64_t power = 1;
  while (power * 2 <= bytes) power *= 2;
  std::int64_t size = power;
  while (size < bytes) size += power / options_.divisions;
  return size;
}

std::optional<NaiveAllocator::Place> NaiveAllocator::best_fit(std::int64_t size, int stream,
                                                              bool small) const {
  struct Candidate {
    std::int64_t size = 0;
    Place place;
    std::int64_t can_grow_to = 0;
  };
  std::vector<Candidate> candidates;
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    const Segment& segment = segments_[s];
    if (segment.stream != stream || segment.small != small) continue;
    for (std::size_t i = 0; i < segment.blocks.size(); ++i) {
      const Block& b = segment.blocks[i];
      if (b.state != State::kFree || b.size < size) continue;
      const bool grows =
          i + 1 < segment.blocks.size() && segment.blocks[i + 1].state == State::kUnmapped;
      candidates.push_back({b.size, {s, i}, b.size + (grows ? segment.blocks[i + 1].size : 0)});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.size < b.size; });
  if (candidates.empty()) return std::nullopt;
  std::size_t at = 0;
  while (options_.expandable && at + 1 < candidates.size() &&
         candidates[at + 1].can_grow_to < candidates[at].can_grow_to) {
    ++at;
  }
  const std::int64_t found = candidates[at].size;
  if (size < options_.max_split && found >= options_.max_split) return std::nullopt;
  if (size >= options_.max_split && found >= size + 20 * kMi) return std::nullopt;
  return candidates[at].place;
}

std::optional<NaiveAllocator::Place> NaiveAllocator::new_segment(std::int64_t size, int stream,
                                                                 bool small) {
  if (options_.expandable) return new_pages(size, stream, small);
  const std::int64_t segment = small ? 2 * kMi : size < 10 * kMi ? 20 * kMi : up(size, 2 * kMi);
  if (reserved() + segment > options_.limit) return std::nullopt;
  segments_.push_back({stream, small, {{segment}}});
  return Place{segments_.size() - 1, 0};
}

std::optional<NaiveAllocator::Place> NaiveAllocator::new_pages(std::int64_t size, int stream,
                                                               bool small) {
  const std::int64_t page = small ? 2 * kMi : 20 * kMi;
  std::size_t s = 0;
  while (s < segments_.size() && (segments_[s].stream != stream || segments_[s].small != small)) {
    ++s;
  }
  if (s == segments_.size()) segments_.push_back({stream, small, {{kEndless, State::kUnmapped}}});
  Segment& segment = segments_[s];
  std::vector<Block>& blocks = segment.blocks;
  const auto usable = [&](std::size_t i) {
    return blocks[i].state == State::kFree || blocks[i].state == State::kUnmapped;
  };
  for (std::size_t u = 0; u < blocks.size(); ++u) {
    if (blocks[u].state != State::kUnmapped) continue;
    const std::size_t first = u > 0 && blocks[u - 1].state == State::kFree ? u - 1 : u;
    std::int64_t space = 0;
    for (std::size_t i = first; i < blocks.size() && usable(i); ++i) space += blocks[i].size;
    if (space < size) continue;
    std::int64_t have = 0;  // free bytes from `first`
    while (have < size) {
      std::size_t i = first;
      have = 0;
      while (blocks[i].state == State::kFree) have += blocks[i++].size;
      if (have >= size) break;
      const std::int64_t bytes = up(std::min(size - have, blocks[i].size), page);
      if (reserved() + bytes > options_.limit) {
        merge(segment);
        return std::nullopt;
      }
      blocks[i].size -= bytes;
      blocks.insert(blocks.begin() + static_cast<std::ptrdiff_t>(i), {bytes});
      std::erase_if(blocks, [](const Block& b) { return b.size == 0; });
    }
    merge(segment);
    return Place{s, first};
  }
  return std::nullopt;  // not reached: the last block is endless
}

void NaiveAllocator::collect() {
  const auto whole = [&](const Segment& s) {
    return !s.small && s.blocks.size() == 1 && s.blocks[0].state == State::kFree;
  };
  while (reserved() > options_.collect_above) {
    double sum = 0;
    double count = 0;
    for (const Segment& s : segments_) {
      if (!whole(s)) continue;
      sum += static_cast<double>(s.blocks[0].age);
      ++count;
    }
    if (count == 0) return;
    std::erase_if(segments_, [&](const Segment& s) {
      return whole(s) && static_cast<double>(s.blocks[0].age) >= sum / count;
    });
  }
}

bool NaiveAllocator::release_oversize(std::int64_t size, int stream) {
  if (options_.max_split == Options{}.max_split || options_.expandable) return false;
  const bool small = size <= kMi;
  const std::int64_t wanted = std::max(size, options_.max_split);
  // The smallest that suffices alone; else from the largest down.
  const auto find = [&](bool suffices) {
    std::optional<std::size_t> best;
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      const Segment& segment = segments_[s];
      if (segment.stream != stream || segment.small != small || segment.blocks.size() > 1 ||
          segment.blocks[0].state != State::kFree) {
        continue;
      }
      const std::int64_t bytes = segment.blocks[0].size;
      if (bytes < (suffices ? wanted : options_.max_split)) continue;
      const std::int64_t chosen = best ? segments_[*best].blocks[0].size : 0;
      if (!best || (suffices ? bytes < chosen : bytes >= chosen)) best = s;
    }
    return best;
  };
  if (const auto alone = find(true)) {
    segments_.erase(segments_.begin() + static_cast<std::ptrdiff_t>(*alone));
    return true;
  }
  std::int64_t released = 0;
  while (released < wanted) {
    const auto largest = find(false);
    if (!largest) return false;
    released += segments_[*largest].blocks[0].size;
    segments_.erase(segments_.begin() + static_cast<std::ptrdiff_t>(*largest));
  }
  return true;
}

void NaiveAllocator::release_all() {
  if (!options_.expandable) {
    std::erase_if(segments_, [](const Segment& s) {
      return s.blocks.size() == 1 && s.blocks[0].state == State::kFree;
    });
    return;
  }
  for (Segment& s : segments_) {
    const std::int64_t page = s.small ? 2 * kMi : 20 * kMi;
    std::vector<Block> out;
    std::int64_t begin = 0;
    for (const Block& b : s.blocks) {
      const std::int64_t end = begin + b.size;
      const std::int64_t first = up(begin, page);
      const std::int64_t last = end / page * page;
      if (b.state != State::kFree || first >= last) {
        out.push_back(b);
      } else {
        if (first > begin) out.push_back({first - begin});
        out.push_back({last - first, State::kUnmapped});
        if (end > last) out.push_back({end - last});
      }
      begin = end;
    }
    s.blocks = out;
    merge(s);
  }
}

}  // namespace tidemark
