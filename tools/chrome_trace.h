// An iteration as a trace for chrome://tracing and ui.perfetto.dev (Trace Event Format, JSON).
//
// A process a stage, a thread a stream, one card (the stage's fullest lane): operators and slots as
// complete events ("X"), allocated bytes as a counter ("C"), transfers between stages as flow
// arrows
// ("s" to "f"). Times are in microseconds with ns as decimals.
//
// PyTorch counts memory on the CPU, ahead of the device: the counter shows each operator's highest
// bytes where the operator starts, so its maximum is the peak (without allocator tails), its times
// are approximate.
//
// Size: about 100 bytes an operator that takes time and as much an operator that moves memory; 82
// MB for 8 stages, 64 microbatches and 61 MoE layers, 333 MB for 512 microbatches and 80 dense
// layers. Events are written as they are simulated; none is kept.
#pragma once

#include <ostream>

#include "models/job.h"
#include "sim/simulation.h"

namespace tidemark {

void write_chrome_trace(std::ostream& out, const Job& job, const Simulation& simulation);

}  // namespace tidemark
