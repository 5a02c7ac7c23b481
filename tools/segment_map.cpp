#include "tools/segment_map.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <sstream>
#include <vector>

#include "models/units.h"

namespace tidemark {
namespace {

enum Kind { kResident, kInFlight, kRunning, kAwaiting, kFree, kNumKinds };
struct Look {
  const char* title;
  const char* color;
};
constexpr std::array<Look, kNumKinds> kLooks = {{{"resident", "#8c8c8c"},
                                                 {"other microbatches", "#4e79a7"},
                                                 {"the running microbatch", "#f28e2c"},
                                                 {"freed, awaited by another stream", "#e15759"},
                                                 {"free", "#ffffff"}}};

Kind kind_of(const AllocatorSnapshot& snapshot, const SnapshotBlock& block, std::int32_t running) {
  if (block.state == BlockState::kFree) return kFree;
  if (block.state == BlockState::kAwaitingFree) return kAwaiting;
  const BlockOwner& owner = snapshot.owners[static_cast<std::size_t>(block.owner)];
  if (owner.resident) return kResident;
  return owner.microbatch == running ? kRunning : kInFlight;
}

// A power of two of at least 64 MiB, so that there are at most 64 rows.
std::int64_t row_length(std::int64_t reserved) {
  std::int64_t length = 64 * kMiB.value;
  while (length * 64 < reserved) length *= 2;
  return length;
}

}  // namespace

std::string segment_map(const AllocatorSnapshot& snapshot, std::int32_t running,
                        const std::string& title) {
  const std::int64_t reserved = snapshot.reserved();
  const std::int64_t row = row_length(reserved);
  const auto mib = [](std::int64_t bytes) { return to_mib(Bytes(bytes)); };
  std::array<std::ostringstream, kNumKinds> blocks;
  std::ostringstream borders;
  std::int64_t at = 0;
  for (const SnapshotSegment& segment : snapshot.segments) {
    borders << mib(at % row) << ' ' << at / row << " 0 0.9\n";
    for (const SnapshotBlock& block : segment.blocks) {
      std::ostringstream& out = blocks[kind_of(snapshot, block, running)];
      for (const std::int64_t end = at + block.size; at < end;) {
        const std::int64_t piece = std::min(end - at, row - at % row);
        const std::int64_t y = at / row;
        out << mib(at % row) << ' ' << y << ' ' << mib(at % row) << ' ' << mib(at % row + piece)
            << ' ' << y << ' ' << y << ".9\n";
        at += piece;
      }
    }
  }
  std::ostringstream script;
  script << "set title \"" << title << "\" noenhanced\n"
         << "set xlabel 'MiB of a row; lines: where segments begin'\n"
         << "set ylabel 'rows of " << mib(row) << " MiB'\n"
         << "set xrange [0:" << mib(row) << "]\nset yrange [" << at / row + 1 << ":0]\n"
         << "set key outside bottom center horizontal\nset tics out nomirror\n";
  for (int kind = 0; kind < kNumKinds; ++kind) {
    script << "$kind" << kind << " << end_of_data\n"
           << blocks[static_cast<std::size_t>(kind)].str() << "-1 -1 -1 -1 -1 -1\nend_of_data\n";
  }
  script << "$borders << end_of_data\n" << borders.str() << "end_of_data\nplot ";
  for (int kind = 0; kind < kNumKinds; ++kind) {
    const Look& look = kLooks[static_cast<std::size_t>(kind)];
    script << "$kind" << kind << " using 1:2:3:4:5:6 with boxxyerror fillstyle solid "
           << (kind == kFree ? "border lc rgb '#c0c0c0'" : "noborder") << " fillcolor rgb '"
           << look.color << "' title '" << look.title << "', ";
  }
  script << "$borders using 1:2:3:4 with vectors nohead lc rgb 'black' lw 0.5 notitle\n";
  return script.str();
}

}  // namespace tidemark
