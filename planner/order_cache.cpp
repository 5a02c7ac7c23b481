#include "planner/order_cache.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace tidemark {
namespace {

std::int64_t leading_bits(std::int64_t value, std::int32_t bits) {
  const auto width = static_cast<std::int32_t>(std::bit_width(static_cast<std::uint64_t>(value)));
  if (width <= bits) return value;
  return value >> (width - bits) << (width - bits);
}

// Rounds durations, and memory along one chain.
class Rounding {
 public:
  Rounding(Bucketing bucketing, bool memory) : bucketing_(bucketing), memory_(memory) {}

  void restart() { exact_ = rounded_ = 0; }

  SlotOperator operator()(const SlotOperator& o) {
    SlotOperator r{o.stream, leading_bits(o.duration_ns, bucketing_.duration_bits), 0, 0};
    if (memory_) {
      r.before_bytes = advance(o.before_bytes);
      r.after_bytes = advance(o.after_bytes);
    }
    return r;
  }

  MemoryLimit operator()(const MemoryLimit& memory) const {
    if (!memory.is_set()) return {};
    const std::int64_t left = memory.limit_bytes - memory.held_bytes;
    return {0, left >> bucketing_.byte_shift << bucketing_.byte_shift};
  }

 private:
  std::int64_t advance(std::int64_t bytes) {
    exact_ += bytes;
    const std::int64_t unit = std::int64_t{1} << bucketing_.byte_shift;
    const std::int64_t up = (exact_ + unit - 1) >> bucketing_.byte_shift << bucketing_.byte_shift;
    return up - std::exchange(rounded_, up);
  }

  Bucketing bucketing_;
  bool memory_;
  std::int64_t exact_ = 0;  // sums of the chain
  std::int64_t rounded_ = 0;
};

std::int64_t word(ChainPoint p) {
  return static_cast<std::int64_t>(p.chain) << 32 | static_cast<std::uint32_t>(p.position);
}

// Everything but the names, as rounded.
void write_key(const SlotProblem& problem, Bucketing bucketing, std::vector<std::int64_t>& key) {
  Rounding rounding(bucketing, problem.memory.is_set());
  const auto add = [&](const SlotOperator& o) {
    const SlotOperator r = rounding(o);
    key.push_back(r.duration_ns << 6 | r.stream);  // validated: fewer than 2^6 streams
    if (problem.memory.is_set()) key.insert(key.end(), {r.before_bytes, r.after_bytes});
  };
  key.clear();
  key.push_back(std::ssize(problem.chains));
  for (const Chain& chain : problem.chains) {
    key.push_back(std::ssize(chain.operators));
    rounding.restart();
    for (const SlotOperator& o : chain.operators) add(o);
  }
  key.push_back(std::ssize(problem.precedences));
  for (const Precedence& p : problem.precedences) {
    key.insert(key.end(), {word(p.first), word(p.then)});
  }
  for (const FloatingOperator& f : problem.floating) {
    key.insert(key.end(), {word(f.after), word(f.before)});
    rounding.restart();
    add(f.work);
  }
  key.push_back(rounding(problem.memory).limit_bytes);
}

}  // namespace

SlotProblem bucket_of(const SlotProblem& problem, Bucketing bucketing) {
  SlotProblem out = problem;
  Rounding rounding(bucketing, problem.memory.is_set());
  for (Chain& chain : out.chains) {
    rounding.restart();
    for (SlotOperator& o : chain.operators) o = rounding(o);
  }
  for (FloatingOperator& f : out.floating) {
    rounding.restart();
    f.work = rounding(f.work);
  }
  out.memory = rounding(problem.memory);
  return out;
}

std::size_t OrderCache::Hash::operator()(std::span<const std::int64_t> words) const {
  std::uint64_t hash = words.size();
  for (std::int64_t w : words) {
    hash = (hash ^ static_cast<std::uint64_t>(w)) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 32;
  }
  return static_cast<std::size_t>(hash);
}

bool OrderCache::Equal::operator()(std::span<const std::int64_t> a,
                                   std::span<const std::int64_t> b) const {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

const StreamOrder& OrderCache::order(const SlotProblem& problem) {
  write_key(problem, bucketing_, key_);
  auto found = orders_.find(std::span<const std::int64_t>(key_));
  if (found != orders_.end()) {
    ++hits_;
  } else {
    ++misses_;
    if (orders_.size() >= capacity_) orders_.clear();
    const SlotProblem bucket = bucket_of(problem, bucketing_);
    found = orders_.emplace(key_, interleaver_.solve(bucket, limit_)).first;
  }
  const StreamOrder& shared = found->second;
  graph_.assign(problem);
  if (shared.order.size() < graph_.operators.size()) {
    return interleaver_.solve(problem, limit_);
  }
  result_ = shared;
  result_.makespan_ns = order_makespan(graph_, result_.order, ends_);
  result_.status =
      result_.makespan_ns == result_.bound_ns ? SolveStatus::kOptimal : SolveStatus::kFeasible;
  return result_;
}

}  // namespace tidemark
