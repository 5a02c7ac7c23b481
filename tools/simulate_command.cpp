#include <nlohmann/json.hpp>

#include "planner/slot_interleaving.h"
#include "tools/chrome_trace.h"
#include "tools/command.h"
#include "tools/job_input.h"
#include "tools/named_policy.h"
#include "tools/output_file.h"
#include "tools/policy_run.h"
#include "tools/run_report.h"
#include "tools/simulation_report.h"
#include "traces/routing.h"

namespace tidemark {
namespace {

void write_trace(const std::string& path, const Job& job, const Simulation& simulation) {
  OutputFile file(path);
  write_chrome_trace(file.stream(), job, simulation);
  file.commit();
}

// Routing that differs from card to card, or many iterations.
Report run_whole(const JobInput& given, const RunOptions& options, const Arguments& arguments) {
  for (const char* flag : {"lanes", "trace"}) {
    if (arguments.has(flag)) {
      throw InputError("", std::string("--") + flag, "given",
                       "one iteration of balanced routing beside it");
    }
  }
  const std::string policy = arguments.text("policy").value_or("as-given");
  const PolicyRun run = run_policy(given, policy, options);
  Report report;
  report.exit = exit_of(run.run);
  report.json = result_with_provenance(run.input.files, arguments);
  add_run(report.json, run.input, run.run);
  report.json["notes"] = run.notes;
  if (run.decisions) report.json["decisions"] = to_json(*run.decisions);
  report.text = run_text(run.input, run.run) + "\n" + notes_text(run) + job_text(run.input) +
                warnings_text(run.input.job);
  return report;
}

Report run_simulate(const Arguments& arguments) {
  const JobInput input = read_job_input(arguments);
  RunOptions options = run_options(input.job, arguments);
  options.memory_csv = arguments.text("memory-csv").value_or("");
  if (options.spec.iterations > 1 || arguments.has("policy") || arguments.has("memory-csv") ||
      !cards_are_alike(input.job, routing_input(input.job))) {
    return run_whole(input, options, arguments);
  }
  const Simulation simulation = simulate(input.job, input.profile, balanced_routing(input.job),
                                         ordered_program(input.job, input.profile));
  const Verdict verdict = judge(input, simulation);
  if (const auto path = arguments.text("trace")) write_trace(*path, input.job, simulation);

  Report report;
  report.exit = verdict.exit();
  report.json = result_with_provenance(input.files, arguments);
  add_simulation(report.json, input, simulation, verdict);
  if (arguments.has("lanes")) add_lanes(report.json, simulation);
  report.text = verdict.text + "\n\n" + job_text(input) + "\n" +
                simulation_text(input, simulation) + warnings_text(input.job);
  return report;
}

}  // namespace

Command simulate_command() {
  std::vector<Flag> flags = job_flags();
  for (Flag& flag : run_flags()) flags.push_back(std::move(flag));
  flags.push_back({"policy", "POLICY", policies_help()});
  flags.push_back(
      {"memory-csv", "FILE", "write the peak allocated of every card in every iteration of a run"});
  flags.push_back({"lanes", "", "add the peak of every lane (card of a stage) to the JSON result"});
  flags.push_back({"trace", "FILE",
                   "write the iteration for chrome://tracing or ui.perfetto.dev: one lane of each "
                   "stage, its streams, memory and transfers"});
  return {"simulate", "JOB.json | --megatron-args FILE --hardware NAME",
          "one training iteration, or a run of many under the job's routing: does it fit, how long "
          "does "
          "it take, what holds the memory",
          std::move(flags), run_simulate};
}

}  // namespace tidemark
