#include "tools/memory_snapshot.h"

#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "tools/pickle.h"

namespace tidemark {
namespace {

using Json = nlohmann::ordered_json;

const char* name_of(BlockState state) {
  switch (state) {
    case BlockState::kAllocated:
      return "active_allocated";
    case BlockState::kAwaitingFree:
      return "active_pending_free";
    default:
      return "inactive";
  }
}

const char* name_of(AllocatorAction action) {
  switch (action) {
    case AllocatorAction::kAlloc:
      return "alloc";
    case AllocatorAction::kFreeRequested:
      return "free_requested";
    case AllocatorAction::kFreeCompleted:
      return "free_completed";
    case AllocatorAction::kSegmentAlloc:
      return "segment_alloc";
    case AllocatorAction::kSegmentFree:
      return "segment_free";
    case AllocatorAction::kSegmentMap:
      return "segment_map";
    default:
      return "segment_unmap";
  }
}

Json frames(const AllocatorSnapshot& snapshot, std::int32_t index) {
  if (index < 0) return Json::array();
  const BlockOwner& owner = snapshot.owners[static_cast<std::size_t>(index)];
  std::string place =
      owner.resident ? "resident" : "microbatch " + std::to_string(owner.microbatch);
  if (owner.layer >= 0) place += ", layer " + std::to_string(owner.layer);
  return Json::array({{{"filename", place}, {"line", 0}, {"name", owner.name}}});
}

Json segment_json(const AllocatorSnapshot& snapshot, const SnapshotSegment& segment) {
  Json blocks = Json::array();
  std::int64_t allocated = 0;
  std::int64_t active = 0;
  std::int64_t requested = 0;
  for (const SnapshotBlock& b : segment.blocks) {
    blocks.push_back({{"address", b.address},
                      {"size", b.size},
                      {"requested_size", b.requested},
                      {"state", name_of(b.state)},
                      {"frames", frames(snapshot, b.owner)}});
    if (b.state == BlockState::kAllocated) allocated += b.size;
    if (b.state != BlockState::kFree) active += b.size;
    requested += b.requested;
  }
  return {{"device", 0},
          {"address", segment.address()},
          {"total_size", segment.size()},
          {"allocated_size", allocated},
          {"active_size", active},
          {"requested_size", requested},
          {"stream", segment.stream},
          {"segment_type", segment.small ? "small" : "large"},
          {"segment_pool_id", {0, 0}},
          {"is_expandable", snapshot.expandable},
          {"frames", Json::array()},
          {"blocks", std::move(blocks)}};
}

}  // namespace

Json memory_snapshot_json(const AllocatorSnapshot& snapshot) {
  Json segments = Json::array();
  for (const SnapshotSegment& s : snapshot.segments) segments.push_back(segment_json(snapshot, s));
  Json trace = Json::array();
  for (const AllocatorEvent& e : snapshot.trace) {
    trace.push_back({{"action", name_of(e.action)},
                     {"addr", e.address},
                     {"size", e.size},
                     {"stream", e.stream},
                     {"frames", frames(snapshot, e.owner)}});
  }
  Json out;
  out["segments"] = std::move(segments);
  out["device_traces"] = Json::array({std::move(trace)});
  return out;
}

void write_memory_snapshot(std::ostream& out, const AllocatorSnapshot& snapshot) {
  write_pickle(out, memory_snapshot_json(snapshot));
}

}  // namespace tidemark
