#include "sim/lane_loops.h"

#include <algorithm>

// Indirect functions are resolved before the sanitizers' runtime is there.
#if defined(__GNUC__) && defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define TIDEMARK_VECTOR __attribute__((target_clones("default", "avx2", "arch=x86-64-v4")))
#else
#define TIDEMARK_VECTOR
#endif

namespace tidemark::lane_loops {

TIDEMARK_VECTOR
void earliest_start(std::size_t lanes, const std::int64_t* __restrict free,
                    const std::int64_t* __restrict host, std::int64_t ahead,
                    std::int64_t* __restrict start) {
  for (std::size_t l = 0; l < lanes; ++l) start[l] = std::max(free[l], host[l] + ahead);
}

TIDEMARK_VECTOR
void wait_for(std::size_t lanes, const std::int64_t* __restrict other,
              std::int64_t* __restrict time) {
  for (std::size_t l = 0; l < lanes; ++l) time[l] = std::max(time[l], other[l]);
}

TIDEMARK_VECTOR
void move_on(std::size_t lanes, std::int64_t ahead, std::int64_t* __restrict time) {
  for (std::size_t l = 0; l < lanes; ++l) time[l] += ahead;
}

TIDEMARK_VECTOR
void finish(std::size_t lanes, const std::int64_t* __restrict start, std::int64_t duration,
            std::int64_t* __restrict end) {
  for (std::size_t l = 0; l < lanes; ++l) end[l] = start[l] + duration;
}

TIDEMARK_VECTOR
void finish_each(std::size_t lanes, const std::int64_t* __restrict start,
                 const std::int64_t* __restrict duration, std::int64_t* __restrict end) {
  for (std::size_t l = 0; l < lanes; ++l) end[l] = start[l] + duration[l];
}

// `end` may be `ready`.
TIDEMARK_VECTOR
void finish_run(std::size_t lanes, const std::int64_t* ready, std::int64_t duration,
                const std::int64_t* __restrict host, std::int64_t from_host, std::int64_t* end) {
#pragma GCC ivdep
  for (std::size_t l = 0; l < lanes; ++l) {
    end[l] = std::max(ready[l] + duration, host[l] + from_host);
  }
}

TIDEMARK_VECTOR
void linear_cost(std::size_t lanes, const std::int64_t* __restrict rows, std::int64_t fixed,
                 std::int64_t per_row_q20, std::int64_t floor, std::int64_t* __restrict duration) {
  for (std::size_t l = 0; l < lanes; ++l) {
    const std::int64_t ns = fixed + ((per_row_q20 * rows[l] + (1 << 20) - 1) >> 20);
    duration[l] = std::max(floor, ns);
  }
}

TIDEMARK_VECTOR
std::int32_t most(std::size_t lanes, const std::int32_t* __restrict tokens) {
  std::int32_t highest = 0;
  for (std::size_t l = 0; l < lanes; ++l) highest = std::max(highest, tokens[l]);
  return highest;
}

TIDEMARK_VECTOR
void add_stepped_cost(std::size_t lanes, const std::int32_t* __restrict tokens,
                      const std::int64_t* __restrict end, const std::int64_t* __restrict slope_q20,
                      std::int64_t* __restrict duration) {
  for (std::size_t l = 0; l < lanes; ++l) {
    const std::int64_t step = (tokens[l] + 63) >> 6;
    const std::int64_t before = (step << 6) - tokens[l];
    duration[l] += end[step] - ((before * slope_q20[step]) >> 20);
  }
}

namespace {

// Neighbours, as tensor-parallel groups are.
template <std::size_t kSize>
[[gnu::always_inline]] inline void join_neighbours(std::size_t lanes, std::int64_t* time,
                                                   std::int64_t* waited) {
  for (std::size_t first = 0; first < lanes; first += kSize) {
    std::int64_t latest = time[first];
    for (std::size_t m = 1; m < kSize; ++m) latest = std::max(latest, time[first + m]);
    if (waited != nullptr) {
      for (std::size_t m = 0; m < kSize; ++m) waited[first + m] += latest - time[first + m];
    }
    for (std::size_t m = 0; m < kSize; ++m) time[first + m] = latest;
  }
}

[[gnu::always_inline]] inline void join_any(std::size_t lanes, std::size_t size, std::size_t stride,
                                            std::int64_t* time, std::int64_t* waited) {
  for (std::size_t block = 0; block < lanes; block += size * stride) {
    for (std::size_t first = block; first < block + stride; ++first) {
      std::int64_t latest = 0;
      for (std::size_t m = 0; m < size; ++m) latest = std::max(latest, time[first + m * stride]);
      if (waited != nullptr) {
        for (std::size_t m = 0; m < size; ++m) {
          waited[first + m * stride] += latest - time[first + m * stride];
        }
      }
      for (std::size_t m = 0; m < size; ++m) time[first + m * stride] = latest;
    }
  }
}

}  // namespace

TIDEMARK_VECTOR
void join(std::size_t lanes, std::size_t size, std::size_t stride, std::int64_t* __restrict time,
          std::int64_t* __restrict waited) {
  if (stride != 1) return join_any(lanes, size, stride, time, waited);
  switch (size) {
    case 2:
      return join_neighbours<2>(lanes, time, waited);
    case 4:
      return join_neighbours<4>(lanes, time, waited);
    case 8:
      return join_neighbours<8>(lanes, time, waited);
    default:
      return join_any(lanes, size, 1, time, waited);
  }
}

TIDEMARK_VECTOR
void hold_and_change(std::size_t lanes, std::int64_t common, const std::int64_t* __restrict rows,
                     std::int64_t fixed, std::int64_t per_row, std::int64_t sign,
                     std::int64_t* __restrict own, std::int64_t* __restrict peak) {
  for (std::size_t l = 0; l < lanes; ++l) {
    peak[l] = std::max(peak[l], own[l] + common);
    own[l] += sign * ((fixed + per_row * rows[l] + 511) & ~std::int64_t{511});
  }
}

TIDEMARK_VECTOR
void hold_and_shift(std::size_t lanes, std::int64_t common, std::int64_t change,
                    std::int64_t* __restrict own, std::int64_t* __restrict peak) {
  for (std::size_t l = 0; l < lanes; ++l) {
    peak[l] = std::max(peak[l], own[l] + common);
    own[l] += change;
  }
}

}  // namespace tidemark::lane_loops
