// A drawing of what the caching allocator holds: its segments by address, one after the other, in
// rows of equal length; in them blocks by what they hold, and free blocks left white.
#pragma once

#include <string>

#include "sim/allocator_snapshot.h"

namespace tidemark {

// A gnuplot script. `running`: the microbatch that runs at that moment.
std::string segment_map(const AllocatorSnapshot& snapshot, std::int32_t running,
                        const std::string& title);

}  // namespace tidemark
