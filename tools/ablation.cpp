#include "tools/ablation.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "planner/interleaved_run.h"
#include "tools/job_input.h"
#include "tools/policy_run.h"
#include "tools/quantity_text.h"
#include "tools/run_report.h"
#include "tools/simulation_report.h"
#include "tools/text_table.h"

namespace tidemark {
namespace {

struct PlannerPart {
  const char* name;
  const char* policy;
};
constexpr PlannerPart kSteps[] = {{"full recompute", "full-recompute"},
                                  {"fine-grained actions, decided once", "fixed-plan"},
                                  {"decided while the job runs", "adaptive"},
                                  {"and interleaved", "tidemark"}};
constexpr double kWorthAWord = 1e-3;  // of an iteration

std::string change_text(const char* what, std::int64_t before, std::int64_t after,
                        std::int64_t iteration_ns) {
  const std::int64_t more = after - before;
  if (static_cast<double>(std::abs(more)) < kWorthAWord * static_cast<double>(iteration_ns)) {
    return "";
  }
  return "; " + std::string(what) + " " + duration_text(SimDuration(std::abs(more))) +
         (more > 0 ? " more" : " less");
}

// Where the time of a step's gain was.
std::string reason_text(const PolicyRun& before, const PolicyRun& after) {
  const std::int64_t ns = mean_iteration_ns(before.run);
  const StreamTimes& a = before.streams;
  const StreamTimes& b = after.streams;
  const std::string changes =
      change_text("computes", a.computing, b.computing, ns) +
      change_text("expert communication that nothing hides", a.exposed_expert_communication,
                  b.exposed_expert_communication, ns) +
      change_text("tensor communication that nothing hides", a.exposed_tensor_communication,
                  b.exposed_tensor_communication, ns) +
      change_text("copies that nothing hides", a.exposed_copies, b.exposed_copies, ns);
  return changes.empty() ? "nothing of note changes" : changes.substr(2);
}

}  // namespace

Report ablate(const Arguments& arguments) {
  JobInput input = read_job_input(arguments);
  input.job = without_combined_slots(input.job);
  RunOptions options = run_options(input.job, arguments);
  options.measures_streams = true;
  Report report;
  report.json = result_with_provenance(input.files, arguments);
  TextTable table({{"step", TextTable::Align::kLeft},
                   {"iteration"},
                   {"speed"},
                   {"out of memory"},
                   {"computing"},
                   {"expert communication"},
                   {"exposed"},
                   {"copies"},
                   {"exposed"}});
  std::string reasons;
  std::string notes;
  std::vector<PolicyRun> runs;
  for (const PlannerPart& step : kSteps) {
    runs.push_back(run_policy(input, step.policy, options));
    const PolicyRun& run = runs.back();
    const StreamTimes& t = run.streams;
    const std::int64_t ns = mean_iteration_ns(run.run);
    const std::int64_t first = mean_iteration_ns(runs.front().run);
    const bool known = ns > 0 && first > 0;
    const double speed = known ? static_cast<double>(first) / static_cast<double>(ns) : 0;
    const auto text = [](std::int64_t time) { return duration_text(SimDuration(time)); };
    table.add_row({step.name, ns > 0 ? text(ns) : "-", known ? fixed_text(speed, 3) : "-",
                   grouped_text(std::ssize(run.run.out_of_memory)), text(t.computing),
                   text(t.expert_communication), text(t.exposed_expert_communication),
                   text(t.copies), text(t.exposed_copies)});
    if (runs.size() > 1) {
      reasons += std::string(step.name) + ": " + reason_text(runs[runs.size() - 2], run) + "\n";
    }
    nlohmann::ordered_json one = {
        {"step", step.name},
        {"policy", step.policy},
        {"notes", run.notes},
        {"iteration_ns", ns},
        {"speed", known ? nlohmann::ordered_json(speed) : nullptr},
        {"out_of_memory", run.run.out_of_memory.size()},
        {"computing_ns", t.computing},
        {"tensor_communication_ns", t.tensor_communication},
        {"exposed_tensor_communication_ns", t.exposed_tensor_communication},
        {"expert_communication_ns", t.expert_communication},
        {"exposed_expert_communication_ns", t.exposed_expert_communication},
        {"copies_ns", t.copies},
        {"exposed_copies_ns", t.exposed_copies}};
    report.json["ablation"].push_back(std::move(one));
    notes += notes_text(run);
  }
  report.text = job_text(input) + "\n" + table.text() + "\n" + reasons + "\n" + notes +
                "Streams: of one card in the first iteration, mean over the stages; exposed while "
                "nothing computes.\n" +
                warnings_text(input.job);
  return report;
}

}  // namespace tidemark
