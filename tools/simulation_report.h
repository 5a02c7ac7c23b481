// A simulated iteration as text and as JSON: the verdict, what each stage holds and when it peaks,
// how long the iteration takes and where that time goes.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "sim/simulation.h"
#include "tools/exit_code.h"
#include "tools/job_input.h"

namespace tidemark {

struct Verdict {
  bool fits = false;
  std::int64_t stage = 0;  // with the highest peak
  Bytes headroom;          // negative when it does not fit
  std::string text;        // a paragraph
  ExitCode exit() const { return fits ? ExitCode::kOk : ExitCode::kDoesNotFit; }
};

// Cost: when the job does not fit, a simulation for each change that might help.
Verdict judge(const JobInput& input, const Simulation& simulation);

// What was simulated: model, layout, batch, frameworks, hardware.
std::string job_text(const JobInput& input);
// The iteration, its stages, where the time goes.
std::string simulation_text(const JobInput& input, const Simulation& simulation);
// The warnings of the job's reader, one a line; "" if there are none.
std::string warnings_text(const Job& job);

// The keys `verdict`, `iteration`, `stages` and `warnings` of a result.
void add_simulation(nlohmann::ordered_json& result, const JobInput& input,
                    const Simulation& simulation, const Verdict& verdict);
// `lanes`: the peak of each lane of each stage.
void add_lanes(nlohmann::ordered_json& result, const Simulation& simulation);

}  // namespace tidemark
