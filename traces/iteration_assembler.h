// Puts iterations together from records in any order, and hands them on complete and in order.
//
// A record is what one member (a rank) says of a unit, microbatch and layer. Ranks of a log run
// apart by an iteration or two, and repeat records when they recompute: an iteration is closed when
// `kOpen` later ones have begun.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "traces/trace_file.h"

namespace tidemark {

class IterationAssembler {
 public:
  // Puts right a row that `missing` members say nothing of. Returns: whether it could.
  using Mend =
      std::function<bool(std::span<std::int64_t> row, const std::vector<std::int64_t>& missing)>;

  // `first`: the number of the first iteration in the log.
  IterationAssembler(TraceWriter& writer, const RoutingShape& shape, std::int64_t members,
                     std::int64_t first, std::string file, Mend mend);

  struct Record {
    std::span<std::int64_t> row;  // [expert], zero at first
    bool again = false;           // the member has spoken of it before
  };
  // Throws: InputError when the iteration has been closed.
  Record record(std::int64_t iteration, std::int64_t unit, std::int64_t microbatch,
                std::int64_t layer, std::int64_t member, std::int64_t line);

  // Closes all that are complete or can be mended. The last iteration may be incomplete: it is left
  // out. Returns: whether it was. Throws: InputError for any other that lacks records.
  bool finish();

 private:
  struct Open {
    std::vector<RoutingCounts> units;
    std::vector<bool> seen;  // [unit][microbatch][layer][member]
    std::int64_t missing = 0;
  };
  static constexpr std::size_t kOpen = 8;

  bool close_first(bool may_be_incomplete);

  TraceWriter& writer_;
  RoutingShape shape_;
  std::int64_t members_;
  std::int64_t next_;  // to be closed
  std::string file_;
  Mend mend_;
  std::map<std::int64_t, Open> open_;
};

}  // namespace tidemark
