// The inner loops of the lane engine: one pass over the lanes of a stage each, compiled for wider
// vector units beside baseline x86-64 and picked when the program starts. All is integer
// arithmetic, so every variant gives the same bytes. Arrays are [lane]; times and costs in ns.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tidemark::lane_loops {

// start = max(free, host + ahead)
void earliest_start(std::size_t lanes, const std::int64_t* free, const std::int64_t* host,
                    std::int64_t ahead, std::int64_t* start);
// time = max(time, other)
void wait_for(std::size_t lanes, const std::int64_t* other, std::int64_t* time);
// time += ahead
void move_on(std::size_t lanes, std::int64_t ahead, std::int64_t* time);
// end = start + duration
void finish(std::size_t lanes, const std::int64_t* start, std::int64_t duration, std::int64_t* end);
void finish_each(std::size_t lanes, const std::int64_t* start, const std::int64_t* duration,
                 std::int64_t* end);
// end = max(ready + duration, host + from_host)
void finish_run(std::size_t lanes, const std::int64_t* ready, std::int64_t duration,
                const std::int64_t* host, std::int64_t from_host, std::int64_t* end);
// duration = max(floor, fixed + ceil(per_row_q20 * rows / 2^20))
void linear_cost(std::size_t lanes, const std::int64_t* rows, std::int64_t fixed,
                 std::int64_t per_row_q20, std::int64_t floor, std::int64_t* duration);

// Returns: the most tokens of a lane.
std::int32_t most(std::size_t lanes, const std::int32_t* tokens);

// Of a table with a line each 64 tokens: step s ends at 64 s tokens.
//   duration += end[s] - ((64 s - tokens) * slope_q20[s]) >> 20,  s = ceil(tokens / 64)
void add_stepped_cost(std::size_t lanes, const std::int32_t* tokens, const std::int64_t* end,
                      const std::int64_t* slope_q20, std::int64_t* duration);

// Groups of lanes {first, first + stride, ..}, `size` of them: all take their latest time; what
// each is ahead of it is added to `waited`, which may be null.
void join(std::size_t lanes, std::size_t size, std::size_t stride, std::int64_t* time,
          std::int64_t* waited);

// What moves a lane's memory between two routed allocations or frees: its own bytes on top of the
// most that all lanes hold alike meanwhile.
//   peak = max(peak, own + common);  own += sign * ceil512(fixed + per_row * rows)
void hold_and_change(std::size_t lanes, std::int64_t common, const std::int64_t* rows,
                     std::int64_t fixed, std::int64_t per_row, std::int64_t sign, std::int64_t* own,
                     std::int64_t* peak);

// The same for a change that is alike on all lanes; 0: none.
void hold_and_shift(std::size_t lanes, std::int64_t common, std::int64_t change, std::int64_t* own,
                    std::int64_t* peak);

}  // namespace tidemark::lane_loops
