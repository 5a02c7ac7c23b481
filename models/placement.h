// Where the parts of a model lie on the stages of a pipeline. Cut into virtual stages, a model
// flows forward from the first to the last; a stage holds one or several of them as its chunks.
//
//   ring           chunk c of stage r is virtual stage c P + r: stages in turn, again and again
//   V              chunk 0 of stage r is virtual stage r, chunk 1 is 2 P - 1 - r: down and up again
//   bidirectional  two copies of the model: chunk 0 of stage r is virtual stage r of one copy,
//                  chunk 1 is virtual stage P - 1 - r of the other (DualPipe)
#pragma once

#include <cstdint>

namespace tidemark {

enum class Placement : std::uint8_t { kRing, kV, kBidirectional };

struct ChunkPlace {
  std::int64_t stage = 0;
  std::int64_t chunk = 0;
};

constexpr std::int64_t virtual_stages(Placement placement, std::int64_t stages,
                                      std::int64_t chunks) {
  return placement == Placement::kBidirectional ? stages : stages * chunks;
}

constexpr std::int64_t virtual_stage(Placement placement, std::int64_t stages, ChunkPlace at) {
  if (placement == Placement::kRing || at.chunk == 0) return at.chunk * stages + at.stage;
  return virtual_stages(placement, stages, 2) - 1 - at.stage;
}

// The virtual stage `distance` after that of `at`, in the same copy of the model. Requires: there
// is one.
constexpr ChunkPlace place_after(Placement placement, std::int64_t stages, ChunkPlace at,
                                 std::int64_t distance) {
  const std::int64_t there = virtual_stage(placement, stages, at) + distance;
  switch (placement) {
    case Placement::kV:
      return there < stages ? ChunkPlace{there, 0} : ChunkPlace{2 * stages - 1 - there, 1};
    case Placement::kBidirectional:
      return {at.chunk == 0 ? there : stages - 1 - there, at.chunk};
    default:
      return {there % stages, there / stages};
  }
}

}  // namespace tidemark
