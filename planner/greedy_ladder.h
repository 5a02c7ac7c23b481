// A ladder of plans without a search: what a heuristic planner does in place of
// planner/provision.h.
//
// From keeping everything on, one storage more is given up at a time, by the action that exposes
// least time for each byte it frees, given what has been taken already; the larger first where that
// is equal. Rungs are the plans on the way that hold no more than each share of what a microbatch
// keeps, as in build_ladder.
#pragma once

#include <vector>

#include "planner/action_catalogue.h"
#include "planner/action_ladder.h"

namespace tidemark {

std::vector<LadderRung> build_greedy_ladder(const ActionCatalogue& catalogue,
                                            const LadderOptions& options);

}  // namespace tidemark
