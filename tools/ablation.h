// What each part of the planner gains: one job and one routing under full recompute, then with
// fine-grained actions decided once, decided while the job runs, and with slots interleaved.
#pragma once

#include "tools/command.h"

namespace tidemark {

// `--ablation` of `tidemark compare`. A job whose slots are combined begins without that. Streams
// are those of one card (mean over the stages) in the run's first iteration.
Report ablate(const Arguments& arguments);

}  // namespace tidemark
